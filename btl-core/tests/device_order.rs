//! A put and the message that tells of it, between two hosts on a bad cable: with the order kept, the bytes are there
//! whenever the message is; with the order switched off (the put on another lane), on iWARP they are not, although the
//! put was complete here.
//!
//! `RDMA_TEST_DEVICE` names the kind of soft device. The two hosts are network namespaces with a device each, which this
//! program makes and removes, so it needs root and a guest. netem delays and drops packets between them, and its own
//! counter has to show that it did.
mod device_support;

use btl_core::rma::RemoteRange;
use btl_core::verbs::{Selection, VerbsMemory};
use btl_core::{Config, Event, Sent};
use device_support::{
    Events, JOB, Node, Other, die, fill, lines_of, name, progress, selection, tell, watchdog,
};
use rdma_safe::RemoteAccess;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 64;
const HOSTS: [&str; 2] = ["rmahosta", "rmahostb"];
const NETDEVS: [&str; 2] = ["rmava", "rmavb"];
const DEVICES: [&str; 2] = ["rmada", "rmadb"];
const ADDRS: [&str; 2] = ["10.9.7.1", "10.9.7.2"];

/// What differs between the kinds of soft devices.
struct Kind {
    name: &'static str,
    /// Bytes of a put: under way for much longer than a message.
    size: usize,
    netem: &'static [&'static str],
    /// A completed put is in the peer's memory.
    placed: bool,
}

const SIW: Kind =
    Kind { name: "siw", size: 512 << 10, netem: &["delay", "2ms", "loss", "3%"], placed: false };
/// rxe waits half a second for what is lost at the end of a message.
const RXE: Kind =
    Kind { name: "rxe", size: 128 << 10, netem: &["delay", "1ms", "loss", "0.3%"], placed: true };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--first", size, broken] => first(size, *broken == "broken"),
        ["--second", size, addr] => second(size, addr),
        _ => parent(),
    }
}

fn parent() {
    let device = selection().device.unwrap_or_default();
    let kind = [SIW, RXE].into_iter().find(|kind| device.starts_with(kind.name));
    let kind = kind.unwrap_or_else(|| die(&format!("{device} is no soft device of a known kind")));
    let _hosts = Hosts::make(&kind);
    let mut failed = 0;
    for broken in [false, true] {
        let before = dropped();
        let incomplete = rounds(&kind, broken);
        let bite = dropped() - before;
        let rule = if broken { "broken" } else { "kept" };
        println!(
            "order {rule}: data incomplete at the message in {incomplete} of {ROUNDS} rounds of {} bytes; {bite} packets \
             dropped",
            kind.size
        );
        let expected = broken && !kind.placed;
        for (test, ok) in [
            ("the_cable_is_bad", bite > 0),
            ("data_is_there_when_it_must_be", (incomplete > 0) == expected),
        ] {
            println!("test {test}_with_the_order_{rule} ... {}", if ok { "ok" } else { "FAILED" });
            failed += u32::from(!ok);
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {} passed; {failed} failed", 4 - failed);
    if failed > 0 {
        std::process::exit(101);
    }
}

/// Runs both processes; returns the rounds in which bytes were missing.
fn rounds(kind: &Kind, broken: bool) -> u64 {
    let mut command = on_host(0);
    command.args(["--first", &kind.size.to_string(), if broken { "broken" } else { "kept" }]);
    let output = command.output().unwrap_or_else(|e| die(&format!("starting {command:?}: {e}")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = text.lines().find_map(|line| line.strip_prefix("incomplete ")?.parse().ok());
    match (output.status.success(), count) {
        (true, Some(count)) => count,
        _ => die(&format!("{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// This program on a host.
fn on_host(host: usize) -> Command {
    let exe = std::env::current_exe().unwrap_or_else(|e| die(&format!("current_exe: {e}")));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", HOSTS[host]]).arg(exe);
    command
}

/// Two hosts on one cable. Dropped, they are gone.
struct Hosts;

impl Hosts {
    fn make(kind: &Kind) -> Hosts {
        let hosts = Hosts;
        for host in HOSTS {
            must(&["ip", "netns", "add", host]);
            must(&["ip", "-n", host, "link", "set", "lo", "up"]);
        }
        let [a, b] = HOSTS;
        let [dev_a, dev_b] = NETDEVS;
        let pair = ["type", "veth", "peer", "name", dev_b, "netns", b];
        must(&[&["ip", "link", "add", dev_a, "netns", a][..], &pair].concat());
        for (n, host) in HOSTS.into_iter().enumerate() {
            must(&[
                "ip",
                "-n",
                host,
                "addr",
                "add",
                &format!("{}/24", ADDRS[n]),
                "dev",
                NETDEVS[n],
            ]);
            must(&["ip", "-n", host, "link", "set", NETDEVS[n], "up"]);
        }
        for (n, host) in HOSTS.into_iter().enumerate() {
            let link = ["rdma", "link", "add", DEVICES[n], "type", kind.name, "netdev", NETDEVS[n]];
            must(&[&["ip", "netns", "exec", host][..], &link].concat());
            let netem = ["tc", "qdisc", "add", "dev", NETDEVS[n], "root", "netem"];
            must(&[&["ip", "netns", "exec", host][..], &netem, kind.netem].concat());
            await_active(DEVICES[n]);
        }
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for device in DEVICES {
            let _ = Command::new("rdma").args(["link", "del", device]).status();
        }
        for host in HOSTS {
            let _ = Command::new("ip").args(["netns", "del", host]).status();
        }
    }
}

fn run(words: &[&str]) -> Result<String, String> {
    let Some((program, args)) = words.split_first() else { return Err("nothing to run".into()) };
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|e| format!("{words:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn must(words: &[&str]) -> String {
    run(words).unwrap_or_else(|e| die(&e))
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

/// Packets that netem has dropped on the first host's end of the cable.
fn dropped() -> u64 {
    let shown =
        must(&["ip", "netns", "exec", HOSTS[0], "tc", "-s", "qdisc", "show", "dev", NETDEVS[0]]);
    let mut words = shown.split_whitespace();
    words.find(|word| *word == "(dropped");
    let count = words.next().map(|word| word.trim_end_matches(','));
    count.and_then(|n| n.parse().ok()).unwrap_or_else(|| die(&format!("no counter in {shown}")))
}

fn open(host: usize, config: &Config) -> Node {
    let addr = ADDRS[host].parse().ok();
    let device = Some(DEVICES[host].to_owned());
    Node::open(&Selection { device, addr, ..Selection::default() }, config)
}

/// The process that puts.
fn first(size: &str, broken: bool) {
    watchdog(LIMIT, "the process that puts");
    let bytes: usize = size.parse().unwrap_or_else(|_| die(size));
    let mut config = Config::new(name(0), JOB);
    config.sabotage.puts_on_last_lane = broken;
    let mut node = open(0, &config);
    let mut command = on_host(1);
    command.args(["--second", size, &node.addr().to_string()]);
    let mut other = Other::start(command);
    let addr = other.hear_addr();
    let peer = node.engine.add_peer(name(1), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let there = ask(&mut node, peer, 0);
    let there = RemoteRange::from_bytes(&there[..].try_into().expect("20 bytes"));
    let slots = node.engine.port().protection_domain().slots(bytes, 1);
    let mut slot = slots.ok().and_then(|mut all| all.pop()).unwrap_or_else(|| die("no slot"));
    let mut incomplete = 0;
    for round in 1..=ROUNDS {
        fill(&mut slot, 0, round);
        let taken = node.engine.put(peer, slot.into(), bytes as u64, there, round);
        let taken = taken.unwrap_or_else(|e| die(&e.to_string()));
        assert!(round == 1 || taken == Sent::Posted);
        // With the order kept, the message may follow at once; with it broken, everything that a completion could
        // promise is waited for.
        let answer = if broken || round % 2 == 0 {
            slot = wait_done(&mut node);
            ask(&mut node, peer, round)
        } else {
            tell_round(&mut node, peer, round);
            let mut early = None;
            slot = wait_done_or(&mut node, &mut early);
            early.unwrap_or_else(|| wait_answer(&mut node))
        };
        incomplete += u64::from(answer != [0]);
        progress();
    }
    println!("incomplete {incomplete}");
    node.close();
    other.say("end");
    other.finish(Duration::from_secs(30));
}

fn tell_round(node: &mut Node, peer: btl_core::PeerId, round: u64) {
    let mut buf = node.engine.alloc(8).unwrap_or_else(|e| die(&e.to_string()));
    buf.copy_from_slice(&round.to_le_bytes());
    node.send(peer, 1, buf, 0);
}

fn ask(node: &mut Node, peer: btl_core::PeerId, round: u64) -> Vec<u8> {
    tell_round(node, peer, round);
    wait_answer(node)
}

fn wait_answer(node: &mut Node) -> Vec<u8> {
    node.wait("an answer", LIMIT, |node, event| match event {
        Event::Message { buf, .. } => {
            let answer = buf.to_vec();
            node.engine.release(buf);
            Some(answer)
        }
        other => ordinary(node, other),
    })
}

fn wait_done(node: &mut Node) -> rdma_safe::Slot {
    wait_done_or(node, &mut None)
}

/// Waits for the end of the put; an answer may come first.
fn wait_done_or(node: &mut Node, early: &mut Option<Vec<u8>>) -> rdma_safe::Slot {
    node.wait("the end of a put", LIMIT, |node, event| match event {
        Event::Done { memory: Some(VerbsMemory::Slot(slot)), result: Ok(()), .. } => Some(slot),
        Event::Message { buf, .. } => {
            *early = Some(buf.to_vec());
            node.engine.release(buf);
            None
        }
        other => ordinary(node, other),
    })
}

fn ordinary<T>(node: &mut Node, event: Events) -> Option<T> {
    match event {
        Event::Sent { buf: Some(buf), result: Ok(()), .. } => node.engine.free(buf),
        Event::PeerConnected { .. } => {}
        other => die(&format!("unexpected {other:?}")),
    }
    None
}

/// The process whose memory is written: looks at it when the message is there.
fn second(size: &str, addr: &str) {
    watchdog(LIMIT, "the process whose memory is written");
    let bytes: usize = size.parse().unwrap_or_else(|_| die(size));
    let mut node = open(1, &Config::new(name(1), JOB));
    let pd = node.engine.port().protection_domain();
    let region = pd.register_remote(vec![0; bytes].into(), RemoteAccess::Write);
    let region = region.unwrap_or_else(|e| die(&e.to_string()));
    tell(&node.addr().to_string());
    let addr: SocketAddr = addr.parse().unwrap_or_else(|_| die(addr));
    node.engine.add_peer(name(0), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let (mut expected, mut seen) = (vec![0; bytes], vec![0; bytes]);
    let lines = lines_of(std::io::stdin());
    while lines.try_recv().is_err() {
        match node.poll() {
            Some(Event::Message { peer, buf, .. }) => {
                let round = u64::from_le_bytes(buf[..8].try_into().unwrap_or_default());
                let answer = if round == 0 {
                    RemoteRange::from(region.remote()).to_bytes().to_vec()
                } else {
                    fill(&mut expected, 0, round);
                    let mut look = || {
                        region.copy_out(0, &mut seen).unwrap_or_else(|e| die(&e.to_string()));
                        seen == expected
                    };
                    let there = look();
                    // The next round begins when this one is over.
                    let end = Instant::now() + LIMIT;
                    while !look() {
                        if Instant::now() >= end {
                            die(&format!("the bytes of round {round} do not come"));
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    vec![u8::from(!there)]
                };
                node.engine.release(buf);
                let mut buf = node.engine.alloc(answer.len()).unwrap_or_else(|_| die("no buffer"));
                buf.copy_from_slice(&answer);
                node.send(peer, 2, buf, 0);
                progress();
            }
            Some(Event::Sent { buf: Some(buf), .. }) => node.engine.free(buf),
            Some(Event::PeerFailed { fault, .. }) => die(&fault.to_string()),
            _ => {}
        }
    }
    node.close();
}
