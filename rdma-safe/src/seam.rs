//! The libibverbs calls off the message path, as a table.
//!
//! [`LIBIBVERBS`] is the real thing. A test can put a provider of its own under the whole crate with a second table and
//! [`Context::from_raw`](crate::Context::from_raw); the message path needs no seam, because it goes through the ops
//! table of the `ibv_context` anyway. Not part of the stable interface.

use rdma_sys::*;
use std::ffi::{c_int, c_uint, c_void};

macro_rules! verbs {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $real:path;)*) => {
        /// One function pointer per libibverbs call this crate makes at set-up and tear-down.
        ///
        /// # Safety
        /// Whoever fills a table promises what the man page of the C function of that name promises: above all that
        /// after a successful `destroy_qp` nothing touches the buffers of that queue pair's requests.
        #[derive(Clone, Copy)]
        #[allow(missing_docs)] // each field stands for the C function of that name
        pub struct Verbs {
            $(pub $name: unsafe fn($($arg: $ty),*) $(-> $ret)?,)*
        }

        /// The installed libibverbs.
        pub static LIBIBVERBS: Verbs = Verbs {
            // SAFETY: the field's type is an unsafe fn: the caller keeps the contract of the C function it stands for.
            $($name: |$($arg),*| unsafe { $real($($arg),*) },)*
        };
    };
}

verbs! {
    close_device(context: *mut ibv_context) -> c_int = ibv_close_device;
    get_device_guid(device: *mut ibv_device) -> u64 = ibv_get_device_guid;
    query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int = ibv_query_device;
    query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int = ibv_query_port;
    alloc_pd(context: *mut ibv_context) -> *mut ibv_pd = ibv_alloc_pd;
    dealloc_pd(pd: *mut ibv_pd) -> c_int = ibv_dealloc_pd;
    reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr = ibv_reg_mr;
    dereg_mr(mr: *mut ibv_mr) -> c_int = ibv_dereg_mr;
    create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel = ibv_create_comp_channel;
    destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int = ibv_destroy_comp_channel;
    create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq
        = ibv_create_cq;
    destroy_cq(cq: *mut ibv_cq) -> c_int = ibv_destroy_cq;
    get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int = ibv_get_cq_event;
    ack_cq_events(cq: *mut ibv_cq, count: c_uint) = ibv_ack_cq_events;
    create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp = ibv_create_qp;
    modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int = ibv_modify_qp;
    create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq = ibv_create_srq;
    modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int = ibv_modify_srq;
    destroy_srq(srq: *mut ibv_srq) -> c_int = ibv_destroy_srq;
    destroy_qp(qp: *mut ibv_qp) -> c_int = ibv_destroy_qp;
    query_device_ex(context: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex) -> c_int
        = ibv_query_device_ex;
    query_gid_ex(context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32) -> c_int = ibv_query_gid_ex;
    query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32) -> isize = ibv_query_gid_table;
    query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int = ibv_query_pkey;
    alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = ibv_alloc_td;
    dealloc_td(td: *mut ibv_td) -> c_int = ibv_dealloc_td;
    alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd = ibv_alloc_parent_domain;
    reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: c_int) -> *mut ibv_mr = ibv_reg_mr_iova;
    reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr = ibv_reg_dmabuf_mr;
    rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> c_int = ibv_rereg_mr;
    advise_mr(pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, list: *mut ibv_sge, count: u32) -> c_int = ibv_advise_mr;
    alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw = ibv_alloc_mw;
    dealloc_mw(mw: *mut ibv_mw) -> c_int = ibv_dealloc_mw;
    alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = ibv_alloc_dm;
    free_dm(dm: *mut ibv_dm) -> c_int = ibv_free_dm;
    reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, len: usize, access: c_uint) -> *mut ibv_mr = ibv_reg_dm_mr;
    memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, len: usize) -> c_int = ibv_memcpy_to_dm;
    memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, len: usize) -> c_int = ibv_memcpy_from_dm;
    resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int = ibv_resize_cq;
    modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = ibv_modify_cq;
    create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex = ibv_create_cq_ex;
    fork_init() -> c_int = ibv_fork_init;
    is_fork_initialized() -> ibv_fork_status = ibv_is_fork_initialized;
    query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int = ibv_query_qp;
    query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int = ibv_query_ece;
    set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int = ibv_set_ece;
    create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp = ibv_create_qp_ex;
    create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq = ibv_create_srq_ex;
    get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int = ibv_get_srq_num;
    create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah = ibv_create_ah;
    destroy_ah(ah: *mut ibv_ah) -> c_int = ibv_destroy_ah;
    init_ah_from_wc(context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, attr: *mut ibv_ah_attr) -> c_int
        = ibv_init_ah_from_wc;
    attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int = ibv_attach_mcast;
    detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int = ibv_detach_mcast;
    open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = ibv_open_xrcd;
    close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = ibv_close_xrcd;
    get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int = ibv_get_async_event;
    ack_async_event(event: *mut ibv_async_event) = ibv_ack_async_event;
}
