//! Registrations of memory this crate neither owns nor touches.

use super::{Access, Backing, Foreign, MemoryRegion, Region, Registration, access, empty, reg_mr};
use crate::dm::DeviceMemory;
use crate::error::{Error, ErrorKind, Result};
use crate::pd::ProtectionDomain;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use std::sync::Arc;

impl ProtectionDomain {
    /// Registers memory of somebody else, e.g. of a library that owns its buffers (ibv_reg_mr(3)).
    ///
    /// # Safety
    /// The `len` bytes at `start` are mapped, and writable where `access` lets device or peers write, until the region
    /// is deregistered (drop and [`deregister`](MemoryRegion::deregister) end it; a leaked one never ends). While the
    /// region exists, no reference of Rust's may promise what `access` breaks: none at all to what peers may write, and
    /// no `&mut` to what they may read; what own requests write is up to whoever posts them.
    ///
    /// # Errors
    /// As [`register`](Self::register); [`Unsupported`](ErrorKind::Unsupported) for what the device cannot do.
    pub unsafe fn register_foreign(
        &self,
        start: *mut u8,
        len: usize,
        access: Access,
        how: &Registration,
    ) -> Result<MemoryRegion<Foreign>> {
        let flags = access::flags(self.context(), access, how)?;
        if len == 0 {
            return Err(empty());
        }
        let iova = how.iova.unwrap_or(start.expose_provenance() as u64);
        // SAFETY: the caller vouches for the memory.
        let region = unsafe {
            let raw = reg_mr(self, start, len, flags, how.iova);
            Region::adopt("ibv_reg_mr", raw, self, (start, len, iova), Backing::Foreign)
        };
        region.map(MemoryRegion::of)
    }

    /// Registers `len` bytes at `offset` of a dmabuf, e.g. of a GPU (ibv_reg_dmabuf_mr(3)); `iova` is the address device
    /// and peers name them by. The kernel holds the buffer, so the descriptor may be closed afterwards.
    ///
    /// Neither siw nor rxe can do this.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a length of 0; [`Unsupported`](ErrorKind::Unsupported) where
    /// device, provider or kernel cannot do this, or the memory cannot be reached by the device; EBADF or EINVAL when the
    /// descriptor is no dmabuf; else the errno of the call.
    pub fn register_dmabuf(
        &self,
        dmabuf: impl AsFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion<Foreign>> {
        let flags = access::flags(self.context(), access, &Registration::new())?;
        if len == 0 {
            return Err(empty());
        }
        let (pd, fd) = (self.root().raw.as_ptr(), dmabuf.as_fd().as_raw_fd());
        // SAFETY: the PD is alive, the descriptor open; the kernel keeps the buffer as long as the registration.
        let region = unsafe {
            let reg = self.context().0.verbs.reg_dmabuf_mr;
            let raw = reg(pd, offset, len, iova, fd, flags.cast_signed());
            let at = (null_mut(), len, iova);
            Region::adopt("ibv_reg_dmabuf_mr", raw, self, at, Backing::Foreign)
        };
        region.map(MemoryRegion::of)
    }

    /// Registers `len` bytes at `offset` of a device's own memory (ibv_reg_dm_mr(3)). Device and peers name them by
    /// addresses from 0 on. The region holds the memory.
    ///
    /// Neither siw nor rxe has such memory.
    ///
    /// # Errors
    /// [`WrongContext`](ErrorKind::WrongContext) for memory of another context; [`InvalidArgument`](ErrorKind::InvalidArgument)
    /// when the range is empty or not within the memory; else the errno of the call.
    pub fn register_device_memory(
        &self,
        memory: &DeviceMemory,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion<Foreign>> {
        const OP: &str = "ibv_reg_dm_mr";
        let flags = access::flags(self.context(), access, &Registration::new())?;
        if !memory.0.ctx.is_same(self.context()) {
            let why = "device memory and protection domain belong to different contexts";
            return Err(Error::refused(OP, ErrorKind::WrongContext, why));
        }
        memory.within(OP, offset, len)?;
        if len == 0 {
            return Err(empty());
        }
        // Without an address of its own it is addressed from 0 on.
        let flags = flags | rdma_sys::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        // SAFETY: domain and memory are alive and of one context; the region holds the memory.
        let region = unsafe {
            let (pd, dm) = (self.root().raw.as_ptr(), memory.0.raw.as_ptr());
            let raw = (self.context().0.verbs.reg_dm_mr)(pd, dm, offset, len, flags);
            let backing = Backing::Device(Arc::clone(&memory.0));
            Region::adopt(OP, raw, self, (null_mut(), len, 0), backing)
        };
        region.map(MemoryRegion::of)
    }
}

impl MemoryRegion<Foreign> {
    /// The key for peers; worth nothing to them unless the region was registered with remote access.
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// The address by which device and peers name the first byte.
    pub fn remote_addr(&self) -> u64 {
        self.region.wire_addr()
    }

    /// What to tell a peer that shall use the whole region.
    pub fn remote(&self) -> crate::RemoteRange {
        crate::RemoteRange { addr: self.remote_addr(), len: self.len() as u64, rkey: self.rkey() }
    }

    /// Ends the registration (ibv_dereg_mr(3)); the memory is its owner's alone again.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) while memory windows are bound to it, else the errno of the call. The device may still use
    /// the memory then: it must stay.
    pub fn deregister(self) -> Result<()> {
        self.sole()?.deregister().map(drop)
    }
}
