//! Vendor options of queue pairs, against the fake provider: neither soft device has any.

mod fake;

use fake::Fake;
use rdma_safe::*;

#[test]
fn options_are_offered_and_agreed_on_before_a_queue_pair_is_ready() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(16).unwrap().cq_ref();
    let config = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::default() };
    let mut qp = pd.create_qp(&cq, &cq, &config).unwrap();
    assert_eq!(qp.ece().unwrap(), Some(Ece { vendor_id: 7, options: 0xf }));
    let stranger = qp.set_ece(Ece { vendor_id: 8, options: 1 }).unwrap_err();
    assert_eq!(stranger.errno(), libc::EINVAL, "{stranger}");
    let nobody = qp.set_ece(Ece { vendor_id: 0, options: 1 }).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::InvalidArgument, "{nobody}");
    qp.set_ece(Ece { vendor_id: 7, options: 0x35 }).unwrap();
    assert_eq!(qp.ece().unwrap(), Some(Ece { vendor_id: 7, options: 0x5 }));
    qp.mark_connected().unwrap();
    let late = qp.set_ece(Ece { vendor_id: 7, options: 1 }).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::WrongState, "{late}");
    fake.state().faults.gone = libc::EIO;
    assert_eq!(qp.ece().unwrap_err().kind(), ErrorKind::DeviceGone);
    // Nothing is left behind: with the device gone its objects could not be destroyed.
    fake.state().faults.gone = 0;
}
