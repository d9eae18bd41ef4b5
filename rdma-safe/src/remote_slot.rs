//! A slot that peers may use too: the portable sink of RDMA reads, and what peers read, write and count in.

use crate::error::{Error, ErrorKind, Result};
use crate::mr::{MemoryRegion, Remote, Words};
use crate::remote::RemoteRange;
use crate::slot::{HeaderPtr, headers_of, release};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sole owner, in this process, of one piece of memory that peers may access. One word, `Send`.
///
/// Made by [`MemoryRegion::into_slots`](crate::MemoryRegion::into_slots) of a region that peers may use.
///
/// Because a peer may change it at any time it is never a `&[u8]`: bytes are copied in and out, aligned 8-byte words
/// are read and written whole. Posting moves it into the queue, its completion gives it back. Peers may go on using the
/// memory until the last slot of the region is dropped.
///
/// ```compile_fail,E0614
/// # fn f(slot: rdma_safe::RemoteSlot) {
/// let bytes: &[u8] = &*slot;
/// # }
/// ```
pub struct RemoteSlot(HeaderPtr);

static_assertions::assert_eq_size!(Option<RemoteSlot>, usize);
static_assertions::assert_impl_all!(RemoteSlot: Send, Sync);
static_assertions::assert_not_impl_any!(RemoteSlot: Clone, Copy, std::ops::Deref);

impl MemoryRegion<Remote> {
    /// Cuts the region into `count` slots of `size` bytes, each on a 64-byte boundary of the region. Whoever knows the
    /// key of the region can use all of them, as it was registered.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when a size is 0, above 4 GiB - 1, or the slots do not fit; the
    /// region is dropped then.
    pub fn into_slots(self, size: usize, count: usize) -> Result<Vec<RemoteSlot>> {
        Ok(headers_of(self.region, size, count)?.map(RemoteSlot).collect())
    }
}

impl RemoteSlot {
    /// Bytes it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.wire().capacity as usize
    }

    /// What to tell a peer that shall use the whole slot.
    pub fn remote(&self) -> RemoteRange {
        let wire = self.0.wire();
        RemoteRange { addr: wire.addr, len: wire.capacity.into(), rkey: self.0.region().rkey() }
    }

    /// Copies `data` in at `offset` bytes. A peer that reads meanwhile may see a mixture.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it does not fit.
    pub fn copy_in(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        self.within(offset, data.len())?;
        self.words().copy_in(offset, data);
        Ok(())
    }

    /// Copies out from `offset` bytes on. A peer that writes meanwhile may leave a mixture.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it is out of bounds.
    pub fn copy_out(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        self.within(offset, data.len())?;
        self.words().copy_out(offset, data);
        Ok(())
    }

    /// The 8-byte word at `offset` bytes, in host order, read whole (acquire).
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it is out of bounds or its address no multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.with_word(offset, |word| word.load(Ordering::Acquire))
    }

    /// Writes the 8-byte word at `offset` bytes, in host order, whole (release).
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&mut self, offset: usize, value: u64) -> Result<()> {
        self.with_word(offset, |word| word.store(value, Ordering::Release))
    }

    fn words(&self) -> Words {
        // SAFETY: the slot's own memory, mapped as long as the region, which `self` holds; in this process only this
        // slot's accesses reach it.
        unsafe { Words::new(self.0.start(), self.capacity()) }
    }

    fn with_word<T>(&self, offset: usize, use_it: impl FnOnce(&AtomicU64) -> T) -> Result<T> {
        self.within(offset, size_of::<u64>())?;
        match self.words().word(offset) {
            Some(word) => Ok(use_it(word)),
            None => Err(outside(format!("a word at {offset} is not aligned to 8 bytes"))),
        }
    }

    fn within(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.capacity() => Ok(()),
            _ => Err(outside(format!(
                "{len} bytes at {offset} are outside a slot of {}",
                self.capacity()
            ))),
        }
    }

    #[inline(always)]
    pub(crate) fn into_header(self) -> HeaderPtr {
        let header = self.0;
        std::mem::forget(self);
        header
    }

    /// # Safety
    /// `header` came from [`into_header`](Self::into_header), and this is done once for it.
    #[inline(always)]
    pub(crate) unsafe fn from_header(header: HeaderPtr) -> RemoteSlot {
        RemoteSlot(header)
    }
}

fn outside(why: String) -> Error {
    Error::refused("remote slot", ErrorKind::InvalidArgument, why)
}

impl Drop for RemoteSlot {
    fn drop(&mut self) {
        // SAFETY: the slot owned this count and is gone.
        unsafe { release(self.0) }
    }
}

impl fmt::Debug for RemoteSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteSlot({:?})", self.remote())
    }
}
