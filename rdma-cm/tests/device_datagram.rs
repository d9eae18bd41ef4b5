//! Datagrams and multicast over a real device: on soft RoCE they work, on soft iWARP each step says that it has none. See
//! `device.rs` for how to run it.
mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::*;
use rdma_cm::*;
use rdma_safe::{QpConfig, QpKind, QpState, QueuePair};

/// The key of datagrams in the port space of UDP (RDMA_UDP_QKEY).
const QKEY: u32 = 0x0123_4567;
const _: () = assert!(UDP_QKEY == QKEY);
const GROUP: &str = "239.77.1.1:0";
const EVERYBODY: u32 = 0xff_ffff;

fn is_iwarp() -> bool {
    open().transport().is_iwarp()
}

/// On iWARP the error has to say so; elsewhere there must be a value.
fn unless_iwarp<T: std::fmt::Debug>(result: Result<T>) -> Option<T> {
    if !is_iwarp() {
        return Some(result.unwrap());
    }
    let refused = result.unwrap_err();
    assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
    assert!(refused.to_string().contains(&device()), "{refused}");
    None
}

fn datagram_qp(side: &Side) -> QueuePair {
    let config = QpConfig { kind: QpKind::Ud, ..QpConfig::default() };
    let config = QpConfig { send_depth: 4, recv_depth: 4, ..config };
    side.pd.create_qp(&side.cq.cq_ref(), &side.cq.cq_ref(), &config).unwrap()
}

fn listener(channel: &mut EventChannel) -> Option<DatagramListener> {
    unless_iwarp(channel.listen_datagram(addr(0), &ListenOptions::default()))
}

fn group() -> SocketAddr {
    GROUP.parse().unwrap()
}

#[test]
fn asking_leads_to_a_queue_pair() {
    let mut passive = EventChannel::new().unwrap();
    let Some(listener) = listener(&mut passive) else { return };
    let to = listener.local_addr();
    assert_ne!(to.port(), 0);
    let (mut channel, one, two) = (EventChannel::new().unwrap(), Side::new(), Side::new());
    let (mut theirs, mut ours) = (datagram_qp(&one), datagram_qp(&two));
    let number = theirs.qp_num();
    both(
        || {
            let request = passive.wait_datagram_request(&listener, LIMIT).unwrap().unwrap();
            assert_eq!(request.private_data().payload().unwrap(), b"where?");
            assert_eq!(request.private_data().len(), Carrier::Ask.limit(false));
            assert_eq!((request.device_name(), request.local_addr()), (&*device(), Some(to)));
            assert_eq!(request.peer_addr().map(|a| a.ip()), Some(ip()));
            passive.ready_datagram_qp(&request, &mut theirs).unwrap();
            assert_eq!(theirs.state(), QpState::ReadyToSend);
            let here = PrivateData::framed(b"here").unwrap();
            passive.answer_datagram(request, &theirs, &here).unwrap();
            assert_eq!(passive.id_count(), 1, "the listener");
        },
        || {
            let id = channel.resolve_datagram(None, to, LIMIT).unwrap();
            channel.ready_datagram_qp(&id, &mut ours).unwrap();
            let peer = channel.ask(&id, &PrivateData::framed(b"where?").unwrap(), LIMIT).unwrap();
            assert_eq!((peer.qp_num(), peer.qkey()), (number, QKEY));
            assert_eq!(peer.private_data().payload().unwrap(), b"here");
            assert_eq!(peer.gid(), channel.route(&id).unwrap().destination_gid);
            // An id asks once.
            let again = channel.begin_ask(&id, &PrivateData::empty());
            assert!(matches!(again, Err(Error::State { .. })), "{again:?}");
        },
    );
}

#[test]
fn a_question_is_refused_with_a_reason() {
    let mut channel = EventChannel::new().unwrap();
    let Some(listener) = listener(&mut channel) else { return };
    let to = listener.local_addr();
    let id = channel.resolve_datagram(None, to, LIMIT).unwrap();
    channel.begin_ask(&id, &PrivateData::empty()).unwrap();
    let request = channel.wait_datagram_request(&listener, LIMIT).unwrap().unwrap();
    channel.reject_datagram(request, &PrivateData::empty()).unwrap();
    let event = channel.next_event_of(&id, LIMIT).unwrap();
    assert!(matches!(event, Some(Event::Unreachable { status: 2, .. })), "{event:?}");
    // The same in words; and one that is dropped without a word, and one where nobody listens.
    for step in ["rejected", "dropped", "nobody"] {
        let gone = channel.listen_datagram(addr(0), &ListenOptions::default()).unwrap();
        let nobody = gone.local_addr();
        channel.destroy(gone);
        let to = if step == "nobody" { nobody } else { to };
        let id = channel.resolve_datagram(None, to, LIMIT).unwrap();
        let mut active = EventChannel::new().unwrap();
        let id = active.adopt(&mut channel, id).unwrap();
        let refused = std::thread::scope(|scope| {
            let asking = scope.spawn(|| active.ask(&id, &PrivateData::empty(), LIMIT));
            if step != "nobody" {
                let request = channel.wait_datagram_request(&listener, LIMIT).unwrap().unwrap();
                if step == "rejected" {
                    channel.reject_datagram(request, &PrivateData::empty()).unwrap();
                } else {
                    channel.destroy(request);
                }
            }
            asking.join().unwrap()
        });
        let Err(ConnectError::DatagramRefused { reason }) = refused else {
            panic!("{step}: {refused:?}")
        };
        let expected = match step {
            "nobody" => SidrReason::NoListener,
            _ => SidrReason::Application,
        };
        assert_eq!(reason, expected, "{step}");
    }
}

#[test]
fn a_silent_host_is_no_longer_asked_than_the_limit() {
    let mut channel = EventChannel::new().unwrap();
    let Some(id) = unless_iwarp(channel.resolve_datagram(None, silent_host(), LIMIT)) else {
        return;
    };
    let limit = Duration::from_millis(200);
    let start = Instant::now();
    let nothing = channel.ask(&id, &PrivateData::empty(), limit);
    assert!(
        matches!(nothing, Err(ConnectError::Timeout { limit: l }) if l == limit),
        "{nothing:?}"
    );
    channel.destroy(id);
    drop(channel);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn private_data_of_datagrams_is_bounded() {
    let mut channel = EventChannel::new().unwrap();
    let Some(listener) = listener(&mut channel) else { return };
    for len in [0, 56, 57, 180, 181, 196, 251] {
        let id = channel.resolve_datagram(None, listener.local_addr(), LIMIT).unwrap();
        let sent = vec![0xa5; len];
        let asked = channel.begin_ask(&id, &PrivateData::raw(&sent).unwrap());
        if len > 180 {
            let Err(Error::PrivateData(PrivateDataError::TooLong { limit: 180, .. })) = asked
            else {
                panic!("{len}: {asked:?}")
            };
            continue;
        }
        asked.unwrap();
        let request = channel.wait_datagram_request(&listener, LIMIT).unwrap().unwrap();
        let mut padded = sent.clone();
        padded.resize(180, 0);
        assert_eq!(request.private_data().as_bytes(), padded, "{len}");
        let side = Side::new();
        let mut qp = datagram_qp(&side);
        channel.ready_datagram_qp(&request, &mut qp).unwrap();
        let answer = PrivateData::raw(&sent).unwrap();
        let answered = channel.answer_datagram(request, &qp, &answer);
        let event = channel.next_event_of(&id, LIMIT).unwrap();
        if len > 136 {
            let Err(Error::PrivateData(PrivateDataError::TooLong { limit: 136, .. })) = answered
            else {
                panic!("{len}: {answered:?}")
            };
            assert!(matches!(event, Some(Event::Unreachable { status: 2, .. })), "{event:?}");
            continue;
        }
        answered.unwrap();
        let Some(Event::DatagramAnswer { peer, .. }) = event else { panic!("{event:?}") };
        padded.truncate(136);
        assert_eq!(peer.private_data().as_bytes(), padded, "{len}");
    }
}

#[test]
fn groups_are_joined_and_left() {
    let mut channel = EventChannel::new().unwrap();
    let id = channel.datagram().unwrap();
    let early = channel.begin_join(&id, group(), Membership::Full);
    assert!(matches!(early, Err(Error::State { .. })), "no device yet: {early:?}");
    let Some(()) = unless_iwarp(channel.bind_source(&id, addr(0))) else { return };
    let peer = channel.join_multicast(&id, group(), Membership::Full, LIMIT).unwrap();
    assert_eq!((peer.qp_num(), peer.qkey()), (EVERYBODY, QKEY));
    assert_eq!(peer.gid().to_ip(), group().ip(), "RoCE v2: the group's own address");
    assert!(peer.private_data().is_empty());
    let again = channel.begin_join(&id, group(), Membership::Full);
    assert!(matches!(again, Err(Error::State { .. })), "{again:?}");
    let other: SocketAddr = "239.77.1.2:0".parse().unwrap();
    let none = channel.leave_multicast(&id, other);
    assert!(matches!(none, Err(Error::State { .. })), "{none:?}");
    channel.join_multicast(&id, other, Membership::SendOnly, LIMIT).unwrap();
    channel.leave_multicast(&id, group()).unwrap();
    channel.join_multicast(&id, group(), Membership::SendOnly, LIMIT).unwrap();
    let alone: SocketAddr = "10.1.2.3:0".parse().unwrap();
    let refused = channel.begin_join(&id, alone, Membership::Full).unwrap_err();
    assert!(refused.to_string().contains("no multicast address"), "{refused}");
}

#[test]
fn a_group_that_was_left_is_not_heard_of_any_more() {
    let mut channel = EventChannel::new().unwrap();
    let id = channel.datagram().unwrap();
    let Some(()) = unless_iwarp(channel.bind_source(&id, addr(0))) else { return };
    for _ in 0..20 {
        channel.begin_join(&id, group(), Membership::Full).unwrap();
        channel.leave_multicast(&id, group()).unwrap();
    }
    channel.begin_join(&id, group(), Membership::Full).unwrap();
    let event = channel.next_event(Some(LIMIT)).unwrap();
    assert!(
        matches!(event, Some(Event::MulticastJoin { group: g, .. }) if g == group()),
        "{event:?}"
    );
    assert!(channel.next_event(Some(Duration::from_millis(200))).unwrap().is_none());
    // An id with groups and unread events goes like any other.
    channel.begin_join(&id, "239.77.1.9:0".parse().unwrap(), Membership::Full).unwrap();
    channel.destroy(id);
    assert_eq!(channel.id_count(), 0);
    assert!(channel.next_event(Some(Duration::from_millis(200))).unwrap().is_none());
}

#[test]
fn a_group_can_be_found_by_resolving_it() {
    let mut channel = EventChannel::new().unwrap();
    let id = channel.datagram().unwrap();
    let bound = channel.bind_source(&id, addr(0));
    let Some(()) = unless_iwarp(bound) else { return };
    channel.resolve_addr(&id, None, group(), LIMIT).unwrap();
    let event = channel.next_event_of(&id, LIMIT).unwrap();
    assert!(matches!(event, Some(Event::AddrResolved { .. })), "{event:?}");
    let side = Side::new();
    let mut qp = datagram_qp(&side);
    channel.ready_datagram_qp(&id, &mut qp).unwrap();
    let peer = channel.join_multicast(&id, group(), Membership::Full, LIMIT).unwrap();
    assert_eq!(peer.qp_num(), EVERYBODY);
    // Joined groups move with their id.
    let mut other = EventChannel::new().unwrap();
    let id = other.adopt(&mut channel, id).unwrap();
    drop(channel);
    other.leave_multicast(&id, group()).unwrap();
}

#[test]
fn a_connection_is_no_datagram() {
    let mut channel = EventChannel::new().unwrap();
    // The port spaces are apart: the same number can be had in both.
    let connections = channel.listen(addr(0), 8).unwrap();
    let same = channel.listen_datagram(connections.local_addr(), &ListenOptions::default());
    let Some(datagrams) = unless_iwarp(same) else { return };
    assert_eq!(datagrams.local_addr(), connections.local_addr());
    // IP over InfiniBand is for InfiniBand.
    let ipoib = channel.ipoib_datagram().unwrap();
    assert!(channel.bind_source(&ipoib, addr(0)).is_err());
}
