//! Memory regions. A [`Local`] one has no key a peer could use, so its bytes can be borrowed; a [`Remote`] one has, so
//! they can only be copied in and out.

use crate::caps::Caps;
use crate::error::{Error, ErrorKind, Result, memlock_hint};
use crate::memory::OwnedMemory;
use crate::pd::{PdInner, ProtectionDomain};
use crate::remote::RemoteRange;
use crate::slot::{Slot, Wire, slots_of};
use rdma_sys::*;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Marker: only this process uses the memory.
#[derive(Debug, Clone, Copy)]
pub enum Local {}

/// Marker: peers that know the rkey may read or write the memory at any time.
#[derive(Debug, Clone, Copy)]
pub enum Remote {}

/// What a peer may do to a [`Remote`] region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteAccess {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadWrite,
    /// Nothing on purpose: it is the sink of our own RDMA reads. On iWARP that needs remote write access, and the peer
    /// learns the key.
    ReadSink,
    /// Nothing by itself: peers use memory windows that are bound to it.
    Windows,
}

/// The one place where access flags are made (ibv_reg_mr(3): remote write needs local write).
fn access_flags(remote: Option<RemoteAccess>, caps: Caps) -> u32 {
    const LOCAL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    const READ: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    const WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    LOCAL
        | match remote {
            None => 0,
            Some(RemoteAccess::Read) => READ,
            Some(RemoteAccess::Write) => WRITE,
            Some(RemoteAccess::ReadWrite) => READ | WRITE,
            Some(RemoteAccess::Windows) => ibv_access_flags::IBV_ACCESS_MW_BIND.0,
            Some(RemoteAccess::ReadSink) if caps.contains(Caps::READ_SINK_REMOTE_WRITE) => WRITE,
            Some(RemoteAccess::ReadSink) => 0,
        }
}

/// A registration and the memory under it. Deregistered first, then freed; leaked when the deregistration fails,
/// because a peer or the device may still use it then (bound windows: EBUSY).
pub(crate) struct Region {
    raw: NonNull<ibv_mr>,
    /// Asked once: the buffer need not be `Sync`, and what was registered must not change.
    start: *mut u8,
    len: usize,
    memory: ManuallyDrop<OwnedMemory>,
    pub(crate) pd: ManuallyDrop<Arc<PdInner>>,
}

// SAFETY: sole owner of the ibv_mr, whose calls libibverbs serialises; the memory is Send by StableBuffer.
unsafe impl Send for Region {}
// SAFETY: shared references only read the keys, the address and the length; none reaches the buffer.
unsafe impl Sync for Region {}

impl Region {
    fn register(pd: &ProtectionDomain, memory: OwnedMemory, access: u32) -> Result<Region> {
        let (start, len) = (memory.as_ptr(), memory.len());
        if len == 0 {
            return Err(Error::refused(
                "ibv_reg_mr",
                ErrorKind::InvalidArgument,
                "the memory is empty",
            ));
        }
        // SAFETY: the PD is alive; `memory` is valid for `len` bytes and outlives the registration (Drop).
        let raw = unsafe {
            (pd.0.ctx.0.verbs.reg_mr)(pd.as_raw(), start.cast(), len, access.cast_signed())
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Region {
                raw,
                start,
                len,
                memory: ManuallyDrop::new(memory),
                pd: ManuallyDrop::new(Arc::clone(&pd.0)),
            }),
            None => Err(memlock_hint(Error::last("ibv_reg_mr"), len)),
        }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Address of the first byte, as the device and peers know it.
    pub(crate) fn wire_addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the ibv_mr lives as long as self.
        unsafe { self.raw.as_ref().lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    /// What a request needs of the `len` bytes at `offset`, which the caller has checked to be within the region.
    pub(crate) fn wire(&self, offset: usize, len: u32) -> Wire {
        let addr = self.wire_addr().wrapping_add(offset as u64);
        Wire { addr, capacity: len, lkey: self.lkey(), pd: Arc::as_ptr(&self.pd) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: no request names the region: a posted slot owns a share of it, so this runs after all are gone.
        let rc = unsafe { (self.pd.ctx.0.verbs.dereg_mr)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here, and the device can no longer reach the memory.
            unsafe {
                ManuallyDrop::drop(&mut self.memory);
                ManuallyDrop::drop(&mut self.pd);
            }
        }
    }
}

/// Registered memory that is not in the hands of the device.
pub struct MemoryRegion<A> {
    /// Shared with the memory windows bound to it.
    pub(crate) region: Arc<Region>,
    access: PhantomData<fn() -> A>,
}

impl<A> MemoryRegion<A> {
    /// Length in bytes; at least 1.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.region.len()
    }
}

impl MemoryRegion<Local> {
    pub(crate) fn register_local(pd: &ProtectionDomain, memory: OwnedMemory) -> Result<Self> {
        let region = Region::register(pd, memory, access_flags(None, pd.context().caps()))?;
        Ok(MemoryRegion { region: Arc::new(region), access: PhantomData })
    }

    /// Cuts the region into `count` slots of `size` bytes, each on a 64-byte boundary of the region.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when a size is 0, above 4 GiB - 1, or the slots do not fit; the
    /// region is deregistered then.
    pub fn into_slots(self, size: usize, count: usize) -> Result<Vec<Slot>> {
        slots_of(self.region, size, count)
    }
}

impl Deref for MemoryRegion<Local> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory owned by the region; no peer has a key to it and no request can name it while it
        // is a MemoryRegion<Local> (only slots are posted).
        unsafe { std::slice::from_raw_parts(self.region.start(), self.region.len()) }
    }
}

impl DerefMut for MemoryRegion<Local> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in Deref, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.start(), self.region.len()) }
    }
}

impl MemoryRegion<Remote> {
    /// Registers memory that peers may use; only copies in and out from here on.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn register_remote(
        pd: &ProtectionDomain,
        memory: OwnedMemory,
        access: RemoteAccess,
    ) -> Result<Self> {
        let region = Region::register(pd, memory, access_flags(Some(access), pd.context().caps()))?;
        Ok(MemoryRegion { region: Arc::new(region), access: PhantomData })
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

    /// Copies `data` into the region at `offset` bytes. A peer that reads meanwhile may see a mixture.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it does not fit.
    pub fn copy_in(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        let at = self.range(offset, data.len())?;
        for (i, b) in data.iter().enumerate() {
            // SAFETY: `range` checked the bounds. Volatile, byte by byte: a peer may change the memory at any time, so
            // no reference to it is made and the compiler may assume nothing about it.
            unsafe { at.add(i).write_volatile(*b) }
        }
        Ok(())
    }

    /// Copies from the region at `offset` bytes into `data`. A peer that writes meanwhile may leave a mixture.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it is out of bounds.
    pub fn copy_out(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        let at = self.range(offset, data.len())?;
        for (i, b) in data.iter_mut().enumerate() {
            // SAFETY: as in copy_in.
            *b = unsafe { at.add(i).read_volatile() };
        }
        Ok(())
    }

    fn range(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            // SAFETY: `offset` is within the region.
            Some(end) if end <= self.region.len() => Ok(unsafe { self.region.start().add(offset) }),
            _ => Err(Error::refused(
                "copy",
                ErrorKind::InvalidArgument,
                format!("{len} bytes at {offset} are outside a region of {}", self.region.len()),
            )),
        }
    }
}

impl<A> fmt::Debug for MemoryRegion<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes)", self.region.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_follow_use_and_transport() {
        let none = Caps::empty();
        assert_eq!(access_flags(None, Caps::all()), 1);
        assert_eq!(access_flags(Some(RemoteAccess::Read), none), 1 | 4);
        assert_eq!(access_flags(Some(RemoteAccess::ReadWrite), none), 1 | 2 | 4);
        assert_eq!(access_flags(Some(RemoteAccess::ReadSink), none), 1);
        assert_eq!(access_flags(Some(RemoteAccess::ReadSink), Caps::READ_SINK_REMOTE_WRITE), 1 | 2);
    }
}
