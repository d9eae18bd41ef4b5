//! The network or the device goes away under connected traffic: sends, receives, writes and reads outstanding both ways
//! over a connection of rdma_cm. Every request completes, or fails with a status, or comes back from the queue pair that is
//! closed, once; and the process goes on. Needs root and iproute2, as the test machine has.

mod support;

use rdma_safe::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::cm::{Cm, End, Link};
use support::links::{SoftDevice, finish, ip};
use support::under_test::open;
use support::{LIMIT, address};

const SIZE: usize = 16 << 10;
const SIG: SendFlags = SendFlags::empty();

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of the connection, with what its peer writes to and reads from, and what it has heard.
struct Side {
    qp: QueuePair,
    target: MemoryRegion<Remote>,
    sent: u32,
    heard: u32,
}

impl Side {
    fn new(pd: &ProtectionDomain, cq: &CqRef) -> Side {
        let config = QpConfig { send_depth: 32, recv_depth: 32, ..QpConfig::default() };
        let memory = OwnedMemory::zeroed(SIZE).unwrap();
        Side {
            qp: pd.create_qp(cq, cq, &config).unwrap(),
            target: pd.register_remote(memory, RemoteAccess::ReadWrite).unwrap(),
            sent: 0,
            heard: 0,
        }
    }
}

/// A connection of the device with itself, and where every request that was posted has gone.
struct Traffic {
    _link: Link,
    _cm: Cm,
    sides: [Side; 2],
    cq: CompletionQueue,
    pd: ProtectionDomain,
    posted: usize,
    worked: usize,
    failed: Vec<(Op, WcStatus)>,
    refused: Vec<Why>,
}

/// A message tells its number in every word.
fn fill(slot: &mut [u8], number: u32) {
    slot.chunks_exact_mut(4).for_each(|w| w.copy_from_slice(&number.to_be_bytes()));
}

impl Traffic {
    fn new() -> Traffic {
        let ctx = open();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(256).unwrap());
        let (mut a, mut b) = (Side::new(&pd, &cq.cq_ref()), Side::new(&pd, &cq.cq_ref()));
        let cm = Cm::new(address());
        let hello = || pd.slots(64, 1).unwrap().pop().unwrap();
        let link = cm.connect(&mut a.qp, &mut b.qp, |end, qp| {
            if end == End::Server {
                qp.post_recv(hello()).unwrap();
            }
        });
        // The initiator speaks first; an empty write makes an acceptor look that was not ready to (siw).
        let mut cq = cq;
        a.qp.post_inline(b"hello", SIG).unwrap();
        a.qp.post_empty_write().unwrap();
        let hello = support::redeem(&mut cq, &mut [&mut a.qp, &mut b.qp], 3);
        assert!(hello.iter().all(|d| d.status.is_ok()), "{hello:?}");
        Traffic {
            _link: link,
            _cm: cm,
            sides: [a, b],
            cq,
            pd,
            posted: 0,
            worked: 0,
            failed: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn slot(&self) -> Slot {
        self.pd.slots(SIZE, 1).unwrap().pop().unwrap()
    }

    /// Counts what the queue pair has now: a refused request has to come back.
    fn count(&mut self, posted: std::result::Result<(), PostError>) -> bool {
        match posted {
            Ok(()) => self.posted += 1,
            Err(e) if e.slot.is_some() || e.payload.is_some() => self.refused.push(e.why),
            // The device failed the post: the queue pair keeps it.
            Err(e) => {
                assert!(matches!(e.why, Why::Device(_)), "{e}: nothing came back");
                (self.posted, self.refused) = (self.posted + 1, vec![e.why]);
            }
        }
        self.refused.is_empty()
    }

    /// Posts receives at both ends, then sends, writes and reads from both, without waiting for any.
    fn burst(&mut self) {
        for to in 0..2 {
            for _ in 0..2 {
                let slot = self.slot();
                let posted = self.sides[to].qp.post_recv(slot);
                self.count(posted);
            }
        }
        for from in 0..2 {
            let theirs = self.sides[1 - from].target.remote();
            for _ in 0..2 {
                let (mut message, mut written) = (self.slot(), self.slot());
                let number = self.sides[from].sent;
                fill(&mut message, number);
                fill(&mut written, number);
                let sink = OwnedMemory::zeroed(SIZE).unwrap();
                let sink = self.pd.register_remote(sink, RemoteAccess::ReadSink).unwrap();
                let sink = sink.into_slots(SIZE, 1).unwrap().pop().unwrap();
                let qp = &mut self.sides[from].qp;
                let all = [
                    qp.post(Request::write(written, SIZE, theirs)),
                    qp.post(Request::read(sink, SIZE, theirs)),
                    qp.post_send(message, SIZE, SIG),
                ];
                for posted in all {
                    if self.count(posted) {
                        self.sides[from].sent = number + 1;
                    }
                }
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.posted - self.worked - self.failed.len()
    }

    /// Redeems until nothing is outstanding, or `limit` has passed.
    fn settle(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut wcs: [Wc; 8] = Default::default();
        while self.outstanding() > 0 && Instant::now() < end {
            let n = self.cq.poll(&mut wcs).unwrap();
            if n == 0 {
                std::thread::yield_now();
            }
            for wc in &mut wcs[..n] {
                let side = self.sides.iter_mut().find_map(|s| Some((s.qp.complete(wc)?, s)));
                let (done, side) = side.expect("a completion of ours, once");
                if !done.status.is_ok() {
                    self.failed.push((done.op, done.status));
                    continue;
                }
                self.worked += 1;
                if done.op == Op::Recv {
                    let mut whole = vec![0; SIZE];
                    fill(&mut whole, side.heard);
                    assert!(done.message() == &whole[..], "message {} is another", side.heard);
                    side.heard += 1;
                }
            }
        }
    }

    /// Closes both ends and accounts for everything; returns how much came back unused.
    fn close(self) -> usize {
        let outstanding = self.outstanding();
        let back: usize =
            self.sides.into_iter().map(|s| s.qp.close_payloads().unwrap().len()).sum();
        assert_eq!(back, outstanding, "posted {}, failed {:?}", self.posted, self.failed);
        for (op, status) in &self.failed {
            let known = [WcStatus::WR_FLUSH_ERR, WcStatus::RETRY_EXC_ERR];
            assert!(known.contains(status), "{op:?}: {status}");
        }
        for why in &self.refused {
            let known = matches!(why, Why::Broken | Why::NotConnected | Why::Device(_));
            assert!(known, "{why}");
        }
        back
    }

    /// Nothing is in the way: all of it works.
    fn works(mut self) {
        for _ in 0..3 {
            self.burst();
            self.settle(LIMIT);
            assert_eq!((self.outstanding(), &self.failed), (0, &Vec::new()));
        }
        assert!(self.refused.is_empty());
        assert_eq!(self.close(), 0);
    }
}

/// Set in a process that has traffic. librdmacm keeps what it used open until the process ends, and a device is removed
/// only when nobody has it open: so the parent has none.
const CHILD: &str = "RDMA_TEST_TRAFFIC";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// This test in a process of its own.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
    command
}

#[test]
fn the_network_goes_and_comes_back_under_traffic() {
    if is_child() {
        return under_a_network_that_goes();
    }
    let _one = one_at_a_time();
    let run = child("the_network_goes_and_comes_back_under_traffic").output().unwrap();
    let said = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&said));
}

fn under_a_network_that_goes() {
    let device = SoftDevice::under_test();
    let mut events = AsyncEvents::new(&open()).unwrap();
    let mut traffic = Traffic::new();
    traffic.burst();
    ip(&["link", "set", &device.netdev, "down"]);
    traffic.burst();
    let mut until = |what| {
        let wanted = AsyncEvent::Port { port: 1, what };
        let end = Instant::now() + LIMIT;
        while events.next(LIMIT).unwrap() != Some(wanted) {
            assert!(Instant::now() < end, "no {wanted:?}");
        }
    };
    until(PortEvent::Down);
    traffic.settle(Duration::from_millis(300));
    traffic.burst();
    ip(&["link", "set", &device.netdev, "up"]);
    until(PortEvent::Active);
    // Whether a connection lives through it is the transport's business (retries); nothing hangs in between.
    traffic.settle(2 * LIMIT);
    let broken = traffic.sides.iter().any(|s| s.qp.state() == QpState::Error);
    assert_eq!(broken, !traffic.failed.is_empty() || !traffic.refused.is_empty());
    let (heard, failed) = (traffic.sides[0].heard + traffic.sides[1].heard, traffic.failed.len());
    assert!(broken || traffic.outstanding() == 0, "{} hang", traffic.outstanding());
    println!("broken: {broken}, {heard} messages heard, {failed} failed");
    traffic.close();
    Traffic::new().works();
}

#[test]
fn a_device_is_removed_under_traffic() {
    if is_child() {
        return under_removal();
    }
    let _one = one_at_a_time();
    let device = SoftDevice::under_test();
    let mut child = child("a_device_is_removed_under_traffic")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = said.by_ref().map_while(std::io::Result::ok).any(|l| l.ends_with("ready"));
    assert!(ready, "it did not connect: {}", child.wait().unwrap());
    let mut removal = device.begin_removal();
    assert!(removal.try_wait().unwrap().is_none(), "it waits for the child");
    child.stdin.take().unwrap().write_all(b"removed\n").unwrap();
    said.map_while(std::io::Result::ok).for_each(|l| println!("{l}"));
    assert!(child.wait().unwrap().success());
    // It was the last user.
    finish(removal);
    device.add();
    Traffic::new().works();
}

fn under_removal() {
    let name = support::device_name();
    let device = Device::by_name(&name).unwrap();
    let mut traffic = Traffic::new();
    traffic.burst();
    println!("ready");
    // In flight until the parent has removed the device.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "removed\n");
    for e in [Device::by_name(&name).unwrap_err(), device.open().unwrap_err()] {
        assert_eq!(e.kind(), ErrorKind::NoDevice, "{e}");
    }
    // The kernel does not take a soft device from those who have it: all of it still works.
    for _ in 0..3 {
        traffic.settle(LIMIT);
        assert_eq!((traffic.outstanding(), &traffic.failed), (0, &Vec::new()));
        traffic.burst();
    }
    assert!(traffic.refused.is_empty(), "{:?}", traffic.refused);
    // What is in flight now comes back from the queue pairs.
    traffic.close();
}
