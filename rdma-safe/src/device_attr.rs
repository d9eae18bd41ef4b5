//! What a device says about itself: limits of the classic query, and the extended one.

use crate::context::{Context, text};
use crate::error::{Error, Result};
use bitflags::bitflags;
use rdma_sys::*;
use std::ptr::null;

/// What the device says about itself (ibv_query_device(3)). Counts are at least 0, whatever the driver returned.
///
/// From [`Context::attr`](crate::Context::attr).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version; free text.
    pub fw_ver: String,
    /// PCI vendor or IEEE OUI.
    pub vendor_id: u32,
    /// Vendor's part number.
    pub vendor_part_id: u32,
    /// Vendor's hardware version.
    pub hw_ver: u32,
    /// GUID of the node in host byte order.
    pub node_guid: u64,
    /// GUID that all nodes of one system share, host byte order.
    pub sys_image_guid: u64,
    /// Largest registration, bytes.
    pub max_mr_size: u64,
    /// Page sizes for registrations: bit n stands for 2^n bytes.
    pub page_size_cap: u64,
    /// Raw `ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most requests in one queue.
    pub max_qp_wr: u32,
    /// Most scatter elements of a request that is not an RDMA read. One kind of queue may do fewer than the other.
    pub max_sge: u32,
    /// Most scatter elements of an RDMA read.
    pub max_sge_rd: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most completions in one queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most RDMA reads and atomics a QP answers at once.
    pub max_qp_rd_atom: u32,
    /// Most RDMA reads and atomics a QP starts at once.
    pub max_qp_init_rd_atom: u32,
    /// Most RDMA reads and atomics the device answers at once.
    pub max_res_rd_atom: u32,
    /// What remote atomics are atomic with.
    pub atomics: AtomicScope,
    /// Most memory windows; 0 for none.
    pub max_mw: u32,
    /// Most address handles; 0 for no limit of its own.
    pub max_ah: u32,
    /// Most multicast groups.
    pub max_mcast_grp: u32,
    /// Most queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Most shared receive queues; 0 for none.
    pub max_srq: u32,
    /// Most requests in one shared receive queue.
    pub max_srq_wr: u32,
    /// Most scatter elements of a shared receive.
    pub max_srq_sge: u32,
    /// Entries of the partition key table.
    pub max_pkeys: u16,
    /// Ports, numbered from 1.
    pub port_count: u8,
}

/// What a device's remote atomics are atomic with (`ibv_atomic_cap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicScope {
    /// There are none.
    None,
    /// With other atomics through the same device.
    Device,
    /// With atomics of this host's processors and other devices too.
    Global,
    /// Anything else: the raw value.
    Other(u32),
}

bitflags! {
    /// Requests that may use memory registered on demand ([`OdpCaps`]; `ibv_odp_transport_cap_bits`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct OdpOps: u32 {
        /// Sends.
        const SEND = 1 << 0;
        /// Receives.
        const RECV = 1 << 1;
        /// RDMA writes.
        const WRITE = 1 << 2;
        /// RDMA reads.
        const READ = 1 << 3;
        /// Remote atomics.
        const ATOMIC = 1 << 4;
        /// Receives of shared receive queues.
        const SRQ_RECV = 1 << 5;
        /// Flushes of remote writes.
        const FLUSH = 1 << 6;
        /// 8-byte writes that are seen whole.
        const ATOMIC_WRITE = 1 << 7;
    }
}

/// On-demand paging: registered memory that is not pinned, but faulted in when the device needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OdpCaps {
    /// Regions can be registered on demand.
    pub supported: bool,
    /// The whole address space can be registered as one region.
    pub implicit: bool,
    /// What reliable connected queue pairs can do with such regions.
    pub rc: OdpOps,
    /// The same for unreliable connected ones.
    pub uc: OdpOps,
    /// The same for datagrams.
    pub ud: OdpOps,
    /// The same for XRC.
    pub xrc: OdpOps,
}

/// What only the extended query tells (ibv_query_device_ex(3)). 0 and empty where the device or its provider has
/// nothing to say, as siw's and older ones.
///
/// From [`Context::attr_ex`](crate::Context::attr_ex).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DeviceAttrEx {
    /// On-demand paging.
    pub odp: OdpCaps,
    /// Valid bits of a completion's time stamp; 0 for no time stamps.
    pub completion_timestamp_mask: u64,
    /// Frequency of the device's clock, kHz.
    pub core_clock_khz: u64,
    /// Raw `device_cap_flags_ex`, the classic flags included.
    pub device_cap_flags_ex: u64,
    /// Longest packet the device segments itself, bytes; 0 for no segmentation offload.
    pub max_tso: u32,
    /// Raw `raw_packet_caps`.
    pub raw_packet_caps: u32,
    /// Most completions one event can stand for; 0 when completion queues cannot be moderated.
    pub max_cq_count: u16,
    /// Longest an event can be held back, microseconds.
    pub max_cq_period_us: u16,
    /// Device memory, bytes; 0 for none.
    pub max_dm_size: u64,
    /// Ports, counted beyond 255.
    pub port_count: u32,
}

impl Context {
    /// Asks for the extended attributes (ibv_query_device_ex(3)).
    ///
    /// # Errors
    /// The errno of the call: EIO or ENODEV when the device is gone.
    pub fn attr_ex(&self) -> Result<DeviceAttrEx> {
        let mut a = ibv_device_attr_ex::default();
        // SAFETY: live context, no input, writable attribute struct.
        let rc = unsafe { (self.0.verbs.query_device_ex)(self.as_raw(), null(), &mut a) };
        Error::check("ibv_query_device_ex", rc)?;
        Ok(extended(&a))
    }
}

fn extended(a: &ibv_device_attr_ex) -> DeviceAttrEx {
    let general = |f: ibv_odp_general_caps| a.odp_caps.general_caps & u64::from(f.0) != 0;
    let per = &a.odp_caps.per_transport_caps;
    DeviceAttrEx {
        odp: OdpCaps {
            supported: general(ibv_odp_general_caps::IBV_ODP_SUPPORT),
            implicit: general(ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT),
            rc: OdpOps::from_bits_retain(per.rc_odp_caps),
            uc: OdpOps::from_bits_retain(per.uc_odp_caps),
            ud: OdpOps::from_bits_retain(per.ud_odp_caps),
            xrc: OdpOps::from_bits_retain(a.xrc_odp_caps),
        },
        completion_timestamp_mask: a.completion_timestamp_mask,
        core_clock_khz: a.hca_core_clock,
        device_cap_flags_ex: a.device_cap_flags_ex,
        max_tso: a.tso_caps.max_tso,
        raw_packet_caps: a.raw_packet_caps,
        max_cq_count: a.cq_mod_caps.max_cq_count,
        max_cq_period_us: a.cq_mod_caps.max_cq_period,
        max_dm_size: a.max_dm_size,
        port_count: a.phys_port_cnt_ex.max(u32::from(a.orig_attr.phys_port_cnt)),
    }
}

pub(crate) fn attr_of(a: &ibv_device_attr) -> DeviceAttr {
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    DeviceAttr {
        fw_ver: text(&a.fw_ver),
        vendor_id: a.vendor_id,
        vendor_part_id: a.vendor_part_id,
        hw_ver: a.hw_ver,
        node_guid: u64::from_be(a.node_guid),
        sys_image_guid: u64::from_be(a.sys_image_guid),
        max_mr_size: a.max_mr_size,
        page_size_cap: a.page_size_cap,
        device_cap_flags: a.device_cap_flags,
        max_qp: count(a.max_qp),
        max_qp_wr: count(a.max_qp_wr),
        max_sge: count(a.max_sge),
        max_sge_rd: count(a.max_sge_rd),
        max_cq: count(a.max_cq),
        max_cqe: count(a.max_cqe),
        max_mr: count(a.max_mr),
        max_pd: count(a.max_pd),
        max_qp_rd_atom: count(a.max_qp_rd_atom),
        max_qp_init_rd_atom: count(a.max_qp_init_rd_atom),
        max_res_rd_atom: count(a.max_res_rd_atom),
        atomics: match a.atomic_cap {
            ibv_atomic_cap::IBV_ATOMIC_NONE => AtomicScope::None,
            ibv_atomic_cap::IBV_ATOMIC_HCA => AtomicScope::Device,
            ibv_atomic_cap::IBV_ATOMIC_GLOB => AtomicScope::Global,
            other => AtomicScope::Other(other.0),
        },
        max_mw: count(a.max_mw),
        max_ah: count(a.max_ah),
        max_mcast_grp: count(a.max_mcast_grp),
        max_mcast_qp_attach: count(a.max_mcast_qp_attach),
        max_srq: count(a.max_srq),
        max_srq_wr: count(a.max_srq_wr),
        max_srq_sge: count(a.max_srq_sge),
        max_pkeys: a.max_pkeys,
        port_count: a.phys_port_cnt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_returns_is_not_believed() {
        let raw =
            ibv_device_attr { max_qp: -1, atomic_cap: ibv_atomic_cap(9), ..Default::default() };
        let a = attr_of(&raw);
        assert_eq!((a.max_qp, a.atomics), (0, AtomicScope::Other(9)));
        let raw =
            ibv_device_attr_ex { orig_attr: raw, xrc_odp_caps: 1 << 31, ..Default::default() };
        let x = extended(&raw);
        assert!(!x.odp.supported && x.odp.xrc.bits() == 1 << 31 && x.odp.rc.is_empty());
    }
}
