//! Polling an extended completion queue (`ibv_start_poll`, `ibv_wc_read_*`).
//!
//! A field can be read only if the queue was created with its flag in `wc_flags`. C jumps to address 0 otherwise;
//! here the readers return `None`.

use libc::{c_int, c_uint};

use crate::{__be32, ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};

/// Begins a poll and moves to the first completion.
///
/// Returns 0, `ENOENT` if the queue is empty, or another errno. Call [`ibv_end_poll`] only after 0.
/// Man page: ibv_create_cq_ex(3).
///
/// # Safety
/// `cq` is a live extended queue, `attr` is valid and its `comp_mask` is 0; no poll of this queue is open.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes a live queue and a valid attribute.
    unsafe {
        match (*cq).start_poll {
            Some(op) => op(cq, attr),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Moves to the next completion of an open poll.
///
/// Returns 0, `ENOENT` if there is none, or another errno. The poll stays open in each case. Man page: ibv_create_cq_ex(3).
///
/// # Safety
/// `cq` is a live extended queue with an open poll of this thread.
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller passes a live queue.
    unsafe {
        match (*cq).next_poll {
            Some(op) => op(cq),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Ends an open poll. Does nothing if the provider lacks the operation. Man page: ibv_create_cq_ex(3).
///
/// # Safety
/// `cq` is a live extended queue with an open poll of this thread.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller passes a live queue.
    unsafe {
        if let Some(op) = (*cq).end_poll {
            op(cq);
        }
    }
}

/// Defines functions that read one field of the current completion.
macro_rules! read {
    ($($(#[$meta:meta])* fn $name:ident => $op:ident -> $ret:ty;)*) => {$(
        $(#[$meta])*
        ///
        /// `None` if the queue was not created with the flag for this field. Man page: ibv_create_cq_ex(3).
        ///
        /// # Safety
        /// `cq` is a live extended queue with an open poll of this thread that stands on a completion.
        #[inline]
        #[must_use]
        pub unsafe fn $name(cq: *mut ibv_cq_ex) -> Option<$ret> {
            // SAFETY: the caller passes a live queue that stands on a completion.
            unsafe { (*cq).$op.map(|op| op(cq)) }
        }
    )*};
}

read! {
    /// What completed. Not valid if the status is not success.
    fn ibv_wc_read_opcode => read_opcode -> ibv_wc_opcode;
    /// The provider's own error code.
    fn ibv_wc_read_vendor_err => read_vendor_err -> u32;
    /// Bytes transferred.
    fn ibv_wc_read_byte_len => read_byte_len -> u32;
    /// Immediate data, big-endian.
    fn ibv_wc_read_imm_data => read_imm_data -> __be32;
    /// The key that a send with invalidate invalidated (same bits as the immediate data).
    fn ibv_wc_read_invalidated_rkey => read_imm_data -> u32;
    /// Number of the local queue pair.
    fn ibv_wc_read_qp_num => read_qp_num -> u32;
    /// Number of the sender's queue pair (UD).
    fn ibv_wc_read_src_qp => read_src_qp -> u32;
    /// Flags, a set of `ibv_wc_flags`.
    fn ibv_wc_read_wc_flags => read_wc_flags -> c_uint;
    /// Source LID.
    fn ibv_wc_read_slid => read_slid -> u32;
    /// Service level.
    fn ibv_wc_read_sl => read_sl -> u8;
    /// Path bits of the destination LID.
    fn ibv_wc_read_dlid_path_bits => read_dlid_path_bits -> u8;
    /// Time of the completion in cycles of the device's clock.
    fn ibv_wc_read_completion_ts => read_completion_ts -> u64;
    /// Time of the completion in nanoseconds of the wall clock.
    fn ibv_wc_read_completion_wallclock_ns => read_completion_wallclock_ns -> u64;
    /// VLAN tag.
    fn ibv_wc_read_cvlan => read_cvlan -> u16;
    /// Tag that a flow rule set.
    fn ibv_wc_read_flow_tag => read_flow_tag -> u32;
}

/// Copies the tag-matching fields of the current completion to `tm_info`.
///
/// Returns 0, or `EOPNOTSUPP` if the queue was not created with `IBV_WC_EX_WITH_TM_INFO`. Man page: ibv_create_cq_ex(3).
///
/// # Safety
/// As [`ibv_wc_read_opcode`]; `tm_info` is valid for writes.
#[inline]
pub unsafe fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) -> c_int {
    // SAFETY: the caller passes a live queue that stands on a completion, and a valid pointer.
    unsafe {
        match (*cq).read_tm_info {
            Some(op) => {
                op(cq, tm_info);
                0
            }
            None => libc::EOPNOTSUPP,
        }
    }
}

/// The classic view of an extended queue, for calls that take an `ibv_cq`. Man page: ibv_cq_ex_to_cq(3).
#[inline]
#[must_use]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}
