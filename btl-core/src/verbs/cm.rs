//! The engine's side of the connection manager: two queues and a flag.
use super::handover::{Letters, Tray, lock};
use super::port::VerbsQp;
use crate::port::{Cm, CmEvent, CmRequest};
use rdma_cm::Waker;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the engine and the connection manager's thread leave for each other.
pub(super) struct Mail {
    requests: Tray<CmRequest>,
    events: Letters<CmEvent<VerbsQp>>,
    /// The engine is gone.
    quit: AtomicBool,
    pub(super) counts: Counts,
}

impl Default for Mail {
    fn default() -> Mail {
        let (requests, events) = (Tray::new(), Letters::new());
        Mail { requests, events, quit: AtomicBool::new(false), counts: Counts::default() }
    }
}

/// Counters of the thread.
#[derive(Default)]
pub(super) struct Counts {
    dials: AtomicU64,
    dials_rejected: AtomicU64,
    dials_failed: AtomicU64,
    accepts: AtomicU64,
    accepts_failed: AtomicU64,
    last_failure: Mutex<String>,
}

/// What the connection manager's thread did so far. All counts wrap at 2^64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CmStats {
    /// Dials that ended, well or not.
    pub dials: u64,
    /// Those that the peer rejected, or ended before they stood: because both sides dialled, or it was busy, or for good.
    pub dials_rejected: u64,
    /// Those that failed otherwise. They are repeated until `t_give_up`.
    pub dials_failed: u64,
    /// Requests that were to be accepted.
    pub accepts: u64,
    /// Those that did not become a connection.
    pub accepts_failed: u64,
    /// Why the last dial or accept that failed did so; empty if none did.
    pub last_failure: String,
}

impl Counts {
    pub(super) fn dial_done(&self) {
        self.dials.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dial_rejected(&self) {
        self.dials_rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dial_failed(&self, why: &str) {
        self.dials_failed.fetch_add(1, Ordering::Relaxed);
        why.clone_into(&mut lock(&self.last_failure));
    }

    pub(super) fn accepting(&self) {
        self.accepts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn accept_failed(&self, why: &str) {
        self.accepts_failed.fetch_add(1, Ordering::Relaxed);
        why.clone_into(&mut lock(&self.last_failure));
    }

    fn read(&self) -> CmStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CmStats {
            dials: get(&self.dials),
            dials_rejected: get(&self.dials_rejected),
            dials_failed: get(&self.dials_failed),
            accepts: get(&self.accepts),
            accepts_failed: get(&self.accepts_failed),
            last_failure: lock(&self.last_failure).clone(),
        }
    }
}

impl Mail {
    pub(super) fn push(&self, event: CmEvent<VerbsQp>) {
        self.events.push(event);
    }

    pub(super) fn take_requests(&self) -> Vec<CmRequest> {
        self.requests.take()
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
        self.mail.requests.put(request);
        self.waker.wake();
    }

    #[inline]
    fn poll(&mut self) -> Option<CmEvent<VerbsQp>> {
        if !self.mail.events.have_arrived() {
            return None;
        }
        self.fetch()
    }

    #[inline(always)]
    fn has_news(&self) -> bool {
        self.mail.events.have_arrived()
    }
}

impl VerbsCm {
    /// What the thread did so far.
    pub fn stats(&self) -> CmStats {
        self.mail.counts.read()
    }

    #[cold]
    #[inline(never)]
    fn fetch(&mut self) -> Option<CmEvent<VerbsQp>> {
        self.mail.events.fetch(&mut self.inbox)
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
