//! The path between two ports: what was found, and on InfiniBand what to use instead.

#![forbid(unsafe_code)]

use rdma_safe::Gid;
use rdma_sys as sys;

use crate::channel::{EventChannel, Phase};
use crate::connector::Active;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::raw::{RawPath, gid_of};

/// Where an id leads.
///
/// From [`EventChannel::route`](crate::EventChannel::route).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// This side's GID; zeroes on iWARP.
    pub source_gid: Gid,
    /// The other side's GID; zeroes on iWARP.
    pub destination_gid: Gid,
    /// The partition key, 0 where there are none.
    pub partition_key: u16,
    /// The device's port, from 1.
    pub port: u8,
    /// The paths, the primary first; none on iWARP and before the route is resolved.
    pub paths: Vec<Path>,
}

/// A path record (IBTA 15.2.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// This side's GID.
    pub source_gid: Gid,
    /// The other side's GID.
    pub destination_gid: Gid,
    /// This side's local identifier; 0 on RoCE.
    pub source_lid: u16,
    /// The other side's local identifier; 0 on RoCE.
    pub destination_lid: u16,
    /// 20 bits that name a flow to the switches.
    pub flow_label: u32,
    /// Hops a packet may take between subnets.
    pub hop_limit: u8,
    /// The traffic class of the global header.
    pub traffic_class: u8,
    /// The partition key.
    pub partition_key: u16,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// The code of the packet size: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// The code of the rate (IBTA 15.2.5.16).
    pub rate: u8,
    /// A packet lives no longer than 4.096 µs · 2^this.
    pub packet_life_time: u8,
}

impl Path {
    fn of(raw: &RawPath) -> Self {
        Self {
            source_gid: gid_of(raw.sgid),
            destination_gid: gid_of(raw.dgid),
            source_lid: u16::from_be(raw.slid),
            destination_lid: u16::from_be(raw.dlid),
            flow_label: u32::from_be(raw.flow_label),
            hop_limit: raw.hop_limit,
            traffic_class: raw.traffic_class,
            partition_key: u16::from_be(raw.pkey),
            service_level: raw.sl,
            mtu: raw.mtu,
            rate: raw.rate,
            packet_life_time: raw.packet_life_time,
        }
    }

    /// The record as it travels, for a path that serves both directions and the connection manager.
    fn to_raw(self) -> sys::ibv_path_data {
        let flags =
            sys::IBV_PATH_FLAG_GMP | sys::IBV_PATH_FLAG_PRIMARY | sys::IBV_PATH_FLAG_BIDIRECTIONAL;
        let flow = (self.flow_label & 0xf_ffff) << 8 | u32::from(self.hop_limit);
        let path = sys::ibv_path_record {
            service_id: 0,
            dgid: sys::ibv_gid { raw: self.destination_gid.0 },
            sgid: sys::ibv_gid { raw: self.source_gid.0 },
            dlid: self.destination_lid.to_be(),
            slid: self.source_lid.to_be(),
            flowlabel_hoplimit: flow.to_be(),
            tclass: self.traffic_class,
            // Usable in both directions; one path.
            reversible_numpath: 0x80 | 1,
            pkey: self.partition_key.to_be(),
            qosclass_sl: u16::from(self.service_level & 0xf).to_be(),
            mtu: EXACTLY | self.mtu & 0x3f,
            rate: EXACTLY | self.rate & 0x3f,
            packetlifetime: EXACTLY | self.packet_life_time & 0x3f,
            preference: 0,
            reserved: [0; 6],
        };
        sys::ibv_path_data { flags, reserved: 0, path }
    }
}

/// The selector in front of a six-bit code: this value and no other.
const EXACTLY: u8 = 2 << 6;

impl EventChannel {
    /// Where an id leads, as far as it is known: GIDs once the address is resolved, paths once the route is.
    ///
    /// # Errors
    /// [`Error::State`] for an id without a device.
    pub fn route(&mut self, id: &impl Id) -> Result<Route> {
        let (entry, _) = self.entry_on_device(id.key(), "route")?;
        let (source_gid, destination_gid, partition_key, port) = entry.raw.gids();
        let paths = entry.raw.paths().iter().map(Path::of).collect();
        Ok(Route { source_gid, destination_gid, partition_key, port, paths })
    }

    /// Uses this path instead of asking the subnet manager (RDMA_OPTION_IB_PATH), in the place of
    /// [`resolve_route`](Self::resolve_route) and with the same events after it. InfiniBand only.
    ///
    /// # Errors
    /// [`Error::NotSupported`] on RoCE and iWARP, whose paths come from the IP routes; [`Error::State`] before the address is
    /// resolved; [`Error::Os`] from rdma_set_option.
    pub fn set_path(&mut self, id: &impl Active, path: Path) -> Result<()> {
        const OP: &str = "set_path";
        let (entry, device) = self.entry_on_device(id.key(), OP)?;
        if device.iwarp || !entry.raw.is_infiniband()? {
            let why = "only InfiniBand has path records; here the IP routes decide";
            return Err(Error::NotSupported { op: OP, device: device.name, why });
        }
        if entry.phase != Phase::AddrResolved {
            return Err(Error::State { op: OP, why: "the address is not resolved" });
        }
        entry.raw.set_ib_paths(&mut [path.to_raw()])?;
        entry.phase = Phase::Resolving;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_has_the_layout_of_the_wire() {
        let path = Path {
            source_gid: Gid([1; 16]),
            destination_gid: Gid([2; 16]),
            source_lid: 0x0102,
            destination_lid: 0x0304,
            flow_label: 0xa_bcde,
            hop_limit: 0x3f,
            traffic_class: 7,
            partition_key: 0xffff,
            service_level: 5,
            mtu: 5,
            rate: 3,
            packet_life_time: 18,
        };
        let raw = path.to_raw();
        assert_eq!(raw.flags, 0x2b);
        assert_eq!(raw.path.flowlabel_hoplimit.to_ne_bytes(), [0x0a, 0xbc, 0xde, 0x3f]);
        assert_eq!(raw.path.slid.to_ne_bytes(), [1, 2]);
        assert_eq!(raw.path.qosclass_sl.to_ne_bytes(), [0, 5]);
        assert_eq!((raw.path.mtu, raw.path.rate, raw.path.packetlifetime), (0x85, 0x83, 0x92));
        assert_eq!(raw.path.reversible_numpath, 0x81);
    }
}
