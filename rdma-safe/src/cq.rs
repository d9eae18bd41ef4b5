//! Completion queues, and the accounting that keeps them from overflowing.
//!
//! A completion queue that overflows loses completions, and a lost completion is a lost buffer; after that the queue is
//! unusable (ibv_create_cq(3)). So every queue pair books the sum of its depths when it is made, unsignalled sends
//! included (they complete when they fail). What it had in flight when it was destroyed comes back only after a later
//! poll has found the queue empty: siw adds a destroyed queue pair's flush completions during the destroy. The device's own idea
//! of the depth is not used: siw rounds its rings up and reports the number asked for.

mod extended;
mod tune;

pub use extended::{ExtendedCq, ExtendedWc, WcFields};

use crate::channel::{ChannelInner, CompletionChannel, deadline_after, wait_readable};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::wc::Wc;
use rdma_sys::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Names a completion queue in events; never used again in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub(crate) u64);

static NEXT_CQ: AtomicU64 = AtomicU64::new(1);

/// Who has booked what. Locked only when queue pairs come and go, and for completions of unknown queue pairs.
#[derive(Default)]
struct Book {
    booked: u32,
    /// Serials of the queue pairs and shared receive queues that exist on this queue.
    live: BTreeSet<u64>,
    /// Numbers of dead queue pairs whose completions from shared receive queues may still be in the queue, and whether
    /// a poll has begun since.
    ghosts: Vec<(u32, bool)>,
}

pub(crate) struct CqInner {
    pub(crate) raw: NonNull<ibv_cq>,
    pub(crate) ctx: ManuallyDrop<Context>,
    channel: ManuallyDrop<Option<Arc<ChannelInner>>>,
    id: CqId,
    /// Changed only by a resize, with the book locked.
    depth: AtomicU32,
    book: Mutex<Book>,
    /// Booked shares of destroyed queue pairs whose completions may still be in the queue.
    buried: AtomicU32,
    /// What of `buried` was there before the latest poll that found nothing. Only the poller's.
    seen_buried: AtomicU32,
    /// The provider's poll, looked up once: it is set when the context is opened.
    poll_op: PollCqOp,
}

// SAFETY: libibverbs serialises calls on a completion queue; our own state is behind a mutex and atomics.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: every QP on the queue holds an Arc, so none is left and EBUSY (which on siw would leave the rings
        // unmapped) cannot happen; events are acknowledged as they are read, so this does not wait.
        let rc = unsafe { (self.ctx.0.verbs.destroy_cq)(self.raw.as_ptr()) };
        if rc == 0 {
            if let Some(c) = self.channel.as_ref() {
                c.queues.fetch_sub(1, Ordering::Relaxed);
            }
            // SAFETY: dropped once, here; kept with the queue otherwise.
            unsafe {
                ManuallyDrop::drop(&mut self.channel);
                ManuallyDrop::drop(&mut self.ctx);
            }
        }
    }
}

impl CqInner {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing panics while it is held; if something did, the numbers are still whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books room for a new queue pair's completions.
    pub(crate) fn reserve(&self, share: u32) -> Result<()> {
        let mut book = self.book();
        match book.booked.checked_add(share).filter(|b| *b <= self.depth()) {
            Some(b) => {
                book.booked = b;
                Ok(())
            }
            None => Err(self.no_room(share, book.booked)),
        }
    }

    #[cold]
    fn no_room(&self, share: u32, booked: u32) -> Error {
        let dead = self.buried.load(Ordering::Relaxed);
        let more = match dead {
            0 => String::new(),
            n => format!(
                " ({n} of them by destroyed queue pairs: they return after a poll that finds the queue empty)"
            ),
        };
        Error::refused(
            "create_qp",
            ErrorKind::CqDepth,
            format!(
                "{share} more completions do not fit a completion queue of {} with {booked} booked{more}; \
                 make the queue deeper or the queue pair's depths smaller",
                self.depth()
            ),
        )
    }

    /// The queue pair was not made after all.
    pub(crate) fn unreserve(&self, share: u32) {
        let mut book = self.book();
        book.booked = book.booked.saturating_sub(share);
    }

    pub(crate) fn born(&self, serial: u64) {
        self.book().live.insert(serial);
    }

    /// The queue pair is destroyed. Of its share the part of the requests that were `pending` returns once the queue has
    /// been seen empty; the rest cannot complete any more and returns at once.
    pub(crate) fn bury(&self, serial: u64, share: u32, pending: u32) {
        let pending = pending.min(share);
        let mut book = self.book();
        book.live.remove(&serial);
        book.booked = book.booked.saturating_sub(share - pending);
        drop(book);
        // Release: whoever acquires this count also sees that the destroy has happened.
        self.buried.fetch_add(pending, Ordering::Release);
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// A queue pair on a shared receive queue is destroyed: until the queue has been seen empty, its number names
    /// nobody. One completion is booked for it, so that somebody looks.
    pub(crate) fn haunt(&self, qp_num: u32) {
        let mut book = self.book();
        book.ghosts.push((qp_num, false));
        book.booked = book.booked.saturating_add(1);
        drop(book);
        self.buried.fetch_add(1, Ordering::Release);
    }

    /// Whether a completion may be of a dead queue pair with this number.
    pub(crate) fn is_haunted(&self, qp_num: u32) -> bool {
        self.buried.load(Ordering::Acquire) != 0 && self.book().ghosts.iter().any(|g| g.0 == qp_num)
    }

    /// The queue was seen empty: ghosts from before the previous poll are gone.
    fn exorcise(&self) {
        let mut book = self.book();
        book.ghosts.retain(|g| !g.1);
        book.ghosts.iter_mut().for_each(|g| g.1 = true);
    }

    pub(crate) fn is_live(&self, serial: u64) -> bool {
        self.book().live.contains(&serial)
    }

    /// A poll found the queue empty, or failed.
    #[cold]
    #[inline(never)]
    pub(crate) fn emptied(&self, n: i32) -> Result<()> {
        if n < 0 {
            return Err(Error::os("ibv_poll_cq", errno_of(n)));
        }
        // The shares counted here were buried before the poll began, so their completions are out of the queue.
        let seen = self.seen_buried.load(Ordering::Relaxed);
        if seen != 0 {
            self.resurrect(seen);
        }
        self.exorcise();
        self.seen_buried.store(self.buried.load(Ordering::Acquire), Ordering::Relaxed);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn resurrect(&self, share: u32) {
        self.unreserve(share);
        self.buried.fetch_sub(share, Ordering::Relaxed);
    }
}

/// Names a completion queue for making queue pairs on it, from any thread.
///
/// From [`CompletionQueue::cq_ref`](crate::CompletionQueue::cq_ref) and
/// [`PollGroup::cq_ref`](crate::PollGroup::cq_ref).
#[derive(Clone)]
pub struct CqRef(pub(crate) Arc<CqInner>);

impl CqRef {
    /// Depth of the queue and how much of it queue pairs have booked.
    pub fn depth(&self) -> (u32, u32) {
        (self.0.depth(), self.0.book().booked)
    }

    /// Whether a queue pair with this serial exists on the queue: `false` once it is destroyed.
    pub fn is_live(&self, serial: u64) -> bool {
        self.0.is_live(serial)
    }

    /// Names the queue in events.
    pub fn id(&self) -> CqId {
        self.0.id
    }
}

impl fmt::Debug for CqRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqRef({:?}, depth and booked {:?})", self.0.id, self.depth())
    }
}

/// A completion queue and the right to poll it. `Send`; destroyed when it and the last queue pair on it are gone.
///
/// Made by [`Context::create_cq`](crate::Context::create_cq), or
/// [`Context::create_cq_with`](crate::Context::create_cq_with) to sleep on it.
///
/// There is no arming for solicited completions only: on siw such an event never comes.
pub struct CompletionQueue {
    inner: Arc<CqInner>,
    /// One poller at a time: not Sync.
    one: PhantomData<Cell<()>>,
}

impl CompletionQueue {
    pub(crate) fn new(
        ctx: &Context,
        depth: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue> {
        let (cqe, id, cookie, raw_channel) = prepare(ctx, depth, channel)?;
        // SAFETY: context and channel are alive; the cookie is only a number.
        let raw = unsafe { (ctx.0.verbs.create_cq)(ctx.as_raw(), cqe, cookie, raw_channel, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| explain_create(Error::last("ibv_create_cq")))?;
        // SAFETY: just made so.
        Ok(unsafe { CompletionQueue::adopt(ctx, raw, depth, id, channel) })
    }

    /// # Safety
    /// `raw` is a live queue of `depth` and of this context, solely owned, whose cookie is `id` and that reports to
    /// `channel`.
    unsafe fn adopt(
        ctx: &Context,
        raw: NonNull<ibv_cq>,
        depth: u32,
        id: CqId,
        channel: Option<&CompletionChannel>,
    ) -> CompletionQueue {
        if let Some(c) = channel {
            c.0.queues.fetch_add(1, Ordering::Relaxed);
        }
        let inner = Arc::new(CqInner {
            raw,
            ctx: ManuallyDrop::new(ctx.clone()),
            channel: ManuallyDrop::new(channel.map(|c| Arc::clone(&c.0))),
            id,
            depth: AtomicU32::new(depth),
            book: Mutex::default(),
            buried: AtomicU32::new(0),
            seen_buried: AtomicU32::new(0),
            // SAFETY: the context is open.
            poll_op: unsafe { poll_cq_op(ctx.as_raw()) },
        });
        CompletionQueue { inner, one: PhantomData }
    }

    /// A handle to make queue pairs on this queue.
    pub fn cq_ref(&self) -> CqRef {
        CqRef(Arc::clone(&self.inner))
    }

    pub(crate) fn inner(&self) -> &Arc<CqInner> {
        &self.inner
    }

    /// Takes up to `out.len()` completions (ibv_poll_cq(3)) into the front of `out` and returns how many.
    ///
    /// Whatever was in those places is overwritten. Does not block, allocate or lock.
    ///
    /// # Errors
    /// The errno of the provider; the queue is unusable then.
    #[inline(always)]
    pub fn poll(&mut self, out: &mut [Wc]) -> Result<usize> {
        // A provider cannot have written more than it was asked for.
        Ok(self.poll_unchecked(out)?.min(out.len()))
    }

    /// [`poll`](Self::poll); the number is the provider's.
    #[inline(always)]
    pub(crate) fn poll_unchecked(&mut self, out: &mut [Wc]) -> Result<usize> {
        let want = i32::try_from(out.len()).unwrap_or(i32::MAX);
        let inner = &*self.inner;
        // SAFETY: the queue is alive; Wc is a transparent ibv_wc and `out` has room for `want` of them. Only `&mut
        // self` polls, so no completion is seen twice.
        let n = unsafe { (inner.poll_op)(inner.raw.as_ptr(), want, out.as_mut_ptr().cast()) };
        if n <= 0 {
            // Finding nothing is worth something only while anything is buried. `emptied` looks again in the right order.
            if n.cast_unsigned() | inner.buried.load(Ordering::Relaxed) != 0 {
                inner.emptied(n)?;
            }
            return Ok(0);
        }
        Ok(n as usize)
    }

    /// Asks for one event on the channel when the next completion arrives (ibv_req_notify_cq(3)).
    ///
    /// Poll once more after it: what arrived before raises no event.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState) when the queue has no channel, else the errno of the call.
    pub fn req_notify(&mut self) -> Result<()> {
        self.channel()?;
        // SAFETY: the queue is alive.
        Error::check("ibv_req_notify_cq", unsafe { ibv_req_notify_cq(self.inner.raw.as_ptr(), 0) })
    }

    /// Polls, and sleeps on the channel while there is nothing; 0 after `timeout`. For queues made with
    /// [`create_cq_with`](crate::Context::create_cq_with).
    ///
    /// Arms, polls again and waits in the one right order.
    ///
    /// # Errors
    /// As [`poll`](Self::poll) and [`req_notify`](Self::req_notify); [`WrongState`](ErrorKind::WrongState) when other
    /// queues report to the same channel, whose events this would swallow.
    pub fn poll_wait(&mut self, out: &mut [Wc], timeout: Duration) -> Result<usize> {
        let deadline = deadline_after(timeout);
        loop {
            let n = self.poll(out)?;
            if n > 0 || out.is_empty() {
                return Ok(n);
            }
            self.req_notify()?;
            let n = self.poll(out)?;
            if n > 0 || !self.wait_event(deadline)? {
                return Ok(n);
            }
        }
    }

    /// Waits for an event of this queue, armed by the caller; false when the deadline passed.
    pub(crate) fn wait_event(&mut self, deadline: Instant) -> Result<bool> {
        let channel = self.sole_channel("poll_wait")?;
        if !wait_readable(channel.as_fd(), Some(deadline))? {
            return Ok(false);
        }
        channel.wait(Some(Duration::ZERO))?;
        Ok(true)
    }

    /// The queue's channel, refused when other queues report to it: their events would be swallowed.
    pub(crate) fn sole_channel(&self, op: &'static str) -> Result<CompletionChannel> {
        let channel = CompletionChannel(Arc::clone(self.channel()?));
        if channel.0.queues.load(Ordering::Relaxed) > 1 {
            return Err(Error::refused(
                op,
                ErrorKind::WrongState,
                "other completion queues report to this channel; use CompletionChannel::wait and poll them by id",
            ));
        }
        Ok(channel)
    }

    fn channel(&self) -> Result<&Arc<ChannelInner>> {
        self.inner.channel.as_ref().ok_or_else(|| {
            Error::refused(
                "req_notify",
                ErrorKind::WrongState,
                "the completion queue has no channel; make it with create_cq_with",
            )
        })
    }

    /// The raw queue, valid as long as `self` lives. Completions polled from it by other means are lost to this crate.
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.inner.raw.as_ptr()
    }
}

/// Checks what a queue is to be made of: its depth, id, the id as a cookie, and the raw channel.
fn prepare(
    ctx: &Context,
    depth: u32,
    channel: Option<&CompletionChannel>,
) -> Result<(i32, CqId, *mut c_void, *mut ibv_comp_channel)> {
    let cqe = checked_depth("create_cq", ctx, depth)?;
    if channel.is_some_and(|c| !c.0.ctx.is_same(ctx)) {
        return Err(Error::refused(
            "create_cq",
            ErrorKind::WrongContext,
            "the completion channel belongs to another context",
        ));
    }
    let id = CqId(NEXT_CQ.fetch_add(1, Ordering::Relaxed));
    let raw_channel = channel.map_or(null_mut(), |c| c.0.raw.as_ptr());
    Ok((cqe, id, without_provenance_mut(id.0 as usize), raw_channel))
}

fn checked_depth(op: &'static str, ctx: &Context, depth: u32) -> Result<i32> {
    let max = ctx.attr().max_cqe;
    match i32::try_from(depth) {
        Ok(d) if d > 0 && depth <= max => Ok(d),
        _ => Err(Error::refused(
            op,
            ErrorKind::InvalidArgument,
            format!("a depth of {depth} is not between 1 and this device's {max}"),
        )),
    }
}

fn explain_create(e: Error) -> Error {
    match e.kind() {
        ErrorKind::OutOfMemory => e.with_hint(
            "the device has too many completion queues, or RLIMIT_MEMLOCK (`ulimit -l`) is too low for its ring",
        ),
        _ => e,
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({:?}, depth {})", self.inner.id, self.inner.depth())
    }
}
