//! The options of an id (rdma_set_option(3)).

#![forbid(unsafe_code)]

use rdma_sys as sys;

use crate::channel::EventChannel;
use crate::connector::Active;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::raw::RawId;

impl EventChannel {
    /// Sets the type of service of the id's packets, the octet of the IP header (RDMA_OPTION_ID_TOS). Before
    /// [`resolve_addr`](Self::resolve_addr); a listener's is that of its connections.
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_set_option.
    pub fn set_tos(&mut self, id: &impl Id, tos: u8) -> Result<()> {
        set(&self.entry(id, "set_tos")?.raw, sys::RDMA_OPTION_ID_TOS, &mut [tos])
    }

    /// Sets the time to wait for an acknowledgement to 4.096 µs · 2^`exponent`, 1 to 31; 0 for the kernel's choice
    /// (RDMA_OPTION_ID_ACK_TIMEOUT; InfiniBand and RoCE, ignored on iWARP). Before [`connect`](Self::connect) or
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    /// [`Error::Param`] above 31; [`Error::Os`] from rdma_set_option (EINVAL: an id for datagrams).
    pub fn set_ack_timeout(&mut self, id: &impl Id, exponent: u8) -> Result<()> {
        const LIMIT: u8 = 31;
        if exponent > LIMIT {
            return Err(Error::Param { name: "ack_timeout", value: exponent, limit: LIMIT });
        }
        let raw = &self.entry(id, "set_ack_timeout")?.raw;
        set(raw, sys::RDMA_OPTION_ID_ACK_TIMEOUT, &mut [exponent])
    }

    /// Shares the source port with others that say so too (RDMA_OPTION_ID_REUSEADDR). Before
    /// [`bind_source`](Self::bind_source). For listeners see [`ListenOptions::reuse_addr`](crate::ListenOptions).
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_set_option (EINVAL: too late).
    pub fn set_reuse_addr(&mut self, id: &impl Active, on: bool) -> Result<()> {
        let raw = &self.entry(id, "set_reuse_addr")?.raw;
        set_flag(raw, sys::RDMA_OPTION_ID_REUSEADDR, on)
    }

    /// Keeps an IPv6 id from IPv4 (RDMA_OPTION_ID_AFONLY). Before [`bind_source`](Self::bind_source). For listeners see
    /// [`ListenOptions::v6_only`](crate::ListenOptions).
    ///
    /// # Errors
    /// [`Error::Os`] from rdma_set_option (EINVAL: too late).
    pub fn set_v6_only(&mut self, id: &impl Active, on: bool) -> Result<()> {
        set_flag(&self.entry(id, "set_v6_only")?.raw, sys::RDMA_OPTION_ID_AFONLY, on)
    }
}

/// Sets an option that is a C int.
pub(crate) fn set_flag(raw: &RawId, name: u32, on: bool) -> Result<()> {
    set(raw, name, &mut i32::from(on).to_ne_bytes())
}

fn set(raw: &RawId, name: u32, value: &mut [u8]) -> Result<()> {
    raw.set_option(sys::RDMA_OPTION_ID as i32, name as i32, value)
}
