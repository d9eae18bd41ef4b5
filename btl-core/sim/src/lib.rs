//! A deterministic fabric that runs the shipped engine and the shipped connection machine.
//!
//! One thread and one seed: the same seed and model give the same run on every machine. The
//! engine (`btl_core::Engine`), the connection machine (`btl_core::connect::Machine`), the
//! devices and the connection managers are separate steps in one heap of events, with delays
//! between that are drawn from the seed.
//!
//! The models see only bytes, posts and polls. From these, and from nothing that the engine
//! counts, [`check`] and [`messages`] compute the invariants:
//!
//! | | holds |
//! |---|---|
//! | S1 | no acceptor sends on a lane before it received on it; Hello is first |
//! | S2 | the sends a peer may make on a lane never exceed the receives posted on it ahead of the messages that told them, on it |
//! | S3 | no message finds no receive: no TERMINATE, no RNR NAK |
//! | S4 | at rest all credits of a lane are there, and the engine agrees |
//! | S5 | posted work fits the queues |
//! | S6 | each buffer has one owner, and all come home |
//! | S7 | a completion of a lane that is over is counted as such, and nothing else |
//! | S8 | each message arrives once, in order of its lane, unchanged; each send ends once |
//! | S9 | a failed peer is reported once, for a cause, and nothing comes of it after |
//! | S10 | everything that grows has a limit (that nothing is allocated on the message path is measured in `btl-core/tests/alloc.rs`) |
//! | S11 | no panic |
//! | S12 | who is not of this job gets a reject with the reason; who breaks the protocol hurts itself only: its lane is dead |
//! | S13 | what was put is in place when a message on lane 0 says so, or a fence ends |
//! | L1 | everything accepted completes or fails |
//! | L2 | no deadlock, no livelock |
//! | L3 | every connect ends |
//! | L4 | crossing connects end in one connection per lane with opposite roles |
//! | L5 | a close ends |
//!
//! Feature `sabotage`, on by default, has the switches that break a rule of the engine; the
//! simulator proves with them that a broken rule is noticed ([`mutants`]).
#![forbid(unsafe_code)]

pub mod check;
mod cm;
pub mod cover;
mod faults;
pub mod frame;
pub mod messages;
mod model;
pub mod mutants;
mod net;
pub mod onesided;
pub mod options;
pub mod picture;
mod port;
pub mod program;
mod qp;
pub mod rails;
mod rank;
mod rma;
pub mod rng;
mod run;
pub mod sabotage;
pub mod simplify;
pub mod slots;
mod steps;
pub mod swarm;
pub mod trace;
pub mod workload;

pub use options::{Model, Options};
pub use run::{Outcome, draw, run};
pub use sabotage::Sabotage;
