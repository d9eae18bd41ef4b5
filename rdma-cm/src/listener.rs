//! The passive side: listen, then accept or reject.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::Duration;

use rdma_safe::QueuePair;
use rdma_sys as sys;

use crate::channel::{self, EventChannel, Phase};
use crate::datagram::refuse_datagram_over_iwarp;
use crate::error::{ConnectError, Error, Result};
use crate::event::Event;
use crate::id::{Accepting, Acceptor, ConnectRequest, Established, Handle, Id, IdKey, Listener};
use crate::loopback::{AddressClass, check_bind, classify};
use crate::options::set_flag;
use crate::params::{ConnParams, MostReads};
use crate::private_data::{Carrier, PrivateData};
use crate::qp::{self, Ready};
use crate::raw::Space;

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Requests that may wait to be read. Default 128. What comes on top is rejected on iWARP; on InfiniBand and RoCE it is
    /// not answered, and the initiator's kernel asks again every few seconds.
    pub backlog: u16,
    /// Allow 0.0.0.0 and ::, which listen on **every** device of this host. Default false.
    pub wildcard: bool,
    /// Allow 127/8 and ::1. No peer can connect to them on iWARP, and every peer of the network can on InfiniBand and
    /// RoCE. Default false.
    pub loopback: bool,
    /// Share the port with others that say so too (RDMA_OPTION_ID_REUSEADDR). Default false.
    pub reuse_addr: bool,
    /// Keep an IPv6 listener from taking IPv4 (RDMA_OPTION_ID_AFONLY). Default false.
    pub v6_only: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 128, wildcard: false, loopback: false, reuse_addr: false, v6_only: false }
    }
}

/// How many more ports are tried when any port will do.
const OTHER_PORTS: u32 = 15;

impl EventChannel {
    /// Listens on one of a device's own addresses. Port 0 takes a free one; [`Listener::local_addr`] tells which.
    ///
    /// # Errors
    /// [`Error::Loopback`] for loopback and wildcard addresses (see [`listen_with`](Self::listen_with));
    /// [`Error::Os`] from rdma_bind_addr (ENODEV: no device has that address; EADDRNOTAVAIL; EADDRINUSE) or rdma_listen.
    pub fn listen(&mut self, addr: SocketAddr, backlog: u16) -> Result<Listener> {
        self.listen_with(addr, &ListenOptions { backlog, ..ListenOptions::default() })
    }

    /// Listens.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_with(&mut self, addr: SocketAddr, options: &ListenOptions) -> Result<Listener> {
        let (handle, local) = self.listen_in(Space::Connections, addr, options)?;
        Ok(Listener { handle, local })
    }

    /// A listening id of a port space, and the address and port it really has.
    pub(crate) fn listen_in(
        &mut self,
        space: Space,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<(Handle, SocketAddr)> {
        for _ in 0..OTHER_PORTS {
            match self.listen_once(space, addr, options) {
                // On iWARP the port that rdma_cm chose may be taken in TCP: see ConnectError::PortInUse.
                Err(error) if addr.port() == 0 && error.errno() == Some(libc::EADDRINUSE) => {}
                other => return other,
            }
        }
        self.listen_once(space, addr, options)
    }

    fn listen_once(
        &mut self,
        space: Space,
        addr: SocketAddr,
        options: &ListenOptions,
    ) -> Result<(Handle, SocketAddr)> {
        const OP: &str = "listen";
        let allowed = match classify(addr.ip()) {
            AddressClass::Wildcard => options.wildcard,
            AddressClass::Loopback => options.loopback,
            AddressClass::Ordinary => true,
        };
        if !allowed {
            check_bind(addr.ip())?;
        }
        let handle = self.create(space)?;
        let entry = self.entry_of(handle.key(), OP)?;
        if options.reuse_addr {
            set_flag(&entry.raw, sys::RDMA_OPTION_ID_REUSEADDR, true)?;
        }
        if options.v6_only {
            set_flag(&entry.raw, sys::RDMA_OPTION_ID_AFONLY, true)?;
        }
        entry.raw.bind(addr)?;
        refuse_datagram_over_iwarp(&entry.raw, OP)?;
        entry.raw.listen(options.backlog)?;
        entry.phase = Phase::Listening;
        // Without a port there would be nothing to tell the peers; what was asked for is not it.
        let local = entry.raw.local_addr().filter(|local| local.port() != 0);
        let why = "the kernel did not tell the listener's port";
        Ok((handle, local.ok_or(Error::State { op: OP, why })?))
    }

    /// Waits for the next request to a listener; `None` when none came within `timeout`.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; [`Error::State`] for a listener of another channel; [`Error::Os`] when the channel fails, or
    /// with ENODEV when the device was removed.
    pub fn wait_request(
        &mut self,
        listener: &Listener,
        timeout: Duration,
    ) -> Result<Option<ConnectRequest>> {
        match self.next_request(listener.key(), "wait_request", timeout)? {
            Some(Event::ConnectRequest { request, .. }) => Ok(Some(request)),
            _ => Ok(None),
        }
    }

    /// The next request, of either kind, to a listener.
    pub(crate) fn next_request(
        &mut self,
        key: IdKey,
        op: &'static str,
        timeout: Duration,
    ) -> Result<Option<Event>> {
        self.entry_of(key, op)?;
        let deadline = channel::deadline(timeout);
        let mine = |event: &Event| match event {
            Event::DeviceRemoval { id } => *id == key,
            other => other.listener() == Some(key),
        };
        match self.next_matching(deadline, mine)? {
            Some(Event::DeviceRemoval { .. }) => Err(Error::errno_of("listen", libc::ENODEV)
                .hint_for(&[libc::ENODEV], "the device was removed")),
            other => Ok(other),
        }
    }

    /// Accepts a request with a queue pair on [`ConnectRequest::device_name`].
    ///
    /// **Post receives first** ([`init_qp`](Self::init_qp) takes a request): the initiator's first message may come
    /// before this returns. Reads and atomics are given up to what the request asks for. On iWARP the queue pair may now
    /// send as far as the verbs are concerned, and **must not before it has received** (RFC 5044 7.1.2 rule 4); the
    /// [`Event::Established`] that follows changes nothing about that. Nothing else may post to the queue pair's send
    /// queue while this runs.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::PrivateData`], [`Error::Verbs`], [`Error::State`] when the request was withdrawn,
    /// or [`Error::Os`] from rdma_accept (ECONNRESET: the initiator has gone). The request is rejected, by the next call
    /// of the channel at the latest, and the queue pair must be thrown away.
    pub fn accept(
        &mut self,
        request: ConnectRequest,
        qp: &mut QueuePair,
        params: &ConnParams,
    ) -> Result<Accepting> {
        const OP: &str = "accept";
        let (entry, device) = self.entry_on_device(request.key(), OP)?;
        if entry.phase != Phase::Requested {
            return Err(Error::State { op: OP, why: "the request has been withdrawn" });
        }
        qp::check_device(&device, qp)?;
        params.check(Carrier::Reply, device.iwarp, qp)?;
        if qp::is_reset(qp) {
            qp::init(&entry.raw, qp)?;
        }
        let mut raw_params = params.to_raw(qp.qp_num());
        let most = MostReads::of(qp);
        raw_params.responder_resources =
            params.responder_resources.min(request.facts.responder_resources).min(most.answered);
        raw_params.initiator_depth =
            params.initiator_depth.min(request.facts.initiator_depth).min(most.started);
        if !device.iwarp {
            let ready = Ready {
                responder_resources: Some(raw_params.responder_resources),
                initiator_depth: Some(raw_params.initiator_depth),
                min_rnr_timer: params.min_rnr_timer,
            };
            qp::make_ready(&entry.raw, qp, ready)?;
        }
        entry.raw.accept(raw_params)?;
        entry.phase = Phase::Accepting;
        if device.iwarp {
            qp.mark_connected()?;
        }
        Ok(Accepting { handle: request.handle })
    }

    /// Rejects a request and says why.
    ///
    /// # Errors
    /// [`Error::PrivateData`] when it does not fit a rejection; [`Error::Os`] from rdma_reject, usually because the
    /// initiator has gone. The request is gone in any case.
    pub fn reject(&mut self, request: ConnectRequest, private_data: &PrivateData) -> Result<()> {
        let (entry, device) = self.entry_on_device(request.key(), "reject")?;
        private_data.check(Carrier::Reject, device.iwarp)?;
        let rejected = entry.raw.reject(private_data.as_bytes());
        self.destroy(request);
        rejected
    }

    /// Rejects a request because its [vendor options](crate::Ece) do not suit (IBTA reason 35); on iWARP as
    /// [`reject`](Self::reject).
    ///
    /// # Errors
    /// As [`reject`](Self::reject).
    pub fn reject_ece(
        &mut self,
        request: ConnectRequest,
        private_data: &PrivateData,
    ) -> Result<()> {
        let (entry, device) = self.entry_on_device(request.key(), "reject_ece")?;
        private_data.check(Carrier::Reject, device.iwarp)?;
        let rejected = entry.raw.reject_ece(private_data.as_bytes());
        self.destroy(request);
        rejected
    }

    /// An accepted request as a connection, if its [`Event::Established`] has been read; else the request again.
    pub fn established(
        &mut self,
        accepting: Accepting,
    ) -> std::result::Result<Established<Acceptor>, Accepting> {
        match self.entry(&accepting, "established") {
            Ok(entry) if entry.phase == Phase::Established => {
                Ok(Established::new(accepting.handle, PrivateData::empty()))
            }
            _ => Err(accepting),
        }
    }

    /// Waits until an accepted request is a connection.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn wait_established(
        &mut self,
        mut accepting: Accepting,
        timeout: Duration,
    ) -> std::result::Result<Established<Acceptor>, ConnectError> {
        let deadline = channel::deadline(timeout);
        loop {
            accepting = match self.established(accepting) {
                Ok(connection) => {
                    let key = connection.key();
                    self.forget_established(key);
                    return Ok(connection);
                }
                Err(same) => same,
            };
            let iwarp = self.is_iwarp(&accepting).unwrap_or(false);
            match self.event_of(accepting.key(), deadline) {
                Ok(Some(event)) => {
                    if let Some(error) = failed_accept(event, iwarp) {
                        return Err(error);
                    }
                }
                Ok(None) => return Err(ConnectError::Timeout { limit: timeout }),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the connection manager that the initiator's first message has arrived, in case its RTU was lost
    /// (IBV_EVENT_COMM_EST; InfiniBand and RoCE). Ignored on iWARP.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_notify.
    pub fn notify_established(&mut self, accepting: &Accepting) -> Result<()> {
        let (entry, device) = self.entry_on_device(accepting.key(), "notify_established")?;
        if device.iwarp { Ok(()) } else { entry.raw.notify_established() }
    }
}

/// Why an accepted request will not become a connection, if this event says so.
pub(crate) fn failed_accept(event: Event, iwarp: bool) -> Option<ConnectError> {
    match event {
        Event::ConnectError { status, .. } => Some(ConnectError::failed(status, iwarp)),
        Event::Rejected { status, private_data, .. } => {
            Some(ConnectError::Rejected { status, private_data })
        }
        Event::Unreachable { status, .. } => {
            Some(ConnectError::Unreachable { errno: status.saturating_abs() })
        }
        Event::Disconnected { .. } => Some(ConnectError::Disconnected),
        Event::DeviceRemoval { .. } => Some(ConnectError::DeviceRemoved),
        _ => None,
    }
}
