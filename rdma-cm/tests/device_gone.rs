//! The device is removed under a process that has ids in every state on it. Alone in its file: it takes the device away, and
//! puts it back. See `device.rs` for how to run it.
mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use rdma_cm::*;

const CHILD: &str = "RDMA_CM_TEST_CHILD";

/// What the other process does: it has ids in every state, and lets go of them while the device is going.
///
/// librdmacm keeps a device open as long as its process lives, and soft devices wait for the last who has them open, before
/// the connection manager is told: so this cannot be the process that removes the device, and no DEVICE_REMOVAL comes.
#[test]
fn the_other_process() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let tell = |text: &str| {
        println!("child: {text}");
        std::io::stdout().flush().unwrap();
    };
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    let (mut active, mut passive) = (Side::new(), Side::new());
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    channel.init_qp(&connector, &mut active.qp).unwrap();
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let request = next_request(&mut channel, &listener);
    channel.init_qp(&request, &mut passive.qp).unwrap();
    passive.post_recv();
    let accepting = channel.accept(request, &mut passive.qp, &params).unwrap();
    let connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    let theirs = channel.wait_established(accepting, LIMIT).unwrap();
    let routed = channel.resolve(None, to, LIMIT).unwrap();
    let bound = channel.connector().unwrap();
    channel.bind_source(&bound, addr(0)).unwrap();
    let group = (!active.context.transport().is_iwarp()).then(|| {
        let id = channel.datagram().unwrap();
        channel.bind_source(&id, addr(0)).unwrap();
        for group in ["239.77.1.1:0", "239.77.1.2:0"] {
            let group = group.parse().unwrap();
            channel.begin_join(&id, group, Membership::Full).unwrap();
        }
        id
    });
    tell("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let start = Instant::now();
    drop(group);
    drop((connection, theirs, routed, bound, listener));
    assert_eq!(channel.id_count(), 0);
    drop((active, passive, channel));
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    tell("gone");
}

fn rdma(args: &[&str]) -> std::process::Child {
    Command::new("rdma").args(args).stdout(Stdio::piped()).spawn().expect("iproute2's `rdma`")
}

#[test]
fn letting_go_while_the_device_goes_hangs_nothing() {
    let name = device();
    let known = device_addresses(&name).unwrap();
    let netdev = known.first().expect("the device has an address").netdev.clone();
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
        .env(CHILD, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = || {
        lines.find_map(|line| line.unwrap().split_once("child: ").map(|(_, text)| text.to_owned()))
    };
    assert_eq!(said().as_deref(), Some("ready"));
    let mut removal = rdma(&["link", "del", &name]);
    let end = Instant::now() + LIMIT;
    // The name disappears while the command still waits.
    while rdma_safe::devices().unwrap().iter().any(|d| d.name() == name) {
        assert!(Instant::now() < end, "the device stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(removal.try_wait().unwrap().is_none(), "it waits for the other process");
    child.stdin.take().unwrap().write_all(b"now\n").unwrap();
    assert_eq!(said().as_deref(), Some("gone"));
    assert!(child.wait().unwrap().success());
    finish(removal);
    finish(rdma(&["link", "add", &name, "type", &kind, "netdev", &netdev]));
    // Usable again, by a process that had nothing to do with it before.
    let end = Instant::now() + LIMIT;
    let mut channel = EventChannel::new().unwrap();
    while let Err(error) = channel.listen(addr(0), 8) {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn finish(mut command: std::process::Child) {
    let end = Instant::now() + LIMIT;
    while command.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "`rdma` hangs: something still has the device open");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(command.wait().unwrap().success());
}
