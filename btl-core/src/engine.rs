//! The engine: peers, lanes and messages. See the crate's front page for the words.
use crate::config::Config;
use crate::error::{AllocError, Error, PeerFault, SendError};
use crate::names::{LaneId, Nanos, PeerId, ProcName};
use crate::port::{Cm, Port};
use crate::stats::Stats;
use crate::wire::HEADER;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// A send buffer. Dereferences to exactly the payload.
#[derive(Debug)]
#[must_use = "a buffer that is not sent must be given back with Engine::free"]
pub struct SendBuf<S> {
    slot: S,
    class: u8,
    len: usize,
}

/// A received message that owns its buffer. Dereferences to exactly the payload.
#[derive(Debug)]
#[must_use = "Engine::release posts the buffer again and returns the credit"]
pub struct RecvBuf<S> {
    slot: S,
    len: usize,
    #[allow(dead_code)]
    lane: LaneId,
}

impl<S: Deref<Target = [u8]>> SendBuf<S> {
    /// Payload bytes this buffer can hold.
    pub fn capacity(&self) -> usize {
        self.slot.len().saturating_sub(HEADER)
    }

    /// Sets the payload's length, at most [`capacity`](SendBuf::capacity).
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// The lane class it will travel on.
    pub fn class(&self) -> u8 {
        self.class
    }
}

impl<S: Deref<Target = [u8]>> Deref for SendBuf<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.get(HEADER..HEADER + self.len).unwrap_or(&[])
    }
}

impl<S: DerefMut<Target = [u8]>> DerefMut for SendBuf<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.get_mut(HEADER..HEADER + self.len).unwrap_or(&mut [])
    }
}

impl<S: Deref<Target = [u8]>> Deref for RecvBuf<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.get(HEADER..HEADER + self.len).unwrap_or(&[])
    }
}

/// What became of a message given to [`Engine::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The device has it.
    Posted,
    /// It waits for a connection, a credit, or a place in the send queue.
    Queued,
}

/// What [`Engine::poll`] reports. Events own their buffers, so any call may be made between.
#[derive(Debug)]
pub enum Event<S> {
    /// A message arrived. Give `buf` to [`Engine::release`] soon.
    Message {
        /// From whom.
        peer: PeerId,
        /// The tag it was sent with.
        tag: u8,
        /// The message.
        buf: RecvBuf<S>,
    },
    /// A message given to [`Engine::send`] has left, or never will. Exactly one for each.
    Sent {
        /// To whom.
        peer: PeerId,
        /// As given.
        cookie: u64,
        /// The buffer; `None` only if the device would not let it go.
        buf: Option<SendBuf<S>>,
        /// Whether it left.
        result: Result<(), PeerFault>,
    },
    /// The first lane of a peer works in both directions.
    PeerConnected {
        /// Who.
        peer: PeerId,
        /// Its name.
        name: ProcName,
    },
    /// A process that was not added connected; it is a peer now.
    NewPeer {
        /// Who.
        peer: PeerId,
        /// Its name.
        name: ProcName,
    },
    /// A peer failed. Comes once, after the `Sent` of everything that waited for it; nothing of
    /// the peer comes after it.
    PeerFailed {
        /// Who.
        peer: PeerId,
        /// Why.
        fault: PeerFault,
    },
    /// The close that was asked for is complete. Nothing comes after it.
    Closed,
}

/// The transport of one process over one port.
pub struct Engine<P: Port, C: Cm<Qp = P::Qp>> {
    config: Config,
    port: P,
    #[allow(dead_code)]
    cm: C,
    stats: Stats,
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// # Errors
    /// A value of `config` is out of range.
    pub fn new(config: Config, port: P, cm: C) -> Result<Self, Error> {
        config.validate()?;
        Ok(Engine { config, port, cm, stats: Stats::default() })
    }

    /// Makes a process a peer. Nothing is sent; it is connected when a message needs it. A peer
    /// that was added before, or connected by itself, keeps its id and gets these addresses.
    ///
    /// # Errors
    /// It is this process, has no address, or there are too many peers.
    pub fn add_peer(&mut self, name: ProcName, addrs: &[SocketAddr]) -> Result<PeerId, Error> {
        let _ = (name, addrs);
        Err(Error::Closing)
    }

    /// Closes the connections to a peer in an orderly way and forgets it. From now on a
    /// disconnect by it is normal.
    pub fn remove_peer(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// Payload bytes of the largest message of a lane class; 0 if there is none.
    pub fn max_payload(&self, class: u8) -> usize {
        self.config.max_payload(class)
    }

    /// Payload bytes up to which all messages to a peer share lane 0 and stay in order.
    pub fn eager_limit(&self) -> usize {
        self.config.max_payload(0)
    }

    /// Payload bytes of the largest message.
    pub fn max_send_size(&self) -> usize {
        self.config.max_payload(self.config.lanes.len() as u8 - 1)
    }

    /// A buffer for a message of `len` bytes, of the smallest class that fits.
    ///
    /// # Errors
    /// [`AllocError`]: too long, or all are in use for now.
    pub fn alloc(&mut self, len: usize) -> Result<SendBuf<P::Slot>, AllocError> {
        let max = self.max_send_size();
        let class = self.config.class_for(len).ok_or(AllocError::TooLong { len, max })?;
        let slot = self.port.send_slot(class).ok_or(AllocError::Busy)?;
        Ok(SendBuf { slot, class, len })
    }

    /// Gives an unsent (or sent and completed) buffer back.
    pub fn free(&mut self, buf: SendBuf<P::Slot>) {
        self.port.recycle(buf.slot);
    }

    /// Sends a message. Messages of one lane class to one peer arrive in order. May be called at
    /// any time, also between [`poll`](Engine::poll) and [`release`](Engine::release).
    ///
    /// # Errors
    /// [`SendError`]: not taken; the buffer comes back.
    pub fn send(
        &mut self,
        peer: PeerId,
        tag: u8,
        buf: SendBuf<P::Slot>,
        cookie: u64,
    ) -> Result<Sent, SendError<SendBuf<P::Slot>>> {
        let _ = (peer, tag, cookie);
        Err(SendError { kind: crate::error::SendErrorKind::Closing, buf })
    }

    /// The next event. `now`: the caller's monotonic clock, may be coarse.
    pub fn poll(&mut self, now: Nanos) -> Option<Event<P::Slot>> {
        let _ = now;
        None
    }

    /// Posts a received buffer again and returns its credit to the peer.
    pub fn release(&mut self, buf: RecvBuf<P::Slot>) {
        let _ = buf;
    }

    /// Starts an orderly close of everything; poll until [`Event::Closed`], which comes after
    /// `t_close` at the latest (twice that if the connection manager hangs).
    pub fn close(&mut self, now: Nanos) {
        let _ = now;
    }

    /// Whether connects are under way or messages wait: a driver that shares a CPU with the
    /// peer or the connection manager should yield on an empty poll.
    pub fn busy(&self) -> bool {
        false
    }

    /// What was done so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The port, for reports.
    pub fn port(&self) -> &P {
        &self.port
    }
}
