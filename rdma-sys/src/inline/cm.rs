//! The verbs helpers of `rdma/rdma_verbs.h`: they use the queue pair and queues that librdmacm made for an id.
//!
//! As the rest of librdmacm they return -1 and set errno on failure. Where C asserts, these fail with `EINVAL`.

use libc::{c_int, c_void, size_t};

use crate::{
    RDMA_UDP_QKEY, ibv_access_flags as access, ibv_ack_cq_events, ibv_ah, ibv_comp_channel, ibv_cq,
    ibv_dereg_mr, ibv_get_cq_event, ibv_mr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
    ibv_wr_opcode, rdma_cm_id,
};

use super::{
    ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_reg_mr, ibv_req_notify_cq,
    set_errno,
};

/// Turns a returned errno into -1 and `errno`; 0 stays 0.
///
/// A negative errno, as some providers return it, is made positive (C would store it as it is); -1 keeps `errno`.
/// Source: `rdma/rdma_verbs.h`.
#[inline]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    match ret {
        0 => 0,
        -1 => -1,
        _ => {
            set_errno(ret.saturating_abs());
            -1
        }
    }
}

/// Registers memory for sends and receives of `id`. Null and errno on failure. Man page: rdma_reg_msgs(3).
///
/// # Safety
/// `id` is live and has a protection domain; the memory is as for [`ibv_reg_mr`].
#[inline]
pub unsafe fn rdma_reg_msgs(id: *mut rdma_cm_id, addr: *mut c_void, length: size_t) -> *mut ibv_mr {
    let flags = access::IBV_ACCESS_LOCAL_WRITE.0;
    // SAFETY: same contract.
    unsafe { ibv_reg_mr((*id).pd, addr, length, flags.cast_signed()) }
}

/// Registers memory that the peer may read. Null and errno on failure. Man page: rdma_reg_read(3).
///
/// # Safety
/// As [`rdma_reg_msgs`].
#[inline]
pub unsafe fn rdma_reg_read(id: *mut rdma_cm_id, addr: *mut c_void, length: size_t) -> *mut ibv_mr {
    let flags = access::IBV_ACCESS_LOCAL_WRITE.0 | access::IBV_ACCESS_REMOTE_READ.0;
    // SAFETY: same contract.
    unsafe { ibv_reg_mr((*id).pd, addr, length, flags.cast_signed()) }
}

/// Registers memory that the peer may write. Null and errno on failure. Man page: rdma_reg_write(3).
///
/// # Safety
/// As [`rdma_reg_msgs`]; nobody may hold a Rust reference to the memory while it is registered.
#[inline]
pub unsafe fn rdma_reg_write(
    id: *mut rdma_cm_id,
    addr: *mut c_void,
    length: size_t,
) -> *mut ibv_mr {
    let flags = access::IBV_ACCESS_LOCAL_WRITE.0 | access::IBV_ACCESS_REMOTE_WRITE.0;
    // SAFETY: same contract.
    unsafe { ibv_reg_mr((*id).pd, addr, length, flags.cast_signed()) }
}

/// Ends a registration. 0, or -1 and errno. Man page: rdma_dereg_mr(3).
///
/// # Safety
/// `mr` is live, no posted request uses it, and it is not used afterwards if 0 is returned.
#[inline]
pub unsafe fn rdma_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: same contract.
    rdma_seterrno(unsafe { ibv_dereg_mr(mr) })
}

/// Posts a receive into `nsge` pieces of memory, to the id's SRQ if it has one. 0, or -1 and errno. Man page: rdma_post_recvv(3).
///
/// # Safety
/// `id` is live with a queue pair or SRQ, `sgl` is valid for `nsge` elements; memory as for [`ibv_post_recv`].
#[inline]
pub unsafe fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    let mut wr = ibv_recv_wr {
        wr_id: context.expose_provenance() as u64,
        sg_list: sgl,
        num_sge: nsge,
        ..Default::default()
    };
    let mut bad = std::ptr::null_mut();
    // SAFETY: same contract; the request and `bad` live until the call returns.
    rdma_seterrno(unsafe {
        if (*id).srq.is_null() {
            ibv_post_recv((*id).qp, &raw mut wr, &raw mut bad)
        } else {
            ibv_post_srq_recv((*id).srq, &raw mut wr, &raw mut bad)
        }
    })
}

/// Posts one request with the given list on the id's queue pair.
///
/// # Safety
/// `id` is live with a queue pair, and `wr`, of which only the part of its opcode is set, and the memory it names are
/// as for [`ibv_post_send`].
#[inline]
unsafe fn post(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    list: (*mut ibv_sge, c_int),
    flags: c_int,
    mut wr: ibv_send_wr,
) -> c_int {
    wr.wr_id = context.expose_provenance() as u64;
    (wr.sg_list, wr.num_sge) = list;
    wr.send_flags = flags.cast_unsigned();
    let mut bad = std::ptr::null_mut();
    // SAFETY: same contract; the request and `bad` live until the call returns.
    rdma_seterrno(unsafe { ibv_post_send((*id).qp, &raw mut wr, &raw mut bad) })
}

/// A request of `opcode` that names remote memory.
#[inline]
fn rdma_wr(opcode: ibv_wr_opcode, remote_addr: u64, rkey: u32) -> ibv_send_wr {
    let mut wr = ibv_send_wr { opcode, ..Default::default() };
    wr.wr.rdma = crate::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    wr
}

/// One element of a list. A null region has key 0, which only inline data may have.
///
/// # Safety
/// `mr` is null or live.
#[inline]
unsafe fn sge(addr: *mut c_void, length: size_t, mr: *mut ibv_mr) -> Option<ibv_sge> {
    // SAFETY: same contract.
    let lkey = if mr.is_null() { 0 } else { unsafe { (*mr).lkey } };
    // C cuts a length of 4 GiB or more; no device takes one.
    let length = u32::try_from(length).ok()?;
    Some(ibv_sge { addr: addr.expose_provenance() as u64, length, lkey })
}

/// Posts a send from `nsge` pieces of memory. 0, or -1 and errno. Man page: rdma_post_sendv(3).
///
/// # Safety
/// `id` is live with a queue pair, `sgl` is valid for `nsge` elements; memory as for [`ibv_post_send`].
#[inline]
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    let wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND, ..Default::default() };
    // SAFETY: same contract.
    unsafe { post(id, context, (sgl, nsge), flags, wr) }
}

/// Posts a read of remote memory into `nsge` pieces of memory. 0, or -1 and errno. Man page: rdma_post_readv(3).
///
/// # Safety
/// As [`rdma_post_sendv`]; the memory is written until the completion is polled.
#[inline]
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr = rdma_wr(ibv_wr_opcode::IBV_WR_RDMA_READ, remote_addr, rkey);
    // SAFETY: same contract.
    unsafe { post(id, context, (sgl, nsge), flags, wr) }
}

/// Posts a write to remote memory from `nsge` pieces of memory. 0, or -1 and errno. Man page: rdma_post_writev(3).
///
/// # Safety
/// As [`rdma_post_sendv`].
#[inline]
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let wr = rdma_wr(ibv_wr_opcode::IBV_WR_RDMA_WRITE, remote_addr, rkey);
    // SAFETY: same contract.
    unsafe { post(id, context, (sgl, nsge), flags, wr) }
}

/// Posts a receive into registered memory. 0, or -1 and errno (`EINVAL`: not within `mr`). Man page: rdma_post_recv(3).
///
/// # Safety
/// As [`rdma_post_recvv`]; `mr` is live.
#[inline]
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: same contract.
    unsafe {
        if mr.is_null() {
            return rdma_seterrno(libc::EINVAL);
        }
        let within = addr
            .addr()
            .checked_sub((*mr).addr.addr())
            .and_then(|start| start.checked_add(length))
            .is_some_and(|end| end <= (*mr).length);
        match sge(addr, length, mr) {
            Some(mut sge) if within => rdma_post_recvv(id, context, &raw mut sge, 1),
            _ => rdma_seterrno(libc::EINVAL),
        }
    }
}

/// Posts a send; `mr` may be null for inline data. 0, or -1 and errno. Man page: rdma_post_send(3).
///
/// # Safety
/// As [`rdma_post_sendv`]; `mr` is null or live.
#[inline]
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: same contract.
    unsafe {
        match sge(addr, length, mr) {
            Some(mut sge) => rdma_post_sendv(id, context, &raw mut sge, 1, flags),
            None => rdma_seterrno(libc::EINVAL),
        }
    }
}

/// Posts a read of remote memory. 0, or -1 and errno (`EINVAL`: `mr` is null). Man page: rdma_post_read(3).
///
/// # Safety
/// As [`rdma_post_readv`]; `mr` is live.
#[inline]
#[allow(clippy::too_many_arguments)] // the C signature
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: same contract.
    unsafe {
        match sge(addr, length, mr) {
            Some(mut sge) if !mr.is_null() => {
                rdma_post_readv(id, context, &raw mut sge, 1, flags, remote_addr, rkey)
            }
            _ => rdma_seterrno(libc::EINVAL),
        }
    }
}

/// Posts a write to remote memory; `mr` may be null for inline data. 0, or -1 and errno. Man page: rdma_post_write(3).
///
/// # Safety
/// As [`rdma_post_writev`]; `mr` is null or live.
#[inline]
#[allow(clippy::too_many_arguments)] // the C signature
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: same contract.
    unsafe {
        match sge(addr, length, mr) {
            Some(mut sge) => {
                rdma_post_writev(id, context, &raw mut sge, 1, flags, remote_addr, rkey)
            }
            None => rdma_seterrno(libc::EINVAL),
        }
    }
}

/// Posts a datagram with the Q_Key of librdmacm; `mr` may be null for inline data. 0, or -1 and errno. Man page: rdma_post_ud_send(3).
///
/// # Safety
/// As [`rdma_post_send`]; the queue pair is of type UD and `ah` is live.
#[inline]
#[allow(clippy::too_many_arguments)] // the C signature
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: size_t,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND, ..Default::default() };
    wr.wr.ud = crate::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
        ah,
        remote_qpn,
        remote_qkey: RDMA_UDP_QKEY,
    };
    // SAFETY: same contract.
    unsafe {
        match sge(addr, length, mr) {
            Some(mut sge) => post(id, context, (&raw mut sge, 1), flags, wr),
            None => rdma_seterrno(libc::EINVAL),
        }
    }
}

/// Waits without limit for one completion of a queue.
///
/// # Safety
/// `cq` and `channel` are live and belong together, and `wc` is valid for writes.
unsafe fn get_comp(cq: *mut ibv_cq, channel: *mut ibv_comp_channel, wc: *mut ibv_wc) -> c_int {
    loop {
        // SAFETY: same contract.
        let ret = unsafe { ibv_poll_cq(cq, 1, wc) };
        if ret != 0 {
            return if ret < 0 { rdma_seterrno(ret) } else { ret };
        }
        // SAFETY: same contract.
        let ret = unsafe { ibv_req_notify_cq(cq, 0) };
        if ret != 0 {
            return rdma_seterrno(ret);
        }
        // A completion that came before the request raises no event.
        // SAFETY: same contract.
        let ret = unsafe { ibv_poll_cq(cq, 1, wc) };
        if ret != 0 {
            return if ret < 0 { rdma_seterrno(ret) } else { ret };
        }
        let (mut event_cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: same contract; the call writes to both variables if it returns 0.
        let ret = unsafe { ibv_get_cq_event(channel, &raw mut event_cq, &raw mut context) };
        if ret != 0 {
            return ret;
        }
        // SAFETY: the event came from the queue that is acknowledged.
        unsafe { ibv_ack_cq_events(event_cq, 1) };
    }
}

/// Waits, without limit, for one completion of a send. 1, or -1 and errno. Man page: rdma_get_send_comp(3).
///
/// # Safety
/// `id` is live with a queue pair whose queues librdmacm made, and `wc` is valid for writes.
pub unsafe fn rdma_get_send_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: same contract.
    unsafe { get_comp((*id).send_cq, (*id).send_cq_channel, wc) }
}

/// Waits, without limit, for one completion of a receive. 1, or -1 and errno. Man page: rdma_get_recv_comp(3).
///
/// # Safety
/// As [`rdma_get_send_comp`].
pub unsafe fn rdma_get_recv_comp(id: *mut rdma_cm_id, wc: *mut ibv_wc) -> c_int {
    // SAFETY: same contract.
    unsafe { get_comp((*id).recv_cq, (*id).recv_cq_channel, wc) }
}

/// Where the id's own address is stored. Valid as long as the id. Man page: rdma_get_local_addr(3).
///
/// # Safety
/// `id` is live.
#[inline]
#[must_use]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: the caller passes a live id; only an address is computed.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// Where the address of the id's peer is stored. Valid as long as the id. Man page: rdma_get_peer_addr(3).
///
/// # Safety
/// `id` is live.
#[inline]
#[must_use]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: the caller passes a live id; only an address is computed.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}
