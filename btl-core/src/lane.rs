//! The account of one lane, and the one transaction through which a message is sent.
#[cfg(test)]
mod model;
mod rma;
#[cfg(test)]
mod tests;

pub use rma::{RmaPermit, RmaPosted};

use crate::credit::{Advert, Credit, ForeignAdvert, Ledger, NoCredit, Overgrant, Purse};
use crate::first_send::{Gate, SendRight};
use crate::names::{LaneId, Role};
use crate::port::{Port, Posted, Refused, SetupQp};
use crate::route::FirstLane;
use crate::wire::{Header, HeardHello, Kind, put_header};

/// Everything rules 1 and 2 count for one lane. Apart from the lane's queue of messages, so that
/// a permit can live while that queue is changed.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct LaneAcct {
    gate: Gate,
    purse: Purse,
    ledger: Ledger,
    wqe: Wqe,
    reads: rma::Reads,
    /// The peer's greeting was heard on this lane: it has the lane too.
    heard: bool,
    id: LaneId,
    /// No reserve is kept: neither the last credit nor the last place of the send queue.
    #[cfg(feature = "sabotage")]
    reckless: bool,
}

/// Free places in the send queue.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Wqe {
    free: u16,
}

/// Proof of a free place in the send queue.
#[derive(Debug)]
struct WqeRight<'w>(&'w mut Wqe);

/// Why a message may not be sent now. It can be sent after the next grant, completion, Hello or
/// release of a received buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Rule 1: this side may not send yet (or no more).
    Gate,
    /// Rule 2: the peer has no receive left that it has told us of.
    Credit,
    /// Rule 2: the last credit is only for a message that carries credits.
    LastCredit,
    /// The send queue is full (one place is kept for control messages).
    SendQueue,
    /// As many reads and atomics are outstanding as the connection allows.
    Reads,
    /// Less than half the window is owed: a message that carries only credits is not due.
    NotDue,
}

/// The right to post one message on one lane: rule 1, rule 2, a free place in the send queue, and
/// the credits its header tells. Dropped unused, nothing happened.
///
/// Made by [`LaneAcct::admit`] only; [`Port::post_send`] requires it and takes the lane from it.
/// It cannot be made by hand:
/// ```compile_fail
/// # use btl_core::lane::SendPermit;
/// fn forge() -> SendPermit<'static> { SendPermit { id: unimplemented!() } }
/// ```
/// nor put together from the parts of two lanes:
/// ```compile_fail,E0451
/// # use btl_core::{credit::{Advert, Credit}, lane::SendPermit};
/// fn mix<'l>(credit: Credit<'l>, advert: Advert<'l>, other: SendPermit<'l>) -> SendPermit<'l> {
///     SendPermit { credit, advert, ..other }
/// }
/// ```
/// nor copied, nor used twice:
/// ```compile_fail,E0382
/// # use btl_core::{lane::LaneAcct, port::Port, wire::Kind};
/// fn twice<P: Port>(acct: &mut LaneAcct, port: &mut P, a: P::Slot, b: P::Slot) {
///     if let Ok(permit) = acct.admit(Kind::Data) {
///         let _ = port.post_send(permit, a, 8);
///         let _ = port.post_send(permit, b, 8);
///     }
/// }
/// ```
/// nor can there be two at a time for one lane:
/// ```compile_fail,E0499
/// # use btl_core::{lane::LaneAcct, wire::Kind};
/// fn two(acct: &mut LaneAcct) {
///     let (a, b) = (acct.admit(Kind::Data), acct.admit(Kind::Data));
///     drop((a, b));
/// }
/// ```
/// A post without one does not compile:
/// ```compile_fail
/// # use btl_core::port::Port;
/// fn bare<P: Port>(port: &mut P, slot: P::Slot) { let _ = port.post_send(slot, 8); }
/// ```
/// One after the other is fine:
/// ```
/// # use btl_core::{lane::LaneAcct, port::Port, wire::Kind};
/// fn once<P: Port>(acct: &mut LaneAcct, port: &mut P, a: P::Slot, b: P::Slot) {
///     if let Ok(permit) = acct.admit(Kind::Data) { let _ = port.post_send(permit, a, 8); }
///     if let Ok(permit) = acct.admit(Kind::Data) { let _ = port.post_send(permit, b, 8); }
/// }
/// ```
#[derive(Debug)]
#[must_use]
pub struct SendPermit<'l> {
    right: SendRight<'l>,
    credit: Credit<'l>,
    wqe: WqeRight<'l>,
    advert: Advert<'l>,
    id: LaneId,
}

impl LaneAcct {
    /// `depth`: receives this side posts. `send_depth`: places in the send queue.
    pub(crate) fn new(role: Role, depth: u16, send_depth: u16) -> LaneAcct {
        LaneAcct {
            gate: Gate::new(role),
            purse: Purse::bootstrap(),
            ledger: Ledger::new(depth),
            wqe: Wqe { free: send_depth },
            reads: rma::Reads::new(0),
            heard: false,
            id: LaneId::NONE,
            #[cfg(feature = "sabotage")]
            reckless: false,
        }
    }

    /// The one place where it is decided whether a message may be sent.
    ///
    /// # Errors
    /// [`Refusal`]: why not now.
    #[inline]
    pub fn admit(&mut self, kind: Kind) -> Result<SendPermit<'_>, Refusal> {
        let right = match kind {
            Kind::Hello => self.gate.hello(),
            _ => self.gate.right(),
        };
        let right = right.ok_or(Refusal::Gate)?;
        if kind == Kind::Credit && !self.ledger.due() {
            return Err(Refusal::NotDue);
        }
        let advert = self.ledger.advert();
        let carries = advert.count();
        #[cfg(feature = "sabotage")]
        let carries = carries.max(u16::from(self.reckless));
        let credit = self.purse.credit(carries).map_err(|e| match e {
            NoCredit::Empty => Refusal::Credit,
            NoCredit::Last => Refusal::LastCredit,
        })?;
        // One place is kept for control messages: data can never block the credits it needs.
        let keep = u16::from(kind == Kind::Data);
        let wqe = self.wqe.take(keep).ok_or(Refusal::SendQueue)?;
        Ok(SendPermit { right, credit, wqe, advert, id: self.id })
    }

    /// Credits of this lane that are due and may go on the peer's first lane, once this one is open.
    pub(crate) fn advert_elsewhere(&mut self, agreed: FirstLane) -> Option<ForeignAdvert<'_>> {
        if self.gate.is_open() { self.ledger.advert_elsewhere(agreed) } else { None }
    }

    /// Posts a receive on this lane and enters it in this lane's ledger.
    #[inline(always)]
    pub(crate) fn post_recv<P: Port>(
        &mut self,
        port: &mut P,
        slot: P::Slot,
    ) -> Result<(), Refused<P::Slot>> {
        let id = self.id;
        self.ledger.post(slot, |slot| port.post_recv(id, slot))?.enter();
        Ok(())
    }

    /// The same on a queue pair that is being set up. The first receive is the bootstrap one.
    pub(crate) fn post_setup_recv<Q: SetupQp>(
        &mut self,
        qp: &mut Q,
        slot: Q::Slot,
        first: bool,
    ) -> Result<(), Refused<Q::Slot>> {
        let posted = self.ledger.post(slot, |slot| qp.post_recv(slot))?;
        if first {
            posted.enter_bootstrap()
        } else {
            posted.enter()
        }
        Ok(())
    }

    /// A send of this lane completed.
    #[inline]
    pub(crate) fn send_done(&mut self) {
        self.wqe.free = self.wqe.free.saturating_add(1);
    }

    /// A header that arrived on this lane told `n` credits.
    #[inline]
    pub(crate) fn grant(&mut self, n: u16) -> Result<(), Overgrant> {
        self.purse.receive(n)
    }

    pub(crate) fn set_window(&mut self, window: u16) {
        self.purse.set_window(window);
    }

    pub(crate) fn set_id(&mut self, id: LaneId) {
        self.id = id;
    }

    pub(crate) fn heard(&mut self, proof: &HeardHello) {
        self.gate.heard(proof);
        self.heard = true;
    }

    pub(crate) fn shut(&mut self) {
        self.gate.shut();
    }

    /// Whether rule 1 lets this lane send.
    pub fn is_open(&self) -> bool {
        self.gate.is_open()
    }

    /// Whether a message that carries only credits is due.
    #[inline]
    pub fn credits_due(&self) -> bool {
        self.ledger.due()
    }

    /// Sends we may make (credits held).
    pub fn credits(&self) -> u32 {
        self.purse.granted()
    }

    /// Receives posted here and not yet told.
    pub fn owed(&self) -> u32 {
        self.ledger.owed()
    }
}

#[cfg(feature = "sabotage")]
impl LaneAcct {
    /// Test only: breaks rule 1; with `full`, all receives of both sides count as told.
    pub(crate) fn break_gate(&mut self, full: Option<u16>) {
        self.gate = Gate::broken();
        if let Some(window) = full {
            self.all_told(window);
        }
    }

    /// Test only: tells a receive that is not posted yet.
    pub(crate) fn owe_unposted(&mut self) {
        if let Ok(posted) = self.ledger.post((), |()| Ok::<(), ()>(())) {
            posted.enter();
        }
    }

    /// Test only: keeps no reserve of credits.
    pub(crate) fn be_reckless(&mut self) {
        self.reckless = true;
    }

    /// Test only: one place more than the send queue has.
    pub(crate) fn overbook(&mut self) {
        self.wqe.free += 1;
    }

    /// Test only: a credit that nobody told.
    pub(crate) fn forge_credit(&mut self) {
        let _ = self.purse.receive(1);
    }

    /// Test only: a credit is lost.
    pub(crate) fn lose_credit(&mut self) {
        if let Ok(credit) = self.purse.credit(1) {
            credit.used();
        }
    }

    /// Test only: all receives of both sides count as told.
    pub(crate) fn all_told(&mut self, window: u16) {
        let _ = self.purse.receive(window.saturating_sub(1));
        self.ledger.advert().used();
    }

    /// Test only: takes what is owed out of the ledger, to tell it elsewhere.
    pub(crate) fn take_owed(&mut self) -> u16 {
        let advert = self.ledger.advert();
        let n = advert.count();
        advert.used();
        n
    }
}

impl Wqe {
    #[inline]
    fn take(&mut self, keep: u16) -> Option<WqeRight<'_>> {
        if self.free > keep { Some(WqeRight(self)) } else { None }
    }
}

impl SendPermit<'_> {
    /// The lane to post on.
    #[inline]
    pub fn lane(&self) -> LaneId {
        self.id
    }

    /// How many credits the message carries.
    #[inline]
    pub fn credits(&self) -> u16 {
        self.advert.count()
    }

    /// The device took the message: called by the [`Port`] or [`SetupQp`], after the post.
    #[inline]
    pub fn posted(self) -> Posted {
        let told = self.advert.count();
        self.right.used();
        self.credit.used();
        self.wqe.0.free = self.wqe.0.free.saturating_sub(1);
        self.advert.used();
        Posted { told }
    }
}

/// What a message is, apart from its payload, which is already in the slot behind the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) tag: u8,
    /// Messages acknowledged.
    pub(crate) acks: u16,
    /// Payload bytes.
    pub(crate) len: u32,
}

/// When the device is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// At once.
    Now,
    /// With the next [`Port::ring`] of the lane.
    Later,
}

impl Frame {
    /// With the credits that a permit carries.
    #[inline]
    fn header(self, credits: u16) -> Header {
        let Frame { kind, tag, acks, len } = self;
        Header { kind, tag, credits, acks, len }
    }
}

/// Why nothing was sent; the slot comes back.
#[derive(Debug)]
pub(crate) enum NotSent<S> {
    /// A rule or a full queue.
    Refused(Refusal, S),
    /// The port would not take it.
    Port(Refused<S>),
}

/// Admits, stamps the header, posts: the only calls of [`Port::post_send`] and [`Port::post_send_later`] there are.
#[inline(always)]
pub(crate) fn transmit<P: Port>(
    acct: &mut LaneAcct,
    port: &mut P,
    frame: Frame,
    mut slot: P::Slot,
    when: When,
) -> Result<Posted, NotSent<P::Slot>> {
    let permit = match acct.admit(frame.kind) {
        Ok(permit) => permit,
        Err(why) => return Err(NotSent::Refused(why, slot)),
    };
    let len = put_header(&mut slot, frame.header(permit.credits()));
    let posted = match when {
        When::Now => port.post_send(permit, slot, len),
        When::Later => port.post_send_later(permit, slot, len),
    };
    posted.map_err(NotSent::Port)
}

/// The same on a queue pair that is being set up: for the initiator's Hello.
pub(crate) fn transmit_setup<Q: SetupQp>(
    acct: &mut LaneAcct,
    qp: &mut Q,
    frame: Frame,
    mut slot: Q::Slot,
) -> Result<Posted, NotSent<Q::Slot>> {
    let permit = match acct.admit(frame.kind) {
        Ok(permit) => permit,
        Err(why) => return Err(NotSent::Refused(why, slot)),
    };
    let len = put_header(&mut slot, frame.header(permit.credits()));
    qp.post_send(permit, slot, len).map_err(NotSent::Port)
}
