//! A provider in this process: queue pairs that talk to each other, and the faults real providers have.
//!
//! It plugs into the crate's table of set-up calls and into the ops table of its own `ibv_context`, so everything above
//! runs as it does on a device. It moves bytes only in [`Fake::progress`], takes the lowest free queue pair number like
//! siw, and checks what a device would: every access against the registered memory, every object against its users.
//!
//! These tests also run under LeakSanitizer: one in which a destruction fails, or something is forgotten, begins with
//! [`LeaksOnPurpose`](chaos::LeaksOnPurpose).

#![allow(dead_code)] // each test binary uses its part

pub(crate) mod chaos;
mod data;
mod ece;
mod events;
mod extended;
pub(crate) mod kinds;
pub(crate) mod more;
mod objects;
pub(crate) mod rig;
mod transfer;
mod windows;

use rdma_safe::Context;
use rdma_safe::seam::Verbs;
use rdma_sys::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faults that can be switched on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// `post_send` keeps the request and returns -1 with errno (siw before RTS).
    pub(crate) post_send_fails: bool,
    /// `post_recv` keeps the request and returns a positive errno.
    pub(crate) post_recv_fails: bool,
    /// `destroy_qp` fails with this errno and the queue pair lives on.
    pub(crate) destroy_qp_fails: i32,
    /// `dereg_mr` fails and the registration stays.
    pub(crate) dereg_fails: bool,
    /// `destroy_cq` fails and the queue stays.
    pub(crate) destroy_cq_fails: bool,
    /// `dealloc_pd` fails and the domain stays.
    pub(crate) dealloc_fails: bool,
    /// `create_qp` fails with this errno.
    pub(crate) create_qp_fails: i32,
    /// `reg_mr` fails with ENOMEM.
    pub(crate) reg_mr_fails: bool,
    /// `destroy_qp` adds flush completions of everything in flight (siw).
    pub(crate) flush_on_destroy: bool,
    /// Every completion comes twice.
    pub(crate) duplicate: bool,
    /// Completions carry this status instead of success.
    pub(crate) status: u32,
    /// Receive completions claim this length.
    pub(crate) byte_len: u32,
    /// `poll_cq` fails with this (negative) return.
    pub(crate) poll_fails: i32,
    /// `destroy_comp_channel` fails and the channel stays.
    pub(crate) destroy_channel_fails: bool,
    /// Posting a list fails at this request: those before it are posted.
    pub(crate) list_fails_at: Option<usize>,
    /// And the call returns 0 all the same (siw).
    pub(crate) list_lies: bool,
    /// Reads complete after what was posted behind them, as long as there is something (siw).
    pub(crate) late_reads: bool,
    /// `destroy_srq` fails with this errno and the queue stays.
    pub(crate) destroy_srq_fails: i32,
    /// Every set-up and tear-down call fails with this errno (EIO: the device was removed).
    pub(crate) gone: i32,
}

/// Pieces one request can have.
const PIECES: usize = 6;

#[derive(Clone, Copy)]
struct Request {
    wr_id: u64,
    pieces: [ibv_sge; PIECES],
    count: usize,
    signalled: bool,
    inline: Option<[u8; 64]>,
    opcode: ibv_wr_opcode,
    /// Remote address, key, and the two operands of an atomic.
    remote: (u64, u32, u64, u64),
    /// Immediate data as on the wire, or a key to invalidate.
    word: u32,
    /// The shared receive queue an XRC message names.
    srq_num: u32,
}

#[derive(Default)]
struct Qp {
    peer: Option<u32>,
    send_cq: usize,
    recv_cq: usize,
    sends: VecDeque<Request>,
    recvs: VecDeque<Request>,
    failed: bool,
    /// Address of its shared receive queue; 0 for none.
    srq: usize,
    /// Address of the `ibv_qp`.
    raw: usize,
}

#[derive(Default)]
struct Cq {
    depth: usize,
    users: u32,
    overflowed: bool,
    armed: bool,
    entries: VecDeque<ibv_wc>,
    /// Address of the `ibv_cq`.
    raw: usize,
    /// Address and descriptor of the channel it reports to; 0 for none.
    channel: usize,
    channel_fd: i32,
    /// Events read and not acknowledged.
    unacknowledged: u32,
}

struct Mr {
    start: u64,
    len: u64,
}

/// Everything the device knows.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) faults: Faults,
    qps: BTreeMap<u32, Qp>,
    cqs: BTreeMap<usize, Cq>,
    mrs: BTreeMap<u32, Mr>,
    channels: BTreeMap<usize, events::Channel>,
    asynchronous: events::Async,
    pub(crate) more: more::More,
    srqs: BTreeMap<usize, transfer::Srq>,
    /// Calls of post_send and post_recv, and requests in them.
    pub(crate) doorbells: (usize, usize),
    next_key: u32,
    /// What is not about reliable connections.
    pub(crate) kinds: kinds::Kinds,
    /// An InfiniBand device, and no iWARP one.
    infiniband: bool,
    pds: u32,
    /// What no correct user makes a device do.
    pub(crate) violations: Vec<String>,
    pub(crate) closed: bool,
    latest: Option<(usize, ibv_wc)>,
    /// Runs once inside the next poll, after it has taken what it returns.
    pub(crate) during_poll: Option<Box<dyn FnOnce() + Send>>,
}

/// The context as libibverbs would see it, with our state behind it.
#[repr(C)]
struct FakeContext {
    base: ibv_context,
    device: Box<ibv_device>,
    state: Arc<Mutex<State>>,
}

/// A fake device, opened.
pub(crate) struct Fake {
    pub(crate) ctx: Context,
    state: Arc<Mutex<State>>,
}

fn state_of<'a>(ctx: *mut ibv_context) -> &'a Mutex<State> {
    // SAFETY: every context that reaches the fake's functions is a FakeContext, alive until close_device.
    unsafe { &(*ctx.cast::<FakeContext>()).state }
}

fn lock(m: &Mutex<State>) -> MutexGuard<'_, State> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

static VERBS: Verbs = objects::VERBS;

impl Fake {
    /// An iWARP device, as siw.
    pub(crate) fn open() -> Fake {
        Fake::open_as(ibv_transport_type::IBV_TRANSPORT_IWARP, ibv_device_attr_ex::default())
    }

    /// An InfiniBand device with every kind of queue pair and of memory, as mlx5.
    pub(crate) fn open_infiniband() -> Fake {
        Fake::open_as(ibv_transport_type::IBV_TRANSPORT_IB, more::hardware())
    }

    fn open_as(transport: ibv_transport_type, attr: ibv_device_attr_ex) -> Fake {
        let mut device = Box::new(ibv_device::default());
        device.transport_type = transport;
        device.name[0] = b'f' as _;
        let infiniband = transport == ibv_transport_type::IBV_TRANSPORT_IB;
        let state = Arc::new(Mutex::new(State { infiniband, ..State::default() }));
        lock(&state).more.attr = attr;
        let ops = ibv_context_ops {
            post_send: Some(data::post_send),
            post_recv: Some(data::post_recv),
            poll_cq: Some(data::poll_cq),
            req_notify_cq: Some(data::req_notify_cq),
            post_srq_recv: Some(transfer::post_srq_recv),
            bind_mw: Some(windows::bind_mw),
            ..ibv_context_ops::default()
        };
        let async_fd = events::counter();
        lock(&state).asynchronous.fd = async_fd;
        let base = ibv_context { device: &mut *device, ops, async_fd, ..ibv_context::default() };
        let raw = Box::into_raw(Box::new(FakeContext { base, device, state: Arc::clone(&state) }));
        // SAFETY: a fresh context of this provider; close_device frees it.
        let ctx = unsafe { Context::from_raw(raw.cast(), &VERBS) }.unwrap();
        Fake { ctx, state }
    }

    /// The state, to set faults and to look.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives up the context; says whether it was closed.
    pub(crate) fn closes_on_drop(self) -> bool {
        drop(self.ctx);
        lock(&self.state).closed
    }

    /// Connects two queue pairs by number.
    pub(crate) fn connect(&self, a: u32, b: u32) {
        let mut s = self.state();
        for (x, y) in [(a, b), (b, a)] {
            s.qps.get_mut(&x).unwrap().peer = Some(y);
        }
    }

    /// Lets the device work; returns how many messages it moved.
    pub(crate) fn progress(&self) -> usize {
        self.state().progress()
    }

    /// Puts `times` copies of the latest completion into its queue again.
    pub(crate) fn repeat(&self, times: usize) {
        let mut s = self.state();
        let Some((cq, wc)) = s.latest else { return };
        if let Some(q) = s.cqs.get_mut(&cq) {
            q.entries.extend(std::iter::repeat_n(wc, times));
        }
    }

    /// Moves a queue pair to the error state, flushing what it holds.
    pub(crate) fn fail(&self, qp_num: u32) {
        self.state().fail(qp_num);
    }

    /// Whether the device may still touch any of these bytes.
    pub(crate) fn owns(&self, bytes: &[u8]) -> bool {
        self.state().owns(bytes)
    }

    /// Panics if anybody did what no correct user does.
    pub(crate) fn check(&self) {
        let s = self.state();
        assert!(s.violations.is_empty(), "{:?}", s.violations);
        assert!(s.cqs.values().all(|c| !c.overflowed), "a completion queue overflowed");
    }
}

impl State {
    /// Queue pairs, completion queues, regions and domains that exist.
    pub(crate) fn alive(&self) -> (usize, usize, usize, u32) {
        (self.qps.len(), self.cqs.len(), self.mrs.len(), self.pds)
    }

    /// Shared receive queues that exist.
    pub(crate) fn srqs_alive(&self) -> usize {
        self.srqs.len()
    }

    /// Completion channels that exist.
    pub(crate) fn channels_alive(&self) -> usize {
        self.channels.len()
    }
}
