//! What becomes of connections when the network under them changes. Run as the tests in `device.rs`.
mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::links::{Cable, alone, ip_tool, is_alone};
use common::*;
use rdma_cm::*;
use rdma_safe::{Context, Device, Op};

fn cable_device() -> Context {
    Device::by_name(&Cable::device()).unwrap().open().unwrap()
}

/// A connection of the cable's device with itself, and both its ends.
struct Pair {
    channel: EventChannel,
    listener: Listener,
    one: Established<Initiator>,
    two: Established<Acceptor>,
    active: Side,
    passive: Side,
}

impl Pair {
    fn new() -> Self {
        Self::over(Cable::addr(0), &cable_device())
    }

    fn over(at: std::net::SocketAddr, context: &Context) -> Self {
        let mut channel = EventChannel::new().unwrap();
        let listener = channel.listen(at, 8).unwrap();
        let mut active = Side::on(context.clone(), 8);
        let mut passive = Side::on(context.clone(), 8);
        let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
        channel.init_qp(&connector, &mut active.qp).unwrap();
        active.post_recv();
        let params = ConnParams::default();
        let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
        let request = next_request(&mut channel, &listener);
        channel.init_qp(&request, &mut passive.qp).unwrap();
        for _ in 0..4 {
            passive.post_recv();
        }
        let accepting = channel.accept(request, &mut passive.qp, &params).unwrap();
        let one = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
        active.send(b"first");
        let two = channel.wait_established(accepting, LIMIT).unwrap();
        let mut pair = Self { channel, listener, one, two, active, passive };
        pair.hear(b"first");
        pair
    }

    /// Ends it; every receive that is still posted comes back.
    fn close(self) {
        let Self { mut channel, one, two, active, passive, .. } = self;
        channel.disconnect(&one).unwrap();
        for id in [one.key(), two.key()] {
            let event = channel.next_event(Some(LIMIT)).unwrap();
            assert!(matches!(event, Some(Event::Disconnected { .. })), "{id:?}: {event:?}");
        }
        for side in [active, passive] {
            let (_, posted) = side.qp.in_flight();
            assert_eq!(side.qp.close().unwrap().len(), posted);
        }
    }

    /// What became of a message that was sent while the network was away: it arrives, or its send says that it failed, and
    /// then the connection can be thrown away at once. It is never lost without a word.
    fn fate(mut self, text: &[u8]) {
        // That of the first message comes first.
        self.active.expect(Op::Send);
        let sent = self.active.poll(Op::Send, 2 * LIMIT).expect("its send completes");
        if sent.status.is_ok() {
            self.hear(text);
            self.close();
            return;
        }
        assert_eq!(self.active.qp.state(), rdma_safe::QpState::Error);
        let start = Instant::now();
        drop(self);
        assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    }

    fn hear(&mut self, text: &[u8]) {
        for _ in 0..3 {
            if let Some(done) = self.passive.poll(Op::Recv, Duration::from_millis(200)) {
                assert!(done.status.is_ok(), "{}", done.status);
                assert_eq!(done.message(), text);
                return;
            }
            self.active.qp.post_empty_write().unwrap();
        }
        self.passive.expect_message(text);
    }
}

/// Lays the cable in the parent and runs `child` in a process of its own, which must pass.
fn with_cable(test: &str, child: impl FnOnce()) {
    if is_alone() {
        return child();
    }
    let _cable = Cable::lay();
    let (passed, said) = alone(test, &[]).expect("this is the parent");
    assert!(passed, "{said}");
}

#[test]
fn an_interface_goes_down_and_comes_back() {
    with_cable("an_interface_goes_down_and_comes_back", || {
        let mut pair = Pair::new();
        ip_tool(&["link", "set", Cable::NETDEV, "down"]);
        let end = Instant::now() + LIMIT;
        while cable_device().port(1).unwrap().active {
            assert!(Instant::now() < end, "the port stays active");
        }
        pair.active.send(b"while down");
        // Nobody is told that the port is down, because it may come back.
        let event = pair.channel.next_event(Some(Duration::from_millis(300))).unwrap();
        assert!(event.is_none(), "{event:?}");
        ip_tool(&["link", "set", Cable::NETDEV, "up"]);
        Cable::wait_ready();
        pair.fate(b"while down");
        Pair::new().close();
    });
}

#[test]
fn an_address_goes_and_comes_back() {
    with_cable("an_address_goes_and_comes_back", || {
        let mut pair = Pair::new();
        let to = pair.listener.local_addr();
        ip_tool(&["addr", "del", Cable::CIDR, "dev", Cable::NETDEV]);
        pair.active.send(b"without address");
        let mut other = EventChannel::new().unwrap();
        let listen = other.listen(Cable::addr(0), 1).unwrap_err();
        assert_eq!(listen.errno(), Some(libc::EADDRNOTAVAIL), "{listen}");
        assert!(listen.to_string().contains("not an address of this host"), "{listen}");
        // Where it leads now depends on the routes of this host.
        let resolve = other.resolve(None, to, Duration::from_secs(1)).unwrap_err();
        assert!(matches!(resolve, Error::Os { .. } | Error::Timeout { .. }), "{resolve:?}");
        let trial = probe_loopback(&cable_device(), LIMIT).unwrap_err();
        assert_eq!(trial.errno(), Some(libc::EADDRNOTAVAIL), "{trial}");
        ip_tool(&["addr", "add", Cable::CIDR, "dev", Cable::NETDEV]);
        Cable::wait_ready();
        pair.fate(b"without address");
        Pair::new().close();
    });
}

/// A soft device is not torn away from under its users: the kernel waits for the last of them before it tells even rdma_cm
/// (ib_uverbs_remove_one), so no event comes, and what is open works on. librdmacm itself is such a user until the process
/// ends.
#[test]
fn a_device_is_deleted_with_everything_in_flight() {
    const TEST: &str = "a_device_is_deleted_with_everything_in_flight";
    if is_alone() {
        return deleted_under_a_connection();
    }
    for _ in 0..2 {
        let _cable = Cable::lay();
        let (passed, said) = alone(TEST, &[]).expect("this is the parent");
        assert!(passed, "{said}");
        // The process was its last user, so now the deletion that it started ends.
        let folder = format!("/sys/class/infiniband/{}", Cable::device());
        let end = Instant::now() + LIMIT;
        while Path::new(&folder).exists() {
            assert!(Instant::now() < end, "the device stays");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The next round makes one of the same name.
    }
}

fn deleted_under_a_connection() {
    let name = Cable::device();
    let mut pair = Pair::new();
    let waiting = pair.passive.qp.in_flight().1;
    let deletion = Command::new("rdma").args(["link", "delete", &name]).spawn();
    let mut deletion = deletion.expect("the rdma tool");
    let end = Instant::now() + LIMIT;
    let gone = loop {
        match Device::by_name(&name) {
            Err(gone) => break gone,
            Ok(_) => assert!(Instant::now() < end, "the device stays in the list"),
        }
    };
    assert_eq!(gone.kind(), rdma_safe::ErrorKind::NoDevice, "{gone}");
    assert!(gone.to_string().contains(&format!("no device \"{name}\"")), "{gone}");
    let event = pair.channel.next_event(Some(Duration::from_millis(300))).unwrap();
    assert!(event.is_none(), "{event:?}");
    // What was posted before and after still comes.
    pair.active.send(b"after the deletion");
    pair.hear(b"after the deletion");
    assert_eq!(pair.passive.qp.in_flight().1, waiting - 1);
    pair.close();
    // Other devices of this process are not concerned.
    Pair::over(addr(0), &open()).close();
    let ended = deletion.try_wait().unwrap();
    assert!(ended.is_none(), "librdmacm has let go of the device, or it was torn away: {ended:?}");
}
