//! Messages over the fake's extended reliable connections: what reaches a target goes to the shared receive queue that it
//! names.

use super::State;

impl State {
    /// Points a target at the shared receive queue of its domain that a message names; true when there is no such queue.
    pub(super) fn misses_its_queue(&mut self, target: u32, srq_num: u32) -> bool {
        let Some(domain) = self.kinds.domain_of(target) else { return false };
        let found = self.kinds.queue_of(domain, srq_num);
        let Some(q) = self.qps.get_mut(&target) else { return true };
        (q.srq, q.recv_cq) = found.unwrap_or_default();
        found.is_none()
    }

    /// Queues come and go: a target keeps none.
    pub(super) fn takes_aim_off(&mut self, target: u32) {
        if self.kinds.domain_of(target).is_some()
            && let Some(q) = self.qps.get_mut(&target)
        {
            (q.srq, q.recv_cq) = (0, 0);
        }
    }
}
