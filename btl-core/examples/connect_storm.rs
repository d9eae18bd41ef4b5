//! Two processes connect again and again, in both roles and on all lanes, then exchange many
//! messages and check every byte. Prints `OK connects=N messages=M` and nothing was lost.
//!
//! ```text
//! connect_storm [--device NAME] [--addr IP] [--connects N] [--messages M]
//!               [--peer-device NAME] [--peer-addr IP] [--via "COMMAND PREFIX"] [--stall SECONDS]
//!               [--starter first|second|both|all]
//! ```
//! The second process is started by the first, through `--via` if given: with
//! `--via "ip netns exec B" --peer-device siwb --peer-addr 10.9.0.2` it lives in another network
//! namespace. The defaults are `RDMA_TEST_DEVICE` and `RDMA_TEST_ADDR` for both.
#[path = "../tests/device_support/mod.rs"]
mod support;

use btl_core::verbs::Selection;
use btl_core::{Config, Event, PeerId};
use std::cell::Cell;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Events, JOB, Node, Other, check, die, lines_of, name, progress, tell, watchdog};

/// Messages sent and not completed at a time, per class.
const WINDOW: u64 = 32;
/// One message in so many uses the large lane.
const LARGE_EVERY: u64 = 64;
const CLASSES: usize = 2;

struct Args {
    connects: u64,
    messages: u64,
    stall: Duration,
    /// Who connects: "first", "second", "both" at once, or "all" in turn.
    starter: String,
    selection: Selection,
    peer_device: Option<String>,
    peer_addr: Option<String>,
    via: Vec<String>,
    /// Set in the second process: where the first listens.
    first: Option<SocketAddr>,
}

fn parse<T: std::str::FromStr>(flag: &str, text: &str) -> T {
    text.parse().unwrap_or_else(|_| die(&format!("{flag} {text}: not a valid value")))
}

fn args() -> Args {
    let mut args = Args {
        connects: 200,
        messages: 20_000,
        stall: Duration::from_secs(60),
        starter: "all".into(),
        selection: Selection::default(),
        peer_device: None,
        peer_addr: None,
        via: Vec::new(),
        first: None,
    };
    let mut given = (None, None);
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().unwrap_or_else(|| die(&format!("{flag} needs a value")));
        match flag.as_str() {
            "--device" => given.0 = Some(value),
            "--addr" => given.1 = Some(parse(&flag, &value)),
            "--connects" => args.connects = parse(&flag, &value),
            "--messages" => args.messages = parse(&flag, &value),
            "--stall" => args.stall = Duration::from_secs(parse(&flag, &value)),
            "--starter" => args.starter = value,
            "--peer-device" => args.peer_device = Some(value),
            "--peer-addr" => args.peer_addr = Some(value),
            "--via" => args.via = value.split_whitespace().map(str::to_owned).collect(),
            "--first" => args.first = Some(parse(&flag, &value)),
            _ => die(&format!("unknown argument {flag}")),
        }
    }
    args.selection = match given {
        (None, None) => support::selection(),
        (device, addr) => Selection { device, addr, ..Selection::default() },
    };
    args
}

fn main() {
    let args = args();
    match args.first {
        None => first(&args),
        Some(addr) => second(&args, addr),
    }
}

fn open(args: &Args, rank: u32) -> Node {
    let node = Node::open(&args.selection, &Config::new(name(rank), JOB));
    eprintln!("rank {rank}: {} at {}", node.published.device, node.addr());
    node
}

/// The first process: starts the second and sets the pace.
fn first(args: &Args) {
    // The second process notices first, so that both can tell what they know.
    watchdog(args.stall + Duration::from_secs(3), "connect_storm, first process");
    let mut node = open(args, 0);
    let device = node.published.device.clone();
    let rnr_before = support::rnr_errors(&device);
    let mut other = start_second(args, node.addr());
    let addr = other.hear_addr();
    let start = Instant::now();
    let mut connects = 0;
    let mut round = 0;
    while connects < args.connects {
        let mut told = false;
        let starter = match args.starter.as_str() {
            "all" => ["first", "second", "both"][(round % 3) as usize],
            other => other,
        };
        other.say(&format!("round {round} {starter}"));
        connect_round(&mut node, addr, round, starter != "second", |complete| {
            let line = other.heard();
            if complete && !std::mem::replace(&mut told, true) {
                other.say("complete");
            }
            line
        });
        disconnect_round(&mut node, || other.heard().is_some());
        round += 1;
        connects = node.engine.stats().lanes_up;
        if round % 100 == 0 {
            let s = start.elapsed().as_secs_f64();
            eprintln!("{connects} connects in {s:.1} s ({:.0}/s)", connects as f64 / s);
        }
    }
    other.say(&format!("bulk {}", args.messages));
    bulk(&mut node, addr, 0, args.messages);
    other.say("end");
    node.close();
    other.finish(Duration::from_secs(30));
    let cm = node.engine.cm_mut().stats();
    eprintln!("{:?}\n{cm:?}", node.engine.stats());
    if cm.dials_failed + cm.accepts_failed > 0 {
        die(&format!("connects failed and were repeated: {cm:?}"));
    }
    if support::rnr_errors(&device) != rnr_before {
        die(&format!("receiver-not-ready errors: {rnr_before:?} before, now more"));
    }
    println!("OK connects={connects} messages={}", args.messages);
}

fn start_second(args: &Args, first: SocketAddr) -> Other {
    let exe = std::env::current_exe().unwrap_or_else(|e| die(&format!("current_exe: {e}")));
    let mut words = args.via.iter();
    let mut command = match words.next() {
        Some(program) => {
            let mut command = Command::new(program);
            command.args(words).arg(exe);
            command
        }
        None => Command::new(exe),
    };
    let mut own = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    };
    let s = &args.selection;
    // With an address of its own the second process finds its device by that.
    let device = args.peer_device.clone().or_else(|| match args.peer_addr {
        Some(_) => None,
        None => s.device.clone(),
    });
    own("--device", device);
    own("--addr", args.peer_addr.clone().or_else(|| s.addr.map(|a| a.to_string())));
    own("--first", Some(first.to_string()));
    own("--stall", Some(args.stall.as_secs().to_string()));
    Other::start(command)
}

/// The second process: does what the first one says.
fn second(args: &Args, first: SocketAddr) {
    watchdog(args.stall, "connect_storm, second process");
    let mut node = open(args, 1);
    tell(&node.addr().to_string());
    let lines = lines_of(std::io::stdin());
    loop {
        let line = node.wait_line(&lines);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["round", round, starter] => {
                let mut told = false;
                let round = parse("round", round);
                connect_round(&mut node, first, round, *starter != "first", |complete| {
                    if complete && !std::mem::replace(&mut told, true) {
                        tell("complete");
                    }
                    lines.try_recv().ok()
                });
                disconnect_round(&mut node, || true);
                tell("closed");
            }
            ["bulk", messages] => bulk(&mut node, first, 1, parse("bulk", messages)),
            ["end"] => break,
            other => die(&format!("not understood: {other:?}")),
        }
    }
    let cm = node.engine.cm_mut().stats();
    node.close();
    if cm.dials_failed + cm.accepts_failed > 0 {
        die(&format!("connects failed and were repeated: {cm:?}"));
    }
}

fn rank_of_peer(node: &Node, peer: PeerId) -> u32 {
    node.engine.peer_name(peer).map_or(u32::MAX, |name| name.rank)
}

/// Connects all lanes and sends one message on each, both ways. `signal(complete)` tells whether
/// this side is done and returns a line when the other is too.
fn connect_round(
    node: &mut Node,
    addr: SocketAddr,
    round: u64,
    starts: bool,
    mut signal: impl FnMut(bool) -> Option<String>,
) {
    let me = node.rank as u8;
    let peer_rank = u32::from(1 - me);
    let peer = add(node, peer_rank, addr);
    let (sent, got) = (Cell::new([false; CLASSES]), Cell::new([false; CLASSES]));
    // The second lane is asked for by both sides, one soon after the other.
    let cross = (round / 3).is_multiple_of(2);
    let mut posted = [false; CLASSES];
    let mut acknowledged = false;
    node.run(
        "a round of connects",
        Duration::from_secs(120),
        |node| {
            for (class, posted) in posted.iter_mut().enumerate() {
                // Who does not start answers: on the lane that was heard, or on all.
                let answers = match cross {
                    true => got.get().contains(&true),
                    false => got.get()[class],
                };
                if !*posted && (starts || answers) {
                    *posted = true;
                    let len = node.engine.max_payload(class as u8);
                    let len = if class == 0 { 100.min(len) } else { len };
                    match node.message(me, round * 2 + class as u64, len) {
                        Some(buf) => node.send(peer, class as u8, buf, class as u64),
                        None => die("no send buffer is free"),
                    }
                }
            }
            let complete = sent.get() == [true; CLASSES] && got.get() == [true; CLASSES];
            acknowledged |= signal(complete).is_some();
            complete && acknowledged
        },
        |node, event| match event {
            Event::Message { tag, buf, peer } => {
                let class = usize::from(tag);
                let seq = round * 2 + class as u64;
                if rank_of_peer(node, peer) != peer_rank || !check(&buf, 1 - me, seq) {
                    die(&format!("round {round}: a wrong message on lane {class}"));
                }
                if !mark(&got, class) {
                    die(&format!("round {round}: a message came twice on lane {class}"));
                }
                node.engine.release(buf);
            }
            Event::Sent { cookie, buf, result, .. } => {
                complete_send(node, buf, result);
                mark(&sent, cookie as usize);
            }
            other => uneventful(&other),
        },
    );
    node.engine.remove_peer(peer);
    progress();
}

/// Sets an entry; whether it was clear before.
fn mark(set: &Cell<[bool; CLASSES]>, at: usize) -> bool {
    let mut entries = set.get();
    let fresh = entries.get_mut(at).is_some_and(|entry| !std::mem::replace(entry, true));
    set.set(entries);
    fresh
}

/// Waits until every lane is closed here, and `signal` says that it is so on the other side.
fn disconnect_round(node: &mut Node, mut signal: impl FnMut() -> bool) {
    let mut other = false;
    node.run(
        "closing a round's lanes",
        Duration::from_secs(60),
        |node| {
            other |= signal();
            let stats = node.engine.stats();
            other && stats.lanes_up == stats.lanes_closed
        },
        |_, event| uneventful(&event),
    );
}

fn add(node: &mut Node, rank: u32, addr: SocketAddr) -> PeerId {
    let added = node.engine.add_peer(name(rank), &[addr]);
    let peer = added.unwrap_or_else(|e| die(&format!("adding rank {rank}: {e}")));
    node.peers = vec![peer];
    peer
}

fn complete_send(
    node: &mut Node,
    buf: Option<btl_core::SendBuf<support::Slot>>,
    result: Result<(), btl_core::error::PeerFault>,
) {
    if let Err(fault) = result {
        die(&format!("a message was not sent: {fault}"));
    }
    match buf {
        Some(buf) => node.engine.free(buf),
        None => die("the device kept a buffer"),
    }
}

fn uneventful(event: &Events) {
    match event {
        Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
        Event::PeerFailed { fault, .. } => die(&format!("{fault}")),
        other => die(&format!("unexpected {other:?}")),
    }
}

/// How long message `seq` of a class is.
fn length(class: usize, seq: u64, max: usize) -> usize {
    let x = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match class {
        0 if seq.is_multiple_of(256) => max,
        0 => 8 + (x as usize % 248),
        // Longer than lane 0 takes.
        _ => max - (x as usize % (max / 4)),
    }
}

/// Half of `messages` each way, in order on each lane, every byte checked.
fn bulk(node: &mut Node, addr: SocketAddr, me: u8, messages: u64) {
    let mine = if me == 0 { messages.div_ceil(2) } else { messages / 2 };
    let peer = add(node, u32::from(1 - me), addr);
    let total = messages / 2 + messages.div_ceil(2) - mine;
    // What is to be sent and received on each class.
    let share = |n: u64| [n - n / LARGE_EVERY, n / LARGE_EVERY];
    let (to_send, to_get) = (share(mine), share(total));
    let max = [0, 1].map(|class| node.engine.max_payload(class));
    let (mut sent, mut done, mut got) = ([0u64; CLASSES], [0u64; CLASSES], [0u64; CLASSES]);
    let start = Instant::now();
    let mut next_note = 100_000;
    loop {
        for class in 0..CLASSES {
            while sent[class] < to_send[class] && sent[class] - done[class] < WINDOW {
                let seq = sent[class];
                let len = length(class, seq, max[class]);
                let Some(buf) = node.message(me * 2 + class as u8, seq, len) else { break };
                node.send(peer, class as u8, buf, class as u64);
                sent[class] += 1;
            }
        }
        match node.poll() {
            Some(Event::Message { tag, buf, .. }) => {
                let class = usize::from(tag).min(CLASSES - 1);
                let seq = got[class];
                if buf.len() != length(class, seq, max[class])
                    || !check(&buf, (1 - me) * 2 + class as u8, seq)
                {
                    die(&format!("message {seq} on lane {class} is wrong or out of order"));
                }
                got[class] += 1;
                node.engine.release(buf);
                progress();
            }
            Some(Event::Sent { cookie, buf, result, .. }) => {
                complete_send(node, buf, result);
                done[(cookie as usize).min(CLASSES - 1)] += 1;
                progress();
            }
            Some(other) => uneventful(&other),
            None if done == to_send && got == to_get => return,
            None => {}
        }
        if me == 0 && got[0] + got[1] + done[0] + done[1] >= next_note {
            let s = start.elapsed().as_secs_f64();
            eprintln!("{next_note} messages in {s:.1} s ({:.0}/s)", next_note as f64 / s);
            next_note += 100_000;
        }
    }
}
