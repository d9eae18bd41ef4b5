//! **Rule 2 and nothing else: a receive posted on a lane is told only on that lane, after it was
//! posted, once.**
//!
//! Both kinds of witness *borrow* the account they count in, and nothing is taken before the
//! post, so none can be kept, doubled, or used on another lane.
//!
//! One pool of credits a direction. Two rules keep it from running dry on both sides at once:
//! - the last credit may be used only by a message that carries at least one credit;
//! - a message that carries nothing but credits goes when half the window or more is owed, and
//!   never earlier. The receive it consumes at the peer is owed again like any other.
//!
//! One exception, which both sides must have asked for ([`route`](crate::route)): credits that travel alone may go in a
//! message on the peer's first lane that names the lane they are for. [`ForeignAdvert`] is the only way to such a message.
//!
//! A test (`lane/model.rs`) drives this code through every interleaving of small windows.

use crate::route::FirstLane;

/// The smallest window, in messages, for which the rules above were checked to be free of
/// deadlock and which leaves room to pipeline.
pub const MIN_WINDOW: u16 = 4;

/// Receives posted here that the peer has not been told of.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct Ledger {
    owed: u32,
    /// Owed credits from which a message of their own is due.
    half: u32,
}

/// Sends this side may still make.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct Purse {
    granted: u32,
    /// Receives the peer has: more can never be granted.
    window: u32,
}

/// The right to consume one receive that the peer has posted on this lane. Taken from the purse
/// when the message is posted; dropped unused, nothing happened.
#[derive(Debug)]
#[must_use]
pub struct Credit<'p>(&'p mut Purse);

/// A receive that was just posted on this ledger's lane; it must be entered.
#[derive(Debug)]
#[must_use = "a posted receive that is not entered is never told to the peer"]
pub struct PostedRecv<'l>(&'l mut Ledger);

/// The credits that one header tells. They leave the ledger when the message is posted.
///
/// It cannot be made elsewhere, and it borrows its ledger, so it cannot be put into a header of
/// another lane:
/// ```compile_fail
/// # use btl_core::credit::{Advert, Ledger};
/// fn forge(ledger: &mut Ledger) -> Advert<'_> { Advert { ledger, n: 9 } }
/// ```
/// ```compile_fail
/// # use btl_core::credit::Ledger;
/// fn tell_twice(ledger: &mut Ledger) {
///     let (a, b) = (ledger.advert(), ledger.advert());
///     drop((a, b));
/// }
/// ```
/// The same with one advert compiles:
/// ```
/// # use btl_core::credit::Ledger;
/// fn tell_once(ledger: &mut Ledger) { let a = ledger.advert(); drop(a); }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Advert<'l> {
    ledger: &'l mut Ledger,
    n: u16,
}

/// Credits of this ledger's lane that a message on the peer's first lane tells. They leave the ledger when that message
/// is posted. Where [`CreditRoute::FirstLane`](crate::CreditRoute) was not agreed on, none can be had:
/// ```compile_fail,E0061
/// # use btl_core::credit::Ledger;
/// fn elsewhere(ledger: &mut Ledger) { let _ = ledger.advert_elsewhere(); }
/// ```
/// With the proof it compiles:
/// ```
/// # use btl_core::{credit::Ledger, route::FirstLane};
/// fn elsewhere(ledger: &mut Ledger, agreed: FirstLane) { drop(ledger.advert_elsewhere(agreed)); }
/// ```
#[derive(Debug)]
#[must_use]
pub struct ForeignAdvert<'l>(Advert<'l>);

/// Why there is no [`Credit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCredit {
    /// The peer has no receive left that we know of.
    Empty,
    /// One is left, and this message would carry no credit back.
    Last,
}

/// The peer granted more than it has receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overgrant {
    /// Credits we would hold with this grant.
    pub held: u32,
    /// Receives the peer has on this lane.
    pub window: u32,
}

impl Purse {
    /// The one credit the protocol grants by itself: the first receive, for Hello or HelloAck.
    pub(crate) fn bootstrap() -> Purse {
        Purse { granted: 1, window: 1 }
    }

    /// The peer's depth became known.
    pub(crate) fn set_window(&mut self, window: u16) {
        self.window = u32::from(window);
    }

    /// The right to send one message that carries `carries` credits.
    #[inline]
    pub fn credit(&mut self, carries: u16) -> Result<Credit<'_>, NoCredit> {
        match self.granted {
            0 => Err(NoCredit::Empty),
            1 if carries == 0 => Err(NoCredit::Last),
            _ => Ok(Credit(self)),
        }
    }

    /// Credits told by a header that arrived on this lane.
    ///
    /// # Errors
    /// [`Overgrant`] when the peer would have told more receives than it has.
    #[inline]
    pub(crate) fn receive(&mut self, n: u16) -> Result<(), Overgrant> {
        let held = self.granted.saturating_add(u32::from(n));
        if held > self.window {
            return Err(Overgrant { held, window: self.window });
        }
        self.granted = held;
        Ok(())
    }

    /// Credits held now.
    pub fn granted(&self) -> u32 {
        self.granted
    }
}

impl Credit<'_> {
    #[inline]
    pub(crate) fn used(self) {
        // At least 1: checked when this was made, and the purse was borrowed since.
        self.0.granted = self.0.granted.saturating_sub(1);
    }
}

impl Ledger {
    pub(crate) fn new(depth: u16) -> Ledger {
        Ledger { owed: 0, half: u32::from(depth).div_ceil(2) }
    }

    /// The only way to a [`PostedRecv`]: `post` accepted the slot.
    #[inline(always)]
    pub(crate) fn post<S, E>(
        &mut self,
        slot: S,
        post: impl FnOnce(S) -> Result<(), E>,
    ) -> Result<PostedRecv<'_>, E> {
        post(slot)?;
        Ok(PostedRecv(self))
    }

    /// What the next header of this lane tells.
    #[inline]
    pub fn advert(&mut self) -> Advert<'_> {
        let n = u16::try_from(self.owed).unwrap_or(u16::MAX);
        Advert { ledger: self, n }
    }

    /// What a message on the peer's first lane may tell, if a message that carries only credits is due.
    pub fn advert_elsewhere(&mut self, _agreed: FirstLane) -> Option<ForeignAdvert<'_>> {
        if self.due() { Some(ForeignAdvert(self.advert())) } else { None }
    }

    /// Credits not yet told.
    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Whether a message that carries only credits may go now.
    #[inline]
    pub fn due(&self) -> bool {
        self.owed >= self.half
    }
}

impl PostedRecv<'_> {
    /// To be told by the next header of this lane.
    #[inline]
    pub(crate) fn enter(self) {
        self.0.owed = self.0.owed.saturating_add(1);
    }

    /// The one receive the protocol tells by itself: the first, for Hello or HelloAck.
    pub(crate) fn enter_bootstrap(self) {}
}

impl Advert<'_> {
    /// How many credits the header tells.
    #[inline]
    pub fn count(&self) -> u16 {
        self.n
    }

    #[inline]
    pub(crate) fn used(self) {
        self.ledger.owed = self.ledger.owed.saturating_sub(u32::from(self.n));
    }
}

impl ForeignAdvert<'_> {
    /// How many credits the message tells.
    pub fn count(&self) -> u16 {
        self.0.count()
    }

    /// The message was posted.
    pub(crate) fn used(self) {
        self.0.used();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{CreditRoute, agree};

    #[test]
    fn elsewhere_only_what_is_due_and_nothing_before_the_post() {
        let agreed = agree(CreditRoute::FirstLane, CreditRoute::FirstLane).unwrap();
        let mut ledger = Ledger::new(4);
        post(&mut ledger);
        assert!(ledger.advert_elsewhere(agreed).is_none());
        post(&mut ledger);
        assert_eq!(ledger.advert_elsewhere(agreed).unwrap().count(), 2);
        assert_eq!(ledger.owed(), 2);
        ledger.advert_elsewhere(agreed).unwrap().used();
        assert_eq!(ledger.owed(), 0);
    }

    fn post(ledger: &mut Ledger) {
        ledger.post((), |()| Ok::<(), ()>(())).unwrap().enter();
    }

    #[test]
    fn nothing_is_taken_before_the_post() {
        let mut purse = Purse::bootstrap();
        let _ = purse.credit(1).unwrap();
        assert_eq!(purse.granted(), 1);
        purse.credit(1).unwrap().used();
        assert_eq!(purse.credit(1).unwrap_err(), NoCredit::Empty);
        let mut ledger = Ledger::new(4);
        post(&mut ledger);
        let _ = ledger.advert();
        assert_eq!(ledger.owed(), 1);
        ledger.advert().used();
        assert_eq!(ledger.owed(), 0);
    }

    #[test]
    fn a_refused_post_is_never_told() {
        let mut ledger = Ledger::new(4);
        assert!(ledger.post((), |()| Err::<(), u8>(12)).is_err());
        assert_eq!(ledger.owed(), 0);
    }

    #[test]
    fn the_last_credit_is_for_messages_that_carry_credits() {
        let mut purse = Purse::bootstrap();
        assert_eq!(purse.credit(0).unwrap_err(), NoCredit::Last);
        assert!(purse.credit(1).is_ok());
        purse.set_window(4);
        purse.receive(1).unwrap();
        assert!(purse.credit(0).is_ok());
    }

    #[test]
    fn no_more_than_the_window_is_ever_held() {
        let mut purse = Purse::bootstrap();
        purse.set_window(8);
        purse.receive(7).unwrap();
        assert_eq!(purse.receive(1), Err(Overgrant { held: 9, window: 8 }));
        assert_eq!(purse.granted(), 8);
        purse.credit(0).unwrap().used();
        purse.receive(1).unwrap();
        assert_eq!(purse.receive(u16::MAX).unwrap_err().held, 8 + 65535);
    }

    #[test]
    fn credits_alone_are_due_at_half_the_window() {
        for (depth, half) in [(4, 2), (5, 3), (16, 8)] {
            let mut ledger = Ledger::new(depth);
            for n in 1..=u32::from(depth) {
                post(&mut ledger);
                assert_eq!(ledger.due(), n >= half);
            }
        }
    }

    #[test]
    fn a_header_tells_at_most_what_its_field_holds() {
        let mut ledger = Ledger::new(4);
        for _ in 0..70_000 {
            post(&mut ledger);
        }
        let advert = ledger.advert();
        assert_eq!(advert.count(), u16::MAX);
        advert.used();
        assert_eq!(ledger.owed(), 70_000 - 65_535);
    }
}
