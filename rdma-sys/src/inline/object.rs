//! Objects that are made and destroyed through operations of the provider's extended context.

use libc::{c_int, c_uint, c_void, size_t};

use crate::{
    ib_uverbs_advise_mr_advice, ibv_alloc_dm_attr, ibv_context, ibv_counter_attach_attr,
    ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_qp,
    ibv_create_srq, ibv_dm, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr,
    ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_parent_domain_init_attr,
    ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_open_attr,
    ibv_qp_rate_limit_attr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq,
    ibv_srq_init_attr_ex, ibv_srq_init_attr_mask, ibv_srq_type, ibv_td, ibv_td_init_attr, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};

use super::{Missing, ctx_op, forward};

forward! {
    /// Makes a flow steering rule. Null and errno on failure. Man page: ibv_create_flow(3).
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow = (*qp).context => ibv_create_flow;
    /// Destroys a flow steering rule. Returns 0 or an errno. Man page: ibv_create_flow(3).
    fn ibv_destroy_flow(flow: *mut ibv_flow) -> c_int = (*flow).context => ibv_destroy_flow;
    /// Makes an ESP action for flow rules. Null and errno on failure. Man page: ibv_flow_action(3).
    fn ibv_create_flow_action_esp(context: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action
        = context => create_flow_action_esp;
    /// Changes an ESP action. Returns 0 or an errno. Man page: ibv_flow_action(3).
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        = (*action).context => modify_flow_action_esp;
    /// Destroys a flow action. Returns 0 or an errno. Man page: ibv_flow_action(3).
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int = (*action).context => destroy_flow_action;
    /// Opens an XRC domain. Null and errno on failure. Man page: ibv_open_xrcd(3).
    fn ibv_open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = context => open_xrcd;
    /// Closes an XRC domain. Returns 0 or an errno. Man page: ibv_open_xrcd(3).
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = (*xrcd).context => close_xrcd;
    /// Gives the kernel advice on the use of registered memory. Returns 0 or an errno. Man page: ibv_advise_mr(3).
    fn ibv_advise_mr(pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int
        = (*pd).context => advise_mr;
    /// Allocates memory on the device. Null and errno on failure. Man page: ibv_alloc_dm(3).
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = context => alloc_dm;
    /// Frees memory on the device. Returns 0 or an errno. Man page: ibv_alloc_dm(3).
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = (*dm).context => free_dm;
    /// Makes a region that discards writes and reads as zero. Null and errno on failure. Man page: ibv_alloc_null_mr(3).
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = (*pd).context => alloc_null_mr;
    /// Registers `length` bytes of device memory from `dm_offset` on. Null and errno on failure. Man page: ibv_alloc_dm(3).
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: size_t, access: c_uint) -> *mut ibv_mr
        = (*pd).context => reg_dm_mr;
    /// Makes an extended completion queue. Null and errno on failure. Man page: ibv_create_cq_ex(3).
    fn ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex = context => create_cq_ex;
    /// Changes the event moderation of a completion queue. Returns 0 or an errno. Man page: ibv_modify_cq(3).
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = (*cq).context => modify_cq;
    /// Writes the number of an XRC shared receive queue. Returns 0 or an errno. Man page: ibv_get_srq_num(3).
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = (*srq).context => get_srq_num;
    /// Allocates a thread domain: its objects are used by one thread at a time. Null and errno on failure. Man page: ibv_alloc_td(3).
    fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = context => alloc_td;
    /// Frees a thread domain. Returns 0 or an errno. Man page: ibv_alloc_td(3).
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = (*td).context => dealloc_td;
    /// Allocates a protection domain with a thread domain or allocators. Null and errno on failure. Man page: ibv_alloc_parent_domain(3).
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = context => alloc_parent_domain;
    /// Opens a queue pair that other processes share (XRC). Null and errno on failure. Man page: ibv_open_qp(3).
    fn ibv_open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = context => open_qp;
    /// Changes the rate limit of a queue pair. Returns 0 or an errno. Man page: ibv_modify_qp_rate_limit(3).
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int = (*qp).context => modify_qp_rate_limit;
    /// Changes a work queue. Returns 0 or an errno. Man page: ibv_modify_wq(3).
    fn ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int = (*wq).context => modify_wq;
    /// Destroys a work queue. Returns 0 or an errno. Man page: ibv_create_wq(3).
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = (*wq).context => destroy_wq;
    /// Makes a table that spreads receives over work queues. Null and errno on failure. Man page: ibv_create_rwq_ind_table(3).
    fn ibv_create_rwq_ind_table(context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table
        = context => create_rwq_ind_table;
    /// Destroys such a table. Returns 0 or an errno. Man page: ibv_create_rwq_ind_table(3).
    fn ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int = (*table).context => destroy_rwq_ind_table;
    /// Makes a counters object. Null and errno on failure. Man page: ibv_create_counters(3).
    fn ibv_create_counters(context: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters = context => create_counters;
    /// Destroys a counters object. Returns 0 or an errno. Man page: ibv_create_counters(3).
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = (*counters).context => destroy_counters;
    /// Makes a counters object count what a flow rule matches. Returns 0 or an errno. Man page: ibv_attach_counters_point_flow(3).
    fn ibv_attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int
        = (*counters).context => attach_counters_point_flow;
    /// Reads `ncounters` values. Returns 0 or an errno. Man page: ibv_read_counters(3).
    fn ibv_read_counters(counters: *mut ibv_counters, values: *mut u64, ncounters: u32, flags: u32) -> c_int
        = (*counters).context => read_counters;
}

/// Makes a shared receive queue of any type; a basic one on every provider.
///
/// Null and errno on failure. Man page: ibv_create_srq_ex(3).
///
/// # Safety
/// `context` is open, `attr` is initialised as its `comp_mask` says, its handles are live and of this context.
#[inline]
pub unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let pd = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    let ty = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    // SAFETY: the caller passes an open context and a valid attribute, whose head is an ibv_srq_init_attr.
    unsafe {
        let mask = (*attr).comp_mask;
        let basic = mask & ty == 0 || (*attr).srq_type == ibv_srq_type::IBV_SRQT_BASIC;
        if mask & !(pd | ty) == 0 && mask & pd != 0 && basic {
            return ibv_create_srq((*attr).pd, attr.cast());
        }
        match ctx_op!(context, create_srq_ex) {
            Some(op) => op(context, attr),
            None => Missing::missing(),
        }
    }
}

/// Makes a queue pair with extended attributes; one that has only a protection domain on every provider.
///
/// Null and errno on failure. Man page: ibv_create_qp_ex(3).
///
/// # Safety
/// `context` is open, `attr` is initialised as its `comp_mask` says, its handles are live and of this context.
#[inline]
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller passes an open context and a valid attribute, whose head is an ibv_qp_init_attr.
    unsafe {
        if (*attr).comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            return ibv_create_qp((*attr).pd, attr.cast());
        }
        match ctx_op!(context, create_qp_ex) {
            Some(op) => op(context, attr),
            None => Missing::missing(),
        }
    }
}

/// Makes a work queue. Null and errno on failure. Man page: ibv_create_wq(3).
///
/// # Safety
/// `context` is open, `attr` is initialised, its handles are live and of this context.
#[inline]
pub unsafe fn ibv_create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: the caller passes an open context and a valid attribute. A new work queue is ours alone, so its mutex and
    // condition are not in use and are initialised here, as the header does.
    unsafe {
        let Some(op) = ctx_op!(context, create_wq) else { return Missing::missing() };
        let wq = op(context, attr);
        if !wq.is_null() {
            (*wq).wq_context = (*attr).wq_context;
            (*wq).events_completed = 0;
            libc::pthread_mutex_init(&raw mut (*wq).mutex, std::ptr::null());
            libc::pthread_cond_init(&raw mut (*wq).cond, std::ptr::null());
        }
        wq
    }
}

/// Allocates a memory window. Null and errno on failure. Man page: ibv_alloc_mw(3).
///
/// # Safety
/// `pd` is live.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, ty: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller passes a live protection domain.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(op) => op(pd, ty),
            None => Missing::missing(),
        }
    }
}

/// Frees a memory window. Returns 0 or an errno. Man page: ibv_alloc_mw(3).
///
/// # Safety
/// `mw` is live and not used afterwards if 0 is returned.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller passes a live window.
    unsafe {
        match (*(*mw).context).ops.dealloc_mw {
            Some(op) => op(mw),
            None => Missing::missing(),
        }
    }
}

/// Binds a memory window of type 1, or unbinds it (a length of 0).
///
/// Returns 0 or an errno (`EINVAL`: not type 1, or an address without a region; `EPERM`: region of another protection
/// domain). Man page: ibv_bind_mw(3).
///
/// # Safety
/// `qp` and `mw` are live, `bind` is valid and its region is null or live.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller passes live handles and a valid request.
    unsafe {
        let info = &raw const (*bind).bind_info;
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        let mr = (*info).mr;
        if mr.is_null() {
            if (*info).addr != 0 || (*info).length != 0 {
                return libc::EINVAL;
            }
        } else if (*mw).pd != (*mr).pd {
            return libc::EPERM;
        }
        match (*(*mw).context).ops.bind_mw {
            Some(op) => op(qp, mw, bind),
            None => Missing::missing(),
        }
    }
}

/// The next key of a memory window of type 2: the low 8 bits plus 1, the rest kept. Man page: ibv_inc_rkey(3).
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Copies host memory to device memory. Returns 0 or an errno. Man page: ibv_alloc_dm(3).
///
/// # Safety
/// `dm` is live, `host_addr` is valid for reads of `length` bytes.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: size_t,
) -> c_int {
    // SAFETY: the caller passes live device memory and a valid buffer.
    unsafe {
        match (*dm).memcpy_to_dm {
            Some(op) => op(dm, dm_offset, host_addr, length),
            None => Missing::missing(),
        }
    }
}

/// Copies device memory to host memory. Returns 0 or an errno. Man page: ibv_alloc_dm(3).
///
/// # Safety
/// `dm` is live, `host_addr` is valid for writes of `length` bytes.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: size_t,
) -> c_int {
    // SAFETY: the caller passes live device memory and a valid buffer.
    unsafe {
        match (*dm).memcpy_from_dm {
            Some(op) => op(host_addr, dm, dm_offset, length),
            None => Missing::missing(),
        }
    }
}

/// The UDP source port that RoCE v2 derives from a flow label: 0xC000 to 0xFFFF.
///
/// Source: `infiniband/verbs.h`; InfiniBand specification, annex A17.
#[inline]
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label & 0xf_c000) >> 14;
    ((low ^ high) | 0xc000) as u16
}
