//! Tests on a real device, one after the other, each with a second process where it needs one.
//! `RDMA_TEST_DEVICE` and `RDMA_TEST_ADDR` name the device; without one they fail.
//!
//! Runs without libtest because every test starts this program again as its peer. Arguments: parts
//! of test names. Some tests change the network (a neighbour entry, a link going down), so they
//! need root and a device that nobody else uses: a guest.
mod device_support;
#[path = "device_support/stranger.rs"]
mod stranger;
#[path = "device_tests/mod.rs"]
mod tests;

use device_support::{die, selection, watchdog};
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == "--peer") {
        watchdog(Duration::from_secs(120), "the peer of a device test");
        tests::peer(&args[1..]);
        return;
    }
    if args.first().is_some_and(|first| first == "--one") {
        let [_, name] = args.as_slice() else { die("--one NAME") };
        let Some((_, test)) = tests::ALL.iter().find(|(n, _)| n == name) else {
            die("no such test")
        };
        test();
        return;
    }
    // Without a device nothing below can run: one clear failure.
    let _ = selection();
    let wanted: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, _) in tests::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let start = Instant::now();
        let ok = one(name);
        let seconds = start.elapsed().as_secs_f64();
        println!("test {name} ... {} ({seconds:.1} s)", if ok { "ok" } else { "FAILED" });
        if ok { passed += 1 } else { failed.push(*name) }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {} failed", failed.len());
    if !failed.is_empty() || passed == 0 {
        std::process::exit(101);
    }
}

/// Runs one test in a process of its own, so that a failure ends only that.
fn one(name: &str) -> bool {
    let limit = Duration::from_secs(300);
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(e) => die(&format!("current_exe: {e}")),
    };
    let child = std::process::Command::new(exe).args(["--one", name]).spawn();
    let mut child = child.unwrap_or_else(|e| die(&format!("starting {name}: {e}")));
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                eprintln!("{name} did not end within {limit:?}");
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}
