//! The CM side of one rank: drives the shipped connection machine over simulated connection
//! managers. Each event is a step of its own.
use crate::check::Invariant;
use crate::cover::Hit;
use crate::frame;
use crate::net::{DialError, Ev, Wire};
use crate::options::Options;
use crate::port::{Link, SharedNet, SimQp};
use crate::qp::State;
use crate::slots::SimSlot;
use btl_core::connect::{Action, DialOutcome, Input, Machine};
use btl_core::port::{CmEvent, CmRequest, LaneUp, Refused};
use btl_core::setup::{Agreed, SetupLane};
use btl_core::wire::{PrivateData, RejectReason};
use btl_core::{Config, ConnToken, ProcName, Role};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

/// The job of all runs.
pub(crate) const JOB: u64 = 0x5eed;

/// The process name of a rank.
pub(crate) fn name_of(rank: u32) -> ProcName {
    ProcName { job: 1, rank }
}

/// Where a rank listens.
pub(crate) fn addr_of(rank: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, rank as u8 + 1)), 7000)
}

/// An address at which nobody listens.
pub(crate) fn nowhere() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), 7000)
}

fn rank_at(opt: &Options, addr: SocketAddr) -> Option<u32> {
    (0..opt.ranks).find(|rank| addr_of(*rank) == addr)
}

/// A connection that the machine knows.
struct Conn {
    token: ConnToken,
    wire: u32,
    lane: Option<SetupLane<SimQp>>,
    stage: Stage,
    /// Of a dial: whom it is to reach, and for which lane.
    dials: Option<(ProcName, u8)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A request that was not answered.
    Asked,
    Dialing,
    Accepting,
    /// The machine knows that it is established.
    Up,
}

/// The CM side of one rank.
pub(crate) struct CmSide {
    rank: u32,
    net: SharedNet,
    link: Rc<RefCell<Link>>,
    config: Config,
    machine: Machine,
    conns: BTreeMap<u64, Conn>,
    tick_at: Option<u64>,
    pub(crate) stopped: bool,
}

impl CmSide {
    pub(crate) fn new(rank: u32, net: &SharedNet, link: &Rc<RefCell<Link>>, c: &Config) -> CmSide {
        CmSide {
            rank,
            net: Rc::clone(net),
            link: Rc::clone(link),
            config: c.clone(),
            machine: Machine::new(c),
            conns: BTreeMap::new(),
            tick_at: None,
            stopped: false,
        }
    }

    /// One step: an event, and the actions that follow.
    pub(crate) fn step(&mut self, ev: Ev) {
        let input = match ev {
            Ev::CmRequest { .. } => self.engine_request(),
            Ev::CmIncoming { wire } => self.incoming(wire),
            Ev::CmDialUp { wire } => self.dial_up(wire),
            Ev::CmRejected { wire } => {
                let net = self.net.borrow();
                let data = net.padded(net.wires[wire as usize].data, 148);
                drop(net);
                self.dial_over(wire, DialOutcome::Rejected(data))
            }
            Ev::CmDialError { wire, why } => {
                let refused = why == DialError::Refused;
                let iwarp = self.net.borrow().opt.model.is_iwarp();
                let outcome = match refused && !iwarp {
                    true => DialOutcome::Rejected(PrivateData::default()),
                    false => DialOutcome::Failed(why.text().to_owned()),
                };
                self.dial_over(wire, outcome)
            }
            Ev::CmAcceptUp { wire } => self.accept_up(wire),
            Ev::CmAcceptError { wire } => self.accept_over(wire, "the set-up failed"),
            Ev::CmGone { wire, initiator } => self.gone(wire, initiator),
            // As the shipped driver: a connection goes on.
            Ev::CmNoise { .. } => {
                self.net.borrow_mut().inject(Hit::CmNoise);
                None
            }
            Ev::CmDeadline { conn, .. } => self.deadline(conn),
            Ev::CmTick { .. } => {
                self.tick_at = None;
                Some(Input::Tick)
            }
            _ => None,
        };
        if let Some(input) = input {
            self.feed(input);
        }
    }

    fn feed(&mut self, input: Input) {
        let now = self.net.borrow().now;
        self.machine.handle(input, now);
        while let Some(action) = self.machine.poll_action() {
            self.act(action, now);
        }
        if let Some(at) = self.machine.next_timeout()
            && self.tick_at.is_none_or(|old| at < old)
        {
            self.tick_at = Some(at);
            self.net.borrow_mut().at(at, Ev::CmTick { rank: self.rank });
        }
    }

    fn engine_request(&mut self) -> Option<Input> {
        let request = self.link.borrow_mut().requests.pop_front()?;
        Some(match request {
            CmRequest::Announce { name, addrs } => Input::Announce { name, addrs },
            CmRequest::Forget { name } => Input::Forget { name },
            CmRequest::Connect { name, class, rejoin } => Input::Want { name, class, rejoin },
            CmRequest::Disconnect { conn } => Input::Hangup { conn },
            CmRequest::Stop => Input::Stop,
        })
    }

    /// A request arrives: to a rank that does not listen it is refused.
    fn incoming(&mut self, wire: u32) -> Option<Input> {
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        // What was in the queue of a listener that is gone may still be answered.
        let stopped = self.stopped && net.rng.chance(1, 2);
        let listens = net.now >= net.opt.listen_at[self.rank as usize] && !stopped;
        let refuse = net.opt.cm.refuse;
        let host = &net.hosts[self.rank as usize];
        if host.vanished {
            return None;
        }
        let dead = host.dead || host.removed;
        let wired = &net.wires[wire as usize];
        let intruder = wired.from.is_none();
        if !listens || dead || (!intruder && refuse > 0 && net.rng.chance(1, refuse)) {
            if !intruder {
                net.inject(Hit::Refused);
                let (delay, why) = (net.rng.delay(net.opt.cm.wire), DialError::Refused);
                net.tell(wire, true, delay, Ev::CmDialError { wire, why });
            }
            return None;
        }
        if wired.over {
            return None;
        }
        let token = self.machine.token();
        let data = net.padded(wired.data, 56);
        net.wires[wire as usize].accept_conn = Some(token.get());
        self.conns.insert(
            token.get(),
            Conn { token, wire, lane: None, stage: Stage::Asked, dials: None },
        );
        Some(Input::Request { conn: token, data })
    }

    fn dial_conn(&self, wire: u32) -> u64 {
        self.net.borrow().wires[wire as usize].dial_conn
    }

    fn dial_up(&mut self, wire: u32) -> Option<Input> {
        let conn = self.conns.get_mut(&self.net.borrow().wires[wire as usize].dial_conn)?;
        if conn.stage != Stage::Dialing {
            return None;
        }
        conn.stage = Stage::Up;
        let mut net = self.net.borrow_mut();
        let wired = &net.wires[wire as usize];
        let (data, qp) = (net.padded(wired.data, 196), wired.dial_qp);
        if let Some(qp) = qp {
            net.qps[qp as usize].up = true;
        }
        Some(Input::DialDone { conn: conn.token, outcome: DialOutcome::Established(data) })
    }

    fn dial_over(&mut self, wire: u32, outcome: DialOutcome) -> Option<Input> {
        let id = self.dial_conn(wire);
        if self.conns.get(&id)?.stage != Stage::Dialing {
            return None;
        }
        let conn = self.conns.remove(&id)?;
        drop(conn.lane);
        Some(Input::DialDone { conn: conn.token, outcome })
    }

    fn accept_up(&mut self, wire: u32) -> Option<Input> {
        let id = self.net.borrow().wires[wire as usize].accept_conn?;
        let conn = self.conns.get_mut(&id)?;
        if conn.stage != Stage::Accepting {
            return None;
        }
        conn.stage = Stage::Up;
        let mut net = self.net.borrow_mut();
        if let Some(qp) = net.wires[wire as usize].accept_qp {
            net.qps[qp as usize].up = true;
        }
        Some(Input::AcceptDone { conn: conn.token, outcome: Ok(()) })
    }

    fn accept_over(&mut self, wire: u32, why: &str) -> Option<Input> {
        let id = self.net.borrow().wires[wire as usize].accept_conn?;
        if self.conns.get(&id)?.stage != Stage::Accepting {
            return None;
        }
        let conn = self.conns.remove(&id)?;
        drop(conn.lane);
        Some(Input::AcceptDone { conn: conn.token, outcome: Err(why.to_owned()) })
    }

    /// DISCONNECTED is read.
    fn gone(&mut self, wire: u32, initiator: bool) -> Option<Input> {
        let id = match initiator {
            true => self.dial_conn(wire),
            false => self.net.borrow().wires[wire as usize].accept_conn?,
        };
        let conn = self.conns.get(&id)?;
        match conn.stage {
            Stage::Up => Some(Input::Disconnected { conn: conn.token }),
            Stage::Dialing => self.dial_over(wire, DialOutcome::Failed("disconnected".into())),
            Stage::Accepting => self.accept_over(wire, "disconnected"),
            Stage::Asked => None,
        }
    }

    /// A dial or an accept takes too long and is interrupted.
    fn deadline(&mut self, id: u64) -> Option<Input> {
        let conn = self.conns.get(&id)?;
        let wire = conn.wire;
        match conn.stage {
            Stage::Dialing => {
                self.net.borrow_mut().cover.hit(Hit::DialDeadline);
                self.hang_up(wire, true);
                self.dial_over(wire, DialOutcome::Failed("timed out".into()))
            }
            Stage::Accepting => {
                self.hang_up(wire, false);
                self.accept_over(wire, "timed out")
            }
            Stage::Asked | Stage::Up => None,
        }
    }

    /// One side is done with a wire: the other one will read DISCONNECTED.
    fn hang_up(&mut self, wire: u32, initiator: bool) {
        let mut net = self.net.borrow_mut();
        let iwarp = net.opt.model.is_iwarp();
        let wired = &mut net.wires[wire as usize];
        let was_over = std::mem::replace(&mut wired.over, true);
        let replied = wired.replied;
        if was_over || wired.from.is_none() {
            return;
        }
        match (initiator, wired.accept_qp) {
            // iWARP: the end of the stream tells, when the queue pair is destroyed or before.
            (true, Some(qp)) if iwarp && replied => {
                let linked = net.qps[qp as usize].peer.is_some();
                debug_assert!(linked, "a replied wire has both ends");
            }
            (true, Some(_)) => {
                if iwarp {
                    let qp = net.wires[wire as usize].accept_qp;
                    qp.into_iter().for_each(|qp| net.fail_qp(qp, None));
                }
                net.tell_gone(wire, false);
            }
            (true, None) => {}
            (false, _) if iwarp && replied => {}
            (false, _) => {
                let delay = net.opt.cm.wire;
                let delay = net.rng.delay(delay);
                if replied {
                    net.tell_gone(wire, true);
                } else {
                    let why = DialError::ConnectError;
                    net.tell(wire, true, delay, Ev::CmDialError { wire, why });
                }
            }
        }
    }

    fn act(&mut self, action: Action, now: u64) {
        match action {
            Action::Dial { conn, name, class, addr, data, deadline } => {
                self.dial(conn, (name, class), addr, data);
                let ev = Ev::CmDeadline { rank: self.rank, conn: conn.get() };
                self.net.borrow_mut().at(deadline.max(now), ev);
            }
            Action::Accept { conn, name, class, data, deadline } => {
                self.check_crossing(name, class);
                self.accept(conn, class, data);
                let ev = Ev::CmDeadline { rank: self.rank, conn: conn.get() };
                self.net.borrow_mut().at(deadline.max(now), ev);
            }
            Action::Reject { conn, data } => self.reject(conn, data),
            Action::HandOver { conn, name, class, role, agreed, announced } => {
                let up = LaneHead { name, class, role, announced, conn };
                self.hand_over(up, agreed);
            }
            Action::Drop { conn } => {
                if let Some(it) = self.conns.remove(&conn.get()) {
                    let initiator = self.dial_conn(it.wire) == conn.get()
                        && self.net.borrow().wires[it.wire as usize].from == Some(self.rank);
                    self.hang_up(it.wire, initiator);
                    drop(it.lane);
                }
            }
            Action::Failed { name, class, fault } => {
                self.deliver(CmEvent::ConnectFailed { name, class, fault });
            }
            Action::Gone { conn } => self.deliver(CmEvent::Disconnected { conn }),
            Action::Stopped => {
                self.stopped = true;
                self.deliver(CmEvent::Stopped);
            }
        }
    }

    /// A queue pair with its receives posted.
    fn set_up(&mut self, class: u8, role: Role, wire: u32) -> Option<SetupLane<SimQp>> {
        if self.net.borrow().hosts[self.rank as usize].removed {
            return None;
        }
        let acceptor = role == Role::Acceptor;
        let id = self.net.borrow_mut().create_qp(self.rank, class, acceptor, wire);
        let qp = SimQp::new(&self.net, id);
        let mut lane = SetupLane::new(&self.config, class, role, qp).ok()?;
        {
            let mut net = self.net.borrow_mut();
            let wired = &mut net.wires[wire as usize];
            *(if acceptor { &mut wired.accept_qp } else { &mut wired.dial_qp }) = Some(id);
        }
        // A refused post is tried again; now and then the driver gives up instead.
        let give_up = self.net.borrow_mut().rng.chance(1, 20);
        for _ in 0..if give_up { 1 } else { 4 * lane.missing() } {
            let slots: Vec<SimSlot> = {
                let host = &mut self.net.borrow_mut().hosts[self.rank as usize];
                (0..lane.missing()).map(|_| host.slots.take_recv(class)).collect()
            };
            let mut slots = slots.into_iter();
            let posted = lane.post_receives(slots.by_ref());
            let refused = posted.is_err();
            let back = posted.err().and_then(|Refused { slot, .. }| slot);
            for slot in slots.chain(back) {
                self.give_back(slot);
            }
            if !refused {
                return Some(lane);
            }
        }
        None
    }

    fn give_back(&self, slot: SimSlot) {
        let mut net = self.net.borrow_mut();
        let back = net.hosts[self.rank as usize].slots.give_back(slot);
        net.own(back);
    }

    /// L4: who wins keeps its dial, and takes no other.
    fn check_crossing(&self, name: ProcName, class: u8) {
        let crosses =
            |conn: &Conn| conn.stage == Stage::Dialing && conn.dials == Some((name, class));
        if self.config.me < name && self.conns.values().any(crosses) {
            let what = format!("rank {} accepts {name} lane {class}, which it dials", self.rank);
            self.net.borrow_mut().fail(Invariant::L4, what);
        }
    }

    fn dial(
        &mut self,
        token: ConnToken,
        (name, class): (ProcName, u8),
        addr: SocketAddr,
        data: PrivateData,
    ) {
        let wire = {
            let mut net = self.net.borrow_mut();
            let to = rank_at(&net.opt, addr).unwrap_or(self.rank);
            let dial_conn = token.get();
            net.wires.push(Wire { dial_conn, ..Wire::new(Some(self.rank), to, data) });
            net.wires.len() as u32 - 1
        };
        let lane = self.set_up(class, Role::Initiator, wire);
        let failed = lane.is_none();
        let (stage, dials) = (Stage::Dialing, Some((name, class)));
        self.conns.insert(token.get(), Conn { token, wire, lane, stage, dials });
        let mut net = self.net.borrow_mut();
        let (from, class) = (u64::from(self.rank), u64::from(class));
        let now = net.now;
        let to = u64::from(net.wires[wire as usize].to);
        net.trace.note(now, "dial", from, to, class);
        let delay = net.opt.cm.wire;
        let delay = net.rng.delay(delay);
        let lose = net.opt.cm.lose_request;
        if failed {
            let why = DialError::NoResources;
            net.tell(wire, true, 0, Ev::CmDialError { wire, why });
        } else if rank_at(&net.opt, addr).is_none() {
            net.inject(Hit::Refused);
            let why = DialError::Refused;
            net.tell(wire, true, delay, Ev::CmDialError { wire, why });
        } else if lose > 0 && net.rng.chance(1, lose) {
            net.inject(Hit::Lost);
        } else {
            net.tell(wire, false, delay, Ev::CmIncoming { wire });
            net.more_events(wire);
        }
    }

    fn accept(&mut self, token: ConnToken, class: u8, data: PrivateData) {
        let Some(wire) = self.conns.get(&token.get()).map(|conn| conn.wire) else { return };
        let lane = self.set_up(class, Role::Acceptor, wire);
        let Some(conn) = self.conns.get_mut(&token.get()) else { return };
        conn.stage = Stage::Accepting;
        let (over, dial_qp) = {
            let net = self.net.borrow();
            (net.wires[wire as usize].over, net.wires[wire as usize].dial_qp)
        };
        let lane = match self.phantom(wire, lane) {
            Ok(()) => return,
            Err(lane) => lane,
        };
        let Some(conn) = self.conns.get_mut(&token.get()) else { return };
        let (Some(mut lane), false, Some(dial_qp)) = (lane, over, dial_qp) else {
            self.cannot_accept(wire);
            return;
        };
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        let wired = &mut net.wires[wire as usize];
        wired.data = data;
        let accept_qp = lane.qp_mut().id;
        conn.lane = Some(lane);
        net.qps[accept_qp as usize].peer = Some(dial_qp);
        net.qps[dial_qp as usize].peer = Some(accept_qp);
        net.check.join(accept_qp, dial_qp);
        if net.opt.recovers(self.rank, net.qps[dial_qp as usize].rank) {
            net.check.recovers(accept_qp, dial_qp);
        }
        net.set_rts(accept_qp);
        net.trace.note(net.now, "accept", u64::from(self.rank), u64::from(accept_qp), 0);
        let down = net.blocked(self.rank, net.qps[dial_qp as usize].rank);
        let down = down.map_or(0, |(until, _)| until - net.now);
        let arrives = net.rng.delay(net.opt.cm.wire) + down;
        let read = net.rng.delay(net.opt.cm.read_reply);
        // The reply travels in front of whatever the acceptor sends.
        net.qps[accept_qp as usize].last_arrival = net.now + arrives;
        net.after(arrives + read, Ev::CmReply { wire });
        if net.opt.model.is_iwarp() {
            // ESTABLISHED says only that the reply was written.
            net.tell(wire, false, 0, Ev::CmAcceptUp { wire });
        }
    }

    /// A request that came twice is accepted as any other, and ends as soon as the other end
    /// finds that it knows nothing of it. `Err`: it is no such request.
    fn phantom(
        &mut self,
        wire: u32,
        lane: Option<SetupLane<SimQp>>,
    ) -> Result<(), Option<SetupLane<SimQp>>> {
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        let mut lane = match lane {
            Some(lane) if net.wires[wire as usize].replay => lane,
            other => return Err(other),
        };
        net.inject(Hit::Phantom);
        let (conn, q) = (net.wires[wire as usize].accept_conn, lane.qp_mut().id);
        if let Some(conn) = conn.and_then(|conn| self.conns.get_mut(&conn)) {
            conn.lane = Some(lane);
        }
        net.set_rts(q);
        if net.opt.model.is_iwarp() {
            net.tell(wire, false, 0, Ev::CmAcceptUp { wire });
        }
        let delay = net.rng.delay(net.opt.cm.wire) + net.rng.below(5_000_000);
        net.after(delay, Ev::PhantomEnd { wire });
        Ok(())
    }

    /// The device is gone, and all its connections with it.
    pub(crate) fn device_removed(&mut self) {
        self.deliver(CmEvent::DeviceRemoved);
        let all: Vec<(u64, u32, Stage)> =
            self.conns.iter().map(|(id, conn)| (*id, conn.wire, conn.stage)).collect();
        for (id, wire, stage) in all {
            let input = match stage {
                Stage::Dialing => {
                    self.net.borrow_mut().wires[wire as usize].over = true;
                    self.dial_over(wire, DialOutcome::Failed("the device was removed".into()))
                }
                Stage::Accepting => self.accept_over(wire, "the device was removed"),
                Stage::Asked | Stage::Up => {
                    let conn = self.conns.remove(&id).map(|conn| conn.token);
                    conn.map(|conn| Input::Disconnected { conn })
                }
            };
            input.into_iter().for_each(|input| self.feed(input));
        }
    }

    /// Connections the machine knows (S10).
    pub(crate) fn connections(&self) -> usize {
        self.machine.connections()
    }

    /// No queue pair, or the dialler has given up.
    fn cannot_accept(&self, wire: u32) {
        let mut net = self.net.borrow_mut();
        let wired = &mut net.wires[wire as usize];
        if wired.from.is_none() {
            if !wired.replay {
                let what = "a request that is not of a peer was accepted";
                net.fail(Invariant::S12, what.to_owned());
            }
        } else if !wired.over {
            wired.over = true;
            wired.data = RejectReason::Busy.encode();
            let delay = net.opt.cm.wire;
            let delay = net.rng.delay(delay);
            net.tell(wire, true, delay, Ev::CmRejected { wire });
        }
        net.tell(wire, false, 0, Ev::CmAcceptError { wire });
    }

    fn reject(&mut self, token: ConnToken, data: PrivateData) {
        let Some(conn) = self.conns.remove(&token.get()) else { return };
        let mut net = self.net.borrow_mut();
        net.count_reject(data.as_slice());
        let wired = &mut net.wires[conn.wire as usize];
        wired.over = true;
        wired.data = data;
        if wired.from.is_none() {
            net.check_intruder(conn.wire);
            return;
        }
        // Of two crossing connects the lower name's stays: only it may say so.
        let from = wired.from;
        if frame::reject_code(data.as_slice()) == Some(5) && from < Some(self.rank) {
            let what = format!("rank {} rejects {from:?} as crossing, but loses", self.rank);
            net.fail(Invariant::L4, what);
        }
        let delay = net.opt.cm.wire;
        let delay = net.rng.delay(delay);
        net.tell(conn.wire, true, delay, Ev::CmRejected { wire: conn.wire });
    }

    fn hand_over(&mut self, head: LaneHead, agreed: Agreed) {
        let conn = head.conn;
        let lane = self.conns.get_mut(&conn.get()).and_then(|it| it.lane.take());
        let Some(lane) = lane else { return };
        let control = self.net.borrow_mut().hosts[self.rank as usize].slots.take_control();
        match lane.established(agreed, control) {
            Ok(lane) => {
                let LaneHead { name, class, role, announced, conn } = head;
                let up = LaneUp { name, class, role, announced, conn, lane };
                self.deliver(CmEvent::LaneUp(up));
            }
            Err((qp, error)) => {
                drop(qp);
                let why = error.to_string();
                if let Some(it) = self.conns.remove(&conn.get()) {
                    self.hang_up(it.wire, head.role == Role::Initiator);
                }
                self.feed(Input::HandOverFailed { conn, why });
            }
        }
    }

    /// An event for the engine, which sees it after a while, in order.
    fn deliver(&mut self, event: CmEvent<SimQp>) {
        self.link.borrow_mut().outbox.push_back(event);
        let mut net = self.net.borrow_mut();
        let delay = net.opt.cm.hand_over;
        let at = net.now + net.rng.delay(delay);
        let host = &mut net.hosts[self.rank as usize];
        host.last_deliver = at.max(host.last_deliver);
        let at = host.last_deliver;
        net.at(at, Ev::CmDeliver { rank: self.rank });
    }
}

struct LaneHead {
    name: ProcName,
    class: u8,
    role: Role,
    announced: bool,
    conn: ConnToken,
}

impl crate::net::Net {
    /// Private data as the connection manager delivers it: InfiniBand pads it to its own size.
    fn padded(&self, data: PrivateData, size: usize) -> PrivateData {
        if self.opt.model.is_iwarp() {
            return data;
        }
        let mut bytes = data.as_slice().to_vec();
        bytes.resize(size, 0);
        PrivateData::from_slice(&bytes)
    }

    /// What else may happen to a request: it comes again, and its connection sees events that
    /// mean nothing to it.
    fn more_events(&mut self, wire: u32) {
        let (duplicate, noise) = (self.opt.cm.duplicate, self.opt.cm.noise);
        if duplicate > 0 && self.duplicates > 0 && self.rng.chance(1, duplicate) {
            self.duplicates -= 1;
            self.inject(Hit::Duplicate);
            let first = &self.wires[wire as usize];
            let again = Wire { replay: true, ..Wire::new(None, first.to, first.data) };
            self.wires.push(again);
            let again = self.wires.len() as u32 - 1;
            let delay = self.rng.delay(self.opt.cm.wire) * self.rng.range(1, 8);
            self.tell(again, false, delay, Ev::CmIncoming { wire: again });
        }
        if noise > 0 && self.rng.chance(1, noise) {
            let initiator = self.rng.chance(1, 2);
            let delay = self.rng.delay(self.opt.cm.wire) * self.rng.range(1, 8);
            self.after(delay, Ev::CmNoise { wire, initiator });
        }
    }

    /// The other end of a connection that nobody is behind ends it.
    pub(crate) fn phantom_end(&mut self, wire: u32) {
        let Some(q) = self.wires[wire as usize].accept_qp else { return };
        if self.qps[q as usize].state == State::Rts {
            self.fail_qp(q, None);
        }
        self.tell_gone(wire, false);
    }

    /// The initiator's device has read the reply: it is connected.
    pub(crate) fn reply(&mut self, wire: u32) {
        let wired = &mut self.wires[wire as usize];
        if wired.over {
            return;
        }
        wired.replied = true;
        let Some(qp) = wired.dial_qp else { return };
        self.set_rts(qp);
        if self.qps[qp as usize].state != State::Rts {
            return;
        }
        self.tell(wire, true, 0, Ev::CmDialUp { wire });
        if !self.opt.model.is_iwarp() {
            // The acceptor reads ESTABLISHED when the ready-to-use message is there.
            let delay = self.rng.delay(self.opt.cm.wire);
            self.tell(wire, false, delay, Ev::CmAcceptUp { wire });
        }
    }
}
