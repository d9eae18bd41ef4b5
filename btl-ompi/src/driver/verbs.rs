//! The real devices, through `btl-core`'s driver.

use super::{How, Opened};
use crate::modex::{self, Carrier, RailAddr};
use crate::params::PortName;
use btl_core::Config;
use btl_core::verbs::{self, LoopbackSupport, PortChoice, Selection, Transport};

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

impl Candidate {
    /// Its name.
    pub(crate) fn name(&self) -> PortName {
        PortName { device: self.0.device().to_owned(), port: Some(self.0.port()) }
    }

    /// Opens it: registers its send buffers, listens, starts its thread.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub(crate) fn open(&self, config: &Config, how: &How) -> Result<Opened, String> {
        let selection = Selection { cq_depth: how.cq_depth, ..Selection::default() };
        let (port, cm, published) =
            verbs::open_port(&self.0, &selection, config).map_err(|e| e.to_string())?;
        let addrs: Vec<RailAddr> = published
            .addrs
            .iter()
            .filter(|at| modex::publishable(at.ip()))
            .map(|at| RailAddr { at: *at, prefix: 0 })
            .collect();
        if addrs.is_empty() {
            return Err(format!(
                "{} has only loopback or link-local addresses, which peers cannot use: give it another one \
                 (ip addr add ADDRESS/PREFIX dev {0})",
                published.netdev
            ));
        }
        let no_loopback = no_loopback(published.loopback, published.loopback_reason);
        let rail = modex::Rail {
            carrier: carrier(published.transport),
            lanes: config.lanes.iter().map(|lane| lane.buffer_size).collect(),
            addrs,
        };
        Ok(Opened { port, cm, published: rail, no_loopback })
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
