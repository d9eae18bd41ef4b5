//! Connections over a real device: run with `--features device-tests`, RDMA_TEST_DEVICE and RDMA_TEST_ADDR set, as root.
//! Without a device they fail.
mod common;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rdma_cm::*;
use rdma_safe::{Op, QpState};

/// Within this, something that is to be interrupted at once has to be over.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn both_sides_in_two_threads() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    let (tell, told) = mpsc::channel();
    both(
        move || {
            let request = next_request(&mut passive, &listener);
            assert_eq!(request.device_name(), device());
            assert_eq!(request.peer_addr().unwrap().ip(), ip());
            assert_eq!(request.local_addr(), Some(to));
            assert_eq!(request.private_data().payload().unwrap(), b"from the initiator");
            let mut side = Side::new();
            passive.init_qp(&request, &mut side.qp).unwrap();
            side.post_recv();
            let reply = PrivateData::framed(b"from the acceptor").unwrap();
            let params = ConnParams::with_private_data(reply);
            let accepting = passive.accept(request, &mut side.qp, &params).unwrap();
            let connection = passive.wait_established(accepting, LIMIT).unwrap();
            tell.send(()).unwrap(); // See PATIENCE.
            side.expect_message(b"initiator first");
            side.post_recv();
            side.send(b"acceptor second");
            side.expect(Op::Send);
            let gone = passive.next_event(Some(LIMIT)).unwrap();
            assert!(
                matches!(gone, Some(Event::Disconnected { id }) if id == connection.key()),
                "{gone:?}"
            );
            passive.destroy(connection);
            assert_eq!(passive.id_count(), 1, "the listener");
        },
        move || {
            let mut channel = EventChannel::new().unwrap();
            let mut side = Side::new();
            let connection = dial(&mut channel, &mut side, to);
            assert_eq!(connection.private_data().payload().unwrap(), b"from the acceptor");
            assert_eq!(channel.device_name(&connection).as_deref(), Some(&*device()));
            assert_eq!(channel.device_guid(&connection), Some(side.context.guid()));
            assert_eq!(channel.peer_addr(&connection), Some(to));
            assert_eq!(channel.is_iwarp(&connection), Some(side.context.transport().is_iwarp()));
            told.recv().unwrap();
            side.send(b"initiator first");
            side.expect(Op::Send);
            side.expect_message(b"acceptor second");
            channel.disconnect(&connection).unwrap();
            let gone = channel.next_event(Some(LIMIT)).unwrap();
            assert!(
                matches!(gone, Some(Event::Disconnected { id }) if id == connection.key()),
                "{gone:?}"
            );
            channel.destroy(connection);
            assert_eq!(channel.id_count(), 0);
        },
    );
}

/// A connection in one thread: everything but the waiting can be taken apart. `extra` runs between request and accept.
fn connect_in_one_thread(
    channel: &mut EventChannel,
    listener: &Listener,
    active: &mut Side,
    passive: &mut Side,
) -> (Established<Initiator>, Accepting) {
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    channel.init_qp(&connector, &mut active.qp).unwrap();
    active.post_recv();
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let request = next_request(channel, listener);
    channel.init_qp(&request, &mut passive.qp).unwrap();
    passive.post_recv();
    let accepting = channel.accept(request, &mut passive.qp, &params).unwrap();
    let connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    (connection, accepting)
}

#[test]
fn one_channel_carries_both_sides() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let (one, accepting) =
        connect_in_one_thread(&mut channel, &listener, &mut active, &mut passive);
    let two = channel.wait_established(accepting, LIMIT).unwrap();
    active.send(b"hello");
    passive.expect_message(b"hello");
    channel.disconnect(&two).unwrap();
    for _ in 0..2 {
        let event = channel.next_event(Some(LIMIT)).unwrap().expect("both sides hear of it");
        assert!(matches!(event, Event::Disconnected { .. }), "{event:?}");
        assert!([one.key(), two.key()].contains(&event.id()));
    }
}

#[test]
fn established_is_a_matter_of_the_event() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let (one, mut accepting) =
        connect_in_one_thread(&mut channel, &listener, &mut active, &mut passive);
    let two = loop {
        match channel.established(accepting) {
            Ok(two) => break two,
            Err(same) => accepting = same,
        }
        let event = channel.next_event(Some(LIMIT)).unwrap().expect("ESTABLISHED comes");
        assert!(
            matches!(event, Event::Established { id, .. } if id == accepting.key()),
            "{event:?}"
        );
    };
    assert_ne!(one.key(), two.key());
    assert_eq!(passive.qp.state(), QpState::ReadyToSend);
    channel.destroy(two);
    let event = channel.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(event, Some(Event::Disconnected { id }) if id == one.key()), "{event:?}");
}

#[test]
fn a_rejection_says_why() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap();
    let request = next_request(&mut channel, &listener);
    channel.reject(request, &PrivateData::framed(b"wrong direction").unwrap()).unwrap();
    match channel.finish_connect(attempt, &mut side.qp, LIMIT) {
        Err(ConnectError::Rejected { private_data, status }) => {
            assert_eq!(private_data.payload().unwrap(), b"wrong direction");
            assert_ne!(status, 0);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(channel.id_count(), 1, "the listener");
}

#[test]
fn a_request_that_is_dropped_is_rejected() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap();
    drop(next_request(&mut channel, &listener));
    // Nothing else is called in between: the wait itself has to reject it.
    let refused = channel.finish_connect(attempt, &mut side.qp, LIMIT);
    assert!(matches!(refused, Err(ConnectError::Rejected { .. })), "{refused:?}");
    assert_eq!(channel.id_count(), 1, "the listener");
}

#[test]
fn a_request_is_rejected_while_the_listener_waits_for_the_next() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    both(
        move || {
            drop(next_request(&mut passive, &listener));
            let more = passive.wait_request(&listener, LIMIT).unwrap();
            assert!(more.is_some(), "the initiator heard of it and called again");
        },
        move || {
            let mut channel = EventChannel::new().unwrap();
            let mut side = Side::new();
            let connector = channel.resolve(None, to, LIMIT).unwrap();
            let refused = channel.connect(connector, &mut side.qp, &ConnParams::default(), LIMIT);
            assert!(matches!(refused, Err(ConnectError::Rejected { .. })), "{refused:?}");
            let mut side = Side::new();
            let connector = channel.resolve(None, to, LIMIT).unwrap();
            let _ = channel.connect(connector, &mut side.qp, &ConnParams::default(), LIMIT);
        },
    );
}

#[test]
fn a_handle_of_another_channel_is_refused_at_once() {
    let (mut one, mut other) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    let listener = one.listen(addr(0), 8).unwrap();
    let start = Instant::now();
    let state = |e: &Error| matches!(e, Error::State { .. });
    assert!(state(&other.wait_request(&listener, LIMIT).unwrap_err()));
    assert!(state(&other.next_event_of(&listener, LIMIT).unwrap_err()));
    let (mut active, mut passive) = (Side::new(), Side::new());
    let (_one, accepting) = connect_in_one_thread(&mut one, &listener, &mut active, &mut passive);
    let refused = other.wait_established(accepting, LIMIT);
    assert!(matches!(refused, Err(ConnectError::Local(Error::State { .. }))), "{refused:?}");
    assert!(start.elapsed() < SOON);
}

#[test]
fn private_data_is_bounded_by_the_transport() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut side = Side::new();
    let iwarp = side.context.transport().is_iwarp();
    let limit = Carrier::Request.limit(iwarp);
    for len in [limit, PrivateData::MAX] {
        let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
        let params = ConnParams::with_private_data(PrivateData::raw(&vec![0x5a; len]).unwrap());
        match channel.begin_connect(connector, &mut side.qp, &params, LIMIT) {
            Ok(_attempt) => {
                assert_eq!(len, limit);
                let request = next_request(&mut channel, &listener);
                assert_eq!(request.private_data().as_bytes(), vec![0x5a; limit]);
            }
            Err(ConnectError::Local(Error::PrivateData(PrivateDataError::TooLong { .. }))) => {
                assert!(len > limit);
            }
            other => panic!("{other:?}"),
        }
        side = Side::new();
    }
}

#[test]
fn a_port_without_listener_refuses() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    channel.destroy(listener);
    let mut side = Side::new();
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let refused = channel.connect(connector, &mut side.qp, &ConnParams::default(), LIMIT);
    assert!(matches!(refused, Err(ConnectError::Refused)), "{refused:?}");
    assert_eq!(channel.id_count(), 0);
}

#[test]
fn a_silent_host_takes_no_longer_than_the_limit() {
    let to = silent_host();
    let mut channel = EventChannel::new().unwrap();
    for limit in [Duration::from_millis(1), Duration::from_millis(300)] {
        let mut side = Side::new();
        let connector = channel.resolve(None, to, LIMIT).unwrap();
        let start = Instant::now();
        let nothing = channel.connect(connector, &mut side.qp, &ConnParams::default(), limit);
        assert!(
            matches!(nothing, Err(ConnectError::Timeout { limit: l }) if l == limit),
            "{nothing:?}"
        );
        assert!(
            start.elapsed() >= limit && start.elapsed() < limit + SOON,
            "{:?}",
            start.elapsed()
        );
        // The queue pair is free again at once, which it would not be while the kernel still connects.
        side.qp.close().unwrap();
        assert!(start.elapsed() < limit + SOON, "{:?}", start.elapsed());
    }
    assert_eq!(channel.id_count(), 0);
}

#[test]
fn a_token_ends_a_connect_to_a_silent_host() {
    let to = silent_host();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let token = channel.cancel_token();
    let (tell, told) = mpsc::channel();
    let canceller = thread::spawn(move || {
        told.recv().unwrap();
        thread::sleep(Duration::from_millis(100)); // Mostly inside rdma_connect; any moment has to do.
        token.cancel();
    });
    let start = Instant::now();
    tell.send(()).unwrap();
    let nothing = channel.connect(connector, &mut side.qp, &ConnParams::default(), 60 * SOON);
    assert!(matches!(nothing, Err(ConnectError::Cancelled)), "{nothing:?}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    canceller.join().unwrap();
    assert!(matches!(channel.next_event(None), Err(Error::Cancelled { .. })));
    let refused = channel.resolve(None, to, LIMIT);
    assert!(matches!(refused, Err(Error::Cancelled { .. })), "{refused:?}");
}

#[test]
fn a_listener_that_never_answers_takes_no_longer_than_the_limit() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let limit = Duration::from_millis(300);
    let start = Instant::now();
    let nothing = channel.connect(connector, &mut side.qp, &ConnParams::default(), limit);
    assert!(matches!(nothing, Err(ConnectError::Timeout { .. })), "{nothing:?}");
    assert!(start.elapsed() >= limit && start.elapsed() < limit + SOON, "{:?}", start.elapsed());
    assert_eq!(channel.id_count(), 0);
    assert!(start.elapsed() < limit + SOON, "nothing blocks: {:?}", start.elapsed());
    // The request of an initiator that has given up can still be read. Accepting it fails, or (soft iWARP: the attempt
    // lingers) leads to a connection that ends when the initiator's channel reads its event.
    let request = next_request(&mut passive, &listener);
    let mut late = Side::new();
    let accepted = passive.accept(request, &mut late.qp, &ConnParams::default());
    match accepted.map(|accepting| passive.wait_established(accepting, Duration::from_millis(500)))
    {
        Ok(Ok(connection)) => passive.destroy(connection),
        Ok(Err(_)) | Err(Error::Os { .. } | Error::State { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
    assert_eq!(passive.id_count(), 1, "the listener");
    assert!(start.elapsed() < limit + SOON, "nothing blocks: {:?}", start.elapsed());
    // The kernel lets go of the attempt in the end, and then nothing blocks either.
    while channel.lingering() > 0 && start.elapsed() < LIMIT {
        assert!(channel.next_event(Some(Duration::from_millis(100))).unwrap().is_none());
    }
    assert_eq!(channel.lingering(), 0);
    let start = Instant::now();
    side.qp.close().unwrap();
    drop(channel);
    assert!(start.elapsed() < SOON, "nothing blocks: {:?}", start.elapsed());
}

#[test]
fn an_abandoned_attempt_ends_by_itself() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    drop(channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap());
    assert_eq!(channel.id_count(), 0);
    let request = next_request(&mut passive, &listener);
    let mut late = Side::new();
    // Soft iWARP still connects: the id is destroyed when its ESTABLISHED is read, and nobody is told of it.
    let accepted = passive.accept(request, &mut late.qp, &ConnParams::default());
    assert!(channel.next_event(Some(Duration::from_millis(200))).unwrap().is_none());
    if let Ok(accepting) = accepted {
        let ended = match passive.wait_established(accepting, LIMIT) {
            Ok(connection) => {
                let event = passive.next_event(Some(LIMIT)).unwrap();
                matches!(event, Some(Event::Disconnected { id }) if id == connection.key())
            }
            Err(error) => !matches!(error, ConnectError::Timeout { .. }),
        };
        assert!(ended);
    }
    let start = Instant::now();
    drop(channel);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_channel_with_an_unanswered_attempt_can_be_dropped() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap();
    let start = Instant::now();
    drop(channel);
    // Soft iWARP: its limit for the answer, 10 s.
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    drop(attempt);
}

#[test]
fn waiting_for_nothing_ends() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let limit = Duration::from_millis(50);
    for _ in 0..2 {
        let start = Instant::now();
        assert!(channel.next_event(Some(limit)).unwrap().is_none());
        assert!(channel.wait_request(&listener, limit).unwrap().is_none());
        assert!(start.elapsed() >= 2 * limit && start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    assert!(channel.next_event(Some(Duration::ZERO)).unwrap().is_none());
}

/// Somewhere in a connection's life.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Listening,
    Resolved,
    Requested,
    RequestRead,
    Accepted,
    Established,
}

/// Everything that exists at that stage, to be dropped in some order.
#[derive(Default)]
struct Everything {
    channel: Option<EventChannel>,
    handles: Vec<Box<dyn std::any::Any>>,
    sides: Vec<Side>,
}

fn up_to(stage: Stage) -> Everything {
    let mut channel = EventChannel::new().unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let mut handles: Vec<Box<dyn std::any::Any>> = Vec::new();
    let listener = channel.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    'stages: {
        if stage == Stage::Listening {
            break 'stages;
        }
        let connector = channel.resolve(None, to, LIMIT).unwrap();
        channel.init_qp(&connector, &mut active.qp).unwrap();
        active.post_recv();
        if stage == Stage::Resolved {
            handles.push(Box::new(connector));
            break 'stages;
        }
        let params = ConnParams::default();
        let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
        if stage == Stage::Requested {
            handles.push(Box::new(attempt));
            break 'stages;
        }
        let request = next_request(&mut channel, &listener);
        channel.init_qp(&request, &mut passive.qp).unwrap();
        passive.post_recv();
        if stage == Stage::RequestRead {
            handles.extend([Box::new(attempt) as Box<dyn std::any::Any>, Box::new(request)]);
            break 'stages;
        }
        let accepting = channel.accept(request, &mut passive.qp, &params).unwrap();
        if stage == Stage::Accepted {
            handles.extend([Box::new(attempt) as Box<dyn std::any::Any>, Box::new(accepting)]);
            break 'stages;
        }
        let one = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
        let two = channel.wait_established(accepting, LIMIT).unwrap();
        active.send(b"in flight");
        handles.extend([Box::new(one) as Box<dyn std::any::Any>, Box::new(two)]);
    }
    handles.push(Box::new(listener));
    Everything { channel: Some(channel), handles, sides: vec![active, passive] }
}

/// Drops in the order of the letters: the channel, the handles, the sides.
fn drop_in_order(stage: Stage, order: &str) {
    let start = Instant::now();
    let mut all = up_to(stage);
    for what in order.chars() {
        match what {
            'c' => all.channel = None,
            'h' => all.handles.clear(),
            _ => {
                for side in all.sides.drain(..) {
                    side.qp.close().unwrap();
                }
            }
        }
        // Dropped handles are destroyed by the next call.
        if let Some(channel) = all.channel.as_mut().filter(|_| all.handles.is_empty()) {
            assert_eq!(channel.id_count(), 0, "{stage:?} {order}");
        }
    }
    // Soft iWARP holds an attempt without an answer for 10 s.
    let unanswered = [Stage::Requested, Stage::RequestRead].contains(&stage);
    let limit = if unanswered { LIMIT } else { SOON };
    assert!(start.elapsed() < limit, "{stage:?} {order}: {:?}", start.elapsed());
}

#[test]
fn everything_can_be_dropped_at_any_stage_in_any_order() {
    use Stage::*;
    for stage in [Listening, Resolved, Requested, RequestRead, Accepted, Established] {
        thread::scope(|scope| {
            for order in ["chs", "csh", "hcs", "hsc", "sch", "shc"] {
                scope.spawn(move || drop_in_order(stage, order));
            }
        });
    }
}

#[test]
fn the_peer_of_a_dropped_channel_hears_of_it() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    let (tell, told) = mpsc::channel();
    both(
        move || {
            let request = next_request(&mut passive, &listener);
            let mut side = Side::new();
            passive.init_qp(&request, &mut side.qp).unwrap();
            side.post_recv();
            let accepting = passive.accept(request, &mut side.qp, &ConnParams::default()).unwrap();
            let _connection = passive.wait_established(accepting, LIMIT).unwrap();
            told.recv().unwrap();
            drop(passive);
        },
        move || {
            let mut channel = EventChannel::new().unwrap();
            let mut side = Side::new();
            let connection = dial(&mut channel, &mut side, to);
            tell.send(()).unwrap();
            let gone = channel.next_event(Some(LIMIT)).unwrap();
            assert!(
                matches!(gone, Some(Event::Disconnected { id }) if id == connection.key()),
                "{gone:?}"
            );
        },
    );
}

#[test]
fn a_connection_moves_to_another_channel_with_its_events() {
    let mut main = EventChannel::new().unwrap();
    let listener = main.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    // As a worker does it that dials for somebody else.
    let worker = thread::spawn(move || {
        let mut channel = EventChannel::new().unwrap();
        let mut side = Side::new();
        let connection = dial(&mut channel, &mut side, to);
        (channel, side, connection)
    });
    let request = next_request(&mut main, &listener);
    let mut passive = Side::new();
    main.init_qp(&request, &mut passive.qp).unwrap();
    passive.post_recv();
    let accepting = main.accept(request, &mut passive.qp, &ConnParams::default()).unwrap();
    let acceptor = main.wait_established(accepting, LIMIT).unwrap();
    let (mut theirs, mut active, connection) = worker.join().unwrap();

    // Not its channel.
    assert!(matches!(main.disconnect(&connection), Err(Error::State { .. })));
    let mut third = EventChannel::new().unwrap();
    let (connection, error) = main.adopt(&mut third, connection).unwrap_err();
    assert!(matches!(error, Error::State { .. }), "{error:?}");

    let before = connection.key();
    let connection = main.adopt(&mut theirs, connection).unwrap();
    assert_ne!(connection.key(), before);
    assert_eq!(theirs.id_count(), 0);
    drop(theirs);
    active.send(b"from the new channel");
    passive.expect_message(b"from the new channel");
    main.disconnect(&acceptor).unwrap();
    for _ in 0..2 {
        let event = main.next_event(Some(LIMIT)).unwrap().expect("both sides hear of it");
        assert!(matches!(event, Event::Disconnected { .. }), "{event:?}");
        assert!([connection.key(), acceptor.key()].contains(&event.id()), "{event:?}");
    }
}

#[test]
fn events_that_were_read_move_along() {
    let mut other = EventChannel::new().unwrap();
    let listener = other.listen(addr(0), 8).unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let (one, accepting) = connect_in_one_thread(&mut other, &listener, &mut active, &mut passive);
    let two = other.wait_established(accepting, LIMIT).unwrap();
    other.disconnect(&one).unwrap();
    // Reads what comes for `one` and keeps it.
    assert!(other.wait_request(&listener, Duration::from_millis(500)).unwrap().is_none());
    let mut main = EventChannel::new().unwrap();
    let one = main.adopt(&mut other, one).unwrap();
    let event = main.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(event, Some(Event::Disconnected { id }) if id == one.key()), "{event:?}");
    let event = other.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(event, Some(Event::Disconnected { id }) if id == two.key()), "{event:?}");
}

#[test]
fn loopback_and_wildcard_are_refused_with_the_devices_own_address() {
    let mut channel = EventChannel::new().unwrap();
    let own = format!("{} has {}", device(), ip());
    for text in ["127.0.0.1:7471", "127.1.2.3:7471", "[::1]:7471", "0.0.0.0:7471", "[::]:7471"] {
        let bad: SocketAddr = text.parse().unwrap();
        let start = Instant::now();
        let refusals = [
            channel.resolve(None, bad, LIMIT).map(drop).unwrap_err(),
            channel.resolve(Some(bad), addr(7471), LIMIT).map(drop).unwrap_err(),
            channel.listen(bad, 1).map(drop).unwrap_err(),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, Error::Loopback { .. }), "{refusal:?}");
            let text = refusal.to_string();
            assert!(text.contains(&own) && text.contains(&bad.ip().to_string()), "{text}");
        }
        assert!(start.elapsed() < SOON);
    }
    let any = ListenOptions { wildcard: true, ..ListenOptions::default() };
    let listener = channel.listen_with((Ipv4Addr::UNSPECIFIED, 0).into(), &any).unwrap();
    assert_ne!(listener.local_addr().port(), 0);
    let mut side = Side::new();
    let to = addr(listener.local_addr().port());
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap();
    assert_eq!(next_request(&mut channel, &listener).local_addr(), Some(to));
    drop(attempt);
}

#[test]
fn a_device_that_cannot_loop_back_is_not_dialled() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    channel.set_loopback_policy(LoopbackPolicy::new().with_override(&device(), false));
    let refused = channel.resolve(None, listener.local_addr(), LIMIT);
    assert!(matches!(refused, Err(Error::NoSelfConnect { .. })), "{refused:?}");
    channel.set_loopback_policy(LoopbackPolicy::new().with_override("another", false));
    drop(channel.resolve(None, listener.local_addr(), LIMIT).unwrap());
    // The quirk table knows these devices.
    let known = LoopbackPolicy::new().with_context(&open());
    channel.set_loopback_policy(known.translating_to(ip()).unwrap());
    let translated: SocketAddr = (Ipv4Addr::LOCALHOST, listener.local_addr().port()).into();
    let connector = channel.resolve(None, translated, LIMIT).unwrap();
    assert_eq!(channel.peer_addr(&connector), Some(listener.local_addr()));
}

#[test]
fn the_device_knows_its_addresses() {
    let context = open();
    let found = local_addresses(&context).unwrap();
    let own = found.iter().find(|a| a.addr == ip()).unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!((own.device.as_str(), own.port), (context.name(), 1));
    assert_eq!(found[0].addr, ip(), "IPv4 comes first");
    assert!(!own.netdev.is_empty());
    assert!(all_addresses().unwrap().contains(own));
    assert!(is_local_address(ip()).unwrap());
    // Not the addresses of other interfaces.
    let lo = IpAddr::from(Ipv4Addr::LOCALHOST);
    assert!(found.iter().all(|a| a.addr != lo && a.netdev == own.netdev));
}

#[test]
fn addresses_that_lead_nowhere_have_their_reason() {
    let mut channel = EventChannel::new().unwrap();
    // Not of this host.
    let error = channel.listen("192.0.2.1:0".parse().unwrap(), 1).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL), "{error}");
    // Of this host, and of no device.
    let IpAddr::V4(own) = ip() else { panic!("the test address is IPv4") };
    let [a, b, c, _] = own.octets();
    let peer = SocketAddr::from(([a, b, c, 2], 0));
    let error = channel.listen(peer, 1).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENODEV), "{error}");
    assert!(error.to_string().contains("no RDMA device"), "{error}");
    // Nobody there.
    let nobody = SocketAddr::from(([a, b, c, 98], 7471));
    let start = Instant::now();
    let error = channel.resolve(None, nobody, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. } | Error::Os { .. }), "{error}");
    assert!(start.elapsed() < SOON);
    // A port that is taken.
    let listener = channel.listen(addr(0), 1).unwrap();
    let error = channel.listen(listener.local_addr(), 1).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EADDRINUSE), "{error}");
    assert_eq!(channel.id_count(), 1, "what failed left nothing behind");
}

#[test]
fn a_source_can_be_bound() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let connector = channel.resolve(Some(addr(0)), listener.local_addr(), LIMIT).unwrap();
    assert_eq!(channel.local_addr(&connector).map(|a| a.ip()), Some(ip()));
    let other = channel.connector().unwrap();
    channel.bind_source(&other, addr(0)).unwrap();
    let port = channel.local_addr(&other).unwrap().port();
    assert_ne!(port, 0);
    channel.resolve_addr(&other, None, listener.local_addr(), LIMIT).unwrap();
    let event = channel.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(event, Some(Event::AddrResolved { id }) if id == other.key()), "{event:?}");
    channel.resolve_route(&other, LIMIT).unwrap();
    let event = channel.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(event, Some(Event::RouteResolved { id }) if id == other.key()), "{event:?}");
    assert_eq!(channel.local_addr(&other).unwrap(), addr(port));
}

#[test]
fn calls_out_of_order_are_refused() {
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.connector().unwrap();
    let state = |e: &Error| matches!(e, Error::State { .. });
    assert!(state(&channel.resolve_route(&connector, LIMIT).unwrap_err()));
    assert!(state(&channel.init_qp(&connector, &mut side.qp).unwrap_err()));
    let early = channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT);
    assert!(matches!(early, Err(ConnectError::Local(Error::State { .. }))), "{early:?}");
    assert_eq!(side.qp.state(), QpState::Reset);
    assert_eq!(channel.id_count(), 0);
}

#[test]
fn garbage_does_not_hurt_a_listener() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    let mut sockets = Vec::new();
    if open().transport().is_iwarp() {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 512], b"MPA ID Req Frame", b""] {
            let mut socket = TcpStream::connect(to).unwrap();
            socket.write_all(garbage).unwrap();
            sockets.push(socket);
        }
    } else {
        let socket = UdpSocket::bind(addr(0)).unwrap();
        for garbage in [&b"hello"[..], &[0xff; 512], &[0; 64], b""] {
            socket.send_to(garbage, addr(4791)).unwrap();
        }
    }
    let early = passive.next_event(Some(Duration::from_millis(200))).unwrap();
    assert!(early.is_none(), "{early:?}");
    let mut channel = EventChannel::new().unwrap();
    let (mut active, mut side) = (Side::new(), Side::new());
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut active.qp, &ConnParams::default(), LIMIT).unwrap();
    let request = next_request(&mut passive, &listener);
    passive.init_qp(&request, &mut side.qp).unwrap();
    side.post_recv();
    let _accepting = passive.accept(request, &mut side.qp, &ConnParams::default()).unwrap();
    let _connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    active.send(b"still fine");
    side.expect_message(b"still fine");
}

/// How long to wait for an answer before saying it again.
///
/// Soft iWARP's accept sends its reply before it installs the socket callbacks of the connection; a first message that
/// comes in between is not looked at until the next one comes. So an initiator has to say it again.
const PATIENCE: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_secs(1), LIMIT];

#[test]
fn two_hundred_connects_in_a_row() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    both(
        move || {
            for _ in 0..200 {
                let request = next_request(&mut passive, &listener);
                let mut side = Side::new();
                passive.init_qp(&request, &mut side.qp).unwrap();
                for _ in PATIENCE {
                    side.post_recv();
                }
                let accepting =
                    passive.accept(request, &mut side.qp, &ConnParams::default()).unwrap();
                side.expect_message(b"one of many");
                side.send(b"heard");
                side.expect(Op::Send);
                match passive.wait_established(accepting, LIMIT) {
                    Ok(connection) => {
                        // The next request may come before it.
                        let gone = passive.next_event_of(&connection, LIMIT).unwrap();
                        assert!(matches!(gone, Some(Event::Disconnected { .. })), "{gone:?}");
                        passive.destroy(connection);
                    }
                    // InfiniBand and RoCE: the initiator's DREQ may overtake its RTU.
                    Err(ConnectError::Disconnected) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert_eq!(passive.id_count(), 1);
        },
        move || {
            let mut channel = EventChannel::new().unwrap();
            for _ in 0..200 {
                let (mut side, connection) = dial_around_tcp(&mut channel, to);
                let answer = PATIENCE.iter().find_map(|patience| {
                    side.send(b"one of many");
                    side.expect(Op::Send);
                    side.poll(Op::Recv, *patience)
                });
                assert!(answer.expect("an answer").status.is_ok());
                channel.disconnect(&connection).unwrap();
                channel.destroy(connection);
            }
            assert_eq!(channel.id_count(), 0);
        },
    );
}
