//! Completion queues that are resized, moderated or extended, on devices: rxe can resize and extend, siw neither.

mod support;

use rdma_safe::*;
use std::time::Duration;
use support::cm::{Cm, Link};
use support::under_test::open;
use support::{LIMIT, address, drain, redeem};

const SIG: SendFlags = SendFlags::empty();

fn config(depth: u32) -> QpConfig {
    QpConfig { send_depth: depth, recv_depth: depth, max_inline: 64, ..QpConfig::default() }
}

struct Pair {
    a: QueuePair,
    b: QueuePair,
    link: Link,
    // Outlives the link.
    _cm: Cm,
}

fn connected(pd: &ProtectionDomain, at: &CqRef, depth: u32) -> Pair {
    let mut a = pd.create_qp(at, at, &config(depth)).unwrap();
    let mut b = pd.create_qp(at, at, &config(depth)).unwrap();
    let cm = Cm::new(address());
    let mut slots = pd.slots(64, depth as usize).unwrap();
    let link = cm.connect(&mut a, &mut b, |end, qp| {
        while end == support::cm::End::Server
            && let Some(slot) = slots.pop()
        {
            qp.post_recv(slot).unwrap();
        }
    });
    Pair { a, b, link, _cm: cm }
}

/// Completions that lie in the queue survive, and as many more queue pairs fit as there is room.
#[test]
fn a_queue_grows_with_completions_in_it() {
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(32).unwrap();
    let at = cq.cq_ref();
    let mut pair = connected(&pd, &at, 8);
    for i in 0..8u8 {
        pair.a.post_inline(&[i; 40], SIG).unwrap();
    }
    // Nothing tells, without polling, that all have arrived: a wait that is long for a soft device. A shorter one would
    // only make the test easier.
    std::thread::sleep(Duration::from_millis(100));
    let mut cq = match cq.resize(1000) {
        Ok(cq) => cq,
        Err((cq, e)) => {
            assert!(ctx.transport().is_iwarp(), "rxe can: {e}");
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            assert_eq!(at.depth(), (32, 32));
            cq.expect("as it was")
        }
    };
    let done = redeem(&mut cq, &mut [&mut pair.a, &mut pair.b], 16);
    let mut texts: Vec<u8> = done
        .iter()
        .filter(|d| d.op == Op::Recv)
        .map(|d| d.slot.as_ref().map_or(0xff, |s| s[39]))
        .collect();
    texts.sort_unstable();
    assert_eq!(texts, [0, 1, 2, 3, 4, 5, 6, 7]);
    if !ctx.transport().is_iwarp() {
        drop(pd.create_qp(&at, &at, &config(484)).unwrap());
        // Every completion of the larger ring arrives, too.
        let (cq, e) = cq.resize(31).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::CqDepth, "{e}");
        let mut cq = cq.unwrap();
        drain(&mut cq);
        assert_eq!(
            cq.resize(32).map(|cq| cq.cq_ref().depth()).map_err(|(_, e)| e).unwrap(),
            (32, 32)
        );
    }
    drop(pair);
}

#[test]
fn moderation_is_refused_by_soft_devices() {
    let ctx = open();
    let mut cq = ctx.create_cq(16).unwrap();
    assert_eq!(ctx.attr_ex().unwrap().max_cq_count, 0);
    let e = cq.moderate(4, 100).unwrap_err();
    assert_eq!((e.op(), e.kind()), ("ibv_modify_cq", ErrorKind::Unsupported), "{e}");
}

#[test]
fn an_extended_queue_carries_messages() {
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let channel = ctx.completion_channel().unwrap();
    let made = ctx.create_cq_ex(64, WcFields::empty(), Some(&channel));
    if ctx.transport().is_iwarp() {
        let e = made.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains("create_cq makes a classic one"), "{e}");
        return;
    }
    let mut cq = made.unwrap();
    let e = ctx.create_cq_ex(64, WcFields::WALL_TIME, None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "rxe has no clock: {e}");
    let mut pair = connected(&pd, &cq.cq_ref(), 16);
    // More than fit at once, so that the ring goes round, and the queue is empty again and again: rdma-core 44's librxe
    // loses count there when it is polled as the manual says.
    for round in 0..200u8 {
        let burst = 1 + u32::from(round) % 16;
        for i in 0..burst {
            pair.a.post_inline(&[round, i as u8], SIG).unwrap();
        }
        let mut expected = 0;
        for _ in 0..2 * burst {
            let mut got = cq.poll_wait(LIMIT).unwrap().expect("a completion in time");
            let own = pair.a.complete(&mut got.wc).or_else(|| pair.b.complete(&mut got.wc));
            let done = own.expect("a completion of ours, once");
            assert!(done.status.is_ok(), "{}", done.status);
            if done.op == Op::Recv {
                let slot = done.slot.unwrap();
                assert_eq!(slot[..done.byte_len], [round, expected]);
                expected += 1;
                pair.b.post_recv(slot).unwrap();
            }
        }
        assert!(cq.poll().unwrap().is_none());
    }
    pair.link.disconnect();
    let backlog = pair.b.close().unwrap();
    assert_eq!(backlog.len(), 16);
}
