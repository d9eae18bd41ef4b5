//! Enhanced connection establishment: the vendor options of a queue pair.

use crate::error::{Error, ErrorKind, Result};
use crate::qp::QueuePair;
use crate::qp_attr::QpState;
use rdma_sys::ibv_ece;

/// Vendor options of a queue pair, which two devices of one vendor agree on while they connect. What they mean is between
/// those devices; they travel in the private data of the connection manager (rdma-cm: `set_local_ece`, `remote_ece`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ece {
    /// Whose options they are; 0 is nobody.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

impl QueuePair {
    /// The vendor options the device offers for this queue pair, to tell the peer, or after [`set_ece`](Self::set_ece) what
    /// it has accepted of the peer's (ibv_query_ece(3)). `None` from a device that has none, as siw and rxe.
    ///
    /// # Errors
    /// The errno of the call: EIO or ENODEV when the device is gone.
    pub fn ece(&self) -> Result<Option<Ece>> {
        let mut raw = ibv_ece::default();
        // SAFETY: the QP is alive; the structure is writable and not kept.
        let rc = unsafe { (self.context().0.verbs.query_ece)(self.as_raw(), &mut raw) };
        match Error::check("ibv_query_ece", rc) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            other => other?,
        }
        let ece = Ece { vendor_id: raw.vendor_id, options: raw.options };
        Ok((ece.vendor_id != 0).then_some(ece))
    }

    /// Gives the queue pair the peer's vendor options, from RESET or INIT, before it becomes ready to receive
    /// (ibv_set_ece(3)). The device takes what it can: [`ece`](Self::ece) tells.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState) later than that; [`InvalidArgument`](ErrorKind::InvalidArgument) for vendor 0;
    /// [`Unsupported`](ErrorKind::Unsupported) (EOPNOTSUPP) from a device without options, as siw and rxe; else the errno
    /// of the call (mlx5: EINVAL for a vendor or for options that it does not know).
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        const OP: &str = "ibv_set_ece";
        if !matches!(self.state(), QpState::Reset | QpState::Init) {
            let why = "vendor options are set before the queue pair is ready to receive";
            return Err(Error::refused(OP, ErrorKind::WrongState, why));
        }
        if ece.vendor_id == 0 {
            return Err(Error::refused(OP, ErrorKind::InvalidArgument, "vendor 0 is nobody"));
        }
        let mut raw = ibv_ece { vendor_id: ece.vendor_id, options: ece.options, comp_mask: 0 };
        // SAFETY: the QP is alive; the structure is readable and not kept.
        let rc = unsafe { (self.context().0.verbs.set_ece)(self.as_raw(), &mut raw) };
        Error::check(OP, rc)
    }
}
