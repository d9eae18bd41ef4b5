//! Streaming of RDMA writes and reads, as ib_write_bw and ib_read_bw: as many signalled requests in flight as the queue is deep, all of
//! the same bytes at the peer's.

use std::time::Instant;

use crate::Outcome;
use crate::peer::{self, Half, Idle, WORD};
use crate::spec::Spec;
use rdma_safe::{MemoryRegion, OwnedMemory, Payload, Remote, RemoteAccess, RemoteRange, Request};

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Write,
    Read,
}

pub(crate) fn run(spec: &Spec, way: Way) -> Outcome {
    match spec.server {
        true => target(spec, way),
        false => actor(spec, way),
    }
}

fn region(half: &Half, len: usize, access: RemoteAccess) -> Outcome<MemoryRegion<Remote>> {
    Ok(half.pd.register_remote(OwnedMemory::zeroed(len)?, access)?)
}

/// The side whose memory is used, and which has nothing to do: it waits for the message that says the end, as perftest's does.
fn target(spec: &Spec, way: Way) -> Outcome {
    let access = match way {
        Way::Write => RemoteAccess::Write,
        Way::Read => RemoteAccess::Read,
    };
    let (mut peer, _region) = peer::accept(spec, |half| {
        let region = region(half, spec.size, access)?;
        half.post_recvs(WORD, spec.receives)?;
        Ok((region.remote().to_bytes().to_vec(), region))
    })?;
    peer.half.received()?;
    peer.until_gone()
}

/// What the requests read from, or into.
fn memory(half: &Half, spec: &Spec, way: Way) -> Outcome<Vec<Payload>> {
    Ok(match way {
        // All from the same bytes, as perftest.
        Way::Write => {
            let shared = half.pd.register(OwnedMemory::zeroed(spec.size)?)?.into_shared();
            let slices = (0..spec.depth).map(|_| shared.slice(0, spec.size));
            slices.map(|slice| slice.map(Payload::from)).collect::<Result<_, _>>()?
        }
        Way::Read => {
            let sinks = region(half, spec.size * spec.depth, RemoteAccess::ReadSink)?;
            sinks.into_slots(spec.size, spec.depth)?.into_iter().map(Payload::from).collect()
        }
    })
}

fn actor(spec: &Spec, way: Way) -> Outcome {
    let (mut peer, told) = peer::dial(spec, |half| half.post_recvs(WORD, spec.receives))?;
    let told = told.first_chunk().ok_or("the peer does not tell its memory")?;
    let theirs = RemoteRange::from_bytes(told);
    let half = &mut peer.half;
    let mut free = memory(half, spec, way)?;
    let (mut posted, mut done, mut idle) = (0, 0, Idle::default());
    let start = Instant::now();
    while done < spec.count {
        while posted < spec.count {
            let Some(own) = free.pop() else { break };
            half.qp.post(match way {
                Way::Write => Request::write(own, spec.size, theirs),
                Way::Read => Request::read(own, spec.size, theirs),
            })?;
            posted += 1;
        }
        let n = half.poll_sends(|_, one| {
            done += 1;
            free.extend(one.into_payload());
        })?;
        idle.polled(n)?;
    }
    spec.print_rate(start.elapsed());
    half.say(0)?;
    peer.end()
}
