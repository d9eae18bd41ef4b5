//! Memory windows: a right for peers to use a part of a region, given and taken back by requests on a queue pair.

use crate::error::{Error, Result};
use crate::mr::Region;
use crate::pd::{PdInner, ProtectionDomain};
use crate::remote::RemoteRange;
use bitflags::bitflags;
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// How a window is bound (InfiniBand 1.2.1, 10.6.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Usable over every queue pair of its protection domain; its key changes with every binding.
    Type1,
    /// Usable over the queue pair it was bound on; peers can invalidate it with a send.
    Type2,
}

bitflags! {
    /// What peers may do through a window.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WindowAccess: u32 {
        /// Write.
        const WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// Read.
        const READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// Atomics.
        const ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    }
}

/// What a [`MemoryWindow`] owns.
pub(crate) struct Window {
    pub(crate) raw: NonNull<ibv_mw>,
    pub(crate) kind: WindowKind,
    pub(crate) bound: ManuallyDrop<Option<Binding>>,
    /// Being bound, or a binding that failed half way: the device may still know it.
    pub(crate) pending: ManuallyDrop<Option<Binding>>,
    pub(crate) pd: ManuallyDrop<Arc<PdInner>>,
}

/// A region under a window, kept registered while the window may be bound to it.
pub(crate) struct Binding {
    pub(crate) _region: Arc<Region>,
    pub(crate) range: RemoteRange,
}

// SAFETY: sole owner of the ibv_mw, whose calls libibverbs serialises.
unsafe impl Send for Window {}
// SAFETY: a shared window only tells its key and range.
unsafe impl Sync for Window {}

/// A memory window. One word; dropped windows are freed, which also takes the peers' right back.
///
/// Bound by [`Request::bind`](crate::Request::bind), which moves it into the queue; it comes back bound with the
/// completion.
pub struct MemoryWindow(pub(crate) Box<Window>);

impl MemoryWindow {
    pub(crate) fn new(pd: &ProtectionDomain, kind: WindowKind) -> Result<MemoryWindow> {
        let raw_kind = match kind {
            WindowKind::Type1 => ibv_mw_type::IBV_MW_TYPE_1,
            WindowKind::Type2 => ibv_mw_type::IBV_MW_TYPE_2,
        };
        // SAFETY: the PD is alive.
        let raw = unsafe { (pd.0.ctx.0.verbs.alloc_mw)(pd.root().raw.as_ptr(), raw_kind) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_mw"))?;
        Ok(MemoryWindow(Box::new(Window {
            raw,
            kind,
            bound: ManuallyDrop::new(None),
            pending: ManuallyDrop::new(None),
            pd: ManuallyDrop::new(Arc::clone(pd.root())),
        })))
    }

    /// How it is bound.
    pub fn kind(&self) -> WindowKind {
        self.0.kind
    }

    /// What to tell a peer that shall use it; `None` while it is not bound.
    pub fn remote(&self) -> Option<RemoteRange> {
        self.0.bound.as_ref().map(|b| b.range)
    }
}

impl Window {
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the window is alive.
        unsafe { self.raw.as_ref().rkey }
    }

    /// The bind completed: what was asked for holds now.
    pub(crate) fn settle_bind(&mut self) {
        if let Some(mut binding) = self.pending.take() {
            match self.kind {
                // The provider has put the new key into the window.
                WindowKind::Type1 => binding.range.rkey = self.rkey(),
                // SAFETY: the window is alive and exclusively ours; ibv_bind_mw(3) leaves this to the caller.
                WindowKind::Type2 => unsafe { self.raw.as_mut().rkey = binding.range.rkey },
            }
            *self.bound = Some(binding);
        }
    }

    /// The invalidation completed: nobody has a right any more.
    pub(crate) fn settle_invalidate(&mut self) {
        *self.bound = None;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: no request names the window: a posted one is owned by its queue.
        let rc = unsafe { (self.pd.ctx.0.verbs.dealloc_mw)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here; otherwise peers may still use the regions, which stay.
            unsafe {
                ManuallyDrop::drop(&mut self.bound);
                ManuallyDrop::drop(&mut self.pending);
                ManuallyDrop::drop(&mut self.pd);
            }
        }
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryWindow({:?}, {:?})", self.0.kind, self.remote())
    }
}
