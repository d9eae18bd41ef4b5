//! What travels: the header of every message, Hello, and the private data of connects.
//!
//! The header has no lane and no queue pair number: a credit means "on the queue pair this
//! arrived on", so a credit for another lane cannot be written.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version in the high four bits, [`Kind`] in the low four |
//! | 1 | tag of the upper layer |
//! | 2–7 | a little-endian number: credits in the low 13 bits, acknowledgements in 11, payload bytes behind it in 24 |
//!
//! Acknowledgements ([`recover`](crate::recover)) are 0 unless both sides have recovery on.
use crate::credit::ForeignAdvert;
use crate::error::ProtocolFault;
use crate::names::{ProcName, Role};
use crate::recover::{MAX_ACKS, Resume};
use crate::route::CreditRoute;

/// Version of everything in this file. Peers with another are rejected.
pub const VERSION: u8 = 2;
/// Bytes of the header in front of every payload.
pub const HEADER: usize = 8;
/// Payload bytes of Hello and HelloAck.
pub const HELLO: usize = 20;
/// Most bytes of private data a connect request carries on every transport (IB: 92 less the
/// 36 that the kernel's connection manager uses).
pub const PRIVATE_MAX: usize = 56;

const MAGIC: u32 = 0x4c54_4272;
/// Where the acknowledgements and the length are in the header, read as one number.
const ACKS_AT: u32 = 29;
const LEN_AT: u32 = 40;
const MAX_CREDITS: u16 = (1 << 13) - 1;
const _: () = assert!(crate::config::MAX_DEPTH <= MAX_CREDITS);
const _: () = assert!(crate::config::MAX_BUFFER as u64 <= 1 << (64 - LEN_AT));

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The initiator's first message on every lane.
    Hello = 1,
    /// The acceptor's answer, at once.
    HelloAck = 2,
    /// A message of the upper layer.
    Data = 3,
    /// Nothing but credits.
    Credit = 4,
    /// The sender's last message on this lane.
    Bye = 5,
    /// To be answered with [`FenceAck`](Kind::FenceAck): what was put before it is in place then.
    Fence = 6,
    /// The answer.
    FenceAck = 7,
    /// Credits of another lane of the peer, on its first one: only where both sides asked for it.
    LaneCredit = 8,
    /// Nothing but acknowledgements, and the credits there are: only with recovery.
    Ack = 9,
    /// Test only: credits of another lane, which rule 2 forbids.
    #[cfg(feature = "sabotage")]
    StrayCredit = 15,
}

/// A header that was checked against the bytes that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Tag of the upper layer.
    pub tag: u8,
    /// Receives told, of the lane this arrived on.
    pub credits: u16,
    /// Messages acknowledged, of the lane this arrived on.
    pub acks: u16,
    /// Payload bytes; at most what arrived.
    pub len: u32,
}

/// Proof that a valid Hello or HelloAck arrived. Only the parser in this file makes one.
#[derive(Debug)]
pub struct HeardHello(());

/// What a Hello says about its connection; both sides know it from the connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloInfo {
    /// The lane's class.
    pub class: u8,
    /// The generation the initiator gave the connection.
    pub generation: u32,
}

/// Writes the header in front of a payload of `len` bytes; returns the bytes to send.
#[inline]
pub(crate) fn put_header(slot: &mut [u8], header: Header) -> usize {
    let Header { kind, tag, credits, acks, len } = header;
    if let Some(out) = slot.first_chunk_mut::<HEADER>() {
        // One word: one store.
        let word = u64::from(VERSION << 4 | kind as u8)
            | u64::from(tag) << 8
            | u64::from(credits) << 16
            | u64::from(acks) << ACKS_AT
            | u64::from(len) << LEN_AT;
        *out = word.to_le_bytes();
    }
    HEADER + len as usize
}

impl Header {
    /// Reads and checks the header of a message of which `arrived` bytes came in.
    ///
    /// # Errors
    /// [`ProtocolFault`]: what is wrong with it.
    #[inline]
    pub fn parse(slot: &[u8], arrived: usize) -> Result<Header, ProtocolFault> {
        let arrived = arrived.min(slot.len());
        let Some(h) = slot.get(..arrived).and_then(|s| s.first_chunk::<HEADER>()) else {
            return Err(ProtocolFault::Short { arrived });
        };
        if h[0] >> 4 != VERSION {
            return Err(ProtocolFault::Version { theirs: h[0] >> 4, ours: VERSION });
        }
        let kind = match h[0] & 15 {
            1 => Kind::Hello,
            2 => Kind::HelloAck,
            3 => Kind::Data,
            4 => Kind::Credit,
            5 => Kind::Bye,
            6 => Kind::Fence,
            7 => Kind::FenceAck,
            8 => Kind::LaneCredit,
            9 => Kind::Ack,
            #[cfg(feature = "sabotage")]
            15 => Kind::StrayCredit,
            other => return Err(ProtocolFault::Kind { kind: other }),
        };
        let word = u64::from_le_bytes(*h);
        let len = (word >> LEN_AT) as u32;
        if len as usize > arrived - HEADER {
            return Err(ProtocolFault::Length { claimed: len, arrived: arrived - HEADER });
        }
        let (credits, acks) =
            ((word >> 16) as u16 & MAX_CREDITS, (word >> ACKS_AT) as u16 & MAX_ACKS);
        Ok(Header { kind, tag: h[1], credits, acks, len })
    }
}

impl Header {
    /// [`parse`](Header::parse) of a correct message of the upper layer or of credits; `None` for everything else, which is
    /// not judged.
    #[inline(always)]
    pub(crate) fn common(slot: &[u8], arrived: usize) -> Option<Header> {
        let arrived = arrived.min(slot.len());
        let word = u64::from_le_bytes(*slot.first_chunk::<HEADER>()?);
        let len = (word >> LEN_AT) as u32;
        // Also refuses what is shorter than a header, of which the rest of the slot must not be believed.
        if HEADER + len as usize > arrived {
            return None;
        }
        const DATA: u8 = VERSION << 4 | Kind::Data as u8;
        const CREDIT: u8 = VERSION << 4 | Kind::Credit as u8;
        let kind = match word as u8 {
            DATA => Kind::Data,
            CREDIT => Kind::Credit,
            _ => return None,
        };
        let (tag, credits) = ((word >> 8) as u8, (word >> 16) as u16 & MAX_CREDITS);
        let acks = (word >> ACKS_AT) as u16 & MAX_ACKS;
        Some(Header { kind, tag, credits, acks, len })
    }
}

impl HelloInfo {
    /// Writes the payload of a Hello behind the header; returns its length, or `None` when the
    /// slot is too small.
    pub(crate) fn put(&self, slot: &mut [u8], resume: Resume) -> Option<u32> {
        let out = slot.get_mut(HEADER..HEADER + HELLO)?;
        let mut w = Writer { out, at: 0 };
        w.put(&MAGIC.to_le_bytes());
        let flags = u8::from(resume.fresh) | u8::from(resume.goodbye) << 1;
        w.put(&[VERSION, self.class, flags, 0]);
        w.put(&self.generation.to_le_bytes());
        w.put(&resume.delivered.to_le_bytes());
        Some(HELLO as u32)
    }

    /// Checks the payload of a Hello against what this connection agreed on.
    ///
    /// # Errors
    /// [`ProtocolFault`]: what does not fit.
    pub fn check(&self, payload: &[u8]) -> Result<(HeardHello, Resume), ProtocolFault> {
        let mut r = Reader { rest: payload };
        let (Some(magic), Some([version, class, flags, _]), Some(generation), Some(delivered)) =
            (r.u32(), r.take::<4>(), r.u32(), r.u64())
        else {
            return Err(ProtocolFault::BadHello { what: "it is too short" });
        };
        if magic != MAGIC {
            return Err(ProtocolFault::BadHello { what: "its magic number is wrong" });
        }
        if version != VERSION {
            return Err(ProtocolFault::Version { theirs: version, ours: VERSION });
        }
        if class != self.class {
            return Err(ProtocolFault::BadHello { what: "it is for another lane" });
        }
        if generation != self.generation {
            return Err(ProtocolFault::BadHello { what: "it is for another connection" });
        }
        let (fresh, goodbye) = (flags & 1 != 0, flags & 2 != 0);
        Ok((HeardHello(()), Resume { delivered, fresh, goodbye }))
    }
}

/// Credits of another lane: which one, and how many. The lane is named by its class, by who of the two dialled it, and
/// by the dialler's count of its dials, so that what is late never counts for a later connection.
///
/// | bytes | field |
/// |---|---|
/// | 0 | the lane's class |
/// | 1 | 1: the sender dialled it |
/// | 2–3 | credits, little endian |
/// | 4–7 | generation, little endian |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneCredit {
    pub(crate) class: u8,
    /// The receiver's role on that lane.
    pub(crate) role: Role,
    pub(crate) credits: u16,
    pub(crate) generation: u32,
}

/// Payload bytes of credits for another lane.
const LANE_CREDIT: usize = 8;

impl LaneCredit {
    /// Writes what `advert` tells of the lane of `hello`, on which the writer is `role`; returns the payload's length,
    /// or `None` when the slot is too small.
    pub(crate) fn put(
        slot: &mut [u8],
        advert: &ForeignAdvert<'_>,
        hello: HelloInfo,
        role: Role,
    ) -> Option<u32> {
        let out = slot.get_mut(HEADER..HEADER + LANE_CREDIT)?;
        let mut w = Writer { out, at: 0 };
        w.put(&[hello.class, u8::from(role == Role::Initiator)]);
        w.put(&advert.count().to_le_bytes());
        w.put(&hello.generation.to_le_bytes());
        Some(LANE_CREDIT as u32)
    }

    pub(crate) fn parse(payload: &[u8]) -> Result<LaneCredit, ProtocolFault> {
        let mut r = Reader { rest: payload };
        let (Some([class, dialled]), Some(credits), Some(generation)) =
            (r.take::<2>(), r.u16(), r.u32())
        else {
            return Err(ProtocolFault::LaneCredit { what: "they are too short" });
        };
        if class == 0 {
            return Err(ProtocolFault::LaneCredit { what: "they are for the first lane" });
        }
        let role = if dialled == 0 { Role::Initiator } else { Role::Acceptor };
        Ok(LaneCredit { class, role, credits, generation })
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(to) = self.out.get_mut(self.at..self.at + bytes.len()) {
            to.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Private data of a connect, accept or reject: at most [`PRIVATE_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; PRIVATE_MAX],
    len: u8,
}

impl std::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PrivateData").field(&self.as_slice()).finish()
    }
}

impl Default for PrivateData {
    fn default() -> Self {
        PrivateData { bytes: [0; PRIVATE_MAX], len: 0 }
    }
}

impl PrivateData {
    /// Takes what a connection manager delivered. More than [`PRIVATE_MAX`] bytes is padding of
    /// the transport (InfiniBand pads to its fixed size) and is dropped.
    pub fn from_slice(data: &[u8]) -> PrivateData {
        let mut it = PrivateData::default();
        for (to, from) in it.bytes.iter_mut().zip(data) {
            *to = *from;
        }
        it.len = data.len().min(PRIVATE_MAX) as u8;
        it
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

/// What connect and accept carry: who, to whom, which lane, and how much it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Key shared by all processes that may connect to each other.
    pub job: u64,
    /// The sender.
    pub from: ProcName,
    /// Who the sender believes to reach.
    pub to: ProcName,
    /// The lane's class.
    pub class: u8,
    /// Counts the dials of this lane; the accept repeats the request's.
    pub generation: u32,
    /// Bytes of one receive buffer of the sender, header included.
    pub buffer_size: u32,
    /// Receives the sender has posted on the lane.
    pub depth: u16,
    /// Where the sender wants credits to travel that have no message to ride on.
    pub route: CreditRoute,
    /// The sender recovers lanes that fail, if the other side does too.
    pub recover: bool,
    /// Of a request: the connection of this generation, which the *other* side dialled, is lost at the sender.
    pub lost: Option<u32>,
}

/// Bits of what the sender wishes.
const RECOVER: u8 = 2;
const LOST: u8 = 4;

const GREETING: usize = 4 + 4 + 8 + 12 + 12 + 4 + 4 + 2 + 4;
const _: () = assert!(GREETING <= PRIVATE_MAX);

impl Greeting {
    /// As private data.
    pub fn encode(&self) -> PrivateData {
        let mut it = PrivateData { len: GREETING as u8, ..PrivateData::default() };
        let mut w = Writer { out: &mut it.bytes, at: 0 };
        w.put(&MAGIC.to_le_bytes());
        let recover = if self.recover { RECOVER } else { 0 };
        let first_lane = u8::from(self.route == CreditRoute::FirstLane);
        let wishes = first_lane | recover | self.lost.map_or(0, |_| LOST);
        w.put(&[VERSION, self.class, wishes, 0]);
        w.put(&self.job.to_le_bytes());
        for name in [self.from, self.to] {
            w.put(&name.job.to_le_bytes());
            w.put(&name.rank.to_le_bytes());
        }
        w.put(&self.generation.to_le_bytes());
        w.put(&self.buffer_size.to_le_bytes());
        w.put(&self.depth.to_le_bytes());
        w.put(&self.lost.unwrap_or(0).to_le_bytes());
        it
    }

    /// Reads private data; bytes behind the greeting are ignored.
    ///
    /// # Errors
    /// [`RejectReason::Garbage`] when it is not ours, [`RejectReason::Version`] when it is of
    /// another version.
    pub fn decode(data: &PrivateData) -> Result<Greeting, RejectReason> {
        let mut r = Reader { rest: data.as_slice() };
        if r.u32() != Some(MAGIC) {
            return Err(RejectReason::Garbage);
        }
        let [version, class, wishes, _] = r.take::<4>().ok_or(RejectReason::Garbage)?;
        if version != VERSION {
            return Err(RejectReason::Version);
        }
        let mut rest = || {
            Some(Greeting {
                job: r.u64()?,
                from: ProcName { job: r.u64()?, rank: r.u32()? },
                to: ProcName { job: r.u64()?, rank: r.u32()? },
                class,
                generation: r.u32()?,
                buffer_size: r.u32()?,
                depth: r.u16()?,
                route: match wishes & 1 {
                    0 => CreditRoute::OwnLane,
                    _ => CreditRoute::FirstLane,
                },
                recover: wishes & RECOVER != 0,
                lost: r.u32().map(|lost| (wishes & LOST != 0).then_some(lost))?,
            })
        };
        rest().ok_or(RejectReason::Garbage)
    }
}

/// Why a connect request was rejected; travels in the reject's private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum RejectReason {
    /// Not our protocol.
    #[error("the request is not of this protocol")]
    Garbage = 1,
    /// Another version of the protocol.
    #[error("it speaks another version of the protocol; install the same version everywhere")]
    Version = 2,
    /// Another job.
    #[error("it belongs to another job")]
    Job = 3,
    /// The address belongs to another process than the dialler meant.
    #[error("another process listens at that address")]
    WrongProcess = 4,
    /// Both sides dialled; the dialler's connect loses and the other one's stays.
    #[error("both sides connected at once and the other side's connect stays")]
    Crossing = 5,
    /// Too much going on; try again later.
    #[error("it is busy")]
    Busy = 6,
    /// No lane of that class.
    #[error("it has no lane of that class; set the same lanes everywhere")]
    UnknownLane = 7,
    /// A buffer size or a depth is out of range, or not what was announced.
    #[error("its buffer sizes or depths do not fit, or are not what it announced")]
    Limits = 8,
    /// It is shutting down.
    #[error("it is shutting down")]
    Closing = 9,
    /// It takes connects only from processes it knows.
    #[error("it does not know this process")]
    UnknownPeer = 10,
}

impl RejectReason {
    const ALL: [RejectReason; 10] = [
        RejectReason::Garbage,
        RejectReason::Version,
        RejectReason::Job,
        RejectReason::WrongProcess,
        RejectReason::Crossing,
        RejectReason::Busy,
        RejectReason::UnknownLane,
        RejectReason::Limits,
        RejectReason::Closing,
        RejectReason::UnknownPeer,
    ];

    /// As private data of a reject.
    pub fn encode(self) -> PrivateData {
        let [a, b, c, d] = MAGIC.to_le_bytes();
        PrivateData::from_slice(&[a, b, c, d, VERSION, self as u8])
    }

    /// Reads the private data of a reject. `None`: the connection manager or something that is
    /// not ours rejected.
    pub fn decode(data: &PrivateData) -> Option<RejectReason> {
        let mut r = Reader { rest: data.as_slice() };
        if r.u32() != Some(MAGIC) {
            return None;
        }
        let [_, code] = r.take::<2>()?;
        RejectReason::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

#[cfg(test)]
pub(crate) fn heard_for_test() -> HeardHello {
    HeardHello(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 8] = [
        Kind::Hello,
        Kind::HelloAck,
        Kind::Data,
        Kind::Credit,
        Kind::Bye,
        Kind::Fence,
        Kind::FenceAck,
        Kind::Ack,
    ];

    #[test]
    fn headers_come_back_as_written() {
        let mut slot = [0u8; 64];
        for kind in KINDS {
            for (tag, credits, acks, len) in [(0, 0, 0, 0), (255, 8191, 2047, 56), (7, 258, 9, 1)] {
                let header = Header { kind, tag, credits, acks, len };
                let n = put_header(&mut slot, header);
                assert_eq!(n, 8 + len as usize);
                assert_eq!(Header::parse(&slot, n), Ok(header));
                // The receive may be larger than the message.
                assert_eq!(Header::parse(&slot, 64).unwrap().len, len);
                if len > 0 {
                    assert!(matches!(
                        Header::parse(&slot, n - 1),
                        Err(ProtocolFault::Length { .. })
                    ));
                }
            }
        }
    }

    /// The short way takes nothing that the long one would not take, and every correct message of the upper layer.
    #[test]
    fn the_short_way_to_read_a_header_agrees_with_the_long_one() {
        let mut slot = [0u8; 24];
        for first in 0..=255u8 {
            for len in 0..=24u32 {
                slot[0] = first;
                slot[4..8].copy_from_slice(&len.to_le_bytes());
                for arrived in (0..=24).chain([usize::MAX]) {
                    for end in [0, 7, 8, 24] {
                        let long = Header::parse(&slot[..end], arrived).ok();
                        let common =
                            |header: &Header| matches!(header.kind, Kind::Data | Kind::Credit);
                        assert_eq!(Header::common(&slot[..end], arrived), long.filter(common));
                    }
                }
            }
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let mut slot = [0u8; 16];
        let (tag, credits, len) = (0x81, 0x0102, 0x03);
        put_header(&mut slot, Header { kind: Kind::Data, tag, credits, acks: 0, len });
        assert_eq!(slot[..8], [0x23, 0x81, 0x02, 0x01, 0, 0x03, 0, 0]);
        put_header(&mut slot, Header { kind: Kind::Data, tag, credits: 0, acks: 0x7fe, len: 0 });
        assert_eq!(slot[..8], [0x23, 0x81, 0, 0xc0, 0xff, 0, 0, 0]);
        put_header(
            &mut slot,
            Header { kind: Kind::Ack, tag, credits: 4096, acks: 1, len: 1 << 16 },
        );
        assert_eq!(slot[..8], [0x29, 0x81, 0, 0x30, 0, 0, 0, 1]);
    }

    #[test]
    fn another_version_or_kind_is_told_as_such() {
        let parse = |first: u8| Header::parse(&[first, 0, 0, 0, 0, 0, 0, 0], 8);
        assert_eq!(parse(0x93), Err(ProtocolFault::Version { theirs: 9, ours: 2 }));
        assert_eq!(parse(0x2d), Err(ProtocolFault::Kind { kind: 13 }));
        let long = Header::parse(&[0x23, 0, 0, 0, 0, 4, 0, 0, 1, 2, 3], 11);
        assert_eq!(long, Err(ProtocolFault::Length { claimed: 4, arrived: 3 }));
        assert_eq!(format!("{:?}", PrivateData::from_slice(&[7, 8])), "PrivateData([7, 8])");
    }

    #[test]
    fn no_byte_string_makes_the_parser_fail_badly() {
        // Every first byte, with every length up to a header and beyond.
        for first in 0..=255u8 {
            for len in 0..=20usize {
                let slot = [first; 20];
                for arrived in [len, 20, usize::MAX] {
                    if let Ok(h) = Header::parse(&slot[..len], arrived) {
                        assert!(h.len as usize <= len.min(arrived) - HEADER);
                    }
                }
            }
        }
    }

    #[test]
    fn a_hello_must_be_for_this_lane_and_connection() {
        let info = HelloInfo { class: 1, generation: 9 };
        let resume = Resume { delivered: 0x0102_0304_0506, fresh: false, goodbye: true };
        let mut slot = [0u8; 32];
        assert_eq!(info.put(&mut slot, resume), Some(20));
        assert!(info.put(&mut slot[..27], resume).is_none());
        let payload = &slot[HEADER..HEADER + HELLO];
        assert_eq!(info.check(payload).unwrap().1, resume);
        for n in 0..HELLO {
            assert!(info.check(&payload[..n]).is_err());
            let mut bad = [0u8; HELLO];
            bad.copy_from_slice(payload);
            bad[n] ^= 1;
            // What was delivered is judged by who sent it; a reserved byte is written 0, and ignored when read.
            assert_eq!(info.check(&bad).is_ok(), (6..8).contains(&n) || n >= 12, "byte {n}");
        }
    }

    #[test]
    fn greetings_come_back_as_written_and_padding_is_ignored() {
        let greeting = Greeting {
            job: 0x0102_0304_0506_0708,
            from: ProcName { job: 1 << 40, rank: 3 },
            to: ProcName { job: 5, rank: u32::MAX },
            class: 1,
            generation: 77,
            buffer_size: 65536,
            depth: 16,
            route: CreditRoute::FirstLane,
            recover: true,
            lost: Some(5),
        };
        let route = CreditRoute::OwnLane;
        let plain = Greeting { recover: false, lost: None, route, ..greeting };
        assert_eq!(Greeting::decode(&plain.encode()), Ok(plain));
        let data = greeting.encode();
        assert_eq!(data.as_slice().len(), GREETING);
        assert_eq!(Greeting::decode(&data), Ok(greeting));
        let mut padded = data.as_slice().to_vec();
        padded.resize(196, 0);
        assert_eq!(Greeting::decode(&PrivateData::from_slice(&padded)), Ok(greeting));
        for n in 0..GREETING {
            let cut = PrivateData::from_slice(&data.as_slice()[..n]);
            assert_eq!(Greeting::decode(&cut), Err(RejectReason::Garbage));
        }
        padded[4] = 9;
        let other = Greeting::decode(&PrivateData::from_slice(&padded));
        assert_eq!(other, Err(RejectReason::Version));
    }

    #[test]
    fn credits_of_another_lane_name_it_by_class_dialler_and_generation() {
        let agreed = crate::route::agree(CreditRoute::FirstLane, CreditRoute::FirstLane).unwrap();
        let mut ledger = crate::credit::Ledger::new(4);
        for _ in 0..3 {
            ledger.post((), |()| Ok::<(), ()>(())).unwrap().enter();
        }
        let advert = ledger.advert_elsewhere(agreed).unwrap();
        let hello = HelloInfo { class: 2, generation: 0x0102_0304 };
        let mut slot = [0; 16];
        for (mine, theirs) in [(Role::Initiator, Role::Acceptor), (Role::Acceptor, Role::Initiator)]
        {
            assert_eq!(LaneCredit::put(&mut slot, &advert, hello, mine), Some(8));
            let told = LaneCredit { class: 2, role: theirs, credits: 3, generation: 0x0102_0304 };
            assert_eq!(LaneCredit::parse(&slot[8..]), Ok(told));
        }
        assert_eq!(LaneCredit::put(&mut slot[..15], &advert, hello, Role::Initiator), None);
        let short = ProtocolFault::LaneCredit { what: "they are too short" };
        assert_eq!(LaneCredit::parse(&slot[8..15]), Err(short));
        slot[8] = 0;
        let first = ProtocolFault::LaneCredit { what: "they are for the first lane" };
        assert_eq!(LaneCredit::parse(&slot[8..]), Err(first));
    }

    #[test]
    fn reject_reasons_come_back_as_written() {
        for reason in RejectReason::ALL {
            assert_eq!(RejectReason::decode(&reason.encode()), Some(reason));
            assert!(!reason.to_string().is_empty());
        }
        assert_eq!(RejectReason::decode(&PrivateData::default()), None);
        assert_eq!(RejectReason::decode(&PrivateData::from_slice(&[0; 56])), None);
    }
}
