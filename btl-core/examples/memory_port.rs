//! The smallest complete port: processes that live in one program, connected by memory.
//!
//! Everything a port on real hardware has to do is here once: slots with one owner, completions in order, a connection
//! manager that carries out what the connection machine decides.
use btl_core::connect::{Action, DialOutcome, Input, Machine};
use btl_core::error::PortError;
use btl_core::lane::SendPermit;
use btl_core::port::{
    Cm, CmEvent, CmRequest, Completion, LaneUp, Op, Port, Posted, Refused, RefusedWhy, SetupQp,
    Status,
};
use btl_core::setup::SetupLane;
use btl_core::wire::PrivateData;
use btl_core::{Config, ConnToken, Engine, Event, LaneId, ProcName, Role};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

/// Memory with one owner. A boxed slice does not move when the box does.
type Slot = Box<[u8]>;
type Shared = Rc<RefCell<Fabric>>;

#[derive(Default)]
struct Fabric {
    qps: Vec<Qp>,
    /// What the connection managers of the processes have to read.
    mail: Vec<VecDeque<Mail>>,
}

/// One end of a connection.
#[derive(Default)]
struct Qp {
    peer: Option<usize>,
    receives: VecDeque<Slot>,
    done: VecDeque<(Op, Slot, usize, Status)>,
}

enum Mail {
    Request { from: usize, theirs: ConnToken, qp: usize, data: PrivateData },
    Accepted { conn: ConnToken, data: PrivateData },
    Rejected { conn: ConnToken, data: PrivateData },
    Gone { qp: usize },
}

impl Fabric {
    fn send(&mut self, from: usize, slot: Slot, len: usize) -> Result<(), Refused<Slot>> {
        let Some(to) = self.qps[from].peer else {
            // The connection is over: like a device, take the post and flush it.
            self.qps[from].done.push_back((Op::Send, slot, 0, Status::Flushed));
            return Ok(());
        };
        let Some(mut receive) = self.qps[to].receives.pop_front() else {
            // Cannot happen while credits are kept. A device would end the connection.
            let why = RefusedWhy::Broken(PortError::new(0, "no receive is posted"));
            return Err(Refused { why, slot: Some(slot) });
        };
        receive[..len].copy_from_slice(&slot[..len]);
        self.qps[to].done.push_back((Op::Recv, receive, len, Status::Ok));
        self.qps[from].done.push_back((Op::Send, slot, 0, Status::Ok));
        Ok(())
    }
}

/// What the connection manager's side has of a connection before the engine gets it.
struct MemoryQp(Shared, usize);

impl SetupQp for MemoryQp {
    type Slot = Slot;

    fn post_recv(&mut self, slot: Slot) -> Result<(), Refused<Slot>> {
        self.0.borrow_mut().qps[self.1].receives.push_back(slot);
        Ok(())
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        self.0.borrow_mut().send(self.1, slot, len)?;
        Ok(permit.posted())
    }
}

struct MemoryPort {
    fabric: Shared,
    lanes: BTreeMap<LaneId, usize>,
    /// Send buffers by class, and how long they are.
    pools: Vec<(usize, Vec<Slot>)>,
}

impl Port for MemoryPort {
    type Slot = Slot;
    type Qp = MemoryQp;
    // No one-sided operations.
    type Memory = std::convert::Infallible;

    fn attach(&mut self, lane: LaneId, qp: MemoryQp) -> Result<(), PortError> {
        self.lanes.insert(lane, qp.1);
        Ok(())
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        // The permit names the lane: nothing else may.
        self.fabric.borrow_mut().send(self.lanes[&permit.lane()], slot, len)?;
        Ok(permit.posted())
    }

    fn post_recv(&mut self, lane: LaneId, slot: Slot) -> Result<(), Refused<Slot>> {
        self.fabric.borrow_mut().qps[self.lanes[&lane]].receives.push_back(slot);
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion<Slot>> {
        let mut fabric = self.fabric.borrow_mut();
        self.lanes.iter().find_map(|(lane, qp)| {
            let (op, slot, len, status) = fabric.qps[*qp].done.pop_front()?;
            Some(Completion { lane: *lane, op, slot: Some(slot), len, status })
        })
    }

    fn close(&mut self, lane: LaneId) -> Vec<Slot> {
        let Some(qp) = self.lanes.remove(&lane) else { return Vec::new() };
        let qp = std::mem::take(&mut self.fabric.borrow_mut().qps[qp]);
        let done = qp.done.into_iter().map(|(_, slot, ..)| slot);
        qp.receives.into_iter().chain(done).collect()
    }

    fn send_slot(&mut self, class: u8) -> Option<Slot> {
        self.pools.get_mut(usize::from(class))?.1.pop()
    }

    fn recycle(&mut self, slot: Slot) {
        // Send buffers are one byte longer than receives, to know them again; a receive is just freed.
        if let Some((_, pool)) = self.pools.iter_mut().find(|(len, _)| *len == slot.len()) {
            pool.push(slot);
        }
    }
}

/// Drives the connection machine. On hardware this is a thread of its own, so that connecting does not need the program.
struct MemoryCm {
    fabric: Shared,
    me: usize,
    config: Config,
    machine: Machine,
    /// Connections that are not up yet, and the queue pair of every one.
    setup: BTreeMap<ConnToken, SetupLane<MemoryQp>>,
    qps: BTreeMap<ConnToken, usize>,
    /// Whose request it is: process, its name for it, its queue pair.
    requests: BTreeMap<ConnToken, (usize, ConnToken, usize)>,
    events: VecDeque<CmEvent<MemoryQp>>,
}

impl MemoryCm {
    /// A queue pair with all its receives posted, before anything is connected.
    fn make(&mut self, conn: ConnToken, class: u8, role: Role) -> usize {
        let mut fabric = self.fabric.borrow_mut();
        fabric.qps.push(Qp::default());
        let qp = fabric.qps.len() - 1;
        drop(fabric);
        let it = MemoryQp(Rc::clone(&self.fabric), qp);
        let mut lane = SetupLane::new(&self.config, class, role, it).expect("the class exists");
        let size = self.config.lanes[usize::from(class)].buffer_size as usize;
        lane.post_receives(std::iter::repeat_with(|| vec![0; size].into())).expect("never refused");
        self.setup.insert(conn, lane);
        self.qps.insert(conn, qp);
        qp
    }

    fn read(&mut self, mail: Mail) {
        let input = match mail {
            Mail::Request { from, theirs, qp, data } => {
                let conn = self.machine.token();
                self.requests.insert(conn, (from, theirs, qp));
                Input::Request { conn, data }
            }
            Mail::Accepted { conn, data } => {
                Input::DialDone { conn, outcome: DialOutcome::Established(data) }
            }
            Mail::Rejected { conn, data } => {
                Input::DialDone { conn, outcome: DialOutcome::Rejected(data) }
            }
            Mail::Gone { qp } => match self.qps.iter().find(|(_, it)| **it == qp) {
                Some((conn, _)) => Input::Disconnected { conn: *conn },
                None => return,
            },
        };
        self.machine.handle(input, 0);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dial { conn, class, addr, data, .. } => {
                let (from, qp) = (self.me, self.make(conn, class, Role::Initiator));
                let mail = Mail::Request { from, theirs: conn, qp, data };
                self.fabric.borrow_mut().mail[usize::from(addr.port())].push_back(mail);
            }
            Action::Accept { conn, class, data, .. } => {
                let Some((from, theirs, peer)) = self.requests.remove(&conn) else { return };
                let qp = self.make(conn, class, Role::Acceptor);
                let mut fabric = self.fabric.borrow_mut();
                (fabric.qps[qp].peer, fabric.qps[peer].peer) = (Some(peer), Some(qp));
                fabric.mail[from].push_back(Mail::Accepted { conn: theirs, data });
                drop(fabric);
                self.machine.handle(Input::AcceptDone { conn, outcome: Ok(()) }, 0);
            }
            Action::Reject { conn, data } => {
                let Some((from, conn, _)) = self.requests.remove(&conn) else { return };
                self.fabric.borrow_mut().mail[from].push_back(Mail::Rejected { conn, data });
            }
            Action::HandOver { conn, name, class, role, agreed, announced } => {
                // The initiator's Hello goes out in here, in the buffer for control messages.
                let lane = self.setup.remove(&conn);
                let Some(Ok(lane)) = lane.map(|l| l.established(agreed, vec![0; 64].into())) else {
                    return;
                };
                let up = LaneUp { name, class, role, announced, conn, lane };
                self.events.push_back(CmEvent::LaneUp(up));
            }
            Action::Drop { conn } => {
                self.setup.remove(&conn);
                let Some(qp) = self.qps.remove(&conn) else { return };
                let mut fabric = self.fabric.borrow_mut();
                // Both ends learn of it; which process the other end is in does not matter here.
                let peer = fabric.qps.iter().position(|it| it.peer == Some(qp));
                if let Some(peer) = peer {
                    fabric.qps[peer].peer = None;
                    fabric.mail.iter_mut().for_each(|m| m.push_back(Mail::Gone { qp: peer }));
                }
            }
            Action::Failed { name, class, fault } => {
                self.events.push_back(CmEvent::ConnectFailed { name, class, fault });
            }
            Action::Gone { conn } => self.events.push_back(CmEvent::Disconnected { conn }),
            Action::Stopped => self.events.push_back(CmEvent::Stopped),
        }
    }
}

impl Cm for MemoryCm {
    type Qp = MemoryQp;

    fn request(&mut self, request: CmRequest) {
        let input = match request {
            CmRequest::Announce { name, addrs } => Input::Announce { name, addrs },
            CmRequest::Forget { name } => Input::Forget { name },
            CmRequest::Connect { name, class, rejoin } => Input::Want { name, class, rejoin },
            CmRequest::Disconnect { conn } => Input::Hangup { conn },
            CmRequest::Stop => Input::Stop,
        };
        self.machine.handle(input, 0);
    }

    fn poll(&mut self) -> Option<CmEvent<MemoryQp>> {
        loop {
            let mail = self.fabric.borrow_mut().mail[self.me].pop_front();
            let Some(mail) = mail else { break };
            self.read(mail);
        }
        while let Some(action) = self.machine.poll_action() {
            self.act(action);
        }
        self.events.pop_front()
    }
}

/// An engine for process `me`.
fn engine(fabric: &Shared, me: usize) -> Engine<MemoryPort, MemoryCm> {
    fabric.borrow_mut().mail.push(VecDeque::new());
    let config = Config::new(name(me), 1);
    let pool = |lane: &btl_core::LaneConfig| {
        let len = lane.buffer_size as usize + 1;
        (len, (0..lane.send_slots).map(|_| vec![0; len].into()).collect())
    };
    let pools = config.lanes.iter().map(pool).collect();
    let port = MemoryPort { fabric: Rc::clone(fabric), lanes: BTreeMap::new(), pools };
    let cm = MemoryCm {
        fabric: Rc::clone(fabric),
        me,
        machine: Machine::new(&config),
        config: config.clone(),
        setup: BTreeMap::new(),
        qps: BTreeMap::new(),
        requests: BTreeMap::new(),
        events: VecDeque::new(),
    };
    Engine::new(config, port, cm).expect("the default settings are valid")
}

fn name(me: usize) -> ProcName {
    ProcName { job: 1, rank: me as u32 }
}

fn main() {
    let fabric = Shared::default();
    let mut engines = [engine(&fabric, 0), engine(&fabric, 1)];
    let there = SocketAddr::from(([127, 0, 0, 1], 1));
    let peer = engines[0].add_peer(name(1), &[there]).expect("the first one");
    for n in 0..100u8 {
        let mut buf = engines[0].alloc(3).expect("there are more than a hundred");
        buf.copy_from_slice(&[n; 3]);
        engines[0].send(peer, n, buf, n.into()).expect("the peer is there");
    }
    let (mut heard, mut sent) = (0, 0);
    while heard < 100 || sent < 100 {
        for engine in &mut engines {
            match engine.poll(0) {
                Some(Event::Message { tag, buf, .. }) => {
                    assert_eq!((tag, &buf[..]), (heard, &[heard; 3][..]), "in order, unchanged");
                    heard += 1;
                    engine.release(buf);
                }
                Some(Event::Sent { buf, result, .. }) => {
                    assert_eq!(result, Ok(()));
                    sent += 1;
                    buf.into_iter().for_each(|buf| engine.free(buf));
                }
                _ => {}
            }
        }
    }
    engines.iter_mut().for_each(|engine| engine.close(0));
    let mut open = 2;
    while open > 0 {
        for engine in &mut engines {
            open -= u32::from(matches!(engine.poll(0), Some(Event::Closed)));
        }
    }
}
