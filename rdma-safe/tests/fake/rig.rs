//! Two queue pairs that are connected to each other, which is what most tests begin with.

use super::Fake;
use rdma_safe::*;

/// Dropped in this order; tests that are about another one take it apart.
pub(crate) struct Rig {
    pub(crate) a: QueuePair,
    pub(crate) b: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) fake: Fake,
}

impl Rig {
    /// Both queue pairs complete into one queue of that depth.
    pub(crate) fn on(fake: Fake, cq_depth: u32, config: &QpConfig) -> Rig {
        let pd = fake.ctx.alloc_pd().unwrap();
        let cq = fake.ctx.create_cq(cq_depth).unwrap();
        let [a, b] = [0, 1].map(|_| connected(&pd, &cq.cq_ref(), config));
        fake.connect(a.qp_num(), b.qp_num());
        Rig { a, b, cq, pd, fake }
    }
}

/// A queue pair that is connected, as far as it knows, the way its transport does it.
pub(crate) fn connected(pd: &ProtectionDomain, cq: &CqRef, config: &QpConfig) -> QueuePair {
    if pd.context().transport().is_iwarp() {
        let mut qp = pd.create_qp(cq, cq, config).unwrap();
        qp.mark_connected().unwrap();
        return qp;
    }
    by_hand(pd.create_manual_qp(cq, cq, config).unwrap())
}

/// Takes a queue pair to RTS.
pub(crate) fn by_hand(qp: ManualQp<manual::Reset>) -> QueuePair {
    let path = Some(AddressVector::infiniband(1, 7));
    let init = InitAttr { access: PeerAccess::all(), ..InitAttr::default() };
    let qp = qp.init(&init).unwrap();
    let qp = qp.ready_to_receive(&RtrAttr { path, dest_qp_num: 9, ..RtrAttr::default() }).unwrap();
    qp.ready_to_send(&RtsAttr::default()).unwrap()
}
