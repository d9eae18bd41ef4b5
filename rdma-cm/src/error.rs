//! What can go wrong, where, and what to do about it.
//!
//! | seen | becomes |
//! |---|---|
//! | `rdma_create_event_channel` NULL, or `/dev/infiniband/rdma_cm` missing | [`Error::NoRdma`] |
//! | the same with EMFILE, ENFILE, ENOMEM, EACCES or EPERM | [`Error::Os`] |
//! | a loopback or wildcard address, before any call | [`Error::Loopback`] |
//! | an address of this host over a device that cannot loop back | [`Error::NoSelfConnect`] |
//! | an override about loopback that makes no sense, when a channel is made | [`Error::Override`] |
//! | any other call returning -1 | [`Error::Os`] with its errno and a hint |
//! | `ADDR_ERROR`, `ROUTE_ERROR` | [`Error::Os`] with the event's status as errno |
//! | `rdma_connect` ECONNREFUSED (iWARP), `REJECTED` status 8 (InfiniBand, RoCE) | [`ConnectError::Refused`] |
//! | `rdma_connect` ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, or `UNREACHABLE` | [`ConnectError::Unreachable`] |
//! | `rdma_connect` EADDRINUSE (iWARP) | [`ConnectError::PortInUse`] |
//! | the caller's limit passed | [`ConnectError::Timeout`], [`Error::Timeout`] |
//! | a [`CancelToken`](crate::CancelToken) was used | [`ConnectError::Cancelled`], [`Error::Cancelled`] |
//! | `REJECTED`, any other status | [`ConnectError::Rejected`] with the private data |
//! | `UNREACHABLE` of a datagram id with a positive status | [`ConnectError::DatagramRefused`] |
//! | `MULTICAST_ERROR` | [`Error::Os`] with the event's status as errno |
//! | datagrams or multicast on iWARP, paths on anything but InfiniBand | [`Error::NotSupported`] |
//! | a parameter beyond the wire or the device, private data beyond the message | [`Error::Param`], [`Error::PrivateData`] |
//! | a name that cannot be looked up | [`Error::Lookup`] |
//! | in [`blocking`](crate::blocking): a refused post, a failed completion | [`Error::Post`], [`Error::Completion`] |
//! | there, too: a peer that has gone | [`Error::Disconnected`] |
//! | `CONNECT_ERROR` | [`ConnectError::Failed`]; status -22 or -71 on iWARP: see its hint |
//! | `DISCONNECTED` before `ESTABLISHED` | [`ConnectError::Disconnected`] |
//! | `DEVICE_REMOVAL` | [`ConnectError::DeviceRemoved`]; otherwise [`Event::DeviceRemoval`](crate::Event) |

#![forbid(unsafe_code)]

mod io;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::private_data::{PrivateData, PrivateDataError};
use crate::reject::{RejectReason, SidrReason};

/// Result of everything here but [`connect`](crate::EventChannel::connect).
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. The table in the module's head says which errno or event becomes which variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine has no usable RDMA connection manager.
    #[error(
        "no RDMA connection manager: {what} ({}). Load the modules rdma_ucm and a driver (a network card's, or the \
         software ones siw and rdma_rxe), for example: modprobe -a rdma_ucm siw, then: rdma link add siw0 type siw netdev DEV. \
         In a container also pass /dev/infiniband through",
        os(*.errno)
    )]
    NoRdma {
        /// What was missing.
        what: &'static str,
        /// The errno behind it.
        errno: i32,
    },
    /// A system call, or an event that ends an operation, reported an errno.
    #[error("{op}{}: {}{}", on_target(.target), os(*.errno), in_brackets(.hint))]
    Os {
        /// The function of librdmacm or libc that failed.
        op: &'static str,
        /// What it was about: an address or a device. May be empty.
        target: String,
        /// The positive errno.
        errno: i32,
        /// What to do about it.
        hint: Option<Cow<'static, str>>,
    },
    /// A loopback or wildcard address where a device's own address is needed. Refused before any call: the kernel would
    /// accept some of these and fail later, in ways that depend on the device.
    #[error("{op} {addr}: {why}{}", own_addresses(.own))]
    Loopback {
        /// What was asked for.
        op: &'static str,
        /// The address.
        addr: IpAddr,
        /// Why that cannot work.
        why: &'static str,
        /// This host's devices and their own addresses, to use instead.
        own: Vec<String>,
    },
    /// An address of this host was to be reached through a device that cannot connect to itself.
    #[error(
        "{addr} is an address of this host and {device} cannot connect to itself ({reason}); use another transport between \
         processes of one host, or override it if the device can"
    )]
    NoSelfConnect {
        /// The address.
        addr: IpAddr,
        /// The device.
        device: String,
        /// Where this knowledge comes from.
        reason: String,
    },
    /// An override about loopback cannot be understood; see [`LoopbackPolicy`](crate::LoopbackPolicy) for how to write one.
    #[error("{place}: `{entry}`: {why}")]
    Override {
        /// The variable or the file and line.
        place: String,
        /// What stands there.
        entry: String,
        /// What is wrong with it.
        why: Cow<'static, str>,
    },
    /// Nothing happened within the limit.
    #[error("{op}: nothing happened within {limit:?}")]
    Timeout {
        /// What was waited for.
        op: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The channel's [`CancelToken`](crate::CancelToken) was used.
    #[error("{op}: cancelled")]
    Cancelled {
        /// What was going on.
        op: &'static str,
    },
    /// The handle names no id of this channel, or one that is not in the state the call needs.
    #[error("{op}: {why}")]
    State {
        /// What was asked for.
        op: &'static str,
        /// What does not fit.
        why: &'static str,
    },
    /// The queue pair is on another device than the one the connection goes over.
    #[error(
        "the connection goes over {id_device} and the queue pair is on {qp_device}: make it on {id_device}"
    )]
    WrongDevice {
        /// The device rdma_cm chose.
        id_device: String,
        /// The queue pair's device.
        qp_device: String,
    },
    /// The device, or the transport, does not have it.
    #[error("{op}: {device} cannot do that: {why}")]
    NotSupported {
        /// What was asked for.
        op: &'static str,
        /// The device.
        device: String,
        /// Why not, and what to use instead.
        why: &'static str,
    },
    /// A parameter is beyond what the wire carries or the device can do.
    #[error("{name} is {value}, and at most {limit} here")]
    Param {
        /// The parameter.
        name: &'static str,
        /// What was asked for.
        value: u8,
        /// The most there can be.
        limit: u8,
    },
    /// The peer has gone.
    #[error("the peer has disconnected: connect again")]
    Disconnected,
    /// A request could not be posted.
    #[error("{op}: {why}")]
    Post {
        /// What was to be posted.
        op: &'static str,
        /// Why not.
        why: rdma_safe::Why,
    },
    /// A request was posted and failed.
    #[error("{op}: {status}")]
    Completion {
        /// What was posted.
        op: &'static str,
        /// How it failed.
        status: rdma_safe::WcStatus,
    },
    /// A name could not be looked up.
    #[error("the name cannot be looked up: {text}")]
    Lookup {
        /// What the resolver says.
        text: String,
    },
    /// No signal is free to interrupt a blocking call with.
    #[error(
        "no signal is free to interrupt a blocking rdma_connect: {taken} has a handler of somebody else; name a free one \
         with set_interrupt_signal"
    )]
    NoSignal {
        /// The signal that is taken.
        taken: i32,
    },
    /// The private data does not fit.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// The queue pair could not be moved.
    #[error(transparent)]
    Verbs(#[from] rdma_safe::Error),
}

impl Error {
    /// The errno behind it, if the system or rdma-safe reported one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::NoRdma { errno, .. } | Error::Os { errno, .. } => Some(*errno),
            Error::Verbs(e) => (e.errno() != 0).then(|| e.errno()),
            _ => None,
        }
    }

    /// `op` failed with the errno the thread has now.
    pub(crate) fn last(op: &'static str) -> Self {
        Self::errno_of(op, last_errno())
    }

    /// `op` failed with this errno, of either sign.
    pub(crate) fn errno_of(op: &'static str, errno: i32) -> Self {
        Error::Os { op, target: String::new(), errno: errno.saturating_abs(), hint: None }
    }

    /// Adds what the call was about.
    pub(crate) fn about(mut self, what: impl ToString) -> Self {
        if let Error::Os { target, .. } = &mut self {
            *target = what.to_string();
        }
        self
    }

    /// Adds a hint for some errnos.
    pub(crate) fn hint_for(mut self, errnos: &[i32], text: impl Into<Cow<'static, str>>) -> Self {
        if let Error::Os { errno, hint, .. } = &mut self
            && errnos.contains(errno)
        {
            *hint = Some(text.into());
        }
        self
    }
}

/// Why [`connect`](crate::EventChannel::connect) did not lead to a connection. The id is destroyed; the queue pair is the
/// caller's and must be thrown away, because nobody can say which state it is in. After [`Timeout`](Self::Timeout) and
/// [`Cancelled`](Self::Cancelled) see [`EventChannel::lingering`](crate::EventChannel::lingering) first.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer's host answered, and nobody listens there.
    #[error(
        "connection refused: nobody listens at that address and port; check that the server runs, and that it tells the \
         port it really has (Listener::local_addr)"
    )]
    Refused,
    /// The peer, or the network, rejected the request.
    #[error(
        "the peer rejected the connection: {} ({} bytes of private data)",
        RejectReason::from_status(*status), private_data.len()
    )]
    Rejected {
        /// The event's status; [`reject_reason`](Self::reject_reason) says what it means. InfiniBand and RoCE: the positive
        /// reason of IBTA 12.6.7.2. iWARP: a negative errno.
        status: i32,
        /// What the peer said, padded on InfiniBand and RoCE.
        private_data: PrivateData,
    },
    /// The other side has no datagram queue pair for us.
    #[error("the peer gave no datagram queue pair: {reason}")]
    DatagramRefused {
        /// Why.
        reason: SidrReason,
    },
    /// No answer: no route, no such host, or a host that keeps silent.
    #[error("the peer cannot be reached: {}{}", os(*.errno), way_out(*.errno))]
    Unreachable {
        /// The positive errno.
        errno: i32,
    },
    /// iWARP: another socket of this host has the source port in TCP. rdma_cm chooses source ports among its own
    /// (`cma_alloc_any_port` in drivers/infiniband/core/cma.c, Linux 7.2) and does not ask TCP; soft iWARP binds its TCP
    /// socket to that port when it connects (`kernel_bindconnect` in drivers/infiniband/sw/siw/siw_cm.c), and TCP refuses
    /// (`inet_csk_get_port` in net/ipv4/inet_connection_sock.c) when a listener has it, or a socket without SO_REUSEADDR,
    /// also for the minute after that was closed.
    ///
    /// Connect once more with a new connector, which gets another port. [`blocking`](crate::blocking) and `aio` do so, once.
    #[error(
        "the source port{} is taken in TCP, which rdma_cm does not ask when it chooses one: connect again with a new \
         connector, and with source port 0 if you named one",
        of_address(.local)
    )]
    PortInUse {
        /// This side's address with the port, if it is known.
        local: Option<SocketAddr>,
    },
    /// The limit passed first.
    #[error(
        "no connection within {limit:?}: the peer's host keeps silent, or nobody there accepts or rejects the request"
    )]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// The channel's [`CancelToken`](crate::CancelToken) was used.
    #[error("cancelled")]
    Cancelled,
    /// `CONNECT_ERROR`: the handshake broke.
    #[error("the connection failed while being made (status {status}){}", in_brackets(.hint))]
    Failed {
        /// The event's status, usually a negative errno.
        status: i32,
        /// What it may mean.
        hint: Option<Cow<'static, str>>,
    },
    /// The peer closed the connection before it was there.
    #[error(
        "the peer disconnected before the connection was established: look there for the reason, then connect again"
    )]
    Disconnected,
    /// The device was removed.
    #[error("the device was removed: drop everything made on it, and use another")]
    DeviceRemoved,
    /// It did not get as far as asking the peer. Never [`Error::Cancelled`], which is [`Cancelled`](Self::Cancelled).
    #[error(transparent)]
    Local(Error),
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled { .. } => ConnectError::Cancelled,
            other => ConnectError::Local(other),
        }
    }
}

impl ConnectError {
    /// `CONNECT_ERROR` with this status.
    pub(crate) fn failed(status: i32, iwarp: bool) -> Self {
        let early = iwarp && matches!(status, EINVAL | EPROTO);
        let hint = early.then_some(Cow::Borrowed(PEER_SENT_FIRST));
        ConnectError::Failed { status, hint }
    }

    /// Why the peer, or the network, rejected the request, if it did.
    pub fn reject_reason(&self) -> Option<RejectReason> {
        match self {
            ConnectError::Rejected { status, .. } => Some(RejectReason::from_status(*status)),
            ConnectError::Refused => Some(RejectReason::NoListener),
            _ => None,
        }
    }

    /// `UNREACHABLE` of a datagram id: a negative errno without an answer, or the positive status of one.
    pub(crate) fn unanswered(status: i32) -> Self {
        if status > 0 {
            return ConnectError::DatagramRefused { reason: SidrReason::from_status(status) };
        }
        ConnectError::Unreachable { errno: status.saturating_abs() }
    }

    /// Whether a later attempt may succeed without anybody changing anything. A rejection is not transient by itself: its
    /// private data tells. On iWARP one without private data may also be a peer whose process died.
    pub fn is_transient(&self) -> bool {
        if let ConnectError::Local(Error::Os { op, errno, .. }) = self {
            // Found no neighbour in time; the other reasons of these calls stay until somebody changes something.
            return op.starts_with("rdma_resolve_") && *errno == libc::ETIMEDOUT;
        }
        matches!(
            self,
            ConnectError::Local(Error::Timeout { .. })
                | ConnectError::Refused
                | ConnectError::Unreachable { .. }
                | ConnectError::Timeout { .. }
                | ConnectError::PortInUse { .. }
                | ConnectError::Disconnected
                | ConnectError::Failed { .. }
                | ConnectError::DatagramRefused { reason: SidrReason::NoListener }
        )
    }
}

const EINVAL: i32 = -libc::EINVAL;
const EPROTO: i32 = -libc::EPROTO;
const PEER_SENT_FIRST: &str = "the peer may have sent before it received: on iWARP the side that accepts must not send \
                               until it has received the initiator's first message (RFC 5044 7.1.2)";

/// The thread's errno.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn os(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

fn on_target(target: &str) -> String {
    if target.is_empty() { String::new() } else { format!(" {target}") }
}

/// What to look at when a peer cannot be reached.
fn way_out(errno: i32) -> &'static str {
    match errno {
        libc::ETIMEDOUT => {
            " (its host does not answer: check that it is up, and that no firewall drops the port)"
        }
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EHOSTDOWN => {
            " (no route: `ip route get ADDRESS` tells where packets would go)"
        }
        _ => "",
    }
}

fn of_address(local: &Option<SocketAddr>) -> String {
    local.map(|local| format!(" of {local}")).unwrap_or_default()
}

fn in_brackets(hint: &Option<Cow<'static, str>>) -> String {
    hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default()
}

pub(crate) fn own_addresses(own: &[String]) -> String {
    if own.is_empty() {
        return ". No RDMA device of this host has an address".into();
    }
    format!(". Use a device's own address: {}", own.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rdma_names_the_modules() {
        let text = Error::NoRdma { what: "x", errno: libc::ENODEV }.to_string();
        for word in ["rdma_ucm", "siw", "rdma_rxe", "No such device"] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }

    #[test]
    fn an_early_peer_is_hinted_at_on_iwarp_only() {
        for (status, iwarp, hinted) in
            [(-22, true, true), (-71, true, true), (-22, false, false), (-104, true, false)]
        {
            let text = ConnectError::failed(status, iwarp).to_string();
            assert_eq!(text.contains("RFC 5044 7.1.2"), hinted, "{text}");
        }
    }

    #[test]
    fn the_sign_of_an_errno_does_not_matter() {
        assert_eq!(Error::errno_of("x", -libc::ENODEV).errno(), Some(libc::ENODEV));
        assert_eq!(Error::errno_of("x", i32::MIN).errno(), Some(i32::MAX));
    }

    #[test]
    fn hints_are_for_their_errno() {
        let error = |e| Error::errno_of("rdma_bind_addr", e).about("10.0.0.1").hint_for(&[19], "h");
        assert!(error(19).to_string().ends_with("(h)"));
        assert!(!error(98).to_string().contains("(h)"));
    }
}
