//! Asynchronous events of a device, awaited.

#![forbid(unsafe_code)]

use super::watch::{shut_down, watch};
use crate::context::Context;
use crate::error::Result;
use crate::event::{AsyncEvent, AsyncEvents};
use ::tokio::io::unix::AsyncFd;
use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::task::Poll;
use std::time::Duration;

/// The one reader of a context's asynchronous events, in a tokio runtime.
pub struct DeviceEvents {
    fd: AsyncFd<OwnedFd>,
    events: AsyncEvents,
}

impl DeviceEvents {
    /// Takes the reader's place on `ctx` until dropped; see [`AsyncEvents::new`].
    ///
    /// # Errors
    /// As there; [`WrongState`](crate::ErrorKind::WrongState) outside of a tokio runtime.
    ///
    /// # Panics
    /// In a runtime that was built without `enable_io`.
    pub fn new(ctx: &Context) -> Result<DeviceEvents> {
        let events = AsyncEvents::new(ctx)?;
        let fd = watch(events.as_fd())?;
        Ok(DeviceEvents { fd, events })
    }

    /// The next event. Cancel-safe: an event is read in the poll that returns it.
    ///
    /// # Errors
    /// The errno of ibv_get_async_event(3).
    pub async fn next(&mut self) -> Result<AsyncEvent> {
        poll_fn(|cx| {
            loop {
                let readable = self.fd.poll_read_ready(cx);
                if let Some(event) = self.events.next(Duration::ZERO)? {
                    return Poll::Ready(Ok(event));
                }
                match readable {
                    Poll::Pending => return Poll::Pending,
                    // There was nothing after the readiness was read; tokio keeps what has come since.
                    Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(shut_down())),
                }
            }
        })
        .await
    }
}

impl fmt::Debug for DeviceEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in tokio", self.events)
    }
}
