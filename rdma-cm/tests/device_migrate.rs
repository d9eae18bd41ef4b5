//! Ids that move to another event channel, at every step of their life. See `device.rs` for how to run it.
mod common;

use common::*;
use rdma_cm::*;

fn two() -> (EventChannel, EventChannel) {
    (EventChannel::new().unwrap(), EventChannel::new().unwrap())
}

#[test]
fn a_connector_moves_between_any_two_steps() {
    let (mut one, mut other) = two();
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let connector = one.connector().unwrap();
    one.bind_source(&connector, addr(0)).unwrap();
    let connector = other.adopt(&mut one, connector).unwrap();
    other.resolve_addr(&connector, None, listener.local_addr(), LIMIT).unwrap();
    // Its event has come or not when it moves; it must not be lost.
    let connector = one.adopt(&mut other, connector).unwrap();
    let event = one.next_event_of(&connector, LIMIT).unwrap();
    assert!(
        matches!(event, Some(Event::AddrResolved { id }) if id == connector.key()),
        "{event:?}"
    );
    one.resolve_route(&connector, LIMIT).unwrap();
    assert!(one.next_event(Some(LIMIT)).unwrap().is_some());
    let connector = other.adopt(&mut one, connector).unwrap();
    assert_eq!((one.id_count(), other.id_count()), (0, 1));
    let (mut active, mut passive_side) = (Side::new(), Side::new());
    let params = ConnParams::default();
    let attempt = other.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let attempt = one.adopt(&mut other, attempt).unwrap();
    drop(other);
    let request = next_request(&mut passive, &listener);
    let accepting = passive.accept(request, &mut passive_side.qp, &params).unwrap();
    let connection = one.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    let _theirs = passive.wait_established(accepting, LIMIT).unwrap();
    assert_eq!(one.peer_addr(&connection), Some(listener.local_addr()));
}

#[test]
fn an_event_that_was_read_moves_along() {
    let (mut one, mut other) = two();
    let listener = one.listen(addr(0), 8).unwrap();
    let connector = one.connector().unwrap();
    one.resolve_addr(&connector, None, listener.local_addr(), LIMIT).unwrap();
    // A wait for somebody else reads it and keeps it.
    assert!(one.wait_request(&listener, std::time::Duration::from_millis(300)).unwrap().is_none());
    let connector = other.adopt(&mut one, connector).unwrap();
    let event = other.next_event(Some(LIMIT)).unwrap();
    assert!(
        matches!(event, Some(Event::AddrResolved { id }) if id == connector.key()),
        "{event:?}"
    );
    assert!(one.next_event(Some(std::time::Duration::ZERO)).unwrap().is_none());
}

#[test]
fn a_request_is_accepted_on_another_channel() {
    let (mut one, mut other) = two();
    let listener = one.listen(addr(0), 8).unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let connector = one.resolve(None, listener.local_addr(), LIMIT).unwrap();
    one.init_qp(&connector, &mut active.qp).unwrap();
    let params = ConnParams::default();
    let attempt = one.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let request = next_request(&mut one, &listener);
    let request = other.adopt(&mut one, request).unwrap();
    other.init_qp(&request, &mut passive.qp).unwrap();
    passive.post_recv();
    let accepting = other.accept(request, &mut passive.qp, &params).unwrap();
    let connection = one.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    let theirs = other.wait_established(accepting, LIMIT).unwrap();
    active.send(b"over there");
    passive.expect_message(b"over there");
    one.disconnect(&connection).unwrap();
    let gone = other.next_event(Some(LIMIT)).unwrap();
    assert!(matches!(gone, Some(Event::Disconnected { id }) if id == theirs.key()), "{gone:?}");
}

#[test]
fn a_listener_stays_with_its_requests() {
    let (mut one, mut other) = two();
    let listener = one.listen(addr(0), 8).unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let connector = other.resolve(None, listener.local_addr(), LIMIT).unwrap();
    let params = ConnParams::default();
    let attempt = other.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let (listener, refused) = other.adopt(&mut one, listener).unwrap_err();
    assert!(refused.to_string().contains("listener cannot move"), "{refused}");
    let request = next_request(&mut one, &listener);
    let accepting = one.accept(request, &mut passive.qp, &params).unwrap();
    let _connection = other.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    let _theirs = one.wait_established(accepting, LIMIT).unwrap();
}

#[test]
fn what_cannot_move_stays() {
    let (mut one, mut other) = two();
    let mut third = EventChannel::new().unwrap();
    let listener = one.listen(addr(0), 8).unwrap();
    let (listener, refused) = third.adopt(&mut other, listener).unwrap_err();
    assert!(matches!(refused, Error::State { .. }), "{refused}");
    assert_eq!((one.id_count(), other.id_count(), third.id_count()), (1, 0, 0));
    one.destroy(listener);
    assert_eq!(one.id_count(), 0);
}
