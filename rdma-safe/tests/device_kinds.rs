//! Every kind of queue pair on the device under test: connected by hand with real traffic where the device has it (rxe:
//! RC, UC, UD), and a clear refusal where it does not (siw: all but RC, which rdma_cm connects; XRC and raw packets on
//! both). What no software device has is in `tests/kinds.rs`.

mod support;

use rdma_safe::*;
use std::net::{Ipv4Addr, UdpSocket};
use support::under_test::open;
use support::{address, redeem};

const SIG: SendFlags = SendFlags::empty();

struct Bench {
    ctx: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Bench {
    fn new() -> Bench {
        let ctx = open();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(256).unwrap());
        Bench { ctx, pd, cq }
    }

    fn config(kind: QpKind) -> QpConfig {
        QpConfig { kind, send_depth: 8, recv_depth: 8, ..QpConfig::default() }
    }

    fn has(&self, kind: QpKind) -> bool {
        let soft_roce = match self.ctx.transport() {
            Transport::Roce => true,
            Transport::Iwarp => false,
            other => panic!("these tests know siw and rxe, not {other:?}"),
        };
        match kind {
            QpKind::Rc => true,
            QpKind::Uc | QpKind::Ud => soft_roce,
            _ => false,
        }
    }

    /// The device's own address, as a peer on this machine sees it.
    fn path(&self) -> AddressVector {
        let gid = self.ctx.roce_v2_gid(1, Some(address().into())).unwrap();
        AddressVector::roce(1, u8::try_from(gid.index).unwrap(), gid.gid)
    }

    /// Two queue pairs of this process, connected to each other by hand.
    fn pair(&self, kind: QpKind, access: PeerAccess) -> (QueuePair, QueuePair) {
        self.pair_with(kind, access, RtsAttr::default())
    }

    fn pair_with(&self, kind: QpKind, access: PeerAccess, rts: RtsAttr) -> (QueuePair, QueuePair) {
        let make = || {
            let cq = self.cq.cq_ref();
            let qp = self.pd.create_manual_qp(&cq, &cq, &Bench::config(kind)).unwrap();
            qp.init(&InitAttr { access, ..InitAttr::default() }).unwrap()
        };
        let (a, b) = (make(), make());
        let (psn_a, psn_b) = (0x00ff_fffe, 77);
        let to = |dest_qp_num, rq_psn| RtrAttr {
            path: Some(self.path()),
            dest_qp_num,
            rq_psn,
            ..RtrAttr::default()
        };
        let (to_a, to_b) = (to(a.qp_num(), psn_a), to(b.qp_num(), psn_b));
        let a = a.ready_to_receive(&to_b).unwrap();
        let b = b.ready_to_receive(&to_a).unwrap();
        let rts = |sq_psn| RtsAttr { sq_psn, ..rts };
        (a.ready_to_send(&rts(psn_a)).unwrap(), b.ready_to_send(&rts(psn_b)).unwrap())
    }
}

impl Bench {
    /// A datagram queue pair that is ready.
    fn ud(&self, qkey: u32) -> QueuePair {
        let cq = self.cq.cq_ref();
        let attr = InitAttr { qkey, ..InitAttr::default() };
        self.pd.create_ud_qp(&cq, &cq, &Bench::config(QpKind::Ud), &attr).unwrap()
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed) as u8).collect()
}

/// Messages of many sizes both ways, in order, over a connected pair.
fn messages_both_ways(kind: QpKind) {
    let mut bench = Bench::new();
    if !bench.has(kind) {
        let cq = bench.cq.cq_ref();
        let e = bench.pd.create_manual_qp(&cq, &cq, &Bench::config(kind)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        return;
    }
    let (mut a, mut b) = bench.pair(kind, PeerAccess::empty());
    let mut pool = bench.pd.slots(1 << 14, 4).unwrap();
    for (round, len) in
        [0, 1, 32, 33, 1023, 1024, 1025, 4096, 10_000, 1 << 14].into_iter().enumerate()
    {
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            to.post_recv(pool.pop().unwrap()).unwrap();
            let mut slot = pool.pop().unwrap();
            let sent = pattern(len, round * 2 + turn);
            slot[..len].copy_from_slice(&sent);
            from.post_send(slot, len, SIG).unwrap();
            for done in redeem(&mut bench.cq, &mut [from, to], 2) {
                assert!(done.status.is_ok(), "{len} bytes: {}", done.status);
                let received = done.op == Op::Recv;
                let byte_len = done.byte_len;
                let slot = done.slot.unwrap();
                if received {
                    assert_eq!(byte_len, len);
                    assert!(slot[..len] == sent[..], "content of {len} bytes");
                }
                pool.push(slot);
            }
        }
    }
    let said = a.query().unwrap();
    assert_eq!((said.state, said.port, said.path_mtu), (QpState::ReadyToSend, 1, 1024));
    assert_eq!((said.dest_qp_num, said.path.global), (b.qp_num(), bench.path().global));
    if kind == QpKind::Rc {
        assert_eq!((said.timeout, said.retry_count, said.rnr_retry), (14, 7, 7));
        assert_eq!((said.max_rd_atomic, said.max_dest_rd_atomic, said.min_rnr_timer), (1, 1, 12));
    }
    assert!(said.send_depth >= 8 && said.recv_depth >= 8 && said.max_inline >= 64);
}

#[test]
fn reliable_connections_by_hand() {
    if Bench::new().ctx.transport().is_iwarp() {
        // Refused by hand, in `iwarp_has_reliable_connections_only`; by rdma_cm they are in every other test.
        return;
    }
    messages_both_ways(QpKind::Rc);
}

#[test]
fn unreliable_connections_by_hand() {
    messages_both_ways(QpKind::Uc);
}

#[test]
fn iwarp_has_reliable_connections_only() {
    let bench = Bench::new();
    let cq = bench.cq.cq_ref();
    for kind in [QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::XrcSend, QpKind::RawPacket] {
        let made = bench.pd.create_qp(&cq, &cq, &Bench::config(kind));
        if bench.has(kind) {
            assert!(made.is_ok(), "{kind:?}: {made:?}");
            assert_eq!(made.unwrap().config().kind, kind);
        } else {
            let e = made.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{kind:?}: {e}");
            assert!(e.to_string().contains(&format!("{kind:?}")), "{e}");
        }
        assert_eq!(cq.depth().1, 0, "what was not made, or is gone, books nothing");
    }
    let e = XrcDomain::open(&bench.ctx).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let anybody = AddressVector::roce(1, 0, Gid::from_ip(address().into()));
    if bench.ctx.transport().is_iwarp() {
        let e = bench.pd.create_ah(&anybody).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        let rc = bench.pd.create_qp(&cq, &cq, &Bench::config(QpKind::Rc)).unwrap();
        rc.query().unwrap();
    }
}

/// Reliable connections tell it, on transports that can.
#[test]
fn a_peer_without_a_receive_is_named() {
    let mut bench = Bench::new();
    if !bench.ctx.caps().contains(Caps::RNR_NAK) {
        assert!(bench.ctx.transport().is_iwarp(), "it ends the connection: see rdma-cm");
        return;
    }
    let few = RtsAttr { rnr_retry: 1, ..RtsAttr::default() };
    let (mut a, mut b) = bench.pair_with(QpKind::Rc, PeerAccess::empty(), few);
    a.post_inline(b"nobody listens", SIG).unwrap();
    let done = redeem(&mut bench.cq, &mut [&mut a, &mut b], 1).remove(0);
    assert_eq!(done.status, WcStatus::RNR_RETRY_EXC_ERR);
    let text = done.status.to_string();
    assert!(text.contains("posted no receive") && text.contains("allow more retries"), "{text}");
    assert_eq!(a.state(), QpState::Error);
}

/// UC promises nothing and reports nothing: a message without a receive is lost, and the next one arrives.
#[test]
fn an_unreliable_connection_loses_what_finds_no_receive() {
    let mut bench = Bench::new();
    if !bench.has(QpKind::Uc) {
        return;
    }
    let (mut a, mut b) = bench.pair(QpKind::Uc, PeerAccess::empty());
    let mut pool = bench.pd.slots(64, 4).unwrap();
    a.post_send(pool.pop().unwrap(), 40, SIG).unwrap();
    let lost = redeem(&mut bench.cq, &mut [&mut a, &mut b], 1);
    assert!(lost[0].status.is_ok() && lost[0].op == Op::Send);
    b.post_recv(pool.pop().unwrap()).unwrap();
    let mut slot = pool.pop().unwrap();
    slot[..40].copy_from_slice(&pattern(40, 9));
    a.post_send(slot, 40, SIG).unwrap();
    for done in redeem(&mut bench.cq, &mut [&mut a, &mut b], 2) {
        assert!(done.status.is_ok(), "{}", done.status);
        if done.op == Op::Recv {
            assert!(done.slot.unwrap()[..40] == pattern(40, 9)[..]);
        }
    }
    assert_eq!((a.state(), b.state()), (QpState::ReadyToSend, QpState::ReadyToSend));
}

/// What is wrong with an address, and what the kernel says to it.
#[test]
fn addresses_are_checked() {
    let bench = Bench::new();
    if !bench.has(QpKind::Ud) {
        return;
    }
    let good = bench.path();
    let global = good.global.unwrap();
    let refused = |av: AddressVector| {
        let e = bench.pd.create_ah(&av).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::InvalidArgument, 0), "{e}");
    };
    refused(AddressVector { port: 2, ..good });
    refused(AddressVector { global: None, ..good });
    let unused = AddressVector { global: Some(GlobalRoute { sgid_index: 200, ..global }), ..good };
    let e = bench.pd.create_ah(&unused).unwrap_err();
    assert!(e.errno() != 0 && e.kind() == ErrorKind::InvalidArgument, "{e}");
    assert!(e.to_string().contains("GID index"), "{e}");
    let cq = bench.cq.cq_ref();
    let qp = bench.pd.create_manual_qp(&cq, &cq, &Bench::config(QpKind::Rc)).unwrap();
    let qp = qp.init(&InitAttr::default()).unwrap();
    let rtr = RtrAttr { path: Some(unused), dest_qp_num: 5, ..RtrAttr::default() };
    let e = qp.ready_to_receive(&rtr).unwrap_err();
    assert!(e.error.errno() != 0 && e.qp.state() == QpState::Init, "{e}");
    assert!(e.to_string().contains("GID index"), "{e}");
    e.qp.ready_to_receive(&RtrAttr { path: Some(good), ..rtr }).unwrap();
    assert!(bench.pd.create_ah(&bench.path()).is_ok());
}

/// Datagrams between two queue pairs, and the way back from what the first one said.
#[test]
fn datagrams_find_their_way_there_and_back() {
    let mut bench = Bench::new();
    if !bench.has(QpKind::Ud) {
        let cq = bench.cq.cq_ref();
        let made =
            bench.pd.create_ud_qp(&cq, &cq, &Bench::config(QpKind::Ud), &InitAttr::default());
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let (mut a, mut b) = (bench.ud(0x2222), bench.ud(0x3333));
    let to_b = bench.pd.create_ah(&bench.path()).unwrap();
    let mut pool = bench.pd.slots(1024 + GRH_SIZE, 6).unwrap();
    for (round, len) in [1, 32, 33, 1000, 1024].into_iter().enumerate() {
        b.post_recv(pool.pop().unwrap()).unwrap();
        let mut slot = pool.pop().unwrap();
        let sent = pattern(len, round);
        slot[..len].copy_from_slice(&sent);
        a.post(Request::send(slot, len).to(&to_b, b.qp_num(), 0x3333)).unwrap();
        let mut answered = false;
        for done in redeem(&mut bench.cq, &mut [&mut a, &mut b], 2) {
            assert!(done.status.is_ok(), "{len} bytes: {}", done.status);
            if done.op == Op::Recv {
                assert_eq!(done.byte_len, GRH_SIZE + len);
                assert!(done.message() == &sent[..], "content of {len} bytes");
                let origin = done.extra.origin().unwrap();
                assert_eq!((origin.src_qp, origin.has_grh), (a.qp_num(), true));
                let slot = done.slot.unwrap();
                let back = bench.pd.reply_vector(origin, 1, &slot).unwrap();
                assert_eq!(back.global.map(|g| g.dgid), Some(Gid::from_ip(address().into())));
                let to_a = bench.pd.create_reply_ah(origin, 1, &slot).unwrap();
                a.post_recv(pool.pop().unwrap()).unwrap();
                b.post(Request::send(slot, len).to(&to_a, origin.src_qp, 0x2222)).unwrap();
                answered = true;
                // The handle lives on while the send is in flight.
                drop(to_a);
            } else {
                pool.extend(done.slot);
            }
        }
        assert!(answered);
        for done in redeem(&mut bench.cq, &mut [&mut a, &mut b], 2) {
            assert!(done.status.is_ok(), "{len} bytes back: {}", done.status);
            let from = done.extra.origin().map(|o| o.src_qp);
            assert_eq!(from, (done.op == Op::Recv).then(|| b.qp_num()));
            pool.extend(done.slot);
        }
    }
    assert_eq!(b.query().unwrap().qkey, 0x3333);
}

/// Two datagram queue pairs on one shared receive queue: the 40 bytes are in front of every message, and the queue says
/// over which of the two it came.
#[test]
fn datagrams_share_a_receive_queue() {
    let mut bench = Bench::new();
    let mut srq = bench.pd.create_srq(8).unwrap();
    let (shared, at) = (srq.srq_ref(), bench.cq.cq_ref());
    let config = Bench::config(QpKind::Ud);
    let made = bench.pd.create_manual_qp_on_srq(&at, &at, &shared, &config);
    if !bench.has(QpKind::Ud) {
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let ready = |made: Result<ManualQp<manual::Reset>>| {
        let qp = made.unwrap().init(&InitAttr { qkey: 0x5555, ..InitAttr::default() }).unwrap();
        let qp = qp.ready_to_receive(&RtrAttr::default()).unwrap();
        qp.ready_to_send(&RtsAttr::default()).unwrap()
    };
    let b = ready(made);
    let c = ready(bench.pd.create_manual_qp_on_srq(&at, &at, &shared, &config));
    let mut a = bench.ud(0x2222);
    srq.post_recv_batch(bench.pd.slots(1024 + GRH_SIZE, 6).unwrap()).unwrap();
    let ah = bench.pd.create_ah(&bench.path()).unwrap();
    let mut wcs: [Wc; 1] = Default::default();
    for (round, len) in [1, 40, 41, 1000, 1024].into_iter().enumerate() {
        let (sent, to) = (pattern(len, round), [&b, &c][round % 2]);
        let mut slot = bench.pd.slots(len, 1).unwrap().pop().unwrap();
        slot.copy_from_slice(&sent);
        a.post(Request::send(slot, len).to(&ah, to.qp_num(), 0x5555)).unwrap();
        let end = std::time::Instant::now() + support::LIMIT;
        let (mut heard, mut left) = (None, 2);
        while left > 0 {
            assert!(std::time::Instant::now() < end, "{len} bytes do not arrive");
            if bench.cq.poll(&mut wcs).unwrap() == 0 {
                std::thread::yield_now();
                continue;
            }
            left -= 1;
            match wcs[0].queue() {
                Some(Queue::SharedRecv) => heard = srq.complete(&mut wcs[0]),
                _ => assert!(a.complete(&mut wcs[0]).unwrap().status.is_ok()),
            }
        }
        let done = heard.expect("a receive of the shared queue");
        assert!(done.status.is_ok() && done.op == Op::Recv, "{done:?}");
        assert_eq!((done.byte_len, done.message().len()), (GRH_SIZE + len, len));
        assert!(done.message() == &sent[..], "content of {len} bytes");
        assert_eq!(done.extra.qp_num(), Some(to.qp_num()));
        let origin = done.extra.origin().unwrap();
        assert_eq!((origin.src_qp, origin.has_grh), (a.qp_num(), true));
        let back = bench.pd.reply_vector(origin, 1, &done.slot.unwrap()).unwrap();
        assert_eq!(back.global.map(|g| g.dgid), Some(Gid::from_ip(address().into())));
    }
    drop((b, c, shared));
    assert_eq!(srq.close().map_err(|(_, e)| e).unwrap().len(), 1, "the receive that is left");
}

/// What a datagram queue pair refuses, and what it drops without a word.
#[test]
fn datagrams_need_an_address_and_the_right_key() {
    let mut bench = Bench::new();
    if !bench.has(QpKind::Ud) {
        return;
    }
    let (mut a, mut b) = (bench.ud(0x2222), bench.ud(0x3333));
    let to_b = bench.pd.create_ah(&bench.path()).unwrap();
    let mut pool = bench.pd.slots(256, 4).unwrap();
    let refused = a.post_send(pool.pop().unwrap(), 8, SIG).unwrap_err();
    assert_eq!(refused.why, Why::WrongKind, "without an address it goes nowhere");
    pool.extend(refused.slot);
    let other = bench.ctx.alloc_pd().unwrap().create_ah(&bench.path()).unwrap();
    let refused = a.post(Request::send(pool.pop().unwrap(), 8).to(&other, b.qp_num(), 0x3333));
    let refused = refused.unwrap_err();
    assert_eq!(refused.why, Why::WrongDomain);
    pool.extend(refused.slot);
    b.post_recv(pool.pop().unwrap()).unwrap();
    a.post(Request::send(pool.pop().unwrap(), 8).to(&to_b, b.qp_num(), 0x4444)).unwrap();
    let lost = redeem(&mut bench.cq, &mut [&mut a, &mut b], 1);
    assert!(lost[0].status.is_ok() && lost[0].op == Op::Send, "dropped there, and nobody says so");
    let mut slot = pool.pop().unwrap();
    slot[..5].copy_from_slice(b"right");
    a.post(Request::send(slot, 5).to(&to_b, b.qp_num(), 0x3333)).unwrap();
    let done = redeem(&mut bench.cq, &mut [&mut a, &mut b], 2);
    assert!(done.iter().any(|d| d.op == Op::Recv && d.message() == b"right"));
    let privileged = InitAttr { qkey: 0x8000_0001, ..InitAttr::default() };
    let cq = bench.cq.cq_ref();
    bench
        .pd
        .create_ud_qp(&cq, &cq, &Bench::config(QpKind::Ud), &privileged)
        .expect("root may have a controlled key");
}

/// One datagram to a group of two. The kernel's UDP socket of rxe hears a group only while somebody on the netdev is a
/// member of it, so this test is one, by an ordinary socket, as rdma_cm would be.
#[test]
fn a_group_hears_together() {
    let mut bench = Bench::new();
    let group = Ipv4Addr::new(239, 77, 1, 2);
    let gid = Gid::from_ip(group.into());
    if !bench.has(QpKind::Ud) {
        let cq = bench.cq.cq_ref();
        let mut rc = bench.pd.create_qp(&cq, &cq, &Bench::config(QpKind::Rc)).unwrap();
        assert_eq!(rc.attach_multicast(gid, 0).unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.join_multicast_v4(&group, &address()).unwrap();
    const KEY: u32 = 0x0123_4567;
    let (mut a, mut b, mut c) = (bench.ud(KEY), bench.ud(KEY), bench.ud(KEY));
    for member in [&mut b, &mut c] {
        member.attach_multicast(gid, 0).unwrap();
    }
    let AddressVector { global, .. } = bench.path();
    let own = global.unwrap();
    let all = AddressVector::roce(1, own.sgid_index, gid);
    let to_all = bench.pd.create_ah(&all).unwrap();
    let mut pool = bench.pd.slots(256, 8).unwrap();
    for member in [&mut b, &mut c] {
        member.post_recv(pool.pop().unwrap()).unwrap();
    }
    const ANY_MEMBER: u32 = 0x00ff_ffff;
    let mut slot = pool.pop().unwrap();
    slot[..5].copy_from_slice(b"hello");
    a.post(Request::send(slot, 5).to(&to_all, ANY_MEMBER, KEY)).unwrap();
    let done = redeem(&mut bench.cq, &mut [&mut a, &mut b, &mut c], 3);
    let heard = done.iter().filter(|d| d.op == Op::Recv && d.message() == b"hello").count();
    assert_eq!(heard, 2, "{done:?}");
    assert_eq!((b.in_flight().1, c.in_flight().1), (0, 0));
    // After it left, a member hears no more; the other one does, and leaves by being closed.
    b.detach_multicast(gid).unwrap();
    for member in [&mut b, &mut c] {
        member.post_recv(pool.pop().unwrap()).unwrap();
    }
    a.post(Request::send(pool.pop().unwrap(), 8).to(&to_all, ANY_MEMBER, KEY)).unwrap();
    redeem(&mut bench.cq, &mut [&mut a, &mut b, &mut c], 2);
    assert_eq!((b.in_flight().1, c.in_flight().1), (1, 0));
    c.close().unwrap();
    b.close().unwrap();
}
