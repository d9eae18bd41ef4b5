//! Connection manager events: copied out and acknowledged before anybody sees them.
use std::net::SocketAddr;
use std::ptr::NonNull;

use rdma_sys as sys;
use rdma_sys::rdma_cm_event_type as cm_event;

use crate::datagram::{DatagramPeer, DatagramRequest};
use crate::id::{ConnectRequest, IdKey};
use crate::private_data::PrivateData;

/// Something happened to an id.
///
/// From [`EventChannel::next_event`](crate::EventChannel::next_event).
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
    /// Somebody asks a datagram listener for a queue pair.
    DatagramRequest {
        /// The listener it came to.
        listener: IdKey,
        /// The request; dropping it rejects it.
        request: DatagramRequest,
    },
    /// ESTABLISHED of a datagram id: the answer to [`begin_ask`](crate::EventChannel::begin_ask).
    DatagramAnswer {
        /// The id that asked.
        id: IdKey,
        /// Where to send to.
        peer: DatagramPeer,
    },
    /// MULTICAST_JOIN: the id is in the group.
    MulticastJoin {
        /// The id that joined.
        id: IdKey,
        /// The group.
        group: SocketAddr,
        /// How to send to it, and the GID and LID to attach a queue pair to.
        peer: DatagramPeer,
    },
    /// MULTICAST_ERROR: the group could not be joined, or is lost.
    MulticastError {
        /// The id that joined.
        id: IdKey,
        /// The group.
        group: SocketAddr,
        /// The positive errno.
        errno: i32,
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
            Event::DatagramRequest { request, .. } => request.key(),
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
            | Event::DatagramAnswer { id, .. }
            | Event::MulticastJoin { id, .. }
            | Event::MulticastError { id, .. }
            | Event::Other { id, .. } => *id,
        }
    }

    /// The listener a request came to.
    pub fn listener(&self) -> Option<IdKey> {
        match self {
            Event::ConnectRequest { listener, .. } | Event::DatagramRequest { listener, .. } => {
                Some(*listener)
            }
            _ => None,
        }
    }

    /// What kind of event it is, in the words of `rdma_event_str` in librdmacm.
    pub fn name(&self) -> &'static str {
        match self {
            Event::ConnectRequest { .. } | Event::DatagramRequest { .. } => "CONNECT_REQUEST",
            Event::AddrResolved { .. } => "ADDR_RESOLVED",
            Event::AddrError { .. } => "ADDR_ERROR",
            Event::RouteResolved { .. } => "ROUTE_RESOLVED",
            Event::RouteError { .. } => "ROUTE_ERROR",
            Event::ConnectResponse { .. } => "CONNECT_RESPONSE",
            Event::ConnectError { .. } => "CONNECT_ERROR",
            Event::Unreachable { .. } => "UNREACHABLE",
            Event::Rejected { .. } => "REJECTED",
            Event::Established { .. } | Event::DatagramAnswer { .. } => "ESTABLISHED",
            Event::Disconnected { .. } => "DISCONNECTED",
            Event::DeviceRemoval { .. } => "DEVICE_REMOVAL",
            Event::AddrChange { .. } => "ADDR_CHANGE",
            Event::TimewaitExit { .. } => "TIMEWAIT_EXIT",
            Event::MulticastJoin { .. } => "MULTICAST_JOIN",
            Event::MulticastError { .. } => "MULTICAST_ERROR",
            Event::Other { .. } => "unknown event",
        }
    }

    /// The same event of an id that has moved to another channel. A request keeps its own name: it did not move.
    pub(crate) fn renamed(mut self, to: IdKey) -> Self {
        match &mut self {
            Event::ConnectRequest { .. } | Event::DatagramRequest { .. } => {}
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
            | Event::DatagramAnswer { id, .. }
            | Event::MulticastJoin { id, .. }
            | Event::MulticastError { id, .. }
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
    pub(crate) details: Details,
}

/// What else an event says, by the kind of its id.
pub(crate) enum Details {
    /// Of a connection; zeroes in events without parameters. The private data is in [`Copied::private_data`].
    Connection(sys::rdma_conn_param),
    /// Of a datagram id: a receiver, if it is an answer or a group.
    Datagram {
        ah: sys::ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
        /// The number of the join, in an event of a multicast group.
        join: usize,
    },
}

impl Copied {
    /// Copies an event and acknowledges it.
    ///
    /// # Safety
    /// `event` must come from rdma_get_cm_event, unacknowledged, and its ids must live.
    pub(crate) unsafe fn take(event: NonNull<sys::rdma_cm_event>) -> Self {
        let raw = event.as_ptr();
        // SAFETY: a live event by the contract.
        let (kind, status, id, listener) =
            unsafe { ((*raw).event, (*raw).status, (*raw).id, (*raw).listen_id) };
        let is_request = kind == cm_event::RDMA_CM_EVENT_CONNECT_REQUEST;
        let subject = if is_request { listener } else { id };
        // SAFETY: librdmacm fills in a live id; the context is the number we gave it, or null.
        let tag = unsafe { subject.as_ref() }.map_or(usize::MAX, |id| id.context.addr());
        let of_group = matches!(
            kind,
            cm_event::RDMA_CM_EVENT_MULTICAST_JOIN | cm_event::RDMA_CM_EVENT_MULTICAST_ERROR
        );
        // librdmacm fills in the arm of the parameters that belongs to the kind of the id.
        // SAFETY: as above.
        let is_datagram = unsafe { subject.as_ref() }
            .is_some_and(|id| id.qp_type == sys::ibv_qp_type::IBV_QPT_UD);
        // SAFETY: a live event. librdmacm zeroes it first; every value of the plain numbers and pointers is valid, and each
        // arm is read whole.
        let (conn, ud) = unsafe {
            let param = &raw const (*raw).param;
            (param.cast::<sys::rdma_conn_param>().read(), param.cast::<sys::rdma_ud_param>().read())
        };
        // Both arms start with private_data, private_data_len. Of a group that is what the join was given: a number.
        let private_data = if conn.private_data.is_null() || of_group {
            PrivateData::empty()
        } else {
            let len = usize::from(conn.private_data_len);
            // SAFETY: librdmacm points it at a field of 256 bytes inside the event; the length has eight bits.
            let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
            PrivateData::copy_from(bytes)
        };
        // SAFETY: live and unacknowledged by the contract; nothing below reads through it.
        let _ = unsafe { sys::rdma_ack_cm_event(raw) };
        let details = if is_datagram || of_group {
            let join = if of_group { ud.private_data.addr() } else { 0 };
            Details::Datagram { ah: ud.ah_attr, qp_num: ud.qp_num, qkey: ud.qkey, join }
        } else {
            Details::Connection(conn)
        };
        Self {
            kind,
            status,
            request: if is_request { NonNull::new(id) } else { None },
            tag,
            private_data,
            details,
        }
    }

    /// The number of the join, in an event of a multicast group.
    pub(crate) fn join(&self) -> Option<usize> {
        match self.details {
            Details::Datagram { join, .. } if join != 0 => Some(join),
            _ => None,
        }
    }

    /// The event for the id named `id`, and the group it is about; not for requests.
    pub(crate) fn into_event(self, id: IdKey, group: Option<SocketAddr>) -> Event {
        let Self { kind, status, private_data, details, .. } = self;
        let errno = status.saturating_abs();
        if let Details::Datagram { ah, qp_num, qkey, .. } = details {
            let peer = |private_data| DatagramPeer { ah, qp_num, qkey, private_data };
            match (kind, group) {
                (cm_event::RDMA_CM_EVENT_ESTABLISHED, _) => {
                    return Event::DatagramAnswer { id, peer: peer(private_data) };
                }
                (cm_event::RDMA_CM_EVENT_MULTICAST_JOIN, Some(group)) => {
                    return Event::MulticastJoin { id, group, peer: peer(private_data) };
                }
                (cm_event::RDMA_CM_EVENT_MULTICAST_ERROR, Some(group)) => {
                    return Event::MulticastError { id, group, errno };
                }
                _ => {}
            }
        }
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
