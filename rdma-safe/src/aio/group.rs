//! A poll group whose next completion is awaited.

#![forbid(unsafe_code)]

use super::watch::{shut_down, watch};
use crate::channel::CompletionChannel;
use crate::error::Result;
use crate::group::{Completion, PollGroup};
use ::tokio::io::unix::AsyncFd;
use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};

/// Completions handed out in a row before the task lets others run.
const STREAK: u32 = 64;

/// A [`PollGroup`] in a tokio runtime: for a task that owns many queue pairs, as a server does.
///
/// ```no_run
/// # async fn f(group: rdma_safe::PollGroup) -> Result<(), rdma_safe::Error> {
/// let mut group = rdma_safe::aio::AsyncPollGroup::new(group)?;
/// loop {
///     let done = group.next().await?; // may be dropped at any point, as by select!
///     if let Some(slot) = done.slot {
///         let _ = group.group_mut().post_recv(done.key, slot);
///     }
/// }
/// # }
/// ```
pub struct AsyncPollGroup {
    fd: AsyncFd<OwnedFd>,
    channel: CompletionChannel,
    group: PollGroup,
    /// The queue was armed and no event has been read since: the next completion raises one.
    armed: bool,
    streak: u32,
}

impl AsyncPollGroup {
    /// Takes a group whose completion queue was made with a channel of its own
    /// ([`create_cq_with`](crate::Context::create_cq_with)).
    ///
    /// # Errors
    /// [`WrongState`](crate::ErrorKind::WrongState) when the queue has no channel, when other queues report to it too,
    /// or outside of a tokio runtime; else the errno of fcntl(2) or epoll_ctl(2).
    ///
    /// # Panics
    /// In a runtime that was built without `enable_io`.
    pub fn new(group: PollGroup) -> Result<AsyncPollGroup> {
        let channel = group.cq().sole_channel("AsyncPollGroup::new")?;
        let fd = watch(channel.as_fd())?;
        Ok(AsyncPollGroup { fd, channel, group, armed: false, streak: 0 })
    }

    /// The next completion. Cancel-safe: one is redeemed in the poll that returns it.
    ///
    /// # Errors
    /// As [`PollGroup::poll`], [`PollGroup::req_notify`] and [`CompletionChannel::wait`];
    /// [`WrongState`](crate::ErrorKind::WrongState) when another queue was made on the channel meanwhile.
    pub async fn next(&mut self) -> Result<Completion> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`next`](Self::next) for futures written by hand.
    ///
    /// # Errors
    /// As there.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion>> {
        if self.streak >= STREAK {
            self.streak = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = self.look(cx);
        self.streak = if next.is_ready() { self.streak + 1 } else { 0 };
        next
    }

    fn look(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion>> {
        if let Some(done) = self.group.poll()? {
            return Poll::Ready(Ok(done));
        }
        loop {
            // The order keeps every wake-up: readiness is asked for before the events are read, events are read before
            // the queue is armed, the queue is armed before it is polled for the last time. A completion after that
            // raises an event, and an event after the asking is an edge that wakes this task.
            let readable = self.fd.poll_read_ready(cx);
            if readable.is_ready() {
                self.group.cq().sole_channel("AsyncPollGroup::next")?;
                while self.channel.take_event()?.is_some() {
                    self.armed = false;
                }
            }
            if !self.armed {
                self.group.req_notify()?;
                self.armed = true;
            }
            if let Some(done) = self.group.poll()? {
                return Poll::Ready(Ok(done));
            }
            match readable {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(shut_down())),
            }
        }
    }

    /// The group, to look.
    pub fn group(&self) -> &PollGroup {
        &self.group
    }

    /// The group, to post, adopt and remove.
    pub fn group_mut(&mut self) -> &mut PollGroup {
        // It could be armed, or waited on, by hand, which takes the event that `armed` counts on.
        self.armed = false;
        &mut self.group
    }

    /// The group without the runtime.
    pub fn into_inner(self) -> PollGroup {
        self.group
    }
}

impl fmt::Debug for AsyncPollGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in tokio", self.group)
    }
}
