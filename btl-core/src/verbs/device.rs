//! Choosing a device port: up, and with an address that peers can connect to.
use super::error::OpenError;
use crate::port::PortInfo;
use rdma_cm::LocalAddress;
use rdma_safe::{Caps, Context, Device, ErrorKind, LoopbackSource, LoopbackSupport, Transport};
use std::net::{IpAddr, SocketAddr};

/// Completions of one completion queue unless [`Selection::cq_depth`] says otherwise: enough for
/// some seven hundred peers with the default lanes.
pub const DEFAULT_CQ_DEPTH: u32 = 32_768;

/// Which port to use, and how. The default takes the first that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Only this device.
    pub device: Option<String>,
    /// Only this port of a device, from 1.
    pub port: Option<u8>,
    /// Only the port that has this address, and only this address.
    pub addr: Option<IpAddr>,
    /// The port number to listen on, or the next free one of [`LISTEN_TRIES`]; 0: any free one.
    /// [`Published::addrs`](super::Published) says which it is.
    pub listen_port: u16,
    /// Most completions of one completion queue; cut to what the device can. More queues are made
    /// as peers come.
    pub cq_depth: u32,
    /// Whether the device works off receives behind the sends of the same queue pair; `None`: as the quirk table says.
    pub shared_work_queue: Option<bool>,
    /// Bytes up to which a send travels with its request, where the device can; `None`: 64.
    pub max_inline: Option<u32>,
    /// How often a send that is not acknowledged is repeated, 0 to 7; not on iWARP.
    pub retry_count: u8,
    /// How often the peer repeats a send for which no receive is posted, 0 to 7; 7: for ever. With
    /// credits that does not happen. Not on iWARP.
    pub rnr_retry_count: u8,
    /// How long the peer waits after such a send: the 5-bit code of IBTA 9.7.5.2.8. Not on iWARP.
    pub min_rnr_timer: u8,
    /// How long an acknowledgement may take: 4.096 µs times two to the power of this, 1 to 31; 0: as
    /// the connection manager finds. Not on iWARP.
    pub ack_timeout: u8,
}

/// Port numbers that are tried from [`Selection::listen_port`] on, if others have them.
pub const LISTEN_TRIES: u16 = 256;

impl Default for Selection {
    fn default() -> Self {
        Selection {
            device: None,
            port: None,
            addr: None,
            listen_port: 0,
            cq_depth: DEFAULT_CQ_DEPTH,
            shared_work_queue: None,
            max_inline: None,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            ack_timeout: 0,
        }
    }
}

/// A port of an open device that can be used.
#[derive(Clone, Debug)]
pub struct PortChoice {
    pub(super) context: Context,
    pub(super) port: u8,
    /// Not empty.
    pub(super) addrs: Vec<LocalAddress>,
}

impl PortChoice {
    /// A port and addresses that the caller knows to belong to it: where [`find`] cannot see that, because sysfs is not
    /// there (a sandbox), or the addresses are not those of a network interface of this namespace. [`open_port`] listens on
    /// all of them and dials from them; the best comes first.
    ///
    /// # Errors
    /// [`OpenError::NoUsablePort`] when there is no address.
    ///
    /// [`open_port`]: super::open_port
    pub fn new(
        context: Context,
        port: u8,
        addrs: Vec<LocalAddress>,
    ) -> Result<PortChoice, OpenError> {
        if addrs.is_empty() {
            let reason = format!("no address is given for port {port} of {}", context.name());
            return Err(OpenError::NoUsablePort { reasons: vec![reason] });
        }
        Ok(PortChoice { context, port, addrs })
    }

    /// The device, like `siw0`.
    pub fn device(&self) -> &str {
        self.context.name()
    }

    /// The device's port, from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// What the port is, for whoever has to decide before it is open, as about a credit route
    /// ([`CreditRoute::check`](crate::CreditRoute::check)).
    pub fn info(&self, selection: &Selection) -> PortInfo {
        let context = &self.context;
        let transport = context.transport();
        let table = context.caps().contains(Caps::SHARED_WORK_QUEUE);
        let no_loopback = context.loopback().is_no().then(|| context.loopback_reason());
        PortInfo {
            device: format!("{}:{}", context.name(), self.port),
            transport: text_of(transport),
            iwarp: transport.is_iwarp(),
            shared_work_queue: selection.shared_work_queue.unwrap_or(table),
            no_loopback,
        }
    }

    /// The addresses peers can connect to, IPv4 first.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addrs.iter().map(|a| a.addr)
    }

    /// Leaves out the addresses that are not wanted; returns how many are left. A port without any
    /// cannot be opened.
    pub fn keep(&mut self, wanted: impl Fn(IpAddr) -> bool) -> usize {
        self.addrs.retain(|a| wanted(a.addr));
        self.addrs.len()
    }

    /// Bits of the network prefix of one of its addresses; 0 if it has no such address.
    pub fn prefix_of(&self, addr: IpAddr) -> u8 {
        self.addrs.iter().find(|a| a.addr == addr).map_or(0, |a| a.prefix)
    }

    /// Vendor and part of the device, as `ibv_query_device(3)` tells them.
    pub fn part(&self) -> (u32, u32) {
        let attr = self.context.attr();
        (attr.vendor_id, attr.vendor_part_id)
    }

    /// What the device speaks.
    pub fn transport(&self) -> Transport {
        self.context.transport()
    }

    /// Takes the user's word for whether the device can connect to itself. What was said earlier,
    /// and what tables and trials say, counts less.
    pub fn set_loopback(&self, works: bool, reason: String) {
        let source = LoopbackSource::Override;
        let answer = if works { LoopbackSupport::Yes(source) } else { LoopbackSupport::No(source) };
        self.context.refine_loopback(answer, reason);
    }
}

/// Every address of this host, loopback included.
///
/// # Errors
/// The interfaces cannot be listed (ENOMEM, EMFILE).
pub fn host_addresses() -> Result<Vec<IpAddr>, OpenError> {
    Ok(rdma_cm::host_addresses()?)
}

/// Every port that is up and has a usable address in this network namespace, devices in the
/// system's order. Never empty.
///
/// # Errors
/// [`OpenError`]: there is none, and why.
pub fn find(selection: &Selection) -> Result<Vec<PortChoice>, OpenError> {
    let mut search = Search { selection, found: Vec::new(), reasons: Vec::new(), own: Vec::new() };
    for device in &named(selection)? {
        search.look_at(device)?;
    }
    let Search { found, reasons, own, .. } = search;
    match selection.addr {
        _ if !found.is_empty() => Ok(found),
        Some(addr) if !own.is_empty() || reasons.is_empty() => {
            Err(OpenError::AddressNotHere { addr, own, reasons })
        }
        _ => Err(OpenError::NoUsablePort { reasons }),
    }
}

/// The devices whose name fits.
fn named(selection: &Selection) -> Result<Vec<Device>, OpenError> {
    let all = match rdma_safe::devices() {
        Ok(all) => all,
        Err(e) if e.kind() == ErrorKind::NoDevice => return Err(OpenError::NoDevice),
        Err(e) => return Err(e.into()),
    };
    if all.is_empty() {
        return Err(OpenError::NoDevice);
    }
    let Some(name) = &selection.device else { return Ok(all) };
    let there: Vec<String> = all.iter().map(Device::name).collect();
    let fitting: Vec<Device> = all.into_iter().filter(|d| d.name() == *name).collect();
    if fitting.is_empty() {
        return Err(OpenError::NoSuchDevice { name: name.clone(), there });
    }
    Ok(fitting)
}

struct Search<'s> {
    selection: &'s Selection,
    found: Vec<PortChoice>,
    /// Why a port was left out.
    reasons: Vec<String>,
    /// Addresses of ports that were left out only because another one was asked for.
    own: Vec<String>,
}

impl Search<'_> {
    fn look_at(&mut self, device: &Device) -> Result<(), OpenError> {
        let name = device.name();
        let context = match device.open() {
            Ok(context) => context,
            Err(e) => {
                self.reasons.push(format!("{name} cannot be opened: {e}"));
                return Ok(());
            }
        };
        if context.quirk().is_some_and(|quirk| !quirk.reliable_connections) {
            self.reasons.push(format!("{name} has no reliable connections"));
            return Ok(());
        }
        let addrs = rdma_cm::local_addresses(&context)?;
        for port in 1..=context.attr().port_count {
            if self.selection.port.is_none_or(|wanted| wanted == port) {
                self.look_at_port(&context, port, &addrs);
            }
        }
        if let Some(port) = self.selection.port
            && !(1..=context.attr().port_count).contains(&port)
        {
            self.reasons.push(format!("{name} has no port {port}"));
        }
        Ok(())
    }

    fn look_at_port(&mut self, context: &Context, port: u8, addrs: &[LocalAddress]) {
        let name = context.name();
        let mut mine: Vec<LocalAddress> =
            addrs.iter().filter(|a| a.port == port).cloned().collect();
        match context.port(port) {
            Ok(attr) if attr.active => {}
            Ok(_) => {
                let netdev = mine.first().map_or("its network interface", |a| a.netdev.as_str());
                self.reasons.push(format!(
                    "port {port} of {name} is down; bring the link up, for example with \
                     `ip link set {netdev} up`"
                ));
                return;
            }
            Err(e) => {
                self.reasons.push(format!("port {port} of {name} cannot be queried: {e}"));
                return;
            }
        }
        if let Some(wanted) = self.selection.addr {
            self.own.extend(mine.iter().map(|a| format!("{name} has {}", a.addr)));
            mine.retain(|a| a.addr == wanted);
            if mine.is_empty() {
                return;
            }
        } else {
            // Peers on other links have other scopes: of no use in an announcement.
            mine.retain(|a| a.scope_id == 0);
        }
        if mine.is_empty() {
            self.reasons.push(format!(
                "port {port} of {name} has no address in this network namespace; give its network \
                 interface one with `ip addr add ADDRESS/PREFIX dev NETDEV`"
            ));
            return;
        }
        self.found.push(PortChoice { context: context.clone(), port, addrs: mine });
    }
}

fn text_of(transport: Transport) -> String {
    match transport {
        Transport::Ib => "InfiniBand".to_owned(),
        Transport::Roce => "RoCE".to_owned(),
        iwarp if iwarp.is_iwarp() => "iWARP".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The address to dial `dst` from: of its family, sharing the longest prefix with it.
pub(super) fn source_for(own: &[SocketAddr], dst: SocketAddr) -> Option<SocketAddr> {
    let shared = |a: &SocketAddr| match (a.ip(), dst.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
        _ => None,
    };
    let best = own.iter().filter_map(|a| Some((shared(a)?, *a))).max_by_key(|(bits, _)| *bits);
    best.map(|(_, mut addr)| {
        addr.set_port(0);
        addr
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_the_nearest_address_of_the_family() {
        let at = |s: &str| s.parse::<SocketAddr>().unwrap();
        let own = [at("10.1.0.1:5"), at("10.2.0.1:6"), at("[fd00::1]:7")];
        let pick = |dst: &str| source_for(&own, at(dst));
        assert_eq!(pick("10.2.0.9:99"), Some(at("10.2.0.1:0")));
        assert_eq!(pick("10.1.0.9:99"), Some(at("10.1.0.1:0")));
        assert_eq!(pick("[fd00::2]:99"), Some(at("[fd00::1]:0")));
        assert_eq!(source_for(&own[..2], at("[fd00::2]:99")), None);
    }
}
