//! The fake's message path.

use super::{PIECES, Request, State, lock, state_of};
use rdma_sys::*;
use std::ffi::c_int;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: called through ibv_post_send with a live queue pair and a list of complete requests.
    unsafe {
        let mut s = lock(state_of((*qp).context));
        let faults = s.faults;
        let (mut next, mut at) = (wr, 0);
        s.doorbells.0 += 1;
        while !next.is_null() {
            if faults.list_fails_at == Some(at) {
                *bad = next;
                return if faults.list_lies { 0 } else { libc::ENOMEM };
            }
            let r = read_send(&mut s, &*next);
            s.doorbells.1 += 1;
            if let Some(q) = s.qps.get_mut(&(*qp).qp_num) {
                q.sends.push_back(r);
            }
            (next, at) = ((*next).next, at + 1);
        }
        if faults.post_send_fails {
            *bad = std::ptr::null_mut();
            *libc::__errno_location() = libc::ENOTCONN;
            return -1;
        }
        0
    }
}

/// # Safety
/// A complete request, as for ibv_post_send.
unsafe fn read_send(s: &mut State, wr: &ibv_send_wr) -> Request {
    use ibv_wr_opcode as o;
    let has = |f: ibv_send_flags| wr.send_flags & f.0 != 0;
    let inline = has(ibv_send_flags::IBV_SEND_INLINE);
    if wr.send_flags & !0xf != 0 {
        s.violations.push(format!("flags {:#x}", wr.send_flags));
    }
    // SAFETY: the caller's promise.
    let mut r = unsafe { read_pieces(s, wr.wr_id, wr.sg_list, wr.num_sge) };
    let sends = [o::IBV_WR_SEND, o::IBV_WR_SEND_WITH_IMM, o::IBV_WR_SEND_WITH_INV];
    let source = sends.contains(&wr.opcode)
        || [o::IBV_WR_RDMA_WRITE, o::IBV_WR_RDMA_WRITE_WITH_IMM].contains(&wr.opcode);
    let total = r.len();
    if source && total > 0 && total <= 32 && !inline {
        s.violations.push(format!("{total} bytes not inline"));
    }
    if inline && !source {
        s.violations.push("an inline sink".into());
    }
    if inline {
        let mut copy = [0; 64];
        let mut rest = &mut copy[..];
        for p in &r.pieces[..r.count] {
            let (now, later) = rest.split_at_mut(p.length as usize);
            // SAFETY: the caller's promise.
            now.copy_from_slice(unsafe {
                std::slice::from_raw_parts(p.addr as *const u8, p.length as usize)
            });
            rest = later;
        }
        r.inline = Some(copy);
    }
    r.signalled = has(ibv_send_flags::IBV_SEND_SIGNALED);
    r.opcode = wr.opcode;
    // SAFETY: the opcode says which member counts; all are plain numbers.
    unsafe {
        r.word = wr.__bindgen_anon_1.imm_data;
        r.srq_num = wr.qp_type.xrc.remote_srqn;
        r.remote = match wr.opcode {
            o::IBV_WR_ATOMIC_CMP_AND_SWP | o::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let a = wr.wr.atomic;
                (a.remote_addr, a.rkey, a.compare_add, a.swap)
            }
            _ => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, 0, 0),
        };
    }
    r
}

/// # Safety
/// `count` elements.
pub(super) unsafe fn read_pieces(
    s: &mut State,
    wr_id: u64,
    list: *const ibv_sge,
    count: c_int,
) -> Request {
    let mut r = Request {
        wr_id,
        pieces: [ibv_sge::default(); PIECES],
        count: (count as usize).min(PIECES),
        signalled: true,
        inline: None,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        remote: (0, 0, 0, 0),
        word: 0,
        srq_num: 0,
    };
    if count as usize > PIECES {
        s.violations.push(format!("{count} pieces"));
    }
    for i in 0..r.count {
        // SAFETY: the caller's promise.
        r.pieces[i] = unsafe { *list.add(i) };
        if r.pieces[i].length == 0 {
            s.violations.push("an empty piece".into());
        }
    }
    r
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: called through ibv_post_recv with a live queue pair and a list of requests.
    unsafe {
        let mut s = lock(state_of((*qp).context));
        let faults = s.faults;
        let number = (*qp).qp_num;
        if s.qps.get(&number).is_some_and(|q| q.srq != 0) {
            s.violations.push("a receive on a queue pair with a shared queue".into());
        }
        s.doorbells.0 += 1;
        let (mut next, mut at) = (wr, 0);
        while !next.is_null() {
            if faults.list_fails_at == Some(at) {
                *bad = next;
                return if faults.list_lies { 0 } else { libc::ENOMEM };
            }
            let r = read_pieces(&mut s, (*next).wr_id, (*next).sg_list, (*next).num_sge);
            s.doorbells.1 += 1;
            if r.count == 0 {
                s.violations.push("an empty receive".into());
            }
            if let Some(q) = s.qps.get_mut(&number) {
                q.recvs.push_back(r);
            }
            (next, at) = ((*next).next, at + 1);
        }
        if faults.post_recv_fails { libc::EINVAL } else { 0 }
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

impl Request {
    pub(super) fn len(&self) -> u64 {
        self.pieces[..self.count].iter().map(|p| u64::from(p.length)).sum()
    }
}

impl State {
    /// One completion, as a device writes it: what is invalid on errors is garbage.
    pub(super) fn complete(&mut self, cq: usize, qp_num: u32, wr_id: u64, status: u32, len: u32) {
        let wc = ibv_wc {
            wr_id,
            status: ibv_wc_status(status),
            opcode: ibv_wc_opcode(0xdead),
            byte_len: len,
            qp_num,
            ..ibv_wc::default()
        };
        self.complete_with(cq, wc);
    }

    pub(super) fn complete_with(&mut self, cq: usize, wc: ibv_wc) {
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
        let piece = |p: &ibv_sge| p.addr < hi && lo < p.addr + u64::from(p.length);
        let hit = |r: &Request| r.inline.is_none() && r.pieces[..r.count].iter().any(piece);
        self.qps.values().any(|q| q.sends.iter().chain(&q.recvs).any(hit))
            || self.srqs.values().any(|q| q.recvs.iter().any(hit))
    }
}
