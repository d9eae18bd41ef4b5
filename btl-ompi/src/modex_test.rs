use super::*;

fn v4(a: u8, b: u8, c: u8, d: u8, port: u16) -> RailAddr {
    RailAddr { at: SocketAddr::from(([a, b, c, d], port)), prefix: 24 }
}

fn lanes() -> Vec<u32> {
    vec![12288, 65536]
}

fn sample() -> Vec<Rail> {
    let v6 = RailAddr { at: "[fd00::7]:4712".parse().expect("an address"), prefix: 64 };
    vec![
        Rail {
            carrier: Carrier::Iwarp,
            loopback: true,
            eager: 12288,
            lanes: lanes(),
            addrs: vec![v4(10, 77, 0, 1, 4711), v6],
        },
        Rail {
            carrier: Carrier::Roce,
            loopback: false,
            eager: 2048,
            lanes: lanes(),
            addrs: vec![v4(10, 78, 0, 1, 65535)],
        },
    ]
}

#[test]
fn what_is_written_is_read() {
    let rails = sample();
    let blob = encode(&rails).expect("encodes");
    assert_eq!(decode(&blob), Ok(rails));
    assert_eq!(decode(&encode(&[]).expect("encodes")), Ok(vec![]));
}

/// Recorded; whoever changes a byte raises `VERSION`, and records another beside it.
const BLOB_OF_VERSION_1: &[u8] = &[
    b'r', b's', b'B', b'T', 1, 2, // version, rails
    0, 40, 3, 2, 2, 0, // bytes, iWARP, addresses, lanes
    0, 0, 48, 0, 0, 1, 0, 0, // buffers
    4, 24, 0x12, 0x67, 10, 77, 0, 1, //
    6, 64, 0x12, 0x68, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, //
    0, 20, 2, 1, 2, 0, // bytes, RoCE, addresses, lanes
    0, 0, 48, 0, 0, 1, 0, 0, // buffers
    4, 24, 0xff, 0xff, 10, 78, 0, 1,
];

/// As above, with what the device can and the size of eager messages.
const BLOB_OF_VERSION_2: &[u8] = &[
    b'r', b's', b'B', b'T', 2, 2, // version, rails
    0, 44, 3, 2, 2, 1, // bytes, iWARP, addresses, lanes, flags
    0, 0, 48, 0, // eager
    0, 0, 48, 0, 0, 1, 0, 0, // buffers
    4, 24, 0x12, 0x67, 10, 77, 0, 1, //
    6, 64, 0x12, 0x68, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, //
    0, 24, 2, 1, 2, 0, // bytes, RoCE, addresses, lanes, flags
    0, 0, 8, 0, // eager
    0, 0, 48, 0, 0, 1, 0, 0, // buffers
    4, 24, 0xff, 0xff, 10, 78, 0, 1,
];

#[test]
fn the_blob_of_version_2_is_these_bytes() {
    assert_eq!((VERSION, encode(&sample()).as_deref()), (2, Ok(BLOB_OF_VERSION_2)));
    assert_eq!(decode(BLOB_OF_VERSION_2), Ok(sample()));
}

#[test]
fn blobs_of_other_versions_are_refused_by_name() {
    assert_eq!(decode(BLOB_OF_VERSION_1), Err(ModexError::Version(1)));
    for version in (0..=255).filter(|version| *version != VERSION) {
        let mut blob = BLOB_OF_VERSION_2.to_vec();
        blob[4] = version;
        let error = decode(&blob).expect_err("another version");
        assert_eq!(error, ModexError::Version(version));
        assert!(error.to_string().contains(&format!("writes format {version}, this one reads 2")));
    }
}

#[test]
fn every_truncation_is_an_error() {
    let blob = encode(&sample()).expect("encodes");
    for n in 0..blob.len() {
        assert!(decode(&blob[..n]).is_err(), "{n} of {} bytes were accepted", blob.len());
    }
}

#[test]
fn no_single_byte_change_panics_and_foreign_data_is_named() {
    let blob = encode(&sample()).expect("encodes");
    let mut rejected = 0;
    for at in 0..blob.len() {
        for value in 0..=255 {
            let mut bad = blob.clone();
            bad[at] = value;
            rejected += usize::from(decode(&bad).is_err());
        }
    }
    assert!(rejected > 1000, "only {rejected} damaged blobs were rejected");
    assert_eq!(decode(b"btl_openib stuff"), Err(ModexError::Magic));
    assert_eq!(decode(b""), Err(ModexError::Magic));
    let mut newer = blob;
    newer[4] = 9;
    assert_eq!(decode(&newer), Err(ModexError::Version(9)));
    assert!(ModexError::Version(9).to_string().contains("install the same component everywhere"));
}

#[test]
fn a_longer_record_of_a_later_version_is_read() {
    let rails = vec![sample().remove(1)];
    let mut blob = encode(&rails).expect("encodes");
    let length = u16::from_be_bytes([blob[6], blob[7]]) + 3;
    blob[6..8].copy_from_slice(&length.to_be_bytes());
    blob.extend_from_slice(&[1, 2, 3]);
    assert_eq!(decode(&blob), Ok(rails));
}

#[test]
fn loopback_and_link_local_are_neither_written_nor_read() {
    let bad = [
        "127.0.0.1",
        "127.9.9.9",
        "169.254.3.4",
        "0.0.0.0",
        "::1",
        "fe80::1",
        "::",
        "::ffff:127.0.0.1",
        "224.0.0.1",
    ];
    for text in bad {
        let ip: IpAddr = text.parse().expect("an address");
        assert!(!publishable(ip), "{text} would be published");
        let mut rails = sample();
        rails[0].addrs = vec![RailAddr { at: SocketAddr::new(ip, 1), prefix: 8 }];
        assert_eq!(encode(&rails), Err(ModexError::Field("address")), "{text}");
    }
    // A peer that publishes one all the same: patch 10.77.0.1 into 127.0.0.1.
    let mut blob = encode(&sample()).expect("encodes");
    let at = blob.windows(4).position(|w| w == [10, 77, 0, 1]).expect("is there");
    blob[at..at + 4].copy_from_slice(&[127, 0, 0, 1]);
    let rails = decode(&blob).expect("decodes");
    assert_eq!(rails[0].addrs.len(), 1, "127.0.0.1 was taken from a peer");
}

#[test]
fn values_that_make_no_sense_are_errors() {
    let blob = encode(&sample()[..1]).expect("encodes");
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = blob.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        decode(&bad)
    };
    assert_eq!(with(6, &[0, 6]), Err(ModexError::Field("length")));
    assert_eq!(with(24, &[5]), Err(ModexError::Field("address family")));
    assert_eq!(with(25, &[33]), Err(ModexError::Field("prefix")));
    assert_eq!(with(26, &[0, 0]), Err(ModexError::Field("port")));
    let many = vec![sample().remove(0); 256];
    assert_eq!(encode(&many), Err(ModexError::TooLong("rails")));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(data in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        crate::modex_check::check(&data);
    }

    /// Nearly right: what we write, with some bytes changed.
    #[test]
    fn any_change_of_some_bytes_is_read_or_refused(
        changes in proptest::collection::vec((0usize..80, proptest::prelude::any::<u8>()), 0..5),
    ) {
        let mut blob = encode(&sample()).expect("encodes");
        for (at, byte) in changes {
            if let Some(b) = blob.get_mut(at) {
                *b = byte;
            }
        }
        crate::modex_check::check(&blob);
    }
}
