//! Registration of the program's memory through Open MPI's registration cache `grdma`, whose hooks learn when memory is
//! unmapped.
//!
//! The cache calls back to register and deregister: also from within our own `register_mem`, with locks of its own
//! held. So the callbacks touch the protection domain and nothing else; the rail's lock is never taken in them, and the
//! cache is never called with the rail's lock held.
//!
//! Where memory cannot be registered, Open MPI has to go on with messages. It does so at once where it is the sender;
//! where it is the receiver it would wait for better times, for ever. There it gets the handle [`VOID`]: an operation
//! with it, here or at the peer, is refused at once, and that makes Open MPI send the bytes in messages.

use crate::abi;
use crate::driver::{Domain, Memory, Region};
use crate::hooks::{self, Hooks};
use crate::opal::{WHY, say, verbose};
use core::ffi::{c_int, c_void};
use core::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What Open MPI copies to peers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// The key for peers.
    pub(crate) key: u32,
    /// [`REAL`], or anything else for a handle that is good for nothing.
    kind: u32,
}

/// Marks a handle of registered memory.
const REAL: u32 = 0x6b65_7931;

/// Stands for memory that could not be registered.
static VOID: Handle = Handle { key: 0, kind: 0 };

impl Handle {
    /// What a handle says, this process's or a copy of a peer's. `None`: nothing can be done with it.
    ///
    /// # Safety
    /// `raw` is NULL or has the bytes of a handle.
    pub(crate) unsafe fn read(raw: *const abi::BtlHandle) -> Option<Self> {
        if raw.is_null() {
            return None;
        }
        // SAFETY: by the contract; a peer's copy can be at any address.
        let handle = unsafe { raw.cast::<Self>().read_unaligned() };
        (handle.kind == REAL).then_some(handle)
    }
}

/// A registration of the cache with what is ours in it. `base` comes first: both have one address.
#[repr(C)]
struct Entry {
    base: abi::RcacheRegistration,
    handle: Handle,
    /// From `Box::into_raw`; good between the two callbacks.
    region: *mut Region,
}

/// What the callbacks use.
struct Shared {
    domain: Domain,
    /// What was said about the last registration that failed.
    why: Mutex<String>,
}

/// The registration cache of a rail.
pub(crate) struct Cache {
    rcache: NonNull<abi::Rcache>,
    /// From `Box::into_raw`: the cache has its address.
    shared: NonNull<Shared>,
    /// Whether registrations may be kept.
    hooks: Hooks,
    /// It was said that they are not.
    lost: AtomicBool,
    /// It was said that memory could not be registered.
    told: AtomicBool,
}

// SAFETY: Open MPI's cache is made for use by many threads; what is ours in it is `Sync`.
unsafe impl Send for Cache {}
// SAFETY: as above.
unsafe impl Sync for Cache {}

impl Cache {
    /// A cache over a domain; `None` when Open MPI makes none.
    pub(crate) fn new(domain: Domain, module: *mut abi::Module) -> Option<Self> {
        let shared = Box::new(Shared { domain, why: Mutex::new(String::new()) });
        let shared = NonNull::from(Box::leak(shared));
        let mut resources = abi::RcacheResources {
            name: c"verbs".as_ptr(),
            data: shared.as_ptr().cast(),
            sizeof_registration: mem::size_of::<Entry>(),
            register: Some(register),
            deregister: Some(deregister),
        };
        // SAFETY: the names are NUL-terminated; the resources are copied, and what they refer to stays in place until
        // the cache is destroyed.
        let rcache = unsafe {
            abi::mca_rcache_base_module_create(c"grdma".as_ptr(), module.cast(), &raw mut resources)
        };
        match NonNull::new(rcache) {
            Some(rcache) => Some(Self {
                rcache,
                shared,
                hooks: Hooks::look(),
                lost: AtomicBool::new(false),
                told: AtomicBool::new(false),
            }),
            None => {
                // SAFETY: made above from a box; nobody else has it.
                drop(unsafe { Box::from_raw(shared.as_ptr()) });
                None
            }
        }
    }

    /// A handle of registered memory; see the module for what is returned when it cannot be had. `rail` is for the
    /// message, which is given once.
    ///
    /// # Safety
    /// The memory is the caller's, and mapped until the handle was given back and every operation with it is over.
    pub(crate) unsafe fn register(
        &self,
        base: *mut c_void,
        size: usize,
        access: u32,
        rail: &str,
    ) -> *mut abi::BtlHandle {
        // SAFETY: the cache is alive as long as `self`.
        let Some(register) = (unsafe { self.rcache.as_ref() }).register else {
            return ptr::null_mut();
        };
        let bits = (access & abi::ACCESS_ANY).cast_signed();
        let mut found: *mut abi::RcacheRegistration = ptr::null_mut();
        // SAFETY: Open MPI's own function on its own cache. The memory is the caller's.
        let code = unsafe {
            register(self.rcache.as_ptr(), base, size, self.flags(rail), bits, &raw mut found)
        };
        if code == abi::SUCCESS && !found.is_null() {
            // SAFETY: a registration of this cache is an `Entry`, filled by the callback below.
            return unsafe { &raw mut (*found.cast::<Entry>()).handle }.cast();
        }
        self.tell(rail, size, code);
        if is_void_good_enough(access) {
            return (&raw const VOID).cast_mut().cast();
        }
        ptr::null_mut()
    }

    /// Whether the cache may keep a registration: not where it would not learn that the memory is gone.
    fn flags(&self, rail: &str) -> u32 {
        if self.hooks.hold() {
            return 0;
        }
        if hooks::are_wanted() && !self.lost.swap(true, Ordering::Relaxed) {
            verbose!(
                WHY,
                "{rail}: Open MPI is not told of all memory that is given back, so no registration is kept after its \
                 use, which is slower for buffers that are used again; if that is UCX's doing, UCX_MEM_EVENTS=n in the \
                 environment keeps it from that"
            );
        }
        abi::RCACHE_BYPASS
    }

    /// Says once that memory could not be registered.
    fn tell(&self, rail: &str, size: usize, code: c_int) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: alive as long as `self`, and only read.
        let why = &unsafe { self.shared.as_ref() }.why;
        let why = why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let why = if why.is_empty() { format!("code {code}") } else { why };
        say(format_args!(
            "{rail}: {size} bytes could not be registered ({why}); messages are copied instead where that happens, \
             which is slower (this is said once)"
        ));
    }

    /// Gives a handle back.
    ///
    /// # Safety
    /// The handle is one of [`Cache::register`], and is given back once.
    pub(crate) unsafe fn deregister(&self, handle: *mut abi::BtlHandle) -> c_int {
        // SAFETY: by the contract.
        let entry = unsafe { entry_of(handle) };
        // SAFETY: the cache is alive as long as `self`.
        let deregister = unsafe { self.rcache.as_ref() }.deregister;
        match (entry, deregister) {
            // SAFETY: by the contract it is a registration of this cache whose user ends the use.
            (Some(entry), Some(deregister)) => unsafe {
                deregister(self.rcache.as_ptr(), entry.as_ptr().cast())
            },
            _ => abi::SUCCESS,
        }
    }

    /// Ends all registrations that nobody uses. No lock may be held.
    pub(crate) fn destroy(self) {
        // SAFETY: nobody uses the cache any more: `self` was the rail's only one.
        unsafe { abi::mca_rcache_base_module_destroy(self.rcache.as_ptr()) };
        // SAFETY: from a box, and the cache that had the address is gone. What somebody still had registered was
        // forgotten by it and will not be deregistered.
        drop(unsafe { Box::from_raw(self.shared.as_ptr()) });
    }
}

/// Whether the caller is served better by [`VOID`] than by NULL: ob1 as the receiver of puts, as the sender of a put,
/// and as the reader of a get. As the sender that offers memory to read it takes another way by itself, and one-sided
/// communication (which asks for everything) has none.
fn is_void_good_enough(access: u32) -> bool {
    access & (abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC) == 0
}

/// # Safety
/// `handle` is NULL or came from [`Cache::register`] and was not given back.
unsafe fn entry_of(handle: *mut abi::BtlHandle) -> Option<NonNull<Entry>> {
    // SAFETY: by the contract.
    unsafe { Handle::read(handle) }?;
    // SAFETY: a real handle of this process is the field of an entry.
    let entry = unsafe { handle.byte_sub(mem::offset_of!(Entry, handle)) };
    NonNull::new(entry.cast())
}

/// `size` bytes at `local`, which `handle` covers, for one operation.
///
/// # Safety
/// `handle` is NULL or came from [`Cache::register`] and is not given back before the operation is over. Until then the
/// memory stays as [`Region::slice`] wants it.
pub(crate) unsafe fn slice(
    handle: *mut abi::BtlHandle,
    local: *mut c_void,
    size: usize,
) -> Option<Memory> {
    // SAFETY: by the contract.
    let entry = unsafe { entry_of(handle) }?;
    // SAFETY: an entry that somebody holds has its region.
    unsafe { entry.as_ref().region.as_ref()?.slice(local.addr(), size) }
}

/// The cache wants memory registered, in whole pages.
unsafe extern "C" fn register(
    data: *mut c_void,
    base: *mut c_void,
    size: usize,
    registration: *mut abi::RcacheRegistration,
) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `data` is what `Cache::new` gave; the registration is the cache's, new, and of the size asked for.
        let (shared, access) =
            unsafe { (&*data.cast::<Shared>(), (*registration).access.cast_unsigned()) };
        // SAFETY: Open MPI registers memory that its caller has, and the cache learns when it is unmapped; an MPI
        // program leaves memory alone that an operation uses. Nothing of it is known to Rust.
        match unsafe { shared.domain.register(base.cast(), size, access) } {
            Ok(region) => {
                let entry = registration.cast::<Entry>();
                // SAFETY: as above.
                unsafe {
                    (*entry).handle = Handle { key: region.key(), kind: REAL };
                    (*entry).region = Box::into_raw(Box::new(region));
                }
                abi::SUCCESS
            }
            Err(failed) => {
                *shared.why.lock().unwrap_or_else(PoisonError::into_inner) = failed.why;
                if failed.scarce { abi::ERR_OUT_OF_RESOURCE } else { abi::ERROR }
            }
        }
    }));
    result.unwrap_or(abi::ERROR)
}

/// The cache ends a registration.
unsafe extern "C" fn deregister(
    _data: *mut c_void,
    registration: *mut abi::RcacheRegistration,
) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let entry = registration.cast::<Entry>();
        // SAFETY: `register` filled it, and the cache gives it back once.
        let region = unsafe {
            (*entry).handle.kind = 0;
            mem::replace(&mut (*entry).region, ptr::null_mut())
        };
        if !region.is_null() {
            // Operations under way keep the memory registered until they are over.
            // SAFETY: from `Box::into_raw` in `register`.
            drop(unsafe { Box::from_raw(region) });
        }
        abi::SUCCESS
    }));
    result.unwrap_or(abi::ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_handle_is_good_for_nothing() {
        // SAFETY: NULL, or the bytes of a handle.
        unsafe {
            assert_eq!(Handle::read(ptr::null()), None);
            assert_eq!(Handle::read((&raw const VOID).cast()), None);
            let mut bytes = [0_u8; 9];
            assert_eq!(Handle::read(bytes.as_ptr().add(1).cast()), None);
            bytes[1..5].copy_from_slice(&7_u32.to_ne_bytes());
            bytes[5..9].copy_from_slice(&REAL.to_ne_bytes());
            let handle = Handle::read(bytes.as_ptr().add(1).cast());
            assert_eq!(handle, Some(Handle { key: 7, kind: REAL }), "at an odd address");
            assert!(slice((&raw const VOID).cast_mut().cast(), ptr::null_mut(), 1).is_none());
        }
    }

    #[test]
    fn only_who_would_wait_for_ever_gets_a_void_handle() {
        assert!(is_void_good_enough(abi::ACCESS_REMOTE_WRITE), "the receiver of puts");
        assert!(is_void_good_enough(0), "the sender of a put");
        assert!(
            is_void_good_enough(abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE),
            "the reader of a get"
        );
        assert!(!is_void_good_enough(abi::ACCESS_REMOTE_READ), "the sender of a get");
        assert!(!is_void_good_enough(abi::ACCESS_ANY), "windows");
    }
}
