//! Which one-sided operations are offered to Open MPI: what the device can, what is worth it, and what the user says.

use crate::abi;
use crate::driver::Domain;
use crate::memory::Cache;
use crate::onesided;
use crate::opal::{LIFE, say, verbose};
use crate::rail::Rail;
use btl_core::RmaCaps;

/// Bytes of one fragment that is put.
const FRAGMENT: usize = 1 << 20;
/// Bytes at the end of a message that are sent, not put, when memory is registered for one message only: meanwhile the
/// rest is registered.
const SENT: usize = 1 << 20;
/// Shorter messages are sent, unless memory stays registered.
const SMALLEST: usize = 1 << 18;

/// Bytes of one operation: what a connection to oneself carries at once.
const LONGEST: usize = 1 << 30;

/// What can be offered at all, and with it all flags that mean something in `btl_verbs_flags`.
const ALL: u32 =
    abi::BTL_FLAGS_SEND | abi::BTL_FLAGS_PUT | abi::BTL_FLAGS_GET | abi::BTL_FLAGS_ATOMIC_FOPS;

/// Writes what holds when the user says nothing into the module whose values the parameters change. The functions are
/// there already: Open MPI registers the parameters of put and get only then.
pub(crate) fn defaults(module: &mut abi::Module) {
    module.rdma_pipeline_send_length = SENT;
    module.rdma_pipeline_frag_size = FRAGMENT;
    module.min_rdma_pipeline_size = SMALLEST;
    module.get_limit = LONGEST;
    module.put_limit = LONGEST;
    module.flags = ALL;
    module.atomic_flags = abi::ATOMIC_SUPPORTS_ADD | abi::ATOMIC_SUPPORTS_CSWAP;
    // SAFETY: the module is the caller's.
    unsafe { onesided::fill(module) };
}

/// What is offered of what the parameter says. Reads that are slower than writes only if the user asks for them.
fn flags(wanted: u32, by_user: bool, caps: RmaCaps) -> u32 {
    let mut flags = wanted & ALL | abi::BTL_FLAGS_SEND;
    if !caps.put {
        flags &= !abi::BTL_FLAGS_PUT;
    }
    // Where memory cannot be registered ob1 puts, whether that is offered or not.
    if !caps.get || !caps.put || !(caps.get_is_fast || by_user) {
        flags &= !abi::BTL_FLAGS_GET;
    }
    // What uses atomics also puts and gets, and takes a put that is done for one that is there.
    let both = abi::BTL_FLAGS_PUT | abi::BTL_FLAGS_GET;
    if !caps.atomics || !caps.placed || flags & both != both {
        flags &= !abi::BTL_FLAGS_ATOMIC_FOPS;
    }
    if caps.placed && flags & both != 0 {
        flags |= abi::BTL_FLAGS_REMOTE_COMPLETION;
    }
    flags
}

/// Fits the one-sided part of a rail's module, which has its parameters, to its device.
///
/// # Safety
/// Nobody else uses the rail's module now.
pub(crate) unsafe fn apply(rail: &Rail, domain: Domain, name: &str) {
    let Some(caps) = rail.with(|inner| inner.engine.rma_caps()) else { return };
    // SAFETY: by the contract.
    let module = unsafe { &mut *rail.module() };
    let mut flags = flags(module.flags, crate::register::is_set(c"flags"), caps);
    if flags != abi::BTL_FLAGS_SEND {
        match Cache::new(domain, module) {
            Some(cache) => rail.set_memory(cache, name),
            None => {
                say(format_args!(
                    "{name}: Open MPI has no registration cache (see mpi_leave_pinned, and whether the component \
                     rcache/grdma is there); large messages are copied"
                ));
                flags = abi::BTL_FLAGS_SEND;
            }
        }
    }
    settle(module, flags);
    if flags & abi::BTL_FLAGS_ATOMIC_FOPS != 0 {
        rail.offer_atomics();
    }
    verbose!(LIFE, "{name}: offers {}", words(flags));
}

/// Takes out of the module what is not offered.
fn settle(module: &mut abi::Module, flags: u32) {
    module.flags = flags;
    if flags & abi::BTL_FLAGS_GET == 0 {
        module.get = None;
    }
    if flags & abi::BTL_FLAGS_ATOMIC_FOPS == 0 {
        module.atomic_flags = 0;
        // Only who uses atomics waits so.
        module.flush = None;
        module.atomic_fop = None;
        module.atomic_cswap = None;
    }
    if flags & (abi::BTL_FLAGS_PUT | abi::BTL_FLAGS_GET) == 0 {
        module.put = None;
        module.register_mem = None;
        module.deregister_mem = None;
    }
}

fn words(flags: u32) -> String {
    let all = [
        (abi::BTL_FLAGS_SEND, "send"),
        (abi::BTL_FLAGS_PUT, "put"),
        (abi::BTL_FLAGS_GET, "get"),
        (abi::BTL_FLAGS_ATOMIC_FOPS, "atomics"),
    ];
    let words: Vec<_> =
        all.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, word)| *word).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: RmaCaps = RmaCaps {
        put: true,
        get: true,
        atomics: true,
        get_is_fast: true,
        placed: true,
        max_piece: 1 << 30,
    };
    const SLOW: RmaCaps = RmaCaps { atomics: false, get_is_fast: false, placed: false, ..FAST };

    #[test]
    fn slow_reads_are_offered_to_who_asks_for_them() {
        let (send, put, get) = (abi::BTL_FLAGS_SEND, abi::BTL_FLAGS_PUT, abi::BTL_FLAGS_GET);
        let there = abi::BTL_FLAGS_REMOTE_COMPLETION;
        assert_eq!(flags(ALL, false, FAST), ALL | there);
        assert_eq!(flags(ALL, false, SLOW), send | put);
        assert_eq!(flags(send | put | get, true, SLOW), send | put | get);
        assert_eq!(flags(send | get, true, SLOW), send | get);
        assert_eq!(flags(send | get, true, FAST), send | get | there);
        assert_eq!(flags(0, true, FAST), send, "messages are never off");
        assert_eq!(flags(u32::MAX, true, RmaCaps::NONE), send);
    }

    #[test]
    fn atomics_need_reads_writes_and_puts_that_are_there_when_done() {
        let placed = RmaCaps { placed: false, ..FAST };
        assert_eq!(flags(ALL, true, placed) & abi::BTL_FLAGS_ATOMIC_FOPS, 0);
        let wanted = ALL & !abi::BTL_FLAGS_GET;
        assert_eq!(flags(wanted, true, FAST) & abi::BTL_FLAGS_ATOMIC_FOPS, 0);
    }
}
