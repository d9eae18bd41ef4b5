//! From names to addresses, as librdmacm does it (rdma_getaddrinfo(3)).
//!
//! Rust's own `ToSocketAddrs` serves as well and is what [`blocking`](crate::blocking) uses. This one also tells which source
//! address belongs to a destination, and asks the InfiniBand address service ibacm where it runs.
use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::ptr;

use rdma_sys as sys;

use crate::error::{Error, Result, last_errno};
use crate::sockaddr;

/// What to look up. The default is what to dial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupOptions {
    /// For listening: the addresses are to bind (RAI_PASSIVE). Default false.
    pub passive: bool,
    /// The name is an address in numbers: no name service is asked (RAI_NUMERICHOST). Default false.
    pub numeric: bool,
    /// For datagrams instead of connections. Default false.
    pub datagrams: bool,
}

/// An answer: addresses that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// This side's address.
    pub source: Option<SocketAddr>,
    /// The other side's address.
    pub destination: Option<SocketAddr>,
}

/// Looks a host and a port or service up (rdma_getaddrinfo). Blocks as long as the host's name service does, which no limit of
/// this crate ends; [`numeric`](LookupOptions::numeric) names do not ask one.
///
/// # Errors
/// [`Error::Lookup`] when the name is not known; [`Error::Os`] with the errno of the call, [`Error::NoRdma`] without RDMA.
pub fn lookup(host: &str, service: &str, options: LookupOptions) -> Result<Vec<Found>> {
    const OP: &str = "rdma_getaddrinfo";
    let name = |text: &str| {
        CString::new(text).map_err(|_| Error::Lookup { text: format!("{text:?} is no name") })
    };
    let (host, service) = (name(host)?, name(service)?);
    let hints = hints(options);
    let mut list = ptr::null_mut();
    // An answer of -1 may be getaddrinfo's own (EAI_BADFLAGS) or mean errno.
    // SAFETY: the thread's errno, which is always there.
    unsafe { *libc::__errno_location() = 0 };
    // SAFETY: the names end with NUL, the hints are whole, the list is a place for the result.
    let rc = unsafe {
        sys::rdma_getaddrinfo(host.as_ptr(), service.as_ptr(), &raw const hints, &raw mut list)
    };
    match rc {
        0 => {}
        -1 if last_errno() == libc::ENODEV => {
            return Err(Error::NoRdma { what: OP, errno: libc::ENODEV });
        }
        -1 if last_errno() != 0 => return Err(Error::last(OP)),
        code => return Err(Error::Lookup { text: words(code) }),
    }
    let list = List(list);
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: null, or an entry of the list, which lives until `list` is dropped.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ai_next;
        // SAFETY: null, or an address of the size its family has.
        let (source, destination) =
            unsafe { (sockaddr::read(entry.ai_src_addr), sockaddr::read(entry.ai_dst_addr)) };
        found.push(Found { source, destination });
    }
    Ok(found)
}

fn hints(options: LookupOptions) -> sys::rdma_addrinfo {
    // SAFETY: plain numbers and null pointers; all zeroes is valid.
    let mut hints: sys::rdma_addrinfo = unsafe { std::mem::zeroed() };
    let flags = if options.passive { sys::RAI_PASSIVE } else { 0 }
        | if options.numeric { sys::RAI_NUMERICHOST } else { 0 };
    let (space, kind) = if options.datagrams {
        (sys::rdma_port_space::RDMA_PS_UDP, sys::ibv_qp_type::IBV_QPT_UD)
    } else {
        (sys::rdma_port_space::RDMA_PS_TCP, sys::ibv_qp_type::IBV_QPT_RC)
    };
    hints.ai_flags = flags as i32;
    hints.ai_port_space = space.0 as i32;
    hints.ai_qp_type = kind.0 as i32;
    hints
}

fn words(code: i32) -> String {
    // SAFETY: a code of getaddrinfo, or any other number, for which there are words too.
    let text = unsafe { libc::gai_strerror(code) };
    if text.is_null() {
        return format!("code {code}");
    }
    // SAFETY: a string of the library's that is never changed.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The list of rdma_getaddrinfo.
struct List(*mut sys::rdma_addrinfo);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list rdma_getaddrinfo made, once; null is allowed.
        unsafe { sys::rdma_freeaddrinfo(self.0) };
    }
}
