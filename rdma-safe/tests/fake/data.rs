//! The fake's message path.

use super::{Request, State, lock, state_of};
use rdma_sys::*;
use std::ffi::c_int;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: called through ibv_post_send with a live queue pair and a list of one request.
    unsafe {
        let wr = &*wr;
        let has = |f: ibv_send_flags| wr.send_flags & f.0 != 0;
        let mut r = Request {
            wr_id: wr.wr_id,
            addr: 0,
            len: 0,
            lkey: 0,
            signalled: has(ibv_send_flags::IBV_SEND_SIGNALED),
            inline: None,
            write: wr.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        let mut s = lock(state_of((*qp).context));
        if !wr.next.is_null() {
            s.violations.push("a list of requests".into());
        }
        if wr.send_flags & !0xf != 0 {
            s.violations.push(format!("flags {:#x}", wr.send_flags));
        }
        if wr.num_sge == 1 {
            let sge = *wr.sg_list;
            (r.addr, r.len, r.lkey) = (sge.addr, sge.length, sge.lkey);
            if sge.length <= 32 && !has(ibv_send_flags::IBV_SEND_INLINE) {
                s.violations.push(format!("{} bytes not inline", sge.length));
            }
        }
        if has(ibv_send_flags::IBV_SEND_INLINE) {
            let mut copy = [0; 64];
            let from = std::slice::from_raw_parts(r.addr as *const u8, r.len as usize);
            copy[..from.len()].copy_from_slice(from);
            r.inline = Some(copy);
        }
        let fails = s.faults.post_send_fails;
        if let Some(q) = s.qps.get_mut(&(*qp).qp_num) {
            q.sends.push_back(r);
        }
        if fails {
            *bad = std::ptr::null_mut();
            *libc::__errno_location() = libc::ENOTCONN;
            return -1;
        }
        0
    }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: called through ibv_post_recv with a live queue pair and a list of one request with one element.
    unsafe {
        let sge = *(*wr).sg_list;
        let mut s = lock(state_of((*qp).context));
        if sge.length == 0 {
            s.violations.push("an empty receive".into());
        }
        let fails = s.faults.post_recv_fails;
        if let Some(q) = s.qps.get_mut(&(*qp).qp_num) {
            q.recvs.push_back(Request {
                wr_id: (*wr).wr_id,
                addr: sge.addr,
                len: sge.length,
                lkey: sge.lkey,
                signalled: true,
                inline: None,
                write: false,
            });
        }
        if fails { libc::EINVAL } else { 0 }
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: called through ibv_poll_cq with a live queue and room for `n` completions.
    unsafe {
        let mut s = lock(state_of((*cq).context));
        if s.faults.poll_fails != 0 {
            return s.faults.poll_fails;
        }
        let Some(q) = s.cqs.get_mut(&cq.addr()) else {
            s.violations.push("poll of a destroyed queue".into());
            return 0;
        };
        let take = q.entries.len().min(n as usize);
        for (i, e) in q.entries.drain(..take).enumerate() {
            wc.add(i).write(e);
        }
        let hook = s.during_poll.take();
        drop(s);
        if let Some(hook) = hook {
            hook();
        }
        take as c_int
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: called through ibv_req_notify_cq with a live queue.
    let mut s = lock(state_of(unsafe { (*cq).context }));
    if solicited_only != 0 {
        s.violations.push("armed for solicited completions only".into());
    }
    match s.cqs.get_mut(&cq.addr()) {
        Some(q) => q.armed = true,
        None => s.violations.push("arming of a destroyed queue".into()),
    }
    0
}

impl State {
    /// One completion, as a device writes it: what is invalid on errors is garbage.
    fn complete(&mut self, cq: usize, qp_num: u32, wr_id: u64, status: u32, byte_len: u32) {
        let wc = ibv_wc {
            wr_id,
            status: ibv_wc_status(status),
            opcode: ibv_wc_opcode(0xdead),
            byte_len,
            qp_num,
            ..ibv_wc::default()
        };
        self.latest = Some((cq, wc));
        let times = if self.faults.duplicate { 2 } else { 1 };
        let Some(q) = self.cqs.get_mut(&cq) else { return };
        for _ in 0..times {
            match q.entries.len() < q.depth {
                true => q.entries.push_back(wc),
                false => q.overflowed = true,
            }
        }
        self.notify(cq);
    }

    fn registered(&mut self, r: &Request) -> bool {
        let ok = self
            .mrs
            .get(&r.lkey)
            .is_some_and(|m| r.addr >= m.start && r.addr + u64::from(r.len) <= m.start + m.len);
        if !ok {
            self.violations.push(format!("access to {} bytes that are not registered", r.len));
        }
        ok
    }

    pub(super) fn progress(&mut self) -> usize {
        let mut moved = 0;
        let numbers: Vec<u32> = self.qps.keys().copied().collect();
        for n in numbers {
            while self.step(n).is_some() {
                moved += 1;
            }
        }
        moved
    }

    /// Moves one message of this queue pair, if it can.
    pub(super) fn step(&mut self, n: u32) -> Option<()> {
        let q = self.qps.get(&n).filter(|q| !q.failed)?;
        let peer = q.peer?;
        let q_send_cq = q.send_cq;
        let send = *q.sends.front()?;
        if send.write {
            // Only empty ones are known here: they touch nothing and take no receive.
            self.qps.get_mut(&n)?.sends.pop_front();
            self.complete(q_send_cq, n, send.wr_id, 0, 0);
            return Some(());
        }
        let recv = *self.qps.get(&peer).filter(|p| !p.failed)?.recvs.front()?;
        let fits = send.len <= recv.len;
        let mut ok = self.registered(&recv);
        if send.inline.is_none() && send.len > 0 {
            ok &= self.registered(&send);
        }
        if ok && fits {
            let from = match &send.inline {
                Some(copy) => copy.as_ptr(),
                None => send.addr as *const u8,
            };
            // SAFETY: both were just found registered (inline data is a copy of ours), and registered memory is mapped.
            unsafe { std::ptr::copy(from, recv.addr as *mut u8, send.len as usize) };
        }
        let (send_cq, recv_cq) = (self.qps[&n].send_cq, self.qps[&peer].recv_cq);
        self.qps.get_mut(&n)?.sends.pop_front();
        self.qps.get_mut(&peer)?.recvs.pop_front();
        let status = if fits { self.faults.status } else { 1 };
        let len = if self.faults.byte_len != 0 { self.faults.byte_len } else { send.len };
        self.complete(recv_cq, peer, recv.wr_id, status, len);
        if send.signalled || status != 0 {
            self.complete(send_cq, n, send.wr_id, status, 0xdead_beef);
        }
        Some(())
    }

    /// Flushes all a queue pair holds.
    pub(super) fn flush(&mut self, n: u32) {
        const FLUSHED: u32 = 5;
        let Some(q) = self.qps.get_mut(&n) else { return };
        let (scq, rcq) = (q.send_cq, q.recv_cq);
        let sends: Vec<_> = q.sends.drain(..).collect();
        let recvs: Vec<_> = q.recvs.drain(..).collect();
        for r in sends {
            self.complete(scq, n, r.wr_id, FLUSHED, 0xdead_beef);
        }
        for r in recvs {
            self.complete(rcq, n, r.wr_id, FLUSHED, 0xdead_beef);
        }
    }

    pub(super) fn fail(&mut self, n: u32) {
        self.flush(n);
        if let Some(q) = self.qps.get_mut(&n) {
            q.failed = true;
        }
    }

    pub(super) fn owns(&self, bytes: &[u8]) -> bool {
        let range = bytes.as_ptr_range();
        self.owns_range(range.start.addr()..range.end.addr())
    }

    /// Whether the device may still touch any byte of these addresses.
    pub(crate) fn owns_range(&self, range: std::ops::Range<usize>) -> bool {
        let (lo, hi) = (range.start as u64, range.end as u64);
        let hit = |r: &Request| r.inline.is_none() && r.addr < hi && lo < r.addr + u64::from(r.len);
        self.qps.values().any(|q| q.sends.iter().chain(&q.recvs).any(hit))
    }
}
