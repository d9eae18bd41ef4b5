//! One rank: its engine, its CM side, and the application on top.
use crate::check::Invariant;
use crate::cm::{CmSide, JOB, addr_of, name_of, nowhere};
use crate::cover::Hit;
use crate::messages::{Message, MessageBook, tag_for};
use crate::net::Ev;
use crate::onesided::{self, Plan};
use crate::options::{BadAddress, Options};
use crate::port::{Link, SharedNet, SimCm, SimPort};
use crate::rng;
use crate::slots::SimSlot;
use crate::swarm::Fault;
use crate::workload::Item;
use btl_core::engine::{Event, RecvBuf, SendBuf};
use btl_core::error::{AllocError, SendErrorKind};
use btl_core::{Config, Engine, Nanos, PeerId, PortEvent, Recovery, SECOND};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

/// How far a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    Closing(Nanos),
    Closed,
    Dead,
}

/// What a rank knows of another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) id: Option<PeerId>,
    /// The engine has its addresses.
    pub(crate) added: bool,
    pub(crate) failed: bool,
    /// It was said to be gone.
    removed: bool,
}

pub(crate) struct Rank {
    pub(crate) me: u32,
    pub(crate) net: SharedNet,
    pub(crate) link: Rc<RefCell<Link>>,
    pub(crate) engine: Engine<SimPort, SimCm>,
    pub(crate) cm: CmSide,
    pub(crate) peers: Vec<Known>,
    pub(crate) todo: VecDeque<Item>,
    pub(crate) rma_todo: VecDeque<Plan>,
    held: Vec<(Nanos, RecvBuf<SimSlot>)>,
    pub(crate) life: Life,
    idle: Nanos,
    keep_held: bool,
}

/// One-sided operations under way at a time.
const RMA_OPS: u32 = 16;
/// Longest pause between two polls of an idle rank.
const IDLE_MAX: Nanos = 50_000_000;

impl Rank {
    pub(crate) fn new(me: u32, net: &SharedNet, opt: &Options, todo: Vec<Item>) -> Rank {
        let config = config_for(me, opt);
        let link: Rc<RefCell<Link>> = Rc::default();
        let cm = CmSide::new(me, net, &link, &config);
        let port = SimPort { net: Rc::clone(net), rank: me };
        let engine_cm = SimCm { net: Rc::clone(net), rank: me, link: Rc::clone(&link) };
        let engine = match Engine::new(config, port, engine_cm) {
            Ok(engine) => engine,
            Err(error) => panic!("the simulator draws only valid settings: {error}"),
        };
        Rank {
            me,
            net: Rc::clone(net),
            link,
            engine,
            cm,
            peers: vec![Known::default(); opt.ranks as usize],
            todo: todo.into(),
            rma_todo: onesided::draw(opt, me).into(),
            held: Vec::new(),
            life: Life::Running,
            idle: 0,
            keep_held: false,
        }
    }

    /// Tells the engine who its peers are.
    pub(crate) fn start(&mut self, opt: &Options) {
        let others = (0..opt.ranks).filter(|rank| *rank != self.me);
        for rank in others.chain(opt.oneself.then_some(self.me)) {
            if opt.one_sided && rank < self.me {
                continue;
            }
            match self.engine.add_peer(name_of(rank), &addresses(self.me, rank, opt)) {
                Ok(id) => {
                    let known = Known { id: Some(id), added: true, ..Known::default() };
                    self.peers[rank as usize] = known;
                }
                Err(error) => self.fail(Invariant::L1, format!("add_peer: {error}")),
            }
        }
        self.net.borrow_mut().poll_within(self.me, 0);
    }

    pub(crate) fn fail(&self, invariant: Invariant, what: String) {
        let what = format!("rank {}: {what}", self.me);
        self.net.borrow_mut().fail(invariant, what);
    }

    fn now(&self) -> Nanos {
        self.net.borrow().now
    }

    fn rank_of(&self, id: PeerId) -> Option<u32> {
        self.peers.iter().position(|known| known.id == Some(id)).map(|at| at as u32)
    }

    /// Whether messages of this rank are still to be sent or released.
    pub(crate) fn is_done(&self) -> bool {
        self.todo.is_empty() && self.held.is_empty() && self.rma_todo.is_empty()
    }

    /// One turn of the application: a few polls, then what it wants to send and release.
    pub(crate) fn turn(&mut self, book: &mut MessageBook, opt: &Options, calm: bool) {
        let now = self.now();
        let budget = self.net.borrow_mut().rng.range(1, 16);
        let mut busy = false;
        for _ in 0..budget {
            let Some(event) = self.engine.poll(now) else {
                busy = false;
                break;
            };
            busy = true;
            self.on_event(event, book, opt);
        }
        busy |= self.release_due(now);
        busy |= self.send_due(book, now);
        busy |= self.start_rma(book, now);
        self.check_engine(opt);
        self.next_turn(busy, opt, calm, now);
    }

    /// S7: a completion of a dead lane is counted, and nothing else. S10: everything that grows
    /// has a limit.
    fn check_engine(&mut self, opt: &Options) {
        let (given, peak) = {
            let net = self.net.borrow();
            let host = &net.hosts[self.me as usize];
            (host.stale_given, host.lanes_peak as u32)
        };
        let seen = self.engine.stats().stale_completions;
        if seen != given {
            let what = format!("{given} completions of dead lanes came, {seen} were seen as such");
            self.fail(Invariant::S7, what);
        }
        let slots: u32 = RMA_OPS + opt.lanes.iter().map(|lane| lane.send_slots).sum::<u32>();
        let links = opt.ranks as usize * opt.lanes.len();
        let it = self.engine.gauges();
        let within = [
            ("peers", it.peers, opt.ranks as usize),
            ("entries of the message table", it.table as usize, (slots + peak) as usize + 1),
            ("messages that wait", it.waiting as usize, slots as usize),
            ("events", it.events, 2 * slots as usize + 3 * opt.ranks as usize + 1),
            ("lanes to close", it.hangups, peak as usize),
            ("lanes to retry", it.retries, 2 * links + peak as usize),
            ("lanes asked for", it.connecting as usize, links),
            ("connections", self.cm.connections(), links * 11),
        ];
        for (what, n, limit) in within {
            if n > limit {
                self.fail(Invariant::S10, format!("{n} {what}, at most {limit} were to be"));
            }
        }
        if !self.engine.is_consistent() {
            self.fail(Invariant::S10, format!("counts that are not what is there: {it:?}"));
        }
    }

    /// The queue pair of the completion that was polled last.
    fn last_polled(&self) -> u32 {
        self.net.borrow().hosts[self.me as usize].last_polled
    }

    /// A rank is said to be gone for good.
    pub(crate) fn bury(&mut self, rank: u32) {
        let known = &mut self.peers[rank as usize];
        (known.failed, known.removed) = (true, true);
        let id = known.id;
        if self.life == Life::Running {
            id.into_iter().for_each(|id| self.engine.remove_peer(id));
            self.net.borrow_mut().wake(self.me);
        }
    }

    fn next_turn(&mut self, busy: bool, opt: &Options, calm: bool, now: Nanos) {
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        if !calm && opt.compute > 0 && net.rng.chance(1, opt.compute) {
            net.hosts[self.me as usize].computing = now + opt.compute_for;
        }
        if busy {
            self.idle = 0;
            net.wake(self.me);
            return;
        }
        self.idle = (self.idle * 2).clamp(2_000, IDLE_MAX);
        // An item that is due already waits for something that wakes the rank.
        let later = self.todo.front().filter(|item| item.at > now);
        let due = later.map_or(Nanos::MAX, |item| item.at).min(self.next_rma(now));
        let held = self.held.iter().map(|(at, _)| *at).min().unwrap_or(Nanos::MAX);
        let next = due.min(held).saturating_sub(now).max(1_000);
        net.poll_within(self.me, self.idle.min(next));
    }

    fn release_due(&mut self, now: Nanos) -> bool {
        let all = self.life != Life::Running && !self.keep_held;
        let mut any = false;
        let mut at = 0;
        while at < self.held.len() {
            if all || self.held[at].0 <= now {
                let (_, buf) = self.held.swap_remove(at);
                self.engine.release(buf);
                any = true;
            } else {
                at += 1;
            }
        }
        any
    }

    fn send_due(&mut self, book: &mut MessageBook, now: Nanos) -> bool {
        let mut any = false;
        for _ in 0..8 {
            match self.todo.front() {
                Some(item) if item.at <= now => {}
                _ => break,
            }
            let Some(item) = self.todo.pop_front() else { break };
            if let Err(item) = self.send(item, book) {
                self.todo.push_front(item);
                break;
            }
            any = true;
        }
        any
    }

    /// Sends a message; `Err`: not now.
    pub(crate) fn send(&mut self, item: Item, book: &mut MessageBook) -> Result<(), Item> {
        let known = self.peers[item.dst as usize];
        let (Some(peer), false, Life::Running) = (known.id, known.failed, self.life) else {
            return Ok(());
        };
        // Before or after the message: one that waits for the addresses is no failure.
        let first = self.net.borrow_mut().rng.chance(1, 2);
        if !known.added && first {
            self.add_late(item.dst, peer);
        }
        let sent = self.send_to(peer, item, book);
        if !known.added && !first {
            self.add_late(item.dst, peer);
        }
        sent
    }

    fn send_to(&mut self, peer: PeerId, item: Item, book: &mut MessageBook) -> Result<(), Item> {
        let mut buf: SendBuf<SimSlot> = match self.engine.alloc(item.len) {
            Ok(buf) => buf,
            Err(AllocError::Busy) => {
                self.net.borrow_mut().cover.hit(Hit::AllocBusy);
                return Err(item);
            }
            Err(error) => {
                self.fail(Invariant::L1, format!("alloc of {} bytes: {error}", item.len));
                return Ok(());
            }
        };
        let (id, class) = (book.next_id(), buf.class());
        let seed = self.net.borrow().opt.seed;
        if buf.len() != item.len {
            self.fail(Invariant::S8, format!("a buffer of {} for {}", buf.len(), item.len));
        }
        rng::fill(seed, id, &mut buf);
        let tag = tag_for(class, id);
        let at_once = self.net.borrow_mut().rng.chance(1, 8);
        let taken = match at_once {
            true => self.engine.try_send(peer, tag, buf, id),
            false => self.engine.send(peer, tag, buf, id).map(|_| ()),
        };
        match taken {
            Ok(()) => {
                let (src, dst, len, hops) = (self.me, item.dst, item.len, item.hops);
                book.accepted(Message { src, dst, class, len, tag, hops });
                if let Some(put) = item.notice {
                    book.rma.tells(id, put);
                }
                Ok(())
            }
            Err(error) => {
                self.engine.free(error.buf);
                if matches!(error.kind, SendErrorKind::Busy | SendErrorKind::WouldQueue) {
                    return Err(item);
                }
                if !book.is_disturbed(self.me, item.dst) {
                    self.fail(Invariant::L1, format!("send to {}: {}", item.dst, error.kind));
                }
                Ok(())
            }
        }
    }

    /// Adds a peer that connected by itself: it keeps its id.
    fn add_late(&mut self, rank: u32, id: PeerId) {
        let opt = self.net.borrow().opt.clone();
        let added = self.engine.add_peer(name_of(rank), &addresses(self.me, rank, &opt));
        self.peers[rank as usize].added = true;
        match added {
            Ok(same) if same == id => {}
            other => self.fail(Invariant::S9, format!("added again, rank {rank} is {other:?}")),
        }
    }

    fn on_event(&mut self, event: PortEvent<SimPort>, book: &mut MessageBook, opt: &Options) {
        if self.life == Life::Closed {
            self.fail(Invariant::L5, format!("{event:?} after Closed"));
        }
        match event {
            Event::Message { peer, tag, buf } => self.on_message(peer, tag, buf, book, opt),
            Event::Sent { cookie, buf, result, .. } => {
                self.note("sent", cookie, u64::from(result.is_ok()));
                if let Err(found) = book.sent(cookie, self.me, result.is_ok()) {
                    let cause = result.err().map_or(String::new(), |e| e.to_string());
                    self.fail(found.invariant, format!("{} {cause}", found.what));
                }
                match buf {
                    Some(buf) => self.engine.free(buf),
                    None => self.fail(Invariant::S6, format!("send {cookie} lost its buffer")),
                }
            }
            Event::PeerConnected { peer, name } => {
                self.note("peer-connected", u64::from(name.rank), 0);
                if self.rank_of(peer) != Some(name.rank) {
                    self.fail(Invariant::S9, format!("{name} connected with another id"));
                }
            }
            Event::NewPeer { peer, name } => {
                self.net.borrow_mut().cover.hit(Hit::NewPeer);
                let known = &mut self.peers[name.rank as usize];
                if known.id.is_some() && !known.failed && self.life == Life::Running {
                    self.fail(Invariant::S9, format!("{name} is new, but it was known"));
                } else {
                    *known = Known { id: Some(peer), ..Known::default() };
                }
            }
            Event::PeerFailed { peer, fault } => {
                let rank = self.rank_of(peer).unwrap_or(self.me);
                self.note("peer-failed", u64::from(rank), 0);
                self.net.borrow_mut().cover.hit(Hit::PeerFailed);
                if let Some(hit) = Hit::for_fault(&fault.kind) {
                    self.net.borrow_mut().cover.hit(hit);
                }
                let known = &mut self.peers[rank as usize];
                if known.removed {
                    return;
                }
                if std::mem::replace(&mut known.failed, true) {
                    self.fail(Invariant::S9, format!("a second failure: {fault}"));
                } else if !book.is_disturbed(self.me, rank) {
                    self.fail(Invariant::S9, format!("no cause for: {fault}"));
                }
            }
            Event::Done { cookie, memory, result, .. } => {
                self.note("done", cookie, u64::from(result.is_ok()));
                self.on_done(cookie, memory, result, book);
            }
            Event::Fenced { cookie, result, .. } => {
                self.note("fenced", cookie, u64::from(result.is_ok()));
                self.on_fenced(cookie, result, book);
            }
            Event::Closed => {
                self.note("closed", 0, 0);
                self.life = Life::Closed;
                self.keep_held = false;
            }
        }
    }

    fn note(&self, what: &'static str, a: u64, b: u64) {
        let mut net = self.net.borrow_mut();
        let now = net.now;
        net.trace.note(now, what, u64::from(self.me), a, b);
    }

    fn on_message(
        &mut self,
        peer: PeerId,
        tag: u8,
        buf: RecvBuf<SimSlot>,
        book: &mut MessageBook,
        opt: &Options,
    ) {
        let Some(src) = self.rank_of(peer) else {
            self.fail(Invariant::S9, "a message of a peer nobody knows".to_owned());
            self.engine.release(buf);
            return;
        };
        let broken = self.net.borrow().check.broken_by_peer(self.last_polled());
        if let Some(what) = broken {
            self.fail(Invariant::S12, format!("a message of rank {src} after {what}"));
        }
        if self.peers[src as usize].failed && !self.peers[src as usize].removed {
            self.fail(Invariant::S9, format!("a message of rank {src} after its failure"));
        }
        self.note("message", u64::from(src), buf.len() as u64);
        if src == self.me {
            self.net.borrow_mut().cover.hit(Hit::Oneself);
        }
        let trusted = self.net.borrow().hosts[src as usize].trick.is_none();
        match book.delivered(src, self.me, tag, &buf) {
            Err(_) if !trusted => {}
            Err(found) => self.fail(found.invariant, found.what),
            Ok(message) if message.hops > 0 => {
                // From inside the receive callback: the buffer is not released yet.
                let (at, len, hops) = (self.now(), message.len, message.hops - 1);
                let answer = Item { at, dst: src, len, hops, notice: None };
                if let Err(answer) = self.send(answer, book) {
                    self.todo.push_front(answer);
                }
            }
            Ok(_) => self.check_notice(book.delivered_last(), book),
        }
        let hold = opt.hold > 0 && self.net.borrow_mut().rng.chance(1, opt.hold);
        if hold && self.life == Life::Running {
            let until = self.now() + self.net.borrow_mut().rng.delay(opt.hold_for);
            self.held.push((until, buf));
        } else {
            self.engine.release(buf);
        }
    }

    /// Starts the close.
    pub(crate) fn close(&mut self, opt: &Options) {
        if self.life != Life::Running {
            return;
        }
        let now = self.now();
        self.life = Life::Closing(now);
        self.keep_held = self.net.borrow_mut().rng.chance(1, 4);
        self.todo.clear();
        self.rma_todo.clear();
        if opt.remove_first {
            for known in &self.peers {
                known.id.into_iter().for_each(|id| self.engine.remove_peer(id));
            }
        }
        self.engine.close(now);
        self.note("close", 0, 0);
        self.net.borrow_mut().wake(self.me);
    }

    /// Compares the engine's credits with what the checker counted: `usable` sends, `untold`
    /// receives.
    pub(crate) fn compare(&self, other: u32, class: u8, usable: Option<u64>, untold: Option<u64>) {
        let Some(peer) = self.peers[other as usize].id else { return };
        let Some((owed, credits)) = self.engine.credits(peer, class) else {
            self.fail(Invariant::L4, format!("no lane {class} to rank {other} at rest"));
            return;
        };
        let (owed, credits) = (u64::from(owed), u64::from(credits));
        if usable.is_some_and(|n| n != credits) || untold.is_some_and(|n| n != owed) {
            let what = format!(
                "lane {class} to rank {other}: engine has {credits} credits and owes {owed}, \
                 the checker counted {usable:?} and {untold:?}"
            );
            self.fail(Invariant::S4, what);
        }
    }

    /// Whether the engine makes lanes, or is about to close some.
    pub(crate) fn is_connecting(&self) -> bool {
        let gauges = self.engine.gauges();
        gauges.connecting > 0 || gauges.hangups > 0
    }

    /// Adds the engine's own counters to the coverage.
    pub(crate) fn count(&self) {
        let stats = self.engine.stats();
        let cover = &mut self.net.borrow_mut().cover;
        let stalls = &stats.stalls;
        for (hit, n) in [
            (Hit::StallConnect, stalls.connect),
            (Hit::StallBehind, stalls.behind),
            (Hit::StallGate, stalls.gate),
            (Hit::StallCredit, stalls.credit),
            (Hit::StallLastCredit, stalls.last_credit),
            (Hit::StallSendQueue, stalls.send_queue),
            (Hit::StallDevice, stalls.device),
            (Hit::StallReads, stalls.reads),
            (Hit::StallFence, stalls.fence),
            (Hit::CreditAlone, stats.credit_only_sent),
            (Hit::CreditElsewhere, stats.credits_on_first_lane),
            (Hit::RecvRefused, stats.receives_refused),
            (Hit::Recovered, stats.recoveries),
            (Hit::Resent, stats.retransmitted),
            (Hit::ComeAgain, stats.duplicates),
            (Hit::AckAlone, stats.acks_alone),
        ] {
            cover.add(hit, n);
        }
    }

    /// A step of the CM side.
    pub(crate) fn cm_step(&mut self, ev: Ev) {
        self.cm.step(ev);
    }
}

fn config_for(me: u32, opt: &Options) -> Config {
    let mut config = Config::new(name_of(me), JOB);
    config.lanes = opt.lanes.clone();
    for (lane, depth) in config.lanes.iter_mut().zip(&opt.depths[me as usize]) {
        lane.depth = *depth;
    }
    config.t_conn = opt.t_conn;
    config.t_give_up = match opt.has_failures() {
        false => 3600 * SECOND,
        true => 60 * SECOND,
    };
    // A process that stands still says no Hello.
    let pauses = opt.faults.iter().any(|fault| matches!(fault, Fault::Pause(..)));
    config.t_first = if pauses { 200 * SECOND } else { 30 * SECOND };
    config.rma_ops = RMA_OPS;
    config.rma_reads = opt.max_reads as u8;
    config.credit_route = if me + 1 == opt.ranks { opt.last_route } else { opt.route };
    // The models know no devices: what may go wrong is what is tried.
    config.force_credit_route = true;
    config.max_accepting = opt.max_accepting;
    config.max_unknown = opt.max_unknown;
    config.recover = opt.recover[me as usize].then(|| Recovery {
        attempts: 1_000,
        t_recover: 600 * SECOND,
        ..Recovery::default()
    });
    if let Some(sabotage) = opt.sabotage {
        config.sabotage = sabotage.switch();
    }
    config
}

fn addresses(me: u32, peer: u32, opt: &Options) -> Vec<SocketAddr> {
    let right = addr_of(peer);
    match opt.cm.bad_address_first {
        None => vec![right],
        Some(BadAddress::Nobody) => vec![nowhere(), right],
        Some(BadAddress::OtherRank) => {
            let other = (0..opt.ranks).find(|rank| *rank != me && *rank != peer);
            vec![other.map_or(right, addr_of), right]
        }
    }
}
