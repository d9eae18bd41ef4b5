//! Channels and asynchronous events against the fake provider. No device needed.

mod fake;

use fake::Fake;
use fake::chaos::LeaksOnPurpose;
use rdma_safe::*;
use rdma_sys::ibv_event_type as t;
use std::time::Duration;

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(10);

fn config() -> QpConfig {
    QpConfig { send_depth: 4, recv_depth: 4, max_inline: 64, ..QpConfig::default() }
}

/// Every event is acknowledged as it is read, else the fake reports that a destruction would wait for ever.
#[test]
fn events_are_acknowledged_before_anything_can_wait_for_it() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let channel = fake.ctx.completion_channel().unwrap();
    let mut cq = fake.ctx.create_cq_with(16, &channel).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    let b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    let mut b = b;
    b.mark_connected().unwrap();
    for round in 0..3 {
        b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
        cq.req_notify().unwrap();
        assert!(channel.wait(Some(NOW)).unwrap().is_none(), "round {round}: nothing yet");
        a.post_inline(b"x", SendFlags::empty()).unwrap();
        fake.progress();
        assert_eq!(channel.wait(Some(SOON)).unwrap(), Some(cq.cq_ref().id()));
        let mut wcs: [Wc; 4] = Default::default();
        assert_eq!(cq.poll(&mut wcs).unwrap(), 2);
        for wc in &mut wcs[..2] {
            assert!(a.complete(wc).is_some() || b.complete(wc).is_some());
        }
    }
    // One event is left unread: it dies with the queue.
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    cq.req_notify().unwrap();
    a.post_inline(b"x", SendFlags::empty()).unwrap();
    fake.progress();
    drop((a, b, cq));
    assert!(channel.wait(Some(NOW)).unwrap().is_none());
    drop((channel, pd));
    assert_eq!(fake.state().channels_alive(), 0);
    fake.check();
}

/// A sleeper on a channel whose queue is alive holds everything it needs.
#[test]
fn a_queue_holds_its_channel_and_a_channel_its_context() {
    let _leaks = LeaksOnPurpose::new();
    let fake = Fake::open();
    let channel = fake.ctx.completion_channel().unwrap();
    let mut cq = fake.ctx.create_cq_with(16, &channel).unwrap();
    drop(channel);
    assert_eq!(fake.state().channels_alive(), 1);
    let mut none: [Wc; 1] = Default::default();
    assert_eq!(cq.poll_wait(&mut none, NOW).unwrap(), 0);
    drop(cq);
    assert_eq!(fake.state().channels_alive(), 0);
    let channel = fake.ctx.completion_channel().unwrap();
    fake.state().faults.destroy_channel_fails = true;
    drop(channel);
    assert!(
        !fake.closes_on_drop(),
        "the context stays open under a channel that could not be closed"
    );
}

#[test]
fn asynchronous_events_name_what_they_are_about() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(16).unwrap();
    let qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    let mut events = AsyncEvents::new(&fake.ctx).unwrap();
    assert_eq!(events.next(NOW).unwrap(), None);
    fake.raise_qp(t::IBV_EVENT_QP_FATAL, qp.qp_num());
    fake.raise_qp(t::IBV_EVENT_QP_LAST_WQE_REACHED, qp.qp_num());
    fake.raise_cqs(t::IBV_EVENT_CQ_ERR);
    fake.raise(t::IBV_EVENT_PORT_ACTIVE.0, 1);
    fake.raise(t::IBV_EVENT_DEVICE_FATAL.0, 0);
    fake.raise(0x7fff_0000, 0);
    let serial = qp.serial();
    let want = [
        AsyncEvent::Qp { serial, what: QpEvent::Fatal },
        AsyncEvent::Qp { serial, what: QpEvent::LastRequest },
        AsyncEvent::CqError(cq.cq_ref().id()),
        AsyncEvent::Port { port: 1, what: PortEvent::Active },
        AsyncEvent::DeviceFatal,
        AsyncEvent::Other(0x7fff_0000),
    ];
    for w in want {
        assert_eq!(events.next(SOON).unwrap(), Some(w));
    }
    // Unread ones die with their objects.
    fake.raise_qp(t::IBV_EVENT_QP_FATAL, qp.qp_num());
    fake.raise_cqs(t::IBV_EVENT_CQ_ERR);
    drop((qp, cq));
    assert_eq!(events.next(NOW).unwrap(), None);
    assert_eq!(AsyncEvents::new(&fake.ctx).unwrap_err().kind(), ErrorKind::Busy);
    drop(events);
    drop(AsyncEvents::new(&fake.ctx).unwrap());
    fake.check();
}

/// The device was removed: every call fails, nothing panics, nothing is freed that it may still have.
#[test]
fn a_device_that_is_gone_fails_everything_and_breaks_nothing() {
    let _leaks = LeaksOnPurpose::new();
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let channel = fake.ctx.completion_channel().unwrap();
    let cq = fake.ctx.create_cq_with(16, &channel).unwrap();
    let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    qp.mark_connected().unwrap();
    let slot = pd.slots(64, 1).unwrap().pop().unwrap();
    let bytes = slot.as_ptr_range().start.addr()..slot.as_ptr_range().end.addr();
    qp.post_recv(slot).unwrap();
    let before = fake.state().alive();
    fake.state().faults.gone = libc::EIO;
    for e in [
        fake.ctx.alloc_pd().unwrap_err(),
        fake.ctx.create_cq(4).unwrap_err(),
        pd.slots(64, 1).unwrap_err(),
        pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap_err(),
    ] {
        assert_eq!((e.kind(), e.errno()), (ErrorKind::DeviceGone, libc::EIO), "{e}");
    }
    drop((qp, cq, channel, pd));
    assert_eq!(fake.state().alive(), before, "all is leaked");
    assert!(fake.state().owns_range(bytes));
    fake.check();
}
