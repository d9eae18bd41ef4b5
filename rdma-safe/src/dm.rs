//! Memory on the device itself.

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) struct DmInner {
    pub(crate) raw: NonNull<ibv_dm>,
    len: u64,
    pub(crate) ctx: ManuallyDrop<Context>,
}

// SAFETY: sole owner of the ibv_dm, whose calls libibverbs serialises.
unsafe impl Send for DmInner {}
// SAFETY: as above.
unsafe impl Sync for DmInner {}

impl Drop for DmInner {
    fn drop(&mut self) {
        // SAFETY: every registration of it holds an Arc, so none is left.
        let rc = unsafe { (self.ctx.0.verbs.free_dm)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here. Otherwise the device still has the memory, and the context stays with it.
            unsafe { ManuallyDrop::drop(&mut self.ctx) }
        }
    }
}

/// Memory of the device (ibv_alloc_dm(3)), which this process cannot map: it is copied in and out, and registered for
/// requests by [`register_device_memory`](crate::ProtectionDomain::register_device_memory). Cheap to clone.
///
/// Made by [`Context::alloc_device_memory`](crate::Context::alloc_device_memory).
///
/// Only some hardware has such memory ([`DeviceAttrEx::max_dm_size`](crate::DeviceAttrEx::max_dm_size)); siw and rxe have none.
#[derive(Clone)]
pub struct DeviceMemory(pub(crate) Arc<DmInner>);

impl Context {
    /// Allocates `len` bytes of the device's memory, aligned to `1 << log_align`.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) on a device without; [`InvalidArgument`](ErrorKind::InvalidArgument) for a
    /// length of 0; else the errno of the call (ENOMEM: it is used up).
    pub fn alloc_device_memory(&self, len: usize, log_align: u32) -> Result<DeviceMemory> {
        const OP: &str = "ibv_alloc_dm";
        if len == 0 {
            return Err(Error::refused(OP, ErrorKind::InvalidArgument, "the memory is empty"));
        }
        let mut attr = ibv_alloc_dm_attr { length: len, log_align_req: log_align, comp_mask: 0 };
        // SAFETY: live context, complete attributes.
        let raw = unsafe { (self.0.verbs.alloc_dm)(self.as_raw(), &mut attr) };
        match NonNull::new(raw) {
            Some(raw) => {
                let ctx = ManuallyDrop::new(self.clone());
                Ok(DeviceMemory(Arc::new(DmInner { raw, len: len as u64, ctx })))
            }
            None => Err(Error::last(OP)),
        }
    }
}

impl DeviceMemory {
    /// Length in bytes; at least 1.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.0.len
    }

    pub(crate) fn within(&self, op: &'static str, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.0.len => Ok(()),
            _ => Err(Error::refused(
                op,
                ErrorKind::InvalidArgument,
                format!("{len} bytes at {offset} are outside a memory of {}", self.0.len),
            )),
        }
    }

    /// Copies `data` to the device (ibv_memcpy_to_dm(3)). Peers and requests may see a mixture meanwhile.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when it does not fit, or is not aligned as the device wants (4 bytes
    /// on mlx5); else the errno of the call.
    pub fn copy_in(&self, offset: u64, data: &[u8]) -> Result<()> {
        const OP: &str = "ibv_memcpy_to_dm";
        self.within(OP, offset, data.len())?;
        // SAFETY: live memory, and a source that is as long as said.
        let rc = unsafe {
            let copy = self.0.ctx.0.verbs.memcpy_to_dm;
            copy(self.0.raw.as_ptr(), offset, data.as_ptr().cast(), data.len())
        };
        Error::check(OP, rc)
    }

    /// Copies from the device (ibv_memcpy_from_dm(3)).
    ///
    /// # Errors
    /// As [`copy_in`](Self::copy_in).
    pub fn copy_out(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        const OP: &str = "ibv_memcpy_from_dm";
        self.within(OP, offset, data.len())?;
        // SAFETY: live memory, and a target that is as long as said.
        let rc = unsafe {
            let copy = self.0.ctx.0.verbs.memcpy_from_dm;
            copy(data.as_mut_ptr().cast(), self.0.raw.as_ptr(), offset, data.len())
        };
        Error::check(OP, rc)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes of {})", self.0.len, self.0.ctx.name())
    }
}
