//! Connection manager events: copied out and acknowledged before anybody sees them.
use std::ptr::NonNull;

use rdma_sys as sys;
use rdma_sys::rdma_cm_event_type as cm_event;

use crate::id::{ConnectRequest, IdKey};
use crate::private_data::PrivateData;

/// Something happened to an id.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Somebody wants to connect to a listener.
    ConnectRequest {
        /// The listener it came to.
        listener: IdKey,
        /// The request; dropping it rejects it.
        request: ConnectRequest,
    },
    /// ADDR_RESOLVED: the device is known.
    AddrResolved {
        /// The connector.
        id: IdKey,
    },
    /// ADDR_ERROR: the address leads nowhere.
    AddrError {
        /// The connector.
        id: IdKey,
        /// The positive errno.
        errno: i32,
    },
    /// ROUTE_RESOLVED: ready to connect.
    RouteResolved {
        /// The connector.
        id: IdKey,
    },
    /// ROUTE_ERROR: no path.
    RouteError {
        /// The connector.
        id: IdKey,
        /// The positive errno.
        errno: i32,
    },
    /// CONNECT_RESPONSE: the acceptor has accepted (InfiniBand, RoCE); finish with
    /// [`finish_connect`](crate::EventChannel::finish_connect).
    ConnectResponse {
        /// The attempt.
        id: IdKey,
        /// The acceptor's private data.
        private_data: PrivateData,
    },
    /// CONNECT_ERROR.
    ConnectError {
        /// The attempt, or an accepted request.
        id: IdKey,
        /// Usually a negative errno.
        status: i32,
    },
    /// UNREACHABLE: no answer.
    Unreachable {
        /// The attempt.
        id: IdKey,
        /// Usually a negative errno.
        status: i32,
    },
    /// REJECTED.
    Rejected {
        /// The attempt.
        id: IdKey,
        /// See [`ConnectError::Rejected`](crate::ConnectError::Rejected).
        status: i32,
        /// What the peer said.
        private_data: PrivateData,
    },
    /// ESTABLISHED. On iWARP this allows an acceptor nothing: it may send only after it has received.
    Established {
        /// The connection.
        id: IdKey,
        /// The acceptor's private data, at the initiator on iWARP.
        private_data: PrivateData,
    },
    /// DISCONNECTED: the peer has gone, or both have.
    Disconnected {
        /// The connection.
        id: IdKey,
    },
    /// DEVICE_REMOVAL: destroy this id and everything on its device.
    DeviceRemoval {
        /// The id.
        id: IdKey,
    },
    /// ADDR_CHANGE: the network interface under the device has changed.
    AddrChange {
        /// The id.
        id: IdKey,
    },
    /// TIMEWAIT_EXIT: the queue pair number is free again (InfiniBand, RoCE).
    TimewaitExit {
        /// The connection.
        id: IdKey,
    },
    /// Any other event; newer kernels have more.
    Other {
        /// The id.
        id: IdKey,
        /// The number of the event.
        kind: u32,
        /// Its status.
        status: i32,
    },
}

impl Event {
    /// The id it is about; of a request the request's own.
    pub fn id(&self) -> IdKey {
        use crate::id::Id;
        match self {
            Event::ConnectRequest { request, .. } => request.key(),
            Event::AddrResolved { id }
            | Event::AddrError { id, .. }
            | Event::RouteResolved { id }
            | Event::RouteError { id, .. }
            | Event::ConnectResponse { id, .. }
            | Event::ConnectError { id, .. }
            | Event::Unreachable { id, .. }
            | Event::Rejected { id, .. }
            | Event::Established { id, .. }
            | Event::Disconnected { id }
            | Event::DeviceRemoval { id }
            | Event::AddrChange { id }
            | Event::TimewaitExit { id }
            | Event::Other { id, .. } => *id,
        }
    }

    /// The same event of an id that has moved to another channel. A request keeps its own name: it did not move.
    pub(crate) fn renamed(mut self, to: IdKey) -> Self {
        match &mut self {
            Event::ConnectRequest { .. } => {}
            Event::AddrResolved { id }
            | Event::AddrError { id, .. }
            | Event::RouteResolved { id }
            | Event::RouteError { id, .. }
            | Event::ConnectResponse { id, .. }
            | Event::ConnectError { id, .. }
            | Event::Unreachable { id, .. }
            | Event::Rejected { id, .. }
            | Event::Established { id, .. }
            | Event::Disconnected { id }
            | Event::DeviceRemoval { id }
            | Event::AddrChange { id }
            | Event::TimewaitExit { id }
            | Event::Other { id, .. } => *id = to,
        }
        self
    }
}

/// An event as read, before its ids have become keys.
pub(crate) struct Copied {
    pub(crate) kind: cm_event,
    pub(crate) status: i32,
    /// The new id of a CONNECT_REQUEST, which the reader owns from now on.
    pub(crate) request: Option<NonNull<sys::rdma_cm_id>>,
    /// The tag of the id it is about; of the listener for a CONNECT_REQUEST.
    pub(crate) tag: usize,
    pub(crate) private_data: PrivateData,
    pub(crate) qp_num: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

impl Copied {
    /// Copies an event and acknowledges it.
    ///
    /// # Safety
    /// `event` must come from rdma_get_cm_event of a channel of reliable connections only, unacknowledged, and its ids
    /// must live.
    pub(crate) unsafe fn take(event: NonNull<sys::rdma_cm_event>) -> Self {
        let raw = event.as_ptr();
        // SAFETY: a live event by the contract.
        let (kind, status, id, listener) =
            unsafe { ((*raw).event, (*raw).status, (*raw).id, (*raw).listen_id) };
        let is_request = kind == cm_event::RDMA_CM_EVENT_CONNECT_REQUEST;
        let subject = if is_request { listener } else { id };
        // SAFETY: librdmacm fills in a live id; the context is the number we gave it, or null.
        let tag = unsafe { subject.as_ref() }.map_or(usize::MAX, |id| id.context.addr());
        // SAFETY: reliable connections have the `conn` arm of the parameters, which librdmacm zeroes for events without
        // parameters. Both arms start with private_data, private_data_len.
        let conn = unsafe { (&raw const (*raw).param).cast::<sys::rdma_conn_param>().read() };
        let private_data = if conn.private_data.is_null() {
            PrivateData::empty()
        } else {
            let len = usize::from(conn.private_data_len);
            // SAFETY: librdmacm points it at a field of 256 bytes inside the event; the length has eight bits.
            let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
            PrivateData::copy_from(bytes)
        };
        // SAFETY: live and unacknowledged by the contract; nothing below reads through it.
        let _ = unsafe { sys::rdma_ack_cm_event(raw) };
        Self {
            kind,
            status,
            request: if is_request { NonNull::new(id) } else { None },
            tag,
            private_data,
            qp_num: conn.qp_num,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
        }
    }

    /// The event for the id named `id`; not for requests.
    pub(crate) fn into_event(self, id: IdKey) -> Event {
        let Self { kind, status, private_data, .. } = self;
        let errno = status.saturating_abs();
        match kind {
            cm_event::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddrResolved { id },
            cm_event::RDMA_CM_EVENT_ADDR_ERROR => Event::AddrError { id, errno },
            cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved { id },
            cm_event::RDMA_CM_EVENT_ROUTE_ERROR => Event::RouteError { id, errno },
            cm_event::RDMA_CM_EVENT_CONNECT_RESPONSE => Event::ConnectResponse { id, private_data },
            cm_event::RDMA_CM_EVENT_CONNECT_ERROR => Event::ConnectError { id, status },
            cm_event::RDMA_CM_EVENT_UNREACHABLE => Event::Unreachable { id, status },
            cm_event::RDMA_CM_EVENT_REJECTED => Event::Rejected { id, status, private_data },
            cm_event::RDMA_CM_EVENT_ESTABLISHED => Event::Established { id, private_data },
            cm_event::RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected { id },
            cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoval { id },
            cm_event::RDMA_CM_EVENT_ADDR_CHANGE => Event::AddrChange { id },
            cm_event::RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit { id },
            other => Event::Other { id, kind: other.0, status },
        }
    }
}
