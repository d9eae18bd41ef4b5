//! Private data: the few bytes that travel with a connection request, its reply or its rejection.

#![forbid(unsafe_code)]

use std::fmt;

/// The size of librdmacm's own field for private data, in bytes: no transport carries more.
const CAPACITY: usize = 256;

/// The message that carries private data. Each has its own bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The connection request of the initiator.
    Request,
    /// The reply of an acceptor that accepts.
    Reply,
    /// The rejection of an acceptor that does not.
    Reject,
    /// The question for a datagram queue pair.
    Ask,
    /// Its answer, friendly or not.
    Answer,
}

impl Carrier {
    /// The most bytes this message can carry.
    ///
    /// InfiniBand and RoCE: 56, 196 and 148, 180 and 136 for datagrams (IBTA 12.6 and 12.11, less the 36 bytes of the IP
    /// addressing header in a request and a question).
    /// iWARP: 251, because the kernel's soft iWARP keeps the length plus four in eight bits.
    pub const fn limit(self, iwarp: bool) -> usize {
        match (self, iwarp) {
            (_, true) => 251,
            (Carrier::Request, false) => 56,
            (Carrier::Reply, false) => 196,
            (Carrier::Reject, false) => 148,
            (Carrier::Ask, false) => 180,
            (Carrier::Answer, false) => 136,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Carrier::Request => "connection request",
            Carrier::Reply => "reply",
            Carrier::Reject => "rejection",
            Carrier::Ask => "datagram question",
            Carrier::Answer => "datagram answer",
        }
    }
}

/// Why private data was refused, before any of it was sent or believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateDataError {
    /// More bytes than the message carries on this transport.
    #[error(
        "{len} bytes of private data do not fit the {limit} bytes of a {} on {}; {} bytes fit a request on every transport",
        carrier.name(), if *iwarp { "iWARP" } else { "InfiniBand or RoCE" }, PrivateData::REQUEST_EVERYWHERE
    )]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes the message carries.
        limit: usize,
        /// The message.
        carrier: Carrier,
        /// Whether the transport is iWARP.
        iwarp: bool,
    },
    /// More bytes than any message carries on any transport.
    #[error(
        "{len} bytes of private data exceed the {} bytes any transport carries",
        PrivateData::MAX
    )]
    TooLongAnywhere {
        /// Bytes asked for.
        len: usize,
    },
    /// The peer sent no length byte.
    #[error(
        "the peer's private data is empty: it does not frame its private data as this side does"
    )]
    NoFrame,
    /// The peer's length byte promises more than came.
    #[error("the peer's private data claims {claimed} bytes and holds {present}")]
    Truncated {
        /// What the length byte says.
        claimed: usize,
        /// Bytes after the length byte.
        present: usize,
    },
}

/// Private data to send, or as received.
///
/// InfiniBand and RoCE **pad**: what arrives has the full size of the field, whatever was sent, so the length of received
/// private data says nothing. Send it with [`framed`](Self::framed), which puts a length byte in front, and read it with
/// [`payload`](Self::payload), which believes that byte and ignores the padding. [`raw`](Self::raw) and
/// [`as_bytes`](Self::as_bytes) are for peers with a layout of their own.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PrivateData {
    // At most `MAX` bytes if it is to be sent, `CAPACITY` if it was received.
    bytes: Vec<u8>,
}

impl PrivateData {
    /// The most bytes any message carries on any transport.
    pub const MAX: usize = 251;
    /// The most bytes a connection request carries on **every** transport.
    pub const REQUEST_EVERYWHERE: usize = 56;
    /// The longest payload that [`framed`](Self::framed) can put into a connection request on every transport.
    pub const REQUEST_PAYLOAD_EVERYWHERE: usize = Self::REQUEST_EVERYWHERE - 1;

    /// No private data.
    pub const fn empty() -> Self {
        Self { bytes: Vec::new() }
    }

    /// These bytes and nothing else.
    ///
    /// # Errors
    /// [`PrivateDataError::TooLongAnywhere`] above [`MAX`](Self::MAX). The bound of the transport is checked when the
    /// message is sent.
    pub fn raw(bytes: &[u8]) -> Result<Self, PrivateDataError> {
        if bytes.len() > Self::MAX {
            return Err(PrivateDataError::TooLongAnywhere { len: bytes.len() });
        }
        Ok(Self::copy_from(bytes))
    }

    /// A length byte, then `payload`: what [`payload`](Self::payload) reads on the other side, padded or not.
    ///
    /// # Errors
    /// [`PrivateDataError::TooLongAnywhere`] when the payload and its length byte exceed [`MAX`](Self::MAX).
    pub fn framed(payload: &[u8]) -> Result<Self, PrivateDataError> {
        let len = payload.len() + 1;
        let Ok(length_byte) = u8::try_from(payload.len()) else {
            return Err(PrivateDataError::TooLongAnywhere { len });
        };
        if len > Self::MAX {
            return Err(PrivateDataError::TooLongAnywhere { len });
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.push(length_byte);
        bytes.extend_from_slice(payload);
        Ok(Self { bytes })
    }

    /// What a peer's [`framed`](Self::framed) was given, without the padding.
    ///
    /// # Errors
    /// [`PrivateDataError::NoFrame`] when nothing came, [`PrivateDataError::Truncated`] when the length byte promises more
    /// than came. Both mean a peer that speaks something else.
    pub fn payload(&self) -> Result<&[u8], PrivateDataError> {
        let (&claimed, rest) = self.as_bytes().split_first().ok_or(PrivateDataError::NoFrame)?;
        let claimed = usize::from(claimed);
        rest.get(..claimed).ok_or(PrivateDataError::Truncated { claimed, present: rest.len() })
    }

    /// Every byte, with the padding of the transport if this was received.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of bytes, padding included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none. Never true of what InfiniBand and RoCE deliver: they pad.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Checks the bound of a message on a transport.
    pub(crate) fn check(&self, carrier: Carrier, iwarp: bool) -> Result<(), PrivateDataError> {
        let limit = carrier.limit(iwarp);
        if self.len() > limit {
            return Err(PrivateDataError::TooLong { len: self.len(), limit, carrier, iwarp });
        }
        Ok(())
    }

    /// What came in an event; librdmacm's field holds no more than [`CAPACITY`].
    pub(crate) fn copy_from(bytes: &[u8]) -> Self {
        Self { bytes: bytes[..bytes.len().min(CAPACITY)].to_vec() }
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} bytes: {:02x?})", self.len(), self.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_is_bounded() {
        for len in [0, 1, 56, 57, 196, 251] {
            let data = PrivateData::raw(&vec![7; len]).unwrap();
            assert_eq!((data.len(), data.as_bytes()), (len, &vec![7; len][..]));
        }
        for len in [252, 255, 256, 257, 70_000] {
            assert_eq!(
                PrivateData::raw(&vec![7; len]),
                Err(PrivateDataError::TooLongAnywhere { len })
            );
        }
    }

    #[test]
    fn framing_survives_padding() {
        for len in [0, 1, 55, 195, 250] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let data = PrivateData::framed(&payload).unwrap();
            assert_eq!(data.len(), len + 1);
            assert_eq!(data.payload(), Ok(&payload[..]));
            for padded_to in [data.len(), 56, 196, 256] {
                let mut wire = data.as_bytes().to_vec();
                wire.resize(padded_to.max(wire.len()), 0xa5);
                assert_eq!(PrivateData::copy_from(&wire).payload(), Ok(&payload[..]));
            }
        }
        for len in [251, 252, 255, 256, 1000] {
            let refused = Err(PrivateDataError::TooLongAnywhere { len: len + 1 });
            assert_eq!(PrivateData::framed(&vec![0; len]), refused);
        }
    }

    #[test]
    fn a_lying_length_byte_is_refused() {
        assert_eq!(PrivateData::empty().payload(), Err(PrivateDataError::NoFrame));
        for (wire, claimed) in [(vec![1], 1), (vec![4, 1, 2, 3], 4), (vec![255; 200], 255)] {
            let present = wire.len() - 1;
            let refused = Err(PrivateDataError::Truncated { claimed, present });
            assert_eq!(PrivateData::copy_from(&wire).payload(), refused);
        }
    }

    #[test]
    fn each_message_has_its_bound() {
        let bounds =
            [(Carrier::Request, 56, 251), (Carrier::Reply, 196, 251), (Carrier::Reject, 148, 251)];
        for (carrier, infiniband, iwarp) in bounds {
            for (limit, is_iwarp) in [(infiniband, false), (iwarp, true)] {
                assert_eq!(
                    PrivateData::raw(&vec![0; limit]).unwrap().check(carrier, is_iwarp),
                    Ok(())
                );
                if let Ok(over) = PrivateData::raw(&vec![0; limit + 1]) {
                    assert!(over.check(carrier, is_iwarp).is_err());
                } else {
                    assert_eq!(limit, PrivateData::MAX);
                }
            }
        }
    }

    #[test]
    fn more_than_the_field_is_cut() {
        assert_eq!(PrivateData::copy_from(&[1; 300]).len(), CAPACITY);
    }
}
