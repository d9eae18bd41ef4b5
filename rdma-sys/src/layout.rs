//! What the fast path and the inline verbs rely on, checked at each compilation.
//!
//! The numbers are those of every 64-bit Linux. The size of a mutex and a condition differs between targets, so it is
//! taken from libc. bindgen's own asserts in `bindings.rs` pin every field on `x86_64`; the layout test compares all
//! of it with the installed headers.

use std::mem::offset_of;

use libc::{pthread_cond_t, pthread_mutex_t};
use static_assertions::{assert_impl_all, const_assert_eq};

use crate::*;

/// Pins the size and alignment of a type and the offset of every named field.
macro_rules! layout {
    ($($ty:ident: $size:expr, $align:expr, { $($field:ident: $offset:expr),* $(,)? })*) => {$(
        // Newer headers append fields.
        #[cfg(not(feature = "bindgen"))]
        const_assert_eq!(size_of::<$ty>(), $size);
        const_assert_eq!(align_of::<$ty>(), $align);
        $(const_assert_eq!(offset_of!($ty, $field), $offset);)*
    )*};
}

layout! {
    ibv_sge: 16, 8, { addr: 0, length: 8, lkey: 12 }
    ibv_recv_wr: 32, 8, { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 }
    ibv_send_wr: 128, 8, {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, wr: 40,
        qp_type: 72,
    }
    ibv_wc: 48, 8, {
        wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, qp_num: 28,
        src_qp: 32, wc_flags: 36, pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45,
    }
    ibv_gid: 16, 8, { raw: 0, global: 0 }
    ibv_global_route: 24, 8, {
        dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22,
    }
    ibv_grh: 40, 8, {
        version_tclass_flow: 0, paylen: 4, next_hdr: 6, hop_limit: 7, sgid: 8, dgid: 24,
    }
    ibv_ah_attr: 32, 8, {
        grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29,
        port_num: 30,
    }
    ibv_qp_cap: 20, 4, {
        max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12,
        max_inline_data: 16,
    }
    ibv_qp_init_attr: 64, 8, {
        qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52,
        sq_sig_all: 56,
    }
    ibv_qp_attr: 144, 8, {
        qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16,
        rq_psn: 20, sq_psn: 24, dest_qp_num: 28, qp_access_flags: 32, cap: 36,
        ah_attr: 56, alt_ah_attr: 88, pkey_index: 120, alt_pkey_index: 122,
        en_sqd_async_notify: 124, sq_draining: 125, max_rd_atomic: 126,
        max_dest_rd_atomic: 127, min_rnr_timer: 128, port_num: 129, timeout: 130,
        retry_cnt: 131, rnr_retry: 132, alt_port_num: 133, alt_timeout: 134,
        rate_limit: 136,
    }
    ibv_device_attr: 232, 8, {
        fw_ver: 0, node_guid: 64, sys_image_guid: 72, max_mr_size: 80, page_size_cap: 88,
        vendor_id: 96, vendor_part_id: 100, hw_ver: 104, max_qp: 108, max_qp_wr: 112,
        device_cap_flags: 116, max_sge: 120, max_sge_rd: 124, max_cq: 128, max_cqe: 132,
        max_mr: 136, max_pd: 140, max_qp_rd_atom: 144, max_ee_rd_atom: 148,
        max_res_rd_atom: 152, max_qp_init_rd_atom: 156, max_ee_init_rd_atom: 160,
        atomic_cap: 164, max_ee: 168, max_rdd: 172, max_mw: 176, max_raw_ipv6_qp: 180,
        max_raw_ethy_qp: 184, max_mcast_grp: 188, max_mcast_qp_attach: 192,
        max_total_mcast_qp_attach: 196, max_ah: 200, max_fmr: 204, max_map_per_fmr: 208,
        max_srq: 212, max_srq_wr: 216, max_srq_sge: 220, max_pkeys: 224,
        local_ca_ack_delay: 226, phys_port_cnt: 227,
    }
    ibv_port_attr: 52, 4, {
        state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, port_cap_flags: 16,
        max_msg_sz: 20, bad_pkey_cntr: 24, qkey_viol_cntr: 28, pkey_tbl_len: 32, lid: 34,
        sm_lid: 36, lmc: 38, max_vl_num: 39, sm_sl: 40, subnet_timeout: 41,
        init_type_reply: 42, active_width: 43, active_speed: 44, phys_state: 45,
        link_layer: 46, flags: 47, port_cap_flags2: 48,
    }
    ibv_gid_entry: 32, 8, { gid: 0, gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex: 28 }
    ibv_mr: 48, 8, { context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 }
    ibv_pd: 16, 8, { context: 0, handle: 8 }
    ibv_comp_channel: 16, 8, { context: 0, fd: 8, refcnt: 12 }
    ibv_async_event: 16, 8, { element: 0, event_type: 8 }
    ibv_srq_init_attr: 24, 8, { srq_context: 0, attr: 8 }
    ibv_mw: 32, 8, { context: 0, pd: 8, rkey: 16, handle: 20, type_: 24 }
    ibv_mw_bind: 48, 8, { wr_id: 0, send_flags: 8, bind_info: 16 }
    ibv_mw_bind_info: 32, 8, { mr: 0, addr: 8, length: 16, mw_access_flags: 24 }
    ibv_ah: 24, 8, { context: 0, pd: 8, handle: 16 }
    ibv_device: 664, 8, {
        _ops: 0, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152,
        ibdev_path: 408,
    }
    ibv_context_ops: 256, 8, {
        _compat_query_device: 0, _compat_query_port: 8, _compat_alloc_pd: 16,
        _compat_dealloc_pd: 24, _compat_reg_mr: 32, _compat_rereg_mr: 40,
        _compat_dereg_mr: 48, alloc_mw: 56, bind_mw: 64, dealloc_mw: 72,
        _compat_create_cq: 80, poll_cq: 88, req_notify_cq: 96, _compat_cq_event: 104,
        _compat_resize_cq: 112, _compat_destroy_cq: 120, _compat_create_srq: 128,
        _compat_modify_srq: 136, _compat_query_srq: 144, _compat_destroy_srq: 152,
        post_srq_recv: 160, _compat_create_qp: 168, _compat_query_qp: 176,
        _compat_modify_qp: 184, _compat_destroy_qp: 192, post_send: 200, post_recv: 208,
        _compat_create_ah: 216, _compat_destroy_ah: 224, _compat_attach_mcast: 232,
        _compat_detach_mcast: 240, _compat_async_event: 248,
    }
    ibv_wc_tm_info: 16, 8, { tag: 0, priv_: 8 }
    rdma_cm_id: 416, 8, {
        verbs: 0, channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348,
        event: 352, send_cq_channel: 360, send_cq: 368, recv_cq_channel: 376,
        recv_cq: 384, srq: 392, pd: 400, qp_type: 408,
    }
    rdma_conn_param: 24, 8, {
        private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10,
        flow_control: 11, retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16,
    }
    rdma_ud_param: 56, 8, {
        private_data: 0, private_data_len: 8, ah_attr: 16, qp_num: 48, qkey: 52,
    }
    rdma_cm_event: 80, 8, { id: 0, listen_id: 8, event: 16, status: 20, param: 24 }
    rdma_event_channel: 4, 4, { fd: 0 }
    rdma_addr: 296, 8, { addr: 256 }
    rdma_route: 312, 8, { addr: 0, path_rec: 296, num_paths: 304 }
    rdma_addrinfo: 96, 8, {
        ai_flags: 0, ai_family: 4, ai_qp_type: 8, ai_port_space: 12, ai_src_len: 16,
        ai_dst_len: 20, ai_src_addr: 24, ai_dst_addr: 32, ai_src_canonname: 40,
        ai_dst_canonname: 48, ai_route_len: 56, ai_route: 64, ai_connect_len: 72,
        ai_connect: 80, ai_next: 88,
    }
}

const MUTEX: usize = size_of::<pthread_mutex_t>();
const COND: usize = size_of::<pthread_cond_t>();
const BOTH: usize = MUTEX + COND;
// The sums below need no rounding only if this holds.
const_assert_eq!(MUTEX % 8, 0);
const_assert_eq!(COND % 8, 0);
const_assert_eq!(align_of::<pthread_mutex_t>(), 8);
const_assert_eq!(align_of::<pthread_cond_t>(), 8);

layout! {
    ibv_context: 288 + MUTEX, 8, {
        device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280,
        abi_compat: 280 + MUTEX,
    }
    ibv_cq: 40 + BOTH, 8, {
        context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32,
        cond: 32 + MUTEX, comp_events_completed: 32 + BOTH,
        async_events_completed: 36 + BOTH,
    }
    ibv_srq: 40 + BOTH, 8, {
        context: 0, srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 32 + MUTEX,
        events_completed: 32 + BOTH,
    }
    ibv_qp: 72 + BOTH, 8, {
        context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48,
        qp_num: 52, state: 56, qp_type: 60, mutex: 64, cond: 64 + MUTEX,
        events_completed: 64 + BOTH,
    }
    ibv_cq_ex: 200 + BOTH, 8, {
        context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32,
        cond: 32 + MUTEX, comp_events_completed: 32 + BOTH,
        async_events_completed: 36 + BOTH, comp_mask: 40 + BOTH, status: 44 + BOTH,
        wr_id: 48 + BOTH, start_poll: 56 + BOTH, next_poll: 64 + BOTH,
        end_poll: 72 + BOTH, read_opcode: 80 + BOTH, read_vendor_err: 88 + BOTH,
        read_byte_len: 96 + BOTH, read_imm_data: 104 + BOTH, read_qp_num: 112 + BOTH,
        read_src_qp: 120 + BOTH, read_wc_flags: 128 + BOTH, read_slid: 136 + BOTH,
        read_sl: 144 + BOTH, read_dlid_path_bits: 152 + BOTH,
        read_completion_ts: 160 + BOTH, read_cvlan: 168 + BOTH, read_flow_tag: 176 + BOTH,
        read_tm_info: 184 + BOTH, read_completion_wallclock_ns: 192 + BOTH,
    }
    ibv_qp_ex: 264 + BOTH, 8, {
        qp_base: 0, comp_mask: 72 + BOTH, wr_id: 80 + BOTH, wr_flags: 88 + BOTH,
        wr_atomic_cmp_swp: 96 + BOTH, wr_atomic_fetch_add: 104 + BOTH,
        wr_bind_mw: 112 + BOTH, wr_local_inv: 120 + BOTH, wr_rdma_read: 128 + BOTH,
        wr_rdma_write: 136 + BOTH, wr_rdma_write_imm: 144 + BOTH, wr_send: 152 + BOTH,
        wr_send_imm: 160 + BOTH, wr_send_inv: 168 + BOTH, wr_send_tso: 176 + BOTH,
        wr_set_ud_addr: 184 + BOTH, wr_set_xrc_srqn: 192 + BOTH,
        wr_set_inline_data: 200 + BOTH, wr_set_inline_data_list: 208 + BOTH,
        wr_set_sge: 216 + BOTH, wr_set_sge_list: 224 + BOTH, wr_start: 232 + BOTH,
        wr_complete: 240 + BOTH, wr_abort: 248 + BOTH, wr_atomic_write: 256 + BOTH,
    }
    ibv_wq: 64 + BOTH, 8, {
        context: 0, wq_context: 8, pd: 16, cq: 24, wq_num: 32, handle: 36, state: 40,
        wq_type: 44, post_recv: 48, mutex: 56, cond: 56 + MUTEX,
        events_completed: 56 + BOTH, comp_mask: 60 + BOTH,
    }
}

// The extended context grows at its front, so what counts is the distance of a field from its last one, the context.
macro_rules! before_context {
    ($($field:ident: $distance:expr),* $(,)?) => {$(
        const_assert_eq!(
            offset_of!(verbs_context, context) - offset_of!(verbs_context, $field),
            $distance
        );
    )*};
}

before_context! {
    query_port: 320, advise_mr: 312, alloc_null_mr: 304, read_counters: 296,
    attach_counters_point_flow: 288, create_counters: 280, destroy_counters: 272,
    reg_dm_mr: 264, alloc_dm: 256, free_dm: 248, modify_flow_action_esp: 240,
    destroy_flow_action: 232, create_flow_action_esp: 224, modify_qp_rate_limit: 216,
    alloc_parent_domain: 208, dealloc_td: 200, alloc_td: 192, modify_cq: 184,
    post_srq_ops: 176, destroy_rwq_ind_table: 168, create_rwq_ind_table: 160,
    destroy_wq: 152, modify_wq: 144, create_wq: 136, query_rt_values: 128,
    create_cq_ex: 120, priv_: 112, query_device_ex: 104, ibv_destroy_flow: 96,
    ABI_placeholder2: 88, ibv_create_flow: 80, ABI_placeholder1: 72, open_qp: 64,
    create_qp_ex: 56, get_srq_num: 48, create_srq_ex: 40, open_xrcd: 32,
    close_xrcd: 24, _ABI_placeholder3: 16, sz: 8, context: 0,
}

// An enum of C is an int: any value that the library or the device returns is a valid value of the Rust type.
const_assert_eq!(size_of::<ibv_wc_status>(), 4);
const_assert_eq!(size_of::<ibv_wc_opcode>(), 4);
const_assert_eq!(size_of::<ibv_wr_opcode>(), 4);
const_assert_eq!(size_of::<ibv_qp_state>(), 4);
const_assert_eq!(size_of::<ibv_qp_type>(), 4);
const_assert_eq!(size_of::<ibv_event_type>(), 4);
const_assert_eq!(size_of::<rdma_cm_event_type>(), 4);
assert_impl_all!(ibv_send_wr: Copy, Default);
assert_impl_all!(ibv_recv_wr: Copy, Default);
assert_impl_all!(ibv_wc: Copy, Default);
assert_impl_all!(ibv_qp_attr: Copy, Default);
assert_impl_all!(rdma_conn_param: Copy, Default);
