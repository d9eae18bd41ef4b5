//! One descriptor that many tasks wait on, together with state they share.
//!
//! Whoever waits also does the work: it reads the descriptor, puts what belongs to others where they look for it, and
//! wakes them. So there is no background task, and no result is ever in the hands of a future that may be dropped.
//!
//! # Why no wake-up is lost
//! tokio watches descriptors edge-triggered: readiness is set by an edge and stays until somebody clears it, which is
//! allowed only after a read has found nothing. A task goes to sleep in this order:
//! 1. its waker is in the list,
//! 2. the descriptor's readiness is asked for, with a waker that wakes the **whole list**,
//! 3. `step` reads everything the descriptor has (if it is ready), and then looks at the shared state under its lock,
//! 4. readiness is cleared if step 3 found nothing for this task, and 2 and 3 are done again; tokio keeps readiness
//!    that has been set since 2.
//!
//! What comes after 3 is either an edge, which wakes the list, or a change another task makes under the lock, and whoever
//! makes one wakes the list after it (`moved`). The edge alone would not do: a task that reads an event before the
//! runtime has looked at the descriptor leaves nothing for the runtime to see.
//! A task that is woken and dropped instead of polled takes nothing from others, because all are woken each time.

#![forbid(unsafe_code)]

use super::watch::{shut_down, watch};
use crate::error::Result;
use ::tokio::io::unix::AsyncFd;
use std::future::poll_fn;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Wake, Waker};

/// See the module's head.
#[doc(hidden)]
pub struct SharedFd {
    fd: AsyncFd<OwnedFd>,
    waiters: Arc<Waiters>,
    /// Wakes the whole list.
    all: Waker,
}

/// What a step has found and done.
#[doc(hidden)]
pub struct Step<T> {
    /// What the task waits for.
    pub result: Poll<T>,
    /// Whether the shared state has changed in a way that others may wait for.
    pub moved: bool,
}

impl SharedFd {
    /// Watches `fd` in the current runtime.
    ///
    /// # Errors
    /// [`ErrorKind::WrongState`](crate::ErrorKind::WrongState) outside of a runtime; else the errno of fcntl(2) or
    /// epoll_ctl(2).
    ///
    /// # Panics
    /// In a runtime that was built without `enable_io`.
    pub fn new(fd: BorrowedFd<'_>) -> Result<SharedFd> {
        let fd = watch(fd)?;
        let waiters = Arc::new(Waiters::default());
        let all = Waker::from(Arc::clone(&waiters));
        Ok(SharedFd { fd, waiters, all })
    }

    /// Calls `step` until it is ready. It is told whether the descriptor may have something, and then has to read until
    /// there is nothing.
    ///
    /// Cancel-safe if `step` takes nothing out of the shared state but what it returns as ready.
    ///
    /// # Errors
    /// [`ErrorKind::WrongState`](crate::ErrorKind::WrongState) when the runtime is being shut down.
    pub async fn wait<T>(&self, mut step: impl FnMut(bool) -> Step<T>) -> Result<T> {
        // A task that always finds something must let others run at times. Nothing has been taken yet.
        ::tokio::task::consume_budget().await;
        let mut ticket = Ticket { list: &self.waiters, place: None };
        poll_fn(|cx| {
            ticket.register(cx.waker());
            loop {
                let mut all = std::task::Context::from_waker(&self.all);
                let readable = self.fd.poll_read_ready(&mut all);
                let Step { result, moved } = step(readable.is_ready());
                if moved {
                    self.waiters.wake_others(ticket.place);
                }
                if let Poll::Ready(value) = result {
                    return Poll::Ready(Ok(value));
                }
                match readable {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(shut_down())),
                }
            }
        })
        .await
    }

    /// Makes everybody look again, after a change of the shared state.
    pub fn wake_all(&self) {
        self.waiters.wake_others(None);
    }

    /// The handle of [`wake_all`](Self::wake_all) for other threads.
    pub fn waker(&self) -> Waker {
        self.all.clone()
    }

    /// Tasks that wait now.
    pub fn waiting(&self) -> usize {
        self.waiters.lock().places.iter().filter(|p| !matches!(p, Place::Free)).count()
    }
}

/// The wakers of those who wait.
#[derive(Default)]
struct Waiters(Mutex<List>);

#[derive(Default)]
struct List {
    places: Vec<Place>,
    free: Vec<usize>,
}

enum Place {
    Free,
    /// Its task was woken and has not come back yet.
    Woken,
    Waiting(Waker),
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, List> {
        // Nothing panics while it is held but a waker's clone; the list is whole in any case.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_others(&self, own: Option<usize>) {
        let mut at = 0;
        loop {
            let waker = {
                let mut list = self.lock();
                let Some(place) = list.places.get_mut(at) else { return };
                match place {
                    Place::Waiting(_) if Some(at) != own => {
                        match std::mem::replace(place, Place::Woken) {
                            Place::Waiting(waker) => Some(waker),
                            _ => None,
                        }
                    }
                    _ => None,
                }
            };
            // Not under the lock: waking can drop the task, whose future then takes itself off the list.
            if let Some(waker) = waker {
                waker.wake();
            }
            at += 1;
        }
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_others(None);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_others(None);
    }
}

/// A place in the list, given back when dropped.
struct Ticket<'l> {
    list: &'l Waiters,
    place: Option<usize>,
}

impl Ticket<'_> {
    fn register(&mut self, waker: &Waker) {
        let mut list = self.list.lock();
        let at = match self.place {
            Some(at) => at,
            None => {
                let at = list.free.pop().unwrap_or_else(|| {
                    list.places.push(Place::Free);
                    list.places.len() - 1
                });
                self.place = Some(at);
                at
            }
        };
        let Some(place) = list.places.get_mut(at) else { return };
        let old = match place {
            Place::Waiting(old) if old.will_wake(waker) => return,
            _ => std::mem::replace(place, Place::Waiting(waker.clone())),
        };
        drop(list);
        // As in `wake_others`: dropping a waker can drop its task.
        drop(old);
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Some(at) = self.place else { return };
        let mut list = self.list.lock();
        let old = list.places.get_mut(at).map(|place| std::mem::replace(place, Place::Free));
        list.free.push(at);
        drop(list);
        drop(old);
    }
}
