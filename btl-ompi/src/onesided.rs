//! The one-sided functions of the module: put, get, atomics, registration.
//!
//! None of them is ever "done at once": the result goes to the callback, from progress.

use crate::abi;
use crate::driver::{Memory, SelfLink};
use crate::endpoint::Endpoint;
use crate::guard::guard;
use crate::memory::{self, Handle};
use crate::opal::{WHY, say, verbose};
use crate::ops::Whom;
use crate::progress;
use crate::rail::{Inner, Rail};
use btl_core::rma::Verb;
use btl_core::{Atomic, RemoteRange, RmaErrorKind};
use core::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// Writes the functions into a module that has its values.
///
/// # Safety
/// `module` points to a module nobody else uses now.
pub(crate) unsafe fn fill(module: *mut abi::Module) {
    // SAFETY: by the contract.
    unsafe {
        (*module).put = Some(put);
        (*module).get = Some(get);
        (*module).atomic_fop = Some(atomic_fop);
        (*module).atomic_cswap = Some(atomic_cswap);
        (*module).register_mem = Some(register_mem);
        (*module).deregister_mem = Some(deregister_mem);
        (*module).flush = Some(flush);
        (*module).dump = Some(dump);
        (*module).registration_handle_size = size_of::<Handle>();
    }
}

/// Registers memory, or finds it registered. Takes no lock of the rail: see `memory.rs`.
unsafe extern "C" fn register_mem(
    btl: *mut abi::Module,
    _endpoint: *mut abi::BtlEndpoint,
    base: *mut c_void,
    size: usize,
    access: u32,
) -> *mut abi::BtlHandle {
    guard(btl, ptr::null_mut(), |rail| {
        let handle = rail.with_memory(|cache, name| {
            // SAFETY: the memory is what Open MPI's caller has; it gives the handle back when all operations with it
            // are over.
            unsafe { cache.register(base, size, access, name) }
        });
        handle.unwrap_or(ptr::null_mut())
    })
}

unsafe extern "C" fn deregister_mem(btl: *mut abi::Module, handle: *mut abi::BtlHandle) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        // SAFETY: Open MPI gives back once what `register_mem` of this rail gave it.
        let code = rail.with_memory(|cache, _| unsafe { cache.deregister(handle) });
        // After the close everything is deregistered.
        code.unwrap_or(abi::SUCCESS)
    })
}

/// An operation as Open MPI describes it.
struct Request {
    verb: Verb,
    remote: u64,
    remote_handle: *mut abi::BtlHandle,
    size: usize,
    whom: Whom,
}

unsafe extern "C" fn put(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    local: *mut c_void,
    remote: u64,
    handle: *mut abi::BtlHandle,
    remote_handle: *mut abi::BtlHandle,
    size: usize,
    _flags: c_int,
    _order: c_int,
    done: abi::RdmaDoneFn,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let whom = Whom { endpoint, local, handle, done, context, data };
    let request = Request { verb: Verb::Put, remote, remote_handle, size, whom };
    // SAFETY: Open MPI's arguments.
    guard(btl, abi::ERROR, |rail| unsafe { start(rail, request) })
}

unsafe extern "C" fn get(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    local: *mut c_void,
    remote: u64,
    handle: *mut abi::BtlHandle,
    remote_handle: *mut abi::BtlHandle,
    size: usize,
    _flags: c_int,
    _order: c_int,
    done: abi::RdmaDoneFn,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let whom = Whom { endpoint, local, handle, done, context, data };
    let request = Request { verb: Verb::Get, remote, remote_handle, size, whom };
    // SAFETY: Open MPI's arguments.
    guard(btl, abi::ERROR, |rail| unsafe { start(rail, request) })
}

/// Adds; 8 bytes only, as `atomic_flags` says.
unsafe extern "C" fn atomic_fop(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    local: *mut c_void,
    remote: u64,
    handle: *mut abi::BtlHandle,
    remote_handle: *mut abi::BtlHandle,
    op: c_uint,
    operand: u64,
    flags: c_int,
    _order: c_int,
    done: abi::RdmaDoneFn,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    if op != abi::ATOMIC_ADD || flags & abi::ATOMIC_FLAG_32BIT != 0 {
        return abi::ERR_NOT_SUPPORTED;
    }
    let whom = Whom { endpoint, local, handle, done, context, data };
    let verb = Verb::Atomic(Atomic::FetchAdd { add: operand });
    let request = Request { verb, remote, remote_handle, size: 8, whom };
    // SAFETY: Open MPI's arguments.
    guard(btl, abi::ERROR, |rail| unsafe { start(rail, request) })
}

unsafe extern "C" fn atomic_cswap(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    local: *mut c_void,
    remote: u64,
    handle: *mut abi::BtlHandle,
    remote_handle: *mut abi::BtlHandle,
    compare: u64,
    value: u64,
    flags: c_int,
    _order: c_int,
    done: abi::RdmaDoneFn,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    if flags & abi::ATOMIC_FLAG_32BIT != 0 {
        return abi::ERR_NOT_SUPPORTED;
    }
    let whom = Whom { endpoint, local, handle, done, context, data };
    let verb = Verb::Atomic(Atomic::CompareSwap { compare, swap: value });
    let request = Request { verb, remote, remote_handle, size: 8, whom };
    // SAFETY: Open MPI's arguments.
    guard(btl, abi::ERROR, |rail| unsafe { start(rail, request) })
}

/// Gives an operation to the engine. 0: the callback will come; negative: not taken, and Open MPI takes another way (or
/// comes again, for "out of resource").
///
/// # Safety
/// The arguments are as Open MPI passes them: the endpoint is one of this rail's, the handles are a local one that
/// covers the memory and the bytes of one of the peer's, and the memory is left alone until the callback.
unsafe fn start(rail: &Rail, request: Request) -> c_int {
    let Request { verb, remote, remote_handle, size, whom } = request;
    // SAFETY: by the contract.
    let (to, theirs) = unsafe { (Endpoint::from_raw(whom.endpoint), Handle::read(remote_handle)) };
    let Some(to) = to else { return abi::ERR_BAD_PARAM };
    // SAFETY: by the contract.
    let memory = unsafe { memory::slice(whom.handle, whom.local, size) };
    let (Some(theirs), Some(memory)) = (theirs, memory) else {
        if matches!(verb, Verb::Atomic(_)) || remote_handle.is_null() || whom.handle.is_null() {
            // osc/rdma asks for operations on memory of its own process without a handle, and then does them itself.
            return abi::ERR_NOT_SUPPORTED;
        }
        // Either side could not register its memory, and Open MPI is to copy. ob1 gives back all that it has for the
        // operation only when it is taken and fails, not when it is refused.
        let taken = rail.with(|inner| inner.ops.add_impossible(whom));
        return if taken.is_some() { abi::SUCCESS } else { abi::ERROR };
    };
    let range = RemoteRange { addr: remote, len: size as u64, rkey: theirs.key };
    let taken = rail.with(|inner| {
        let Some(cookie) = inner.ops.add(whom) else { return Err((RmaErrorKind::Busy, memory)) };
        let result = hand_over(inner, to, verb, memory, range, cookie);
        if result.is_err() {
            inner.ops.take(cookie);
        }
        result
    });
    match taken {
        Some(Ok(())) => abi::SUCCESS,
        // The memory goes with no lock held: it may be the last of its registration.
        Some(Err((why, _memory))) => code_of(&why, to),
        None => abi::ERROR,
    }
}

fn hand_over(
    inner: &mut Inner,
    to: &Endpoint,
    verb: Verb,
    memory: Memory,
    range: RemoteRange,
    cookie: u64,
) -> Result<(), (RmaErrorKind, Memory)> {
    let Some(peer) = to.peer else {
        return match own_link(inner) {
            Some(own) => own.start(verb, memory, range, cookie),
            None => Err((RmaErrorKind::Closing, memory)),
        };
    };
    let engine = &mut inner.engine;
    let result = match verb {
        Verb::Put => engine.put(peer, memory, range.len, range, cookie),
        Verb::Get => engine.get(peer, memory, range.len, range, cookie),
        Verb::Atomic(atomic) => engine.atomic(peer, memory, range, atomic, cookie),
    };
    result.map(drop).map_err(|refused| (refused.kind, refused.memory))
}

/// The connection to this process itself; made when it is first needed.
fn own_link(inner: &mut Inner) -> Option<&mut SelfLink> {
    if inner.own.is_none() {
        match SelfLink::open(inner.engine.port(), inner.about.port) {
            Ok(own) => inner.own = Some(own),
            Err(why) => {
                say(format_args!("{} cannot be connected to itself: {why}", inner.about.name));
            }
        }
    }
    inner.own.as_mut()
}

fn code_of(kind: &RmaErrorKind, to: &Endpoint) -> c_int {
    match kind {
        RmaErrorKind::Busy => abi::ERR_OUT_OF_RESOURCE,
        RmaErrorKind::Failed(_) | RmaErrorKind::Closing => {
            verbose!(WHY, "an operation on memory of {} was not taken: {kind}", to.name);
            abi::ERR_UNREACH
        }
        _ => {
            verbose!(WHY, "an operation on memory of {} is not possible: {kind}", to.name);
            abi::ERR_NOT_SUPPORTED
        }
    }
}

/// Returns when the operations with a peer (NULL: with all) that were started before are over. Offered where that means
/// that they are done at the peer.
unsafe extern "C" fn flush(btl: *mut abi::Module, endpoint: *mut abi::BtlEndpoint) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        let endpoint = (!endpoint.is_null()).then_some(endpoint);
        let Some(until) = rail.with(|inner| inner.ops.now()) else { return abi::ERROR };
        // Each of them ends, at the latest with an error when its peer has failed. At least one round: the caller makes
        // no other progress while it waits for what callbacks do.
        loop {
            if progress::round(rail) == 0 {
                progress::yield_cpu();
            }
            match rail.with(|inner| inner.ops.any_before(until, endpoint)) {
                Some(true) => {}
                Some(false) => return abi::SUCCESS,
                None => return abi::ERROR,
            }
        }
    })
}

/// Prints the state of the rail, and of a peer.
unsafe extern "C" fn dump(btl: *mut abi::Module, endpoint: *mut abi::BtlEndpoint, _verbose: c_int) {
    guard(btl, (), |rail| {
        // SAFETY: Open MPI passes NULL or what `add_procs` of this rail gave it.
        let to = unsafe { Endpoint::from_raw(endpoint) };
        let lines = rail.with(|inner| {
            let mut lines = vec![format!(
                "{}: {} one-sided operations under way{}",
                inner.about.name,
                inner.ops.under_way(),
                if inner.engine.busy() { ", messages or connections wait" } else { "" }
            )];
            if let Some((name, peer)) = to.and_then(|to| Some((to.name, to.peer?))) {
                for class in 0..=u8::MAX {
                    if inner.engine.max_payload(class) == 0 {
                        break;
                    }
                    lines.push(match inner.engine.credits(peer, class) {
                        Some((owed, credits)) => format!(
                            "{name}, lane {class}: {credits} messages may be sent, {owed} receives are not told yet"
                        ),
                        None => format!("{name}, lane {class}: not connected"),
                    });
                }
            }
            lines
        });
        for line in lines.unwrap_or_default() {
            say(format_args!("{line}"));
        }
    });
}
