//! The state of the simulated fabric that devices, connection managers and the checker share:
//! time, events, queue pairs, wires.
use crate::check::{Invariant, LaneChecker};
use crate::cover::{Cover, Hit};
use crate::options::Options;
use crate::picture::Picture;
use crate::qp::Qp;
use crate::rma::{Load, Shared, SimMemory};
use crate::rng::Rng;
use crate::slots::SlotBook;
use crate::swarm::Trick;
use crate::trace::Trace;
use btl_core::port::Status;
use btl_core::wire::PrivateData;
use btl_core::{LaneId, Nanos};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Something that happens at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ev {
    /// A rank polls; void unless the stamp is the newest.
    Poll { rank: u32, stamp: u64 },
    /// A queue pair's device pops a work request.
    Nic { qp: u32 },
    /// The first item that a queue pair sent arrives.
    Arrive { qp: u32 },
    /// The first pending completion of a queue pair enters the completion queue.
    Cqe { qp: u32 },
    /// The CM side takes the engine's next request.
    CmRequest { rank: u32 },
    /// The engine's side of the hand-over gets the CM side's next event.
    CmDeliver { rank: u32 },
    /// A connect request arrives.
    CmIncoming { wire: u32 },
    /// The initiator's device has read the reply.
    CmReply { wire: u32 },
    /// The CM side of the initiator reads ESTABLISHED.
    CmDialUp { wire: u32 },
    /// It reads a reject.
    CmRejected { wire: u32 },
    /// It reads another error.
    CmDialError { wire: u32, why: DialError },
    /// The CM side of the acceptor reads ESTABLISHED.
    CmAcceptUp { wire: u32 },
    /// The acceptor's set-up failed before that.
    CmAcceptError { wire: u32 },
    /// One side reads DISCONNECTED.
    CmGone { wire: u32, initiator: bool },
    /// The deadline of a dial or accept.
    CmDeadline { rank: u32, conn: u64 },
    /// The connection machine's own timer.
    CmTick { rank: u32 },
    /// Someone who is not of this job connects.
    Intruder { rank: u32 },
    /// A fault of the options takes place.
    Fault { n: usize },
    /// Everyone is told that a rank is gone.
    Obituary { rank: u32 },
    /// A rank that stood still goes on.
    Resume { rank: u32 },
    /// An event that means nothing to a connection: ADDR_CHANGE or TIMEWAIT_EXIT.
    CmNoise { wire: u32, initiator: bool },
    /// The other end of a connection that nobody is behind closes.
    PhantomEnd { wire: u32 },
    /// A device has tried long enough.
    GiveUp { qp: u32 },
    /// What was put on a queue pair is placed.
    Place { qp: u32 },
    /// A rank closes.
    Close { rank: u32 },
}

/// How a dial can fail without a reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DialError {
    Refused,
    ConnectError,
    NoResources,
}

impl DialError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            DialError::Refused => "connection refused",
            DialError::ConnectError => "CONNECT_ERROR, status -22",
            DialError::NoResources => "no room for the receives",
        }
    }
}

/// A connection as the connection managers of both ends see it.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The dialling rank; `None`: an intruder.
    pub(crate) from: Option<u32>,
    pub(crate) to: u32,
    /// Names on both sides.
    pub(crate) dial_conn: u64,
    pub(crate) accept_conn: Option<u64>,
    pub(crate) dial_qp: Option<u32>,
    pub(crate) accept_qp: Option<u32>,
    /// Of the request, then of the reply or reject.
    pub(crate) data: PrivateData,
    /// Nothing more comes of it.
    pub(crate) over: bool,
    /// The initiator's device has read the reply.
    pub(crate) replied: bool,
    /// Latest event given to the acceptor's and to the initiator's CM side: they stay in order.
    pub(crate) last: [Nanos; 2],
    /// The reject an intruder must get.
    pub(crate) expect: Option<&'static [u8]>,
    /// A request that came twice; nobody is behind it.
    pub(crate) replay: bool,
}

impl Wire {
    /// A request of `from` (`None`: not of a rank) to `to`.
    pub(crate) fn new(from: Option<u32>, to: u32, data: PrivateData) -> Wire {
        Wire {
            from,
            to,
            dial_conn: 0,
            accept_conn: None,
            dial_qp: None,
            accept_qp: None,
            data,
            over: false,
            replied: false,
            last: [0; 2],
            expect: None,
            replay: false,
        }
    }
}

/// A completion on its way.
#[derive(Debug)]
pub(crate) struct Cqe {
    pub(crate) qp: u32,
    pub(crate) send: bool,
    pub(crate) load: Load,
    pub(crate) len: usize,
    pub(crate) status: Status,
}

/// What the fabric keeps of a rank.
pub(crate) struct Host {
    pub(crate) slots: SlotBook,
    pub(crate) shared: Shared,
    /// Memory that the device has let go of.
    pub(crate) back: VecDeque<(LaneId, u32, SimMemory)>,
    pub(crate) cq: VecDeque<Cqe>,
    /// Queue pair by lane index.
    pub(crate) lanes: Vec<Option<u32>>,
    pub(crate) next_poll: Nanos,
    pub(crate) stamp: u64,
    /// Computes until then.
    pub(crate) computing: Nanos,
    pub(crate) dead: bool,
    /// Its host is gone without a word.
    pub(crate) vanished: bool,
    /// Its device is gone.
    pub(crate) removed: bool,
    /// Its process stands still; what happened meanwhile.
    pub(crate) paused: bool,
    pub(crate) deferred: VecDeque<Ev>,
    /// What it does to its messages.
    pub(crate) trick: Option<Trick>,
    /// Completions of dead queue pairs that are still to show up: when, on what, of a send.
    pub(crate) stale: VecDeque<(Nanos, LaneId, bool)>,
    pub(crate) stale_given: u64,
    /// When the next burst of completions comes.
    pub(crate) burst_at: Nanos,
    /// Work that the completion queue must have room for, and completions that wait for a lane.
    pub(crate) cq_room: usize,
    pub(crate) parked: usize,
    /// The queue pair of the last completion.
    pub(crate) last_polled: u32,
    /// Most lanes at a time.
    pub(crate) lanes_peak: usize,
    /// Last times of the two queues between engine and CM side, which keep their order.
    pub(crate) last_request: Nanos,
    pub(crate) last_deliver: Nanos,
}

pub(crate) struct Net {
    pub(crate) opt: Options,
    pub(crate) now: Nanos,
    seq: u64,
    heap: BinaryHeap<Reverse<(Nanos, u64, Ev)>>,
    pub(crate) rng: Rng,
    pub(crate) qps: Vec<Qp>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) check: LaneChecker,
    pub(crate) trace: Trace,
    pub(crate) picture: Option<Picture>,
    pub(crate) cover: Cover,
    /// Messages that found no receive.
    pub(crate) no_buffer: u64,
    /// Links that are down: from, to, until when, and whether that is longer than devices try.
    pub(crate) cuts: Vec<(u32, u32, Nanos, bool)>,
    /// Faults so far.
    pub(crate) faults: u64,
    /// Requests that may still come twice. A process that connects in vain eight times in a row
    /// has failed by rule, so there are fewer of them.
    pub(crate) duplicates: u32,
}

impl Net {
    pub(crate) fn new(opt: Options, print: bool) -> Net {
        let hosts = (0..opt.ranks)
            .map(|_| Host {
                slots: SlotBook::new(
                    opt.lanes.iter().map(|l| (l.buffer_size as usize, l.send_slots)),
                ),
                shared: Shared::default(),
                back: VecDeque::new(),
                cq: VecDeque::new(),
                lanes: Vec::new(),
                next_poll: Nanos::MAX,
                stamp: 0,
                computing: 0,
                dead: false,
                vanished: false,
                removed: false,
                paused: false,
                deferred: VecDeque::new(),
                trick: None,
                stale: VecDeque::new(),
                stale_given: 0,
                burst_at: 0,
                cq_room: 0,
                parked: 0,
                last_polled: 0,
                lanes_peak: 0,
                last_request: 0,
                last_deliver: 0,
            })
            .collect();
        Net {
            now: 0,
            seq: 0,
            heap: BinaryHeap::new(),
            rng: Rng::new(opt.seed ^ 0x6e65_7477_6f72_6b21),
            qps: Vec::new(),
            wires: Vec::new(),
            hosts,
            check: LaneChecker::default(),
            trace: Trace::new(print),
            picture: None,
            cover: Cover::default(),
            no_buffer: 0,
            cuts: Vec::new(),
            faults: 0,
            duplicates: 6,
            opt,
        }
    }

    /// Something happens `delay` from now.
    pub(crate) fn after(&mut self, delay: Nanos, ev: Ev) {
        self.at(self.now + delay, ev);
    }

    pub(crate) fn at(&mut self, at: Nanos, ev: Ev) {
        self.seq += 1;
        self.heap.push(Reverse((at.max(self.now), self.seq, ev)));
    }

    /// The next event; time moves on to it.
    pub(crate) fn next(&mut self) -> Option<Ev> {
        let Reverse((at, _, ev)) = self.heap.pop()?;
        self.now = at;
        Some(ev)
    }

    /// A rank has a reason to poll soon.
    pub(crate) fn wake(&mut self, rank: u32) {
        let delay = self.rng.delay(self.opt.poll);
        self.poll_within(rank, delay);
    }

    /// The rank polls in `delay` at the latest, unless it computes.
    pub(crate) fn poll_within(&mut self, rank: u32, delay: Nanos) {
        let host = &mut self.hosts[rank as usize];
        let at = (self.now + delay).max(host.computing);
        if at < host.next_poll && !host.dead {
            host.next_poll = at;
            host.stamp += 1;
            let stamp = host.stamp;
            self.at(at, Ev::Poll { rank, stamp });
        }
    }

    /// Notes in the picture what happened to a queue pair.
    pub(crate) fn mark(&mut self, qp: u32, text: &str, bad: bool) {
        let now = self.now;
        if let Some(picture) = &mut self.picture {
            picture.mark_qp(now, qp, text, bad);
        }
    }

    pub(crate) fn fail(&mut self, invariant: Invariant, what: String) {
        self.trace.note(self.now, "violation", invariant as u64, 0, 0);
        if let Some(picture) = &mut self.picture {
            picture.mark(self.now, 0, 0, format!("{invariant:?}: {what}"), true);
        }
        self.check.fail(invariant, what);
    }

    /// A fault was injected.
    pub(crate) fn inject(&mut self, hit: Hit) {
        self.faults += 1;
        self.cover.hit(hit);
    }

    /// Until when nothing passes from one rank to another, and whether devices give up before.
    pub(crate) fn blocked(&self, from: u32, to: u32) -> Option<(Nanos, bool)> {
        let down = self.cuts.iter().filter(|cut| cut.0 == from && cut.1 == to && cut.2 > self.now);
        down.fold(None, |all, cut| {
            let (until, breaks) = all.unwrap_or((0, false));
            Some((cut.2.max(until), cut.3 || breaks))
        })
    }

    /// How long a message of the connection managers waits for a link that is down.
    fn held_up(&self, wire: u32, initiator: bool, ev: Ev) -> Nanos {
        let travels = match ev {
            Ev::CmIncoming { .. } | Ev::CmRejected { .. } | Ev::CmDialError { .. } => true,
            Ev::CmAcceptUp { .. } | Ev::CmGone { .. } => !self.opt.model.is_iwarp(),
            _ => false,
        };
        let wired = &self.wires[wire as usize];
        let Some(from) = wired.from.filter(|_| travels && !self.cuts.is_empty()) else { return 0 };
        let (from, to) = if initiator { (wired.to, from) } else { (from, wired.to) };
        self.blocked(from, to).map_or(0, |(until, _)| until - self.now)
    }

    /// Enters what [`SlotBook`] says about a change of owner.
    pub(crate) fn own(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.fail(Invariant::S6, what);
        }
    }

    /// An event of a wire for one side's CM, `delay` from now but never before an earlier one.
    pub(crate) fn tell(&mut self, wire: u32, initiator: bool, delay: Nanos, ev: Ev) {
        let delay = delay.max(self.held_up(wire, initiator, ev));
        let step = self.rng.delay(self.opt.cm.step);
        let last = &mut self.wires[wire as usize].last[usize::from(initiator)];
        let at = (self.now + delay + step).max(*last);
        *last = at;
        self.at(at, ev);
    }

    /// The connection of a wire is gone: the given side will read DISCONNECTED, after everything
    /// that arrived on its queue pair has completed.
    pub(crate) fn tell_gone(&mut self, wire: u32, initiator: bool) {
        let w = &self.wires[wire as usize];
        let qp = if initiator { w.dial_qp } else { w.accept_qp };
        let completed = qp.map_or(0, |qp| self.qps[qp as usize].last_cqe);
        // With TCP the end of the stream has arrived; otherwise a message of the CM is under way.
        let travel = if self.opt.model.is_iwarp() { 0 } else { self.rng.delay(self.opt.cm.wire) };
        let delay = completed.saturating_sub(self.now).max(travel);
        self.cover.hit(Hit::Gone);
        self.tell(wire, initiator, delay, Ev::CmGone { wire, initiator });
    }
}
