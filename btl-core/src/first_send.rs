//! **Rule 1 and nothing else: who may send first on a lane.**
//!
//! On iWARP the side that accepted a connection must not send anything on it before it has
//! received something on it (RFC 5044 7.1.2, rule 4). Each queue pair is its own MPA stream, so
//! the rule holds per lane. The same gate is used on every transport: on RoCE an acceptor that
//! sends early runs into a retransmission time-out of up to seconds.
//!
//! The gate of the initiator opens when its Hello is *posted*; that of the acceptor when a valid
//! Hello was *heard* on this very queue pair. That the connection is established opens nothing.
use crate::names::Role;
use crate::wire::HeardHello;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Initiator: owes the Hello; nothing else may go first.
    MustSpeak,
    /// Acceptor: must hear the Hello first.
    MustWait,
    Free,
    Shut,
}

/// Decides whether a lane may send. No lane starts free.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct Gate(State);

/// Proof that the lane it borrows from may send now. While it lives the gate cannot change.
///
/// It cannot be made elsewhere:
/// ```compile_fail,E0423
/// # use btl_core::first_send::{Gate, SendRight};
/// fn forge(gate: &mut Gate) -> SendRight<'_> { SendRight(gate) }
/// ```
/// nor can a gate be opened by anything but a Hello the parser has seen:
/// ```compile_fail
/// # use btl_core::first_send::Gate;
/// fn open(gate: &mut Gate) { gate.heard() }
/// ```
#[derive(Debug)]
#[must_use]
pub struct SendRight<'g>(Right<'g>);

#[derive(Debug)]
enum Right<'g> {
    /// Held for the borrow: the gate cannot shut under a permit.
    Any(#[allow(dead_code)] &'g mut Gate),
    Hello(&'g mut Gate),
}

impl Gate {
    pub(crate) fn new(role: Role) -> Gate {
        Gate(match role {
            Role::Initiator => State::MustSpeak,
            Role::Acceptor => State::MustWait,
        })
    }

    /// The right to send anything but the Hello.
    #[inline]
    pub fn right(&mut self) -> Option<SendRight<'_>> {
        if self.0 == State::Free { Some(SendRight(Right::Any(self))) } else { None }
    }

    /// The right to send the Hello: the initiator's, once.
    pub fn hello(&mut self) -> Option<SendRight<'_>> {
        if self.0 == State::MustSpeak { Some(SendRight(Right::Hello(self))) } else { None }
    }

    /// Opens the acceptor's gate: the parser has seen a valid Hello that arrived on this lane.
    pub fn heard(&mut self, _proof: &HeardHello) {
        if self.0 == State::MustWait {
            self.0 = State::Free;
        }
    }

    /// Whether anything but a Hello may be sent.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0 == State::Free
    }

    /// Nothing is sent on this lane any more.
    pub fn shut(&mut self) {
        self.0 = State::Shut;
    }

    /// Test only: a gate that breaks rule 1.
    #[cfg(feature = "sabotage")]
    pub(crate) fn broken() -> Gate {
        Gate(State::Free)
    }
}

impl SendRight<'_> {
    /// The message was posted. Opens the gate when it was the Hello.
    #[inline]
    pub(crate) fn used(self) {
        if let Right::Hello(gate) = self.0 {
            gate.0 = State::Free;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::heard_for_test;

    #[test]
    fn the_initiator_speaks_first_and_once() {
        let mut gate = Gate::new(Role::Initiator);
        assert!(gate.right().is_none() && !gate.is_open());
        // Asking is not speaking.
        assert!(gate.hello().is_some() && gate.right().is_none());
        gate.hello().unwrap().used();
        assert!(gate.right().is_some() && gate.hello().is_none() && gate.is_open());
        gate.heard(&heard_for_test());
        assert!(gate.is_open());
        gate.shut();
        assert!(gate.right().is_none() && gate.hello().is_none());
    }

    #[test]
    fn the_acceptor_waits_for_a_hello() {
        let mut gate = Gate::new(Role::Acceptor);
        assert!(gate.right().is_none() && gate.hello().is_none());
        gate.heard(&heard_for_test());
        gate.right().unwrap().used();
        assert!(gate.is_open() && gate.hello().is_none());
        gate.shut();
        gate.heard(&heard_for_test());
        assert!(gate.right().is_none());
    }

    #[test]
    fn hearing_something_does_not_let_an_initiator_skip_its_hello() {
        let mut gate = Gate::new(Role::Initiator);
        gate.heard(&heard_for_test());
        assert!(gate.right().is_none());
    }
}
