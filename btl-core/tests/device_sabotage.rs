//! Rule 1 switched off on a real device: the acceptor sends as soon as it has accepted. On iWARP
//! connects must break then, and with the rule on none may. `RDMA_TEST_DEVICE` and
//! `RDMA_TEST_ADDR` name the device; without one this fails.
mod device_support;
#[path = "device_support/stranger.rs"]
mod stranger;

use btl_core::verbs::{Selection, Transport};
use btl_core::{Config, Event};
use device_support::{JOB, Node, Other, die, lines_of, name, progress, selection, tell, watchdog};
use rdma_cm::ConnectError;
use std::net::SocketAddr;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;
use stranger::{Stranger, greeting};

/// Connects with the rule broken. Of 30, 12 broke on siw where this was first measured.
const BROKEN: u32 = 150;
/// Connects with the rule kept.
const KEPT: u32 = 1000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [peer, broken] = args.as_slice()
        && peer == "--peer"
    {
        watchdog(Duration::from_secs(60), "the acceptor");
        return accept(broken == "broken");
    }
    watchdog(Duration::from_secs(60), "the initiator");
    let iwarp = transport(&selection()).is_iwarp();
    let (broke, hung) = breaks(KEPT, "kept");
    println!("rule 1 kept: {broke} of {KEPT} connects broke, {hung} hung");
    let with_rule = broke + hung;
    let (without, hung) = breaks(BROKEN, "broken");
    println!("rule 1 broken: {without} of {BROKEN} connects broke, {hung} hung");
    let mut failed = u32::from(with_rule > 0);
    // RoCE has no such rule; there nothing may break either way.
    failed += u32::from(iwarp == (without == 0));
    for (name, bad) in [
        ("connects_stand_with_rule_1", with_rule > 0),
        ("connects_break_without_rule_1_where_it_holds", iwarp == (without == 0)),
    ] {
        println!("test {name} ... {}", if bad { "FAILED" } else { "ok" });
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {} passed; {failed} failed", 2 - failed);
    if failed > 0 {
        std::process::exit(101);
    }
}

fn transport(selection: &Selection) -> Transport {
    let mut node = Node::open(selection, &Config::new(name(9), JOB));
    node.close();
    node.published.transport
}

/// How many of `n` connects to an acceptor fail, and how many never end.
fn breaks(n: u32, rule: &str) -> (u32, u32) {
    let mut other = Other::peer(&[rule]);
    let addr: SocketAddr = other.hear_addr();
    let config = Config::new(name(1), JOB);
    let (mut broke, mut hung) = (0, 0);
    for rank in 0..n {
        let mut stranger = Stranger::new();
        match stranger.connect(addr, greeting(2 + rank, &config).as_slice()) {
            Ok(()) => {}
            // CONNECT_ERROR: the first message was in the socket when the reply was read.
            Err(ConnectError::Failed { .. }) => broke += 1,
            // Seen with the rule off only, and rarely.
            Err(ConnectError::Timeout { .. }) => hung += 1,
            Err(e) => die(&format!("connect {rank}: {e}")),
        }
        drop(stranger);
        progress();
    }
    other.finish(Duration::from_secs(20));
    (broke, hung)
}

/// Accepts whoever comes.
fn accept(broken: bool) {
    let mut config = Config::new(name(1), JOB);
    config.sabotage.acceptor_sends_at_once = broken;
    let mut node = Node::open(&selection(), &config);
    tell(&node.addr().to_string());
    let lines = lines_of(std::io::stdin());
    loop {
        let event = node.poll();
        if event.is_some() {
            progress();
        }
        match event {
            Some(Event::PeerFailed { peer, .. }) => {
                node.engine.remove_peer(peer);
            }
            Some(Event::Message { buf, .. }) => node.engine.release(buf),
            Some(_) => {}
            None if matches!(lines.try_recv(), Err(TryRecvError::Disconnected)) => {
                eprintln!("acceptor: {}", node.report());
                return;
            }
            None => {}
        }
    }
}
