//! Enhanced connection establishment: vendor options of the two devices, exchanged while connecting.
//!
//! The functions are in every librdmacm since rdma-core 31, and this crate links against 44 or newer, so their absence is not
//! provided for. What the options mean is between the two devices. What librdmacm does for a queue pair of its own is three
//! steps here, because it does not know ours: tell ours, hear the peer's, give those to the queue pair before it is made ready.

#![forbid(unsafe_code)]

use crate::channel::{EventChannel, Phase};
use crate::error::{Error, Result};
use crate::id::Id;

pub use rdma_safe::Ece;

impl EventChannel {
    /// Sends vendor options along: with the request before [`connect`](Self::connect), with the reply before
    /// [`accept`](Self::accept). They are the queue pair's ([`QueuePair::ece`](rdma_safe::QueuePair::ece)); an acceptor
    /// first gives it the initiator's ([`QueuePair::set_ece`](rdma_safe::QueuePair::set_ece)). InfiniBand and RoCE; iWARP
    /// does not carry them.
    ///
    /// # Errors
    /// [`Error::State`] when it is too late, and for vendor 0; [`Error::Os`] from rdma_set_local_ece.
    pub fn set_local_ece(&mut self, id: &impl Id, ece: Ece) -> Result<()> {
        const OP: &str = "set_local_ece";
        if ece.vendor_id == 0 {
            return Err(Error::State { op: OP, why: "vendor 0 is nobody" });
        }
        let entry = self.entry(id, OP)?;
        if matches!(
            entry.phase,
            Phase::Connecting | Phase::Accepting | Phase::Established | Phase::Ended
        ) {
            return Err(Error::State { op: OP, why: "the options have been sent already" });
        }
        entry.raw.set_local_ece(ece.vendor_id, ece.options)
    }

    /// The peer's vendor options: of a request once it is read, of a connector once its
    /// [`ConnectResponse`](crate::Event::ConnectResponse) is: give them to the queue pair, then that event to
    /// [`answer`](Self::answer), which makes it ready. `None` when none came.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_get_remote_ece.
    pub fn remote_ece(&mut self, id: &impl Id) -> Result<Option<Ece>> {
        let (vendor_id, options) = self.entry(id, "remote_ece")?.raw.remote_ece()?;
        Ok((vendor_id != 0).then_some(Ece { vendor_id, options }))
    }
}
