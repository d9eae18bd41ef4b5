//! The ports of the test transport, as the environment describes them.

use super::{Cm, Domain, How, Opened, Port, listen};
use crate::modex::{self, Carrier, RailAddr};
use crate::params::PortName;
use btl_core::Config;
use btl_core::port::PortInfo;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

/// The ports there are, `NAME@ADDRESS/BITS`, with more addresses behind more `@`, separated by commas; `!` at the end: it
/// cannot connect to itself. A name that begins with `iw` or `roce` is of that transport.
const PORTS: &str = "BTL_VERBS_FAKE_PORTS";
/// An address that no host has (RFC 5737); the port number tells the sockets apart.
const DEFAULT_PORTS: &str = "fake0@192.0.2.1/24";
/// What is published instead: `garbage`, `truncated` or `version`.
const MODEX: &str = "BTL_VERBS_FAKE_MODEX";
/// A port.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    device: String,
    addrs: Vec<(IpAddr, u8)>,
    /// Why it cannot connect to itself.
    no_loopback: RefCell<Option<String>>,
}

impl Candidate {
    /// Reads an entry of [`PORTS`].
    fn read(entry: &str) -> Option<Self> {
        let (text, loops) = match entry.trim().strip_suffix('!') {
            Some(text) => (text, false),
            None => (entry.trim(), true),
        };
        let mut parts = text.split('@');
        let device = parts.next().filter(|name| !name.is_empty())?.to_owned();
        let addr = |text: &str| {
            let (addr, bits) = text.split_once('/')?;
            Some((addr.parse().ok()?, bits.parse().ok()?))
        };
        let addrs = parts.map(addr).collect::<Option<Vec<_>>>()?;
        let no_loopback = (!loops).then(|| "the test says so".to_owned());
        Some(Self { device, addrs, no_loopback: RefCell::new(no_loopback) })
    }

    /// Its name.
    pub(crate) fn name(&self) -> PortName {
        PortName { device: self.device.clone(), port: Some(1) }
    }

    /// Vendor and part of its device: the part is the number in its name.
    pub(crate) fn part(&self) -> (u32, u32) {
        let digits = self.device.trim_start_matches(|c: char| !c.is_ascii_digit());
        (0xfa4e, digits.parse().unwrap_or(0))
    }

    /// What carries it.
    pub(crate) fn carrier(&self) -> Carrier {
        match self.device.as_str() {
            name if name.starts_with("iw") => Carrier::Iwarp,
            name if name.starts_with("roce") => Carrier::Roce,
            _ => Carrier::Other(255),
        }
    }

    /// Keeps the wanted ones of its addresses; returns how many those are.
    pub(crate) fn keep(&mut self, wanted: impl Fn(IpAddr) -> bool) -> usize {
        self.addrs.retain(|(addr, _)| wanted(*addr));
        self.addrs.len()
    }

    /// Takes the user's word for whether it can connect to itself.
    pub(crate) fn set_loopback(&self, works: bool, place: String) {
        *self.no_loopback.borrow_mut() = (!works).then_some(place);
    }

    /// Opens it: a listener at a free address.
    pub(crate) fn open(&self, config: &Config, how: &How) -> Result<Opened, String> {
        let first = match how.listen_port {
            0 => std::process::id() % 60_000,
            port => u32::from(port) - 1,
        };
        let (number, listener) = (0..60_000)
            .map(|i| ((first + i) % 60_000 + 1) as u16)
            .find_map(|port| Some((port, listen(port).ok()?)))
            .ok_or("no free address")?;
        let addr = |(addr, prefix): &(IpAddr, u8)| RailAddr {
            at: SocketAddr::new(*addr, number),
            prefix: *prefix,
        };
        let published = modex::Rail {
            carrier: self.carrier(),
            loopback: self.no_loopback.borrow().is_none(),
            eager: 0,
            lanes: config.lanes.iter().map(|lane| lane.buffer_size).collect(),
            addrs: self.addrs.iter().map(addr).collect(),
        };
        Ok(Opened {
            port: Port::new(
                config,
                PortInfo {
                    device: self.name().to_string(),
                    transport: self.carrier().to_string(),
                    ..PortInfo::default()
                },
            ),
            cm: Cm::new(config.clone(), listener),
            domain: Domain,
            published,
            no_loopback: self.no_loopback.borrow().clone(),
        })
    }
}

fn all() -> Result<Vec<Candidate>, String> {
    let text = std::env::var(PORTS).unwrap_or_else(|_| DEFAULT_PORTS.to_owned());
    text.split(',')
        .map(|entry| Candidate::read(entry).ok_or_else(|| format!("{PORTS}: `{entry}`")))
        .collect()
}

/// Every port, or those that fit a name.
///
/// # Errors
/// There is none.
pub(crate) fn find(name: Option<&PortName>) -> Result<Vec<Candidate>, String> {
    let all = all()?;
    let Some(name) = name else { return Ok(all) };
    let (found, others): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|candidate| name.covers(&candidate.name()));
    if found.is_empty() {
        let others: Vec<_> = others.iter().map(|other| other.name().to_string()).collect();
        return Err(format!("there is no device port {name}; there is: {}", others.join(", ")));
    }
    Ok(found)
}

/// Whether there is a device of this name.
pub(crate) fn exists(name: &PortName) -> bool {
    all().is_ok_and(|all| all.iter().any(|candidate| candidate.device == name.device))
}

/// Every address of this host: none, since the port numbers tell processes apart.
pub(crate) fn host_addresses() -> Vec<IpAddr> {
    Vec::new()
}

/// What is published instead of this data.
pub(crate) fn published(mut blob: Vec<u8>) -> Vec<u8> {
    match std::env::var(MODEX).as_deref() {
        Ok("garbage") => b"not what was agreed on".to_vec(),
        Ok("truncated") => {
            blob.truncate(blob.len() - 3);
            blob
        }
        Ok("version") => {
            blob[4] = 9;
            blob
        }
        _ => blob,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{accept, dial};
    use super::*;

    /// What is published is where the listener is: a dial to it arrives.
    #[test]
    fn the_published_port_is_the_listeners() {
        let config = Config::new(btl_core::ProcName { job: 1, rank: 0 }, 1);
        let candidate = find(None).expect("there is one").remove(0);
        let how = How { listen_port: 4711, ..How::default() };
        // The second one finds the first one's number taken.
        let opened: Vec<Opened> =
            (0..2).map(|_| candidate.open(&config, &how).expect("it opens")).collect();
        let ports: Vec<u16> = opened.iter().map(|open| open.published.addrs[0].at.port()).collect();
        assert!(ports[0] >= 4711 && ports[1] > ports[0], "{ports:?}");
        for (i, port) in ports.iter().enumerate() {
            let _dialled = dial(*port).expect("somebody listens");
            let arrived = opened.iter().map(|open| accept(&open.cm.listener).is_some());
            assert_eq!(arrived.collect::<Vec<_>>(), [i == 0, i == 1]);
        }
    }
}
