//! The bytes of this version, recorded, and what becomes of those of another.
//!
//! `golden/vN.txt` has everything version N puts on the wire: the private data of connects and one message of each kind, as
//! two engines made them. It is never changed. Whoever changes a byte raises `wire::VERSION`, and saves what the first test
//! prints as the file of the new version; the old files stay, and show that both versions refuse each other by name.
#![allow(missing_docs)]
mod common;
use btl_core::error::ProtocolFault;
use btl_core::wire::{Greeting, HEADER, Header, Kind, PrivateData, RejectReason, VERSION};
use btl_core::{CreditRoute, Event, ProcName, Recovery, SECOND};
use common::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

const REASONS: [RejectReason; 10] = [
    RejectReason::Garbage,
    RejectReason::Version,
    RejectReason::Job,
    RejectReason::WrongProcess,
    RejectReason::Crossing,
    RejectReason::Busy,
    RejectReason::UnknownLane,
    RejectReason::Limits,
    RejectReason::Closing,
    RejectReason::UnknownPeer,
];

type Dump = BTreeMap<String, Vec<u8>>;

fn file(version: u8) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}.txt"))
}

fn read(version: u8) -> Option<Dump> {
    let text = std::fs::read_to_string(file(version)).ok()?;
    let bytes = |hex: &str| -> Vec<u8> {
        hex.split_whitespace().map(|two| u8::from_str_radix(two, 16).expect("hex")).collect()
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.map(|line| line.split_once(": ").expect("name: bytes"));
    Some(lines.map(|(name, hex)| (name.to_owned(), bytes(hex))).collect())
}

fn write(dump: &Dump) -> String {
    dump.iter().fold(String::new(), |mut text, (name, bytes)| {
        let _ = write!(text, "{name}:");
        bytes.iter().for_each(|byte| write!(text, " {byte:02x}").expect("a string"));
        text + "\n"
    })
}

/// Two engines that say everything there is to say.
fn everything() -> Shared {
    let (net, mut all) = two_with(|_, config| {
        config.job = 0x1122_3344_5566_7788;
        config.credit_route = CreditRoute::FirstLane;
    });
    net.borrow_mut().tape.on = true;
    net.borrow_mut().rma.caps.placed = false;
    assert!(send(&mut all[0], 1, &[0xaa, 0xbb, 0xcc], 0));
    drain(&net, &mut all);
    let to = all[0].add_peer(name(1), &[addr(1)]).expect("a peer");
    assert!(all[0].fence(to, 1).is_ok());
    // Enough on each lane that credits have to travel alone.
    for len in [4, 500] {
        for cookie in 0..12 {
            assert!(send(&mut all[0], 1, &vec![5; len], cookie));
            drain(&net, &mut all);
        }
    }
    all.iter_mut().for_each(|engine| engine.close(0));
    let rest = drain(&net, &mut all);
    assert!(!rest.iter().flatten().any(|event| matches!(event, Event::PeerFailed { .. })));
    net
}

/// Two that recover, of which one has nothing to say but that it has heard.
fn recovering() -> Shared {
    let (net, mut all) = two_with(|_, config| {
        config.job = 0x1122_3344_5566_7788;
        config.recover = Some(Recovery::default());
    });
    net.borrow_mut().tape.on = true;
    assert!(send(&mut all[0], 1, &[0xaa, 0xbb, 0xcc], 0));
    drain(&net, &mut all);
    net.borrow_mut().now += SECOND;
    drain(&net, &mut all);
    net
}

/// What the running code puts on the wire: the first of each kind.
fn dump() -> Dump {
    let mut dump = Dump::new();
    let tape = |net: Shared| net.borrow().tape.entries.clone();
    for (side, what, bytes) in &[tape(everything()), tape(recovering())].concat() {
        let what = match Header::parse(bytes, bytes.len()) {
            Ok(header) if *what == "message" => format!("message {:?} of side {side}", header.kind),
            _ => format!("private data of {what}"),
        };
        dump.entry(what).or_insert_with(|| bytes.clone());
    }
    for reason in REASONS {
        dump.insert(
            format!("private data of reject {reason:?}"),
            reason.encode().as_slice().to_vec(),
        );
    }
    dump
}

#[test]
fn the_bytes_of_this_version_are_the_recorded_ones() {
    let now = dump();
    let recorded = read(VERSION).unwrap_or_default();
    assert!(
        now == recorded,
        "the bytes on the wire are not those of tests/golden/v{VERSION}.txt. If that is meant, raise wire::VERSION and save \
         this as the file of the new version:\n{}",
        write(&now)
    );
}

#[test]
fn every_kind_of_message_is_recorded_and_readable() {
    let recorded = read(VERSION).expect("the file of this version");
    let kinds: Vec<Kind> = recorded
        .iter()
        .filter(|(name, _)| name.starts_with("message"))
        .map(|(name, bytes)| Header::parse(bytes, bytes.len()).expect(name).kind)
        .collect();
    let all = (1..15).filter_map(|kind| {
        let first = VERSION << 4 | kind;
        Header::parse(&[first, 0, 0, 0, 0, 0, 0, 0], HEADER).ok()
    });
    for kind in all.map(|header| header.kind) {
        assert!(kinds.contains(&kind), "no {kind:?} was recorded");
    }
    let connect = PrivateData::from_slice(&recorded["private data of connect"]);
    let greeting = Greeting::decode(&connect).expect("a greeting");
    assert_eq!((greeting.from, greeting.to), (name(0), name(1)));
    assert_eq!(greeting.from, ProcName { job: 5, rank: 0 });
}

/// What one version says to another: both are told so, and by name.
fn is_refused(dump: &Dump, theirs: u8) {
    for (name, bytes) in dump {
        let data = PrivateData::from_slice(bytes);
        if name.starts_with("message") {
            let parsed = Header::parse(bytes, bytes.len());
            assert_eq!(parsed, Err(ProtocolFault::Version { theirs, ours: VERSION }), "{name}");
        } else if let Some(reason) = name.strip_prefix("private data of reject ") {
            // The reason of a refusal is understood between all versions: that is how they part by name.
            let told = RejectReason::decode(&data).map(|told| format!("{told:?}"));
            assert_eq!(told.as_deref(), Some(reason));
        } else {
            assert_eq!(Greeting::decode(&data), Err(RejectReason::Version), "{name}");
        }
    }
}

#[test]
fn other_versions_are_refused_by_name() {
    for theirs in (1..16).filter(|version| *version != VERSION) {
        if let Some(recorded) = read(theirs) {
            is_refused(&recorded, theirs);
        }
        // One that does not exist yet: what is the same in all versions is where the version stands.
        let mut later = read(VERSION).expect("the file of this version");
        for (name, bytes) in &mut later {
            match name.starts_with("message") {
                true => bytes[0] = theirs << 4 | bytes[0] & 15,
                false => bytes[4] = theirs,
            }
        }
        is_refused(&later, theirs);
    }
}

#[test]
fn two_versions_part_and_say_why() {
    for theirs in [0, VERSION - 1, VERSION + 1, 200] {
        let (net, mut all) = engines(2);
        net.borrow_mut().tape =
            tape::Tape { on: true, version: Some(theirs), ..Default::default() };
        assert!(send(&mut all[0], 1, &[1; 8], 0));
        let events = settle(&net, &mut all);
        let Some(Event::PeerFailed { fault, .. }) = events[0].last() else { panic!("{events:?}") };
        assert!(fault.to_string().contains("another version of the protocol"), "{fault}");
        assert!(events[1].is_empty(), "nobody else hears of it: {events:?}");
        assert!(!net.borrow().tape.entries.iter().any(|(_, what, _)| *what == "message"));
    }
}
