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

pub(crate) use chosen::{
    Candidate, Cm, Domain, Port, Region, SelfLink, exists, find, host_addresses, published,
};

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
    /// The first port number to listen on; 0: any.
    pub(crate) listen_port: u16,
    /// Bytes up to which a send goes inline; `None`: the driver's own choice.
    pub(crate) max_inline: Option<u32>,
    /// Retransmissions of a send.
    pub(crate) retry_count: u8,
    /// Retransmissions of the peer's send when no receive is posted.
    pub(crate) rnr_retry_count: u8,
    /// How long the peer waits after such a send.
    pub(crate) min_rnr_timer: u8,
    /// How long an acknowledgement may take.
    pub(crate) ack_timeout: u8,
    /// Whether sends and receives share one ring; `None`: as the table of devices says.
    pub(crate) shared_work_queue: Option<bool>,
}

#[cfg(test)]
impl Default for How {
    fn default() -> Self {
        Self {
            cq_depth: 256,
            listen_port: 0,
            max_inline: None,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            ack_timeout: 0,
            shared_work_queue: None,
        }
    }
}

/// An open port with its listeners.
pub(crate) struct Opened {
    /// The data path.
    pub(crate) port: Port,
    /// The connection manager's side.
    pub(crate) cm: Cm,
    /// Where memory for one-sided operations is registered.
    pub(crate) domain: Domain,
    /// What peers need to know; `eager` is the caller's.
    pub(crate) published: modex::Rail,
    /// Why processes of this node cannot be reached over it; `None` if they can.
    pub(crate) no_loopback: Option<String>,
}
