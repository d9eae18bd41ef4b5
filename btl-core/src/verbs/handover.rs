//! The queues between the engine, the connection manager's thread and the dialers.
//!
//! This file takes what it synchronises with from `super::sync`, so that `tests/handover.rs` can compile the same text on
//! loom's types and try every interleaving of a few steps.
use super::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError};
use std::collections::VecDeque;

/// Nothing panics while one of these locks is held; if something did, the lists are still whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Takes all letters, in order, behind what is in `inbox`.
    pub(super) fn fetch(&self, inbox: &mut VecDeque<T>) {
        let mut queue = lock(&self.queue);
        if inbox.is_empty() {
            // The reader's own memory goes back, so that neither side allocates for long.
            std::mem::swap(&mut *queue, inbox);
        } else {
            inbox.append(&mut queue);
        }
        self.arrived.store(false, Ordering::Relaxed);
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
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle = state.idle.saturating_sub(1);
        }
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
