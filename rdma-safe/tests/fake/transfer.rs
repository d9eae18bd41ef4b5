//! How the fake carries out requests: every opcode moves real bytes, every access is checked against the registered
//! memory, and what a peer may not do fails as on a device. And its shared receive queues.

use super::data::read_pieces;
use super::{Request, State, lock, state_of};
use rdma_sys::*;
use std::collections::VecDeque;
use std::ffi::c_int;

const LENGTH: u32 = 1;
const REMOTE_INVALID: u32 = 9;
const REMOTE_ACCESS: u32 = 10;

#[derive(Default)]
pub(super) struct Srq {
    pub(super) recvs: VecDeque<Request>,
    pub(super) users: u32,
    pub(super) limit: u32,
    depth: usize,
}

fn set_errno(e: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = e }
}

pub(super) unsafe fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: a live PD and complete attributes.
    let (context, attr) = unsafe { ((*pd).context, &*attr) };
    let mut s = lock(state_of(context));
    if s.faults.gone != 0 {
        set_errno(s.faults.gone);
        return std::ptr::null_mut();
    }
    let srq = ibv_srq { context, pd, srq_context: attr.srq_context, ..ibv_srq::default() };
    let raw = Box::into_raw(Box::new(srq));
    s.srqs.insert(
        raw.expose_provenance(),
        Srq { depth: attr.attr.max_wr as usize, ..Srq::default() },
    );
    raw
}

pub(super) unsafe fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: a live queue and complete attributes.
    let mut s = lock(state_of(unsafe { (*srq).context }));
    if mask != ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed() {
        return libc::EOPNOTSUPP;
    }
    if let Some(q) = s.srqs.get_mut(&srq.addr()) {
        // SAFETY: as above.
        q.limit = unsafe { (*attr).srq_limit };
    }
    0
}

pub(super) unsafe fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a live queue.
    let mut s = lock(state_of(unsafe { (*srq).context }));
    if s.faults.destroy_srq_fails | s.faults.gone != 0 {
        return s.faults.destroy_srq_fails | s.faults.gone;
    }
    if s.srqs.get(&srq.addr()).is_none_or(|q| q.users > 0) {
        s.violations.push("destroy of a shared receive queue in use".into());
        return libc::EBUSY;
    }
    if s.forget_events_of(srq.addr()) {
        s.violations.push("destroy of a shared queue that waits for an acknowledgement".into());
    }
    s.srqs.remove(&srq.addr());
    s.xrc_srq_died(srq.addr());
    // SAFETY: made by create_srq, freed once.
    drop(unsafe { Box::from_raw(srq) });
    0
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: called through ibv_post_srq_recv with a live queue and a list of requests.
    unsafe {
        let mut s = lock(state_of((*srq).context));
        let faults = s.faults;
        let (mut next, mut at) = (wr, 0);
        s.doorbells.0 += 1;
        while !next.is_null() {
            if faults.list_fails_at == Some(at) {
                *bad = next;
                return if faults.list_lies { 0 } else { libc::ENOMEM };
            }
            let r = read_pieces(&mut s, (*next).wr_id, (*next).sg_list, (*next).num_sge);
            s.doorbells.1 += 1;
            match s.srqs.get_mut(&srq.addr()) {
                Some(q) if q.recvs.len() < q.depth => q.recvs.push_back(r),
                _ => s.violations.push("too many receives on a shared queue".into()),
            }
            (next, at) = ((*next).next, at + 1);
        }
        0
    }
}

impl State {
    pub(super) fn join_srq(&mut self, srq: usize, by: i32) {
        if let Some(q) = self.srqs.get_mut(&srq) {
            q.users = q.users.wrapping_add_signed(by);
        }
    }

    fn within(&self, key: u32, addr: u64, len: u64) -> bool {
        self.mrs
            .get(&key)
            .is_some_and(|m| addr >= m.start && addr.saturating_add(len) <= m.start + m.len)
    }

    /// The device reads or writes our memory only where it is registered; anything else is our fault.
    fn check_local(&mut self, r: &Request) -> bool {
        let bad = r.pieces[..r.count]
            .iter()
            .find(|p| r.inline.is_none() && !self.within(p.lkey, p.addr, p.length.into()));
        if let Some(p) = bad {
            let what = format!("access to {} bytes that are not registered", p.length);
            self.violations.push(what);
            return false;
        }
        true
    }

    fn gather(&mut self, r: &Request) -> Vec<u8> {
        if let Some(copy) = r.inline {
            return copy[..r.len() as usize].to_vec();
        }
        let mut out = Vec::new();
        if self.check_local(r) {
            for p in &r.pieces[..r.count] {
                // SAFETY: just found registered, and registered memory is mapped.
                out.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(p.addr as *const u8, p.length as usize)
                });
            }
        }
        out
    }

    fn scatter(&mut self, r: &Request, mut data: &[u8]) {
        if !self.check_local(r) {
            return;
        }
        for p in &r.pieces[..r.count] {
            let (now, later) = data.split_at(data.len().min(p.length as usize));
            // SAFETY: as in gather.
            unsafe { std::ptr::copy(now.as_ptr(), p.addr as *mut u8, now.len()) };
            data = later;
        }
    }

    /// The receive that a message from `n` to `peer` takes, if one is posted.
    fn take_recv(&mut self, peer: u32) -> Option<Request> {
        let q = self.qps.get_mut(&peer)?;
        if q.srq == 0 {
            return q.recvs.pop_front();
        }
        let at = q.srq;
        let srq = self.srqs.get_mut(&at)?;
        let r = srq.recvs.pop_front()?;
        if srq.limit as usize > srq.recvs.len() {
            srq.limit = 0;
            self.raise_srq_limit(at);
        }
        Some(r)
    }

    fn has_recv(&self, peer: u32) -> bool {
        let Some(q) = self.qps.get(&peer) else { return false };
        match self.srqs.get(&q.srq) {
            Some(srq) => !srq.recvs.is_empty(),
            None => !q.recvs.is_empty(),
        }
    }

    /// Carries out one request of this queue pair, if it can.
    pub(super) fn step(&mut self, n: u32) -> Option<()> {
        use ibv_wr_opcode as o;
        let q = self.qps.get(&n).filter(|q| !q.failed)?;
        let is_read = |r: &Request| r.opcode == o::IBV_WR_RDMA_READ;
        let at = match self.faults.late_reads {
            true => q.sends.iter().position(|r| !is_read(r)).unwrap_or(0),
            false => 0,
        };
        let (peer, send) = (q.peer?, *q.sends.get(at)?);
        self.qps.get(&peer).filter(|p| !p.failed)?;
        let takes_recv = [
            o::IBV_WR_SEND,
            o::IBV_WR_SEND_WITH_IMM,
            o::IBV_WR_SEND_WITH_INV,
            o::IBV_WR_RDMA_WRITE_WITH_IMM,
        ];
        let takes_recv = takes_recv.contains(&send.opcode);
        let lost = takes_recv && self.misses_its_queue(peer, send.srq_num);
        if takes_recv && !lost && !self.has_recv(peer) {
            self.takes_aim_off(peer);
            return None;
        }
        self.qps.get_mut(&n)?.sends.remove(at);
        let status = match send.opcode {
            _ if lost => REMOTE_INVALID,
            o::IBV_WR_RDMA_READ => self.read(&send),
            o::IBV_WR_RDMA_WRITE | o::IBV_WR_RDMA_WRITE_WITH_IMM => self.write(peer, &send),
            o::IBV_WR_ATOMIC_CMP_AND_SWP | o::IBV_WR_ATOMIC_FETCH_AND_ADD => self.atomic(&send),
            o::IBV_WR_BIND_MW | o::IBV_WR_LOCAL_INV => 0,
            _ => self.deliver(peer, &send),
        };
        self.takes_aim_off(peer);
        let cq = self.qps.get(&n)?.send_cq;
        if send.signalled || status != 0 {
            self.complete(cq, n, send.wr_id, status, 0xdead_beef);
        }
        if [REMOTE_INVALID, REMOTE_ACCESS].contains(&status) {
            self.fail(n);
        }
        Some(())
    }

    fn deliver(&mut self, peer: u32, send: &Request) -> u32 {
        use ibv_wr_opcode as o;
        let Some(recv) = self.take_recv(peer) else { return 0 };
        let data = self.gather(send);
        let fits = data.len() as u64 <= recv.len();
        if fits {
            self.scatter(&recv, &data);
        }
        let status = if fits { self.faults.status } else { LENGTH };
        let flags = match send.opcode {
            o::IBV_WR_SEND_WITH_IMM => ibv_wc_flags::IBV_WC_WITH_IMM.0,
            o::IBV_WR_SEND_WITH_INV => ibv_wc_flags::IBV_WC_WITH_INV.0,
            _ => 0,
        };
        self.received(peer, &recv, status, data.len() as u32, flags, send.word, 0xdead);
        status
    }

    #[allow(clippy::too_many_arguments)] // the fields of a completion
    fn received(
        &mut self,
        peer: u32,
        recv: &Request,
        status: u32,
        len: u32,
        flags: u32,
        word: u32,
        opcode: u32,
    ) {
        let Some(cq) = self.qps.get(&peer).map(|q| q.recv_cq) else { return };
        let byte_len = if self.faults.byte_len != 0 { self.faults.byte_len } else { len };
        let wc = ibv_wc {
            wr_id: recv.wr_id,
            status: ibv_wc_status(status),
            opcode: ibv_wc_opcode(opcode),
            byte_len,
            qp_num: peer,
            wc_flags: flags,
            __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: word },
            ..ibv_wc::default()
        };
        self.complete_with(cq, wc);
    }

    fn read(&mut self, r: &Request) -> u32 {
        let (addr, key, ..) = r.remote;
        if !self.within(key, addr, r.len()) {
            return REMOTE_ACCESS;
        }
        // SAFETY: just found registered.
        let data =
            unsafe { std::slice::from_raw_parts(addr as *const u8, r.len() as usize) }.to_vec();
        self.scatter(r, &data);
        self.faults.status
    }

    fn write(&mut self, peer: u32, r: &Request) -> u32 {
        let (addr, key, ..) = r.remote;
        let data = self.gather(r);
        // Key and address of an empty write are not checked.
        if !data.is_empty() && !self.within(key, addr, data.len() as u64) {
            return REMOTE_ACCESS;
        }
        // SAFETY: just found registered; nothing is written of no bytes.
        unsafe { std::ptr::copy(data.as_ptr(), addr as *mut u8, data.len()) };
        if r.opcode == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
            && let Some(recv) = self.take_recv(peer)
        {
            let with_imm = ibv_wc_flags::IBV_WC_WITH_IMM.0;
            let opcode = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM.0;
            self.received(peer, &recv, 0, data.len() as u32, with_imm, r.word, opcode);
        }
        self.faults.status
    }

    fn atomic(&mut self, r: &Request) -> u32 {
        let (addr, key, compare_add, swap) = r.remote;
        if !addr.is_multiple_of(8) || !self.within(key, addr, 8) {
            return REMOTE_ACCESS;
        }
        // SAFETY: just found registered and aligned; the fake is the only one that runs.
        let old = unsafe { (addr as *const u64).read() };
        let new = match r.opcode {
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => old.wrapping_add(compare_add),
            _ if old == compare_add => swap,
            _ => old,
        };
        // SAFETY: as above.
        unsafe { (addr as *mut u64).write(new) };
        self.scatter(r, &old.to_ne_bytes());
        self.faults.status
    }
}
