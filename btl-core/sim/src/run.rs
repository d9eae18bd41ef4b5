//! One run: the loop over events, and its phases.
use crate::check::{Invariant, Violation};
use crate::cm::name_of;
use crate::cover::{Cover, Hit};
use crate::messages::MessageBook;
use crate::net::{Ev, Net};
use crate::options::Options;
use crate::picture::Picture;
use crate::port::SharedNet;
use crate::qp::State;
use crate::rank::{Life, Rank};
use crate::rng::Rng;
use crate::swarm::{self, Fault};
use crate::workload;
use btl_core::{Nanos, SECOND};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// Broken invariants, in the order found; empty for a good run.
    pub violations: Vec<Violation>,
    /// Hash of everything that happened.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Simulated time.
    pub time: Nanos,
    /// Messages of the application.
    pub messages: u64,
    /// What was met.
    pub cover: Cover,
    /// Messages that found no receive: TERMINATE or RNR NAK.
    pub no_buffer: u64,
    /// Faults injected.
    pub faults: u64,
    /// The last events.
    pub last: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until everything that was sent arrived.
    Work,
    /// Until nothing moves any more.
    Settle(Nanos),
    /// Until all are closed.
    Close,
    /// Until the last events are over.
    Drain(Nanos),
    Done,
}

/// Most events of a run: more is a livelock.
const MAX_EVENTS: u64 = 20_000_000;
/// Simulated time after which a run must be over.
const MAX_TIME: Nanos = 5_000 * SECOND;

struct World {
    net: SharedNet,
    ranks: Vec<Rank>,
    book: MessageBook,
    opt: Options,
    phase: Phase,
    events: u64,
    /// Pairs whose link was down for long.
    cut_off: Vec<(u32, u32)>,
}

/// Runs the simulation of `opt`. `print`: every event goes to standard output.
pub fn run(opt: &Options, print: bool) -> Outcome {
    run_on(opt, Net::new(opt.clone(), print)).0
}

/// As [`run`], and draws the first `limit` messages.
pub fn draw(opt: &Options, limit: usize) -> (Outcome, Picture) {
    let mut net = Net::new(opt.clone(), false);
    net.picture = Some(Picture::new(limit));
    let (outcome, picture) = run_on(opt, net);
    (outcome, picture.unwrap_or_else(|| Picture::new(0)))
}

fn run_on(opt: &Options, net: Net) -> (Outcome, Option<Picture>) {
    let net = Rc::new(RefCell::new(net));
    let world_net = Rc::clone(&net);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(opt.clone(), world_net);
        world.run();
        world.finish()
    }));
    let (events, messages, panicked) = match result {
        Ok((events, messages)) => (events, messages, None),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            (0, 0, Some(text.unwrap_or("of unknown cause").to_owned()))
        }
    };
    let mut net = net.borrow_mut();
    if let Some(what) = panicked {
        net.fail(Invariant::S11, what);
    }
    let picture = net.picture.take();
    let outcome = Outcome {
        violations: net.check.violations().to_vec(),
        hash: net.trace.hash(),
        events,
        time: net.now,
        messages,
        cover: std::mem::take(&mut net.cover),
        no_buffer: net.no_buffer,
        faults: net.faults,
        last: net.trace.last(),
    };
    (outcome, picture)
}

impl World {
    fn new(opt: Options, net: SharedNet) -> World {
        let plans = workload::draw(&opt, &mut Rng::new(opt.seed ^ 0x776f_726b));
        let mut book = MessageBook::new(opt.seed, opt.ranks);
        for pair in 0..opt.ranks * opt.ranks {
            let (a, b) = (pair / opt.ranks, pair % opt.ranks);
            book.acknowledged[pair as usize] = opt.recovers(a, b);
        }
        let ranks = plans
            .into_iter()
            .enumerate()
            .map(|(me, plan)| Rank::new(me as u32, &net, &opt, plan))
            .collect();
        World { net, ranks, book, opt, phase: Phase::Work, events: 0, cut_off: Vec::new() }
    }

    fn run(&mut self) {
        for rank in &mut self.ranks {
            rank.start(&self.opt);
        }
        self.plan_faults();
        while self.phase != Phase::Done {
            let Some(ev) = self.net.borrow_mut().next() else { break };
            self.events += 1;
            self.dispatch(ev);
            self.after_event();
            if self.is_over() {
                return;
            }
        }
    }

    /// Whether a violation ends the run.
    fn is_over(&mut self) -> bool {
        let tolerate = self.opt.tolerate;
        let counts = |v: &&Violation| !tolerate.contains(&v.invariant);
        if self.net.borrow().check.violations().iter().any(|v| counts(&v)) {
            return true;
        }
        let now = self.net.borrow().now;
        if self.events < MAX_EVENTS && now < MAX_TIME {
            return false;
        }
        let (undelivered, unsent) = self.book.open();
        let invariant = match self.phase {
            Phase::Work if self.events >= MAX_EVENTS => Invariant::L2,
            Phase::Work => Invariant::L1,
            Phase::Settle(_) if self.net.borrow().connecting() => Invariant::L3,
            Phase::Settle(_) => Invariant::L2,
            _ => Invariant::L5,
        };
        let what = format!(
            "no end in {:?} after {} events and {} s: {undelivered} messages did not arrive, \
             {unsent} sends did not end",
            self.phase,
            self.events,
            now / SECOND
        );
        self.net.borrow_mut().fail(invariant, what);
        true
    }

    fn plan_faults(&mut self) {
        let mut net = self.net.borrow_mut();
        for (n, fault) in self.opt.faults.iter().enumerate() {
            let at = match *fault {
                Fault::NeverThere(_) | Fault::Byzantine(..) => 0,
                Fault::Dies(_, at)
                | Fault::Vanishes(_, at)
                | Fault::Breaks(_, at)
                | Fault::DeviceFatal(_, at)
                | Fault::Removed(_, at)
                | Fault::Pause(_, at, _)
                | Fault::ClosesEarly(_, at) => at,
                Fault::Cut(cut) => cut.at,
            };
            net.at(at, Ev::Fault { n });
            if let Some((rank, at)) = swarm::obituary(*fault) {
                net.at(at, Ev::Obituary { rank });
            }
        }
        for _ in 0..self.opt.cm.intruders {
            let (at, rank) = (net.rng.below(100_000_000), net.rng.below(self.opt.ranks.into()));
            net.at(at, Ev::Intruder { rank: rank as u32 });
        }
    }

    /// Whose process takes part in an event, if it is one.
    fn process_of(&self, ev: Ev) -> Option<u32> {
        let net = self.net.borrow();
        let wire = |wire: u32| &net.wires[wire as usize];
        match ev {
            Ev::Poll { rank, .. }
            | Ev::CmDeliver { rank }
            | Ev::CmRequest { rank }
            | Ev::CmDeadline { rank, .. }
            | Ev::CmTick { rank }
            | Ev::Close { rank } => Some(rank),
            Ev::CmIncoming { wire: w }
            | Ev::CmAcceptUp { wire: w }
            | Ev::CmAcceptError { wire: w } => Some(wire(w).to),
            // InfiniBand's reply is handled by the process; MPA's by the kernel.
            Ev::CmReply { wire: w } if !net.opt.model.is_iwarp() => wire(w).from,
            Ev::CmDialUp { wire: w }
            | Ev::CmRejected { wire: w }
            | Ev::CmDialError { wire: w, .. } => wire(w).from,
            Ev::CmGone { wire: w, initiator } | Ev::CmNoise { wire: w, initiator } => {
                if initiator {
                    wire(w).from
                } else {
                    Some(wire(w).to)
                }
            }
            _ => None,
        }
    }

    fn dispatch(&mut self, ev: Ev) {
        if let Some(rank) = self.process_of(ev) {
            let host = &mut self.net.borrow_mut().hosts[rank as usize];
            if host.paused {
                host.deferred.push_back(ev);
                return;
            }
        }
        self.carry_out(ev);
    }

    fn carry_out(&mut self, ev: Ev) {
        let now = self.net.borrow().now;
        match ev {
            Ev::Poll { rank, stamp } => {
                let current = {
                    let mut net = self.net.borrow_mut();
                    let host = &mut net.hosts[rank as usize];
                    let current = host.stamp == stamp && !host.dead;
                    if current {
                        host.next_poll = Nanos::MAX;
                    }
                    current
                };
                if current {
                    let calm = self.phase != Phase::Work;
                    self.ranks[rank as usize].turn(&mut self.book, &self.opt, calm);
                }
            }
            Ev::Nic { qp } => self.net.borrow_mut().nic(qp),
            Ev::Arrive { qp } => self.net.borrow_mut().arrive(qp),
            Ev::Cqe { qp } => self.net.borrow_mut().cqe(qp),
            Ev::Place { qp } => self.net.borrow_mut().place_all(qp),
            Ev::CmReply { wire } => self.net.borrow_mut().reply(wire),
            Ev::CmDeliver { rank } => {
                let link = Rc::clone(&self.ranks[rank as usize].link);
                let event = link.borrow_mut().outbox.pop_front();
                link.borrow_mut().events.extend(event);
                self.net.borrow_mut().wake(rank);
            }
            Ev::CmRequest { rank } | Ev::CmDeadline { rank, .. } | Ev::CmTick { rank } => {
                self.cm_step(rank, ev);
            }
            Ev::CmIncoming { wire } | Ev::CmAcceptUp { wire } | Ev::CmAcceptError { wire } => {
                let rank = self.net.borrow().wires[wire as usize].to;
                self.cm_step(rank, ev);
            }
            Ev::CmDialUp { wire } | Ev::CmRejected { wire } | Ev::CmDialError { wire, .. } => {
                let rank = self.net.borrow().wires[wire as usize].from;
                rank.into_iter().for_each(|rank| self.cm_step(rank, ev));
            }
            Ev::CmGone { .. } | Ev::CmNoise { .. } => {
                let rank = self.process_of(ev);
                rank.into_iter().for_each(|rank| self.cm_step(rank, ev));
            }
            Ev::PhantomEnd { wire } => self.net.borrow_mut().phantom_end(wire),
            Ev::GiveUp { qp } => self.net.borrow_mut().give_up(qp),
            Ev::Intruder { rank } => self.net.borrow_mut().intrude(rank),
            Ev::Fault { n } => self.fault(self.opt.faults[n]),
            Ev::Obituary { rank } => self.obituary(rank),
            Ev::Resume { rank } => {
                let deferred = {
                    let host = &mut self.net.borrow_mut().hosts[rank as usize];
                    host.paused = false;
                    std::mem::take(&mut host.deferred)
                };
                deferred.into_iter().for_each(|ev| self.carry_out(ev));
            }
            Ev::Close { rank } => {
                self.net.borrow_mut().trace.note(now, "close-rank", u64::from(rank), 0, 0);
                self.ranks[rank as usize].close(&self.opt);
            }
        }
    }

    fn cm_step(&mut self, rank: u32, ev: Ev) {
        let dead = self.net.borrow().hosts[rank as usize].dead;
        // A dead rank answers a connect with a refusal, and does nothing else.
        if !dead || matches!(ev, Ev::CmIncoming { .. }) {
            self.ranks[rank as usize].cm_step(ev);
        }
    }

    fn fault(&mut self, fault: Fault) {
        let [rank, _] = fault.ranks();
        if self.ranks[rank as usize].life != Life::Running {
            return;
        }
        let now = self.net.borrow().now;
        match fault {
            Fault::NeverThere(_) | Fault::Dies(..) | Fault::Vanishes(..) => self.kill(fault, rank),
            Fault::Breaks(..) => {
                let peer = self.net.borrow_mut().break_one(rank);
                peer.into_iter().for_each(|peer| self.lose(rank, peer));
            }
            Fault::DeviceFatal(..) => {
                (0..self.opt.ranks).for_each(|peer| self.lose(rank, peer));
                self.net.borrow_mut().break_all(rank);
            }
            Fault::Removed(..) => {
                self.book.disturb_all(rank);
                self.net.borrow_mut().remove_device(rank);
                self.ranks[rank as usize].cm.device_removed();
            }
            Fault::ClosesEarly(..) => {
                self.book.disturb_all(rank);
                self.net.borrow_mut().inject(Hit::ClosedEarly);
                self.net.borrow_mut().at(now, Ev::Close { rank });
            }
            Fault::Byzantine(_, trick) => {
                self.book.disturb_all(rank);
                let mut net = self.net.borrow_mut();
                net.hosts[rank as usize].trick = Some(trick);
                net.check.hostile = true;
            }
            Fault::Cut(cut) => {
                if cut.breaks {
                    self.lose(cut.from, cut.to);
                    // One end may not hear that the other gave up, if it has nothing to say.
                    self.cut_off.extend([(cut.from, cut.to), (cut.to, cut.from)]);
                }
                self.net.borrow_mut().cut(cut);
            }
            Fault::Pause(_, _, len) => self.net.borrow_mut().pause(rank, now + len),
        }
    }

    /// Connections between two ranks are lost: their messages may be too, unless both recover.
    fn lose(&mut self, a: u32, b: u32) {
        if !self.opt.recovers(a, b) {
            self.book.disturb(a, b);
        }
    }

    fn kill(&mut self, fault: Fault, rank: u32) {
        self.ranks[rank as usize].life = Life::Dead;
        self.ranks[rank as usize].todo.clear();
        self.book.disturb_all(rank);
        self.book.bury(rank);
        let mut net = self.net.borrow_mut();
        match fault {
            Fault::Vanishes(..) => net.vanish(rank),
            Fault::NeverThere(_) => net.die(rank, true),
            _ => net.die(rank, false),
        }
    }

    /// Everyone is told that a rank is gone. If it is not, it is now.
    fn obituary(&mut self, rank: u32) {
        if self.phase != Phase::Work {
            return;
        }
        if self.ranks[rank as usize].life == Life::Running {
            self.kill(Fault::Dies(rank, 0), rank);
        }
        for other in (0..self.opt.ranks).filter(|other| *other != rank) {
            self.ranks[other as usize].bury(rank);
        }
    }

    fn after_event(&mut self) {
        let now = self.net.borrow().now;
        match self.phase {
            Phase::Work => {
                let alive = |rank: &&Rank| rank.life != Life::Dead;
                if self.book.open() == (0, 0) && self.ranks.iter().filter(alive).all(Rank::is_done)
                {
                    // Refused posts must not be waiting for their next try when sums are taken.
                    self.net.borrow_mut().opt.dev.enomem = 0;
                    self.phase = Phase::Settle(now + SECOND / 5);
                }
            }
            Phase::Settle(_) if !self.is_quiet() => {
                self.phase = Phase::Settle(now + SECOND / 5);
            }
            Phase::Settle(since) if now > since => {
                self.check_rest();
                self.start_close();
                self.phase = Phase::Close;
            }
            Phase::Close => {
                let over = |rank: &Rank| matches!(rank.life, Life::Closed | Life::Dead);
                if self.ranks.iter().all(over) {
                    self.phase = Phase::Drain(now + SECOND);
                }
                for rank in &self.ranks {
                    if let Life::Closing(since) = rank.life
                        && now > since + 60 * SECOND
                    {
                        rank.fail(Invariant::L5, "the close has no end".to_owned());
                    }
                }
            }
            Phase::Drain(until) if now > until => self.phase = Phase::Done,
            Phase::Settle(_) | Phase::Drain(_) | Phase::Done => {}
        }
    }

    /// Whether nothing moves any more.
    fn is_quiet(&self) -> bool {
        let at_work = |rank: &Rank| rank.life != Life::Dead && rank.is_connecting();
        self.net.borrow().is_quiet() && !self.ranks.iter().any(at_work)
    }

    fn start_close(&mut self) {
        let mut net = self.net.borrow_mut();
        let spread = net.rng.log_range(1, 50_000_000);
        for rank in 0..self.opt.ranks {
            net.hosts[rank as usize].computing = 0;
            let delay = net.rng.below(spread);
            if self.ranks[rank as usize].life == Life::Running {
                net.after(delay, Ev::Close { rank });
            }
        }
    }

    /// At rest: one connection a lane with opposite roles (L4), and all credits there (S4).
    fn check_rest(&mut self) {
        for a in 0..self.opt.ranks {
            for b in (0..self.opt.ranks).filter(|b| *b != a) {
                if self.book.is_disturbed(a, b) || self.cut_off.contains(&(a, b)) {
                    continue;
                }
                for class in 0..self.opt.lanes.len() as u8 {
                    self.check_lane(a, b, class);
                }
            }
            if !self.book.is_disturbed(a, a) {
                (0..self.opt.lanes.len() as u8).for_each(|class| self.check_oneself(a, class));
            }
        }
    }

    /// Both ends of a lane that a rank has to itself.
    fn check_oneself(&mut self, a: u32, class: u8) {
        let both = self.net.borrow().live(a, a, class);
        match both.as_slice() {
            [] => {}
            [x, y] if self.net.borrow().joined(*x, *y) => {
                let (dialled, accepted) =
                    if self.net.borrow().qps[*x as usize].acceptor { (*y, *x) } else { (*x, *y) };
                let (out, back) = {
                    let check = &mut self.net.borrow_mut().check;
                    (check.at_rest(dialled, accepted), check.at_rest(accepted, dialled))
                };
                let rank = &self.ranks[a as usize];
                rank.compare(a, class, out.map(|r| r.usable), back.map(|r| r.untold));
            }
            _ => {
                let what = format!("rank {a} lane {class} to itself: queue pairs {both:?}");
                self.net.borrow_mut().fail(Invariant::L4, what);
            }
        }
    }

    fn check_lane(&mut self, a: u32, b: u32, class: u8) {
        let (here, there) = {
            let net = self.net.borrow();
            (net.live(a, b, class), net.live(b, a, class))
        };
        match (here.as_slice(), there.as_slice()) {
            ([], []) => {}
            ([x], [y]) if self.net.borrow().joined(*x, *y) => {
                let (out, back) = {
                    let check = &mut self.net.borrow_mut().check;
                    (check.at_rest(*x, *y), check.at_rest(*y, *x))
                };
                let rank = &self.ranks[a as usize];
                rank.compare(b, class, out.map(|r| r.usable), back.map(|r| r.untold));
            }
            _ => {
                let names = (name_of(a), name_of(b));
                let what = format!("{names:?} lane {class}: {here:?} there, {there:?} here");
                self.net.borrow_mut().fail(Invariant::L4, what);
            }
        }
    }

    fn check_counters(&mut self) {
        if self.phase != Phase::Done {
            return;
        }
        let found = {
            let net = self.net.borrow();
            self.book.check_counters(|dst, range| {
                let bytes = net.hosts[dst as usize].shared.look(range);
                u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
            })
        };
        for what in found {
            self.net.borrow_mut().fail(Invariant::S8, what);
        }
        let found = {
            let net = self.net.borrow();
            self.book.check_used(|dst, range| net.hosts[dst as usize].shared.is_intact(range))
        };
        for what in found {
            self.net.borrow_mut().fail(Invariant::S14, what);
        }
    }

    /// Checks that every buffer came home.
    fn finish(&mut self) -> (u64, u64) {
        if self.phase == Phase::Done {
            for rank in &self.ranks {
                let net = self.net.borrow();
                let slots = &net.hosts[rank.me as usize].slots;
                let (dropped, away) = (slots.dropped(), slots.first_away());
                drop(net);
                if rank.life == Life::Dead {
                    continue;
                }
                if dropped > 0 {
                    rank.fail(Invariant::S6, format!("{dropped} buffers were dropped"));
                }
                let memory = self.net.borrow().hosts[rank.me as usize].shared.first_away();
                if let Some((id, owner)) = memory {
                    rank.fail(Invariant::S6, format!("memory {id} did not come home: {owner:?}"));
                }
                if let Some((slot, owner)) = away {
                    rank.fail(Invariant::S6, format!("buffer {slot} did not come home: {owner:?}"));
                }
                if rank.life != Life::Closed {
                    rank.fail(Invariant::L5, format!("ends as {:?}", rank.life));
                }
            }
        }
        self.check_counters();
        for rank in &self.ranks {
            rank.count();
        }
        let (net, messages) = (self.net.borrow(), self.book.next_id());
        (self.events + net.trace.count(), messages)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Queue pairs under way refer to the fabric; they go first.
        for rank in &self.ranks {
            let (mut outbox, mut events) = Default::default();
            {
                let mut link = rank.link.borrow_mut();
                std::mem::swap(&mut link.outbox, &mut outbox);
                std::mem::swap(&mut link.events, &mut events);
            }
            drop((outbox, events));
        }
    }
}

impl Net {
    /// Live queue pairs of `a` to `b`.
    fn live(&self, a: u32, b: u32, class: u8) -> Vec<u32> {
        let is = |(id, qp): (usize, &crate::qp::Qp)| {
            let peer = qp.peer.map(|p| self.qps[p as usize].rank);
            let live = qp.state == State::Rts && qp.lane.is_some();
            (qp.rank == a && peer == Some(b) && qp.class == class && live).then_some(id as u32)
        };
        self.qps.iter().enumerate().filter_map(is).collect()
    }

    /// Whether a queue pair is still being connected or handed over.
    fn connecting(&self) -> bool {
        self.qps.iter().any(|qp| qp.state != State::Dead && qp.lane.is_none())
    }

    /// Whether no device and no connection manager has anything to do and nobody computes.
    fn is_quiet(&self) -> bool {
        // A queue pair without a lane is still being connected or handed over.
        let still = |qp: &crate::qp::Qp| {
            qp.lane.is_some()
                && qp.wq.is_empty()
                && qp.pipe.is_empty()
                && qp.cqes.is_empty()
                && qp.tx.is_empty()
        };
        let idle = |host: &crate::net::Host| {
            host.dead || (host.cq.is_empty() && host.computing <= self.now && !host.paused)
        };
        self.hosts.iter().all(idle)
            && self.qps.iter().all(|qp| matches!(qp.state, State::Dead) || still(qp))
    }
}
