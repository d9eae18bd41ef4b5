//! Connections in tokio on a real device: run with `--features device-tests,tokio`, RDMA_TEST_DEVICE and RDMA_TEST_ADDR
//! set, as root. Without a device they fail.
#[path = "../../rdma-safe/tests/cancel/mod.rs"]
mod cancel;
mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cancel::{
    at_most, at_most_woken, in_both, in_one_thread, in_two_threads, next, soon, until_done,
};
use common::{LIMIT, addr, open, silent_host};
use rdma_cm::aio::{AsyncConfig, AsyncEventChannel, AsyncQueuePair, Connection};
use rdma_cm::{
    Acceptor, ConnParams, ConnectError, Error, Established, Initiator, ListenOptions, Listener,
    PrivateData,
};
use rdma_safe::aio::{AsyncPollGroup, QueueError};
use rdma_safe::{
    Op, Payload, PayloadKind, PollGroup, ProtectionDomain, QpConfig, QueuePair, RemoteAccess,
    Request, SendFlags, Transport,
};
use tokio::task::JoinHandle;

const CONFIG: AsyncConfig = AsyncConfig { sends: 8, receives: 8, message_size: 256, requests: 4 };

/// Buffers of one side.
const BUFFERS: usize = (CONFIG.sends + CONFIG.receives) as usize;

struct Server {
    pd: ProtectionDomain,
    channel: AsyncEventChannel,
    to: SocketAddr,
    listener: Arc<Listener>,
}

fn server() -> Server {
    let pd = open().alloc_pd().unwrap();
    let channel = AsyncEventChannel::new().unwrap();
    let listener = channel.listen(addr(0), &ListenOptions::default()).unwrap();
    Server { pd, channel, to: listener.local_addr(), listener: Arc::new(listener) }
}

impl Server {
    async fn accept(&self) -> Result<Connection<Acceptor>, ConnectError> {
        let request = soon("a request", self.channel.request(&self.listener, LIMIT)).await?;
        let request = request.expect("a request comes");
        let params = ConnParams::default();
        Connection::accept(&self.channel, &self.pd, request, &CONFIG, &params, LIMIT).await
    }

    async fn connect(
        &self,
        channel: &AsyncEventChannel,
    ) -> Result<Connection<Initiator>, ConnectError> {
        Connection::connect(channel, &self.pd, self.to, &CONFIG, LIMIT).await
    }

    /// Both ends, each on a channel of its own.
    async fn pair(&self) -> (Connection<Initiator>, Connection<Acceptor>) {
        let channel = AsyncEventChannel::new().unwrap();
        let (one, two) = tokio::join!(self.connect(&channel), self.accept());
        (one.unwrap(), two.unwrap())
    }

    /// Connects queue pairs of one's own; the second has receives.
    async fn connect_plain(
        &self,
        events: &AsyncEventChannel,
        a: &mut QueuePair,
        b: &mut QueuePair,
    ) -> (Established<Initiator>, Established<Acceptor>) {
        let params = ConnParams::default();
        let connector = events.resolve(None, self.to, LIMIT).await.unwrap();
        events.with(|c| c.init_qp(&connector, a)).unwrap().unwrap();
        let answering = async {
            let request = self.channel.request(&self.listener, LIMIT).await.unwrap().unwrap();
            self.channel.with(|c| c.init_qp(&request, b)).unwrap().unwrap();
            for slot in self.pd.slots(64, 8).unwrap() {
                b.post_recv(slot).unwrap();
            }
            self.channel.accept(request, b, &params, LIMIT).await.unwrap()
        };
        let (one, two) = tokio::join!(events.connect(connector, a, &params, LIMIT), answering);
        (one.unwrap(), two)
    }

    /// Answers every message of every peer with itself, until aborted. Peers that go, early or late, are no errors.
    fn echo(self: &Arc<Self>) -> JoinHandle<()> {
        let server = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let request = server.channel.request(&server.listener, LIMIT).await.unwrap();
                let Some(request) = request else { continue };
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let (channel, pd, params) =
                        (&server.channel, &server.pd, ConnParams::default());
                    let peer =
                        Connection::accept(channel, pd, request, &CONFIG, &params, LIMIT).await;
                    let Ok(peer) = peer else { return };
                    while let Ok(Some(message)) = peer.receive().await {
                        if peer.send(&message).await.is_err() {
                            return;
                        }
                    }
                });
            }
        })
    }
}

/// Nobody has lost a buffer.
async fn close<R: rdma_cm::Role>(connection: Connection<R>) {
    let slots = soon("close", connection.close(LIMIT)).await.unwrap();
    let places: BTreeSet<_> = slots.iter().map(|slot| slot.as_ptr()).collect();
    assert_eq!((slots.len(), places.len()), (BUFFERS, BUFFERS));
}

/// What message `n` says, in a length that changes: some are inline, none is empty.
fn text(n: u32) -> Vec<u8> {
    let len = 4 + n as usize % 200;
    n.to_le_bytes().iter().copied().cycle().zip(0..len).map(|(b, i)| b ^ i as u8).collect()
}

#[test]
fn ten_thousand_messages_come_back_though_futures_are_dropped() {
    in_one_thread(|| come_back(10_000));
}

/// Fewer: in the guest threads of one process take turns, and every message changes them several times.
#[test]
fn messages_come_back_though_futures_are_dropped_in_two_threads() {
    in_two_threads(|| come_back(4_000));
}

async fn come_back(messages: u32) {
    let server = Arc::new(server());
    let echo = server.echo();
    let channel = AsyncEventChannel::new().unwrap();
    let connection = Arc::new(server.connect(&channel).await.unwrap());
    // The other side answers before it lets go of a message: that one has no receive yet.
    let window = Arc::new(tokio::sync::Semaphore::new(CONFIG.receives as usize - 1));
    let (sender, free) = (Arc::clone(&connection), Arc::clone(&window));
    let sending = tokio::spawn(async move {
        let mut seed = 5;
        for n in 0..messages {
            free.acquire().await.unwrap().forget();
            let text = text(n);
            until_done(&mut seed, || sender.send(&text)).await.unwrap();
            if n % 100 == 0 {
                until_done(&mut seed, || sender.flush()).await.unwrap();
            }
        }
    });
    let mut seed = 9;
    for n in 0..messages {
        // One in eight waits is cut, so that most go to sleep.
        let message = loop {
            let polls = if next(&mut seed).is_multiple_of(8) { 1 } else { usize::MAX };
            if let Some(message) = at_most_woken(polls, connection.receive()).await {
                break message.unwrap().expect("the peer is there");
            }
        };
        assert_eq!(message[..], text(n)[..], "message {n}");
        drop(message);
        window.add_permits(1);
    }
    sending.await.unwrap();
    close(Arc::into_inner(connection).expect("nobody else has it")).await;
    echo.abort();
}

#[test]
fn reads_and_writes_are_awaited() {
    in_both(|| async {
        let server = server();
        let (one, two) = server.pair().await;
        let region = |pd: &ProtectionDomain, access| {
            pd.register_remote(vec![0; 4096].into(), access).unwrap()
        };
        let theirs = region(&server.pd, RemoteAccess::ReadWrite);
        let mut sinks = region(&server.pd, RemoteAccess::ReadSink).into_slots(4096, 1).unwrap();
        let mut slots = server.pd.slots(4096, 1).unwrap();
        let mut seed = 3;
        for n in 0..50 {
            let text = text(n);
            let (mut slot, sink) = (slots.remove(0), sinks.remove(0));
            slot[..text.len()].copy_from_slice(&text);
            let room = until_done(&mut seed, || one.queue().room()).await.unwrap();
            let write = room.post(Request::write(slot, text.len(), theirs.remote()));
            let mut write = write.unwrap();
            let room = until_done(&mut seed, || one.queue().room()).await.unwrap();
            // Behind the write on the same queue pair: it reads what that wrote.
            let read = room.post(Request::read(sink, text.len(), theirs.remote()));
            let mut read = read.unwrap();
            let done = loop {
                let polls = next(&mut seed) as usize % 3;
                match at_most_woken(polls, write.done()).await {
                    Some(done) => break done.unwrap(),
                    None => tokio::time::sleep(Duration::from_micros(100)).await,
                }
            };
            assert!(done.status.is_ok(), "{}", done.status);
            slots.extend(done.slot);
            let done = soon("the read", read.done()).await.unwrap();
            assert!(done.status.is_ok(), "{}", done.status);
            let Some(PayloadKind::Remote(sink)) = done.into_payload().map(Payload::into_kind)
            else {
                panic!("the sink comes back");
            };
            let mut got = vec![0; text.len()];
            sink.copy_out(0, &mut got).unwrap();
            assert_eq!(got, text);
            sinks.push(sink);
        }
        assert!(one.queue().take_abandoned().is_empty());
        // Abandoned, with its end in sight.
        let slot = slots.remove(0);
        let room = one.queue().room().await.unwrap();
        drop(room.post(Request::write(slot, 4096, theirs.remote())).unwrap());
        // A read behind it completes after it.
        let room = one.queue().room().await.unwrap();
        let mut read = room.post(Request::read(sinks.remove(0), 1, theirs.remote())).unwrap();
        assert!(soon("the read", read.done()).await.unwrap().status.is_ok());
        assert_eq!(one.queue().take_abandoned().len(), 1);
        tokio::join!(close(one), close(two));
    });
}

#[test]
fn many_connections_at_once() {
    const PEERS: u32 = 24;
    const EACH: u32 = 40;
    in_both(|| async {
        let server = Arc::new(server());
        let echo = server.echo();
        // All on one channel: whoever reads an event that is another's leaves it for that one.
        let channel = AsyncEventChannel::new().unwrap();
        let peers: Vec<_> = (0..PEERS)
            .map(|peer| {
                let (server, channel) = (Arc::clone(&server), channel.clone());
                tokio::spawn(async move {
                    let connection = soon("connect", server.connect(&channel)).await.unwrap();
                    for n in 0..EACH {
                        let text = text(peer * EACH + n);
                        connection.send(&text).await.unwrap();
                        let answer = soon("an answer", connection.receive()).await.unwrap();
                        assert_eq!(answer.expect("the peer is there")[..], text[..]);
                    }
                    close(connection).await;
                })
            })
            .collect();
        for peer in peers {
            peer.await.unwrap();
        }
        assert_eq!(channel.with(|c| c.id_count()).unwrap(), 0);
        echo.abort();
    });
}

#[test]
fn a_connect_dropped_at_each_of_its_polls_leaves_nothing_behind() {
    in_both(|| async {
        let server = Arc::new(server());
        let echo = server.echo();
        let channel = AsyncEventChannel::new().unwrap();
        let mut polls = 0;
        loop {
            let attempt = at_most_woken(polls, server.connect(&channel));
            if let Some(connection) = soon("connect", attempt).await {
                let connection = connection.unwrap();
                connection.send(b"after all").await.unwrap();
                let answer = soon("an answer", connection.receive()).await.unwrap();
                assert_eq!(&answer.expect("the peer is there")[..], b"after all");
                close(connection).await;
                break;
            }
            assert_eq!(channel.with(|c| c.id_count()).unwrap(), 0, "{polls} polls");
            polls += 1;
            assert!(polls < 1000);
        }
        assert!(polls >= 1, "something is waited for");
        soon("what lingers", none_lingers(&channel)).await;
        echo.abort();
    });
}

/// Until the kernel has let go of all ids whose attempts were given up.
async fn none_lingers(channel: &AsyncEventChannel) {
    while channel.with(|c| c.lingering()).unwrap() > 0 {
        // Reads the events that let go of them.
        let connector = channel.with(|c| c.connector()).unwrap().unwrap();
        let nothing = channel.next_event_of(&connector, Duration::from_millis(50)).await;
        assert!(nothing.unwrap().is_none());
    }
}

#[test]
fn an_accept_dropped_at_each_of_its_polls_ends_the_attempt() {
    in_both(|| async {
        let server = server();
        let channel = AsyncEventChannel::new().unwrap();
        for polls in 0..4 {
            let dialling = async {
                let dialled = soon("connect", server.connect(&channel)).await;
                // It may have stood for a moment.
                if let Ok(connection) = dialled {
                    soon("the end", connection.ended()).await.unwrap();
                }
            };
            let answering = async {
                let request = server.channel.request(&server.listener, LIMIT).await.unwrap();
                let params = ConnParams::default();
                let accept = Connection::accept(
                    &server.channel,
                    &server.pd,
                    request.expect("a request comes"),
                    &CONFIG,
                    &params,
                    LIMIT,
                );
                // Ready at once where the connection manager has all it needs.
                drop(at_most_woken(polls, accept).await);
                server.channel.with(|c| c.id_count()).unwrap()
            };
            let (_, left) = tokio::join!(dialling, answering);
            assert_eq!(left, 1, "the listener");
        }
        // A request that nobody was there for is not lost with the future that waited for it.
        let (request, one) = tokio::join!(
            at_most(2, server.channel.request(&server.listener, LIMIT)),
            at_most(0, server.connect(&channel))
        );
        assert!(request.is_none() && one.is_none());
        let (one, two) = tokio::join!(server.connect(&channel), server.accept());
        let (one, two) = (one.unwrap(), two.unwrap());
        one.send(b"works").await.unwrap();
        assert_eq!(&soon("a message", two.receive()).await.unwrap().unwrap()[..], b"works");
        tokio::join!(close(one), close(two));
    });
}

#[test]
fn the_end_of_one_side_is_the_end_of_the_other() {
    in_both(|| async {
        let server = server();
        for round in 0..3 {
            let (one, two) = server.pair().await;
            one.send(b"last").await.unwrap();
            one.flush().await.unwrap();
            // On iWARP a message can be lost with the connection: it is taken first.
            assert_eq!(&soon("a message", two.receive()).await.unwrap().unwrap()[..], b"last");
            let ending = async {
                match round {
                    0 => close(one).await,
                    1 => drop(one),
                    _ => soon("disconnect", one.disconnect(LIMIT)).await.unwrap(),
                }
            };
            // The other side has to look, or on InfiniBand and RoCE the first one waits for its answer.
            let (end, ()) = tokio::join!(soon("the end", two.receive()), ending);
            assert!(end.unwrap().is_none());
            soon("the end", two.ended()).await.unwrap();
            assert!(soon("the end", two.receive()).await.unwrap().is_none(), "for good");
            assert!(two.send(b"x").await.is_err());
            close(two).await;
        }
    });
}

#[test]
fn who_accepts_listens_first_where_it_must() {
    in_both(|| async {
        let server = server();
        let (one, two) = server.pair().await;
        let waits = one.queue().context().transport() == Transport::Iwarp;
        let early = at_most(4, two.send(b"answer")).await;
        assert_eq!(early.is_none(), waits, "RFC 5044 7.1.2");
        one.send(b"first").await.unwrap();
        if early.is_none() {
            soon("a send that waited", two.send(b"answer")).await.unwrap();
        }
        assert_eq!(&soon("answer", one.receive()).await.unwrap().unwrap()[..], b"answer");
        assert_eq!(&soon("first", two.receive()).await.unwrap().unwrap()[..], b"first");
        tokio::join!(close(one), close(two));
    });
}

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_silent_host_blocks_nobody() {
    in_both(|| async {
        let server = Arc::new(server());
        let echo = server.echo();
        let channel = AsyncEventChannel::new().unwrap();
        let silent = silent_host();
        let before = threads();
        let ticks = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ticks);
        let ticker = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (one, pd) = (channel.clone(), server.pd.clone());
        let dial = tokio::spawn(async move {
            Connection::connect(&one, &pd, silent, &CONFIG, LIMIT).await.map(drop)
        });
        // Meanwhile the channel and the runtime serve others.
        let connection = soon("connect", server.connect(&channel)).await.unwrap();
        connection.send(b"here").await.unwrap();
        assert!(soon("an answer", connection.receive()).await.unwrap().is_some());
        close(connection).await;
        let seen = ticks.load(Ordering::Relaxed);
        let goes_on = async {
            while ticks.load(Ordering::Relaxed) < seen + 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("the runtime goes on", goes_on).await;
        assert!(!dial.is_finished());
        let start = Instant::now();
        dial.abort();
        assert!(dial.await.unwrap_err().is_cancelled());
        assert!(start.elapsed() < Duration::from_secs(2));
        let gone = async {
            while threads() > before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the end of the connecting thread", gone).await;
        // A limit of its own.
        let limit = Duration::from_millis(300);
        let error = Connection::connect(&channel, &server.pd, silent, &CONFIG, limit).await;
        let error = error.map(drop).unwrap_err();
        assert!(
            matches!(error, ConnectError::Timeout { .. } | ConnectError::Unreachable { .. }),
            "{error:?}"
        );
        assert!(start.elapsed() < Duration::from_secs(10));
        soon("what lingers", none_lingers(&channel)).await;
        ticker.abort();
        echo.abort();
    });
}

#[test]
fn refusals_and_rejections_say_so() {
    in_both(|| async {
        let server = server();
        let channel = AsyncEventChannel::new().unwrap();
        let nobody = addr(9);
        let connect = Connection::connect(&channel, &server.pd, nobody, &CONFIG, LIMIT);
        let error = soon("connect", connect).await.map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::Refused), "{error:?}");
        let rejecting = async {
            let request = server.channel.request(&server.listener, LIMIT).await.unwrap().unwrap();
            let why = PrivateData::framed(b"not today").unwrap();
            server.channel.reject(request, &why).unwrap();
        };
        let (dialled, ()) = tokio::join!(soon("connect", server.connect(&channel)), rejecting);
        match dialled.map(drop).unwrap_err() {
            // On soft iWARP the end of the TCP connection can overtake the rejection, and takes its private data along.
            ConnectError::Rejected { private_data, .. }
                if private_data.is_empty()
                    && server.pd.context().transport() == Transport::Iwarp => {}
            ConnectError::Rejected { private_data, .. } => {
                assert_eq!(private_data.payload().unwrap(), b"not today");
            }
            other => panic!("{other:?}"),
        }
        let limit = Duration::from_millis(20);
        assert!(server.channel.request(&server.listener, limit).await.unwrap().is_none());
        let error = channel.request(&server.listener, limit).await.unwrap_err();
        assert!(matches!(error, Error::State { .. }), "a listener of another channel: {error}");
        let loopback = channel.resolve(None, "127.0.0.1:1".parse().unwrap(), LIMIT).await;
        assert!(matches!(loopback.unwrap_err(), Error::Loopback { .. }));
        assert_eq!(channel.with(|c| c.id_count()).unwrap(), 0);
    });
}

/// Queue pairs of one's own, in a group, with the calls they are connected by.
#[test]
fn a_group_of_plain_queue_pairs() {
    const PAIRS: usize = 8;
    const EACH: usize = 50;
    in_both(|| async {
        let server = server();
        let context = server.pd.context().clone();
        let channel = context.completion_channel().unwrap();
        let cq = context.create_cq_with(1024, &channel).unwrap();
        let mut group = AsyncPollGroup::new(PollGroup::new(cq)).unwrap();
        let config = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::default() };
        let events = AsyncEventChannel::new().unwrap();
        let (mut ids, mut initiators, mut acceptors) = (Vec::new(), Vec::new(), BTreeSet::new());
        for _ in 0..PAIRS {
            let r = group.group().cq_ref();
            let [mut a, mut b] = [0, 1].map(|_| server.pd.create_qp(&r, &r, &config).unwrap());
            ids.push(server.connect_plain(&events, &mut a, &mut b).await);
            initiators.push(group.group_mut().adopt(a).map_err(|(_, e)| e).unwrap());
            acceptors.insert(group.group_mut().adopt(b).map_err(|(_, e)| e).unwrap().serial());
        }
        let mut slots = server.pd.slots(64, PAIRS).unwrap();
        for key in &initiators {
            let slot = slots.pop().unwrap();
            group.group_mut().post_send(*key, slot, 4, SendFlags::empty()).unwrap();
        }
        let (mut sent, mut received, mut seed) = (PAIRS, 0, 1);
        let mut probe = tokio::time::interval(Duration::from_millis(50));
        while received < PAIRS * EACH {
            let polls = next(&mut seed) as usize % 6;
            let done = tokio::select! {
                done = at_most_woken(polls, group.next()) => done,
                _ = probe.tick() => {
                    // Soft iWARP may leave a first message unread until something follows.
                    for key in &initiators {
                        let _ = group.group_mut().qp_mut(*key).unwrap().post_empty_write();
                    }
                    None
                }
            };
            let Some(done) = done else {
                tokio::task::yield_now().await;
                continue;
            };
            let done = done.unwrap();
            assert!(done.status.is_ok(), "{}", done.status);
            let Some(slot) = done.slot else { continue };
            if done.op == Op::Recv {
                assert!(acceptors.contains(&done.key.serial()));
                received += 1;
                group.group_mut().post_recv(done.key, slot).unwrap();
            } else if sent < PAIRS * EACH {
                sent += 1;
                group.group_mut().post_send(done.key, slot, 4, SendFlags::empty()).unwrap();
            }
        }
        for (one, two) in &ids {
            let (one_end, other) = tokio::join!(
                soon("disconnect", events.disconnect(one, LIMIT)),
                soon("the other end", server.channel.ended(two))
            );
            one_end.unwrap();
            other.unwrap();
            soon("again", events.disconnect(one, LIMIT)).await.unwrap();
        }
    });
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
    let error = AsyncEventChannel::new().unwrap_err();
    assert!(error.to_string().contains("inside a tokio runtime"), "{error}");
    let pd = open().alloc_pd().unwrap();
    let error: QueueError = AsyncQueuePair::new(&pd, &CONFIG).unwrap_err().into();
    assert!(error.to_string().contains("inside a tokio runtime"), "{error}");
}

#[test]
fn a_token_ends_what_is_awaited() {
    in_both(|| async {
        let server = server();
        let (one, two) = server.pair().await;
        let token = rdma_cm::CancelToken::new().unwrap();
        let plain = rdma_cm::EventChannel::with_cancel(token.clone()).unwrap();
        let channel = AsyncEventChannel::from_channel(plain).unwrap();
        let listener = channel.listen(addr(0), &ListenOptions::default()).unwrap();
        let dialling = Connection::connect(&channel, &server.pd, silent_host(), &CONFIG, LIMIT);
        let waits = async { tokio::join!(channel.request(&listener, LIMIT), dialling) };
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            token.cancel();
        };
        let start = Instant::now();
        let ((request, dialled), ()) = tokio::join!(waits, cancel);
        assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
        assert!(matches!(request, Err(Error::Cancelled { .. })), "{request:?}");
        assert!(matches!(dialled, Err(ConnectError::Cancelled)), "{dialled:?}");
        let late = Connection::connect(&channel, &server.pd, server.to, &CONFIG, LIMIT).await;
        assert!(matches!(late, Err(ConnectError::Cancelled)), "{late:?}");
        // Of a connection what is awaited, and nobody else's.
        let token = server.channel.cancel_token();
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            token.cancel();
        };
        let (received, ()) = tokio::join!(two.receive(), cancel);
        assert!(matches!(received, Err(QueueError::Closed)), "{received:?}");
        soon("close", two.close(LIMIT)).await.unwrap();
        assert!(soon("the end", one.receive()).await.unwrap().is_none());
        close(one).await;
    });
}
