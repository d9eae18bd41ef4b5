//! What a process publishes about itself through Open MPI's modex, and the checked reading of what
//! a peer published. Which rail of the peer goes with which of ours is decided in `pairing.rs`.
//!
//! The blob is ours alone: magic, version, then one self-delimiting record per rail (a rail is one
//! port of one device), all numbers in network byte order. A reader skips bytes it does not know at
//! the end of a record, so later versions can append. Everything in it comes from another process:
//! a blob that does not parse makes that peer unreachable and nothing else.
//!
//! ```text
//! blob  = "rsBT" version:u8 rails:u8 rail*
//! rail  = length:u16 transport:u8 naddrs:u8 nlanes:u8 flags:u8 eager:u32 buffer_size:u32{nlanes} addr{naddrs} unknown*
//! addr  = family:u8 (4 | 6) prefix:u8 port:u16 bytes (4 | 16)
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First bytes of every blob.
const MAGIC: [u8; 4] = *b"rsBT";
/// The format written here.
const VERSION: u8 = 2;
/// Bytes of a rail's record before its lists, without the length field.
const RAIL_FIXED: usize = 8;
/// Flag: the device can connect to its own address.
const LOOPBACK: u8 = 1;

/// What carries a rail; rails of different transports never pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// InfiniBand.
    Ib,
    /// RoCE.
    Roce,
    /// iWARP.
    Iwarp,
    /// A transport this build has no name for, by its number in the blob.
    Other(u8),
}

impl Carrier {
    fn code(self) -> u8 {
        match self {
            Self::Ib => 1,
            Self::Roce => 2,
            Self::Iwarp => 3,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Ib,
            2 => Self::Roce,
            3 => Self::Iwarp,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ib => f.write_str("InfiniBand"),
            Self::Roce => f.write_str("RoCE"),
            Self::Iwarp => f.write_str("iWARP"),
            Self::Other(code) => write!(f, "transport {code}"),
        }
    }
}

/// Where a listener is, with the length of the network prefix in bits (0 = not known).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RailAddr {
    /// An address of the device, and the port number its listener really has.
    pub(crate) at: SocketAddr,
    /// Bits of the network prefix.
    pub(crate) prefix: u8,
}

/// One port of one device, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rail {
    /// What carries it.
    pub(crate) carrier: Carrier,
    /// Whether processes of its node are reached over it.
    pub(crate) loopback: bool,
    /// Bytes of the largest message it sends in one piece, header included: both sides must find the same peers, so
    /// each checks both directions.
    pub(crate) eager: u32,
    /// Bytes of a receive buffer of each lane, lane 0 first.
    pub(crate) lanes: Vec<u32>,
    /// Where it listens, best first; never loopback or link-local.
    pub(crate) addrs: Vec<RailAddr>,
}

/// Why a blob was not written or not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModexError {
    /// Not a blob of this component.
    Magic,
    /// Written by another version of the component.
    Version(u8),
    /// A length points behind the end.
    Truncated,
    /// A field has a value that makes no sense.
    Field(&'static str),
    /// A list does not fit its length field.
    TooLong(&'static str),
}

impl fmt::Display for ModexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("the data is not from a btl:verbs of this project"),
            Self::Version(version) => write!(
                f,
                "its btl:verbs writes format {version}, this one reads {VERSION}: install the same component everywhere"
            ),
            Self::Truncated => f.write_str("the data ends too early"),
            Self::Field(name) => write!(f, "the field {name} makes no sense"),
            Self::TooLong(name) => write!(f, "too many {name}"),
        }
    }
}

impl std::error::Error for ModexError {}

/// Whether a peer can do something with the address: not loopback, link-local, unspecified or
/// multicast.
pub(crate) fn publishable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            !(v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast())
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => publishable(IpAddr::V4(v4)),
            None => {
                !(v6.is_loopback()
                    || v6.is_unicast_link_local()
                    || v6.is_unspecified()
                    || v6.is_multicast())
            }
        },
    }
}

/// Writes the blob.
///
/// # Errors
/// [`ModexError::TooLong`] when a list has more entries than its length field can say;
/// [`ModexError::Field`] for an address no peer may be given.
pub(crate) fn encode(rails: &[Rail]) -> Result<Vec<u8>, ModexError> {
    let mut blob = Vec::with_capacity(64);
    blob.extend_from_slice(&MAGIC);
    blob.push(VERSION);
    blob.push(count(rails.len(), "rails")?);
    for rail in rails {
        let mut record = Vec::with_capacity(64);
        record.push(rail.carrier.code());
        record.push(count(rail.addrs.len(), "addresses")?);
        record.push(count(rail.lanes.len(), "lanes")?);
        record.push(if rail.loopback { LOOPBACK } else { 0 });
        record.extend_from_slice(&rail.eager.to_be_bytes());
        for lane in &rail.lanes {
            record.extend_from_slice(&lane.to_be_bytes());
        }
        for addr in &rail.addrs {
            encode_addr(addr, &mut record)?;
        }
        let length =
            u16::try_from(record.len()).map_err(|_| ModexError::TooLong("bytes in a rail"))?;
        blob.extend_from_slice(&length.to_be_bytes());
        blob.extend_from_slice(&record);
    }
    Ok(blob)
}

fn encode_addr(addr: &RailAddr, record: &mut Vec<u8>) -> Result<(), ModexError> {
    if !publishable(addr.at.ip()) {
        return Err(ModexError::Field("address"));
    }
    let port = addr.at.port().to_be_bytes();
    match addr.at.ip() {
        IpAddr::V4(v4) => {
            record.extend_from_slice(&[4, addr.prefix]);
            record.extend_from_slice(&port);
            record.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            record.extend_from_slice(&[6, addr.prefix]);
            record.extend_from_slice(&port);
            record.extend_from_slice(&v6.octets());
        }
    }
    Ok(())
}

fn count(n: usize, what: &'static str) -> Result<u8, ModexError> {
    u8::try_from(n).map_err(|_| ModexError::TooLong(what))
}

/// Reads a blob. Addresses that no peer should have published are left out.
///
/// # Errors
/// See [`ModexError`]; the caller treats the peer as unreachable and says why.
pub(crate) fn decode(blob: &[u8]) -> Result<Vec<Rail>, ModexError> {
    let mut reader = Reader(blob);
    if reader.array::<4>().map_err(|_| ModexError::Magic)? != MAGIC {
        return Err(ModexError::Magic);
    }
    let version = reader.u8()?;
    if version != VERSION {
        return Err(ModexError::Version(version));
    }
    let rails = reader.u8()?;
    (0..rails).map(|_| decode_rail(&mut reader)).collect()
}

fn decode_rail(reader: &mut Reader<'_>) -> Result<Rail, ModexError> {
    let length = usize::from(reader.u16()?);
    if length < RAIL_FIXED {
        return Err(ModexError::Field("length"));
    }
    let mut record = Reader(reader.take(length)?);
    let carrier = Carrier::from_code(record.u8()?);
    let addr_count = record.u8()?;
    let lane_count = record.u8()?;
    let loopback = record.u8()? & LOOPBACK != 0;
    let eager = record.u32()?;
    let lanes = (0..lane_count).map(|_| record.u32()).collect::<Result<Vec<_>, _>>()?;
    let mut addrs = Vec::with_capacity(usize::from(addr_count));
    for _ in 0..addr_count {
        let addr = decode_addr(&mut record)?;
        if publishable(addr.at.ip()) {
            addrs.push(addr);
        }
    }
    Ok(Rail { carrier, loopback, eager, lanes, addrs })
}

fn decode_addr(record: &mut Reader<'_>) -> Result<RailAddr, ModexError> {
    let family = record.u8()?;
    let prefix = record.u8()?;
    let port = record.u16()?;
    if port == 0 {
        return Err(ModexError::Field("port"));
    }
    let (ip, bits) = match family {
        4 => (IpAddr::V4(Ipv4Addr::from(record.array::<4>()?)), 32),
        6 => (IpAddr::V6(Ipv6Addr::from(record.array::<16>()?)), 128),
        _ => return Err(ModexError::Field("address family")),
    };
    if prefix > bits {
        return Err(ModexError::Field("prefix"));
    }
    Ok(RailAddr { at: SocketAddr::new(ip, port), prefix })
}

/// Takes from the front of a slice; never panics.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], ModexError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(ModexError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ModexError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(ModexError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, ModexError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, ModexError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, ModexError> {
        self.array().map(u32::from_be_bytes)
    }
}

#[cfg(test)]
#[path = "modex_test.rs"]
mod tests;
