//! The parameters of a connection, with defaults that are safe on every transport.

#![forbid(unsafe_code)]

use rdma_safe::QueuePair;

use crate::error::{Error, Result};
use crate::private_data::{Carrier, PrivateData};

/// Connection parameters for [`connect`](crate::EventChannel::connect) and [`accept`](crate::EventChannel::accept).
///
/// librdmacm takes a zeroed structure to mean *no retries at all*; these defaults mean the opposite. A parameter that a
/// transport does not have (all of them but the private data and the read depths, on iWARP) is ignored there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParams {
    /// RDMA reads and atomics the peer may have outstanding towards this side; [`MAX_READS`](Self::MAX_READS) for as many as
    /// the device can. Default 1: with 0 a read wedges the send queue of soft iWARP. An acceptor never gives more than the
    /// request asked for or its device can; a request for more than the device can is refused.
    pub responder_resources: u8,
    /// RDMA reads and atomics this side may have outstanding towards the peer, likewise. Default 1.
    pub initiator_depth: u8,
    /// End-to-end credits where the hardware has them. Default true.
    pub flow_control: bool,
    /// Retransmissions before an unacknowledged send fails, 0 to 7. Default 7. Only the initiator's counts.
    pub retry_count: u8,
    /// How often the **peer's** send is tried again when this side has no receive posted, 0 to 7; 7 means for ever and is
    /// the default, so that a protocol error stalls and is seen instead of killing the connection.
    pub rnr_retry_count: u8,
    /// How long the peer waits after this side had no receive posted: the 5-bit code of IBTA 9.7.5.2.8. Default 12, which
    /// is 0.64 ms. librdmacm's own is 0, which is 655 ms.
    pub min_rnr_timer: u8,
    /// Whether this side receives from a shared receive queue; told to the peer, who may leave out end-to-end credits. Default
    /// false.
    pub srq: bool,
    /// Private data of the request or the reply. Default none. At most
    /// [`PrivateData::REQUEST_EVERYWHERE`] bytes fit a request on every transport.
    pub private_data: PrivateData,
}

impl Default for ConnParams {
    fn default() -> Self {
        Self {
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            srq: false,
            private_data: PrivateData::empty(),
        }
    }
}

impl ConnParams {
    /// Of reads: as many as the device can (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
    pub const MAX_READS: u8 = u8::MAX;

    /// Refuses what no wire carries, or what the device cannot do.
    pub(crate) fn check(&self, carrier: Carrier, iwarp: bool, qp: &QueuePair) -> Result<()> {
        self.check_counts()?;
        self.private_data.check(carrier, iwarp)?;
        if carrier == Carrier::Request {
            let most = MostReads::of(qp);
            for (name, value, limit) in [
                ("responder_resources", self.responder_resources, most.answered),
                ("initiator_depth", self.initiator_depth, most.started),
            ] {
                if value != Self::MAX_READS && value > limit {
                    return Err(Error::Param { name, value, limit });
                }
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<()> {
        for (name, value, limit) in [
            ("retry_count", self.retry_count, 7),
            ("rnr_retry_count", self.rnr_retry_count, 7),
            ("min_rnr_timer", self.min_rnr_timer, 31),
        ] {
            if value > limit {
                return Err(Error::Param { name, value, limit });
            }
        }
        Ok(())
    }

    /// The defaults with this private data.
    pub fn with_private_data(private_data: PrivateData) -> Self {
        Self { private_data, ..Self::default() }
    }

    /// The structure librdmacm takes. It points into `self`, so it must not outlive it.
    pub(crate) fn to_raw(&self, qp_num: u32) -> rdma_sys::rdma_conn_param {
        let data = self.private_data.as_bytes();
        rdma_sys::rdma_conn_param {
            private_data: if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() },
            // At most 251: `Carrier::limit` was checked.
            private_data_len: data.len().min(PrivateData::MAX) as u8,
            // 255 is librdmacm's "as much as there is".
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: u8::from(self.flow_control),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: u8::from(self.srq),
            qp_num,
        }
    }
}

/// The most reads and atomics a device has outstanding on one queue pair, as far as the wire can say.
pub(crate) struct MostReads {
    /// Of the peer.
    pub(crate) answered: u8,
    /// Of this side.
    pub(crate) started: u8,
}

impl MostReads {
    pub(crate) fn of(qp: &QueuePair) -> Self {
        let attr = qp.context().attr();
        let cut = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
        Self { answered: cut(attr.max_qp_rd_atom), started: cut(attr.max_qp_init_rd_atom) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_retry() {
        let params = ConnParams::default();
        let raw = params.to_raw(9);
        assert_eq!((raw.retry_count, raw.rnr_retry_count, raw.qp_num), (7, 7, 9));
        assert_eq!((raw.responder_resources, raw.initiator_depth), (1, 1));
        assert!(raw.private_data.is_null() && raw.private_data_len == 0);
    }

    #[test]
    fn what_no_wire_carries_is_refused() {
        let base = ConnParams::default;
        for (params, wrong) in [
            (ConnParams { retry_count: 8, ..base() }, "retry_count"),
            (ConnParams { rnr_retry_count: 200, ..base() }, "rnr_retry_count"),
            (ConnParams { min_rnr_timer: 32, ..base() }, "min_rnr_timer"),
        ] {
            let refused = params.check_counts();
            assert!(
                matches!(refused, Err(Error::Param { name, .. }) if name == wrong),
                "{refused:?}"
            );
        }
        let most = ConnParams { retry_count: 7, rnr_retry_count: 7, min_rnr_timer: 31, ..base() };
        assert!(most.check_counts().is_ok());
    }

    #[test]
    fn every_field_reaches_the_structure() {
        let params = ConnParams {
            responder_resources: 2,
            initiator_depth: 3,
            flow_control: false,
            retry_count: 4,
            rnr_retry_count: 5,
            min_rnr_timer: 6,
            srq: true,
            private_data: PrivateData::raw(&[9; 3]).unwrap(),
        };
        let raw = params.to_raw(8);
        assert_eq!((raw.responder_resources, raw.initiator_depth, raw.flow_control), (2, 3, 0));
        assert_eq!((raw.retry_count, raw.rnr_retry_count, raw.srq, raw.qp_num), (4, 5, 1, 8));
        assert_eq!(raw.private_data_len, 3);
    }
}
