//! Thread domains and parent domains: a promise to the provider that saves it locks.

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::pd::ProtectionDomain;
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

struct TdInner {
    raw: NonNull<ibv_td>,
    ctx: ManuallyDrop<Context>,
}

// SAFETY: an ibv_td is only made, named when a parent domain is made, and freed; libibverbs serialises that.
unsafe impl Send for TdInner {}
// SAFETY: as above.
unsafe impl Sync for TdInner {}

impl Drop for TdInner {
    fn drop(&mut self) {
        // SAFETY: every parent domain over it holds an Arc, so none is left.
        let rc = unsafe { (self.ctx.0.verbs.dealloc_td)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here. Otherwise the provider still has it, and the context stays with it.
            unsafe { ManuallyDrop::drop(&mut self.ctx) }
        }
    }
}

/// A thread domain (ibv_alloc_td(3)): what is made in a parent domain over it is used by one thread at a time, so the
/// provider needs no locks for it. Cheap to clone.
///
/// Made by [`Context::alloc_thread_domain`](crate::Context::alloc_thread_domain), for
/// [`ProtectionDomain::parent_domain_of_thread`](crate::ProtectionDomain::parent_domain_of_thread).
///
/// Some hardware providers have them (mlx4, mlx5, efa, hns); siw and rxe have not.
#[derive(Clone)]
pub struct ThreadDomain(Arc<TdInner>);

impl Context {
    /// Allocates a thread domain (ibv_alloc_td(3)).
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the provider has none, else the errno of the call.
    pub fn alloc_thread_domain(&self) -> Result<ThreadDomain> {
        let mut attr = ibv_td_init_attr::default();
        // SAFETY: live context, complete attributes.
        let raw = unsafe { (self.0.verbs.alloc_td)(self.as_raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_td"))?;
        Ok(ThreadDomain(Arc::new(TdInner { raw, ctx: ManuallyDrop::new(self.clone()) })))
    }
}

impl ProtectionDomain {
    /// A parent domain over this one (ibv_alloc_parent_domain(3)): another handle to the same protection, so memory
    /// and queue pairs of both may be used together.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the provider has none, else the errno of the call.
    pub fn parent_domain(&self) -> Result<ProtectionDomain> {
        // SAFETY: without a thread domain nothing is promised to the provider.
        unsafe { self.parent(None) }
    }

    /// A parent domain over this one and a thread domain: the provider leaves out locks for queue pairs made in it. (Shared
    /// receive queues, memory and address handles are always made in the domain under it.)
    ///
    /// # Safety
    /// All queue pairs made in parent domains over the same thread domain are used (posted to,
    /// modified, destroyed) by one thread at a time, all together: moving one of them to another thread moves all.
    ///
    /// # Errors
    /// [`WrongContext`](ErrorKind::WrongContext) for a thread domain of another context; else as
    /// [`parent_domain`](Self::parent_domain).
    pub unsafe fn parent_domain_of_thread(&self, td: &ThreadDomain) -> Result<ProtectionDomain> {
        if !td.0.ctx.is_same(self.context()) {
            return Err(Error::refused(
                "ibv_alloc_parent_domain",
                ErrorKind::WrongContext,
                "thread domain and protection domain belong to different contexts",
            ));
        }
        // SAFETY: the caller's promise.
        unsafe { self.parent(Some(td.clone())) }
    }

    /// # Safety
    /// As [`parent_domain_of_thread`](Self::parent_domain_of_thread), if there is a thread domain.
    unsafe fn parent(&self, td: Option<ThreadDomain>) -> Result<ProtectionDomain> {
        let root = self.root();
        let mut attr = ibv_parent_domain_init_attr {
            pd: root.raw.as_ptr(),
            td: td.as_ref().map_or(null_mut(), |t| t.0.raw.as_ptr()),
            ..ibv_parent_domain_init_attr::default()
        };
        let ctx = self.context();
        // SAFETY: context, domain and thread domain are alive and of one context; the new domain holds the others.
        unsafe {
            let raw = (ctx.0.verbs.alloc_parent_domain)(ctx.as_raw(), &mut attr);
            let under = Some((Arc::clone(root), td));
            ProtectionDomain::adopt("ibv_alloc_parent_domain", raw, ctx, under)
        }
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadDomain({})", self.0.ctx.name())
    }
}
