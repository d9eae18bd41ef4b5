//! Rails over two devices at once: one stream of messages, and puts in parts, over iWARP and RoCE between two hosts, every
//! byte and the order checked; then with the cable of either device pulled in the middle.
//!
//! The two hosts are network namespaces with a device of each kind, which this program makes and removes, so it needs root
//! and a guest with both kinds of soft devices. Arguments: parts of test names.
mod device_support;

use btl_core::rails::{
    Part, Rail, RailFault, RailState, Rails, RailsConfig, RailsEvent, RailsPeer, RailsPortEvent,
};
use btl_core::rma::RemoteRange;
use btl_core::verbs::{self, Idle, Selection, VerbsCm, VerbsPort};
use btl_core::{Config, Engine, SECOND};
use device_support::{
    JOB, Other, check, die, fill, lines_of, name, progress, selection, tell, watchdog,
};
use rdma_safe::{MemoryRegion, Remote, RemoteAccess};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const HOSTS: [&str; 2] = ["railhosta", "railhostb"];
const KINDS: [&str; 2] = ["siw", "rxe"];
/// Messages of the stream, and how many are not acknowledged at a time.
const MESSAGES: u64 = 120;
const DEPTH: u64 = 8;
/// Bytes shared on each rail.
const SHARED: usize = 1 << 20;
const ASK: u8 = 7;
/// Of no meaning, but long.
const WARM: u8 = 3;

/// What happens in the middle of the stream.
const TESTS: [(&str, Option<usize>); 3] = [
    ("one_stream_over_iwarp_and_roce", None),
    ("the_cable_of_the_iwarp_rail_is_pulled", Some(0)),
    ("the_cable_of_the_roce_rail_is_pulled", Some(1)),
];

fn netdev(host: usize, rail: usize) -> String {
    format!("rail{host}{rail}")
}

fn device(host: usize, rail: usize) -> String {
    format!("{}{}", ["ra", "rb"][host], KINDS[rail])
}

fn address(host: usize, rail: usize) -> String {
    format!("10.9.{}.{}", 20 + rail, host + 1)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--first", pull] => first(pull.parse().ok()),
        ["--second", addrs @ ..] => second(addrs),
        _ => parent(&words),
    }
}

fn parent(args: &[&str]) {
    // Without a device nothing below can run: one clear failure.
    let _ = selection();
    let wanted: Vec<&&str> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, 0);
    for (test, pull) in TESTS {
        if !wanted.is_empty() && !wanted.iter().any(|part| test.contains(**part)) {
            continue;
        }
        let _hosts = Hosts::make();
        let start = Instant::now();
        let mut command = on_host(0);
        command.args(["--first", &pull.map_or("none".to_owned(), |rail| rail.to_string())]);
        let ok = command.status().is_ok_and(|status| status.success());
        let seconds = start.elapsed().as_secs_f64();
        println!("test {test} ... {} ({seconds:.1} s)", if ok { "ok" } else { "FAILED" });
        *(if ok { &mut passed } else { &mut failed }) += 1;
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed");
    if failed > 0 || passed == 0 {
        std::process::exit(101);
    }
}

/// This program on a host.
fn on_host(host: usize) -> Command {
    let exe = std::env::current_exe().unwrap_or_else(|e| die(&format!("current_exe: {e}")));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", HOSTS[host]]).arg(exe);
    command
}

/// Two hosts on two cables. Dropped, they are gone.
struct Hosts;

impl Hosts {
    fn make() -> Hosts {
        let hosts = Hosts;
        for host in HOSTS {
            must(&format!("ip netns add {host}"));
            must(&format!("ip -n {host} link set lo up"));
        }
        let [a, b] = HOSTS;
        for (rail, kind) in KINDS.into_iter().enumerate() {
            let (dev_a, dev_b) = (netdev(0, rail), netdev(1, rail));
            must(&format!("ip link add {dev_a} netns {a} type veth peer name {dev_b} netns {b}"));
            for (n, host) in HOSTS.into_iter().enumerate() {
                let (dev, addr) = (netdev(n, rail), address(n, rail));
                must(&format!("ip -n {host} addr add {addr}/24 dev {dev}"));
                must(&format!("ip -n {host} link set {dev} up"));
            }
            for (n, host) in HOSTS.into_iter().enumerate() {
                let (dev, it) = (netdev(n, rail), device(n, rail));
                must(&format!("ip netns exec {host} rdma link add {it} type {kind} netdev {dev}"));
                await_active(&it);
            }
        }
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (host, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let _ = Command::new("rdma").args(["link", "del", &device(host, rail)]).status();
        }
        for host in HOSTS {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
        }
    }
}

fn must(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    match Command::new(program).args(words).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => die(&format!("{command}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(e) => die(&format!("{command}: {e}")),
    }
}

fn await_active(device: &str) {
    let path = format!("/sys/class/infiniband/{device}/ports/1/state");
    let end = Instant::now() + Duration::from_secs(10);
    while !std::fs::read_to_string(&path).is_ok_and(|state| state.contains("ACTIVE")) {
        if Instant::now() >= end {
            die(&format!("{device} does not become active"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

type VerbsRails = Rails<VerbsPort, VerbsCm>;
type Events = RailsPortEvent<VerbsPort>;

/// The rails of a process, with their clock.
struct Node {
    rails: VerbsRails,
    addrs: Vec<Vec<SocketAddr>>,
    /// Memory of each rail that the other side may write.
    shared: Vec<MemoryRegion<Remote>>,
    start: Instant,
    idle: Idle,
}

impl Node {
    fn open(host: usize) -> Node {
        let (mut rails, mut addrs, mut shared) = (Vec::new(), Vec::new(), Vec::new());
        for rail in 0..KINDS.len() {
            let label = device(host, rail);
            let config = Config::new(name(host as u32), JOB);
            let selection = Selection { device: Some(label.clone()), ..Selection::default() };
            let (port, cm, published) =
                verbs::open(&selection, &config).unwrap_or_else(|e| die(&format!("{label}: {e}")));
            let region = port.protection_domain();
            let region = region.register_remote(vec![0; SHARED].into(), RemoteAccess::Write);
            shared.push(region.unwrap_or_else(|e| die(&e.to_string())));
            let engine = Engine::new(config, port, cm).unwrap_or_else(|e| die(&e.to_string()));
            addrs.push(published.addrs);
            rails.push(Rail { label, engine, bandwidth: 1000, latency: 20_000 });
        }
        let config =
            RailsConfig { t_stall: 2 * SECOND, t_rejoin: 600 * SECOND, ..RailsConfig::default() };
        let rails = Rails::new(config, rails).unwrap_or_else(|e| die(&e.to_string()));
        Node { rails, addrs, shared, start: Instant::now(), idle: Idle::default() }
    }

    fn poll(&mut self) -> Option<Events> {
        let now = self.start.elapsed().as_nanos() as u64;
        let event = self.rails.poll(now);
        if event.is_some() {
            progress();
        }
        self.idle.polled(event.is_some(), true);
        event
    }

    fn send(&mut self, peer: RailsPeer, tag: u8, data: Vec<u8>, cookie: u64) {
        self.rails.send(peer, tag, data, cookie).unwrap_or_else(|e| die(&e.to_string()));
    }

    fn close(mut self) {
        self.rails.close(self.start.elapsed().as_nanos() as u64);
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            match self.poll() {
                Some(RailsEvent::Closed) => return,
                Some(RailsEvent::Message { data, .. }) => self.rails.release(data),
                None if Instant::now() >= end => die("the close has no end"),
                _ => {}
            }
        }
    }
}

/// Lengths from nothing to 4 MiB.
fn length(seq: u64) -> usize {
    match seq % 8 {
        0 => 4 << 20,
        1 => 0,
        2 => 70_001,
        3 => 300_000,
        _ => (seq as usize * 977) % 20_000,
    }
}

/// The process that sends.
fn first(pull: Option<usize>) {
    watchdog(LIMIT, "the process that sends");
    let mut node = Node::open(0);
    let mut command = on_host(1);
    command.arg("--second").args(node.addrs.iter().map(|addrs| addrs[0].to_string()));
    let mut other = Other::start(command);
    let addrs: Vec<Vec<SocketAddr>> = KINDS.map(|_| vec![other.hear_addr()]).to_vec();
    let peer = node.rails.add_peer(name(1), &addrs).unwrap_or_else(|e| die(&e.to_string()));
    let ranges = ask_ranges(&mut node, peer);
    connect_all(&mut node, peer);
    let before = carried(&node);
    let mut downs = Vec::new();
    stream(&mut node, peer, pull, &mut downs);
    match pull {
        None => {
            both_carried(&node, before);
            put_in_parts(&mut node, peer, &ranges);
            assert!(downs.is_empty(), "{downs:?}");
        }
        Some(rail) => {
            assert!(
                downs.iter().any(|(at, _)| *at == rail),
                "rail {rail} was not dropped: {downs:?}"
            );
            assert!(downs.iter().all(|(at, _)| *at == rail), "a sound rail was dropped: {downs:?}");
            let state = node.rails.rail_state(peer, rail);
            assert!(matches!(state, Some(RailState::Down(_))), "{state:?}");
            println!("rail {rail} was dropped: {}", downs[0].1);
        }
    }
    println!("{:?}", node.rails.stats());
    node.close();
    other.say("end");
    other.finish(Duration::from_secs(30));
}

/// Where the other side's shared memory is, by rail.
fn ask_ranges(node: &mut Node, peer: RailsPeer) -> Vec<RemoteRange> {
    node.send(peer, ASK, Vec::new(), u64::MAX);
    loop {
        if let Some(RailsEvent::Message { data, .. }) = node.poll() {
            let ranges = data.chunks(RemoteRange::WIRE_LEN).map(|bytes| {
                RemoteRange::from_bytes(bytes.try_into().unwrap_or_else(|_| die("no range")))
            });
            let ranges = ranges.collect();
            node.rails.release(data);
            return ranges;
        }
    }
}

/// Sends until all rails are up: RoCE asks for a connection again only after seconds, if the first request is lost.
fn connect_all(node: &mut Node, peer: RailsPeer) {
    let up = |node: &Node, rail| node.rails.rail_state(peer, rail) == Some(RailState::Up);
    while !(0..KINDS.len()).all(|rail| up(node, rail)) {
        node.send(peer, WARM, vec![0; SHARED], u64::MAX);
        while !matches!(node.poll(), Some(RailsEvent::Sent { cookie: u64::MAX, .. })) {}
    }
}

/// Sends all messages; in the middle a cable is pulled.
fn stream(
    node: &mut Node,
    peer: RailsPeer,
    pull: Option<usize>,
    downs: &mut Vec<(usize, RailFault)>,
) {
    let (mut sent, mut over) = (0, 0);
    // The last answer of the other side says that it has checked everything.
    let mut checked = false;
    while over < MESSAGES || !checked || (pull.is_some() && downs.is_empty()) {
        while sent < MESSAGES && sent - over < DEPTH {
            if let Some(rail) = pull.filter(|_| sent == MESSAGES / 2) {
                must(&format!("ip link set {} down", netdev(0, rail)));
            }
            let mut data = vec![0; length(sent)];
            fill(&mut data, 1, sent);
            node.send(peer, 1, data, sent);
            sent += 1;
        }
        match node.poll() {
            Some(RailsEvent::Sent { cookie: u64::MAX, .. }) => {}
            Some(RailsEvent::Sent { cookie, result, .. }) => {
                assert_eq!((cookie, result), (over, Ok(())), "acknowledged in order");
                over += 1;
            }
            Some(RailsEvent::Message { data, .. }) => {
                assert_eq!(&data[..], b"all");
                checked = true;
                node.rails.release(data);
            }
            Some(RailsEvent::RailDown { rail, fault, .. }) => downs.push((rail, fault)),
            Some(RailsEvent::RailUp { .. }) | None => {}
            Some(other) => die(&format!("unexpected {other:?}")),
        }
    }
}

/// Bytes that each rail has carried.
fn carried(node: &Node) -> [u64; 2] {
    [0, 1].map(|rail| node.rails.engine(rail).map_or(0, |engine| engine.stats().bytes_sent))
}

/// Each rail carried a good part of the stream.
fn both_carried(node: &Node, before: [u64; 2]) {
    let all: u64 = (0..MESSAGES).map(|seq| length(seq) as u64).sum();
    for (rail, (now, before)) in carried(node).into_iter().zip(before).enumerate() {
        let bytes = now - before;
        println!("{} carried {bytes} of {all} bytes", device(0, rail));
        assert!(bytes > all / 20, "rail {rail} carried {bytes} of {all} bytes");
    }
}

/// A put divided over both rails, and a message that tells of it.
fn put_in_parts(node: &mut Node, peer: RailsPeer, ranges: &[RemoteRange]) {
    let shares = node.rails.shares(peer, 2 * SHARED as u64);
    assert_eq!(shares.len(), KINDS.len(), "{shares:?}");
    let mut parts = Vec::new();
    for share in &shares {
        let len = SHARED / 2;
        let engine = node.rails.engine(share.rail).unwrap_or_else(|| die("no such rail"));
        let slots = engine.port().protection_domain().slots(len, 1);
        let mut slot = slots.ok().and_then(|mut all| all.pop()).unwrap_or_else(|| die("no slot"));
        fill(&mut slot, 2, share.rail as u64);
        let remote = ranges[share.rail];
        parts.push(Part { rail: share.rail, memory: slot.into(), len: len as u64, remote });
    }
    node.rails.put(peer, parts, 5).unwrap_or_else(|e| die(&e.to_string()));
    loop {
        match node.poll() {
            Some(RailsEvent::Done { cookie: 5, parts, .. }) => {
                assert!(parts.iter().all(|part| part.result.is_ok()), "{parts:?}");
                node.send(peer, 2, Vec::new(), u64::MAX);
            }
            Some(RailsEvent::Message { data, .. }) => {
                assert_eq!(&data[..], b"there");
                return node.rails.release(data);
            }
            _ => {}
        }
    }
}

/// The process that checks.
fn second(addrs: &[&str]) {
    watchdog(LIMIT, "the process that checks");
    let mut node = Node::open(1);
    for addrs in &node.addrs {
        tell(&addrs[0].to_string());
    }
    let parse = |addr: &&str| vec![addr.parse().unwrap_or_else(|_| die(addr))];
    let addrs: Vec<Vec<SocketAddr>> = addrs.iter().map(parse).collect();
    node.rails.add_peer(name(0), &addrs).unwrap_or_else(|e| die(&e.to_string()));
    let lines = lines_of(std::io::stdin());
    let mut seen = 0;
    while lines.try_recv().is_err() {
        match node.poll() {
            Some(RailsEvent::Message { peer, tag: ASK, data }) => {
                node.rails.release(data);
                let ranges = node.shared.iter().map(|r| RemoteRange::from(r.remote()).to_bytes());
                let ranges = ranges.flatten().collect();
                node.send(peer, 0, ranges, u64::MAX);
            }
            Some(RailsEvent::Message { tag: WARM, data, .. }) => node.rails.release(data),
            Some(RailsEvent::Message { peer, tag: 1, data }) => {
                if data.len() != length(seen) || !check(&data, 1, seen) {
                    die(&format!("message {seen} is another one, of {} bytes", data.len()));
                }
                seen += 1;
                node.rails.release(data);
                if seen == MESSAGES {
                    node.send(peer, 0, b"all".to_vec(), u64::MAX);
                }
            }
            Some(RailsEvent::Message { peer, data, .. }) => {
                node.rails.release(data);
                for (rail, region) in node.shared.iter().enumerate() {
                    let mut bytes = vec![0; SHARED / 2];
                    region.copy_out(0, &mut bytes).unwrap_or_else(|e| die(&e.to_string()));
                    if !check(&bytes, 2, rail as u64) {
                        die(&format!(
                            "the put of rail {rail} is done, but its bytes are not there"
                        ));
                    }
                }
                node.send(peer, 0, b"there".to_vec(), u64::MAX);
            }
            Some(RailsEvent::PeerFailed { fault, .. }) => die(&fault.to_string()),
            _ => {}
        }
    }
    node.close();
}
