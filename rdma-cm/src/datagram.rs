//! Unreliable datagrams: finding a peer's queue pair by an IP address and port, and answering those who look for ours.
//!
//! There is no connection. The active side asks once (a SIDR request, IBTA 12.11), the passive side answers with the number
//! of a queue pair, and what comes of it is a [`DatagramPeer`]: what a send needs to name its receiver.
//!
//! ```text
//! active    resolve_datagram ──▶ Datagram ──ask──▶ DatagramPeer
//! passive   listen_datagram ──▶ DatagramListener ──▶ DatagramRequest ──answer──▶ (nothing is kept)
//! ```
//! iWARP has no datagrams: [`Error::NotSupported`] as soon as the device is known.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_safe::{AddressVector, Gid, GlobalRoute, QueuePair};

use crate::channel::{self, EventChannel, Phase};
use crate::connector::Active;
use crate::error::{ConnectError, Error, Result};
use crate::event::Event;
use crate::id::{Handle, Id, handle};
use crate::listener::ListenOptions;
use crate::params::ConnParams;
use crate::private_data::{Carrier, PrivateData};
use crate::qp;
use crate::raw::{Device, RawId, Space, gid_of};

/// An id for datagrams: it resolves an address and asks there for a queue pair, or joins multicast groups.
///
/// Made by [`EventChannel::resolve_datagram`](crate::EventChannel::resolve_datagram) and
/// [`EventChannel::datagram`](crate::EventChannel::datagram).
#[derive(Debug)]
#[must_use = "a dropped datagram id leaves its groups"]
pub struct Datagram {
    pub(crate) handle: Handle,
}
handle!(Datagram);
impl Active for Datagram {}
impl DatagramId for Datagram {}

/// Answers those who look for a queue pair at its address.
///
/// Made by [`EventChannel::listen_datagram`](crate::EventChannel::listen_datagram).
#[derive(Debug)]
#[must_use = "a dropped listener stops listening"]
pub struct DatagramListener {
    handle: Handle,
    local: SocketAddr,
}
handle!(DatagramListener);

impl DatagramListener {
    /// The address and the port the listener really has.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Somebody asks for a queue pair. Answer it within seconds; dropping it rejects it.
///
/// From [`EventChannel::wait_datagram_request`](crate::EventChannel::wait_datagram_request); used up by
/// [`EventChannel::answer_datagram`](crate::EventChannel::answer_datagram) and
/// [`EventChannel::reject_datagram`](crate::EventChannel::reject_datagram).
#[derive(Debug)]
#[must_use = "a dropped request is rejected"]
pub struct DatagramRequest {
    pub(crate) handle: Handle,
    pub(crate) device: Device,
    pub(crate) private_data: PrivateData,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}
handle!(DatagramRequest);
impl DatagramId for DatagramRequest {}

impl DatagramRequest {
    /// What was sent along, padded to the 180 bytes of the message.
    pub fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// The address the request came to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The address the request came from.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The device the request came in on, on which the queue pair has to be.
    pub fn device_name(&self) -> &str {
        &self.device.name
    }

    /// That device's node GUID.
    pub fn device_guid(&self) -> u64 {
        self.device.guid
    }
}

/// A handle from which a datagram queue pair can be made ready.
pub trait DatagramId: Id {}

/// The Q_Key of datagrams between queue pairs that the connection manager made ready (RDMA_UDP_QKEY), and so of an answer
/// to the sender of one.
pub const UDP_QKEY: u32 = rdma_sys::RDMA_UDP_QKEY;

/// A receiver of datagrams: a queue pair somewhere, or a multicast group.
///
/// From [`EventChannel::ask`](crate::EventChannel::ask) and
/// [`EventChannel::join_multicast`](crate::EventChannel::join_multicast).
#[derive(Clone)]
pub struct DatagramPeer {
    pub(crate) ah: rdma_sys::ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    pub(crate) private_data: PrivateData,
}

impl DatagramPeer {
    /// The number of its queue pair; 0xffffff for a multicast group.
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The key a datagram to it has to carry: [`UDP_QKEY`] by default.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// Its GID; of a multicast group the group's.
    pub fn gid(&self) -> Gid {
        gid_of(self.ah.grh.dgid)
    }

    /// Its local identifier; of a multicast group the group's. 0 on RoCE.
    pub fn lid(&self) -> u16 {
        self.ah.dlid
    }

    /// The way to it, from which a protection domain makes an address handle (`ProtectionDomain::create_ah`).
    pub fn address(&self) -> AddressVector {
        let (ah, grh) = (&self.ah, &self.ah.grh);
        let global = (ah.is_global != 0).then_some(GlobalRoute {
            dgid: self.gid(),
            sgid_index: grh.sgid_index,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        });
        AddressVector {
            port: ah.port_num,
            dlid: ah.dlid,
            service_level: ah.sl,
            src_path_bits: ah.src_path_bits,
            static_rate: ah.static_rate,
            global,
        }
    }

    /// What it sent along with its answer, padded to the 136 bytes of the message; nothing for a multicast group.
    pub fn private_data(&self) -> &PrivateData {
        &self.private_data
    }
}

impl fmt::Debug for DatagramPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatagramPeer(qp {:#x} at {}, qkey {:#x})", self.qp_num, self.gid(), self.qkey)
    }
}

impl EventChannel {
    /// A new id for datagrams.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_create_id.
    pub fn datagram(&mut self) -> Result<Datagram> {
        Ok(Datagram { handle: self.create(Space::Datagrams)? })
    }

    /// A new id for datagrams in the groups of IP over InfiniBand (RDMA_PS_IPOIB), to join one and to read what its members
    /// send. InfiniBand only.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_create_id.
    pub fn ipoib_datagram(&mut self) -> Result<Datagram> {
        Ok(Datagram { handle: self.create(Space::IpOverIb)? })
    }

    /// An id for datagrams that knows its device and path; as [`resolve`](Self::resolve) for connections.
    ///
    /// # Errors
    /// As there; [`Error::NotSupported`] when the address is reached over an iWARP device.
    pub fn resolve_datagram(
        &mut self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<Datagram> {
        let id = self.datagram()?;
        self.resolve_id(&id, src, dst, timeout)?;
        Ok(id)
    }

    /// Makes a datagram queue pair ready, from RESET to sending: with the port, the partition and the key that belong to the
    /// id. Receives can be posted afterwards.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::State`] when the id is on no device yet, [`Error::NotSupported`] on iWARP;
    /// [`Error::Verbs`], [`Error::Os`] from the moves.
    pub fn ready_datagram_qp(&mut self, id: &impl DatagramId, qp: &mut QueuePair) -> Result<()> {
        const OP: &str = "ready_datagram_qp";
        let (entry, device) = self.entry_on_device(id.key(), OP)?;
        refuse_iwarp(&device, OP)?;
        qp::check_device(&device, qp)?;
        qp::make_datagram_ready(&entry.raw, qp)
    }

    /// Asks for the queue pair at the address of the id, once, and waits for the answer: at most `timeout`, and at most as
    /// long as the kernel asks (15 times, about a minute).
    ///
    /// # Errors
    /// [`ConnectError::DatagramRefused`] with the reason of the other side; [`ConnectError::Unreachable`] when nobody
    /// answered the kernel; the others as for [`connect`](Self::connect).
    pub fn ask(
        &mut self,
        id: &Datagram,
        private_data: &PrivateData,
        timeout: Duration,
    ) -> Result<DatagramPeer, ConnectError> {
        let deadline = channel::deadline(timeout);
        self.begin_ask(id, private_data)?;
        loop {
            match self.event_of(id.key(), deadline) {
                Ok(Some(Event::DatagramAnswer { peer, .. })) => return Ok(peer),
                Ok(Some(Event::Unreachable { status, .. })) => {
                    return Err(ConnectError::unanswered(status));
                }
                Ok(Some(Event::DeviceRemoval { .. })) => return Err(ConnectError::DeviceRemoved),
                Ok(Some(_)) => {}
                Ok(None) => return Err(ConnectError::Timeout { limit: timeout }),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks without waiting. Ends with [`Event::DatagramAnswer`] or [`Event::Unreachable`].
    ///
    /// # Errors
    /// [`Error::State`] before the route is resolved and after an id has asked once; [`Error::PrivateData`] above 180 bytes;
    /// [`Error::Os`] from rdma_connect.
    pub fn begin_ask(&mut self, id: &Datagram, private_data: &PrivateData) -> Result<()> {
        const OP: &str = "ask";
        let (entry, device) = self.entry_on_device(id.key(), OP)?;
        refuse_iwarp(&device, OP)?;
        if entry.phase != Phase::Routed {
            let why = "the route is not resolved, or the id has asked already; an id asks once";
            return Err(Error::State { op: OP, why });
        }
        private_data.check(Carrier::Ask, device.iwarp)?;
        let params = ConnParams::with_private_data(private_data.clone());
        entry.raw.connect(params.to_raw(0))?;
        entry.phase = Phase::Connecting;
        Ok(())
    }

    /// Answers for datagrams at one of a device's own addresses. Port 0 takes a free one. The port is not one of the
    /// listeners for connections: those are counted apart.
    ///
    /// # Errors
    /// As [`listen_with`](Self::listen_with); [`Error::NotSupported`] for an address of an iWARP device.
    pub fn listen_datagram(
        &mut self,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<DatagramListener> {
        let (handle, local) = self.listen_in(Space::Datagrams, addr, options)?;
        Ok(DatagramListener { handle, local })
    }

    /// Waits for the next question to a listener; `None` when none came within `timeout`.
    ///
    /// # Errors
    /// As [`wait_request`](Self::wait_request).
    pub fn wait_datagram_request(
        &mut self,
        listener: &DatagramListener,
        timeout: Duration,
    ) -> Result<Option<DatagramRequest>> {
        match self.next_request(listener.key(), "wait_datagram_request", timeout)? {
            Some(Event::DatagramRequest { request, .. }) => Ok(Some(request)),
            _ => Ok(None),
        }
    }

    /// Answers with a queue pair, which has to be ready ([`ready_datagram_qp`](Self::ready_datagram_qp)) and to have
    /// receives posted: datagrams that find none are lost. Nothing is kept of the request; the same peer may ask again.
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; [`Error::PrivateData`] above 136 bytes; [`Error::Os`] from rdma_accept. The request is
    /// gone in any case.
    pub fn answer_datagram(
        &mut self,
        request: DatagramRequest,
        qp: &QueuePair,
        private_data: &PrivateData,
    ) -> Result<()> {
        let (entry, device) = self.entry_on_device(request.key(), "answer_datagram")?;
        qp::check_device(&device, qp)?;
        private_data.check(Carrier::Answer, device.iwarp)?;
        let params = ConnParams::with_private_data(private_data.clone());
        entry.raw.accept(params.to_raw(qp.qp_num()))?;
        self.destroy(request);
        Ok(())
    }

    /// Refuses a question and says why.
    ///
    /// # Errors
    /// [`Error::PrivateData`] above 136 bytes; [`Error::Os`] from rdma_reject. The request is gone in any case.
    pub fn reject_datagram(
        &mut self,
        request: DatagramRequest,
        private_data: &PrivateData,
    ) -> Result<()> {
        let (entry, device) = self.entry_on_device(request.key(), "reject_datagram")?;
        private_data.check(Carrier::Answer, device.iwarp)?;
        let rejected = entry.raw.reject(private_data.as_bytes());
        self.destroy(request);
        rejected
    }
}

/// iWARP runs over TCP, which has connections only.
pub(crate) fn refuse_iwarp(device: &Device, op: &'static str) -> Result<()> {
    if !device.iwarp {
        return Ok(());
    }
    Err(Error::NotSupported {
        op,
        device: device.name.clone(),
        why: "iWARP has neither datagrams nor multicast; use connections",
    })
}

/// Refuses an id for datagrams that has come to be on an iWARP device.
pub(crate) fn refuse_datagram_over_iwarp(raw: &RawId, op: &'static str) -> Result<()> {
    match raw.device() {
        Some(device) if raw.is_datagram() => refuse_iwarp(&device, op),
        _ => Ok(()),
    }
}
