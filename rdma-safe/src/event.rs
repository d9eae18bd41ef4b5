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
    /// A port changed; queries tell how. Numbered from 1.
    Port {
        /// The port.
        port: u8,
        /// Up, and not any other change.
        active: bool,
    },
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
    /// The last request of a shared receive queue was used.
    LastRequest,
}

/// The one reader of a context's asynchronous events.
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
    let port = |active| {
        // SAFETY: a port event carries the port's number.
        let port = unsafe { raw.element.port_num };
        AsyncEvent::Port { port: u8::try_from(port).unwrap_or(0), active }
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
        t::IBV_EVENT_PORT_ACTIVE => port(true),
        t::IBV_EVENT_PORT_ERR
        | t::IBV_EVENT_LID_CHANGE
        | t::IBV_EVENT_PKEY_CHANGE
        | t::IBV_EVENT_GID_CHANGE
        | t::IBV_EVENT_SM_CHANGE
        | t::IBV_EVENT_CLIENT_REREGISTER => port(false),
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
