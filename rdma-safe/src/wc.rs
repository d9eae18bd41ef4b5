//! Completions: linear values made only by polling.

#![forbid(unsafe_code)]

use crate::ah::{GRH_SIZE, Origin};
use crate::payload::Payload;
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
            1 => {
                "local length error: the message was longer than what was posted for it (a datagram has 40 bytes in front)"
            }
            2 => {
                "local QP operation error: the device could not do it; soft RoCE says so of a message longer than the receive"
            }
            4 => "local protection error: the memory region or its key is not valid here",
            5 => "flushed: the queue pair had failed before, or the connection has ended",
            6 => "memory window bind error",
            7 => "bad response from the peer",
            8 => "local access error",
            9 => {
                "invalid request at the peer: it was longer than the receive there, or not allowed"
            }
            10 => {
                "remote access error: the peer's region has another key, other bounds or not this right, or is gone; ask it again"
            }
            11 => {
                "remote operation error: the peer could not do it; was its receive shorter than the message?"
            }
            12 => {
                "transport retries used up: the peer does not answer; it or its network is gone, so connect anew"
            }
            13 => {
                "receiver-not-ready retries used up: the peer posted no receive in time; post more there, or allow more retries"
            }
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

/// What a request was. Derived from what we posted: `ibv_wc.opcode` is invalid on errors, and read only of a receive
/// that worked, to tell who took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// A send, with or without immediate data.
    Send,
    /// A receive that a send took, or that failed.
    Recv,
    /// A receive that a write with immediate data took: its memory is untouched.
    RecvWithImm,
    /// An RDMA write, with or without immediate data.
    Write,
    /// An RDMA read.
    Read,
    /// An atomic compare and swap.
    CompareSwap,
    /// An atomic fetch and add.
    FetchAdd,
    /// The binding of a memory window.
    Bind,
    /// A local invalidation of a memory window.
    LocalInvalidate,
}

impl Op {
    /// Whether it was on a receive queue.
    #[inline]
    pub fn is_recv(self) -> bool {
        matches!(self, Op::Recv | Op::RecvWithImm)
    }
}

/// Which sort of queue a completion is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Queue {
    /// A queue pair's send queue.
    Send,
    /// A queue pair's receive queue.
    Recv,
    /// A shared receive queue.
    SharedRecv,
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

    /// Serial of the queue pair or shared receive queue that can redeem it
    /// ([`QueuePair::serial`](crate::QueuePair::serial),
    /// [`SharedReceiveQueue::serial`](crate::SharedReceiveQueue::serial)).
    #[inline]
    pub fn serial(&self) -> u64 {
        ring::serial_of(self.0.wr_id)
    }

    /// Which sort of queue the request was on; `None` when spent.
    #[inline]
    pub fn queue(&self) -> Option<Queue> {
        ring::kind_of(self.0.wr_id).map(|kind| match kind {
            Kind::Send => Queue::Send,
            Kind::Recv => Queue::Recv,
            Kind::SharedRecv => Queue::SharedRecv,
        })
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
            .field("queue", &self.queue())
            .field("status", &self.status())
            .finish()
    }
}

/// What a received message carried beside its bytes, and where it came from.
///
/// In [`Done::extra`](crate::Done::extra) and [`Completion::extra`](crate::Completion::extra).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Extra {
    /// Immediate data in host order, or the key that the peer invalidated.
    word: u32,
    qp_num: u32,
    flags: u8,
    origin: Origin,
}

impl Extra {
    const IMM: u8 = 1;
    const INVALIDATED: u8 = 2;
    const DATAGRAM: u8 = 4;
    const SHARED: u8 = 8;

    /// Of a receive that worked.
    pub(crate) fn of(wc: &Wc, datagram: bool) -> Extra {
        let has = |flag: ibv_wc_flags| wc.0.wc_flags & flag.0 != 0;
        let mut extra = Extra::default();
        if has(ibv_wc_flags::IBV_WC_WITH_IMM) {
            extra.flags |= Extra::IMM;
            extra.word = u32::from_be(crate::post::wc_word(&wc.0));
        } else if has(ibv_wc_flags::IBV_WC_WITH_INV) {
            extra.flags |= Extra::INVALIDATED;
            extra.word = crate::post::wc_word(&wc.0);
        }
        if datagram {
            extra.flags |= Extra::DATAGRAM;
            extra.origin = wc.origin();
        }
        if ring::is_shared(wc.0.wr_id) {
            extra.flags |= Extra::SHARED;
            extra.qp_num = wc.0.qp_num;
        }
        extra
    }

    fn flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Immediate data, in host order.
    pub fn imm(self) -> Option<u32> {
        self.flag(Extra::IMM).then_some(self.word)
    }

    /// The key that the peer's send invalidated here. Neither siw nor rxe tells.
    pub fn invalidated(self) -> Option<u32> {
        self.flag(Extra::INVALIDATED).then_some(self.word)
    }

    /// Where a datagram came from.
    pub fn origin(self) -> Option<Origin> {
        self.flag(Extra::DATAGRAM).then_some(self.origin)
    }

    /// The device's number of the queue pair over which a message came into a shared receive queue. Devices give the
    /// number of a dead queue pair to the next one.
    pub fn qp_num(self) -> Option<u32> {
        self.flag(Extra::SHARED).then_some(self.qp_num)
    }

    /// Bytes in front of the message: 40 for datagrams, whether they came with a header or not (InfiniBand 1.2.1,
    /// 11.4.1.2).
    fn offset(self) -> usize {
        if self.flag(Extra::DATAGRAM) { GRH_SIZE } else { 0 }
    }
}

/// A redeemed completion.
///
/// From [`QueuePair::complete`](crate::QueuePair::complete) and
/// [`SharedReceiveQueue::complete`](crate::SharedReceiveQueue::complete).
#[derive(Debug)]
#[non_exhaustive]
pub struct Done {
    /// The slot that was posted; `None` for requests without memory of their own and for other kinds of it.
    pub slot: Option<Slot>,
    /// What was posted, when it was something else than a slot.
    pub payload: Option<Payload>,
    /// What the request was.
    pub op: Op,
    /// The outcome.
    pub status: WcStatus,
    /// Bytes received, at most what was posted for it; 0 for everything else and for failures, where the device does
    /// not say. Of datagrams the 40 bytes in front count, see [`message`](Self::message).
    pub byte_len: usize,
    /// The driver's own error number, for reports of failures.
    pub vendor_err: u32,
    /// What a message carried beside its bytes.
    pub extra: Extra,
}

impl Done {
    /// Of a plain send or receive that worked.
    #[inline(always)]
    pub(crate) fn plain(slot: Option<Slot>, op: Op, byte_len: usize) -> Done {
        let (status, extra) = (WcStatus::SUCCESS, Extra::default());
        Done { slot, payload: None, op, status, byte_len, vendor_err: 0, extra }
    }

    /// Immediate data that came with it, in host order.
    pub fn imm(&self) -> Option<u32> {
        self.extra.imm()
    }

    /// The key that the peer's send invalidated here. Neither siw nor rxe tells.
    pub fn invalidated(&self) -> Option<u32> {
        self.extra.invalidated()
    }

    /// The bytes received into a slot, without what stands in front of a datagram; empty for everything else.
    pub fn message(&self) -> &[u8] {
        message(self.slot.as_ref(), self.op, self.byte_len, self.extra)
    }

    /// What was posted, of whatever kind.
    pub fn into_payload(self) -> Option<Payload> {
        self.payload.or(self.slot.map(Payload::from))
    }
}

pub(crate) fn message(slot: Option<&Slot>, op: Op, byte_len: usize, extra: Extra) -> &[u8] {
    match (slot, op) {
        (Some(slot), Op::Recv) => slot.get(extra.offset()..byte_len).unwrap_or_default(),
        _ => &[],
    }
}
