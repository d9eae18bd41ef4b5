//! Completions, messages and device events in a [tokio](https://docs.rs/tokio) runtime (feature `tokio`).
//!
//! * [`AsyncPollGroup`]: the next completion of many queue pairs, for one task that owns them.
//! * [`AsyncQueuePair`]: one queue pair with its buffers; send and receive from any number of tasks.
//! * [`DeviceEvents`]: asynchronous events of the device.
//!
//! **Every future here is cancel-safe**: it may be dropped at any point, and no buffer, message, completion or event is
//! lost, freed or doubled by that. What the device uses belongs to the queue pair, as everywhere in this crate, and what
//! has completed belongs to the object until the very poll that returns it.
//!
//! Nothing here blocks a thread of the runtime. There are no background tasks: whoever waits does the work, for the other
//! tasks too. The runtime needs `enable_io`.

mod buffers;
mod device_events;
mod group;
mod hold;
mod queue_pair;
mod request;
mod state;
mod waiters;
mod watch;

pub use buffers::{Message, SendBuffer};
pub use device_events::DeviceEvents;
pub use group::AsyncPollGroup;
pub(crate) use hold::Holds;
#[doc(hidden)]
pub use hold::NumberHold;
pub use queue_pair::{AsyncConfig, AsyncQueuePair};
pub use request::{Pending, Room};
#[doc(hidden)]
pub use waiters::{SharedFd, Step};

use crate::error::Error;
use crate::payload::Payload;
use crate::post::Why;
use crate::wc::{Op, WcStatus};

/// Why an [`AsyncQueuePair`] did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// A request failed, and the queue pair with it: the first one that says why. Flushed receives
    /// ([`WcStatus::WR_FLUSH_ERR`]) mean that the connection has ended.
    #[error("a {op:?} request failed: {status}")]
    Failed {
        /// Which queue it was on.
        op: Op,
        /// The outcome.
        status: WcStatus,
        /// The driver's own error number, for reports.
        vendor_err: u32,
    },
    /// The post was refused.
    #[error("post refused: {0}")]
    Refused(Why),
    /// The queue pair is closed or being closed.
    #[error("the queue pair is closed")]
    Closed,
    /// A call failed.
    #[error(transparent)]
    Verbs(#[from] Error),
}

/// A request that was not posted.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
#[must_use = "it may hold what was to be posted"]
pub struct RequestError {
    /// What was wrong.
    pub why: QueueError,
    /// What was to be posted, if the device never saw it.
    pub payload: Option<Payload>,
}

static_assertions::assert_impl_all!(AsyncPollGroup: Send);
static_assertions::assert_impl_all!(DeviceEvents: Send);
static_assertions::assert_impl_all!(AsyncQueuePair: Clone, Send, Sync);
static_assertions::assert_impl_all!(Message: Send, Sync);
static_assertions::assert_impl_all!(SendBuffer: Send, Sync);
static_assertions::assert_impl_all!(Room: Send, Sync);
static_assertions::assert_impl_all!(Pending: Send, Sync);
static_assertions::assert_impl_all!(QueueError: Send, Sync);
