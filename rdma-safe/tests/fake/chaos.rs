//! What the fake does that no device should, and what it is asked about memory.

use super::{Fake, State, lock};
use rdma_sys::*;
use std::ops::Range;
use std::sync::{Arc, Mutex};

impl Fake {
    /// The state, for who has to look when the fake is gone.
    pub(crate) fn shared_state(&self) -> Arc<Mutex<State>> {
        Arc::clone(&self.state)
    }

    /// Puts a completion that nobody asked for into every queue, every field of it made up.
    pub(crate) fn garbage(&self, random: u64) {
        let mut s = self.state();
        // The request id of the latest one with a kind that no request has, or any number.
        let kind = 3 << 56;
        let wr_id = match (s.latest, random % 3) {
            (Some((_, wc)), 0) => wc.wr_id & !kind,
            (Some((_, wc)), 1) => wc.wr_id | kind,
            _ => random,
        };
        let wc = ibv_wc {
            wr_id,
            status: ibv_wc_status(random as u32 % 40),
            opcode: ibv_wc_opcode((random >> 7) as u32),
            vendor_err: u32::MAX,
            byte_len: u32::MAX,
            qp_num: (random >> 3) as u32 % 8,
            wc_flags: u32::MAX,
            ..ibv_wc::default()
        };
        for q in s.cqs.values_mut() {
            q.entries.push_back(wc);
        }
    }

    /// As [`check`](Fake::check), without what the fake itself does to its queues.
    pub(crate) fn check_use(&self) {
        let s = lock(&self.state);
        assert!(s.violations.is_empty(), "{:?}", s.violations);
    }
}

impl State {
    /// Whether some of these addresses are registered.
    pub(crate) fn is_registered(&self, range: Range<usize>) -> bool {
        let (lo, hi) = (range.start as u64, range.end as u64);
        self.mrs.values().any(|m| m.start < hi && lo < m.start + m.len)
    }
}

/// From here to its drop, what this thread allocates may stay for ever: the test is about an end that fails, and such
/// ends demand a leak. Without a leak sanitizer it does nothing.
pub(crate) struct LeaksOnPurpose(());

/// A function of LeakSanitizer's interface, if this program has it.
fn lsan(name: &std::ffi::CStr) {
    // SAFETY: a name that ends; the functions of that interface take and return nothing.
    unsafe {
        let f = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if !f.is_null() {
            std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(f)();
        }
    }
}

impl LeaksOnPurpose {
    pub(crate) fn new() -> LeaksOnPurpose {
        lsan(c"__lsan_disable");
        LeaksOnPurpose(())
    }
}

impl Drop for LeaksOnPurpose {
    fn drop(&mut self) {
        lsan(c"__lsan_enable");
    }
}
