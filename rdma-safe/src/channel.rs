//! Completion channels: sleeping until a completion queue has something.

use crate::context::Context;
use crate::cq::CqId;
use crate::error::{Error, Result};
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

pub(crate) struct ChannelInner {
    pub(crate) raw: NonNull<ibv_comp_channel>,
    pub(crate) ctx: ManuallyDrop<Context>,
    /// Queues that report here; a wait that belongs to one queue is refused when there are more.
    pub(crate) queues: AtomicU32,
}

// SAFETY: the channel is a descriptor; libibverbs counts events under locks.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: every CQ that reports here holds an Arc, so none is left and EBUSY cannot happen.
        let rc = unsafe { (self.ctx.0.verbs.destroy_comp_channel)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here; kept open with the channel otherwise.
            unsafe { ManuallyDrop::drop(&mut self.ctx) }
        }
    }
}

/// A completion channel. Cheap to clone, usable from any thread; its descriptor is non-blocking.
///
/// Made by [`Context::completion_channel`](crate::Context::completion_channel), and given queues by
/// [`Context::create_cq_with`](crate::Context::create_cq_with).
///
/// Every event is acknowledged inside [`wait`](Self::wait), so destroying a queue never waits for one.
#[derive(Clone)]
pub struct CompletionChannel(pub(crate) Arc<ChannelInner>);

impl CompletionChannel {
    pub(crate) fn new(ctx: &Context) -> Result<CompletionChannel> {
        // SAFETY: the context is alive.
        let raw = unsafe { (ctx.0.verbs.create_comp_channel)(ctx.as_raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let channel = CompletionChannel(Arc::new(ChannelInner {
            raw,
            ctx: ManuallyDrop::new(ctx.clone()),
            queues: AtomicU32::new(0),
        }));
        set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    /// Waits until an armed queue of this channel has a completion, and says which; `None` after `timeout`.
    ///
    /// A zero timeout only looks. Without a timeout it may wait for ever.
    /// The queue has to be armed ([`req_notify`](crate::CompletionQueue::req_notify)) and polled again first: a
    /// completion that came before the arming raises no event. An event may be left from an earlier arming, so an
    /// empty poll after it is normal.
    ///
    /// # Errors
    /// The errno of poll(2) or ibv_get_cq_event(3).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        let deadline = timeout.map(deadline_after);
        loop {
            if let Some(id) = self.take_event()? {
                return Ok(Some(id));
            }
            if !wait_readable(self.as_fd(), deadline)? {
                return Ok(None);
            }
        }
    }

    /// Takes one event and acknowledges it.
    pub(crate) fn take_event(&self) -> Result<Option<CqId>> {
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        let verbs = self.0.ctx.0.verbs;
        // SAFETY: live channel, writable pointers. The CQ the event names is alive: ibv_destroy_cq waits until its
        // reported events are acknowledged.
        if unsafe { (verbs.get_cq_event)(self.0.raw.as_ptr(), &mut cq, &mut cookie) } != 0 {
            let e = Error::last("ibv_get_cq_event");
            return match e.errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                _ => Err(e),
            };
        }
        // SAFETY: the event just taken is unacknowledged, so `cq` is alive.
        unsafe { (verbs.ack_cq_events)(cq, 1) };
        Ok(Some(CqId(cookie.addr() as u64)))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel and stays open as long as self. Only this field is read:
        // libibverbs changes others in other threads.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw.as_ptr()).fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel(fd {})", self.as_fd().as_raw_fd())
    }
}

/// Sets O_NONBLOCK: a waiter that loses the race for an event must not block in read(2) past its deadline.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: F_GETFL and F_SETFL on an open descriptor touch no memory.
    unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(Error::last("fcntl(O_NONBLOCK)"));
        }
    }
    Ok(())
}

/// The moment `timeout` from now; a century for one that no clock can hold.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + timeout.min(CENTURY)
}

/// poll(2) for input until the deadline; false when it passed.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool> {
    loop {
        let millis = match deadline {
            None => -1,
            // Rounded up, so that a wait never spins through its last millisecond.
            Some(d) => {
                let left = d.saturating_duration_since(Instant::now());
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        };
        let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        match unsafe { libc::poll(&mut p, 1, millis) } {
            0 if millis == i32::MAX => {}
            0 => return Ok(false),
            n if n > 0 => return Ok(true),
            _ => {
                let e = Error::last("poll");
                if e.errno() != libc::EINTR {
                    return Err(e);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_is_too_long_for_the_clock() {
        let now = Instant::now();
        assert!(deadline_after(Duration::MAX) > now + Duration::from_secs(1 << 30));
        assert!(deadline_after(Duration::ZERO) >= now);
    }
}
