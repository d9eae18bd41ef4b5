//! GID tables: the addresses of a port, and the choice of the one to send from.
//!
//! On RoCE the table follows the IP addresses of the netdev: an index is valid only until the next change, and neither 0
//! nor any other fixed index is the right one. So a choice is made from the table as it is now, or kept in a
//! [`GidChoice`], which asks again when an event says that something changed.

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::event::AsyncEvent;
use rdma_sys::*;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A global identifier: an address of a port, 16 bytes in network order. Reads and prints as an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID that RoCE v2 has for an IP address: IPv4 is mapped (`::ffff:a.b.c.d`).
    pub fn from_ip(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }

    /// As an IP address; a mapped one is IPv4.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// All zeros: an unused entry.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Valid on its own link only (fe80::/10).
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What packets with a GID look like (`ibv_gid_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand; iWARP's one entry (the MAC address) has this kind too.
    Ib,
    /// RoCE v1: Ethernet frames, one broadcast domain.
    RoceV1,
    /// RoCE v2: UDP, routable.
    RoceV2,
    /// Anything else: the raw value.
    Other(u32),
}

/// One used entry of a GID table.
///
/// From [`Context::gid_table`](crate::Context::gid_table), [`Context::gid`](crate::Context::gid) and
/// [`Context::roce_v2_gid`](crate::Context::roce_v2_gid).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The port, numbered from 1.
    pub port: u8,
    /// Index in the port's table, as address vectors name it; valid until the table changes.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// Interface index of the netdev it belongs to; `None` where the kernel does not say (InfiniBand; siw before Linux
    /// 6.6) or the netdev is in another network namespace.
    pub netdev: Option<u32>,
}

impl GidEntry {
    /// Name of the netdev now, e.g. `eth0`; `None` when it is unknown or gone.
    pub fn netdev_name(&self) -> Option<String> {
        let mut name = [0; libc::IF_NAMESIZE];
        // SAFETY: the buffer has the IF_NAMESIZE bytes that if_indextoname(3) may write.
        let found = unsafe { libc::if_indextoname(self.netdev?, name.as_mut_ptr()) };
        (!found.is_null()).then(|| crate::context::text(&name))
    }
}

fn entry_of(raw: &ibv_gid_entry) -> GidEntry {
    GidEntry {
        port: u8::try_from(raw.port_num).unwrap_or(0),
        index: raw.gid_index,
        // SAFETY: both members of the union are 16 plain bytes.
        gid: Gid(unsafe { raw.gid.raw }),
        kind: match raw.gid_type {
            0 => GidKind::Ib,
            1 => GidKind::RoceV1,
            2 => GidKind::RoceV2,
            other => GidKind::Other(other),
        },
        netdev: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
    }
}

impl Context {
    /// All used entries of all ports' GID tables, as they are now (ibv_query_gid_table(3)).
    ///
    /// # Errors
    /// The errno of the call, or of the query of a port: EIO or ENODEV when the device is gone.
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        let mut room = 0usize;
        for port in 1..=self.attr().port_count {
            room = room.saturating_add(self.port(port)?.gid_table_len as usize);
        }
        // A table has at most 2^16 entries (the index in a CM message); a driver's larger number is not believed.
        let room = room.clamp(1, usize::from(self.attr().port_count).max(1) << 16);
        let mut raw = vec![ibv_gid_entry::default(); room];
        // SAFETY: live context, room for as many entries as it says.
        let n = unsafe {
            (self.0.verbs.query_gid_table)(self.as_raw(), raw.as_mut_ptr(), raw.len(), 0)
        };
        match usize::try_from(n) {
            Ok(n) => Ok(raw.iter().take(n).map(entry_of).filter(|e| !e.gid.is_zero()).collect()),
            Err(_) => Err(Error::os("ibv_query_gid_table", i32::try_from(n).unwrap_or(i32::MIN))),
        }
    }

    /// One entry of a port's GID table (ibv_query_gid_ex(3)); `None` when it is unused.
    ///
    /// # Errors
    /// EINVAL for a port or an index that does not exist, EIO or ENODEV when the device is gone.
    pub fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        let mut raw = ibv_gid_entry::default();
        // SAFETY: live context, writable entry.
        let rc = unsafe {
            (self.0.verbs.query_gid_ex)(self.as_raw(), u32::from(port), index, &mut raw, 0)
        };
        match Error::check("ibv_query_gid_ex", rc) {
            Ok(()) => Ok(Some(entry_of(&raw)).filter(|e| !e.gid.is_zero())),
            Err(e) if e.errno() == libc::ENODATA => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The RoCE v2 entry of `port` for this address of the host, or without an address the best one: IPv4, then routable
    /// IPv6, then link-local. Asks the device each time, so it is right after a change too.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) with the addresses the port has, when it has no such; the errno
    /// of the query.
    pub fn roce_v2_gid(&self, port: u8, address: Option<IpAddr>) -> Result<GidEntry> {
        let table = self.gid_table()?;
        match choose(&table, port, address) {
            Some(entry) => Ok(entry),
            None => Err(none_there(self.name(), &table, port, address)),
        }
    }
}

/// How good an entry is to send from; the least is the best.
fn rank(gid: Gid) -> u8 {
    match gid.to_ip() {
        IpAddr::V4(_) => 0,
        _ if gid.is_link_local() => 2,
        _ => 1,
    }
}

fn choose(table: &[GidEntry], port: u8, address: Option<IpAddr>) -> Option<GidEntry> {
    let wanted = address.map(Gid::from_ip);
    table
        .iter()
        .filter(|e| e.port == port && e.kind == GidKind::RoceV2)
        .filter(|e| wanted.is_none_or(|w| w == e.gid))
        .min_by_key(|e| (rank(e.gid), e.index))
        .copied()
}

#[cold]
fn none_there(device: &str, table: &[GidEntry], port: u8, address: Option<IpAddr>) -> Error {
    let of_port = || table.iter().filter(|e| e.port == port);
    let there: Vec<String> = of_port()
        .filter(|e| e.kind == GidKind::RoceV2)
        .map(|e| format!("{} (index {})", e.gid.to_ip(), e.index))
        .collect();
    let wanted = address.map_or("an address".to_owned(), |a| a.to_string());
    let advice = match there.is_empty() {
        false => format!(
            "it has {}; use one of them, or give the netdev the address (`ip address add`)",
            there.join(", ")
        ),
        true if of_port().any(|e| e.kind == GidKind::RoceV1) => "it speaks only RoCE v1".to_owned(),
        true if of_port().any(|e| e.kind == GidKind::Ib) => {
            "it does not speak RoCE; on InfiniBand use index 0, on iWARP connect with rdma_cm"
                .to_owned()
        }
        true => "it has no address at all; give its netdev one and bring it up".to_owned(),
    };
    Error::refused(
        "choosing a RoCE v2 GID",
        ErrorKind::InvalidArgument,
        format!("port {port} of {device} has no RoCE v2 GID for {wanted}: {advice}"),
    )
}

/// A RoCE v2 GID that follows changes of the table: the one for an address, or the best there is.
///
/// A choice that still exists is kept, so that a new address does not move anything; its index is brought up to date.
#[derive(Debug, Clone)]
pub struct GidChoice {
    ctx: Context,
    port: u8,
    address: Option<IpAddr>,
    current: Option<GidEntry>,
}

impl GidChoice {
    /// Chooses as [`Context::roce_v2_gid`] does; there need not be such an entry yet.
    ///
    /// # Errors
    /// The errno of the query.
    pub fn new(ctx: &Context, port: u8, address: Option<IpAddr>) -> Result<GidChoice> {
        let mut choice = GidChoice { ctx: ctx.clone(), port, address, current: None };
        choice.refresh()?;
        Ok(choice)
    }

    /// What was chosen at the last look; `None` when there was nothing to choose.
    pub fn current(&self) -> Option<&GidEntry> {
        self.current.as_ref()
    }

    /// Looks at the table again; true when the choice is another one now (or another index).
    ///
    /// # Errors
    /// The errno of the query; the choice stays.
    pub fn refresh(&mut self) -> Result<bool> {
        let table = self.ctx.gid_table()?;
        let kept = self.current.and_then(|c| {
            let same = |e: &&GidEntry| (e.port, e.gid, e.kind) == (c.port, c.gid, c.kind);
            table.iter().find(same).copied()
        });
        let chosen = kept.or_else(|| choose(&table, self.port, self.address));
        Ok(std::mem::replace(&mut self.current, chosen) != chosen)
    }

    /// To be given every event of the context's [`AsyncEvents`](crate::AsyncEvents): looks again after one that can mean
    /// a change of this port's table, and says whether the choice is another one now.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn see(&mut self, event: &AsyncEvent) -> Result<bool> {
        match event {
            AsyncEvent::Port { port, .. } if *port == self.port => self.refresh(),
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn entry(index: u32, kind: GidKind, ip: &str) -> GidEntry {
        let gid = Gid::from_ip(ip.parse().unwrap());
        GidEntry { port: 1, index, gid, kind, netdev: None }
    }

    #[test]
    fn an_address_and_its_gid() {
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(Gid::from_ip(v4).to_string(), "::ffff:10.0.0.1");
        assert_eq!(Gid::from_ip(v4).to_ip(), v4);
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert!(Gid::from_ip(v6).is_link_local() && Gid::from_ip(v6).to_ip() == v6);
    }

    #[test]
    fn the_best_is_routable_and_v2() {
        let mut table = vec![
            entry(0, GidKind::RoceV1, "10.0.0.1"),
            entry(1, GidKind::RoceV2, "fe80::1"),
            entry(2, GidKind::RoceV2, "2001:db8::1"),
            entry(5, GidKind::RoceV2, "10.0.0.2"),
            entry(4, GidKind::RoceV2, "10.0.0.1"),
        ];
        let at = |t: &[GidEntry], a: Option<&str>| {
            choose(t, 1, a.map(|a| a.parse().unwrap())).map(|e| e.index)
        };
        assert_eq!(at(&table, None), Some(4));
        assert_eq!(at(&table, Some("10.0.0.2")), Some(5));
        assert_eq!(at(&table, Some("10.0.0.3")), None);
        assert_eq!(choose(&table, 2, None), None, "another port's");
        table.truncate(3);
        assert_eq!(at(&table, None), Some(2));
        table.truncate(2);
        assert_eq!(at(&table, None), Some(1));
        table.truncate(1);
        assert_eq!(at(&table, None), None);
    }

    #[test]
    fn the_error_says_what_there_is() {
        let wanted = Some("10.9.9.9".parse().unwrap());
        let text = |t: &[GidEntry]| none_there("rxe0", t, 1, wanted).to_string();
        let t = text(&[entry(3, GidKind::RoceV2, "10.0.0.1")]);
        assert!(t.contains("10.9.9.9") && t.contains("10.0.0.1 (index 3)"), "{t}");
        assert!(text(&[entry(0, GidKind::Ib, "fe80::1")]).contains("rdma_cm"));
        assert!(text(&[entry(0, GidKind::RoceV1, "fe80::1")]).contains("RoCE v1"));
        assert!(text(&[]).contains("bring it up"));
    }
}
