//! Peers whose lanes differ: each sends what fits the other's buffers.
#![allow(missing_docs)]
mod common;
use btl_core::error::{ConnectFault, FaultKind, SendErrorKind};
use btl_core::wire::RejectReason;
use btl_core::{Config, Event, LaneConfig};
use common::*;

/// A configuration with buffers of these sizes.
fn sized(side: usize, sizes: &[u32]) -> Config {
    let lane = |size: &u32| LaneConfig { buffer_size: *size, ..config(side).lanes[0] };
    Config { lanes: sizes.iter().map(lane).collect(), ..config(side) }
}

/// Two engines with such buffers, each of which knows the other's.
fn pair(sizes: [&[u32]; 2]) -> (Shared, Vec<Eng>) {
    let net = net(2);
    let mut all: Vec<Eng> =
        (0..2).map(|side| engine(&net, side, sized(side, sizes[side]))).collect();
    for side in 0..2 {
        let peer = all[side].add_peer(name(1 - side), &[addr(1 - side)]).unwrap();
        all[side].set_peer_lanes(peer, sizes[1 - side]);
    }
    (net, all)
}

/// Payload bytes of what arrived.
fn lengths(events: &[Ev]) -> Vec<usize> {
    let length = |event: &Ev| match event {
        Event::Message { buf, .. } => Some(buf.len()),
        _ => None,
    };
    events.iter().filter_map(length).collect()
}

/// Sends one message of each length and checks that all arrive, and that the largest one more is refused.
fn exchange(sizes: [&[u32]; 2], most: [usize; 2]) {
    let (net, mut all) = pair(sizes);
    for side in 0..2 {
        let peer = all[side].add_peer(name(1 - side), &[addr(1 - side)]).unwrap();
        assert_eq!(all[side].max_send_size_to(peer), most[side], "{sizes:?} from {side}");
        let wanted = [0, 200, 249, 1000, most[side]].map(|len| len.min(most[side]));
        for len in wanted {
            assert!(send(&mut all[side], 1 - side, &vec![len as u8; len], 1), "{len} B");
        }
        if most[side] < all[side].max_send_size() {
            let buf = all[side].alloc(most[side] + 1).unwrap();
            let refused = all[side].send(peer, 0, buf, 0).unwrap_err();
            let expected = SendErrorKind::TooLong { len: most[side] + 1, max: most[side] };
            assert_eq!(refused.kind, expected);
            all[side].free(refused.buf);
        }
        let events = settle(&net, &mut all);
        let mut got = lengths(&events[1 - side]);
        got.sort_unstable();
        assert_eq!(got, wanted, "{sizes:?} from {side}");
        for (engine, events) in all.iter_mut().zip(events) {
            for event in events {
                match event {
                    Event::Message { buf, .. } => engine.release(buf),
                    Event::Sent { buf: Some(buf), .. } => engine.free(buf),
                    _ => {}
                }
            }
        }
    }
    let net = net.borrow();
    assert_eq!((net.overruns, net.early), (0, 0), "{sizes:?}");
}

#[test]
fn peers_with_other_lanes_get_what_fits_theirs() {
    exchange([&[256, 1024], &[256, 1024]], [1016, 1016]);
    exchange([&[256, 1024], &[512, 2048]], [1016, 1016]);
    exchange([&[256, 2048], &[256, 1024]], [1016, 1016]);
    exchange([&[256, 1024], &[1024]], [1016, 248]);
    exchange([&[1024], &[256, 4096]], [248, 1016]);
    exchange([&[256, 512, 4096], &[256, 1024]], [1016, 504]);
}

#[test]
fn a_message_too_large_for_a_peers_buffers_takes_its_next_lane() {
    let (net, mut all) = pair([&[1024, 2048], &[256, 2048]]);
    let len = |engine: &Eng| engine.gauges().lanes;
    assert!(send(&mut all[0], 1, &[1; 900], 0));
    settle(&net, &mut all);
    assert_eq!(len(&all[0]), 2, "lane 0 comes first, and then the one with room");
    assert_eq!(net.borrow().overruns, 0);
    // The buffer goes back to the class it came from.
    let (pooled, slots) = (all[0].port().pooled(0), sized(0, &[1024]).lanes[0].send_slots);
    assert!(pooled + 1 >= slots as usize, "{pooled} of {slots}");
}

#[test]
fn a_peer_with_smaller_buffers_than_it_published_has_failed() {
    let net = net(2);
    let mut all: Vec<Eng> = [256, 512]
        .iter()
        .enumerate()
        .map(|(side, size)| engine(&net, side, sized(side, &[*size])))
        .collect();
    // Side 1 is not told, so it takes side 0's buffers for as large as its own.
    assert!(send(&mut all[1], 0, &[1; 400], 0));
    let events = settle(&net, &mut all);
    let fault = events[1].iter().find_map(|event| match event {
        Event::PeerFailed { fault, .. } => Some(fault.kind.clone()),
        _ => None,
    });
    let expected = FaultKind::Connect(ConnectFault::BadAnswer(RejectReason::Limits));
    assert_eq!(fault, Some(expected), "{events:?}");
    assert_eq!(net.borrow().overruns, 0);
}

#[test]
fn a_stranger_with_smaller_buffers_is_taken_at_its_word() {
    let (net, mut all) = {
        let net = net(2);
        let all: Vec<Eng> = [512, 256]
            .iter()
            .enumerate()
            .map(|(side, size)| engine(&net, side, sized(side, &[*size])))
            .collect();
        (net, all)
    };
    // Side 1 knows side 0's lanes and sends; side 0 has not heard of it before.
    let to = all[1].add_peer(name(0), &[addr(0)]).unwrap();
    all[1].set_peer_lanes(to, &[512]);
    assert!(send(&mut all[1], 0, &[1; 200], 0));
    let events = settle(&net, &mut all);
    assert_eq!(lengths(&events[0]), [200]);
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    assert_eq!(all[0].max_send_size_to(peer), 248);
}
