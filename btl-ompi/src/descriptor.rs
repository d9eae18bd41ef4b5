//! The descriptors handed to Open MPI: a fixed number at fixed addresses, made once and reused.
//!
//! A descriptor is always in one of three hands: the free list's, Open MPI's (between `alloc` and
//! `send` or `free`, and during its completion callback), or the engine's. Who has it may touch it;
//! the state says who, and every change of hands happens under the rail's lock, so a descriptor
//! used twice is noticed instead of corrupting memory.

use crate::abi;
use crate::driver::Slot;
use btl_core::SendBuf;
use core::mem;
use std::ptr::{self, NonNull};

/// In whose hands a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hands {
    /// Nobody's.
    Free,
    /// Open MPI's; the buffer is here.
    Theirs,
    /// The engine's; the buffer is with it.
    Engine,
}

/// Open MPI's descriptor with what belongs to it. `base` comes first: both have one address.
#[repr(C)]
pub(crate) struct Frag {
    base: abi::Descriptor,
    segment: abi::Segment,
    index: usize,
    hands: Hands,
    /// Open MPI was told that the send is done.
    quiet: bool,
    endpoint: *mut abi::BtlEndpoint,
    buf: Option<SendBuf<Slot>>,
}

/// A handle of a descriptor of one [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragId(usize);

impl FragId {
    /// As the engine's cookie.
    pub(crate) fn cookie(self) -> u64 {
        self.0 as u64
    }
}

/// What a completion callback needs.
pub(crate) struct Done {
    /// For Open MPI.
    pub(crate) des: *mut abi::Descriptor,
    /// To whom it was sent.
    pub(crate) endpoint: *mut abi::BtlEndpoint,
    /// The callback, when one is due.
    pub(crate) callback: abi::CompletionFn,
    /// Whether the descriptor is freed after the callback.
    pub(crate) owned: bool,
}

/// All descriptors of a rail.
pub(crate) struct Slab {
    frags: NonNull<[Frag]>,
    free: Vec<usize>,
    /// Sends under way that Open MPI was told are done.
    quiet: usize,
}

// SAFETY: the slab owns its memory, and slots may go to another thread. Open MPI's use of a
// descriptor outside the lock is in the thread that allocated it, while the state says that it has
// it.
unsafe impl Send for Slab where Slot: Send {}

impl Slab {
    /// A slab of `n` descriptors.
    pub(crate) fn new(n: usize) -> Self {
        let frags: Box<[Frag]> = (0..n).map(Frag::new).collect();
        Self { frags: NonNull::from(Box::leak(frags)), free: (0..n).rev().collect(), quiet: 0 }
    }

    fn at(&self, index: usize) -> Option<*mut Frag> {
        if index >= self.frags.len() {
            return None;
        }
        // SAFETY: the index is within the allocation.
        Some(unsafe { self.frags.as_ptr().cast::<Frag>().add(index) })
    }

    /// The descriptor with this address, if it is one of ours and in Open MPI's hands.
    fn theirs(&self, des: *mut abi::Descriptor) -> Option<*mut Frag> {
        let start = self.frags.as_ptr().cast::<Frag>().addr();
        let offset = des.addr().checked_sub(start)?;
        let frag = self.at(offset / mem::size_of::<Frag>())?;
        // SAFETY: within the allocation; the state is only touched under the lock that guards
        // `self`.
        (frag.addr() == des.addr() && unsafe { (*frag).hands } == Hands::Theirs).then_some(frag)
    }

    /// Takes a descriptor for `buf` and hands it to Open MPI; gives the buffer back when all are in
    /// use.
    pub(crate) fn hand_out(
        &mut self,
        endpoint: *mut abi::BtlEndpoint,
        mut buf: SendBuf<Slot>,
        flags: u32,
    ) -> Result<*mut abi::Descriptor, SendBuf<Slot>> {
        let Some(frag) = self.free.pop().and_then(|index| self.at(index)) else { return Err(buf) };
        // SAFETY: a free descriptor is nobody else's. The buffer's memory stays in place when the
        // buffer moves.
        unsafe {
            (*frag).segment = abi::Segment { addr: buf.as_mut_ptr().cast(), len: buf.len() as u64 };
            (*frag).base.segments = &raw mut (*frag).segment;
            (*frag).base.segment_count = 1;
            (*frag).base.cbfunc = None;
            (*frag).base.cbdata = ptr::null_mut();
            (*frag).base.context = ptr::null_mut();
            (*frag).base.flags = flags;
            (*frag).base.order = abi::NO_ORDER;
            (*frag).endpoint = endpoint;
            (*frag).hands = Hands::Theirs;
            (*frag).buf = Some(buf);
        }
        Ok(frag.cast())
    }

    /// Takes a descriptor back from Open MPI, unsent or completed; its buffer is returned. `None`
    /// if it is not in Open MPI's hands.
    pub(crate) fn take_back(&mut self, des: *mut abi::Descriptor) -> Option<Option<SendBuf<Slot>>> {
        let frag = self.theirs(des)?;
        // SAFETY: Open MPI had it and gave it back.
        let (buf, index) = unsafe {
            (*frag).hands = Hands::Free;
            ((*frag).buf.take(), (*frag).index)
        };
        self.free.push(index);
        Some(buf)
    }

    /// Takes the buffer out for sending to `endpoint`, cut to the length Open MPI wrote into the
    /// segment. `None` if the descriptor is not in Open MPI's hands or its length is more than was
    /// allocated.
    pub(crate) fn start(
        &mut self,
        des: *mut abi::Descriptor,
        endpoint: *mut abi::BtlEndpoint,
    ) -> Option<(FragId, SendBuf<Slot>)> {
        let frag = self.theirs(des)?;
        // SAFETY: Open MPI has it and hands it over with this call.
        unsafe {
            let len = usize::try_from((*frag).segment.len).ok()?;
            if (*frag).buf.as_ref().is_none_or(|buf| len > buf.capacity()) {
                return None;
            }
            let mut buf = (*frag).buf.take()?;
            buf.set_len(len);
            (*frag).hands = Hands::Engine;
            (*frag).endpoint = endpoint;
            Some((FragId((*frag).index), buf))
        }
    }

    /// Undoes [`Slab::start`]: the engine did not take the message.
    pub(crate) fn refused(&mut self, id: FragId, buf: SendBuf<Slot>) {
        if let Some(frag) = self.at(id.0) {
            // SAFETY: `start` gave the descriptor to the caller just now.
            unsafe {
                (*frag).hands = Hands::Theirs;
                (*frag).buf = Some(buf);
            }
        }
    }

    /// Whether so many sends are under way without a callback that the next one has to have one:
    /// ob1 resumes what waits for a descriptor in completion callbacks, so some must always be due.
    pub(crate) fn is_low(&self) -> bool {
        self.quiet >= self.frags.len() / 2
    }

    /// For a message the engine has: Open MPI may be told that it is done, if it said that it needs
    /// no callback.
    pub(crate) fn may_be_quiet(&self, id: FragId) -> bool {
        // SAFETY: the descriptor is in the engine's hands, so its flags are ours until the
        // callback.
        let flags =
            self.at(id.0).map_or(abi::DES_ALWAYS_CALLBACK, |frag| unsafe { (*frag).base.flags });
        flags & abi::DES_ALWAYS_CALLBACK == 0
            && flags & abi::DES_BTL_OWNERSHIP != 0
            && !self.is_low()
    }

    /// For a message the engine has: settles whether its end is called back. Open MPI reads it in
    /// the flags.
    pub(crate) fn settle(&mut self, id: FragId, quiet: bool) {
        let Some(frag) = self.at(id.0) else { return };
        self.quiet += usize::from(quiet);
        // SAFETY: the descriptor is in the engine's hands.
        unsafe {
            (*frag).quiet = quiet;
            if !quiet {
                (*frag).base.flags |= abi::DES_ALWAYS_CALLBACK;
            }
        }
    }

    /// The engine is done with a message: the descriptor goes back to Open MPI for the length of
    /// its callback. `None` for a cookie that names no message under way; the buffer then comes
    /// back in `buf`.
    pub(crate) fn complete(
        &mut self,
        cookie: u64,
        buf: &mut Option<SendBuf<Slot>>,
    ) -> Option<Done> {
        let frag = self.at(usize::try_from(cookie).ok()?)?;
        // SAFETY: the state is only touched under the lock that guards `self`; in the engine's
        // hands means ours.
        unsafe {
            if (*frag).hands != Hands::Engine {
                return None;
            }
            (*frag).hands = Hands::Theirs;
            (*frag).buf = buf.take();
            let quiet = (*frag).quiet;
            self.quiet = self.quiet.saturating_sub(usize::from(quiet));
            Some(Done {
                des: frag.cast(),
                endpoint: (*frag).endpoint,
                callback: if quiet { None } else { (*frag).base.cbfunc },
                owned: quiet || (*frag).base.flags & abi::DES_BTL_OWNERSHIP != 0,
            })
        }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `new` and never freed since. Whoever drops the slab has told
        // Open MPI that the module is gone.
        drop(unsafe { Box::from_raw(self.frags.as_ptr()) });
    }
}

impl Frag {
    fn new(index: usize) -> Self {
        Self {
            // SAFETY: pointers, numbers and an absent function: all-zero bytes are a valid
            // descriptor.
            base: unsafe { mem::zeroed() },
            segment: abi::Segment { addr: ptr::null_mut(), len: 0 },
            index,
            hands: Hands::Free,
            quiet: false,
            endpoint: ptr::null_mut(),
            buf: None,
        }
    }
}

#[cfg(all(test, feature = "fake-transport"))]
#[path = "descriptor_test.rs"]
mod tests;
