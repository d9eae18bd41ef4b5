//! Ending a system call that blocks for minutes: `rdma_connect` on soft iWARP opens a TCP connection inside the call, and
//! to a host that does not answer that takes 134 seconds.
//!
//! A POSIX timer sends a signal **to the calling thread** when the limit has passed or a [`CancelToken`] is used, and
//! sends it again every [`RESEND`] until the call has returned: a signal that arrives just before the thread enters the
//! kernel would otherwise be lost. The handler does nothing and is installed without `SA_RESTART`, so the call returns
//! EINTR. No thread is made, and handler and signal mask are put back after the call.
//!
//! # Which signal
//! `SIGURG`, because nothing happens to a process that gets one by default: should a stray one ever arrive, it is
//! ignored. It is used only while nobody else handles it; if somebody does (a Go runtime in the same process), the highest
//! free real-time signal is taken. [`set_interrupt_signal`] names another. A process that changes the disposition of that
//! signal itself **during** such a call is not supported: the call could then only end by itself.
use std::io;
use std::mem;
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, BorrowedFd};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The signal that interrupts a blocking call, unless it is taken or another was named.
pub const INTERRUPT_SIGNAL: i32 = libc::SIGURG;

/// How often the signal is repeated until the call has returned.
pub(crate) const RESEND: Duration = Duration::from_millis(10);

/// The signal named by the user, or 0.
static CHOSEN: AtomicI32 = AtomicI32::new(0);

/// Names the signal that interrupts blocking calls. Takes effect when no such call is running.
///
/// # Errors
/// [`Error::Os`] with EINVAL for a number that is no signal, or one that cannot be or must not be handled.
pub fn set_interrupt_signal(signal: i32) -> Result<()> {
    let unusable =
        [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    // Between the classic signals and SIGRTMIN are those that libc keeps for itself.
    let reserved = 32..libc::SIGRTMIN();
    if signal < 1
        || signal > libc::SIGRTMAX()
        || unusable.contains(&signal)
        || reserved.contains(&signal)
    {
        return Err(Error::errno_of("set_interrupt_signal", libc::EINVAL).about(signal));
    }
    CHOSEN.store(signal, Ordering::Relaxed);
    Ok(())
}

/// Ends, from any thread, every blocking call of the channels that were made with it, now and in future.
///
/// Clones are one token. Cancelling is final.
#[derive(Clone, Debug)]
pub struct CancelToken(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    /// Readable once cancelled, and for ever: whoever polls sees it.
    wake: OwnedFd,
    /// The timers of the calls that are running.
    timers: Mutex<Vec<(u64, Timer)>>,
}

impl CancelToken {
    /// A token that has not been used.
    ///
    /// # Errors
    /// [`Error::Os`] when no eventfd can be made (EMFILE, ENFILE, ENOMEM).
    pub fn new() -> Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last("eventfd"));
        }
        // SAFETY: a new descriptor that nobody else owns.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        let inner = Inner { cancelled: AtomicBool::new(false), wake, timers: Mutex::default() };
        Ok(Self(Arc::new(inner)))
    }

    /// Ends the blocking calls. Returns at once; they follow within moments.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        let one = 1_u64.to_ne_bytes();
        // An eventfd can only refuse when its counter is full, and then it is readable anyway.
        // SAFETY: eight readable bytes.
        let _ = unsafe { libc::write(self.0.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        for (_, timer) in self.timers().iter() {
            timer.fire_from(Duration::ZERO);
        }
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// Readable once cancelled, and for ever.
    #[cfg(feature = "tokio")]
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }

    /// Readable once cancelled.
    pub(crate) fn wake_fd(&self) -> RawFd {
        self.0.wake.as_raw_fd()
    }

    fn timers(&self) -> MutexGuard<'_, Vec<(u64, Timer)>> {
        self.0.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `call`, which may block in one system call, and makes that return EINTR when `deadline` passes or `token` is used.
pub(crate) fn interruptible<R>(
    token: &CancelToken,
    deadline: Instant,
    call: impl FnOnce() -> R,
) -> Result<R> {
    let handler = HandlerGuard::install()?;
    let _unblocked = Unblocked::new(handler.signal)?;
    let _armed = Armed::new(token, handler.signal, deadline)?;
    Ok(call())
}

/// A running call's timer, known to the token.
struct Armed<'t> {
    token: &'t CancelToken,
    number: u64,
}

impl<'t> Armed<'t> {
    fn new(token: &'t CancelToken, signal: i32, deadline: Instant) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let timer = Timer::new(signal)?;
        let mut timers = token.timers();
        // Under the lock that `cancel` takes after setting the flag: either it sees the timer or we see the flag.
        let now = token.is_cancelled();
        timer.fire_from(if now {
            Duration::ZERO
        } else {
            deadline.saturating_duration_since(Instant::now())
        });
        timers.push((number, timer));
        drop(timers);
        Ok(Self { token, number })
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        // The timer is deleted with the entry. A signal that is already pending is delivered on return from that system
        // call, where the handler is still in place and the signal still unblocked.
        self.token.timers().retain(|(number, _)| *number != self.number);
    }
}

/// A POSIX timer that signals the thread that made it.
#[derive(Debug)]
struct Timer(libc::timer_t);

// SAFETY: a timer id is a name within the process; any thread may set or delete the timer.
unsafe impl Send for Timer {}

impl Timer {
    fn new(signal: i32) -> Result<Self> {
        // SAFETY: plain data; all zeroes is valid.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        // SAFETY: no arguments; a thread id fits an i32.
        event.sigev_notify_thread_id = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let mut timer = ptr::null_mut();
        // SAFETY: both pointers are valid during the call.
        let rc =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        if rc == 0 { Ok(Self(timer)) } else { Err(Error::last("timer_create")) }
    }

    /// Signals after `delay` and then every [`RESEND`].
    fn fire_from(&self, delay: Duration) {
        // Zero would disarm the timer.
        let delay = delay.max(Duration::from_nanos(1));
        let setting = libc::itimerspec { it_interval: timespec(RESEND), it_value: timespec(delay) };
        // Fails only for a deleted timer or an impossible time; neither can be here.
        // SAFETY: a timer that lives; the setting is valid during the call.
        let _ = unsafe { libc::timer_settime(self.0, 0, &raw const setting, ptr::null_mut()) };
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: a timer that lives, once.
        let _ = unsafe { libc::timer_delete(self.0) };
    }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos() as _,
    }
}

/// The signal is unblocked in this thread; MPI and its users often block everything in the threads they start.
struct Unblocked {
    before: libc::sigset_t,
}

impl Unblocked {
    fn new(signal: i32) -> Result<Self> {
        // SAFETY: plain data that sigemptyset then sets up.
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: valid places; `signal` is a signal.
        let rc = unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, &raw mut before)
        };
        if rc == 0 { Ok(Self { before }) } else { Err(Error::errno_of("pthread_sigmask", rc)) }
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        // SAFETY: a mask that pthread_sigmask wrote.
        let _ = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// The handler that is installed, and what was there before. One for the process: dispositions are the process's.
static HANDLER: Mutex<Option<Handler>> = Mutex::new(None);

struct Handler {
    signal: i32,
    before: libc::sigaction,
    users: usize,
}

/// The handler is installed while one of these lives.
struct HandlerGuard {
    signal: i32,
}

impl HandlerGuard {
    fn install() -> Result<Self> {
        let mut slot = HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handler) = slot.as_mut() {
            handler.users += 1;
            return Ok(Self { signal: handler.signal });
        }
        let (signal, before) = free_signal()?;
        // SAFETY: plain data; all zeroes is an empty mask and no flags.
        let mut ours: libc::sigaction = unsafe { mem::zeroed() };
        ours.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        // No SA_RESTART: interrupting is the purpose. SA_ONSTACK: the thread may run on a small stack.
        ours.sa_flags = libc::SA_ONSTACK;
        // SAFETY: a valid action whose handler is async-signal-safe: it does nothing.
        if unsafe { libc::sigaction(signal, &raw const ours, ptr::null_mut()) } != 0 {
            return Err(Error::last("sigaction"));
        }
        *slot = Some(Handler { signal, before, users: 1 });
        Ok(Self { signal })
    }
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        let mut slot = HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(handler) = slot.as_mut() else { return };
        handler.users -= 1;
        if handler.users > 0 {
            return;
        }
        // Put back what was there, unless somebody else has put something there meanwhile.
        if current(handler.signal).is_ok_and(|now| is_ours(&now)) {
            // SAFETY: an action that the kernel reported for this signal.
            let _ = unsafe {
                libc::sigaction(handler.signal, &raw const handler.before, ptr::null_mut())
            };
        }
        *slot = None;
    }
}

extern "C" fn on_signal(_: i32) {}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_signal as extern "C" fn(i32) as usize
}

/// A signal that nobody handles, and its disposition.
fn free_signal() -> Result<(i32, libc::sigaction)> {
    let named = CHOSEN.load(Ordering::Relaxed);
    let first = if named == 0 { INTERRUPT_SIGNAL } else { named };
    // A signal that was named is used or nothing is.
    let fallback = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().filter(|_| named == 0);
    for signal in std::iter::once(first).chain(fallback) {
        let Ok(before) = current(signal) else { continue };
        // Ignored is as good as default for SIGURG, whose default is to be ignored.
        let ignored = signal == INTERRUPT_SIGNAL && before.sa_sigaction == libc::SIG_IGN;
        if before.sa_sigaction == libc::SIG_DFL || ignored {
            return Ok((signal, before));
        }
    }
    Err(Error::NoSignal { taken: first })
}

fn current(signal: i32) -> io::Result<libc::sigaction> {
    // SAFETY: plain data.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a valid place for the result; nothing is changed.
    match unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } {
        0 => Ok(action),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[path = "interrupt_tests.rs"]
mod tests;
