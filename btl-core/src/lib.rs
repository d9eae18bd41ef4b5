//! A transport over RDMA lanes that keeps the first-send rule and per-queue-pair credits.
//!
//! A *peer* is another process; a *lane* is one queue pair to it with one buffer size; a *credit*
//! is the right to consume one receive the peer has posted on a lane.
//!
//! - [`first_send`] is rule 1: the side that accepted a lane sends nothing on it before it heard
//!   a Hello on it (RFC 5044 7.1.2).
//! - [`credit`] is rule 2: a receive posted on a lane is told on that lane only, after the post.
//! - [`lane`] joins both with a place in the send queue into one transaction, whose result, a
//!   [`SendPermit`](lane::SendPermit), is the only way to post a send.
//! - [`rma`] is one-sided: put, get, atomics and fences, and in which order with messages.
//! - [`route`] says on which lane credits travel that have no message to ride on.
//! - [`recover`] is what lets a lane that failed be made anew without losing or doubling a message, where both sides have
//!   [`Config::recover`].
//! - [`engine`] moves all of that. It has no clock, no thread and makes no system call.
//! - [`rails`] is several of them side by side: devices and ports of one process as one transport.
//! - [`connect`] is the connection machine; it runs where the connection manager is driven.
//! - [`port`] has the traits both stand on. Feature `verbs` implements them on real devices.
//!
//! # In a loop of one's own
//! ```text
//! let (port, cm, published) = verbs::open(&selection, &config)?;   // tell the peers published.addrs
//! let mut engine = Engine::new(config, port, cm)?;
//! let peer = engine.add_peer(name, &addrs)?;                       // connects when a message needs it
//! loop {
//!     match engine.poll(now) {                                     // one event at a time; it owns its buffer
//!         Some(Event::Message { peer, tag, buf }) => { …; engine.release(buf) }   // gives the credit back
//!         Some(Event::Sent { buf: Some(buf), .. }) => engine.free(buf),
//!         Some(Event::PeerFailed { fault, .. }) => …,
//!         Some(_) => {}
//!         None => idle.polled(false, engine.busy()),               // yields while connections are made
//!     }
//! }
//! ```
//! The whole of it, with sends, close and a second process: `examples/active_messages.rs` and `examples/connect_storm.rs`. An
//! engine is driven by one thread at a time; nothing happens to messages between two calls of
//! [`poll`](Engine::poll), but connections are made and accepted all the same.
//!
//! How to use it, and how to write a port: [`guide`].
//!
//! The engine's message path does not allocate, and nothing a device, the kernel or a peer says
//! makes it panic: a peer that breaks the protocol fails alone.
//!
//! Feature `sabotage` is for tests only: it adds switches that break the rules.
#![forbid(unsafe_code)]

pub mod config;
pub mod connect;
pub mod credit;
mod endpoint;
pub mod engine;
pub mod error;
pub mod first_send;
mod frag;
#[cfg(feature = "verbs")]
pub mod guide;
pub mod lane;
mod names;
pub mod params;
pub mod port;
pub mod rails;
pub mod recover;
pub mod report;
pub mod rma;
pub mod route;
pub mod setup;
pub mod stats;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod wire;

pub use config::{Config, LaneConfig, Recovery};
pub use engine::{Engine, Event, PortEvent, RecvBuf, SendBuf, Sent};
pub use names::{ConnToken, LaneId, Nanos, PeerId, ProcName, Role, SECOND};
pub use report::PeerReport;
pub use rma::{Atomic, RemoteRange, RmaCaps, RmaError, RmaErrorKind};
pub use route::CreditRoute;
