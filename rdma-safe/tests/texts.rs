//! What a user sees of the commonest failures, as far as they are this crate's: each says what, where and what to do.
//! (RLIMIT_MEMLOCK, file permissions and descriptors: `device_limits`; routes and peers that are gone: rdma-cm.)
//! Against the fake provider; no device needed.

mod fake;

use fake::Fake;
use rdma_safe::*;

const SIG: SendFlags = SendFlags::empty();

fn config(depth: u32) -> QpConfig {
    QpConfig { send_depth: depth, recv_depth: depth, max_inline: 64, ..QpConfig::default() }
}

fn says(text: impl ToString, words: &[&str]) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// Two connected queue pairs, the completion of one send on the first with the given status.
fn failed_with(status: u32) -> WcStatus {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(64).unwrap();
    let at = cq.cq_ref();
    let mut a = pd.create_qp(&at, &at, &config(4)).unwrap();
    let mut b = pd.create_qp(&at, &at, &config(4)).unwrap();
    fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    b.mark_connected().unwrap();
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    fake.state().faults.status = status;
    a.post_inline(b"x", SIG).unwrap();
    fake.progress();
    let mut wcs: [Wc; 4] = Default::default();
    let n = cq.poll(&mut wcs).unwrap();
    wcs[..n].iter_mut().find_map(|wc| a.complete(wc)).unwrap().status
}

#[test]
fn statuses_say_what_to_do() {
    says(failed_with(13), &["receiver-not-ready", "posted no receive", "allow more retries"]);
    says(failed_with(10), &["remote access", "another key", "ask it again"]);
    says(failed_with(12), &["does not answer", "connect anew"]);
    says(failed_with(5), &["flushed", "connection has ended"]);
    says(failed_with(1), &["longer than what was posted", "40 bytes"]);
    says(failed_with(2), &["longer than the receive"]);
    says(failed_with(11), &["receive shorter"]);
    says(failed_with(4711), &["4711"]);
}

#[test]
fn a_completion_queue_too_small_says_by_how_much() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(16).unwrap().cq_ref();
    let e = pd.create_qp(&cq, &cq, &config(16)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::CqDepth);
    says(e, &["32 more completions", "queue of 16", "make the queue deeper"]);
}

#[test]
fn what_is_too_long_for_inline_says_the_limit() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(16).unwrap().cq_ref();
    let mut qp = pd.create_qp(&cq, &cq, &config(4)).unwrap();
    qp.mark_connected().unwrap();
    let e = qp.post_inline(&[0; 65], SIG).unwrap_err();
    assert_eq!(e.why, Why::TooLong);
    says(e, &["longer", "max_inline"]);
}

#[test]
fn a_device_that_is_gone_says_what_is_left_to_do() {
    let fake = Fake::open();
    fake.state().faults.gone = libc::EIO;
    let e = fake.ctx.alloc_pd().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeviceGone);
    says(e, &["ibv_alloc_pd failed", "removed or has failed", "drop everything made on it"]);
}

#[test]
fn memory_that_cannot_be_pinned_says_the_limit() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    fake.state().faults.reg_mr_fails = true;
    let e = pd.slots(4096, 10).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    says(e, &["ibv_reg_mr failed", "40960 bytes could not be pinned", "RLIMIT_MEMLOCK"]);
}

#[test]
fn a_gid_that_is_not_there_says_which_are() {
    let fake = Fake::open_infiniband();
    let e = fake.ctx.roce_v2_gid(1, Some("10.1.2.3".parse().unwrap())).unwrap_err();
    says(e, &["RoCE v2 GID", "10.1.2.3", "port 1 of f", "no address at all"]);
}
