//! What moves the bytes: the real devices, or a transport for tests of everything above it.
//!
//! Either has `find`, which lists the ports that can be used (or those that fit a name) or says why
//! there is none, and `Candidate::open`.

use crate::modex;

#[cfg(feature = "fake-transport")]
mod fake;
#[cfg(feature = "fake-transport")]
use fake as chosen;

#[cfg(all(feature = "verbs", not(feature = "fake-transport")))]
mod verbs;
#[cfg(all(feature = "verbs", not(feature = "fake-transport")))]
use verbs as chosen;

#[cfg(not(any(feature = "verbs", feature = "fake-transport")))]
compile_error!("choose what moves the bytes: feature verbs, or fake-transport for tests");

pub(crate) use chosen::{Candidate, Cm, Domain, Port, Region, SelfLink, find};

/// A buffer of the port.
pub(crate) type Slot = <Port as btl_core::port::Port>::Slot;

/// A part of registered memory, for one operation.
pub(crate) type Memory = <Port as btl_core::port::Port>::Memory;

/// An operation on memory of this process that is over: its cookie, the memory, and why it failed.
pub(crate) type SelfDone = (u64, Memory, Result<(), String>);

/// Why memory was not registered.
pub(crate) struct NotRegistered {
    /// For lack of something that ending other registrations gives back.
    pub(crate) scarce: bool,
    /// What the system said, and what to do.
    pub(crate) why: String,
}

/// What the engine on it reports.
pub(crate) type Event = btl_core::PortEvent<Port>;

/// How ports are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct How {
    /// Completions of one completion queue at most.
    pub(crate) cq_depth: u32,
}

/// An open port with its listeners.
pub(crate) struct Opened {
    /// The data path.
    pub(crate) port: Port,
    /// The connection manager's side.
    pub(crate) cm: Cm,
    /// Where memory for one-sided operations is registered.
    pub(crate) domain: Domain,
    /// What peers need to know.
    pub(crate) published: modex::Rail,
    /// Why processes of this node cannot be reached over it; `None` if they can.
    pub(crate) no_loopback: Option<String>,
}
