//! Multicast groups of an id.
//!
//! librdmacm keeps a record of each group until it is left, and does not free it with the id; so an id leaves its groups
//! before it is destroyed. The context given to a join is a number that comes back in its events.
use std::net::SocketAddr;
use std::ptr;

use rdma_sys as sys;

use super::{RawId, check};
use crate::error::{Error, Result};
use crate::sockaddr::RawAddr;

/// A group an id has joined.
pub(super) struct Group {
    addr: SocketAddr,
    number: usize,
}

impl RawId {
    /// Joins a group. Its events carry `number`, which must not be 0.
    ///
    /// The caller has seen [`device`](Self::device) be `Some`, and that the id is for datagrams.
    pub(crate) fn join(&mut self, addr: SocketAddr, flags: u32, number: usize) -> Result<()> {
        const OP: &str = "rdma_join_multicast_ex";
        if self.groups.iter().any(|group| group.addr == addr) {
            return Err(Error::State { op: OP, why: "the id has joined that group already" });
        }
        let mask = sys::rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0
            | sys::rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
        let mut raw = RawAddr::new(addr);
        let mut attr = sys::rdma_cm_join_mc_attr_ex {
            comp_mask: mask,
            join_flags: flags,
            addr: raw.as_mut_ptr(),
        };
        let context = ptr::without_provenance_mut(number);
        // SAFETY: [LIVE]; the structure and its address are valid during the call and copied. The context is a number that
        // is only ever read back as one.
        let rc = unsafe { sys::rdma_join_multicast_ex(self.as_ptr(), &raw mut attr, context) };
        check(rc, OP).map_err(|e| e.about(addr))?;
        self.groups.push(Group { addr, number });
        Ok(())
    }

    /// Leaves a group, whose events are void from now on.
    pub(crate) fn leave(&mut self, addr: SocketAddr) -> Result<()> {
        const OP: &str = "rdma_leave_multicast";
        let at = self.groups.iter().position(|group| group.addr == addr);
        let group = at.map(|at| self.groups.swap_remove(at));
        group.ok_or(Error::State { op: OP, why: "the id is not in that group" })?;
        let mut raw = RawAddr::new(addr);
        // SAFETY: [LIVE]; the address, with the bytes it was joined with, is valid during the call. It cannot block: it
        // waits for acknowledgements, and every event was acknowledged when it was read.
        let rc = unsafe { sys::rdma_leave_multicast(self.as_ptr(), raw.as_mut_ptr()) };
        check(rc, OP).map_err(|e| e.about(addr))
    }

    /// The group the id has joined under `number`.
    pub(crate) fn group_of(&self, number: usize) -> Option<SocketAddr> {
        self.groups.iter().find(|group| group.number == number).map(|group| group.addr)
    }

    /// The device is gone. The kernel refuses to leave a group then, and librdmacm frees its record all the same, which a
    /// waiting event may still name: so the groups are left to the end of the id, at the price of the records.
    pub(crate) fn device_removed(&mut self) {
        self.removed = true;
        self.groups.clear();
    }

    pub(super) fn leave_all(&mut self) {
        while let Some(group) = self.groups.last() {
            // It is out of the list in any case, and there is nobody to tell.
            let _ = self.leave(group.addr);
        }
    }
}
