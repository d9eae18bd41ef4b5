//! Engines on threads of their own over the fabric, all connected with all, each with its connection manager's thread and dialers:
//! for a tool that watches for races. Connections come and go, in both directions at once.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use btl_core::{Event, PeerId, ProcName};

use crate::fabric::{LIMIT, Node, name, node};
use crate::{Core, Outcome};

/// Engines at a time.
const ENGINES: u32 = 3;
/// How often all of them begin anew.
const ROUNDS: usize = 4;
/// Bytes of messages: of lane 0 and of lane 1.
const SIZES: [usize; 3] = [8, 3000, 40_000];

/// The lock's guard. Spins: a lock that is contended is taken inside the standard library, where a tool that watches for races does
/// not see it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

type Names = Mutex<Vec<(ProcName, Vec<SocketAddr>)>>;

/// Every engine sends `count` messages to each other one, a round.
pub(crate) fn run(count: usize) -> Outcome {
    for _ in 0..ROUNDS {
        let met = Arc::new((Barrier::new(ENGINES as usize), Names::default()));
        let threads: Vec<_> = (0..ENGINES)
            .map(|rank| {
                let met = Arc::clone(&met);
                std::thread::spawn(move || {
                    one(rank, count, &met.0, &met.1).map_err(|error| error.to_string())
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "an engine's thread panicked")??;
        }
    }
    println!("{ROUNDS} rounds of {ENGINES} engines");
    Ok(())
}

fn one(rank: u32, count: usize, all_here: &Barrier, names: &Names) -> Outcome {
    let Node { mut core, name: me, addrs } = node(rank)?;
    locked(names).push((me, addrs));
    all_here.wait();
    let others: Vec<_> = locked(names).iter().filter(|(name, _)| *name != me).cloned().collect();
    let mut peers = Vec::new();
    for (name, addrs) in others {
        peers.push(core.add_peer(name, &addrs)?);
    }
    exchange(&mut core, &peers, count)?;
    // Whoever is done first must not end what the others still need.
    all_here.wait();
    close(&mut core)
}

fn exchange(core: &mut Core, peers: &[PeerId], count: usize) -> Outcome {
    let all = count * peers.len();
    let (mut posted, mut sent, mut heard) = (0, 0, 0);
    let start = Instant::now();
    while sent < all || heard < all {
        if posted < all
            && let Some(peer) = peers.get(posted % peers.len())
            && let Ok(mut buf) = core.alloc(SIZES[posted % SIZES.len()])
        {
            buf.fill(posted as u8);
            core.send(*peer, 1, buf, 0).map_err(|refused| refused.kind)?;
            posted += 1;
        }
        match core.poll(now(start)) {
            Some(Event::Message { buf, .. }) => {
                if buf.first() != buf.last() {
                    return Err("a message is not what was sent".into());
                }
                heard += 1;
                core.release(buf);
            }
            Some(Event::Sent { buf, result, .. }) => {
                result?;
                sent += 1;
                if let Some(buf) = buf {
                    core.free(buf);
                }
            }
            Some(Event::PeerFailed { fault, .. }) => return Err(fault.into()),
            Some(_) => {}
            None => std::thread::yield_now(),
        }
        if start.elapsed() > LIMIT {
            let me = name(0).job;
            return Err(format!("job {me}: {sent} of {all} sent, {heard} received").into());
        }
    }
    Ok(())
}

fn close(core: &mut Core) -> Outcome {
    let start = Instant::now();
    core.close(now(start));
    while start.elapsed() < LIMIT {
        match core.poll(now(start)) {
            Some(Event::Closed) => return Ok(()),
            Some(Event::Message { buf, .. }) => core.release(buf),
            Some(_) => {}
            None => std::thread::yield_now(),
        }
    }
    Err("an engine does not close".into())
}

fn now(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}
