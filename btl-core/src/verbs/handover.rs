//! The queues between the engine, the connection manager's thread and the dialers.
//!
//! This file takes what it synchronises with from `super::sync`, so that `tests/handover.rs` can compile the same text on
//! loom's types and try every interleaving of a few steps.
use super::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError};
use std::collections::VecDeque;

/// Nothing panics while one of these locks is held; if something did, the lists are still whole.
#[cfg(not(tsan))]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for ThreadSanitizer, which does not see what the standard library does where a lock is contended: that code is
/// not instrumented.
#[cfg(tsan)]
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(std::sync::TryLockError::Poisoned(poison)) => {
                return PoisonError::into_inner(poison);
            }
            Err(std::sync::TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// Letters to a reader that asks all the time, and must not pay a lock for "nothing".
pub(super) struct Letters<T> {
    queue: Mutex<VecDeque<T>>,
    /// Something is in `queue`. Written under its lock; whoever asks reads only this.
    arrived: AtomicBool,
}

impl<T> Letters<T> {
    pub(super) fn new() -> Letters<T> {
        Letters { queue: Mutex::new(VecDeque::new()), arrived: AtomicBool::new(false) }
    }

    pub(super) fn push(&self, letter: T) {
        let mut queue = lock(&self.queue);
        queue.push_back(letter);
        self.arrived.store(true, Ordering::Relaxed);
    }

    /// Whether to [`fetch`](Letters::fetch). A late look at the flag only means one look more; the lock orders the rest.
    #[inline]
    pub(super) fn have_arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// The next letter. `inbox` is the reader's own; while letters are in it they count as arrived.
    pub(super) fn fetch(&self, inbox: &mut VecDeque<T>) -> Option<T> {
        if inbox.len() > 1 {
            return inbox.pop_front();
        }
        let mut queue = lock(&self.queue);
        inbox.append(&mut queue);
        let letter = inbox.pop_front();
        self.arrived.store(!inbox.is_empty(), Ordering::Relaxed);
        letter
    }
}

/// What a reader takes all at once, after it was woken.
pub(super) struct Tray<T>(Mutex<Vec<T>>);

impl<T> Tray<T> {
    pub(super) fn new() -> Tray<T> {
        Tray(Mutex::new(Vec::new()))
    }

    pub(super) fn put(&self, it: T) {
        lock(&self.0).push(it);
    }

    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// Jobs for workers that sleep while there are none.
pub(super) struct Jobs<T> {
    state: Mutex<State<T>>,
    /// There is a job, or the end has come.
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    idle: usize,
    over: bool,
}

impl<T> Jobs<T> {
    pub(super) fn new() -> Jobs<T> {
        let state = State { queue: VecDeque::new(), idle: 0, over: false };
        Jobs { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Queues a job, unless `staff` fails, which is told first whether all workers have something to do.
    pub(super) fn put<E>(
        &self,
        job: T,
        staff: impl FnOnce(bool) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = lock(&self.state);
        staff(state.idle <= state.queue.len())?;
        state.queue.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job; waits for it. `None`: there will be none.
    pub(super) fn next(&self) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if state.over {
                return None;
            }
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            state = self.wait(state);
            state.idle = state.idle.saturating_sub(1);
        }
    }

    #[cfg(not(tsan))]
    fn wait<'l>(&'l self, state: MutexGuard<'l, State<T>>) -> MutexGuard<'l, State<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`lock`].
    #[cfg(tsan)]
    fn wait<'l>(&'l self, state: MutexGuard<'l, State<T>>) -> MutexGuard<'l, State<T>> {
        drop(state);
        std::thread::sleep(std::time::Duration::from_millis(1));
        lock(&self.state)
    }

    /// Ends the workers; jobs that nobody has taken are dropped.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        state.queue.clear();
        drop(state);
        self.changed.notify_all();
    }
}
