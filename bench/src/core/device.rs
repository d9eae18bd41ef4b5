//! Ping-pong and streaming over a device, between two processes: what ib_send_lat and ib_send_bw do, through the engine with all it
//! does besides.

use std::time::{Duration, Instant};

use btl_core::verbs::{Idle, Selection, open};
use btl_core::{Config, Engine, Event, LaneConfig, Nanos, PeerId, ProcName, RecvBuf};
use rdma_safe::Slot;

use crate::clock::{cycles, per_microsecond};
use crate::spec::Spec;
use crate::{Core, JOB, Outcome};

/// For anything that has to come.
const LIMIT: Duration = Duration::from_secs(30);
/// Polls between two looks at the clock, which may be a system call.
const POLLS: u32 = 1 << 16;
/// The last word.
const DONE: u8 = 1;

/// This side of the connection.
struct Side {
    core: Core,
    peer: PeerId,
    start: Instant,
    now: Nanos,
    polls: u32,
    /// Sends whose buffers have come back.
    sent: usize,
}

pub(crate) fn run(test: &str, spec: &Spec) -> Outcome {
    let mut side = Side::open(spec)?;
    match (test, spec.server) {
        ("send_lat", true) => pong(&mut side, spec)?,
        ("send_lat", false) => ping(&mut side, spec)?,
        (_, true) => receive(&mut side, spec)?,
        (_, false) => stream(&mut side, spec)?,
    }
    side.close()
}

impl Side {
    /// Opens the device that has the address, and connects: both sides have heard each other then, as perftest's have.
    fn open(spec: &Spec) -> Outcome<Side> {
        let name = |server: bool| ProcName { job: 1, rank: u32::from(!server) };
        let mut config = Config::new(name(spec.server), JOB);
        config.lanes = lanes(spec)?;
        let listen_port = if spec.server { spec.addr.port() } else { 0 };
        let selection =
            Selection { addr: Some(spec.addr.ip()), listen_port, ..Selection::default() };
        let (port, cm, _) = open(&selection, &config)?;
        let mut core = Engine::new(config, port, cm)?;
        let start = Instant::now();
        // Not used before it is known.
        let mut peer = None;
        if !spec.server {
            let to = core.add_peer(name(true), &[spec.addr])?;
            for size in [1, spec.size] {
                let buf = core.alloc(size)?;
                core.send(to, 0, buf, 0).map_err(|refused| refused.kind)?;
            }
            peer = Some(to);
        }
        let mut idle = Idle::default();
        let (mut heard, mut sent) = (0, 0);
        while heard < 2 || sent < 2 {
            let event = core.poll(start.elapsed().as_nanos() as Nanos);
            idle.polled(event.is_some(), core.busy());
            match event {
                Some(Event::Message { buf, peer: from, .. }) => {
                    let size = buf.len();
                    core.release(buf);
                    heard += 1;
                    if spec.server {
                        peer = Some(from);
                        let buf = core.alloc(size)?;
                        core.send(from, 0, buf, 0).map_err(|refused| refused.kind)?;
                    }
                }
                Some(Event::Sent { buf, result, .. }) => {
                    result?;
                    buf.into_iter().for_each(|buf| core.free(buf));
                    sent += 1;
                }
                Some(Event::PeerFailed { fault, .. }) => return Err(fault.into()),
                _ if start.elapsed() > LIMIT => return Err("no peer came".into()),
                _ => {}
            }
        }
        let peer = peer.ok_or("no peer came")?;
        Ok(Side { core, peer, start, now: 0, polls: 0, sent: 0 })
    }

    #[inline]
    fn say(&mut self, tag: u8, size: usize) -> Outcome {
        let buf = self.core.alloc(size)?;
        self.core.send(self.peer, tag, buf, 0).map_err(|refused| refused.kind)?;
        Ok(())
    }

    /// One poll; the message it found, if it did.
    #[inline]
    fn poll(&mut self) -> Outcome<Option<(u8, RecvBuf<Slot>)>> {
        match self.core.poll(self.now) {
            None => {
                self.polls += 1;
                if self.polls >= POLLS {
                    self.look_at_clock()?;
                }
                return Ok(None);
            }
            Some(Event::Message { tag, buf, .. }) => {
                self.polls = 0;
                return Ok(Some((tag, buf)));
            }
            Some(Event::Sent { buf, result, .. }) => {
                result?;
                if let Some(buf) = buf {
                    self.core.free(buf);
                }
                self.sent += 1;
            }
            Some(Event::PeerFailed { fault, .. }) => return Err(fault.into()),
            Some(_) => {}
        }
        Ok(None)
    }

    #[cold]
    #[inline(never)]
    fn look_at_clock(&mut self) -> Outcome {
        self.polls = 0;
        let now = self.start.elapsed();
        self.now = now.as_nanos() as Nanos;
        if now > LIMIT * 4 { Err("nothing came for too long".into()) } else { Ok(()) }
    }

    /// The next message; its buffer is released.
    #[inline]
    fn hear(&mut self) -> Outcome<u8> {
        loop {
            if let Some((tag, buf)) = self.poll()? {
                self.core.release(buf);
                return Ok(tag);
            }
        }
    }

    fn close(mut self) -> Outcome {
        let mut idle = Idle::default();
        let start = Instant::now();
        self.core.close(self.start.elapsed().as_nanos() as Nanos);
        while start.elapsed() < LIMIT {
            let event = self.core.poll(self.start.elapsed().as_nanos() as Nanos);
            idle.polled(event.is_some(), true);
            match event {
                Some(Event::Closed) => return Ok(()),
                Some(Event::Message { buf, .. }) => self.core.release(buf),
                _ => {}
            }
        }
        Err("the engine does not close".into())
    }
}

/// The default lane for what fits it; behind it one for messages of this size, as deep as perftest's queues.
fn lanes(spec: &Spec) -> Outcome<Vec<LaneConfig>> {
    let config = Config::new(ProcName { job: 1, rank: 0 }, JOB);
    let mut lanes = vec![config.lanes[0]];
    if spec.size > config.max_payload(0) {
        let depth = u16::try_from(spec.receives)?.max(4);
        lanes.push(LaneConfig {
            // A power of two keeps payloads on their cache lines.
            buffer_size: u32::try_from(spec.size + 64)?,
            depth,
            send_depth: u16::try_from(spec.depth)? + 1,
            send_slots: u32::try_from(spec.depth)?,
        });
    }
    Ok(lanes)
}

fn pong(side: &mut Side, spec: &Spec) -> Outcome {
    for _ in 0..spec.count {
        side.hear()?;
        side.say(0, spec.size)?;
    }
    Ok(())
}

fn ping(side: &mut Side, spec: &Spec) -> Outcome {
    let mut sent_at = Vec::with_capacity(spec.count);
    for _ in 0..spec.count {
        sent_at.push(cycles());
        side.say(0, spec.size)?;
        side.hear()?;
    }
    let mut ways: Vec<u64> = sent_at.windows(2).map(|two| (two[1] - two[0]) / 2).collect();
    ways.sort_unstable();
    let median = ways.get(ways.len() / 2).copied().ok_or("too few iterations")?;
    println!("median_cycles {median} cycles_per_us {:.3}", per_microsecond());
    Ok(())
}

fn receive(side: &mut Side, spec: &Spec) -> Outcome {
    for _ in 0..spec.count {
        side.hear()?;
    }
    side.say(DONE, 1)?;
    // The peer closes first, when it has heard.
    while side.sent == 0 {
        side.poll()?;
    }
    Ok(())
}

fn stream(side: &mut Side, spec: &Spec) -> Outcome {
    let start = Instant::now();
    let (mut posted, mut told) = (0, false);
    while side.sent < spec.count {
        while posted < spec.count
            && posted - side.sent < spec.depth
            && let Ok(buf) = side.core.alloc(spec.size)
        {
            side.core.send(side.peer, 0, buf, 0).map_err(|refused| refused.kind)?;
            posted += 1;
        }
        told |= heard_done(side)?;
    }
    let time = start.elapsed();
    while !told {
        told = heard_done(side)?;
    }
    spec.print_rate(time);
    Ok(())
}

/// One poll: whether the receiver has said that all came.
#[inline]
fn heard_done(side: &mut Side) -> Outcome<bool> {
    let Some((tag, buf)) = side.poll()? else { return Ok(false) };
    side.core.release(buf);
    Ok(tag == DONE)
}
