//! Posting of memory that this crate does not own: the caller vouches for it.

use super::error::{PostError, Why};
use super::{PASSED, SIGNALED};
use crate::can::*;
use crate::caps::Caps;
use crate::payload::{Payload, TOKEN_MAX};
use crate::qp::QueuePair;
use crate::qp_attr::{QpKind, SendFlags};
use crate::remote::RemoteRange;
use crate::wc::Op;
use rdma_sys::*;
use std::ptr::null_mut;

/// A piece of registered memory: what the device is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RawSge {
    /// Address of the first byte, or the offset where the region counts from 0.
    pub addr: u64,
    /// Bytes; at least 1.
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
}

static_assertions::assert_eq_size!(RawSge, ibv_sge);
static_assertions::assert_eq_align!(RawSge, ibv_sge);
static_assertions::const_assert!(
    std::mem::offset_of!(RawSge, len) == std::mem::offset_of!(ibv_sge, length)
);
static_assertions::const_assert!(
    std::mem::offset_of!(RawSge, lkey) == std::mem::offset_of!(ibv_sge, lkey)
);

/// What a [`RawRequest`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RawVerb {
    /// Send.
    Send,
    /// Write to the start of the peer's memory.
    Write(RemoteRange),
    /// Read from the start of the peer's memory.
    Read(RemoteRange),
    /// Compare and swap of 8 bytes, in host order.
    CompareSwap {
        /// Where; a multiple of 8.
        at: RemoteRange,
        /// What has to be there.
        compare: u64,
        /// What shall be there then.
        swap: u64,
    },
    /// Fetch and add of 8 bytes, in host order.
    FetchAdd {
        /// Where; a multiple of 8.
        at: RemoteRange,
        /// What to add.
        add: u64,
    },
}

/// A request over memory that this crate does not own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawRequest<'a> {
    /// What to do.
    pub verb: RawVerb,
    /// The memory, at most `max_send_sge` pieces.
    pub pieces: &'a [RawSge],
    /// How.
    pub flags: SendFlags,
    /// Immediate data of a send or write, in host order.
    pub imm: Option<u32>,
}

impl QueuePair {
    /// Posts a request over memory that the caller vouches for. Its completion gives `token` back, as
    /// [`PayloadKind::Token`](crate::PayloadKind::Token).
    ///
    /// Everything but the memory is checked as by [`post`](Self::post), and up to 32 bytes go inline by themselves as
    /// there. Without pieces a send or write is empty.
    ///
    /// # Errors
    /// As [`post`](Self::post); [`Why::Empty`] for a piece of 0 bytes; [`Why::WrongRequest`] for a token of 2^61 or more,
    /// and for immediate data over XRC, which needs the name of a queue ([`Request::to_srq`](crate::Request::to_srq)).
    ///
    /// # Safety
    /// Each piece is registered under its key in this queue pair's protection domain, and stays so; unless the request
    /// is inline, the bytes of a source are not changed, and those of a sink not used at all, until the request is
    /// done: its completion was redeemed, or it was reclaimed, or the queue pair was destroyed.
    #[inline]
    pub unsafe fn post_raw(
        &mut self,
        request: &RawRequest<'_>,
        token: usize,
    ) -> std::result::Result<(), PostError> {
        let (len, op) = match self.admit_raw(request, token) {
            Ok(found) => found,
            Err(why) => return Err(PostError::of_slot(why, None)),
        };
        let plain = matches!(op, Op::Send | Op::Write);
        let signalled = !plain || self.signals(len, request.flags);
        let mut wr = ibv_send_wr {
            sg_list: request.pieces.as_ptr().cast_mut().cast(),
            // Lossless: at most max_send_sge.
            num_sge: request.pieces.len() as i32,
            ..ibv_send_wr::default()
        };
        wr.send_flags = match plain {
            true => self.wire_flags(len, request.flags, signalled),
            false => (request.flags & PASSED).bits() | SIGNALED,
        };
        write_verb(request, &mut wr);
        match self.flight.put_other(Some(Payload::token(token)), op, signalled) {
            Ok(id) => wr.wr_id = id,
            Err(_) => return Err(PostError::of_slot(Why::Full, None)),
        }
        let mut bad = null_mut();
        // SAFETY: the QP is alive, the list is one complete request; the caller vouches for the memory.
        let rc = unsafe { ibv_post_send(self.raw.as_ptr(), &mut wr, &mut bad) };
        self.settle_post(rc, bad.is_null())
    }

    /// Posts a receive into memory that the caller vouches for; see [`post_raw`](Self::post_raw).
    ///
    /// # Errors
    /// As [`post_recv_list`](Self::post_recv_list); [`Why::WrongRequest`] for a token of 2^61 or more.
    ///
    /// # Safety
    /// As for a sink in [`post_raw`](Self::post_raw).
    pub unsafe fn post_recv_raw(
        &mut self,
        pieces: &[RawSge],
        token: usize,
    ) -> std::result::Result<(), PostError> {
        let why = if self.can & CAN_RECV == 0 {
            Some(self.why_not(CAN_RECV))
        } else if token >= TOKEN_MAX {
            Some(Why::WrongRequest)
        } else {
            pieces_fit(pieces, self.config().max_recv_sge).err()
        };
        if let Some(why) = why {
            return Err(PostError::of_slot(why, None));
        }
        let Ok(wr_id) = self.flight.put_recv(Payload::token(token)) else {
            return Err(PostError::of_slot(Why::Full, None));
        };
        let sg_list = pieces.as_ptr().cast_mut().cast();
        let num_sge = pieces.len() as i32;
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: as in `post_raw`.
        let rc = unsafe { ibv_post_recv(self.raw.as_ptr(), &mut wr, &mut bad) };
        self.settle_post(rc, bad.is_null())
    }

    fn admit_raw(
        &self,
        request: &RawRequest<'_>,
        token: usize,
    ) -> std::result::Result<(usize, Op), Why> {
        let (need, op, at, most) = match request.verb {
            RawVerb::Send => (CAN_SEND, Op::Send, None, self.config().max_send_sge),
            RawVerb::Write(to) => (CAN_WRITE, Op::Write, Some(to), self.config().max_send_sge),
            RawVerb::Read(from) => (CAN_READ, Op::Read, Some(from), self.read_pieces()),
            RawVerb::CompareSwap { at, .. } => (CAN_ATOMIC, Op::CompareSwap, Some(at), 1),
            RawVerb::FetchAdd { at, .. } => (CAN_ATOMIC, Op::FetchAdd, Some(at), 1),
        };
        if self.can & need == 0 {
            return Err(self.why_not(need));
        }
        let plain = matches!(op, Op::Send | Op::Write);
        let inline = request.flags.contains(SendFlags::INLINE);
        if token >= TOKEN_MAX || ((inline || request.imm.is_some()) && !plain) {
            return Err(Why::WrongRequest);
        }
        // What takes a receive over XRC has to name the queue it is in; `Request::to_srq` does.
        if request.imm.is_some() && self.config().kind == QpKind::XrcSend {
            return Err(Why::WrongRequest);
        }
        if request.imm.is_some() && !self.context().caps().contains(Caps::IMM) {
            return Err(Why::NotSupported);
        }
        let len = match request.pieces {
            [] if plain => 0,
            pieces => pieces_fit(pieces, most)?,
        };
        if inline && len > self.max_inline {
            return Err(Why::TooLong);
        }
        if at.is_some_and(|at| at.slice(0, len as u64).is_none()) {
            return Err(Why::OutOfRange);
        }
        let atomic = matches!(op, Op::CompareSwap | Op::FetchAdd);
        if atomic && (len != 8 || at.is_none_or(|at| !at.addr.is_multiple_of(8))) {
            return Err(Why::Misaligned);
        }
        Ok((len, op))
    }
}

/// Bytes of all pieces.
fn pieces_fit(pieces: &[RawSge], most: u32) -> std::result::Result<usize, Why> {
    if pieces.is_empty() || pieces.iter().any(|p| p.len == 0) {
        return Err(Why::Empty);
    }
    if pieces.len() > most as usize {
        return Err(Why::TooManyPieces);
    }
    let total: u64 = pieces.iter().map(|p| u64::from(p.len)).sum();
    match total <= super::other::MESSAGE_MAX {
        true => usize::try_from(total).map_err(|_| Why::TooLong),
        false => Err(Why::TooLong),
    }
}

fn write_verb(request: &RawRequest<'_>, wr: &mut ibv_send_wr) {
    use ibv_wr_opcode as o;
    let rdma = |RemoteRange { addr: remote_addr, rkey, .. }| ibv_send_wr__bindgen_ty_2 {
        rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
    };
    let atomic = |at: RemoteRange, compare_add, swap| ibv_send_wr__bindgen_ty_2 {
        atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: at.addr,
            compare_add,
            swap,
            rkey: at.rkey,
        },
    };
    (wr.opcode, wr.wr) = match (request.verb, request.imm) {
        (RawVerb::Send, None) => (o::IBV_WR_SEND, wr.wr),
        (RawVerb::Send, Some(_)) => (o::IBV_WR_SEND_WITH_IMM, wr.wr),
        (RawVerb::Write(to), None) => (o::IBV_WR_RDMA_WRITE, rdma(to)),
        (RawVerb::Write(to), Some(_)) => (o::IBV_WR_RDMA_WRITE_WITH_IMM, rdma(to)),
        (RawVerb::Read(from), _) => (o::IBV_WR_RDMA_READ, rdma(from)),
        (RawVerb::CompareSwap { at, compare, swap }, _) => {
            (o::IBV_WR_ATOMIC_CMP_AND_SWP, atomic(at, compare, swap))
        }
        (RawVerb::FetchAdd { at, add }, _) => (o::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(at, add, 0)),
    };
    if let Some(imm) = request.imm {
        wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data: imm.to_be() };
    }
}
