//! Memory regions: memory, and the right of a device to use it.
//!
//! What may be done with the bytes is in the type: a [`Local`] one has no key a peer could use, so its bytes can be
//! borrowed; a [`Remote`] one has, so they can only be copied in and out; a [`Foreign`] one is not ours, and never
//! touched.

mod access;
mod foreign;
mod remote;
mod rereg;
mod words;
pub(crate) use words::Words;

pub use access::{Access, Registration, RemoteAccess};
pub use rereg::Advice;

use crate::dm::DmInner;
use crate::error::{Error, ErrorKind, Result, memlock_hint};
use crate::memory::OwnedMemory;
use crate::pd::{PdInner, ProtectionDomain};
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

/// Marker: memory this crate neither owns nor touches: somebody else's, a dmabuf, a device's own.
#[derive(Debug, Clone, Copy)]
pub enum Foreign {}

/// Kinds of region whose memory is [`OwnedMemory`]: [`Local`] and [`Remote`].
pub trait Owned: sealed::Sealed {}
impl Owned for Local {}
impl Owned for Remote {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Local {}
    impl Sealed for super::Remote {}
}

/// What lies under a registration, and is let go only after it.
pub(crate) enum Backing {
    Owned(OwnedMemory),
    /// Its owner has promised to keep it, or the kernel keeps it (a dmabuf).
    Foreign,
    Device(#[allow(dead_code)] Arc<DmInner>), // only held
}

/// A registration and the memory under it. Deregistered first, then freed; leaked when the deregistration fails,
/// because a peer or the device may still use it then (bound windows: EBUSY).
pub(crate) struct Region {
    raw: NonNull<ibv_mr>,
    /// Asked once: the buffer need not be `Sync`, and what was registered must not change. Null for what has no address
    /// in this process.
    start: *mut u8,
    len: usize,
    /// Address of the first byte, for device and peers.
    iova: u64,
    backing: ManuallyDrop<Backing>,
    /// Memory that a failed re-registration may have left with the device.
    stranded: ManuallyDrop<Option<OwnedMemory>>,
    pub(crate) pd: ManuallyDrop<Arc<PdInner>>,
}

// SAFETY: sole owner of the ibv_mr, whose calls libibverbs serialises; the memory is Send by StableBuffer.
unsafe impl Send for Region {}
// SAFETY: shared references only read the keys, the address and the length; none reaches the buffer.
unsafe impl Sync for Region {}

impl Region {
    /// Takes over a registration, or explains why there is none.
    ///
    /// # Safety
    /// `raw` is null (errno says why) or the live, solely owned registration, in the domain `pd` stands for, of the `len`
    /// bytes at `start` that `backing` keeps.
    unsafe fn adopt(
        op: &'static str,
        raw: *mut ibv_mr,
        pd: &ProtectionDomain,
        (start, len, iova): (*mut u8, usize, u64),
        backing: Backing,
    ) -> Result<Region> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Region {
                raw,
                start,
                len,
                iova,
                backing: ManuallyDrop::new(backing),
                stranded: ManuallyDrop::new(None),
                pd: ManuallyDrop::new(Arc::clone(pd.root())),
            }),
            None => Err(memlock_hint(Error::last(op), len)),
        }
    }

    fn register(
        pd: &ProtectionDomain,
        memory: OwnedMemory,
        flags: u32,
        iova: Option<u64>,
    ) -> Result<Region> {
        let (start, len) = (memory.as_ptr(), memory.len());
        if len == 0 {
            return Err(empty());
        }
        // SAFETY: `memory` is valid for `len` bytes and outlives the registration (Drop).
        let raw = unsafe { reg_mr(pd, start, len, flags, iova) };
        let iova = iova.unwrap_or(start.expose_provenance() as u64);
        // SAFETY: just made, of this memory.
        unsafe { Region::adopt("ibv_reg_mr", raw, pd, (start, len, iova), Backing::Owned(memory)) }
    }

    /// Registers borrowed memory for local access.
    ///
    /// # Safety
    /// The `len` initialised bytes at `start` are the caller's alone, for reads and writes, until no request and no slot
    /// names the region any more. A registration that outlives them is harmless: it gives nobody a right.
    pub(crate) unsafe fn register_borrowed(
        pd: &Arc<PdInner>,
        start: *mut u8,
        len: usize,
    ) -> Result<Region> {
        let pd = ProtectionDomain(Arc::clone(pd));
        let flags = access::local_flags(pd.context(), &Registration::new())?;
        let at = (start, len, start.expose_provenance() as u64);
        // SAFETY: the caller vouches for the memory.
        unsafe {
            let raw = reg_mr(&pd, start, len, flags, None);
            Region::adopt("ibv_reg_mr", raw, &pd, at, Backing::Foreign)
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
        self.iova
    }

    pub(crate) fn lkey(&self) -> u32 {
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

    /// Ends the registration; on failure everything is leaked.
    fn deregister(self) -> Result<Backing> {
        let mut me = ManuallyDrop::new(self);
        me.end()?;
        // SAFETY: ended, and `me` is never dropped: each is taken once.
        unsafe {
            let backing = ManuallyDrop::take(&mut me.backing);
            ManuallyDrop::drop(&mut me.stranded);
            ManuallyDrop::drop(&mut me.pd);
            Ok(backing)
        }
    }

    fn end(&mut self) -> Result<()> {
        // SAFETY: no request names the region: a posted payload owns a share of it, so this runs after all are gone.
        let rc = unsafe { (self.pd.ctx.0.verbs.dereg_mr)(self.raw.as_ptr()) };
        Error::check("ibv_dereg_mr", rc)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.end().is_ok() {
            // SAFETY: dropped once, here, and the device can no longer reach the memory.
            unsafe {
                ManuallyDrop::drop(&mut self.backing);
                ManuallyDrop::drop(&mut self.stranded);
                ManuallyDrop::drop(&mut self.pd);
            }
        }
    }
}

/// # Safety
/// The memory is valid for `len` bytes until the registration ends.
unsafe fn reg_mr(
    pd: &ProtectionDomain,
    start: *mut u8,
    len: usize,
    flags: u32,
    iova: Option<u64>,
) -> *mut ibv_mr {
    let (verbs, pd, flags) = (pd.context().0.verbs, pd.root().raw.as_ptr(), flags.cast_signed());
    // SAFETY: the PD is alive; the caller vouches for the memory.
    unsafe {
        match iova {
            None => (verbs.reg_mr)(pd, start.cast(), len, flags),
            Some(iova) => (verbs.reg_mr_iova)(pd, start.cast(), len, iova, flags),
        }
    }
}

fn empty() -> Error {
    Error::refused("ibv_reg_mr", ErrorKind::InvalidArgument, "the memory is empty")
}

/// Registered memory that is not in the hands of the device.
///
/// Made by [`ProtectionDomain::register`](crate::ProtectionDomain::register) (`Local`),
/// [`ProtectionDomain::register_remote`](crate::ProtectionDomain::register_remote) (`Remote`) and
/// [`ProtectionDomain::register_foreign`](crate::ProtectionDomain::register_foreign) (`Foreign`).
pub struct MemoryRegion<A> {
    /// Shared with the memory windows bound to it.
    pub(crate) region: Arc<Region>,
    access: PhantomData<fn() -> A>,
}

impl<A> MemoryRegion<A> {
    fn of(region: Region) -> MemoryRegion<A> {
        MemoryRegion { region: Arc::new(region), access: PhantomData }
    }

    /// Length in bytes; at least 1.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The key with which requests of this process name the region. It gives peers nothing.
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// Checks that `len` bytes at `offset` are within the region.
    fn within(&self, op: &'static str, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.region.len() => Ok(()),
            _ => Err(Error::refused(
                op,
                ErrorKind::InvalidArgument,
                format!("{len} bytes at {offset} are outside a region of {}", self.region.len()),
            )),
        }
    }

    /// The region, if nothing else has a share of it.
    fn sole(self) -> Result<Region> {
        Arc::try_unwrap(self.region).map_err(|_| {
            Error::refused(
                "ibv_dereg_mr",
                ErrorKind::Busy,
                "memory windows are bound to the region; it goes with the last of them",
            )
        })
    }
}

impl<A: Owned> MemoryRegion<A> {
    /// Ends the registration and gives the memory back (ibv_dereg_mr(3)). Keys told to peers are worthless after it.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) while memory windows are bound to it: the region goes with the last of them. Else the
    /// errno of the call: the memory is leaked then, because the device may still use it.
    pub fn deregister(self) -> Result<OwnedMemory> {
        match self.sole()?.deregister()? {
            Backing::Owned(memory) => Ok(memory),
            // Never made: `Owned` kinds are backed by memory.
            Backing::Foreign | Backing::Device(_) => Err(empty()),
        }
    }
}

impl MemoryRegion<Local> {
    pub(crate) fn register_local(
        pd: &ProtectionDomain,
        memory: OwnedMemory,
        how: &Registration,
    ) -> Result<Self> {
        let flags = access::local_flags(pd.context(), how)?;
        Ok(MemoryRegion::of(Region::register(pd, memory, flags, how.iova)?))
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

impl<A> fmt::Debug for MemoryRegion<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes)", self.region.len())
    }
}
