//! An open device: its attributes, and the factory of everything else.

use crate::caps::{Caps, Transport};
use crate::channel::CompletionChannel;
use crate::cq::CompletionQueue;
use crate::device_attr::{DeviceAttr, attr_of};
use crate::error::{Error, Result};
use crate::loopback::{LoopbackSupport, Refinable};
use crate::pd::ProtectionDomain;
use crate::port::{is_ethernet, query_port};
use crate::quirks::{self, Quirk};
use crate::seam::Verbs;
use rdma_sys::*;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

pub(crate) struct ContextInner {
    pub(crate) raw: NonNull<ibv_context>,
    pub(crate) verbs: &'static Verbs,
    name: String,
    guid: u64,
    transport: Transport,
    attr: DeviceAttr,
    quirk: Option<&'static Quirk>,
    caps: Caps,
    loopback: Refinable,
    pub(crate) async_taken: AtomicBool,
    /// See [`hold_siw_key`](Context::hold_siw_key); null for none.
    key_holder: AtomicPtr<ibv_cq>,
}

// SAFETY: libibverbs serialises calls on a context (ibv_alloc_td(3): all objects are thread safe by default; the
// environment variables that change that are refused in Device::open). Nothing here is written after construction but
// the atomics.
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        let holder = *self.key_holder.get_mut();
        if !holder.is_null() {
            // SAFETY: made by hold_siw_key and used by nobody.
            let _ = unsafe { (self.verbs.destroy_cq)(holder) };
        }
        // SAFETY: every object made on the context holds it through an Arc and is destroyed by now; one whose destroy
        // failed leaked that Arc, so this never runs under it. A failure leaves nothing to be done.
        let _ = unsafe { (self.verbs.close_device)(self.raw.as_ptr()) };
    }
}

/// An open device. Cheap to clone; closed when the last object made on it is gone.
///
/// Made by [`Device::open`](crate::Device::open).
#[derive(Clone)]
pub struct Context(pub(crate) Arc<ContextInner>);

impl Context {
    /// Takes over a raw context and the table of calls that go with it.
    ///
    /// # Safety
    /// `raw` is a live context nobody else closes, made by the provider behind `verbs`; `verbs` and the context's ops
    /// table keep the contracts of libibverbs.
    ///
    /// # Errors
    /// A failed query; the context is closed then.
    #[doc(hidden)]
    pub unsafe fn from_raw(raw: *mut ibv_context, verbs: &'static Verbs) -> Result<Context> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::os("ibv_open_device", libc::ENODEV));
        };
        // SAFETY: the caller passes a live context.
        match unsafe { probe(raw, verbs) } {
            Ok(inner) => Ok(Context(Arc::new(inner))),
            Err(e) => {
                // SAFETY: owned by us, nothing was made on it.
                let _ = unsafe { (verbs.close_device)(raw.as_ptr()) };
                Err(e)
            }
        }
    }

    /// Keeps libsiw's "no mapping" key from ever being handed out on this context. To be called before anything else is
    /// made on it.
    ///
    /// libsiw takes the mmap key 0x90000 for "nothing to map" (SIW_INVAL_UOBJ_KEY in providers/siw/siw_abi.h), but since
    /// Linux 5.5 the kernel's keys are offsets in the context's mmap space, lowest free first
    /// (rdma_user_mmap_entry_insert). An object whose ring begins at page 0x90 cannot be made, and neither can any
    /// after it: with a completion queue of 16,384 that is the eighth queue pair. A queue that nobody uses and that
    /// spans that page from below keeps it taken. It costs a mebibyte, which is not locked.
    pub(crate) fn hold_siw_key(&self) {
        const KEY_PAGE: u64 = 0x90;
        // 32 bytes an entry, in pages of 4 KiB; at least one page beyond the key's.
        const DEPTH: u64 = (KEY_PAGE + 2) * 4096 / 32;
        let depth = i32::try_from(DEPTH.next_power_of_two()).unwrap_or(i32::MAX);
        // SAFETY: the context is alive; there is no channel.
        let cq =
            unsafe { (self.0.verbs.create_cq)(self.as_raw(), depth, null_mut(), null_mut(), 0) };
        // Without it everything works until the key comes up.
        self.0.key_holder.store(cq, Ordering::Relaxed);
    }

    /// The kernel's name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The node GUID in host byte order; identifies the device across libraries in this process.
    pub fn guid(&self) -> u64 {
        self.0.guid
    }

    /// What the first port speaks.
    pub fn transport(&self) -> Transport {
        self.0.transport
    }

    /// Capability flags, with [`Caps::LOOPBACK`] as refined so far.
    pub fn caps(&self) -> Caps {
        let mut caps = self.0.caps;
        caps.set(Caps::LOOPBACK, self.loopback().is_yes());
        caps
    }

    /// Whether the device can connect to its own address, and how we know.
    pub fn loopback(&self) -> LoopbackSupport {
        self.0.loopback.support()
    }

    /// Why [`loopback`](Self::loopback) says what it says, for people.
    pub fn loopback_reason(&self) -> String {
        self.0.loopback.reason()
    }

    /// Takes a better answer about loopback (an override, a trial connection), for every clone, and remembers why. One
    /// whose [source](crate::LoopbackSource) is weaker than that of the present answer is refused: false.
    pub fn refine_loopback(&self, answer: LoopbackSupport, reason: impl Into<String>) -> bool {
        self.0.loopback.refine(answer, reason.into())
    }

    /// The row of the quirk table, if the device is known.
    pub fn quirk(&self) -> Option<&'static Quirk> {
        self.0.quirk
    }

    /// What the device says about itself, as queried when it was opened.
    pub fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    /// Allocates a protection domain (ibv_alloc_pd(3)).
    ///
    /// # Errors
    /// The errno of the call.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion queue for at most `depth` completions (ibv_create_cq(3)). It is polled; to sleep on it, make it
    /// with a channel ([`create_cq_with`](Self::create_cq_with)).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when `depth` is 0 or above the device's `max_cqe`, else
    /// the errno of the call.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(self, depth, None)
    }

    /// As [`create_cq`](Self::create_cq), with events on `channel`, one of its own as a rule:
    ///
    /// ```no_run
    /// # fn f(ctx: &rdma_safe::Context) -> rdma_safe::Result<()> {
    /// let mut group = rdma_safe::PollGroup::new(ctx.create_cq_with(256, &ctx.completion_channel()?)?);
    /// let done = group.poll_wait(std::time::Duration::from_secs(1))?; // sleeps
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `create_cq`; [`WrongContext`](crate::ErrorKind::WrongContext) for a channel of another context.
    pub fn create_cq_with(
        &self,
        depth: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue> {
        CompletionQueue::new(self, depth, Some(channel))
    }

    /// Creates a completion channel (ibv_create_comp_channel(3)).
    ///
    /// # Errors
    /// The errno of the call.
    pub fn completion_channel(&self) -> Result<CompletionChannel> {
        CompletionChannel::new(self)
    }

    /// The raw context, valid as long as `self` or a clone lives. It must not be closed.
    pub fn as_raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    /// Whether both are the same opened context.
    pub fn is_same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.0.name)
            .field("transport", &self.0.transport)
            .field("caps", &self.caps())
            .finish_non_exhaustive()
    }
}

/// Asks the device all that does not change.
///
/// # Safety
/// `raw` is a live context of the provider behind `verbs`.
unsafe fn probe(raw: NonNull<ibv_context>, verbs: &'static Verbs) -> Result<ContextInner> {
    let mut a = ibv_device_attr::default();
    // SAFETY: live context, writable attribute struct.
    Error::check("ibv_query_device", unsafe { (verbs.query_device)(raw.as_ptr(), &mut a) })?;
    // SAFETY: a context's device outlives it; port 1 exists on every device, and an error is handled.
    let (name, guid, transport) = unsafe {
        let device = raw.as_ref().device;
        let guid = u64::from_be((verbs.get_device_guid)(device));
        let iwarp = (*device).transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP;
        let kind = (*device).transport_type;
        let port = query_port(raw, verbs, 1)?;
        let transport = match (iwarp, kind == ibv_transport_type::IBV_TRANSPORT_IB) {
            (true, _) => Transport::Iwarp,
            (_, true) if is_ethernet(&port) => Transport::Roce,
            (_, true) => Transport::Ib,
            _ => Transport::Other(kind.0),
        };
        (text(&(*device).name), guid, transport)
    };
    let quirk = quirks::find(a.vendor_id, a.vendor_part_id);
    let flag = |f: ibv_device_cap_flags| a.device_cap_flags & f.0 != 0;
    let queried = quirks::Queried {
        rnr_nak: flag(ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN),
        atomics: a.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
        srq: a.max_srq > 0,
        memory_windows: a.max_mw > 0,
    };
    Ok(ContextInner {
        raw,
        verbs,
        name,
        guid,
        transport,
        quirk,
        caps: quirks::caps(a.vendor_id, a.vendor_part_id, transport, queried),
        loopback: Refinable::new(quirk, transport),
        async_taken: AtomicBool::new(false),
        key_holder: AtomicPtr::new(null_mut()),
        attr: attr_of(&a),
    })
}

/// A C string in a fixed array, which the driver may have forgotten to terminate.
pub(crate) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| c.cast_unsigned()).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(s) => s.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stops_at_nul_or_at_the_end() {
        let c = |s: &str| s.bytes().map(|b| b as c_char).collect::<Vec<_>>();
        assert_eq!(text(&c("siw0\0rest")), "siw0");
        assert_eq!(text(&c("full")), "full");
    }
}
