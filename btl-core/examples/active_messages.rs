//! Active messages: every message names the handler that runs where it arrives, and a handler may answer with another.
//!
//! ```text
//! cargo run -p btl-core --example active_messages -- [DEVICE]
//! ```
//! The process is its own peer, so that one is enough to see it; with other peers only their names and addresses are
//! others. [`Node`] does not know what moves its bytes: here a device, in `tests/active_messages.rs` a fabric in memory.
use btl_core::port::{Cm, Port};
use btl_core::verbs::{self, Idle, Selection};
use btl_core::{Config, Engine, Event, Nanos, PeerId, ProcName};
use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

/// What runs when a message arrives: gets the node's state and the message, may return an answer.
pub type Handler<S> = fn(&mut S, &[u8]) -> Option<Outgoing>;

/// A message to be sent: the number of its handler, and its bytes.
pub type Outgoing = (u8, Vec<u8>);

/// A process that takes active messages.
pub struct Node<P: Port, C: Cm<Qp = P::Qp>, S> {
    /// What carries the messages.
    pub engine: Engine<P, C>,
    /// What the handlers work on.
    pub state: S,
    handlers: Vec<Handler<S>>,
    /// Messages for which there was no buffer, oldest first.
    waiting: VecDeque<(PeerId, Outgoing)>,
}

impl<P: Port, C: Cm<Qp = P::Qp>, S> Node<P, C, S> {
    /// A message with tag `n` runs `handlers[n]`.
    pub fn new(engine: Engine<P, C>, state: S, handlers: Vec<Handler<S>>) -> Self {
        Node { engine, state, handlers, waiting: VecDeque::new() }
    }

    /// Has handler `message.0` of the peer run on the bytes. Messages arrive in this order.
    pub fn send(&mut self, peer: PeerId, message: Outgoing) {
        self.waiting.push_back((peer, message));
        self.flush();
    }

    fn flush(&mut self) {
        while let Some((peer, (handler, bytes))) = self.waiting.front() {
            // No buffer is free until some sends are done.
            let Ok(mut buf) = self.engine.alloc(bytes.len()) else { return };
            buf.copy_from_slice(bytes);
            match self.engine.send(*peer, *handler, buf, 0) {
                Ok(_) => {}
                // A peer that failed was reported, or will be; its messages go nowhere.
                Err(refused) => self.engine.free(refused.buf),
            }
            self.waiting.pop_front();
        }
    }

    /// One step: handles one event. `false`: there was none.
    ///
    /// # Errors
    /// A peer failed.
    pub fn step(&mut self, now: Nanos) -> Result<bool, Box<dyn Error>> {
        let Some(event) = self.engine.poll(now) else { return Ok(false) };
        match event {
            Event::Message { peer, tag, buf } => {
                let handler = self.handlers.get(usize::from(tag)).ok_or("no such handler")?;
                let answer = handler(&mut self.state, &buf);
                // From here on the peer may send another message into it.
                self.engine.release(buf);
                answer.into_iter().for_each(|answer| self.send(peer, answer));
            }
            Event::Sent { buf, .. } => {
                buf.into_iter().for_each(|buf| self.engine.free(buf));
                self.flush();
            }
            Event::PeerFailed { fault, .. } => return Err(fault.into()),
            _ => {}
        }
        Ok(true)
    }
}

/// Adds the number to the sum, and answers with the sum: handler 1 takes it.
pub fn add(state: &mut (u64, Vec<u64>), bytes: &[u8]) -> Option<Outgoing> {
    state.0 += u64::from_le_bytes(bytes.try_into().ok()?);
    Some((1, state.0.to_le_bytes().to_vec()))
}

/// Keeps a sum.
pub fn keep(state: &mut (u64, Vec<u64>), bytes: &[u8]) -> Option<Outgoing> {
    state.1.push(u64::from_le_bytes(bytes.try_into().ok()?));
    None
}

#[allow(dead_code)] // unless this file is a program
fn main() -> Result<(), Box<dyn Error>> {
    let selection = Selection { device: std::env::args().nth(1), ..Selection::default() };
    let me = ProcName { job: 1, rank: 0 };
    let config = Config::new(me, 0x00c0_ffee);
    let (port, cm, published) = verbs::open(&selection, &config)?;
    let mut node = Node::new(Engine::new(config, port, cm)?, (0, Vec::new()), vec![add, keep]);
    let peer = node.engine.add_peer(me, &published.addrs)?;
    (1..=1000_u64).for_each(|n| node.send(peer, (0, n.to_le_bytes().to_vec())));
    let (start, mut idle) = (Instant::now(), Idle::default());
    while node.state.1.len() < 1000 {
        let worked = node.step(start.elapsed().as_nanos() as Nanos)?;
        idle.polled(worked, node.engine.busy());
        if start.elapsed() > Duration::from_secs(30) {
            return Err("no end after 30 s".into());
        }
    }
    println!("1 + … + 1000 = {}", node.state.0);
    node.engine.report().iter().for_each(|peer| println!("{peer}"));
    Ok(())
}
