//! Ends a wait for events from another thread, without ending the channel.
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::error::{Error, Result};

/// Makes the [`next_event`](crate::EventChannel::next_event) of one channel return early, from any thread.
///
/// From [`EventChannel::waker`](crate::EventChannel::waker).
///
/// For a thread that waits for connection events and for work from elsewhere at once.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last("eventfd"));
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The channel's current `next_event`, or else the next one that finds no event, returns `None` at once. Several
    /// wakes may become one. Never blocks.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // An eventfd can only refuse when its counter is full, and then it is readable anyway.
        // SAFETY: eight readable bytes.
        let _ = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Whether it was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes.
        let n = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        n == 8
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_are_seen_once() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take());
        waker.clone().wake();
        waker.wake();
        assert!(waker.take());
        assert!(!waker.take());
    }
}
