//! The disposition of a signal is the process's, so these tests take turns.
use std::sync::mpsc;
use std::thread;

use super::*;

static TURN: Mutex<()> = Mutex::new(());
const FOREVER: Duration = Duration::from_secs(60);

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A read that nothing but a signal ends; the errno it ended with and how long it took.
fn blocked(token: &CancelToken, limit: Duration) -> (i32, Duration) {
    let mut ends = [0; 2];
    // SAFETY: an array of two.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let start = Instant::now();
    let errno = interruptible(token, start + limit, || {
        let mut byte = 0_u8;
        // SAFETY: one writable byte.
        let got = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
        assert_eq!(got, -1, "nobody writes");
        io::Error::last_os_error().raw_os_error().unwrap()
    });
    for end in ends {
        // SAFETY: ours, once.
        unsafe { libc::close(end) };
    }
    (errno.unwrap(), start.elapsed())
}

fn disposition(signal: i32) -> usize {
    current(signal).unwrap().sa_sigaction
}

#[test]
fn a_limit_ends_the_call_and_leaves_no_trace() {
    let _turn = turn();
    let before = disposition(INTERRUPT_SIGNAL);
    let (errno, took) = blocked(&CancelToken::new().unwrap(), Duration::from_millis(50));
    assert_eq!(errno, libc::EINTR);
    assert!(took >= Duration::from_millis(50) && took < FOREVER / 2, "{took:?}");
    assert_eq!(disposition(INTERRUPT_SIGNAL), before);
}

#[test]
fn a_token_ends_the_call_from_another_thread() {
    let _turn = turn();
    let token = CancelToken::new().unwrap();
    let other = token.clone();
    let (tell, told) = mpsc::channel();
    let canceller = thread::spawn(move || {
        told.recv().unwrap();
        other.cancel();
    });
    tell.send(()).unwrap();
    let (errno, took) = blocked(&token, FOREVER);
    assert_eq!(errno, libc::EINTR);
    assert!(took < FOREVER / 2, "{took:?}");
    assert!(token.is_cancelled());
    canceller.join().unwrap();
}

#[test]
fn a_used_token_ends_every_later_call() {
    let _turn = turn();
    let token = CancelToken::new().unwrap();
    token.cancel();
    for _ in 0..3 {
        let (errno, took) = blocked(&token, FOREVER);
        assert!(errno == libc::EINTR && took < FOREVER / 2);
    }
}

#[test]
fn one_token_ends_the_calls_of_many_threads() {
    let _turn = turn();
    let token = CancelToken::new().unwrap();
    let (tell, told) = mpsc::channel();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (token, tell) = (token.clone(), tell.clone());
            thread::spawn(move || {
                tell.send(()).unwrap();
                blocked(&token, FOREVER)
            })
        })
        .collect();
    for _ in 0..threads.len() {
        told.recv().unwrap();
    }
    token.cancel();
    for thread in threads {
        let (errno, took) = thread.join().unwrap();
        assert!(errno == libc::EINTR && took < FOREVER / 2);
    }
    assert!(token.timers().is_empty());
}

#[test]
fn a_blocked_signal_is_unblocked_for_the_call_only() {
    let _turn = turn();
    thread::spawn(|| {
        // SAFETY: plain data that the calls below set up.
        let (mut all, mut after): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: valid places.
        unsafe {
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
        }
        let (errno, _) = blocked(&CancelToken::new().unwrap(), Duration::from_millis(20));
        assert_eq!(errno, libc::EINTR);
        // SAFETY: valid places; nothing is changed.
        let blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut after);
            libc::sigismember(&raw const after, INTERRUPT_SIGNAL)
        };
        assert_eq!(blocked, 1);
    })
    .join()
    .unwrap();
}

extern "C" fn foreign(_: i32) {}

/// Handles a signal in somebody else's name; put back when dropped.
struct Foreign(i32, libc::sigaction);

impl Foreign {
    fn new(signal: i32) -> Self {
        let before = current(signal).unwrap();
        // SAFETY: plain data.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = foreign as extern "C" fn(i32) as usize;
        // SAFETY: a valid action.
        assert_eq!(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) }, 0);
        Self(signal, before)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: an action the kernel reported.
        unsafe { libc::sigaction(self.0, &raw const self.1, ptr::null_mut()) };
    }
}

#[test]
fn a_foreign_handler_is_left_alone_and_another_signal_taken() {
    let _turn = turn();
    let theirs = Foreign::new(INTERRUPT_SIGNAL);
    let taken = disposition(INTERRUPT_SIGNAL);
    let (errno, took) = blocked(&CancelToken::new().unwrap(), Duration::from_millis(20));
    assert!(errno == libc::EINTR && took < FOREVER / 2);
    assert_eq!(disposition(INTERRUPT_SIGNAL), taken);
    drop(theirs);
    assert_eq!(disposition(libc::SIGRTMAX()), libc::SIG_DFL);
}

#[test]
fn a_named_signal_is_used_or_refused() {
    let _turn = turn();
    for bad in [0, -1, 10_000, 32, 33, libc::SIGKILL, libc::SIGSEGV] {
        assert!(set_interrupt_signal(bad).is_err(), "{bad}");
    }
    set_interrupt_signal(libc::SIGUSR2).unwrap();
    let (errno, _) = blocked(&CancelToken::new().unwrap(), Duration::from_millis(20));
    assert_eq!(errno, libc::EINTR);
    let theirs = Foreign::new(libc::SIGUSR2);
    let refused = interruptible(&CancelToken::new().unwrap(), Instant::now(), || ());
    assert!(matches!(refused, Err(Error::NoSignal { taken: libc::SIGUSR2 })), "{refused:?}");
    drop(theirs);
    CHOSEN.store(0, Ordering::Relaxed);
}

/// A signal that comes after the handler has been put back would end the process: SIGUSR1 does that by default.
#[test]
fn no_signal_comes_late() {
    let _turn = turn();
    set_interrupt_signal(libc::SIGUSR1).unwrap();
    let threads: Vec<_> = (0..4_u32)
        .map(|thread| {
            thread::spawn(move || {
                for round in 0..500_u32 {
                    let token = CancelToken::new().unwrap();
                    let other = token.clone();
                    let limit = Duration::from_micros(u64::from(round * 7 % 300));
                    let canceller =
                        (round % 4 == thread % 4).then(|| thread::spawn(move || other.cancel()));
                    // Ends by itself at about the moment at which the signal comes.
                    interruptible(&token, Instant::now() + limit, || thread::sleep(limit)).unwrap();
                    if let Some(canceller) = canceller {
                        canceller.join().unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(disposition(libc::SIGUSR1), libc::SIG_DFL);
    CHOSEN.store(0, Ordering::Relaxed);
}
