//! The engine's side of the connection manager: two queues and a flag.
use super::port::VerbsQp;
use super::workshop::lock;
use crate::port::{Cm, CmEvent, CmRequest};
use rdma_cm::Waker;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the engine and the connection manager's thread leave for each other.
#[derive(Default)]
pub(super) struct Mail {
    requests: Mutex<Vec<CmRequest>>,
    events: Mutex<VecDeque<CmEvent<VerbsQp>>>,
    /// Something is in `events`. Written under its lock; an empty poll reads only this.
    arrived: AtomicBool,
    /// The engine is gone.
    quit: AtomicBool,
}

impl Mail {
    pub(super) fn push(&self, event: CmEvent<VerbsQp>) {
        let mut events = lock(&self.events);
        events.push_back(event);
        self.arrived.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_requests(&self) -> Vec<CmRequest> {
        std::mem::take(&mut lock(&self.requests))
    }

    pub(super) fn has_quit(&self) -> bool {
        self.quit.load(Ordering::Relaxed)
    }
}

/// The engine's handle of the connection manager's thread. Dropping it ends the thread, its
/// connections and all dials, and waits for that: nothing of this port runs afterwards.
pub struct VerbsCm {
    pub(super) mail: Arc<Mail>,
    pub(super) waker: Waker,
    pub(super) inbox: VecDeque<CmEvent<VerbsQp>>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Cm for VerbsCm {
    type Qp = VerbsQp;

    fn request(&mut self, request: CmRequest) {
        lock(&self.mail.requests).push(request);
        self.waker.wake();
    }

    #[inline]
    fn poll(&mut self) -> Option<CmEvent<VerbsQp>> {
        // A late look at the flag only means one poll more; the lock orders the rest.
        if self.inbox.is_empty() && !self.mail.arrived.load(Ordering::Relaxed) {
            return None;
        }
        self.fetch()
    }
}

impl VerbsCm {
    #[cold]
    #[inline(never)]
    fn fetch(&mut self) -> Option<CmEvent<VerbsQp>> {
        if self.inbox.is_empty() {
            let mut events = lock(&self.mail.events);
            std::mem::swap(&mut *events, &mut self.inbox);
            self.mail.arrived.store(false, Ordering::Relaxed);
        }
        self.inbox.pop_front()
    }
}

impl Drop for VerbsCm {
    fn drop(&mut self) {
        self.mail.quit.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, it is over all the same.
            let _ = thread.join();
        }
    }
}
