//! One-sided operations: put, get, atomics and fences, which need no receive and no credit.
//!
//! # Order
//! Messages of lane 0 (at most [`Engine::eager_limit`](crate::Engine::eager_limit) bytes of payload) and one-sided
//! operations of one peer form **one sequence, on one queue pair**: what is given to the engine first is given to the
//! device first. From this follows, on every transport:
//!
//! - A message of lane 0 that is sent after a put is received after the bytes of the put are in place. It need not wait
//!   for the put's [`Done`](crate::Event::Done).
//! - Messages on other lanes (longer ones) are **not** ordered with puts: first tell the peer with a message of lane 0,
//!   or wait for a [`fence`](crate::Engine::fence).
//! - A put, get or atomic may overtake an earlier *get or atomic* at the peer: where that matters, wait for the earlier
//!   one, or put a fence between.
//!
//! # What a completed operation promises
//! | | InfiniBand, RoCE ([`RmaCaps::placed`]) | iWARP |
//! |---|---|---|
//! | put | the bytes are in the peer's memory | the memory **here** may be used again; nothing is known of the peer (RFC 5040 5.5, 9) |
//! | get | the bytes are here | the same |
//! | atomic | done, and the old value is here | devices have none |
//! | fence | all that was started before it is done at both ends | the same |
//!
//! So on iWARP a put that is `Done` may be on its way still, and whoever tells the peer of it by another route than
//! lane 0 tells it too early. The peer must not look for the bytes itself ("no peeking", RFC 5040 5.5, 5): it waits for
//! the message.
//!
//! # Lengths
//! 1 to 2^63 bytes. What is longer than one request of the device can be ([`RmaCaps::max_piece`]) is cut into pieces,
//! one after the other; memory that cannot be cut ([`Port::check_memory`](crate::port::Port::check_memory)) is refused
//! with the limit.
use crate::error::PeerFault;

/// Longest operation, in bytes.
pub const MAX_LEN: u64 = 1 << 63;

/// A piece of memory that a peer shares: address, length and key, as its owner told them in a message of its own.
///
/// It is only a name. One that is wrong or made up is refused by the device that owns the memory, which ends the
/// connection to whoever used it; no memory here is touched through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRange {
    /// Address of the first byte, as the owner's device knows it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The owner's key.
    pub rkey: u32,
}

impl RemoteRange {
    /// Bytes of the form on the wire.
    pub const WIRE_LEN: usize = 20;

    /// `len` bytes from `offset` on; `None` when they are not all within, or their addresses wrap.
    pub fn slice(self, offset: u64, len: u64) -> Option<RemoteRange> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len)?;
        self.addr.checked_add(end)?;
        Some(RemoteRange { addr: self.addr.checked_add(offset)?, len, rkey: self.rkey })
    }

    /// To tell a peer: address, length, key, each big endian.
    pub fn to_bytes(self) -> [u8; Self::WIRE_LEN] {
        let mut out = [0; Self::WIRE_LEN];
        let (addr, rest) = out.split_at_mut(8);
        let (len, rkey) = rest.split_at_mut(8);
        addr.copy_from_slice(&self.addr.to_be_bytes());
        len.copy_from_slice(&self.len.to_be_bytes());
        rkey.copy_from_slice(&self.rkey.to_be_bytes());
        out
    }

    /// What a peer told with [`to_bytes`](Self::to_bytes). Every value is accepted, see the type.
    pub fn from_bytes(bytes: &[u8; Self::WIRE_LEN]) -> RemoteRange {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, rkey @ ..] = *bytes;
        RemoteRange {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            len: u64::from_be_bytes([i, j, k, l, m, n, o, p]),
            rkey: u32::from_be_bytes(rkey),
        }
    }
}

/// What the device can do one-sided, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaCaps {
    /// Puts.
    pub put: bool,
    /// Gets.
    pub get: bool,
    /// Atomics of 8 bytes.
    pub atomics: bool,
    /// A hint for whoever can choose between a get and the other side's put: gets are as fast as puts. Where they are
    /// not (iWARP: a request travels first, and the answer is cut by the number of reads allowed), prefer puts.
    pub get_is_fast: bool,
    /// A put that is [`Done`](crate::Event::Done) is in the peer's memory. `false` on iWARP.
    pub placed: bool,
    /// Bytes of the longest single request of the device.
    pub max_piece: u64,
}

impl RmaCaps {
    /// Nothing.
    pub const NONE: RmaCaps = RmaCaps {
        put: false,
        get: false,
        atomics: false,
        get_is_fast: false,
        placed: false,
        max_piece: 0,
    };
}

/// An atomic on 8 bytes of a peer, at an address that is a multiple of 8. Values are in host order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, wrapping.
    FetchAdd {
        /// What.
        add: u64,
    },
    /// Puts `swap` there if `compare` is there.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What shall be there then.
        swap: u64,
    },
}

/// What a device is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Write to the peer's memory.
    Put,
    /// Read it.
    Get,
    /// Change it, and fetch what was there.
    Atomic(Atomic),
}

impl Verb {
    /// Whether it counts against the reads a queue pair may have outstanding, and writes to the memory here.
    pub fn reads(self) -> bool {
        self != Verb::Put
    }
}

/// One request for a device: a whole operation, or a piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaPost {
    /// What.
    pub verb: Verb,
    /// Names the operation: comes back with the memory ([`Port::take_memory`](crate::port::Port::take_memory)).
    pub token: u32,
    /// Offset within the memory here, in bytes.
    pub offset: u64,
    /// Bytes, at least 1 and at most [`RmaCaps::max_piece`].
    pub len: u64,
    /// The peer's memory, exactly `len` bytes of it.
    pub remote: RemoteRange,
}

/// Why a one-sided operation was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RmaErrorKind {
    /// The peer failed before.
    #[error("{0}")]
    Failed(PeerFault),
    /// The peer was removed, or the engine is closing.
    #[error("the peer was removed or the engine is closing")]
    Closing,
    /// As many operations are under way as [`Config::rma_ops`](crate::Config::rma_ops) allows: poll, then try again.
    #[error("as many one-sided operations are under way as rma_ops allows; poll and try again")]
    Busy,
    /// The device does not have it; see [`Engine::rma_caps`](crate::Engine::rma_caps).
    #[error("the device has no {what}; ask rma_caps first, and use messages instead")]
    NotSupported {
        /// What it does not have.
        what: &'static str,
    },
    /// No bytes: devices understand that differently.
    #[error("an operation of no bytes")]
    Empty,
    /// Longer than it may be.
    #[error("{len} bytes, but an operation with this memory has at most {max}")]
    TooLong {
        /// Asked for.
        len: u64,
        /// The most there is.
        max: u64,
    },
    /// Not within the peer's memory.
    #[error("{len} bytes are more than the {room} of the peer's memory, or its addresses wrap")]
    OutOfRange {
        /// Asked for.
        len: u64,
        /// What the remote range has.
        room: u64,
    },
    /// An atomic at an address that is no multiple of 8.
    #[error("an atomic at {addr:#x}, which is no multiple of 8")]
    Misaligned {
        /// Where.
        addr: u64,
    },
    /// The memory here cannot be used so.
    #[error("the memory here cannot be used for it: {why}")]
    WrongMemory {
        /// Why.
        why: &'static str,
    },
}

/// A one-sided operation that was not taken, with its memory.
pub struct RmaError<M> {
    /// Why.
    pub kind: RmaErrorKind,
    /// The memory, untouched.
    pub memory: M,
}

impl<M> std::fmt::Debug for RmaError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RmaError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<M> std::fmt::Display for RmaError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind.fmt(f)
    }
}

impl<M> std::error::Error for RmaError<M> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside_and_do_not_wrap() {
        let r = RemoteRange { addr: 100, len: 10, rkey: 1 };
        assert_eq!(r.slice(0, 10), Some(r));
        assert_eq!(r.slice(4, 6), Some(RemoteRange { addr: 104, len: 6, rkey: 1 }));
        for (offset, len) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(r.slice(offset, len), None, "{len} at {offset}");
        }
        assert_eq!(RemoteRange { addr: u64::MAX - 3, len: 10, rkey: 1 }.slice(0, 10), None);
    }

    #[test]
    fn the_wire_form_comes_back() {
        let r = RemoteRange { addr: 0x0102_0304_0506_0708, len: 9, rkey: 0x0a0b_0c0d };
        let bytes = r.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12, 13]);
        assert_eq!(RemoteRange::from_bytes(&bytes), r);
    }
}
