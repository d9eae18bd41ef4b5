//! The work request builder of an extended queue pair (`ibv_wr_*`).
//!
//! C returns void from the setters. Here they return 0 or `EOPNOTSUPP`, because the queue pair has only the operations
//! that were asked for in `send_ops_flags`. After an error call [`ibv_wr_abort`].

use libc::{c_int, c_void, size_t};

use crate::{__be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

/// Defines functions that forward to a `void` operation of the queue pair.
macro_rules! builder {
    ($($(#[$meta:meta])* fn $name:ident => $op:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$meta])*
        ///
        /// Returns 0, or `EOPNOTSUPP` if the queue pair was not created with this operation. Man page: ibv_wr_post(3).
        ///
        /// # Safety
        /// `qp` is a live extended queue pair; the call comes between [`ibv_wr_start`] and [`ibv_wr_complete`] of the
        /// same thread; pointers are valid for the call, and the memory a request names until its completion.
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex, $($arg: $ty),*) -> c_int {
            // SAFETY: the caller passes a live queue pair and valid arguments.
            unsafe {
                match (*qp).$op {
                    Some(op) => {
                        op(qp, $($arg),*);
                        0
                    }
                    None => libc::EOPNOTSUPP,
                }
            }
        }
    )*};
}

builder! {
    /// Begins a batch of work requests and takes the queue pair's lock.
    fn ibv_wr_start => wr_start();
    /// Drops the batch and releases the lock.
    fn ibv_wr_abort => wr_abort();
    /// A compare-and-swap of 8 bytes of remote memory.
    fn ibv_wr_atomic_cmp_swp => wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// A fetch-and-add on 8 bytes of remote memory.
    fn ibv_wr_atomic_fetch_add => wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// A write of 8 bytes that is atomic at the remote side.
    fn ibv_wr_atomic_write => wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void);
    /// Binds a memory window of type 2.
    fn ibv_wr_bind_mw => wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// Invalidates a local key.
    fn ibv_wr_local_inv => wr_local_inv(invalidate_rkey: u32);
    /// Reads remote memory.
    fn ibv_wr_rdma_read => wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Writes remote memory.
    fn ibv_wr_rdma_write => wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Writes remote memory and consumes a receive there; `imm_data` is big-endian.
    fn ibv_wr_rdma_write_imm => wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);
    /// Sends a message.
    fn ibv_wr_send => wr_send();
    /// Sends a message with immediate data, which is big-endian.
    fn ibv_wr_send_imm => wr_send_imm(imm_data: __be32);
    /// Sends a message that invalidates a key of the receiver.
    fn ibv_wr_send_inv => wr_send_inv(invalidate_rkey: u32);
    /// Sends with TCP segmentation in the device: `hdr_sz` bytes of header before each `mss` bytes.
    fn ibv_wr_send_tso => wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// Sets the destination of a request on a UD queue pair.
    fn ibv_wr_set_ud_addr => wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// Sets the destination of a request on an XRC queue pair.
    fn ibv_wr_set_xrc_srqn => wr_set_xrc_srqn(remote_srqn: u32);
    /// Sets the request's data by copying `length` bytes.
    fn ibv_wr_set_inline_data => wr_set_inline_data(addr: *mut c_void, length: size_t);
    /// Sets the request's data by copying `num_buf` pieces.
    fn ibv_wr_set_inline_data_list => wr_set_inline_data_list(num_buf: size_t, buf_list: *const ibv_data_buf);
    /// Sets the request's data to one piece of registered memory.
    fn ibv_wr_set_sge => wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Sets the request's data to `num_sge` pieces of registered memory.
    fn ibv_wr_set_sge_list => wr_set_sge_list(num_sge: size_t, sg_list: *const ibv_sge);
}

/// Posts the batch to the send queue and releases the lock.
///
/// Returns 0, or an errno, and then nothing of the batch was posted. Man page: ibv_wr_post(3).
///
/// # Safety
/// `qp` is a live extended queue pair, and this thread called [`ibv_wr_start`] on it.
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    unsafe {
        match (*qp).wr_complete {
            Some(op) => op(qp),
            None => libc::EOPNOTSUPP,
        }
    }
}
