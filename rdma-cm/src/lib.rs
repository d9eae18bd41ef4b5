//! Safe `rdma_cm`: connections for RDMA, with the role of each side in its type.
//!
//! For questions and answers between two programs, [`blocking`] is all that is needed. The rest of this page walks through the
//! objects in the order in which they are made. [`features`] names the test of each.
//!
//! # 1. The channel
//! An [`EventChannel`] owns every id on it, because reading an event changes the id it is about; so ids are reached through
//! `&mut` of their channel only. They are named by handles that say how far they have come. Dropping a handle destroys its
//! id. Events are copied and acknowledged as they are read: nothing ever waits for an acknowledgement.
//!
//! ```text
//! active    resolve ──▶ Connector ──connect──▶ Established<Initiator>
//! passive   listen ──▶ Listener ──▶ ConnectRequest ──accept──▶ Accepting ──▶ Established<Acceptor>
//! ```
//!
//! # 2. An address and a route
//! [`resolve`](EventChannel::resolve) finds the device that leads to an address, and the path. Taken apart:
//! [`connector`](EventChannel::connector), [options](EventChannel::set_tos), [`bind_source`](EventChannel::bind_source),
//! [`resolve_addr`](EventChannel::resolve_addr), [`resolve_route`](EventChannel::resolve_route). Loopback and wildcard
//! addresses are refused before the kernel sees them, and so is every address of this host over a device that cannot connect
//! to itself: [`loopback`] says how that is known, and how to override it. Names become addresses by `ToSocketAddrs` or
//! [`lookup`]; IPv6 link-local addresses carry their scope in the `SocketAddr`. [`route`](EventChannel::route) tells what
//! was found.
//!
//! # 3. A queue pair
//! It is not the id's: it is made by [`rdma_safe`], on the device the id is on, which
//! [`open_device`](EventChannel::open_device) opens ([`ConnectRequest::device_name`] tells a server that has it open
//! already), moved by
//! [`init_qp`](EventChannel::init_qp), [`connect`](EventChannel::connect) and [`accept`](EventChannel::accept), and known to
//! the connection manager only by its number. So both have owners and threads of their own, and may be destroyed in any
//! order. After `init_qp` **post receives**: iWARP has no "receiver not ready", and the peer's first message may come at any
//! moment from now on.
//!
//! # 4. The connection
//! The active side [`connect`](EventChannel::connect)s, with [`ConnParams`] and [`PrivateData`]; the passive side
//! [`listen`](EventChannel::listen)s, [waits](EventChannel::wait_request), and accepts or
//! [`reject`](EventChannel::reject)s with a [reason](RejectReason). Tell peers [`Listener::local_addr`], not the port you
//! asked for. For a loop of one's own there are [`begin_connect`](EventChannel::begin_connect),
//! [`next_event`](EventChannel::next_event), [`answer`](EventChannel::answer),
//! [`established`](EventChannel::established), and the channel's descriptor.
//!
//! # 5. The first message
//! On iWARP **the initiator sends first**, and the acceptor sends nothing before it has received (RFC 5044 7.1.2), on every
//! connection. ESTABLISHED is no permission. This crate gives each side its [`Role`] and cannot see what it sends.
//!
//! An initiator without an answer makes its peer look again after a while, with an empty write
//! (`QueuePair::post_empty_write`) or by saying its first message again: soft iWARP's accept sends its reply before it looks
//! at the connection's socket, and a message that comes in between lies there until the next one comes.
//!
//! # 6. The end
//! Agree with the peer, [`disconnect`](EventChannel::disconnect), drain or destroy the queue pair, drop the handle. Both sides
//! get [`Event::Disconnected`]. A connection can [move](EventChannel::adopt) to another channel, and so to another thread, at
//! any time before.
//!
//! # Datagrams and multicast
//! [`resolve_datagram`](EventChannel::resolve_datagram) and [`ask`](EventChannel::ask) lead from an address to a
//! [`DatagramPeer`]; [`listen_datagram`](EventChannel::listen_datagram) answers;
//! [`join_multicast`](EventChannel::join_multicast) leads to a group. From [`DatagramPeer::address`] a protection domain makes
//! the address handle that sends need; who answers a datagram makes it from its completion
//! (`create_reply_ah`) and uses the key [`UDP_QKEY`]. iWARP has neither datagrams nor multicast, and says so.
//!
//! # Limits
//! Every call that waits takes a limit or ends with the channel's [`CancelToken`]. Two things it cannot end: an iWARP id whose
//! request is unanswered, when its channel is dropped (see [`lingering`](EventChannel::lingering)), and the host's name
//! service in [`lookup`].
//!
//! # C and here
//! | librdmacm | here |
//! |---|---|
//! | `rdma_create_event_channel`, `rdma_get_cm_event`, `rdma_ack_cm_event` | [`EventChannel`], [`next_event`]; acknowledged inside |
//! | `rdma_create_id`, `rdma_destroy_id` | [`connector`], [`listen`], [`datagram`]; [`destroy`] or drop |
//! | `rdma_bind_addr`, `rdma_resolve_addr`, `rdma_resolve_route` | [`bind_source`], [`resolve_addr`], [`resolve_route`] |
//! | `rdma_listen`, `rdma_get_src_port` | [`listen`], [`listen_with`]; [`Listener::local_addr`] |
//! | `rdma_connect`, `rdma_establish`, `rdma_accept`, `rdma_notify` | [`connect`] (establishes), [`accept`], [`notify_established`] |
//! | `rdma_init_qp_attr` with `ibv_modify_qp` | [`init_qp`], then inside of [`connect`] and [`accept`]; [`ready_datagram_qp`] |
//! | `rdma_reject`, `rdma_reject_ece`, `rdma_disconnect` | [`reject`], [`reject_ece`], [`disconnect`] |
//! | `rdma_set_option` | [`set_tos`], [`set_ack_timeout`], [`set_reuse_addr`], [`set_v6_only`], [`set_path`], [`ListenOptions`] |
//! | `rdma_migrate_id` | [`adopt`] |
//! | `rdma_join_multicast_ex`, `rdma_leave_multicast` | [`join_multicast`], [`leave_multicast`] |
//! | `rdma_set_local_ece`, `rdma_get_remote_ece` | [`set_local_ece`], [`remote_ece`] |
//! | `rdma_get_local_addr`, `rdma_get_peer_addr`, `id->route` | [`local_addr`], [`peer_addr`], [`route`] |
//! | `rdma_getaddrinfo` | [`lookup`] |
//! | `rdma_create_ep`, `rdma_get_request`, synchronous ids | [`blocking`] |
//! | `rdma_event_str` | an [`Event`] has a name for each kind |
//! | `rdma_create_qp`, `rdma_create_srq`, `rdma_get_devices` | [`rdma_safe`]; librdmacm never sees a queue pair of ours |
//! | `rdma_reg_msgs`, `rdma_post_send`, `rdma_get_send_comp` … | [`rdma_safe`] ([names](rdma_safe::migrating)), or [`blocking`] |
//!
//! [`next_event`]: EventChannel::next_event
//! [`connector`]: EventChannel::connector
//! [`listen`]: EventChannel::listen
//! [`listen_with`]: EventChannel::listen_with
//! [`init_qp`]: EventChannel::init_qp
//! [`ready_datagram_qp`]: EventChannel::ready_datagram_qp
//! [`datagram`]: EventChannel::datagram
//! [`destroy`]: EventChannel::destroy
//! [`bind_source`]: EventChannel::bind_source
//! [`resolve_addr`]: EventChannel::resolve_addr
//! [`resolve_route`]: EventChannel::resolve_route
//! [`connect`]: EventChannel::connect
//! [`accept`]: EventChannel::accept
//! [`notify_established`]: EventChannel::notify_established
//! [`reject`]: EventChannel::reject
//! [`reject_ece`]: EventChannel::reject_ece
//! [`disconnect`]: EventChannel::disconnect
//! [`set_tos`]: EventChannel::set_tos
//! [`set_ack_timeout`]: EventChannel::set_ack_timeout
//! [`set_reuse_addr`]: EventChannel::set_reuse_addr
//! [`set_v6_only`]: EventChannel::set_v6_only
//! [`set_path`]: EventChannel::set_path
//! [`adopt`]: EventChannel::adopt
//! [`join_multicast`]: EventChannel::join_multicast
//! [`leave_multicast`]: EventChannel::leave_multicast
//! [`set_local_ece`]: EventChannel::set_local_ece
//! [`remote_ece`]: EventChannel::remote_ece
//! [`local_addr`]: EventChannel::local_addr
//! [`peer_addr`]: EventChannel::peer_addr
//! [`route`]: EventChannel::route
//!
//! # Example
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rdma_cm::{ConnParams, EventChannel, PrivateData};
//! use rdma_safe::{QpConfig, SendFlags};
//! use std::time::Duration;
//!
//! let limit = Duration::from_secs(5);
//! let mut channel = EventChannel::new()?;
//! let connector = channel.resolve(None, "10.77.0.1:7471".parse()?, limit)?;
//! let context = channel.open_device(&connector)?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(256)?;
//! let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &QpConfig::default())?;
//! channel.init_qp(&connector, &mut qp)?;
//! for slot in pd.slots(4096, 16)? {
//!     qp.post_recv(slot)?;
//! }
//! let params = ConnParams::with_private_data(PrivateData::framed(b"hello")?);
//! let connection = channel.connect(connector, &mut qp, &params, limit)?;
//! println!("the acceptor says {:?}", connection.private_data().payload()?);
//! qp.post_inline(b"the initiator speaks first", SendFlags::empty())?;
//! // ... cq.poll(..), qp.complete(..) ...
//! channel.disconnect(&connection)?;
//! # Ok(()) }
//! ```
//!
//! # Features
//! * `tokio` (off): the module `aio`, for connecting and connections in a tokio runtime.
//! * `device-tests` (off): builds this crate's tests that need a device; it changes nothing else.
//!
//! # Unsafe code
//! In `raw` and what is below it, `event`, `channel` (the descriptor) and `migrate` for librdmacm; in `sockaddr`, `interfaces`,
//! `netlink`, `interrupt`, `waker` and `lookup` for libc. Everywhere else the compiler forbids it.

#[cfg(feature = "tokio")]
pub mod aio;
pub mod blocking;
mod channel;
mod connect;
mod connector;
mod datagram;
mod ece;
pub mod error;
mod established;
mod event;
#[doc = include_str!("../FEATURES.md")]
pub mod features {}
mod id;
mod interfaces;
mod interrupt;
mod listener;
mod lookup;
pub mod loopback;
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
pub use datagram::{
    Datagram, DatagramId, DatagramListener, DatagramPeer, DatagramRequest, UDP_QKEY,
};
pub use ece::Ece;
#[doc(inline)]
pub use error::{ConnectError, Error, Result};
pub use event::Event;
pub use id::{
    Accepting, Acceptor, ConnectRequest, Connected, Connecting, Connector, Established, Id, IdKey,
    Initiator, Listener, Role,
};
pub use interfaces::{
    LocalAddress, all_addresses, device_addresses, host_addresses, is_local_address,
    local_addresses,
};
pub use interrupt::{CancelToken, INTERRUPT_SIGNAL, set_interrupt_signal};
pub use listener::ListenOptions;
pub use lookup::{Found, LookupOptions, lookup};
#[doc(inline)]
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
