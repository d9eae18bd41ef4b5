//! The Rust bodies of the inline verbs against providers made up here: with an operation, without it, and of a
//! library that is older than the operation.

use std::{mem::offset_of, ptr};

use libc::{EINVAL, EOPNOTSUPP, EPERM, c_int};
use rdma_sys::*;

/// An extended context with no operation, as a library of these headers would make it.
fn context() -> Box<verbs_context> {
    let mut vctx = Box::<verbs_context>::default();
    vctx.sz = size_of::<verbs_context>();
    vctx.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    vctx
}

/// The public part of it, with the provenance of the whole.
fn inner(vctx: &mut verbs_context) -> *mut ibv_context {
    let whole: *mut verbs_context = vctx;
    // SAFETY: the offset of a field is within the allocation.
    unsafe { whole.byte_add(offset_of!(verbs_context, context)).cast() }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn clear_errno() {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = 0 }
}

#[test]
fn a_missing_operation_of_the_data_path_is_an_error() {
    let mut vctx = context();
    let context = inner(&mut vctx);
    let mut qp = ibv_qp { context, ..Default::default() };
    let mut cq = ibv_cq { context, ..Default::default() };
    let mut srq = ibv_srq { context, ..Default::default() };
    let mut wq = ibv_wq { context, ..Default::default() };
    let (mut send, mut recv) = (ibv_send_wr::default(), ibv_recv_wr::default());
    let mut op = ibv_ops_wr::default();
    let (mut bad_send, mut bad_recv, mut bad_op) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut wc = ibv_wc::default();
    // SAFETY: all objects are on the stack and point to the context.
    unsafe {
        assert_eq!(ibv_poll_cq(&mut cq, 1, &mut wc), -EOPNOTSUPP);
        assert_eq!(poll_cq_op(context)(&mut cq, 1, &mut wc), -EOPNOTSUPP);
        assert_eq!(ibv_req_notify_cq(&mut cq, 0), EOPNOTSUPP);
        assert_eq!(ibv_post_send(&mut qp, &mut send, &mut bad_send), EOPNOTSUPP);
        assert_eq!(bad_send, &raw mut send);
        assert_eq!(ibv_post_recv(&mut qp, &mut recv, &mut bad_recv), EOPNOTSUPP);
        assert_eq!(bad_recv, &raw mut recv);
        bad_recv = ptr::null_mut();
        assert_eq!(ibv_post_srq_recv(&mut srq, &mut recv, &mut bad_recv), EOPNOTSUPP);
        assert_eq!(bad_recv, &raw mut recv);
        bad_recv = ptr::null_mut();
        assert_eq!(ibv_post_wq_recv(&mut wq, &mut recv, &mut bad_recv), EOPNOTSUPP);
        assert_eq!(bad_recv, &raw mut recv);
        assert_eq!(ibv_post_srq_ops(&mut srq, &mut op, &mut bad_op), EOPNOTSUPP);
        assert_eq!(bad_op, &raw mut op);
    }
}

#[test]
fn a_missing_operation_is_null_and_errno_or_an_errno() {
    let mut vctx = context();
    let context = inner(&mut vctx);
    let mut pd = ibv_pd { context, ..Default::default() };
    let mut mw = ibv_mw { context, ..Default::default() };
    let mut cq_attr = ibv_cq_init_attr_ex::default();
    let mut values = ibv_values_ex::default();
    // SAFETY: all objects are on the stack and point to the context.
    unsafe {
        clear_errno();
        assert!(ibv_create_cq_ex(context, &mut cq_attr).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
        clear_errno();
        assert!(ibv_alloc_mw(&mut pd, ibv_mw_type::IBV_MW_TYPE_1).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
        clear_errno();
        assert!(ibv_alloc_null_mr(&mut pd).is_null());
        assert_eq!(errno(), EOPNOTSUPP);
        assert_eq!(ibv_dealloc_mw(&mut mw), EOPNOTSUPP);
        assert_eq!(ibv_query_rt_values_ex(context, &mut values), EOPNOTSUPP);
        let mut xrcd = ibv_xrcd { context };
        assert_eq!(ibv_close_xrcd(&mut xrcd), EOPNOTSUPP);
    }
}

unsafe extern "C" fn read_clock(_: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: the test passes a valid pointer.
    unsafe { (*values).comp_mask = 77 };
    0
}

#[test]
fn an_operation_is_used_only_if_the_library_is_new_enough() {
    let mut vctx = context();
    vctx.query_rt_values = Some(read_clock);
    let needed = size_of::<verbs_context>() - offset_of!(verbs_context, query_rt_values);
    let cases =
        [(size_of::<verbs_context>(), 0), (needed, 0), (needed - 1, EOPNOTSUPP), (0, EOPNOTSUPP)];
    for (sz, expected) in cases {
        vctx.sz = sz;
        let mut values = ibv_values_ex::default();
        // SAFETY: the context and the values are valid.
        let ret = unsafe { ibv_query_rt_values_ex(inner(&mut vctx), &mut values) };
        assert_eq!(ret, expected, "a library whose context has {sz} bytes");
        assert_eq!(values.comp_mask == 77, expected == 0);
    }
    // A provider of the first ABI has no extended context at all.
    vctx.sz = size_of::<verbs_context>();
    vctx.context.abi_compat = ptr::null_mut();
    let mut values = ibv_values_ex::default();
    // SAFETY: as above.
    unsafe {
        assert!(verbs_get_ctx(inner(&mut vctx)).is_null());
        assert_eq!(ibv_query_rt_values_ex(inner(&mut vctx), &mut values), EOPNOTSUPP);
    }
}

#[test]
fn an_extended_queue_without_an_operation_is_no_crash() {
    let mut cq = ibv_cq_ex::default();
    let mut qp = ibv_qp_ex::default();
    // SAFETY: both objects are valid; they have no operation that could be called.
    unsafe {
        assert_eq!(ibv_start_poll(&mut cq, &mut ibv_poll_cq_attr::default()), EOPNOTSUPP);
        assert_eq!(ibv_next_poll(&mut cq), EOPNOTSUPP);
        ibv_end_poll(&mut cq);
        assert_eq!(ibv_wc_read_byte_len(&mut cq), None);
        assert_eq!(ibv_wc_read_opcode(&mut cq), None);
        assert_eq!(ibv_wc_read_tm_info(&mut cq, &mut ibv_wc_tm_info::default()), EOPNOTSUPP);
        assert_eq!(ibv_wr_start(&mut qp), EOPNOTSUPP);
        assert_eq!(ibv_wr_send(&mut qp), EOPNOTSUPP);
        assert_eq!(ibv_wr_complete(&mut qp), EOPNOTSUPP);
    }
}

#[test]
fn a_bind_is_checked_before_the_provider_sees_it() {
    let mut vctx = context();
    let context = inner(&mut vctx);
    let (mut pd, mut other) = (ibv_pd::default(), ibv_pd::default());
    let mut mr = ibv_mr { pd: &raw mut other, ..Default::default() };
    let mut mw = ibv_mw {
        context,
        pd: &raw mut pd,
        type_: ibv_mw_type::IBV_MW_TYPE_2,
        ..Default::default()
    };
    let mut qp = ibv_qp { context, ..Default::default() };
    let mut bind = ibv_mw_bind::default();
    // SAFETY: all objects are on the stack.
    unsafe {
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), EINVAL, "type 2");
        mw.type_ = ibv_mw_type::IBV_MW_TYPE_1;
        bind.bind_info.length = 1;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), EINVAL, "a length without a region");
        let mr = &raw mut mr;
        bind.bind_info.mr = mr;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), EPERM, "another domain's region");
        (*mr).pd = &raw mut pd;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), EOPNOTSUPP);
    }
}

#[test]
fn plain_functions_give_what_the_header_gives() {
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
    assert_eq!(ibv_flow_label_to_udp_sport(0), 0xc000);
    assert_eq!(ibv_flow_label_to_udp_sport(0xf_ffff), (0x3fff ^ 0x3f) | 0xc000);
    assert_eq!(ibv_is_qpt_supported(1 << 2, ibv_qp_type::IBV_QPT_RC), 1);
    assert_eq!(ibv_is_qpt_supported(!(1 << 2), ibv_qp_type::IBV_QPT_RC), 0);
    assert_eq!(ibv_is_qpt_supported(u32::MAX, ibv_qp_type::IBV_QPT_DRIVER), 0);
    assert_eq!(rdma_seterrno(0), 0);
    for ret in [EINVAL, -EINVAL] {
        assert_eq!((rdma_seterrno(ret), errno()), (-1, EINVAL));
    }
    let mut addr = ib_addr::default();
    assert_eq!((ib_addr_any(&addr), ib_addr_loopback(&addr)), (1, 0));
    ib_addr_set(&mut addr, 0, 0, 0, 1u32.to_be());
    assert_eq!((ib_addr_any(&addr), ib_addr_loopback(&addr)), (0, 1));
    assert_eq!(ib_addr_cmp(&addr, &addr), 0);
    assert_eq!(ib_addr_cmp(&ib_addr::default(), &addr), -1);
}

/// Needs the libraries and nothing else: on a machine without devices the list is empty or the call fails, both known.
#[test]
fn the_library_answers() {
    let mut count = -1;
    clear_errno();
    // SAFETY: the list is freed once; the strings of the library live as long as it.
    unsafe {
        let list = ibv_get_device_list(&raw mut count);
        if list.is_null() {
            assert!(matches!(errno(), libc::ENOSYS | libc::EPERM | libc::ENOMEM), "{}", errno());
        } else {
            assert!(count >= 0);
            ibv_free_device_list(list);
        }
        let text =
            std::ffi::CStr::from_ptr(ibv_wc_status_str(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR));
        assert_eq!(text.to_str(), Ok("RNR retry counter exceeded"));
        let text =
            std::ffi::CStr::from_ptr(rdma_event_str(rdma_cm_event_type::RDMA_CM_EVENT_REJECTED));
        assert_eq!(text.to_str(), Ok("RDMA_CM_EVENT_REJECTED"));
    }
}
