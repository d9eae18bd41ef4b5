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

pub(crate) use chosen::{Candidate, Cm, Port, find};

/// A buffer of the port.
pub(crate) type Slot = <Port as btl_core::port::Port>::Slot;

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
    /// What peers need to know.
    pub(crate) published: modex::Rail,
    /// Why processes of this node cannot be reached over it; `None` if they can.
    pub(crate) no_loopback: Option<String>,
}
