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

/// The other kinds of requests allocate nothing either; shared slices and lists are made before.
#[test]
fn requests_of_every_kind_allocate_nothing() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(64).unwrap();
    let config = QpConfig { send_depth: 8, recv_depth: 8, max_send_sge: 2, ..QpConfig::default() };
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
    fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    b.mark_connected().unwrap();
    let memory = OwnedMemory::zeroed(256).unwrap();
    let region = pd.register_remote(memory, RemoteAccess::ReadWrite).unwrap();
    let to = region.remote();
    let shared = pd.register(vec![1; 100].into()).unwrap().into_shared();
    let mut list = SgList::new();
    for slot in pd.slots(64, 2).unwrap() {
        list.push(slot, 50).unwrap();
    }
    let mut kept = [Some(Payload::from(shared.slice(0, 64).unwrap())), Some(list.into())];
    let mut slots: [Option<Slot>; 2] = Default::default();
    for (place, slot) in slots.iter_mut().zip(pd.slots(128, 2).unwrap()) {
        *place = Some(slot);
    }
    let mut round = |measured: bool| {
        let posted = count(|| {
            let [slice, list] = kept.each_mut().map(|k| k.take().unwrap());
            a.post(Request::write(slice, 64, to)).unwrap();
            let PayloadKind::List(list) = list.into_kind() else { panic!("a list") };
            a.post(Request::write_list(list, to)).unwrap();
            let batch = slots.each_mut().map(|s| Request::write(s.take().unwrap(), 100, to));
            assert_eq!(a.post_batch(batch).unwrap(), 2);
        });
        fake.progress();
        let redeemed = count(|| {
            let mut wcs: [Wc; 4] = Default::default();
            assert_eq!(cq.poll(&mut wcs).unwrap(), 4);
            for (i, wc) in wcs.iter_mut().enumerate() {
                let done = a.complete(wc).unwrap();
                assert!(done.status.is_ok() && done.op == Op::Write);
                match i {
                    0 | 1 => kept[i] = done.payload,
                    _ => slots[i - 2] = done.slot,
                }
            }
        });
        assert!(!measured || (posted, redeemed) == (0, 0), "{posted} and {redeemed}");
    };
    for i in 0..100 {
        round(i > 3);
    }
    fake.check();
}
