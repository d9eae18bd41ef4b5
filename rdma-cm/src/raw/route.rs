//! The path of an id: read after its route is resolved, or set in its stead.
use std::ptr::NonNull;

use rdma_safe::Gid;
use rdma_sys as sys;

use super::{RawId, check};
use crate::error::{Error, Result};

/// A path record of librdmacm, as it is: big endian where the wire is.
pub(crate) type RawPath = sys::ibv_sa_path_rec;

/// A GID of the C library's.
pub(crate) fn gid_of(gid: sys::ibv_gid) -> Gid {
    // SAFETY: a union of integers of the same size; every value is valid.
    Gid(unsafe { gid.raw })
}

impl RawId {
    /// The source and destination GID, the partition key, and the device's port (0: not known).
    pub(crate) fn gids(&self) -> (Gid, Gid, u16, u8) {
        // SAFETY: [LIVE]. The InfiniBand arm of the union is plain bytes that librdmacm zeroes first and fills in where
        // there are GIDs.
        unsafe {
            let id = self.as_ptr();
            let addr = (*id).route.addr.addr.ibaddr;
            (gid_of(addr.sgid), gid_of(addr.dgid), u16::from_be(addr.pkey), (*id).port_num)
        }
    }

    /// The path records of a resolved route; none on iWARP.
    pub(crate) fn paths(&self) -> Vec<RawPath> {
        // SAFETY: [LIVE].
        let (first, count) = unsafe {
            let route = &raw const (*self.as_ptr()).route;
            ((*route).path_rec, (*route).num_paths)
        };
        let (Some(first), Ok(count)) = (NonNull::new(first), usize::try_from(count)) else {
            return Vec::new();
        };
        // SAFETY: librdmacm keeps an array of that many plain records while the id lives; they are copied out.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), count).to_vec() }
    }

    /// Whether the port the id is on runs InfiniBand itself, with a subnet manager and its path records.
    ///
    /// The caller has seen [`device`](Self::device) be `Some`.
    pub(crate) fn is_infiniband(&self) -> Result<bool> {
        const OP: &str = "ibv_query_port";
        // SAFETY: [LIVE]. `verbs` is null, or a context librdmacm keeps open while the id lives.
        let (verbs, port) = unsafe { ((*self.as_ptr()).verbs, (*self.as_ptr()).port_num) };
        if verbs.is_null() {
            return Err(Error::State { op: OP, why: "the id is on no device" });
        }
        // SAFETY: plain data (integers and integer newtypes); all zeroes is valid.
        let mut attr: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context; a place for the result.
        match unsafe { sys::___ibv_query_port(verbs, port, &raw mut attr) } {
            0 => Ok(attr.link_layer == sys::IBV_LINK_LAYER_INFINIBAND as u8),
            errno => Err(Error::errno_of(OP, errno)),
        }
    }

    /// Gives the id its paths (RDMA_OPTION_IB_PATH).
    pub(crate) fn set_ib_paths(&self, paths: &mut [sys::ibv_path_data]) -> Result<()> {
        let (level, name) = (sys::RDMA_OPTION_IB as i32, sys::RDMA_OPTION_IB_PATH as i32);
        // SAFETY: [LIVE]; an array of plain structures, readable for its size.
        let rc = unsafe {
            sys::rdma_set_option(
                self.as_ptr(),
                level,
                name,
                paths.as_mut_ptr().cast(),
                size_of_val(paths),
            )
        };
        check(rc, "rdma_set_option")
    }
}
