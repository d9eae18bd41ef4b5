//! Streaming, as ib_send_bw: as many signalled requests in flight as the queue is deep.
//!
//! On iWARP a message that finds no receive ends the connection, so there the receiver tells how many it has taken, three times for
//! every queue of receives, and the sender waits for it; perftest does the same.

use std::time::Instant;

use crate::Outcome;
use crate::peer::{self, Half, Idle, WORD};
use crate::spec::Spec;
use rdma_safe::{SendFlags, Slot};

/// Receives for what the receiver tells.
const CREDITS: usize = 8;
/// The last word: all has come.
const DONE: u64 = u64::MAX;

pub(crate) fn run(spec: &Spec) -> Outcome {
    match spec.server {
        true => receiver(spec),
        false => sender(spec),
    }
}

fn word(slot: &Slot) -> u64 {
    slot.first_chunk::<WORD>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn receiver(spec: &Spec) -> Outcome {
    let (mut peer, ()) = peer::accept(spec, |half| {
        half.post_recvs(spec.size, spec.receives)?;
        Ok((Vec::new(), ()))
    })?;
    let every = if peer.iwarp { (spec.receives / 3).max(1) } else { usize::MAX };
    let (mut count, mut idle) = (0, Idle::default());
    while count < spec.count {
        let (mut said, mut failed) = (None, None);
        let n = peer.half.poll_recvs(|qp, done| {
            count += 1;
            if let Some(Err(error)) = done.slot.map(|slot| qp.post_recv(slot)) {
                failed = Some(error);
            }
            if (count % spec.receives).is_multiple_of(every) {
                said = Some(count);
            }
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        if let Some(count) = said {
            peer.half.say(count as u64)?;
        }
        idle.polled(n)?;
    }
    peer.half.say(DONE)?;
    peer.until_gone()
}

fn sender(spec: &Spec) -> Outcome {
    let (mut peer, _) = peer::dial(spec, |half| half.post_recvs(WORD, CREDITS))?;
    let window = if peer.iwarp { spec.receives } else { usize::MAX };
    let half = &mut peer.half;
    let mut slots = half.pd.slots(spec.size, spec.depth)?;
    let (mut posted, mut sent, mut taken, mut idle) = (0, 0, 0u64, Idle::default());
    let start = Instant::now();
    while sent < spec.count {
        while posted < spec.count && (posted + 1).saturating_sub(taken as usize) < window {
            let Some(slot) = slots.pop() else { break };
            half.qp.post_send(slot, spec.size, SendFlags::empty())?;
            posted += 1;
        }
        let mut n = half.poll_sends(|_, done| {
            sent += 1;
            slots.extend(done.slot);
        })?;
        if window != usize::MAX {
            n += credits(half, &mut taken)?;
        }
        idle.polled(n)?;
    }
    let time = start.elapsed();
    while taken != DONE {
        let n = credits(half, &mut taken)?;
        idle.polled(n)?;
    }
    spec.print_rate(time);
    peer.end()
}

/// Reads what the receiver has told meanwhile.
fn credits(half: &mut Half, taken: &mut u64) -> Outcome<usize> {
    let mut failed = None;
    let n = half.poll_recvs(|qp, done| {
        if let Some(slot) = done.slot {
            *taken = word(&slot);
            failed = qp.post_recv(slot).err().or(failed.take());
        }
    })?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(n),
    }
}
