//! Registered memory that many requests may read at once: the source of sends and writes.

#![forbid(unsafe_code)]

use crate::error::{Error, ErrorKind, Result};
use crate::mr::{Local, MemoryRegion};
use crate::slot::Wire;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Read-only registered memory behind an [`Arc`]. Cloning shares it; deregistered and freed with the last clone and
/// the last [`SharedSlice`] of it.
///
/// Made by [`MemoryRegion::into_shared`](crate::MemoryRegion::into_shared).
#[derive(Clone)]
pub struct SharedRegion(Arc<MemoryRegion<Local>>);

impl MemoryRegion<Local> {
    /// Gives up the right to change the memory for the right to post it any number of times at once.
    pub fn into_shared(self) -> SharedRegion {
        SharedRegion(Arc::new(self))
    }
}

impl SharedRegion {
    /// A range of it, to be posted. The slice costs one allocation and one count; it comes back from its completion, so
    /// one that is used again costs nothing more.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the range is empty, not within the region, or longer than
    /// 4 GiB - 1.
    pub fn slice(&self, offset: usize, len: usize) -> Result<SharedSlice> {
        let end = offset.checked_add(len).filter(|end| *end <= self.0.len());
        match (end, u32::try_from(len)) {
            (Some(end), Ok(capacity)) if capacity > 0 => {
                let wire = self.0.region.wire(offset, capacity);
                Ok(SharedSlice(Box::new(Piece { wire, range: offset..end, region: self.clone() })))
            }
            _ => Err(Error::refused(
                "shared slice",
                ErrorKind::InvalidArgument,
                format!("{len} bytes at {offset} of a region of {}", self.0.len()),
            )),
        }
    }

    /// Takes the memory back if nothing else shares it.
    ///
    /// # Errors
    /// Itself, while a clone or a slice of it exists.
    pub fn try_unshare(self) -> std::result::Result<MemoryRegion<Local>, SharedRegion> {
        Arc::try_unwrap(self.0).map_err(SharedRegion)
    }
}

impl Deref for SharedRegion {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRegion({} bytes)", self.0.len())
    }
}

/// Begins with what a request needs, as every payload does.
#[repr(C)]
pub(crate) struct Piece {
    pub(crate) wire: Wire,
    range: Range<usize>,
    region: SharedRegion,
}

/// A range of a [`SharedRegion`], at least 1 byte: source of sends and writes, never written. One word.
///
/// Made by [`SharedRegion::slice`](crate::SharedRegion::slice).
///
/// Any number of slices may name the same bytes. Posting moves the slice into the queue, its completion gives it back.
pub struct SharedSlice(pub(crate) Box<Piece>);

static_assertions::assert_eq_size!(Option<SharedSlice>, usize);
static_assertions::assert_impl_all!(SharedRegion: Clone, Send, Sync);
static_assertions::assert_impl_all!(SharedSlice: Send, Sync);

impl SharedSlice {
    /// The region it is a part of.
    pub fn region(&self) -> &SharedRegion {
        &self.0.region
    }
}

impl Clone for SharedSlice {
    /// Another slice of the same bytes: one allocation and one count.
    fn clone(&self) -> SharedSlice {
        let p = &*self.0;
        SharedSlice(Box::new(Piece {
            wire: p.wire,
            range: p.range.clone(),
            region: p.region.clone(),
        }))
    }
}

impl Deref for Piece {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // Checked when the slice was made; the region's length never changes.
        self.region.get(self.range.clone()).unwrap_or_default()
    }
}

impl Deref for SharedSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSlice({:?} of {:?})", self.0.range, self.0.region)
    }
}
