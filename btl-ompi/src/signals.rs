//! Threads of the transport take no signals: those are for the program.
//!
//! A new thread inherits the signal mask of the one that starts it. Without this, a signal sent to
//! the process (a timer's, a child's, a scheduler's warning) could be delivered to a thread of the
//! transport: the program's handler would run there, and a call that the program expects to be
//! interrupted would not be.

use core::mem;
use std::ptr;

/// What a thread brings on itself: its report must come out.
const OWN_FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];

/// Runs `start` with the signals blocked in this thread, so that the threads it starts, and those
/// they start, are born that way. What interrupts a dial is unblocked for the length of that call.
pub(crate) fn without<T>(start: impl FnOnce() -> T) -> T {
    let _restore = Blocked::all();
    start()
}

/// The mask as it was, put back on drop.
struct Blocked(Option<libc::sigset_t>);

impl Blocked {
    fn all() -> Self {
        // SAFETY: plain data; the calls below fill it before it is read.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: valid places for both sets.
        let rc = unsafe {
            libc::sigfillset(&raw mut all);
            for signal in OWN_FAULTS {
                libc::sigdelset(&raw mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before)
        };
        Self((rc == 0).then_some(before))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let Some(before) = &self.0 else { return };
        // SAFETY: a mask that the system wrote.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a signal is blocked in this thread.
    fn is_blocked(signal: i32) -> bool {
        // SAFETY: plain data that the call fills.
        let mut now: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: a valid place; nothing is changed.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut now);
            libc::sigismember(&raw const now, signal) == 1
        }
    }

    #[test]
    fn threads_started_inside_take_no_signals_and_the_caller_is_as_before() {
        let signals = [libc::SIGALRM, libc::SIGCHLD, libc::SIGUSR1, libc::SIGURG, libc::SIGTERM];
        let before = signals.map(is_blocked);
        assert_eq!(before, [false; 5]);
        let thread = without(|| {
            std::thread::spawn(move || {
                std::thread::spawn(move || signals.map(is_blocked)).join().expect("no panic")
            })
        });
        assert_eq!(signals.map(is_blocked), before);
        assert_eq!(thread.join().expect("no panic"), [true; 5]);
        assert!(without(|| !is_blocked(libc::SIGSEGV)));
    }
}
