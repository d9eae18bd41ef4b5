//! Programs of somebody else on the simulated fabric: one engine each, as on real devices.
//!
//! ```
//! use btl_core::{Event, Nanos};
//! use btl_sim::program::{Program, SimEngine, run};
//! use btl_sim::Model;
//!
//! /// Rank 0 sends one message to rank 1.
//! struct Hello {
//!     engine: SimEngine,
//!     waits: bool,
//! }
//!
//! impl Program for Hello {
//!     fn poll(&mut self, now: Nanos) -> bool {
//!         match self.engine.poll(now) {
//!             Some(Event::Message { buf, .. }) => {
//!                 self.waits &= &buf[..] != b"hello";
//!                 self.engine.release(buf);
//!                 true
//!             }
//!             Some(Event::Sent { buf: Some(buf), .. }) => {
//!                 self.engine.free(buf);
//!                 true
//!             }
//!             event => event.is_some(),
//!         }
//!     }
//!     fn is_done(&self) -> bool {
//!         !self.waits
//!     }
//! }
//!
//! let out = run(Model::Siw, 7, 2, |rank, mut engine, peers| {
//!     if rank == 0 {
//!         let mut buf = engine.alloc(5).expect("nothing is in use yet");
//!         buf.copy_from_slice(b"hello");
//!         let peer = peers[1].expect("all others are peers");
//!         engine.send(peer, 0, buf, 0).expect("it is there");
//!     }
//!     Hello { engine, waits: rank == 1 }
//! });
//! assert!(out.violations.is_empty(), "{:?}", out.violations);
//! ```
use crate::check::{Invariant, Violation};
use crate::cm::{CmSide, JOB, addr_of, name_of};
use crate::net::{Ev, Net};
use crate::options::{Model, Options};
use crate::port::{Link, SharedNet};
use btl_core::{Config, Engine, Nanos, PeerId, SECOND};
use std::cell::RefCell;
use std::rc::Rc;

pub use crate::port::{SimCm, SimPort};

/// An engine on the simulated fabric.
pub type SimEngine = Engine<SimPort, SimCm>;

/// A program with an engine.
pub trait Program {
    /// Polls the engine once and handles what comes. `false`: there was nothing.
    fn poll(&mut self, now: Nanos) -> bool;

    /// Whether it waits for nothing more.
    fn is_done(&self) -> bool;
}

/// What came of a run.
#[derive(Debug)]
pub struct ProgramsDone<T> {
    /// The programs as they ended.
    pub programs: Vec<T>,
    /// Broken invariants; `L1` if not all programs were done within 1,000 simulated seconds.
    pub violations: Vec<Violation>,
    /// Simulated time, in nanoseconds.
    pub time: Nanos,
}

struct Node<T> {
    program: T,
    cm: CmSide,
    link: Rc<RefCell<Link>>,
}

/// Polls between two looks at the connection manager.
const POLLS: u32 = 16;
/// Pause after an empty poll.
const IDLE: Nanos = 20_000;
const LIMIT: Nanos = 1_000 * SECOND;

/// Runs programs, one a rank, on devices and delays drawn from the seed; nothing fails. `make` gets the rank, its engine,
/// and the peers, which were added already, by rank; itself has none.
pub fn run<T: Program>(
    model: Model,
    seed: u64,
    ranks: u32,
    mut make: impl FnMut(u32, SimEngine, &[Option<PeerId>]) -> T,
) -> ProgramsDone<T> {
    let mut opt = Options::draw(seed, model, None);
    opt.ranks = ranks;
    opt.faults.clear();
    opt.depths = vec![opt.lanes.iter().map(|lane| lane.depth).collect(); ranks as usize];
    opt.listen_at = vec![0; ranks as usize];
    opt.cm.intruders = 0;
    opt.cm.bad_address_first = None;
    let net: SharedNet = Rc::new(RefCell::new(Net::new(opt.clone(), false)));
    let mut nodes: Vec<Node<T>> = Vec::new();
    for me in 0..ranks {
        nodes.push(node(me, &mut make, &net, &opt));
    }
    while !nodes.iter().all(|node| node.program.is_done()) {
        let Some(ev) = net.borrow_mut().next() else { break };
        step(&mut nodes, &net, ev);
        if net.borrow().now > LIMIT || !net.borrow().check.violations().is_empty() {
            break;
        }
    }
    if !nodes.iter().all(|node| node.program.is_done()) {
        net.borrow_mut().fail(Invariant::L1, "a program has no end".to_owned());
    }
    let (violations, time) = {
        let net = net.borrow();
        (net.check.violations().to_vec(), net.now)
    };
    ProgramsDone { programs: nodes.into_iter().map(end).collect(), violations, time }
}

fn node<T>(
    me: u32,
    make: &mut impl FnMut(u32, SimEngine, &[Option<PeerId>]) -> T,
    net: &SharedNet,
    opt: &Options,
) -> Node<T> {
    let mut config = Config::new(name_of(me), JOB);
    config.lanes = opt.lanes.clone();
    config.t_conn = opt.t_conn;
    config.t_give_up = LIMIT;
    let link: Rc<RefCell<Link>> = Rc::default();
    let cm = CmSide::new(me, net, &link, &config);
    let port = SimPort { net: Rc::clone(net), rank: me };
    let its_cm = SimCm { net: Rc::clone(net), rank: me, link: Rc::clone(&link) };
    let mut engine = match Engine::new(config, port, its_cm) {
        Ok(engine) => engine,
        Err(error) => panic!("the simulator draws only valid settings: {error}"),
    };
    let peers: Vec<Option<PeerId>> = (0..opt.ranks)
        .map(|rank| match rank == me {
            true => None,
            false => engine.add_peer(name_of(rank), &[addr_of(rank)]).ok(),
        })
        .collect();
    let program = make(me, engine, &peers);
    net.borrow_mut().poll_within(me, 0);
    Node { program, cm, link }
}

fn step<T: Program>(nodes: &mut [Node<T>], net: &SharedNet, ev: Ev) {
    match ev {
        Ev::Poll { rank, stamp } => {
            if net.borrow_mut().is_current(rank, stamp) {
                let (node, now) = (&mut nodes[rank as usize], net.borrow().now);
                let busy = (0..POLLS).all(|_| node.program.poll(now));
                net.borrow_mut().poll_within(rank, if busy { 100 } else { IDLE });
            }
        }
        Ev::CmDeliver { rank } => {
            let link = &nodes[rank as usize].link;
            let event = link.borrow_mut().outbox.pop_front();
            link.borrow_mut().events.extend(event);
            net.borrow_mut().wake(rank);
        }
        ev => {
            let host = net.borrow_mut().carry_out(ev);
            if let Some(host) = host {
                nodes[host as usize].cm.step(ev);
            }
        }
    }
}

/// Queue pairs under way refer to the fabric; they go first.
fn end<T>(node: Node<T>) -> T {
    let (mut outbox, mut events) = Default::default();
    {
        let mut link = node.link.borrow_mut();
        std::mem::swap(&mut link.outbox, &mut outbox);
        std::mem::swap(&mut link.events, &mut events);
    }
    drop((outbox, events));
    node.program
}
