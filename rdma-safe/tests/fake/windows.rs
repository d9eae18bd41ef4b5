//! Binding of memory windows of type 1, which has a call of its own.

use super::{PIECES, Request, lock, state_of};
use rdma_sys::*;
use std::ffi::c_int;

/// As providers do, it reads the region that is named, also where nothing is bound.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: called through ibv_bind_mw with a live queue pair, window and region, and a complete request.
    unsafe {
        let (bind, info) = (&*bind, (*bind).bind_info);
        let mut s = lock(state_of((*qp).context));
        let Some(mr) = info.mr.as_ref() else { return libc::EINVAL };
        let known = s.mrs.get(&mr.lkey);
        let fits =
            |start: u64, len: u64| info.addr >= start && info.addr + info.length <= start + len;
        if known.is_none_or(|m| !fits(m.start, m.len)) {
            s.violations.push("a window over a region that is not registered".into());
            return libc::EINVAL;
        }
        (*mw).rkey = ibv_inc_rkey((*mw).rkey);
        let request = Request {
            wr_id: bind.wr_id,
            pieces: [ibv_sge::default(); PIECES],
            count: 0,
            signalled: bind.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
            inline: None,
            opcode: ibv_wr_opcode::IBV_WR_BIND_MW,
            remote: (0, 0, 0, 0),
            word: 0,
            srq_num: 0,
        };
        if let Some(q) = s.qps.get_mut(&(*qp).qp_num) {
            q.sends.push_back(request);
        }
    }
    0
}
