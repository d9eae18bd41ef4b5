//! The addresses of this host, and which of them belong to an RDMA device.
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use rdma_safe::Context;

use crate::error::{Error, Result};
use crate::netlink;
use crate::sockaddr::{self, unmapped};

/// An address that connections over a device can use.
///
/// From [`local_addresses`](crate::local_addresses) and its like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The RDMA device, like `siw0`.
    pub device: String,
    /// The device's port, from 1.
    pub port: u8,
    /// The network interface under it, like `eth0`.
    pub netdev: String,
    /// The address.
    pub addr: IpAddr,
    /// Bits of its network prefix; 0 when the interface does not say.
    pub prefix: u8,
    /// The index of the interface, for link-local addresses; else 0.
    pub scope_id: u32,
}

impl LocalAddress {
    /// The address with a port and, where it needs one, its scope.
    pub fn socket_addr(&self, port: u16) -> SocketAddr {
        let mut addr = SocketAddr::new(self.addr, port);
        if let SocketAddr::V6(v6) = &mut addr {
            v6.set_scope_id(self.scope_id);
        }
        addr
    }
}

/// The addresses that connections over this device can use: those of the network interfaces under its ports, in this
/// network namespace, without 127/8 and ::1. Empty when they are in another one, or have no address. IPv4 comes first,
/// link-local IPv6 last.
///
/// # Errors
/// [`Error::Os`] when the interfaces of this host cannot be listed (ENOMEM, EMFILE).
pub fn local_addresses(context: &Context) -> Result<Vec<LocalAddress>> {
    device_addresses(context.name())
}

/// [`local_addresses`] for a device by name, without opening it.
///
/// # Errors
/// As there.
pub fn device_addresses(device: &str) -> Result<Vec<LocalAddress>> {
    let host = list_addresses()?;
    let mut found = Vec::new();
    for port in ports(device) {
        for netdev in netdevs(device, port) {
            // A device on a loopback interface does not get 127.0.0.1: see `loopback`.
            let usable = |h: &&HostAddress| on_netdev(&h.netdev, &netdev) && !h.addr.is_loopback();
            found.extend(host.iter().filter(usable).map(|h| LocalAddress {
                device: device.to_owned(),
                port,
                netdev: h.netdev.clone(),
                addr: h.addr,
                prefix: h.prefix,
                scope_id: h.scope_id,
            }));
        }
    }
    found.sort_by_key(|a| match a.addr {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) if a.scope_id == 0 => 1,
        IpAddr::V6(_) => 2,
    });
    Ok(found)
}

/// The addresses of every RDMA device of this host.
///
/// # Errors
/// As [`local_addresses`].
pub fn all_addresses() -> Result<Vec<LocalAddress>> {
    let mut found = Vec::new();
    for device in names_in("/sys/class/infiniband") {
        found.extend(device_addresses(&device)?);
    }
    Ok(found)
}

/// Whether this is an address of this host: one an interface has, or any loopback address.
///
/// # Errors
/// As [`local_addresses`].
pub fn is_local_address(addr: IpAddr) -> Result<bool> {
    let addr = unmapped(addr);
    Ok(addr.is_loopback() || list_addresses()?.iter().any(|h| h.addr == addr))
}

/// [`is_local_address`] with the scope of a link-local address, and also for what a route says is this host
/// (`ip route add local PREFIX dev lo`).
pub(crate) fn is_local(addr: SocketAddr) -> Result<bool> {
    let ip = unmapped(addr.ip());
    let scope = match addr {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let same =
        |h: &HostAddress| h.addr == ip && (scope == 0 || h.scope_id == 0 || h.scope_id == scope);
    if ip.is_loopback() || list_addresses()?.iter().any(same) {
        return Ok(true);
    }
    // The list above is what is certain; a kernel that does not answer this question is no reason to fail.
    Ok(netlink::is_routed_here(ip, scope).unwrap_or(false))
}

/// The devices that have this address.
pub(crate) fn devices_with(addr: SocketAddr) -> Result<Vec<String>> {
    let ip = unmapped(addr.ip());
    let mut devices: Vec<String> =
        all_addresses()?.into_iter().filter(|a| a.addr == ip).map(|a| a.device).collect();
    devices.dedup();
    Ok(devices)
}

/// Opens a device by name.
pub(crate) fn open_device(name: &str) -> rdma_safe::Result<Option<Context>> {
    for device in rdma_safe::devices()? {
        if device.name() == name {
            return device.open().map(Some);
        }
    }
    Ok(None)
}

/// Every address of this host's interfaces in this network namespace, loopback and link-local ones included.
///
/// # Errors
/// As [`local_addresses`].
pub fn host_addresses() -> Result<Vec<IpAddr>> {
    Ok(list_addresses()?.into_iter().map(|h| h.addr).collect())
}

struct HostAddress {
    netdev: String,
    addr: IpAddr,
    prefix: u8,
    scope_id: u32,
}

/// Leading ones of a network mask.
fn prefix(mask: Option<SocketAddr>) -> u8 {
    let ones = match mask.map(|mask| mask.ip()) {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None => 0,
    };
    // At most 128.
    ones as u8
}

/// A VLAN or an alias of an interface shares its device: `eth0` covers `eth0:1`.
fn on_netdev(name: &str, netdev: &str) -> bool {
    name.strip_prefix(netdev).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn ports(device: &str) -> Vec<u8> {
    let mut ports: Vec<u8> = names_in(&format!("/sys/class/infiniband/{device}/ports"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    ports.sort_unstable();
    ports
}

/// Empty places of a GID table after which no more are read.
const GID_GAP: usize = 16;

/// The interfaces under a port: from netlink, else from sysfs, where RoCE has them in its GID table and soft RoCE in
/// `parent`.
fn netdevs(device: &str, port: u8) -> Vec<String> {
    let base = format!("/sys/class/infiniband/{device}");
    let mut found = Vec::new();
    found.extend(netlink::netdev_of(device, u32::from(port)).ok().flatten());
    // VLANs on top of the interface are in the GID table only. It has up to thousands of places and is filled from the
    // front, so a long gap is taken for its end. An empty place reads as EINVAL.
    let mut gap = 0;
    for place in 0..u16::MAX {
        match read_line(&format!("{base}/ports/{port}/gid_attrs/ndevs/{place}")) {
            Some(netdev) => {
                found.push(netdev);
                gap = 0;
            }
            None if gap == GID_GAP => break,
            None => gap += 1,
        }
    }
    if found.is_empty() {
        found.extend(read_line(&format!("{base}/parent")));
    }
    found.sort();
    found.dedup();
    found
}

fn names_in(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn read_line(path: &str) -> Option<String> {
    let line = fs::read_to_string(path).ok()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}

fn list_addresses() -> Result<Vec<HostAddress>> {
    let list = AddressList::read()?;
    let mut found = Vec::new();
    let mut next = list.0;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until `list` is dropped.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: null, or an address of the size its family has.
        let Some(addr) = (unsafe { sockaddr::read(entry.ifa_addr) }) else { continue };
        // SAFETY: as above.
        let mask = unsafe { sockaddr::read(entry.ifa_netmask) };
        // SAFETY: a NUL-terminated name.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        found.push(HostAddress {
            netdev: name.to_string_lossy().into_owned(),
            addr: addr.ip(),
            prefix: prefix(mask),
            scope_id: if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 },
        });
    }
    Ok(found)
}

/// The list of getifaddrs.
struct AddressList(*mut libc::ifaddrs);

impl AddressList {
    fn read() -> Result<Self> {
        let mut list = ptr::null_mut();
        // SAFETY: a place for the result.
        match unsafe { libc::getifaddrs(&raw mut list) } {
            0 => Ok(Self(list)),
            _ => Err(Error::last("getifaddrs")),
        }
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        // SAFETY: the list getifaddrs made, once; null is allowed.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_loopback() {
        let lo = list_addresses().unwrap().into_iter().find(|h| h.netdev == "lo").unwrap();
        assert_eq!(lo.prefix, if lo.addr.is_ipv4() { 8 } else { 128 });
        assert!(host_addresses().unwrap().contains(&lo.addr));
        assert!(is_local_address("127.0.0.1".parse().unwrap()).unwrap());
        assert!(is_local_address("127.9.9.9".parse().unwrap()).unwrap());
        assert!(is_local_address("::ffff:127.0.0.1".parse().unwrap()).unwrap());
        assert!(!is_local_address("192.0.2.77".parse().unwrap()).unwrap());
    }

    #[test]
    fn an_unknown_device_has_no_addresses() {
        assert_eq!(device_addresses("no-such-device").unwrap(), []);
    }

    #[test]
    fn aliases_belong_to_their_interface() {
        assert!(on_netdev("eth0", "eth0") && on_netdev("eth0:1", "eth0"));
        assert!(!on_netdev("eth01", "eth0") && !on_netdev("eth", "eth0"));
    }
}
