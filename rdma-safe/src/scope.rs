//! Borrowed memory in the hands of a device, for as long as a closure runs and no longer.
//!
//! A borrow cannot be leaked to a device: whatever the closure does, panics included, the function that lends the memory
//! returns only when the queue pair has none of it any more. That is the case when every request has completed, or
//! else when the queue pair is destroyed; and if even that fails, the process ends, because the memory is about to be
//! somebody else's.

use crate::cq::CompletionQueue;
use crate::error::{Error, ErrorKind, Result};
use crate::mr::Region;
use crate::payload::Payload;
use crate::post::{PostError, Why};
use crate::qp::QueuePair;
use crate::qp_attr::{QpState, SendFlags};
use crate::slot::{SLOT_ALIGN, Slot, slots_of};
use crate::wc::{Done, Wc};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lifetime that is exactly one scope's: it can be neither stretched nor shrunk.
type Brand<'s> = PhantomData<fn(&'s ()) -> &'s ()>;

/// A piece of borrowed memory that is not in the hands of the device. It cannot leave its scope:
///
/// ```compile_fail,E0521
/// # use rdma_safe::*;
/// # fn f(qp: QueuePair, cq: &mut CompletionQueue, memory: &mut [u8]) {
/// let mut kept = None;
/// let _ = qp.scope(cq, memory, 64, std::time::Duration::ZERO, |_, mut pieces| kept = pieces.pop());
/// # }
/// ```
pub struct Borrowed<'s> {
    slot: Slot,
    brand: Brand<'s>,
}

impl Deref for Borrowed<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.slot
    }
}

impl DerefMut for Borrowed<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slot
    }
}

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({} bytes)", self.slot.capacity())
    }
}

/// A completion within a scope.
#[derive(Debug)]
#[non_exhaustive]
pub struct ScopedDone<'s> {
    /// The borrowed piece that was posted; `None` for inline sends and for what was posted before the scope.
    pub memory: Option<Borrowed<'s>>,
    /// The rest: `slot` is one that was posted before the scope.
    pub done: Done,
}

/// Why a scoped post failed, with the piece if the device never saw it.
#[derive(Debug)]
pub struct ScopedPostError<'s> {
    /// What was wrong.
    pub why: Why,
    /// The piece; `None` when the queue pair keeps it until the scope ends.
    pub memory: Option<Borrowed<'s>>,
}

/// What is left when a scope ends.
#[derive(Debug)]
#[non_exhaustive]
pub struct ScopeEnd {
    /// The queue pair; `None` when it had to be destroyed to get the memory back.
    pub qp: Option<QueuePair>,
    /// Completions of the queue pair that came while the scope ended and were not about borrowed memory.
    pub done: Vec<Done>,
    /// Completions of other queue pairs on the same queue, which nobody could redeem meanwhile.
    pub strays: Vec<Wc>,
    /// What a destroyed queue pair still had of its own.
    pub payloads: Vec<Payload>,
}

/// The right to post borrowed memory, within [`QueuePair::scope`].
pub struct Scope<'s, 'q> {
    lent: &'q mut Lent,
    cq: &'q mut CompletionQueue,
    brand: Brand<'s>,
}

/// A queue pair that may have borrowed memory.
struct Lent {
    /// Taken out only at the end.
    qp: Option<QueuePair>,
    region: Arc<Region>,
    /// Pieces the device may have.
    posted: usize,
    strays: Vec<Wc>,
}

impl QueuePair {
    /// Lends `memory` to this queue pair while `f` runs, in pieces of `size` bytes, each on a multiple of 64 bytes from
    /// the start. It is registered for local access only: peers have no key to it.
    ///
    /// When `f` has returned, completions are polled until every posted piece is back, for `limit` at most; then, or when
    /// the queue pair has failed, it is destroyed to get them back. After a panic of `f` it is destroyed at once.
    /// **If the destruction fails the process is aborted**: the caller's memory cannot be given back then.
    ///
    /// # Errors
    /// With the queue pair: [`WrongContext`](ErrorKind::WrongContext) when it does not complete into `cq`;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when no piece fits; as
    /// [`register`](crate::ProtectionDomain::register).
    #[allow(clippy::result_large_err)] // the queue pair must come back, and this is not the message path
    pub fn scope<R>(
        self,
        cq: &mut CompletionQueue,
        memory: &mut [u8],
        size: usize,
        limit: Duration,
        f: impl for<'s> FnOnce(&mut Scope<'s, '_>, Vec<Borrowed<'s>>) -> R,
    ) -> std::result::Result<(R, ScopeEnd), (QueuePair, Error)> {
        // SAFETY: the memory is borrowed until this function is over, and `Lent` lets it end only when no device has any
        // of the memory.
        let (region, slots) = match unsafe { lend(&self, cq, memory, size) } {
            Ok(lent) => lent,
            Err(e) => return Err((self, e)),
        };
        let mut lent = Lent { qp: Some(self), region, posted: 0, strays: Vec::new() };
        let pieces = slots.into_iter().map(|slot| Borrowed { slot, brand: PhantomData }).collect();
        let value = f(&mut Scope { lent: &mut lent, cq: &mut *cq, brand: PhantomData }, pieces);
        Ok((value, lent.end(cq, limit)))
    }
}

/// Registers the memory and cuts it into pieces.
///
/// # Safety
/// The memory is not used or freed before the pieces are gone from every queue.
unsafe fn lend(
    qp: &QueuePair,
    cq: &CompletionQueue,
    memory: &mut [u8],
    size: usize,
) -> Result<(Arc<Region>, Vec<Slot>)> {
    let refused = |kind, why: String| Err(Error::refused("scope", kind, why));
    if !qp.is_on(&cq.cq_ref()) {
        let why = "the queue pair completes into another queue".to_owned();
        return refused(ErrorKind::WrongContext, why);
    }
    let stride = size.checked_next_multiple_of(SLOT_ALIGN).filter(|_| size > 0);
    let count = match (stride, memory.len().checked_sub(size)) {
        (Some(stride), Some(rest)) => rest / stride + 1,
        _ => {
            let why = format!("no piece of {size} bytes fits {}", memory.len());
            return refused(ErrorKind::InvalidArgument, why);
        }
    };
    // SAFETY: the caller's promise; the memory is exclusively borrowed, initialised and as long as said.
    let region = unsafe { Region::register_borrowed(&qp.pd, memory.as_mut_ptr(), memory.len())? };
    let region = Arc::new(region);
    let slots = slots_of(Arc::clone(&region), size, count)?;
    Ok((region, slots))
}

impl Lent {
    /// Redeems a completion; what is not this queue pair's is put aside.
    fn redeem(&mut self, mut wc: Wc) -> Option<(Done, Option<Slot>)> {
        match self.qp.as_mut().and_then(|qp| qp.complete(&mut wc)) {
            Some(mut done) => {
                let memory = done.slot.take_if(|slot| slot.is_in(&self.region));
                self.posted -= usize::from(memory.is_some());
                Some((done, memory))
            }
            None => {
                self.strays.push(wc);
                None
            }
        }
    }

    fn poll(&mut self, cq: &mut CompletionQueue) -> Result<Option<(Done, Option<Slot>)>> {
        let mut wc = [Wc::empty()];
        while cq.poll(&mut wc)? > 0 {
            let [taken] = std::mem::take(&mut wc);
            if let Some(done) = self.redeem(taken) {
                return Ok(Some(done));
            }
        }
        Ok(None)
    }

    /// Gets all borrowed memory back.
    fn end(mut self, cq: &mut CompletionQueue, limit: Duration) -> ScopeEnd {
        let deadline = crate::channel::deadline_after(limit);
        let mut done = Vec::new();
        while self.posted > 0 && self.is_alive() {
            match self.poll(cq) {
                Ok(Some((d, memory))) => {
                    if memory.is_none() {
                        done.push(d);
                    }
                }
                Ok(None) if Instant::now() < deadline => std::thread::yield_now(),
                // Out of time, or a queue that tells nothing any more.
                Ok(None) | Err(_) => break,
            }
        }
        let payloads = if self.posted > 0 { self.destroy() } else { Vec::new() };
        ScopeEnd { qp: self.qp.take(), done, strays: std::mem::take(&mut self.strays), payloads }
    }

    /// Whether posted requests can still be expected to complete: a post on a failed queue pair may never do.
    fn is_alive(&self) -> bool {
        self.qp.as_ref().is_some_and(|qp| qp.state() != QpState::Error)
    }

    /// Destroys the queue pair, so that no device has anything of it; returns what was not borrowed.
    fn destroy(&mut self) -> Vec<Payload> {
        let Some(qp) = self.qp.take() else { return Vec::new() };
        match qp.close_payloads() {
            Ok(payloads) => {
                let own = |p: Payload| match p.into_slot() {
                    Ok(slot) if slot.is_in(&self.region) => None,
                    Ok(slot) => Some(Payload::from(slot)),
                    Err(payload) => Some(payload),
                };
                payloads.into_iter().filter_map(own).collect()
            }
            Err(e) => {
                // The device may go on writing to memory that its owner is about to use again.
                eprintln!("rdma-safe: borrowed memory cannot be taken back from a device: {e}");
                std::process::abort()
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Still there: the closure panicked.
        if self.posted > 0 {
            drop(self.destroy());
        }
    }
}

impl<'s> Scope<'s, '_> {
    /// Sends the first `len` bytes of a piece; as [`QueuePair::post_send`], but always signalled.
    ///
    /// # Errors
    /// As there, with the piece.
    pub fn post_send(
        &mut self,
        memory: Borrowed<'s>,
        len: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), ScopedPostError<'s>> {
        let flags = flags - SendFlags::UNSIGNALLED;
        self.post(memory, |qp, slot| qp.post_send(slot, len, flags))
    }

    /// Posts a receive; as [`QueuePair::post_recv`].
    ///
    /// # Errors
    /// As there, with the piece.
    pub fn post_recv(
        &mut self,
        memory: Borrowed<'s>,
    ) -> std::result::Result<(), ScopedPostError<'s>> {
        self.post(memory, QueuePair::post_recv)
    }

    fn post(
        &mut self,
        memory: Borrowed<'s>,
        post: impl FnOnce(&mut QueuePair, Slot) -> std::result::Result<(), PostError>,
    ) -> std::result::Result<(), ScopedPostError<'s>> {
        let Some(qp) = self.lent.qp.as_mut() else {
            return Err(ScopedPostError { why: Why::NoSuchQp, memory: Some(memory) });
        };
        // Counted first: whatever happens inside, the device may have it.
        self.lent.posted += 1;
        match post(qp, memory.slot) {
            Ok(()) => Ok(()),
            Err(PostError { why, slot, .. }) => {
                self.lent.posted -= usize::from(slot.is_some());
                let memory = slot.map(|slot| Borrowed { slot, brand: PhantomData });
                Err(ScopedPostError { why, memory })
            }
        }
    }

    /// Sends a copy; as [`QueuePair::post_inline`].
    ///
    /// # Errors
    /// As there.
    pub fn post_inline(
        &mut self,
        data: &[u8],
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        match self.lent.qp.as_mut() {
            Some(qp) => qp.post_inline(data, flags),
            None => Err(PostError { why: Why::NoSuchQp, slot: None, payload: None }),
        }
    }

    /// The next completion of the queue pair, polled for until `timeout`; `None` after it.
    ///
    /// # Errors
    /// The errno of the provider's poll.
    pub fn poll(&mut self, timeout: Duration) -> Result<Option<ScopedDone<'s>>> {
        let deadline = crate::channel::deadline_after(timeout);
        loop {
            if let Some((done, slot)) = self.lent.poll(self.cq)? {
                let memory = slot.map(|slot| Borrowed { slot, brand: PhantomData });
                return Ok(Some(ScopedDone { memory, done }));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }

    /// Pieces that are posted and not back.
    pub fn posted(&self) -> usize {
        self.lent.posted
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} posted, {:?})", self.lent.posted, self.lent.qp)
    }
}
