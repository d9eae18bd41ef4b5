//! Why a port could not be opened.
use std::net::IpAddr;

/// Why [`open`](super::open) or [`find`](super::find) failed. Each text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] crate::error::Error),
    /// There is no RDMA device at all.
    #[error(
        "this machine has no RDMA device; load a driver (a network card's, or a software one: \
         `modprobe siw` or `modprobe rdma_rxe`, then `rdma link add NAME type siw netdev DEV`)"
    )]
    NoDevice,
    /// There is no device of the name that was asked for.
    #[error("there is no RDMA device {name:?}; there are: {}", there.join(", "))]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
        /// The devices of this machine.
        there: Vec<String>,
    },
    /// No port has the address that was asked for.
    #[error(
        "no usable RDMA port has the address {addr}; {}",
        if own.is_empty() { "none has any address".to_owned() }
        else { own.iter().chain(reasons).cloned().collect::<Vec<_>>().join("; ") }
    )]
    AddressNotHere {
        /// The address that was asked for.
        addr: IpAddr,
        /// What there is, like "siw0 has 10.77.0.1".
        own: Vec<String>,
        /// Why other ports were left out.
        reasons: Vec<String>,
    },
    /// No port is up, with an address. The reasons name each port that was looked at.
    #[error("no RDMA port can be used: {}", reasons.join("; "))]
    NoUsablePort {
        /// One for each port.
        reasons: Vec<String>,
    },
    /// Buffers could not be registered; the source names the locked-memory limit.
    #[error("registering {bytes} bytes of send buffers on {device}: {source}")]
    Memory {
        /// The device.
        device: String,
        /// What was asked for.
        bytes: usize,
        /// What the system said.
        source: rdma_safe::Error,
    },
    /// The device refused something.
    #[error("{device}: {source}")]
    Device {
        /// The device.
        device: String,
        /// What it said.
        source: rdma_safe::Error,
    },
    /// The list of devices could not be read.
    #[error(transparent)]
    Verbs(#[from] rdma_safe::Error),
    /// The connection manager refused something.
    #[error(transparent)]
    ConnectionManager(#[from] rdma_cm::Error),
    /// No thread could be started.
    #[error("the connection manager's thread could not be started: {0}; raise `ulimit -u`")]
    Thread(std::io::Error),
}
