//! IPv6 addresses, global and link-local, over a real device. The tests give the device's network interface the addresses
//! they need, and so run as root. See `device.rs` for how to run it.
mod common;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::process::Command;
use std::time::{Duration, Instant};

use common::*;
use rdma_cm::*;

const GLOBAL: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);

fn netdev() -> String {
    device_addresses(&device()).unwrap().first().expect("the device has an address").netdev.clone()
}

/// Gives the interface an address, if it has it not yet.
fn give(address: &str) {
    let done = Command::new("ip")
        .args(["-6", "addr", "replace", address, "dev", &netdev(), "nodad"])
        .status();
    assert!(done.is_ok_and(|s| s.success()), "ip addr replace failed; these tests run as root");
}

/// The device's address of this sort, once connections can use it: RoCE devices take a moment to have the GID.
fn own(wanted: impl Fn(&LocalAddress) -> bool) -> LocalAddress {
    let end = Instant::now() + LIMIT;
    loop {
        let found = device_addresses(&device()).unwrap().into_iter().find(|a| wanted(a));
        if let Some(found) = found {
            let mut channel = EventChannel::new().unwrap();
            match channel.listen(found.socket_addr(0), 1) {
                Ok(_) => return found,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        }
        assert!(Instant::now() < end, "the interface has no such address");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn global() -> SocketAddr {
    give("fd00:77::1/64");
    own(|a| a.addr == IpAddr::V6(GLOBAL)).socket_addr(0)
}

fn link_local() -> SocketAddr {
    give("fe80::77/64");
    own(|a| a.scope_id != 0 && a.addr == "fe80::77".parse::<IpAddr>().unwrap()).socket_addr(0)
}

/// Connects to a listener on `at` and sends both ways.
fn talk(at: SocketAddr, source: Option<SocketAddr>) {
    let mut passive = EventChannel::new().unwrap();
    let listener = passive.listen(at, 8).unwrap();
    let to = listener.local_addr();
    assert_eq!(to.ip(), at.ip());
    assert_ne!(to.port(), 0);
    let (mut channel, mut active, mut side) =
        (EventChannel::new().unwrap(), Side::new(), Side::new());
    let connector = channel.resolve(source, to, LIMIT).unwrap();
    assert_eq!(channel.device_name(&connector).as_deref(), Some(&*device()));
    channel.init_qp(&connector, &mut active.qp).unwrap();
    active.post_recv();
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let request = next_request(&mut passive, &listener);
    assert_eq!(request.local_addr().map(|a| (a.ip(), a.port())), Some((to.ip(), to.port())));
    assert_eq!(request.peer_addr().map(|a| a.ip()), Some(at.ip()));
    passive.init_qp(&request, &mut side.qp).unwrap();
    side.post_recv();
    let accepting = passive.accept(request, &mut side.qp, &params).unwrap();
    let connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    let _theirs = passive.wait_established(accepting, LIMIT).unwrap();
    active.send(b"six");
    side.expect_message(b"six");
    side.send(b"six too");
    active.expect_message(b"six too");
    channel.disconnect(&connection).unwrap();
}

#[test]
fn a_global_address_listens_and_is_dialled() {
    let at = global();
    talk(at, None);
    talk(at, Some(at));
}

#[test]
fn a_link_local_address_listens_and_is_dialled_within_its_scope() {
    let at = link_local();
    let SocketAddr::V6(v6) = at else { panic!("{at}") };
    assert_ne!(v6.scope_id(), 0);
    talk(at, None);
}

#[test]
fn a_link_local_address_without_scope_is_explained() {
    let SocketAddr::V6(v6) = link_local() else { panic!("IPv6") };
    let bare = SocketAddr::V6(SocketAddrV6::new(*v6.ip(), 7471, 0, 0));
    let mut channel = EventChannel::new().unwrap();
    let connector = channel.connector().unwrap();
    for refused in [
        channel.listen(bare, 8).map(|_| ()).unwrap_err(),
        channel.bind_source(&connector, bare).unwrap_err(),
    ] {
        assert!(refused.to_string().contains("needs its scope"), "{refused}");
    }
}

#[test]
fn another_familys_source_is_refused() {
    let to = global();
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(to, 8).unwrap();
    let start = Instant::now();
    let refused = channel.resolve(Some(addr(0)), listener.local_addr(), LIMIT).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::EINVAL), "{refused}");
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn addresses_of_the_device_are_told_with_their_scope() {
    let (global, local) = (global(), link_local());
    let known = local_addresses(&open()).unwrap();
    for (address, scoped) in [(global, false), (local, true)] {
        let found = known.iter().find(|a| a.addr == address.ip()).unwrap();
        assert_eq!(found.scope_id != 0, scoped);
        assert_eq!(
            found.socket_addr(9),
            SocketAddr::new(address.ip(), 9).with_scope(found.scope_id)
        );
    }
    assert!(known.first().unwrap().addr.is_ipv4(), "IPv4 comes first: {known:?}");
}

trait WithScope {
    fn with_scope(self, scope: u32) -> Self;
}

impl WithScope for SocketAddr {
    fn with_scope(mut self, scope: u32) -> Self {
        if let SocketAddr::V6(v6) = &mut self {
            v6.set_scope_id(scope);
        }
        self
    }
}
