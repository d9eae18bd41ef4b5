//! Against the programs of rdma-core that are made to be talked to: `rping` and `ucmatose`, each as server and as client.
//! Run as the tests in `device.rs`, with the package rdmacm-utils installed.
//!
//! ucmatose's server sends first, which an iWARP acceptor must not do (RFC 5044 7.1.2), and its client waits for that; so
//! on iWARP it connects and disconnects without a message, and rping, which keeps the rule, carries the data.
mod common;

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::links::{ended, kind};
use common::*;
use rdma_cm::*;
use rdma_safe::{
    Done, MemoryRegion, Op, OwnedMemory, PayloadKind, Remote, RemoteAccess, RemoteRange,
    RemoteSlot, Request,
};

/// A program under test, killed when dropped.
struct Program(Option<Child>);

impl Program {
    fn start(name: &str, args: &[&str]) -> Self {
        let child = Command::new(name)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn();
        Self(Some(
            child.unwrap_or_else(|e| panic!("{name}: {e}; it is in the package rdmacm-utils")),
        ))
    }

    /// Starts a server and waits until it listens.
    fn serve(name: &str, args: &[&str]) -> Self {
        let mut program = Self::start(name, args);
        let pid = program.child().id().to_string();
        let end = Instant::now() + LIMIT;
        loop {
            let mut list = Command::new("rdma");
            list.args(["resource", "show", "cm_id", "pid", &pid]);
            let listed = list.output().expect("the rdma tool of iproute2").stdout;
            if String::from_utf8_lossy(&listed).contains("LISTEN") {
                return program;
            }
            if let Some(status) = program.child().try_wait().unwrap() {
                panic!("{name} ended with {status}: {}", program.said());
            }
            assert!(Instant::now() < end, "{name} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("not finished yet")
    }

    /// Everything it has said; it has ended.
    fn said(&mut self) -> String {
        let mut text = String::new();
        let child = self.child();
        child.stdout.take().map(|mut out| out.read_to_string(&mut text).unwrap());
        child.stderr.take().map(|mut err| err.read_to_string(&mut text).unwrap());
        text
    }

    /// Waits for its end, which must be a success, and returns what it said.
    fn success(mut self) -> String {
        let status = ended(self.child(), LIMIT).expect("the program ends");
        let said = self.said();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Bytes of a message of ucmatose.
const SIZE: usize = 100;

/// How many messages each side sends; see the head of this file.
fn messages() -> u32 {
    if kind() == "siw" { 0 } else { 10 }
}

fn post_receives(side: &mut Side, size: usize, count: u32) {
    for _ in 0..count {
        let slot = side.pd.slots(size, 1).unwrap().remove(0);
        side.qp.post_recv(slot).unwrap();
    }
}

fn send_all(side: &mut Side, count: u32) {
    for _ in 0..count {
        let slot = side.pd.slots(SIZE, 1).unwrap().remove(0);
        side.qp.post(Request::send(slot, SIZE)).unwrap();
    }
    for _ in 0..count {
        side.expect(Op::Send);
    }
}

fn receive_all(side: &mut Side, count: u32) {
    for _ in 0..count {
        assert_eq!(side.expect(Op::Recv).byte_len, SIZE);
    }
}

fn connect(
    channel: &mut EventChannel,
    side: &mut Side,
    to: SocketAddr,
    size: usize,
    receives: u32,
) -> Established<Initiator> {
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    channel.init_qp(&connector, &mut side.qp).unwrap();
    post_receives(side, size, receives);
    channel.connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap()
}

fn accept(
    channel: &mut EventChannel,
    listener: &Listener,
    side: &mut Side,
    size: usize,
    receives: u32,
) -> Established<Acceptor> {
    let request = next_request(channel, listener);
    channel.init_qp(&request, &mut side.qp).unwrap();
    post_receives(side, size, receives);
    let accepting = channel.accept(request, &mut side.qp, &ConnParams::default()).unwrap();
    channel.wait_established(accepting, LIMIT).unwrap()
}

fn expect_disconnect(channel: &mut EventChannel, connection: &impl Id) {
    let event = channel.next_event_of(connection, LIMIT).unwrap();
    assert!(matches!(event, Some(Event::Disconnected { .. })), "{event:?}");
}

#[test]
fn a_connector_and_the_server_of_ucmatose() {
    let (count, port) = (messages(), 7571);
    let (host, count_text) = (ip().to_string(), count.to_string());
    let server =
        Program::serve("ucmatose", &["-b", &host, "-p", "7571", "-C", &count_text, "-S", "100"]);
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::with_depth(16);
    let connection = connect(&mut channel, &mut side, addr(port), SIZE, count);
    receive_all(&mut side, count);
    send_all(&mut side, count);
    // The server ends it.
    expect_disconnect(&mut channel, &connection);
    channel.disconnect(&connection).unwrap_or_default();
    let said = server.success();
    assert!(said.contains("return status 0"), "{said}");
}

#[test]
fn a_listener_and_the_client_of_ucmatose() {
    let count = messages();
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let (host, port) = (ip().to_string(), listener.local_addr().port().to_string());
    let count_text = count.to_string();
    let client =
        Program::start("ucmatose", &["-s", &host, "-p", &port, "-C", &count_text, "-S", "100"]);
    let mut side = Side::with_depth(16);
    let connection = accept(&mut channel, &listener, &mut side, SIZE, count);
    send_all(&mut side, count);
    receive_all(&mut side, count);
    channel.disconnect(&connection).unwrap();
    expect_disconnect(&mut channel, &connection);
    let said = client.success();
    assert!(said.contains("return status 0"), "{said}");
}

/// Bytes of data in a ping.
const PING: usize = 64;
/// Bytes of a message of rping: where memory is, big endian: address, key, size.
const INFO: usize = 16;
/// Pings of a run.
const PINGS: usize = 3;

fn info_of(range: RemoteRange) -> [u8; INFO] {
    let mut info = [0; INFO];
    info[..8].copy_from_slice(&range.addr.to_be_bytes());
    info[8..12].copy_from_slice(&range.rkey.to_be_bytes());
    info[12..].copy_from_slice(&(range.len as u32).to_be_bytes());
    info
}

fn range_of(done: &Done) -> RemoteRange {
    let info = done.message();
    assert_eq!(info.len(), INFO);
    let number = |at: usize| u32::from_be_bytes(info[at..at + 4].try_into().unwrap());
    RemoteRange {
        addr: u64::from_be_bytes(info[..8].try_into().unwrap()),
        rkey: number(8),
        len: u64::from(number(12)),
    }
}

fn region(side: &Side, access: RemoteAccess) -> MemoryRegion<Remote> {
    side.pd.register_remote(OwnedMemory::from(vec![0_u8; PING]), access).unwrap()
}

/// Tells the peer where memory is and waits for its word that it is done with it.
///
/// Soft iWARP: the first message may lie unread at the acceptor until something more comes
/// (`Caps::NUDGE_AFTER_ACCEPT`).
fn offer(side: &mut Side, range: RemoteRange) {
    side.send(&info_of(range));
    for _ in 0..12 {
        if let Some(done) = side.poll(Op::Recv, Duration::from_millis(100)) {
            assert!(done.status.is_ok(), "{}", done.status);
            post_receives(side, INFO, 1);
            return;
        }
        side.qp.post_empty_write().unwrap();
    }
    side.expect(Op::Recv);
    post_receives(side, INFO, 1);
}

#[test]
fn a_connector_and_the_server_of_rping() {
    let host = ip().to_string();
    let server = Program::serve("rping", &["-s", "-a", &host, "-p", "7572", "-v", "-S", "64"]);
    let mut channel = EventChannel::new().unwrap();
    let mut side = Side::with_depth(32);
    let connection = connect(&mut channel, &mut side, addr(7572), INFO, 2);
    let source = region(&side, RemoteAccess::Read);
    let sink = region(&side, RemoteAccess::Write);
    for ping in 0..PINGS {
        let mut text = [b'.'; PING];
        let words = format!("hello from a connector, ping {ping}");
        text[..words.len()].copy_from_slice(words.as_bytes());
        text[PING - 1] = 0;
        source.copy_in(0, &text).unwrap();
        sink.copy_in(0, &[0; PING]).unwrap();
        offer(&mut side, source.remote()); // The server reads it ...
        offer(&mut side, sink.remote()); // ... and writes it here.
        let mut back = [0; PING];
        sink.copy_out(0, &mut back).unwrap();
        assert_eq!(back, text);
    }
    channel.disconnect(&connection).unwrap();
    let said = server.success();
    for ping in 0..PINGS {
        let line = format!("server ping data: hello from a connector, ping {ping}");
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn a_listener_and_the_client_of_rping() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let (host, port) = (ip().to_string(), listener.local_addr().port().to_string());
    let (client, mut side, connection, first) = first_message(
        |channel, side| {
            let args = ["-c", "-a", &host, "-p", &port, "-C", "3", "-S", "64", "-v", "-V"];
            (Program::start("rping", &args), accept(channel, &listener, side, INFO, 2))
        },
        &mut channel,
    );
    let mut slot = region(&side, RemoteAccess::ReadSink).into_slots(PING, 1).unwrap().remove(0);
    let mut next = Some(first);
    for ping in 0..PINGS {
        let done = next.take().unwrap_or_else(|| side.expect(Op::Recv));
        slot = read(&mut side, slot, range_of(&done));
        let mut text = [0; PING];
        slot.copy_out(0, &mut text).unwrap();
        assert!(text.starts_with(format!("rdma-ping-{ping}: ").as_bytes()), "{text:?}");
        post_receives(&mut side, INFO, 1);
        side.send(&[0; INFO]); // Read; where shall it go?
        let done = side.expect(Op::Recv);
        post_receives(&mut side, INFO, 1);
        side.qp.post(Request::write(slot, PING, range_of(&done))).unwrap();
        slot = remote_slot(side.expect(Op::Write));
        side.send(&[0; INFO]); // Written; the next, please.
    }
    expect_disconnect(&mut channel, &connection);
    let said = client.success();
    assert!(said.contains("ping data: rdma-ping-2: "), "{said}");
}

fn read(side: &mut Side, slot: RemoteSlot, from: RemoteRange) -> RemoteSlot {
    side.qp.post(Request::read(slot, PING, from)).unwrap();
    remote_slot(side.expect(Op::Read))
}

fn remote_slot(done: Done) -> RemoteSlot {
    match done.into_payload().expect("what was posted").into_kind() {
        PayloadKind::Remote(slot) => slot,
        other => panic!("{other:?}"),
    }
}

/// Connects until the client's first message is heard.
///
/// Soft iWARP's accept does not look at a message that comes in the wrong moment until more follows, and a client that
/// waits for the answer sends no more (rdma-cm's own initiators do). Such a connect shows itself when the client is
/// killed: then the message is there. Anything else is a failure.
fn first_message(
    mut connect: impl FnMut(&mut EventChannel, &mut Side) -> (Program, Established<Acceptor>),
    channel: &mut EventChannel,
) -> (Program, Side, Established<Acceptor>, Done) {
    for _ in 0..5 {
        let mut side = Side::with_depth(16);
        let (client, connection) = connect(channel, &mut side);
        if let Some(done) = side.poll(Op::Recv, Duration::from_secs(2)) {
            assert!(done.status.is_ok(), "{}", done.status);
            return (client, side, connection, done);
        }
        assert_eq!(kind(), "siw", "the first message does not come");
        drop(client);
        side.expect(Op::Recv);
        expect_disconnect(channel, &connection);
    }
    panic!("five connects in a row whose first message was not looked at");
}
