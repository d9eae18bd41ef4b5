//! fork(2) with memory in the hands of a device: the fake one here, natively. Alone in its process.

mod fake;

use fake::Fake;
use rdma_safe::*;

/// The parent's memory stays where the device knows it, the child has a copy of its own, and exits without touching
/// anything.
#[test]
fn a_child_takes_nothing_from_its_parent() {
    fork_support().expect("before the first registration");
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(16).unwrap();
    let at = cq.cq_ref();
    let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() };
    let mut a = pd.create_qp(&at, &at, &config).unwrap();
    let mut b = pd.create_qp(&at, &at, &config).unwrap();
    fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    b.mark_connected().unwrap();
    let slot = pd.slots(4096, 1).unwrap().pop().unwrap();
    let start = slot.as_ptr();
    b.post_recv(slot).unwrap();

    // SAFETY: the child calls nothing but _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(7) };
    }
    let mut status = 0;
    // SAFETY: our own child, a writable status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");

    a.post_inline(b"after the fork", SendFlags::empty()).unwrap();
    assert_eq!(fake.progress(), 1);
    let mut wcs: [Wc; 4] = Default::default();
    assert_eq!(cq.poll(&mut wcs).unwrap(), 2);
    let slot = wcs[..2].iter_mut().find_map(|wc| b.complete(wc)).unwrap().slot.unwrap();
    assert_eq!((&slot[..14], slot.as_ptr()), (&b"after the fork"[..], start));
    drop((a, b, cq, at, slot, pd));
    fake.check();
    assert!(fake.closes_on_drop(), "the parent's objects were the parent's to end");
}
