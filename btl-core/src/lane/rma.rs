//! The right to post a one-sided operation: rule 1, a peer that has greeted, a free place in the send queue and, for
//! what reads, one of the reads the connection allows. It needs no credit: nothing at the peer is used up. Credits are
//! what keeps an initiator's messages back until its Hello was answered; an operation without credits waits for the
//! answer by itself, because until then the acceptor may still give the connection up (on InfiniBand and RoCE it
//! does when the initiator's ready-to-use message is late), and what was done to its memory could not be taken back.
use super::{LaneAcct, Refusal, WqeRight};
use crate::first_send::SendRight;
use crate::names::LaneId;

/// Reads and atomics that may be outstanding on the queue pair (IRD and ORD of the connection).
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Reads {
    free: u16,
    max: u16,
}

impl Reads {
    pub(super) fn new(max: u16) -> Reads {
        Reads { free: max, max }
    }
}

/// The right to post one one-sided operation on one lane. Dropped unused, nothing happened.
///
/// Made by [`LaneAcct::admit_rma`] only, so no operation can be posted before the lane's gate is open:
/// ```compile_fail
/// # use btl_core::{port::Port, rma::RmaPost};
/// fn bare<P: Port>(port: &mut P, memory: P::Memory, what: &RmaPost) {
///     let _ = port.post_rma(what, memory);
/// }
/// ```
/// It serves once:
/// ```compile_fail,E0382
/// # use btl_core::{lane::LaneAcct, port::Port, rma::RmaPost};
/// fn twice<P: Port>(acct: &mut LaneAcct, port: &mut P, a: P::Memory, b: P::Memory, what: &RmaPost) {
///     if let Ok(permit) = acct.admit_rma(what.verb.reads()) {
///         let _ = port.post_rma(permit, what, a);
///         let _ = port.post_rma(permit, what, b);
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct RmaPermit<'l> {
    right: SendRight<'l>,
    wqe: WqeRight<'l>,
    read: Option<&'l mut Reads>,
    id: LaneId,
}

/// Proof that a permit was used. Made by [`RmaPermit::posted`] only.
#[derive(Debug)]
#[must_use]
pub struct RmaPosted(());

impl LaneAcct {
    /// The one place where it is decided whether a one-sided operation may be posted. `read`: it fetches something.
    /// [`Refusal::Gate`] also until the peer has greeted.
    ///
    /// # Errors
    /// [`Refusal`]: why not now.
    pub fn admit_rma(&mut self, read: bool) -> Result<RmaPermit<'_>, Refusal> {
        if !self.heard {
            return Err(Refusal::Gate);
        }
        let right = self.gate.right().ok_or(Refusal::Gate)?;
        let read = match read {
            true if self.reads.free == 0 => return Err(Refusal::Reads),
            true => Some(&mut self.reads),
            false => None,
        };
        // One place is kept for control messages.
        let wqe = self.wqe.take(1).ok_or(Refusal::SendQueue)?;
        Ok(RmaPermit { right, wqe, read, id: self.id })
    }

    /// A one-sided operation of this lane completed.
    pub(crate) fn rma_done(&mut self, read: bool) {
        self.send_done();
        if read {
            self.reads.free = self.reads.free.saturating_add(1).min(self.reads.max);
        }
    }

    pub(crate) fn set_reads(&mut self, max: u16) {
        self.reads = Reads::new(max);
    }

    /// Most reads and atomics outstanding at a time.
    pub fn max_reads(&self) -> u16 {
        self.reads.max
    }
}

impl RmaPermit<'_> {
    /// The lane to post on.
    pub fn lane(&self) -> LaneId {
        self.id
    }

    /// The device took it: called by the [`Port`](crate::port::Port), after the post.
    pub fn posted(self) -> RmaPosted {
        self.right.used();
        self.wqe.0.free = self.wqe.0.free.saturating_sub(1);
        if let Some(reads) = self.read {
            reads.free = reads.free.saturating_sub(1);
        }
        RmaPosted(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Role;
    use crate::wire::heard_for_test;

    #[test]
    fn nothing_one_sided_before_the_gate_is_open_and_no_credit_is_used() {
        let mut acct = LaneAcct::new(Role::Acceptor, 4, 4);
        acct.set_reads(1);
        assert_eq!(acct.admit_rma(false).unwrap_err(), Refusal::Gate);
        acct.heard(&heard_for_test());
        let credits = acct.credits();
        let _ = acct.admit_rma(false).unwrap().posted();
        assert_eq!(acct.credits(), credits);
        acct.shut();
        assert_eq!(acct.admit_rma(false).unwrap_err(), Refusal::Gate);
    }

    #[test]
    fn reads_and_places_are_counted_apart() {
        let mut acct = LaneAcct::new(Role::Acceptor, 4, 4);
        acct.heard(&heard_for_test());
        acct.set_reads(1);
        let _ = acct.admit_rma(true).unwrap().posted();
        assert_eq!(acct.admit_rma(true).unwrap_err(), Refusal::Reads);
        let _ = acct.admit_rma(false).unwrap().posted();
        let _ = acct.admit_rma(false).unwrap().posted();
        // The last place is for control messages.
        assert_eq!(acct.admit_rma(false).unwrap_err(), Refusal::SendQueue);
        acct.rma_done(false);
        assert_eq!(acct.admit_rma(true).unwrap_err(), Refusal::Reads);
        acct.rma_done(true);
        let _ = acct.admit_rma(true).unwrap().posted();
        acct.rma_done(true);
        acct.rma_done(true);
        assert_eq!(acct.max_reads(), 1);
        let _ = acct.admit_rma(true).unwrap().posted();
        assert_eq!(acct.admit_rma(true).unwrap_err(), Refusal::Reads);
    }

    /// An asked-for right that is not used costs nothing.
    #[test]
    fn a_permit_that_is_dropped_takes_nothing() {
        let mut acct = LaneAcct::new(Role::Acceptor, 4, 2);
        acct.heard(&heard_for_test());
        acct.set_reads(1);
        for _ in 0..3 {
            drop(acct.admit_rma(true).unwrap());
        }
        let _ = acct.admit_rma(true).unwrap().posted();
        assert!(acct.admit_rma(false).is_err());
    }
}
