//! Multicast groups of datagram queue pairs.

use crate::error::{Error, ErrorKind, Result};
use crate::gid::Gid;
use crate::qp::QueuePair;
use crate::qp_attr::QpKind;
use rdma_sys::*;

/// A group, as the device knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    gid: Gid,
    lid: u16,
}

impl Gid {
    /// Whether it names a group: ff00::/8, or an IPv4 multicast address, mapped.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl QueuePair {
    /// Has datagrams to this group delivered to this queue pair, too (ibv_attach_mcast(3)): detached when it is closed or
    /// dropped.
    ///
    /// The network has to carry the group here: join it with rdma_cm (or, on InfiniBand, with the subnet manager), which
    /// also says the group's Q_Key and LID. `lid` is 0 on RoCE.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a GID that is no group, or a group it is in already;
    /// [`Unsupported`](ErrorKind::Unsupported) for a queue pair that takes no datagrams; else the errno of the call:
    /// ENOMEM when the device has no more groups.
    pub fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<()> {
        const OP: &str = "ibv_attach_mcast";
        if self.config().kind != QpKind::Ud {
            let why = "only datagram queue pairs are members of groups";
            return Err(Error::refused(OP, ErrorKind::Unsupported, why));
        }
        let new = Membership { gid, lid };
        let why = if !gid.is_multicast() {
            format!("{gid} is no multicast group")
        } else if self.groups.iter().any(|m| m.gid == gid) {
            format!("it is in group {gid} already")
        } else {
            // SAFETY: the QP is alive; the GID is complete and not kept.
            let rc = unsafe {
                let raw = ibv_gid { raw: gid.0 };
                (self.context().0.verbs.attach_mcast)(self.as_raw(), &raw, lid)
            };
            Error::check(OP, rc)?;
            self.groups.push(new);
            return Ok(());
        };
        Err(Error::refused(OP, ErrorKind::InvalidArgument, why))
    }

    /// Leaves a group (ibv_detach_mcast(3)).
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it is not in it, else the errno of the call: it is still in it
    /// then.
    pub fn detach_multicast(&mut self, gid: Gid) -> Result<()> {
        let Some(i) = self.groups.iter().position(|m| m.gid == gid) else {
            let why = format!("it is not in group {gid}");
            return Err(Error::refused("ibv_detach_mcast", ErrorKind::InvalidArgument, why));
        };
        self.detach(self.groups[i])?;
        self.groups.swap_remove(i);
        Ok(())
    }

    fn detach(&self, m: Membership) -> Result<()> {
        let raw = ibv_gid { raw: m.gid.0 };
        // SAFETY: the QP is alive; the GID is complete and not kept.
        let rc = unsafe { (self.context().0.verbs.detach_mcast)(self.as_raw(), &raw, m.lid) };
        Error::check("ibv_detach_mcast", rc)
    }

    /// Leaves all groups, without which devices refuse the destruction (EBUSY). One that cannot be left is kept: the
    /// destruction tells then.
    pub(crate) fn leave_groups(&mut self) {
        let mut groups = std::mem::take(&mut self.groups);
        groups.retain(|m| self.detach(*m).is_err());
        // An empty one is freed here, because `close` does not drop the fields.
        if !groups.is_empty() {
            self.groups = groups;
        }
    }
}
