//! Loopback: which addresses RDMA never carries, and which devices can connect to themselves.
//!
//! The kernel binds 127.0.0.1 without a word, then fails at resolve or connect, in ways that depend on the device; or, on
//! InfiniBand and RoCE, a listener on 127.0.0.1 quietly accepts the whole network. So 127/8, ::1 and the wildcards are
//! refused here, before any call. Whether a device can reach **its own address** is a property of the device, which no
//! query tells. The answer, [`LoopbackSupport`], comes from, the strongest first:
//!
//! 1. an override: [`LOOPBACK_VARIABLE`], [`LOOPBACK_FILE_VARIABLE`], [`LoopbackPolicy::with_override`],
//! 2. a trial connection: [`probe_loopback`],
//! 3. the quirk table of `rdma_safe`,
//! 4. a rule: InfiniBand and RoCE can; of other iWARP it is not known.
//!
//! | address | dial | listen |
//! |---|---|---|
//! | 127/8, ::1, also as ::ffff:127.0.0.1 | refused, or translated (2) | refused, unless asked for (1) |
//! | 0.0.0.0, :: | refused | refused, unless asked for (1) |
//! | an address of this host, device says No | refused before anything is sent | allowed: others may connect |
//! | anything else | allowed | allowed |
//!
//! (1) [`ListenOptions::loopback`](crate::ListenOptions::loopback) and
//! [`ListenOptions::wildcard`](crate::ListenOptions::wildcard). (2) [`LoopbackPolicy::translating_to`].
mod overrides;
mod probe;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use rdma_safe::{Context, LoopbackSource, LoopbackSupport};

use crate::error::{Error, Result};
use crate::interfaces;
use crate::sockaddr::unmapped;
use overrides::{Overrides, Subject};

pub use overrides::{LOOPBACK_FILE_VARIABLE, LOOPBACK_VARIABLE};
pub use probe::probe_loopback;

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
    Error::Loopback { op, addr, why, own: own_texts() }
}

/// This host's devices and their own addresses, for people.
pub(crate) fn own_texts() -> Vec<String> {
    // Only text for a person: what cannot be listed is left out.
    let own = interfaces::all_addresses().unwrap_or_default();
    let text = |a: &interfaces::LocalAddress| match a.scope_id {
        0 => format!("{} has {}", a.device, a.addr),
        _ => format!("{} has {}%{}", a.device, a.addr, a.netdev),
    };
    own.iter().map(text).collect()
}

/// What is known about loopback, refined by the user.
///
/// The order is: an override; what the device's [`Context`] says (its own override, a trial, the table, the rules of the
/// transport); else unknown, which is allowed, because only a `No` forbids.
///
/// A new [`EventChannel`](crate::EventChannel) has the policy of [`from_env`](Self::from_env).
///
/// # The text of overrides
/// One entry a line, or several separated by commas: a device's name, or its vendor and part as `ibv_devinfo` prints them,
/// then `yes` or `no`. A name is stronger than a part, a part stronger than `*`, and of equals the last one counts. What
/// follows `#` is the reason, which comes up in errors.
///
/// ```text
/// siw0          = no       # the firewall drops it
/// 0x1425:0x5410 = yes      # one part of a vendor, in hexadecimal or decimal
/// 0x1425:*      = no       # all others of that vendor
/// ```
#[derive(Clone, Debug, Default)]
pub struct LoopbackPolicy {
    overrides: Overrides,
    /// What contexts have said, by device.
    known: BTreeMap<String, Known>,
    translate: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
struct Known {
    support: LoopbackSupport,
    reason: String,
}

impl LoopbackPolicy {
    /// No overrides and no translation.
    pub fn new() -> Self {
        Self::default()
    }

    /// The overrides of the environment: those of the file that [`LOOPBACK_FILE_VARIABLE`] names, then those in
    /// [`LOOPBACK_VARIABLE`], like `siw0=no,0x1425:*=yes`. Both are read once in a process.
    ///
    /// # Errors
    /// [`Error::Override`] with the place, for what cannot be understood and for a file that cannot be read.
    pub fn from_env() -> Result<Self> {
        Ok(Self { overrides: Overrides::from_env()?, ..Self::default() })
    }

    /// Says whether the device of this name can connect to itself, whatever anybody else says.
    #[must_use]
    pub fn with_override(mut self, device: &str, works: bool) -> Self {
        self.overrides.push(device, works);
        self
    }

    /// Adds overrides from text, such as a program's own argument; `place` says where they stand, for messages.
    ///
    /// # Errors
    /// [`Error::Override`].
    pub fn with_overrides(mut self, text: &str, place: &str) -> Result<Self> {
        self.overrides.read(text, place)?;
        Ok(self)
    }

    /// Adds the overrides of a file.
    ///
    /// # Errors
    /// [`Error::Override`]; [`Error::Os`] when the file cannot be read.
    pub fn with_file(mut self, path: &str) -> Result<Self> {
        self.overrides.read_file(path)?;
        Ok(self)
    }

    /// Takes what a context knows, a trial's result included, in place of what was known of that device. Overrides of this
    /// policy stay stronger.
    #[must_use]
    pub fn with_context(mut self, context: &Context) -> Self {
        self.known.insert(context.name().to_owned(), self.ask(context));
        self
    }

    /// Dials this address where 127/8 or ::1 is asked for: a device's own address of this host.
    ///
    /// # Errors
    /// [`Error::Loopback`] when that is itself a loopback or wildcard address.
    pub fn translating_to(mut self, addr: IpAddr) -> Result<Self> {
        check_dial(addr)?;
        self.translate = Some(SocketAddr::new(addr, 0));
        Ok(self)
    }

    /// [`translating_to`](Self::translating_to) the first address of a device, IPv4 before IPv6.
    ///
    /// # Errors
    /// [`Error::Os`] with EADDRNOTAVAIL when the device has none, or only link-local ones.
    pub fn translating_to_device(mut self, context: &Context) -> Result<Self> {
        self.translate = Some(own_address(context)?);
        Ok(self)
    }

    /// Gives a context this policy's override, if there is one for it, so that
    /// [`Caps::LOOPBACK`](rdma_safe::Caps::LOOPBACK) and [`Context::loopback_reason`] tell it. Returns what is known then.
    pub fn refine(&self, context: &Context) -> LoopbackSupport {
        let Known { support, reason } = self.ask(context);
        context.refine_loopback(support, reason);
        support
    }

    /// What is known about a device and why, for people.
    pub fn loopback(&mut self, device: &str) -> (LoopbackSupport, String) {
        let Known { support, reason } = self.known(device);
        (support, reason)
    }

    fn ask(&self, context: &Context) -> Known {
        let attr = context.attr();
        let part = Some((attr.vendor_id, attr.vendor_part_id));
        self.overridden(Subject { name: context.name(), part }).unwrap_or_else(|| Known {
            support: context.loopback(),
            reason: context.loopback_reason(),
        })
    }

    fn overridden(&self, device: Subject<'_>) -> Option<Known> {
        let (works, said) = self.overrides.find(device)?;
        let source = LoopbackSource::Override;
        let support =
            if works { LoopbackSupport::Yes(source) } else { LoopbackSupport::No(source) };
        Some(Known { support, reason: said.to_owned() })
    }

    /// What is known about a device by name; it is opened to be asked when nobody has told.
    fn known(&mut self, device: &str) -> Known {
        // A name is the strongest key, so vendor and part cannot change this.
        if let Some(known) = self.overridden(Subject { name: device, part: None }) {
            return known;
        }
        if let Some(known) = self.known.get(device) {
            return known.clone();
        }
        let known = match interfaces::open_device(device) {
            Ok(Some(context)) => self.ask(&context),
            // It may be there the next time.
            Ok(None) | Err(_) => {
                let reason = format!("{device} cannot be asked");
                return Known { support: LoopbackSupport::Unknown, reason };
            }
        };
        self.known.insert(device.to_owned(), known.clone());
        known
    }

    /// The address to dial for `dst`, from `src` or over the device `bound`, if either is given. Refuses what RDMA never
    /// carries, and an address of this host where every device it could go over cannot connect to itself.
    pub(crate) fn admit(
        &mut self,
        bound: Option<&str>,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<SocketAddr> {
        let to = match self.translate {
            Some(own) if classify(dst.ip()) == AddressClass::Loopback => {
                let mut own = own;
                own.set_port(dst.port());
                own
            }
            _ => {
                check_dial(dst.ip())?;
                dst
            }
        };
        if !interfaces::is_local(to)? {
            return Ok(to);
        }
        let devices = match (bound, src) {
            (Some(device), _) => vec![device.to_owned()],
            (None, Some(src)) => interfaces::devices_with(src)?,
            // The kernel takes the device that has the address.
            (None, None) => interfaces::devices_with(to)?,
        };
        let mut refusal = None;
        for device in &devices {
            match self.refusal(to.ip(), device) {
                // Which of several devices the kernel takes is seen when the address is resolved.
                None => return Ok(to),
                some => refusal = some,
            }
        }
        refusal.map_or(Ok(to), Err)
    }

    /// Refuses an address of this host over a device that cannot connect to itself.
    pub(crate) fn check_device(&mut self, addr: SocketAddr, device: &str) -> Result<()> {
        if !interfaces::is_local(addr)? {
            return Ok(());
        }
        self.refusal(addr.ip(), device).map_or(Ok(()), Err)
    }

    fn refusal(&mut self, addr: IpAddr, device: &str) -> Option<Error> {
        let Known { support, reason } = self.known(device);
        let LoopbackSupport::No(source) = support else { return None };
        Some(Error::NoSelfConnect {
            addr: unmapped(addr),
            device: device.to_owned(),
            reason: format!("{source}: {reason}"),
        })
    }
}

/// The first address that a device has for itself, without those that are link-local: over them some devices connect to
/// nobody, so they tell nothing.
fn own_address(context: &Context) -> Result<SocketAddr> {
    let own = interfaces::local_addresses(context)?;
    own.iter().find(|a| a.scope_id == 0).map(|own| own.socket_addr(0)).ok_or_else(|| {
        let error = Error::errno_of("finding an address of", libc::EADDRNOTAVAIL);
        error.about(context.name()).hint_for(
            &[libc::EADDRNOTAVAIL],
            "its network interface has none, or only a link-local one: ip addr add ADDRESS/PREFIX dev NETDEV",
        )
    })
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
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(LoopbackPolicy::new().admit(None, None, at("127.0.0.1:7")).is_err());
        let mut policy = LoopbackPolicy::new().translating_to(ip("192.0.2.3")).unwrap();
        let mut admit = |text: &str| policy.admit(None, None, at(text));
        for text in ["127.0.0.9:7", "[::1]:7", "[::ffff:127.0.0.1]:7"] {
            assert_eq!(admit(text).unwrap(), at("192.0.2.3:7"), "{text}");
        }
        assert_eq!(admit("192.0.2.9:8").unwrap(), at("192.0.2.9:8"));
        assert!(admit("0.0.0.0:7").is_err());
        assert!(LoopbackPolicy::new().translating_to(ip("::1")).is_err());
    }

    #[test]
    fn no_forbids_own_addresses_only() {
        // 127.0.0.1 stands for an address that every host has.
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut no = LoopbackPolicy::new().with_override("dev0", false);
        let refused = no.check_device(at("127.0.0.1:7"), "dev0").unwrap_err();
        assert!(matches!(refused, Error::NoSelfConnect { .. }), "{refused:?}");
        assert!(refused.to_string().contains("override of the program"), "{refused}");
        assert!(no.check_device(at("[::ffff:127.0.0.1]:7"), "dev0").is_err());
        assert!(no.check_device(at("192.0.2.77:7"), "dev0").is_ok());
        let mut yes = LoopbackPolicy::new().with_override("dev0", true);
        assert!(yes.check_device(at("127.0.0.1:7"), "dev0").is_ok());
    }

    #[test]
    fn a_text_and_a_program_can_override() {
        let mut policy = LoopbackPolicy::new()
            .with_overrides("dev0 = no # by hand", "--loopback")
            .unwrap()
            .with_override("dev1", true);
        let (support, reason) = policy.loopback("dev0");
        assert_eq!(support, LoopbackSupport::No(LoopbackSource::Override));
        assert_eq!(reason, "--loopback says dev0 = no (by hand)");
        assert!(policy.loopback("dev1").0.is_yes());
        assert_eq!(policy.loopback("no-such-device").0, LoopbackSupport::Unknown);
        assert!(LoopbackPolicy::new().with_file("/no/such/file").is_err());
    }
}
