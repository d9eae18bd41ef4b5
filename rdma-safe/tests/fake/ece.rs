//! Vendor options of queue pairs: a device of vendor 7 that knows the lowest four of them.
use super::{lock, state_of};
use rdma_sys::*;
use std::ffi::c_int;

const VENDOR: u32 = 7;
const KNOWN: u32 = 0xf;

pub(super) unsafe fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: a live QP and a writable structure.
    unsafe {
        let s = lock(state_of((*qp).context));
        if s.faults.gone != 0 {
            return s.faults.gone;
        }
        let options = s.kinds.ece.get(&(*qp).qp_num).copied().unwrap_or(KNOWN);
        *ece = ibv_ece { vendor_id: VENDOR, options, comp_mask: 0 };
    }
    0
}

pub(super) unsafe fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: a live QP and a readable structure.
    unsafe {
        if (*ece).vendor_id != VENDOR {
            return libc::EINVAL;
        }
        lock(state_of((*qp).context)).kinds.ece.insert((*qp).qp_num, (*ece).options & KNOWN);
    }
    0
}
