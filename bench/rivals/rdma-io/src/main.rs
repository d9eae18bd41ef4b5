//! The loops on `rdma-io` 0.0.2, its synchronous layer.
//!
//! Usage: `loops-rdma-io send|recv|window16|qps1000|empty COUNT`

use std::sync::Arc;

use rdma_io::cq::CompletionQueue;
use rdma_io::qp::{QpInitAttr, QueuePair};
use rdma_io::wc::WorkCompletion;
use rdma_io::wr::{RecvWr, SendFlags, SendWr, Sge, WrOpcode};

const WINDOW: usize = 16;
const QPS: usize = 1000;
const DEPTH: u32 = 64;
const SIZE: u32 = 64;

struct Memory {
    addr: u64,
    lkey: u32,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (scenario, count) = (args[1].as_str(), args[2].parse::<usize>().expect("a count"));
    let many = if scenario == "qps1000" { QPS } else { 1 };
    let context = Arc::new(rdma_io::device::open_first_device().expect("a device"));
    let cq = context.create_cq(many as i32 * 2 * DEPTH as i32).expect("a completion queue");
    let pd = context.alloc_pd().expect("a protection domain");
    let init = QpInitAttr {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_inline_data: 32,
        sq_sig_all: false,
        ..QpInitAttr::default()
    };
    let gid = context.query_gid(1, 0).expect("an address");
    let qps: Vec<QueuePair> = (0..many)
        .map(|_| {
            let qp = pd.create_qp(&cq, &cq, &init).expect("a queue pair");
            qp.to_init(1, 0, 0).expect("INIT");
            qp.to_rtr(qp.qp_num(), 0, &gid, 1).expect("RTR");
            qp.to_rts(0).expect("RTS");
            qp
        })
        .collect();
    let region = pd
        .reg_mr_owned(vec![0; SIZE as usize], rdma_io::mr::AccessFlags::LOCAL_WRITE)
        .expect("memory");
    let memory = Memory { addr: region.addr(), lkey: region.lkey() };
    let run: fn(&CompletionQueue, &[QueuePair], &Memory, usize) = match scenario {
        "send" => send,
        "recv" => recv,
        "window16" => window16,
        "qps1000" => qps1000,
        "empty" => empty,
        other => panic!("there is no {other}"),
    };
    run(&cq, &qps, &memory, count);
}

#[inline(always)]
fn post_send(qp: &QueuePair, memory: &Memory, id: u64) {
    let mut wr = SendWr::new(id, WrOpcode::Send)
        .flags(SendFlags::SIGNALED | SendFlags::INLINE)
        .sg(Sge::new(memory.addr, 8, memory.lkey));
    qp.post_send(&mut wr).expect("a post");
}

/// The id of one successful completion.
#[inline(always)]
fn poll_one(cq: &CompletionQueue, wcs: &mut [WorkCompletion; 1]) -> u64 {
    while cq.poll(wcs).expect("a poll") == 0 {}
    assert!(wcs[0].is_success());
    wcs[0].wr_id()
}

#[inline(never)]
fn send(cq: &CompletionQueue, qps: &[QueuePair], memory: &Memory, count: usize) {
    let mut wcs = [WorkCompletion::default()];
    for i in 0..count as u64 {
        post_send(&qps[0], memory, i);
        poll_one(cq, &mut wcs);
    }
}

#[inline(never)]
fn recv(cq: &CompletionQueue, qps: &[QueuePair], memory: &Memory, count: usize) {
    let mut wcs = [WorkCompletion::default()];
    for i in 0..count as u64 {
        let mut wr = RecvWr::new(i).sg(Sge::new(memory.addr, SIZE, memory.lkey));
        qps[0].post_recv(&mut wr).expect("a post");
        poll_one(cq, &mut wcs);
    }
}

#[inline(never)]
fn window16(cq: &CompletionQueue, qps: &[QueuePair], memory: &Memory, count: usize) {
    let mut wcs = [WorkCompletion::default(); WINDOW];
    for i in 0..count / WINDOW {
        for j in 0..WINDOW {
            post_send(&qps[0], memory, (i * WINDOW + j) as u64);
        }
        let mut got = 0;
        while got < WINDOW {
            let n = cq.poll(&mut wcs).expect("a poll");
            assert!(wcs[..n].iter().all(WorkCompletion::is_success));
            got += n;
        }
    }
}

#[inline(never)]
fn qps1000(cq: &CompletionQueue, qps: &[QueuePair], memory: &Memory, count: usize) {
    let (mut done, mut wcs, mut q) = (vec![0u64; qps.len()], [WorkCompletion::default()], 0);
    for _ in 0..count {
        post_send(&qps[q], memory, q as u64);
        done[poll_one(cq, &mut wcs) as usize] += 1;
        q = if q + 1 == qps.len() { 0 } else { q + 1 };
    }
    std::hint::black_box(&done);
}

#[inline(never)]
fn empty(cq: &CompletionQueue, _qps: &[QueuePair], _memory: &Memory, count: usize) {
    let mut wcs = [WorkCompletion::default(); WINDOW];
    for _ in 0..count {
        assert_eq!(cq.poll(&mut wcs).expect("a poll"), 0);
    }
}
