//! The parameters of a connection, with defaults that are safe on every transport.
use crate::private_data::PrivateData;

/// Connection parameters for [`connect`](crate::EventChannel::connect) and [`accept`](crate::EventChannel::accept).
///
/// librdmacm takes a zeroed structure to mean *no retries at all*; these defaults mean the opposite. A parameter that a
/// transport does not have (all of them but the private data and the read depths, on iWARP) is ignored there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParams {
    /// RDMA reads and atomics the peer may have outstanding towards this side (0 to 255). Default 1: with 0 a read wedges
    /// the send queue of soft iWARP. An acceptor never gives more than the request asked for.
    pub responder_resources: u8,
    /// RDMA reads and atomics this side may have outstanding towards the peer (0 to 255). Default 1.
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
            private_data: PrivateData::empty(),
        }
    }
}

impl ConnParams {
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
            // Three bits on the wire: more would be cut to something else.
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: 0,
            qp_num,
        }
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
    fn counts_are_cut_to_three_bits() {
        let params = ConnParams { retry_count: 200, rnr_retry_count: 8, ..ConnParams::default() };
        let raw = params.to_raw(0);
        assert_eq!((raw.retry_count, raw.rnr_retry_count), (7, 7));
    }
}
