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
    _region: Region,
}

/// What posting a slot needs; never changes.
pub(crate) struct SlotHeader {
    start: NonNull<u8>,
    capacity: u32,
    lkey: u32,
    /// The Arc allocation each slot owns one count of.
    owner: *const SlotRegion,
    /// Identity of the protection domain; compared, never read through.
    pd: *const PdInner,
}

// SAFETY: the header is immutable and names memory that only the holder of its one Slot uses.
unsafe impl Send for SlotHeader {}
// SAFETY: as above.
unsafe impl Sync for SlotHeader {}

/// Sole owner of one piece of registered memory, at least 1 byte. One word, `Send`.
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
pub struct Slot(NonNull<SlotHeader>);

static_assertions::assert_eq_size!(Option<Slot>, usize);

// SAFETY: a slot is the only way to its memory, and the header it shares with nobody is immutable; the region behind it
// is Send and Sync.
unsafe impl Send for Slot {}
// SAFETY: a shared slot only allows reads.
unsafe impl Sync for Slot {}

impl Slot {
    #[inline(always)]
    fn header(&self) -> &SlotHeader {
        // SAFETY: the header lives in the SlotRegion this slot holds a count of.
        unsafe { self.0.as_ref() }
    }

    /// Bytes it can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.header().capacity as usize
    }

    /// Address, capacity in bytes and local key, for a work request.
    #[inline(always)]
    pub(crate) fn wire(&self) -> (u64, u32, u32) {
        let h = self.header();
        (h.start.as_ptr() as u64, h.capacity, h.lkey)
    }

    #[inline(always)]
    pub(crate) fn is_of(&self, pd: *const PdInner) -> bool {
        std::ptr::eq(self.header().pd, pd)
    }
}

impl Deref for Slot {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        let h = self.header();
        // SAFETY: initialised memory of that size; a slot in hand is not in the device's hands, and nobody else has it.
        unsafe { std::slice::from_raw_parts(h.start.as_ptr(), h.capacity as usize) }
    }
}

impl DerefMut for Slot {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let h = self.header();
        // SAFETY: as in Deref, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(h.start.as_ptr(), h.capacity as usize) }
    }
}

impl Drop for Slot {
    #[inline(always)]
    fn drop(&mut self) {
        release(self.0);
    }
}

/// By value, so that a possible drop does not force a slot out of its register.
#[cold]
#[inline(never)]
fn release(header: NonNull<SlotHeader>) {
    // SAFETY: the slot owned one count of this Arc and is gone now. The header is read before the count falls.
    unsafe { Arc::decrement_strong_count(header.as_ref().owner) }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} bytes at {:p})", self.capacity(), self.header().start)
    }
}

/// Cuts a region into slots.
pub(crate) fn slots_of(region: Region, size: usize, count: usize) -> Result<Vec<Slot>> {
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
    let lkey = region.lkey();
    let pd = Arc::as_ptr(&region.pd);
    let owner = Arc::new_cyclic(|weak: &std::sync::Weak<SlotRegion>| {
        let header = |i: usize| SlotHeader {
            // SAFETY: `fits` checked that stride * (count - 1) + size is within the region, whose start is not null.
            start: unsafe { NonNull::new_unchecked(start.add(i * stride)) },
            capacity,
            lkey,
            owner: weak.as_ptr(),
            pd,
        };
        SlotRegion { headers: (0..count).map(header).collect(), _region: region }
    });
    Ok(owner
        .headers
        .iter()
        .map(|h| {
            // The count this slot owns; given back by `release`.
            let _ = Arc::into_raw(Arc::clone(&owner));
            Slot(NonNull::from(h))
        })
        .collect())
}
