//! Enhanced connection establishment: vendor options of the two devices, exchanged while connecting.
//!
//! The functions are in every librdmacm since rdma-core 31, and this crate links against 44 or newer, so their absence is not
//! provided for. What the options mean is between the two devices.

#![forbid(unsafe_code)]

use crate::channel::{EventChannel, Phase};
use crate::error::{Error, Result};
use crate::id::Id;

/// Vendor options, as `ibv_query_ece` reads them from a queue pair and `ibv_set_ece` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ece {
    /// Whose options they are; 0 is nobody.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

impl EventChannel {
    /// Sends vendor options along: with the request before [`connect`](Self::connect), with the reply before
    /// [`accept`](Self::accept). InfiniBand and RoCE; iWARP does not carry them.
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
    /// [`ConnectResponse`](crate::Event::ConnectResponse) is. `None` when none came.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_get_remote_ece.
    pub fn remote_ece(&mut self, id: &impl Id) -> Result<Option<Ece>> {
        let (vendor_id, options) = self.entry(id, "remote_ece")?.raw.remote_ece()?;
        Ok((vendor_id != 0).then_some(Ece { vendor_id, options }))
    }
}
