//! The loops on `sideway` 0.4.3 with its basic queues, which are those that every device has.
//!
//! Usage: `loops-sideway send|recv|window16|qps1000|empty COUNT`

use std::sync::Arc;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, GenericCompletionQueue, PollCompletionQueueError, WorkCompletionStatus,
};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::{DeviceContext, Mtu};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetInlineData,
    SetScatterGatherEntry, WorkRequestFlags,
};

const WINDOW: usize = 16;
const QPS: usize = 1000;
const DEPTH: u32 = 64;
const SIZE: usize = 64;

const OK: u32 = WorkCompletionStatus::Success as u32;

struct Memory {
    bytes: Vec<u8>,
    region: Arc<MemoryRegion>,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (scenario, count) = (args[1].as_str(), args[2].parse::<usize>().expect("a count"));
    let many = if scenario == "qps1000" { QPS } else { 1 };
    let devices = DeviceList::new().expect("devices");
    let context = devices.iter().next().expect("a device").open().expect("it opens");
    let pd = context.alloc_pd().expect("a protection domain");
    let cq = context
        .create_cq_builder()
        .setup_cqe(many as u32 * 2 * DEPTH)
        .build()
        .expect("a completion queue");
    let mut qps: Vec<BasicQueuePair> = (0..many).map(|_| connected(&context, &pd, &cq)).collect();
    let bytes = vec![0u8; SIZE];
    // SAFETY: the bytes live as long as the region.
    let region = unsafe { pd.reg_mr(bytes.as_ptr() as usize, SIZE, AccessFlags::LocalWrite) };
    let mut memory = Memory { bytes, region: region.expect("memory") };
    let run: fn(&BasicCompletionQueue, &mut [BasicQueuePair], &mut Memory, usize) = match scenario {
        "send" => send,
        "recv" => recv,
        "window16" => window16,
        "qps1000" => qps1000,
        "empty" => empty,
        other => panic!("there is no {other}"),
    };
    run(&cq, &mut qps, &mut memory, count);
}

fn connected(
    context: &Arc<DeviceContext>,
    pd: &Arc<ProtectionDomain>,
    cq: &Arc<BasicCompletionQueue>,
) -> BasicQueuePair {
    let cq = GenericCompletionQueue::from(Arc::clone(cq));
    let mut qp = pd
        .create_qp_builder()
        .setup_max_inline_data(32)
        .setup_send_cq(cq.clone())
        .setup_recv_cq(cq)
        .setup_max_send_wr(DEPTH)
        .setup_max_recv_wr(DEPTH)
        .build()
        .expect("a queue pair");
    let mut init = QueuePairAttribute::new();
    init.setup_state(QueuePairState::Init)
        .setup_pkey_index(0)
        .setup_port(1)
        .setup_access_flags(AccessFlags::LocalWrite);
    qp.modify(&init).expect("INIT");
    let gid = context.query_gid(1, 0).expect("an address");
    let mut address = AddressHandleAttribute::new();
    address
        .setup_dest_lid(1)
        .setup_port(1)
        .setup_service_level(0)
        .setup_grh_src_gid_index(0)
        .setup_grh_dest_gid(&gid)
        .setup_grh_hop_limit(1);
    let mut rtr = QueuePairAttribute::new();
    rtr.setup_state(QueuePairState::ReadyToReceive)
        .setup_path_mtu(Mtu::Mtu1024)
        .setup_dest_qp_num(qp.qp_number())
        .setup_rq_psn(0)
        .setup_max_dest_read_atomic(0)
        .setup_min_rnr_timer(0)
        .setup_address_vector(&address);
    qp.modify(&rtr).expect("RTR");
    let mut rts = QueuePairAttribute::new();
    rts.setup_state(QueuePairState::ReadyToSend)
        .setup_sq_psn(0)
        .setup_timeout(12)
        .setup_retry_cnt(7)
        .setup_rnr_retry(7)
        .setup_max_read_atomic(0);
    qp.modify(&rts).expect("RTS");
    qp
}

#[inline(always)]
fn post_send(qp: &mut BasicQueuePair, memory: &Memory, id: u64) {
    let mut guard = qp.start_post_send();
    guard
        .construct_wr(id, WorkRequestFlags::Signaled)
        .setup_send()
        .setup_inline_data(&memory.bytes[..8]);
    guard.post().expect("a post");
}

/// The id of one successful completion.
#[inline(always)]
fn poll_one(cq: &BasicCompletionQueue) -> u64 {
    loop {
        match cq.start_poll() {
            Ok(mut poller) => {
                let wc = poller.next().expect("a completion");
                assert_eq!(wc.status(), OK);
                return wc.wr_id();
            }
            Err(PollCompletionQueueError::CompletionQueueEmpty) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[inline(never)]
fn send(cq: &BasicCompletionQueue, qps: &mut [BasicQueuePair], memory: &mut Memory, count: usize) {
    for i in 0..count as u64 {
        post_send(&mut qps[0], memory, i);
        poll_one(cq);
    }
}

#[inline(never)]
fn recv(cq: &BasicCompletionQueue, qps: &mut [BasicQueuePair], memory: &mut Memory, count: usize) {
    for i in 0..count as u64 {
        let mut guard = qps[0].start_post_recv();
        let handle = guard.construct_wr(i);
        // SAFETY: the memory outlives the request, which is polled before the next.
        unsafe {
            handle.setup_sge(memory.region.lkey(), memory.bytes.as_mut_ptr() as u64, SIZE as u32)
        };
        guard.post().expect("a post");
        poll_one(cq);
    }
}

#[inline(never)]
fn window16(
    cq: &BasicCompletionQueue,
    qps: &mut [BasicQueuePair],
    memory: &mut Memory,
    count: usize,
) {
    for i in 0..count / WINDOW {
        for j in 0..WINDOW {
            post_send(&mut qps[0], memory, (i * WINDOW + j) as u64);
        }
        let mut got = 0;
        while got < WINDOW {
            if let Ok(poller) = cq.start_poll() {
                for wc in poller {
                    assert_eq!(wc.status(), OK);
                    got += 1;
                }
            }
        }
    }
}

#[inline(never)]
fn qps1000(
    cq: &BasicCompletionQueue,
    qps: &mut [BasicQueuePair],
    memory: &mut Memory,
    count: usize,
) {
    let (mut done, mut q) = (vec![0u64; qps.len()], 0);
    for _ in 0..count {
        post_send(&mut qps[q], memory, q as u64);
        done[poll_one(cq) as usize] += 1;
        q = if q + 1 == qps.len() { 0 } else { q + 1 };
    }
    std::hint::black_box(&done);
}

#[inline(never)]
fn empty(
    cq: &BasicCompletionQueue,
    _qps: &mut [BasicQueuePair],
    _memory: &mut Memory,
    count: usize,
) {
    for _ in 0..count {
        assert!(matches!(cq.start_poll(), Err(PollCompletionQueueError::CompletionQueueEmpty)));
    }
}
