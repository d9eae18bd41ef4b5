//! Datagrams that carry something: to a queue pair that was asked for, back to where one came from, and to a group. On soft
//! iWARP, which has none, the first step says so. See `device.rs` for how to run it.
mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::*;
use rdma_cm::*;
use rdma_safe::{
    AddressHandle, CompletionQueue, Context, Done, GRH_SIZE, Op, Origin, ProtectionDomain,
    QpConfig, QpKind, QueuePair, Request, Slot, Wc,
};

/// A datagram queue pair and what it needs.
struct Station {
    qp: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    _context: Context,
}

impl Station {
    /// Made ready by `id`, with receives posted.
    fn new(channel: &mut EventChannel, id: &impl DatagramId) -> Self {
        let context = open();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_with(16, &context.completion_channel().unwrap()).unwrap();
        let config =
            QpConfig { kind: QpKind::Ud, send_depth: 4, recv_depth: 4, ..QpConfig::default() };
        let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
        channel.ready_datagram_qp(id, &mut qp).unwrap();
        for slot in pd.slots(GRH_SIZE + 64, 4).unwrap() {
            qp.post_recv(slot).unwrap();
        }
        Self { qp, cq, pd, _context: context }
    }

    fn send(&mut self, to: &AddressHandle, qp_num: u32, qkey: u32, text: &[u8]) {
        self.qp.post(Request::send_inline(text).to(to, qp_num, qkey)).unwrap();
        let (done, _) = self.next(LIMIT).expect("a completion");
        assert!(done.op == Op::Send && done.status.is_ok(), "{done:?}");
    }

    fn next(&mut self, limit: Duration) -> Option<(Done, Origin)> {
        let mut wc = [Wc::empty()];
        (self.cq.poll_wait(&mut wc, limit).unwrap() > 0).then(|| {
            let origin = wc[0].origin();
            (self.qp.complete(&mut wc[0]).expect("ours"), origin)
        })
    }

    /// The next message, with this text, and where it came from.
    fn expect(&mut self, text: &[u8]) -> (Slot, Origin) {
        let (done, origin) = self.next(LIMIT).expect("a datagram");
        assert!(done.op == Op::Recv && done.status.is_ok(), "{done:?}");
        let slot = done.slot.expect("a receive has a slot");
        assert_eq!(&slot[GRH_SIZE..done.byte_len], text);
        (slot, origin)
    }
}

/// On iWARP the error has to say so.
fn bound(channel: &mut EventChannel) -> Option<Datagram> {
    let id = channel.datagram().unwrap();
    match channel.bind_source(&id, addr(0)) {
        Ok(()) => Some(id),
        Err(error) => {
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
            assert!(open().transport().is_iwarp(), "{error}");
            None
        }
    }
}

#[test]
fn a_datagram_goes_to_who_was_asked_for_and_an_answer_comes_back() {
    let mut channel = EventChannel::new().unwrap();
    let Some(id) = bound(&mut channel) else { return };
    channel.destroy(id);
    let listener = channel.listen_datagram(addr(0), &ListenOptions::default()).unwrap();
    let id = channel.resolve_datagram(None, listener.local_addr(), LIMIT).unwrap();
    let mut here = Station::new(&mut channel, &id);
    channel.begin_ask(&id, &PrivateData::empty()).unwrap();
    let request = channel.wait_datagram_request(&listener, LIMIT).unwrap().unwrap();
    let mut there = Station::new(&mut channel, &request);
    channel.answer_datagram(request, &there.qp, &PrivateData::empty()).unwrap();
    let Some(Event::DatagramAnswer { peer, .. }) = channel.next_event_of(&id, LIMIT).unwrap()
    else {
        panic!("no answer")
    };
    let way = here.pd.create_ah(&peer.address()).unwrap();
    here.send(&way, peer.qp_num(), peer.qkey(), b"are you there?");
    let (slot, origin) = there.expect(b"are you there?");
    let back = there.pd.create_reply_ah(origin, 1, &slot[..]).unwrap();
    assert_eq!(origin.src_qp, here.qp.qp_num());
    there.send(&back, origin.src_qp, peer.qkey(), b"here I am");
    here.expect(b"here I am");
    // A datagram with the wrong key is nobody's.
    here.send(&way, peer.qp_num(), peer.qkey() ^ 1, b"wrong key");
    here.send(&way, peer.qp_num(), peer.qkey(), b"right key");
    there.expect(b"right key");
}

#[test]
fn what_is_sent_to_a_group_reaches_its_members_and_nobody_else() {
    let group: SocketAddr = "239.77.2.1:0".parse().unwrap();
    let mut channel = EventChannel::new().unwrap();
    let Some(id) = bound(&mut channel) else { return };
    let joined = channel.join_multicast(&id, group, Membership::Full, LIMIT).unwrap();
    let (mut one, mut two, mut stranger) = (
        Station::new(&mut channel, &id),
        Station::new(&mut channel, &id),
        Station::new(&mut channel, &id),
    );
    for member in [&mut one, &mut two] {
        member.qp.attach_multicast(joined.gid(), joined.lid()).unwrap();
    }
    let way = stranger.pd.create_ah(&joined.address()).unwrap();
    stranger.send(&way, joined.qp_num(), joined.qkey(), b"to all");
    one.expect(b"to all");
    two.expect(b"to all");
    assert!(stranger.next(Duration::from_millis(100)).is_none(), "no member, no message");
    // Who has left hears nothing any more.
    two.qp.detach_multicast(joined.gid()).unwrap();
    stranger.send(&way, joined.qp_num(), joined.qkey(), b"to one");
    one.expect(b"to one");
    assert!(two.next(Duration::from_millis(100)).is_none());
}
