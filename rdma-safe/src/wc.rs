//! Completions: linear values made only by polling.

#![forbid(unsafe_code)]

use crate::ring::{self, Kind};
use crate::slot::Slot;
use rdma_sys::*;
use std::fmt;

/// Outcome of a work request (ibv_poll_cq(3)); unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

impl WcStatus {
    /// It worked.
    pub const SUCCESS: WcStatus = WcStatus(0);
    /// The message was longer than the receive buffer, or a local length was wrong.
    pub const LOC_LEN_ERR: WcStatus = WcStatus(1);
    /// A local key or address was invalid.
    pub const LOC_PROT_ERR: WcStatus = WcStatus(4);
    /// The queue pair was already in the error state; the request was not carried out or its outcome is unknown.
    pub const WR_FLUSH_ERR: WcStatus = WcStatus(5);
    /// The peer refused access to its memory.
    pub const REM_ACCESS_ERR: WcStatus = WcStatus(10);
    /// The peer does not answer.
    pub const RETRY_EXC_ERR: WcStatus = WcStatus(12);
    /// The peer has no receive posted, and retries are used up.
    pub const RNR_RETRY_EXC_ERR: WcStatus = WcStatus(13);

    /// It worked.
    #[inline]
    pub fn is_ok(self) -> bool {
        self.0 == 0
    }

    fn name(self) -> &'static str {
        match self.0 {
            0 => "success",
            1 => "local length error",
            2 => "local QP operation error",
            4 => "local protection error: the memory region or its key is not valid here",
            5 => "flushed: the queue pair had already failed or was being destroyed",
            6 => "memory window bind error",
            7 => "bad response from the peer",
            8 => "local access error",
            9 => "invalid request at the peer",
            10 => "remote access error: wrong key, address or right",
            11 => "remote operation error",
            12 => "transport retries used up: the peer does not answer",
            13 => "receiver-not-ready retries used up: the peer has no receive posted",
            21 => "general error",
            _ => "unknown status",
        }
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WcStatus({}: {})", self.0, self.name())
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Which queue a request was on. Derived from our own request id: `ibv_wc.opcode` is invalid on errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Send queue.
    Send,
    /// Receive queue.
    Recv,
}

/// One completion, not yet redeemed. Only [`poll`](crate::CompletionQueue::poll) makes a live one.
///
/// It is linear: neither `Copy` nor `Clone`, and redeeming spends it. So a slot cannot be had twice.
///
/// ```compile_fail,E0599
/// # fn f(wc: rdma_safe::Wc) {
/// let again = wc.clone();
/// # }
/// ```
///
/// Dropping or overwriting a live one loses nothing but time: its slot stays with the queue pair and comes back when
/// that is closed.
#[repr(transparent)]
pub struct Wc(pub(crate) ibv_wc);

static_assertions::assert_eq_size!(Wc, ibv_wc);
static_assertions::assert_not_impl_any!(Wc: Copy, Clone);
static_assertions::assert_impl_all!(Wc: Send);

impl Wc {
    /// A spent completion, to fill the array given to `poll`.
    pub fn empty() -> Wc {
        Wc(ibv_wc::default())
    }

    /// The outcome. Meaningless (success) when [`is_spent`](Self::is_spent).
    #[inline]
    pub fn status(&self) -> WcStatus {
        WcStatus(self.0.status.0)
    }

    /// Serial of the queue pair that can redeem it ([`QueuePair::serial`](crate::QueuePair::serial)).
    #[inline]
    pub fn serial(&self) -> u64 {
        ring::serial_of(self.0.wr_id)
    }

    /// Which queue the request was on; `None` when spent.
    #[inline]
    pub fn op(&self) -> Option<Op> {
        match ring::kind_of(self.0.wr_id) {
            Some(Kind::Send) => Some(Op::Send),
            Some(Kind::Recv) => Some(Op::Recv),
            None => None,
        }
    }

    /// Whether it was redeemed already (or never live).
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.0.wr_id == ring::NO_ID
    }

    #[inline(always)]
    pub(crate) fn spend(&mut self) {
        self.0.wr_id = ring::NO_ID;
    }
}

impl Default for Wc {
    fn default() -> Wc {
        Wc::empty()
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wc")
            .field("serial", &self.serial())
            .field("op", &self.op())
            .field("status", &self.status())
            .finish()
    }
}

/// A redeemed completion.
#[derive(Debug)]
#[non_exhaustive]
pub struct Done {
    /// The slot that was posted; `None` for [`post_inline`](crate::QueuePair::post_inline).
    pub slot: Option<Slot>,
    /// Which queue it was on.
    pub op: Op,
    /// The outcome.
    pub status: WcStatus,
    /// Bytes received, at most the slot's capacity; 0 for sends and failures, where the device does not say.
    pub byte_len: usize,
    /// The driver's own error number, for reports.
    pub vendor_err: u32,
}
