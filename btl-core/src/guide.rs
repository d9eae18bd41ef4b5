//! How to use the crate as a library; there is nothing in here but text.
//!
//! - [`embedding`]: an engine in a loop of one's own: poll, release, idle, timers, shutdown, threads.
//! - [`port`](mod@port): how to write a [`Port`](crate::port::Port), with a complete one that lives in memory.
//!
//! Two programs go with it: `examples/active_messages.rs`, remote calls on a device, whose handlers run on the
//! simulator too (`sim/tests/active_messages.rs`), and `examples/memory_port.rs`, the port of the second chapter.

#[doc = include_str!("guide/embedding.md")]
pub mod embedding {}

#[doc = include_str!("guide/port.md")]
///
/// # A complete one
/// Engines of one program, connected by memory: `examples/memory_port.rs`.
///
/// ```
#[doc = include_str!("../examples/memory_port.rs")]
/// ```
pub mod port {}
