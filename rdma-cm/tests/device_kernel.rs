//! What rdma_cm does with addresses of this host when nobody stops it: the facts that `device_loopback.rs` protects users
//! from. A kernel that does otherwise is noticed here, and then the refusals are to be thought over. Run as `device.rs`.
mod common;

use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use common::links::kind;
use common::{device, ip};
use rdma_sys as sys;
use rdma_sys::rdma_cm_event_type as event;

/// What came of a call.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// It worked, and the id is on this device, or on none.
    Works(Option<String>),
    /// It failed with this errno.
    Fails(i32),
    /// It started, and an event said that it failed.
    EventFails(i32),
}
use Outcome::{EventFails, Fails, Works};

/// An id on a channel of its own, in blocking mode.
struct Raw {
    channel: *mut sys::rdma_event_channel,
    id: *mut sys::rdma_cm_id,
}

impl Raw {
    fn new() -> Self {
        let mut id = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a new channel, checked before use; a place for the id.
        unsafe {
            let channel = sys::rdma_create_event_channel();
            assert!(!channel.is_null());
            assert_eq!(sys::rdma_create_id(channel, &raw mut id, ptr::null_mut(), space), 0);
            Self { channel, id }
        }
    }

    fn outcome(&self, rc: i32) -> Outcome {
        if rc != 0 {
            return Fails(std::io::Error::last_os_error().raw_os_error().unwrap());
        }
        // SAFETY: a live id; `verbs` is null or an open context, whose device has a name.
        let name = unsafe {
            let verbs = (*self.id).verbs;
            (!verbs.is_null()).then(|| CStr::from_ptr(sys::ibv_get_device_name((*verbs).device)))
        };
        Works(name.map(|name| name.to_str().unwrap().to_owned()))
    }

    fn bind(&self, addr: SocketAddr) -> Outcome {
        let mut raw = raw_addr(addr);
        // SAFETY: a live id and a whole socket address.
        self.outcome(unsafe { sys::rdma_bind_addr(self.id, (&raw mut raw).cast()) })
    }

    fn listen(&self) -> Outcome {
        // SAFETY: a live id.
        self.outcome(unsafe { sys::rdma_listen(self.id, 1) })
    }

    fn resolve(&self, addr: SocketAddr) -> Outcome {
        let mut raw = raw_addr(addr);
        // SAFETY: a live id and a whole socket address; no source.
        let rc = unsafe {
            sys::rdma_resolve_addr(self.id, ptr::null_mut(), (&raw mut raw).cast(), 2000)
        };
        match self.outcome(rc) {
            Works(_) => self.wait(event::RDMA_CM_EVENT_ADDR_RESOLVED),
            failed => failed,
        }
    }

    fn route(&self) -> Outcome {
        // SAFETY: a live id.
        let rc = unsafe { sys::rdma_resolve_route(self.id, 2000) };
        match self.outcome(rc) {
            Works(_) => self.wait(event::RDMA_CM_EVENT_ROUTE_RESOLVED),
            failed => failed,
        }
    }

    /// The event that ends a resolve; the kernel makes one within its limit.
    fn wait(&self, wanted: event) -> Outcome {
        let mut got = ptr::null_mut();
        // SAFETY: a live channel and a place for the event, which is read before it is acknowledged.
        let (kind, status) = unsafe {
            assert_eq!(sys::rdma_get_cm_event(self.channel, &raw mut got), 0);
            let seen = ((*got).event, (*got).status);
            assert_eq!(sys::rdma_ack_cm_event(got), 0);
            seen
        };
        if kind == wanted { self.outcome(0) } else { EventFails(status) }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: both live, once; no event is unacknowledged.
        unsafe {
            sys::rdma_destroy_id(self.id);
            sys::rdma_destroy_event_channel(self.channel);
        }
    }
}

fn raw_addr(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain data, for which zeroes are valid.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut raw;
    match addr {
        SocketAddr::V4(v4) => {
            let at = at.cast::<libc::sockaddr_in>();
            // SAFETY: sockaddr_storage holds every socket address.
            unsafe {
                (*at).sin_family = libc::AF_INET as libc::sa_family_t;
                (*at).sin_port = v4.port().to_be();
                (*at).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
        }
        SocketAddr::V6(v6) => {
            let at = at.cast::<libc::sockaddr_in6>();
            // SAFETY: as above.
            unsafe {
                (*at).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*at).sin6_port = v6.port().to_be();
                (*at).sin6_addr.s6_addr = v6.ip().octets();
            }
        }
    }
    raw
}

fn bind_and_listen(addr: SocketAddr) -> (Outcome, Option<Outcome>) {
    let id = Raw::new();
    let bound = id.bind(addr);
    let listens = matches!(bound, Works(_)).then(|| id.listen());
    (bound, listens)
}

const NO_DEVICE: &[&str] = &["127.0.0.1:0", "127.0.0.9:0", "[::1]:0", "0.0.0.0:0", "[::]:0"];

#[test]
fn loopback_and_wildcard_addresses_are_bound_to_no_device() {
    for text in NO_DEVICE {
        let outcome = bind_and_listen(text.parse().unwrap());
        assert_eq!(outcome, (Works(None), Some(Works(None))), "{text}");
    }
}

#[test]
fn loopback_and_wildcard_addresses_fail_late_and_in_ways_that_depend_on_the_device() {
    for text in NO_DEVICE {
        let mut to: SocketAddr = text.parse().unwrap();
        to.set_port(7471);
        let id = Raw::new();
        let resolved = id.resolve(to);
        if kind() == "siw" {
            assert_eq!(resolved, Fails(libc::EINVAL), "{to}: siw has no P_Keys");
        } else {
            assert_eq!(resolved, Works(Some(device())), "{to}");
            assert_eq!(id.route(), Fails(libc::ENODEV), "{to}");
        }
    }
}

#[test]
fn the_devices_own_address_works_and_anothers_does_not() {
    let own = SocketAddr::new(ip(), 0);
    let here = || Works(Some(device()));
    assert_eq!(bind_and_listen(own), (here(), Some(here())));
    let id = Raw::new();
    assert_eq!((id.resolve(SocketAddr::new(ip(), 7471)), id.route()), (here(), here()));

    let IpAddr::V4(own) = ip() else { panic!("the test address is IPv4") };
    let [a, b, c, _] = own.octets();
    let other = |port| SocketAddr::from(([a, b, c, 2], port));
    assert_eq!(bind_and_listen(other(0)), (Fails(libc::ENODEV), None));
    assert_eq!(Raw::new().resolve(other(7471)), EventFails(-libc::ENODEV));
}
