//! Ways in which other wrappers of verbs were unsound, tried here: see SOUNDNESS.md. No device needed.

mod fake;

use fake::Fake;
use fake::rig::Rig;
use rdma_safe::*;
use std::sync::{Arc, Mutex};

const SIG: SendFlags = SendFlags::empty();

fn config() -> QpConfig {
    QpConfig { send_depth: 8, recv_depth: 8, max_inline: 64, ..QpConfig::default() }
}

fn rig_on(fake: Fake) -> Rig {
    Rig::on(fake, 64, &config())
}

fn rig() -> Rig {
    rig_on(Fake::open())
}

fn poll(cq: &mut CompletionQueue) -> Vec<Wc> {
    let mut wcs: [Wc; 16] = Default::default();
    let n = cq.poll(&mut wcs).unwrap();
    wcs.into_iter().take(n).collect()
}

/// I2: a region holds what it stands on, whatever is dropped or forgotten before it.
#[test]
fn a_region_outlives_every_handle() {
    let Rig { a, b, cq, pd, fake } = rig();
    let local = pd.register(vec![7u8; 100].into()).unwrap();
    let remote = pd.register_remote(vec![8u8; 100].into(), RemoteAccess::Read);
    drop((a, b, cq, pd));
    assert_eq!(fake.state().alive(), (0, 0, 2, 1));
    assert_eq!(local[99], 7);
    let mut out = [0];
    remote.as_ref().unwrap().copy_out(99, &mut out).unwrap();
    assert_eq!(out, [8]);
    drop((local, remote));
    assert_eq!(fake.state().alive(), (0, 0, 0, 0));
    fake.check();
}

/// I4: a C enum is a number here, so what no header of ours names is a value like any other.
#[test]
fn unknown_values_of_enums_are_values() {
    use rdma_sys::*;
    let port = ibv_port_attr {
        state: ibv_port_state(77),
        max_mtu: ibv_mtu(u32::MAX),
        active_mtu: ibv_mtu(0),
        ..ibv_port_attr::default()
    };
    assert!(format!("{port:?}").contains("77"));
    assert!(!format!("{:?}", WcStatus(u32::MAX)).is_empty());
    let fake = Fake::open();
    let mut events = AsyncEvents::new(&fake.ctx).unwrap();
    fake.raise(u32::MAX, -1);
    assert_eq!(events.next(Default::default()).unwrap(), Some(AsyncEvent::Other(u32::MAX)));
}

/// I6: nothing that is polled or redeemed holds a lock or an account open.
#[test]
fn forgotten_completions_block_nothing() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    for _ in 0..3 {
        b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
        a.post_inline(b"x", SIG).unwrap();
    }
    fake.progress();
    let mut wcs = poll(&mut cq);
    assert_eq!(wcs.len(), 6);
    let done = wcs.iter_mut().find_map(|wc| b.complete(wc)).unwrap();
    std::mem::forget((done, wcs));
    a.post_inline(b"y", SIG).unwrap();
    assert_eq!(b.close().unwrap().len(), 2, "the third is the one that was forgotten");
    assert!(a.close().unwrap().is_empty());
    drop(cq);
    fake.check();
}

/// S1: a clone is another name for one channel, which is closed once, after the last.
#[test]
fn clones_of_a_channel_close_it_once() {
    let fake = Fake::open();
    let channel = fake.ctx.completion_channel().unwrap();
    let clone = channel.clone();
    drop(channel);
    assert_eq!(fake.state().channels_alive(), 1);
    assert_eq!(clone.wait(Some(Default::default())).unwrap(), None);
    drop(clone);
    assert_eq!(fake.state().channels_alive(), 0);
    fake.check();
}

/// S2: posting nothing posts nothing.
#[test]
fn an_empty_batch_reaches_no_device() {
    let Rig { mut a, cq: _cq, pd: _pd, b: _b, fake } = rig();
    let before = fake.state().doorbells;
    assert_eq!(a.post_batch([]).unwrap(), 0);
    assert_eq!(a.post_recv_batch([]).unwrap(), 0);
    assert_eq!(fake.state().doorbells, before);
    let e = a.post(Request::send_list(SgList::new())).unwrap_err();
    assert_eq!(e.why, Why::Empty);
    assert!(e.into_payload().is_some());
    fake.check();
}

/// S5: what a device cannot do is refused before any function of it is looked for.
#[test]
fn operations_the_device_lacks_are_refused() {
    let Rig { mut a, cq: _cq, pd, b: _b, fake } = rig();
    let slot = pd.slots(64, 1).unwrap().pop().unwrap();
    let at = RemoteRange { addr: 0, len: 8, rkey: 0 };
    let e = a.post(Request::fetch_add(slot, at, 1)).unwrap_err();
    assert_eq!(e.why, Why::NotSupported, "as siw, it has no atomics");
    assert!(e.into_payload().is_some());
    assert_eq!(fake.state().doorbells, (0, 0));
}

/// S7: completions are copies: the next poll changes none that was polled before.
#[test]
fn completions_keep_their_values_when_the_queue_is_polled_again() {
    let Rig { mut a, mut b, mut cq, pd, fake } = rig();
    let mut kept = Vec::new();
    for i in 0..4u8 {
        b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
        a.post_inline(&[i; 3], SIG).unwrap();
        fake.progress();
        kept.extend(poll(&mut cq));
    }
    let got: Vec<u8> = kept
        .iter_mut()
        .filter_map(|wc| b.complete(wc))
        .map(|done| done.slot.as_ref().map_or(u8::MAX, |slot| slot[0]))
        .collect();
    assert_eq!(got, [0, 1, 2, 3]);
    fake.check();
}

/// Asks, when it is freed, whether the device still knows it.
struct Last(*mut [u8], Arc<Mutex<fake::State>>, Arc<Mutex<Option<bool>>>);

// SAFETY: plain memory, owned by this value alone.
unsafe impl Send for Last {}

impl Drop for Last {
    fn drop(&mut self) {
        let start = self.0.cast::<u8>().addr();
        let registered = self.1.lock().unwrap().is_registered(start..start + self.0.len());
        *self.2.lock().unwrap() = Some(registered);
        // SAFETY: made by Box::into_raw, freed once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

// SAFETY: a heap block that stays where it is until Drop frees it.
unsafe impl StableBuffer for Last {
    fn as_ptr(&self) -> *mut u8 {
        self.0.cast()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// A1: deregistered first, freed then.
#[test]
fn memory_is_freed_after_the_deregistration() {
    let Rig { mut b, pd, fake, .. } = rig();
    for posted in [false, true] {
        let asked = Arc::new(Mutex::new(None));
        let block = Box::into_raw(vec![0u8; 64].into_boxed_slice());
        let memory = OwnedMemory::new(Last(block, fake.shared_state(), Arc::clone(&asked)));
        let mut slots = pd.register(memory).unwrap().into_slots(64, 1).unwrap();
        if posted {
            b.post_recv(slots.pop().unwrap()).unwrap();
            drop(b.close().unwrap());
            assert_eq!(*asked.lock().unwrap(), Some(false));
            break;
        }
        drop(slots);
        assert_eq!(*asked.lock().unwrap(), Some(false));
    }
    fake.check();
}

/// A2: a key is worth nothing once its region is dropped, and no key opens memory that is used for something else.
#[test]
fn a_dropped_region_leaves_no_key_behind() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let region = pd.register_remote(vec![0u8; 64].into(), RemoteAccess::ReadWrite).unwrap();
    let slots = region.into_slots(32, 1).unwrap();
    assert_eq!(fake.state().alive().2, 1);
    drop(slots);
    assert_eq!(fake.state().alive().2, 0);
}

/// All: objects of two contexts never meet, although their kernel handles are small numbers that agree.
#[test]
fn objects_of_two_devices_do_not_mix() {
    let (one, two) = (Fake::open(), Fake::open());
    let (pd, other_pd) = (one.ctx.alloc_pd().unwrap(), two.ctx.alloc_pd().unwrap());
    let (cq, other_cq) = (one.ctx.create_cq(64).unwrap(), two.ctx.create_cq(64).unwrap());
    for (send, recv) in [(&cq, &other_cq), (&other_cq, &cq), (&other_cq, &other_cq)] {
        let e = pd.create_qp(&send.cq_ref(), &recv.cq_ref(), &config()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongContext);
    }
    let channel = two.ctx.completion_channel().unwrap();
    let e = one.ctx.create_cq_with(4, &channel).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    qp.mark_connected().unwrap();
    let slot = other_pd.slots(64, 1).unwrap().pop().unwrap();
    assert_eq!(qp.post_recv(slot).unwrap_err().why, Why::WrongDomain);
    let (foreign, own) = (other_pd.slots(64, 1).unwrap(), pd.slots(64, 1).unwrap());
    let mut list = SgList::new();
    list.push(own.into_iter().next().unwrap(), 64).unwrap();
    let (_, e) = list.push(foreign.into_iter().next().unwrap(), 64).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    let mut group = PollGroup::new(other_cq);
    assert_eq!(group.adopt(qp).unwrap_err().1.kind(), ErrorKind::WrongContext);
    one.check();
    two.check();
}

/// A region named by a request lives until the provider has read its name, also where nothing is bound to it.
#[test]
fn a_region_lives_until_its_window_is_unbound() {
    for batch in [false, true] {
        let Rig { mut a, b: _b, mut cq, pd, fake } = rig_on(Fake::open_infiniband());
        let window = pd.alloc_window(WindowKind::Type1).unwrap();
        let region = || {
            let memory = vec![0u8; 64].into();
            pd.register_remote(memory, RemoteAccess::Windows).unwrap()
        };
        let all = WindowAccess::READ;
        let first = region();
        a.post(Request::bind(window, &first, 0, 64, all)).unwrap();
        drop(first);
        assert_eq!(fake.state().alive().2, 1, "bound: the window holds it");
        fake.progress();
        let done = a.complete(&mut poll(&mut cq)[0]).unwrap();
        let Some(PayloadKind::Window(window)) = done.into_payload().map(Payload::into_kind) else {
            panic!("no window");
        };
        let second = region();
        let unbind = Request::bind(window, &second, 0, 0, all);
        drop(second);
        match batch {
            true => assert_eq!(a.post_batch([unbind]).unwrap(), 1),
            false => a.post(unbind).unwrap(),
        }
        fake.progress();
        drop(a.complete(&mut poll(&mut cq)[0]).unwrap());
        assert_eq!(fake.state().alive().2, 0);
        fake.check();
    }
}

/// UC and UD queues work again after a failure. A completion of before, kept by the program, must not be redeemed for a
/// request of after: ids repeat after 32 uses of an entry.
#[test]
fn a_kept_completion_is_never_redeemed_for_another_request() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(64).unwrap();
    let kind = QpKind::Uc;
    let config = QpConfig { kind, send_depth: 2, recv_depth: 2, ..QpConfig::default() };
    let make = || {
        let qp = pd.create_manual_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
        let path = Some(AddressVector::infiniband(1, 1));
        let rtr = RtrAttr { path, ..RtrAttr::default() };
        let qp = qp.init(&InitAttr::default()).unwrap().ready_to_receive(&rtr).unwrap();
        qp.ready_to_send(&RtsAttr::default()).unwrap()
    };
    let (mut a, mut b) = (make(), make());
    fake.connect(a.qp_num(), b.qp_num());
    let mut pool = pd.slots(64, 4).unwrap();
    b.post_recv(pool.pop().unwrap()).unwrap();
    b.post_recv(pool.pop().unwrap()).unwrap();
    fake.state().faults.status = 2;
    a.post_send(pool.pop().unwrap(), 40, SendFlags::UNSIGNALLED).unwrap();
    a.post_send(pool.pop().unwrap(), 40, SIG).unwrap();
    fake.progress();
    fake.state().faults.status = 0;
    let (mut kept, rest): (Vec<Wc>, Vec<Wc>) =
        poll(&mut cq).into_iter().partition(|wc| wc.serial() == a.serial());
    assert_eq!((kept.len(), rest.len()), (2, 2), "both sends failed");
    let to = rdma_sys::ibv_qp_state::IBV_QPS_RTS;
    let raw = rdma_sys::ibv_qp_attr { qp_state: to, ..Default::default() };
    let mask = rdma_sys::ibv_qp_attr_mask::IBV_QP_STATE.0;
    let again = QpAttr::from_raw(raw, mask.cast_signed());
    assert_eq!(a.modify(&again).unwrap_err().kind(), ErrorKind::WrongState, "not noticed yet");
    assert!(a.complete(&mut kept[1]).is_some(), "the later one first");
    assert_eq!(a.state(), QpState::SendQueueError);
    assert!(a.reclaim().is_none(), "it says nothing of the one before it");
    assert_eq!(a.modify(&again).unwrap_err().kind(), ErrorKind::WrongState);
    assert!(a.complete(&mut kept[0]).unwrap().slot.is_some());
    a.modify(&again).unwrap();
    assert_eq!(a.state(), QpState::ReadyToSend);
    fake.check();
}
