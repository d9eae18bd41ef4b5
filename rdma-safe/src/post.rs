//! Posting and redeeming: a slot goes into the queue, and its completion gives it back.
//!
//! This is the message path: no allocation, no lock, no atomic read-modify-write.

use crate::can::{CAN_RECV, CAN_SEND, CAN_WRITE};
use crate::error::errno_of;
use crate::pd::PdInner;
use crate::qp::QueuePair;
use crate::qp_attr::{QpState, SendFlags};
use crate::ring::{Kind, kind_of};
use crate::slot::{Slot, Wire};
use crate::wc::{Done, Op, Wc};
use rdma_sys::*;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
/// What goes to the device as it is. Bits that a caller made up (`from_bits_retain`) mean other things there.
const PASSED: SendFlags = SendFlags::all().difference(SendFlags::UNSIGNALLED);

/// Reason of a [`PostError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// As many requests are in flight as the queue is deep: redeem completions (and `reclaim`) first.
    Full,
    /// Longer than the slot, or than `max_inline` for an inline send.
    TooLong,
    /// The queue pair is not in a state for this: receives need INIT, sends an established connection.
    NotConnected,
    /// The kind of queue pair, or the device, has no such operation: a datagram needs an address, UC has no reads,
    /// XRC has no receives of its own, and not every device has atomics or windows.
    WrongKind,
    /// The queue pair has failed; close it.
    Broken,
    /// The slot belongs to another protection domain.
    WrongDomain,
    /// The group has no such queue pair (any more).
    NoSuchQp,
    /// The device failed the post with this errno. The queue pair keeps the slot and has failed.
    Device(i32),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Full => {
                f.write_str("the queue is full: redeem completions first or make it deeper")
            }
            Why::TooLong => f.write_str("longer than the slot or than an inline send may be"),
            Why::NotConnected => f.write_str(
                "not connected yet: receives need INIT, sends an established connection",
            ),
            Why::WrongKind => {
                f.write_str("this kind of queue pair, or this device, has no such operation")
            }
            Why::Broken => f.write_str("the queue pair has failed: close it"),
            Why::WrongDomain => f.write_str("the slot belongs to another protection domain"),
            Why::NoSuchQp => f.write_str("no such queue pair in this group"),
            Why::Device(e) => write!(
                f,
                "the device failed it ({}): the queue pair keeps the slot and has to be closed",
                std::io::Error::from_raw_os_error(*e)
            ),
        }
    }
}

/// A refused post. The slot is in it if the device never saw it. Nothing was allocated to make it.
#[derive(Debug, thiserror::Error)]
#[error("post refused: {why}")]
#[must_use = "it may hold the slot"]
pub struct PostError {
    /// What was wrong.
    pub why: Why,
    /// The slot, if the device never saw it.
    pub slot: Option<Slot>,
}

impl QueuePair {
    /// Posts a receive into the whole slot. The queue pair must be at least INIT.
    ///
    /// # Errors
    /// [`PostError`] with the slot when it was refused; without when the device failed, which keeps the slot until the
    /// queue pair is closed.
    #[inline]
    pub fn post_recv(&mut self, slot: Slot) -> std::result::Result<(), PostError> {
        let Wire { addr, capacity: length, lkey, .. } = *slot.wire();
        if self.can & CAN_RECV == 0 || !slot.is_of(self.domain()) {
            return Err(self.refused(CAN_RECV, Some(slot)));
        }
        let id = match self.recvs.put(Some(slot)) {
            Ok(id) => id,
            Err(slot) => return Err(PostError { why: Why::Full, slot }),
        };
        let mut sge = ibv_sge { addr, length, lkey };
        let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the QP is alive and has a receive queue; the slot is in the table, from where only the completion or
        // the destruction takes it, so its memory stays registered and untouched until then.
        match unsafe { ibv_post_recv(self.raw.as_ptr(), &mut wr, &mut bad) } {
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
    #[inline]
    pub fn post_send(
        &mut self,
        slot: Slot,
        len: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        let Wire { addr, capacity, lkey, .. } = *slot.wire();
        if self.can & CAN_SEND == 0 || !slot.is_of(self.domain()) {
            return Err(self.refused(CAN_SEND, Some(slot)));
        }
        let limit = match flags.contains(SendFlags::INLINE) {
            true => self.max_inline.min(capacity as usize),
            false => capacity as usize,
        };
        if len > limit {
            return Err(PostError { why: Why::TooLong, slot: Some(slot) });
        }
        let signalled = self.signals(len, flags);
        let id = match self.sends.put(Some(slot), signalled) {
            Ok(id) => id,
            Err(slot) => return Err(PostError { why: Why::Full, slot }),
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
    #[inline]
    pub fn post_inline(
        &mut self,
        data: &[u8],
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        if self.can & CAN_SEND == 0 {
            return Err(self.refused(CAN_SEND, None));
        }
        if data.len() > self.max_inline {
            return Err(PostError { why: Why::TooLong, slot: None });
        }
        let flags = flags | SendFlags::INLINE;
        let signalled = self.signals(data.len(), flags);
        let id = match self.sends.put(None, signalled) {
            Ok(id) => id,
            Err(_) => return Err(PostError { why: Why::Full, slot: None }),
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
    /// checked); the peer's device merely sees that something came. Completes as a send with `slot: None`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    pub fn post_empty_write(&mut self) -> std::result::Result<(), PostError> {
        if self.can & CAN_WRITE == 0 {
            return Err(self.refused(CAN_WRITE, None));
        }
        let Ok(wr_id) = self.sends.put(None, true) else {
            return Err(PostError { why: Why::Full, slot: None });
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
            || self.sends.must_signal()
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
        let wr = &mut self.template;
        wr.wr_id = id;
        wr.sg_list = &mut sge;
        // Some providers read a length of 0 in an element as 2 GiB.
        wr.num_sge = i32::from(len != 0);
        // `signalled` overrides the flag; siw forbids small sends that are not inline, and nothing of 0 bytes can be.
        wr.send_flags = (flags & PASSED).bits() | (u32::from(signalled) * SIGNALED);
        if len == 0 {
            wr.send_flags &= !SendFlags::INLINE.bits();
        } else if len <= self.small {
            wr.send_flags |= SendFlags::INLINE.bits();
        }
        let mut bad = null_mut();
        // SAFETY: the QP is alive, the list is one complete request whose element lives until the call returns; the
        // caller vouches for the memory.
        unsafe { ibv_post_send(self.raw.as_ptr(), wr, &mut bad) }
    }

    /// A post the device failed: the request may be in its ring all the same.
    #[cold]
    #[inline(never)]
    fn broke(&mut self, rc: i32) -> PostError {
        self.set_state(QpState::Error);
        PostError { why: Why::Device(errno_of(rc)), slot: None }
    }

    #[cold]
    #[inline(never)]
    fn refused(&self, need: u8, slot: Option<Slot>) -> PostError {
        let why = if self.state() == QpState::Error {
            Why::Broken
        } else if self.ever() & need == 0 {
            Why::WrongKind
        } else if self.can & need == 0 {
            Why::NotConnected
        } else {
            Why::WrongDomain
        };
        PostError { why, slot }
    }

    /// Redeems a completion, once. `None` when it is not this queue pair's, stale, or spent; a live one keeps its worth
    /// then.
    ///
    /// A failed completion puts the queue pair into [`QpState::Error`].
    #[inline]
    pub fn complete(&mut self, wc: &mut Wc) -> Option<Done> {
        self.redeem(wc)
    }

    /// [`complete`](Self::complete), always part of its caller, so that a group need not copy what it returns.
    #[inline(always)]
    pub(crate) fn redeem(&mut self, wc: &mut Wc) -> Option<Done> {
        let id = wc.0.wr_id;
        let status = wc.status();
        let queue = kind_of(id)?;
        let (slot, op, byte_len) = match queue {
            Kind::Send => (self.sends.redeem(id)?, Op::Send, 0),
            Kind::Recv => {
                let slot = self.recvs.redeem(id)?;
                (slot, Op::Recv, wc.0.byte_len as usize)
            }
        };
        wc.spend();
        let byte_len = match (&slot, status.is_ok()) {
            // The device's number, so bounded before anyone indexes with it.
            (Some(slot), true) => byte_len.min(slot.capacity()),
            _ => 0,
        };
        if !status.is_ok() {
            self.note_failure(queue);
        }
        Some(Done { slot, op, status, byte_len, vendor_err: wc.0.vendor_err })
    }

    /// Slots of finished unsignalled sends, one at a time.
    #[inline]
    pub fn reclaim(&mut self) -> Option<Slot> {
        self.sends.reclaim()
    }

    /// Identity of the protection domain, to compare with a slot's.
    #[inline(always)]
    fn domain(&self) -> *const PdInner {
        Arc::as_ptr(&self.pd)
    }
}
