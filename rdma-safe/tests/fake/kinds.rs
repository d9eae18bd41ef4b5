//! What the fake knows beyond reliable connections: addresses, multicast groups, extended reliable connections, and
//! what was asked of each queue pair.

use super::{Qp, State, lock, state_of, transfer};
use rdma_sys::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::ptr::null_mut;

/// Part of the fake's state.
#[derive(Default)]
pub(crate) struct Kinds {
    /// Live address handles.
    pub(crate) ahs: BTreeSet<usize>,
    /// Live XRC domains and how many objects stand on each.
    pub(crate) xrcds: BTreeMap<usize, u32>,
    /// Queue pair number, group and LID of each membership.
    pub(crate) members: Vec<(u32, [u8; 16], u16)>,
    /// How each queue pair was made.
    pub(crate) made: BTreeMap<u32, (ibv_qp_type, ibv_qp_cap)>,
    /// Everything each queue pair was told, and its state.
    pub(crate) attrs: BTreeMap<u32, ibv_qp_attr>,
    /// The masks of all modify calls, in order.
    pub(crate) masks: Vec<i32>,
    /// The domain each XRC target stands on.
    targets: BTreeMap<u32, usize>,
    /// Domain, completion queue and number of each of their shared receive queues.
    xrc_srqs: BTreeMap<usize, (usize, usize, u32)>,
    /// How many there have been.
    xrc_srqs_made: u32,
    /// `get_srq_num` fails with this errno.
    pub(crate) srq_num_fails: i32,
    /// `destroy_ah` fails and the handle stays.
    pub(crate) destroy_ah_fails: bool,
    /// `detach_mcast` fails with this errno and the membership stays.
    pub(crate) detach_fails: i32,
    /// `modify_qp` fails with this errno.
    pub(crate) modify_fails: i32,
    /// The vendor options given to each queue pair.
    pub(super) ece: BTreeMap<u32, u32>,
    /// `query_qp` fails with this errno.
    pub(crate) query_fails: i32,
    /// `query_qp` says this state, whatever was asked for.
    pub(crate) claimed_state: Option<u32>,
}

impl Kinds {
    /// What has to be gone before the device is closed.
    pub(crate) fn alive(&self) -> (usize, usize, usize) {
        (self.ahs.len(), self.xrcds.len(), self.members.len())
    }

    /// The domain of an XRC target; `None` for other queue pairs.
    pub(super) fn domain_of(&self, n: u32) -> Option<usize> {
        self.targets.get(&n).copied()
    }

    /// Address and completion queue of a domain's shared receive queue with this number.
    pub(super) fn queue_of(&self, domain: usize, number: u32) -> Option<(usize, usize)> {
        let same = |q: &(&usize, &(usize, usize, u32))| (q.1.0, q.1.2) == (domain, number);
        self.xrc_srqs.iter().find(same).map(|(srq, q)| (*srq, q.1))
    }

    pub(super) fn born(&mut self, n: u32, kind: ibv_qp_type, cap: ibv_qp_cap) {
        self.made.insert(n, (kind, cap));
        self.attrs.insert(n, ibv_qp_attr { cap, ..ibv_qp_attr::default() });
    }

    /// Whether the device lets the queue pair go; a member of a group stays, as on rxe.
    pub(super) fn may_die(&self, n: u32) -> bool {
        !self.members.iter().any(|m| m.0 == n)
    }

    pub(super) fn died(&mut self, n: u32) {
        self.attrs.remove(&n);
        if let Some(x) = self.targets.remove(&n).and_then(|x| self.xrcds.get_mut(&x)) {
            *x -= 1;
        }
    }
}

impl State {
    /// An XRC shared receive queue, or another one, is gone.
    pub(super) fn xrc_srq_died(&mut self, srq: usize) {
        let Some((domain, cq, _)) = self.kinds.xrc_srqs.remove(&srq) else { return };
        if let Some(users) = self.kinds.xrcds.get_mut(&domain) {
            *users -= 1;
        }
        if let Some(q) = self.cqs.get_mut(&cq) {
            q.users -= 1;
        }
    }
}

pub(super) unsafe fn create_srq_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    use ibv_srq_init_attr_mask as m;
    let all = m::IBV_SRQ_INIT_ATTR_TYPE.0
        | m::IBV_SRQ_INIT_ATTR_PD.0
        | m::IBV_SRQ_INIT_ATTR_XRCD.0
        | m::IBV_SRQ_INIT_ATTR_CQ.0;
    // SAFETY: complete attributes.
    let a = unsafe { &*attr };
    if a.comp_mask != all || a.srq_type != ibv_srq_type::IBV_SRQT_XRC {
        return fail(libc::EINVAL);
    }
    let mut basic = ibv_srq_init_attr { srq_context: a.srq_context, attr: a.attr };
    // SAFETY: a live PD and complete attributes.
    let srq = unsafe { transfer::create_srq(a.pd, &mut basic) };
    if !srq.is_null() {
        let mut s = lock(state_of(ctx));
        let (domain, cq) = (a.xrcd.addr(), a.cq.addr());
        let number = 0x4711 + s.kinds.xrc_srqs_made;
        s.kinds.xrc_srqs_made += 1;
        s.kinds.xrc_srqs.insert(srq.addr(), (domain, cq, number));
        *s.kinds.xrcds.entry(domain).or_default() += 1;
        if let Some(q) = s.cqs.get_mut(&cq) {
            q.users += 1;
        }
    }
    srq
}

pub(super) unsafe fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: a live queue, a writable number.
    unsafe {
        let s = lock(state_of((*srq).context));
        if s.kinds.srq_num_fails != 0 {
            return s.kinds.srq_num_fails;
        }
        let Some(q) = s.kinds.xrc_srqs.get(&srq.addr()) else { return libc::EINVAL };
        *number = q.2;
    }
    0
}

fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno }
    null_mut()
}

pub(super) unsafe fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a live QP and complete attributes.
    let (ctx, n, new) = unsafe { ((*qp).context, (*qp).qp_num, &*attr) };
    let mut s = lock(state_of(ctx));
    s.kinds.masks.push(mask);
    if s.kinds.modify_fails != 0 {
        return s.kinds.modify_fails;
    }
    let Some(old) = s.kinds.attrs.get_mut(&n) else { return libc::EINVAL };
    let has = |bit: ibv_qp_attr_mask| mask & bit.0.cast_signed() != 0;
    let state = if has(ibv_qp_attr_mask::IBV_QP_STATE) { new.qp_state } else { old.qp_state };
    if has(ibv_qp_attr_mask::IBV_QP_QKEY) {
        old.qkey = new.qkey;
    }
    if has(ibv_qp_attr_mask::IBV_QP_AV) {
        old.ah_attr = new.ah_attr;
    }
    if has(ibv_qp_attr_mask::IBV_QP_DEST_QPN) {
        old.dest_qp_num = new.dest_qp_num;
    }
    if has(ibv_qp_attr_mask::IBV_QP_PORT) {
        old.port_num = new.port_num;
    }
    if has(ibv_qp_attr_mask::IBV_QP_PATH_MTU) {
        old.path_mtu = new.path_mtu;
    }
    old.qp_state = state;
    0
}

pub(super) unsafe fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a live QP and writable attributes.
    unsafe {
        let s = lock(state_of((*qp).context));
        if s.kinds.query_fails != 0 {
            return s.kinds.query_fails;
        }
        let Some(a) = s.kinds.attrs.get(&(*qp).qp_num) else { return libc::EINVAL };
        *attr = *a;
        if let Some(claim) = s.kinds.claimed_state {
            (*attr).qp_state = ibv_qp_state(claim);
        }
    }
    0
}

pub(super) unsafe fn create_qp_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: complete attributes.
    let attr = unsafe { &mut *attr };
    let mut s = lock(state_of(ctx));
    if s.faults.create_qp_fails != 0 {
        return fail(s.faults.create_qp_fails);
    }
    if attr.comp_mask != ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0
        || attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV
    {
        return fail(libc::EOPNOTSUPP);
    }
    let Some(users) = s.kinds.xrcds.get_mut(&attr.xrcd.addr()) else { return fail(libc::EINVAL) };
    *users += 1;
    let n = (1..).find(|n| !s.qps.contains_key(n)).unwrap_or(0);
    s.qps.insert(n, Qp::default());
    s.kinds.targets.insert(n, attr.xrcd.addr());
    s.kinds.born(n, attr.qp_type, attr.cap);
    let qp = ibv_qp { context: ctx, qp_num: n, qp_type: attr.qp_type, ..ibv_qp::default() };
    Box::into_raw(Box::new(qp))
}

pub(super) unsafe fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a live PD and complete attributes.
    let (ctx, attr) = unsafe { ((*pd).context, &*attr) };
    // As a device does with an entry of its table that is not in use.
    if attr.is_global != 0 && attr.grh.sgid_index > 3 {
        return fail(libc::EINVAL);
    }
    let ah = Box::into_raw(Box::new(ibv_ah { context: ctx, pd, handle: 0 }));
    lock(state_of(ctx)).kinds.ahs.insert(ah.addr());
    ah
}

pub(super) unsafe fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: a live handle.
    let mut s = lock(state_of(unsafe { (*ah).context }));
    if s.kinds.destroy_ah_fails {
        return libc::EIO;
    }
    if !s.kinds.ahs.remove(&ah.addr()) {
        s.violations.push("destroy of a dead address handle".into());
        return libc::EINVAL;
    }
    // SAFETY: made by create_ah, freed once.
    drop(unsafe { Box::from_raw(ah) });
    0
}

/// The part that does not depend on a GID table: the way back is the header's source.
pub(super) unsafe fn init_ah_from_wc(
    _ctx: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: complete structs, writable attributes.
    let (wc, grh, attr) = unsafe { (&*wc, &*grh, &mut *attr) };
    *attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..ibv_ah_attr::default()
    };
    if wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0 {
        if u32::from_be(grh.version_tclass_flow) >> 28 != 6 {
            return -1;
        }
        attr.is_global = 1;
        attr.grh.dgid = grh.sgid;
        attr.grh.hop_limit = 255;
    }
    0
}

pub(super) unsafe fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: a live QP and a complete GID, whose members are plain bytes.
    let (ctx, n, gid) = unsafe { ((*qp).context, (*qp).qp_num, (*gid).raw) };
    let mut s = lock(state_of(ctx));
    s.kinds.members.push((n, gid, lid));
    0
}

pub(super) unsafe fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: a live QP and a complete GID, whose members are plain bytes.
    let (ctx, n, gid) = unsafe { ((*qp).context, (*qp).qp_num, (*gid).raw) };
    let mut s = lock(state_of(ctx));
    if s.kinds.detach_fails != 0 {
        return s.kinds.detach_fails;
    }
    match s.kinds.members.iter().position(|m| *m == (n, gid, lid)) {
        Some(i) => {
            s.kinds.members.remove(i);
            0
        }
        None => libc::EINVAL,
    }
}

pub(super) unsafe fn open_xrcd(
    ctx: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: complete attributes.
    let attr = unsafe { &*attr };
    let both = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
        | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    if attr.comp_mask != both {
        return fail(libc::EINVAL);
    }
    let x = Box::into_raw(Box::new(ibv_xrcd { context: ctx }));
    lock(state_of(ctx)).kinds.xrcds.insert(x.addr(), 0);
    x
}

pub(super) unsafe fn close_xrcd(x: *mut ibv_xrcd) -> c_int {
    // SAFETY: a live domain.
    let mut s = lock(state_of(unsafe { (*x).context }));
    match s.kinds.xrcds.get(&x.addr()) {
        Some(0) => {}
        _ => {
            s.violations.push("close of an XRC domain in use".into());
            return libc::EBUSY;
        }
    }
    s.kinds.xrcds.remove(&x.addr());
    // SAFETY: made by open_xrcd, freed once.
    drop(unsafe { Box::from_raw(x) });
    0
}
