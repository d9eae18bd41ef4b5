//! Safe RDMA verbs: buffers move into the queue and come back with their completion.
//!
//! ```no_run
//! use rdma_safe::{Device, QpConfig, SendFlags, PollGroup};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ctx = Device::by_name("siw0")?.open()?;
//! let pd = ctx.alloc_pd()?;
//! let mut group = PollGroup::new(ctx.create_cq(256)?);
//! let cq = group.cq_ref();
//! let mut slots = pd.slots(4096, 128)?;
//! let qp = pd.create_qp(&cq, &cq, &QpConfig::default())?;
//! // … connected with the rdma-cm crate …
//! let key = group.adopt(qp).map_err(|(_, e)| e)?;
//! if let Some(mut slot) = slots.pop() {
//!     slot[..5].copy_from_slice(b"hello");
//!     group.post_send(key, slot, 5, SendFlags::empty())?; // moved: the device has it now
//! }
//! while let Some(done) = group.poll()? {
//!     slots.extend(done.slot); // and back
//! }
//! # Ok(()) }
//! ```
//!
//! # The objects, in the order in which they are made
//! 1. A **device** is found by [`devices`] or [`Device::by_name`] and opened; the [`Context`] says what it is and can do:
//!    [`transport`](Context::transport), [`caps`](Context::caps), [`attr`](Context::attr), its [ports](Context::port) and
//!    [addresses](Context::gid_table).
//! 2. **Memory** belongs to a [`ProtectionDomain`]. Messages travel in [`slots`](ProtectionDomain::slots). What peers shall
//!    read or write is a region from [`register_remote`](ProtectionDomain::register_remote); tell them its
//!    [`remote`](MemoryRegion::remote) range.
//! 3. A **completion queue**, made with a channel if somebody shall sleep on it
//!    (`ctx.create_cq_with(256, &ctx.completion_channel()?)`). A [`PollGroup`] owns it and its queue pairs, and redeems
//!    completions; without one, [`CompletionQueue::poll`] and [`QueuePair::complete`] do that in two steps.
//! 4. A **queue pair** from [`create_qp`](ProtectionDomain::create_qp), with the sizes of a [`QpConfig`]. The `rdma-cm`
//!    crate connects it, on iWARP nothing else can; by hand, a [`ManualQp`] goes through its states. **Post receives before
//!    it is connected.**
//! 5. **Requests**: [`post_send`](PollGroup::post_send), [`post_inline`](PollGroup::post_inline) and
//!    [`post_recv`](PollGroup::post_recv) for messages; everything else is a [`Request`] that is
//!    [posted](PollGroup::post). One that was refused comes back in the [`PostError`], with the reason.
//! 6. **Completions** say what the request was, how it went ([`WcStatus`]: look at it first), what arrived, and bring back
//!    what was posted. After a failed one on a connection the queue pair is over: [`close`](QueuePair::close) gives back
//!    the rest.
//!
//! | for | see |
//! |---|---|
//! | writes, reads, atomics; immediate data | [`Request`], [`RemoteRange`], [`RemoteSlot`] |
//! | several pieces, shared sources, windows | [`SgList`], [`SharedRegion`], [`MemoryWindow`] |
//! | one buffer pool for many connections | [`SharedReceiveQueue`] |
//! | datagrams, multicast | [`QpKind::Ud`], [`AddressHandle`], [`GRH_SIZE`], [`QueuePair::attach_multicast`] |
//! | memory on the stack, or of others | [`QueuePair::scope`]; [`register_foreign`](ProtectionDomain::register_foreign) |
//! | sleeping, `epoll`, tokio | [`PollGroup::poll_wait`], [`CompletionChannel`] (`AsFd`), feature `tokio`: module `aio` |
//! | devices that change or go | [`AsyncEvents`], [`GidChoice`] |
//! | all there is, and on which device it is tested | [`features`] |
//! | names of C, of `ibverbs`, of `sideway` | [`migrating`] |
//!
//! Calls off the message path fail with an [`Error`]: the operation, its errno, the [kind](ErrorKind), and what to do.
//! Complete programs are the examples of `rdma-cm`: `ping_pong`, `file_copy` (writes), `kv` (reads), `chat` (datagrams),
//! `tokio_echo`.
//!
//! # The rules the types enforce
//! * A [`Slot`] is the sole owner of one piece of registered memory. Posting moves it in, its completion, or the
//!   destruction of the queue pair, gives it back. `mem::forget` of anything leaks memory and breaks nothing.
//! * A [`Wc`] is linear and is redeemed once, by the queue pair it belongs to.
//! * A request id names its queue pair by a serial that this process never uses again.
//! * Nothing is freed under a device: objects hold what they stand on, and one whose destroy call fails leaks it.
//! * A completion queue is never booked beyond its depth.
//!
//! Posting, polling and redeeming allocate nothing, take no lock and do no atomic read-modify-write.
//! Every known way in which devices and libraries break such rules, with the answer to it and its test, is in
//! [`hazards`]; every way in which safe code could, in [`soundness`]; what may go to other threads, in [`threads`].
//!
//! The state of a queue pair is checked when it is used and is not part of its type: it changes in the hands of the
//! connection manager (and of the device) while the queue pair sits in a group's table or on its way there, so a type
//! for each state would only move the check to a match. Where the caller alone drives it, each state is a type:
//! [`ManualQp`].
//!
//! # Features
//! * `tokio` (off): the module `aio`, for completions, messages, requests and device events in a tokio runtime.
//! * `device-tests` (off): builds this crate's tests that need a device; it changes nothing else.
//!
//! # Unsafe code
//! Modules with unsafe code, and why:
//! * calls of libibverbs: `seam`, `device`, `context`, `device_attr`, `port`, `gid`, `event`, `pd`, `channel`,
//!   `cq`, `qp`, `qp_query`, `ece`, `multicast`, `srq`, `post`, `ah`, `xrc`;
//! * the same, for memory: `mr` (but `mr::access`), `mw`, `domain`, `dm`, `fork`, `scope`;
//! * memory that is not Rust's alone: `memory`, `slot`, `remote_slot`, `payload`, `sg`;
//! * a look-up on the message path without a bounds check: `route`;
//! * getrlimit(2): `error`; a descriptor of its own for tokio: `aio::watch`.
//!
//! The others forbid it.

mod ah;
#[cfg(feature = "tokio")]
pub mod aio;
mod can;
mod caps;
mod channel;
mod context;
mod cq;
mod device;
mod device_attr;
mod dm;
mod domain;
mod ece;
mod error;
mod event;
mod fork;
mod gid;
mod group;
#[doc = include_str!("../FEATURES.md")]
pub mod features {}
#[doc = include_str!("../HAZARDS.md")]
pub mod hazards {}
#[doc = include_str!("../SOUNDNESS.md")]
pub mod soundness {}
mod loopback;
pub mod manual;
mod memory;
pub mod migrating;
mod mr;
mod multicast;
mod mw;
mod payload;
mod pd;
mod port;
mod post;
mod qp;
mod qp_attr;
mod qp_create;
mod qp_query;
pub mod quirks;
mod remote;
mod remote_slot;
mod ring;
mod route;
mod scope;
#[doc(hidden)]
pub mod seam;
mod sg;
mod shared;
mod slot;
mod srq;
mod states;
pub mod threads;
mod wc;
mod xrc;

pub use ah::{AddressHandle, AddressVector, GRH_SIZE, GlobalRoute, Origin};
pub use caps::{Caps, Transport};
pub use channel::CompletionChannel;
pub use context::Context;
pub use cq::{CompletionQueue, CqId, CqRef, ExtendedCq, ExtendedWc, WcFields};
pub use device::{Device, devices};
pub use device_attr::{AtomicScope, DeviceAttr, DeviceAttrEx, OdpCaps, OdpOps};
pub use dm::DeviceMemory;
pub use domain::ThreadDomain;
pub use ece::Ece;
pub use error::{Error, ErrorKind, Result};
pub use event::{AsyncEvent, AsyncEvents, PortEvent, QpEvent, SrqEvent};
pub use fork::{ForkSupport, fork_support};
pub use gid::{Gid, GidChoice, GidEntry, GidKind};
pub use group::{Completion, PollGroup, Polled, QpKey};
pub use loopback::{LoopbackSource, LoopbackSupport};
#[doc(inline)]
pub use manual::{InitAttr, ManualQp, PeerAccess, RtrAttr, RtsAttr, StepError};
pub use memory::{OwnedMemory, StableBuffer};
pub use mr::{
    Access, Advice, Foreign, Local, MemoryRegion, Owned, Registration, Remote, RemoteAccess,
};
pub use mw::{MemoryWindow, WindowAccess, WindowKind};
pub use payload::{Payload, PayloadKind};
pub use pd::ProtectionDomain;
pub use port::{LinkLayer, PortAttr, PortState};
pub use post::{BatchError, ForeignSlice, PostError, RawRequest, RawSge, RawVerb, Request, Why};
pub use qp::QueuePair;
pub use qp_attr::{QpAttr, QpConfig, QpKind, QpState, SendFlags};
pub use qp_query::QpQuery;
pub use remote::RemoteRange;
pub use remote_slot::RemoteSlot;
pub use scope::{Borrowed, Scope, ScopeEnd, ScopedDone, ScopedPostError};
pub use sg::{Piece, SgList};
pub use shared::{SharedRegion, SharedSlice};
pub use slot::Slot;
pub use srq::{SharedReceiveQueue, SrqRef};
pub use wc::{Done, Extra, Op, Queue, Wc, WcStatus};
pub use xrc::{XrcDomain, XrcTarget};
