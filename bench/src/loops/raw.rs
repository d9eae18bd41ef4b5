//! Raw requests on `rdma-sys`, as unsafe as in C. The objects are those of `rdma-safe`.

use crate::rig::Rig;
use crate::{MESSAGE, Outcome, QPS, SIZE, WINDOW, broken, unknown};
use rdma_safe::Slot;
use rdma_sys::*;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const FLAGS: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0 | ibv_send_flags::IBV_SEND_INLINE.0;

/// Live handles and a registered buffer: what the loops' safety comments call the rig.
struct Raw {
    cq: *mut ibv_cq,
    addr: u64,
    lkey: u32,
}

pub(crate) fn run(scenario: &str, count: usize) -> Outcome {
    let many = if scenario == "qps1000" { QPS } else { 1 };
    let rig = Rig::new(many as u32)?;
    let mut owned = Vec::new();
    for _ in 0..many {
        owned.push(rig.qp()?);
    }
    let qps: Vec<*mut ibv_qp> = owned.iter().map(|qp| qp.as_raw()).collect();
    let slot: Slot = rig.slots(1)?.pop().ok_or("no slot")?;
    // An inline send needs no key, and the fake device looks at none.
    let raw = Raw { cq: rig.cq.as_raw(), addr: slot.as_ptr() as u64, lkey: 1 };
    let qp = *qps.first().ok_or("no queue pair")?;
    match scenario {
        "send" => send(&raw, qp, count),
        "recv" => recv(&raw, qp, count),
        "window16" => window16(&raw, qp, count),
        "qps1000" => qps1000(&raw, &qps, count),
        "empty" => empty(&raw, count),
        _ => return unknown(scenario),
    }
    Ok(())
}

fn template() -> ibv_send_wr {
    ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND, ..ibv_send_wr::default() }
}

#[inline(always)]
fn post_send(raw: &Raw, qp: *mut ibv_qp, wr: &mut ibv_send_wr, id: u64) {
    let mut sge = ibv_sge { addr: raw.addr, length: MESSAGE as u32, lkey: raw.lkey };
    wr.wr_id = id;
    wr.next = null_mut();
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
    wr.send_flags = FLAGS;
    let mut bad = MaybeUninit::uninit();
    // SAFETY: the rig's queue pair is alive, the list is one complete request, its data is copied during the call.
    if unsafe { ibv_post_send(qp, wr, bad.as_mut_ptr()) } != 0 {
        broken();
    }
}

#[inline(always)]
fn post_recv(raw: &Raw, qp: *mut ibv_qp, id: u64) {
    let mut sge = ibv_sge { addr: raw.addr, length: SIZE as u32, lkey: raw.lkey };
    let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    let mut bad = MaybeUninit::uninit();
    // SAFETY: the rig's queue pair is alive, the list is one complete request, its buffer outlives the queue pair.
    if unsafe { ibv_post_recv(qp, &mut wr, bad.as_mut_ptr()) } != 0 {
        broken();
    }
}

#[inline(always)]
fn poll_one(raw: &Raw, wc: &mut ibv_wc) {
    let n = loop {
        // SAFETY: the rig's queue is alive, and there is room for one completion.
        match unsafe { ibv_poll_cq(raw.cq, 1, wc) } {
            0 => {}
            n => break n,
        }
    };
    if wc.status.0 != 0 || n < 0 {
        broken();
    }
}

#[inline(never)]
fn send(raw: &Raw, qp: *mut ibv_qp, count: usize) {
    let (mut wr, mut wc) = (template(), ibv_wc::default());
    for i in 0..count as u64 {
        post_send(raw, qp, &mut wr, i);
        poll_one(raw, &mut wc);
    }
}

#[inline(never)]
fn recv(raw: &Raw, qp: *mut ibv_qp, count: usize) {
    let mut wc = ibv_wc::default();
    for i in 0..count as u64 {
        post_recv(raw, qp, i);
        poll_one(raw, &mut wc);
    }
}

#[inline(never)]
fn window16(raw: &Raw, qp: *mut ibv_qp, count: usize) {
    let (mut wr, mut wcs) = (template(), [ibv_wc::default(); WINDOW]);
    for i in 0..count / WINDOW {
        for j in 0..WINDOW {
            post_send(raw, qp, &mut wr, (i * WINDOW + j) as u64);
        }
        let mut got = 0;
        while got < WINDOW {
            // SAFETY: the rig's queue is alive, and there is room for so many completions.
            let n = unsafe { ibv_poll_cq(raw.cq, WINDOW as i32, wcs.as_mut_ptr()) };
            if n < 0 {
                broken();
            }
            for wc in wcs.iter().take(n as usize) {
                if wc.status.0 != 0 {
                    broken();
                }
            }
            got += n as usize;
        }
    }
}

#[inline(never)]
fn qps1000(raw: &Raw, qps: &[*mut ibv_qp], count: usize) {
    let (mut wr, mut wc) = (template(), ibv_wc::default());
    let mut done = vec![0u64; qps.len()];
    let mut q = 0;
    for _ in 0..count {
        // SAFETY: `q` goes round below the number of queue pairs.
        let qp = unsafe { *qps.get_unchecked(q) };
        post_send(raw, qp, &mut wr, q as u64);
        poll_one(raw, &mut wc);
        match done.get_mut(wc.wr_id as usize) {
            Some(n) => *n += 1,
            None => broken(),
        }
        q = if q + 1 == qps.len() { 0 } else { q + 1 };
    }
    std::hint::black_box(&done);
}

#[inline(never)]
fn empty(raw: &Raw, count: usize) {
    let mut wcs = [ibv_wc::default(); WINDOW];
    // Looked up once, as whoever polls all the time does: `ibv_poll_cq` asks each time whether there is one (2 more).
    // SAFETY: the rig's queue is alive, so its context is open.
    let poll = unsafe { poll_cq_op((*raw.cq).context) };
    for _ in 0..count {
        // SAFETY: the rig's queue is alive, and there is room for so many completions.
        if unsafe { poll(raw.cq, WINDOW as i32, wcs.as_mut_ptr()) } != 0 {
            broken();
        }
    }
}
