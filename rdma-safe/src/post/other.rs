//! Posting of everything that is not a plain slot: checked in full first, then one request or a list of them.

use super::error::{PostError, Why};
use super::request::{Bind, Request};
use super::{SIGNALED, SendFlags};
use crate::can::*;
use crate::caps::Caps;
use crate::mw::{Binding, WindowKind};
use crate::payload::{Payload, Span};
use crate::qp::QueuePair;
use crate::qp_attr::QpKind;
use crate::remote::RemoteRange;
use crate::remote_slot::RemoteSlot;
use crate::sg::SgList;
use crate::wc::Op;
use rdma_sys::*;
use std::ptr::null_mut;
use std::sync::Arc;

/// Longest message of any transport, bytes (InfiniBand 1.2.1, 9.7.7).
pub(super) const MESSAGE_MAX: u64 = 1 << 31;

impl QueuePair {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`] with what was to be posted when it was refused; without when the device failed, which keeps it
    /// until the queue pair is closed. Every reason of [`Why`] but `NoSuchQp`.
    pub fn post(&mut self, request: Request<'_>) -> std::result::Result<(), PostError> {
        let mut sge = ibv_sge::default();
        let mut wr = ibv_send_wr::default();
        match self.stage(request, &mut sge, &mut wr)? {
            Staged::Listed => {}
            Staged::Bind(mw, mut bind, _region) => {
                // SAFETY: the queue pair is alive; the window is, in the table, until the request is done, and the
                // region at least until the provider has read its name.
                return match unsafe { ibv_bind_mw(self.raw.as_ptr(), mw, &mut bind) } {
                    0 => Ok(()),
                    rc => Err(self.broke(rc)),
                };
            }
        }
        let mut bad = null_mut();
        // SAFETY: the QP is alive and the list is one complete request; `stage` has put what it names into the table,
        // from where only its completion (or a later one's) or the destruction takes it.
        let rc = unsafe { ibv_post_send(self.raw.as_ptr(), &mut wr, &mut bad) };
        self.settle_post(rc, bad.is_null())
    }

    /// A return of 0 with the failed request named is a failure as well (siw).
    #[inline(always)]
    pub(super) fn settle_post(
        &mut self,
        rc: i32,
        clean: bool,
    ) -> std::result::Result<(), PostError> {
        match rc {
            0 if clean => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    /// Posts a receive into a list of pieces.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv), [`Why::WrongMemory`] when a piece is shared memory,
    /// [`Why::TooManyPieces`] beyond `max_recv_sge`.
    pub fn post_recv_list(&mut self, list: SgList) -> std::result::Result<(), PostError> {
        self.post_recv_payload(list.into())
    }

    /// Posts a receive into a whole remote slot.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv).
    pub fn post_recv_remote(&mut self, slot: RemoteSlot) -> std::result::Result<(), PostError> {
        self.post_recv_payload(slot.into())
    }

    fn post_recv_payload(&mut self, payload: Payload) -> std::result::Result<(), PostError> {
        let mut sge = ibv_sge::default();
        let (sg_list, num_sge) = match self.admit_recv(&payload, &mut sge) {
            Ok(found) => found,
            Err(why) => return Err(PostError::of(why, Some(payload))),
        };
        let wr_id = match self.flight.put_recv(payload) {
            Ok(id) => id,
            Err(payload) => return Err(PostError::of(Why::Full, Some(payload))),
        };
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: as in `post_recv`; the elements of a list live with it in the table.
        let rc = unsafe { ibv_post_recv(self.raw.as_ptr(), &mut wr, &mut bad) };
        self.settle_post(rc, bad.is_null())
    }

    fn admit_recv(
        &self,
        payload: &Payload,
        sge: &mut ibv_sge,
    ) -> std::result::Result<(*mut ibv_sge, i32), Why> {
        if self.can & CAN_RECV == 0 {
            return Err(self.why_not(CAN_RECV));
        }
        if !payload.is_writable() {
            return Err(Why::WrongMemory);
        }
        match payload.span() {
            None => Err(Why::WrongRequest),
            Some(Span::One(wire)) => {
                if !std::ptr::eq(wire.pd, self.domain()) {
                    return Err(Why::WrongDomain);
                }
                *sge = ibv_sge { addr: wire.addr, length: wire.capacity, lkey: wire.lkey };
                Ok((sge, 1))
            }
            Some(Span::Many(list)) => {
                self.admit_list(list, self.config().max_recv_sge)?;
                Ok((list.sges().as_ptr().cast_mut(), list.sges().len() as i32))
            }
        }
    }

    fn admit_list(&self, list: &crate::sg::List, most: u32) -> std::result::Result<(), Why> {
        match list.sges().len() {
            0 => Err(Why::Empty),
            n if n > most as usize => Err(Why::TooManyPieces),
            _ if !list.is_of(self.domain()) => Err(Why::WrongDomain),
            _ => Ok(()),
        }
    }

    /// Checks a request, moves what it owns into the table, and writes its form for the device. `sge` has to live until
    /// that is posted.
    pub(super) fn stage(
        &mut self,
        mut request: Request<'_>,
        sge: &mut ibv_sge,
        wr: &mut ibv_send_wr,
    ) -> std::result::Result<Staged, PostError> {
        if let Err(why) = self.admit(&request) {
            return Err(PostError::of(why, request.payload));
        }
        // Reads and atomics may complete later than what was posted after them (siw), so no other completion vouches
        // for them.
        let signalled =
            !matches!(request.op, Op::Send | Op::Write) || self.signals(request.len, request.flags);
        self.write_elements(&request, sge, wr);
        wr.opcode = opcode(&request);
        wr.send_flags = match request.op {
            Op::Send | Op::Write => self.wire_flags(request.len, request.flags, signalled),
            _ => (request.flags & super::PASSED).bits() | SIGNALED,
        };
        write_operands(&request, wr);
        let mut staged = Staged::Listed;
        if let Some(window) = request.payload.as_mut().and_then(Payload::window) {
            match request.bind.take() {
                Some(bind) => {
                    if window.kind == WindowKind::Type2 {
                        window.handle.tie(self.serial(), &mut self.windows);
                    }
                    staged = stage_bind(window, &bind, request.len, wr);
                }
                None => {
                    let rkey = window.bound.as_ref().map_or(0, |b| b.range.rkey);
                    wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { invalidate_rkey: rkey };
                }
            }
        }
        match self.flight.put_other(request.payload, request.op, signalled) {
            Ok(id) => {
                wr.wr_id = id;
                if let Some((ah, ..)) = request.to {
                    self.flight.hold(id, ah);
                }
            }
            Err(mut payload) => {
                if request.op == Op::Bind
                    && let Some(window) = payload.as_mut().and_then(Payload::window)
                {
                    window.unstage();
                }
                return Err(PostError::of(Why::Full, payload));
            }
        }
        if let Staged::Bind(_, bind, _) = &mut staged {
            (bind.wr_id, bind.send_flags) = (wr.wr_id, wr.send_flags);
        }
        Ok(staged)
    }

    /// The elements of a request that was admitted.
    fn write_elements(&self, request: &Request<'_>, sge: &mut ibv_sge, wr: &mut ibv_send_wr) {
        // Some providers read a length of 0 in an element as 2 GiB, so nothing is no element. Lossless: `admit` has
        // found `len` within 2 GiB.
        let length = request.len as u32;
        let span = request.payload.as_ref().and_then(Payload::span);
        match (request.inline, span) {
            _ if request.len == 0 => return,
            (Some(data), _) => *sge = ibv_sge { addr: data.as_ptr() as u64, length, lkey: 0 },
            (None, Some(Span::One(wire))) => {
                *sge = ibv_sge { addr: wire.addr, length, lkey: wire.lkey };
            }
            (None, Some(Span::Many(list))) => {
                // The box they live in moves into the table as a pointer and stays where it is.
                wr.sg_list = list.sges().as_ptr().cast_mut();
                wr.num_sge = list.sges().len() as i32;
                return;
            }
            (None, None) => return,
        }
        (wr.sg_list, wr.num_sge) = (sge, 1);
    }

    fn admit(&self, request: &Request<'_>) -> std::result::Result<(), Why> {
        let need = need(request);
        if self.can & need == 0 {
            return Err(self.why_not(need));
        }
        self.admit_modifiers(request)?;
        match request.op {
            Op::Send => {}
            Op::Write => in_range(request.remote, request.len)?,
            Op::Read => {
                in_range(request.remote, request.len)?;
                if request.len == 0 {
                    return Err(Why::Empty);
                }
            }
            Op::CompareSwap | Op::FetchAdd => {
                in_range(request.remote, request.len)?;
                if !request.remote.addr.is_multiple_of(8) {
                    return Err(Why::Misaligned);
                }
            }
            Op::Bind | Op::LocalInvalidate => return self.admit_window(request),
            Op::Recv | Op::RecvWithImm => return Err(Why::WrongRequest),
        }
        self.admit_memory(request)
    }

    fn admit_modifiers(&self, request: &Request<'_>) -> std::result::Result<(), Why> {
        let both = request.imm.is_some() && request.invalidate.is_some();
        let imm_fits = request.imm.is_none() || matches!(request.op, Op::Send | Op::Write);
        let inv_fits = request.invalidate.is_none()
            || (request.op == Op::Send
                && matches!(self.config().kind, QpKind::Rc | QpKind::XrcSend));
        let inline_fits = !request.flags.contains(SendFlags::INLINE)
            || matches!(request.op, Op::Send | Op::Write);
        if let Some((ah, ..)) = request.to {
            if request.op != Op::Send {
                return Err(Why::WrongRequest);
            }
            if !std::ptr::eq(ah.domain(), self.domain()) {
                return Err(Why::WrongDomain);
            }
        }
        if both || !imm_fits || !inv_fits || !inline_fits {
            return Err(Why::WrongRequest);
        }
        let xrc = self.config().kind == QpKind::XrcSend;
        let takes_receive = request.op == Op::Send || request.imm.is_some();
        if request.srq_num.is_some() != (xrc && takes_receive) {
            return Err(Why::WrongRequest);
        }
        if request.imm.is_some() && !self.context().caps().contains(Caps::IMM) {
            return Err(Why::NotSupported);
        }
        Ok(())
    }

    /// Lengths, pieces, domain and sort of the memory named.
    fn admit_memory(&self, request: &Request<'_>) -> std::result::Result<(), Why> {
        let inline = request.inline.is_some() || request.flags.contains(SendFlags::INLINE);
        if request.len as u64 > MESSAGE_MAX || (inline && request.len > self.max_inline) {
            return Err(Why::TooLong);
        }
        let sink = !matches!(request.op, Op::Send | Op::Write);
        let Some(payload) = &request.payload else {
            return if request.inline.is_some() { Ok(()) } else { Err(Why::WrongRequest) };
        };
        let remote_only = self.context().caps().contains(Caps::READ_SINK_REMOTE_WRITE);
        if sink && (!payload.is_writable() || (remote_only && !payload.is_remote())) {
            return Err(Why::WrongMemory);
        }
        match payload.span() {
            None => Err(Why::WrongRequest),
            Some(Span::One(wire)) if request.len > wire.capacity as usize => Err(Why::TooLong),
            Some(Span::One(wire)) if !std::ptr::eq(wire.pd, self.domain()) => Err(Why::WrongDomain),
            Some(Span::One(_)) => Ok(()),
            Some(Span::Many(list)) => {
                let most = match request.op {
                    Op::Send | Op::Write => self.config().max_send_sge,
                    Op::Read => self.read_pieces(),
                    _ => 1,
                };
                self.admit_list(list, most)?;
                match request.op {
                    _ if list.total() == request.len as u64 => Ok(()),
                    Op::CompareSwap | Op::FetchAdd => Err(Why::Misaligned),
                    _ if list.total() < request.len as u64 => Err(Why::TooLong),
                    // How much of a list counts is said piece by piece.
                    _ => Err(Why::WrongRequest),
                }
            }
        }
    }

    fn admit_window(&self, request: &Request<'_>) -> std::result::Result<(), Why> {
        let Some(window) = request.payload.as_ref().and_then(Payload::window_ref) else {
            return Err(Why::WrongRequest);
        };
        if !Arc::ptr_eq(&window.pd, &self.pd) {
            return Err(Why::WrongDomain);
        }
        let Some(bind) = &request.bind else {
            let bound = window.kind == WindowKind::Type2
                && window.bound.is_some()
                && window.raw().is_some()
                && window.handle.on() == self.serial();
            return if bound { Ok(()) } else { Err(Why::WrongRequest) };
        };
        if !Arc::ptr_eq(&bind.region.pd, &self.pd) {
            return Err(Why::WrongDomain);
        }
        // One of type 2 can be bound again on the queue pair it is bound on, which refuses that itself if it is still valid.
        let elsewhere = window.kind == WindowKind::Type2
            && window.bound.is_some()
            && window.handle.on() != self.serial();
        let unbinds = request.len == 0 && window.kind == WindowKind::Type2;
        if window.raw().is_none() || window.pending.is_some() || elsewhere || unbinds {
            return Err(Why::WrongRequest);
        }
        match bind.offset.checked_add(request.len) {
            Some(end) if end <= bind.region.len() => Ok(()),
            _ => Err(Why::OutOfRange),
        }
    }
}

/// What [`QueuePair::stage`] left to do.
pub(super) enum Staged {
    /// The request goes into a list.
    Listed,
    /// A window of type 1 is bound by a call of its own.
    ///
    /// The region is kept until that has returned: nothing else keeps one that a window is only taken off.
    Bind(*mut ibv_mw, ibv_mw_bind, Arc<crate::mr::Region>),
}

fn stage_bind(
    window: &mut crate::mw::Window,
    bind: &Bind,
    len: usize,
    wr: &mut ibv_send_wr,
) -> Staged {
    let info = ibv_mw_bind_info {
        mr: bind.region.as_raw(),
        addr: bind.region.wire_addr().wrapping_add(bind.offset as u64),
        length: len as u64,
        mw_access_flags: bind.access.bits(),
    };
    // The lowest byte of a key is the caller's to choose, and must change (ibv_inc_rkey(3)).
    let old = window.rkey();
    let rkey = (old & !0xff) | (old.wrapping_add(1) & 0xff);
    let range = RemoteRange { addr: info.addr, len: info.length, rkey };
    *window.pending = (len > 0).then(|| Binding { _region: Arc::clone(&bind.region), range });
    // Just found to be alive, and only the destruction of this queue pair frees it.
    let mw = window.raw().map_or(null_mut(), std::ptr::NonNull::as_ptr);
    match window.kind {
        WindowKind::Type1 => {
            let bind_mw = ibv_mw_bind { wr_id: 0, send_flags: 0, bind_info: info };
            Staged::Bind(mw, bind_mw, Arc::clone(&bind.region))
        }
        WindowKind::Type2 => {
            wr.__bindgen_anon_2.bind_mw =
                ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info: info };
            Staged::Listed
        }
    }
}

fn in_range(remote: RemoteRange, len: usize) -> std::result::Result<(), Why> {
    match remote.slice(0, len as u64) {
        Some(_) => Ok(()),
        None => Err(Why::OutOfRange),
    }
}

fn need(request: &Request<'_>) -> u8 {
    match request.op {
        Op::Send if request.to.is_some() => CAN_SEND_TO,
        Op::Send if request.srq_num.is_some() => CAN_SEND_XRC,
        Op::Send => CAN_SEND,
        Op::Write => CAN_WRITE,
        Op::Read => CAN_READ,
        Op::CompareSwap | Op::FetchAdd => CAN_ATOMIC,
        Op::Bind | Op::LocalInvalidate => CAN_BIND,
        Op::Recv | Op::RecvWithImm => 0,
    }
}

fn opcode(request: &Request<'_>) -> ibv_wr_opcode {
    use ibv_wr_opcode as o;
    match (request.op, request.imm, request.invalidate) {
        (Op::Write, None, _) => o::IBV_WR_RDMA_WRITE,
        (Op::Write, Some(_), _) => o::IBV_WR_RDMA_WRITE_WITH_IMM,
        (Op::Read, ..) => o::IBV_WR_RDMA_READ,
        (Op::CompareSwap, ..) => o::IBV_WR_ATOMIC_CMP_AND_SWP,
        (Op::FetchAdd, ..) => o::IBV_WR_ATOMIC_FETCH_AND_ADD,
        (Op::Bind, ..) => o::IBV_WR_BIND_MW,
        (Op::LocalInvalidate, ..) => o::IBV_WR_LOCAL_INV,
        (_, Some(_), _) => o::IBV_WR_SEND_WITH_IMM,
        (_, None, Some(_)) => o::IBV_WR_SEND_WITH_INV,
        (_, None, None) => o::IBV_WR_SEND,
    }
}

fn write_operands(request: &Request<'_>, wr: &mut ibv_send_wr) {
    let RemoteRange { addr: remote_addr, rkey, .. } = request.remote;
    let (compare_add, swap) = request.operands;
    wr.wr = match request.op {
        Op::CompareSwap | Op::FetchAdd => ibv_send_wr__bindgen_ty_2 {
            atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr,
                compare_add,
                swap,
                rkey,
            },
        },
        _ => ibv_send_wr__bindgen_ty_2 {
            rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
        },
    };
    if let Some((ah, remote_qpn, remote_qkey)) = request.to {
        wr.wr.ud =
            ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: ah.as_raw(), remote_qpn, remote_qkey };
    }
    if let Some(imm) = request.imm {
        wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data: imm.to_be() };
    } else if let Some(invalidate_rkey) = request.invalidate {
        wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { invalidate_rkey };
    }
    if let Some(n) = request.srq_num {
        wr.qp_type.xrc.remote_srqn = n;
    }
}
