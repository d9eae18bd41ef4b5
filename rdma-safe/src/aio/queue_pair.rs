//! A queue pair whose sends and receives are awaited.

#![forbid(unsafe_code)]

use super::QueueError;
use super::buffers::{Message, SendBuffer};
use super::state::{Ashes, Life, State};
use super::waiters::{SharedFd, Step};
use crate::Context;
use crate::error::{Error, ErrorKind};
use crate::pd::ProtectionDomain;
use crate::qp::QueuePair;
use crate::qp_attr::QpConfig;
use crate::slot::Slot;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;

/// Sizes of an [`AsyncQueuePair`].
#[derive(Debug, Clone, Copy)]
pub struct AsyncConfig {
    /// Messages that may be on their way out at once. Default 16.
    pub sends: u32,
    /// Messages that may come in before one is taken: **the peer must not send more than this ahead**. Default 16.
    pub receives: u32,
    /// Longest message, bytes. Default 4096.
    pub message_size: usize,
    /// Other requests that may be in flight at once: writes, reads, atomics. Default 16.
    pub requests: u32,
}

impl Default for AsyncConfig {
    fn default() -> AsyncConfig {
        AsyncConfig { sends: 16, receives: 16, message_size: 4096, requests: 16 }
    }
}

pub(super) struct Shared {
    pub(super) fd: SharedFd,
    state: Mutex<State>,
    context: Context,
    config: AsyncConfig,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; each slot is in one place at any moment in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.is_connecting() {
            return;
        }
        // Destroying it may block until the connection manager lets go of it, and this may be a runtime's thread.
        if let Life::Open(qp) = std::mem::replace(&mut state.life, Life::Closing(Ashes::default()))
        {
            on_a_thread(move || drop(qp));
        }
    }
}

/// Runs what may block; here, if no thread can be made.
fn on_a_thread(job: impl FnOnce() + Send + 'static) {
    let job = Arc::new(Mutex::new(Some(job)));
    let run = |job: &Mutex<Option<_>>| {
        let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(job) = job {
            let job: Box<dyn FnOnce()> = Box::new(job);
            job();
        }
    };
    let theirs = Arc::clone(&job);
    if thread::Builder::new().name("rdma-close".into()).spawn(move || run(&theirs)).is_err() {
        run(&job);
    }
}

/// A queue pair with its buffers, completion queue and channel, in a tokio runtime. A handle: clones are one queue pair.
///
/// The buffers belong to it and never to a future, so **every future here may be dropped at any point**: a message is
/// sent whole or not at all, received by somebody or kept for the next call, and no buffer is lost or freed.
/// Any number of tasks may use it at once; each message goes to one of them.
///
/// There is no flow control: a peer that sends more than [`AsyncConfig::receives`] messages before they are taken and
/// dropped ends the connection on iWARP (elsewhere it waits). Bound it by the protocol, as by answering each request.
/// A limit in time is set around any call with `tokio::time::timeout`.
///
/// Connect it with the `rdma-cm` crate, whose feature `tokio` has all of it in one call:
/// ```no_run
/// # async fn f(pd: rdma_safe::ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
/// use rdma_safe::aio::{AsyncConfig, AsyncQueuePair};
/// let queue = AsyncQueuePair::new(&pd, &AsyncConfig::default())?;
/// // … moved to INIT: queue.with_qp(|qp| channel.init_qp(&id, qp)) …
/// queue.post_receives()?;
/// // … connected …
/// queue.send(b"ping").await?;
/// let pong = queue.receive().await?;
/// assert_eq!(&pong[..], b"pong");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AsyncQueuePair(Arc<Shared>);

impl AsyncQueuePair {
    /// Makes it, in state RESET, with all its buffers.
    ///
    /// # Errors
    /// Those of making the parts; [`WrongState`](ErrorKind::WrongState) outside of a tokio runtime.
    ///
    /// # Panics
    /// In a runtime that was built without `enable_io`.
    pub fn new(pd: &ProtectionDomain, config: &AsyncConfig) -> Result<AsyncQueuePair, Error> {
        let context = pd.context().clone();
        let channel = context.completion_channel()?;
        let fd = SharedFd::new(channel.as_fd())?;
        let too_deep = || {
            Error::refused(
                "AsyncQueuePair::new",
                ErrorKind::InvalidArgument,
                "the queues are too deep",
            )
        };
        // One more entry for a probe, so that each send buffer and each room is the right to one entry.
        let send_depth = config.sends.checked_add(config.requests).ok_or_else(too_deep)?;
        let send_depth = send_depth.checked_add(1).ok_or_else(too_deep)?;
        let depth = send_depth.checked_add(config.receives).ok_or_else(too_deep)?;
        let cq = context.create_cq_with(depth, &channel)?;
        let sizes = QpConfig { send_depth, recv_depth: config.receives, ..QpConfig::default() };
        let qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &sizes)?;
        let mut free =
            pd.slots(config.message_size, (config.sends as usize) + config.receives as usize)?;
        let spare = free.split_off(config.sends as usize);
        let state = Mutex::new(State::new(qp, cq, channel, free, spare, config.requests));
        Ok(AsyncQueuePair(Arc::new(Shared { fd, state, context, config: *config })))
    }

    pub(super) fn of(shared: &Arc<Shared>) -> AsyncQueuePair {
        AsyncQueuePair(Arc::clone(shared))
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.0)
    }

    /// The sizes it was made with.
    pub fn config(&self) -> &AsyncConfig {
        &self.0.config
    }

    /// The context it was made on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Lends the queue pair, under the lock that all tasks share: to move it through its states. Do not post to
    /// it, and use neither this handle nor its messages and buffers inside.
    ///
    /// # Errors
    /// [`QueueError::Closed`].
    pub fn with_qp<R>(&self, f: impl FnOnce(&mut QueuePair) -> R) -> Result<R, QueueError> {
        let lent = self.0.lock().qp().map(f);
        self.0.fd.wake_all();
        lent
    }

    /// Posts all receive buffers. In state INIT, before connect and accept; from then on each is posted again when its
    /// [`Message`] is dropped.
    ///
    /// # Errors
    /// [`QueueError::Refused`] in another state; [`QueueError::Closed`].
    pub fn post_receives(&self) -> Result<(), QueueError> {
        self.0.lock().post_receives()
    }

    /// Makes every send wait until a message has been received: for the side that accepted, on iWARP (RFC 5044 7.1.2).
    pub fn listen_first(&self) {
        self.0.lock().listen_first = true;
    }

    /// Whether a message has been received.
    pub fn has_heard(&self) -> bool {
        self.0.lock().heard
    }

    /// A send buffer, when one is free and sends are allowed. Cancel-safe.
    ///
    /// # Errors
    /// [`QueueError::Failed`] with the first failed completion; [`QueueError::Closed`]; [`QueueError::Verbs`].
    pub async fn reserve(&self) -> Result<SendBuffer, QueueError> {
        let slot = self.wait(State::buffer, true).await?;
        Ok(SendBuffer::new(slot, &self.0))
    }

    /// Sends a copy of `data`; ready when the message is in the queue, whose completion nobody has to wait for.
    /// Cancel-safe: dropped before it is ready, nothing was sent.
    ///
    /// # Errors
    /// [`QueueError::Refused`] when it is longer than [`AsyncConfig::message_size`]; else as [`reserve`](Self::reserve).
    pub async fn send(&self, data: &[u8]) -> Result<(), QueueError> {
        if data.len() > self.0.config.message_size {
            return Err(QueueError::Refused(crate::Why::TooLong));
        }
        let mut buffer = self.reserve().await?;
        if let Some(place) = buffer.get_mut(..data.len()) {
            place.copy_from_slice(data);
        }
        buffer.send(data.len())
    }

    /// The next message. Cancel-safe: it is taken in the poll that returns it.
    ///
    /// # Errors
    /// [`QueueError::Failed`] once everything received before the failure has been taken; [`QueueError::Closed`];
    /// [`QueueError::Verbs`].
    pub async fn receive(&self) -> Result<Message, QueueError> {
        let received = self.wait(State::message, false).await?;
        Ok(Message::new(received, &self.0))
    }

    /// Waits until everything sent so far has completed: on InfiniBand and RoCE it is in the peer's memory, on iWARP it
    /// has left this side reliably. Cancel-safe.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn flush(&self) -> Result<(), QueueError> {
        self.wait(|state| (state.unfinished == 0).then_some(()), false).await
    }

    /// Posts an empty RDMA write, which tells the peer nothing and takes none of its receives, but makes its kernel look
    /// at the connection: soft iWARP needs that at times (see `rdma-cm`). Does nothing while an earlier one is under way.
    ///
    /// # Errors
    /// [`QueueError::Refused`] when it is not connected; [`QueueError::Closed`].
    pub fn probe(&self) -> Result<(), QueueError> {
        self.0.lock().probe()
    }

    /// Destroys the queue pair on a thread, because that may block, and gives back all buffers that no [`Message`] or
    /// [`SendBuffer`] holds. Every other call ends with [`QueueError::Closed`].
    ///
    /// Cancel-safe: dropped, the destruction goes on, and a later call gives back the buffers.
    ///
    /// # Errors
    /// [`QueueError::Verbs`] when the destroy failed: what the device had is leaked, the other buffers stay.
    pub async fn close(&self) -> Result<Vec<Slot>, QueueError> {
        self.start_close();
        let done = self.0.fd.wait(|_| {
            let mut state = self.0.lock();
            let result = match state.closed() {
                Some(Ok(())) => Poll::Ready(Ok(state.take_slots())),
                Some(Err(e)) => Poll::Ready(Err(QueueError::Verbs(e))),
                None => Poll::Pending,
            };
            Step { result, moved: false }
        });
        done.await?
    }

    /// Starts [`close`](Self::close) without waiting.
    pub fn start_close(&self) {
        let ashes = Ashes::default();
        let mut state = self.0.lock();
        if !matches!(state.life, Life::Open(_)) {
            return;
        }
        let closing = Life::Closing(Arc::clone(&ashes));
        let Life::Open(qp) = std::mem::replace(&mut state.life, closing) else { return };
        drop(state);
        self.0.fd.wake_all();
        // The thread holds nothing of the handle: when the buffers are there, nothing else is in use.
        let waker = self.0.fd.waker();
        on_a_thread(move || {
            let closed = qp.close_payloads();
            *ashes.lock().unwrap_or_else(PoisonError::into_inner) = Some(closed);
            waker.wake();
        });
    }

    /// Waits until `look` finds something. `ends`: a failure comes before what `look` would find.
    pub(super) async fn wait<T>(
        &self,
        mut look: impl FnMut(&mut State) -> Option<T>,
        ends: bool,
    ) -> Result<T, QueueError> {
        let step = |readable| {
            let mut state = self.0.lock();
            let mut moved = false;
            let result = step(&mut state, readable, ends, &mut moved, &mut look);
            // Those who sleep count on an armed queue. A task that has read the event and then found what it wanted leaves
            // it unarmed, and one of them has to arm it. What is wrong with the queues each has to be told.
            moved |= !state.armed || result.is_err();
            drop(state);
            let result = match result {
                Ok(Some(found)) => Poll::Ready(Ok(found)),
                Ok(None) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            };
            Step { result, moved }
        };
        self.0.fd.wait(step).await?
    }
}

/// One look, with as little work as it takes: what is there already, what has completed, what completes until the queue
/// is armed.
fn step<T>(
    state: &mut State,
    readable: bool,
    ends: bool,
    moved: &mut bool,
    look: &mut impl FnMut(&mut State) -> Option<T>,
) -> Result<Option<T>, QueueError> {
    let mut try_it = |state: &mut State| match state.over() {
        Some(over) if ends => Err(over),
        over => match (look(state), over) {
            (Some(found), _) => Ok(Some(found)),
            (None, Some(over)) => Err(over),
            (None, None) => Ok(None),
        },
    };
    // The descriptor's events are read even then: readiness is cleared only by who has read them all.
    if !readable && let Some(found) = try_it(state)? {
        return Ok(Some(found));
    }
    *moved |= state.drive(readable)?;
    if let Some(found) = try_it(state)? {
        return Ok(Some(found));
    }
    *moved |= state.arm()?;
    try_it(state)
}

impl fmt::Debug for AsyncQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncQueuePair")
            .field("device", &self.0.context.name())
            .field("config", &self.0.config)
            .field("waiting", &self.0.fd.waiting())
            .field("state", &*self.0.lock())
            .finish_non_exhaustive()
    }
}
