//! The trial: a device connects to its own address and sends a message each way.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_safe::{
    Caps, CompletionQueue, Context, LoopbackSource, LoopbackSupport, Op, ProtectionDomain,
    QpConfig, QueuePair, SendFlags, Wc,
};

use super::{LoopbackPolicy, own_address};
use crate::channel::{self, EventChannel};
use crate::connect::Answer;
use crate::error::{ConnectError, Error, Result};
use crate::event::Event;
use crate::id::{
    Accepting, ConnectRequest, Connecting, Connector, Established, Id, Initiator, Listener,
};
use crate::params::ConnParams;
use crate::private_data::PrivateData;

/// The least time for a trial: one without time to succeed would say No, and a No forbids.
const AT_LEAST: Duration = Duration::from_secs(1);
/// How long an initiator whose message is not answered waits before it makes the peer look again
/// ([`Caps::NUDGE_AFTER_ACCEPT`]).
const NUDGE: Duration = Duration::from_millis(50);
/// How many times it does.
const NUDGES: u32 = 40;
/// For which the kernel may hold an iWARP id whose request nobody answered, and then some.
const LINGER: Duration = Duration::from_secs(12);
/// How long both ends may take to hear of the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Finds out whether a device can connect to its own address by doing it: a listener on the device's first address, a
/// connection to it, and a message each way within `limit`. Two seconds are plenty; less than one is taken for one, because
/// a trial without time would say No of every device.
///
/// The result becomes the context's answer ([`Context::loopback`], [`Caps::LOOPBACK`] and, with what happened,
/// [`Context::loopback_reason`]), unless the user has overridden that; overrides do not keep the trial from being made.
/// Nothing is left behind: the trial uses objects of its own on `context`, which are gone when this returns. After a
/// failure on iWARP that may take up to 12 s longer than `limit`, because the kernel holds a connection whose request was
/// not answered for as long as that.
///
/// Another user of `context` is not disturbed, but its network interface is used, and nobody should change addresses
/// meanwhile.
///
/// # Errors
/// When the trial could not be made, which says nothing about loopback: the device has no address but link-local ones
/// ([`Error::Os`] with EADDRNOTAVAIL), no channel or object could be made, [`Error::NoSignal`], the device was removed. The
/// context's answer stays what it was.
pub fn probe_loopback(context: &Context, limit: Duration) -> Result<LoopbackSupport> {
    let deadline = channel::deadline(limit.max(AT_LEAST));
    let own = own_address(context)?;
    let mut channel = EventChannel::new()?;
    channel.set_loopback_policy(LoopbackPolicy::new().with_override(context.name(), true));
    let listener = channel.listen(own, 8)?;
    let mut trial = Trial { channel, listener, deadline, pair: Pair::new(context)? };
    let mut outcome = trial.run(context, own);
    if matches!(&outcome, Err(Failure::PortInUse(_))) {
        trial.pair = Pair::new(context)?;
        outcome = trial.run(context, own);
    }
    trial.clean_up();
    let source = LoopbackSource::Probe;
    let (support, reason) = match outcome {
        Ok(()) => (
            LoopbackSupport::Yes(source),
            format!("{} connected to itself over {}", context.name(), own.ip()),
        ),
        Err(Failure::Device(why)) => (
            LoopbackSupport::No(source),
            format!("{} did not connect to itself over {}: {why}", context.name(), own.ip()),
        ),
        Err(Failure::Trial(error) | Failure::PortInUse(error)) => return Err(error),
    };
    context.refine_loopback(support, reason);
    Ok(support)
}

/// Why a trial had no success.
enum Failure {
    /// The device did not carry it.
    Device(String),
    /// It could not be made.
    Trial(Error),
    /// The same, because of the port that the kernel chose; the next one will do. It says nothing about the device.
    PortInUse(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let carried = match &error {
            Error::Os { op, .. } => {
                matches!(
                    *op,
                    "rdma_resolve_addr" | "rdma_resolve_route" | "rdma_connect" | "rdma_accept"
                )
            }
            Error::Timeout { .. } => true,
            _ => false,
        };
        if carried { Failure::Device(error.to_string()) } else { Failure::Trial(error) }
    }
}

impl From<rdma_safe::Error> for Failure {
    fn from(error: rdma_safe::Error) -> Self {
        Failure::Trial(error.into())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Local(error) => error.into(),
            ConnectError::DeviceRemoved => {
                Failure::Trial(Error::errno_of("rdma_connect", libc::ENODEV))
            }
            ConnectError::PortInUse { .. } => {
                let error = Error::errno_of("rdma_connect", libc::EADDRINUSE);
                Failure::PortInUse(error.hint_for(&[libc::EADDRINUSE], "try again"))
            }
            other => Failure::Device(other.to_string()),
        }
    }
}

struct Trial {
    // Fields drop in this order: ids before their queue pairs, which do not care.
    channel: EventChannel,
    listener: Listener,
    deadline: Instant,
    pair: Pair,
}

impl Trial {
    fn run(&mut self, context: &Context, own: SocketAddr) -> std::result::Result<(), Failure> {
        let connector = self.resolve(context, own)?;
        let nonce = RandomState::new().build_hasher().finish().to_be_bytes();
        let params = ConnParams::with_private_data(PrivateData::raw(&nonce).map_err(Error::from)?);
        self.channel.init_qp(&connector, &mut self.pair.active)?;
        self.pair.post_receive(End::Active)?;
        let limit = self.left();
        let attempt =
            self.channel.begin_connect(connector, &mut self.pair.active, &params, limit)?;
        let (attempt, request) = self.own_request(attempt, &nonce)?;
        let reply = ConnParams::default();
        let accepting = self.channel.accept(request, &mut self.pair.passive, &reply)?;
        let limit = self.left();
        let connection = self.channel.finish_connect(attempt, &mut self.pair.active, limit)?;
        let nudge = context.caps().contains(Caps::NUDGE_AFTER_ACCEPT);
        let talked = self.pair.talk(&nonce, nudge, self.deadline);
        self.say_goodbye(connection, accepting);
        talked
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn resolve(
        &mut self,
        context: &Context,
        own: SocketAddr,
    ) -> std::result::Result<Connector, Failure> {
        let to = self.listener.local_addr();
        let limit = self.left();
        let connector = self.channel.resolve(Some(own), to, limit)?;
        match self.channel.device_name(&connector) {
            Some(name) if name == context.name() => Ok(connector),
            other => Err(Failure::Device(format!(
                "its own address leads to {}",
                other.as_deref().unwrap_or("no device")
            ))),
        }
    }

    /// Waits for the request with this nonce, which nobody else knows; whoever else calls is rejected.
    fn own_request(
        &mut self,
        mut attempt: Connecting,
        nonce: &[u8],
    ) -> std::result::Result<(Connecting, ConnectRequest), Failure> {
        loop {
            let limit = self.left();
            // Strangers that keep calling must not keep this going.
            if limit.is_zero() {
                return Err(Failure::Device("the request did not arrive in time".into()));
            }
            let event = self.channel.next_event(Some(limit))?;
            match event {
                Some(Event::ConnectRequest { request, .. })
                    if request.private_data().as_bytes().starts_with(nonce) =>
                {
                    self.channel.init_qp(&request, &mut self.pair.passive)?;
                    self.pair.post_receive(End::Passive)?;
                    return Ok((attempt, request));
                }
                Some(event) => match self.channel.answer(attempt, &mut self.pair.active, event)? {
                    Answer::NotYet(same) => attempt = same,
                    Answer::Established(_) => {
                        return Err(Failure::Device("somebody else answered".into()));
                    }
                },
                None => {}
            }
        }
    }

    fn say_goodbye(&mut self, connection: Established<Initiator>, accepting: Accepting) {
        // Whether it works does not matter any more.
        let _ = self.channel.disconnect(&connection);
        let end = channel::deadline(FAREWELL);
        let _ = self.channel.next_matching(
            end,
            |e| matches!(e, Event::Disconnected { id } if *id == connection.key()),
        );
        let _ = self.channel.next_matching(
            end,
            |e| matches!(e, Event::Disconnected { id } if *id == accepting.key()),
        );
    }

    /// Reads events until the kernel holds nothing any more, so that nothing below has to wait uninterruptibly.
    fn clean_up(mut self) {
        let end = channel::deadline(LINGER);
        while self.channel.lingering() > 0 && Instant::now() < end {
            if self.channel.next_event(Some(Duration::from_millis(50))).is_err() {
                break;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Active,
    Passive,
}

/// Bytes of the message: a nonce.
const MESSAGE: usize = 8;

/// Two queue pairs of one device.
struct Pair {
    active: QueuePair,
    passive: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl Pair {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let config = QpConfig {
            send_depth: NUDGES + 2,
            recv_depth: 2,
            max_inline: 32,
            ..QpConfig::default()
        };
        // Enough for both queue pairs with all their requests, the nudges among them.
        let depth = 2 * (config.send_depth + config.recv_depth);
        let cq = context.create_cq_with(depth, &context.completion_channel()?)?;
        let active = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config)?;
        let passive = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config)?;
        Ok(Self { active, passive, cq, pd })
    }

    fn qp(&mut self, end: End) -> &mut QueuePair {
        match end {
            End::Active => &mut self.active,
            End::Passive => &mut self.passive,
        }
    }

    fn post_receive(&mut self, end: End) -> std::result::Result<(), Failure> {
        let slots = self.pd.slots(MESSAGE, 1)?;
        for slot in slots {
            self.qp(end).post_recv(slot).map_err(|e| post_failed(end, &e))?;
        }
        Ok(())
    }

    /// A message each way, the initiator's first.
    fn talk(
        &mut self,
        text: &[u8; MESSAGE],
        nudge: bool,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        for (from, to) in [(End::Active, End::Passive), (End::Passive, End::Active)] {
            let sent = self.qp(from).post_inline(text, SendFlags::empty());
            sent.map_err(|e| post_failed(from, &e))?;
            // Only the first message can lie unseen.
            self.hear(to, text, nudge && from == End::Active, deadline)?;
        }
        Ok(())
    }

    fn hear(
        &mut self,
        to: End,
        text: &[u8; MESSAGE],
        nudge: bool,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let mut nudges = if nudge { NUDGES } else { 0 };
        loop {
            let mut wc = [Wc::empty()];
            let left = deadline.saturating_duration_since(Instant::now());
            if self.cq.poll_wait(&mut wc, left.min(NUDGE))? == 0 {
                if left.is_zero() {
                    return Err(Failure::Device(format!("{to:?} side: no message in time")));
                }
                if nudges > 0 {
                    nudges -= 1;
                    self.active.post_empty_write().map_err(|e| post_failed(End::Active, &e))?;
                }
                continue;
            }
            for end in [End::Active, End::Passive] {
                let Some(done) = self.qp(end).complete(&mut wc[0]) else { continue };
                if !done.status.is_ok() {
                    let why = format!("{end:?} side: {:?} ended with {}", done.op, done.status);
                    return Err(Failure::Device(why));
                }
                if done.op == Op::Recv && end == to {
                    let heard = done.slot.is_some_and(|slot| slot.starts_with(text));
                    let garbled = || Failure::Device("the message came garbled".into());
                    return heard.then_some(()).ok_or_else(garbled);
                }
            }
        }
    }
}

fn post_failed(end: End, error: &rdma_safe::PostError) -> Failure {
    Failure::Device(format!("{end:?} side: a post failed: {}", error.why))
}
