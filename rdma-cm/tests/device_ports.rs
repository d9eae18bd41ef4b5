//! Ports that rdma_cm chooses and TCP has: soft iWARP binds a TCP socket to them. See `device.rs` for how to run it.
//!
//! One test, alone in its process, because for its time it leaves the whole network namespace two ports to choose from: one
//! with a TCP listener on it, and the next one. rdma_cm never takes the port it took last (`cma_alloc_any_port`), so it can
//! be told which one it takes.
mod common;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use common::*;
use rdma_cm::aio::{AsyncConfig, AsyncEventChannel, Connection};
use rdma_cm::blocking::{Caller, Config, Server};
use rdma_cm::*;

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The ports that the kernel may choose from, until this is dropped.
struct Range(String);

impl Range {
    fn narrow(first: u16, last: u16) -> Self {
        let before = fs::read_to_string(RANGE).unwrap();
        fs::write(RANGE, format!("{first} {last}")).expect("these tests run as root");
        Self(before)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let _ = fs::write(RANGE, &self.0);
    }
}

/// A port that TCP has, and the next one, which nobody has.
fn taken_and_free() -> (TcpListener, u16, u16) {
    loop {
        let taken = TcpListener::bind(addr(0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        if TcpListener::bind(addr(port + 1)).is_ok() {
            return (taken, port, port + 1);
        }
    }
}

/// Makes the kernel choose another port than this one next.
fn last_was(port: u16) {
    let mut channel = EventChannel::new().unwrap();
    for _ in 0..4 {
        let id = channel.connector().unwrap();
        channel.bind_source(&id, addr(0)).unwrap();
        let chosen = channel.local_addr(&id).unwrap().port();
        channel.destroy(id);
        if chosen == port {
            return;
        }
    }
    panic!("the kernel does not choose {port}");
}

/// A server that answers one caller, which gives its address.
fn server() -> (SocketAddr, thread::JoinHandle<SocketAddr>) {
    let config = Config { limit: LIMIT, ..Config::default() };
    let mut server = Server::bind(addr(0), &config).unwrap();
    let to = server.local_addr();
    let serving = thread::spawn(move || {
        let mut session = server.accept().unwrap().expect("a caller");
        session.serve(|question, answer| answer.extend_from_slice(question)).unwrap();
        session.peer_addr().unwrap()
    });
    (to, serving)
}

#[test]
fn ports_that_tcp_has_are_told_and_gone_around() {
    let iwarp = open().transport() == rdma_safe::Transport::Iwarp;
    let (to, serving) = server();
    let (other, other_serving) = server();
    let (_tcp, taken, free) = taken_and_free();

    // By name. rdma_cm counts its ports apart from TCP's.
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = channel.resolve(Some(addr(taken)), to, LIMIT).unwrap();
    if iwarp {
        let params = ConnParams::default();
        let refused = channel.connect(connector, &mut side.qp, &params, LIMIT).unwrap_err();
        let ConnectError::PortInUse { local } = refused else { panic!("{refused:?}") };
        assert_eq!(local, Some(addr(taken)));
        assert!(refused.is_transient());
        let text = refused.to_string();
        for word in [&*addr(taken).to_string(), "taken in TCP", "new connector"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    } else {
        channel.destroy(connector);
    }

    let range = Range::narrow(taken, free);
    let mine = if iwarp { free } else { taken };
    // Any port, for a listener.
    last_was(free);
    let listener = channel.listen(addr(0), 1).unwrap();
    assert_eq!(listener.local_addr(), addr(mine));
    channel.destroy(listener);
    // Any port, for a caller.
    last_was(free);
    let config = Config { limit: LIMIT, ..Config::default() };
    let mut caller = Caller::dial(to, &config).unwrap();
    assert_eq!(caller.call(b"which port?").unwrap(), b"which port?");
    caller.close().unwrap();
    assert_eq!(serving.join().unwrap(), addr(mine));
    // The same in tokio.
    last_was(free);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = AsyncEventChannel::new().unwrap();
        let (pd, config) = (open().alloc_pd().unwrap(), AsyncConfig::default());
        let connection = Connection::connect(&channel, &pd, other, &config, LIMIT).await.unwrap();
        connection.send(b"and now?").await.unwrap();
        assert_eq!(&*connection.receive().await.unwrap().unwrap(), b"and now?");
        connection.close(Duration::from_secs(5)).await.unwrap();
    });
    drop(range);
    assert_eq!(other_serving.join().unwrap(), addr(mine));
}
