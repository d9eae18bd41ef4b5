//! What a user sees of the commonest failures to connect: each says what, where and what to do. See `device.rs` for how to
//! run it. (Without any device: `no_device`; memory, queues and completions: rdma-safe's `texts` and `device_limits`.)
mod common;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use common::*;
use rdma_cm::blocking::{Caller, Config, Server};
use rdma_cm::*;

fn says(text: impl ToString, words: &[&str]) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn config() -> Config {
    Config { limit: LIMIT, ..Config::default() }
}

/// The other end of the device's link: an address of this host whose interface has no RDMA device.
fn other_end() -> SocketAddr {
    let IpAddr::V4(own) = ip() else { panic!("the test address is IPv4") };
    let [a, b, c, _] = own.octets();
    SocketAddr::from(([a, b, c, 2], 0))
}

/// Runs ip(8).
fn ip_command(args: &[&str]) {
    let done = Command::new("ip").args(args).status();
    assert!(done.is_ok_and(|s| s.success()), "ip {args:?} failed; these tests run as root");
}

#[test]
fn no_route() {
    // TEST-NET-2: nobody's.
    const NOWHERE: &str = "198.51.100.7";
    ip_command(&["route", "replace", "unreachable", NOWHERE]);
    let mut channel = EventChannel::new().unwrap();
    let to = SocketAddr::new(NOWHERE.parse().unwrap(), 7471);
    let error = channel.resolve(None, to, LIMIT).unwrap_err();
    says(&error, &["rdma_resolve_addr", NOWHERE, "no route", "ip route get"]);
    let error = Caller::dial(to, &config()).unwrap_err();
    says(&error, &[NOWHERE, "no route", "ip route get"]);
    ip_command(&["route", "del", "unreachable", NOWHERE]);
}

#[test]
fn no_listener() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 1).unwrap();
    let nobody = listener.local_addr();
    channel.destroy(listener);
    let error = Caller::dial(nobody, &config()).unwrap_err();
    assert!(matches!(error, ConnectError::Refused), "{error:?}");
    says(
        &error,
        &["connection refused", "nobody listens", "the server runs", "port it really has"],
    );
}

#[test]
fn an_address_on_no_device() {
    let mut channel = EventChannel::new().unwrap();
    let error = channel.listen(other_end(), 1).unwrap_err();
    let own = format!("{} has {}", device(), ip());
    says(&error, &["rdma_bind_addr", &other_end().to_string(), "no RDMA device", &own]);
    let error = channel.resolve(None, other_end(), LIMIT).unwrap_err();
    says(&error, &["rdma_resolve_addr", "no RDMA device", "ip route get", "rdma link"]);
    let error = channel.listen("192.0.2.1:0".parse().unwrap(), 1).unwrap_err();
    says(&error, &["192.0.2.1", "not an address of this host"]);
    // The kernel says the same of a port that a wildcard listener has.
    let every = ListenOptions { wildcard: true, ..ListenOptions::default() };
    let wildcard = channel.listen_with("0.0.0.0:0".parse().unwrap(), &every).unwrap();
    let error = channel.listen(addr(wildcard.local_addr().port()), 1).unwrap_err();
    says(&error, &["the port is taken", "wildcard"]);
}

#[test]
fn a_peer_that_has_gone() {
    let mut server = Server::bind(addr(0), &config()).unwrap();
    let to = server.local_addr();
    let serving =
        thread::spawn(move || server.accept().unwrap().expect("a caller").recv().map(|_| ()));
    let mut caller = Caller::dial(to, &config()).unwrap();
    // On RoCE the queue pair may tell before the connection manager does.
    says(caller.call(b"anybody?").unwrap_err(), &["connect a"]);
    serving.join().unwrap().unwrap();
    says(caller.call(b"and now?").unwrap_err(), &["connect a"]);
}

#[test]
fn a_silent_host() {
    let limit = std::time::Duration::from_millis(300);
    let error = Caller::dial(silent_host(), &Config { limit, ..config() }).unwrap_err();
    says(&error, &["300ms", "keeps silent"]);
}

/// Set in the process of another user.
const CHILD: &str = "RDMA_CM_TEST_CHILD";
/// The user nobody.
const NOBODY: u32 = 65534;

#[test]
fn no_permission() {
    const FILE: &str = "/dev/infiniband/rdma_cm";
    let before = fs::metadata(FILE).unwrap().permissions();
    fs::set_permissions(FILE, fs::Permissions::from_mode(0o600)).expect("these tests run as root");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_right_to_open_is_the_users", "--test-threads=1"])
        .env(CHILD, "nobody")
        .uid(NOBODY)
        .output();
    fs::set_permissions(FILE, before).unwrap();
    let child = child.unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// Root may, whatever the mode; the user that `no_permission` starts this as may not.
#[test]
fn the_right_to_open_is_the_users() {
    let opened = EventChannel::new().map(drop);
    if std::env::var_os(CHILD).is_none() {
        return opened.unwrap();
    }
    let error = opened.unwrap_err();
    assert_eq!(error.errno(), Some(libc::EACCES), "{error:?}");
    says(&error, &["/dev/infiniband/rdma_cm", "may not open", "group", "0666"]);
}
