//! Bytes of a stranger against everything of this crate that reads them: for the fuzzer and for proptest.
use btl_core::params::DeviceParams;
use btl_core::wire::{Greeting, HEADER, Header, HelloInfo, PrivateData, RejectReason};

/// Panics if one of the readers does, believes more than there is, or does not read what it writes.
pub(crate) fn check(data: &[u8]) {
    header(data);
    hello(data);
    private(data);
    ini(data);
}

fn header(data: &[u8]) {
    for arrived in [0, data.len() / 2, data.len(), usize::MAX] {
        if let Ok(header) = Header::parse(data, arrived) {
            assert!(HEADER + header.len as usize <= data.len().min(arrived));
        }
    }
}

fn hello(data: &[u8]) {
    // What a Hello has to say is known from the connect: from the bytes, so that some are right.
    let byte = |at: usize| data.get(at).copied().unwrap_or(0);
    let generation = u32::from_le_bytes([byte(8), byte(9), byte(10), byte(11)]);
    let right = HelloInfo { class: byte(5), generation };
    let wrong = HelloInfo { class: !byte(5), generation };
    assert!(wrong.check(data).is_err());
    let _ = right.check(data);
}

fn private(data: &[u8]) {
    let data = PrivateData::from_slice(data);
    if let Ok(greeting) = Greeting::decode(&data) {
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    }
    if let Some(reason) = RejectReason::decode(&data) {
        assert_eq!(RejectReason::decode(&reason.encode()), Some(reason));
    }
}

fn ini(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (mut once, mut twice) = (DeviceParams::default(), DeviceParams::default());
    once.read("a", &text);
    twice.read("a", &text);
    twice.read("a", &text);
    for (vendor, part) in [(0, 0), (1, 1), (0x1425, 0x5401), (u32::MAX, u32::MAX)] {
        // A file says the same twice.
        assert_eq!(once.of(vendor, part), twice.of(vendor, part));
    }
    for warning in once.warnings() {
        let lines = text.lines().count() as u32;
        assert!((1..=lines).contains(&warning.place.line), "{warning}");
    }
}
