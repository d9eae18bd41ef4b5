//! fork(2) with memory in the hands of a device. Alone in its process.

mod support;

use rdma_safe::*;
use support::cm::{Cm, End};
use support::under_test::open;
use support::{address, redeem};

const SIG: SendFlags = SendFlags::empty();

/// Forks; the child only ends itself (or becomes another program). Returns its exit status.
fn forked(child_does: impl FnOnce()) -> i32 {
    // SAFETY: the child calls only what is safe after a fork: see the callers.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        child_does();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(7) };
    }
    let mut status = 0;
    // SAFETY: our own child, a writable status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

/// With receives posted and with messages between: what the device writes after the fork arrives in the parent, at the
/// addresses it knows, although parent (by writing) and child (by living on) would have moved the pages.
#[test]
fn messages_arrive_across_forks() {
    // Linux 7.2, or any since 5.12.
    assert_eq!(fork_support().unwrap(), ForkSupport::Kernel);
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(64).unwrap();
    let at = cq.cq_ref();
    let config = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::default() };
    let mut a = pd.create_qp(&at, &at, &config).unwrap();
    let mut b = pd.create_qp(&at, &at, &config).unwrap();
    let cm = Cm::new(address());
    let mut pool = pd.slots(8192, 2).unwrap();
    let link = cm.connect(&mut a, &mut b, |end, qp| {
        if end == End::Server {
            qp.post_recv(pool.pop().unwrap()).unwrap();
        }
    });
    let mut out = pool.pop().unwrap();
    for round in 0..6u8 {
        out.fill(round);
        let status = match round % 3 {
            0 => forked(|| {}),
            // Another program, as `std::process::Command` starts it.
            1 => i32::from(std::process::Command::new("true").status().unwrap().success()) + 6,
            // A child that is still there, with its copy of the memory, while the message arrives.
            _ => forked(|| {
                // SAFETY: usleep(3) is async-signal-safe in practice and touches nothing.
                unsafe { libc::usleep(20_000) };
            }),
        };
        assert_eq!(status, 7);
        // A write after the fork: without protection it is this that would get the parent another page.
        out[0] = round;
        a.post_send(out, 8192, SIG).unwrap();
        let mut back = None;
        for d in redeem(&mut cq, &mut [&mut a, &mut b], 2) {
            assert!(d.status.is_ok(), "{}", d.status);
            let slot = d.slot.unwrap();
            match d.op {
                Op::Recv => {
                    assert!(slot.iter().all(|x| *x == round), "round {round}");
                    b.post_recv(slot).unwrap();
                }
                _ => back = Some(slot),
            }
        }
        out = back.unwrap();
    }
    link.disconnect();
    assert_eq!(b.close().unwrap().len(), 1, "the children ended nothing of it");
}
