//! What peers cost: known ones, and connected ones.
#![allow(missing_docs)]
use btl_core::connect::{Action, DialOutcome, Input, Machine};
use btl_core::error::PortError;
use btl_core::lane::SendPermit;
use btl_core::port::{
    Cm, CmEvent, CmRequest, Completion, LaneUp, Op, Port, Posted, Refused, SetupQp, Status,
};
use btl_core::setup::SetupLane;
use btl_core::wire::Greeting;
use btl_core::{Config, Engine, Event, LaneId, ProcName};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

/// Bytes that are allocated.
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A device whose receives take no memory, so that only the engine's and the connection machine's own state counts.
#[derive(Default)]
struct Device {
    /// What is to be polled.
    done: VecDeque<Completion<Box<[u8]>>>,
    /// The greeting that the last queue pair sent.
    said: Option<Box<[u8]>>,
}

type Shared = Rc<RefCell<Device>>;

struct Qp(Shared);

impl SetupQp for Qp {
    type Slot = Box<[u8]>;
    fn post_recv(&mut self, _: Box<[u8]>) -> Result<(), Refused<Box<[u8]>>> {
        Ok(())
    }
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Box<[u8]>,
        len: usize,
    ) -> Result<Posted, Refused<Box<[u8]>>> {
        self.0.borrow_mut().said = Some(slot[..len].into());
        Ok(permit.posted())
    }
}

struct Nowhere(Shared);

impl Port for Nowhere {
    type Slot = Box<[u8]>;
    type Qp = Qp;
    type Memory = std::convert::Infallible;
    /// The peer's answer is there at once: the greeting turned round.
    fn attach(&mut self, lane: LaneId, _: Qp) -> Result<(), PortError> {
        let mut device = self.0.borrow_mut();
        let Some(mut slot) = device.said.take() else { return Ok(()) };
        let len = slot.len();
        slot[0] += 1;
        let recv = Completion { lane, op: Op::Recv, slot: Some(slot), len, status: Status::Ok };
        let control = Some(vec![0; 64].into());
        let sent = Completion { lane, op: Op::Send, slot: control, len: 0, status: Status::Ok };
        device.done.extend([sent, recv]);
        Ok(())
    }
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Box<[u8]>,
        _: usize,
    ) -> Result<Posted, Refused<Box<[u8]>>> {
        let (lane, op, status) = (permit.lane(), Op::Send, Status::Ok);
        let done = Completion { lane, op, slot: Some(slot), len: 0, status };
        self.0.borrow_mut().done.push_back(done);
        Ok(permit.posted())
    }
    fn post_recv(&mut self, _: LaneId, _: Box<[u8]>) -> Result<(), Refused<Box<[u8]>>> {
        Ok(())
    }
    fn poll(&mut self) -> Option<Completion<Box<[u8]>>> {
        self.0.borrow_mut().done.pop_front()
    }
    fn close(&mut self, _: LaneId) -> Vec<Box<[u8]>> {
        Vec::new()
    }
    fn send_slot(&mut self, _: u8) -> Option<Box<[u8]>> {
        Some(vec![0; 64].into())
    }
    fn recycle(&mut self, _: Box<[u8]>) {}
}

/// A connection manager whose dials all succeed.
struct Easy {
    device: Shared,
    config: Config,
    machine: Machine,
    events: VecDeque<CmEvent<Qp>>,
}

impl Easy {
    fn act(&mut self, action: Action) {
        match action {
            Action::Dial { conn, data, .. } => {
                let hello = Greeting::decode(&data).expect("a greeting");
                let answer = Greeting { from: hello.to, to: hello.from, ..hello };
                let outcome = DialOutcome::Established(answer.encode());
                self.machine.handle(Input::DialDone { conn, outcome }, 0);
            }
            Action::HandOver { conn, name, class, role, agreed, announced } => {
                let qp = Qp(Rc::clone(&self.device));
                let mut lane = SetupLane::new(&self.config, class, role, qp).expect("a lane");
                lane.post_receives(std::iter::repeat_with(Box::default)).expect("posted");
                let up = lane.established(agreed, vec![0; 64].into());
                let lane = up.map_err(|(_, e)| e).expect("a Hello");
                let up = LaneUp { name, class, role, announced, conn, lane };
                self.events.push_back(CmEvent::LaneUp(up));
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Cm for Easy {
    type Qp = Qp;
    fn request(&mut self, request: CmRequest) {
        let input = match request {
            CmRequest::Announce { name, addrs } => Input::Announce { name, addrs },
            CmRequest::Connect { name, class, rejoin } => Input::Want { name, class, rejoin },
            other => panic!("{other:?}"),
        };
        self.machine.handle(input, 0);
    }
    fn poll(&mut self) -> Option<CmEvent<Qp>> {
        while self.events.is_empty()
            && let Some(action) = self.machine.poll_action()
        {
            self.act(action);
        }
        self.events.pop_front()
    }
}

const PEERS: usize = 10_000;

/// The other test allocates next to nothing: the count is of the process.
#[test]
fn peers_cost_no_more_than_promised() {
    let config = Config::new(ProcName { job: 1, rank: u32::MAX }, 1);
    let device = Shared::default();
    let machine = Machine::new(&config);
    let cm = Easy {
        device: Rc::clone(&device),
        config: config.clone(),
        machine,
        events: VecDeque::new(),
    };
    let lanes = config.lanes.len();
    let at_start = LIVE.load(Ordering::Relaxed);
    let mut engine = Engine::new(config, Nowhere(Rc::clone(&device)), cm).expect("an engine");
    let empty = LIVE.load(Ordering::Relaxed);
    let mut peers = Vec::with_capacity(PEERS);
    let outside = PEERS * size_of::<btl_core::PeerId>();
    for rank in 0..PEERS as u32 {
        let addr = SocketAddr::from(([10, 0, (rank >> 8) as u8, rank as u8], 7000));
        peers.push(engine.add_peer(ProcName { job: 1, rank }, &[addr]).expect("a peer"));
    }
    let known = (LIVE.load(Ordering::Relaxed) - empty - outside) / PEERS;
    assert!(known <= 1024, "a known peer costs {known} bytes");

    for peer in &peers {
        for class in 0..lanes {
            let len = engine.max_payload(class as u8);
            let buf = engine.alloc(len).expect("a buffer");
            assert!(engine.send(*peer, 0, buf, 0).is_ok());
            while let Some(event) = engine.poll(0) {
                if let Event::Sent { buf: Some(buf), .. } = event {
                    engine.free(buf);
                }
            }
        }
    }
    assert_eq!(engine.gauges().lanes, PEERS * lanes);
    assert_eq!(engine.stats().messages_sent, (PEERS * lanes) as u64);
    let all = LIVE.load(Ordering::Relaxed) - at_start - outside;
    println!(
        "a known peer: {known} bytes, a connected one: {} bytes",
        (all - (empty - at_start)) / PEERS
    );
    assert!(all <= 200 << 20, "{all} bytes for {PEERS} connected peers");
}

/// What is pinned for a connected peer that is idle: its receives. Control buffers, and what the driver keeps spare, have
/// the rest (measured on devices: `device_routes.rs`).
#[test]
fn the_receives_of_a_peer_fit_in_half_a_mebibyte() {
    let config = Config::new(ProcName { job: 1, rank: 0 }, 1);
    let pinned = config.lanes.iter().map(|l| l.buffer_size as usize * usize::from(l.depth));
    assert_eq!(pinned.sum::<usize>(), 448 << 10);
}
