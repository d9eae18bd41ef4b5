//! The checker's own reader of the bytes on the wire, written from the table in the documentation
//! of `btl_core::wire`; it shares no code with it.

/// Kinds of messages that the checker has to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The initiator's first message.
    Hello,
    /// The acceptor's answer.
    HelloAck,
    /// A message of the application.
    Data,
    /// Credits only.
    Credit,
    /// The last message.
    Bye,
    /// Asks whether what was put before is in place.
    Fence,
    /// The answer.
    FenceAck,
    /// Credits of another lane: see [`other_lane`].
    LaneCredit,
    /// Acknowledgements only.
    Ack,
    /// Sabotage: the credits are those of another lane.
    Stray,
}

/// What the header of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameView {
    /// What it is.
    pub kind: FrameKind,
    /// Receives told; of another lane if the kind is `Stray`.
    pub credits: u16,
    /// Messages acknowledged.
    pub acks: u16,
    /// Bytes behind the header.
    pub payload: u32,
}

/// Reads the header of a message; `Err` says what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<FrameView, &'static str> {
    let view = read_padded(bytes)?;
    if view.payload as usize + 8 != bytes.len() {
        return Err("a length that is not what was sent");
    }
    Ok(view)
}

/// As [`read`], but there may be more than the header says.
pub fn read_padded(bytes: &[u8]) -> Result<FrameView, &'static str> {
    if bytes.len() < 8 {
        return Err("shorter than a header");
    }
    if bytes[0] / 16 != 2 {
        return Err("not version 2");
    }
    let kind = match bytes[0] % 16 {
        1 => FrameKind::Hello,
        2 => FrameKind::HelloAck,
        3 => FrameKind::Data,
        4 => FrameKind::Credit,
        5 => FrameKind::Bye,
        6 => FrameKind::Fence,
        7 => FrameKind::FenceAck,
        8 => FrameKind::LaneCredit,
        9 => FrameKind::Ack,
        15 => FrameKind::Stray,
        _ => return Err("an unknown kind"),
    };
    let rest = bytes[2..8].iter().rev().fold(0u64, |sum, byte| sum * 256 + u64::from(*byte));
    let payload = (rest / (1 << 24)) as u32;
    if payload as usize + 8 > bytes.len() {
        return Err("a length that is more than was sent");
    }
    let (credits, acks) = ((rest % (1 << 13)) as u16, (rest / (1 << 13) % (1 << 11)) as u16);
    Ok(FrameView { kind, credits, acks, payload })
}

/// Which lane the credits of a [`FrameKind::LaneCredit`] are for, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherLane {
    /// The lane's class.
    pub class: u8,
    /// Whoever sent this has dialled it.
    pub dialled: bool,
    /// The dialler's count of its dials.
    pub generation: u32,
    /// Receives told.
    pub credits: u16,
}

/// Reads what is behind the header of a [`FrameKind::LaneCredit`].
pub fn other_lane(bytes: &[u8]) -> Option<OtherLane> {
    let it = bytes.get(8..16)?;
    Some(OtherLane {
        class: it[0],
        dialled: it[1] != 0,
        generation: u32::from_le_bytes([it[4], it[5], it[6], it[7]]),
        credits: u16::from_le_bytes([it[2], it[3]]),
    })
}

/// The generation in a Hello or its answer.
pub fn generation(bytes: &[u8]) -> Option<u32> {
    let it = bytes.get(16..20)?;
    Some(u32::from_le_bytes([it[0], it[1], it[2], it[3]]))
}

/// The reason in the private data of a reject: byte 5, behind a magic number and a version.
/// `None`: not a reject of ours.
pub fn reject_code(data: &[u8]) -> Option<u8> {
    (data.len() >= 6 && data[4] == 2).then(|| data[5])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_documented_layout() {
        let bytes = [0x23, 0xaa, 0x02, 0x61, 1, 2, 0, 0, 9, 9];
        let view = FrameView { kind: FrameKind::Data, credits: 0x102, acks: 11, payload: 2 };
        assert_eq!(read(&bytes), Ok(view));
    }

    #[test]
    fn refuses_what_is_not_a_header() {
        assert!(read(&[0x23; 7]).is_err());
        assert!(read(&[0x13, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(read(&[0x20, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(read(&[0x23, 0, 0, 0, 0, 1, 0, 0]).is_err());
    }
}
