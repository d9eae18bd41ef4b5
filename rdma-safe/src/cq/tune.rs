//! Completion queues that exist: other depths, fewer events.

use super::{CompletionQueue, checked_depth};
use crate::error::{Error, ErrorKind, Result};
use rdma_sys::*;
use std::sync::atomic::Ordering;

impl CompletionQueue {
    /// Gives the queue another depth (ibv_resize_cq(3)); completions in it stay. What queue pairs have booked must fit.
    ///
    /// rxe can do this, siw cannot. The queue is taken and given back, because a provider may lose it on the way: librxe
    /// does when it cannot map the new ring, and would crash at the next poll.
    ///
    /// # Errors
    /// With the queue as it was: [`InvalidArgument`](ErrorKind::InvalidArgument) for a depth of 0 or above the device's
    /// `max_cqe`, or below what the device finds in it; [`CqDepth`](ErrorKind::CqDepth) when more is booked;
    /// [`Unsupported`](ErrorKind::Unsupported) where device or provider cannot do it. After any other errno (ENOMEM) the
    /// queue cannot be used any more and is not given back; its queue pairs go on without telling anything.
    #[allow(clippy::result_large_err)] // the queue must come back, and this is not the message path
    pub fn resize(
        self,
        depth: u32,
    ) -> std::result::Result<CompletionQueue, (Option<CompletionQueue>, Error)> {
        match self.try_resize(depth) {
            Ok(()) => Ok(self),
            Err(e) => match e.kind() {
                ErrorKind::InvalidArgument | ErrorKind::CqDepth | ErrorKind::Unsupported => {
                    Err((Some(self), e))
                }
                _ => Err((None, e)),
            },
        }
    }

    fn try_resize(&self, depth: u32) -> Result<()> {
        const OP: &str = "ibv_resize_cq";
        let cq = &*self.inner;
        let cqe = checked_depth(OP, &cq.ctx, depth)?;
        // Held across the call, so that nobody books what is being taken away.
        let book = cq.book();
        if book.booked > depth {
            return Err(Error::refused(
                OP,
                ErrorKind::CqDepth,
                format!("{} completions are booked, which do not fit {depth}", book.booked),
            ));
        }
        // SAFETY: the queue is alive, and `self` is the right to poll it, so nobody does meanwhile.
        let rc = unsafe { (cq.ctx.0.verbs.resize_cq)(cq.raw.as_ptr(), cqe) };
        Error::check(OP, rc)?;
        cq.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// Lets one event stand for several completions (ibv_modify_cq(3)): it comes after `count` of them, or
    /// `period_us` microseconds after the first. 0 and 0 turn it off.
    ///
    /// Only some hardware can do this ([`DeviceAttrEx::max_cq_count`](crate::DeviceAttrEx::max_cq_count)); siw and rxe
    /// cannot.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where device or provider cannot do it; EINVAL above the device's limits.
    pub fn moderate(&mut self, count: u16, period_us: u16) -> Result<()> {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: ibv_moderate_cq { cq_count: count, cq_period: period_us },
        };
        // SAFETY: the queue is alive, the attributes complete.
        let rc = unsafe { (self.inner.ctx.0.verbs.modify_cq)(self.inner.raw.as_ptr(), &mut attr) };
        Error::check("ibv_modify_cq", rc)
    }
}
