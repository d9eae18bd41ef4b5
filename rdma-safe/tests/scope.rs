//! Borrowed memory comes back before its borrow ends, whatever happens. Against the fake provider; no device needed.

mod fake;

use fake::Fake;
use fake::rig::Rig;
use rdma_safe::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const SIG: SendFlags = SendFlags::empty();
const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(10);

fn rig() -> Rig {
    let config = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::default() };
    Rig::on(Fake::open(), 64, &config)
}

/// Nothing of the memory is with the device, and no registration of it is left.
fn is_free(fake: &Fake, memory: &[u8], regions: usize) {
    assert!(!fake.owns(memory));
    assert_eq!(fake.state().alive().2, regions);
}

#[test]
fn borrowed_memory_sends_and_comes_back() {
    let mut rig = rig();
    rig.b.post_recv(rig.pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    let mut text = *b"sent from a borrowed array, longer than 32 bytes....................";
    let fake = &rig.fake;
    let (sent, end) = rig
        .a
        .scope(&mut rig.cq, &mut text, 68, SOON, |scope, mut pieces| {
            assert_eq!(pieces.len(), 1);
            let mut piece = pieces.pop().unwrap();
            piece[0] = b'S';
            scope.post_send(piece, 64, SendFlags::UNSIGNALLED).unwrap();
            assert_eq!(scope.posted(), 1);
            fake.progress();
            let back = scope.poll(SOON).unwrap().expect("signalled whatever was asked");
            assert_eq!(scope.posted(), 0);
            assert_eq!(back.memory.unwrap()[0], b'S');
            1
        })
        .unwrap();
    assert_eq!((sent, end.strays.len(), end.done.len()), (1, 1, 0));
    rig.a = end.qp.expect("nothing was in the way");
    let mut wc = end.strays.into_iter().next().unwrap();
    let done = rig.b.complete(&mut wc).expect("the other pair's, kept for it");
    assert_eq!(done.slot.as_ref().unwrap()[..64], text[..64]);
    drop(done);
    is_free(&rig.fake, &text, 0);
    rig.fake.check();
}

/// Receives: the closure returns at once, and the scope waits for what is still out.
#[test]
fn a_scope_waits_for_what_is_posted() {
    let mut rig = rig();
    let mut memory = vec![0u8; 64 * 4];
    let (fake, sender) = (&rig.fake, &mut rig.a);
    let ((), end) = rig
        .b
        .scope(&mut rig.cq, &mut memory, 40, SOON, |scope, pieces| {
            assert_eq!(pieces.len(), 4, "each on a multiple of 64");
            for piece in pieces {
                scope.post_recv(piece).unwrap();
            }
            for i in 1..=4u8 {
                sender.post_inline(&[i; 40], SIG).unwrap();
            }
            assert_eq!(fake.progress(), 4);
        })
        .unwrap();
    let qp = end.qp.expect("all came back by themselves");
    assert_eq!(qp.in_flight(), (0, 0));
    for i in 0..4u8 {
        assert_eq!(memory[usize::from(i) * 64..][..40], [i + 1; 40]);
    }
    rig.fake.check();
}

/// What does not come back in time, or cannot come back at all, is taken back by destroying the queue pair.
#[test]
fn what_does_not_complete_is_taken_back() {
    for failed in [false, true] {
        let mut rig = rig();
        let own = rig.pd.slots(64, 1).unwrap().pop().unwrap();
        rig.b.post_recv(own).unwrap();
        let mut memory = vec![0u8; 128];
        let before = Instant::now();
        let limit = if failed { SOON } else { NOW };
        let state = rig.fake.state().faults;
        let fake = &rig.fake;
        let ((), end) = rig
            .b
            .scope(&mut rig.cq, &mut memory, 64, limit, |scope, mut pieces| {
                scope.post_recv(pieces.pop().unwrap()).unwrap();
                if failed {
                    fake.state().faults.post_recv_fails = true;
                    let e = scope.post_recv(pieces.pop().unwrap()).unwrap_err();
                    assert!(e.memory.is_none(), "the ring may have it");
                    assert_eq!(scope.posted(), 2);
                }
            })
            .unwrap();
        rig.fake.state().faults = state;
        assert!(end.qp.is_none(), "destroyed");
        assert_eq!(end.payloads.len(), 1, "its own slot is given back");
        assert!(before.elapsed() < SOON, "a failed pair is not waited for");
        drop(end);
        is_free(&rig.fake, &memory, 0);
        rig.fake.check();
    }
}

#[test]
fn a_panic_takes_everything_back() {
    let Rig { a: _a, b, mut cq, pd: _pd, fake } = rig();
    let mut memory = vec![0u8; 64];
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _ = b.scope(&mut cq, &mut memory, 64, SOON, |scope, mut pieces| {
            scope.post_recv(pieces.pop().unwrap()).unwrap();
            std::panic::resume_unwind(Box::new("of the closure's own"));
        });
    }));
    assert!(caught.is_err());
    assert!(!fake.owns(&memory));
    let alive = fake.state().alive();
    assert_eq!((alive.0, alive.2), (1, 0), "the pair is gone, and the registration");
    fake.check();
}

/// A forgotten piece leaves a registration that gives nobody anything; the device has none of it.
#[test]
fn a_forgotten_piece_is_harmless() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    let mut rig = rig();
    let mut memory = vec![0u8; 128];
    let (_, end) = rig
        .b
        .scope(&mut rig.cq, &mut memory, 64, NOW, |_, pieces| std::mem::forget(pieces))
        .unwrap();
    rig.b = end.qp.unwrap();
    is_free(&rig.fake, &memory, 1);
    rig.fake.check();
}

#[test]
fn what_cannot_be_lent_is_refused_with_the_queue_pair() {
    let mut rig = rig();
    let mut other = rig.fake.ctx.create_cq(16).unwrap();
    let mut memory = vec![0u8; 128];
    let (b, e) = rig.b.scope(&mut other, &mut memory, 64, NOW, |_, _| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    let (b, e) = b.scope(&mut rig.cq, &mut memory, 129, NOW, |_, _| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let (b, e) = b.scope(&mut rig.cq, &mut memory, 0, NOW, |_, _| ()).unwrap_err();
    assert!(e.to_string().contains("no piece of 0 bytes"), "{e}");
    rig.fake.state().faults.reg_mr_fails = true;
    let (b, e) = b.scope(&mut rig.cq, &mut memory, 64, NOW, |_, _| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    rig.b = b;
    rig.fake.check();
}

/// Set for the process that ends.
const ENDS: &str = "RDMA_TEST_SCOPE_ENDS";

fn end() {
    let mut rig = rig();
    let mut memory = vec![0u8; 64];
    rig.fake.state().faults.destroy_qp_fails = libc::EIO;
    let _ = rig.b.scope(&mut rig.cq, &mut memory, 64, NOW, |scope, mut pieces| {
        scope.post_recv(pieces.pop().unwrap()).unwrap();
    });
    println!("still here");
}

/// Memory that cannot be taken back must not be given back. The test starts itself again for the process that ends.
#[test]
fn a_failed_destruction_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    if std::env::var_os(ENDS).is_some() {
        return end();
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_failed_destruction_ends_the_process", "--nocapture"])
        .env(ENDS, "1")
        .output()
        .unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{out:?}");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("borrowed memory cannot be taken back"), "{text}");
    assert!(!String::from_utf8_lossy(&out.stdout).contains("still here"));
}
