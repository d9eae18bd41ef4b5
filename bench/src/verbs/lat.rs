//! Ping-pong, as ib_send_lat: every send is signalled and its completion polled, and the time of one way is half of that from one send
//! to the next.

use crate::Outcome;
use crate::clock::{cycles, per_microsecond};
use crate::peer::{self, Half};
use crate::spec::Spec;
use rdma_safe::{SendFlags, Slot};

pub(crate) fn run(spec: &Spec) -> Outcome {
    match spec.server {
        true => server(spec),
        false => client(spec),
    }
}

/// The slot to send from.
fn buffer(half: &Half, spec: &Spec) -> Outcome<Slot> {
    Ok(half.pd.slots(spec.size, 1)?.pop().ok_or("no slot")?)
}

/// Sends, and takes the slot back.
#[inline(always)]
fn send(half: &mut Half, slot: Slot, size: usize) -> Outcome<Slot> {
    half.qp.post_send(slot, size, SendFlags::empty())?;
    half.sent()?.ok_or_else(|| "a send without a slot".into())
}

fn server(spec: &Spec) -> Outcome {
    let (mut peer, mut slot) = peer::accept(spec, |half| {
        half.post_recvs(spec.size, spec.receives)?;
        Ok((Vec::new(), buffer(half, spec)?))
    })?;
    for _ in 0..spec.count {
        let received = peer.half.received()?;
        peer.half.qp.post_recv(received)?;
        slot = send(&mut peer.half, slot, spec.size)?;
    }
    peer.until_gone()
}

fn client(spec: &Spec) -> Outcome {
    let (mut peer, _) = peer::dial(spec, |half| half.post_recvs(spec.size, spec.receives))?;
    let half = &mut peer.half;
    let mut slot = buffer(half, spec)?;
    let mut sent_at = Vec::with_capacity(spec.count);
    for i in 0..spec.count {
        if i > 0 {
            let received = half.received()?;
            half.qp.post_recv(received)?;
        }
        sent_at.push(cycles());
        slot = send(half, slot, spec.size)?;
    }
    half.received()?;
    let mut ways: Vec<u64> = sent_at.windows(2).map(|two| (two[1] - two[0]) / 2).collect();
    ways.sort_unstable();
    let median = ways.get(ways.len() / 2).copied().ok_or("too few iterations")?;
    println!("median_cycles {median} cycles_per_us {:.3}", per_microsecond());
    peer.end()
}
