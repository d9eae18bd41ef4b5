//! Safe `rdma_cm`: connections for RDMA, with the role of each side in its type.
//!
//! Ids live in an [`EventChannel`] and are named by handles that say how far they have come:
//!
//! ```text
//! active    resolve ──▶ Connector ──connect──▶ Established<Initiator>
//! passive   listen ──▶ Listener ──▶ ConnectRequest ──accept──▶ Accepting ──▶ Established<Acceptor>
//! ```
//!
//! The queue pair is not the id's: it is made by [`rdma_safe`] on a context of its own, moved by
//! [`init_qp`](EventChannel::init_qp), [`connect`](EventChannel::connect) and [`accept`](EventChannel::accept), and known
//! to the connection manager only by its number. So both have owners and threads of their own, and may be destroyed in
//! any order.
//!
//! # Rules this crate cannot keep for you
//! * On iWARP **the initiator sends first**, and the acceptor sends nothing before it has received (RFC 5044 7.1.2), on
//!   every connection. ESTABLISHED is no permission.
//! * Post receives before `connect` and `accept`: iWARP has no "receiver not ready".
//! * An initiator without an answer **says its first message again** after a while: soft iWARP's accept sends its reply
//!   before it looks at the connection's socket, and a message that comes in between lies there until the next one comes.
//! * Tell peers [`Listener::local_addr`], not the port you asked for.
//!
//! # Example
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rdma_cm::{ConnParams, EventChannel, PrivateData};
//! use std::time::Duration;
//!
//! # fn queue_pair() -> Result<rdma_safe::QueuePair, rdma_safe::Error> { unimplemented!() }
//! let limit = Duration::from_secs(5);
//! let mut channel = EventChannel::new()?;
//! let connector = channel.resolve(None, "10.77.0.1:7471".parse()?, limit)?;
//! let mut qp = queue_pair()?; // on the device that channel.device_name(&connector) names
//! channel.init_qp(&connector, &mut qp)?;
//! // ... qp.post_recv(..) ...
//! let params = ConnParams::with_private_data(PrivateData::framed(b"hello")?);
//! let connection = channel.connect(connector, &mut qp, &params, limit)?;
//! println!("the acceptor says {:?}", connection.private_data().payload()?);
//! // ... qp.post_send(..): the initiator speaks first ...
//! channel.disconnect(&connection)?;
//! # Ok(()) }
//! ```

pub mod blocking;
mod channel;
mod connect;
mod connector;
mod datagram;
mod ece;
pub mod error;
mod established;
mod event;
mod id;
mod interfaces;
mod interrupt;
mod listener;
mod lookup;
mod loopback;
mod migrate;
mod multicast;
mod netlink;
mod options;
mod params;
mod path;
mod private_data;
mod qp;
mod raw;
mod reject;
mod sockaddr;
mod waker;

pub use channel::EventChannel;
pub use connect::Answer;
pub use connector::Active;
pub use datagram::{Datagram, DatagramId, DatagramListener, DatagramPeer, DatagramRequest};
pub use ece::Ece;
#[doc(inline)]
pub use error::{ConnectError, Error, Result};
pub use event::Event;
pub use id::{
    Accepting, Acceptor, ConnectRequest, Connected, Connecting, Connector, Established, Id, IdKey,
    Initiator, Listener, Role,
};
pub use interfaces::{
    LocalAddress, all_addresses, device_addresses, is_local_address, local_addresses,
};
pub use interrupt::{CancelToken, INTERRUPT_SIGNAL, set_interrupt_signal};
pub use listener::ListenOptions;
pub use lookup::{Found, LookupOptions, lookup};
pub use loopback::{
    AddressClass, LOOPBACK_FILE_VARIABLE, LOOPBACK_VARIABLE, LoopbackPolicy, check_bind,
    check_dial, classify, probe_loopback,
};
pub use multicast::Membership;
pub use params::ConnParams;
pub use path::{Path, Route};
pub use private_data::{Carrier, PrivateData, PrivateDataError};
pub use reject::{RejectReason, SidrReason};
pub use waker::Waker;
