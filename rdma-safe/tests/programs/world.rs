//! Runs a program and checks each step against the model.

use super::fabric::Fabric;
use super::memory::{Ledger, Watch, Watched};
use super::message::{Messages, Tally};
use super::model::{Alive, Model, Side};
use super::ops::Step;
use rdma_safe::*;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Most completions kept without being redeemed.
const HOARD: usize = 24;
const NOW: Duration = Duration::ZERO;

/// Where a queue pair is.
pub(super) enum Seat {
    Free(Box<QueuePair>),
    /// In the group of that number.
    In(u32, QpKey),
}

pub(super) struct Qp {
    pub(super) serial: u64,
    pub(super) peer: Option<u64>,
    pub(super) seat: Seat,
}

/// A domain or a queue with its number in the model.
type Numbered<T> = (usize, T);

pub(crate) struct World<F> {
    pub(super) qps: Vec<Qp>,
    pub(super) groups: BTreeMap<u32, Numbered<PollGroup>>,
    cqs: Vec<Numbered<CompletionQueue>>,
    pds: Vec<Numbered<ProtectionDomain>>,
    pub(super) pool: Vec<Slot>,
    pub(super) remotes: Vec<RemoteSlot>,
    /// Queue pairs that were given something else than slots.
    pub(super) mixed: BTreeSet<u64>,
    pub(super) wcs: Vec<Wc>,
    events: Option<AsyncEvents>,
    pub(super) model: Model,
    pub(super) messages: Messages,
    /// Who talks to whom, also after one of them is gone.
    pub(super) peers: BTreeMap<u64, u64>,
    next_group: u32,
    pub(super) tally: Tally,
    ledger: Arc<Ledger>,
    watch: Watch,
    pub(super) fabric: F,
}

/// `n` as an index of something with `len` elements.
pub(super) fn pick(n: u8, len: usize) -> Option<usize> {
    (len > 0).then(|| n as usize % len)
}

pub(super) fn remote_address(slot: &RemoteSlot) -> usize {
    usize::try_from(slot.remote().addr).expect("an address of this process")
}

pub(super) fn address(slot: &Slot) -> usize {
    slot.as_ptr().addr()
}

impl<F: Fabric> World<F> {
    pub(crate) fn new(fabric: F, watch: Watch, ledger: Arc<Ledger>) -> World<F> {
        let events = AsyncEvents::new(fabric.context()).ok();
        World {
            qps: Vec::new(),
            groups: BTreeMap::new(),
            cqs: Vec::new(),
            pds: Vec::new(),
            pool: Vec::new(),
            remotes: Vec::new(),
            mixed: BTreeSet::new(),
            wcs: Vec::new(),
            events,
            model: Model::default(),
            messages: Messages::default(),
            peers: BTreeMap::new(),
            next_group: 0,
            tally: Tally::default(),
            ledger,
            watch,
            fabric,
        }
    }

    /// Runs all steps, then ends everything. Says what was done and what is left.
    pub(crate) fn run(mut self, steps: Vec<Step>) -> (Tally, Alive) {
        for step in steps {
            self.step(step);
            self.settled();
        }
        self.finish()
    }

    fn settled(&mut self) {
        self.model.settle(self.fabric.failing());
        if let Some(alive) = self.fabric.alive() {
            assert_eq!(alive, self.model.alive(), "queue pairs, queues, regions, domains");
        }
        let wrong = self.ledger.wrong();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(self.ledger.live(), self.model.alive().2, "buffers that are not freed");
        self.fabric.check();
    }

    /// Gives up everything, in the order of the fields; what is left is what failed ends demand.
    fn finish(mut self) -> (Tally, Alive) {
        self.fabric.heal();
        while !self.qps.is_empty() {
            self.drop_qp(0);
            self.settled();
        }
        for (number, group) in std::mem::take(&mut self.groups).into_values() {
            assert_eq!(group.keys().count(), 0);
            drop(group);
            self.model.cq_dropped(number);
        }
        for (number, cq) in self.cqs.drain(..) {
            drop(cq);
            self.model.cq_dropped(number);
        }
        for (number, pd) in self.pds.drain(..) {
            drop(pd);
            self.model.pd_dropped(number);
        }
        self.settled();
        for slot in self.pool.drain(..) {
            self.model.slot_dropped(address(&slot));
            drop(slot);
        }
        for slot in self.remotes.drain(..) {
            self.model.slot_dropped(remote_address(&slot));
        }
        drop(self.events.take());
        self.settled();
        match self.model.leaks() {
            true => self.tally.programs_with_leaks += 1,
            false => assert_eq!(self.model.alive(), (0, 0, 0, 0)),
        }
        (self.tally, self.model.alive())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::AllocPd | Step::DropPd(_) | Step::CreateCq { .. } | Step::DropCq(_) => {
                self.bases(step);
            }
            Step::Group(_)
            | Step::DropGroup(_)
            | Step::Adopt { .. }
            | Step::Release(_)
            | Step::Remove(_) => self.grouping(step),
            Step::CreateQp { .. }
            | Step::Connect(..)
            | Step::Close(_)
            | Step::DropQp(_)
            | Step::ForgetQp(_)
            | Step::ToError(_)
            | Step::Break(_) => self.queue_pairs(step),
            Step::Slots { pd, size, count } => self.make_slots(pd, size, count),
            Step::RemoteSlots { pd, count } => self.make_remote_slots(pd, count),
            Step::DropSlot(n) => {
                if let Some(i) = pick(n, self.pool.len()) {
                    let slot = self.pool.swap_remove(i);
                    self.model.slot_dropped(address(&slot));
                }
            }
            Step::ForgetSlot(n) => {
                if let Some(i) = pick(n, self.pool.len()) {
                    let slot = self.pool.swap_remove(i);
                    self.model.slot_forgotten(address(&slot));
                    std::mem::forget(slot);
                }
            }
            Step::Progress => self.fabric.progress(),
            Step::Poll { cq, at_most } => self.poll(cq, at_most),
            // Dropping one is the same as forgetting it.
            Step::DropWc(n) => {
                if let Some(i) = pick(n, self.wcs.len()) {
                    self.wcs.swap_remove(i);
                }
            }
            Step::Notify(n) => self.notify(n),
            Step::Inject(fault) => self.fabric.inject(fault),
            Step::Heal => self.fabric.heal(),
            Step::Repeat(n) => self.fabric.repeat(n),
            Step::Garbage(n) => self.fabric.garbage(n),
            Step::AsyncEvent(n) => self.fabric.async_event(n),
            Step::ReadAsync => {
                while let Some(events) = &mut self.events
                    && events.next(NOW).unwrap().is_some()
                {}
            }
            // `self` goes to the other thread and back: it has to be Send, with all it owns.
            Step::Elsewhere(step) => std::thread::scope(|s| {
                let there = || {
                    let _kept = self.fabric.on_thread();
                    self.step(*step);
                };
                let done = s.spawn(there).join();
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }),
            Step::PanicWith { qp, cq, group, slots } => self.panic_with(qp, cq, group, slots),
            other => self.posting(other),
        }
    }

    fn bases(&mut self, step: Step) {
        match step {
            Step::AllocPd => {
                if let Ok(pd) = self.fabric.context().alloc_pd() {
                    let number = self.model.pd_made();
                    self.pds.push((number, pd));
                }
            }
            Step::DropPd(n) => {
                if let Some(i) = pick(n, self.pds.len()) {
                    self.model.pd_dropped(self.pds.swap_remove(i).0);
                }
            }
            Step::CreateCq { depth, with_channel } => {
                let ctx = self.fabric.context();
                let made = match with_channel {
                    true => ctx
                        .completion_channel()
                        .and_then(|channel| ctx.create_cq_with(depth.into(), &channel)),
                    false => ctx.create_cq(depth.into()),
                };
                if let Ok(cq) = made {
                    let number = self.model.cq_made();
                    self.cqs.push((number, cq));
                }
            }
            Step::DropCq(n) => {
                if let Some(i) = pick(n, self.cqs.len()) {
                    self.model.cq_dropped(self.cqs.swap_remove(i).0);
                }
            }
            _ => {}
        }
    }

    fn grouping(&mut self, step: Step) {
        match step {
            Step::Group(n) => {
                if let Some(i) = pick(n, self.cqs.len()) {
                    let (number, cq) = self.cqs.swap_remove(i);
                    self.next_group += 1;
                    self.groups.insert(self.next_group, (number, PollGroup::new(cq)));
                }
            }
            Step::DropGroup(n) => {
                if let Some(i) = pick(n, self.groups.len()) {
                    let (id, (number, group)) = nth(&mut self.groups, i);
                    self.group_gone(id, number);
                    drop(group);
                }
            }
            Step::Adopt { group, qp } => self.adopt(group, qp),
            Step::Release(n) => {
                let Some(i) = pick(n, self.qps.len()) else { return };
                if let Seat::In(g, key) = self.qps[i].seat {
                    let qp = self.groups.get_mut(&g).unwrap().1.release(key);
                    self.qps[i].seat = Seat::Free(Box::new(qp.expect("it is in there")));
                }
            }
            Step::Remove(n) => {
                let Some(i) = pick(n, self.qps.len()) else { return };
                if let Seat::In(g, key) = self.qps[i].seat {
                    let slots = self.groups.get_mut(&g).unwrap().1.remove(key);
                    let serial = self.qps.swap_remove(i).serial;
                    let back = slots.map(|s| s.into_iter().map(Payload::from).collect());
                    // It drops what is no slot.
                    let all = !self.mixed.contains(&serial);
                    self.closed(serial, back, all);
                }
            }
            _ => {}
        }
    }

    fn group_gone(&mut self, id: u32, number: usize) {
        let gone = |q: &Qp| matches!(q.seat, Seat::In(g, _) if g == id);
        for qp in self.qps.extract_if(.., |q| gone(q)) {
            self.model.qp_dropped(qp.serial, self.fabric.failing());
            self.fabric.ended(qp.serial);
        }
        self.model.cq_dropped(number);
    }

    fn adopt(&mut self, group: u8, qp: u8) {
        let (Some(g), Some(i)) = (pick(group, self.groups.len()), pick(qp, self.qps.len())) else {
            return;
        };
        let Seat::Free(_) = self.qps[i].seat else { return };
        let mut record = self.qps.swap_remove(i);
        let Seat::Free(qp) = record.seat else { unreachable!() };
        let (id, (_, group)) = self.groups.iter_mut().nth(g).unwrap();
        let fits = qp.is_on(&group.cq_ref());
        record.seat = match group.adopt(*qp) {
            Ok(key) => {
                assert_eq!((key.serial(), fits), (record.serial, true));
                Seat::In(*id, key)
            }
            Err((qp, _)) => {
                assert!(!fits);
                Seat::Free(Box::new(qp))
            }
        };
        self.qps.push(record);
    }

    fn queue_pairs(&mut self, step: Step) {
        match step {
            Step::CreateQp { pd, send_cq, recv_cq, send_depth, recv_depth } => {
                self.create_qp(pd, [send_cq, recv_cq], [send_depth, recv_depth]);
            }
            Step::Connect(a, b) => self.connect(a, b),
            Step::Close(n) => {
                let Some(i) = pick(n, self.qps.len()) else { return };
                if let Seat::Free(_) = self.qps[i].seat {
                    let record = self.qps.swap_remove(i);
                    let Seat::Free(qp) = record.seat else { unreachable!() };
                    let back = qp.close_payloads();
                    self.closed(record.serial, back, true);
                }
            }
            Step::DropQp(n) => {
                if let Some(i) = pick(n, self.qps.len()) {
                    self.drop_qp(i);
                }
            }
            Step::ForgetQp(n) => {
                let Some(i) = pick(n, self.qps.len()) else { return };
                let record = self.qps.swap_remove(i);
                match record.seat {
                    Seat::Free(qp) => std::mem::forget(*qp),
                    Seat::In(g, key) => {
                        std::mem::forget(self.groups.get_mut(&g).unwrap().1.release(key));
                    }
                }
                self.model.qp_forgotten(record.serial);
            }
            Step::ToError(n) => {
                // The modify may fail; the state does not depend on it.
                self.with_qp(n, |qp, _| {
                    let _ = qp.to_error();
                    assert_eq!(qp.state(), QpState::Error);
                });
            }
            Step::Break(n) => {
                self.with_qp(n, |qp, fabric| fabric.fail(qp));
            }
            _ => {}
        }
    }

    pub(super) fn drop_qp(&mut self, i: usize) {
        let record = self.qps.swap_remove(i);
        match record.seat {
            Seat::Free(qp) => drop(qp),
            Seat::In(g, key) => drop(self.groups.get_mut(&g).unwrap().1.release(key)),
        }
        self.model.qp_dropped(record.serial, self.fabric.failing());
        self.fabric.ended(record.serial);
    }

    /// What `close` gave back is exactly what the queue pair had.
    fn closed(&mut self, serial: u64, back: Result<Vec<Payload>>, all: bool) {
        let held = self.model.held_by(serial);
        match back {
            Ok(payloads) => {
                self.tally.closed_with_slots += u64::from(held > 0);
                let got: usize = payloads.into_iter().map(|p| self.back(serial, p, None)).sum();
                assert!(got == held || (!all && got < held), "{got} of {held} from {serial}");
            }
            Err(_) => assert!(self.fabric.failing().destroy_qp),
        }
        self.model.qp_dropped(serial, self.fabric.failing());
        self.fabric.ended(serial);
    }

    /// Takes back what a queue pair had; how many slots that is.
    pub(super) fn back(&mut self, serial: u64, payload: Payload, side: Option<Side>) -> usize {
        match payload.into_kind() {
            PayloadKind::Slot(slot) => {
                self.model.returned(address(&slot), serial, side);
                self.not_the_devices(&slot);
                self.pool.push(slot);
                1
            }
            PayloadKind::Remote(slot) => {
                let a = remote_address(&slot);
                self.model.returned(a, serial, side);
                assert_ne!(self.fabric.may_touch(a..a + slot.capacity()), Some(true));
                self.remotes.push(slot);
                1
            }
            PayloadKind::List(list) => {
                let pieces = list.into_pieces().into_iter();
                pieces.map(|piece| self.back(serial, piece.into(), side)).sum()
            }
            other => panic!("{other:?} was never posted"),
        }
    }

    fn make_remote_slots(&mut self, pd: u8, count: u8) {
        let Some(i) = pick(pd, self.pds.len()) else { return };
        let (number, pd) = &self.pds[i];
        let count = usize::from(count);
        let memory = OwnedMemory::new(Watched::new(64 * count, &self.watch, &self.ledger));
        let made = pd.register_remote(memory, RemoteAccess::ReadWrite);
        let Ok(region) = made else { return };
        let slots = region.into_slots(64, count).expect("they fit");
        self.model.slots_made(*number, slots.iter().map(remote_address));
        self.remotes.extend(slots);
    }

    /// Calls `f` with a queue pair, wherever it is.
    pub(super) fn with_qp<R>(
        &mut self,
        n: u8,
        f: impl FnOnce(&mut QueuePair, &mut F) -> R,
    ) -> Option<(u64, R)> {
        let i = pick(n, self.qps.len())?;
        let record = &mut self.qps[i];
        let qp = match &mut record.seat {
            Seat::Free(qp) => qp,
            Seat::In(g, key) => {
                let group = &mut self.groups.get_mut(g).unwrap().1;
                group.qp_mut(*key).expect("it is in there")
            }
        };
        assert_eq!(qp.serial(), record.serial);
        Some((record.serial, f(qp, &mut self.fabric)))
    }

    fn cq_ref(&self, n: u8) -> Option<Numbered<CqRef>> {
        let i = pick(n, self.cqs.len() + self.groups.len())?;
        match self.cqs.get(i) {
            Some((number, cq)) => Some((*number, cq.cq_ref())),
            None => {
                let (number, group) = self.groups.values().nth(i - self.cqs.len())?;
                Some((*number, group.cq_ref()))
            }
        }
    }

    fn create_qp(&mut self, pd: u8, cqs: [u8; 2], depths: [u8; 2]) {
        let Some(p) = pick(pd, self.pds.len()) else { return };
        let (Some((s, send_cq)), Some((r, recv_cq))) = (self.cq_ref(cqs[0]), self.cq_ref(cqs[1]))
        else {
            return;
        };
        let config = QpConfig {
            send_depth: depths[0].into(),
            recv_depth: depths[1].into(),
            ..QpConfig::default()
        };
        let (number, pd) = &self.pds[p];
        if let Ok(qp) = pd.create_qp(&send_cq, &recv_cq, &config) {
            let serial = qp.serial();
            self.model.qp_made(serial, *number, [s, r]);
            self.qps.push(Qp { serial, peer: None, seat: Seat::Free(Box::new(qp)) });
        }
    }

    fn connect(&mut self, a: u8, b: u8) {
        let fresh: Vec<usize> = (0..self.qps.len())
            .filter(|i| match &self.qps[*i].seat {
                Seat::Free(qp) => qp.state() == QpState::Reset,
                Seat::In(..) => false,
            })
            .collect();
        let (Some(a), Some(b)) = (pick(a, fresh.len()), pick(b, fresh.len())) else { return };
        if a == b {
            return;
        }
        let (a, b) = (fresh[a.min(b)], fresh[a.max(b)]);
        let (low, high) = self.qps.split_at_mut(b);
        let (a, b) = (&mut low[a], &mut high[0]);
        let (Seat::Free(qa), Seat::Free(qb)) = (&mut a.seat, &mut b.seat) else { return };
        if self.fabric.connect(qa, qb) {
            (a.peer, b.peer) = (Some(b.serial), Some(a.serial));
            self.peers.extend([(a.serial, b.serial), (b.serial, a.serial)]);
        }
    }

    fn make_slots(&mut self, pd: u8, size: u16, count: u8) {
        let Some(i) = pick(pd, self.pds.len()) else { return };
        let (number, pd) = &self.pds[i];
        let (size, count) = (usize::from(size), usize::from(count));
        let total = size.next_multiple_of(64) * count;
        let memory = OwnedMemory::new(Watched::new(total, &self.watch, &self.ledger));
        let Ok(region) = pd.register(memory) else { return };
        let slots = region.into_slots(size, count).expect("they fit");
        self.model.slots_made(*number, slots.iter().map(address));
        self.pool.extend(slots);
    }

    fn poll(&mut self, n: u8, at_most: u8) {
        let Some(i) = pick(n, self.cqs.len()) else { return };
        let mut out: [Wc; 8] = Default::default();
        let room = usize::from(at_most).min(8);
        let polled = self.cqs[i].1.poll(&mut out[..room]);
        let got = polled.unwrap_or(0);
        assert!(got <= room);
        self.wcs.extend(out.into_iter().take(got));
        while self.wcs.len() > HOARD {
            self.wcs.remove(0);
        }
    }

    fn notify(&mut self, n: u8) {
        let Some(i) = pick(n, self.cqs.len()) else { return };
        let cq = &mut self.cqs[i].1;
        if cq.req_notify().is_ok() {
            let mut none: [Wc; 0] = [];
            let _ = cq.poll_wait(&mut none, NOW);
        }
    }

    pub(super) fn not_the_devices(&self, slot: &Slot) {
        let start = address(slot);
        let touched = self.fabric.may_touch(start..start + slot.capacity());
        assert_ne!(touched, Some(true), "the device still has a slot that came back");
    }

    /// Everything named is dropped by a panic that unwinds.
    fn panic_with(&mut self, qp: Option<u8>, cq: Option<u8>, group: Option<u8>, slots: u8) {
        let failing = self.fabric.failing();
        let mut qps = Vec::new();
        if let Some(i) = qp.and_then(|n| pick(n, self.qps.len())) {
            let record = self.qps.swap_remove(i);
            self.model.qp_dropped(record.serial, failing);
            self.fabric.ended(record.serial);
            qps.push(match record.seat {
                Seat::Free(qp) => *qp,
                Seat::In(g, key) => self.groups.get_mut(&g).unwrap().1.release(key).unwrap(),
            });
        }
        let cq = cq.and_then(|n| pick(n, self.cqs.len())).map(|i| self.cqs.swap_remove(i));
        if let Some((number, _)) = &cq {
            self.model.cq_dropped(*number);
        }
        let group = group.and_then(|n| pick(n, self.groups.len()));
        let group = group.map(|i| nth(&mut self.groups, i));
        if let Some((id, (number, _))) = &group {
            self.group_gone(*id, *number);
        }
        let from = self.pool.len().saturating_sub(slots.into());
        let pool: Vec<Slot> = self.pool.drain(from..).collect();
        for slot in &pool {
            self.model.slot_dropped(address(slot));
        }
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _owned = (pool, qps, group, cq);
            std::panic::resume_unwind(Box::new("of the test"));
        }));
        assert!(panicked.is_err());
        self.tally.panics += 1;
    }

    /// What a redeemed completion says, checked.
    pub(super) fn done(
        &mut self,
        serial: u64,
        op: Op,
        slot: Option<Slot>,
        status: WcStatus,
        len: usize,
    ) {
        let Some(slot) = slot else {
            assert!(!op.is_recv(), "every receive has a slot");
            return;
        };
        let side = if op.is_recv() { Side::Recv } else { Side::Send };
        self.model.returned(address(&slot), serial, Some(side));
        self.not_the_devices(&slot);
        assert!(len <= slot.capacity());
        if op == Op::Recv && status.is_ok() && self.fabric.honest() {
            let peer = self.peers.get(&serial).expect("only a connected one receives");
            self.messages.received(&slot[..len], *peer);
            self.tally.received += 1;
        }
        self.pool.push(slot);
    }
}

fn nth<K: Copy + Ord, V>(map: &mut BTreeMap<K, V>, n: usize) -> (K, V) {
    let key = *map.keys().nth(n).expect("picked among them");
    map.remove_entry(&key).expect("it was there")
}
