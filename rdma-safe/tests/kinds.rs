//! What neither soft device has, and what they cannot be made to do, against the fake provider: addresses, multicast,
//! extended reliable connections, raw packets.

mod fake;

use fake::Fake;
use fake::chaos::LeaksOnPurpose;
use rdma_safe::*;
use rdma_sys::{ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};

const GROUP: Gid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

#[test]
fn an_address_handle_lives_until_its_last_clone() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let ah = pd.create_ah(&AddressVector::infiniband(1, 7)).unwrap();
    let clone = ah.clone();
    drop(ah);
    assert_eq!(fake.state().kinds.ahs.len(), 1);
    drop(pd);
    assert_eq!(fake.state().alive().3, 1, "the handle holds its domain");
    drop(clone);
    assert_eq!(fake.state().kinds.ahs.len(), 0);
    assert_eq!(fake.state().alive().3, 0);
    fake.check();
    assert!(fake.closes_on_drop());
}

#[test]
fn an_address_handle_that_cannot_be_destroyed_keeps_what_it_stands_on() {
    let _leaks = LeaksOnPurpose::new();
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let ah = pd.create_ah(&AddressVector::infiniband(1, 7)).unwrap();
    fake.state().kinds.destroy_ah_fails = true;
    drop((ah, pd));
    assert_eq!(fake.state().alive().3, 1);
    fake.check();
    assert!(!fake.closes_on_drop());
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let good = AddressVector::roce(1, 0, GROUP);
    let global = good.global.unwrap();
    let refused = |av| {
        let e = pd.create_ah(&av).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::InvalidArgument, 0), "{e}");
    };
    refused(AddressVector { port: 0, ..good });
    refused(AddressVector { port: 2, ..good });
    refused(AddressVector { service_level: 16, ..good });
    refused(AddressVector { src_path_bits: 128, ..good });
    refused(AddressVector { global: Some(GlobalRoute { flow_label: 1 << 20, ..global }), ..good });
    let e = pd.create_ah(&AddressVector::roce(1, 9, GROUP)).unwrap_err();
    assert_eq!(e.errno(), libc::EINVAL);
    assert!(e.to_string().contains("GID index"), "{e}");
    let iwarp = Fake::open();
    let e = iwarp.ctx.alloc_pd().unwrap().create_ah(&good).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("rdma_cm"), "{e}");
    assert!(pd.create_ah(&good).is_ok());
}

#[test]
fn the_way_back_is_in_the_header() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let local = Wc::empty().origin();
    assert!(!local.has_grh);
    let back = pd.reply_vector(local, 1, &[0; GRH_SIZE]).unwrap();
    assert_eq!((back.port, back.global), (1, None));
    let e = pd.reply_vector(local, 1, &[0; GRH_SIZE - 1]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let mut global = local;
    global.has_grh = true;
    let mut buffer = [0; GRH_SIZE + 3];
    buffer[0] = 0x60;
    buffer[8..24].copy_from_slice(&GROUP.0);
    let back = pd.reply_vector(global, 1, &buffer).unwrap();
    assert_eq!(back.global.map(|g| g.dgid), Some(GROUP));
    assert!(pd.create_reply_ah(global, 1, &buffer).is_ok());
    buffer[0] = 0;
    let e = pd.create_reply_ah(global, 1, &buffer).unwrap_err();
    assert!(e.to_string().contains("header"), "{e}");
    assert!(pd.reply_vector(local, 9, &buffer).is_err(), "no such port");
}

fn config(kind: QpKind) -> QpConfig {
    QpConfig { kind, send_depth: 4, recv_depth: 4, ..QpConfig::default() }
}

fn path() -> RtrAttr {
    RtrAttr { path: Some(AddressVector::infiniband(1, 7)), dest_qp_num: 9, ..RtrAttr::default() }
}

#[test]
fn each_kind_asks_for_what_it_is() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let cq = cq.cq_ref();
    let kinds = [
        (QpKind::Rc, ibv_qp_type::IBV_QPT_RC, 4),
        (QpKind::Uc, ibv_qp_type::IBV_QPT_UC, 4),
        (QpKind::Ud, ibv_qp_type::IBV_QPT_UD, 4),
        (QpKind::XrcSend, ibv_qp_type::IBV_QPT_XRC_SEND, 0),
        (QpKind::RawPacket, ibv_qp_type::IBV_QPT_RAW_PACKET, 4),
    ];
    for (kind, raw, receives) in kinds {
        let wide = QpConfig { max_send_sge: 3, max_recv_sge: 2, ..config(kind) };
        let qp = pd.create_qp(&cq, &cq, &wide).unwrap();
        let (made, cap) = fake.state().kinds.made[&qp.qp_num()];
        assert_eq!((made, cap.max_send_wr, cap.max_recv_wr), (raw, 4, receives));
        assert_eq!((cap.max_send_sge, cap.max_recv_sge), (3, if receives == 0 { 0 } else { 2 }));
        assert_eq!(cq.depth().1, 4 + receives, "a queue that does not exist books nothing");
        drop(qp);
        assert_eq!(cq.depth().1, 0);
        for wrong in [0, 7] {
            let e = pd.create_qp(&cq, &cq, &QpConfig { max_send_sge: wrong, ..config(kind) });
            assert_eq!(e.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
    fake.check();
}

#[test]
fn every_kind_walks_its_own_way_by_hand() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let cq = cq.cq_ref();
    use ibv_qp_attr_mask as a;
    let state = a::IBV_QP_STATE;
    let way = a::IBV_QP_AV | a::IBV_QP_PATH_MTU | a::IBV_QP_DEST_QPN | a::IBV_QP_RQ_PSN | state;
    let ask = a::IBV_QP_TIMEOUT
        | a::IBV_QP_RETRY_CNT
        | a::IBV_QP_RNR_RETRY
        | a::IBV_QP_MAX_QP_RD_ATOMIC
        | a::IBV_QP_SQ_PSN
        | state;
    let open = a::IBV_QP_PKEY_INDEX | a::IBV_QP_PORT | state;
    let kinds = [
        (QpKind::XrcSend, true, [open | a::IBV_QP_ACCESS_FLAGS, way, ask]),
        (QpKind::RawPacket, false, [a::IBV_QP_PORT | state, state, state]),
        (QpKind::Ud, false, [open | a::IBV_QP_QKEY, state, a::IBV_QP_SQ_PSN | state]),
    ];
    for (kind, connected, masks) in kinds {
        fake.state().kinds.masks.clear();
        let qp = pd.create_manual_qp(&cq, &cq, &config(kind)).unwrap();
        let qp = qp.init(&InitAttr::default()).unwrap();
        let (right, wrong) = match connected {
            true => (path(), RtrAttr::default()),
            false => (RtrAttr::default(), path()),
        };
        let e = qp.ready_to_receive(&wrong).unwrap_err();
        assert_eq!(e.error.kind(), ErrorKind::InvalidArgument, "{e}");
        let qp = e.qp.ready_to_receive(&right).unwrap();
        let qp = qp.ready_to_send(&RtsAttr::default()).unwrap();
        assert_eq!(qp.state(), QpState::ReadyToSend);
        assert_eq!(fake.state().kinds.masks, masks.map(|m| m.0.cast_signed()), "{kind:?}");
        let said = qp.query().unwrap();
        assert_eq!((said.state, said.port), (QpState::ReadyToSend, 1));
        assert_eq!(said.dest_qp_num, if connected { 9 } else { 0 });
    }
}

#[test]
fn a_failed_step_gives_the_queue_pair_back_as_it_was() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let cq = cq.cq_ref();
    let qp = pd.create_manual_qp(&cq, &cq, &config(QpKind::Rc)).unwrap();
    let e = qp.init(&InitAttr { port: 2, ..InitAttr::default() }).unwrap_err();
    assert_eq!((e.error.kind(), e.qp.state()), (ErrorKind::InvalidArgument, QpState::Reset));
    let mut qp = e.qp.init(&InitAttr::default()).unwrap();
    qp.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    for wrong in [
        RtrAttr { path_mtu: 1500, ..path() },
        RtrAttr { dest_qp_num: 1 << 24, ..path() },
        RtrAttr { rq_psn: 1 << 24, ..path() },
        RtrAttr { min_rnr_timer: 32, ..path() },
        RtrAttr { path: Some(AddressVector::infiniband(7, 1)), ..path() },
    ] {
        let e = qp.ready_to_receive(&wrong).unwrap_err();
        assert_eq!((e.error.kind(), e.error.errno()), (ErrorKind::InvalidArgument, 0), "{e}");
        qp = e.qp;
    }
    fake.state().kinds.modify_fails = libc::EINVAL;
    let e = qp.ready_to_receive(&path()).unwrap_err();
    assert_eq!((e.error.errno(), e.qp.state()), (libc::EINVAL, QpState::Init));
    assert!(e.to_string().contains("out of range"), "{e}");
    fake.state().kinds.modify_fails = 0;
    let mut qp = e.qp.ready_to_receive(&path()).unwrap();
    for wrong in [
        RtsAttr { sq_psn: 1 << 24, ..RtsAttr::default() },
        RtsAttr { timeout: 32, ..RtsAttr::default() },
        RtsAttr { retry_count: 8, ..RtsAttr::default() },
        RtsAttr { rnr_retry: 8, ..RtsAttr::default() },
    ] {
        let e = qp.ready_to_send(&wrong).unwrap_err();
        assert_eq!(
            (e.error.kind(), e.qp.state()),
            (ErrorKind::InvalidArgument, QpState::ReadyToReceive)
        );
        qp = e.qp;
    }
    let qp = qp.ready_to_send(&RtsAttr::default()).unwrap();
    assert_eq!(qp.close().unwrap().len(), 1, "the receive was not lost on the way");
}

#[test]
fn iwarp_is_not_connected_by_hand() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let cq = cq.cq_ref();
    let e = pd.create_manual_qp(&cq, &cq, &config(QpKind::Rc)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("rdma-cm"), "{e}");
    for kind in [QpKind::Uc, QpKind::Ud, QpKind::XrcSend, QpKind::RawPacket] {
        let e = pd.create_qp(&cq, &cq, &config(kind)).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::Unsupported, 0), "{e}");
    }
    assert_eq!(XrcDomain::open(&fake.ctx).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn an_extended_connection_has_a_target_in_a_domain() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    let fake = Fake::open_infiniband();
    let domain = XrcDomain::open(&fake.ctx).unwrap();
    let mut target = domain.create_target().unwrap();
    assert_eq!(fake.state().kinds.made[&target.qp_num()].0, ibv_qp_type::IBV_QPT_XRC_RECV);
    target.init(&InitAttr { access: PeerAccess::all(), ..InitAttr::default() }).unwrap();
    let e = target.ready_to_send(&RtsAttr::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongState, "RTR comes first: {e}");
    assert!(target.ready_to_receive(&RtrAttr::default()).is_err(), "no path");
    target.ready_to_receive(&path()).unwrap();
    target.ready_to_send(&RtsAttr::default()).unwrap();
    assert_eq!(target.query().unwrap().state, QpState::ReadyToSend);
    drop(domain);
    assert_eq!(fake.state().kinds.xrcds.len(), 1, "the target holds its domain");
    target.close().unwrap();
    assert_eq!(fake.state().kinds.xrcds.len(), 0);
    let file = std::fs::File::open("/dev/null").unwrap();
    let target = XrcDomain::open_shared(&fake.ctx, &file).unwrap().create_target().unwrap();
    fake.state().faults.destroy_qp_fails = libc::EIO;
    drop(target);
    assert_eq!(fake.state().kinds.xrcds.len(), 1, "kept with what could not be destroyed");
    fake.check();
    assert!(!fake.closes_on_drop());
}

#[test]
fn the_queue_of_a_domain_books_and_holds_what_it_stands_on() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let (name, domain) = (cq.cq_ref(), XrcDomain::open(&fake.ctx).unwrap());
    for depth in [0, 1 << 20] {
        let e = domain.create_srq(&pd, &name, depth).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    assert_eq!(domain.create_srq(&pd, &name, 65).unwrap_err().kind(), ErrorKind::CqDepth);
    fake.state().kinds.srq_num_fails = libc::EIO;
    assert_eq!(domain.create_srq(&pd, &name, 8).unwrap_err().errno(), libc::EIO);
    fake.state().kinds.srq_num_fails = 0;
    assert_eq!(fake.state().srqs_alive(), 0, "what has no number is of no use");
    let strange = Fake::open_infiniband();
    let e = domain.create_srq(&strange.ctx.alloc_pd().unwrap(), &name, 8).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    let mut srq = domain.create_srq(&pd, &name, 8).unwrap();
    assert_eq!(srq.xrc_number(), Some(0x4712), "the second that was made");
    srq.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    let e = pd.create_qp_on_srq(&name, &name, &srq.srq_ref(), &config(QpKind::Rc)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    drop((domain, cq));
    assert_eq!(fake.state().kinds.xrcds.len(), 1);
    assert_eq!(srq.close().unwrap().len(), 1);
    assert_eq!(fake.state().kinds.xrcds.len(), 0);
    drop((name, pd));
    fake.check();
    assert!(fake.closes_on_drop());
}

#[test]
fn a_shared_queue_takes_datagrams_or_connections() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let name = cq.cq_ref();
    let srq = pd.create_srq(8).unwrap();
    let on = |kind| pd.create_qp_on_srq(&name, &name, &srq.srq_ref(), &config(kind));
    assert_eq!(on(QpKind::XrcSend).unwrap_err().kind(), ErrorKind::InvalidArgument);
    fake.state().faults.create_qp_fails = libc::ENOMEM;
    assert_eq!(on(QpKind::Rc).unwrap_err().errno(), libc::ENOMEM);
    fake.state().faults.create_qp_fails = 0;
    let first = on(QpKind::Ud).expect("what could not be made decides nothing");
    assert_eq!(on(QpKind::Rc).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let second = on(QpKind::Ud).unwrap();
    assert_eq!(name.depth().1, 4 + 4 + 8, "the shared queue's depth once");
    drop((first, second));
    fake.check();
}

#[test]
fn groups_are_left_before_the_end() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let cq = cq.cq_ref();
    let mut rc = pd.create_qp(&cq, &cq, &config(QpKind::Rc)).unwrap();
    assert_eq!(rc.attach_multicast(GROUP, 0).unwrap_err().kind(), ErrorKind::Unsupported);
    let ud = || pd.create_ud_qp(&cq, &cq, &config(QpKind::Ud), &InitAttr::default()).unwrap();
    let mut qp = ud();
    let other = Gid::from_ip("239.1.2.3".parse().unwrap());
    qp.attach_multicast(GROUP, 0xc001).unwrap();
    qp.attach_multicast(other, 0).unwrap();
    let members = vec![(qp.qp_num(), GROUP.0, 0xc001), (qp.qp_num(), other.0, 0)];
    assert_eq!(fake.state().kinds.members, members);
    for wrong in [GROUP, Gid([1; 16]), Gid::from_ip("10.1.2.3".parse().unwrap())] {
        let e = qp.attach_multicast(wrong, 0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    qp.detach_multicast(other).unwrap();
    assert_eq!(qp.detach_multicast(other).unwrap_err().kind(), ErrorKind::InvalidArgument);
    fake.state().kinds.detach_fails = libc::EIO;
    assert_eq!(qp.detach_multicast(GROUP).unwrap_err().errno(), libc::EIO);
    fake.state().kinds.detach_fails = 0;
    drop(qp);
    assert!(fake.state().kinds.members.is_empty());
    let mut qp = ud();
    qp.attach_multicast(GROUP, 0).unwrap();
    qp.close().unwrap();
    assert!(fake.state().kinds.members.is_empty());
    fake.check();
}

#[test]
fn a_stopped_send_queue_can_go_on() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(64).unwrap();
    let make = || {
        let r = cq.cq_ref();
        let qp = pd.create_manual_qp(&r, &r, &config(QpKind::Uc)).unwrap();
        let qp = qp.init(&InitAttr::default()).unwrap().ready_to_receive(&path()).unwrap();
        qp.ready_to_send(&RtsAttr::default()).unwrap()
    };
    let (mut a, mut b) = (make(), make());
    fake.connect(a.qp_num(), b.qp_num());
    let mut slots = pd.slots(64, 8).unwrap();
    assert_eq!(a.resume_sends().unwrap_err().kind(), ErrorKind::WrongState);
    b.post_recv(slots.pop().unwrap()).unwrap();
    fake.state().faults.status = 2;
    a.post_send(slots.pop().unwrap(), 64, SendFlags::empty()).unwrap();
    fake.progress();
    fake.state().faults.status = 0;
    let mut wcs: [Wc; 4] = Default::default();
    let n = cq.poll(&mut wcs).unwrap();
    for wc in &mut wcs[..n] {
        assert!(a.complete(wc).or_else(|| b.complete(wc)).is_some());
    }
    assert_eq!(b.state(), QpState::Error, "a failed receive is the end of both queues");
    assert_eq!(a.state(), QpState::SendQueueError);
    a.post_recv(slots.pop().unwrap()).unwrap();
    assert_eq!(a.post_inline(b"x", SendFlags::empty()).unwrap_err().why, Why::NotConnected);
    fake.state().kinds.query_fails = libc::EIO;
    assert_eq!(a.resume_sends().unwrap_err().kind(), ErrorKind::DeviceGone);
    fake.state().kinds.query_fails = 0;
    fake.state().kinds.claimed_state = Some(ibv_qp_state::IBV_QPS_SQE.0);
    a.resume_sends().unwrap();
    assert_eq!(a.state(), QpState::ReadyToSend);
    a.post_inline(b"x", SendFlags::empty()).unwrap();
    let mut wcs: [Wc; 1] = Default::default();
    fake.fail(a.qp_num());
    while cq.poll(&mut wcs).unwrap() > 0 {
        a.complete(&mut wcs[0]);
    }
    assert_eq!(a.state(), QpState::Error, "its receive was flushed: the queue pair is gone");
}
