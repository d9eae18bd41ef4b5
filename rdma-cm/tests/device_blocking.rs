//! The blocking helpers and the look-up of names over a real device. See `device.rs` for how to run it.
mod common;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rdma_cm::blocking::{Caller, Config, Server};
use rdma_cm::*;

const SOON: Duration = Duration::from_secs(5);

fn config() -> Config {
    Config { limit: LIMIT, ..Config::default() }
}

/// A server that echoes to this many callers, and its address.
fn echo(callers: usize) -> (SocketAddr, thread::JoinHandle<Vec<u64>>) {
    let mut server = Server::bind(addr(0), &config()).unwrap();
    let to = server.local_addr();
    let serving = thread::spawn(move || {
        let sessions: Vec<_> = (0..callers)
            .map(|_| {
                let mut session = server.accept().unwrap().expect("a caller");
                assert_eq!(session.peer_addr().map(|a| a.ip()), Some(ip()));
                thread::spawn(move || session.serve(|q, a| a.extend_from_slice(q)).unwrap())
            })
            .collect();
        sessions.into_iter().map(|s| s.join().unwrap()).collect()
    });
    (to, serving)
}

#[test]
fn questions_have_answers_of_every_size() {
    let (to, serving) = echo(1);
    let mut caller = Caller::dial(to, &config()).unwrap();
    assert!(!caller.connection().private_data().as_bytes().iter().any(|b| *b != 0));
    for len in [1, 2, 31, 32, 33, 64, 65, 1000, 4095, 4096] {
        let text: Vec<u8> = (0..len).map(|i| i as u8).collect();
        assert_eq!(caller.call(&text).unwrap(), text, "{len} bytes");
    }
    let refused = caller.call(&[0; 4097]).unwrap_err();
    assert!(matches!(refused, Error::Post { .. }), "{refused}");
    assert_eq!(caller.call(b"still there").unwrap(), b"still there");
    drop(caller);
    assert_eq!(serving.join().unwrap(), [11]);
}

#[test]
fn callers_come_one_after_another_and_at_once() {
    let (to, serving) = echo(6);
    for _ in 0..3 {
        let mut caller = Caller::dial(to, &config()).unwrap();
        assert_eq!(caller.call(b"alone").unwrap(), b"alone");
    }
    thread::scope(|scope| {
        for i in 0..3_u8 {
            scope.spawn(move || {
                let mut caller = Caller::dial(to, &config()).unwrap();
                for round in 0..20 {
                    assert_eq!(caller.call(&[i, round]).unwrap(), [i, round]);
                }
            });
        }
    });
    assert_eq!(serving.join().unwrap().iter().sum::<u64>(), 3 + 3 * 20);
}

#[test]
fn turns_are_kept() {
    let mut server = Server::bind(addr(0), &config()).unwrap();
    let to = server.local_addr();
    let calling = thread::spawn(move || {
        let params = ConnParams::with_private_data(PrivateData::framed(b"who I am").unwrap());
        let mut caller = Caller::dial(to, &Config { params, ..config() }).unwrap();
        caller.call(b"one").unwrap().to_vec()
    });
    let mut session = server.accept().unwrap().unwrap();
    assert_eq!(session.private_data().payload().unwrap(), b"who I am");
    let early = session.reply(b"too early").unwrap_err();
    assert!(matches!(early, Error::State { .. }), "the acceptor may not speak first: {early}");
    assert_eq!(session.recv().unwrap(), Some(&b"one"[..]));
    let unanswered = session.recv().map(|_| ()).unwrap_err();
    assert!(matches!(unanswered, Error::State { .. }), "{unanswered}");
    session.reply(b"two").unwrap();
    assert_eq!(calling.join().unwrap(), b"two");
    assert!(session.recv().unwrap().is_none(), "the caller has gone");
}

#[test]
fn a_server_that_goes_is_noticed() {
    let mut server = Server::bind(addr(0), &config()).unwrap();
    let to = server.local_addr();
    let serving = thread::spawn(move || {
        let mut session = server.accept().unwrap().unwrap();
        session.recv().unwrap();
        // Both go without an answer.
    });
    let mut caller = Caller::dial(to, &config()).unwrap();
    let start = Instant::now();
    let gone = caller.call(b"anybody?").map(|_| ()).unwrap_err();
    assert!(matches!(gone, Error::Disconnected | Error::Completion { .. }), "{gone}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    serving.join().unwrap();
}

#[test]
fn every_wait_ends() {
    let short = Config { limit: Duration::from_millis(300), ..Config::default() };
    let start = Instant::now();
    let mut server = Server::bind(addr(0), &short).unwrap();
    assert!(server.accept().unwrap().is_none(), "nobody calls");
    let silent = Caller::dial(silent_host(), &short).map(|_| ());
    assert!(matches!(silent, Err(ConnectError::Timeout { .. })), "{silent:?}");
    let to = server.local_addr();
    drop(server);
    let refused = Caller::dial(to, &short).map(|_| ());
    assert!(matches!(refused, Err(ConnectError::Refused)), "{refused:?}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    // A token ends an accept from another thread.
    let token = CancelToken::new().unwrap();
    let long = Config { cancel: Some(token.clone()), ..config() };
    let mut server = Server::bind(addr(0), &long).unwrap();
    let accepting = thread::spawn(move || server.accept().map(|_| ()));
    token.cancel();
    let ended = accepting.join().unwrap();
    assert!(matches!(ended, Err(ConnectError::Cancelled)), "{ended:?}");
}

#[test]
fn of_several_addresses_the_first_that_answers_is_taken() {
    let (to, serving) = echo(1);
    let nobody = SocketAddr::new(to.ip(), 1);
    let mut caller = Caller::dial(&[nobody, to][..], &config()).unwrap();
    assert_eq!(caller.call(b"second").unwrap(), b"second");
    drop(caller);
    serving.join().unwrap();
    let unknown = Caller::dial("no.such.name.invalid:1", &config()).map(|_| ());
    assert!(matches!(unknown, Err(ConnectError::Local(Error::Lookup { .. }))), "{unknown:?}");
}

#[test]
fn a_silent_address_leaves_time_for_the_next() {
    let (to, serving) = echo(1);
    let short = Config { limit: Duration::from_secs(6), ..Config::default() };
    let mut caller = Caller::dial(&[silent_host(), to][..], &short).unwrap();
    assert_eq!(caller.call(b"second").unwrap(), b"second");
    caller.close().unwrap();
    serving.join().unwrap();
}

#[test]
fn a_session_that_is_closed_has_sent_its_answer() {
    // Long enough not to be on its way at once.
    const LONG: usize = 4 << 20;
    let config = Config { message_size: LONG, ..config() };
    let mut server = Server::bind(addr(0), &config).unwrap();
    let to = server.local_addr();
    let serving = thread::spawn(move || {
        let mut session = server.accept().unwrap().unwrap();
        session.recv().unwrap().expect("a question");
        session.reply(&[7; LONG]).unwrap();
        session.close()
    });
    let mut caller = Caller::dial(to, &config).unwrap();
    assert!(caller.call(b"much, please").unwrap() == [7; LONG], "the whole answer");
    serving.join().unwrap().unwrap();
}

#[test]
fn a_peer_that_has_gone_stays_gone() {
    let mut server = Server::bind(addr(0), &config()).unwrap();
    let to = server.local_addr();
    let serving = thread::spawn(move || server.accept().unwrap().unwrap().recv().map(|_| ()));
    let mut caller = Caller::dial(to, &config()).unwrap();
    let start = Instant::now();
    caller.call(b"anybody?").map(|_| ()).unwrap_err();
    serving.join().unwrap().unwrap();
    for _ in 0..3 {
        let again = caller.call(b"and now?").map(|_| ()).unwrap_err();
        assert!(matches!(again, Error::Disconnected), "{again:?}");
    }
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    // Nothing is left to wait for.
    caller.close().unwrap();
}

#[test]
fn names_are_looked_up() {
    let numeric = LookupOptions { numeric: true, ..LookupOptions::default() };
    let text = ip().to_string();
    let found = lookup(&text, "7471", numeric).unwrap();
    assert!(found.iter().any(|f| f.destination == Some(addr(7471))), "{found:?}");
    let passive = LookupOptions { passive: true, ..numeric };
    let found = lookup(&text, "7471", passive).unwrap();
    assert!(found.iter().any(|f| f.source == Some(addr(7471))), "{found:?}");
    let datagrams = LookupOptions { datagrams: true, ..numeric };
    assert!(!lookup(&text, "7471", datagrams).unwrap().is_empty());
    for (host, service) in [("no.such.name", "1"), (&*text, "no-such-service"), ("a\0b", "1")] {
        let unknown = lookup(host, service, numeric).unwrap_err();
        assert!(matches!(unknown, Error::Lookup { .. }), "{host:?} {service:?}: {unknown:?}");
    }
}
