//! What the device tests share: the device under test, and waiting for completions within a limit.

#![allow(dead_code)] // each test binary uses its part

pub(crate) mod cm;
pub(crate) mod links;
pub(crate) mod under_test;

use rdma_safe::{CompletionQueue, Done, PollGroup, QueuePair, Wc};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// No wait of a test is longer than this.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Name of the device under test.
pub(crate) fn device_name() -> String {
    under_test::var("RDMA_TEST_DEVICE")
}

/// Its address.
pub(crate) fn address() -> Ipv4Addr {
    under_test::var("RDMA_TEST_ADDR").parse().expect("RDMA_TEST_ADDR is an IPv4 address")
}

/// Polls until `want` completions have come, redeeming each with the queue pair it belongs to.
pub(crate) fn redeem(
    cq: &mut CompletionQueue,
    qps: &mut [&mut QueuePair],
    want: usize,
) -> Vec<Done> {
    let end = Instant::now() + LIMIT;
    let mut done = Vec::new();
    let mut wcs: [Wc; 4] = Default::default();
    while done.len() < want {
        let n = cq.poll(&mut wcs).unwrap();
        for wc in &mut wcs[..n] {
            done.push(qps.iter_mut().find_map(|qp| qp.complete(wc)).expect("a completion of ours"));
        }
        if n == 0 {
            assert!(Instant::now() < end, "{} of {want} completions in {LIMIT:?}", done.len());
            std::thread::yield_now();
        }
    }
    done
}

/// Polls until a condition holds for the group; stray completions are handed to `see`.
pub(crate) fn spin(group: &mut PollGroup, mut see: impl FnMut(&mut PollGroup) -> bool) {
    let end = Instant::now() + LIMIT;
    while !see(group) {
        assert!(Instant::now() < end, "not within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Polls until the queue was seen empty, and returns what was in it.
pub(crate) fn drain(cq: &mut CompletionQueue) -> Vec<Wc> {
    let mut all = Vec::new();
    loop {
        let mut wcs: [Wc; 16] = Default::default();
        let n = cq.poll(&mut wcs).unwrap();
        if n == 0 {
            return all;
        }
        all.extend(wcs.into_iter().take(n));
    }
}
