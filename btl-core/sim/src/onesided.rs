//! Puts, gets, atomics and fences of the ranks, and the book about them (S8, S13): what was put is compared with what the
//! peer has when a message tells of it, or a fence ends.
use crate::check::{Invariant, Violation};
use crate::cover::Hit;
use crate::options::Options;
use crate::rank::{Life, Rank};
use crate::rma::SimMemory;
use crate::rng::{self, Rng};
use crate::sabotage::Sabotage;
use crate::workload::Item;
use btl_core::error::{FaultKind, PeerFault};
use btl_core::rma::{Atomic, RemoteRange, RmaErrorKind};
use btl_core::{Nanos, PeerId};
use std::collections::{BTreeMap, BTreeSet};

use crate::messages::MessageBook;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// So many bytes; whether the message that tells of it waits for the end of the put.
    Put(usize, bool),
    Get(usize),
    Add,
    Fence,
}

/// An operation to be started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    at: Nanos,
    dst: u32,
    what: What,
}

/// An operation that the engine took.
#[derive(Clone, Copy, Debug)]
struct Op {
    src: u32,
    dst: u32,
    what: What,
    /// At the peer.
    range: RemoteRange,
    ended: bool,
    failed: bool,
}

/// All operations of a run; the numbers are the engines' cookies.
#[derive(Debug, Default)]
pub struct RmaBook {
    ops: Vec<Op>,
    open: u64,
    /// Which put a message tells of.
    notices: BTreeMap<u64, u64>,
    /// Old values of each counter that came back, and what was added for sure.
    olds: BTreeMap<u32, BTreeSet<u64>>,
    added: BTreeMap<u32, u64>,
    /// Puts that their target has taken notice of, and used the memory for something else since.
    used: BTreeMap<u64, RemoteRange>,
    counters: BTreeMap<u32, RemoteRange>,
}

/// What the operations of a rank are, in order of time.
pub(crate) fn draw(opt: &Options, me: u32) -> Vec<Plan> {
    let rng = &mut Rng::new(rng::mix(opt.seed ^ 0x706c_616e) ^ u64::from(me));
    let aside = opt.sabotage == Some(Sabotage::PutsAside);
    let mut plan: Vec<Plan> = (0..opt.rma / u64::from(opt.ranks))
        .map(|_| {
            let step = rng.range(1, u64::from(opt.ranks) - 1) as u32;
            let len = match rng.below(4) {
                0 => rng.range(1, 32),
                1 => rng.range(1, 3000),
                _ => rng.range(1, 700),
            } as usize;
            let what = match rng.below(8) {
                0..=3 => What::Put(len, aside || rng.chance(1, 2)),
                4 | 5 => What::Get(len),
                6 => What::Add,
                // A fence is about lane 0, and puts are not there.
                _ if aside => What::Add,
                _ => What::Fence,
            };
            Plan { at: rng.log_range(1, 50_000_000), dst: (me + step) % opt.ranks, what }
        })
        .collect();
    plan.sort_by_key(|it| it.at);
    plan
}

/// The bytes of a put or get.
fn bytes(seed: u64, id: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng::fill(seed ^ 0x7075_7473, id, &mut bytes);
    bytes
}

impl RmaBook {
    fn next_id(&self) -> u64 {
        self.ops.len() as u64
    }

    /// Operations that did not end.
    pub fn open(&self) -> u64 {
        self.open
    }

    fn accepted(&mut self, op: Op) {
        self.ops.push(op);
        self.open += 1;
    }

    /// An operation ended.
    fn ended(&mut self, id: u64, src: u32, well: bool) -> Result<Op, Violation> {
        let bad = |what| Violation { invariant: Invariant::S8, what };
        let Some(op) = self.ops.get_mut(id as usize) else {
            return Err(bad(format!("operation {id}, which there is not, ended")));
        };
        if op.ended || op.src != src {
            return Err(bad(format!("operation {id} of rank {src} ended again")));
        }
        (op.ended, op.failed) = (true, !well);
        self.open -= 1;
        Ok(*op)
    }

    /// The rank is dead: nothing of it ends any more.
    pub fn bury(&mut self, rank: u32) {
        for op in self.ops.iter_mut().filter(|op| op.src == rank && !op.ended) {
            (op.ended, op.failed) = (true, true);
            self.open -= 1;
        }
    }

    /// A message is to tell of a put.
    pub(crate) fn tells(&mut self, message: u64, put: u64) {
        self.notices.insert(message, put);
    }

    /// The put that a message told of: number, source, and where.
    fn told_by(&self, message: u64) -> Option<(u64, u32, RemoteRange)> {
        let put = *self.notices.get(&message)?;
        self.ops.get(put as usize).map(|op| (put, op.src, op.range))
    }

    /// Puts from one rank to another that were taken before a fence.
    fn puts_before(&self, fence: u64, src: u32, dst: u32) -> Vec<(u64, RemoteRange)> {
        let before = self.ops.iter().enumerate().take(fence as usize);
        let is = |op: &Op| {
            (op.src, op.dst) == (src, dst) && matches!(op.what, What::Put(..)) && !op.failed
        };
        before.filter(|(_, op)| is(op)).map(|(id, op)| (id as u64, op.range)).collect()
    }
}

impl Rank {
    /// Starts the operations that are due.
    pub(crate) fn start_rma(&mut self, book: &mut MessageBook, now: Nanos) -> bool {
        let mut any = false;
        for _ in 0..4 {
            match self.rma_todo.front() {
                Some(plan) if plan.at <= now => {}
                _ => break,
            }
            let Some(plan) = self.rma_todo.pop_front() else { break };
            if !self.start_one(plan, book) {
                self.rma_todo.push_front(plan);
                break;
            }
            any = true;
        }
        any
    }

    /// When the next operation is due.
    pub(crate) fn next_rma(&self, now: Nanos) -> Nanos {
        self.rma_todo.front().filter(|plan| plan.at > now).map_or(Nanos::MAX, |plan| plan.at)
    }

    /// `false`: not now.
    fn start_one(&mut self, plan: Plan, book: &mut MessageBook) -> bool {
        let known = self.peers[plan.dst as usize];
        let (Some(peer), true, false) = (known.id, known.added, known.failed) else { return true };
        if self.life != Life::Running {
            return true;
        }
        let id = book.rma.next_id();
        let (range, taken) = self.give(plan, peer, id, book);
        match taken {
            Ok(()) => {
                let (src, dst, what) = (self.me, plan.dst, plan.what);
                book.rma.accepted(Op { src, dst, what, range, ended: false, failed: false });
                if let What::Put(_, false) = what {
                    self.tell_of(id, dst, book);
                }
                true
            }
            Err(RmaErrorKind::Busy) => false,
            Err(RmaErrorKind::NotSupported { what: "atomics" })
                if self.net.borrow().opt.model.is_iwarp() && plan.what == What::Add =>
            {
                true
            }
            Err(kind) => {
                if !book.is_disturbed(self.me, plan.dst) {
                    self.fail(Invariant::L1, format!("{plan:?}: {kind}"));
                }
                true
            }
        }
    }

    /// Gives an operation to the engine.
    fn give(
        &mut self,
        plan: Plan,
        peer: PeerId,
        id: u64,
        book: &mut MessageBook,
    ) -> (RemoteRange, Result<(), RmaErrorKind>) {
        let (dst, here) = (plan.dst as usize, self.me as usize);
        let seed = self.net.borrow().opt.seed;
        let nowhere = RemoteRange { addr: 0, len: 0, rkey: 0 };
        let share = |bytes: &[u8]| self.net.borrow_mut().hosts[dst].shared.share(plan.dst, bytes);
        let lend = |bytes| self.net.borrow_mut().hosts[here].shared.lend(bytes);
        let (range, memory, len) = match plan.what {
            What::Fence => {
                let taken = self.engine.fence(peer, id).map(|_| ()).map_err(|e| e.kind);
                return (nowhere, taken);
            }
            What::Put(len, _) => (share(&vec![0; len]), lend(bytes(seed, id, len)), len),
            What::Get(len) => (share(&bytes(seed, id, len)), lend(vec![0; len]), len),
            What::Add => {
                let counter = book.rma.counters.entry(plan.dst);
                (*counter.or_insert_with(|| share(&[0; 8])), lend(vec![0; 8]), 8)
            }
        };
        let len = len as u64;
        let taken = match plan.what {
            What::Put(..) => self.engine.put(peer, memory, len, range, id),
            What::Get(_) => self.engine.get(peer, memory, len, range, id),
            _ => self.engine.atomic(peer, memory, range, Atomic::FetchAdd { add: 1 }, id),
        };
        let taken = taken.map(|_| ()).map_err(|error| {
            self.bring_home(&error.memory);
            error.kind
        });
        (range, taken)
    }

    fn bring_home(&self, memory: &SimMemory) {
        let mut net = self.net.borrow_mut();
        let home = net.hosts[self.me as usize].shared.home(memory);
        net.own(home);
    }

    /// Sends the message that tells of a put; it travels on lane 0.
    fn tell_of(&mut self, put: u64, dst: u32, book: &mut MessageBook) {
        let (at, len) = (self.net.borrow().now, (put % 64) as usize);
        let item = Item { at, dst, len, hops: 0, notice: Some(put) };
        if let Err(item) = self.send(item, book) {
            self.todo.push_front(item);
        }
    }

    /// A put, get or atomic ended.
    pub(crate) fn on_done(
        &mut self,
        id: u64,
        memory: Option<SimMemory>,
        result: Result<(), PeerFault>,
        book: &mut MessageBook,
    ) {
        let Some(op) = self.on_end(id, &result, book) else { return };
        let Some(memory) = memory else {
            self.fail(Invariant::S6, format!("operation {id} lost its memory"));
            return;
        };
        self.bring_home(&memory);
        if result.is_err() {
            return;
        }
        let seed = self.net.borrow().opt.seed;
        let hit = match op.what {
            What::Put(_, wait) => {
                let known = self.net.borrow().opt.recovers(self.me, op.dst);
                if known && self.trusts(self.me) && !book.is_disturbed(self.me, op.dst) {
                    self.check_put((id, op.range), op.dst, "it ends", Invariant::S14, book);
                }
                if wait {
                    self.tell_of(id, op.dst, book);
                }
                Hit::Put
            }
            What::Get(len) => {
                if memory.bytes != bytes(seed, id, len) {
                    self.fail(Invariant::S8, format!("get {id} has the wrong bytes"));
                }
                Hit::Got
            }
            What::Add | What::Fence => {
                let old = u64::from_ne_bytes(memory.bytes[..8].try_into().unwrap_or_default());
                *book.rma.added.entry(op.dst).or_default() += 1;
                if !book.rma.olds.entry(op.dst).or_default().insert(old) {
                    self.fail(Invariant::S8, format!("two atomics found {old} at {}", op.dst));
                }
                Hit::Counted
            }
        };
        self.net.borrow_mut().cover.hit(hit);
    }

    /// A fence ended: what was put before it is there.
    pub(crate) fn on_fenced(
        &mut self,
        id: u64,
        result: Result<(), PeerFault>,
        book: &mut MessageBook,
    ) {
        let Some(op) = self.on_end(id, &result, book) else { return };
        if result.is_ok() && self.trusts(self.me) {
            self.net.borrow_mut().cover.hit(Hit::Fenced);
            for (put, range) in book.rma.puts_before(id, self.me, op.dst) {
                self.check_put((put, range), op.dst, "a fence ends", Invariant::S13, book);
            }
        }
    }

    fn on_end(
        &mut self,
        id: u64,
        result: &Result<(), PeerFault>,
        book: &mut MessageBook,
    ) -> Option<Op> {
        let op = match book.rma.ended(id, self.me, result.is_ok()) {
            Ok(op) => op,
            Err(found) => {
                self.fail(found.invariant, found.what);
                return None;
            }
        };
        if let Err(fault) = result {
            self.net.borrow_mut().cover.hit(Hit::RmaFailed);
            let recovers = self.net.borrow().opt.recovers(self.me, op.dst);
            if recovers && op.what == What::Add && fault.kind == FaultKind::AtomicUnknown {
                self.net.borrow_mut().cover.hit(Hit::AtomicUnknown);
            } else if !book.is_disturbed(self.me, op.dst) {
                self.fail(Invariant::L1, format!("operation {id} failed: {fault}"));
            }
        }
        Some(op)
    }

    /// A message was delivered here that may tell of a put.
    pub(crate) fn check_notice(&self, message: u64, book: &mut MessageBook) {
        if let Some((put, src, range)) = book.rma.told_by(message)
            && self.trusts(src)
        {
            let when = "its message is delivered";
            self.check_put((put, range), self.me, when, Invariant::S13, book);
            if self.net.borrow().opt.recovers(self.me, src) {
                // The memory is ours again, and nobody else writes to it.
                self.net.borrow_mut().hosts[self.me as usize].shared.use_again(range);
                book.rma.used.insert(put, range);
            }
        }
    }

    /// Whether a rank's device does not send messages twice, or others than it was given.
    fn trusts(&self, rank: u32) -> bool {
        self.net.borrow().hosts[rank as usize].trick.is_none()
    }

    fn check_put(
        &self,
        (put, range): (u64, RemoteRange),
        dst: u32,
        when: &str,
        invariant: Invariant,
        book: &MessageBook,
    ) {
        if book.rma.used.contains_key(&put) {
            return;
        }
        let missing = {
            let net = self.net.borrow();
            let wanted = bytes(net.opt.seed, put, range.len as usize);
            let there = net.hosts[dst as usize].shared.look(range);
            wanted.iter().zip(there).filter(|(a, b)| a != b).count()
        };
        if missing > 0 {
            let what = format!("{missing} of {} bytes of put {put} miss when {when}", range.len);
            self.fail(invariant, what);
        }
    }
}

impl MessageBook {
    /// At the end: memory that its owner has used since it was told of a put was not written to again.
    pub(crate) fn check_used(&self, is_intact: impl Fn(u32, RemoteRange) -> bool) -> Vec<String> {
        let bad = |(put, range): (&u64, &RemoteRange)| {
            let op = self.rma.ops.get(*put as usize)?;
            let what = format!("put {put} was made again after rank {} was told of it", op.dst);
            (!is_intact(op.dst, *range)).then_some(what)
        };
        self.rma.used.iter().filter_map(bad).collect()
    }

    /// At the end: no addition was lost, and none made twice.
    pub(crate) fn check_counters(&self, counter: impl Fn(u32, RemoteRange) -> u64) -> Vec<String> {
        let mut found = Vec::new();
        for (dst, range) in &self.rma.counters {
            let (now, sure) = (counter(*dst, *range), self.rma.added.get(dst).copied());
            let adds = |op: &&Op| op.dst == *dst && op.what == What::Add;
            let most = self.rma.ops.iter().filter(adds).count() as u64;
            let sure = sure.unwrap_or(0);
            if now < sure || now > most {
                found.push(format!("the counter of rank {dst} is {now}, not {sure} to {most}"));
            }
        }
        found
    }
}
