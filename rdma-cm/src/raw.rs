//! The only file that calls librdmacm on an id: one owned `rdma_cm_id`, its calls checked and its fields copied out.
//!
//! Every `unsafe` call below rests on the same facts, named [LIVE] in the comments: the pointer came from
//! `rdma_create_id` or from a CONNECT_REQUEST, it is destroyed only by `Drop`, its channel outlives it (the owner's
//! duty, see [`RawId::own`]), and nobody else touches it, because it is reached only through `&mut EventChannel`.
use std::ffi::CStr;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::time::Duration;

use rdma_sys as sys;

use crate::error::{Error, Result, own_addresses};
use crate::sockaddr::{self, RawAddr};
use crate::{interfaces, loopback};

mod group;
mod route;
pub(crate) use route::{RawPath, gid_of};

/// What an id is for: the port space it lives in, which decides the kind of its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// RDMA_PS_TCP: reliable connections.
    Connections,
    /// RDMA_PS_UDP: unreliable datagrams.
    Datagrams,
    /// RDMA_PS_IPOIB: unreliable datagrams in the multicast groups of IP over InfiniBand.
    IpOverIb,
}

impl Space {
    fn raw(self) -> sys::rdma_port_space {
        match self {
            Space::Connections => sys::rdma_port_space::RDMA_PS_TCP,
            Space::Datagrams => sys::rdma_port_space::RDMA_PS_UDP,
            Space::IpOverIb => sys::rdma_port_space::RDMA_PS_IPOIB,
        }
    }
}

/// An owned connection manager id.
pub(crate) struct RawId {
    id: NonNull<sys::rdma_cm_id>,
    /// The multicast groups it has joined.
    groups: Vec<group::Group>,
    /// Its device was removed.
    removed: bool,
}

impl RawId {
    /// Makes an id on `channel`.
    ///
    /// # Safety
    /// `channel` must be a live event channel, and outlive the id or be replaced by [`migrate`](Self::migrate).
    pub(crate) unsafe fn create(
        channel: *mut sys::rdma_event_channel,
        tag: usize,
        space: Space,
    ) -> Result<Self> {
        let mut id = ptr::null_mut();
        let space = space.raw();
        let context = ptr::without_provenance_mut(tag);
        // SAFETY: the channel is live by the contract; `id` is a place for the result. The context is a number that is
        // only ever read back as one.
        let rc = unsafe { sys::rdma_create_id(channel, &raw mut id, context, space) };
        match NonNull::new(id) {
            Some(id) if rc == 0 => Ok(Self::of(id)),
            _ => Err(Error::last("rdma_create_id")),
        }
    }

    /// Takes over the id of a connection request.
    ///
    /// # Safety
    /// `id` must be the new id of a CONNECT_REQUEST, taken over once, and its channel must outlive it.
    pub(crate) unsafe fn own(id: NonNull<sys::rdma_cm_id>, tag: usize) -> Self {
        // SAFETY: the id is live and ours alone by the contract; the context is a number.
        unsafe { (*id.as_ptr()).context = ptr::without_provenance_mut(tag) };
        Self::of(id)
    }

    fn of(id: NonNull<sys::rdma_cm_id>) -> Self {
        Self { id, groups: Vec::new(), removed: false }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Whether it is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        // SAFETY: [LIVE]. The field is an integer newtype that librdmacm sets once.
        unsafe { (*self.as_ptr()).qp_type == sys::ibv_qp_type::IBV_QPT_UD }
    }

    /// Whether rdma_cm has chosen a device. rdma_connect, rdma_accept and rdma_disconnect read through the device
    /// without looking, so they are refused before that.
    pub(crate) fn device(&self) -> Option<Device> {
        // SAFETY: [LIVE]. `verbs` is null, or a context librdmacm keeps open while the id lives.
        let verbs = NonNull::new(unsafe { (*self.as_ptr()).verbs })?;
        // SAFETY: an open context has a device, which lives as long.
        let device = NonNull::new(unsafe { (*verbs.as_ptr()).device })?;
        // SAFETY: a live device; the name is a NUL-terminated array inside it.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device.as_ptr())) };
        // SAFETY: a live device.
        let guid = u64::from_be(unsafe { sys::ibv_get_device_guid(device.as_ptr()) });
        // SAFETY: a live device; the field is an integer newtype.
        let transport = unsafe { (*device.as_ptr()).transport_type };
        let iwarp = transport == sys::ibv_transport_type::IBV_TRANSPORT_IWARP;
        Some(Device { name: name.to_string_lossy().into_owned(), guid, iwarp })
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: [LIVE]. `rdma_addr` starts with two sockaddr_storage: the source and the destination.
        unsafe { sockaddr::read((&raw const (*self.as_ptr()).route.addr).cast()) }
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: [LIVE]. As above; the destination is the second.
        unsafe {
            let source = (&raw const (*self.as_ptr()).route.addr).cast::<libc::sockaddr_storage>();
            sockaddr::read(source.add(1).cast())
        }
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result<()> {
        let mut raw = RawAddr::new(addr);
        // SAFETY: [LIVE]; the address is valid during the call and not kept.
        let rc = unsafe { sys::rdma_bind_addr(self.as_ptr(), raw.as_mut_ptr()) };
        check(rc, "rdma_bind_addr").map_err(|e| {
            let mut error = scope_hint(e.about(addr), addr);
            if error.errno() == Some(libc::ENODEV) {
                let own = own_addresses(&loopback::own_texts());
                let text = format!("that address belongs to no RDMA device of this host{own}");
                error = error.hint_for(&[libc::ENODEV], text);
            }
            if error.errno() == Some(libc::EADDRNOTAVAIL) {
                error = error.hint_for(&[libc::EADDRNOTAVAIL], not_available(addr));
            }
            error.hint_for(&[libc::EADDRINUSE], "the port is taken; use port 0 to get a free one")
        })
    }

    pub(crate) fn set_option(&self, level: i32, name: i32, value: &mut [u8]) -> Result<()> {
        // SAFETY: [LIVE]; the value is readable for its length.
        let rc = unsafe {
            sys::rdma_set_option(self.as_ptr(), level, name, value.as_mut_ptr().cast(), value.len())
        };
        check(rc, "rdma_set_option")
    }

    pub(crate) fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        limit: Duration,
    ) -> Result<()> {
        let mut src = src.map(RawAddr::new);
        let mut to = RawAddr::new(dst);
        let from = src.as_mut().map_or(ptr::null_mut(), RawAddr::as_mut_ptr);
        // SAFETY: [LIVE]; the addresses are valid during the call and not kept.
        let rc =
            unsafe { sys::rdma_resolve_addr(self.as_ptr(), from, to.as_mut_ptr(), millis(limit)) };
        check(rc, "rdma_resolve_addr").map_err(|e| resolve_hint(e.about(dst), dst))
    }

    pub(crate) fn resolve_route(&self, limit: Duration) -> Result<()> {
        // SAFETY: [LIVE].
        let rc = unsafe { sys::rdma_resolve_route(self.as_ptr(), millis(limit)) };
        check(rc, "rdma_resolve_route")
    }

    pub(crate) fn listen(&self, backlog: u16) -> Result<()> {
        // SAFETY: [LIVE].
        let rc = unsafe { sys::rdma_listen(self.as_ptr(), i32::from(backlog)) };
        check(rc, "rdma_listen").map_err(|e| {
            let text =
                "the port is taken, on iWARP perhaps by a TCP socket; use port 0 to get a free one";
            e.hint_for(&[libc::EADDRINUSE], text)
        })
    }

    /// The caller has seen [`device`](Self::device) be `Some`.
    pub(crate) fn connect(&self, mut params: sys::rdma_conn_param) -> Result<()> {
        // SAFETY: [LIVE], and the device is there; `params` is valid during the call, its private data by the caller.
        let rc = unsafe { sys::rdma_connect(self.as_ptr(), &raw mut params) };
        check(rc, "rdma_connect").map_err(|e| {
            e.hint_for(
                &[libc::EADDRNOTAVAIL],
                "this host no longer has the source address, or was connected from the same port to the same peer a moment \
                 ago: try again with a new connector",
            )
        })
    }

    /// The caller has seen [`device`](Self::device) be `Some`.
    pub(crate) fn accept(&self, mut params: sys::rdma_conn_param) -> Result<()> {
        // SAFETY: [LIVE], and the device is there; `params` is valid during the call, its private data by the caller.
        let rc = unsafe { sys::rdma_accept(self.as_ptr(), &raw mut params) };
        check(rc, "rdma_accept").map_err(|e| {
            e.hint_for(
                &[libc::ECONNRESET, libc::EINVAL],
                "the initiator has given up: an accept has to follow its request within seconds",
            )
        })
    }

    pub(crate) fn establish(&self) -> Result<()> {
        // SAFETY: [LIVE].
        check(unsafe { sys::rdma_establish(self.as_ptr()) }, "rdma_establish")
    }

    pub(crate) fn reject(&self, data: &[u8]) -> Result<()> {
        let len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        // SAFETY: [LIVE]; `data` is readable for at least `len` bytes.
        let rc = unsafe { sys::rdma_reject(self.as_ptr(), data.as_ptr().cast(), len) };
        check(rc, "rdma_reject")
    }

    /// Rejects because the vendor options of the request do not suit.
    pub(crate) fn reject_ece(&self, data: &[u8]) -> Result<()> {
        let len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        // SAFETY: [LIVE]; `data` is readable for at least `len` bytes.
        let rc = unsafe { sys::rdma_reject_ece(self.as_ptr(), data.as_ptr().cast(), len) };
        check(rc, "rdma_reject_ece")
    }

    pub(crate) fn set_local_ece(&self, vendor_id: u32, options: u32) -> Result<()> {
        let mut ece = sys::ibv_ece { vendor_id, options, comp_mask: 0 };
        // SAFETY: [LIVE]; the structure is valid during the call and not kept.
        let rc = unsafe { sys::rdma_set_local_ece(self.as_ptr(), &raw mut ece) };
        check(rc, "rdma_set_local_ece")
    }

    /// The peer's vendor id and options; zeroes when none came.
    pub(crate) fn remote_ece(&self) -> Result<(u32, u32)> {
        let mut ece = sys::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: [LIVE]; a place for the result.
        let rc = unsafe { sys::rdma_get_remote_ece(self.as_ptr(), &raw mut ece) };
        check(rc, "rdma_get_remote_ece")?;
        Ok((ece.vendor_id, ece.options))
    }

    pub(crate) fn notify_established(&self) -> Result<()> {
        // SAFETY: [LIVE].
        let rc =
            unsafe { sys::rdma_notify(self.as_ptr(), sys::ibv_event_type::IBV_EVENT_COMM_EST) };
        check(rc, "rdma_notify")
    }

    /// The caller has seen [`device`](Self::device) be `Some`.
    pub(crate) fn disconnect(&self) -> Result<()> {
        // SAFETY: [LIVE], and the device is there.
        check(unsafe { sys::rdma_disconnect(self.as_ptr()) }, "rdma_disconnect")
    }

    /// The attributes that move a queue pair of this connection to `state`.
    pub(crate) fn qp_attr(&self, state: sys::ibv_qp_state) -> Result<(sys::ibv_qp_attr, i32)> {
        // SAFETY: ibv_qp_attr is plain data (integers, integer newtypes); all zeroes is valid.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        let mut mask = 0;
        attr.qp_state = state;
        // SAFETY: [LIVE]; both places are valid for writing.
        let rc = unsafe { sys::rdma_init_qp_attr(self.as_ptr(), &raw mut attr, &raw mut mask) };
        check(rc, "rdma_init_qp_attr")?;
        Ok((attr, mask))
    }

    /// Moves the id to another channel.
    ///
    /// # Safety
    /// `channel` must be live and from now on outlive the id.
    pub(crate) unsafe fn migrate(
        &self,
        channel: *mut sys::rdma_event_channel,
        tag: usize,
    ) -> Result<()> {
        // SAFETY: [LIVE], the channel by the contract. It cannot block: every event has been acknowledged.
        let rc = unsafe { sys::rdma_migrate_id(self.as_ptr(), channel) };
        check(rc, "rdma_migrate_id")?;
        // SAFETY: [LIVE]; the context is a number.
        unsafe { (*self.as_ptr()).context = ptr::without_provenance_mut(tag) };
        Ok(())
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        self.leave_all();
        // A failure (the device file is gone) leaves the id to the kernel, which ends it with the process; librdmacm
        // frees nothing then, so there is nothing left that could be used wrongly. Its events must not be taken for those of
        // the next id in its place.
        // SAFETY: [LIVE]; the context is a number.
        unsafe { (*self.as_ptr()).context = ptr::without_provenance_mut(usize::MAX) };
        // SAFETY: [LIVE]; once. It cannot block: it waits for acknowledgements, and every event was acknowledged when it
        // was read.
        let _ = unsafe { sys::rdma_destroy_id(self.as_ptr()) };
    }
}

/// What an id knows about the device rdma_cm chose for it.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) iwarp: bool,
}

/// Explains the errnos of address resolution, synchronous or in ADDR_ERROR.
pub(crate) fn resolve_hint(error: Error, dst: SocketAddr) -> Error {
    scope_hint(error, dst)
        .hint_for(
            &[libc::ENODEV],
            "no RDMA device of this host leads there: `ip route get ADDRESS` names the network interface that would be used, \
             `rdma link` those with an RDMA device",
        )
        .hint_for(
            &[libc::ETIMEDOUT],
            "no answer to the address resolution: check that a host on that link is up and has the address",
        )
        .hint_for(
            &[libc::ENETUNREACH, libc::EHOSTUNREACH],
            "no route to that address: `ip route get ADDRESS` tells where packets would go",
        )
}

/// EADDRNOTAVAIL of a bind has two reasons: the address, or the port (`cma_check_port`, `cma_alloc_any_port`).
fn not_available(addr: SocketAddr) -> &'static str {
    match interfaces::is_local_address(addr.ip()) {
        Ok(false) if !addr.ip().is_unspecified() => "that is not an address of this host",
        _ if addr.port() == 0 => "every port is taken; see net.ipv4.ip_local_port_range",
        _ => {
            "the port is taken on another address, as by a wildcard listener; use port 0 to get a free one"
        }
    }
}

/// EINVAL has many reasons, and this one can be seen.
fn scope_hint(error: Error, addr: SocketAddr) -> Error {
    match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => error
            .hint_for(&[libc::EINVAL], "a link-local address needs its scope, like fe80::1%eth0"),
        _ => error,
    }
}

/// Milliseconds as librdmacm wants them: at least one.
fn millis(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1)
}

fn check(rc: i32, op: &'static str) -> Result<()> {
    if rc == 0 { Ok(()) } else { Err(Error::last(op)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_asked_for_where_one_is_missing() {
        for (addr, hinted) in
            [("[fe80::1]:1", true), ("[fe80::1%3]:1", false), ("10.0.0.1:1", false)]
        {
            let error = Error::errno_of("rdma_resolve_addr", libc::EINVAL);
            let text = resolve_hint(error, addr.parse().unwrap()).to_string();
            assert_eq!(text.contains("scope"), hinted, "{text}");
        }
    }
}
