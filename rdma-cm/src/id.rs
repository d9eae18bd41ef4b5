//! The typed handles: each names one id of a channel and says in its type how far that id has come.
//!
//! A handle does nothing by itself. It is `Send`, may be dropped anywhere, and a dropped one has its id destroyed by the
//! next call of the channel, or with the channel.

#![forbid(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::private_data::PrivateData;
use crate::raw::Device;

/// The name of an id within the process, never used twice. Compares equal to the key in the id's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdKey {
    pub(crate) channel: u64,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Where dropped handles leave their keys; shared with the channel.
pub(crate) type Graveyard = Arc<Mutex<Vec<IdKey>>>;

/// The right to one id. Public only for the sealed trait below; it cannot be named outside.
#[allow(unreachable_pub)]
pub struct Handle {
    key: IdKey,
    graveyard: Option<Graveyard>,
}

impl Handle {
    pub(crate) fn new(key: IdKey, graveyard: &Graveyard) -> Self {
        Self { key, graveyard: Some(Arc::clone(graveyard)) }
    }

    pub(crate) fn key(&self) -> IdKey {
        self.key
    }

    /// Gives up the right without burying the id: it is destroyed or renamed by the caller.
    pub(crate) fn into_key(mut self) -> IdKey {
        self.graveyard = None;
        self.key
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(graveyard) = self.graveyard.take() {
            graveyard.lock().unwrap_or_else(PoisonError::into_inner).push(self.key);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {}.{}", self.key.channel, self.key.index)
    }
}

#[allow(unreachable_pub)]
pub(crate) mod sealed {
    pub trait Sealed {
        fn handle(&self) -> &super::Handle;
        fn replace_handle(&mut self, with: super::Handle) -> super::Handle;
    }
}

/// A handle of an id: what every call on an [`EventChannel`](crate::EventChannel) takes.
pub trait Id: sealed::Sealed {
    /// The id's name, as it appears in events.
    fn key(&self) -> IdKey {
        self.handle().key()
    }
}

/// A handle whose id has, or is about to have, a connection.
pub trait Connected: Id {}

macro_rules! handle {
    ($name:ty $(, $param:ident)?) => {
        impl$(<$param: $crate::id::Role>)? $crate::id::sealed::Sealed for $name {
            fn handle(&self) -> &$crate::id::Handle {
                &self.handle
            }
            fn replace_handle(&mut self, with: $crate::id::Handle) -> $crate::id::Handle {
                std::mem::replace(&mut self.handle, with)
            }
        }
        impl$(<$param: $crate::id::Role>)? $crate::id::Id for $name {}
    };
}

/// The active side before the connection: an address to resolve, a route, a request to send.
///
/// Made by [`EventChannel::resolve`](crate::EventChannel::resolve), or
/// [`EventChannel::connector`](crate::EventChannel::connector) step by step; used up by
/// [`EventChannel::connect`](crate::EventChannel::connect).
#[derive(Debug)]
#[must_use = "a dropped connector destroys its id"]
pub struct Connector {
    pub(crate) handle: Handle,
}
pub(crate) use handle;
handle!(Connector);

/// A request that has been sent and not answered; see [`begin_connect`](crate::EventChannel::begin_connect).
#[derive(Debug)]
#[must_use = "a dropped handle gives the attempt up"]
pub struct Connecting {
    pub(crate) handle: Handle,
    pub(crate) iwarp: bool,
    pub(crate) min_rnr_timer: u8,
}
handle!(Connecting);

/// The passive side before any connection.
///
/// Made by [`EventChannel::listen`](crate::EventChannel::listen) and
/// [`EventChannel::listen_with`](crate::EventChannel::listen_with).
#[derive(Debug)]
#[must_use = "a dropped listener stops listening"]
pub struct Listener {
    pub(crate) handle: Handle,
    pub(crate) local: SocketAddr,
}
handle!(Listener);

impl Listener {
    /// The address and **the port the listener really has**: what to tell the peers, never the port that was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Somebody wants to connect. Accept it, or reject it, within seconds; dropping it rejects it without a word.
///
/// From [`EventChannel::wait_request`](crate::EventChannel::wait_request); used up by
/// [`EventChannel::accept`](crate::EventChannel::accept) and [`EventChannel::reject`](crate::EventChannel::reject).
#[derive(Debug)]
#[must_use = "a dropped request is rejected"]
pub struct ConnectRequest {
    pub(crate) handle: Handle,
    pub(crate) device: Device,
    pub(crate) facts: RequestFacts,
}
handle!(ConnectRequest);

/// What a request says.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) private_data: PrivateData,
    pub(crate) remote_qp_num: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: bool,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: bool,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}

impl RequestFacts {
    pub(crate) fn new(
        private_data: PrivateData,
        conn: &rdma_sys::rdma_conn_param,
        local: Option<SocketAddr>,
        peer: Option<SocketAddr>,
    ) -> Self {
        Self {
            private_data,
            remote_qp_num: conn.qp_num,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control != 0,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq != 0,
            local,
            peer,
        }
    }
}

impl ConnectRequest {
    /// What the initiator sent along; padded on InfiniBand and RoCE.
    pub fn private_data(&self) -> &PrivateData {
        &self.facts.private_data
    }

    /// The initiator's queue pair number; 0 on iWARP, which does not carry it.
    pub fn remote_qp_num(&self) -> u32 {
        self.facts.remote_qp_num
    }

    /// The reads and atomics the initiator wants to have outstanding towards this side: the most an accept gives.
    pub fn responder_resources(&self) -> u8 {
        self.facts.responder_resources
    }

    /// The reads and atomics this side may have outstanding towards the initiator.
    pub fn initiator_depth(&self) -> u8 {
        self.facts.initiator_depth
    }

    /// Whether the initiator takes end-to-end credits. False on iWARP, which does not carry it.
    pub fn flow_control(&self) -> bool {
        self.facts.flow_control
    }

    /// How often the initiator wants unacknowledged sends repeated, 0 to 7. 0 on iWARP, which does not carry it.
    pub fn retry_count(&self) -> u8 {
        self.facts.retry_count
    }

    /// How often this side's sends are to be tried again when the initiator has no receive posted, 0 to 7 (7: for ever). 0
    /// on iWARP, which does not carry it.
    pub fn rnr_retry_count(&self) -> u8 {
        self.facts.rnr_retry_count
    }

    /// Whether the initiator receives from a shared receive queue. False on iWARP, which does not carry it.
    pub fn uses_srq(&self) -> bool {
        self.facts.srq
    }

    /// The address the request came to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.facts.local
    }

    /// The address the request came from.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.facts.peer
    }

    /// The device the request came in on, on which the queue pair has to be made.
    pub fn device_name(&self) -> &str {
        &self.device.name
    }

    /// That device's node GUID.
    pub fn device_guid(&self) -> u64 {
        self.device.guid
    }

    /// Whether that device speaks iWARP.
    pub fn is_iwarp(&self) -> bool {
        self.device.iwarp
    }
}

/// A request that was accepted; its ESTABLISHED event has not been read yet.
///
/// From [`EventChannel::accept`](crate::EventChannel::accept); becomes a connection by
/// [`EventChannel::wait_established`](crate::EventChannel::wait_established) or
/// [`EventChannel::established`](crate::EventChannel::established).
#[derive(Debug)]
#[must_use = "a dropped handle ends the connection"]
pub struct Accepting {
    pub(crate) handle: Handle,
}
handle!(Accepting);
impl Connected for Accepting {}

/// Which side of a connection this is. On iWARP it decides who may send first.
pub trait Role: role::Sealed {}

/// The side that connected. On iWARP **it must send the first message** on the connection (RFC 5044 7.1.2).
#[derive(Debug)]
pub enum Initiator {}

/// The side that accepted. On iWARP **it must not send anything before it has received** on the connection, and
/// ESTABLISHED does not tell that it has.
#[derive(Debug)]
pub enum Acceptor {}

#[allow(unreachable_pub)]
mod role {
    pub trait Sealed {}
    impl Sealed for super::Initiator {}
    impl Sealed for super::Acceptor {}
}
impl Role for Initiator {}
impl Role for Acceptor {}

/// A connection.
///
/// From [`EventChannel::connect`](crate::EventChannel::connect) as the initiator,
/// [`EventChannel::wait_established`](crate::EventChannel::wait_established) as the acceptor; ended by
/// [`EventChannel::disconnect`](crate::EventChannel::disconnect).
#[derive(Debug)]
#[must_use = "a dropped handle ends the connection"]
pub struct Established<R: Role> {
    pub(crate) handle: Handle,
    pub(crate) private_data: PrivateData,
    pub(crate) role: PhantomData<R>,
}
handle!(Established<R>, R);
impl<R: Role> Connected for Established<R> {}

impl<R: Role> Established<R> {
    pub(crate) fn new(handle: Handle, private_data: PrivateData) -> Self {
        Self { handle, private_data, role: PhantomData }
    }
}

impl Established<Initiator> {
    /// What the acceptor sent along with its reply; padded on InfiniBand and RoCE.
    pub fn private_data(&self) -> &PrivateData {
        &self.private_data
    }
}
