//! What the device tests share: the device under test and one side of a connection.
#![allow(dead_code)] // Each test binary uses a part of it.

pub(crate) mod links;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_cm::{
    ConnParams, ConnectError, ConnectRequest, Established, EventChannel, Initiator, Listener,
    PrivateData, device_addresses,
};
use rdma_safe::{
    CompletionQueue, Context, Done, Op, ProtectionDomain, QpConfig, QueuePair, SendFlags, Wc,
};

/// Longer than anything that works takes, on a slow machine too.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: these tests need an RDMA device, named by RDMA_TEST_DEVICE and RDMA_TEST_ADDR")
    })
}

pub(crate) fn device() -> String {
    env("RDMA_TEST_DEVICE")
}

pub(crate) fn ip() -> IpAddr {
    env("RDMA_TEST_ADDR").parse().expect("RDMA_TEST_ADDR is an IP address")
}

pub(crate) fn addr(port: u16) -> SocketAddr {
    SocketAddr::new(ip(), port)
}

pub(crate) fn open() -> Context {
    let name = device();
    let found =
        rdma_safe::devices().expect("the list of devices").into_iter().find(|d| d.name() == name);
    found.unwrap_or_else(|| panic!("no device {name}")).open().expect("the device opens")
}

/// An address on the device's link that answers nothing, not even that it is not there.
pub(crate) fn silent_host() -> SocketAddr {
    let IpAddr::V4(own) = ip() else { panic!("the test address is IPv4") };
    let [a, b, c, _] = own.octets();
    let silent = IpAddr::from([a, b, c, 99]);
    let netdev = device_addresses(&device())
        .unwrap()
        .first()
        .expect("the device has an address")
        .netdev
        .clone();
    // A neighbour that is known and does not exist: packets leave and nobody takes them.
    let done = Command::new("ip")
        .args([
            "neigh",
            "replace",
            &silent.to_string(),
            "lladdr",
            "02:00:00:00:00:99",
            "dev",
            &netdev,
        ])
        .status();
    assert!(done.is_ok_and(|s| s.success()), "ip neigh replace failed; these tests run as root");
    SocketAddr::new(silent, 7471)
}

/// One side: a queue pair with a receive to post, on its own context.
pub(crate) struct Side {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: Context,
    waiting: Vec<Done>,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::with_depth(4)
    }

    /// With room for this many sends and as many receives.
    pub(crate) fn with_depth(depth: u32) -> Self {
        Self::on(open(), depth)
    }

    /// On this device.
    pub(crate) fn on(context: Context, depth: u32) -> Self {
        let pd = context.alloc_pd().unwrap();
        let channel = context.completion_channel().unwrap();
        let cq = context.create_cq_with(4 * depth, &channel).unwrap();
        let config = QpConfig { send_depth: depth, recv_depth: depth, ..QpConfig::default() };
        let qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
        Self { qp, cq, pd, context, waiting: Vec::new() }
    }

    pub(crate) fn post_recv(&mut self) {
        let slot = self.pd.slots(64, 1).unwrap().pop().unwrap();
        self.qp.post_recv(slot).map_err(|e| e.why).expect("a receive can be posted");
    }

    pub(crate) fn send(&mut self, text: &[u8]) {
        self.qp
            .post_inline(text, SendFlags::empty())
            .map_err(|e| e.why)
            .expect("a send can be posted");
    }

    /// The next completion of this kind, or none within `limit`. Those of the other kind wait: the order between the two
    /// queues is nobody's promise.
    pub(crate) fn poll(&mut self, op: Op, limit: Duration) -> Option<Done> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.waiting.iter().position(|done| done.op == op) {
                return Some(self.waiting.remove(at));
            }
            let mut wc = [Wc::empty()];
            let left = end.saturating_duration_since(Instant::now());
            if self.cq.poll_wait(&mut wc, left).unwrap() == 0 {
                return None;
            }
            self.waiting
                .push(self.qp.complete(&mut wc[0]).expect("a completion of our queue pair"));
        }
    }

    /// Waits for a completion of this kind, which must be a success.
    pub(crate) fn expect(&mut self, op: Op) -> Done {
        let done = self.poll(op, LIMIT).unwrap_or_else(|| panic!("no completion of {op:?}"));
        assert!(done.status.is_ok(), "{op:?}: {}", done.status);
        done
    }

    /// Waits for a message and checks its text.
    pub(crate) fn expect_message(&mut self, text: &[u8]) {
        let done = self.expect(Op::Recv);
        assert_eq!(&done.slot.expect("a receive has a slot")[..text.len()], text);
    }
}

/// Resolves, posts a receive and connects.
pub(crate) fn dial(
    channel: &mut EventChannel,
    side: &mut Side,
    to: SocketAddr,
) -> Established<Initiator> {
    try_dial(channel, side, to).unwrap()
}

fn try_dial(
    channel: &mut EventChannel,
    side: &mut Side,
    to: SocketAddr,
) -> Result<Established<Initiator>, ConnectError> {
    let connector = channel.resolve(None, to, LIMIT)?;
    channel.init_qp(&connector, &mut side.qp)?;
    side.post_recv();
    let params = ConnParams::with_private_data(PrivateData::framed(b"from the initiator").unwrap());
    channel.connect(connector, &mut side.qp, &params, LIMIT)
}

/// Dials with a new side, and with another one **only** when the kernel chose a source port that a TCP socket of some other
/// test has, which nobody can prevent: [`ConnectError::PortInUse`] tells where that comes from.
pub(crate) fn dial_around_tcp(
    channel: &mut EventChannel,
    to: SocketAddr,
) -> (Side, Established<Initiator>) {
    let mut side = Side::new();
    let connection = match try_dial(channel, &mut side, to) {
        Err(taken @ ConnectError::PortInUse { .. }) => {
            eprintln!("once more: {taken}");
            side = Side::new();
            dial(channel, &mut side, to)
        }
        other => other.unwrap(),
    };
    (side, connection)
}

pub(crate) fn next_request(channel: &mut EventChannel, listener: &Listener) -> ConnectRequest {
    channel.wait_request(listener, LIMIT).unwrap().expect("a request comes")
}

/// Runs both ends of a test in two threads; a panic in either fails it.
pub(crate) fn both(passive: impl FnOnce() + Send, active: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let passive = scope.spawn(passive);
        active();
        passive.join().unwrap();
    });
}
