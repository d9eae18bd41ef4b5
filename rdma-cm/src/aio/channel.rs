//! An event channel that many tasks wait on.
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use rdma_safe::QueuePair;
use rdma_safe::aio::{SharedFd, Step};
use tokio::time::{Instant, timeout_at};

use super::dial::Lend;
use crate::channel::{EventChannel, Phase};
use crate::connector::removed;
use crate::error::{ConnectError, Error, Result};
use crate::event::Event;
use crate::id::{
    Accepting, Acceptor, ConnectRequest, Connected, Connector, Established, Id, IdKey, Listener,
};
use crate::interrupt::CancelToken;
use crate::listener::{ListenOptions, failed_accept};
use crate::params::ConnParams;
use crate::private_data::PrivateData;
use crate::raw::resolve_hint;

/// An [`EventChannel`] in a tokio runtime. A handle: clones are one channel.
///
/// Any task may wait for any id: whoever reads an event that is another's leaves it where that one finds it. Nothing is
/// held across an await, so all calls may run at once.
///
/// The channel's [`CancelToken`](crate::CancelToken) ends every wait here as it does with the blocking calls:
/// [`Error::Cancelled`], [`ConnectError::Cancelled`]. To end one wait, drop its future.
#[derive(Clone)]
pub struct AsyncEventChannel(Arc<Inner>);

struct Inner {
    fd: SharedFd,
    /// Readable once the token was used.
    cancelled: SharedFd,
    token: CancelToken,
    channel: Mutex<MayBlock>,
    /// There may be events that made no edge: of an id that has moved here from another channel.
    unseen: AtomicBool,
}

/// A channel that is dropped on a thread of its own if that may block.
pub(super) struct MayBlock(Option<EventChannel>);

impl MayBlock {
    pub(super) fn new(channel: EventChannel) -> Self {
        Self(Some(channel))
    }

    pub(super) fn get(&mut self) -> Result<&mut EventChannel> {
        // Always there but while being dropped.
        self.0.as_mut().ok_or(Error::State { op: "using a channel", why: "it is being dropped" })
    }
}

impl Drop for MayBlock {
    fn drop(&mut self) {
        let Some(mut channel) = self.0.take() else { return };
        if channel.drop_blocks() {
            // Without a thread it is dropped here after all, with the closure.
            let _ = thread::Builder::new().name("rdma-destroy".into()).spawn(move || drop(channel));
        }
    }
}

impl AsyncEventChannel {
    /// A new channel.
    ///
    /// # Errors
    /// As [`EventChannel::new`]; [`Error::Verbs`] outside of a tokio runtime.
    ///
    /// # Panics
    /// In a runtime that was built without `enable_io`.
    pub fn new() -> Result<Self> {
        Self::from_channel(EventChannel::new()?)
    }

    /// Takes a channel with all its ids.
    ///
    /// # Errors
    /// [`Error::Verbs`] outside of a tokio runtime, or with the errno of epoll_ctl(2).
    ///
    /// # Panics
    /// In a runtime that was built without `enable_io`.
    pub fn from_channel(channel: EventChannel) -> Result<Self> {
        let fd = SharedFd::new(channel.as_fd())?;
        let token = channel.cancel_token();
        let cancelled = SharedFd::new(token.as_fd())?;
        let (channel, unseen) = (Mutex::new(MayBlock::new(channel)), AtomicBool::new(true));
        Ok(Self(Arc::new(Inner { fd, cancelled, token, channel, unseen })))
    }

    /// Lends the channel, under the lock that all tasks share, for calls that do not wait: options, addresses, names,
    /// [`init_qp`](EventChannel::init_qp), [`destroy`](EventChannel::destroy).
    ///
    /// # Errors
    /// None in practice.
    pub fn with<R>(&self, f: impl FnOnce(&mut EventChannel) -> R) -> Result<R> {
        let lent = self.quietly(f);
        self.look_again();
        lent
    }

    /// [`with`](Self::with) under another lock: wakers, which may do anything, are called after that by
    /// [`look_again`](Self::look_again).
    pub(super) fn quietly<R>(&self, f: impl FnOnce(&mut EventChannel) -> R) -> Result<R> {
        self.lock().get().map(f)
    }

    /// The channel was used: it may have read what others wait for, or taken in an id with events.
    pub(super) fn look_again(&self) {
        self.0.unseen.store(true, Ordering::Release);
        self.0.fd.wake_all();
    }

    fn lock(&self) -> MutexGuard<'_, MayBlock> {
        self.0.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something; `None` when the limit passes first.
    pub(super) async fn wait<T>(
        &self,
        until: Instant,
        look: impl FnMut(&mut EventChannel) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        match timeout_at(until, self.wait_for(look)).await {
            Ok(found) => found.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Waits until `look` finds something.
    async fn wait_for<T>(
        &self,
        mut look: impl FnMut(&mut EventChannel) -> Result<Option<T>>,
    ) -> Result<T> {
        let step = |readable: bool| {
            let mut moved = false;
            let mut step = || {
                let mut channel = self.lock();
                let channel = channel.get()?;
                if self.0.unseen.swap(false, Ordering::Acquire) || readable {
                    moved = channel.read_all()?;
                }
                look(channel)
            };
            let result = match step() {
                Ok(Some(found)) => Poll::Ready(Ok(found)),
                Ok(None) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
            Step { result, moved }
        };
        self.or_cancelled(self.0.fd.wait(step)).await??
    }

    /// The token that ends this channel's waits, from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.0.token.clone()
    }

    /// `work`, unless the token is used before it is done.
    pub(super) async fn or_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let used = |_| Step {
            result: if self.0.token.is_cancelled() { Poll::Ready(()) } else { Poll::Pending },
            moved: false,
        };
        let (mut work, mut used) = (pin!(work), pin!(self.0.cancelled.wait(used)));
        poll_fn(|cx| {
            // What is there already is handed out.
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            used.as_mut().poll(cx).map(|used| {
                used?;
                Err(Error::Cancelled { op: "waiting for connection events" })
            })
        })
        .await
    }

    /// The next event of an id, or `None` when none came within `limit`. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::State`] for an id of another channel; [`Error::Cancelled`]; [`Error::Os`] when the channel fails.
    pub async fn next_event_of(&self, id: &impl Id, limit: Duration) -> Result<Option<Event>> {
        self.event_of(id.key(), after(limit)).await
    }

    pub(super) async fn event_of(&self, id: IdKey, until: Instant) -> Result<Option<Event>> {
        self.wait(until, |channel| {
            channel.entry_of(id, "waiting for an event")?;
            Ok(channel.take_matching(|event| event.id() == id && !is_request(event)))
        })
        .await
    }

    /// A connector that knows its device and path, within `limit`: see [`EventChannel::resolve`]. Dropped, its id is
    /// destroyed.
    ///
    /// # Errors
    /// As there.
    pub async fn resolve(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        limit: Duration,
    ) -> Result<Connector> {
        let _reap = Reap(self);
        let id = self.with(EventChannel::connector)??;
        self.resolve_id(&id, src, dst, limit).await?;
        Ok(id)
    }

    /// The same for a connector that was made, and given a source or options, before.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn resolve_id(
        &self,
        id: &impl crate::Active,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        limit: Duration,
    ) -> Result<()> {
        let until = after(limit);
        self.with(|channel| channel.resolve_addr(id, src, dst, limit))??;
        loop {
            match self.event_of(id.key(), until).await? {
                Some(Event::AddrResolved { .. }) => break,
                Some(Event::AddrError { errno, .. }) => {
                    let error = Error::errno_of("rdma_resolve_addr", errno).about(dst);
                    return Err(resolve_hint(error, dst));
                }
                Some(Event::DeviceRemoval { .. }) => return Err(removed("rdma_resolve_addr")),
                Some(_) => {}
                None => return Err(Error::Timeout { op: "resolving an address", limit }),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        self.with(|channel| channel.resolve_route(id, left))??;
        loop {
            match self.event_of(id.key(), until).await? {
                Some(Event::RouteResolved { .. }) => return Ok(()),
                Some(Event::RouteError { errno, .. }) => {
                    return Err(Error::errno_of("rdma_resolve_route", errno).about(dst));
                }
                Some(Event::DeviceRemoval { .. }) => return Err(removed("rdma_resolve_route")),
                Some(_) => {}
                None => return Err(Error::Timeout { op: "resolving a route", limit }),
            }
        }
    }

    /// Listens; see [`EventChannel::listen_with`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&self, addr: SocketAddr, options: &ListenOptions) -> Result<Listener> {
        self.with(|channel| channel.listen_with(addr, options))?
    }

    /// The next request to a listener; `None` when none came within `limit`. Cancel-safe: a request nobody has taken waits.
    ///
    /// # Errors
    /// As [`EventChannel::wait_request`].
    pub async fn request(
        &self,
        listener: &Listener,
        limit: Duration,
    ) -> Result<Option<ConnectRequest>> {
        let key = listener.key();
        let mine = |event: &Event| match event {
            Event::ConnectRequest { listener, .. } => *listener == key,
            Event::DeviceRemoval { id } => *id == key,
            _ => false,
        };
        let event = self.wait(after(limit), |channel| {
            channel.entry_of(key, "request")?;
            Ok(channel.take_matching(mine))
        });
        match event.await? {
            Some(Event::ConnectRequest { request, .. }) => Ok(Some(request)),
            Some(_) => Err(removed("listen")),
            None => Ok(None),
        }
    }

    /// Accepts a request and waits until it is a connection; see [`EventChannel::accept`]. **Post receives first.**
    /// Dropped, the connection is ended.
    ///
    /// # Errors
    /// See [`ConnectError`]; what [`EventChannel::accept`] reports is [`ConnectError::Local`].
    pub async fn accept(
        &self,
        request: ConnectRequest,
        qp: &mut QueuePair,
        params: &ConnParams,
        limit: Duration,
    ) -> Result<Established<Acceptor>, ConnectError> {
        self.accept_lent(request, qp, params, limit).await
    }

    pub(super) async fn accept_lent(
        &self,
        request: ConnectRequest,
        mut qp: impl Lend,
        params: &ConnParams,
        limit: Duration,
    ) -> Result<Established<Acceptor>, ConnectError> {
        let until = after(limit);
        let accepting =
            qp.lend(|qp| self.with(|channel| channel.accept(request, qp, params)))???;
        let key = accepting.key();
        let mut held = Some(accepting);
        let ended = self.wait(until, |channel| {
            let Some(accepting) = held.take() else { return Ok(None) };
            match channel.established(accepting) {
                Ok(connection) => {
                    channel.forget_established(key);
                    Ok(Some(Ok(connection)))
                }
                Err(same) => Ok(failure(channel, held.insert(same)).map(Err)),
            }
        });
        ended.await?.unwrap_or(Err(ConnectError::Timeout { limit }))
    }

    /// Rejects a request and says why; see [`EventChannel::reject`].
    ///
    /// # Errors
    /// As there.
    pub fn reject(&self, request: ConnectRequest, private_data: &PrivateData) -> Result<()> {
        self.with(|channel| channel.reject(request, private_data))?
    }

    /// Ends a connection and waits until it is ended; see [`EventChannel::disconnect`]. Cancel-safe: dropped, it ends all
    /// the same. Ending what has ended is a success.
    ///
    /// On InfiniBand and RoCE the peer has to answer, which it does when somebody there waits for an event.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the peer did not answer; [`Error::State`] for a connection of another channel;
    /// [`Error::Cancelled`].
    pub async fn disconnect(&self, connection: &impl Connected, limit: Duration) -> Result<()> {
        match self.with(|channel| channel.disconnect(connection))? {
            // There is none any more.
            Err(error) if error.errno() == Some(libc::EINVAL) => return Ok(()),
            other => other?,
        }
        match timeout_at(after(limit), self.ended(connection)).await {
            Ok(ended) => ended,
            Err(_) => Err(Error::Timeout { op: "disconnecting", limit }),
        }
    }

    /// Waits until a connection has ended: by the peer, by [`disconnect`](Self::disconnect), or with the device.
    /// Cancel-safe, and true for every task that asks.
    ///
    /// # Errors
    /// [`Error::State`] for a connection of another channel; [`Error::Cancelled`]; [`Error::Os`] when the channel fails.
    pub async fn ended(&self, connection: &impl Connected) -> Result<()> {
        let key = connection.key();
        let over = |channel: &mut EventChannel| {
            let phase = channel.entry_of(key, "waiting for the end")?.phase;
            Ok((phase == Phase::Ended).then_some(()))
        };
        self.wait_for(over).await
    }
}

/// Why an accepted request will not become a connection, if that is known.
fn failure(channel: &mut EventChannel, accepting: &Accepting) -> Option<ConnectError> {
    let iwarp = channel.is_iwarp(accepting).unwrap_or(false);
    let key = accepting.key();
    while let Some(event) = channel.take_matching(|event| event.id() == key) {
        if let Some(error) = failed_accept(event, iwarp) {
            return Some(error);
        }
    }
    None
}

fn is_request(event: &Event) -> bool {
    matches!(event, Event::ConnectRequest { .. } | Event::DatagramRequest { .. })
}

/// The moment `limit` from now.
pub(super) fn after(limit: Duration) -> Instant {
    Instant::from_std(crate::channel::deadline(limit))
}

/// Lets go of dropped ids when dropped itself, which has to be after them.
pub(super) struct Reap<'c>(pub(super) &'c AsyncEventChannel);

impl Drop for Reap<'_> {
    fn drop(&mut self) {
        let _ = self.0.quietly(|channel| channel.id_count());
    }
}

impl fmt::Debug for AsyncEventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEventChannel({} tasks wait)", self.0.fd.waiting())
    }
}
