//! The fake's rarer objects: parent domains, windows, device memory, registrations of every kind, GID tables, moderated,
//! resized and extended completion queues. What it was asked for is written down, so that a test can look.

use super::{Cq, Mr, State, lock, state_of};
use rdma_sys::*;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// Attributes of a device that has everything.
pub(crate) fn hardware() -> ibv_device_attr_ex {
    let orig_attr = ibv_device_attr {
        vendor_id: 0x15b3,
        vendor_part_id: 4123,
        phys_port_cnt: 1,
        max_mw: 8,
        max_srq: 8,
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA,
        ..ibv_device_attr::default()
    };
    ibv_device_attr_ex {
        orig_attr,
        odp_caps: ibv_odp_caps { general_caps: 1, ..ibv_odp_caps::default() },
        max_dm_size: 4096,
        cq_mod_caps: ibv_cq_moderation_caps { max_cq_count: 100, max_cq_period: 1000 },
        ..ibv_device_attr_ex::default()
    }
}

/// One registration, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) iova: u64,
    pub(crate) access: u32,
    /// Of a dmabuf; else -1.
    pub(crate) fd: c_int,
}

/// What these calls know, and how they are to fail.
#[derive(Default)]
pub(crate) struct More {
    pub(crate) attr: ibv_device_attr_ex,
    /// Used entries of the GID table.
    pub(crate) gids: Vec<ibv_gid_entry>,
    /// None of these calls exists in this provider.
    pub(crate) unsupported: bool,
    /// `rereg_mr` returns this, with errno EIO.
    pub(crate) rereg_returns: c_int,
    /// `resize_cq` fails with this errno.
    pub(crate) resize_fails: c_int,
    /// `free_dm`, `dealloc_mw` and `dealloc_td` fail with EBUSY.
    pub(crate) frees_fail: bool,
    /// The latest registration.
    pub(crate) registered: Option<Registered>,
    /// Flags of the latest `rereg_mr`.
    pub(crate) reregistered: c_int,
    /// Advice, flags, address, length, key.
    pub(crate) advised: Option<(u32, u32, u64, u32, u32)>,
    /// Count and period of the latest moderation.
    pub(crate) moderated: Option<(u16, u16)>,
    pub(crate) tds: u32,
    pub(crate) mws: u32,
    dms: BTreeMap<usize, Vec<u8>>,
    /// Extended queues, with the completion of a poll that is open.
    polls: BTreeMap<usize, Option<ibv_wc>>,
}

impl More {
    /// Device memories, windows and thread domains that exist.
    pub(crate) fn alive(&self) -> (usize, u32, u32) {
        (self.dms.len(), self.mws, self.tds)
    }

    /// Removes an extended queue; true when it is one.
    pub(super) fn forget_queue(&mut self, cq: usize) -> bool {
        self.polls.remove(&cq).is_some()
    }
}

fn set_errno(e: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = e }
}

/// The errno with which a call of this file fails now, if it does; it is set too.
fn refusal(s: &State) -> Option<c_int> {
    let e = match (s.faults.gone, s.more.unsupported) {
        (0, false) => return None,
        (0, true) => libc::EOPNOTSUPP,
        (gone, _) => gone,
    };
    set_errno(e);
    Some(e)
}

pub(super) unsafe fn query_device_ex(
    ctx: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    let s = lock(state_of(ctx));
    // SAFETY: the caller passes a writable struct.
    unsafe { *attr = s.more.attr };
    s.faults.gone
}

pub(super) unsafe fn query_gid_table(
    ctx: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    _: u32,
) -> isize {
    let s = lock(state_of(ctx));
    if s.faults.gone != 0 {
        return -(s.faults.gone as isize);
    }
    if max < s.more.gids.len() {
        return -(libc::EINVAL as isize);
    }
    for (i, g) in s.more.gids.iter().enumerate() {
        // SAFETY: the caller has room for `max` entries.
        unsafe { entries.add(i).write(*g) };
    }
    s.more.gids.len() as isize
}

pub(super) unsafe fn query_gid_ex(
    ctx: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    _: u32,
) -> c_int {
    let s = lock(state_of(ctx));
    match s.more.gids.iter().find(|g| (g.port_num, g.gid_index) == (port, index)) {
        // SAFETY: the caller passes a writable entry.
        Some(g) => unsafe { *entry = *g },
        None => return libc::ENODATA,
    }
    0
}

pub(super) unsafe fn alloc_td(ctx: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
    let mut s = lock(state_of(ctx));
    if refusal(&s).is_some() {
        return null_mut();
    }
    s.more.tds += 1;
    Box::into_raw(Box::new(ibv_td { context: ctx }))
}

pub(super) unsafe fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: a live thread domain.
    let mut s = lock(state_of(unsafe { (*td).context }));
    if s.more.frees_fail {
        return libc::EBUSY;
    }
    s.more.tds -= 1;
    // SAFETY: made by alloc_td, freed once.
    drop(unsafe { Box::from_raw(td) });
    0
}

pub(super) unsafe fn alloc_parent_domain(
    ctx: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let mut s = lock(state_of(ctx));
    if refusal(&s).is_some() {
        return null_mut();
    }
    // SAFETY: complete attributes.
    if unsafe { (*attr).pd.is_null() } {
        s.violations.push("a parent domain over nothing".into());
    }
    s.pds += 1;
    Box::into_raw(Box::new(ibv_pd { context: ctx, ..ibv_pd::default() }))
}

/// Registers anything.
fn register(ctx: *mut ibv_context, pd: *mut ibv_pd, r: Registered) -> *mut ibv_mr {
    let mut s = lock(state_of(ctx));
    if s.faults.reg_mr_fails {
        set_errno(libc::ENOMEM);
        return null_mut();
    }
    if refusal(&s).is_some() {
        return null_mut();
    }
    s.next_key += 1;
    let key = s.next_key;
    s.mrs.insert(key, Mr { start: r.addr, len: r.len as u64 });
    s.more.registered = Some(r);
    Box::into_raw(Box::new(ibv_mr { context: ctx, pd, lkey: key, rkey: key, ..ibv_mr::default() }))
}

pub(super) unsafe fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a live PD.
    let ctx = unsafe { (*pd).context };
    let access = access.cast_unsigned();
    register(ctx, pd, Registered { addr: addr as u64, len, iova, access, fd: -1 })
}

pub(super) unsafe fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: a live PD.
    let ctx = unsafe { (*pd).context };
    register(ctx, pd, Registered { addr: offset, len, iova, access: access.cast_unsigned(), fd })
}

pub(super) unsafe fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    // SAFETY: a live MR.
    let mr = unsafe { &mut *mr };
    let mut s = lock(state_of(mr.context));
    let has = |f: ibv_rereg_mr_flags| flags & f.0.cast_signed() != 0;
    s.more.reregistered = flags;
    if refusal(&s).is_some() {
        return ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD.0;
    }
    if s.more.rereg_returns != 0 {
        set_errno(libc::EIO);
        return s.more.rereg_returns;
    }
    if has(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD) {
        mr.pd = pd;
    }
    if has(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION) {
        // As hardware may: other keys.
        s.mrs.remove(&mr.lkey);
        s.next_key += 1;
        let key = s.next_key;
        s.mrs.insert(key, Mr { start: addr as u64, len: len as u64 });
        (mr.lkey, mr.rkey) = (key, key);
    }
    if has(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS) {
        let addr = addr as u64;
        let access = access.cast_unsigned();
        s.more.registered = Some(Registered { addr, len, iova: addr, access, fd: -1 });
    }
    0
}

pub(super) unsafe fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: a live PD.
    let mut s = lock(state_of(unsafe { (*pd).context }));
    if let Some(e) = refusal(&s) {
        return e;
    }
    assert_eq!(count, 1);
    // SAFETY: a list of one element.
    let sge = unsafe { *list };
    s.more.advised = Some((advice.0, flags, sge.addr, sge.length, sge.lkey));
    0
}

pub(super) unsafe fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: a live PD.
    let context = unsafe { (*pd).context };
    let mut s = lock(state_of(context));
    if refusal(&s).is_some() {
        return null_mut();
    }
    s.more.mws += 1;
    s.next_key += 1;
    let rkey = s.next_key << 8;
    Box::into_raw(Box::new(ibv_mw { context, pd, rkey, handle: 0, type_: kind }))
}

pub(super) unsafe fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a live window.
    let mut s = lock(state_of(unsafe { (*mw).context }));
    if s.more.frees_fail {
        return libc::EBUSY;
    }
    s.more.mws -= 1;
    // SAFETY: made by alloc_mw, freed once.
    drop(unsafe { Box::from_raw(mw) });
    0
}

pub(super) unsafe fn alloc_dm(ctx: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    let mut s = lock(state_of(ctx));
    if refusal(&s).is_some() {
        return null_mut();
    }
    // SAFETY: complete attributes.
    let len = unsafe { (*attr).length };
    let dm = Box::into_raw(Box::new(ibv_dm { context: ctx, ..ibv_dm::default() }));
    s.more.dms.insert(dm.addr(), vec![0; len]);
    dm
}

pub(super) unsafe fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: live device memory.
    let mut s = lock(state_of(unsafe { (*dm).context }));
    if s.more.frees_fail {
        return libc::EBUSY;
    }
    s.more.dms.remove(&dm.addr());
    // SAFETY: made by alloc_dm, freed once.
    drop(unsafe { Box::from_raw(dm) });
    0
}

pub(super) unsafe fn reg_dm_mr(
    pd: *mut ibv_pd,
    _: *mut ibv_dm,
    offset: u64,
    len: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: a live PD.
    let ctx = unsafe { (*pd).context };
    register(ctx, pd, Registered { addr: offset, len, iova: 0, access, fd: -1 })
}

pub(super) unsafe fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: live device memory.
    let mut s = lock(state_of(unsafe { (*dm).context }));
    let Some(to) = s.more.dms.get_mut(&dm.addr()) else { return libc::EINVAL };
    // SAFETY: the caller passes `len` readable bytes.
    let from = unsafe { std::slice::from_raw_parts(from.cast(), len) };
    to[offset as usize..][..len].copy_from_slice(from);
    0
}

pub(super) unsafe fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    // SAFETY: live device memory.
    let s = lock(state_of(unsafe { (*dm).context }));
    let Some(from) = s.more.dms.get(&dm.addr()) else { return libc::EINVAL };
    // SAFETY: the caller passes `len` writable bytes.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), len) };
    to.copy_from_slice(&from[offset as usize..][..len]);
    0
}

pub(super) unsafe fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a live CQ.
    let mut s = lock(state_of(unsafe { (*cq).context }));
    if let Some(e) = refusal(&s) {
        return e;
    }
    if s.more.resize_fails != 0 {
        return s.more.resize_fails;
    }
    if let Some(q) = s.cqs.get_mut(&cq.addr()) {
        q.depth = cqe as usize;
    }
    0
}

pub(super) unsafe fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: a live CQ.
    let mut s = lock(state_of(unsafe { (*cq).context }));
    if let Some(e) = refusal(&s) {
        return e;
    }
    // SAFETY: complete attributes.
    let a = unsafe { &*attr };
    assert_eq!(a.attr_mask, ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0);
    s.more.moderated = Some((a.moderate.cq_count, a.moderate.cq_period));
    0
}

pub(super) unsafe fn create_cq_ex(
    ctx: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let mut s = lock(state_of(ctx));
    if refusal(&s).is_some() {
        return null_mut();
    }
    // SAFETY: complete attributes.
    let a = unsafe { &*attr };
    let asked = |f: ibv_create_cq_wc_flags| a.wc_flags & u64::from(f.0) != 0;
    let mut cq = ibv_cq_ex {
        context: ctx,
        cq_context: a.cq_context,
        cqe: a.cqe.cast_signed(),
        start_poll: Some(start_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_wc_flags: Some(read_wc_flags),
        read_byte_len: Some(read_byte_len),
        ..ibv_cq_ex::default()
    };
    // As providers do: only what was asked for can be read.
    if asked(ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        cq.read_completion_ts = Some(read_completion_ts);
    }
    let raw = Box::into_raw(Box::new(cq));
    s.more.polls.insert(raw.addr(), None);
    let q = Cq { depth: a.cqe as usize, raw: raw.expose_provenance(), ..Cq::default() };
    s.cqs.insert(raw.addr(), q);
    raw
}

/// The completion a poll is open on.
fn open(cq: *mut ibv_cq_ex) -> ibv_wc {
    // SAFETY: a live queue.
    let s = lock(state_of(unsafe { (*cq).context }));
    s.more.polls.get(&cq.addr()).copied().flatten().expect("a read outside of a poll")
}

macro_rules! readers {
    ($($name:ident($wc:ident) -> $ret:ty = $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ret {
            let $wc = open(cq);
            $value
        })*
    };
}

readers! {
    read_opcode(wc) -> ibv_wc_opcode = wc.opcode;
    read_vendor_err(wc) -> u32 = wc.vendor_err;
    read_byte_len(wc) -> u32 = wc.byte_len;
    read_wc_flags(wc) -> c_uint = wc.wc_flags;
    // Made up: the request's index is in the low bits.
    read_completion_ts(wc) -> u64 = wc.wr_id >> 16;
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: a live queue.
    let mut s = lock(state_of(unsafe { (*cq).context }));
    if s.faults.poll_fails != 0 {
        return s.faults.poll_fails.abs();
    }
    let Some(wc) = s.cqs.get_mut(&cq.addr()).and_then(|q| q.entries.pop_front()) else {
        return libc::ENOENT;
    };
    if s.more.polls.insert(cq.addr(), Some(wc)).flatten().is_some() {
        s.violations.push("a second poll while one is open".into());
    }
    // SAFETY: a live queue, polled by one thread.
    unsafe { ((*cq).wr_id, (*cq).status) = (wc.wr_id, wc.status) };
    0
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a live queue.
    let mut s = lock(state_of(unsafe { (*cq).context }));
    if s.more.polls.insert(cq.addr(), None).flatten().is_none() {
        s.violations.push("the end of a poll that is not open".into());
    }
}
