//! A hostile peer against engines that talk to each other: for the fuzzer and for proptest.
//!
//! Three engines share a fabric. Ranks 0 and 1 are honest. Rank 2 has an engine too, but whatever bytes the input says are put
//! on its queue pairs besides, its connections are cut, and it knocks with private data of any kind. The input also says when
//! the honest ones send, poll, release, run out of device room and let time pass. It is read byte by byte; any input is valid.
//!
//! What must hold: the honest break no rule, never fail each other, deliver each other's messages once and in order, report
//! every message they took once, get every buffer back, and close in time.
use crate::common::{Eng, Ev, LoopPort, Memory, Shared, Slot, addr, engines, name};
use btl_core::wire::{Greeting, PrivateData};
use btl_core::{Event, PeerId, RecvBuf, RemoteRange, SECOND};
use std::collections::{BTreeMap, VecDeque};

/// Honest ranks; behind them the other one.
const HONEST: usize = 2;
const LIAR: usize = 2;
/// Steps of one run.
const STEPS: usize = 400;
/// How far an input can move the clock in all: below every limit of a connect.
const TIME: u64 = 10 * SECOND;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let most = usize::from(self.byte().unwrap_or(0)) % (most + 1);
        let (head, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        head.to_vec()
    }
}

/// What an honest rank remembers.
#[derive(Default)]
struct Memo {
    /// Cookies taken and not reported, with the receiver.
    open: BTreeMap<u64, usize>,
    next: u64,
    held: Vec<RecvBuf<Slot>>,
    /// Messages sent to the other honest rank that have not arrived there, by class.
    under_way: [VecDeque<u64>; 2],
    /// Operations taken and not reported.
    operations: usize,
    closed: bool,
}

struct World {
    net: Shared,
    all: Vec<Eng>,
    memos: Vec<Memo>,
    /// Which rank an id of a rank names.
    ranks: Vec<BTreeMap<PeerId, usize>>,
}

/// Runs one input.
pub(crate) fn check(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    for _ in 0..STEPS {
        let Some(op) = input.byte() else { break };
        world.step(op, &mut input);
    }
    world.come_to_rest();
    world.close();
}

impl World {
    fn new() -> World {
        let (net, all) = engines(HONEST + 1);
        net.borrow_mut().liar = Some(LIAR);
        net.borrow_mut().share(&[0; 64]);
        let memos = all.iter().map(|_| Memo::default()).collect();
        let ranks = all.iter().map(|_| BTreeMap::new()).collect();
        World { net, all, memos, ranks }
    }

    fn step(&mut self, op: u8, input: &mut Input<'_>) {
        let side = usize::from(op >> 4) % HONEST;
        match op & 15 {
            0..=2 => {
                let to = input.byte().map_or(0, usize::from);
                self.send(side, to % 3, to / 3 % 2);
            }
            3..=5 => self.poll(side, usize::from(op >> 5) + 1),
            6 => self.release(side, input.byte().map_or(0, usize::from)),
            7 | 8 => self.inject(input),
            9 => self.poll_liar(4),
            10 => self.cut(input.byte().map_or(0, usize::from)),
            11 => self.knock(side, input),
            12 => self.net.borrow_mut().refuse += u32::from(op >> 6),
            13 => self.pass_time(u64::from(op >> 5) * SECOND / 50),
            14 => self.one_sided(side, input),
            _ => self.forget_liar(side, op),
        }
    }

    fn peer(&mut self, side: usize, to: usize) -> Option<PeerId> {
        let peer = self.all[side].add_peer(name(to), &[addr(to)]).ok()?;
        self.ranks[side].insert(peer, to);
        Some(peer)
    }

    fn send(&mut self, side: usize, to: usize, class: usize) {
        let to = if to == side { LIAR } else { to };
        let Some(peer) = self.peer(side, to) else { return };
        let len = if class == 0 { 16 } else { 900 };
        let Ok(mut buf) = self.all[side].alloc(len) else { return };
        let memo = &mut self.memos[side];
        let cookie = memo.next;
        buf[..8].copy_from_slice(&cookie.to_le_bytes());
        match self.all[side].send(peer, 3, buf, cookie) {
            Ok(_) => {
                memo.next += 1;
                memo.open.insert(cookie, to);
                if to < HONEST {
                    memo.under_way[class].push_back(cookie);
                }
            }
            Err(refused) => {
                assert!(to == LIAR, "rank {to} failed rank {side}: {}", refused.kind);
                self.all[side].free(refused.buf);
            }
        }
    }

    fn one_sided(&mut self, side: usize, input: &mut Input<'_>) {
        let Some(peer) = self.peer(side, LIAR) else { return };
        let [verb, at, rkey] = [0; 3].map(|_| u64::from(input.byte().unwrap_or(0)));
        // Also ranges that are not there.
        let remote = RemoteRange { addr: 4096 + at, len: 8, rkey: (rkey % 2) as u32 };
        let memory = Memory { id: 0, bytes: vec![0; 8] };
        let engine = &mut self.all[side];
        let taken = match verb % 3 {
            0 => engine.put(peer, memory, 8, remote, 0).is_ok(),
            1 => engine.get(peer, memory, 8, remote, 0).is_ok(),
            _ => engine.fence(peer, 0).is_ok(),
        };
        self.memos[side].operations += usize::from(taken);
    }

    fn poll(&mut self, side: usize, most: usize) {
        for _ in 0..most {
            let now = self.net.borrow().now;
            let Some(event) = self.all[side].poll(now) else { return };
            self.handle(side, event);
        }
    }

    fn handle(&mut self, side: usize, event: Ev) {
        match event {
            Event::Message { peer, buf, .. } => {
                if let Some(from @ ..HONEST) = self.ranks[side].get(&peer).copied() {
                    let class = usize::from(buf.len() > 248);
                    let number = buf.first_chunk::<8>().map(|n| u64::from_le_bytes(*n));
                    let due = self.memos[from].under_way[class].pop_front();
                    assert_eq!(number, due, "rank {side}: what rank {from} sent");
                }
                self.memos[side].held.push(buf);
            }
            Event::Sent { cookie, buf, result, .. } => {
                let to = self.memos[side].open.remove(&cookie).expect("reported once");
                assert!(result.is_ok() || to == LIAR, "{result:?}");
                self.all[side].free(buf.expect("the fabric gives every buffer back"));
            }
            Event::Done { .. } | Event::Fenced { .. } => self.memos[side].operations -= 1,
            Event::PeerFailed { peer, fault } => {
                assert_eq!(fault.peer, name(LIAR), "rank {side}: {fault}");
                // It may come again.
                self.all[side].remove_peer(peer);
            }
            Event::NewPeer { peer, name: who } | Event::PeerConnected { peer, name: who } => {
                self.ranks[side].insert(peer, who.rank as usize);
            }
            Event::Closed => self.memos[side].closed = true,
        }
    }

    fn release(&mut self, side: usize, at: usize) {
        let held = &mut self.memos[side].held;
        if !held.is_empty() {
            let buf = held.swap_remove(at % held.len());
            self.all[side].release(buf);
        }
    }

    /// Bytes of any kind arrive from the liar.
    fn inject(&mut self, input: &mut Input<'_>) {
        let (which, first) = (input.byte().unwrap_or(0), input.byte().unwrap_or(0));
        let mut bytes = vec![if first < 200 { 0x10 | first & 15 } else { first }];
        bytes.extend(input.bytes(120));
        let mut net = self.net.borrow_mut();
        let alive = net.alive(LIAR);
        if let Some(qp) = alive.get(usize::from(which) % alive.len().max(1)) {
            net.inject(*qp, &bytes);
        }
    }

    fn poll_liar(&mut self, most: usize) {
        for _ in 0..most {
            let now = self.net.borrow().now;
            match self.all[LIAR].poll(now) {
                Some(Event::Message { buf, .. }) => self.all[LIAR].release(buf),
                Some(Event::Sent { buf: Some(buf), .. }) => self.all[LIAR].free(buf),
                Some(Event::PeerFailed { peer, .. }) => self.all[LIAR].remove_peer(peer),
                Some(_) => {}
                None => return,
            }
        }
    }

    fn cut(&mut self, which: usize) {
        let mut net = self.net.borrow_mut();
        let alive = net.alive(LIAR);
        if let Some(qp) = alive.get(which % alive.len().max(1)) {
            net.cut(*qp);
            net.stale += 1;
        }
    }

    /// A connect request with private data of any kind. Nobody proves who he is, so only the liar's own name is left to it.
    fn knock(&mut self, side: usize, input: &mut Input<'_>) {
        let mut data = input.bytes(56);
        if let Ok(greeting) = Greeting::decode(&PrivateData::from_slice(&data)) {
            data = Greeting { from: name(LIAR), ..greeting }.encode().as_slice().to_vec();
        }
        self.all[LIAR].cm_mut().knock(side, &data);
    }

    fn pass_time(&mut self, step: u64) {
        let mut net = self.net.borrow_mut();
        net.now = (net.now + step).min(TIME);
    }

    /// The liar is removed, or sends by itself.
    fn forget_liar(&mut self, side: usize, op: u8) {
        if op >> 5 == 0 {
            if let Some(peer) = self.peer(side, LIAR) {
                self.all[side].remove_peer(peer);
            }
            return;
        }
        let engine = &mut self.all[LIAR];
        let Ok(peer) = engine.add_peer(name(side), &[addr(side)]) else { return };
        let Ok(buf) = engine.alloc(16) else { return };
        if let Err(refused) = engine.send(peer, 0, buf, 0) {
            engine.free(refused.buf);
        }
    }

    /// Everybody polls and releases until nothing moves any more.
    fn settle(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for side in 0..HONEST {
                self.poll(side, 64);
                while !self.memos[side].held.is_empty() {
                    self.release(side, 0);
                }
            }
            self.poll_liar(64);
        }
    }

    /// Without faults, all that the honest sent each other arrives.
    fn come_to_rest(&mut self) {
        self.net.borrow_mut().refuse = 0;
        self.settle(20);
        // A dial that failed is repeated after its pause.
        for _ in 0..8 {
            self.net.borrow_mut().now += SECOND;
            self.settle(8);
        }
        let net = self.net.borrow();
        assert_eq!((net.overruns, net.early), (0, 0), "the honest broke a rule");
        for side in 0..HONEST {
            let left = &self.memos[side].under_way;
            assert!(left.iter().all(VecDeque::is_empty), "rank {side}: {left:?} did not arrive");
            let open = self.memos[side].open.values().filter(|to| **to < HONEST).count();
            assert_eq!(open, 0, "rank {side}: sends that were never reported");
        }
    }

    /// Both close in time and have all their buffers.
    fn close(&mut self) {
        for side in 0..HONEST {
            let now = self.net.borrow().now;
            self.all[side].close(now);
        }
        for _ in 0..40 {
            self.settle(4);
            self.net.borrow_mut().now += SECOND / 2;
        }
        for side in 0..HONEST {
            let memo = &self.memos[side];
            assert!(memo.closed, "rank {side} does not close");
            assert!(memo.open.is_empty(), "rank {side}: {:?} were never reported", memo.open);
            assert_eq!(memo.operations, 0, "rank {side}: operations that were never reported");
            let port: &LoopPort = self.all[side].port();
            assert_eq!((port.pooled(0), port.pooled(1)), (64, 32), "rank {side} lost buffers");
        }
    }
}
