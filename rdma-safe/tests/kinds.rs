//! What neither soft device has, and what they cannot be made to do, against the fake provider: addresses, multicast,
//! extended reliable connections, raw packets.

mod fake;

use fake::Fake;
use fake::chaos::LeaksOnPurpose;
use rdma_safe::*;

const GROUP: Gid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

#[test]
fn an_address_handle_lives_until_its_last_clone() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let ah = pd.create_ah(&AddressVector::infiniband(1, 7)).unwrap();
    let clone = ah.clone();
    drop(ah);
    assert_eq!(fake.state().kinds.ahs.len(), 1);
    drop(pd);
    assert_eq!(fake.state().alive().3, 1, "the handle holds its domain");
    drop(clone);
    assert_eq!(fake.state().kinds.ahs.len(), 0);
    assert_eq!(fake.state().alive().3, 0);
    fake.check();
    assert!(fake.closes_on_drop());
}

#[test]
fn an_address_handle_that_cannot_be_destroyed_keeps_what_it_stands_on() {
    let _leaks = LeaksOnPurpose::new();
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let ah = pd.create_ah(&AddressVector::infiniband(1, 7)).unwrap();
    fake.state().kinds.destroy_ah_fails = true;
    drop((ah, pd));
    assert_eq!(fake.state().alive().3, 1);
    fake.check();
    assert!(!fake.closes_on_drop());
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let good = AddressVector::roce(1, 0, GROUP);
    let global = good.global.unwrap();
    let refused = |av| {
        let e = pd.create_ah(&av).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::InvalidArgument, 0), "{e}");
    };
    refused(AddressVector { port: 0, ..good });
    refused(AddressVector { port: 2, ..good });
    refused(AddressVector { service_level: 16, ..good });
    refused(AddressVector { src_path_bits: 128, ..good });
    refused(AddressVector { global: Some(GlobalRoute { flow_label: 1 << 20, ..global }), ..good });
    let e = pd.create_ah(&AddressVector::roce(1, 9, GROUP)).unwrap_err();
    assert_eq!(e.errno(), libc::EINVAL);
    assert!(e.to_string().contains("GID index"), "{e}");
    let iwarp = Fake::open();
    let e = iwarp.ctx.alloc_pd().unwrap().create_ah(&good).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("rdma_cm"), "{e}");
    assert!(pd.create_ah(&good).is_ok());
}

#[test]
fn the_way_back_is_in_the_header() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let local = Wc::empty().origin();
    assert!(!local.has_grh);
    let back = pd.reply_vector(local, 1, &[0; GRH_SIZE]).unwrap();
    assert_eq!((back.port, back.global), (1, None));
    let e = pd.reply_vector(local, 1, &[0; GRH_SIZE - 1]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let mut global = local;
    global.has_grh = true;
    let mut buffer = [0; GRH_SIZE + 3];
    buffer[0] = 0x60;
    buffer[8..24].copy_from_slice(&GROUP.0);
    let back = pd.reply_vector(global, 1, &buffer).unwrap();
    assert_eq!(back.global.map(|g| g.dgid), Some(GROUP));
    assert!(pd.create_reply_ah(global, 1, &buffer).is_ok());
    buffer[0] = 0;
    let e = pd.create_reply_ah(global, 1, &buffer).unwrap_err();
    assert!(e.to_string().contains("header"), "{e}");
    assert!(pd.reply_vector(local, 9, &buffer).is_err(), "no such port");
}
