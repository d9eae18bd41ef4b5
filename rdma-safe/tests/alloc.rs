//! The message path allocates nothing. Alone in its process, because it counts what the process allocates.

mod fake;

use fake::Fake;
use rdma_safe::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of this thread while `f` runs.
fn count(f: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    f();
    COUNT.with(Cell::get) - before
}

const SIG: SendFlags = SendFlags::empty();

#[test]
fn posting_polling_and_redeeming_allocate_nothing() {
    assert_eq!(count(|| drop(std::hint::black_box(vec![1u8]))), 1, "the counter counts");
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut group = PollGroup::new(fake.ctx.create_cq(64).unwrap());
    let cq = group.cq_ref();
    let config = QpConfig { send_depth: 8, recv_depth: 8, max_inline: 64, ..QpConfig::default() };
    let mut a = pd.create_qp(&cq, &cq, &config).unwrap();
    let mut b = pd.create_qp(&cq, &cq, &config).unwrap();
    fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    b.mark_connected().unwrap();
    let a = group.adopt(a).map_err(|(_, e)| e).unwrap();
    let b = group.adopt(b).map_err(|(_, e)| e).unwrap();
    let mut pool = pd.slots(128, 8).unwrap();
    let mut round = |measured: bool| {
        let posted = count(|| {
            for _ in 0..3 {
                group.post_recv(b, pool.pop().unwrap()).unwrap();
            }
            group.post_send(a, pool.pop().unwrap(), 100, SIG).unwrap();
            group.post_send(a, pool.pop().unwrap(), 100, SendFlags::UNSIGNALLED).unwrap();
            group.post_inline(a, b"x", SIG).unwrap();
        });
        fake.progress();
        let polled = count(|| {
            while let Some(c) = group.poll().unwrap() {
                pool.extend(c.slot);
            }
            while let Some(s) = group.qp_mut(a).and_then(QueuePair::reclaim) {
                pool.push(s);
            }
        });
        assert_eq!(pool.len(), 8);
        if measured {
            assert_eq!((posted, polled), (0, 0));
        }
    };
    // The fake's own queues grow in the first rounds.
    for _ in 0..3 {
        round(false);
    }
    for _ in 0..1000 {
        round(true);
    }
    fake.check();
}
