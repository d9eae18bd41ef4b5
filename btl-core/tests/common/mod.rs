//! An in-memory fabric: messages move at once, and every break of a rule is counted.
#![allow(dead_code, missing_docs, unreachable_pub)]
pub mod rma;
pub mod tape;

use btl_core::config::Config;
use btl_core::connect::{Action, DialOutcome, Input, Machine};
use btl_core::error::{Error, PortError};
use btl_core::lane::{RmaPermit, RmaPosted, SendPermit};
use btl_core::port::*;
use btl_core::rma::{RmaCaps, RmaErrorKind, RmaPost, Verb};
use btl_core::setup::SetupLane;
use btl_core::wire::PrivateData;
use btl_core::{ConnToken, Engine, Event, LaneConfig, LaneId, Nanos, ProcName, Role};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

pub use rma::Memory;
use rma::{QpRma, Rma};

pub type Slot = Box<[u8]>;
pub type Eng = Engine<LoopPort, LoopCm>;
pub type Ev = Event<Slot, Memory>;
pub type Shared = Rc<RefCell<Net>>;

/// One queue pair.
#[derive(Default)]
pub struct Qp {
    pub side: usize,
    pub peer: Option<usize>,
    pub acceptor: bool,
    pub heard: bool,
    pub recvs: VecDeque<Slot>,
    /// Sends the peer has, not completed here yet.
    pub sends: VecDeque<Slot>,
    pub done: VecDeque<(Op, Slot, usize, Status)>,
    pub broken: bool,
    pub rma: QpRma,
}

enum Mail {
    Request { from: usize, conn: ConnToken, qp: usize, data: PrivateData },
    Accepted { conn: ConnToken, qp: usize, data: PrivateData },
    Rejected { conn: ConnToken, data: PrivateData },
    Gone { qp: usize },
}

#[derive(Default)]
pub struct Net {
    pub now: Nanos,
    pub qps: Vec<Qp>,
    mail: Vec<VecDeque<Mail>>,
    /// A message that found no receive (rule 2).
    pub overruns: u32,
    /// A message of an acceptor that had received nothing (rule 1).
    pub early: u32,
    /// A side whose own breaks of the rules do not count.
    pub liar: Option<usize>,
    /// Complete something on the lane that was closed last.
    pub stale: u32,
    pub device_removed: bool,
    /// Sends do not complete.
    pub hold_sends: bool,
    /// Refuse so many posts for the moment.
    pub refuse: u32,
    /// Times a device was told of sends.
    pub doorbells: u32,
    /// The next doorbell for several sends hands over so many and fails then.
    pub ring_fails_after: Option<usize>,
    /// Fail so many dials.
    pub fail_dials: u32,
    pub dials: u32,
    /// Slots alive in pools: every send buffer has to come home.
    pub pooled: Vec<usize>,
    pub stopped: Vec<bool>,
    pub rma: Rma,
    /// What the ports say they are.
    pub info: PortInfo,
    pub tape: tape::Tape,
}

impl Net {
    fn send(&mut self, qp: usize, slot: Slot, len: usize) {
        let Some(me) = self.qps.get_mut(qp) else { return };
        if me.broken {
            me.done.push_back((Op::Send, slot, 0, Status::Flushed));
            return;
        }
        let honest = self.liar != Some(me.side);
        self.early += u32::from(me.acceptor && !me.heard && honest);
        let Some(peer) = me.peer else { return };
        let side = me.side;
        self.message(side, &slot[..len]);
        let to = &mut self.qps[peer];
        match to.recvs.pop_front() {
            _ if to.broken => {}
            Some(mut recv) => {
                recv[..len].copy_from_slice(&slot[..len]);
                to.heard = true;
                to.done.push_back((Op::Recv, recv, len, Status::Ok));
            }
            None => self.overruns += u32::from(honest),
        }
        self.qps[qp].sends.push_back(slot);
    }

    /// Everything posted on the queue pair is flushed.
    pub fn break_qp(&mut self, qp: usize) {
        let qp = &mut self.qps[qp];
        qp.broken = true;
        qp.rma.flush();
        while let Some(slot) = qp.sends.pop_front() {
            qp.done.push_back((Op::Send, slot, 0, Status::Flushed));
        }
        while let Some(slot) = qp.recvs.pop_front() {
            qp.done.push_back((Op::Recv, slot, 0, Status::Flushed));
        }
    }

    /// The connection breaks on both sides.
    pub fn cut(&mut self, qp: usize) {
        self.end(qp, false);
    }

    /// The same; with `orderly`, what was delivered still completes well.
    fn end(&mut self, qp: usize, orderly: bool) {
        let peer = self.qps[qp].peer;
        for qp in [Some(qp), peer].into_iter().flatten() {
            while orderly && let Some(slot) = self.qps[qp].sends.pop_front() {
                self.qps[qp].done.push_back((Op::Send, slot, 0, Status::Ok));
            }
            self.break_qp(qp);
            let side = self.qps[qp].side;
            self.mail[side].push_back(Mail::Gone { qp });
        }
    }

    /// A message nobody's engine made.
    pub fn inject(&mut self, qp: usize, bytes: &[u8]) {
        let slot: Slot = bytes.into();
        let sends = self.qps[qp].sends.len();
        self.send(qp, slot, bytes.len());
        self.qps[qp].sends.truncate(sends);
    }

    /// Unbroken queue pairs of a side.
    pub fn alive(&self, side: usize) -> Vec<usize> {
        let all = self.qps.iter().enumerate();
        all.filter(|(_, q)| q.side == side && !q.broken && q.peer.is_some()).map(|x| x.0).collect()
    }
}

pub struct LoopQp {
    net: Shared,
    pub qp: usize,
}

impl SetupQp for LoopQp {
    type Slot = Slot;
    fn post_recv(&mut self, slot: Slot) -> Result<(), Refused<Slot>> {
        self.net.borrow_mut().qps[self.qp].recvs.push_back(slot);
        Ok(())
    }
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        self.net.borrow_mut().send(self.qp, slot, len);
        Ok(permit.posted())
    }
    fn max_reads(&self) -> u16 {
        self.net.borrow().rma.max_reads
    }
}

pub struct LoopPort {
    net: Shared,
    side: usize,
    lanes: Vec<(LaneId, usize)>,
    closed: Option<LaneId>,
    next: usize,
    pools: Vec<Vec<Slot>>,
    sizes: Vec<usize>,
    /// Sends that wait for the doorbell, and those that a broken device did not take.
    staged: Vec<(Slot, usize)>,
    refused: Vec<Slot>,
    /// What the device has let go of.
    memory: VecDeque<(LaneId, u32, Memory)>,
}

impl LoopPort {
    fn qp(&self, lane: LaneId) -> usize {
        self.lanes.iter().find(|(id, _)| *id == lane).expect("a lane of this port").1
    }

    pub fn pooled(&self, class: usize) -> usize {
        self.pools[class].len()
    }
}

impl Port for LoopPort {
    type Slot = Slot;
    type Qp = LoopQp;
    type Memory = Memory;
    fn attach(&mut self, lane: LaneId, qp: LoopQp) -> Result<(), PortError> {
        self.lanes.push((lane, qp.qp));
        Ok(())
    }
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        let mut net = self.net.borrow_mut();
        if net.refuse > 0 {
            net.refuse -= 1;
            return Err(Refused { why: RefusedWhy::Again, slot: Some(slot) });
        }
        let qp = self.qp(permit.lane());
        assert!(self.staged.is_empty(), "posted before what was to be posted before it");
        net.note(qp, "send");
        net.doorbells += 1;
        net.send(qp, slot, len);
        Ok(permit.posted())
    }
    fn post_send_later(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        self.staged.push((slot, len));
        Ok(permit.posted())
    }
    fn ring(&mut self, lane: LaneId) -> Result<(), PortError> {
        let mut net = self.net.borrow_mut();
        let qp = self.qp(lane);
        net.doorbells += u32::from(!self.staged.is_empty());
        let take = net.ring_fails_after.take();
        for (at, (slot, len)) in self.staged.drain(..).enumerate() {
            if take.is_some_and(|n| at >= n) {
                self.refused.push(slot);
                continue;
            }
            net.note(qp, "send");
            net.send(qp, slot, len);
        }
        take.map_or(Ok(()), |_| Err(PortError::new(5, "the doorbell is stuck")))
    }
    fn post_recv(&mut self, lane: LaneId, slot: Slot) -> Result<(), Refused<Slot>> {
        let mut net = self.net.borrow_mut();
        if net.refuse > 0 {
            net.refuse -= 1;
            return Err(Refused { why: RefusedWhy::Again, slot: Some(slot) });
        }
        let qp = &mut net.qps[self.qp(lane)];
        if qp.broken {
            qp.done.push_back((Op::Recv, slot, 0, Status::Flushed));
        } else {
            qp.recvs.push_back(slot);
        }
        Ok(())
    }
    fn poll(&mut self) -> Option<Completion<Slot>> {
        let mut net = self.net.borrow_mut();
        if let Some(lane) = self.closed.take_if(|_| net.stale > 0) {
            net.stale -= 1;
            let slot: Slot = [0x23, 0, 0, 0, 0, 0, 0, 0].into();
            let (op, status) = (Op::Recv, Status::Ok);
            return Some(Completion { lane, op, slot: Some(slot), len: 8, status });
        }
        drop(net);
        for _ in 0..self.lanes.len() {
            self.next = (self.next + 1) % self.lanes.len();
            let (lane, qp) = self.lanes[self.next];
            if let Some(status) = self.complete_one_sided(lane, qp) {
                return Some(Completion { lane, op: Op::OneSided, slot: None, len: 0, status });
            }
            let mut net = self.net.borrow_mut();
            let hold = net.hold_sends;
            let qp = &mut net.qps[qp];
            if let Some((op, slot, len, status)) = qp.done.pop_front() {
                return Some(Completion { lane, op, slot: Some(slot), len, status });
            }
            if !hold && let Some(slot) = qp.sends.pop_front() {
                let (op, slot, status) = (Op::Send, Some(slot), Status::Ok);
                return Some(Completion { lane, op, slot, len: 0, status });
            }
        }
        None
    }
    fn close(&mut self, lane: LaneId) -> Vec<Slot> {
        let qp = self.qp(lane);
        self.lanes.retain(|(id, _)| *id != lane);
        self.closed = Some(lane);
        self.net.borrow_mut().break_qp(qp);
        self.close_one_sided(lane, qp);
        let mut net = self.net.borrow_mut();
        let done = net.qps[qp].done.drain(..).map(|(_, slot, ..)| slot).rev();
        done.chain(self.refused.drain(..)).collect()
    }
    fn send_slot(&mut self, class: u8) -> Option<Slot> {
        self.pools[usize::from(class)].pop()
    }
    fn recycle(&mut self, slot: Slot) {
        // Send buffers are one byte larger than receive buffers, to tell them apart.
        if let Some(class) = self.sizes.iter().position(|size| *size + 1 == slot.len()) {
            self.pools[class].push(slot);
        }
    }
    fn info(&self) -> PortInfo {
        self.net.borrow().info.clone()
    }
    fn rma_caps(&self) -> RmaCaps {
        self.net.borrow().rma.caps
    }
    fn check_memory(&self, memory: &Memory, _: Verb, len: u64) -> Result<(), RmaErrorKind> {
        self.check(memory, len)
    }
    fn post_rma(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        memory: Memory,
    ) -> Result<RmaPosted, RmaRefused<Memory>> {
        self.post_one_sided(permit, post, memory)
    }
    fn take_memory(&mut self, lane: LaneId) -> Option<(u32, Memory)> {
        self.memory_back(lane)
    }
}

pub struct LoopCm {
    net: Shared,
    side: usize,
    config: Config,
    pub machine: Machine,
    /// Does not tell that a connection is gone.
    pub silent: bool,
    /// Keeps what it has to tell to itself for now.
    pub mute: bool,
    setup: BTreeMap<ConnToken, SetupLane<LoopQp>>,
    /// Own queue pair and the other side's name of a connection.
    links: BTreeMap<ConnToken, usize>,
    requests: BTreeMap<ConnToken, (usize, ConnToken, usize)>,
    events: VecDeque<CmEvent<LoopQp>>,
}

impl LoopCm {
    fn now(&self) -> Nanos {
        self.net.borrow().now
    }

    fn make(&mut self, conn: ConnToken, class: u8, role: Role) -> usize {
        let mut net = self.net.borrow_mut();
        let acceptor = role == Role::Acceptor;
        net.qps.push(Qp { side: self.side, acceptor, ..Qp::default() });
        let qp = net.qps.len() - 1;
        drop(net);
        let it = LoopQp { net: self.net.clone(), qp };
        let mut lane = SetupLane::new(&self.config, class, role, it).expect("the class exists");
        let size = self.config.lanes[usize::from(class)].buffer_size as usize;
        lane.post_receives(std::iter::repeat_with(|| vec![0; size].into())).expect("posts");
        self.setup.insert(conn, lane);
        self.links.insert(conn, qp);
        qp
    }

    /// Sends a connect request that no machine made.
    pub fn knock(&mut self, at: usize, data: &[u8]) {
        let conn = self.machine.token();
        let mut net = self.net.borrow_mut();
        net.qps.push(Qp { side: self.side, ..Qp::default() });
        let (from, qp, data) = (self.side, net.qps.len() - 1, PrivateData::from_slice(data));
        net.mail[at].push_back(Mail::Request { from, conn, qp, data });
    }

    fn read_mail(&mut self) {
        loop {
            let Some(mail) = self.net.borrow_mut().mail[self.side].pop_front() else { return };
            let now = self.now();
            let other = 1 - self.side.min(1);
            let letter = |what, data| self.net.borrow_mut().letter(other, what, data);
            let input = match mail {
                Mail::Request { from, conn: theirs, qp, data } => {
                    let data = letter("connect", data);
                    let conn = self.machine.token();
                    self.requests.insert(conn, (from, theirs, qp));
                    Input::Request { conn, data }
                }
                Mail::Accepted { conn, qp, data } => {
                    let data = letter("accept", data);
                    let Some(mine) = self.links.get(&conn) else {
                        // Dropped meanwhile.
                        self.net.borrow_mut().cut(qp);
                        continue;
                    };
                    self.net.borrow_mut().qps[*mine].peer = Some(qp);
                    self.net.borrow_mut().qps[qp].peer = Some(*mine);
                    Input::DialDone { conn, outcome: DialOutcome::Established(data) }
                }
                Mail::Rejected { conn, data } => {
                    let data = letter("reject", data);
                    self.setup.remove(&conn);
                    self.links.remove(&conn);
                    Input::DialDone { conn, outcome: DialOutcome::Rejected(data) }
                }
                Mail::Gone { qp } => {
                    let Some((conn, _)) = self.links.iter().find(|(_, q)| **q == qp) else {
                        continue;
                    };
                    Input::Disconnected { conn: *conn }
                }
            };
            self.machine.handle(input, now);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dial { conn, class, addr, data, .. } => {
                let mut net = self.net.borrow_mut();
                net.dials += 1;
                if net.fail_dials > 0 || usize::from(addr.port()) >= net.mail.len() {
                    net.fail_dials = net.fail_dials.saturating_sub(1);
                    let now = net.now;
                    drop(net);
                    let outcome = DialOutcome::Failed("refused".into());
                    return self.machine.handle(Input::DialDone { conn, outcome }, now);
                }
                drop(net);
                let qp = self.make(conn, class, Role::Initiator);
                let mail = Mail::Request { from: self.side, conn, qp, data };
                self.net.borrow_mut().mail[usize::from(addr.port())].push_back(mail);
            }
            Action::Accept { conn, class, data, .. } => {
                let Some((from, theirs, _)) = self.requests.remove(&conn) else { return };
                let qp = self.make(conn, class, Role::Acceptor);
                let mail = Mail::Accepted { conn: theirs, qp, data };
                self.net.borrow_mut().mail[from].push_back(mail);
                let now = self.now();
                self.machine.handle(Input::AcceptDone { conn, outcome: Ok(()) }, now);
            }
            Action::Reject { conn, data } => {
                let Some((from, conn, _)) = self.requests.remove(&conn) else { return };
                self.net.borrow_mut().mail[from].push_back(Mail::Rejected { conn, data });
            }
            Action::HandOver { conn, name, class, role, agreed, announced } => {
                let Some(lane) = self.setup.remove(&conn) else { return };
                let Ok(lane) = lane.established(agreed, vec![0; 64].into()) else {
                    panic!("no Hello")
                };
                self.events.push_back(CmEvent::LaneUp(LaneUp {
                    name,
                    class,
                    role,
                    announced,
                    conn,
                    lane,
                }));
            }
            Action::Drop { conn } => {
                self.setup.remove(&conn);
                if let Some(qp) = self.links.remove(&conn) {
                    self.net.borrow_mut().end(qp, true);
                }
            }
            Action::Failed { name, class, fault } => {
                self.events.push_back(CmEvent::ConnectFailed { name, class, fault });
            }
            Action::Gone { .. } if self.silent => {}
            Action::Gone { conn } => self.events.push_back(CmEvent::Disconnected { conn }),
            Action::Stopped => {
                self.net.borrow_mut().stopped[self.side] = true;
                self.events.push_back(CmEvent::Stopped);
            }
        }
    }
}

impl Cm for LoopCm {
    type Qp = LoopQp;
    fn request(&mut self, request: CmRequest) {
        let now = self.now();
        let input = match request {
            CmRequest::Announce { name, addrs } => Input::Announce { name, addrs },
            CmRequest::Forget { name } => Input::Forget { name },
            CmRequest::Connect { name, class, rejoin } => Input::Want { name, class, rejoin },
            CmRequest::Disconnect { conn } => Input::Hangup { conn },
            CmRequest::Stop => Input::Stop,
        };
        self.machine.handle(input, now);
    }
    fn poll(&mut self) -> Option<CmEvent<LoopQp>> {
        if std::mem::take(&mut self.net.borrow_mut().device_removed) {
            return Some(CmEvent::DeviceRemoved);
        }
        self.read_mail();
        let now = self.now();
        if self.machine.next_timeout().is_some_and(|at| at <= now) {
            self.machine.handle(Input::Tick, now);
        }
        while let Some(action) = self.machine.poll_action() {
            self.act(action);
        }
        if self.mute {
            return None;
        }
        self.events.pop_front()
    }
}

pub const JOB: u64 = 77;

pub fn name(side: usize) -> ProcName {
    ProcName { job: 5, rank: side as u32 }
}

pub fn addr(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], side as u16))
}

/// Two lanes: 256 bytes × 8 and 1 KiB × 4.
pub fn config(side: usize) -> Config {
    let mut config = Config::new(name(side), JOB);
    config.lanes = vec![
        LaneConfig { buffer_size: 256, depth: 8, send_depth: 6, send_slots: 64 },
        LaneConfig { buffer_size: 1024, depth: 4, send_depth: 3, send_slots: 32 },
    ];
    config
}

pub fn net(sides: usize) -> Shared {
    let mail = (0..sides).map(|_| VecDeque::new()).collect();
    let stopped = vec![false; sides];
    Rc::new(RefCell::new(Net { mail, stopped, ..Net::default() }))
}

pub fn engine(net: &Shared, side: usize, config: Config) -> Eng {
    try_engine(net, side, config).expect("valid")
}

pub fn try_engine(net: &Shared, side: usize, config: Config) -> Result<Eng, Error> {
    let sizes: Vec<usize> = config.lanes.iter().map(|l| l.buffer_size as usize).collect();
    let pool = |l: &LaneConfig| {
        let size = l.buffer_size as usize + 1;
        let n = l.send_slots as usize;
        let mut pool = Vec::with_capacity(n);
        pool.resize_with(n, || vec![0u8; size].into());
        pool
    };
    let port = LoopPort {
        net: net.clone(),
        side,
        lanes: Vec::new(),
        closed: None,
        next: 0,
        pools: config.lanes.iter().map(pool).collect(),
        sizes,
        staged: Vec::new(),
        refused: Vec::new(),
        memory: VecDeque::new(),
    };
    let cm = LoopCm {
        net: net.clone(),
        side,
        machine: Machine::new(&config),
        silent: false,
        mute: false,
        config: config.clone(),
        setup: BTreeMap::new(),
        links: BTreeMap::new(),
        requests: BTreeMap::new(),
        events: VecDeque::new(),
    };
    Engine::new(config, port, cm)
}

/// Two engines that know each other, with settings of their own.
pub fn two_with(change: impl Fn(usize, &mut Config)) -> (Shared, Vec<Eng>) {
    let net = net(2);
    let make = |side| {
        let mut config = config(side);
        change(side, &mut config);
        engine(&net, side, config)
    };
    let mut all = vec![make(0), make(1)];
    for (side, engine) in all.iter_mut().enumerate() {
        engine.add_peer(name(1 - side), &[addr(1 - side)]).expect("added");
    }
    (net, all)
}

/// `n` engines that know each other.
pub fn engines(n: usize) -> (Shared, Vec<Eng>) {
    let net = net(n);
    let mut all: Vec<Eng> = (0..n).map(|side| engine(&net, side, config(side))).collect();
    for (side, engine) in all.iter_mut().enumerate() {
        for other in (0..n).filter(|other| *other != side) {
            engine.add_peer(name(other), &[addr(other)]).expect("added");
        }
    }
    (net, all)
}

/// Polls until nothing happens on any side for a while; received buffers are released.
pub fn settle(net: &Shared, engines: &mut [Eng]) -> Vec<Vec<Ev>> {
    let mut events: Vec<Vec<Ev>> = engines.iter().map(|_| Vec::new()).collect();
    let mut idle = 0;
    while idle < 4 {
        idle += 1;
        for (engine, events) in engines.iter_mut().zip(&mut events) {
            let now = net.borrow().now;
            while let Some(event) = engine.poll(now) {
                idle = 0;
                events.push(event);
            }
        }
    }
    events
}

/// Sends `bytes`.
pub fn send(engine: &mut Eng, to: usize, bytes: &[u8], cookie: u64) -> bool {
    let peer = engine.add_peer(name(to), &[addr(to)]).expect("a peer");
    let Ok(mut buf) = engine.alloc(bytes.len()) else { return false };
    buf.copy_from_slice(bytes);
    match engine.send(peer, 7, buf, cookie) {
        Ok(_) => true,
        Err(refused) => {
            engine.free(refused.buf);
            false
        }
    }
}

pub fn credits(engine: &mut Eng, to: usize, class: u8) -> (u32, u32) {
    let peer = engine.add_peer(name(to), &[addr(to)]).unwrap();
    engine.credits(peer, class).unwrap()
}

/// Two engines with a message each way behind them.
pub fn connected() -> (Shared, Vec<Eng>) {
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    drain(&net, &mut all);
    assert!(send(&mut all[1], 0, &[1; 8], 0));
    drain(&net, &mut all);
    (net, all)
}

/// Handles everything; returns what is left to look at.
pub fn drain(net: &Shared, all: &mut [Eng]) -> Vec<Vec<Ev>> {
    let mut rest: Vec<Vec<_>> = all.iter().map(|_| Vec::new()).collect();
    loop {
        let events = settle(net, all);
        if events.iter().all(|events| events.is_empty()) {
            return rest;
        }
        for (me, events) in events.into_iter().enumerate() {
            for event in events {
                match event {
                    Event::Message { buf, .. } => all[me].release(buf),
                    Event::Sent { buf: Some(buf), result: Ok(()), .. } => all[me].free(buf),
                    other => rest[me].push(other),
                }
            }
        }
    }
}

/// A window that takes long to empty.
pub fn deep(side: usize) -> Config {
    let mut config = config(side);
    config.lanes[0].depth = 300;
    config.lanes[0].send_depth = 300;
    config.lanes[0].send_slots = 300;
    config
}
