//! Protection domains: what belongs together may be used together.

use crate::context::Context;
use crate::cq::CqRef;
use crate::domain::ThreadDomain;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::OwnedMemory;
use crate::mr::{Local, MemoryRegion, Registration, Remote, RemoteAccess};
use crate::mw::{MemoryWindow, WindowKind};
use crate::qp::QueuePair;
use crate::qp_attr::QpConfig;
use crate::slot::Slot;
use crate::srq::{SharedReceiveQueue, SrqRef};
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) struct PdInner {
    pub(crate) raw: NonNull<ibv_pd>,
    pub(crate) ctx: ManuallyDrop<Context>,
    /// Of a parent domain: what it stands on.
    under: ManuallyDrop<Option<(Arc<PdInner>, Option<ThreadDomain>)>>,
}

// SAFETY: libibverbs serialises calls on a protection domain.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: every MR and QP holds this PD through an Arc, so none is left (one whose destroy failed leaked it).
        let rc = unsafe { (self.ctx.0.verbs.dealloc_pd)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here. Otherwise the kernel still has the PD, and what it stands on stays with it.
            unsafe {
                ManuallyDrop::drop(&mut self.under);
                ManuallyDrop::drop(&mut self.ctx);
            }
        }
    }
}

/// A protection domain. Cheap to clone; deallocated when nothing made in it is left.
///
/// Made by [`Context::alloc_pd`](crate::Context::alloc_pd).
#[derive(Clone)]
pub struct ProtectionDomain(pub(crate) Arc<PdInner>);

impl ProtectionDomain {
    pub(crate) fn new(ctx: &Context) -> Result<ProtectionDomain> {
        // SAFETY: the context is alive.
        let raw = unsafe { (ctx.0.verbs.alloc_pd)(ctx.as_raw()) };
        // SAFETY: just made, on this context.
        unsafe { ProtectionDomain::adopt("ibv_alloc_pd", raw, ctx, None) }
    }

    /// # Safety
    /// `raw` is null (errno says why) or a live domain of `ctx`, solely owned, that stands on `under`.
    pub(crate) unsafe fn adopt(
        op: &'static str,
        raw: *mut ibv_pd,
        ctx: &Context,
        under: Option<(Arc<PdInner>, Option<ThreadDomain>)>,
    ) -> Result<ProtectionDomain> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(op))?;
        let (ctx, under) = (ManuallyDrop::new(ctx.clone()), ManuallyDrop::new(under));
        Ok(ProtectionDomain(Arc::new(PdInner { raw, ctx, under })))
    }

    /// The domain whose protection this is: of a parent domain, the one it was made over.
    pub(crate) fn root(&self) -> &Arc<PdInner> {
        self.0.under.as_ref().map_or(&self.0, |(root, _)| root)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.ctx
    }

    /// Registers `count` slots of `size` bytes each as one memory region, for sends and receives.
    ///
    /// Slots start on 64-byte boundaries. The region is deregistered and freed when its last slot is dropped.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when `size` or `count` is 0 (siw cannot post an empty receive)
    /// or their product overflows; [`OutOfMemory`](ErrorKind::OutOfMemory) with the locked-memory limit in the hint.
    pub fn slots(&self, size: usize, count: usize) -> Result<Vec<Slot>> {
        let total = size.checked_next_multiple_of(64).and_then(|s| s.checked_mul(count));
        match total {
            Some(total) if total > 0 => {
                self.register(OwnedMemory::zeroed(total)?)?.into_slots(size, count)
            }
            _ => Err(Error::refused(
                "slots",
                ErrorKind::InvalidArgument,
                format!("{count} slots of {size} bytes: both must be at least 1"),
            )),
        }
    }

    /// Registers memory for local use: sends, receives, sources of writes (ibv_reg_mr(3)).
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) with the locked-memory limit in the hint; `InvalidArgument` for empty
    /// memory; else the errno of the call. The memory is freed then.
    pub fn register(&self, memory: OwnedMemory) -> Result<MemoryRegion<Local>> {
        self.register_with(memory, &Registration::new())
    }

    /// As [`register`](Self::register), in a special way.
    ///
    /// # Errors
    /// As there; [`Unsupported`](ErrorKind::Unsupported) for what the device cannot do.
    pub fn register_with(
        &self,
        memory: OwnedMemory,
        how: &Registration,
    ) -> Result<MemoryRegion<Local>> {
        MemoryRegion::register_local(self, memory, how)
    }

    /// Registers memory that peers may use (ibv_reg_mr(3)); only copies in and out from here on.
    ///
    /// # Errors
    /// As [`register`](Self::register); [`Unsupported`](ErrorKind::Unsupported) for what the device cannot do.
    pub fn register_remote(
        &self,
        memory: OwnedMemory,
        access: RemoteAccess,
    ) -> Result<MemoryRegion<Remote>> {
        self.register_remote_with(memory, access, &Registration::new())
    }

    /// As [`register_remote`](Self::register_remote), in a special way.
    ///
    /// # Errors
    /// As there.
    pub fn register_remote_with(
        &self,
        memory: OwnedMemory,
        access: RemoteAccess,
        how: &Registration,
    ) -> Result<MemoryRegion<Remote>> {
        MemoryRegion::register_remote_with(self, memory, access, how)
    }

    /// Creates a queue pair in state RESET (ibv_create_qp(3)), on this crate's own context: librdmacm never sees it.
    /// The `rdma-cm` crate connects it; by hand, see [`ManualQp`](crate::ManualQp).
    ///
    /// # Errors
    /// [`WrongContext`](ErrorKind::WrongContext) for a CQ of another context, [`CqDepth`](ErrorKind::CqDepth) when its
    /// queues do not fit into what is left of a CQ, [`InvalidArgument`](ErrorKind::InvalidArgument) for a depth or a
    /// number of pieces of 0 or above the device's limit, [`Unsupported`](ErrorKind::Unsupported) for a kind that the
    /// device does not have (siw has RC only; rxe RC, UC and UD),
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for raw packets without CAP_NET_RAW, else the errno of the call.
    pub fn create_qp(
        &self,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        config: &QpConfig,
    ) -> Result<QueuePair> {
        QueuePair::new(self, send_cq, recv_cq, config, None)
    }

    /// As [`create_qp`](Self::create_qp), on a shared receive queue in place of a receive queue of its own:
    /// `config.recv_depth` has no meaning. The first one on a completion queue books the whole depth of the shared
    /// receive queue there, once, until that is destroyed.
    ///
    /// # Errors
    /// As there; [`WrongContext`](ErrorKind::WrongContext) when the shared receive queue belongs to another protection
    /// domain.
    pub fn create_qp_on_srq(
        &self,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        srq: &SrqRef,
        config: &QpConfig,
    ) -> Result<QueuePair> {
        QueuePair::new(self, send_cq, recv_cq, config, Some(srq))
    }

    /// Creates a shared receive queue of `depth` receives of one slot each (ibv_create_srq(3)).
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without [`Caps::SRQ`](crate::Caps::SRQ),
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a depth of 0 or above the device's limit, else the errno of
    /// the call.
    pub fn create_srq(&self, depth: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(self, depth)
    }

    /// Allocates a memory window (ibv_alloc_mw(3)).
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without [`Caps::MEMORY_WINDOWS`](crate::Caps::MEMORY_WINDOWS), else the
    /// errno of the call.
    pub fn alloc_window(&self, kind: WindowKind) -> Result<MemoryWindow> {
        MemoryWindow::new(self, kind)
    }

    /// The raw protection domain, valid as long as `self` or a clone lives. It must not be deallocated.
    pub fn as_raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({})", self.0.ctx.name())
    }
}
