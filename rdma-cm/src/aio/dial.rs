//! Connecting without blocking the runtime.
use std::thread;
use std::time::Duration;

use rdma_safe::QueuePair;
use rdma_safe::aio::{AsyncQueuePair, NumberHold};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::channel::{AsyncEventChannel, MayBlock, Reap, after};
use crate::channel::EventChannel;
use crate::connect::{Answer, Prepared};
use crate::error::{ConnectError, Error};
use crate::id::{Connecting, Connector, Established, Id, Initiator};
use crate::interrupt::CancelToken;
use crate::params::ConnParams;

/// A queue pair that is looked at now and then, and never while something is awaited.
pub(super) trait Lend {
    fn lend<R>(&mut self, f: impl FnOnce(&mut QueuePair) -> R) -> Result<R, Error>;
}

impl Lend for &mut QueuePair {
    fn lend<R>(&mut self, f: impl FnOnce(&mut QueuePair) -> R) -> Result<R, Error> {
        Ok(f(self))
    }
}

impl Lend for &AsyncQueuePair {
    fn lend<R>(&mut self, f: impl FnOnce(&mut QueuePair) -> R) -> Result<R, Error> {
        self.with_qp(f).map_err(|_| Error::State { op: "connect", why: "the queue pair is closed" })
    }
}

impl AsyncEventChannel {
    /// Connects, within `limit`; see [`EventChannel::connect`]. **Post receives first.**
    ///
    /// Dropped, the attempt is given up, and the queue pair has to be thrown away. On iWARP that may take the kernel
    /// seconds, during which closing the queue pair blocks (an [`AsyncQueuePair`] is closed on a thread of its own).
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        &self,
        connector: Connector,
        qp: &mut QueuePair,
        params: &ConnParams,
        limit: Duration,
    ) -> Result<Established<Initiator>, ConnectError> {
        self.connect_lent(connector, qp, params, limit).await
    }

    pub(super) async fn connect_lent(
        &self,
        connector: Connector,
        mut qp: impl Lend,
        params: &ConnParams,
        limit: Duration,
    ) -> Result<Established<Initiator>, ConnectError> {
        let _reap = Reap(self);
        let until = after(limit);
        let prepare = |channel: &mut EventChannel, qp: &mut QueuePair| {
            channel.prepare_connect(connector, qp, params)
        };
        let prepared = qp.lend(|qp| self.quietly(|channel| prepare(channel, qp)))???;
        let mut attempt = if prepared.iwarp {
            let hold = qp.lend(QueuePair::hold_number)?;
            self.request_on_a_thread(prepared, hold, until, limit).await?
        } else {
            self.with(|channel| channel.send_request(prepared, until.into_std(), limit))??
        };
        let key = attempt.key();
        loop {
            let event = self.event_of(key, until).await?;
            let event = event.ok_or(ConnectError::Timeout { limit })?;
            let answer = qp.lend(|qp| {
                self.quietly(|channel| channel.answer_within(attempt, qp, event, Duration::ZERO))
            });
            self.look_again();
            match answer??? {
                Answer::Established(connection) => return Ok(connection),
                Answer::NotYet(same) => attempt = same,
            }
        }
    }

    /// Sends the request where it may block.
    ///
    /// The thread may outlive this future by a moment, and knows the queue pair by its number only: until it is done with
    /// it, the queue pair cannot be destroyed, or the number could be the next one's. The id moves to a channel of its own
    /// meanwhile, because the thread needs it whole, and the others go on with this one.
    async fn request_on_a_thread(
        &self,
        prepared: Prepared,
        hold: NumberHold,
        until: Instant,
        limit: Duration,
    ) -> Result<Connecting, ConnectError> {
        let token = CancelToken::new()?;
        let mut own = MayBlock::new(EventChannel::with_cancel(token.clone())?);
        let Prepared { connector, params, qp_num, iwarp } = prepared;
        let moved = self.with(|channel| own.get().map(|own| own.adopt(channel, connector)))??;
        let connector = moved.map_err(|(_, error)| error)?;
        let prepared = Prepared { connector, params, qp_num, iwarp };
        let (tell, told) = oneshot::channel();
        let work = move || {
            let attempt = own
                .get()
                .map_err(ConnectError::from)
                .and_then(|channel| channel.send_request(prepared, until.into_std(), limit));
            // The kernel has found the queue pair by its number, or never will.
            drop(hold);
            // If nobody waits any more, the attempt ends here; if nobody waits from now on, where `told` is dropped, and
            // then with a thread of its own if that blocks.
            let _ = tell.send((attempt, own));
        };
        thread::Builder::new().name("rdma-connect".into()).spawn(work).map_err(|error| {
            Error::errno_of("pthread_create", error.raw_os_error().unwrap_or(libc::EAGAIN))
        })?;
        let interrupt = Interrupt(token);
        let told = self.or_cancelled(told).await?;
        drop(interrupt);
        let lost = Error::State { op: "connect", why: "the connecting thread has died" };
        let (attempt, mut own) = told.map_err(|_| lost)?;
        let attempt = attempt?;
        let back = self.with(|channel| own.get().map(|own| channel.adopt(own, attempt)))??;
        Ok(back.map_err(|(_, error)| error)?)
    }
}

/// Interrupts the connecting thread when dropped.
struct Interrupt(CancelToken);

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
