//! Connections from programs that do not keep the protocol.
use crate::device_support::{JOB, Node, die, name, selection, watchdog};
use btl_core::error::FaultKind;
use btl_core::wire::{Greeting, PrivateData as Greet, RejectReason};
use btl_core::{Config, Event, SECOND};
use rdma_cm::{ConnParams, ConnectError, Established, EventChannel, Initiator, PrivateData};
use rdma_safe::{CompletionQueue, Context, Device, QpConfig, QueuePair, SendFlags, Slot, Wc};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection made by hand.
struct Stranger {
    cq: CompletionQueue,
    qp: QueuePair,
    slots: Vec<Slot>,
    channel: EventChannel,
    connection: Option<Established<Initiator>>,
}

const LIMIT: Duration = Duration::from_secs(10);

impl Stranger {
    fn new() -> Stranger {
        let device = selection().device.unwrap_or_default();
        let context: Context =
            Device::by_name(&device).and_then(|d| d.open()).unwrap_or_else(|e| die(&e.to_string()));
        let cq = context.create_cq(64).unwrap_or_else(|e| die(&e.to_string()));
        let pd = context.alloc_pd().unwrap_or_else(|e| die(&e.to_string()));
        let config = QpConfig { send_depth: 16, recv_depth: 16, max_inline: 0 };
        let made = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config);
        let qp = made.unwrap_or_else(|e| die(&e.to_string()));
        let slots = pd.slots(16 << 10, 20).unwrap_or_else(|e| die(&e.to_string()));
        let channel = EventChannel::new().unwrap_or_else(|e| die(&e.to_string()));
        Stranger { cq, qp, slots, channel, connection: None }
    }

    fn connect(&mut self, to: SocketAddr, data: &[u8]) -> Result<(), ConnectError> {
        let connector = self.channel.resolve(None, to, LIMIT)?;
        self.channel.init_qp(&connector, &mut self.qp)?;
        for slot in self.slots.drain(..16) {
            if let Err(e) = self.qp.post_recv(slot) {
                die(&format!("post_recv: {e}"));
            }
        }
        let data = PrivateData::raw(data).unwrap_or_default();
        let params = ConnParams::with_private_data(data);
        let done = self.channel.connect(connector, &mut self.qp, &params, LIMIT)?;
        self.connection = Some(done);
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) {
        let Some(mut slot) = self.slots.pop() else { die("no slot") };
        slot[..bytes.len()].copy_from_slice(bytes);
        if let Err(e) = self.qp.post_send(slot, bytes.len(), SendFlags::empty()) {
            die(&format!("post_send: {e}"));
        }
    }

    /// Successful receives so far.
    fn received(&mut self) -> usize {
        let mut wc: [Wc; 16] = std::array::from_fn(|_| Wc::empty());
        let n = self.cq.poll(&mut wc).unwrap_or_else(|e| die(&e.to_string()));
        let done = wc.iter_mut().take(n).filter_map(|wc| self.qp.complete(wc));
        done.filter(|done| done.op == rdma_safe::Op::Recv && done.status.is_ok()).count()
    }
}

/// The greeting of a process of the job that nobody announced.
fn greeting(rank: u32, config: &Config) -> Greet {
    let lane = config.lanes[0];
    Greeting {
        job: JOB,
        from: name(rank),
        to: config.me,
        class: 0,
        generation: 1,
        buffer_size: lane.buffer_size,
        depth: lane.depth,
    }
    .encode()
}

fn config() -> Config {
    let mut config = Config::new(name(0), JOB);
    config.t_first = 2 * SECOND;
    config
}

pub(crate) fn garbage_request() {
    watchdog(Duration::from_secs(60), "garbage request");
    let mut node = Node::open(&selection(), &config());
    for garbage in [&b""[..], b"x", &[0xff; 56], b"GET / HTTP/1.1\r\n"] {
        match Stranger::new().connect(node.addr(), garbage) {
            Err(ConnectError::Rejected { private_data, .. }) => {
                let reason = RejectReason::decode(&Greet::from_slice(private_data.as_bytes()));
                assert_eq!(reason, Some(RejectReason::Garbage));
            }
            other => die(&format!("{other:?}")),
        }
    }
    assert!(node.poll().is_none(), "the engine heard of it");
    node.close();
}

/// Connects, says nothing; is dropped after `t_first`.
pub(crate) fn no_hello() {
    watchdog(Duration::from_secs(60), "no Hello");
    let config = config();
    let mut node = Node::open(&selection(), &config);
    let mut stranger = Stranger::new();
    let connected = stranger.connect(node.addr(), greeting(9, &config).as_slice());
    connected.unwrap_or_else(|e| die(&e.to_string()));
    let start = Instant::now();
    let fault = node.wait("the fault", LIMIT, |_, event| match event {
        Event::NewPeer { name: n, .. } if n == name(9) => None,
        Event::PeerFailed { fault, .. } => Some(fault),
        other => die(&format!("unexpected {other:?}")),
    });
    assert_eq!(fault.kind, FaultKind::NoHello { seconds: 2 });
    assert!(start.elapsed() >= Duration::from_millis(1500), "too early: {:?}", start.elapsed());
    node.close();
}

pub(crate) fn garbage_hello() {
    watchdog(Duration::from_secs(60), "garbage Hello");
    let config = config();
    let mut node = Node::open(&selection(), &config);
    for (rank, garbage) in [(3, &b"x"[..]), (4, &[0xff; 64]), (5, &[0x13; 200])] {
        let mut stranger = Stranger::new();
        let connected = stranger.connect(node.addr(), greeting(rank, &config).as_slice());
        connected.unwrap_or_else(|e| die(&e.to_string()));
        stranger.send(garbage);
        let fault = node.wait("the fault", LIMIT, |_, event| match event {
            Event::NewPeer { .. } => None,
            Event::PeerFailed { fault, .. } => Some(fault),
            other => die(&format!("unexpected {other:?}")),
        });
        assert_eq!(fault.peer, name(rank));
        assert!(matches!(fault.kind, FaultKind::Protocol(_)), "{fault}");
    }
    node.close();
}

/// Rule 1 on a device: our side has a message to send, the connection is established, and nothing
/// is sent until the other side has.
pub(crate) fn acceptor_waits() {
    watchdog(Duration::from_secs(60), "acceptor waits");
    let config = Config::new(name(0), JOB);
    let mut node = Node::open(&selection(), &config);
    let mut stranger = Stranger::new();
    let connected = stranger.connect(node.addr(), greeting(9, &config).as_slice());
    connected.unwrap_or_else(|e| die(&e.to_string()));
    let peer = node.wait("the stranger", LIMIT, |_, event| match event {
        Event::NewPeer { peer, .. } => Some(peer),
        other => die(&format!("unexpected {other:?}")),
    });
    let Some(buf) = node.message(0, 1, 100) else { die("no buffer") };
    node.send(peer, 0, buf, 0);
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert!(node.poll().is_none(), "something happened before Hello");
        assert_eq!(stranger.received(), 0, "the acceptor sent before it received");
    }
    let closed = node.engine.stats().lanes_closed;
    assert_eq!(closed, 0, "the connection did not stand");
    drop(stranger);
    node.wait("the fault", LIMIT, |node, event| match event {
        Event::Sent { buf: Some(buf), .. } => {
            node.engine.free(buf);
            None
        }
        Event::PeerFailed { .. } => Some(()),
        other => die(&format!("unexpected {other:?}")),
    });
    node.close();
}
