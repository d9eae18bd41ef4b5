//! The loops on `ibverbs` 0.9.2. It has no inline sends, and no receive into memory but with a region and a range.
//!
//! Usage: `loops-ibverbs send|recv|window16|qps1000|empty COUNT`

use ibverbs::{CompletionQueue, MemoryRegion, QueuePair, ibv_qp_type, ibv_wc};

const WINDOW: usize = 16;
const QPS: usize = 1000;
const DEPTH: u32 = 64;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (scenario, count) = (args[1].as_str(), args[2].parse::<usize>().expect("a count"));
    let many = if scenario == "qps1000" { QPS } else { 1 };
    let devices = ibverbs::devices().expect("devices");
    let context = devices.get(0).expect("a device").open().expect("it opens");
    let cq = context.create_cq(many as i32 * 2 * DEPTH as i32, 0).expect("a completion queue");
    let pd = context.alloc_pd().expect("a protection domain");
    let mut qps: Vec<QueuePair<'_>> = (0..many)
        .map(|_| {
            let prepared = pd
                .create_qp(&cq, &cq, ibv_qp_type::IBV_QPT_RC)
                .set_max_send_wr(DEPTH)
                .set_max_recv_wr(DEPTH)
                .set_gid_index(0)
                .build()
                .expect("a queue pair");
            let peer = prepared.endpoint();
            prepared.handshake(peer).expect("a handshake")
        })
        .collect();
    let mut mr = pd.allocate::<u64>(8).expect("memory");
    let run: fn(&CompletionQueue<'_>, &mut [QueuePair<'_>], &mut MemoryRegion<u64>, usize) =
        match scenario {
            "send" => send,
            "recv" => recv,
            "window16" => window16,
            "qps1000" => qps1000,
            "empty" => empty,
            other => panic!("there is no {other}"),
        };
    run(&cq, &mut qps, &mut mr, count);
}

/// The id of one successful completion.
#[inline(always)]
fn poll_one(cq: &CompletionQueue<'_>, wcs: &mut [ibv_wc; 1]) -> u64 {
    loop {
        let done = cq.poll(wcs).expect("a poll");
        if let Some(wc) = done.first() {
            assert!(wc.is_valid());
            return wc.wr_id();
        }
    }
}

#[inline(never)]
fn send(
    cq: &CompletionQueue<'_>,
    qps: &mut [QueuePair<'_>],
    mr: &mut MemoryRegion<u64>,
    count: usize,
) {
    let (qp, mut wcs) = (&mut qps[0], [ibv_wc::default()]);
    for i in 0..count as u64 {
        // SAFETY: the region outlives the request, which is polled before the next.
        unsafe { qp.post_send(mr, ..1, i) }.expect("a post");
        poll_one(cq, &mut wcs);
    }
}

#[inline(never)]
fn recv(
    cq: &CompletionQueue<'_>,
    qps: &mut [QueuePair<'_>],
    mr: &mut MemoryRegion<u64>,
    count: usize,
) {
    let (qp, mut wcs) = (&mut qps[0], [ibv_wc::default()]);
    for i in 0..count as u64 {
        // SAFETY: as in `send`.
        unsafe { qp.post_receive(mr, ..8, i) }.expect("a post");
        poll_one(cq, &mut wcs);
    }
}

#[inline(never)]
fn window16(
    cq: &CompletionQueue<'_>,
    qps: &mut [QueuePair<'_>],
    mr: &mut MemoryRegion<u64>,
    count: usize,
) {
    let (qp, mut wcs) = (&mut qps[0], [ibv_wc::default(); WINDOW]);
    for i in 0..count / WINDOW {
        for j in 0..WINDOW {
            // SAFETY: as in `send`.
            unsafe { qp.post_send(mr, ..1, (i * WINDOW + j) as u64) }.expect("a post");
        }
        let mut got = 0;
        while got < WINDOW {
            let done = cq.poll(&mut wcs).expect("a poll");
            assert!(done.iter().all(ibv_wc::is_valid));
            got += done.len();
        }
    }
}

#[inline(never)]
fn qps1000(
    cq: &CompletionQueue<'_>,
    qps: &mut [QueuePair<'_>],
    mr: &mut MemoryRegion<u64>,
    count: usize,
) {
    let (mut done, mut wcs, mut q) = (vec![0u64; qps.len()], [ibv_wc::default()], 0);
    for _ in 0..count {
        // SAFETY: as in `send`.
        unsafe { qps[q].post_send(mr, ..1, q as u64) }.expect("a post");
        done[poll_one(cq, &mut wcs) as usize] += 1;
        q = if q + 1 == qps.len() { 0 } else { q + 1 };
    }
    std::hint::black_box(&done);
}

#[inline(never)]
fn empty(
    cq: &CompletionQueue<'_>,
    _qps: &mut [QueuePair<'_>],
    _mr: &mut MemoryRegion<u64>,
    count: usize,
) {
    let mut wcs = [ibv_wc::default(); WINDOW];
    for _ in 0..count {
        assert!(cq.poll(&mut wcs).expect("a poll").is_empty());
    }
}
