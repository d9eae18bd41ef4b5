//! Waiting in tokio on a real device: run with `--features device-tests,tokio`, RDMA_TEST_DEVICE and RDMA_TEST_ADDR set,
//! as root. Without a device they fail. Connections in tokio are tested in rdma-cm.

mod cancel;
mod support;

use cancel::{at_most, at_most_woken, in_both, next, soon};
use rdma_safe::aio::{AsyncConfig, AsyncPollGroup, AsyncQueuePair, DeviceEvents};
use rdma_safe::*;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use support::cm::{Cm, End};
use support::under_test::open;
use support::{address, device_name};

/// One test takes the port down.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A number goes back and forth, each time one more, while every other wait is dropped.
#[test]
fn a_group_plays_ping_pong() {
    const ROUNDS: u32 = 2_000;
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    in_both(|| async {
        let ctx = open();
        let pd = ctx.alloc_pd().unwrap();
        let channel = ctx.completion_channel().unwrap();
        let cq = ctx.create_cq_with(64, &channel).unwrap();
        let r = cq.cq_ref();
        let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() };
        let [mut a, mut b] = [0, 1].map(|_| pd.create_qp(&r, &r, &config).unwrap());
        let cm = Cm::new(address());
        let mut slots = pd.slots(64, 4).unwrap();
        let _link = cm.connect(&mut a, &mut b, |_: End, qp| {
            for slot in slots.drain(..2) {
                qp.post_recv(slot).unwrap();
            }
        });
        let mut group = AsyncPollGroup::new(PollGroup::new(cq)).unwrap();
        let [a, b] = [a, b].map(|qp| group.group_mut().adopt(qp).map_err(|(_, e)| e).unwrap());
        let (mut seed, mut at) = (1, 0u32);
        group.group_mut().post_inline(a, &at.to_le_bytes(), SendFlags::empty()).unwrap();
        let mut nudge = tokio::time::interval(Duration::from_millis(20));
        while at < ROUNDS {
            let polls = if next(&mut seed).is_multiple_of(2) { 1 } else { usize::MAX };
            let done = tokio::select! {
                done = at_most_woken(polls, group.next()) => done,
                // Soft iWARP may leave the first message unread until something follows.
                _ = nudge.tick(), if at == 0 => {
                    group.group_mut().qp_mut(a).unwrap().post_empty_write().unwrap();
                    None
                }
            };
            let Some(done) = done else { continue };
            let done = done.unwrap();
            assert!(done.status.is_ok(), "{}", done.status);
            if done.op != Op::Recv {
                continue;
            }
            let slot = done.slot.unwrap();
            assert_eq!(slot[..4], at.to_le_bytes());
            assert_eq!(done.key, if at.is_multiple_of(2) { b } else { a });
            at += 1;
            group.group_mut().post_recv(done.key, slot).unwrap();
            group.group_mut().post_inline(done.key, &at.to_le_bytes(), SendFlags::empty()).unwrap();
        }
        assert_eq!((group.group().stale(), group.group().parked()), (0, 0));
    });
}

/// On soft iWARP reads complete after what was posted behind them: whoever waits gets their own.
#[test]
fn a_read_and_messages_do_not_mix_up() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const SIZE: usize = 32 << 10;
    in_both(|| async {
        let pd = open().alloc_pd().unwrap();
        let [a, b] = [0, 1].map(|_| AsyncQueuePair::new(&pd, &AsyncConfig::default()).unwrap());
        let cm = Cm::new(address());
        let _link = a.with_qp(|a| b.with_qp(|b| cm.connect(a, b, |_, _| {})).unwrap()).unwrap();
        for queue in [&a, &b] {
            queue.post_receives().unwrap();
        }
        soon("hello", a.send(b"hello")).await.unwrap();
        assert_eq!(&soon("hello", b.receive()).await.unwrap()[..], b"hello");
        let region = |access| pd.register_remote(vec![7; SIZE].into(), access).unwrap();
        let source = region(RemoteAccess::ReadWrite);
        for round in 0..50u32 {
            let sink = region(RemoteAccess::ReadSink).into_slots(SIZE, 1).unwrap().remove(0);
            let room = a.room().await.unwrap();
            let mut read = room.post(Request::read(sink, SIZE, source.remote())).unwrap();
            soon("send", a.send(&round.to_le_bytes())).await.unwrap();
            let done = soon("the read", read.done()).await.unwrap();
            assert!(done.status.is_ok() && done.op == Op::Read, "{done:?}");
            assert!(matches!(done.payload.map(Payload::into_kind), Some(PayloadKind::Remote(_))));
            assert_eq!(soon("message", b.receive()).await.unwrap()[..], round.to_le_bytes());
        }
        soon("flush", a.flush()).await.unwrap();
        assert!(a.take_abandoned().is_empty());
    });
}

/// Last by its name: the network is not quite what it was before, and each test program has a machine of its own.
#[test]
fn when_a_port_goes_down_and_up_that_is_told() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let sys = format!("/sys/class/infiniband/{}/ports/1/gid_attrs/ndevs/0", device_name());
    let netdev = std::fs::read_to_string(&sys).unwrap_or_else(|e| panic!("{sys}: {e}"));
    let link = |state: &str| {
        let done = Command::new("ip").args(["link", "set", netdev.trim(), state]).status();
        assert!(done.is_ok_and(|s| s.success()), "ip link set failed; these tests run as root");
    };
    in_both(|| async {
        let mut events = DeviceEvents::new(&open()).unwrap();
        assert!(at_most(3, events.next()).await.is_none());
        for (state, told) in [("down", PortEvent::Down), ("up", PortEvent::Active)] {
            link(state);
            // Others may come in between, as of the GID table.
            while soon("an event", events.next()).await.unwrap()
                != (AsyncEvent::Port { port: 1, what: told })
            {}
        }
    });
}
