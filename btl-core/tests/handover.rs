//! The queues between the engine, the connection manager's thread and the dialers, in every interleaving of a few steps: the shipped
//! text, compiled on loom's types.
#![allow(missing_docs)]

#[path = "../src/verbs/handover.rs"]
mod handover;

/// What the shipped file takes from std.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

use handover::{Jobs, Letters, Tray, lock};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::collections::VecDeque;

/// Every interleaving with so many forced switches of threads: bugs of this kind need few.
fn every_interleaving(steps: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(steps);
}

/// What an engine's poll does.
fn poll(letters: &Letters<u32>, inbox: &mut VecDeque<u32>) -> Option<u32> {
    if letters.have_arrived() { letters.fetch(inbox) } else { None }
}

#[test]
fn letters_arrive_once_and_in_order() {
    every_interleaving(|| {
        let letters = Arc::new(Letters::new());
        let writer = {
            let letters = Arc::clone(&letters);
            thread::spawn(move || (1..=3).for_each(|n| letters.push(n)))
        };
        let (mut inbox, mut got) = (VecDeque::new(), Vec::new());
        for _ in 0..3 {
            got.extend(poll(&letters, &mut inbox));
        }
        writer.join().unwrap();
        // Whatever was missed is found by the polls that come after.
        while let Some(letter) = poll(&letters, &mut inbox) {
            got.push(letter);
        }
        assert_eq!(got, [1, 2, 3]);
    });
}

/// A letter that is fetched brings what was written before it was pushed.
#[test]
fn a_letter_orders_what_was_done_before_it() {
    every_interleaving(|| {
        let shared = Arc::new((Letters::new(), AtomicUsize::new(0)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1.store(7, Ordering::Relaxed);
                shared.0.push(1);
            })
        };
        let mut inbox = VecDeque::new();
        if poll(&shared.0, &mut inbox).is_some() {
            assert_eq!(shared.1.load(Ordering::Relaxed), 7);
        }
        writer.join().unwrap();
    });
}

/// The eventfd of the real waker: a wake is kept until somebody waits.
struct Waker {
    woken: sync::Mutex<bool>,
    changed: sync::Condvar,
}

impl Waker {
    fn new() -> Waker {
        Waker { woken: sync::Mutex::new(false), changed: sync::Condvar::new() }
    }

    fn wake(&self) {
        *lock(&self.woken) = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut woken = lock(&self.woken);
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// The thread sleeps only when there is nothing for it: whatever is asked before its wait, or during it, is done.
#[test]
fn a_request_is_never_slept_through() {
    every_interleaving(|| {
        let shared = Arc::new((Tray::new(), Waker::new(), AtomicBool::new(false)));
        let manager = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (tray, waker, quit) = &*shared;
                let mut got = Vec::new();
                loop {
                    let over = quit.load(Ordering::Relaxed);
                    got.extend(tray.take());
                    if over {
                        return got;
                    }
                    waker.wait();
                }
            })
        };
        let (tray, waker, quit) = &*shared;
        for n in 1..=2 {
            tray.put(n);
            waker.wake();
        }
        quit.store(true, Ordering::Relaxed);
        waker.wake();
        assert_eq!(manager.join().unwrap(), [1, 2]);
    });
}

/// A completion that is polled before its lane has arrived is kept, and delivered once, before what follows it.
#[test]
fn a_completion_before_its_lane_is_parked_and_delivered_first() {
    const LANE: u32 = 5;
    every_interleaving(|| {
        // The lane's queue pair completes into the queue from the moment it exists; the letter comes later.
        let queue = Arc::new((sync::Mutex::new(VecDeque::new()), Letters::new()));
        let manager = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                lock(&queue.0).push_back((LANE, 1));
                queue.1.push(LANE);
                lock(&queue.0).push_back((LANE, 2));
            })
        };
        let (mut inbox, mut adopted, mut parked, mut delivered) =
            (VecDeque::new(), false, Vec::new(), Vec::new());
        let mut engine = |delivered: &mut Vec<u32>| {
            // As the engine polls: the queue first, then the letters.
            let done = lock(&queue.0).pop_front();
            match done {
                Some((LANE, n)) if adopted => delivered.push(n),
                Some(done) => parked.push(done.1),
                None => {}
            }
            if poll(&queue.1, &mut inbox) == Some(LANE) {
                adopted = true;
                delivered.append(&mut parked);
            }
        };
        for _ in 0..2 {
            engine(&mut delivered);
        }
        manager.join().unwrap();
        for _ in 0..3 {
            engine(&mut delivered);
        }
        assert_eq!(delivered, [1, 2]);
    });
}

/// Every job is done once, or dropped by the end; every worker ends.
#[test]
fn jobs_are_done_once_and_workers_end() {
    every_interleaving(|| {
        let jobs = Arc::new(Jobs::new());
        let done = Arc::new(AtomicUsize::new(0));
        let worker = || {
            let (jobs, done) = (Arc::clone(&jobs), Arc::clone(&done));
            thread::spawn(move || {
                while let Some(n) = jobs.next() {
                    done.fetch_add(n, Ordering::Relaxed);
                }
            })
        };
        let mut workers = Vec::new();
        for n in [1, 10] {
            let put = jobs.put(n, |all_busy| {
                // Before the first job nobody is idle.
                assert!(all_busy || !workers.is_empty());
                if all_busy && workers.is_empty() {
                    workers.push(worker());
                }
                Ok::<(), ()>(())
            });
            assert!(put.is_ok());
        }
        jobs.end();
        for worker in workers {
            worker.join().unwrap();
        }
        assert!([0, 1, 10, 11].contains(&done.load(Ordering::Relaxed)));
        assert!(jobs.next().is_none());
    });
}

/// Whoever waits is woken by a job.
#[test]
fn no_job_is_slept_through() {
    every_interleaving(|| {
        let jobs = Arc::new(Jobs::new());
        let worker = {
            let jobs = Arc::clone(&jobs);
            thread::spawn(move || jobs.next())
        };
        assert!(jobs.put(3, |_| Ok::<(), ()>(())).is_ok());
        assert_eq!(worker.join().unwrap(), Some(3));
    });
}

/// The checker does find a queue that loses letters: one whose flag is cleared after the lock is gone.
#[test]
#[should_panic(expected = "the letter is lost")]
fn a_flag_that_is_cleared_too_late_is_noticed() {
    every_interleaving(|| {
        let shared = Arc::new((sync::Mutex::new(VecDeque::new()), AtomicBool::new(false)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for n in 1..=2 {
                    lock(&shared.0).push_back(n);
                    shared.1.store(true, Ordering::Relaxed);
                }
            })
        };
        let mut got = 0;
        let mut fetch = || {
            if shared.1.load(Ordering::Relaxed) {
                got += std::mem::take(&mut *lock(&shared.0)).len();
                shared.1.store(false, Ordering::Relaxed);
            }
        };
        fetch();
        writer.join().unwrap();
        fetch();
        assert_eq!(got, 2, "the letter is lost");
    });
}
