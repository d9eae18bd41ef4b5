//! Loopback: which addresses RDMA never carries, and which devices can connect to themselves.
//!
//! The kernel binds 127.0.0.1 without a word, then fails at resolve or connect, in ways that depend on the device; or, on
//! InfiniBand and RoCE, a listener on 127.0.0.1 quietly accepts the whole network. So 127/8, ::1 and the wildcards are
//! refused here, before any call. Whether a device can reach **its own address** is a property of the device, which no
//! query tells: `rdma_safe` has a table and rules, and this module lets the user override them.
//!
//! | address | dial | listen |
//! |---|---|---|
//! | 127/8, ::1 | refused | refused, unless [`ListenOptions::loopback`](crate::ListenOptions::loopback) |
//! | 0.0.0.0, :: | refused | refused, unless [`ListenOptions::wildcard`](crate::ListenOptions::wildcard) |
//! | an address of this host, device says No | refused once the device is known, before anything is sent | allowed |
//! | anything else | allowed | allowed |
use std::collections::BTreeMap;
use std::net::IpAddr;

use rdma_safe::{LoopbackSource, LoopbackSupport};

use crate::error::{Error, Result};
use crate::interfaces;
use crate::sockaddr::unmapped;

/// What sort of address it is, as far as RDMA is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// 0.0.0.0 or ::. As a destination the kernel takes it for loopback.
    Wildcard,
    /// 127/8 or ::1, also written as ::ffff:127.x.y.z.
    Loopback,
    /// Anything else. It may be this host's own all the same; see [`is_local_address`](crate::is_local_address).
    Ordinary,
}

/// Sorts an address.
pub fn classify(addr: IpAddr) -> AddressClass {
    let addr = unmapped(addr);
    if addr.is_unspecified() {
        AddressClass::Wildcard
    } else if addr.is_loopback() {
        AddressClass::Loopback
    } else {
        AddressClass::Ordinary
    }
}

/// Refuses a destination that no RDMA device can reach.
///
/// # Errors
/// [`Error::Loopback`] for loopback and wildcard addresses; it names the devices of this host and their addresses.
pub fn check_dial(addr: IpAddr) -> Result<()> {
    let why = match classify(addr) {
        AddressClass::Ordinary => return Ok(()),
        AddressClass::Loopback => "a loopback address belongs to no RDMA device",
        AddressClass::Wildcard => "a wildcard address is no destination",
    };
    Err(refusal("cannot connect to", addr, why))
}

/// Refuses an address that no RDMA device has, or that would listen to more than it says.
///
/// # Errors
/// [`Error::Loopback`], as for [`check_dial`].
pub fn check_bind(addr: IpAddr) -> Result<()> {
    let why = match classify(addr) {
        AddressClass::Ordinary => return Ok(()),
        AddressClass::Loopback => {
            "a loopback address belongs to no RDMA device; on InfiniBand and RoCE such a listener is open to the whole \
             network"
        }
        AddressClass::Wildcard => {
            "a wildcard listener is open on every device of this host; ask for it with ListenOptions::wildcard"
        }
    };
    Err(refusal("cannot bind", addr, why))
}

/// Refuses a source address that no RDMA device has.
pub(crate) fn check_source(addr: IpAddr) -> Result<()> {
    let why = match classify(addr) {
        AddressClass::Ordinary => return Ok(()),
        AddressClass::Loopback => "a loopback address belongs to no RDMA device",
        AddressClass::Wildcard => {
            "a wildcard address is no source; give none to have it chosen by the route"
        }
    };
    Err(refusal("cannot connect from", addr, why))
}

fn refusal(op: &'static str, addr: IpAddr, why: &'static str) -> Error {
    // Only text for a person: what cannot be listed is left out.
    let own = interfaces::all_addresses().unwrap_or_default();
    let own = own.iter().map(|a| match a.scope_id {
        0 => format!("{} has {}", a.device, a.addr),
        _ => format!("{} has {}%{}", a.device, a.addr, a.netdev),
    });
    let own = own.collect();
    Error::Loopback { op, addr, why, own }
}

/// What is known about loopback, refined by the user.
///
/// The order is: an override of this policy; what the device's [`Context`](rdma_safe::Context) says (its own override, a
/// probe, the table, the rules of the transport); else unknown, which is allowed, because only a `No` forbids.
#[derive(Clone, Debug, Default)]
pub struct LoopbackPolicy {
    by_device: BTreeMap<String, LoopbackSupport>,
    translate: Option<IpAddr>,
}

impl LoopbackPolicy {
    /// No overrides and no translation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says whether the device of this name can connect to itself, whatever anybody else says.
    #[must_use]
    pub fn with_override(mut self, device: &str, works: bool) -> Self {
        let source = LoopbackSource::Override;
        let support =
            if works { LoopbackSupport::Yes(source) } else { LoopbackSupport::No(source) };
        self.by_device.insert(device.to_owned(), support);
        self
    }

    /// Takes what a context knows, a probe's result included.
    #[must_use]
    pub fn with_context(mut self, context: &rdma_safe::Context) -> Self {
        self.by_device.entry(context.name().to_owned()).or_insert_with(|| context.loopback());
        self
    }

    /// Dials this address where 127/8 or ::1 is asked for: a device's own address of this host.
    ///
    /// # Errors
    /// [`Error::Loopback`] when that is itself a loopback or wildcard address.
    pub fn translating_to(mut self, addr: IpAddr) -> Result<Self> {
        check_dial(addr)?;
        self.translate = Some(addr);
        Ok(self)
    }

    /// The address to dial for `addr`.
    pub(crate) fn destination(&self, addr: IpAddr) -> Result<IpAddr> {
        match self.translate {
            Some(own) if classify(addr) == AddressClass::Loopback => Ok(own),
            _ => check_dial(addr).map(|()| addr),
        }
    }

    /// What is known about a device.
    pub(crate) fn support(&mut self, device: &str) -> LoopbackSupport {
        if let Some(known) = self.by_device.get(device) {
            return *known;
        }
        let asked = interfaces::open_device(device).ok().flatten().map(|c| c.loopback());
        let support = asked.unwrap_or(LoopbackSupport::Unknown);
        self.by_device.insert(device.to_owned(), support);
        support
    }

    /// Refuses an address of this host over a device that cannot connect to itself.
    pub(crate) fn check_device(&mut self, addr: IpAddr, device: &str) -> Result<()> {
        if !interfaces::is_local_address(addr)? {
            return Ok(());
        }
        match self.support(device) {
            LoopbackSupport::No(source) => Err(Error::NoSelfConnect {
                addr,
                device: device.to_owned(),
                reason: match source {
                    LoopbackSource::Override => "says an override".into(),
                    LoopbackSource::Probe => "found by a trial connection".into(),
                    LoopbackSource::Table => "known of this device".into(),
                    other => format!("{other:?}"),
                },
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn loopback_is_a_class_not_an_address() {
        for text in ["127.0.0.1", "127.0.0.0", "127.255.255.255", "::1", "::ffff:127.3.2.1"] {
            assert_eq!(classify(ip(text)), AddressClass::Loopback, "{text}");
        }
        for text in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
            assert_eq!(classify(ip(text)), AddressClass::Wildcard, "{text}");
        }
        for text in
            ["1.0.0.0", "126.255.255.255", "128.0.0.0", "10.77.0.1", "::2", "fe80::1", "::7f00:1"]
        {
            assert_eq!(classify(ip(text)), AddressClass::Ordinary, "{text}");
        }
    }

    #[test]
    fn loopback_and_wildcard_are_refused_with_the_address() {
        for text in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
            for refused in [check_dial(ip(text)), check_bind(ip(text)), check_source(ip(text))] {
                let message = refused.unwrap_err().to_string();
                assert!(message.contains(&format!(" {}: ", ip(text))), "{message}");
            }
        }
        assert!(check_dial(ip("10.77.0.1")).is_ok() && check_bind(ip("fe80::1")).is_ok());
        assert!(check_source(ip("10.77.0.1")).is_ok());
        let source = check_source(ip("0.0.0.0")).unwrap_err().to_string();
        assert!(!source.contains("listen"), "{source}");
    }

    #[test]
    fn translation_is_opt_in_and_for_loopback_only() {
        assert!(LoopbackPolicy::new().destination(ip("127.0.0.1")).is_err());
        let policy = LoopbackPolicy::new().translating_to(ip("10.1.2.3")).unwrap();
        assert_eq!(policy.destination(ip("127.0.0.9")).unwrap(), ip("10.1.2.3"));
        assert_eq!(policy.destination(ip("10.9.9.9")).unwrap(), ip("10.9.9.9"));
        assert!(policy.destination(ip("0.0.0.0")).is_err());
        assert!(LoopbackPolicy::new().translating_to(ip("::1")).is_err());
    }

    #[test]
    fn no_forbids_own_addresses_only() {
        // 127.0.0.1 stands for an address that every host has.
        let mut no = LoopbackPolicy::new().with_override("dev0", false);
        assert!(matches!(
            no.check_device(ip("127.0.0.1"), "dev0"),
            Err(Error::NoSelfConnect { .. })
        ));
        assert!(no.check_device(ip("192.0.2.77"), "dev0").is_ok());
        let mut yes = LoopbackPolicy::new().with_override("dev0", true);
        assert!(yes.check_device(ip("127.0.0.1"), "dev0").is_ok());
    }
}
