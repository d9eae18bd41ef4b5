//! A slot: one word that owns one piece of registered memory.
//!
//! It points at its read-only header in an array that belongs to the region. (With address, length and key in the slot
//! itself, 24 bytes, a send cost 49 instructions more.) Each slot owns one count of the region's `Arc`; the count is
//! touched when slots are made and dropped, never when they are posted or redeemed.

use crate::error::{Error, ErrorKind, Result};
use crate::mr::Region;
use crate::pd::PdInner;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Slots start on multiples of this many bytes, so that two never share a cache line.
pub(crate) const SLOT_ALIGN: usize = 64;

/// A region cut into slots, with their headers. Freed with the last slot.
struct SlotRegion {
    headers: Box<[SlotHeader]>,
    /// Dropped with the last slot: deregistered, then freed.
    region: Arc<Region>,
}

/// What a request needs of a piece of memory; never changes. Every payload's header begins with it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wire {
    /// As the device knows it.
    pub(crate) addr: u64,
    /// Bytes; at least 1.
    pub(crate) capacity: u32,
    pub(crate) lkey: u32,
    /// Identity of the protection domain; compared, never read through.
    pub(crate) pd: *const PdInner,
}

// SAFETY: numbers, and a pointer that is never read through.
unsafe impl Send for Wire {}
// SAFETY: as above.
unsafe impl Sync for Wire {}

/// What a slot points at.
#[repr(C)]
pub(crate) struct SlotHeader {
    wire: Wire,
    start: NonNull<u8>,
    /// The Arc allocation each slot owns one count of.
    owner: *const SlotRegion,
}

/// A header, and one count of the region it is in. Whoever holds it frees that with [`release`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct HeaderPtr(NonNull<SlotHeader>);

// SAFETY: the header is immutable, names memory that only the holder of its one slot uses, and the region behind it is
// Send and Sync.
unsafe impl Send for HeaderPtr {}
// SAFETY: as above.
unsafe impl Sync for HeaderPtr {}

impl HeaderPtr {
    #[inline(always)]
    fn header(&self) -> &SlotHeader {
        // SAFETY: the header lives in the SlotRegion that the holder has a count of.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn wire(&self) -> &Wire {
        &self.header().wire
    }

    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<SlotHeader> {
        self.0
    }

    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), whose count now belongs to the result.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: NonNull<SlotHeader>) -> HeaderPtr {
        HeaderPtr(raw)
    }

    #[inline(always)]
    pub(crate) fn start(&self) -> *mut u8 {
        self.header().start.as_ptr()
    }

    pub(crate) fn region(&self) -> &Region {
        // SAFETY: the holder has a count of the SlotRegion, so it is alive.
        unsafe { &(*self.header().owner).region }
    }
}

// SAFETY: the header is immutable and names memory that only the holder of its one Slot uses.
unsafe impl Send for SlotHeader {}
// SAFETY: as above.
unsafe impl Sync for SlotHeader {}

/// Sole owner of one piece of registered memory, at least 1 byte. One word, `Send`.
///
/// Made by [`ProtectionDomain::slots`](crate::ProtectionDomain::slots).
///
/// Dereferences to its whole capacity. Posting moves it into the queue; its completion gives it back:
///
/// ```compile_fail,E0382
/// # fn f(qp: &mut rdma_safe::QueuePair, mut slot: rdma_safe::Slot) {
/// slot[0] = 1;
/// let posted = qp.post_recv(slot);
/// slot[0] = 2; // the device owns it now
/// # }
/// ```
///
/// It cannot be copied, so the same memory cannot be posted twice:
///
/// ```compile_fail,E0599
/// # fn f(slot: rdma_safe::Slot) {
/// let twin = slot.clone();
/// # }
/// ```
#[repr(transparent)]
pub struct Slot(HeaderPtr);

static_assertions::assert_eq_size!(Option<Slot>, usize);

static_assertions::assert_impl_all!(Slot: Send, Sync);

impl Slot {
    /// Bytes it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.wire().capacity as usize
    }

    #[inline(always)]
    pub(crate) fn wire(&self) -> &Wire {
        self.0.wire()
    }

    /// Whether it is a piece of this region.
    pub(crate) fn is_in(&self, region: &Region) -> bool {
        std::ptr::eq(self.0.region(), region)
    }

    #[inline(always)]
    pub(crate) fn is_of(&self, pd: *const PdInner) -> bool {
        std::ptr::eq(self.0.wire().pd, pd)
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
    pub(crate) unsafe fn from_header(header: HeaderPtr) -> Slot {
        Slot(header)
    }
}

impl Deref for Slot {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let h = self.0.header();
        // SAFETY: initialised memory of that size; a slot in hand is not in the device's hands, and nobody else has it.
        unsafe { std::slice::from_raw_parts(h.start.as_ptr(), h.wire.capacity as usize) }
    }
}

impl DerefMut for Slot {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let h = self.0.header();
        // SAFETY: as in Deref, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(h.start.as_ptr(), h.wire.capacity as usize) }
    }
}

impl Drop for Slot {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the slot owned this count and is gone.
        unsafe { release(self.0) }
    }
}

/// Gives back one count. By value, so that a possible drop does not force a slot out of its register.
///
/// # Safety
/// The caller owned the count, and does not use the header any more.
#[cold]
#[inline(never)]
pub(crate) unsafe fn release(header: HeaderPtr) {
    // SAFETY: the caller's promise. The owner is read before the count falls.
    unsafe { Arc::decrement_strong_count(header.0.as_ref().owner) }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} bytes at {:p})", self.capacity(), self.0.start())
    }
}

/// Cuts a region into slots.
pub(crate) fn slots_of(region: Arc<Region>, size: usize, count: usize) -> Result<Vec<Slot>> {
    Ok(headers_of(region, size, count)?.map(Slot).collect())
}

/// Headers for `count` pieces of a region, each with the one count its slot shall own.
pub(crate) fn headers_of(
    region: Arc<Region>,
    size: usize,
    count: usize,
) -> Result<impl Iterator<Item = HeaderPtr>> {
    let stride = size.checked_next_multiple_of(SLOT_ALIGN);
    let fits = |stride: usize| {
        // The last slot needs no padding behind it.
        let last = stride.checked_mul(count - 1).and_then(|s| s.checked_add(size));
        last.is_some_and(|end| end <= region.len())
    };
    let (capacity, stride) = match (u32::try_from(size), stride) {
        (Ok(c), Some(s)) if c > 0 && count > 0 && fits(s) => (c, s),
        _ => {
            return Err(Error::refused(
                "slots",
                ErrorKind::InvalidArgument,
                format!(
                    "{count} slots of {size} bytes do not fit a region of {} bytes",
                    region.len()
                ),
            ));
        }
    };
    let start = region.start();
    let owner = Arc::new_cyclic(|weak: &std::sync::Weak<SlotRegion>| {
        let header = |i: usize| SlotHeader {
            wire: region.wire(i * stride, capacity),
            // SAFETY: `fits` checked that stride * (count - 1) + size is within the region, whose start is not null.
            start: unsafe { NonNull::new_unchecked(start.add(i * stride)) },
            owner: weak.as_ptr(),
        };
        SlotRegion { headers: (0..count).map(header).collect(), region }
    });
    Ok((0..count).map_while(move |i| {
        let header = NonNull::from(owner.headers.get(i)?);
        // The count this header's slot owns; given back by `release`. The iterator's own one goes with it.
        let _ = Arc::into_raw(Arc::clone(&owner));
        Some(HeaderPtr(header))
    }))
}
