//! A `PollGroup`, which finds the queue pair of a completion itself.
#![forbid(unsafe_code)]

use crate::rig::Rig;
use crate::{MESSAGE, Outcome, QPS, WINDOW, broken, unknown};
use rdma_safe::{PollGroup, QpKey, SendFlags, Slot};

pub(crate) fn run(scenario: &str, count: usize) -> Outcome {
    let many = if scenario == "qps1000" { QPS } else { 1 };
    let rig = Rig::new(many as u32)?;
    let mut slots = rig.slots(WINDOW)?;
    let slot = rig.slots(1)?.pop().ok_or("no slot")?;
    let mut qps = Vec::new();
    for _ in 0..many {
        qps.push(rig.qp()?);
    }
    let mut group = PollGroup::new(rig.cq);
    let mut keys = Vec::new();
    for qp in qps {
        keys.push(group.adopt(qp).map_err(|(_, error)| error)?);
    }
    let key = *keys.first().ok_or("no queue pair")?;
    match scenario {
        "send" => send(&mut group, key, slot, count),
        "recv" => recv(&mut group, key, slot, count),
        "window16" => window16(&mut group, key, &mut slots, count),
        "qps1000" => qps1000(&mut group, &keys, slot, count),
        "empty" => empty(&mut group, count),
        _ => return unknown(scenario),
    }
    Ok(())
}

/// The slot of the next completion, if it went well.
#[inline(always)]
fn next(group: &mut PollGroup) -> Slot {
    loop {
        match group.poll() {
            Ok(Some(c)) if c.status.is_ok() => return c.slot.unwrap_or_else(|| broken()),
            Ok(None) => {}
            _ => broken(),
        }
    }
}

#[inline(never)]
fn send(group: &mut PollGroup, key: QpKey, mut slot: Slot, count: usize) {
    for _ in 0..count {
        if group.post_send(key, slot, MESSAGE, SendFlags::empty()).is_err() {
            broken();
        }
        slot = next(group);
    }
}

#[inline(never)]
fn recv(group: &mut PollGroup, key: QpKey, mut slot: Slot, count: usize) {
    for _ in 0..count {
        if group.post_recv(key, slot).is_err() {
            broken();
        }
        slot = next(group);
    }
}

#[inline(never)]
fn window16(group: &mut PollGroup, key: QpKey, slots: &mut Vec<Slot>, count: usize) {
    for _ in 0..count / WINDOW {
        while let Some(slot) = slots.pop() {
            if group.post_send(key, slot, MESSAGE, SendFlags::empty()).is_err() {
                broken();
            }
        }
        slots.extend((0..WINDOW).map(|_| next(group)));
    }
}

#[inline(never)]
fn qps1000(group: &mut PollGroup, keys: &[QpKey], mut slot: Slot, count: usize) {
    let mut q = 0;
    for _ in 0..count {
        // The bounds check is the one that C needs to begin again.
        let key = match keys.get(q) {
            Some(key) => *key,
            None => {
                q = 0;
                keys[0]
            }
        };
        q += 1;
        if group.post_send(key, slot, MESSAGE, SendFlags::empty()).is_err() {
            broken();
        }
        slot = next(group);
    }
}

#[inline(never)]
fn empty(group: &mut PollGroup, count: usize) {
    for _ in 0..count {
        if !matches!(group.poll(), Ok(None)) {
            broken();
        }
    }
}
