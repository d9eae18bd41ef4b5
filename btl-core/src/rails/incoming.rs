//! What has arrived of one peer, over all rails: duplicates are dropped, pieces put together, messages handed out in the
//! order in which they were sent.
use super::WINDOW;
use super::error::RailsProtocolFault as Fault;
use super::frame::{Head, Kind, expand};
use std::collections::VecDeque;

/// One message that is not complete, or not yet its turn.
#[derive(Debug)]
struct Assembly {
    tag: u8,
    data: Vec<u8>,
    missing: u64,
}

/// What becomes of a frame with payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It has been here before.
    Duplicate,
    /// Copied. [`Incoming::ready`] may have something now.
    Kept,
    /// A whole message, and its turn: nothing was copied.
    Deliver,
}

/// What a peer may make this side keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of the longest message.
    max: u64,
    /// Bytes of all messages that are not complete or not yet their turn.
    room: u64,
}

impl Limits {
    /// `piece`: bytes of the longest piece. A window of pieces holds parts of at most two long messages, one at each
    /// end, and whole ones between.
    pub(super) fn new(max: u64, piece: u64) -> Limits {
        let room = max.saturating_mul(2).saturating_add(piece.saturating_mul(WINDOW));
        Limits { max, room }
    }
}

#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// All pieces below this one have arrived.
    next: u64,
    /// Of those from there on, which have.
    seen: VecDeque<bool>,
    /// The message whose turn it is.
    turn: u64,
    /// What is there of the messages from there on.
    parts: VecDeque<Option<Assembly>>,
    /// Bytes of these.
    bytes: u64,
    /// Test only: order does not matter.
    #[cfg(feature = "sabotage")]
    pub(super) any_order: bool,
    /// Test only: duplicates do not matter.
    #[cfg(feature = "sabotage")]
    pub(super) no_dedup: bool,
}

impl Incoming {
    /// Pieces that have arrived without a gap.
    pub(super) fn acknowledged(&self) -> u64 {
        self.next
    }

    /// Bytes of messages that are not complete or not yet their turn.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.bytes
    }

    /// Takes in a frame.
    pub(super) fn accept(
        &mut self,
        head: &Head,
        tag: u8,
        payload: &[u8],
        Limits { max, room }: Limits,
    ) -> Result<Accepted, Fault> {
        let seq = expand(self.next, head.seq).ok_or(Fault::Window)?;
        let number = expand(self.turn, head.message).ok_or(Fault::Window)?;
        if !self.is_fresh(seq)? {
            return Ok(Accepted::Duplicate);
        }
        let (total, offset) = match head.kind {
            Kind::Piece { total, offset } => (total, offset),
            _ => (payload.len() as u64, 0),
        };
        if total > max {
            return Err(Fault::TooLong { len: total, max });
        }
        let end = offset.checked_add(payload.len() as u64).filter(|end| *end <= total);
        let end = end.ok_or(Fault::Piece { what: "reaches beyond its message" })?;
        let whole = payload.len() as u64 == total;
        if whole && self.is_next(number) {
            self.note(seq);
            self.next_turn();
            return Ok(Accepted::Deliver);
        }
        let part = self.part(number, tag, total, room)?;
        if part.tag != tag || part.data.len() as u64 != total {
            let what = "says something else of its message than the others";
            return Err(Fault::Piece { what });
        }
        // Not longer than `data`: checked above.
        let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
        if let Some(to) = range.and_then(|(from, to)| part.data.get_mut(from..to)) {
            to.copy_from_slice(payload);
        }
        part.missing = part.missing.saturating_sub(payload.len() as u64);
        // Last: what is refused is not acknowledged.
        self.note(seq);
        Ok(Accepted::Kept)
    }

    /// Whether a piece was not here before.
    fn is_fresh(&self, seq: u64) -> Result<bool, Fault> {
        #[cfg(feature = "sabotage")]
        if self.no_dedup && seq < self.next {
            return Ok(true);
        }
        let Some(ahead) = seq.checked_sub(self.next) else { return Ok(false) };
        if ahead >= WINDOW {
            return Err(Fault::Window);
        }
        Ok(self.seen.get(ahead as usize) != Some(&true))
    }

    fn note(&mut self, seq: u64) {
        let Some(ahead) = seq.checked_sub(self.next) else { return };
        let at = ahead as usize;
        if self.seen.len() <= at {
            self.seen.resize(at + 1, false);
        }
        if let Some(seen) = self.seen.get_mut(at) {
            *seen = true;
        }
        while self.seen.front() == Some(&true) {
            self.seen.pop_front();
            self.next += 1;
        }
    }

    fn is_next(&self, number: u64) -> bool {
        #[cfg(feature = "sabotage")]
        if self.any_order || self.no_dedup {
            return true;
        }
        number == self.turn
    }

    fn next_turn(&mut self) {
        self.turn += 1;
        // Nothing, unless the peer sent parts of it as well.
        let parts = self.parts.pop_front().flatten();
        self.bytes = self.bytes.saturating_sub(parts.map_or(0, |part| part.data.len() as u64));
    }

    /// What is there of a message, made with its first piece.
    fn part(
        &mut self,
        number: u64,
        tag: u8,
        total: u64,
        room: u64,
    ) -> Result<&mut Assembly, Fault> {
        // Each message has a piece of its own, so this has the same bound as the pieces.
        let ahead = number.checked_sub(self.turn).filter(|ahead| *ahead < WINDOW);
        let at = ahead.ok_or(Fault::Window)? as usize;
        if self.parts.len() <= at {
            self.parts.resize_with(at + 1, || None);
        }
        let held = self.bytes;
        let place = self.parts.get_mut(at).ok_or(Fault::Window)?;
        if place.is_none() {
            if held.saturating_add(total) > room {
                return Err(Fault::Memory { held, max: room });
            }
            let len = usize::try_from(total).map_err(|_| Fault::Memory { held, max: room })?;
            let mut data = Vec::new();
            data.try_reserve_exact(len).map_err(|_| Fault::Memory { held, max: room })?;
            data.resize(len, 0);
            self.bytes += total;
            *place = Some(Assembly { tag, data, missing: total });
        }
        place.as_mut().ok_or(Fault::Window)
    }

    /// The message whose turn it is, if it is complete.
    pub(super) fn ready(&mut self) -> Option<(u8, Vec<u8>)> {
        self.parts.front()?.as_ref().filter(|part| part.missing == 0)?;
        let part = self.parts.pop_front()??;
        self.turn += 1;
        self.bytes = self.bytes.saturating_sub(part.data.len() as u64);
        Some((part.tag, part.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(seq: u32, message: u32, kind: Kind) -> Head {
        Head { kind, rail: 0, epoch: 0, seq, ack: 0, message }
    }

    fn piece(total: u64, offset: u64) -> Kind {
        Kind::Piece { total, offset }
    }

    #[test]
    fn messages_come_in_order_and_once_whatever_the_order_of_arrival() {
        let mut it = Incoming::default();
        let max = Limits::new(100, 10);
        assert_eq!(it.accept(&head(3, 2, Kind::Whole), 9, b"last", max), Ok(Accepted::Kept));
        assert_eq!(it.accept(&head(2, 1, piece(6, 4)), 7, b"ef", max), Ok(Accepted::Kept));
        assert_eq!((it.ready(), it.acknowledged(), it.held()), (None, 0, 10));
        assert_eq!(it.accept(&head(0, 0, Kind::Whole), 1, b"", max), Ok(Accepted::Deliver));
        assert_eq!((it.ready(), it.acknowledged()), (None, 1));
        assert_eq!(it.accept(&head(2, 1, piece(6, 4)), 7, b"ef", max), Ok(Accepted::Duplicate));
        assert_eq!(it.accept(&head(0, 0, Kind::Whole), 1, b"", max), Ok(Accepted::Duplicate));
        assert_eq!(it.accept(&head(1, 1, piece(6, 0)), 7, b"abcd", max), Ok(Accepted::Kept));
        assert_eq!(it.ready(), Some((7, b"abcdef".to_vec())));
        assert_eq!(it.ready(), Some((9, b"last".to_vec())));
        assert_eq!((it.ready(), it.acknowledged(), it.held()), (None, 4, 0));
    }

    #[test]
    fn limits_are_kept() {
        let max = 1 << 20;
        let limits = Limits::new(max, 10);
        let accept = |h, p: &[u8]| Incoming::default().accept(&h, 0, p, limits);
        let far = WINDOW as u32;
        assert_eq!(accept(head(far, 0, Kind::Whole), b"x"), Err(Fault::Window));
        assert_eq!(accept(head(u32::MAX, 0, Kind::Whole), b"x"), Err(Fault::Window));
        assert_eq!(accept(head(0, far, Kind::Whole), b"x"), Err(Fault::Window));
        for len in [max + 1, 1 << 63, u64::MAX] {
            let fault = Fault::TooLong { len, max };
            assert_eq!(accept(head(0, 0, piece(len, 0)), b"x"), Err(fault));
            let mut it = Incoming::default();
            assert!(it.accept(&head(0, 0, piece(len, 0)), 0, b"x", limits).is_err());
            assert_eq!(it.acknowledged(), 0, "what is refused is not acknowledged");
        }
        for offset in [max, max - 1, u64::MAX] {
            let beyond = accept(head(0, 0, piece(max, offset)), b"xy");
            assert!(matches!(beyond, Err(Fault::Piece { .. })), "{beyond:?}");
        }
        let mut it = Incoming::default();
        it.accept(&head(0, 0, piece(4, 0)), 0, b"x", limits).unwrap();
        let other = it.accept(&head(1, 0, piece(5, 1)), 0, b"x", limits);
        assert!(matches!(other, Err(Fault::Piece { .. })), "{other:?}");
    }

    #[test]
    fn a_peer_that_only_begins_messages_is_stopped() {
        let (mut it, max) = (Incoming::default(), 1 << 16);
        let limits = Limits::new(max, 10);
        let refused = (0..WINDOW as u32).find_map(|n| {
            let fault = it.accept(&head(n, n, piece(max, 0)), 0, b"x", limits).err()?;
            Some((n, fault))
        });
        let fault = Fault::Memory { held: 2 * max, max: 2 * max + 10 * WINDOW };
        assert_eq!(refused, Some((2, fault)));
    }
}
