//! Asynchronous events of a device: ports going up and down, queue pairs and queues failing.

use crate::channel::{deadline_after, set_nonblocking, wait_readable};
use crate::context::Context;
use crate::cq::CqId;
use crate::error::{Error, ErrorKind, Result};
use rdma_sys::*;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An asynchronous event (ibv_get_async_event(3)), copied out and acknowledged. Unknown kinds are values.
///
/// From [`AsyncEvents::next`](crate::AsyncEvents::next).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// About a queue pair, named by its serial.
    Qp {
        /// [`QueuePair::serial`](crate::QueuePair::serial); 0 if the queue pair is not of this crate.
        serial: u64,
        /// What happened.
        what: QpEvent,
    },
    /// The completion queue has overflowed or failed: completions are lost, it cannot be used any more.
    CqError(CqId),
    /// About a shared receive queue, named by its serial.
    Srq {
        /// The number the queue was given when it was made; 0 if it is not of this crate.
        serial: u64,
        /// What happened.
        what: SrqEvent,
    },
    /// About a port; queries tell more.
    Port {
        /// The port, numbered from 1.
        port: u8,
        /// What happened.
        what: PortEvent,
    },
    /// A work queue of somebody else's receive side scaling has failed; this crate makes none.
    WorkQueueFatal,
    /// The device is in a fatal state: every call may fail with EIO.
    DeviceFatal,
    /// Anything else: the raw `ibv_event_type`.
    Other(u32),
}

/// What happened to a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpEvent {
    /// It failed for a reason no completion tells.
    Fatal,
    /// The peer's request was invalid.
    RequestError,
    /// The peer's request violated access rights.
    AccessError,
    /// The first message came before the connection manager's last one.
    CommunicationEstablished,
    /// The send queue is drained.
    SendQueueDrained,
    /// It has failed or is being closed, and takes nothing more from its shared receive queue.
    LastRequest,
    /// It has moved to its alternate path (InfiniBand).
    PathMigrated,
    /// It could not move to its alternate path (InfiniBand).
    PathMigrationFailed,
}

/// What happened to a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SrqEvent {
    /// Fewer requests are left than the limit it was armed with. It is not armed any more.
    LimitReached,
    /// It has failed: it hands out nothing more.
    Fatal,
}

/// What happened to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// It is up.
    Active,
    /// It is down.
    Down,
    /// Its GID table changed: an index may mean another address now ([`GidChoice`](crate::GidChoice)).
    GidChange,
    /// Its local identifier changed (InfiniBand).
    LidChange,
    /// Its partition keys changed.
    PkeyChange,
    /// Its subnet manager changed (InfiniBand).
    SubnetManagerChange,
    /// The subnet manager wants everybody to subscribe again (InfiniBand).
    ClientReregister,
}

/// The one reader of a context's asynchronous events.
///
/// Made by [`AsyncEvents::new`](crate::AsyncEvents::new).
pub struct AsyncEvents {
    ctx: Context,
}

impl AsyncEvents {
    /// Takes the reader's place on `ctx` until dropped; its descriptor becomes non-blocking.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) while there is another reader.
    pub fn new(ctx: &Context) -> Result<AsyncEvents> {
        if ctx.0.async_taken.swap(true, Ordering::AcqRel) {
            return Err(Error::refused(
                "async events",
                ErrorKind::Busy,
                "this context's events already have a reader",
            ));
        }
        let events = AsyncEvents { ctx: ctx.clone() };
        set_nonblocking(events.as_fd())?;
        Ok(events)
    }

    /// The next event; `None` after `timeout` (zero only looks).
    ///
    /// # Errors
    /// The errno of poll(2) or ibv_get_async_event(3).
    pub fn next(&mut self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        let deadline = deadline_after(timeout);
        loop {
            if let Some(e) = self.take()? {
                return Ok(Some(e));
            }
            if !wait_readable(self.as_fd(), Some(deadline))? {
                return Ok(None);
            }
        }
    }

    fn take(&mut self) -> Result<Option<AsyncEvent>> {
        let mut raw = ibv_async_event::default();
        let verbs = self.ctx.0.verbs;
        // SAFETY: live context, writable event; `&mut self` is the only reader.
        if unsafe { (verbs.get_async_event)(self.ctx.as_raw(), &mut raw) } != 0 {
            let e = Error::last("ibv_get_async_event");
            return match e.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(e),
            };
        }
        // SAFETY: the event is unacknowledged, so what it names is alive; the kind says which pointer is valid.
        let event = unsafe { read_event(&raw) };
        // SAFETY: acknowledged once; nothing of it is used after.
        unsafe { (verbs.ack_async_event)(&mut raw) };
        Ok(Some(event))
    }
}

/// # Safety
/// `raw` was read from the device and is not acknowledged yet.
unsafe fn read_event(raw: &ibv_async_event) -> AsyncEvent {
    use ibv_event_type as t;
    let qp = |what| {
        // SAFETY: a queue pair event names a live queue pair; its cookie is the serial given at creation.
        let serial = unsafe { (*raw.element.qp).qp_context.addr() as u64 };
        AsyncEvent::Qp { serial, what }
    };
    let srq = |what| {
        // SAFETY: a shared receive queue's event names a live one; its cookie is the serial given at creation.
        let serial = unsafe { (*raw.element.srq).srq_context.addr() as u64 };
        AsyncEvent::Srq { serial, what }
    };
    let port = |what| {
        // SAFETY: a port event carries the port's number.
        let port = unsafe { raw.element.port_num };
        AsyncEvent::Port { port: u8::try_from(port).unwrap_or(0), what }
    };
    match raw.event_type {
        t::IBV_EVENT_QP_FATAL => qp(QpEvent::Fatal),
        t::IBV_EVENT_QP_REQ_ERR => qp(QpEvent::RequestError),
        t::IBV_EVENT_QP_ACCESS_ERR => qp(QpEvent::AccessError),
        t::IBV_EVENT_COMM_EST => qp(QpEvent::CommunicationEstablished),
        t::IBV_EVENT_SQ_DRAINED => qp(QpEvent::SendQueueDrained),
        t::IBV_EVENT_QP_LAST_WQE_REACHED => qp(QpEvent::LastRequest),
        t::IBV_EVENT_CQ_ERR => {
            // SAFETY: a queue event names a live completion queue; its cookie is the id given at creation.
            AsyncEvent::CqError(CqId(unsafe { (*raw.element.cq).cq_context.addr() as u64 }))
        }
        t::IBV_EVENT_PATH_MIG => qp(QpEvent::PathMigrated),
        t::IBV_EVENT_PATH_MIG_ERR => qp(QpEvent::PathMigrationFailed),
        t::IBV_EVENT_SRQ_LIMIT_REACHED => srq(SrqEvent::LimitReached),
        t::IBV_EVENT_SRQ_ERR => srq(SrqEvent::Fatal),
        t::IBV_EVENT_PORT_ACTIVE => port(PortEvent::Active),
        t::IBV_EVENT_PORT_ERR => port(PortEvent::Down),
        t::IBV_EVENT_GID_CHANGE => port(PortEvent::GidChange),
        t::IBV_EVENT_LID_CHANGE => port(PortEvent::LidChange),
        t::IBV_EVENT_PKEY_CHANGE => port(PortEvent::PkeyChange),
        t::IBV_EVENT_SM_CHANGE => port(PortEvent::SubnetManagerChange),
        t::IBV_EVENT_CLIENT_REREGISTER => port(PortEvent::ClientReregister),
        t::IBV_EVENT_WQ_FATAL => AsyncEvent::WorkQueueFatal,
        t::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        other => AsyncEvent::Other(other.0),
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the context, which self keeps open.
        unsafe { BorrowedFd::borrow_raw((*self.ctx.as_raw()).async_fd) }
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.ctx.0.async_taken.store(false, Ordering::Release);
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEvents({})", self.ctx.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{from_mut, without_provenance_mut};

    /// Every kind there is, with objects as a provider would name them, and kinds nobody knows.
    #[test]
    fn every_kind_is_told_apart() {
        let mut qp = ibv_qp { qp_context: without_provenance_mut(7), ..Default::default() };
        let mut cq = ibv_cq { cq_context: without_provenance_mut(8), ..Default::default() };
        let mut srq = ibv_srq { srq_context: without_provenance_mut(9), ..Default::default() };
        let mut seen = Vec::new();
        for kind in 0..40 {
            let event_type = ibv_event_type(kind);
            let mut raw = ibv_async_event { event_type, ..Default::default() };
            match kind {
                0 => raw.element.cq = from_mut(&mut cq),
                1..=7 | 16 => raw.element.qp = from_mut(&mut qp),
                14 | 15 => raw.element.srq = from_mut(&mut srq),
                9..=13 | 17 | 18 => raw.element.port_num = 2,
                _ => {}
            }
            // SAFETY: the element is what the kind says it is.
            let event = unsafe { read_event(&raw) };
            match event {
                AsyncEvent::CqError(id) => assert_eq!(id, CqId(8)),
                AsyncEvent::Qp { serial, .. } => assert_eq!(serial, 7),
                AsyncEvent::Srq { serial, .. } => assert_eq!(serial, 9),
                AsyncEvent::Port { port, .. } => assert_eq!(port, 2),
                AsyncEvent::DeviceFatal => assert_eq!(kind, 8),
                AsyncEvent::WorkQueueFatal => assert_eq!(kind, 19),
                AsyncEvent::Other(raw) => assert!(raw == kind && kind > 19),
            }
            assert!(!seen.contains(&event), "{event:?} stands for two kinds");
            seen.push(event);
        }
    }
}
