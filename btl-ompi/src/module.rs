//! The functions of the BTL module: what Open MPI calls.

use crate::abi;
use crate::driver::Slot;
use crate::endpoint::Endpoint;
use crate::guard::guard;
use crate::opal::{self, LIFE, Proc, WHY, say, verbose};
use crate::peers;
use crate::rail::{About, Inner};
use crate::spare;
use btl_core::error::SendErrorKind;
use btl_core::{PeerId, SendBuf, Sent};
use core::ffi::{c_int, c_void};
use std::{ptr, slice};

/// Writes the functions into a module that has its values.
///
/// # Safety
/// `module` points to a module nobody else uses now.
pub(crate) unsafe fn fill(module: *mut abi::Module) {
    // SAFETY: by the contract.
    unsafe {
        (*module).add_procs = Some(add_procs);
        (*module).del_procs = Some(del_procs);
        (*module).finalize = Some(finalize);
        (*module).alloc = Some(alloc);
        (*module).free = Some(free);
        (*module).prepare_src = Some(prepare_src);
        (*module).send = Some(send);
        (*module).sendi = Some(sendi);
        (*module).register_error = Some(register_error);
    }
}

/// For each process: its endpoint if it can be reached over this rail. `reachable` is NULL for
/// single processes.
unsafe extern "C" fn add_procs(
    btl: *mut abi::Module,
    n: usize,
    procs: *mut *mut abi::Proc,
    endpoints: *mut *mut abi::BtlEndpoint,
    reachable: *mut abi::Bitmap,
) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        let Some(about) = rail.with(|inner| inner.about.clone()) else { return abi::ERROR };
        if n == 0 || procs.is_null() || endpoints.is_null() {
            return if n == 0 { abi::SUCCESS } else { abi::ERR_BAD_PARAM };
        }
        // SAFETY: Open MPI passes arrays of `n` entries.
        let (procs, endpoints) =
            unsafe { (slice::from_raw_parts(procs, n), slice::from_raw_parts_mut(endpoints, n)) };
        for (i, (proc_, endpoint)) in procs.iter().zip(endpoints).enumerate() {
            // SAFETY: Open MPI keeps the records of processes until after `del_procs`.
            let Some(proc_) = (unsafe { Proc::new(*proc_) }) else { continue };
            *endpoint = peers::add(rail, &about, proc_);
            if !endpoint.is_null() {
                // SAFETY: Open MPI's bitmap or NULL.
                unsafe { opal::mark(reachable, i) };
            }
        }
        abi::SUCCESS
    })
}

/// Open MPI is done with these processes: from now on a disconnect by them is normal.
unsafe extern "C" fn del_procs(
    btl: *mut abi::Module,
    n: usize,
    _procs: *mut *mut abi::Proc,
    endpoints: *mut *mut abi::BtlEndpoint,
) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        if n == 0 || endpoints.is_null() {
            return abi::SUCCESS;
        }
        // SAFETY: Open MPI passes an array of `n` entries.
        for endpoint in unsafe { slice::from_raw_parts(endpoints, n) } {
            // SAFETY: Open MPI passes what `add_procs` of this rail gave it.
            let Some(endpoint) = (unsafe { Endpoint::from_raw(*endpoint) }) else { continue };
            let Some(peer) = endpoint.peer else { continue };
            endpoint.remove();
            rail.with(|inner| {
                inner.keep_report(peer);
                inner.engine.remove_peer(peer);
            });
        }
        abi::SUCCESS
    })
}

/// The last call to a module. Takes at most twice `close_timeout`.
unsafe extern "C" fn finalize(btl: *mut abi::Module) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        crate::close::close(rail);
        abi::SUCCESS
    })
}

unsafe extern "C" fn register_error(btl: *mut abi::Module, callback: abi::ErrorFn) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        rail.set_error_cb(callback);
        abi::SUCCESS
    })
}

/// A descriptor with `size` bytes; NULL makes Open MPI come again later.
unsafe extern "C" fn alloc(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    _order: u8,
    size: usize,
    flags: u32,
) -> *mut abi::Descriptor {
    guard(btl, ptr::null_mut(), |rail| {
        let des = rail.with(|inner| {
            spare::release(rail, inner);
            new_descriptor(inner, endpoint, size, flags)
        });
        des.unwrap_or(ptr::null_mut())
    })
}

/// A descriptor with `size` bytes, or NULL.
pub(crate) fn new_descriptor(
    inner: &mut Inner,
    endpoint: *mut abi::BtlEndpoint,
    size: usize,
    flags: u32,
) -> *mut abi::Descriptor {
    let Ok(buf) = inner.engine.alloc(size) else { return ptr::null_mut() };
    match inner.slab.hand_out(endpoint, buf, flags) {
        Ok(des) => des,
        Err(buf) => {
            inner.engine.free(buf);
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn free(btl: *mut abi::Module, des: *mut abi::Descriptor) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        rail.with(|inner| match inner.slab.take_back(des) {
            Some(buf) => {
                if let Some(buf) = buf {
                    inner.engine.free(buf);
                }
                abi::SUCCESS
            }
            None => {
                verbose!(WHY, "{}: a descriptor was freed twice or is not ours", inner.about.name);
                abi::ERR_BAD_PARAM
            }
        })
        .unwrap_or(abi::ERROR)
    })
}

/// A descriptor with `reserve` bytes for Open MPI's header and as much of the convertor's data as
/// fits, at most `*size`, which then says how much it is.
unsafe extern "C" fn prepare_src(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    convertor: *mut abi::Convertor,
    _order: u8,
    reserve: usize,
    size: *mut usize,
    flags: u32,
) -> *mut abi::Descriptor {
    guard(btl, ptr::null_mut(), |rail| {
        // SAFETY: Open MPI passes a valid pointer.
        let wanted = unsafe { *size };
        // SAFETY: Open MPI passes what `add_procs` of this rail gave it.
        let Some(to) = (unsafe { Endpoint::from_raw(endpoint) }) else { return ptr::null_mut() };
        let des = rail.with(|inner| {
            let room = inner.engine.max_send_size_to(to.peer?).checked_sub(reserve)?;
            let des = new_descriptor(inner, endpoint, reserve + wanted.min(room), flags);
            (!des.is_null()).then_some((des, wanted.min(room)))
        });
        let Some(Some((des, len))) = des else { return ptr::null_mut() };
        // SAFETY: the descriptor is in Open MPI's hands, that is, in ours until we return it; its
        // one segment has `reserve + len` bytes. Nobody else uses the convertor.
        let packed = unsafe {
            let data = (*(*des).segments).addr.cast::<u8>().add(reserve);
            opal::pack(convertor, data, len)
        };
        match packed {
            Ok(packed) => {
                // SAFETY: as above.
                unsafe {
                    (*(*des).segments).len = (reserve + packed) as u64;
                    *size = packed;
                }
                des
            }
            Err(()) => {
                verbose!(WHY, "Open MPI's convertor failed to pack {len} bytes");
                // SAFETY: the descriptor was made above and not sent.
                unsafe { free(btl, des) };
                ptr::null_mut()
            }
        }
    })
}

/// Sends or queues. 1: done, no callback will come; 0: the callback will come from progress;
/// negative: not taken. Never "busy": ob1 takes that for success in places.
unsafe extern "C" fn send(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    des: *mut abi::Descriptor,
    tag: u8,
) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        // SAFETY: Open MPI passes what `add_procs` of this rail gave it.
        let Some(to) = (unsafe { Endpoint::from_raw(endpoint) }) else { return abi::ERR_BAD_PARAM };
        let Some(peer) = to.peer else { return no_messages_to_oneself() };
        rail.with(|inner| {
            let Some((id, buf)) = inner.slab.start(des, endpoint) else {
                verbose!(
                    WHY,
                    "{}: a descriptor was sent twice, is too long or is not ours",
                    inner.about.name
                );
                return abi::ERR_BAD_PARAM;
            };
            match inner.engine.send(peer, tag, buf, id.cookie()) {
                Ok(sent) => {
                    let quiet = sent == Sent::Posted && inner.slab.may_be_quiet(id);
                    inner.slab.settle(id, quiet);
                    if quiet { 1 } else { abi::SUCCESS }
                }
                Err(refused) => {
                    inner.slab.refused(id, refused.buf);
                    code_of(&refused.kind, to)
                }
            }
        })
        .unwrap_or(abi::ERROR)
    })
}

/// There is always the BTL `self` for them, unless the user leaves it out.
#[cold]
fn no_messages_to_oneself() -> c_int {
    say(format_args!("a process does not send to itself over a device: use --mca btl self,verbs"));
    abi::ERR_UNREACH
}

fn code_of(kind: &SendErrorKind, to: &Endpoint) -> c_int {
    verbose!(WHY, "a message to {} was not taken: {kind}", to.name);
    match kind {
        SendErrorKind::Busy | SendErrorKind::WouldQueue => abi::ERR_OUT_OF_RESOURCE,
        SendErrorKind::TooLong { .. } => abi::ERR_BAD_PARAM,
        SendErrorKind::Failed(_) | SendErrorKind::Closing => abi::ERR_UNREACH,
    }
}

/// The short way for small messages: header and data are copied here and nothing is called back. If
/// it cannot be gone, `des` (unless NULL) gets a descriptor for the long way: ob1 does not allocate
/// one itself then, it comes back here.
unsafe extern "C" fn sendi(
    btl: *mut abi::Module,
    endpoint: *mut abi::BtlEndpoint,
    convertor: *mut abi::Convertor,
    header: *mut c_void,
    header_size: usize,
    payload_size: usize,
    _order: u8,
    flags: u32,
    tag: u8,
    des: *mut *mut abi::Descriptor,
) -> c_int {
    guard(btl, abi::ERROR, |rail| {
        // SAFETY: Open MPI passes what `add_procs` of this rail gave it.
        let to = unsafe { Endpoint::from_raw(endpoint) };
        let (Some(to), Some(len)) = (to, header_size.checked_add(payload_size)) else {
            return abi::ERR_BAD_PARAM;
        };
        let Some(peer) = to.peer else { return no_messages_to_oneself() };
        let short = rail
            .with(|inner| if inner.slab.is_low() { None } else { inner.engine.alloc(len).ok() })
            .flatten();
        let sent = short.and_then(|mut buf| {
            // SAFETY: `header` has `header_size` bytes; the convertor is Open MPI's and used by
            // nobody else.
            let filled =
                unsafe { fill_inline(&mut buf, convertor, header, header_size, payload_size) };
            rail.with(|inner| match filled {
                Ok(()) => send_quietly(inner, to, peer, tag, buf),
                Err(()) => {
                    inner.engine.free(buf);
                    None
                }
            })
            .flatten()
        });
        if let Some(code) = sent {
            return code;
        }
        // SAFETY: NULL or a valid place, as Open MPI passes it.
        if let Some(des) = unsafe { des.as_mut() } {
            *des = rail
                .with(|inner| new_descriptor(inner, endpoint, len, flags))
                .unwrap_or(ptr::null_mut());
        }
        abi::ERR_RESOURCE_BUSY
    })
}

/// Copies header and data into a buffer.
///
/// # Safety
/// `header` points to `header_size` bytes; `convertor` may be used now.
unsafe fn fill_inline(
    buf: &mut SendBuf<Slot>,
    convertor: *mut abi::Convertor,
    header: *const c_void,
    header_size: usize,
    payload_size: usize,
) -> Result<(), ()> {
    let (head, rest) = buf.split_at_mut_checked(header_size).ok_or(())?;
    // SAFETY: by the contract.
    head.copy_from_slice(unsafe { slice::from_raw_parts(header.cast::<u8>(), header_size) });
    if payload_size == 0 {
        return Ok(());
    }
    // SAFETY: by the contract; `rest` is writable.
    let packed = unsafe { opal::pack(convertor, rest.as_mut_ptr(), rest.len().min(payload_size)) }?;
    if packed == payload_size { Ok(()) } else { Err(()) }
}

/// Gives a buffer to the device, whose end Open MPI does not wait for. `None`: not possible at
/// once. A message that only waits must not be reported as done: ob1 would complete the request,
/// and if the process then blocked outside of MPI nobody would ever send it.
fn send_quietly(
    inner: &mut Inner,
    to: &Endpoint,
    peer: PeerId,
    tag: u8,
    buf: SendBuf<Slot>,
) -> Option<c_int> {
    let endpoint = ptr::from_ref(to).cast_mut().cast();
    let des = match inner.slab.hand_out(endpoint, buf, abi::DES_BTL_OWNERSHIP) {
        Ok(des) => des,
        Err(buf) => {
            inner.engine.free(buf);
            return None;
        }
    };
    let (id, buf) = inner.slab.start(des, endpoint)?;
    match inner.engine.try_send(peer, tag, buf, id.cookie()) {
        Ok(()) => {
            inner.slab.settle(id, true);
            Some(abi::SUCCESS)
        }
        Err(refused) => {
            inner.slab.refused(id, refused.buf);
            if let Some(Some(buf)) = inner.slab.take_back(des) {
                inner.engine.free(buf);
            }
            match refused.kind {
                SendErrorKind::WouldQueue | SendErrorKind::Busy => None,
                kind => Some(code_of(&kind, to)),
            }
        }
    }
}

/// Tells about the life of a module.
pub(crate) fn opened(about: &About, limits: crate::params::Limits) {
    verbose!(
        LIFE,
        "{} is open at {}, eager limit {} B, fragments of {} B",
        about.name,
        about.addrs().join(", "),
        limits.eager,
        limits.max_send
    );
}
