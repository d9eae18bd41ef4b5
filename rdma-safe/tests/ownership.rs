//! Who owns what, against a provider that fails in every way real ones do. No device needed.

mod fake;

use fake::Fake;
use fake::chaos::LeaksOnPurpose;
use fake::rig::Rig;
use rdma_safe::*;

const SIG: SendFlags = SendFlags::empty();

fn config(depth: u32) -> QpConfig {
    QpConfig { send_depth: depth, recv_depth: depth, max_inline: 64, ..QpConfig::default() }
}

/// Connects by number, and tells the queue pairs.
fn connect(fake: &Fake, a: &mut QueuePair, b: &mut QueuePair) {
    fake.connect(a.qp_num(), b.qp_num());
    for qp in [a, b] {
        qp.mark_connected().unwrap();
    }
}

fn rig() -> Rig {
    Rig::on(Fake::open(), 64, &config(8))
}

fn poll(cq: &mut CompletionQueue) -> Vec<Wc> {
    let mut all = Vec::new();
    loop {
        let mut wcs: [Wc; 5] = Default::default();
        let n = cq.poll(&mut wcs).unwrap();
        all.extend(wcs.into_iter().take(n));
        if n == 0 {
            return all;
        }
    }
}

#[test]
fn a_slot_goes_in_and_comes_back() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    let mut pool = pd.slots(128, 2).unwrap();
    for i in 0..500u64 {
        let recv = pool.pop().unwrap();
        b.post_recv(recv).unwrap();
        let mut send = pool.pop().unwrap();
        send[..8].copy_from_slice(&i.to_ne_bytes());
        a.post_send(send, 40 + (i % 2) as usize, SIG).unwrap();
        fake.progress();
        for wc in &mut poll(&mut cq) {
            let serial = wc.serial();
            let d = if serial == a.serial() { a.complete(wc) } else { b.complete(wc) }.unwrap();
            assert!(wc.is_spent());
            assert!(a.complete(wc).is_none() && b.complete(wc).is_none(), "spent");
            let slot = d.slot.unwrap();
            assert!(!fake.owns(&slot));
            if d.op == Op::Recv {
                assert_eq!(slot[..8], i.to_ne_bytes());
                assert_eq!(d.byte_len, 40 + (i % 2) as usize);
            }
            pool.push(slot);
        }
        assert_eq!(pool.len(), 2);
    }
    fake.check();
}

#[test]
fn a_failed_post_keeps_the_slot_until_the_destruction() {
    let Rig { mut a, mut b, cq: _cq, pd, fake } = rig();
    fake.state().faults.post_send_fails = true;
    let e = a.post_send(pd.slots(64, 1).unwrap().pop().unwrap(), 40, SIG).unwrap_err();
    assert_eq!(e.why, Why::Device(libc::ENOTCONN), "-1 means errno");
    assert!(e.slot.is_none(), "the request may be in the ring");
    fake.state().faults = Default::default();
    assert_eq!(a.post_inline(b"x", SIG).unwrap_err().why, Why::Broken);
    fake.state().faults.post_recv_fails = true;
    let e = b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap_err();
    assert_eq!((e.why, e.slot.is_none()), (Why::Device(libc::EINVAL), true));
    fake.state().faults = Default::default();
    assert_eq!(fake.state().alive().2, 2, "both regions are still registered");
    assert_eq!(a.close().unwrap().len(), 1);
    assert_eq!(b.close().unwrap().len(), 1);
    assert_eq!(fake.state().alive().2, 0);
    fake.check();
}

#[test]
fn a_failed_destroy_leaks_and_frees_nothing() {
    let _leaks = LeaksOnPurpose::new();
    for forget in [false, true] {
        let Rig { a, mut b, cq, pd, fake } = rig();
        let slot = pd.slots(64, 1).unwrap().pop().unwrap();
        let bytes = addresses(&slot);
        b.post_recv(slot).unwrap();
        fake.state().faults.destroy_qp_fails = libc::EIO;
        match forget {
            true => drop(b),
            false => {
                let e = b.close().unwrap_err();
                assert_eq!((e.kind(), e.errno()), (ErrorKind::DeviceGone, libc::EIO));
            }
        }
        fake.state().faults = Default::default();
        let alive = |fake: &Fake| fake.state().alive();
        drop((a, cq, pd));
        // The queue pair, its queue, region and domain live on, so what the device still writes is still there.
        assert_eq!(alive(&fake), (1, 1, 1, 1));
        assert!(fake.state().owns_range(bytes));
        fake.check();
    }
}

/// The addresses of a slot, to ask about after it is gone.
fn addresses(slot: &Slot) -> std::ops::Range<usize> {
    let r = slot.as_ptr_range();
    r.start.addr()..r.end.addr()
}

#[test]
fn a_failed_deregistration_leaks_the_memory() {
    let _leaks = LeaksOnPurpose::new();
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let slots = pd.slots(64, 4).unwrap();
    fake.state().faults.dereg_fails = true;
    drop(slots);
    drop(pd);
    assert_eq!(fake.state().alive(), (0, 0, 1, 1));
    fake.check();
}

/// The context stays open under an object that could not be destroyed.
#[test]
fn nothing_is_closed_under_a_survivor() {
    let _leaks = LeaksOnPurpose::new();
    let fake = Fake::open();
    drop((fake.ctx.alloc_pd().unwrap(), fake.ctx.create_cq(4).unwrap()));
    assert!(fake.closes_on_drop(), "the control");
    let fake = Fake::open();
    fake.state().faults.destroy_cq_fails = true;
    drop(fake.ctx.create_cq(4).unwrap());
    assert!(!fake.closes_on_drop());
    let fake = Fake::open();
    fake.state().faults.dealloc_fails = true;
    drop(fake.ctx.alloc_pd().unwrap());
    assert!(!fake.closes_on_drop());
}

#[test]
fn forgotten_objects_stay_whole() {
    let _leaks = LeaksOnPurpose::new();
    let Rig { mut a, mut b, cq, pd, fake } = rig();
    for s in pd.slots(64, 4).unwrap() {
        b.post_recv(s).unwrap();
    }
    std::mem::forget(b);
    drop((cq, pd));
    a.post_inline(b"hello", SIG).unwrap();
    assert_eq!(fake.progress(), 1, "into memory that is still registered");
    drop(a);
    fake.check();
}

#[test]
fn any_order_of_dropping_is_right() {
    // 4 objects, every order; the fake refuses or reports what is destroyed too early.
    for order in 0..24usize {
        let Rig { mut a, mut b, cq, pd, fake } = rig();
        for s in pd.slots(64, 4).unwrap() {
            b.post_recv(s).unwrap();
        }
        for s in pd.slots(64, 4).unwrap() {
            a.post_send(s, 50, SIG).unwrap();
        }
        fake.progress();
        let mut things: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(a), Box::new(b), Box::new(cq), Box::new(pd)];
        let mut n = order;
        for left in (1..=4).rev() {
            drop(things.swap_remove(n % left));
            n /= left;
            fake.progress();
        }
        assert_eq!(fake.state().alive(), (0, 0, 0, 0));
        fake.check();
    }
}

#[test]
fn slots_outlive_everything() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut slots = pd.slots(100, 3).unwrap();
    let ctx = fake.ctx.clone();
    drop((pd, ctx));
    let mut last = slots.pop().unwrap();
    drop(slots);
    last.fill(9);
    assert_eq!(last.len(), 100);
    assert_eq!(fake.state().alive(), (0, 0, 1, 1));
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(fake.state().alive(), (0, 0, 0, 0));
    fake.check();
}

#[test]
fn a_reused_number_gets_none_of_the_dead_ones_completions() {
    let Rig { a, mut b, mut cq, pd, fake } = rig();
    fake.state().faults.flush_on_destroy = true;
    for s in pd.slots(64, 8).unwrap() {
        b.post_recv(s).unwrap();
    }
    let (number, serial) = (b.qp_num(), b.serial());
    assert_eq!(b.close().unwrap().len(), 8);
    let mut c = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8)).unwrap();
    assert_eq!(c.qp_num(), number);
    assert_ne!(c.serial(), serial);
    c.mark_connected().unwrap();
    for s in pd.slots(64, 8).unwrap() {
        c.post_recv(s).unwrap();
    }
    let mut stale = poll(&mut cq);
    assert_eq!(stale.len(), 8);
    for wc in &mut stale {
        assert_eq!(wc.serial(), serial);
        assert!(c.complete(wc).is_none());
    }
    assert_eq!(c.in_flight(), (0, 8));
    assert_eq!(c.state(), QpState::ReadyToSend);
    drop((a, c));
    fake.check();
}

#[test]
fn a_completion_sent_twice_is_redeemed_once() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    fake.state().faults.duplicate = true;
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    a.post_inline(b"x", SIG).unwrap();
    fake.progress();
    let mut wcs = poll(&mut cq);
    assert_eq!(wcs.len(), 4);
    let redeemed = wcs.iter_mut().filter_map(|w| a.complete(w).or_else(|| b.complete(w))).count();
    assert_eq!(redeemed, 2);
    // The entry is used again, and the leftovers still name the earlier post.
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    assert!(wcs.iter_mut().all(|w| b.complete(w).is_none()));
    assert_eq!(b.in_flight(), (0, 1));
    fake.check();
}

#[test]
fn what_the_device_says_is_not_believed() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    let mut pool = pd.slots(64, 2).unwrap();
    b.post_recv(pool.pop().unwrap()).unwrap();
    fake.state().faults.byte_len = 1 << 30;
    a.post_inline(b"x", SIG).unwrap();
    fake.progress();
    let done: Vec<_> =
        poll(&mut cq).iter_mut().filter_map(|w| b.complete(w).or_else(|| a.complete(w))).collect();
    let recv = done.into_iter().find(|d| d.op == Op::Recv).unwrap();
    assert_eq!(recv.byte_len, 64, "bounded by the slot");
    // An unknown status is a failure: no length, and the queue pair takes no more posts.
    b.post_recv(pool.pop().unwrap()).unwrap();
    fake.state().faults.status = 0x7fff_ffff;
    a.post_inline(b"x", SIG).unwrap();
    fake.progress();
    for wc in &mut poll(&mut cq) {
        let d = b.complete(wc).or_else(|| a.complete(wc)).unwrap();
        assert!(!d.status.is_ok());
        assert_eq!(d.byte_len, 0);
        assert!(d.status.to_string().contains("unknown"));
    }
    assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error));
    fake.state().faults.poll_fails = -libc::EIO;
    assert_eq!(cq.poll(&mut [Wc::empty()]).unwrap_err().errno(), libc::EIO);
    fake.check();
}

#[test]
fn a_failed_queue_pair_gives_each_slot_back_once() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    for s in pd.slots(64, 8).unwrap() {
        b.post_recv(s).unwrap();
    }
    for s in pd.slots(64, 4).unwrap() {
        a.post_send(s, 40, SendFlags::UNSIGNALLED).unwrap();
    }
    fake.fail(b.qp_num());
    fake.fail(a.qp_num());
    let mut back = 0;
    for wc in poll(&mut cq).iter_mut().take(7) {
        let d = a.complete(wc).or_else(|| b.complete(wc)).unwrap();
        assert_eq!(d.status, WcStatus::WR_FLUSH_ERR);
        back += usize::from(d.slot.is_some());
    }
    while a.reclaim().is_some() {
        back += 1;
    }
    back += a.close().unwrap().len() + b.close().unwrap().len();
    assert_eq!(back, 12);
    fake.check();
}

#[test]
fn depth_is_booked_and_returns_after_an_empty_poll() {
    let fake = Fake::open();
    fake.state().faults.flush_on_destroy = true;
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(16).unwrap();
    for _ in 0..20 {
        let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8)).unwrap();
        let e = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(1)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::CqDepth);
        qp.mark_connected().unwrap();
        for s in pd.slots(64, 8).unwrap() {
            qp.post_recv(s).unwrap();
            qp.post_inline(b"x", SIG).unwrap();
        }
        drop(qp);
        assert!(pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8)).is_err());
        // A poll that takes what it asked for proves nothing; nor does the one that was under way during the burial.
        let mut wcs: [Wc; 8] = Default::default();
        assert_eq!(cq.poll(&mut wcs).unwrap(), 8);
        assert_eq!(cq.poll(&mut wcs).unwrap(), 8);
        assert_eq!(cq.cq_ref().depth(), (16, 16));
        assert_eq!(cq.poll(&mut wcs).unwrap(), 0);
        assert_eq!(cq.poll(&mut wcs).unwrap(), 0);
        assert_eq!(cq.cq_ref().depth(), (16, 0));
        fake.check();
    }
}

/// What never was in flight cannot complete: a dial that fails costs the queue nothing.
#[test]
fn only_what_was_in_flight_waits_for_an_empty_poll() {
    let fake = Fake::open();
    fake.state().faults.flush_on_destroy = true;
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(20).unwrap();
    for dead in 0..4 {
        let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8)).unwrap();
        qp.mark_connected().unwrap();
        qp.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
        assert_eq!(cq.cq_ref().depth(), (20, 16 + dead));
        drop(qp);
        assert_eq!(cq.cq_ref().depth(), (20, 1 + dead));
    }
    assert_eq!(poll(&mut cq).len(), 4);
    assert_eq!(poll(&mut cq).len(), 0);
    assert_eq!(cq.cq_ref().depth(), (20, 0));
    fake.check();
}

/// A queue pair that dies during a poll that found little may have added completions behind its back: that poll does
/// not bring the share back.
#[test]
fn a_poll_under_way_during_the_burial_proves_nothing() {
    let fake = Fake::open();
    fake.state().faults.flush_on_destroy = true;
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(16).unwrap();
    let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8)).unwrap();
    qp.mark_connected().unwrap();
    for s in pd.slots(64, 8).unwrap() {
        qp.post_recv(s).unwrap();
    }
    fake.state().during_poll = Some(Box::new(move || drop(qp)));
    let mut wcs: [Wc; 8] = Default::default();
    assert_eq!(cq.poll(&mut wcs).unwrap(), 0);
    assert_eq!(cq.cq_ref().depth(), (16, 8), "8 completions are in the queue");
    assert_eq!(cq.poll(&mut wcs).unwrap(), 8);
    assert_eq!(cq.poll(&mut wcs).unwrap(), 0);
    assert_eq!(cq.cq_ref().depth(), (16, 0));
    fake.check();
}

#[test]
fn a_refused_creation_books_nothing() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let (x, y) = (fake.ctx.create_cq(16).unwrap(), fake.ctx.create_cq(4).unwrap());
    assert!(pd.create_qp(&x.cq_ref(), &y.cq_ref(), &config(8)).is_err(), "the second does not fit");
    fake.state().faults.create_qp_fails = libc::ENOMEM;
    let e = pd.create_qp(&x.cq_ref(), &x.cq_ref(), &config(4)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    assert!(e.to_string().contains("RLIMIT_MEMLOCK"), "{e}");
    assert_eq!((x.cq_ref().depth(), y.cq_ref().depth()), ((16, 0), (4, 0)));
    fake.state().faults = Default::default();
    fake.state().faults.reg_mr_fails = true;
    let e = pd.slots(4096, 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    assert!(e.to_string().contains("RLIMIT_MEMLOCK"), "{e}");
    fake.check();
}

#[test]
fn states_only_go_forward() {
    let Rig { mut a, b, cq: _cq, pd: _pd, fake } = rig();
    let to = |state| {
        let attr = rdma_sys::ibv_qp_attr { qp_state: state, ..Default::default() };
        QpAttr::from_raw(attr, rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32)
    };
    use rdma_sys::ibv_qp_state as s;
    assert_eq!(a.modify(&to(s::IBV_QPS_RESET)).unwrap_err().kind(), ErrorKind::WrongState);
    let cap = rdma_sys::ibv_qp_attr_mask::IBV_QP_CAP.0 as i32;
    let e = a.modify(&QpAttr::from_raw(Default::default(), cap)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    a.to_error().unwrap();
    assert_eq!(a.modify(&to(s::IBV_QPS_RTS)).unwrap_err().kind(), ErrorKind::WrongState);
    assert_eq!(a.modify(&to(s::IBV_QPS_RESET)).unwrap_err().kind(), ErrorKind::WrongState);
    assert!(a.mark_connected().is_err());
    drop((a, b));
    fake.check();
}

#[test]
fn small_sends_go_inline_by_themselves() {
    let Rig { mut a, b: _b, cq: _cq, pd, fake } = rig();
    for len in [0, 1, 32, 33] {
        // The fake calls it a violation when up to 32 bytes are not inline.
        a.post_send(pd.slots(64, 1).unwrap().pop().unwrap(), len, SIG).unwrap();
    }
    fake.check();
}

#[test]
fn an_empty_write_takes_no_receive() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    for _ in 0..8 {
        a.post_empty_write().unwrap();
    }
    assert_eq!(a.post_empty_write().unwrap_err().why, Why::Full);
    fake.progress();
    for wc in &mut poll(&mut cq) {
        let d = a.complete(wc).unwrap();
        assert!(d.status.is_ok() && d.op == Op::Write && d.slot.is_none());
    }
    assert_eq!((a.in_flight(), b.in_flight()), ((0, 0), (0, 1)));
    a.to_error().unwrap();
    assert_eq!(a.post_empty_write().unwrap_err().why, Why::Broken);
    fake.check();
}

#[test]
fn slots_of_another_domain_are_given_back() {
    let Rig { mut a, b: _b, cq: _cq, pd: _pd, fake } = rig();
    let other = fake.ctx.alloc_pd().unwrap();
    let mut slots = other.slots(64, 2).unwrap();
    let e = a.post_recv(slots.pop().unwrap()).unwrap_err();
    assert_eq!((e.why, e.slot.is_some()), (Why::WrongDomain, true));
    let e = a.post_send(slots.pop().unwrap(), 40, SIG).unwrap_err();
    assert_eq!((e.why, e.slot.is_some()), (Why::WrongDomain, true));
    assert_eq!(a.in_flight(), (0, 0));
    fake.check();
}

#[test]
fn large_unsignalled_sends_are_signalled_where_they_must_be() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    let mut pool = pd.slots(8192, 4).unwrap();
    for len in [4095, 4096] {
        b.post_recv(pool.pop().unwrap()).unwrap();
        a.post_send(pool.pop().unwrap(), len, SendFlags::UNSIGNALLED).unwrap();
    }
    fake.progress();
    let sends = poll(&mut cq).iter().filter(|w| w.queue() == Some(Queue::Send)).count();
    assert_eq!(sends, 1, "the one of a page");
    fake.check();
}

#[test]
fn flags_without_a_name_do_not_reach_the_device() {
    let Rig { mut a, b: _b, cq: _cq, pd, fake } = rig();
    // The fake calls it a violation when they do.
    let made_up = SendFlags::from_bits_retain(!0) - SendFlags::INLINE;
    a.post_send(pd.slots(64, 1).unwrap().pop().unwrap(), 40, made_up).unwrap();
    a.post_inline(b"x", made_up).unwrap();
    fake.check();
}

/// In a full queue the newest unsignalled send is the neighbour of the oldest.
#[test]
fn a_slot_the_device_still_has_is_not_reclaimed() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(4)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(4)).unwrap();
    connect(&fake, &mut a, &mut b);
    let mut pool = pd.slots(64, 4).unwrap();
    // Room for two messages at the peer: the last two sends wait.
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    for flags in [SendFlags::UNSIGNALLED, SIG, SIG, SendFlags::UNSIGNALLED] {
        a.post_send(pool.pop().unwrap(), 40, flags).unwrap();
    }
    fake.progress();
    let mut back = 0;
    for wc in &mut poll(&mut cq) {
        back += usize::from(a.complete(wc).is_some());
    }
    assert_eq!(back, 1, "the signalled one");
    let slot = a.reclaim().expect("the unsignalled one before it");
    assert!(!fake.owns(&slot));
    assert!(a.reclaim().is_none(), "the last one is still in the device's hands");
    assert_eq!(a.in_flight().0, 2);
    fake.check();
}

/// A buffer may be used by one thread at a time, a region by many.
#[test]
fn a_region_asks_its_buffer_once() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    struct Counted(*mut [u8; 64], Arc<AtomicUsize>);
    // SAFETY: plain memory, owned by this value alone.
    unsafe impl Send for Counted {}
    impl Drop for Counted {
        fn drop(&mut self) {
            // SAFETY: made by Box::into_raw, freed once.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
    // SAFETY: an allocation that stays where it is until Drop frees it.
    unsafe impl StableBuffer for Counted {
        fn as_ptr(&self) -> *mut u8 {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.cast()
        }
        fn len(&self) -> usize {
            self.1.fetch_add(1, Ordering::Relaxed);
            64
        }
    }
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let buffer = Counted(Box::into_raw(Box::new([7; 64])), Arc::clone(&calls));
    let region = pd.register_remote(OwnedMemory::new(buffer), RemoteAccess::Read).unwrap();
    let asked = calls.load(Ordering::Relaxed);
    let mut out = [0; 64];
    region.copy_out(0, &mut out).unwrap();
    assert!(region.copy_out(1, &mut out).is_err());
    assert_eq!((out, region.len()), ([7; 64], 64));
    assert_eq!(calls.load(Ordering::Relaxed), asked);
    fake.check();
}
