//! What every loop stands on: the first device, a protection domain, and queue pairs brought to RTS by hand.

use crate::{DEPTH, SIZE};
use rdma_safe::{CompletionQueue, Context, CqRef, ProtectionDomain, QpAttr, QpConfig, QueuePair};
use rdma_safe::{Result, Slot};
use rdma_sys::*;

pub(crate) struct Rig {
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
}

impl Rig {
    /// A completion queue for so many queue pairs.
    pub(crate) fn new(qps: u32) -> Result<Rig> {
        let devices = rdma_safe::devices()?;
        let context: Context = match devices.first() {
            Some(device) => device.open()?,
            None => rdma_safe::Device::by_name("fake0")?.open()?,
        };
        Ok(Rig { pd: context.alloc_pd()?, cq: context.create_cq(qps * 2 * DEPTH)? })
    }

    pub(crate) fn slots(&self, count: usize) -> Result<Vec<Slot>> {
        self.pd.slots(SIZE, count)
    }

    pub(crate) fn qp(&self) -> Result<QueuePair> {
        connected(&self.pd, &self.cq.cq_ref())
    }
}

/// A queue pair that believes it is connected; the fake device believes it too.
fn connected(pd: &ProtectionDomain, cq: &CqRef) -> Result<QueuePair> {
    let config =
        QpConfig { send_depth: DEPTH, recv_depth: DEPTH, max_inline: 32, ..QpConfig::default() };
    let mut qp = pd.create_qp(cq, cq, &config)?;
    let peer = qp.qp_num();
    qp.modify(&to_init())?;
    qp.modify(&to_rtr(peer))?;
    qp.modify(&to_rts())?;
    Ok(qp)
}

fn attr(attr: ibv_qp_attr, mask: &[ibv_qp_attr_mask]) -> QpAttr {
    let mask = mask.iter().fold(ibv_qp_attr_mask::IBV_QP_STATE.0, |all, bit| all | bit.0);
    QpAttr::from_raw(attr, mask.cast_signed())
}

fn to_init() -> QpAttr {
    use ibv_qp_attr_mask as M;
    let init =
        ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num: 1, ..Default::default() };
    attr(init, &[M::IBV_QP_PKEY_INDEX, M::IBV_QP_PORT, M::IBV_QP_ACCESS_FLAGS])
}

fn to_rtr(peer: u32) -> QpAttr {
    use ibv_qp_attr_mask as M;
    let mut rtr = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTR,
        path_mtu: ibv_mtu::IBV_MTU_1024,
        dest_qp_num: peer,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ..Default::default()
    };
    rtr.ah_attr.is_global = 1;
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.grh.hop_limit = 1;
    let masks = [
        M::IBV_QP_AV,
        M::IBV_QP_PATH_MTU,
        M::IBV_QP_DEST_QPN,
        M::IBV_QP_RQ_PSN,
        M::IBV_QP_MAX_DEST_RD_ATOMIC,
        M::IBV_QP_MIN_RNR_TIMER,
    ];
    attr(rtr, &masks)
}

fn to_rts() -> QpAttr {
    use ibv_qp_attr_mask as M;
    let rts = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_RTS,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        ..Default::default()
    };
    let masks = [
        M::IBV_QP_TIMEOUT,
        M::IBV_QP_RETRY_CNT,
        M::IBV_QP_RNR_RETRY,
        M::IBV_QP_SQ_PSN,
        M::IBV_QP_MAX_QP_RD_ATOMIC,
    ];
    attr(rts, &masks)
}
