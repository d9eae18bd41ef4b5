//! Questions and answers over connections, blocking: the shortest way to use RDMA, and a model of the longer ones.
//!
//! The two sides take turns. The [`Caller`] speaks first, as iWARP demands (RFC 5044 7.1.2), and speaks again after the
//! answer; the [`Session`] answers once to each message. So one receive on each side is always enough, and nobody can be
//! overrun. What travels is the messages and nothing else, so the other side may be any program that takes turns.
//!
//! Every call ends within the [`Config::limit`]. For many messages at once, reads and writes, or many connections in one
//! thread, use an [`EventChannel`] and queue pairs of your own.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rdma_cm::blocking::{Caller, Config, Server};
//!
//! std::thread::spawn(|| -> Result<(), rdma_cm::ConnectError> {
//!     let mut server = Server::bind("10.77.0.1:7471", &Config::default())?;
//!     while let Some(mut session) = server.accept()? {
//!         session.serve(|question, answer| answer.extend_from_slice(question))?;
//!     }
//!     Ok(())
//! });
//! let mut caller = Caller::dial("10.77.0.1:7471", &Config::default())?;
//! assert_eq!(caller.call(b"ping")?, b"ping");
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use rdma_safe::{
    Caps, CompletionQueue, Context, Op, ProtectionDomain, QpConfig, QueuePair, SendFlags, Slot, Wc,
    WcStatus,
};

use crate::channel::{self, EventChannel};
use crate::connector::removed;
use crate::error::{ConnectError, Error, Result};
use crate::event::Event;
use crate::id::{Acceptor, ConnectRequest, Connected, Established, Id, IdKey, Initiator, Listener};
use crate::interrupt::CancelToken;
use crate::params::ConnParams;
use crate::private_data::PrivateData;

/// How to connect and how long to wait.
#[derive(Clone, Debug)]
pub struct Config {
    /// The longest message, in bytes, both ways; at least 1. A longer one from the peer ends the connection. Default 4096.
    pub message_size: usize,
    /// How long each call may take. Default 30 s.
    pub limit: Duration,
    /// The parameters of the connection.
    pub params: ConnParams,
    /// Ends all calls from any thread. Default none.
    pub cancel: Option<CancelToken>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            message_size: 4096,
            limit: Duration::from_secs(30),
            params: ConnParams::default(),
            cancel: None,
        }
    }
}

impl Config {
    fn channel(&self) -> Result<EventChannel> {
        match &self.cancel {
            Some(token) => EventChannel::with_cancel(token.clone()),
            None => EventChannel::new(),
        }
    }
}

/// How long to sleep on completions before looking for the end of the connection, which on InfiniBand and RoCE is told
/// elsewhere.
const GLANCE: Duration = Duration::from_millis(50);
/// The first pause before a peer on soft iWARP is made to look at what it got; it doubles with each.
const FIRST_NUDGE: Duration = Duration::from_millis(5);
/// The message, and empty writes that make a peer look.
const SENDS: u32 = 4;

/// A queue pair that takes turns with its peer.
#[derive(Debug)]
struct Line {
    // Fields drop in this order: the queue pair before what it needs.
    qp: QueuePair,
    cq: CompletionQueue,
    /// What was received last; posted again before the next message is sent.
    received: Option<(Slot, usize)>,
    /// For the next message; in the queue while it is sent.
    outgoing: Option<Slot>,
    limit: Duration,
    /// Nothing has been received yet, on a device whose peers may have to be nudged.
    unheard: bool,
    /// The peer has gone, or something has failed.
    over: bool,
}

impl Line {
    fn new(context: &Context, config: &Config) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq_with(SENDS + 1, &context.completion_channel()?)?;
        let sizes = QpConfig { send_depth: SENDS, recv_depth: 1, ..QpConfig::default() };
        let qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &sizes)?;
        let slot = || one_slot(&pd, config.message_size);
        let (incoming, outgoing) = (slot()?, Some(slot()?));
        let unheard = context.caps().contains(Caps::NUDGE_AFTER_ACCEPT);
        let received = Some((incoming, 0));
        Ok(Self { qp, cq, received, outgoing, limit: config.limit, unheard, over: false })
    }

    /// Posts the receive for the peer's next message.
    fn listen(&mut self) -> Result<()> {
        match self.received.take() {
            Some((slot, _)) => {
                self.qp.post_recv(slot).map_err(|e| Error::Post { op: "receive", why: e.why })
            }
            None => Ok(()),
        }
    }

    fn send(&mut self, message: &[u8], channel: &mut EventChannel, id: IdKey) -> Result<()> {
        const OP: &str = "send";
        if self.over {
            return Err(Error::Disconnected);
        }
        let deadline = channel::deadline(self.limit);
        // Nudges may take the last place in the queue.
        while self.outgoing.is_none() || self.qp.room().0 == 0 {
            self.wait(channel, id, deadline, GLANCE)?;
        }
        let Some(slot) = self.outgoing.as_mut() else { return Ok(()) };
        let place = slot
            .get_mut(..message.len())
            .ok_or(Error::Post { op: OP, why: rdma_safe::Why::TooLong })?;
        place.copy_from_slice(message);
        self.listen()?;
        let Some(slot) = self.outgoing.take() else { return Ok(()) };
        self.qp
            .post_send(slot, message.len(), SendFlags::empty())
            .map_err(|e| Error::Post { op: OP, why: e.why })
    }

    /// Waits for the peer's message.
    fn receive(&mut self, channel: &mut EventChannel, id: IdKey, nudges: bool) -> Result<&[u8]> {
        let deadline = channel::deadline(self.limit);
        let mut pause = FIRST_NUDGE;
        let mut next = Instant::now() + pause;
        while self.received.is_none() {
            let nudging = nudges && self.unheard;
            let glance = if nudging { pause.min(GLANCE) } else { GLANCE };
            self.wait(channel, id, deadline, glance)?;
            if nudging && self.received.is_none() && Instant::now() >= next {
                // It may not fit now; the next one will do.
                let _ = self.qp.post_empty_write();
                pause = (2 * pause).min(self.limit);
                next = Instant::now() + pause;
            }
        }
        let (slot, len) = self.received.as_ref().ok_or(Error::Disconnected)?;
        Ok(slot.get(..*len).unwrap_or_default())
    }

    /// Waits until what was sent has completed, then ends the connection.
    fn close(mut self, channel: &mut EventChannel, connection: &impl Connected) -> Result<()> {
        let deadline = channel::deadline(self.limit);
        while self.outgoing.is_none() {
            self.wait(channel, connection.key(), deadline, GLANCE)?;
        }
        match channel.disconnect(connection) {
            // There is none any more.
            Err(error) if error.errno() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Takes what has completed within `glance`, or takes note of the end.
    fn wait(
        &mut self,
        channel: &mut EventChannel,
        id: IdKey,
        deadline: Instant,
        glance: Duration,
    ) -> Result<()> {
        const OP: &str = "waiting for a message";
        if self.redeem(if self.over { Duration::ZERO } else { glance })? {
            return Ok(());
        }
        if self.over {
            return Err(Error::Disconnected);
        }
        match channel.event_of(id, Instant::now())? {
            Some(Event::Disconnected { .. }) => {
                // What arrived before the end is still to be taken.
                self.over = true;
                return Ok(());
            }
            Some(Event::DeviceRemoval { .. }) => {
                self.over = true;
                return Err(removed(OP));
            }
            _ => {}
        }
        if Instant::now() >= deadline {
            return Err(Error::Timeout { op: OP, limit: self.limit });
        }
        Ok(())
    }

    /// Takes one completion, if one comes within `glance`.
    fn redeem(&mut self, glance: Duration) -> Result<bool> {
        let mut wc = [Wc::empty()];
        if self.cq.poll_wait(&mut wc, glance)? == 0 {
            return Ok(false);
        }
        let Some(done) = self.qp.complete(&mut wc[0]) else { return Ok(true) };
        if !done.status.is_ok() {
            self.over = true;
            return Err(failed(done.op, done.status));
        }
        match (done.op, done.slot) {
            (Op::Recv, Some(slot)) => {
                self.received = Some((slot, done.byte_len));
                self.unheard = false;
            }
            (_, Some(slot)) => self.outgoing = Some(slot),
            (_, None) => {}
        }
        Ok(true)
    }
}

/// What a failed request means for a connection that takes turns.
fn failed(op: Op, status: WcStatus) -> Error {
    match status {
        // The peer has gone, and everything that was posted came back.
        WcStatus::WR_FLUSH_ERR => Error::Disconnected,
        _ if op == Op::Recv => Error::Completion { op: "receive", status },
        _ => Error::Completion { op: "send", status },
    }
}

fn one_slot(pd: &ProtectionDomain, size: usize) -> Result<Slot> {
    let slot = pd.slots(size, 1)?.pop();
    slot.ok_or(Error::State { op: "slots", why: "no memory was registered" })
}

/// The side that asks.
///
/// Made by [`dial`](Self::dial).
#[derive(Debug)]
pub struct Caller {
    line: Line,
    connection: Established<Initiator>,
    channel: EventChannel,
}

impl Caller {
    /// Connects to the first address that answers. A name is looked up as the host does it, which may take as long as the
    /// host's resolver takes; everything else ends within [`Config::limit`], of which each address gets an equal share of
    /// what is left. After [`ConnectError::PortInUse`] an address is tried once more.
    ///
    /// # Errors
    /// See [`ConnectError`]: of the last address that was tried. [`Error::Lookup`] within it when the name leads nowhere.
    pub fn dial(to: impl ToSocketAddrs, config: &Config) -> Result<Self, ConnectError> {
        let deadline = channel::deadline(config.limit);
        let addresses: Vec<SocketAddr> = to.to_socket_addrs().map_err(lookup_failed)?.collect();
        let mut refused = None;
        for (number, address) in addresses.iter().enumerate() {
            let left = match number {
                0 => config.limit,
                _ => deadline.saturating_duration_since(Instant::now()),
            };
            // An address that keeps silent must leave something to the others.
            let share = left / u32::try_from(addresses.len() - number).unwrap_or(u32::MAX);
            let end = channel::deadline(share);
            let mut dialled = Self::dial_one(*address, config, share);
            if let Err(ConnectError::PortInUse { .. }) = dialled {
                let left = end.saturating_duration_since(Instant::now());
                dialled = Self::dial_one(*address, config, left);
            }
            match dialled {
                Ok(caller) => return Ok(caller),
                Err(ConnectError::Cancelled) => return Err(ConnectError::Cancelled),
                Err(ConnectError::Timeout { .. }) => {
                    refused = Some(ConnectError::Timeout { limit: share });
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused
            .unwrap_or_else(|| Error::State { op: "dial", why: "the name has no address" }.into()))
    }

    fn dial_one(to: SocketAddr, config: &Config, limit: Duration) -> Result<Self, ConnectError> {
        let start = Instant::now();
        let mut channel = config.channel()?;
        let connector = channel.resolve(None, to, limit)?;
        let context = channel.open_device(&connector)?;
        let mut line = Line::new(&context, config)?;
        channel.init_qp(&connector, &mut line.qp)?;
        // Before connecting: the answer may come as soon as there is a connection.
        line.listen()?;
        let left = limit.saturating_sub(start.elapsed());
        let connection = channel.connect(connector, &mut line.qp, &config.params, left)?;
        Ok(Self { line, connection, channel })
    }

    /// Sends a message and waits for the answer, which is valid until the next call.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the peer has gone; [`Error::Timeout`], after which the connection is of no more use;
    /// [`Error::Post`] for a message longer than [`Config::message_size`]; [`Error::Completion`], [`Error::Cancelled`].
    pub fn call(&mut self, message: &[u8]) -> Result<&[u8]> {
        let id = self.connection.key();
        self.line.send(message, &mut self.channel, id)?;
        self.line.receive(&mut self.channel, id, true)
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the last message does not get away; [`Error::Disconnected`] when the peer went before it had it;
    /// [`Error::Completion`], [`Error::Cancelled`].
    pub fn close(mut self) -> Result<()> {
        self.line.close(&mut self.channel, &self.connection)
    }

    /// The connection, for its private data.
    pub fn connection(&self) -> &Established<Initiator> {
        &self.connection
    }
}

/// Takes in those who call.
///
/// Made by [`bind`](Self::bind).
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    channel: EventChannel,
    contexts: Vec<Context>,
    config: Config,
}

impl Server {
    /// Listens on the first of these addresses that can be had; each has to be a device's own. Port 0 takes a free one.
    ///
    /// # Errors
    /// As [`EventChannel::listen`], for the last address.
    pub fn bind(at: impl ToSocketAddrs, config: &Config) -> Result<Self> {
        let mut channel = config.channel()?;
        let mut refused = Error::State { op: "bind", why: "the name has no address" };
        for address in at.to_socket_addrs().map_err(lookup_failed)? {
            match channel.listen(address, 128) {
                Ok(listener) => {
                    let (contexts, config) = (Vec::new(), config.clone());
                    return Ok(Self { listener, channel, contexts, config });
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The address and the port it really has.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Waits for the next caller; `None` when none came within [`Config::limit`]. The session is independent of the server
    /// and can go to a thread of its own. A caller that is slow to finish its handshake (InfiniBand, RoCE) holds up those
    /// behind it, at most for that limit.
    ///
    /// # Errors
    /// [`ConnectError`]: a caller that gave up, or died, while it was taken in. The server goes on, unless the error is
    /// [`ConnectError::Cancelled`] or comes from its device.
    pub fn accept(&mut self) -> Result<Option<Session>, ConnectError> {
        match self.channel.wait_request(&self.listener, self.config.limit) {
            Ok(Some(request)) => self.take_in(request).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn take_in(&mut self, request: ConnectRequest) -> Result<Session, ConnectError> {
        let known = self.contexts.iter().find(|c| c.name() == request.device_name());
        let context = match known {
            Some(context) => context.clone(),
            None => {
                let context = self.channel.open_device(&request)?;
                self.contexts.push(context.clone());
                context
            }
        };
        let mut line = Line::new(&context, &self.config)?;
        let mut channel = self.config.channel()?;
        let request = channel.adopt(&mut self.channel, request).map_err(|(_, error)| error)?;
        let private_data = request.private_data().clone();
        channel.init_qp(&request, &mut line.qp)?;
        // Before accepting: the first message may be here before the call returns.
        line.listen()?;
        let accepting = channel.accept(request, &mut line.qp, &self.config.params)?;
        let connection = channel.wait_established(accepting, self.config.limit)?;
        Ok(Session { line, connection, channel, private_data })
    }
}

/// The side that answers: one caller of a [`Server`].
///
/// From [`Server::accept`].
#[derive(Debug)]
pub struct Session {
    line: Line,
    connection: Established<Acceptor>,
    channel: EventChannel,
    private_data: PrivateData,
}

impl Session {
    /// Waits for the caller's next message; `None` when it has gone. The message is valid until the answer.
    ///
    /// # Errors
    /// [`Error::State`] while the last message is unanswered; [`Error::Timeout`]; [`Error::Completion`],
    /// [`Error::Cancelled`].
    pub fn recv(&mut self) -> Result<Option<&[u8]>> {
        if self.line.received.is_some() {
            return Err(Error::State { op: "recv", why: "the last message is not answered" });
        }
        let id = self.connection.key();
        match self.line.receive(&mut self.channel, id, false) {
            Ok(message) => Ok(Some(message)),
            Err(Error::Disconnected) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Answers the last message. It has been handed to the device when this returns, and not sent yet: a session that is
    /// dropped now takes it along. [`close`](Self::close) it, or wait in [`recv`](Self::recv) until the caller has gone.
    ///
    /// # Errors
    /// [`Error::State`] when there is none to answer; else as [`Caller::call`].
    pub fn reply(&mut self, message: &[u8]) -> Result<()> {
        if self.line.received.is_none() {
            return Err(Error::State { op: "reply", why: "there is no message to answer" });
        }
        let id = self.connection.key();
        self.line.send(message, &mut self.channel, id)
    }

    /// Answers every message, until the caller goes; then tells how many there were. `answer` writes into an empty vector.
    ///
    /// # Errors
    /// As [`recv`](Self::recv) and [`reply`](Self::reply).
    pub fn serve(&mut self, mut answer: impl FnMut(&[u8], &mut Vec<u8>)) -> Result<u64> {
        let (mut count, mut text) = (0, Vec::new());
        while let Some(message) = self.recv()? {
            text.clear();
            answer(message, &mut text);
            self.reply(&text)?;
            count += 1;
        }
        Ok(count)
    }

    /// Waits until the last answer has arrived (on iWARP: has been taken by TCP), then ends the connection. Better let the
    /// caller go first: on iWARP what it sends meanwhile may destroy what is on its way to it.
    ///
    /// # Errors
    /// As [`Caller::close`].
    pub fn close(mut self) -> Result<()> {
        self.line.close(&mut self.channel, &self.connection)
    }

    /// What the caller sent along with its request ([`Config::params`]); padded on InfiniBand and RoCE.
    pub fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    /// The caller's address.
    pub fn peer_addr(&mut self) -> Option<SocketAddr> {
        self.channel.peer_addr(&self.connection)
    }
}

fn lookup_failed(error: std::io::Error) -> Error {
    Error::Lookup { text: error.to_string() }
}
