//! Socket addresses between Rust's form and the kernel's.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A kernel socket address, large enough for every family.
#[derive(Clone, Copy)]
pub(crate) struct RawAddr(libc::sockaddr_storage);

impl RawAddr {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        // SAFETY: sockaddr_storage is plain data; all zeroes is a valid value (family AF_UNSPEC).
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let target = &raw mut storage;
        match addr {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is at least as large and as aligned as every socket address.
                unsafe { target.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { target.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        Self(storage)
    }

    /// The pointer librdmacm takes. It reads through it and does not keep it.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Reads a socket address the kernel or libc wrote; `None` for a null pointer or a family that is not IP.
///
/// # Safety
/// `addr` must be null or point at a readable socket address of the size its family has.
pub(crate) unsafe fn read(addr: *const libc::sockaddr) -> Option<SocketAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: non-null and readable by the contract; every socket address starts with the family.
    match i32::from(unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() }) {
        libc::AF_INET => {
            // SAFETY: the family says sockaddr_in, and the contract that all of it is readable.
            let raw = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says sockaddr_in6, and the contract that all of it is readable.
            let raw = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// `::ffff:a.b.c.d` as `a.b.c.d`, anything else as it is.
pub(crate) fn unmapped(addr: IpAddr) -> IpAddr {
    addr.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["10.77.0.1:7471", "0.0.0.0:0", "[::1]:65535", "[fe80::1%7]:9"] {
            let addr: SocketAddr = text.parse().unwrap();
            let mut raw = RawAddr::new(addr);
            // SAFETY: `raw` is a whole sockaddr_storage.
            assert_eq!(unsafe { read(raw.as_mut_ptr().cast()) }, Some(addr));
        }
    }

    #[test]
    fn other_families_are_nothing() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, None);
        // SAFETY: plain data, all zeroes is AF_UNSPEC.
        let storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: a whole sockaddr_storage.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, None);
    }
}
