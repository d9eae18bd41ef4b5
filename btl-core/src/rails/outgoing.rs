//! What is on its way to one peer, over all rails: messages until all of them has been acknowledged, pieces until they
//! have.
use super::WINDOW;
use super::frame::LONG;
use crate::names::Nanos;
use std::collections::VecDeque;

/// No rail: the piece waits to be sent again.
const NONE: u8 = u8::MAX;

#[derive(Debug)]
pub(super) struct OutMessage {
    pub(super) data: Vec<u8>,
    pub(super) cookie: u64,
    tag: u8,
    /// It is acknowledged with the piece before this one; not known until all of it is cut.
    end: Option<u64>,
}

/// A piece that was sent and is not acknowledged.
#[derive(Debug)]
struct Piece {
    message: u64,
    offset: u64,
    len: u32,
    rail: u8,
    at: Nanos,
}

/// What to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) seq: u64,
    pub(super) message: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) total: u64,
    pub(super) tag: u8,
    again: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    messages: VecDeque<OutMessage>,
    /// Number of the first of these.
    first: u64,
    /// Message and offset of what is cut next.
    cut: (u64, u64),
    pieces: VecDeque<Piece>,
    /// All pieces below this one are acknowledged; number of the first of `pieces`.
    acked: u64,
    /// Pieces to send again, oldest first; some may be acknowledged by now.
    again: VecDeque<u64>,
    /// When something was acknowledged last, or sent after nothing was under way.
    pub(super) moved: Nanos,
    unsent: u64,
}

impl Outgoing {
    /// Messages not acknowledged.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether everything is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// All pieces below this one are acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// Bytes that were never sent.
    pub(super) fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Pieces that were sent and not acknowledged.
    pub(super) fn in_flight(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn push(&mut self, tag: u8, data: Vec<u8>, cookie: u64) {
        self.unsent += data.len() as u64;
        self.messages.push_back(OutMessage { data, cookie, tag, end: None });
    }

    fn message(&self, number: u64) -> Option<&OutMessage> {
        self.messages.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn piece_mut(&mut self, seq: u64) -> Option<&mut Piece> {
        self.pieces.get_mut(usize::try_from(seq.checked_sub(self.acked)?).ok()?)
    }

    /// What to send next: what was lost first. `max`: bytes of a piece.
    pub(super) fn next(&mut self, max: usize) -> Option<Next> {
        while let Some(&seq) = self.again.front() {
            let acked = self.acked;
            if let Some(&mut Piece { message, offset, len, rail, .. }) = self.piece_mut(seq)
                && seq >= acked
                && rail == NONE
                && let Some(whole) = self.message(message)
            {
                let (total, tag) = (whole.data.len() as u64, whole.tag);
                return Some(Next { seq, message, offset, len, total, tag, again: true });
            }
            self.again.pop_front();
        }
        if self.pieces.len() as u64 >= WINDOW {
            return None;
        }
        let (message, offset) = self.cut;
        let whole = self.message(message)?;
        let (total, tag) = (whole.data.len() as u64, whole.tag);
        let len = total.saturating_sub(offset).min(max as u64) as u32;
        let seq = self.acked + self.pieces.len() as u64;
        Some(Next { seq, message, offset, len, total, tag, again: false })
    }

    /// The bytes of a piece.
    pub(super) fn bytes(&self, next: &Next) -> &[u8] {
        let bytes = self.message(next.message).map_or(&[][..], |whole| &whole.data);
        let from = usize::try_from(next.offset).unwrap_or(usize::MAX);
        from.checked_add(next.len as usize).and_then(|to| bytes.get(from..to)).unwrap_or(&[])
    }

    /// It was given to a rail.
    pub(super) fn sent(&mut self, next: &Next, rail: u8, now: Nanos) {
        if self.pieces.is_empty() {
            self.moved = now;
        }
        if next.again {
            self.again.pop_front();
            if let Some(piece) = self.piece_mut(next.seq) {
                (piece.rail, piece.at) = (rail, now);
            }
            return;
        }
        let Next { message, offset, len, .. } = *next;
        self.pieces.push_back(Piece { message, offset, len, rail, at: now });
        self.unsent = self.unsent.saturating_sub(u64::from(len));
        let end = offset + u64::from(len);
        if end < next.total {
            self.cut = (message, end);
            return;
        }
        self.cut = (message + 1, 0);
        let at = message.saturating_sub(self.first) as usize;
        if let Some(whole) = self.messages.get_mut(at) {
            whole.end = Some(next.seq + 1);
        }
    }

    /// The peer has all pieces below `n`. `None`: it was never sent so many.
    pub(super) fn acknowledge(&mut self, n: u64, now: Nanos) -> Option<()> {
        let fresh = n.saturating_sub(self.acked);
        if fresh > self.pieces.len() as u64 {
            return None;
        }
        if fresh > 0 {
            self.pieces.drain(..fresh as usize);
            self.acked = n;
            self.moved = now;
        }
        Some(())
    }

    /// A message that is acknowledged as a whole.
    pub(super) fn done(&mut self) -> Option<OutMessage> {
        self.messages.front()?.end.filter(|end| *end <= self.acked)?;
        self.first += 1;
        self.messages.pop_front()
    }

    /// What was given to a rail is lost, or may be; how many pieces.
    pub(super) fn lost(&mut self, rail: u8) -> u32 {
        self.requeue(|piece| piece.rail == rail)
    }

    /// What was sent before `then` is sent again; how many pieces. `all`: not only the oldest of them.
    pub(super) fn stale(&mut self, then: Nanos, all: bool) -> u32 {
        let mut n = 0;
        self.requeue(|piece| {
            let again = piece.at <= then && (all || n == 0);
            n += u32::from(again);
            again
        })
    }

    fn requeue(&mut self, mut which: impl FnMut(&Piece) -> bool) -> u32 {
        let mut n = 0;
        self.again.clear();
        for (i, piece) in self.pieces.iter_mut().enumerate() {
            if piece.rail != NONE && which(piece) {
                piece.rail = NONE;
                n += 1;
            }
            if piece.rail == NONE {
                self.again.push_back(self.acked + i as u64);
            }
        }
        n
    }

    /// Everything is given up, in order.
    pub(super) fn give_up(&mut self) -> VecDeque<OutMessage> {
        std::mem::take(self).messages
    }
}

/// Bytes of payload of the longest piece, when the longest frame of a rail has `max`.
pub(super) fn longest_piece(max: usize) -> usize {
    max.saturating_sub(LONG).min(u32::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(out: &mut Outgoing, rail: u8) -> Vec<(u64, Vec<u8>)> {
        let mut sent = Vec::new();
        while let Some(next) = out.next(4) {
            sent.push((next.seq, out.bytes(&next).to_vec()));
            out.sent(&next, rail, 10);
        }
        sent
    }

    #[test]
    fn messages_are_cut_and_are_done_when_all_is_acknowledged() {
        let mut out = Outgoing::default();
        out.push(1, b"abcdefghij".to_vec(), 100);
        out.push(2, Vec::new(), 101);
        assert_eq!(out.unsent(), 10);
        let cut = drain(&mut out, 0);
        let text: Vec<&[u8]> = cut.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!(text, [&b"abcd"[..], b"efgh", b"ij", b""]);
        assert_eq!((out.unsent(), out.in_flight(), out.len()), (0, 4, 2));
        assert!(out.acknowledge(5, 20).is_none());
        out.acknowledge(2, 20).unwrap();
        assert!(out.done().is_none());
        out.acknowledge(1, 30).unwrap();
        assert_eq!(out.moved, 20, "an old acknowledgement says nothing");
        out.acknowledge(4, 40).unwrap();
        assert_eq!(out.done().map(|m| (m.cookie, m.data.len())), Some((100, 10)));
        assert_eq!(out.done().map(|m| m.cookie), Some(101));
        assert!(out.is_empty() && out.done().is_none());
    }

    #[test]
    fn what_a_rail_lost_goes_again_and_first() {
        let mut out = Outgoing::default();
        out.push(1, b"abcdefghijkl".to_vec(), 100);
        for rail in [0, 1, 0] {
            let next = out.next(4).unwrap();
            out.sent(&next, rail, 10);
        }
        out.push(1, b"m".to_vec(), 101);
        assert_eq!(out.lost(0), 2);
        assert_eq!(out.lost(0), 0, "lost once");
        out.acknowledge(1, 20).unwrap();
        assert_eq!(drain(&mut out, 1), [(2, b"ijkl".to_vec()), (3, b"m".to_vec())]);
        assert_eq!(out.stale(9, true), 0);
        assert_eq!(out.stale(10, false), 1);
        assert_eq!(drain(&mut out, 1), [(1, b"efgh".to_vec())]);
        assert_eq!(out.stale(10, true), 3);
        assert_eq!(drain(&mut out, 1).len(), 3);
        out.acknowledge(4, 30).unwrap();
        assert_eq!([out.done(), out.done()].map(|m| m.map(|m| m.cookie)), [Some(100), Some(101)]);
    }

    #[test]
    fn no_more_than_a_window_is_under_way() {
        let mut out = Outgoing::default();
        out.push(1, vec![0; 4 * (WINDOW as usize + 3)], 0);
        assert_eq!(drain(&mut out, 0).len() as u64, WINDOW);
        out.acknowledge(2, 0).unwrap();
        assert_eq!(drain(&mut out, 0).len(), 2);
    }
}
