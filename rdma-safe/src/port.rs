//! Ports of a device: state, link, table sizes.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::seam::Verbs;
use rdma_sys::*;
use std::ptr::NonNull;

/// State of a port (`ibv_port_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// Down: no link.
    Down,
    /// Link up, not configured yet.
    Init,
    /// Configured, not active yet.
    Armed,
    /// Up.
    Active,
    /// Up, link trouble under observation.
    ActiveDefer,
    /// Anything else, "no change" (0) too: the raw value.
    Other(u32),
}

/// What a port's packets are framed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand, or a provider that does not say.
    InfiniBand,
    /// Ethernet: RoCE and iWARP.
    Ethernet,
    /// Anything else: the raw value.
    Other(u8),
}

/// What a port says about itself (ibv_query_port(3)).
///
/// From [`Context::port`](crate::Context::port).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PortAttr {
    /// Port is up (`IBV_PORT_ACTIVE`).
    pub active: bool,
    /// Runs over Ethernet (RoCE, iWARP).
    pub ethernet: bool,
    /// Its state.
    pub state: PortState,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// Largest message, bytes.
    pub max_msg_sz: u32,
    /// Active path MTU, bytes; 0 if the driver returned no known value.
    pub active_mtu: u32,
    /// Largest path MTU, bytes; 0 if the driver returned no known value.
    pub max_mtu: u32,
    /// Entries of the GID table, used and unused.
    pub gid_table_len: u32,
    /// Entries of the partition key table; 0 on iWARP.
    pub pkey_table_len: u16,
    /// Local identifier (InfiniBand; else 0).
    pub lid: u16,
    /// Local identifier of the subnet manager (InfiniBand; else 0).
    pub sm_lid: u16,
    /// Low bits of the LID that a path may vary (InfiniBand; else 0).
    pub lid_mask_count: u8,
    /// Raw `active_width`: 1, 2, 4, 8, 16 stand for 1, 4, 8, 12, 2 lanes.
    pub active_width: u8,
    /// Raw `active_speed` of a lane, as in ibv_query_port(3).
    pub active_speed: u8,
    /// Raw `port_cap_flags`.
    pub port_cap_flags: u32,
}

impl Context {
    /// Queries a port, numbered from 1.
    ///
    /// # Errors
    /// EINVAL for a port that does not exist, EIO or ENODEV when the device is gone.
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        // SAFETY: the context is alive.
        unsafe { query_port(self.0.raw, self.0.verbs, port) }.map(|p| attr_of(&p))
    }

    /// The partition key at `index` of a port's table, in host byte order (ibv_query_pkey(3)).
    ///
    /// # Errors
    /// The errno of the call: iWARP has no partition keys.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: live context, writable key.
        let rc =
            unsafe { (self.0.verbs.query_pkey)(self.as_raw(), port, i32::from(index), &mut pkey) };
        Error::check("ibv_query_pkey", rc)?;
        Ok(u16::from_be(pkey))
    }
}

fn attr_of(p: &ibv_port_attr) -> PortAttr {
    PortAttr {
        active: p.state == ibv_port_state::IBV_PORT_ACTIVE,
        ethernet: is_ethernet(p),
        state: match p.state {
            ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            ibv_port_state::IBV_PORT_INIT => PortState::Init,
            ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
            other => PortState::Other(other.0),
        },
        link_layer: match p.link_layer {
            // 0 is "unspecified", which means InfiniBand (ibv_query_port(3)).
            0 | INFINIBAND => LinkLayer::InfiniBand,
            ETHERNET => LinkLayer::Ethernet,
            other => LinkLayer::Other(other),
        },
        max_msg_sz: p.max_msg_sz,
        active_mtu: mtu_bytes(p.active_mtu),
        max_mtu: mtu_bytes(p.max_mtu),
        gid_table_len: u32::try_from(p.gid_tbl_len).unwrap_or(0),
        pkey_table_len: p.pkey_tbl_len,
        lid: p.lid,
        sm_lid: p.sm_lid,
        lid_mask_count: p.lmc,
        active_width: p.active_width,
        active_speed: p.active_speed,
        port_cap_flags: p.port_cap_flags,
    }
}

/// Bytes; 0 for a value that nobody knows.
pub(crate) fn mtu_bytes(mtu: ibv_mtu) -> u32 {
    match mtu.0 {
        m @ 1..=5 => 128 << m,
        _ => 0,
    }
}

/// # Safety
/// `raw` is a live context of the provider behind `verbs`.
pub(crate) unsafe fn query_port(
    raw: NonNull<ibv_context>,
    verbs: &Verbs,
    port: u8,
) -> Result<ibv_port_attr> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: live context, writable attribute struct.
    Error::check("ibv_query_port", unsafe { (verbs.query_port)(raw.as_ptr(), port, &mut attr) })?;
    Ok(attr)
}

/// `IBV_LINK_LAYER_INFINIBAND`.
const INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`; siw and rxe report it too.
const ETHERNET: u8 = 2;

pub(crate) fn is_ethernet(p: &ibv_port_attr) -> bool {
    p.link_layer == ETHERNET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_values() {
        let raw = ibv_port_attr {
            state: ibv_port_state(99),
            link_layer: 7,
            active_mtu: ibv_mtu(6),
            max_mtu: ibv_mtu(5),
            gid_tbl_len: -1,
            ..Default::default()
        };
        let p = attr_of(&raw);
        assert_eq!((p.state, p.link_layer), (PortState::Other(99), LinkLayer::Other(7)));
        assert_eq!((p.active_mtu, p.max_mtu, p.gid_table_len), (0, 4096, 0));
        assert!(!p.active && !p.ethernet);
        assert_eq!(attr_of(&ibv_port_attr::default()).link_layer, LinkLayer::InfiniBand);
    }
}
