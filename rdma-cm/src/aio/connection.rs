//! A connection with everything it needs.
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rdma_safe::aio::{AsyncConfig, AsyncQueuePair, Message, QueueError, SendBuffer};
use rdma_safe::{Caps, ProtectionDomain, Slot, WcStatus};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::channel::{AsyncEventChannel, Reap, after};
use crate::error::{ConnectError, Error};
use crate::id::{Acceptor, ConnectRequest, Established, Id, Initiator, Role};
use crate::params::ConnParams;

/// Pause before an initiator that hears nothing probes for the first time; it doubles with each probe.
const FIRST_PROBE: Duration = Duration::from_millis(2);
/// Longest pause between probes.
const LAST_PROBE: Duration = Duration::from_secs(2);

/// A connection: its id, its queue pair, its buffers.
///
/// Any number of tasks may send and receive at once through `&self`. Every future may be dropped at any point: a message is
/// sent whole or not at all, and is received by somebody or waits for the next call.
///
/// What the transports need is kept here:
/// * receives are posted before the connection is asked for or accepted;
/// * on iWARP the acceptor's sends wait until it has received something (RFC 5044 7.1.2): **the initiator speaks first**,
///   and a protocol in which it does not must not be used there;
/// * an initiator on iWARP that waits in [`receive`](Self::receive) and has heard nothing yet probes the connection, because
///   soft iWARP can leave the first message unread until something follows.
///
/// There is no flow control: see [`AsyncQueuePair`].
///
/// The channel's [`CancelToken`](crate::CancelToken) ends what is awaited here with [`QueueError::Closed`].
///
/// Dropping it ends the connection without a word: [`close`](Self::close) first sends what was posted.
pub struct Connection<R: Role> {
    queue: AsyncQueuePair,
    id: Established<R>,
    // After the id, whose end it brings about.
    channel: Ending,
    probes: bool,
}

/// The channel, on which the dropped id of the connection is destroyed.
struct Ending(AsyncEventChannel);

impl Drop for Ending {
    fn drop(&mut self) {
        drop(Reap(&self.0));
    }
}

impl Connection<Initiator> {
    /// Connects to `dst` with a queue pair in `pd`, within `limit`. After [`ConnectError::PortInUse`] it is tried once more.
    ///
    /// # Errors
    /// See [`ConnectError`]; [`Error::WrongDevice`] within it when `dst` is not reached over the device of `pd`.
    pub async fn connect(
        channel: &AsyncEventChannel,
        pd: &ProtectionDomain,
        dst: SocketAddr,
        config: &AsyncConfig,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let until = after(limit);
        let once = || async {
            let left = || until.saturating_duration_since(Instant::now());
            let connector = channel.resolve(None, dst, left()).await?;
            let params = ConnParams::default();
            Self::connect_with(channel, pd, connector, config, &params, left()).await
        };
        match once().await {
            Err(ConnectError::PortInUse { .. }) => once().await,
            other => other,
        }
    }

    /// Connects a resolved connector, with parameters and private data.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        channel: &AsyncEventChannel,
        pd: &ProtectionDomain,
        connector: crate::Connector,
        config: &AsyncConfig,
        params: &ConnParams,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let queue = prepare(channel, pd, &connector, config)?;
        let id = channel.connect_lent(connector, &queue, params, limit).await?;
        let probes = initiator_first(&queue);
        Ok(Self { queue, channel: Ending(channel.clone()), id, probes })
    }
}

impl Connection<Acceptor> {
    /// Accepts a request with a queue pair in `pd`, which has to be on [`ConnectRequest::device_name`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn accept(
        channel: &AsyncEventChannel,
        pd: &ProtectionDomain,
        request: ConnectRequest,
        config: &AsyncConfig,
        params: &ConnParams,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let queue = prepare(channel, pd, &request, config)?;
        if initiator_first(&queue) {
            queue.listen_first();
        }
        let id = channel.accept_lent(request, &queue, params, limit).await?;
        Ok(Self { queue, channel: Ending(channel.clone()), id, probes: false })
    }
}

impl<R: Role> Connection<R> {
    /// Sends a copy of `data`; see [`AsyncQueuePair::send`]. Cancel-safe: dropped before it is ready, nothing was sent.
    ///
    /// # Errors
    /// As there.
    pub async fn send(&self, data: &[u8]) -> Result<(), QueueError> {
        self.or_ended(self.queue.send(data)).await
    }

    /// A send buffer, to fill in place; see [`AsyncQueuePair::reserve`]. Cancel-safe.
    ///
    /// # Errors
    /// As there.
    pub async fn reserve(&self) -> Result<SendBuffer, QueueError> {
        self.or_ended(self.queue.reserve()).await
    }

    /// The next message; `None` when the connection has ended and everything that came before was taken. Cancel-safe.
    ///
    /// # Errors
    /// [`QueueError::Failed`] when it did not end in peace.
    pub async fn receive(&self) -> Result<Option<Message>, QueueError> {
        let received = if self.probes && !self.queue.has_heard() {
            self.or_ended(self.receive_probing()).await
        } else {
            self.or_ended(self.queue.receive()).await
        };
        match received {
            Ok(message) => Ok(Some(message)),
            Err(QueueError::Failed { status: WcStatus::WR_FLUSH_ERR, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn receive_probing(&self) -> Result<Message, QueueError> {
        let mut pause = FIRST_PROBE;
        loop {
            if let Ok(received) = timeout_at(after(pause), self.queue.receive()).await {
                return received;
            }
            if !self.queue.has_heard() {
                // What is wrong with it shows in the next receive.
                let _ = self.queue.probe();
            }
            pause = (pause * 2).min(LAST_PROBE);
        }
    }

    /// Waits until everything sent has completed; see [`AsyncQueuePair::flush`]. Cancel-safe.
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> Result<(), QueueError> {
        self.or_ended(self.queue.flush()).await
    }

    /// Waits until the connection has ended. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Os`] when the channel fails.
    pub async fn ended(&self) -> Result<(), Error> {
        self.channel.0.ended(&self.id).await
    }

    /// Ends the connection and waits until it is ended, at most `limit`; see
    /// [`AsyncEventChannel::disconnect`]. What was received before can still be taken.
    ///
    /// # Errors
    /// As there.
    pub async fn disconnect(&self, limit: Duration) -> Result<(), Error> {
        self.channel.0.disconnect(&self.id, limit).await
    }

    /// `work`, and meanwhile an eye on the connection: on InfiniBand and RoCE a peer that goes tells only the connection
    /// manager, so the queue pair is failed here, which flushes what waits on it.
    ///
    /// [`QueueError::Closed`] when the channel's token is used.
    async fn or_ended<T>(
        &self,
        work: impl Future<Output = Result<T, QueueError>>,
    ) -> Result<T, QueueError> {
        let mut work = pin!(work);
        let mut ended = pin!(self.channel.0.ended(&self.id));
        let mut over = false;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if !over && let Poll::Ready(end) = ended.as_mut().poll(cx) {
                if let Err(Error::Cancelled { .. }) = end {
                    return Poll::Ready(Err(QueueError::Closed));
                }
                over = true;
                // Messages that arrived before come before the flushed receives. A failure means that it has failed.
                let _ = self.queue.with_qp(|qp| qp.to_error());
                return work.as_mut().poll(cx);
            }
            Poll::Pending
        })
        .await
    }

    /// Sends what was posted, disconnects, destroys the queue pair and gives back its buffers, within `limit`.
    ///
    /// On iWARP what the peer has not taken yet may be lost with the connection: agree with it first. Dropped, the
    /// connection ends at once.
    ///
    /// # Errors
    /// [`QueueError::Verbs`] when the queue pair could not be destroyed; [`QueueError::Closed`] when that goes on after the
    /// limit, and a second at least. A peer that has gone already, or does not answer, is no error.
    pub async fn close(self, limit: Duration) -> Result<Vec<Slot>, QueueError> {
        let until = after(limit);
        let _ = timeout_at(until, self.flush()).await;
        let left = until.saturating_duration_since(Instant::now());
        let _ = self.channel.0.disconnect(&self.id, left).await;
        // A destruction takes its time when the limit has passed already.
        let patience = sleep_until(until.max(after(Duration::from_secs(1))));
        let (mut close, mut patience) = (pin!(self.queue.close()), pin!(patience));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(closed) = close.as_mut().poll(cx) {
                return Poll::Ready(closed);
            }
            patience.as_mut().poll(cx).map(|()| Err(QueueError::Closed))
        })
        .await
    }

    /// The queue pair and its buffers.
    pub fn queue(&self) -> &AsyncQueuePair {
        &self.queue
    }

    /// The connection manager's side: its key, and the acceptor's private data.
    pub fn id(&self) -> &Established<R> {
        &self.id
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.channel.0.with(|channel| channel.peer_addr(&self.id)).ok()?
    }
}

impl<R: Role> Drop for Connection<R> {
    fn drop(&mut self) {
        // Destroyed on a thread of its own, and not when the last message is dropped somewhere.
        self.queue.start_close();
    }
}

/// A queue pair with receives posted, for an id that knows its device.
fn prepare(
    channel: &AsyncEventChannel,
    pd: &ProtectionDomain,
    id: &impl Id,
    config: &AsyncConfig,
) -> Result<AsyncQueuePair, ConnectError> {
    let closed = |_| Error::State { op: "connect", why: "the queue pair is closed" };
    let queue = AsyncQueuePair::new(pd, config)?;
    let moved = queue.with_qp(|qp| channel.quietly(|channel| channel.init_qp(id, qp)));
    moved.map_err(closed)???;
    match queue.post_receives() {
        Ok(()) => Ok(queue),
        Err(QueueError::Verbs(error)) => Err(Error::from(error).into()),
        Err(_) => Err(Error::State { op: "connect", why: "no receive can be posted" }.into()),
    }
}

fn initiator_first(queue: &AsyncQueuePair) -> bool {
    queue.context().caps().contains(Caps::INITIATOR_FIRST)
}

impl<R: Role> fmt::Debug for Connection<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?}, {:?})", self.id.key(), self.queue)
    }
}
