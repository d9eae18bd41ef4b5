//! Buffers of a queue pair in the user's hands: each goes back by itself.

#![forbid(unsafe_code)]

use super::QueueError;
use super::queue_pair::Shared;
use super::state::Received;
use crate::slot::Slot;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A message that was received. Dereferences to its bytes; its buffer is posted again when this is dropped.
#[must_use = "dropping it drops the message"]
pub struct Message {
    /// `None` only while being dropped.
    slot: Option<Slot>,
    len: usize,
    imm: Option<u32>,
    home: Arc<Shared>,
}

impl Message {
    pub(super) fn new(received: Received, home: &Arc<Shared>) -> Message {
        let Received { slot, len, imm } = received;
        Message { slot: Some(slot), len, imm, home: Arc::clone(home) }
    }

    /// Immediate data that came with it, in host order. A write with immediate data is a message without bytes.
    pub fn imm(&self) -> Option<u32> {
        self.imm
    }
}

impl Deref for Message {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.as_deref().and_then(|slot| slot.get(..self.len)).unwrap_or_default()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.home.lock().recycle(slot);
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.len)
    }
}

/// A send buffer with room in the send queue. Dereferences to its whole capacity; dropping it sends nothing.
#[must_use = "nothing is sent before `send` is called"]
pub struct SendBuffer {
    /// `None` only while being dropped.
    slot: Option<Slot>,
    home: Arc<Shared>,
}

impl SendBuffer {
    pub(super) fn new(slot: Slot, home: &Arc<Shared>) -> SendBuffer {
        SendBuffer { slot: Some(slot), home: Arc::clone(home) }
    }

    /// Sends the first `len` bytes. Does not wait; [`flush`](super::AsyncQueuePair::flush) tells when it is done.
    ///
    /// # Errors
    /// [`QueueError::Refused`] when `len` is more than the capacity or the queue pair is not connected;
    /// [`QueueError::Failed`] when it has failed; [`QueueError::Closed`].
    pub fn send(mut self, len: usize) -> Result<(), QueueError> {
        match self.slot.take() {
            Some(slot) => self.home.lock().send(slot, len),
            None => Err(QueueError::Closed),
        }
    }
}

impl Deref for SendBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.as_deref().unwrap_or_default()
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.home.lock().free.push(slot);
            self.home.fd.wake_all();
        }
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBuffer({} bytes)", self.len())
    }
}
