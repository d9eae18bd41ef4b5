//! Memory windows: a right for peers to use a part of a region, given and taken back by requests on a queue pair.

use crate::error::{Error, Result};
use crate::mr::Region;
use crate::pd::{PdInner, ProtectionDomain};
use crate::remote::RemoteRange;
use crate::seam::Verbs;
use bitflags::bitflags;
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How a window is bound (InfiniBand 1.2.1, 10.6.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Usable over every queue pair of its protection domain; its key changes with every binding.
    Type1,
    /// Usable over the queue pair it was bound on, and freed with it; peers can invalidate it with a send. Bound on one
    /// queue pair, it cannot be bound on another before it was invalidated here.
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

/// The device's window. It is freed with its [`Window`], or before that with the queue pair that it may be bound on: a
/// window of type 2 keeps its queue pair busy (rxe waits for 50 seconds in ibv_destroy_qp(3) and then destroys it all
/// the same).
pub(crate) struct Handle(Mutex<HandleState>);

struct HandleState {
    /// `None` when it was freed.
    raw: Option<NonNull<ibv_mw>>,
    /// Serial of the one queue pair that a window of type 2 may be bound on; 0 for none. Changed by whoever has the window.
    on: u64,
}

// SAFETY: sole owner of the ibv_mw, whose calls libibverbs serialises.
unsafe impl Send for HandleState {}

impl Handle {
    fn state(&self) -> MutexGuard<'_, HandleState> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the one queue pair with whose destruction it is freed.
    fn set_on(&self, serial: u64) {
        self.state().on = serial;
    }

    /// The window is about to be bound on the queue pair `serial`, whose list of windows this is: from here on no other
    /// one's destruction frees it.
    pub(crate) fn tie(self: &Arc<Handle>, serial: u64, list: &mut Vec<Weak<Handle>>) {
        self.set_on(serial);
        if list.len() == list.capacity() {
            list.retain(|w| w.strong_count() > 0);
            list.sort_unstable_by_key(|w| w.as_ptr().addr());
            list.dedup_by(|a, b| a.ptr_eq(b));
        }
        list.push(Arc::downgrade(self));
    }

    pub(crate) fn on(&self) -> u64 {
        self.state().on
    }

    /// The queue pair is about to be destroyed: frees the window if it may be bound on that.
    pub(crate) fn end_with(&self, serial: u64, verbs: &Verbs) {
        let mut state = self.state();
        if state.on == serial {
            // Where it fails, dropping the window tries again.
            let _ = state.free(verbs);
        }
    }
}

impl HandleState {
    /// Frees the window; 0 when it is gone.
    fn free(&mut self, verbs: &Verbs) -> i32 {
        let Some(raw) = self.raw else { return 0 };
        // SAFETY: alive, and freed once, because a success takes the pointer away. Requests in flight that name it fail
        // at the device, and what they own stays with their queue.
        let rc = unsafe { (verbs.dealloc_mw)(raw.as_ptr()) };
        if rc == 0 {
            self.raw = None;
        }
        rc
    }
}

/// What a [`MemoryWindow`] owns.
pub(crate) struct Window {
    pub(crate) handle: Arc<Handle>,
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

/// A memory window. One word; dropped windows are freed, which also takes the peers' right back.
///
/// Made by [`ProtectionDomain::alloc_window`](crate::ProtectionDomain::alloc_window).
///
/// One of type 2 is also freed when the queue pair is destroyed that it was bound on: it can only be dropped then.
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
        let handle = Handle(Mutex::new(HandleState { raw: Some(raw), on: 0 }));
        Ok(MemoryWindow(Box::new(Window {
            handle: Arc::new(handle),
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

    /// What to tell a peer that shall use it; `None` while it is not bound, and when its queue pair is gone.
    pub fn remote(&self) -> Option<RemoteRange> {
        self.0.raw()?;
        self.0.bound.as_ref().map(|b| b.range)
    }
}

impl Window {
    /// The device's window; `None` when it was freed with its queue pair.
    pub(crate) fn raw(&self) -> Option<NonNull<ibv_mw>> {
        self.handle.state().raw
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: alive while the state is locked.
        self.handle.state().raw.map_or(0, |raw| unsafe { raw.as_ref().rkey })
    }

    /// The bind completed: what was asked for holds now. Nothing pending: the right was taken back.
    pub(crate) fn settle_bind(&mut self) {
        let mut binding = self.pending.take();
        match (self.kind, &mut binding) {
            (_, None) => {}
            // The provider has put the new key into the window.
            (WindowKind::Type1, Some(binding)) => binding.range.rkey = self.rkey(),
            (WindowKind::Type2, Some(binding)) => {
                let state = self.handle.state();
                if let Some(mut raw) = state.raw {
                    // SAFETY: alive while the state is locked; ibv_bind_mw(3) leaves this to the caller.
                    unsafe { raw.as_mut().rkey = binding.range.rkey }
                }
            }
        }
        *self.bound = binding;
    }

    /// The bind that was staged is not posted: the device knows nothing of it.
    pub(crate) fn unstage(&mut self) {
        *self.pending = None;
        if self.bound.is_none() {
            self.handle.set_on(0);
        }
    }

    /// The invalidation completed: nobody has a right any more.
    pub(crate) fn settle_invalidate(&mut self) {
        *self.bound = None;
        self.handle.set_on(0);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // No request names the window: a posted one is owned by its queue.
        let rc = self.handle.state().free(self.pd.ctx.0.verbs);
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
