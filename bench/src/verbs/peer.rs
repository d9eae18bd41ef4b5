//! One side of a connection: a queue pair with a completion queue for each direction.

use std::time::{Duration, Instant};

use rdma_cm::{Acceptor, ConnParams, Established, EventChannel, Initiator, PrivateData, Role};
use rdma_safe::{
    CompletionQueue, Context, Device, Done, ProtectionDomain, QpConfig, QueuePair, SendFlags, Slot,
    Wc,
};

use crate::Outcome;
use crate::spec::Spec;

/// For anything that has to come.
const LIMIT: Duration = Duration::from_secs(20);
/// Before a first message without an answer is said again; then twice as long, and so on.
const PATIENCE: Duration = Duration::from_millis(100);
/// Polls between two looks at the clock, which is a system call.
const POLLS: u32 = 1 << 18;
/// Completions taken at once, as perftest does.
const BATCH: usize = 16;

/// Bytes of what [`Half::say`] says.
pub(crate) const WORD: usize = 8;

/// Half of a connection.
pub(crate) struct Half {
    pub(crate) qp: QueuePair,
    pub(crate) pd: ProtectionDomain,
    sends: CompletionQueue,
    recvs: CompletionQueue,
    wcs: [Wc; BATCH],
}

/// A connected one.
pub(crate) struct Peer<R: Role> {
    pub(crate) half: Half,
    channel: EventChannel,
    connection: Established<R>,
    /// Whether the transport is iWARP, where a message must never find no receive.
    pub(crate) iwarp: bool,
}

impl Half {
    fn new(device: &str, spec: &Spec) -> Outcome<Half> {
        let context: Context = Device::by_name(device)?.open()?;
        let pd = context.alloc_pd()?;
        // Two more for a first message that is said again, and for the last.
        let (send_depth, recv_depth) = (spec.depth as u32 + 2, spec.receives as u32 + 2);
        let sends = context.create_cq(send_depth)?;
        let recvs = context.create_cq(recv_depth)?;
        let config = QpConfig { send_depth, recv_depth, max_inline: 32, ..QpConfig::default() };
        let qp = pd.create_qp(&sends.cq_ref(), &recvs.cq_ref(), &config)?;
        Ok(Half { qp, pd, sends, recvs, wcs: std::array::from_fn(|_| Wc::empty()) })
    }

    /// Posts so many receives of a size, or of [`WORD`] if that is more.
    pub(crate) fn post_recvs(&mut self, size: usize, count: usize) -> Outcome {
        for slot in self.pd.slots(size.max(WORD), count)? {
            self.qp.post_recv(slot)?;
        }
        Ok(())
    }

    /// Hands what has completed on the send queue to `done`; how many that was.
    #[inline]
    pub(crate) fn poll_sends(&mut self, done: impl FnMut(&mut QueuePair, Done)) -> Outcome<usize> {
        poll(&mut self.sends, &mut self.qp, &mut self.wcs, done)
    }

    /// Likewise, of the receive queue.
    #[inline]
    pub(crate) fn poll_recvs(&mut self, done: impl FnMut(&mut QueuePair, Done)) -> Outcome<usize> {
        poll(&mut self.recvs, &mut self.qp, &mut self.wcs, done)
    }

    /// Waits for one completion of the send queue; its slot.
    #[inline]
    pub(crate) fn sent(&mut self) -> Outcome<Option<Slot>> {
        one(&mut self.sends, &mut self.qp).map(|done| done.slot)
    }

    /// Waits for one message.
    #[inline]
    pub(crate) fn received(&mut self) -> Outcome<Slot> {
        let done = one(&mut self.recvs, &mut self.qp)?;
        done.slot.ok_or_else(|| "a receive without a slot".into())
    }

    /// Says a number; the sends before it have been reaped.
    pub(crate) fn say(&mut self, word: u64) -> Outcome {
        self.qp.post_inline(&word.to_le_bytes(), SendFlags::empty())?;
        self.sent().map(drop)
    }

    /// Waits for the first message of an initiator's peer. Soft iWARP may leave the initiator's own lie until something
    /// follows it, so an empty write does, now and then.
    fn first_received(&mut self) -> Outcome<Slot> {
        let start = Instant::now();
        let (mut wc, mut again) = ([Wc::empty()], PATIENCE);
        loop {
            if self.recvs.poll(&mut wc)? > 0 {
                return redeem(&mut self.qp, &mut wc[0])?.slot.ok_or_else(|| "no slot".into());
            }
            if start.elapsed() >= again {
                self.qp.post_empty_write()?;
                self.sent()?;
                again *= 2;
            }
            if start.elapsed() >= LIMIT {
                return Err("the peer does not answer".into());
            }
        }
    }
}

/// Redeems a completion, which must be a success.
#[inline(always)]
fn redeem(qp: &mut QueuePair, wc: &mut Wc) -> Outcome<Done> {
    match qp.complete(wc) {
        Some(done) if done.status.is_ok() => Ok(done),
        Some(done) => Err(format!("{:?}: {}", done.op, done.status).into()),
        None => Err("a completion of another queue pair".into()),
    }
}

#[inline(always)]
fn one(cq: &mut CompletionQueue, qp: &mut QueuePair) -> Outcome<Done> {
    let mut wc = [Wc::empty()];
    let mut since = None;
    loop {
        for _ in 0..POLLS {
            if cq.poll(&mut wc)? > 0 {
                return redeem(qp, &mut wc[0]);
            }
        }
        check(&mut since)?;
    }
}

#[inline(always)]
fn poll(
    cq: &mut CompletionQueue,
    qp: &mut QueuePair,
    wcs: &mut [Wc; BATCH],
    mut done: impl FnMut(&mut QueuePair, Done),
) -> Outcome<usize> {
    let n = cq.poll(wcs)?;
    for wc in wcs.iter_mut().take(n) {
        let redeemed = redeem(qp, wc)?;
        done(qp, redeemed);
    }
    Ok(n)
}

/// Fails when nothing has come for too long since the first call.
#[cold]
#[inline(never)]
fn check(since: &mut Option<Instant>) -> Outcome {
    match since.get_or_insert_with(Instant::now).elapsed() {
        waited if waited < LIMIT => Ok(()),
        _ => Err("nothing came for too long".into()),
    }
}

/// Counts polls that found nothing, and ends them when it takes too long.
#[derive(Default)]
pub(crate) struct Idle {
    polls: u32,
    since: Option<Instant>,
}

impl Idle {
    /// After a poll that found `n`.
    #[inline]
    pub(crate) fn polled(&mut self, n: usize) -> Outcome {
        if n > 0 {
            *self = Idle::default();
            return Ok(());
        }
        self.polls += 1;
        if self.polls.is_multiple_of(POLLS) { check(&mut self.since) } else { Ok(()) }
    }
}

impl<R: Role> Peer<R> {
    /// Waits until the peer has ended the connection.
    pub(crate) fn until_gone(mut self) -> Outcome {
        match self.channel.next_event(Some(LIMIT))? {
            Some(rdma_cm::Event::Disconnected { .. }) => {
                self.channel.destroy(self.connection);
                Ok(())
            }
            other => Err(format!("no disconnect but {other:?}").into()),
        }
    }

    /// Ends the connection.
    pub(crate) fn end(mut self) -> Outcome {
        self.channel.disconnect(&self.connection)?;
        drop(self.half);
        self.channel.destroy(self.connection);
        Ok(())
    }
}

fn params(private_data: &[u8]) -> Outcome<ConnParams> {
    let mut params = ConnParams::with_private_data(PrivateData::framed(private_data)?);
    params.responder_resources = ConnParams::MAX_READS;
    params.initiator_depth = ConnParams::MAX_READS;
    Ok(params)
}

/// Listens and accepts; `prepare` posts the receives and returns what the initiator is told. Both sides have heard each other then, as
/// perftest's have.
pub(crate) fn accept<T>(
    spec: &Spec,
    prepare: impl FnOnce(&mut Half) -> Outcome<(Vec<u8>, T)>,
) -> Outcome<(Peer<Acceptor>, T)> {
    let mut channel = EventChannel::new()?;
    let listener = channel.listen(spec.addr, 1)?;
    let request = channel.wait_request(&listener, LIMIT)?.ok_or("nobody connects")?;
    let mut half = Half::new(request.device_name(), spec)?;
    channel.init_qp(&request, &mut half.qp)?;
    let (told, kept) = prepare(&mut half)?;
    let accepting = channel.accept(request, &mut half.qp, &params(&told)?)?;
    let connection = channel.wait_established(accepting, LIMIT)?;
    channel.destroy(listener);
    let iwarp = half.qp.context().transport().is_iwarp();
    let greeting = half.received()?;
    half.qp.post_recv(greeting)?;
    half.say(0)?;
    Ok((Peer { half, channel, connection, iwarp }, kept))
}

/// Connects; `prepare` posts the receives. Returns what the acceptor told, too.
pub(crate) fn dial(
    spec: &Spec,
    prepare: impl FnOnce(&mut Half) -> Outcome,
) -> Outcome<(Peer<Initiator>, Vec<u8>)> {
    let mut channel = EventChannel::new()?;
    let connector = channel.resolve(None, spec.addr, LIMIT)?;
    let device = channel.device_name(&connector).ok_or("the address is on no RDMA device")?;
    let mut half = Half::new(&device, spec)?;
    channel.init_qp(&connector, &mut half.qp)?;
    prepare(&mut half)?;
    let connection = channel.connect(connector, &mut half.qp, &params(&[])?, LIMIT)?;
    let told = connection.private_data().payload()?.to_vec();
    let iwarp = half.qp.context().transport().is_iwarp();
    half.say(0)?;
    let greeting = half.first_received()?;
    half.qp.post_recv(greeting)?;
    Ok((Peer { half, channel, connection, iwarp }, told))
}
