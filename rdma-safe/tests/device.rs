//! Tests on a real device: `RDMA_TEST_DEVICE=siw0 RDMA_TEST_ADDR=10.77.0.1 cargo test --features device-tests`.
//!
//! They fail where there is no device. They run one at a time, because some look at what the device reuses.

mod support;

use rdma_safe::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::cm::{Cm, End};
use support::under_test::open;
use support::{LIMIT, address, device_name, drain, redeem, spin};

const SIG: SendFlags = SendFlags::empty();

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(send_depth: u32, recv_depth: u32) -> QpConfig {
    QpConfig { send_depth, recv_depth, max_inline: 64, ..QpConfig::default() }
}

fn pattern(slot: &mut [u8], seed: u8) {
    for (i, b) in slot.iter_mut().enumerate() {
        *b = (i as u8).wrapping_mul(31).wrapping_add(seed);
    }
}

#[test]
fn the_device_says_what_it_is() {
    let _one = one_at_a_time();
    let ctx = open();
    assert_eq!(ctx.name(), device_name());
    assert!(ctx.port(1).unwrap().active);
    assert!(ctx.port(77).is_err());
    let quirk = ctx.quirk().expect("a device of the table");
    assert!(ctx.caps().contains(Caps::LOOPBACK));
    match quirk.name {
        "siw" => {
            assert_eq!(ctx.transport(), Transport::Iwarp);
            assert!(ctx.caps().contains(Caps::INITIATOR_FIRST | Caps::SIGNAL_LARGE_SENDS));
            assert!(!ctx.caps().intersects(Caps::RNR_NAK | Caps::IMM | Caps::ATOMICS));
        }
        "rxe" => {
            assert_eq!(ctx.transport(), Transport::Roce);
            assert!(ctx.caps().contains(Caps::RNR_NAK | Caps::IMM | Caps::ATOMICS | Caps::SRQ));
            assert!(!ctx.caps().contains(Caps::INITIATOR_FIRST));
        }
        other => panic!("these tests know siw and rxe, not {other}"),
    }
    let e = Device::by_name("no_such_device").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoDevice);
    assert!(e.to_string().contains(&device_name()), "{e}");
}

#[test]
fn every_byte_arrives_both_ways() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8, 8)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8, 8)).unwrap();
    let cm = Cm::new(address());
    let mut pool = pd.slots(1 << 16, 4).unwrap();
    let _link = cm.connect(&mut a, &mut b, |_, qp| qp.post_recv(pool.pop().unwrap()).unwrap());
    let inline = a.max_inline();
    assert!(inline >= 32);
    a.post_inline(b"", SIG).unwrap();
    for d in redeem(&mut cq, &mut [&mut a, &mut b], 2) {
        assert!(d.status.is_ok(), "an empty inline send: {}", d.status);
        if let Some(slot) = d.slot {
            b.post_recv(slot).unwrap();
        }
    }
    for (round, len) in [0, 1, 8, 31, 32, 33, inline, inline + 1, 4095, 4096, 4097, 65535, 65536]
        .into_iter()
        .enumerate()
    {
        for (from, to) in [(0, 1), (1, 0)] {
            let seed = (round * 2 + from) as u8;
            let mut out = pool.pop().unwrap();
            pattern(&mut out, seed);
            let [sender, _] = order(&mut a, &mut b, from);
            sender.post_send(out, len, SIG).unwrap();
            let mut slots = Vec::new();
            for d in redeem(&mut cq, &mut [&mut a, &mut b], 2) {
                assert!(d.status.is_ok(), "{len}: {}", d.status);
                let slot = d.slot.unwrap();
                if d.op == Op::Recv {
                    assert_eq!(d.byte_len, len);
                    let mut want = vec![0; len];
                    pattern(&mut want, seed);
                    assert!(slot[..len] == want[..], "content of {len} bytes");
                }
                slots.push(slot);
            }
            let [receiver, _] = order(&mut a, &mut b, to);
            receiver.post_recv(slots.pop().unwrap()).unwrap();
            pool.extend(slots);
        }
    }
}

fn order<'a>(a: &'a mut QueuePair, b: &'a mut QueuePair, first: usize) -> [&'a mut QueuePair; 2] {
    if first == 0 { [a, b] } else { [b, a] }
}

#[test]
fn posts_need_the_right_state() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(4, 4)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(4, 4)).unwrap();
    let mut pool = pd.slots(64, 8).unwrap();
    let refused = a.post_recv(pool.pop().unwrap()).unwrap_err();
    assert_eq!(refused.why, Why::NotConnected, "RESET takes no receives");
    assert!(refused.slot.is_some(), "the device never saw it");
    let cm = Cm::new(address());
    let _link = cm.connect(&mut a, &mut b, |_, qp| {
        assert_eq!(qp.state(), QpState::Init);
        qp.post_recv(pool.pop().unwrap()).unwrap();
        let refused = qp.post_send(pool.pop().unwrap(), 8, SIG).unwrap_err();
        assert_eq!(refused.why, Why::NotConnected);
        assert!(refused.slot.is_some());
        assert_eq!(qp.post_inline(b"x", SIG).unwrap_err().why, Why::NotConnected);
    });
    let other_pd = ctx.alloc_pd().unwrap();
    let stranger = other_pd.slots(64, 1).unwrap().pop().unwrap();
    assert_eq!(a.post_send(stranger, 8, SIG).unwrap_err().why, Why::WrongDomain);
    let stranger = other_pd.slots(64, 1).unwrap().pop().unwrap();
    assert_eq!(a.post_recv(stranger).unwrap_err().why, Why::WrongDomain);
    assert_eq!(a.post_send(pool.pop().unwrap(), 65, SIG).unwrap_err().why, Why::TooLong);
    a.to_error().unwrap();
    assert_eq!(a.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap_err().why, Why::Broken);
    assert_eq!(a.post_inline(b"x", SIG).unwrap_err().why, Why::Broken);
    assert!(a.mark_connected().is_err());
}

/// A destroyed queue pair's flush completions arrive after the next one exists: they must not touch its slots.
#[test]
fn stale_completions_are_nobodys() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(256).unwrap();
    let mut other = ctx.create_cq(256).unwrap();
    let cm = Cm::new(address());
    let make = || {
        let mut client = pd.create_qp(&other.cq_ref(), &other.cq_ref(), &config(16, 16)).unwrap();
        let mut server = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(16, 16)).unwrap();
        let mut slots = pd.slots(64, 16).unwrap();
        let link = cm.connect(&mut client, &mut server, |end, qp| {
            while end == End::Server
                && let Some(s) = slots.pop()
            {
                qp.post_recv(s).unwrap();
            }
        });
        (server, link, client)
    };
    let mut dead = Vec::new();
    for _ in 0..2 {
        let (server, _link, _client) = make();
        dead.push(server.serial());
        assert_eq!(server.close().unwrap().len(), 16, "every slot is back");
    }
    let (mut live, _link, _client) = make();
    let mut stale = 0;
    for wc in &mut drain(&mut cq) {
        assert!(dead.contains(&wc.serial()));
        assert!(live.complete(wc).is_none());
        assert!(!wc.is_spent(), "still of worth to its owner, if there were one");
        stale += 1;
    }
    assert_eq!(live.in_flight(), (0, 16));
    if ctx.caps().contains(Caps::SIGNAL_LARGE_SENDS) {
        assert_eq!(
            stale, 32,
            "siw flushes during the destroy; if it no longer does, this test proves nothing"
        );
    }
    assert_eq!(live.close().unwrap().len(), 16);
    drain(&mut other);
}

/// siw gives a dead queue pair's number to the next one while its completions are still in the queue.
#[test]
fn a_reused_number_is_another_queue_pair() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(256).unwrap();
    let mut other = ctx.create_cq(256).unwrap();
    let cm = Cm::new(address());
    let mut numbers = Vec::new();
    for round in 0..3 {
        let mut client = pd.create_qp(&other.cq_ref(), &other.cq_ref(), &config(16, 16)).unwrap();
        let mut server = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(16, 16)).unwrap();
        numbers.push(server.qp_num());
        let mut slots = pd.slots(64, 16).unwrap();
        let _link = cm.connect(&mut client, &mut server, |end, qp| {
            while end == End::Server
                && let Some(s) = slots.pop()
            {
                qp.post_recv(s).unwrap();
            }
        });
        // The dead queue pairs' completions come out first, then the message.
        client.post_inline(&[round; 8], SIG).unwrap();
        let end = Instant::now() + LIMIT;
        let mut got = None;
        while got.is_none() {
            for wc in &mut drain(&mut cq) {
                if let Some(d) = server.complete(wc) {
                    assert!(d.status.is_ok());
                    got = d.slot;
                }
            }
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        assert_eq!(got.unwrap()[..8], [round; 8]);
        assert_eq!(server.close().unwrap().len(), 15);
        drop(client);
    }
    if ctx.caps().contains(Caps::SIGNAL_LARGE_SENDS) {
        assert!(numbers.iter().all(|n| *n == numbers[0]), "siw reuses the number: {numbers:?}");
    }
    drain(&mut other);
}

/// A queue pair remade without draining overflows a queue that fits exactly one: it is refused until the queue has been
/// seen empty, and the device never reports an overflow.
#[test]
fn a_dead_share_returns_only_when_the_queue_was_empty() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut events = AsyncEvents::new(&ctx).unwrap();
    assert_eq!(AsyncEvents::new(&ctx).unwrap_err().kind(), ErrorKind::Busy);
    let mut cq = ctx.create_cq(17).unwrap();
    let mut other = ctx.create_cq(64).unwrap();
    let cm = Cm::new(address());
    for _ in 0..3 {
        let mut client = pd.create_qp(&other.cq_ref(), &other.cq_ref(), &config(8, 8)).unwrap();
        let mut server = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(1, 16)).unwrap();
        let too_many = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(1, 1)).unwrap_err();
        assert_eq!(too_many.kind(), ErrorKind::CqDepth);
        let mut slots = pd.slots(64, 16).unwrap();
        let link = cm.connect(&mut client, &mut server, |end, qp| {
            while end == End::Server
                && let Some(s) = slots.pop()
            {
                qp.post_recv(s).unwrap();
            }
        });
        drop(server);
        drop((client, link));
        let refused = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(1, 16)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::CqDepth);
        assert!(refused.to_string().contains("16 of them by destroyed queue pairs"), "{refused}");
        drain(&mut cq);
        drain(&mut cq);
        assert_eq!(cq.cq_ref().depth(), (17, 0));
        drain(&mut other);
    }
    while let Some(e) = events.next(Duration::ZERO).unwrap() {
        assert!(!matches!(e, AsyncEvent::CqError(_)), "{e:?}");
    }
}

/// A message longer than the receive buffer fails on both sides, writes nothing beyond the slot, and on siw raises an
/// event that names the queue pair.
#[test]
fn a_message_too_long_fails_and_spills_nothing() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut events = AsyncEvents::new(&ctx).unwrap();
    let mut cq = ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(4, 4)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(4, 4)).unwrap();
    let cm = Cm::new(address());
    // Neighbours in one region: what spilled over would be seen in the second.
    let mut pool = pd.slots(64, 2).unwrap();
    let mut big = pd.slots(4096, 1).unwrap().pop().unwrap();
    big.fill(0xee);
    let watched = pool.pop().unwrap();
    let _link = cm.connect(&mut a, &mut b, |end, qp| {
        if end == End::Server {
            qp.post_recv(pool.pop().unwrap()).unwrap();
        }
    });
    a.post_send(big, 4096, SIG).unwrap();
    let end = Instant::now() + LIMIT;
    let mut failed = false;
    while !failed {
        for wc in &mut drain(&mut cq) {
            if let Some(d) = b.complete(wc) {
                assert_eq!(d.byte_len, 0);
                match ctx.transport().is_iwarp() {
                    true => assert_eq!(d.status, WcStatus::LOC_LEN_ERR),
                    // rxe calls it an operation error.
                    false => assert!(!d.status.is_ok()),
                }
                failed = true;
            }
        }
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    assert_eq!(b.state(), QpState::Error);
    assert!(watched.iter().all(|b| *b == 0));
    if ctx.transport().is_iwarp() {
        let event = events.next(LIMIT).unwrap();
        assert_eq!(event, Some(AsyncEvent::Qp { serial: b.serial(), what: QpEvent::Fatal }));
    }
}

#[test]
fn a_channel_wakes_a_sleeper() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let channel = ctx.completion_channel().unwrap();
    let mut cq = ctx.create_cq_with(64, &channel).unwrap();
    let mut other = ctx.create_cq(64).unwrap();
    assert_eq!(other.req_notify().unwrap_err().kind(), ErrorKind::WrongState);
    let mut a = pd.create_qp(&other.cq_ref(), &other.cq_ref(), &config(8, 8)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8, 8)).unwrap();
    let cm = Cm::new(address());
    let mut pool = pd.slots(64, 8).unwrap();
    let _link = cm.connect(&mut a, &mut b, |_, qp| qp.post_recv(pool.pop().unwrap()).unwrap());
    let mut wcs: [Wc; 4] = Default::default();
    let t = Instant::now();
    assert_eq!(cq.poll_wait(&mut wcs, Duration::from_millis(30)).unwrap(), 0, "nothing sent yet");
    assert!(t.elapsed() >= Duration::from_millis(30));
    for round in 0..20u8 {
        // The sender starts when the receiver is about to sleep; whichever comes first, the wake-up must not be lost.
        let n = std::thread::scope(|s| {
            s.spawn(|| a.post_inline(&[round], SIG).unwrap());
            cq.poll_wait(&mut wcs, LIMIT).unwrap()
        });
        assert_eq!(n, 1, "woken within {LIMIT:?}");
        let d = b.complete(&mut wcs[0]).unwrap();
        let slot = d.slot.unwrap();
        assert_eq!((d.byte_len, slot[0]), (1, round));
        b.post_recv(slot).unwrap();
        redeem(&mut other, &mut [&mut a], 1);
    }
    // A second queue on the channel: waiting for one would swallow the other's event.
    let second = ctx.create_cq_with(8, &channel).unwrap();
    assert_eq!(cq.poll_wait(&mut wcs, Duration::ZERO).unwrap_err().kind(), ErrorKind::WrongState);
    drop(second);
    cq.req_notify().unwrap();
    a.post_inline(&[1], SIG).unwrap();
    assert_eq!(channel.wait(Some(LIMIT)).unwrap(), Some(cq.cq_ref().id()));
    // Dropping everything now must not wait for an unacknowledged event.
}

#[test]
fn dropped_in_flight() {
    let _one = one_at_a_time();
    let ctx = open();
    let cm = Cm::new(address());
    for _ in 0..5 {
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(256).unwrap();
        let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(32, 32)).unwrap();
        let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(32, 32)).unwrap();
        let mut pool = pd.slots(8192, 64).unwrap();
        let _link = cm.connect(&mut a, &mut b, |_, qp| {
            for _ in 0..16 {
                qp.post_recv(pool.pop().unwrap()).unwrap();
            }
        });
        for _ in 0..16 {
            a.post_send(pool.pop().unwrap(), 8192, SIG).unwrap();
        }
        // Queue, domain and region handles go first; what is in flight keeps them alive.
        drop((pool, cq, pd));
        assert_eq!(a.close().unwrap().len(), 32, "16 receives and 16 sends");
        drop(b);
    }
}

/// When the connection goes down, every slot comes back: flushed or by the destruction, none twice.
#[test]
fn a_broken_connection_gives_every_slot_back_once() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(256).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(16, 16)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(16, 16)).unwrap();
    let cm = Cm::new(address());
    let mut pool = pd.slots(64, 16).unwrap();
    let link = cm.connect(&mut a, &mut b, |_, qp| {
        for _ in 0..8 {
            qp.post_recv(pool.pop().unwrap()).unwrap();
        }
    });
    link.disconnect();
    a.to_error().unwrap();
    let mut back = Vec::new();
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end && back.len() < 16 {
        for wc in &mut drain(&mut cq) {
            let d = a.complete(wc).or_else(|| b.complete(wc)).unwrap();
            assert_eq!(d.status, WcStatus::WR_FLUSH_ERR);
            assert_eq!(d.byte_len, 0);
            back.extend(d.slot);
        }
        std::thread::yield_now();
    }
    assert_eq!(a.state(), QpState::Error);
    back.extend(a.close().unwrap());
    back.extend(b.close().unwrap());
    assert_eq!(back.len(), 16);
    let mut starts: Vec<_> = back.iter().map(|s| s.as_ptr()).collect();
    starts.sort();
    starts.dedup();
    assert_eq!(starts.len(), 16, "sixteen different slots");
}

/// The first message is polled before the queue pair has joined the group.
#[test]
fn early_completions_wait_for_adoption() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut group = PollGroup::new(ctx.create_cq(128).unwrap());
    let cq = group.cq_ref();
    let cm = Cm::new(address());
    let mut a = pd.create_qp(&cq, &cq, &config(8, 8)).unwrap();
    let mut b = pd.create_qp(&cq, &cq, &config(8, 8)).unwrap();
    let mut pool = pd.slots(64, 16).unwrap();
    let _link = cm.connect(&mut a, &mut b, |_, qp| {
        for _ in 0..4 {
            qp.post_recv(pool.pop().unwrap()).unwrap();
        }
    });
    for i in 0..3u8 {
        a.post_inline(&[i], SIG).unwrap();
    }
    spin(&mut group, |g| {
        assert!(g.poll().unwrap().is_none(), "nobody to deliver to");
        g.parked() == 6
    });
    let kb = group.adopt(b).map_err(|(_, e)| e).unwrap();
    for i in 0..3u8 {
        let c = group.poll().unwrap().unwrap();
        assert_eq!((c.key, c.op, c.byte_len), (kb, Op::Recv, 1));
        assert_eq!(c.slot.unwrap()[0], i, "in order");
    }
    assert!(group.poll().unwrap().is_none());
    let ka = group.adopt(a).map_err(|(_, e)| e).unwrap();
    for _ in 0..3 {
        let c = group.poll().unwrap().unwrap();
        assert_eq!((c.key, c.op, c.slot.is_none()), (ka, Op::Send, true));
    }
    assert_eq!((group.parked(), group.stale()), (0, 0));
    // And now as a member, with a slot.
    let mut slot = pool.pop().unwrap();
    slot[..4].copy_from_slice(b"late");
    group.post_send(ka, slot, 4, SIG).unwrap();
    let mut ops = Vec::new();
    spin(&mut group, |g| {
        ops.extend(g.poll().unwrap().map(|c| (c.key, c.op)));
        ops.len() == 2
    });
    ops.sort_by_key(|(_, op)| *op == Op::Recv);
    assert_eq!(ops, [(ka, Op::Send), (kb, Op::Recv)]);
    assert_eq!(group.remove(ka).unwrap().len(), 4);
    assert!(group.remove(ka).is_err(), "the key died with it");
    assert_eq!(group.post_inline(ka, b"x", SIG).unwrap_err().why, Why::NoSuchQp);
}

/// A completion whose queue pair died before joining is dropped.
#[test]
fn completions_of_the_dead_are_dropped() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut group = PollGroup::new(ctx.create_cq(128).unwrap());
    let cq = group.cq_ref();
    let cm = Cm::new(address());
    let mut a = pd.create_qp(&cq, &cq, &config(8, 8)).unwrap();
    let mut b = pd.create_qp(&cq, &cq, &config(8, 8)).unwrap();
    let mut pool = pd.slots(64, 16).unwrap();
    let _link = cm.connect(&mut a, &mut b, |_, qp| {
        qp.post_recv(pool.pop().unwrap()).unwrap();
    });
    let kb = group.adopt(b).map_err(|(_, e)| e).unwrap();
    a.post_inline(&[1], SIG).unwrap();
    let mut heard = false;
    spin(&mut group, |g| {
        heard |= g.poll().unwrap().is_some();
        heard && g.parked() == 1
    });
    drop(a);
    assert!(group.poll().unwrap().is_none());
    assert_eq!(group.remove(kb).unwrap().len(), 0);
}

#[test]
fn unsignalled_sends_come_back_with_a_later_one() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(64).unwrap();
    let mut other = ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8, 1)).unwrap();
    let mut b = pd.create_qp(&other.cq_ref(), &other.cq_ref(), &config(1, 16)).unwrap();
    let cm = Cm::new(address());
    let mut pool = pd.slots(64, 24).unwrap();
    let _link = cm.connect(&mut a, &mut b, |end, qp| {
        for _ in 0..if end == End::Server { 16 } else { 0 } {
            qp.post_recv(pool.pop().unwrap()).unwrap();
        }
    });
    for _ in 0..3 {
        a.post_send(pool.pop().unwrap(), 40, SendFlags::UNSIGNALLED).unwrap();
    }
    assert!(a.reclaim().is_none(), "nothing known to be finished");
    a.post_send(pool.pop().unwrap(), 40, SIG).unwrap();
    let done = redeem(&mut cq, &mut [&mut a], 1);
    assert!(done[0].status.is_ok() && done[0].slot.is_some());
    let mut back = 0;
    while a.reclaim().is_some() {
        back += 1;
    }
    assert_eq!(back, 3);
    assert_eq!(a.in_flight().0, 0);
    for d in redeem(&mut other, &mut [&mut b], 4) {
        assert_eq!(d.byte_len, 40);
    }
    // All unsignalled: the queue signals by itself before it fills up.
    let mut sent = 0;
    while a.post_inline(b"x", SendFlags::UNSIGNALLED).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 8);
    assert!(!redeem(&mut cq, &mut [&mut a], 1).is_empty());
}

#[test]
fn a_full_queue_refuses() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(3, 3)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(3, 3)).unwrap();
    let cm = Cm::new(address());
    let mut pool = pd.slots(64, 8).unwrap();
    let _link = cm.connect(&mut a, &mut b, |_, qp| {
        for _ in 0..3 {
            qp.post_recv(pool.pop().unwrap()).unwrap();
        }
        let full = qp.post_recv(pool.pop().unwrap()).unwrap_err();
        assert_eq!(full.why, Why::Full, "three means three, though siw's ring has four");
        pool.extend(full.slot);
    });
    for _ in 0..3 {
        a.post_inline(b"x", SIG).unwrap();
    }
    assert_eq!(a.post_inline(b"x", SIG).unwrap_err().why, Why::Full);
    redeem(&mut cq, &mut [&mut a, &mut b], 6);
    assert_eq!(a.room(), (3, 0));
}

/// It completes, takes no receive, and the message after it arrives as if nothing had been.
#[test]
fn an_empty_write_takes_no_receive() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(64).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8, 8)).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config(8, 8)).unwrap();
    assert_eq!(a.post_empty_write().unwrap_err().why, Why::NotConnected);
    let cm = Cm::new(address());
    let mut pool = pd.slots(64, 2).unwrap();
    let _link = cm.connect(&mut a, &mut b, |_, qp| qp.post_recv(pool.pop().unwrap()).unwrap());
    for _ in 0..5 {
        a.post_empty_write().unwrap();
    }
    for d in redeem(&mut cq, &mut [&mut a, &mut b], 5) {
        assert!(d.status.is_ok() && d.op == Op::Write && d.slot.is_none(), "{}", d.status);
    }
    a.post_inline(b"after", SIG).unwrap();
    let done = redeem(&mut cq, &mut [&mut a, &mut b], 2);
    let recv = done.into_iter().find(|d| d.op == Op::Recv).unwrap();
    assert_eq!(recv.slot.unwrap()[..recv.byte_len], *b"after");
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let _one = one_at_a_time();
    let (x, y) = (open(), open());
    assert_eq!(x.guid(), y.guid());
    let pd = x.alloc_pd().unwrap();
    let (cx, cy) = (x.create_cq(64).unwrap(), y.create_cq(64).unwrap());
    let e = pd.create_qp(&cx.cq_ref(), &cy.cq_ref(), &config(1, 1)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    let channel = y.completion_channel().unwrap();
    assert_eq!(x.create_cq_with(8, &channel).unwrap_err().kind(), ErrorKind::WrongContext);
    let mut group = PollGroup::new(cx);
    let py = y.alloc_pd().unwrap();
    let qp = py.create_qp(&cy.cq_ref(), &cy.cq_ref(), &config(1, 1)).unwrap();
    let (qp, e) = group.adopt(qp).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    drop(qp);
}

#[test]
fn sizes_out_of_range_are_refused() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(64).unwrap();
    let invalid = |e: Error| assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    invalid(ctx.create_cq(0).unwrap_err());
    invalid(ctx.create_cq(u32::MAX).unwrap_err());
    for c in [config(0, 1), config(1, 0), config(u32::MAX, 1)] {
        invalid(pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &c).unwrap_err());
    }
    for (size, count) in [(0, 1), (1, 0), (usize::MAX, 2), (usize::MAX / 2, 4)] {
        invalid(pd.slots(size, count).unwrap_err());
    }
    invalid(pd.register(Vec::new().into()).unwrap_err());
    assert_eq!(cq.cq_ref().depth(), (64, 0), "refusals book nothing");
}

#[test]
fn remote_memory_is_copied() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mr = pd.register_remote(vec![0; 100].into(), RemoteAccess::ReadWrite).unwrap();
    mr.copy_in(90, &[7; 10]).unwrap();
    assert!(mr.copy_in(91, &[7; 10]).is_err());
    let mut out = [0; 12];
    mr.copy_out(88, &mut out).unwrap();
    assert_eq!(out, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    assert_ne!(mr.rkey(), 0);
}

/// On siw the place of a queue's ring decides whether libsiw maps it: see `Context::hold_siw_key`.
#[test]
fn queue_pairs_can_be_made_wherever_their_rings_come_to_lie() {
    let _one = one_at_a_time();
    for depth in [64, 4096, 16_384] {
        let ctx = open();
        let pd = ctx.alloc_pd().unwrap();
        let queues: Vec<_> = (0..4).map(|_| ctx.create_cq(depth).unwrap()).collect();
        let cq = queues[0].cq_ref();
        let small = QpConfig { send_depth: 1, recv_depth: 1, max_inline: 0, ..QpConfig::default() };
        let made: Vec<_> = (0..(depth / 2).min(100))
            .map(|n| pd.create_qp(&cq, &cq, &small).unwrap_or_else(|e| panic!("{n}: {e}")))
            .collect();
        drop(made);
    }
}
