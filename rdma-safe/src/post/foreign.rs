//! One-sided requests over memory of somebody else, for which its owner vouches once.

use super::error::{PostError, Why};
use super::raw::{RawRequest, RawSge, RawVerb};
use crate::error::{Error, ErrorKind, Result};
use crate::mr::{Foreign, MemoryRegion, Region};
use crate::qp::QueuePair;
use crate::qp_attr::SendFlags;
use std::fmt;
use std::sync::Arc;

/// A range of a [`MemoryRegion<Foreign>`](MemoryRegion), at least 1 byte, that requests may use. It keeps the region
/// registered. Neither `Copy` nor `Clone`: whoever has it decides what is posted.
pub struct ForeignSlice {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

static_assertions::assert_impl_all!(ForeignSlice: Send, Sync);
static_assertions::assert_not_impl_any!(ForeignSlice: Clone, Copy);

impl MemoryRegion<Foreign> {
    /// A range of it, to be posted with [`QueuePair::post_foreign`].
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the range is empty or not within the region.
    ///
    /// # Safety
    /// Until every request that is ever posted with the slice is done (its completion was redeemed, it was reclaimed, or
    /// its queue pair was destroyed), and if that cannot be known, for ever: the memory stays mapped; nobody changes the
    /// bytes that a write reads; nobody uses those that a read or atomic writes, and the region was registered with
    /// [`Access::read_sink`](crate::Access::read_sink) for them.
    pub unsafe fn slice(&self, offset: usize, len: usize) -> Result<ForeignSlice> {
        match offset.checked_add(len) {
            Some(end) if len > 0 && end <= self.len() => {
                Ok(ForeignSlice { region: Arc::clone(&self.region), offset, len })
            }
            _ => Err(Error::refused(
                "foreign slice",
                ErrorKind::InvalidArgument,
                format!("{len} bytes at {offset} of a region of {}", self.len()),
            )),
        }
    }
}

impl ForeignSlice {
    /// Bytes; never 0.
    #[allow(clippy::len_without_is_empty)] // it is never empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for ForeignSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignSlice({} bytes at {})", self.len, self.offset)
    }
}

impl QueuePair {
    /// Posts a write, read or atomic over `len` bytes at `offset` of a slice. Its completion gives `token` back, as
    /// [`PayloadKind::Token`](crate::PayloadKind::Token).
    ///
    /// # Errors
    /// As [`post_raw`](Self::post_raw); [`Why::TooLong`] when the bytes are not within the slice, or 4 GiB or more;
    /// [`Why::WrongDomain`] for memory of another domain; [`Why::WrongRequest`] for a send.
    pub fn post_foreign(
        &mut self,
        verb: RawVerb,
        memory: &ForeignSlice,
        offset: usize,
        len: usize,
        token: usize,
    ) -> std::result::Result<(), PostError> {
        let end = offset.checked_add(len).filter(|end| *end <= memory.len);
        let why = if matches!(verb, RawVerb::Send) {
            Some(Why::WrongRequest)
        } else if Arc::as_ptr(&memory.region.pd) != self.domain() {
            Some(Why::WrongDomain)
        } else if end.is_none() {
            Some(Why::TooLong)
        } else {
            None
        };
        let (None, Ok(size)) = (why, u32::try_from(len)) else {
            return Err(PostError::of_slot(why.unwrap_or(Why::TooLong), None));
        };
        let wire = memory.region.wire(memory.offset + offset, size);
        let pieces = [RawSge { addr: wire.addr, len: size, lkey: wire.lkey }];
        let request = RawRequest { verb, pieces: &pieces, flags: SendFlags::empty(), imm: None };
        // SAFETY: the piece is within the slice and so within its region, which is of this domain and registered as long
        // as the slice; whoever made the slice vouched for the memory until the request is done.
        unsafe { self.post_raw(&request, token) }
    }
}
