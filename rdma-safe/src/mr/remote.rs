//! Regions that peers may use.

use super::words::Words;
use super::{MemoryRegion, Region, Registration, Remote, RemoteAccess, access};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::OwnedMemory;
use crate::pd::ProtectionDomain;
use crate::remote::RemoteRange;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a region are copied, and 8-byte words of it used as atomics, through shared references: other threads may
/// do the same. Every access is atomic in itself; order between them is up to the words.
///
/// The words are those at multiples of 8 of the *address*: of every offset that is a multiple of 8, unless the memory is
/// a `Vec` that happens to start elsewhere. Whether they are atomic with what the device does to them for a peer,
/// [`AtomicScope`](crate::AtomicScope) tells; a plain load or store of a word is whole on every device known.
impl MemoryRegion<Remote> {
    pub(crate) fn register_remote_with(
        pd: &ProtectionDomain,
        memory: OwnedMemory,
        access: RemoteAccess,
        how: &Registration,
    ) -> Result<Self> {
        let flags = access::remote_flags(pd.context(), access, how)?;
        Ok(MemoryRegion::of(Region::register(pd, memory, flags, how.iova)?))
    }

    /// The key a peer needs. Whoever knows it can use the region as registered until it is dropped.
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// The address a peer names for the first byte.
    pub fn remote_addr(&self) -> u64 {
        self.region.wire_addr()
    }

    /// What to tell a peer that shall use the whole region.
    pub fn remote(&self) -> RemoteRange {
        RemoteRange { addr: self.remote_addr(), len: self.len() as u64, rkey: self.rkey() }
    }

    /// Copies `data` into the region at `offset` bytes (relaxed). A peer or a thread that reads meanwhile may see a
    /// mixture.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it does not fit; nothing is copied then.
    pub fn copy_in(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.within("copy", offset, data.len())?;
        self.words().copy_in(offset, data);
        Ok(())
    }

    /// Copies from the region at `offset` bytes into `data` (relaxed). A peer or a thread that writes meanwhile may
    /// leave a mixture.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it is out of bounds; nothing is copied then.
    pub fn copy_out(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        self.within("copy", offset, data.len())?;
        self.words().copy_out(offset, data);
        Ok(())
    }

    /// The word at `offset` bytes, in host order, read whole (acquire).
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it is out of bounds or its address no multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.with_word(offset, |w| w.load(Ordering::Acquire))
    }

    /// Writes the word at `offset` bytes, in host order, whole (release).
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.with_word(offset, |w| w.store(value, Ordering::Release))
    }

    /// Replaces the word at `offset` bytes by `new` if it is `expected`; returns what it was (acquire and release).
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn compare_exchange_u64(&self, offset: usize, expected: u64, new: u64) -> Result<u64> {
        self.with_word(offset, |w| {
            match w.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(was) | Err(was) => was,
            }
        })
    }

    /// Adds to the word at `offset` bytes, wrapping; returns what it was (acquire and release).
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64> {
        self.with_word(offset, |w| w.fetch_add(add, Ordering::AcqRel))
    }

    /// Start of the memory, for `unsafe` code that knows what peers do. It must not be used after the region is gone,
    /// and never through references: a peer may change the bytes at any time.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.start()
    }

    fn words(&self) -> Words {
        // SAFETY: the region's own memory, alive as long as `self`; in this process only this module's accesses, and
        // slots, for which `self` is given up, reach it.
        unsafe { Words::new(self.region.start(), self.region.len()) }
    }

    fn with_word<T>(&self, offset: usize, use_it: impl FnOnce(&AtomicU64) -> T) -> Result<T> {
        self.within("atomic", offset, size_of::<u64>())?;
        let words = self.words();
        match words.word(offset) {
            Some(word) => Ok(use_it(word)),
            None => Err(Error::refused(
                "atomic",
                ErrorKind::InvalidArgument,
                format!("the 8 bytes at {offset} do not lie on an address that is a multiple of 8"),
            )),
        }
    }
}
