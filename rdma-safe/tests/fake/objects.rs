//! The fake's objects: made, destroyed, and refused to be destroyed while in use.

use super::events::*;
use super::{Cq, FakeContext, Mr, Qp, kinds, lock, state_of};
use super::{ece, more, transfer};
use rdma_safe::seam::Verbs;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(super) const VERBS: Verbs = Verbs {
    close_device,
    get_device_guid: |_| 0x1234_u64.to_be(),
    query_device,
    query_port,
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    create_qp,
    modify_qp: kinds::modify_qp,
    destroy_qp,
    create_srq: transfer::create_srq,
    modify_srq: transfer::modify_srq,
    destroy_srq: transfer::destroy_srq,
    query_device_ex: more::query_device_ex,
    query_gid_ex: more::query_gid_ex,
    query_gid_table: more::query_gid_table,
    query_pkey: |_, _, _, _| libc::EINVAL,
    alloc_td: more::alloc_td,
    dealloc_td: more::dealloc_td,
    alloc_parent_domain: more::alloc_parent_domain,
    reg_mr_iova: more::reg_mr_iova,
    reg_dmabuf_mr: more::reg_dmabuf_mr,
    rereg_mr: more::rereg_mr,
    advise_mr: more::advise_mr,
    alloc_mw: more::alloc_mw,
    dealloc_mw: more::dealloc_mw,
    alloc_dm: more::alloc_dm,
    free_dm: more::free_dm,
    reg_dm_mr: more::reg_dm_mr,
    memcpy_to_dm: more::memcpy_to_dm,
    memcpy_from_dm: more::memcpy_from_dm,
    resize_cq: more::resize_cq,
    modify_cq: more::modify_cq,
    create_cq_ex: more::create_cq_ex,
    fork_init: || libc::ENOSYS,
    is_fork_initialized: || ibv_fork_status::IBV_FORK_UNNEEDED,
    query_qp: kinds::query_qp,
    query_ece: ece::query_ece,
    set_ece: ece::set_ece,
    create_qp_ex: kinds::create_qp_ex,
    create_srq_ex: kinds::create_srq_ex,
    get_srq_num: kinds::get_srq_num,
    create_ah: kinds::create_ah,
    destroy_ah: kinds::destroy_ah,
    init_ah_from_wc: kinds::init_ah_from_wc,
    attach_mcast: kinds::attach_mcast,
    detach_mcast: kinds::detach_mcast,
    open_xrcd: kinds::open_xrcd,
    close_xrcd: kinds::close_xrcd,
    get_async_event,
    ack_async_event,
};

fn set_errno(e: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = e }
}

unsafe fn close_device(ctx: *mut ibv_context) -> c_int {
    {
        let mut s = lock(state_of(ctx));
        s.closed = true;
        let left = (s.alive(), s.channels_alive(), s.kinds.alive());
        if left != ((0, 0, 0, 0), 0, (0, 0, 0)) {
            s.violations.push(format!("closed with {left:?} left"));
        }
    }
    // SAFETY: made by Box::into_raw in Fake::open, closed once.
    drop(unsafe { Box::from_raw(ctx.cast::<FakeContext>()) });
    0
}

unsafe fn query_device(ctx: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller passes a writable struct.
    let a = unsafe { &mut *attr };
    let s = lock(state_of(ctx));
    *a = s.more.attr.orig_attr;
    let infiniband = s.infiniband;
    if a.vendor_id == 0 {
        (a.vendor_id, a.vendor_part_id) = (rdma_safe::quirks::VENDOR_SIW, 1);
    }
    (a.phys_port_cnt, a.max_sge, a.max_sge_rd) = (1, 6, 3);
    (a.max_srq, a.max_srq_wr, a.max_srq_sge) = (16, 1 << 12, 1);
    if infiniband {
        a.max_mw = 16;
        a.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_HCA;
    }
    (a.max_qp_wr, a.max_cqe, a.max_qp) = (1 << 14, 1 << 20, 1 << 16);
    0
}

unsafe fn query_port(ctx: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes a writable struct.
    unsafe { (*attr).link_layer = if lock(state_of(ctx)).infiniband { 1 } else { 2 } };
    0
}

unsafe fn alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd {
    let mut s = lock(state_of(ctx));
    if s.faults.gone != 0 {
        set_errno(s.faults.gone);
        return null_mut();
    }
    s.pds += 1;
    Box::into_raw(Box::new(ibv_pd { context: ctx, ..ibv_pd::default() }))
}

unsafe fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a live PD.
    let mut s = lock(state_of(unsafe { (*pd).context }));
    if s.faults.dealloc_fails || s.faults.gone != 0 {
        return if s.faults.gone != 0 { s.faults.gone } else { libc::EBUSY };
    }
    s.pds -= 1;
    // SAFETY: made by alloc_pd, freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

unsafe fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, _access: c_int) -> *mut ibv_mr {
    // SAFETY: a live PD.
    let ctx = unsafe { (*pd).context };
    let mut s = lock(state_of(ctx));
    if s.faults.reg_mr_fails || s.faults.gone != 0 {
        set_errno(if s.faults.gone != 0 { s.faults.gone } else { libc::ENOMEM });
        return null_mut();
    }
    s.next_key += 1;
    let key = s.next_key;
    s.mrs.insert(key, Mr { start: addr as u64, len: len as u64 });
    Box::into_raw(Box::new(ibv_mr { context: ctx, pd, lkey: key, rkey: key, ..ibv_mr::default() }))
}

unsafe fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a live MR.
    let (ctx, key) = unsafe { ((*mr).context, (*mr).lkey) };
    let mut s = lock(state_of(ctx));
    if s.faults.dereg_fails || s.faults.gone != 0 {
        return if s.faults.gone != 0 { s.faults.gone } else { libc::EBUSY };
    }
    s.mrs.remove(&key);
    // SAFETY: made by reg_mr, freed once.
    drop(unsafe { Box::from_raw(mr) });
    0
}

unsafe fn create_cq(
    ctx: *mut ibv_context,
    cqe: c_int,
    cookie: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let mut s = lock(state_of(ctx));
    if s.faults.gone != 0 {
        set_errno(s.faults.gone);
        return null_mut();
    }
    let cq = ibv_cq { context: ctx, cq_context: cookie, cqe, channel, ..ibv_cq::default() };
    let raw = Box::into_raw(Box::new(cq));
    // SAFETY: a live channel, if there is one.
    let channel_fd = if channel.is_null() { -1 } else { unsafe { (*channel).fd } };
    if let Some(c) = s.channels.get_mut(&channel.addr()) {
        c.users += 1;
    }
    let (depth, channel) = (cqe as usize, channel.addr());
    let q = Cq { depth, raw: raw.expose_provenance(), channel, channel_fd, ..Cq::default() };
    s.cqs.insert(raw.addr(), q);
    raw
}

unsafe fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: a live CQ.
    let ctx = unsafe { (*cq).context };
    let mut s = lock(state_of(ctx));
    if s.cqs.get(&cq.addr()).is_none_or(|q| q.users > 0) {
        s.violations.push("destroy of a completion queue in use".into());
        return libc::EBUSY;
    }
    if s.faults.destroy_cq_fails || s.faults.gone != 0 {
        return libc::EIO;
    }
    if s.forget_events_of(cq.addr()) {
        s.violations.push("destroy of a completion queue that waits for an acknowledgement".into());
    }
    if let Some(q) = s.cqs.remove(&cq.addr())
        && let Some(c) = s.channels.get_mut(&q.channel)
    {
        c.users -= 1;
    }
    // SAFETY: made by create_cq or create_cq_ex, freed once as what it is.
    unsafe {
        match s.more.forget_queue(cq.addr()) {
            true => drop(Box::from_raw(cq.cast::<ibv_cq_ex>())),
            false => drop(Box::from_raw(cq)),
        }
    }
    0
}

unsafe fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: a live PD and complete attributes.
    let (ctx, attr) = unsafe { ((*pd).context, &mut *attr) };
    let mut s = lock(state_of(ctx));
    if s.faults.create_qp_fails | s.faults.gone != 0 {
        set_errno(s.faults.create_qp_fails | s.faults.gone);
        return null_mut();
    }
    attr.cap.max_inline_data = 64;
    // The lowest free number, as siw.
    let n = (1..).find(|n| !s.qps.contains_key(n)).unwrap_or(0);
    let (send_cq, recv_cq) = (attr.send_cq.addr(), attr.recv_cq.addr());
    for cq in [send_cq, recv_cq] {
        if let Some(q) = s.cqs.get_mut(&cq) {
            q.users += 1;
        }
    }
    let qp = ibv_qp {
        context: ctx,
        qp_context: attr.qp_context,
        pd,
        qp_num: n,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        ..ibv_qp::default()
    };
    let raw = Box::into_raw(Box::new(qp));
    s.kinds.born(n, attr.qp_type, attr.cap);
    let srq = attr.srq.addr();
    s.join_srq(srq, 1);
    s.qps.insert(n, Qp { send_cq, recv_cq, srq, raw: raw.expose_provenance(), ..Qp::default() });
    raw
}

unsafe fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a live QP.
    let (ctx, n) = unsafe { ((*qp).context, (*qp).qp_num) };
    let mut s = lock(state_of(ctx));
    if s.faults.destroy_qp_fails | s.faults.gone != 0 {
        return s.faults.destroy_qp_fails | s.faults.gone;
    }
    if !s.kinds.may_die(n) {
        s.violations.push("destroy of a member of a multicast group".into());
        return libc::EBUSY;
    }
    s.kinds.died(n);
    if s.faults.flush_on_destroy {
        s.flush(n);
    }
    if s.forget_events_of(qp.addr()) {
        s.violations.push("destroy of a queue pair that waits for an acknowledgement".into());
    }
    let Some(q) = s.qps.remove(&n) else {
        s.violations.push("destroy of a dead queue pair".into());
        return libc::EINVAL;
    };
    s.join_srq(q.srq, -1);
    for cq in [q.send_cq, q.recv_cq] {
        if let Some(c) = s.cqs.get_mut(&cq) {
            c.users -= 1;
        }
    }
    for other in s.qps.values_mut().filter(|o| o.peer == Some(n)) {
        other.peer = None;
    }
    // SAFETY: made by create_qp, freed once.
    drop(unsafe { Box::from_raw(qp) });
    0
}
