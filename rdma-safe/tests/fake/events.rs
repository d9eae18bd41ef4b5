//! The fake's completion channels and asynchronous events: real descriptors, so that poll(2) works on them.

use super::{Fake, FakeContext, State, lock, state_of};
use rdma_sys::*;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

/// One completion channel.
#[derive(Default)]
pub(super) struct Channel {
    /// Addresses of the queues whose events nobody has read yet.
    events: VecDeque<usize>,
    /// Queues that report here.
    pub(super) users: u32,
}

/// What an asynchronous event is about: the address of its object, or 0.
#[derive(Clone, Copy)]
struct Pending(ibv_async_event, usize);

// SAFETY: the pointers inside are only handed to a reader while their objects are alive, and compared.
unsafe impl Send for Pending {}

/// Asynchronous events, raised and read.
#[derive(Default)]
pub(super) struct Async {
    pending: VecDeque<Pending>,
    /// Objects of events that were read and not acknowledged.
    unacknowledged: Vec<usize>,
    pub(super) fd: c_int,
}

/// A descriptor that is readable as often as it was raised.
pub(super) fn counter() -> c_int {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "eventfd: {}", std::io::Error::last_os_error());
    fd
}

fn raise(fd: c_int) {
    let one = 1u64;
    // SAFETY: 8 readable bytes.
    let n = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    assert_eq!(n, 8, "{}", std::io::Error::last_os_error());
}

/// Takes one; false, with errno set, when there is none (or none before a signal came).
fn lower(fd: c_int) -> bool {
    let mut count = 0u64;
    // SAFETY: 8 writable bytes.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}

pub(super) unsafe fn create_comp_channel(ctx: *mut ibv_context) -> *mut ibv_comp_channel {
    if lock(state_of(ctx)).faults.gone != 0 {
        return std::ptr::null_mut();
    }
    let raw = Box::into_raw(Box::new(ibv_comp_channel { context: ctx, fd: counter(), refcnt: 0 }));
    lock(state_of(ctx)).channels.insert(raw.addr(), Channel::default());
    raw
}

pub(super) unsafe fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a live channel.
    let (ctx, fd) = unsafe { ((*channel).context, (*channel).fd) };
    let mut s = lock(state_of(ctx));
    if s.channels.get(&channel.addr()).is_none_or(|c| c.users > 0) {
        s.violations.push("destroy of a channel in use".into());
        return libc::EBUSY;
    }
    if s.faults.destroy_channel_fails || s.faults.gone != 0 {
        return libc::EIO;
    }
    s.channels.remove(&channel.addr());
    // SAFETY: made by create_comp_channel, closed and freed once.
    unsafe {
        libc::close(fd);
        drop(Box::from_raw(channel));
    }
    0
}

pub(super) unsafe fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cookie: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live channel and writable pointers; the queues of its events are alive, because their destruction takes
    // their events away.
    unsafe {
        if !lower((*channel).fd) {
            return -1;
        }
        let mut s = lock(state_of((*channel).context));
        let event = s.channels.get_mut(&channel.addr()).and_then(|c| c.events.pop_front());
        let Some(address) = event else {
            *libc::__errno_location() = libc::EAGAIN;
            return -1;
        };
        let Some(q) = s.cqs.get_mut(&address) else {
            s.violations.push("an event of a dead queue".into());
            return -1;
        };
        q.unacknowledged += 1;
        *cq = std::ptr::with_exposed_provenance_mut(q.raw);
        *cookie = (**cq).cq_context;
    }
    0
}

pub(super) unsafe fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: a live queue.
    let mut s = lock(state_of(unsafe { (*cq).context }));
    match s.cqs.get_mut(&cq.addr()) {
        Some(q) if q.unacknowledged >= count => q.unacknowledged -= count,
        _ => s.violations.push("an acknowledgement of nothing".into()),
    }
}

pub(super) unsafe fn get_async_event(ctx: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    // SAFETY: a live context and a writable event.
    unsafe {
        if !lower((*ctx).async_fd) {
            return -1;
        }
        let mut s = lock(state_of(ctx));
        let Some(Pending(event, object)) = s.asynchronous.pending.pop_front() else {
            *libc::__errno_location() = libc::EAGAIN;
            return -1;
        };
        if object != 0 {
            s.asynchronous.unacknowledged.push(object);
        }
        *out = event;
    }
    0
}

pub(super) unsafe fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that was read from a fake and not acknowledged.
    let (object, ctx) = unsafe { object_of(&*event) };
    let Some(ctx) = ctx else { return };
    let mut s = lock(state_of(ctx));
    let open = &mut s.asynchronous.unacknowledged;
    match open.iter().position(|o| *o == object) {
        Some(at) => drop(open.swap_remove(at)),
        None => s.violations.push("an acknowledgement of nothing".into()),
    }
}

/// The object an event names, and its context.
///
/// # Safety
/// That object is alive.
unsafe fn object_of(event: &ibv_async_event) -> (usize, Option<*mut ibv_context>) {
    use ibv_event_type as t;
    // SAFETY: the kind says which pointer is valid; the caller promises that it is alive.
    unsafe {
        match event.event_type {
            t::IBV_EVENT_CQ_ERR => (event.element.cq.addr(), Some((*event.element.cq).context)),
            t::IBV_EVENT_QP_FATAL
            | t::IBV_EVENT_QP_REQ_ERR
            | t::IBV_EVENT_QP_ACCESS_ERR
            | t::IBV_EVENT_COMM_EST
            | t::IBV_EVENT_SQ_DRAINED
            | t::IBV_EVENT_PATH_MIG
            | t::IBV_EVENT_PATH_MIG_ERR
            | t::IBV_EVENT_QP_LAST_WQE_REACHED => {
                (event.element.qp.addr(), Some((*event.element.qp).context))
            }
            t::IBV_EVENT_SRQ_ERR | t::IBV_EVENT_SRQ_LIMIT_REACHED => {
                (event.element.srq.addr(), Some((*event.element.srq).context))
            }
            _ => (0, None),
        }
    }
}

impl State {
    /// A completion came: tells the channel if the queue was armed.
    pub(super) fn notify(&mut self, cq: usize) {
        let Some(q) = self.cqs.get_mut(&cq) else { return };
        if q.channel == 0 || !std::mem::take(&mut q.armed) {
            return;
        }
        if let Some(c) = self.channels.get_mut(&q.channel) {
            c.events.push_back(cq);
            raise(q.channel_fd);
        }
    }

    /// A queue dies: its events go with it. True when some are not acknowledged, for which libibverbs would wait.
    pub(super) fn forget_events_of(&mut self, object: usize) -> bool {
        let mut open = self.asynchronous.unacknowledged.contains(&object);
        let fd = self.asynchronous.fd;
        self.asynchronous.pending.retain(|Pending(_, about)| *about != object || !lower(fd));
        if let Some(q) = self.cqs.get(&object) {
            open |= q.unacknowledged > 0;
            let fd = q.channel_fd;
            if let Some(c) = self.channels.get_mut(&q.channel) {
                c.events.retain(|e| *e != object || !lower(fd));
            }
        }
        open
    }
}

impl Fake {
    /// Moves one message; how many it moved.
    pub(crate) fn step(&self) -> usize {
        let mut s = self.state();
        let numbers: Vec<u32> = s.qps.keys().copied().collect();
        numbers.into_iter().find_map(|n| s.step(n)).map_or(0, |()| 1)
    }

    /// Takes away the events of all completion channels, as a reader does.
    pub(crate) fn swallow_events(&self) {
        let mut s = self.state();
        let fds: Vec<c_int> = s.cqs.values().map(|q| q.channel_fd).collect();
        for channel in s.channels.values_mut() {
            channel.events.clear();
        }
        for fd in fds {
            while lower(fd) {}
        }
    }

    /// Raises an asynchronous event about no object of its own: a port, the device, or what nobody knows.
    pub(crate) fn raise(&self, kind: u32, port: i32) {
        let event = ibv_async_event {
            event_type: ibv_event_type(kind),
            element: ibv_async_event__bindgen_ty_1 { port_num: port },
        };
        self.push(Pending(event, 0));
    }

    /// Raises an asynchronous event about a queue pair.
    pub(crate) fn raise_qp(&self, kind: ibv_event_type, qp_num: u32) {
        let raw = self.state().qps[&qp_num].raw;
        let element =
            ibv_async_event__bindgen_ty_1 { qp: std::ptr::with_exposed_provenance_mut(raw) };
        self.push(Pending(ibv_async_event { event_type: kind, element }, raw));
    }

    /// Raises an asynchronous event about every completion queue there is.
    pub(crate) fn raise_cqs(&self, kind: ibv_event_type) {
        let all: Vec<usize> = self.state().cqs.values().map(|q| q.raw).collect();
        for raw in all {
            let element =
                ibv_async_event__bindgen_ty_1 { cq: std::ptr::with_exposed_provenance_mut(raw) };
            self.push(Pending(ibv_async_event { event_type: kind, element }, raw));
        }
    }

    fn push(&self, event: Pending) {
        let mut s = self.state();
        s.asynchronous.pending.push_back(event);
        raise(s.asynchronous.fd);
    }
}

impl super::State {
    /// Raises the limit event of a shared receive queue.
    pub(super) fn raise_srq_limit(&mut self, raw: usize) {
        let element =
            ibv_async_event__bindgen_ty_1 { srq: std::ptr::with_exposed_provenance_mut(raw) };
        let event_type = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED;
        self.asynchronous.pending.push_back(Pending(ibv_async_event { event_type, element }, raw));
        raise(self.asynchronous.fd);
    }
}

impl Drop for FakeContext {
    fn drop(&mut self) {
        // SAFETY: opened in Fake::open, closed once.
        unsafe { libc::close(self.base.async_fd) };
    }
}
