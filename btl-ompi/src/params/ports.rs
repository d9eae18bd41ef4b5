//! Which device ports and which of their addresses are wanted.

use crate::modex::Carrier;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A device, or one port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortName {
    /// Name of the verbs device.
    pub(crate) device: String,
    /// Port number from 1; `None` means every port.
    pub(crate) port: Option<u8>,
}

impl PortName {
    /// Whether it means this port (or every port of its device).
    pub(crate) fn covers(&self, port: &Self) -> bool {
        self.device == port.device && (self.port.is_none() || self.port == port.port)
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.device),
            None => f.write_str(&self.device),
        }
    }
}

impl FromStr for PortName {
    type Err = ();

    fn from_str(entry: &str) -> Result<Self, ()> {
        let (device, port) = match entry.split_once(':') {
            Some((device, port)) => {
                (device, Some(port.parse::<u8>().ok().filter(|p| *p > 0).ok_or(())?))
            }
            None => (entry, None),
        };
        if device.is_empty() { Err(()) } else { Ok(Self { device: device.to_owned(), port }) }
    }
}

/// Of two lists of which only one may be given: all, some only, all but some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted<T> {
    /// Everything.
    All,
    /// These only.
    Only(Vec<T>),
    /// All but these.
    Not(Vec<T>),
}

impl<T> Wanted<T> {
    /// Whether something is wanted, given which entries mean it.
    pub(crate) fn has(&self, means: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Only(list) => list.iter().any(means),
            Self::Not(list) => !list.iter().any(means),
        }
    }

    /// The entries.
    pub(crate) fn entries(&self) -> &[T] {
        match self {
            Self::All => &[],
            Self::Only(list) | Self::Not(list) => list,
        }
    }

    /// Whether the user asked for something by name.
    pub(crate) fn is_only(&self) -> bool {
        matches!(self, Self::Only(_))
    }
}

/// A network: an address and the number of bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Net {
    addr: IpAddr,
    bits: u8,
}

impl Net {
    /// The network of an address with a prefix; `None` if that is longer than the address.
    pub(crate) fn of(addr: IpAddr, bits: u8) -> Option<Self> {
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        (bits <= longest).then_some(Self { addr, bits })
    }

    /// Whether an address is in it.
    pub(crate) fn has(&self, other: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let host_bits = width.saturating_sub(u32::from(self.bits));
            (a ^ b).checked_shr(host_bits).unwrap_or(0) == 0
        };
        match (self.addr, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

/// As the network is usually written: what does not count is zero.
impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |bits: u128, width: u32| {
            let host_bits = width.saturating_sub(u32::from(self.bits));
            bits.checked_shr(host_bits).unwrap_or(0).checked_shl(host_bits).unwrap_or(0)
        };
        let addr: IpAddr = match self.addr {
            IpAddr::V4(a) => std::net::Ipv4Addr::from(cut(a.to_bits().into(), 32) as u32).into(),
            IpAddr::V6(a) => std::net::Ipv6Addr::from(cut(a.to_bits(), 128)).into(),
        };
        write!(f, "{addr}/{}", self.bits)
    }
}

impl FromStr for Net {
    type Err = ();

    /// `ADDRESS/BITS`, or an address alone.
    fn from_str(entry: &str) -> Result<Self, ()> {
        let (addr, bits) = match entry.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits.parse().map_err(|_| ())?)),
            None => (entry, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| ())?;
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        Self::of(addr, bits.unwrap_or(longest)).ok_or(())
    }
}

/// Transports, as in `device_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carriers {
    all: bool,
    ib: bool,
    roce: bool,
    iwarp: bool,
}

impl Carriers {
    /// Whether devices of this transport are wanted.
    pub(crate) fn has(&self, carrier: Carrier) -> bool {
        match carrier {
            Carrier::Ib => self.all || self.ib,
            Carrier::Roce => self.all || self.roce,
            Carrier::Iwarp => self.all || self.iwarp,
            Carrier::Other(_) => self.all,
        }
    }
}

impl FromStr for Carriers {
    /// The word that is none.
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut found = Self { all: false, ib: false, roce: false, iwarp: false };
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.to_ascii_lowercase().as_str() {
                "all" => found.all = true,
                "ib" | "infiniband" => (found.ib, found.roce) = (true, true),
                "roce" => found.roce = true,
                "iw" | "iwarp" => found.iwarp = true,
                _ => return Err(word.to_owned()),
            }
        }
        let none = !(found.all || found.ib || found.roce || found.iwarp);
        Ok(Self { all: found.all || none, ..found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap_or_else(|()| panic!("{text} is no network"))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn networks_are_read_and_have_their_addresses() {
        let net4 = net("10.1.2.3/16");
        assert!(net4.has(ip("10.1.255.1")) && !net4.has(ip("10.2.0.1")) && !net4.has(ip("::1")));
        assert_eq!(net4.to_string(), "10.1.0.0/16");
        let net6 = net("fd00:1::/32");
        assert!(net6.has(ip("fd00:1:ffff::1")) && !net6.has(ip("fd00:2::1")));
        assert_eq!(net6.to_string(), "fd00:1::/32");
        assert!(net("0.0.0.0/0").has(ip("1.2.3.4")) && !net("0.0.0.0/0").has(ip("fd00::1")));
        assert!(net("::/0").has(ip("fd00::1")));
        assert!(net("10.1.2.3").has(ip("10.1.2.3")) && !net("10.1.2.3").has(ip("10.1.2.2")));
        assert_eq!(net("fd00::1").to_string(), "fd00::1/128");
        assert_eq!(net("1.2.3.4/0").to_string(), "0.0.0.0/0");
        for bad in
            ["", "10.1/16", "10.1.0.0/33", "fd00::/129", "10.0.0.0/x", "10.0.0.0/", "/8", "a"]
        {
            assert!(bad.parse::<Net>().is_err(), "{bad}");
        }
    }

    #[test]
    fn transports_are_read_as_openib_read_them() {
        let has = |list: &str| {
            let it: Carriers = list.parse().expect("transports");
            [Carrier::Ib, Carrier::Roce, Carrier::Iwarp, Carrier::Other(9)].map(|c| it.has(c))
        };
        assert_eq!(has("all"), [true; 4]);
        assert_eq!(has(""), [true; 4]);
        assert_eq!(has("infiniband"), [true, true, false, false]);
        assert_eq!(has("IW"), [false, false, true, false]);
        assert_eq!(has("roce, iwarp"), [false, true, true, false]);
        assert_eq!("ib,opa".parse::<Carriers>(), Err("opa".to_owned()));
    }

    #[test]
    fn a_device_without_a_port_covers_all_of_them() {
        let port = |text: &str| text.parse::<PortName>();
        let covers = |a: &str, b: &str| port(a).expect("fine").covers(&port(b).expect("fine"));
        assert!(covers("siw0", "siw0:2") && covers("siw0:2", "siw0:2"));
        assert!(!covers("siw0:1", "siw0:2") && !covers("siw", "siw0:1"));
        for bad in ["siw0:", "siw0:0", "siw0:x", ":1", "siw0:256", ""] {
            assert!(port(bad).is_err(), "{bad}");
        }
    }
}
