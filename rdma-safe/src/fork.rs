//! fork(2): what a process that uses RDMA may still do with it.

use crate::error::{Error, ErrorKind, Result};
use crate::seam::{LIBIBVERBS, Verbs};
use rdma_sys::ibv_fork_status;

/// What keeps registered memory in its place when the process forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForkSupport {
    /// The kernel (Linux 5.12 and later): it copies pinned pages for the child at once, so the parent's stay where the
    /// device knows them.
    Kernel,
    /// libibverbs: registered pages are not there for the child at all, which dies of a signal when it touches one or a
    /// neighbour on the same page.
    Library,
}

/// Makes fork(2) safe for the memory this process registers, if that takes anything. To be called before the first
/// registration, by programs that fork (or use a library that does); `std::process::Command` needs it too.
///
/// Without it, on a kernel before 5.12, a fork moves the parent's pages away under the device at the parent's next write:
/// received data goes to memory nobody sees. ibv_fork_init(3) is called only where the kernel does not help by itself
/// (ibv_is_fork_initialized(3)): where it does, the call would do nothing but take pages from the child.
///
/// In any case **the child may only exec or _exit**, and touch no object of this crate: its queues are mapped into both
/// processes, and the kernel's objects are the parent's. `fork` is an `unsafe` call in Rust for such reasons.
///
/// # Errors
/// [`WrongState`](ErrorKind::WrongState) when memory has been registered already (EINVAL);
/// [`Unsupported`](ErrorKind::Unsupported) on a kernel that lacks MADV_DONTFORK (ENOSYS); ENOMEM.
pub fn fork_support() -> Result<ForkSupport> {
    fork_support_of(&LIBIBVERBS)
}

/// The same of any provider's library.
pub(crate) fn fork_support_of(verbs: &Verbs) -> Result<ForkSupport> {
    const OP: &str = "ibv_fork_init";
    // SAFETY: no preconditions.
    match unsafe { (verbs.is_fork_initialized)() } {
        ibv_fork_status::IBV_FORK_UNNEEDED => return Ok(ForkSupport::Kernel),
        ibv_fork_status::IBV_FORK_ENABLED => return Ok(ForkSupport::Library),
        _ => {}
    }
    // SAFETY: no preconditions.
    match Error::check(OP, unsafe { (verbs.fork_init)() }) {
        Ok(()) => Ok(ForkSupport::Library),
        Err(e) if e.errno() == libc::EINVAL => Err(e.with_kind(ErrorKind::WrongState).with_hint(
            "memory is registered already; call fork_support() at the start of the program, or set RDMAV_FORK_SAFE=1",
        )),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

    static STATUS: AtomicU32 = AtomicU32::new(0);
    static RETURNS: AtomicI32 = AtomicI32::new(0);
    static CALLS: AtomicI32 = AtomicI32::new(0);

    /// libibverbs with the two calls exchanged.
    fn verbs() -> Verbs {
        Verbs {
            is_fork_initialized: || ibv_fork_status(STATUS.load(Ordering::Relaxed)),
            fork_init: || {
                CALLS.fetch_add(1, Ordering::Relaxed);
                RETURNS.load(Ordering::Relaxed)
            },
            ..LIBIBVERBS
        }
    }

    #[test]
    fn the_library_is_asked_only_where_the_kernel_does_not_help() {
        let ask = |status: ibv_fork_status, returns| {
            STATUS.store(status.0, Ordering::Relaxed);
            RETURNS.store(returns, Ordering::Relaxed);
            let before = CALLS.load(Ordering::Relaxed);
            let got = fork_support_of(&verbs());
            (got, CALLS.load(Ordering::Relaxed) - before)
        };
        let (got, calls) = ask(ibv_fork_status::IBV_FORK_UNNEEDED, 0);
        assert_eq!((got.unwrap(), calls), (ForkSupport::Kernel, 0));
        let (got, calls) = ask(ibv_fork_status::IBV_FORK_ENABLED, 0);
        assert_eq!((got.unwrap(), calls), (ForkSupport::Library, 0));
        let (got, calls) = ask(ibv_fork_status::IBV_FORK_DISABLED, 0);
        assert_eq!((got.unwrap(), calls), (ForkSupport::Library, 1));
        let (got, _) = ask(ibv_fork_status::IBV_FORK_DISABLED, libc::EINVAL);
        let e = got.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongState);
        assert!(e.to_string().contains("start of the program"), "{e}");
        let (got, _) = ask(ibv_fork_status(77), libc::ENOSYS);
        assert_eq!(got.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
