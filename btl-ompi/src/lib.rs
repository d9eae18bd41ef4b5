//! The Open MPI component `verbs`: a BTL that carries MPI messages over RDMA lanes of `btl-core`.
//!
//! This crate is a plug-in, not a library: it is built as `libmca_btl_verbs.so` and installed as
//! `mca_btl_verbs.so` where Open MPI finds it. It exports one symbol, [`mca_btl_verbs_component`],
//! and resolves Open MPI's when it is loaded: building needs neither Open MPI's headers nor its
//! libraries.
//!
//! The way of a message: Open MPI calls `module.rs`, which gives the buffer to the engine under the
//! rail's lock; `progress.rs` pulls events out of the engine and calls Open MPI back without the
//! lock. Everything below the engine is `btl-core`'s.
//!
//! | file | job |
//! |---|---|
//! | `component.rs` | the exported record; version gate, start and end |
//! | `register.rs`, `params.rs`, `params/` | MCA parameters: carrying them, checking them |
//! | `queues.rs`, `devices.rs` | lanes from `receive_queues`; what ini files say about devices |
//! | `open.rs` | opens the wanted ports and publishes them |
//! | `modex.rs` | what a process publishes |
//! | `pairing.rs`, `peers.rs` | which port of a peer goes with which of ours; its endpoint |
//! | `module.rs` | the functions of the module |
//! | `onesided.rs`, `ops.rs` | its one-sided functions, and what is under way |
//! | `offer.rs` | which of them are offered |
//! | `spare.rs` | room for the message that tells of a put |
//! | `memory.rs` | registration of the program's memory through Open MPI's cache |
//! | `hooks.rs` | whether that cache learns when memory goes away |
//! | `progress.rs` | events and callbacks |
//! | `pvars.rs` | counters as MPI_T performance variables |
//! | `rail.rs` | a module with its engine and lock |
//! | `descriptor.rs`, `endpoint.rs` | what Open MPI holds handles of |
//! | `opal.rs`, `abi/` | Open MPI's services and its C interface |
//! | `signals.rs` | keeps the program's signals away from the transport's threads |
//! | `driver/` | the real devices, or a test transport |
#![deny(unsafe_op_in_unsafe_fn)]

mod abi;
mod clock;
mod close;
mod component;
mod descriptor;
mod devices;
mod driver;
mod endpoint;
mod guard;
mod hooks;
mod memory;
mod modex;
#[cfg(test)]
mod modex_check;
mod module;
mod offer;
mod onesided;
mod opal;
mod open;
mod ops;
mod pairing;
mod params;
mod peers;
mod progress;
mod pvars;
mod queues;
mod rail;
mod register;
mod signals;
mod spare;

pub use component::{ComponentRecord, mca_btl_verbs_component};
