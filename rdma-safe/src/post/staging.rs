//! Requests that are in the table and not yet with the device.

#![forbid(unsafe_code)]

use super::error::{BatchError, PostError};

/// Requests handed to the device at once.
pub(crate) const CHUNK: usize = 16;

/// Ids of a chunk in the making. Dropped before it is handed over, as when the caller's iterator panics, it takes the
/// requests out of the table again: the device has seen nothing of them, so nobody else ever would.
pub(crate) struct Staging<'q, Q> {
    pub(crate) queue: &'q mut Q,
    ids: [u64; CHUNK],
    count: usize,
    undo: fn(&mut Q, &[u64]),
}

impl<'q, Q> Staging<'q, Q> {
    pub(crate) fn new(queue: &'q mut Q, undo: fn(&mut Q, &[u64])) -> Staging<'q, Q> {
        Staging { queue, ids: [0; CHUNK], count: 0, undo }
    }

    pub(crate) fn push(&mut self, id: u64) {
        if let Some(place) = self.ids.get_mut(self.count) {
            *place = id;
            self.count += 1;
        }
    }

    /// The chunk is complete; how many it is.
    pub(crate) fn done(mut self) -> usize {
        std::mem::take(&mut self.count)
    }
}

impl<Q> Drop for Staging<'_, Q> {
    fn drop(&mut self) {
        if let Some(ids @ [_, ..]) = self.ids.get(..self.count) {
            (self.undo)(self.queue, ids);
        }
    }
}

/// How the making of a chunk ended: not at all, with the iterator, or with a request that was refused.
pub(crate) type End = Option<Result<(), PostError>>;

/// The device failed a chunk after `posted` others. A request that had ended the chunk comes back too.
#[cold]
pub(crate) fn chunk_failed(posted: usize, mut failed: BatchError, end: End) -> BatchError {
    failed.posted += posted;
    if let Some(Err(refused)) = end {
        failed.unseen.extend(refused.into_payload());
    }
    failed
}
