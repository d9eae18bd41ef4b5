//! What precedes every payload that travels over rails: its place in the peer's sequence.
//!
//! | bytes | |
//! |---|---|
//! | 0 | kind: 1 whole message, 2 piece of one, 3 nothing but an acknowledgement, 4 goodbye |
//! | 1 | the sender's number of the rail |
//! | 2..4 | 0 |
//! | 4..8 | the sender's epoch |
//! | 8..12 | number of the piece, low half |
//! | 12..16 | all pieces of the receiver below this one have arrived, low half |
//! | 16..20 | number of the message, low half |
//! | 20..24 | 0 |
//! | 24..32 | pieces only: length of the whole message |
//! | 32..40 | pieces only: where in it this one belongs |
//!
//! All little endian, as the engine's own header. Numbers are 64 bits long on both sides; the window is so much shorter
//! than half of 2^32 that the low half is enough to know them again.

/// Bytes in front of a whole message, an acknowledgement and a goodbye.
pub(super) const SHORT: usize = 24;
/// Bytes in front of a piece.
pub(super) const LONG: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    Piece { total: u64, offset: u64 },
    Ack,
    Bye,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) rail: u8,
    pub(super) epoch: u32,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) message: u32,
}

impl Head {
    /// Bytes of it.
    pub(super) fn len(&self) -> usize {
        if matches!(self.kind, Kind::Piece { .. }) { LONG } else { SHORT }
    }

    /// Writes it in front of the payload; `None`: no room.
    pub(super) fn put(&self, to: &mut [u8]) -> Option<()> {
        let code = match self.kind {
            Kind::Whole => 1,
            Kind::Piece { .. } => 2,
            Kind::Ack => 3,
            Kind::Bye => 4,
        };
        let head = to.get_mut(..self.len())?;
        head.fill(0);
        let words = [self.epoch, self.seq, self.ack, self.message];
        head.get_mut(..2)?.copy_from_slice(&[code, self.rail]);
        for (to, word) in head.get_mut(4..20)?.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        if let Kind::Piece { total, offset } = self.kind {
            head.get_mut(24..32)?.copy_from_slice(&total.to_le_bytes());
            head.get_mut(32..40)?.copy_from_slice(&offset.to_le_bytes());
        }
        Some(())
    }

    /// Reads it; `None`: it is none.
    pub(super) fn get(from: &[u8]) -> Option<Head> {
        let word = |at: usize| from.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let long = |at: usize| from.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        if from.len() < SHORT || word(20)? != 0 || from.get(2..4)? != [0, 0] {
            return None;
        }
        let kind = match from.first()? {
            1 => Kind::Whole,
            2 => Kind::Piece { total: long(24)?, offset: long(32)? },
            3 => Kind::Ack,
            4 => Kind::Bye,
            _ => return None,
        };
        let (epoch, seq, ack, message) = (word(4)?, word(8)?, word(12)?, word(16)?);
        Some(Head { kind, rail: *from.get(1)?, epoch, seq, ack, message })
    }
}

/// The number whose low half is `low` and that is nearest to `near`; `None`: it would be negative.
pub(super) fn expand(near: u64, low: u32) -> Option<u64> {
    let step = low.wrapping_sub(near as u32).cast_signed();
    near.checked_add_signed(i64::from(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_garbage_does_not() {
        let head = |kind| Head { kind, rail: 3, epoch: 7, seq: 8, ack: u32::MAX, message: 10 };
        for kind in [Kind::Whole, Kind::Piece { total: 1 << 40, offset: 9 }, Kind::Ack, Kind::Bye] {
            let (mut bytes, head) = ([0xff; LONG + 3], head(kind));
            head.put(&mut bytes).unwrap();
            assert_eq!(Head::get(&bytes), Some(head));
            assert_eq!(bytes[head.len()..], [0xff; LONG + 3][head.len()..]);
            assert_eq!(Head::get(&bytes[..head.len() - 1]), None);
            assert_eq!(head.put(&mut bytes[..head.len() - 1]), None);
        }
        let mut bytes = [0; LONG];
        assert_eq!(Head::get(&bytes), None);
        bytes[0] = 5;
        assert_eq!(Head::get(&bytes), None);
        (bytes[0], bytes[2]) = (1, 1);
        assert_eq!(Head::get(&bytes), None);
    }

    #[test]
    fn numbers_are_known_again_by_their_low_half() {
        for (near, want) in
            [(0, 0), (5, 3), ((1 << 32) - 1, (1 << 32) + 7), (1 << 40, (1 << 40) - 1000)]
        {
            assert_eq!(expand(near, want as u32), Some(want));
        }
        assert_eq!(expand(0, u32::MAX), None);
    }
}
