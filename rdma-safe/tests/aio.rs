//! Waiting in tokio, against the fake provider. No device needed.

mod cancel;
mod fake;

use cancel::{LIMIT, at_most, in_both, next, soon, until_done};
use fake::Fake;
use rdma_safe::aio::{AsyncConfig, AsyncPollGroup, AsyncQueuePair, DeviceEvents, QueueError};
use rdma_safe::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const CONFIG: AsyncConfig = AsyncConfig { sends: 4, receives: 3, message_size: 64, requests: 2 };

/// Two connected queue pairs, and the device that connects them.
struct Rig {
    a: AsyncQueuePair,
    b: AsyncQueuePair,
    pd: ProtectionDomain,
    fake: Arc<Fake>,
}

fn rig() -> Rig {
    let fake = Arc::new(Fake::open());
    let pd = fake.ctx.alloc_pd().unwrap();
    let [a, b] = [0, 1].map(|_| AsyncQueuePair::new(&pd, &CONFIG).unwrap());
    let number = |q: &AsyncQueuePair| q.with_qp(|qp| qp.qp_num()).unwrap();
    fake.connect(number(&a), number(&b));
    for q in [&a, &b] {
        q.with_qp(|qp| qp.mark_connected()).unwrap().unwrap();
        q.post_receives().unwrap();
    }
    Rig { a, b, pd, fake }
}

impl Rig {
    /// Nobody has lost a buffer, and the device was used as it may be.
    async fn ends_well(self) {
        for q in [&self.a, &self.b] {
            let slots = soon("close", q.close()).await.unwrap();
            assert_eq!(slots.len(), (CONFIG.sends + CONFIG.receives) as usize);
            let places: BTreeSet<_> = slots.iter().map(|s| s.as_ptr()).collect();
            assert_eq!(places.len(), slots.len(), "a buffer was doubled");
            assert!(slots.iter().all(|s| !self.fake.owns(s)));
        }
        self.fake.check();
        drop((self.a, self.b, self.pd));
        let fake = Arc::into_inner(self.fake).expect("the device's thread has ended");
        assert_eq!(fake.state().alive(), (0, 0, 0, 0));
        assert!(fake.closes_on_drop());
    }
}

/// The device at work in a thread of its own, until dropped.
struct Working {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Working {
    fn new(fake: &Arc<Fake>) -> Working {
        let stop = Arc::new(AtomicBool::new(false));
        let (fake, stopped) = (Arc::clone(fake), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if fake.progress() == 0 {
                    thread::sleep(Duration::from_micros(20));
                }
            }
        });
        Working { stop, thread: Some(thread) }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn number(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[..4].try_into().unwrap())
}

#[test]
fn messages_arrive_in_order_though_most_futures_are_dropped() {
    const MESSAGES: u32 = 500;
    in_both(|| async {
        let r = rig();
        let working = Working::new(&r.fake);
        let b = r.b.clone();
        let receiver = tokio::spawn(async move {
            let mut seed = 7;
            for want in 0..MESSAGES {
                let message = until_done(&mut seed, || b.receive()).await.unwrap();
                assert_eq!(number(&message), want);
            }
        });
        let mut seed = 3;
        for i in 0..MESSAGES {
            let bytes = i.to_le_bytes();
            until_done(&mut seed, || r.a.send(&bytes)).await.unwrap();
            if i % 16 == 0 {
                until_done(&mut seed, || r.a.flush()).await.unwrap();
            }
        }
        receiver.await.unwrap();
        drop(working);
        r.ends_well().await;
    });
}

/// Sender and receiver of both sides race for the same events: one that reads an event without sleeping on it must leave
/// the queue armed for those who sleep.
#[test]
fn an_echo_with_everybody_at_work() {
    const MESSAGES: u32 = 5_000;
    in_both(|| async {
        let r = rig();
        let working = Working::new(&r.fake);
        let b = r.b.clone();
        let echo = tokio::spawn(async move {
            for _ in 0..MESSAGES {
                let message = soon("a message", b.receive()).await.unwrap();
                soon("an answer", b.send(&message)).await.unwrap();
            }
        });
        let window = Arc::new(tokio::sync::Semaphore::new(CONFIG.receives as usize - 1));
        let (a, free) = (r.a.clone(), Arc::clone(&window));
        let sending = tokio::spawn(async move {
            for i in 0..MESSAGES {
                soon("room", free.acquire()).await.unwrap().forget();
                soon("send", a.send(&i.to_le_bytes())).await.unwrap();
            }
        });
        for i in 0..MESSAGES {
            let message = soon("the answer", r.a.receive()).await.unwrap();
            assert_eq!(number(&message), i);
            drop(message);
            window.add_permits(1);
        }
        sending.await.unwrap();
        echo.await.unwrap();
        drop(working);
        r.ends_well().await;
    });
}

/// What can be awaited, each dropped at its Nth poll for every N up to where it is ready; then done whole.
#[test]
fn every_operation_dropped_at_every_poll_leaves_everything_in_place() {
    in_both(|| async {
        for polls in 0..6 {
            let r = rig();
            // With the device standing still nothing completes: each of these waits in its last poll.
            let mut held = Vec::new();
            for _ in 0..CONFIG.sends {
                held.push(r.a.reserve().await.unwrap());
            }
            assert!(at_most(polls, r.a.reserve()).await.is_none());
            assert!(at_most(polls, r.a.send(b"never sent")).await.is_none());
            assert!(at_most(polls, r.b.receive()).await.is_none());
            held.pop().unwrap().send(4).unwrap();
            assert!(at_most(polls, r.a.flush()).await.is_none());
            drop(held);
            let working = Working::new(&r.fake);
            let late = at_most(polls, r.b.receive()).await;
            let message = match late {
                Some(message) => message.unwrap(),
                None => soon("receive", r.b.receive()).await.unwrap(),
            };
            assert_eq!(message.len(), 4);
            drop(message);
            soon("flush", r.a.flush()).await.unwrap();
            r.a.send(b"after").await.unwrap();
            assert_eq!(&soon("receive", r.b.receive()).await.unwrap()[..], b"after");
            drop(working);
            // The destruction goes on without the future, and the buffers come with the next call.
            let early = at_most(polls, r.b.close()).await;
            if let Some(slots) = early {
                assert_eq!(slots.unwrap().len(), (CONFIG.sends + CONFIG.receives) as usize);
                assert_eq!(soon("close", r.b.close()).await.unwrap().len(), 0);
                soon("close", r.a.close()).await.unwrap();
                r.fake.check();
            } else {
                r.ends_well().await;
            }
        }
    });
}

#[test]
fn many_tasks_share_a_queue_pair() {
    const EACH: u32 = 100;
    const TASKS: u32 = 4;
    in_both(|| async {
        let r = rig();
        let working = Working::new(&r.fake);
        let sum = Arc::new(AtomicU64::new(0));
        let left = Arc::new(AtomicU32::new(EACH * TASKS));
        let mut tasks = Vec::new();
        for t in 0..TASKS {
            let a = r.a.clone();
            tasks.push(tokio::spawn(async move {
                let mut seed = u64::from(t);
                for i in 0..EACH {
                    let bytes = (t * EACH + i).to_le_bytes();
                    until_done(&mut seed, || a.send(&bytes)).await.unwrap();
                    if next(&mut seed).is_multiple_of(8) {
                        soon("flush", a.flush()).await.unwrap();
                    }
                }
            }));
            let (b, sum, left) = (r.b.clone(), Arc::clone(&sum), Arc::clone(&left));
            tasks.push(tokio::spawn(async move {
                // Each takes its share, so that none waits for a message that another has taken.
                for _ in 0..EACH {
                    let message = soon("receive", b.receive()).await.unwrap();
                    sum.fetch_add(u64::from(number(&message)), Ordering::Relaxed);
                    left.fetch_sub(1, Ordering::Relaxed);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let n = u64::from(EACH * TASKS);
        assert_eq!(sum.load(Ordering::Relaxed), n * (n - 1) / 2, "each exactly once");
        assert_eq!(left.load(Ordering::Relaxed), 0);
        drop(working);
        r.ends_well().await;
    });
}

/// A task that finds another's message puts it where that one looks, and wakes it: the event may be gone by then.
#[test]
fn who_drives_wakes_the_others() {
    in_both(|| async {
        let r = rig();
        let mut held = Vec::new();
        for _ in 0..CONFIG.sends {
            held.push(r.b.reserve().await.unwrap());
        }
        let waiting = r.b.clone();
        let task = tokio::spawn(async move { waiting.receive().await.unwrap().len() });
        asleep(&r.b, 1).await;
        r.a.send(b"hello").await.unwrap();
        r.fake.progress();
        r.fake.swallow_events();
        // Drives until there is a buffer, which there never is, and takes the message's completion.
        assert!(at_most(1, r.b.reserve()).await.is_none());
        assert_eq!(soon("the other task", task).await.unwrap(), 5);
        drop(held);
        r.ends_well().await;
    });
}

/// Until so many tasks sleep on the queue pair.
async fn asleep(q: &AsyncQueuePair, tasks: usize) {
    while !format!("{q:?}").contains(&format!("waiting: {tasks}")) {
        tokio::task::yield_now().await;
    }
    // The last one is in the list before it sleeps.
    tokio::time::sleep(Duration::from_millis(5)).await;
}

#[test]
fn a_buffer_that_is_not_used_goes_to_the_next() {
    in_both(|| async {
        let r = rig();
        let mut held = Vec::new();
        for _ in 0..CONFIG.sends {
            held.push(r.a.reserve().await.unwrap());
        }
        let a = r.a.clone();
        let task = tokio::spawn(async move { a.reserve().await.map(drop) });
        asleep(&r.a, 1).await;
        held.pop();
        soon("the other task", task).await.unwrap().unwrap();
        drop(held);
        r.ends_well().await;
    });
}

/// A completion that comes after the queue was found empty and before it is armed raises no event.
#[test]
fn what_comes_before_the_arming_is_seen() {
    in_both(|| async {
        let r = rig();
        r.a.send(b"between").await.unwrap();
        let device = Arc::clone(&r.fake);
        r.fake.state().during_poll = Some(Box::new(move || assert_ne!(device.progress(), 0)));
        assert_eq!(&soon("receive", r.b.receive()).await.unwrap()[..], b"between");
        r.ends_well().await;

        let (fake, pd, mut group, [a, b]) = group_of_two();
        group.group_mut().post_recv(b, pd.slots(64, 1).unwrap().remove(0)).unwrap();
        group.group_mut().post_inline(a, b"between", SendFlags::empty()).unwrap();
        let device = Arc::clone(&fake);
        fake.state().during_poll = Some(Box::new(move || assert_ne!(device.progress(), 0)));
        for _ in 0..2 {
            assert!(soon("next", group.next()).await.unwrap().status.is_ok());
        }
        // Armed and asleep, twice over: each event is followed by a new arming.
        let (mut sent, mut slots) = (0, pd.slots(64, 3).unwrap());
        for _ in 0..3 {
            let slot = slots.pop().unwrap();
            group.group_mut().post_recv(b, slot).unwrap();
            group.group_mut().post_inline(a, b"later", SendFlags::empty()).unwrap();
        }
        while sent < 6 {
            let device = Arc::clone(&fake);
            let later = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                device.step()
            });
            sent += usize::from(soon("next", group.next()).await.unwrap().status.is_ok());
            sent += usize::from(soon("next", group.next()).await.unwrap().status.is_ok());
            assert_eq!(later.await.unwrap(), 1);
        }
        fake.check();
    });
}

/// Memory that peers may read and write, and a sink for reads, with what to tell the peer of the first.
fn remote_memory(pd: &ProtectionDomain) -> (MemoryRegion<Remote>, RemoteSlot) {
    let region = |access| pd.register_remote(vec![7; 256].into(), access).unwrap();
    let sink = region(RemoteAccess::ReadSink).into_slots(64, 1).unwrap().remove(0);
    (region(RemoteAccess::ReadWrite), sink)
}

/// A request that nobody waits for any more keeps what it names until it has completed; then that is to be had.
#[test]
fn requests_outlive_their_futures() {
    in_both(|| async {
        for polls in 0..5 {
            let r = rig();
            let (region, mut sink) = remote_memory(&r.pd);
            let theirs = region.remote();
            let mut slot = r.pd.slots(64, 1).unwrap().remove(0);
            slot[..5].copy_from_slice(b"wrote");
            let place = slot.as_ptr();
            // With the device standing still there is room for two, and none completes.
            let room = r.a.room().await.unwrap();
            let mut write = room.post(Request::write(slot, 5, theirs)).unwrap();
            let unused = r.a.room().await.unwrap();
            assert!(at_most(polls, r.a.room()).await.is_none());
            drop(unused);
            assert!(at_most(polls, write.done()).await.is_none());
            drop(write);
            assert!(r.a.take_abandoned().is_empty(), "the device has it");
            r.fake.progress();
            soon("flush", r.a.flush()).await.unwrap();
            sink.copy_in(0, &[0; 8]).unwrap();
            let room = r.a.room().await.unwrap();
            let mut read = room.post(Request::read(sink, 5, theirs)).unwrap();
            r.fake.progress();
            let done = soon("the read", read.done()).await.unwrap();
            assert!(done.status.is_ok() && done.op == Op::Read);
            assert!(read.done().await.is_err(), "it is had once");
            let Some(PayloadKind::Remote(sink)) = done.into_payload().map(Payload::into_kind)
            else {
                panic!("the sink comes back");
            };
            let mut got = [0; 5];
            sink.copy_out(0, &mut got).unwrap();
            assert_eq!(&got, b"wrote");
            let mut back = r.a.take_abandoned();
            assert_eq!(back.len(), 1);
            assert_eq!(back.remove(0).into_slot().unwrap().as_ptr(), place);
            // What was not completed when the queue pair was closed is there as well.
            let last = r.a.room().await.unwrap().post(Request::read(sink, 5, theirs)).unwrap();
            let slots = soon("close", r.a.close()).await.unwrap();
            assert_eq!(slots.len(), (CONFIG.sends + CONFIG.receives) as usize);
            drop(last);
            assert_eq!(r.a.take_abandoned().len(), 1);
            soon("close", r.b.close()).await.unwrap();
            r.fake.check();
        }
    });
}

/// Soft iWARP completes reads after what was posted behind them. Everybody gets their own all the same.
#[test]
fn completions_out_of_order_reach_who_waits_for_them() {
    in_both(|| async {
        let r = rig();
        r.fake.state().faults.late_reads = true;
        let (region, sink) = remote_memory(&r.pd);
        let mut slot = r.pd.slots(64, 1).unwrap().remove(0);
        slot[0] = 9;
        let post = async |request| r.a.room().await.unwrap().post(request).unwrap();
        let mut read = post(Request::read(sink, 8, region.remote().slice(8, 8).unwrap())).await;
        let mut write = post(Request::write(slot, 1, region.remote())).await;
        soon("send", r.a.send(b"later")).await.unwrap();
        r.fake.progress();
        soon("flush", r.a.flush()).await.unwrap();
        let wrote = soon("write", write.done()).await.unwrap();
        assert_eq!((wrote.op, wrote.slot.as_ref().unwrap()[0]), (Op::Write, 9));
        let done = soon("read", read.done()).await.unwrap();
        assert_eq!(done.op, Op::Read);
        let Some(PayloadKind::Remote(sink)) = done.into_payload().map(Payload::into_kind) else {
            panic!("the sink comes back");
        };
        let mut got = [0; 8];
        sink.copy_out(0, &mut got).unwrap();
        assert_eq!(got, [7; 8]);
        assert_eq!(&soon("message", r.b.receive()).await.unwrap()[..], b"later");
        assert!(r.a.take_abandoned().is_empty());
        drop((sink, region, read, write, wrote.slot));
        r.ends_well().await;
    });
}

#[test]
fn a_refused_request_comes_back() {
    in_both(|| async {
        let r = rig();
        let (region, sink) = remote_memory(&r.pd);
        for _ in 0..5 {
            let slot = r.pd.slots(64, 1).unwrap().remove(0);
            let request = Request::write(slot, 65, region.remote());
            let e = r.a.room().await.unwrap().post(request).unwrap_err();
            assert!(matches!(e.why, QueueError::Refused(Why::TooLong)), "{e}");
            assert!(e.payload.is_some());
        }
        drop((sink, region));
        r.ends_well().await;
    });
}

#[test]
fn a_failure_comes_after_the_messages_before_it() {
    in_both(|| async {
        let r = rig();
        r.a.send(b"last words").await.unwrap();
        r.fake.progress();
        let n = r.b.with_qp(|qp| qp.qp_num()).unwrap();
        r.fake.fail(n);
        assert_eq!(&r.b.receive().await.unwrap()[..], b"last words");
        let e = soon("receive", r.b.receive()).await.unwrap_err();
        assert!(
            matches!(e, QueueError::Failed { op: Op::Recv, status: WcStatus::WR_FLUSH_ERR, .. }),
            "{e:?}"
        );
        assert!(matches!(r.b.send(b"x").await, Err(QueueError::Failed { .. })));
        let e = r.a.send(&[0; 65]).await.unwrap_err();
        assert!(matches!(e, QueueError::Refused(Why::TooLong)), "{e:?}");
        r.ends_well().await;
    });
}

#[test]
fn closing_ends_every_wait() {
    in_both(|| async {
        let r = rig();
        let b = r.b.clone();
        let waiter = tokio::spawn(async move { b.receive().await.map(|m| m.len()) });
        tokio::task::yield_now().await;
        r.b.start_close();
        let ended = soon("receive", waiter).await.unwrap();
        assert!(matches!(ended, Err(QueueError::Closed)), "{ended:?}");
        assert!(matches!(r.b.reserve().await, Err(QueueError::Closed)));
        assert!(matches!(r.b.post_receives(), Err(QueueError::Closed)));
        r.ends_well().await;
    });
}

#[test]
fn a_listener_waits_for_the_first_message() {
    in_both(|| async {
        let r = rig();
        let working = Working::new(&r.fake);
        r.b.listen_first();
        assert!(at_most(3, r.b.send(b"too early")).await.is_none());
        let b = r.b.clone();
        let answer = tokio::spawn(async move { b.send(b"answer").await });
        r.a.send(b"first").await.unwrap();
        assert_eq!(&soon("first", r.b.receive()).await.unwrap()[..], b"first");
        soon("answer", answer).await.unwrap().unwrap();
        assert_eq!(&soon("answer", r.a.receive()).await.unwrap()[..], b"answer");
        assert!(r.b.has_heard());
        drop(working);
        r.ends_well().await;
    });
}

/// What a message or a buffer holds outlives the queue pair, and goes when they go.
#[test]
fn messages_outlive_the_queue_pair() {
    in_both(|| async {
        let r = rig();
        r.a.send(b"keep").await.unwrap();
        r.fake.progress();
        let message = r.b.receive().await.unwrap();
        let buffer = r.b.reserve().await.unwrap();
        assert_eq!(r.b.close().await.unwrap().len(), (CONFIG.sends + CONFIG.receives) as usize - 2);
        assert!(matches!(buffer.send(1), Err(QueueError::Closed)));
        assert_eq!(&message[..], b"keep");
        drop((message, r.b));
        r.a.close().await.unwrap();
        drop((r.a, r.pd));
        assert_eq!(r.fake.state().alive(), (0, 0, 0, 0));
        r.fake.check();
    });
}

/// A group with two queue pairs that are connected with each other.
fn group_of_two() -> (Arc<Fake>, ProtectionDomain, AsyncPollGroup, [QpKey; 2]) {
    let fake = Arc::new(Fake::open());
    let pd = fake.ctx.alloc_pd().unwrap();
    let channel = fake.ctx.completion_channel().unwrap();
    let cq = fake.ctx.create_cq_with(64, &channel).unwrap();
    let r = cq.cq_ref();
    let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() };
    let mut qps = [0, 1].map(|_| pd.create_qp(&r, &r, &config).unwrap());
    fake.connect(qps[0].qp_num(), qps[1].qp_num());
    qps.iter_mut().for_each(|qp| qp.mark_connected().unwrap());
    let mut group = AsyncPollGroup::new(PollGroup::new(cq)).unwrap();
    let keys = qps.map(|qp| group.group_mut().adopt(qp).map_err(|(_, e)| e).unwrap());
    (fake, pd, group, keys)
}

#[test]
fn the_next_completion_of_a_group_survives_every_drop() {
    const MESSAGES: u32 = 300;
    in_both(|| async {
        let (fake, pd, mut group, [a, b]) = group_of_two();
        for slot in pd.slots(64, 4).unwrap() {
            group.group_mut().post_recv(b, slot).unwrap();
        }
        let mut send = pd.slots(64, 1).unwrap();
        let working = Working::new(&fake);
        let (mut sent, mut got, mut seed) = (0, 0, 11);
        while got < MESSAGES {
            if sent < MESSAGES
                && let Some(mut slot) = send.pop()
            {
                slot[..4].copy_from_slice(&sent.to_le_bytes());
                group.group_mut().post_send(a, slot, 4, SendFlags::empty()).unwrap();
                sent += 1;
            }
            let polls = next(&mut seed) as usize % 4;
            let Some(done) = at_most(polls, group.next()).await else { continue };
            let done = done.unwrap();
            assert!(done.status.is_ok());
            match done.op {
                Op::Recv => {
                    assert_eq!(done.key, b);
                    let slot = done.slot.unwrap();
                    assert_eq!(number(&slot), got);
                    got += 1;
                    group.group_mut().post_recv(b, slot).unwrap();
                }
                _ => send.extend(done.slot),
            }
        }
        while send.is_empty() {
            send.extend(soon("the last send", group.next()).await.unwrap().slot);
        }
        drop(working);
        let mut group = group.into_inner();
        assert_eq!((group.stale(), group.parked()), (0, 0));
        assert_eq!(group.remove(a).unwrap().len() + group.remove(b).unwrap().len(), 4);
        fake.check();
    });
}

#[test]
fn a_group_needs_a_channel_of_its_own() {
    in_both(|| async {
        let fake = Fake::open();
        let without = PollGroup::new(fake.ctx.create_cq(16).unwrap());
        let e = AsyncPollGroup::new(without).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongState);
        let channel = fake.ctx.completion_channel().unwrap();
        let [one, two] = [0, 1].map(|_| fake.ctx.create_cq_with(16, &channel).unwrap());
        let e = AsyncPollGroup::new(PollGroup::new(one)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongState);
        let mut group = AsyncPollGroup::new(PollGroup::new(two)).unwrap();
        assert!(at_most(3, group.next()).await.is_none());
    });
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let e = AsyncQueuePair::new(&pd, &CONFIG).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongState);
    assert!(e.to_string().contains("inside a tokio runtime"), "{e}");
    assert!(DeviceEvents::new(&fake.ctx).is_err());
}

#[test]
fn device_events_are_read_one_by_one() {
    in_both(|| async {
        let fake = Fake::open();
        let mut events = DeviceEvents::new(&fake.ctx).unwrap();
        assert!(DeviceEvents::new(&fake.ctx).is_err(), "there is one reader");
        for polls in 0..4 {
            assert!(at_most(polls, events.next()).await.is_none());
            for port in 1..4 {
                fake.raise(rdma_sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE.0, port);
            }
            for port in 1..4 {
                let event = soon("an event", events.next()).await.unwrap();
                assert_eq!(event, AsyncEvent::Port { port, what: PortEvent::Active });
            }
        }
        drop(events);
        assert!(DeviceEvents::new(&fake.ctx).is_ok());
        fake.check();
    });
}

/// A runtime that goes away ends the waits, and what waited can still be closed.
#[test]
fn the_end_of_the_runtime_loses_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let r = runtime.block_on(async {
        let r = rig();
        let b = r.b.clone();
        tokio::spawn(async move { b.receive().await.map(drop) });
        tokio::task::yield_now().await;
        r
    });
    drop(runtime);
    let another = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    another.block_on(async {
        let e = tokio::time::timeout(LIMIT, r.b.receive()).await.unwrap().unwrap_err();
        assert!(matches!(&e, QueueError::Verbs(e) if e.to_string().contains("shut down")), "{e}");
    });
    drop((r.a, r.b, r.pd));
    assert_eq!(r.fake.state().alive(), (0, 0, 0, 0));
    r.fake.check();
}

/// A thread that knows a queue pair by its number must not find the next one under it.
#[test]
fn a_number_in_use_is_not_given_to_the_next() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() };
    let r = cq.cq_ref();
    let mut qp = pd.create_qp(&r, &r, &config).unwrap();
    let number = qp.qp_num();
    let (one, two) = (qp.hold_number(), qp.hold_number());
    let closing = thread::spawn(move || qp.close().map(|slots| slots.len()));
    drop(one);
    thread::sleep(Duration::from_millis(20));
    let next = pd.create_qp(&r, &r, &config).unwrap();
    assert_ne!(next.qp_num(), number, "the lowest free number, as siw");
    assert!(!closing.is_finished());
    drop(two);
    assert_eq!(closing.join().unwrap().unwrap(), 0);
    assert_eq!(pd.create_qp(&r, &r, &config).unwrap().qp_num(), number);
}
