//! `cq.poll` into an array, and `qp.complete` on the queue pair that the completion belongs to.
#![forbid(unsafe_code)]

use crate::rig::Rig;
use crate::{MESSAGE, Outcome, QPS, WINDOW, broken, unknown};
use rdma_safe::{CompletionQueue, QueuePair, SendFlags, Slot, Wc};

pub(crate) fn run(scenario: &str, count: usize) -> Outcome {
    let rig = Rig::new(if scenario == "qps1000" { QPS as u32 } else { 1 })?;
    let mut slots = rig.slots(WINDOW)?;
    let slot = rig.slots(1)?.pop().ok_or("no slot")?;
    let mut qps = vec![rig.qp()?];
    if scenario == "qps1000" {
        for _ in 1..QPS {
            qps.push(rig.qp()?);
        }
    }
    let mut cq = rig.cq;
    let qp = qps.first_mut().ok_or("no queue pair")?;
    match scenario {
        "send" => send(&mut cq, qp, slot, count),
        "recv" => recv(&mut cq, qp, slot, count),
        "window16" => window16(&mut cq, qp, &mut slots, count),
        "qps1000" => qps1000(&mut cq, &mut qps, slot, count),
        "empty" => empty(&mut cq, count),
        _ => return unknown(scenario),
    }
    Ok(())
}

#[inline(always)]
fn poll_one(cq: &mut CompletionQueue, wc: &mut [Wc; 1]) {
    loop {
        match cq.poll(wc) {
            Ok(0) => {}
            Ok(_) => return,
            Err(_) => broken(),
        }
    }
}

/// Its slot, if it went well.
#[inline(always)]
fn redeem(qp: &mut QueuePair, wc: &mut Wc) -> Slot {
    match qp.complete(wc) {
        Some(done) if done.status.is_ok() => done.slot.unwrap_or_else(|| broken()),
        _ => broken(),
    }
}

#[inline(never)]
fn send(cq: &mut CompletionQueue, qp: &mut QueuePair, mut slot: Slot, count: usize) {
    let mut wc = [Wc::empty()];
    for _ in 0..count {
        if qp.post_send(slot, MESSAGE, SendFlags::empty()).is_err() {
            broken();
        }
        poll_one(cq, &mut wc);
        slot = redeem(qp, &mut wc[0]);
    }
}

#[inline(never)]
fn recv(cq: &mut CompletionQueue, qp: &mut QueuePair, mut slot: Slot, count: usize) {
    let mut wc = [Wc::empty()];
    for _ in 0..count {
        if qp.post_recv(slot).is_err() {
            broken();
        }
        poll_one(cq, &mut wc);
        slot = redeem(qp, &mut wc[0]);
    }
}

#[inline(never)]
fn window16(cq: &mut CompletionQueue, qp: &mut QueuePair, slots: &mut Vec<Slot>, count: usize) {
    let mut wcs: [Wc; WINDOW] = std::array::from_fn(|_| Wc::empty());
    for _ in 0..count / WINDOW {
        while let Some(slot) = slots.pop() {
            if qp.post_send(slot, MESSAGE, SendFlags::empty()).is_err() {
                broken();
            }
        }
        while slots.len() < WINDOW {
            let Ok(n) = cq.poll(&mut wcs) else { broken() };
            let done = wcs.get_mut(..n).unwrap_or_default();
            slots.extend(done.iter_mut().map(|wc| redeem(qp, wc)));
        }
    }
}

/// The queue pairs' serials were given out one after the other, so one finds the place of the other.
#[inline(never)]
fn qps1000(cq: &mut CompletionQueue, qps: &mut [QueuePair], mut slot: Slot, count: usize) {
    let first = qps.first().map_or(0, QueuePair::serial);
    let mut wc = [Wc::empty()];
    let mut q = 0;
    for _ in 0..count {
        // The bounds check is the one that C needs to begin again.
        if qps.get(q).is_none() {
            q = 0;
        }
        let Some(qp) = qps.get_mut(q) else { broken() };
        q += 1;
        if qp.post_send(slot, MESSAGE, SendFlags::empty()).is_err() {
            broken();
        }
        poll_one(cq, &mut wc);
        let place = wc[0].serial().wrapping_sub(first) as usize;
        let Some(qp) = qps.get_mut(place) else { broken() };
        slot = redeem(qp, &mut wc[0]);
    }
}

#[inline(never)]
fn empty(cq: &mut CompletionQueue, count: usize) {
    let mut wcs: [Wc; WINDOW] = std::array::from_fn(|_| Wc::empty());
    for _ in 0..count {
        if !matches!(cq.poll(&mut wcs), Ok(0)) {
            broken();
        }
    }
}
