//! What rails report.
use super::error::{PartFault, RailFault, RailsFault};
use super::{RailsPeer, frame};
use crate::engine::RecvBuf;
use crate::names::ProcName;
use crate::port::Port;
use std::ops::Deref;

/// What [`Rails::poll`](super::Rails::poll) reports. Events own their buffers.
#[derive(Debug)]
pub enum RailsEvent<S, M> {
    /// A message arrived. Give `data` to [`Rails::release`](super::Rails::release) soon.
    Message {
        /// From whom.
        peer: RailsPeer,
        /// The tag it was sent with.
        tag: u8,
        /// The message.
        data: Received<S>,
    },
    /// A message given to [`Rails::send`](super::Rails::send) is acknowledged by the peer, or never will be. Exactly one
    /// for each, in order. After an error nothing is known of it: it may have been delivered.
    Sent {
        /// To whom.
        peer: RailsPeer,
        /// As given.
        cookie: u64,
        /// The message.
        data: Vec<u8>,
        /// Whether the peer has it.
        result: Result<(), RailsFault>,
    },
    /// A put, get or atomic is over on all its rails. Exactly one for each that was taken.
    Done {
        /// With whom.
        peer: RailsPeer,
        /// As given.
        cookie: u64,
        /// How each part ended, in the order given.
        parts: Vec<PartDone<M>>,
    },
    /// A process that was not added connected; it is a peer now. Until it is added the rails over which it has not
    /// connected have no address, and long messages to it may wait, because only it can connect further lanes.
    NewPeer {
        /// Who.
        peer: RailsPeer,
        /// Its name.
        name: ProcName,
    },
    /// A rail to a peer works.
    RailUp {
        /// Which peer.
        peer: RailsPeer,
        /// The rail's number.
        rail: usize,
    },
    /// A rail to a peer was dropped; the others go on. It may come up again.
    RailDown {
        /// Which peer.
        peer: RailsPeer,
        /// The rail's number.
        rail: usize,
        /// Why.
        fault: RailFault,
        /// Pieces that it had and that go again over the others.
        moved: u32,
    },
    /// The peer closed in an orderly way. It stays known, and refuses messages, until it is removed.
    PeerLeft {
        /// Who.
        peer: RailsPeer,
    },
    /// The peer failed on all rails. Comes once, after the `Sent` of everything that waited for it; nothing of the peer
    /// comes after it but `Done` of what was begun. It stays known, and refuses messages, until it is removed.
    PeerFailed {
        /// Who.
        peer: RailsPeer,
        /// Why: with the reason of each rail.
        fault: RailsFault,
    },
    /// The close that was asked for is complete. Nothing comes after it.
    Closed,
}

/// The events of rails on ports.
pub type RailsPortEvent<P> = RailsEvent<<P as Port>::Slot, <P as Port>::Memory>;

/// A part of a one-sided operation that is over.
#[derive(Debug)]
pub struct PartDone<M> {
    /// The rail's number, as given.
    pub rail: usize,
    /// The memory; `None` only if the device would not let it go.
    pub memory: Option<M>,
    /// `Ok`: done at both ends.
    pub result: Result<(), PartFault>,
}

/// A received message. Dereferences to exactly the payload.
#[derive(Debug)]
#[must_use = "Rails::release returns the buffer to its rail"]
pub struct Received<S>(Inner<S>);

#[derive(Debug)]
enum Inner<S> {
    /// Whole, in the buffer in which it came.
    Buffer { rail: usize, buf: RecvBuf<S> },
    /// Put together, or kept until its turn.
    Copied(Vec<u8>),
}

impl<S> Received<S> {
    pub(super) fn whole(rail: usize, buf: RecvBuf<S>) -> Received<S> {
        Received(Inner::Buffer { rail, buf })
    }

    pub(super) fn copied(data: Vec<u8>) -> Received<S> {
        Received(Inner::Copied(data))
    }

    pub(super) fn into_buffer(self) -> Option<(usize, RecvBuf<S>)> {
        match self.0 {
            Inner::Buffer { rail, buf } => Some((rail, buf)),
            Inner::Copied(_) => None,
        }
    }
}

impl<S: Deref<Target = [u8]>> Deref for Received<S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Buffer { buf, .. } => payload(buf),
            Inner::Copied(data) => data,
        }
    }
}

/// What is behind the head of a frame.
pub(super) fn payload(frame: &[u8]) -> &[u8] {
    let head = frame::Head::get(frame).map_or(frame.len(), |head| head.len());
    frame.get(head..).unwrap_or(&[])
}
