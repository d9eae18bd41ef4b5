//! What travels with a request, its reply and its rejection, over a real device: private data of every size, connection
//! parameters, options, vendor options, reasons. See `device.rs` for how to run it.
mod common;

use common::*;
use rdma_cm::*;
use rdma_safe::QpState;

const SIZES: [usize; 6] = [0, 56, 57, 196, 251, 252];

fn is_iwarp() -> bool {
    open().transport().is_iwarp()
}

/// A listener, an attempt with these parameters, and the request it leads to.
fn request(
    channel: &mut EventChannel,
    side: &mut Side,
    params: &ConnParams,
) -> Result<(Listener, Connecting, ConnectRequest), ConnectError> {
    let listener = channel.listen(addr(0), 8).unwrap();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    channel.init_qp(&connector, &mut side.qp).unwrap();
    let attempt = channel.begin_connect(connector, &mut side.qp, params, LIMIT)?;
    let request = next_request(channel, &listener);
    Ok((listener, attempt, request))
}

/// Answers an attempt with no: one that is left without an answer blocks the end of its channel on soft iWARP.
fn refuse(
    channel: &mut EventChannel,
    side: &mut Side,
    attempt: Connecting,
    request: ConnectRequest,
) {
    channel.reject(request, &PrivateData::empty()).unwrap();
    let refused = channel.finish_connect(attempt, &mut side.qp, LIMIT);
    assert!(matches!(refused, Err(ConnectError::Rejected { .. })), "{refused:?}");
}

/// Private data of this length, or the error that it cannot be made.
fn data(len: usize) -> Result<PrivateData, PrivateDataError> {
    PrivateData::raw(&pattern(len))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| i as u8 ^ 0x5a).collect()
}

/// What has to arrive where `limit` bytes fit: iWARP keeps the length, the others pad with zeroes.
fn padded(len: usize, limit: usize) -> Vec<u8> {
    let mut bytes = pattern(len);
    if !is_iwarp() {
        bytes.resize(limit, 0);
    }
    bytes
}

fn is_too_long(error: &Error, len: usize, limit: usize) -> bool {
    matches!(error, Error::PrivateData(PrivateDataError::TooLong { len: l, limit: m, .. })
        if (*l, *m) == (len, limit))
}

#[test]
fn private_data_of_a_request_arrives_or_is_refused() {
    let limit = Carrier::Request.limit(is_iwarp());
    for len in SIZES {
        let mut channel = EventChannel::new().unwrap();
        let mut side = Side::new();
        let Ok(private_data) = data(len) else {
            assert_eq!(data(len), Err(PrivateDataError::TooLongAnywhere { len }));
            assert!(len > PrivateData::MAX);
            continue;
        };
        match request(&mut channel, &mut side, &ConnParams::with_private_data(private_data)) {
            Ok((_listener, attempt, request)) => {
                assert!(len <= limit, "{len} bytes went out");
                assert_eq!(request.private_data().as_bytes(), padded(len, limit), "{len} bytes");
                refuse(&mut channel, &mut side, attempt, request);
            }
            Err(ConnectError::Local(error)) => {
                assert!(len > limit && is_too_long(&error, len, limit), "{len}: {error}");
                assert_eq!(side.qp.state(), QpState::Init, "nothing was sent");
            }
            Err(error) => panic!("{len} bytes: {error}"),
        }
    }
}

#[test]
fn private_data_of_a_reply_arrives_or_is_refused() {
    let limit = Carrier::Reply.limit(is_iwarp());
    for len in SIZES {
        let Ok(private_data) = data(len) else { continue };
        let mut channel = EventChannel::new().unwrap();
        let (mut active, mut passive) = (Side::new(), Side::new());
        let (_listener, attempt, request) =
            request(&mut channel, &mut active, &ConnParams::default()).unwrap();
        let params = ConnParams::with_private_data(private_data);
        match channel.accept(request, &mut passive.qp, &params) {
            Ok(_accepting) => {
                assert!(len <= limit, "{len} bytes went out");
                let connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
                assert_eq!(connection.private_data().as_bytes(), padded(len, limit), "{len} bytes");
            }
            Err(error) => {
                assert!(len > limit && is_too_long(&error, len, limit), "{len}: {error}");
                // The request is rejected: the initiator does not wait for its limit.
                let refused = channel.finish_connect(attempt, &mut active.qp, LIMIT);
                assert!(matches!(refused, Err(ConnectError::Rejected { .. })), "{refused:?}");
            }
        }
    }
}

#[test]
fn private_data_of_a_rejection_arrives_or_is_refused() {
    let limit = Carrier::Reject.limit(is_iwarp());
    for len in SIZES {
        let Ok(private_data) = data(len) else { continue };
        let mut channel = EventChannel::new().unwrap();
        let mut side = Side::new();
        let (_listener, attempt, request) =
            request(&mut channel, &mut side, &ConnParams::default()).unwrap();
        let rejected = channel.reject(request, &private_data);
        if len > limit {
            let error = rejected.unwrap_err();
            assert!(is_too_long(&error, len, limit), "{len}: {error}");
        }
        match channel.finish_connect(attempt, &mut side.qp, LIMIT) {
            Err(error @ ConnectError::Rejected { .. }) => {
                let expected =
                    if is_iwarp() { RejectReason::Reset } else { RejectReason::Application };
                assert_eq!(error.reject_reason(), Some(expected), "{error}");
                let ConnectError::Rejected { private_data, .. } = error else { unreachable!() };
                if len <= limit {
                    assert_eq!(private_data.as_bytes(), padded(len, limit), "{len} bytes");
                }
            }
            other => panic!("{len} bytes: {other:?}"),
        }
    }
}

#[test]
fn connection_parameters_arrive() {
    let mut channel = EventChannel::new().unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let params = ConnParams {
        responder_resources: 3,
        initiator_depth: 2,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: true,
        ..ConnParams::default()
    };
    let (_listener, attempt, request) = request(&mut channel, &mut active, &params).unwrap();
    assert_eq!(request.uses_srq(), !is_iwarp(), "{request:?}");
    if is_iwarp() {
        // MPA without its second version carries none of it: the kernel tells what the devices can.
        assert_eq!((request.retry_count(), request.rnr_retry_count()), (0, 0));
        assert_eq!(request.remote_qp_num(), 0);
    } else {
        // Seen from the other side: what the initiator answers is what this side may start.
        assert_eq!((request.initiator_depth(), request.responder_resources()), (3, 2));
        assert_eq!((request.retry_count(), request.rnr_retry_count()), (5, 6));
        assert!(request.flow_control());
        assert_eq!(request.remote_qp_num(), active.qp.qp_num());
    }
    // More than the request and the device give is cut to what they give.
    let most = ConnParams {
        responder_resources: ConnParams::MAX_READS,
        initiator_depth: ConnParams::MAX_READS,
        ..ConnParams::default()
    };
    let _accepting = channel.accept(request, &mut passive.qp, &most).unwrap();
    let _connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    assert_eq!(active.qp.state(), QpState::ReadyToSend);
}

#[test]
fn parameters_beyond_the_device_are_refused_by_name() {
    let context = open();
    let limit = context.attr().max_qp_rd_atom;
    assert!(limit < 254, "the soft devices answer 128");
    let over = u8::try_from(limit + 1).unwrap();
    for (params, wrong) in [
        (ConnParams { responder_resources: over, ..ConnParams::default() }, "responder_resources"),
        (ConnParams { retry_count: 8, ..ConnParams::default() }, "retry_count"),
        (ConnParams { min_rnr_timer: 32, ..ConnParams::default() }, "min_rnr_timer"),
    ] {
        let mut channel = EventChannel::new().unwrap();
        let mut side = Side::new();
        let refused = request(&mut channel, &mut side, &params).map(|_| ());
        let Err(ConnectError::Local(Error::Param { name, .. })) = refused else {
            panic!("{wrong}: {refused:?}")
        };
        assert_eq!(name, wrong);
    }
    let mut channel = EventChannel::new().unwrap();
    let most = ConnParams { responder_resources: ConnParams::MAX_READS, ..ConnParams::default() };
    let mut side = Side::new();
    let (_listener, attempt, request) = request(&mut channel, &mut side, &most).unwrap();
    refuse(&mut channel, &mut side, attempt, request);
}

#[test]
fn options_are_taken_when_they_are_in_time() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let connector = channel.connector().unwrap();
    channel.set_tos(&connector, 0x68).unwrap();
    channel.set_reuse_addr(&connector, true).unwrap();
    channel.set_v6_only(&connector, true).unwrap();
    channel.set_ack_timeout(&connector, 17).unwrap();
    let refused = channel.set_ack_timeout(&connector, 32);
    assert!(matches!(refused, Err(Error::Param { value: 32, limit: 31, .. })), "{refused:?}");
    channel.bind_source(&connector, addr(0)).unwrap();
    let source = channel.local_addr(&connector).unwrap();
    assert_ne!(source.port(), 0);
    assert_eq!(source.ip(), ip());
    channel.resolve_addr(&connector, None, listener.local_addr(), LIMIT).unwrap();
    let late = channel.set_v6_only(&connector, true);
    assert!(matches!(late, Err(Error::Os { errno: libc::EINVAL, .. })), "{late:?}");
    let event = channel.next_event_of(&connector, LIMIT).unwrap();
    assert!(matches!(event, Some(Event::AddrResolved { .. })), "{event:?}");
    channel.resolve_route(&connector, LIMIT).unwrap();
    let event = channel.next_event_of(&connector, LIMIT).unwrap();
    assert!(matches!(event, Some(Event::RouteResolved { .. })), "{event:?}");
    // The source port that was chosen is the one the acceptor sees.
    let mut side = Side::new();
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut side.qp, &params, LIMIT).unwrap();
    let request = next_request(&mut channel, &listener);
    assert_eq!(request.peer_addr().map(|peer| peer.ip()), Some(ip()));
    // Soft iWARP opens a TCP connection from a port of its own: the one that was bound is the connection manager's.
    if !is_iwarp() {
        assert_eq!(request.peer_addr(), Some(source));
    }
    refuse(&mut channel, &mut side, attempt, request);
}

#[test]
fn a_port_is_shared_by_those_who_say_so() {
    let mut channel = EventChannel::new().unwrap();
    let first = channel.connector().unwrap();
    channel.set_reuse_addr(&first, true).unwrap();
    channel.bind_source(&first, addr(0)).unwrap();
    let taken = channel.local_addr(&first).unwrap();
    let rude = channel.connector().unwrap();
    let refused = channel.bind_source(&rude, taken).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EADDRINUSE), "{refused}");
    let polite = channel.connector().unwrap();
    channel.set_reuse_addr(&polite, true).unwrap();
    channel.bind_source(&polite, taken).unwrap();
}

#[test]
fn the_route_is_told() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let idle = channel.connector().unwrap();
    assert!(matches!(channel.route(&idle), Err(Error::State { .. })));
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let route = channel.route(&connector).unwrap();
    assert_eq!(route.port, 1);
    if is_iwarp() {
        assert!(route.paths.is_empty() && route.source_gid.is_zero(), "{route:?}");
    } else {
        assert_eq!(route.source_gid.to_ip(), ip(), "RoCE v2 GIDs are addresses");
        assert_eq!(route.paths.len(), 1);
        let path = route.paths[0];
        assert_eq!(path.source_gid, route.source_gid);
        assert!((1..=5).contains(&path.mtu) && path.partition_key == 0xffff, "{path:?}");
    }
    // Neither device is InfiniBand, and only that has path records of its own.
    let again = channel.connector().unwrap();
    channel.resolve_addr(&again, None, listener.local_addr(), LIMIT).unwrap();
    let event = channel.next_event_of(&again, LIMIT).unwrap();
    assert!(matches!(event, Some(Event::AddrResolved { .. })), "{event:?}");
    let path = Path {
        source_gid: route.source_gid,
        destination_gid: route.destination_gid,
        source_lid: 1,
        destination_lid: 1,
        flow_label: 0,
        hop_limit: 1,
        traffic_class: 0,
        partition_key: 0xffff,
        service_level: 0,
        mtu: 3,
        rate: 3,
        packet_life_time: 16,
    };
    let refused = channel.set_path(&again, path).unwrap_err();
    assert!(matches!(refused, Error::NotSupported { .. }), "{refused}");
    assert!(refused.to_string().contains(&device()), "{refused}");
}

#[test]
fn vendor_options_travel_both_ways_where_the_wire_has_them() {
    let mut channel = EventChannel::new().unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let listener = channel.listen(addr(0), 8).unwrap();
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let nobody = channel.set_local_ece(&connector, Ece { vendor_id: 0, options: 1 });
    assert!(matches!(nobody, Err(Error::State { .. })), "{nobody:?}");
    let (mine, theirs) =
        (Ece { vendor_id: 0x1234, options: 7 }, Ece { vendor_id: 0x1234, options: 5 });
    // Neither siw nor rxe has options of its own; the message carries them all the same.
    assert_eq!(active.qp.ece().unwrap(), None);
    let unsupported = active.qp.set_ece(mine).unwrap_err();
    assert_eq!(unsupported.kind(), rdma_safe::ErrorKind::Unsupported, "{unsupported}");
    channel.set_local_ece(&connector, mine).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut active.qp, &ConnParams::default(), LIMIT).unwrap();
    let late = channel.set_local_ece(&attempt, mine);
    assert!(matches!(late, Err(Error::State { .. })), "{late:?}");
    let request = next_request(&mut channel, &listener);
    let carried = !is_iwarp();
    assert_eq!(channel.remote_ece(&request).unwrap(), carried.then_some(mine));
    channel.set_local_ece(&request, theirs).unwrap();
    let _accepting = channel.accept(request, &mut passive.qp, &ConnParams::default()).unwrap();
    let connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    assert_eq!(channel.remote_ece(&connection).unwrap(), carried.then_some(theirs));
}

#[test]
fn vendor_options_can_be_the_reason() {
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let (_listener, attempt, request) =
        request(&mut channel, &mut side, &ConnParams::default()).unwrap();
    channel.reject_ece(request, &PrivateData::framed(b"not those").unwrap()).unwrap();
    let refused = channel.finish_connect(attempt, &mut side.qp, LIMIT).unwrap_err();
    let reason = if is_iwarp() { RejectReason::Reset } else { RejectReason::VendorOptions };
    assert_eq!(refused.reject_reason(), Some(reason), "{refused}");
    let ConnectError::Rejected { private_data, .. } = refused else { unreachable!() };
    assert_eq!(private_data.payload().unwrap(), b"not those");
}

#[test]
fn a_source_port_is_kept() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    // A port that was free a moment ago.
    let probe = channel.connector().unwrap();
    channel.bind_source(&probe, addr(0)).unwrap();
    let source = channel.local_addr(&probe).unwrap();
    channel.destroy(probe);
    let connector = channel.resolve(Some(source), listener.local_addr(), LIMIT).unwrap();
    assert_eq!(channel.local_addr(&connector), Some(source));
    assert_eq!(channel.peer_addr(&connector), Some(listener.local_addr()));
    let taken = channel.resolve(Some(source), listener.local_addr(), LIMIT).map(|_| ());
    assert_eq!(taken.unwrap_err().errno(), Some(libc::EADDRINUSE));
}

#[test]
fn a_first_message_can_stand_for_a_lost_answer() {
    let mut channel = EventChannel::new().unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let (_listener, attempt, request) =
        request(&mut channel, &mut active, &ConnParams::default()).unwrap();
    let accepting = channel.accept(request, &mut passive.qp, &ConnParams::default()).unwrap();
    // The initiator has not finished yet, so this is all the acceptor knows.
    channel.notify_established(&accepting).unwrap();
    let theirs = channel.wait_established(accepting, LIMIT).unwrap();
    let ours = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    channel.disconnect(&ours).unwrap();
    let gone = channel.next_event_of(&theirs, LIMIT).unwrap();
    assert!(matches!(gone, Some(Event::Disconnected { .. })), "{gone:?}");
}
