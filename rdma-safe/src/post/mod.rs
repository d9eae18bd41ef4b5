//! Posting and redeeming: memory goes into the queue, and its completion gives it back.
//!
//! Here is the message path of plain slots: no allocation, no lock, no atomic read-modify-write. Everything else that
//! can be posted is in the modules below.

mod batch;
mod error;
mod foreign;
mod other;
mod raw;
mod recv_batch;
mod redeem;
mod request;
mod staging;

pub use error::{BatchError, PostError, Why};
pub use foreign::ForeignSlice;
pub use raw::{RawRequest, RawSge, RawVerb};
pub(crate) use recv_batch::{ReceiveQueue, post_all};
pub(crate) use redeem::{received, settle, wc_word};
pub use request::Request;

use crate::can::{CAN_RECV, CAN_SEND, CAN_WRITE};
use crate::error::errno_of_post;
use crate::payload::Payload;
use crate::pd::PdInner;
use crate::qp::QueuePair;
use crate::qp_attr::{QpState, SendFlags};
use crate::slot::{Slot, Wire};
use crate::wc::Op;
use rdma_sys::*;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// Marks the way of messages that are not inline as the longer one: what counts there is not instructions.
#[cold]
#[inline]
fn large() {}

/// What goes to the device as it is. Bits that a caller made up (`from_bits_retain`) mean other things there.
const PASSED: SendFlags = SendFlags::all().difference(SendFlags::UNSIGNALLED);

impl QueuePair {
    /// Posts a receive into the whole slot. The queue pair must be at least INIT.
    ///
    /// # Errors
    /// [`PostError`] with the slot when it was refused; without when the device failed, which keeps the slot until the
    /// queue pair is closed.
    #[inline(always)]
    pub fn post_recv(&mut self, slot: Slot) -> std::result::Result<(), PostError> {
        let Wire { addr, capacity: length, lkey, .. } = *slot.wire();
        if !slot.is_of(self.recv_domain) {
            return Err(self.refused(CAN_RECV, Some(slot.into())));
        }
        let id = match self.flight.put_own_recv(slot.into()) {
            Ok(id) => id,
            Err(payload) => return Err(full(Some(payload))),
        };
        let mut sge = ibv_sge { addr, length, lkey };
        let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the QP is alive and has a receive queue; the slot is in the table, from where only the completion or
        // the destruction takes it, so its memory stays registered and untouched until then.
        match unsafe { (self.ops.post_recv)(self.raw.as_ptr(), &mut wr, bad.as_mut_ptr()) } {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    /// Sends the first `len` bytes of the slot. The queue pair must be connected.
    ///
    /// Up to 32 bytes go inline by themselves where the queue pair has room for it. With `len` 0 the message is empty.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv); also [`Why::TooLong`].
    #[inline(always)]
    pub fn post_send(
        &mut self,
        slot: Slot,
        len: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        let Wire { addr, capacity, lkey, .. } = *slot.wire();
        if !slot.is_of(self.send_domain) {
            return Err(self.refused(CAN_SEND, Some(slot.into())));
        }
        let limit = match flags.contains(SendFlags::INLINE) {
            true => self.max_inline.min(capacity as usize),
            false => capacity as usize,
        };
        if len > limit {
            return Err(PostError::of_slot(Why::TooLong, Some(slot)));
        }
        let signalled = self.signals(len, flags);
        let id = match self.flight.put_send(Some(slot.into()), signalled) {
            Ok(id) => id,
            Err(payload) => return Err(full(payload)),
        };
        // SAFETY: the slot is in the table, from where only its completion (or a later one's) or the destruction takes
        // it; `len` is within it, and below 2^32 as its capacity is.
        match unsafe { self.send(id, addr, len as u32, lkey, flags, signalled) } {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    /// Sends a copy of `data`, at most [`max_inline`](Self::max_inline) bytes. No slot is needed; it still occupies an
    /// entry of the send queue, and if signalled it completes with `slot: None`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[inline(always)]
    pub fn post_inline(
        &mut self,
        data: &[u8],
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        if self.can & CAN_SEND == 0 {
            return Err(self.refused(CAN_SEND, None));
        }
        if data.len() > self.max_inline {
            return Err(PostError::of_slot(Why::TooLong, None));
        }
        let flags = flags | SendFlags::INLINE;
        let signalled = self.signals(data.len(), flags);
        let Ok(id) = self.flight.put_send(None, signalled) else {
            return Err(PostError::of_slot(Why::Full, None));
        };
        // SAFETY: inline data is copied before the call returns; its length is at most max_inline, a u32.
        match unsafe { self.send(id, data.as_ptr() as u64, data.len() as u32, 0, flags, signalled) }
        {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    /// Posts a signalled RDMA write of zero bytes. It needs no slot and names no memory, consumes no receive at the peer
    /// and changes nothing there (RFC 5040 5.2.1, InfiniBand C9-88: key and address of an empty write are not
    /// checked); the peer's device merely sees that something came. Completes as a write with `slot: None`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    pub fn post_empty_write(&mut self) -> std::result::Result<(), PostError> {
        if self.can & CAN_WRITE == 0 {
            return Err(self.refused(CAN_WRITE, None));
        }
        let Ok(wr_id) = self.flight.put_other(None, Op::Write, true) else {
            return Err(PostError::of_slot(Why::Full, None));
        };
        let mut wr = ibv_send_wr {
            wr_id,
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: SIGNALED,
            ..ibv_send_wr::default()
        };
        let mut bad = null_mut();
        // SAFETY: the QP is alive; the list is one complete request, which names no memory.
        match unsafe { ibv_post_send(self.raw.as_ptr(), &mut wr, &mut bad) } {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    #[inline(always)]
    fn signals(&self, len: usize, flags: SendFlags) -> bool {
        !flags.contains(SendFlags::UNSIGNALLED)
            || len >= self.signal_from
            || self.flight.must_signal()
    }

    /// Posts one SEND.
    ///
    /// # Safety
    /// `addr..addr + len` is readable, and registered under `lkey` and untouched until the request `id` is done, unless
    /// the flags say inline.
    #[inline(always)]
    unsafe fn send(
        &mut self,
        id: u64,
        addr: u64,
        len: u32,
        lkey: u32,
        flags: SendFlags,
        signalled: bool,
    ) -> i32 {
        let mut sge = ibv_sge { addr, length: len, lkey };
        let send_flags = self.wire_flags(len as usize, flags, signalled);
        let wr = &mut self.template;
        wr.wr_id = id;
        wr.sg_list = &mut sge;
        wr.send_flags = send_flags;
        // Some providers read a length of 0 in an element as 2 GiB.
        if len == 0 {
            wr.num_sge = 0;
        }
        // Where the provider says which request failed; there is only one.
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the QP is alive, the list is one complete request whose element lives until the call returns; the
        // caller vouches for the memory.
        let rc = unsafe { (self.ops.post_send)(self.raw.as_ptr(), wr, bad.as_mut_ptr()) };
        if len == 0 {
            self.template.num_sge = 1;
        }
        rc
    }

    /// Flags as the device wants them, for a send or write.
    #[inline(always)]
    fn wire_flags(&self, len: usize, flags: SendFlags, signalled: bool) -> u32 {
        // `signalled` overrides the flag; siw forbids small sends that are not inline, and nothing of 0 bytes can be.
        let plain = (flags & PASSED).bits() | (u32::from(signalled) * SIGNALED);
        if len == 0 {
            plain & !SendFlags::INLINE.bits()
        } else if len > self.small as usize {
            large();
            plain
        } else {
            plain | SendFlags::INLINE.bits()
        }
    }

    /// A post the device failed: the request may be in its ring all the same.
    #[cold]
    #[inline(never)]
    fn broke(&mut self, rc: i32) -> PostError {
        self.set_state(QpState::Error);
        PostError::of_slot(Why::Device(errno_of_post(rc)), None)
    }

    #[cold]
    #[inline(never)]
    fn refused(&self, need: u8, payload: Option<Payload>) -> PostError {
        PostError::of(self.why_not(need), payload)
    }

    /// Why a request is refused that needs this `CAN_` bit, or else has memory of another domain.
    fn why_not(&self, need: u8) -> Why {
        let of_kind = crate::can::ever(self.config().kind, crate::Caps::all());
        if self.state() == QpState::Error {
            Why::Broken
        } else if of_kind & need == 0 || (need == CAN_RECV && self.srq().is_some()) {
            Why::WrongKind
        } else if self.ever() & need == 0 {
            Why::NotSupported
        } else if self.can & need == 0 {
            Why::NotConnected
        } else {
            Why::WrongDomain
        }
    }

    /// What finished unsignalled sends owned, where it was a slot; one at a time. Whatever else they owned is dropped
    /// on the way: see [`reclaim_payload`](Self::reclaim_payload).
    #[inline]
    pub fn reclaim(&mut self) -> Option<Slot> {
        loop {
            if let Ok(slot) = self.flight.reclaim()?.into_slot() {
                return Some(slot);
            }
        }
    }

    /// What finished unsignalled sends owned, of whatever kind; one at a time.
    #[inline]
    pub fn reclaim_payload(&mut self) -> Option<Payload> {
        self.flight.reclaim()
    }

    /// Identity of the protection domain, to compare with a slot's.
    #[inline(always)]
    fn domain(&self) -> *const PdInner {
        self.domain
    }
}

#[cold]
#[inline(never)]
fn full(payload: Option<Payload>) -> PostError {
    PostError::of(Why::Full, payload)
}

/// The provider's calls of the message path, looked up once: they are set when the context is opened.
pub(crate) struct Ops {
    post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32,
    post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
}

impl Ops {
    /// # Safety
    /// `ctx` is open.
    pub(crate) unsafe fn of(ctx: *mut ibv_context) -> Ops {
        unsafe extern "C" fn no_send(
            _: *mut ibv_qp,
            _: *mut ibv_send_wr,
            _: *mut *mut ibv_send_wr,
        ) -> i32 {
            libc::EOPNOTSUPP
        }
        unsafe extern "C" fn no_recv(
            _: *mut ibv_qp,
            _: *mut ibv_recv_wr,
            _: *mut *mut ibv_recv_wr,
        ) -> i32 {
            libc::EOPNOTSUPP
        }
        // SAFETY: the caller's promise.
        let (send, recv) = unsafe { ((*ctx).ops.post_send, (*ctx).ops.post_recv) };
        Ops { post_send: send.unwrap_or(no_send), post_recv: recv.unwrap_or(no_recv) }
    }
}
