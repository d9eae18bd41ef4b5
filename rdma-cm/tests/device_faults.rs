//! Peers that vanish, answer late or come in crowds, and ids that are destroyed at every step. See `device.rs` for how to
//! run it.
mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use rdma_cm::*;

/// Within this, something that is to be noticed at once has to be noticed. Soft iWARP gives up waiting for an answer after
/// 10 s.
const NOTICED: Duration = Duration::from_secs(15);
const CHILD: &str = "RDMA_CM_TEST_CHILD";

/// This test binary again, as another process, in a role.
fn process(role: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{role} {argument}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the other process says about itself.
fn said(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines
        .find_map(|line| line.unwrap().split_once("child: ").map(|(_, text)| text.to_owned()))
        .expect("the other process speaks")
}

/// Not a test by itself: what the other process does.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(CHILD) else { return };
    let (role, argument) = role.split_once(' ').unwrap();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let tell = |text: &str| {
        println!("child: {text}");
        std::io::stdout().flush().unwrap();
    };
    let die = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        // As a crash: nothing is destroyed, and no handler runs.
        std::process::abort();
    };
    match role {
        "connected" => {
            let _connection = dial(&mut channel, &mut side, argument.parse().unwrap());
            tell("connected");
            die();
        }
        "asking" => {
            let to = argument.parse().unwrap();
            let connector = channel.resolve(None, to, LIMIT).unwrap();
            let params = ConnParams::default();
            let _attempt = channel.begin_connect(connector, &mut side.qp, &params, LIMIT).unwrap();
            tell("asked");
            die();
        }
        "silent" => {
            let listener = channel.listen(addr(0), 8).unwrap();
            tell(&listener.local_addr().to_string());
            let _request = next_request(&mut channel, &listener);
            tell("heard");
            die();
        }
        other => panic!("{other}"),
    }
}

fn kill(mut child: Child) {
    let _ = child.stdin.take().unwrap().write_all(b"die\n");
    child.wait().unwrap();
}

#[test]
fn a_peer_that_dies_while_connected_is_noticed() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut child = process("connected", &listener.local_addr().to_string());
    let mut side = Side::new();
    let request = next_request(&mut channel, &listener);
    channel.init_qp(&request, &mut side.qp).unwrap();
    side.post_recv();
    let accepting = channel.accept(request, &mut side.qp, &ConnParams::default()).unwrap();
    let connection = channel.wait_established(accepting, LIMIT).unwrap();
    assert_eq!(said(&mut child), "connected");
    kill(child);
    let gone = channel.next_event_of(&connection, NOTICED).unwrap();
    assert!(matches!(gone, Some(Event::Disconnected { .. })), "{gone:?}");
    side.qp.close().unwrap();
}

#[test]
fn a_peer_that_dies_after_asking_cannot_be_accepted() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut child = process("asking", &listener.local_addr().to_string());
    let request = next_request(&mut channel, &listener);
    assert_eq!(said(&mut child), "asked");
    kill(child);
    let mut side = Side::new();
    let start = Instant::now();
    let ended = channel
        .accept(request, &mut side.qp, &ConnParams::default())
        .map_err(ConnectError::from)
        .and_then(|accepting| channel.wait_established(accepting, NOTICED));
    match ended {
        // Soft iWARP may answer into the closed connection first, and hears of it behind.
        Ok(connection) => {
            let gone = channel.next_event_of(&connection, NOTICED).unwrap();
            assert!(matches!(gone, Some(Event::Disconnected { .. })), "{gone:?}");
        }
        Err(ConnectError::Timeout { .. }) => panic!("not noticed"),
        Err(_) => {}
    }
    assert!(start.elapsed() < NOTICED, "{:?}", start.elapsed());
}

#[test]
fn a_peer_that_dies_before_answering_is_a_rejection() {
    let mut child = process("silent", "-");
    let to = said(&mut child).parse().unwrap();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut side.qp, &params, LIMIT).unwrap();
    assert_eq!(said(&mut child), "heard");
    kill(child);
    let start = Instant::now();
    let refused = channel.finish_connect(attempt, &mut side.qp, LIMIT);
    assert!(
        matches!(refused, Err(ConnectError::Rejected { .. } | ConnectError::Failed { .. })),
        "{refused:?}"
    );
    assert!(start.elapsed() < NOTICED, "{:?}", start.elapsed());
}

#[test]
fn a_late_answer_is_as_good_as_an_early_one() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    channel.init_qp(&connector, &mut active.qp).unwrap();
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    // Long enough for InfiniBand's first repeat, and within soft iWARP's limit.
    std::thread::sleep(Duration::from_secs(3));
    let request = next_request(&mut channel, &listener);
    channel.init_qp(&request, &mut passive.qp).unwrap();
    passive.post_recv();
    let accepting = channel.accept(request, &mut passive.qp, &params).unwrap();
    let _connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    let _theirs = channel.wait_established(accepting, LIMIT).unwrap();
    active.send(b"late");
    passive.expect_message(b"late");
}

#[test]
fn more_requests_than_the_backlog_are_rejected_or_come_again() {
    const BACKLOG: usize = 2;
    const CALLERS: usize = 6;
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), BACKLOG as u16).unwrap();
    let mut channel = EventChannel::new().unwrap();
    let params = ConnParams::default();
    let mut callers: Vec<Side> = (0..CALLERS).map(|_| Side::new()).collect();
    let iwarp = callers[0].context.transport().is_iwarp();
    let (mut attempts, mut answered, mut refused) = (Vec::new(), Vec::new(), 0);
    for side in &mut callers {
        let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
        let attempt = channel.begin_connect(connector, &mut side.qp, &params, LIMIT);
        refused += usize::from(matches!(attempt, Err(ConnectError::Refused)));
        attempts.push(attempt.map_err(|e| assert!(matches!(e, ConnectError::Refused), "{e}")).ok());
    }
    // Nobody reads, so that those in excess are in excess.
    std::thread::sleep(Duration::from_secs(1));
    let mut served = Vec::new();
    let end = Instant::now() + 2 * LIMIT;
    while answered.len() + refused < CALLERS {
        assert!(Instant::now() < end, "{} answers and {refused} refusals", answered.len());
        const MOMENT: Duration = Duration::from_millis(20);
        if let Some(request) = passive.wait_request(&listener, MOMENT).unwrap() {
            let mut side = Side::new();
            let accepting = passive.accept(request, &mut side.qp, &params).unwrap();
            served.push((side, accepting));
        }
        let Some(event) = channel.next_event(Some(MOMENT)).unwrap() else { continue };
        let mine = |a: &Option<Connecting>| a.as_ref().is_some_and(|a| a.key() == event.id());
        let Some(at) = attempts.iter().position(mine) else { continue };
        let attempt = attempts[at].take().unwrap();
        match channel.answer(attempt, &mut callers[at].qp, event) {
            Ok(Answer::Established(connection)) => answered.push(connection),
            Ok(Answer::NotYet(same)) => attempts[at] = Some(same),
            Err(ConnectError::Rejected { .. } | ConnectError::Refused) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(served.len(), answered.len());
    if iwarp {
        assert!(!answered.is_empty() && refused >= CALLERS - BACKLOG - 1, "{refused} refused");
    } else {
        assert_eq!(refused, 0, "their kernels ask again");
    }
}

#[test]
fn requests_beyond_the_limit_are_rejected_while_something_else_is_awaited() {
    let mut passive = EventChannel::new().unwrap();
    passive.set_request_limit(1);
    let listener = passive.listen(addr(0), 16).unwrap();
    let mut channel = EventChannel::new().unwrap();
    let (mut first, mut second) = (Side::new(), Side::new());
    let params = ConnParams::default();
    let mut call = |side: &mut Side| {
        let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
        channel.begin_connect(connector, &mut side.qp, &params, LIMIT).unwrap()
    };
    let (one, two) = (call(&mut first), call(&mut second));
    // Somebody else is waited for, and finds both.
    let idle = passive.connector().unwrap();
    let end = Instant::now() + LIMIT;
    while passive.requests_turned_away() == 0 {
        assert!(Instant::now() < end);
        assert!(passive.next_event_of(&idle, Duration::from_millis(20)).unwrap().is_none());
    }
    let refused = channel.finish_connect(two, &mut second.qp, LIMIT);
    assert!(matches!(refused, Err(ConnectError::Rejected { .. })), "{refused:?}");
    let mut side = Side::new();
    let request = next_request(&mut passive, &listener);
    let _accepting = passive.accept(request, &mut side.qp, &params).unwrap();
    let _connection = channel.finish_connect(one, &mut first.qp, LIMIT).unwrap();
}

/// The steps of the active side before it asks.
const STEPS: [&str; 6] = ["made", "bound", "resolving", "resolved", "routing", "routed"];

#[test]
fn an_id_is_destroyed_at_each_step_without_a_trace() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    for step in STEPS {
        let connector = channel.connector().unwrap();
        let reached =
            |name| STEPS.iter().position(|s| *s == name) <= STEPS.iter().position(|s| *s == step);
        if reached("bound") {
            channel.bind_source(&connector, addr(0)).unwrap();
        }
        if reached("resolving") {
            channel.resolve_addr(&connector, None, listener.local_addr(), LIMIT).unwrap();
        }
        if reached("resolved") {
            assert!(channel.next_event_of(&connector, LIMIT).unwrap().is_some());
        }
        if reached("routing") {
            channel.resolve_route(&connector, LIMIT).unwrap();
        }
        if reached("routed") {
            assert!(channel.next_event_of(&connector, LIMIT).unwrap().is_some());
        }
        channel.destroy(connector);
        assert_eq!(channel.id_count(), 1, "{step}: the listener");
        let event = channel.next_event(Some(Duration::from_millis(50))).unwrap();
        assert!(event.is_none(), "{step}: {event:?}");
    }
}

#[test]
fn steps_out_of_order_are_refused_before_the_kernel_sees_them() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let mut side = Side::new();
    let connector = channel.connector().unwrap();
    let is_state = |e: &Error| matches!(e, Error::State { .. });
    assert!(is_state(&channel.resolve_route(&connector, LIMIT).unwrap_err()));
    assert!(is_state(&channel.init_qp(&connector, &mut side.qp).unwrap_err()));
    channel.resolve_addr(&connector, None, listener.local_addr(), LIMIT).unwrap();
    let twice = channel.resolve_addr(&connector, None, listener.local_addr(), LIMIT);
    assert!(is_state(&twice.unwrap_err()));
    assert!(channel.next_event_of(&connector, LIMIT).unwrap().is_some());
    let early = channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT);
    assert!(matches!(early, Err(ConnectError::Local(Error::State { .. }))), "{early:?}");
}

#[test]
fn requests_that_nobody_took_end_with_their_listener() {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let attempt =
        channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap();
    // Waiting for something else, the channel reads the request and keeps it.
    let other = passive.connector().unwrap();
    while passive.id_count() < 3 {
        assert!(passive.next_event_of(&other, Duration::from_millis(10)).unwrap().is_none());
    }
    passive.destroy(listener);
    assert_eq!(passive.id_count(), 1, "the connector");
    let start = Instant::now();
    let refused = channel.finish_connect(attempt, &mut side.qp, LIMIT).unwrap_err();
    assert!(matches!(refused, ConnectError::Rejected { .. }), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(passive.next_event(Some(Duration::ZERO)).unwrap().is_none());
}
