//! Requests of every kind, awaited: writes, reads, atomics, sends of one's own memory.
//!
//! What a request names belongs to the queue pair from the post on, and never to a future: a [`Pending`] that is dropped
//! leaves it there, and when the request has completed it is among the [abandoned](AsyncQueuePair::take_abandoned).

#![forbid(unsafe_code)]

use super::queue_pair::{AsyncQueuePair, Shared};
use super::{QueueError, RequestError};
use crate::payload::Payload;
use crate::post::Request;
use crate::wc::Done;
use std::fmt;
use std::sync::Arc;

/// The right to post one [`Request`]. Dropping it gives it back.
#[must_use = "nothing is posted before `post` is called"]
pub struct Room {
    /// `None` once it is used.
    home: Option<Arc<Shared>>,
}

impl Room {
    /// Posts the request. Does not wait. The flag [`UNSIGNALLED`](crate::SendFlags::UNSIGNALLED) is ignored: its
    /// completion is what is awaited.
    ///
    /// # Errors
    /// [`RequestError`] with what was to be posted, if the device never saw it.
    pub fn post(mut self, request: Request<'_>) -> Result<Pending, RequestError> {
        let Some(home) = self.home.take() else {
            return Err(RequestError { why: QueueError::Closed, payload: request.payload });
        };
        let posted = home.lock().request(request);
        home.fd.wake_all();
        posted.map(|id| Pending { id: Some(id), home })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.lock().room += 1;
            home.fd.wake_all();
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

/// A request that was posted. Dropping it does not take the request back.
pub struct Pending {
    /// `None` once the outcome was taken.
    id: Option<u64>,
    home: Arc<Shared>,
}

impl Pending {
    /// Waits for the completion, which holds what was posted; **look at its status**. Cancel-safe: it can be called again
    /// until it has returned the completion.
    ///
    /// # Errors
    /// [`QueueError::Failed`] when the queue pair has failed and this request has not completed, and
    /// [`QueueError::Closed`]: what was posted is among the [abandoned](AsyncQueuePair::take_abandoned) when the queue pair
    /// is closed. [`QueueError::Refused`] when the completion was taken already.
    pub async fn done(&mut self) -> Result<Done, QueueError> {
        let Some(id) = self.id else { return Err(QueueError::Refused(crate::Why::Broken)) };
        let queue = AsyncQueuePair::of(&self.home);
        let done = queue.wait(|state| state.done(id), false).await?;
        self.id = None;
        Ok(done)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.home.lock().abandon(id);
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({:?})", self.id)
    }
}

impl AsyncQueuePair {
    /// Room for one request, of the [`requests`](super::AsyncConfig::requests) there can be at once. Cancel-safe.
    ///
    /// ```no_run
    /// # use rdma_safe::{*, aio::*};
    /// # async fn f(queue: AsyncQueuePair, slot: Slot, theirs: RemoteRange) -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// let mut write = queue.room().await?.post(Request::write(slot, 4096, theirs))?;
    /// let done = write.done().await?;
    /// assert!(done.status.is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn room(&self) -> Result<Room, QueueError> {
        self.wait(|state| state.take_room(), true).await?;
        Ok(Room { home: Some(self.shared()) })
    }

    /// What requests held whose [`Pending`] was dropped, as far as they have completed; after [`close`](Self::close) the
    /// rest, but for slots, which that returns.
    pub fn take_abandoned(&self) -> Vec<Payload> {
        std::mem::take(&mut self.shared().lock().abandoned)
    }
}
