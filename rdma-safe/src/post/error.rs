//! Why a post was refused, and what comes back with it.

#![forbid(unsafe_code)]

use crate::payload::Payload;
use crate::slot::Slot;
use std::fmt;

/// Reason of a [`PostError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// As many requests are in flight as the queue is deep: redeem completions (and `reclaim`) first.
    Full,
    /// Longer than the memory posted, or than `max_inline` for an inline send, or than 2 GiB.
    TooLong,
    /// A read of no bytes, or a list without pieces: devices understand them differently.
    Empty,
    /// Longer than the [`RemoteRange`](crate::RemoteRange) it names.
    OutOfRange,
    /// An atomic whose remote address is no multiple of 8, or with another length than 8.
    Misaligned,
    /// More pieces than the queue pair (`max_send_sge`, `max_recv_sge`) or, for a read, the device can.
    TooManyPieces,
    /// This sort of memory cannot do that: shared memory is never written, and on iWARP a read needs a
    /// [`RemoteSlot`](crate::RemoteSlot) (RFC 5040 5.2: the peer's device writes it).
    WrongMemory,
    /// What was added to the request does not go with it: immediate data with a read, or together with an invalidation,
    /// an address on a connected queue pair, a part of a list, a window that is not bound or whose queue pair is
    /// gone, a region without the right.
    WrongRequest,
    /// The queue pair is not in a state for this: receives need INIT, sends an established connection.
    NotConnected,
    /// The kind of queue pair has no such operation: a datagram needs an address, UC has no reads, XRC has no receives
    /// of its own, and neither has what receives from a shared queue.
    WrongKind,
    /// The device has no such operation: see its [`Caps`](crate::Caps) for immediate data, atomics and windows.
    NotSupported,
    /// The queue pair has failed; close it.
    Broken,
    /// The memory, window or address handle belongs to another protection domain.
    WrongDomain,
    /// The group has no such queue pair (any more).
    NoSuchQp,
    /// The device failed the post with this errno. The queue pair keeps what was posted and has failed.
    Device(i32),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Full => "the queue is full: redeem completions first or make it deeper",
            Why::TooLong => "longer than the memory posted, or than an inline send may be (QueuePair::max_inline; QpConfig asks for more)",
            Why::Empty => "a read of no bytes, or a list without pieces",
            Why::OutOfRange => "longer than the remote memory it names",
            Why::Misaligned => "an atomic needs 8 bytes at a remote address that is a multiple of 8",
            Why::TooManyPieces => {
                "more pieces than the queue pair was made for (max_send_sge, max_recv_sge) or the device can read into"
            }
            Why::WrongMemory => {
                "memory of this sort cannot do that: shared memory is not written, and iWARP reads into a RemoteSlot"
            }
            Why::WrongRequest => "what was added to the request does not go with it",
            Why::NotConnected => {
                "not connected yet: receives need INIT (init_qp of rdma-cm), sends an established connection"
            }
            Why::WrongKind => "this kind of queue pair has no such operation",
            Why::NotSupported => "this device has no such operation: see Context::caps",
            Why::Broken => "the queue pair has failed: close it",
            Why::WrongDomain => "the memory belongs to another protection domain",
            Why::NoSuchQp => "no such queue pair in this group",
            Why::Device(e) => {
                let e = std::io::Error::from_raw_os_error(*e);
                return write!(
                    f,
                    "the device failed it ({e}): the queue pair keeps the memory and has to be closed"
                );
            }
        })
    }
}

/// A refused post. What was to be posted is in it if the device never saw it. Nothing was allocated to make it.
#[derive(Debug, thiserror::Error)]
#[error("post refused: {why}")]
#[must_use = "it may hold the slot"]
pub struct PostError {
    /// What was wrong.
    pub why: Why,
    /// The slot, if the device never saw it.
    pub slot: Option<Slot>,
    /// What was to be posted, if it was something else than a slot, and the device never saw it.
    pub payload: Option<Payload>,
}

impl PostError {
    #[inline(always)]
    pub(crate) fn of_slot(why: Why, slot: Option<Slot>) -> PostError {
        PostError { why, slot, payload: None }
    }

    #[cold]
    pub(crate) fn of(why: Why, payload: Option<Payload>) -> PostError {
        match payload.map(Payload::into_slot) {
            None => PostError::of_slot(why, None),
            Some(Ok(slot)) => PostError::of_slot(why, Some(slot)),
            Some(Err(payload)) => PostError { why, slot: None, payload: Some(payload) },
        }
    }

    /// What was to be posted, of whatever kind, if the device never saw it.
    pub fn into_payload(self) -> Option<Payload> {
        self.payload.or(self.slot.map(Payload::from))
    }
}

/// A batch that ended early.
#[derive(Debug, thiserror::Error)]
#[error("after {posted} requests: {error}")]
#[must_use = "it may hold memory"]
pub struct BatchError {
    /// Requests that were posted before; the device has them. Those not yet taken from the iterator are still in it.
    pub posted: usize,
    /// The request that was refused, and why. With [`Why::Device`] the queue pair keeps it.
    pub error: PostError,
    /// What the requests after it held that the device never saw.
    pub unseen: Vec<Payload>,
}

impl BatchError {
    pub(crate) fn no_such_qp() -> BatchError {
        let error = PostError::of_slot(Why::NoSuchQp, None);
        BatchError { posted: 0, error, unseen: Vec::new() }
    }
}
