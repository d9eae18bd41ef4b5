//! Memory a device may be given: owned, at a fixed address, freed only by us.

use crate::error::{Error, Result};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A buffer that stays where it is until it is dropped.
///
/// # Safety
/// [`as_ptr`](Self::as_ptr) and [`len`](Self::len) always return the same values, name memory that is valid for reads
/// and writes, initialised, and used by nobody else until the buffer is dropped; the pointer may be written through (so
/// it does not come from a shared reference); moving the implementing value does not move that memory, and does not
/// assert exclusive access to it (so no `Box<[u8]>` inside: keep a raw pointer).
pub unsafe trait StableBuffer: Send + 'static {
    /// Start of the memory; not null, also when the length is 0.
    fn as_ptr(&self) -> *mut u8;
    /// Its length in bytes.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A `Vec` taken apart: what `Vec::as_ptr` returns may not be written through.
struct Heap {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: plain memory, owned by this value alone.
unsafe impl Send for Heap {}

impl From<Vec<u8>> for Heap {
    fn from(v: Vec<u8>) -> Heap {
        let mut v = ManuallyDrop::new(v);
        let (len, capacity) = (v.len(), v.capacity());
        // An empty Vec's pointer is dangling, but never null.
        let start = NonNull::new(v.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Heap { start, len, capacity }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: exactly the parts of the Vec taken apart in `from`, put together once.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

// SAFETY: the heap block stays where it is until Drop frees it.
unsafe impl StableBuffer for Heap {
    fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// Zeroed pages of their own (anonymous mmap), so that nothing else shares a page with registered memory.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, owned by this value alone.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `OwnedMemory::zeroed`, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: a mapping has a fixed address until munmap, which only Drop does.
unsafe impl StableBuffer for Pages {
    fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// Memory that can be registered: a [`Vec`], a boxed slice, fresh pages or any [`StableBuffer`]. Until it is registered,
/// and after [`deregister`](crate::MemoryRegion::deregister), it is a slice of bytes.
pub struct OwnedMemory(Box<dyn StableBuffer>);

impl OwnedMemory {
    /// `len` bytes, zeroed, in pages that hold nothing else.
    ///
    /// # Errors
    /// The errno of mmap (ENOMEM), or EINVAL for length 0.
    pub fn zeroed(len: usize) -> Result<OwnedMemory> {
        OwnedMemory::map(len, 0)
    }

    /// `len` bytes, zeroed, rounded up to huge pages of 2 MiB, which the machine must have set aside. Faster to register,
    /// and fewer translations for the device.
    ///
    /// # Errors
    /// The errno of mmap: ENOMEM when there are not enough (the hint says where they are set aside), or EINVAL for length
    /// 0 and for a kernel without them.
    pub fn huge_pages(len: usize) -> Result<OwnedMemory> {
        const HUGE: usize = 2 << 20;
        let rounded = len.checked_next_multiple_of(HUGE).unwrap_or(usize::MAX);
        let log_size = HUGE.ilog2().cast_signed() << libc::MAP_HUGE_SHIFT;
        OwnedMemory::map(rounded, libc::MAP_HUGETLB | log_size).map_err(|e| {
            e.with_hint(format!(
                "{rounded} bytes of huge pages; set some aside: `sysctl vm.nr_hugepages={}`",
                rounded / HUGE
            ))
        })
    }

    fn map(len: usize, flags: i32) -> Result<OwnedMemory> {
        // SAFETY: a new anonymous mapping; nothing existing is replaced.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        match NonNull::new(p.cast()) {
            Some(start) => Ok(OwnedMemory(Box::new(Pages { start, len }))),
            None => Err(Error::os("mmap", libc::ENOMEM)),
        }
    }

    /// Wraps a buffer of the caller's own kind.
    pub fn new(buffer: impl StableBuffer) -> OwnedMemory {
        OwnedMemory(Box::new(buffer))
    }

    /// Start of the memory.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
}

/// While it is not registered it is this process's alone.
impl Deref for OwnedMemory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: StableBuffer promises initialised memory that nobody else uses; no device has it, for registering
        // takes the value.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl DerefMut for OwnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in Deref, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

impl From<Vec<u8>> for OwnedMemory {
    fn from(v: Vec<u8>) -> OwnedMemory {
        OwnedMemory::new(Heap::from(v))
    }
}

impl From<Box<[u8]>> for OwnedMemory {
    fn from(b: Box<[u8]>) -> OwnedMemory {
        OwnedMemory::from(b.into_vec())
    }
}

impl fmt::Debug for OwnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedMemory({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this machine has set some aside or not.
    #[test]
    fn huge_pages_are_there_or_the_error_says_how_to_get_them() {
        match OwnedMemory::huge_pages(1) {
            Ok(m) => assert_eq!((m.len(), m[0]), (2 << 20, 0)),
            Err(e) => assert!(e.to_string().contains("vm.nr_hugepages=1"), "{e}"),
        }
        assert!(OwnedMemory::huge_pages(0).is_err());
        assert!(OwnedMemory::huge_pages(usize::MAX).is_err());
    }

    #[test]
    fn pages_are_zeroed_and_a_vec_stays_put() {
        let m = OwnedMemory::zeroed(5000).unwrap();
        assert!(m.len() == 5000 && m.iter().all(|b| *b == 0));
        assert!(OwnedMemory::zeroed(0).is_err());
        let v = vec![7u8; 3];
        let at = v.as_ptr();
        let m = OwnedMemory::from(v);
        assert_eq!((m.as_ptr().cast_const(), m.len()), (at, 3));
        let mut m = std::iter::once(m).collect::<Vec<_>>().remove(0);
        m[0] = 9;
        assert_eq!(m[..], [9, 7, 7]);
        assert!(OwnedMemory::from(Vec::new()).is_empty());
        assert_eq!(OwnedMemory::from(vec![1u8; 5].into_boxed_slice()).len(), 5);
    }
}
