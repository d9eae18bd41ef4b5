//! One process with several rails, and the application on top.
use super::book::{Book, Put};
use super::{PAUSE, RailsOptions};
use crate::check::Invariant;
use crate::cm::{CmSide, JOB, addr_of, name_of, nowhere};
use crate::cover::Hit;
use crate::port::{Link, SharedNet, SimCm, SimPort};
use crate::rma::SimMemory;
use btl_core::rails::{
    Part, PartDone, PartsErrorKind, Rail, RailFault, Rails, RailsEvent, RailsPeer, RailsPortEvent,
    RailsSendErrorKind, Received,
};
use btl_core::{Config, Engine, Nanos, SECOND};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// What to do: bytes of a message or put for a process.
#[derive(Clone, Copy, Debug)]
struct Item {
    at: Nanos,
    dst: u32,
    len: usize,
    put: bool,
    /// The put that the message tells of.
    notice: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Closing(Nanos),
    Closed,
}

pub(super) struct Process {
    pub(super) me: u32,
    net: SharedNet,
    processes: u32,
    pub(super) rails: Rails<SimPort, SimCm>,
    /// By rail.
    pub(super) cms: Vec<CmSide>,
    pub(super) links: Vec<Rc<RefCell<Link>>>,
    peers: Vec<Option<RailsPeer>>,
    todo: VecDeque<Item>,
    held: Vec<(Nanos, Received<crate::slots::SimSlot>)>,
    pub(super) life: Life,
    idle: Nanos,
}

/// Longest pause between two polls of an idle process.
const IDLE_MAX: Nanos = 50_000_000;

impl Process {
    pub(super) fn new(me: u32, net: &SharedNet, opt: &RailsOptions) -> Process {
        let (mut rails, mut cms, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (rail, (bandwidth, latency)) in opt.speeds.iter().copied().enumerate() {
            let host = rail as u32 * opt.processes + me;
            let config = config_for(me, opt);
            let link: Rc<RefCell<Link>> = Rc::default();
            cms.push(CmSide::new(host, net, &link, &config));
            let port = SimPort { net: Rc::clone(net), rank: host };
            let cm = SimCm { net: Rc::clone(net), rank: host, link: Rc::clone(&link) };
            links.push(link);
            let engine = match Engine::new(config, port, cm) {
                Ok(engine) => engine,
                Err(error) => panic!("the simulator draws only valid settings: {error}"),
            };
            rails.push(Rail { label: format!("sim{rail}"), engine, bandwidth, latency });
        }
        let rails = match Rails::new(opt.config.clone(), rails) {
            Ok(rails) => rails,
            Err(error) => panic!("the simulator draws only valid settings: {error}"),
        };
        Process {
            me,
            net: Rc::clone(net),
            processes: opt.processes,
            rails,
            cms,
            links,
            peers: vec![None; opt.processes as usize],
            todo: draw_plan(me, net, opt),
            held: Vec::new(),
            life: Life::Running,
            idle: 0,
        }
    }

    fn host(&self, rail: usize, process: u32) -> u32 {
        rail as u32 * self.processes + process
    }

    /// Tells the rails who their peers are.
    pub(super) fn start(&mut self, opt: &RailsOptions) {
        for other in 0..opt.processes {
            if other != self.me && !(opt.one_sided && other < self.me) {
                self.add(other, opt);
            }
        }
        self.net.borrow_mut().poll_within(self.me, 0);
    }

    fn add(&mut self, other: u32, opt: &RailsOptions) {
        let addrs: Vec<_> = (0..opt.rails)
            .map(|rail| match opt.nobody == Some(rail) {
                true => vec![nowhere()],
                false => vec![addr_of(self.host(rail as usize, other))],
            })
            .collect();
        match self.rails.add_peer(name_of(other), &addrs) {
            Ok(id) => self.peers[other as usize] = Some(id),
            Err(error) => self.fail(Invariant::L1, format!("add_peer: {error}")),
        }
    }

    pub(super) fn fail(&self, invariant: Invariant, what: String) {
        let what = format!("process {}: {what}", self.me);
        self.net.borrow_mut().fail(invariant, what);
    }

    fn note(&self, what: &'static str, a: u64, b: u64) {
        let mut net = self.net.borrow_mut();
        let now = net.now;
        net.trace.note(now, what, u64::from(self.me), a, b);
    }

    pub(super) fn is_done(&self) -> bool {
        self.todo.is_empty() && self.held.is_empty()
    }

    /// One turn of the application: a few polls, then what it wants to send and release.
    pub(super) fn turn(&mut self, book: &mut Book, opt: &RailsOptions, calm: bool) {
        let now = self.net.borrow().now;
        let budget = self.net.borrow_mut().rng.range(1, 16);
        let mut busy = false;
        for _ in 0..budget {
            let Some(event) = self.rails.poll(now) else {
                busy = false;
                break;
            };
            busy = true;
            self.on_event(event, book, opt);
        }
        busy |= self.release_due(now);
        busy |= self.work_due(book, now);
        self.next_turn(busy, opt, calm, now);
    }

    fn next_turn(&mut self, busy: bool, opt: &RailsOptions, calm: bool, now: Nanos) {
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        if !calm && opt.net.compute > 0 && net.rng.chance(1, opt.net.compute) {
            for rail in 0..opt.rails {
                let host = rail * self.processes + self.me;
                net.hosts[host as usize].computing = now + opt.net.compute_for;
            }
        }
        if busy {
            self.idle = 0;
            net.wake(self.me);
            return;
        }
        self.idle = (self.idle * 2).clamp(2_000, IDLE_MAX);
        // An item that is due already waits for something that wakes the process.
        let later = self.todo.front().filter(|item| item.at > now);
        let due = later.map_or(Nanos::MAX, |item| item.at);
        let held = self.held.iter().map(|(at, _)| *at).min().unwrap_or(Nanos::MAX);
        let next = due.min(held).saturating_sub(now).max(1_000);
        net.poll_within(self.me, self.idle.min(next));
    }

    fn release_due(&mut self, now: Nanos) -> bool {
        let all = self.life != Life::Running;
        let mut any = false;
        while let Some(at) = self.held.iter().position(|(at, _)| all || *at <= now) {
            let (_, data) = self.held.swap_remove(at);
            self.rails.release(data);
            any = true;
        }
        any
    }

    fn work_due(&mut self, book: &mut Book, now: Nanos) -> bool {
        let mut any = false;
        for _ in 0..8 {
            let Some(item) = self.todo.front().copied().filter(|item| item.at <= now) else {
                break;
            };
            self.todo.pop_front();
            let done = match item.put {
                true => self.put(item, book),
                false => self.send(item, book),
            };
            if !done {
                self.todo.push_front(item);
                break;
            }
            any = true;
        }
        any
    }

    /// `false`: not now.
    fn send(&mut self, item: Item, book: &mut Book) -> bool {
        let Some(peer) = self.peers[item.dst as usize] else { return true };
        let (id, notice) = (book.next_id(), item.notice);
        let data = book.payload(item.len, notice);
        let tag = book.tag(id, notice.is_some());
        match self.rails.send(peer, tag, data, id) {
            Ok(()) => book.accepted(self.me, item.dst, item.len, notice),
            Err(error) => match error.kind {
                RailsSendErrorKind::Busy { .. } => return false,
                // The event that says so is behind others.
                RailsSendErrorKind::Failed(_) => {}
                kind if !book.has_failed(self.me, item.dst) => {
                    self.fail(Invariant::L1, format!("send to {}: {kind}", item.dst));
                }
                _ => {}
            },
        }
        true
    }

    /// A put in one or two parts.
    fn put(&mut self, item: Item, book: &mut Book) -> bool {
        let Some(peer) = self.peers[item.dst as usize] else { return true };
        let id = book.puts.len() as u64;
        let rails = self.rails.rails();
        let (mut parts, mut places, mut left) = (Vec::new(), Vec::new(), item.len);
        for n in 0..2 {
            let len = match n {
                0 => self.net.borrow_mut().rng.range(1, left as u64) as usize,
                _ => left,
            };
            if len == 0 {
                continue;
            }
            left -= len;
            let rail = self.net.borrow_mut().rng.below(rails as u64) as usize;
            let (here, there) = (self.host(rail, self.me), self.host(rail, item.dst));
            let bytes = book.put_bytes(id, parts.len(), len);
            let mut net = self.net.borrow_mut();
            let remote = net.hosts[there as usize].shared.share(there, &vec![0; len]);
            let memory = net.hosts[here as usize].shared.lend(bytes);
            places.push((there, remote));
            parts.push(Part { rail, memory, len: len as u64, remote });
        }
        let (src, dst) = (self.me, item.dst);
        book.puts.push(Put { src, dst, parts: places, over: false });
        if let Err(error) = self.rails.put(peer, parts, id) {
            for part in &error.parts {
                self.home(part.rail, &part.memory);
            }
            book.puts[id as usize].over = true;
            // As with a message.
            if !matches!(error.kind, PartsErrorKind::Failed(_)) && !book.has_failed(src, dst) {
                self.fail(Invariant::L1, format!("put to {dst}: {error}"));
            }
        }
        true
    }

    fn home(&self, rail: usize, memory: &SimMemory) {
        let host = self.host(rail, self.me);
        let home = self.net.borrow_mut().hosts[host as usize].shared.home(memory);
        self.net.borrow_mut().own(home);
    }

    fn process_of(&self, peer: RailsPeer) -> Option<u32> {
        self.peers.iter().position(|known| *known == Some(peer)).map(|at| at as u32)
    }

    fn on_event(&mut self, event: RailsPortEvent<SimPort>, book: &mut Book, opt: &RailsOptions) {
        if self.life == Life::Closed {
            self.fail(Invariant::L5, format!("{event:?} after Closed"));
        }
        match event {
            RailsEvent::Message { peer, tag, data } => self.on_message(peer, tag, data, book, opt),
            RailsEvent::Sent { cookie, data, result, .. } => {
                self.note("rails-sent", cookie, u64::from(result.is_ok()));
                // The report of the peer comes after those of its messages.
                if let Err(fault) = &result
                    && let Some(dst) = (0..self.processes).find(|p| name_of(*p) == fault.peer)
                {
                    self.failed(dst, &fault.to_string(), book, opt);
                }
                if let Err(found) = book.ended(cookie, &data, result.is_ok()) {
                    self.fail(found.invariant, found.what);
                }
            }
            RailsEvent::Done { cookie, parts, .. } => self.on_done(cookie, parts, book),
            RailsEvent::NewPeer { peer, name } => {
                self.net.borrow_mut().cover.hit(Hit::NewPeer);
                let known = self.peers[name.rank as usize].replace(peer);
                if known.is_some() {
                    self.fail(Invariant::S9, format!("{name} is new, but it was known"));
                }
                if self.life == Life::Running {
                    self.add(name.rank, opt);
                }
            }
            RailsEvent::RailUp { rail, .. } => self.note("rail-up", rail as u64, 0),
            RailsEvent::RailDown { rail, fault, moved, .. } => {
                let stalled = matches!(fault, RailFault::Stalled { .. });
                self.note("rail-down", rail as u64, u64::from(moved));
                if opt.faults.is_empty() && opt.nobody.is_none() {
                    self.fail(Invariant::S9, format!("rail {rail}: no cause for: {fault}"));
                }
                let mut net = self.net.borrow_mut();
                net.cover.hit(Hit::RailDown);
                net.cover.add(Hit::RailStalled, u64::from(stalled));
                net.cover.add(Hit::RailMoved, u64::from(moved));
            }
            RailsEvent::PeerLeft { peer } => {
                let left = self.process_of(peer);
                self.note("peer-left", left.unwrap_or(99).into(), 0);
            }
            RailsEvent::PeerFailed { peer, fault } => match self.process_of(peer) {
                Some(other) => self.failed(other, &fault.to_string(), book, opt),
                None => self.fail(Invariant::S9, "a peer nobody knows failed".to_owned()),
            },
            RailsEvent::Closed => {
                self.note("closed", 0, 0);
                self.life = Life::Closed;
            }
        }
    }

    fn failed(&self, other: u32, why: &str, book: &mut Book, opt: &RailsOptions) {
        self.note("peer-failed", u64::from(other), 0);
        self.net.borrow_mut().cover.hit(Hit::PeerFailed);
        if !opt.all_rails && self.life == Life::Running {
            self.fail(Invariant::S9, format!("a rail is sound, but {why}"));
        }
        book.fail(self.me, other);
    }

    fn on_message(
        &mut self,
        peer: RailsPeer,
        tag: u8,
        data: Received<crate::slots::SimSlot>,
        book: &mut Book,
        opt: &RailsOptions,
    ) {
        let Some(src) = self.process_of(peer) else {
            self.fail(Invariant::S9, "a message of a peer nobody knows".to_owned());
            return self.rails.release(data);
        };
        self.note("message", u64::from(src), data.len() as u64);
        match book.delivered(src, self.me, tag, &data) {
            Ok(Some(put)) => self.check_put(put, book),
            Ok(None) => {}
            Err(found) => self.fail(found.invariant, found.what),
        }
        let hold = opt.net.hold > 0 && self.net.borrow_mut().rng.chance(1, opt.net.hold);
        if hold && self.life == Life::Running {
            let now = self.net.borrow().now;
            let until = now + self.net.borrow_mut().rng.delay(opt.net.hold_for);
            self.held.push((until, data));
        } else {
            self.rails.release(data);
        }
    }

    /// A message tells of a put: its bytes are there.
    fn check_put(&self, id: u64, book: &Book) {
        for (n, (host, range)) in book.puts[id as usize].parts.iter().enumerate() {
            let want = book.put_bytes(id, n, range.len as usize);
            let there = self.net.borrow().hosts[*host as usize].shared.look(*range) == want;
            if !there {
                let what = format!("put {id} is done, but part {n} of it is not in place");
                self.fail(Invariant::S13, what);
            }
        }
    }

    fn on_done(&mut self, id: u64, parts: Vec<PartDone<SimMemory>>, book: &mut Book) {
        let good = parts.iter().all(|part| part.result.is_ok());
        self.note("rails-done", id, u64::from(good));
        for part in &parts {
            match &part.memory {
                Some(memory) => self.home(part.rail, memory),
                None => self.fail(Invariant::S6, format!("put {id} lost its memory")),
            }
        }
        let put = &mut book.puts[id as usize];
        if std::mem::replace(&mut put.over, true) || put.src != self.me {
            self.fail(Invariant::S8, format!("put {id} ended again"));
        }
        if good && self.life == Life::Running {
            self.net.borrow_mut().cover.hit(Hit::Put);
            let (at, dst) = (self.net.borrow().now, put.dst);
            // First, so that no other message gives the bytes time.
            self.todo.push_front(Item { at, dst, len: 16, put: false, notice: Some(id) });
        }
    }

    /// Starts the close.
    pub(super) fn close(&mut self) {
        if self.life == Life::Running {
            let now = self.net.borrow().now;
            self.life = Life::Closing(now);
            self.todo.clear();
            self.rails.close(now);
            self.note("close", 0, 0);
            self.net.borrow_mut().wake(self.me);
        }
    }
}

fn config_for(me: u32, opt: &RailsOptions) -> Config {
    let mut config = Config::new(name_of(me), JOB);
    config.lanes = opt.net.lanes.clone();
    config.t_conn = opt.net.t_conn;
    config.t_give_up = 60 * SECOND;
    config.rma_ops = 16;
    config.rma_reads = opt.net.max_reads as u8;
    config.max_accepting = opt.net.max_accepting.max(2);
    config.max_unknown = opt.net.max_unknown;
    config
}

fn draw_plan(me: u32, net: &SharedNet, opt: &RailsOptions) -> VecDeque<Item> {
    let mut net = net.borrow_mut();
    let rng = &mut net.rng;
    let (mut at, total) = (0, opt.messages + opt.puts);
    let mut puts = opt.puts;
    (0..total)
        .map(|n| {
            let step = rng.range(1, u64::from(opt.processes) - 1) as u32;
            let dst = (me + step) % opt.processes;
            let put = puts > 0 && rng.chance(puts.into(), (total - n).into());
            puts -= u32::from(put);
            let len = match rng.below(6) {
                0 if !put => 0,
                1 | 2 => rng.range(1, 64),
                3 => rng.range(1, 3000),
                _ if put => rng.range(1, 1500),
                _ => rng.log_range(1, opt.longest),
            };
            at += if rng.chance(1, 2) { 0 } else { rng.delay(PAUSE) };
            Item { at, dst, len: len as usize, put, notice: None }
        })
        .collect()
}
