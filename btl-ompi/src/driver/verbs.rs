//! The real devices, through `btl-core`'s driver.

use super::{How, Memory, NotRegistered, Opened, SelfDone};
use crate::abi;
use crate::modex::{self, Carrier, RailAddr};
use crate::params::PortName;
use btl_core::rma::{RmaErrorKind, Verb};
use btl_core::verbs::{
    self, LoopbackSupport, OpenError, PortChoice, Selection, Transport, VerbsMemory,
};
use btl_core::{Config, RemoteRange};
use rdma_safe::{Access, Caps, ErrorKind, Foreign, MemoryRegion, ProtectionDomain, Registration};
use std::net::IpAddr;

pub(crate) use btl_core::verbs::{VerbsCm as Cm, VerbsPort as Port};

/// A port that is up and has an address.
pub(crate) struct Candidate(PortChoice);

/// Every usable port, or those that fit a name.
///
/// # Errors
/// Why there is none, and what to do.
pub(crate) fn find(name: Option<&PortName>) -> Result<Vec<Candidate>, String> {
    let selection = Selection {
        device: name.map(|name| name.device.clone()),
        port: name.and_then(|name| name.port),
        ..Selection::default()
    };
    let choices = verbs::find(&selection).map_err(|e| e.to_string())?;
    Ok(choices.into_iter().map(Candidate).collect())
}

/// Whether there is a device of this name, usable or not.
pub(crate) fn exists(name: &PortName) -> bool {
    let selection = Selection { device: Some(name.device.clone()), ..Selection::default() };
    let found = verbs::find(&selection);
    !matches!(found, Err(OpenError::NoSuchDevice { .. } | OpenError::NoDevice))
}

/// Every address of this host.
pub(crate) fn host_addresses() -> Vec<IpAddr> {
    verbs::host_addresses().unwrap_or_default()
}

/// What is published instead of this data; only the test transport has a choice.
pub(crate) fn published(blob: Vec<u8>) -> Vec<u8> {
    blob
}

impl Candidate {
    /// Its name.
    pub(crate) fn name(&self) -> PortName {
        PortName { device: self.0.device().to_owned(), port: Some(self.0.port()) }
    }

    /// Vendor and part of its device, as ini files name it.
    pub(crate) fn part(&self) -> (u32, u32) {
        self.0.part()
    }

    /// What carries it.
    pub(crate) fn carrier(&self) -> Carrier {
        carrier(self.0.transport())
    }

    /// Keeps the wanted ones of its addresses; returns how many those are.
    pub(crate) fn keep(&mut self, wanted: impl Fn(IpAddr) -> bool) -> usize {
        self.0.keep(wanted)
    }

    /// Takes an answer to whether its device can connect to itself, from the user, and where that was said.
    pub(crate) fn set_loopback(&self, works: bool, place: String) {
        self.0.set_loopback(works, place);
    }

    /// Opens it: registers its send buffers, listens, starts its thread.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub(crate) fn open(&self, config: &Config, how: &How) -> Result<Opened, String> {
        let selection = Selection {
            listen_port: how.listen_port,
            cq_depth: how.cq_depth,
            max_inline: how.max_inline,
            retry_count: how.retry_count,
            rnr_retry_count: how.rnr_retry_count,
            min_rnr_timer: how.min_rnr_timer,
            ack_timeout: how.ack_timeout,
            shared_work_queue: how.shared_work_queue,
            ..Selection::default()
        };
        let (port, cm, published) =
            verbs::open_port(&self.0, &selection, config).map_err(|e| e.to_string())?;
        let addrs: Vec<RailAddr> = published
            .addrs
            .iter()
            .filter(|at| modex::publishable(at.ip()))
            .map(|at| RailAddr { at: *at, prefix: self.0.prefix_of(at.ip()) })
            .collect();
        if addrs.is_empty() {
            return Err(format!(
                "{} has only loopback or link-local addresses, which peers cannot use: give it another one \
                 (ip addr add ADDRESS/PREFIX dev {0})",
                published.netdev
            ));
        }
        let domain = Domain { pd: port.protection_domain().clone() };
        let no_loopback = no_loopback(published.loopback, published.loopback_reason);
        let rail = modex::Rail {
            carrier: carrier(published.transport),
            loopback: no_loopback.is_none(),
            eager: 0,
            lanes: config.lanes.iter().map(|lane| lane.buffer_size).collect(),
            addrs,
        };
        Ok(Opened { port, cm, domain, published: rail, no_loopback })
    }
}

/// A name for the modex, so that only like pairs with like; nothing here depends on which it is.
fn carrier(transport: Transport) -> Carrier {
    match transport {
        Transport::Ib => Carrier::Ib,
        Transport::Roce => Carrier::Roce,
        other if other.is_iwarp() => Carrier::Iwarp,
        Transport::Other(raw) => Carrier::Other(raw as u8),
        _ => Carrier::Other(0),
    }
}

/// Why the device cannot connect to itself. What is not known counts as no: a connect that never
/// comes back costs the job more than the way through shared memory.
fn no_loopback(support: LoopbackSupport, reason: String) -> Option<String> {
    match support.source() {
        Some(_) if support.is_yes() => None,
        Some(source) => Some(format!("{source}: {reason}")),
        None => Some(format!("it is not known whether it can: {reason}")),
    }
}

/// Where memory is registered. It needs no lock: the kernel serialises.
pub(crate) struct Domain {
    pd: ProtectionDomain,
}

/// Registered memory of the program. Dropped, it stays registered until the operations that use it are over.
pub(crate) struct Region {
    region: MemoryRegion<Foreign>,
    start: usize,
}

impl Domain {
    /// Registers memory for what `access` (Open MPI's bits) says.
    ///
    /// # Safety
    /// The memory is mapped, and writable where `access` says so, until the region is dropped and every operation on it
    /// is over; no reference of Rust's to it exists.
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Region, NotRegistered> {
        let access = access_of(access, self.pd.context().caps());
        // SAFETY: by the contract.
        let region = unsafe { self.pd.register_foreign(start, len, access, &Registration::new()) };
        match region {
            Ok(region) => Ok(Region { region, start: start.addr() }),
            Err(e) => Err(NotRegistered {
                scarce: e.kind() == ErrorKind::OutOfMemory,
                why: e.to_string(),
            }),
        }
    }
}

/// What the device has to be told.
fn access_of(access: u32, caps: Caps) -> Access {
    let mut flags = Access::empty();
    if access & abi::ACCESS_LOCAL_WRITE != 0 {
        flags |= Access::read_sink(caps);
    }
    if access & abi::ACCESS_REMOTE_READ != 0 {
        flags |= Access::REMOTE_READ;
    }
    if access & abi::ACCESS_REMOTE_WRITE != 0 {
        flags |= Access::REMOTE_WRITE;
    }
    if access & abi::ACCESS_REMOTE_ATOMIC != 0 && caps.contains(Caps::ATOMICS) {
        flags |= Access::REMOTE_ATOMIC;
    }
    flags
}

impl Region {
    /// The key for peers.
    pub(crate) fn key(&self) -> u32 {
        self.region.rkey()
    }

    /// `len` bytes at an address, for one operation; `None` when they are not all within.
    ///
    /// # Safety
    /// Until the operation is over the memory stays mapped, nobody changes what a put reads, and nobody uses what a get
    /// or atomic writes, for which the region was registered.
    pub(crate) unsafe fn slice(&self, address: usize, len: usize) -> Option<Memory> {
        let offset = address.checked_sub(self.start)?;
        // SAFETY: by the contract.
        unsafe { self.region.slice(offset, len) }.ok().map(Memory::from)
    }
}

/// A connection of a port to itself.
pub(crate) struct SelfLink(verbs::SelfLink);

impl SelfLink {
    /// Makes it.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn open(port: &Port, number: u8) -> Result<Self, String> {
        port.self_link(number).map(Self).map_err(|e| e.to_string())
    }

    /// Starts an operation.
    ///
    /// # Errors
    /// It was not taken; the memory comes back.
    pub(crate) fn start(
        &mut self,
        verb: Verb,
        memory: Memory,
        remote: RemoteRange,
        cookie: u64,
    ) -> Result<(), (RmaErrorKind, Memory)> {
        match memory {
            VerbsMemory::Foreign(slice) => self
                .0
                .start(verb, slice, remote, cookie)
                .map_err(|(why, slice)| (why, VerbsMemory::Foreign(slice))),
            // Not reachable: a region has no other.
            other => Err((RmaErrorKind::NotSupported { what: "such memory" }, other)),
        }
    }

    /// The next one that is over.
    pub(crate) fn poll(&mut self) -> Option<SelfDone> {
        let done = self.0.poll()?;
        let result = done.result.map_err(|e| e.to_string());
        Some((done.cookie, VerbsMemory::Foreign(done.memory), result))
    }

    /// Operations under way.
    pub(crate) fn under_way(&self) -> usize {
        self.0.under_way()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_get_no_more_than_open_mpi_asks_for() {
        let none = Caps::empty();
        assert_eq!(access_of(0, none), Access::empty(), "the source of a put");
        assert_eq!(access_of(abi::ACCESS_REMOTE_READ, none), Access::REMOTE_READ);
        assert_eq!(access_of(abi::ACCESS_LOCAL_WRITE, none), Access::LOCAL_WRITE);
        assert_eq!(
            access_of(abi::ACCESS_LOCAL_WRITE, Caps::READ_SINK_REMOTE_WRITE),
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            "on iWARP the peer's device writes what is read"
        );
        let most = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert_eq!(access_of(abi::ACCESS_ANY, none), most, "the device has no atomics");
        assert_eq!(access_of(abi::ACCESS_ANY, Caps::ATOMICS), most | Access::REMOTE_ATOMIC);
    }
}
