//! The active side up to the request: source, address, route.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::channel::{self, EventChannel, Phase};
use crate::datagram::refuse_datagram_over_iwarp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::id::{Connector, Id};
use crate::loopback::check_source;
use crate::raw::{Space, resolve_hint};

/// A handle of the active side, which resolves an address and a route.
pub trait Active: Id {}
impl Active for Connector {}

impl EventChannel {
    /// A new id for the active side.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_create_id.
    pub fn connector(&mut self) -> Result<Connector> {
        Ok(Connector { handle: self.create(Space::Connections)? })
    }

    /// Gives the id a source address: one of a device's own, with port 0 for any. Before
    /// [`resolve_addr`](Self::resolve_addr).
    ///
    /// # Errors
    /// [`Error::Loopback`] for loopback and wildcard addresses; [`Error::Os`] from rdma_bind_addr (ENODEV: no device has
    /// it; EADDRNOTAVAIL: this host does not have it; EADDRINUSE).
    pub fn bind_source(&mut self, id: &impl Active, source: SocketAddr) -> Result<()> {
        const OP: &str = "bind_source";
        check_source(source.ip())?;
        let entry = self.entry(id, OP)?;
        entry.raw.bind(source)?;
        refuse_datagram_over_iwarp(&entry.raw, OP)
    }

    /// Starts finding the device that leads to `dst`. Ends with [`Event::AddrResolved`] or [`Event::AddrError`].
    ///
    /// # Errors
    /// Before any call: [`Error::Loopback`] for loopback and wildcard addresses, [`Error::NoSelfConnect`] for an address of
    /// this host over a device that cannot connect to itself. [`Error::Os`] from rdma_resolve_addr.
    pub fn resolve_addr(
        &mut self,
        id: &impl Active,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        if let Some(src) = src {
            check_source(src.ip())?;
        }
        let entry = self.entry(id, "resolve_addr")?;
        if entry.phase != Phase::Idle {
            return Err(Error::State {
                op: "resolve_addr",
                why: "an address is resolved once; make a new connector",
            });
        }
        let bound = entry.raw.device().map(|device| device.name);
        let to = self.loopback.admit(bound.as_deref(), src, dst)?;
        let entry = self.entry(id, "resolve_addr")?;
        entry.raw.resolve_addr(src, to, timeout)?;
        entry.phase = Phase::Resolving;
        Ok(())
    }

    /// Starts finding the path, after [`Event::AddrResolved`]. Ends with [`Event::RouteResolved`] or
    /// [`Event::RouteError`].
    ///
    /// # Errors
    /// [`Error::NoSelfConnect`] when the destination is this host and the device cannot connect to itself;
    /// [`Error::State`] before the address is resolved; [`Error::Os`] from rdma_resolve_route.
    pub fn resolve_route(&mut self, id: &impl Active, timeout: Duration) -> Result<()> {
        const OP: &str = "resolve_route";
        let (entry, device) = self.entry_on_device(id.key(), OP)?;
        if entry.phase != Phase::AddrResolved {
            return Err(Error::State { op: OP, why: "the address is not resolved" });
        }
        refuse_datagram_over_iwarp(&entry.raw, OP)?;
        if let Some(peer) = entry.raw.peer_addr() {
            self.loopback.check_device(peer, &device.name)?;
        }
        let entry = self.entry(id, OP)?;
        entry.raw.resolve_route(timeout)?;
        entry.phase = Phase::Resolving;
        Ok(())
    }

    /// A connector that knows its device and path: [`connector`](Self::connector), [`resolve_addr`](Self::resolve_addr)
    /// and [`resolve_route`](Self::resolve_route), waiting at most `timeout` in all.
    ///
    /// # Errors
    /// Theirs; [`Error::Os`] with the errno of ADDR_ERROR or ROUTE_ERROR (ENODEV: no device leads there);
    /// [`Error::Timeout`]; [`Error::Cancelled`].
    pub fn resolve(
        &mut self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<Connector> {
        let id = self.connector()?;
        self.resolve_id(&id, src, dst, timeout)?;
        Ok(id)
    }

    /// Address and route of an id, waiting at most `timeout` in all.
    pub(crate) fn resolve_id(
        &mut self,
        id: &impl Active,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let deadline = channel::deadline(timeout);
        self.resolve_addr(id, src, dst, timeout)?;
        loop {
            match self.event_of(id.key(), deadline)? {
                Some(Event::AddrResolved { .. }) => break,
                Some(Event::AddrError { errno, .. }) => {
                    let error = Error::errno_of("rdma_resolve_addr", errno).about(dst);
                    return Err(resolve_hint(error, dst));
                }
                Some(Event::DeviceRemoval { .. }) => return Err(removed("rdma_resolve_addr")),
                Some(_) => {}
                None => return Err(Error::Timeout { op: "resolving an address", limit: timeout }),
            }
        }
        self.resolve_route(id, deadline.saturating_duration_since(Instant::now()))?;
        loop {
            match self.event_of(id.key(), deadline)? {
                Some(Event::RouteResolved { .. }) => return Ok(()),
                Some(Event::RouteError { errno, .. }) => {
                    return Err(Error::errno_of("rdma_resolve_route", errno).about(dst));
                }
                Some(Event::DeviceRemoval { .. }) => return Err(removed("rdma_resolve_route")),
                Some(_) => {}
                None => return Err(Error::Timeout { op: "resolving a route", limit: timeout }),
            }
        }
    }
}

pub(crate) fn removed(op: &'static str) -> Error {
    Error::errno_of(op, libc::ENODEV).hint_for(&[libc::ENODEV], "the device was removed")
}
