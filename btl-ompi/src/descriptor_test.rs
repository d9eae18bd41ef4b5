//! Descriptors in wrong hands are noticed. The buffers come from an engine over the test transport.

use super::*;
use crate::driver::{Cm, How, Port, find};
use btl_core::{Config, Engine, ProcName};

struct Fixture {
    engine: Engine<Port, Cm>,
    slab: Slab,
}

impl Fixture {
    fn new(descriptors: usize) -> Self {
        let config = Config::new(ProcName { job: 1, rank: 0 }, 1);
        let candidate = find(None).expect("the test transport is there").remove(0);
        let opened = candidate.open(&config, &How::default()).expect("it opens");
        let engine = Engine::new(config, opened.port, opened.cm).expect("the defaults are fine");
        Self { engine, slab: Slab::new(descriptors) }
    }

    fn hand_out(&mut self, len: usize, flags: u32) -> Option<*mut abi::Descriptor> {
        let buf = self.engine.alloc(len).expect("a buffer is free");
        match self.slab.hand_out(ptr::null_mut(), buf, flags) {
            Ok(des) => Some(des),
            Err(buf) => {
                self.engine.free(buf);
                None
            }
        }
    }
}

fn set_len(des: *mut abi::Descriptor, len: u64) {
    // SAFETY: a descriptor in our hands with one segment.
    unsafe { (*(*des).segments).len = len };
}

#[test]
fn a_descriptor_goes_its_way_and_is_used_again() {
    let mut fixture = Fixture::new(1);
    for len in [0, 1, 100, 12280] {
        let des = fixture.hand_out(len, abi::DES_BTL_OWNERSHIP).expect("one is free");
        // SAFETY: in our hands.
        unsafe {
            assert_eq!(((*des).segment_count, (*(*des).segments).len), (1, len as u64));
            assert_eq!((*des).order, abi::NO_ORDER);
        }
        assert!(fixture.hand_out(len, 0).is_none(), "there is only one");
        let (id, buf) = fixture.slab.start(des, ptr::null_mut()).expect("it can be sent");
        assert_eq!(buf.len(), len);
        let mut back = Some(buf);
        let done = fixture.slab.complete(id.cookie(), &mut back).expect("it was under way");
        assert!(back.is_none() && done.owned && done.des == des);
        let buf = fixture.slab.take_back(done.des).expect("it was ours").expect("with its buffer");
        fixture.engine.free(buf);
    }
}

#[test]
fn misuse_is_refused() {
    let mut fixture = Fixture::new(2);
    let des = fixture.hand_out(100, 0).expect("one is free");
    set_len(des, 12281);
    assert!(fixture.slab.start(des, ptr::null_mut()).is_none(), "longer than its buffer");
    set_len(des, 7);
    let (id, buf) = fixture.slab.start(des, ptr::null_mut()).expect("it can be sent");
    assert_eq!(buf.len(), 7, "cut to what Open MPI wrote");
    assert!(fixture.slab.start(des, ptr::null_mut()).is_none(), "sent twice");
    assert!(fixture.slab.take_back(des).is_none(), "freed while it is under way");
    fixture.slab.refused(id, buf);
    assert!(
        fixture.slab.take_back(des).is_some_and(|buf| buf.is_some()),
        "freed after it was refused"
    );
    assert!(fixture.slab.take_back(des).is_none(), "freed twice");
    assert!(fixture.slab.take_back(des.wrapping_byte_add(8)).is_none(), "inside of one");
    assert!(fixture.slab.take_back(ptr::null_mut()).is_none(), "NULL");
    assert!(fixture.slab.complete(0, &mut None).is_none(), "completed without being sent");
    assert!(fixture.slab.complete(u64::MAX, &mut None).is_none(), "no such cookie");
}

/// At least half of the sends under way are called back, whatever ob1 asks for.
#[test]
fn only_half_may_be_quiet() {
    let mut fixture = Fixture::new(4);
    let mut ids = Vec::new();
    for expected in [true, true, false, false] {
        let des = fixture.hand_out(10, abi::DES_BTL_OWNERSHIP).expect("one is free");
        let (id, buf) = fixture.slab.start(des, ptr::null_mut()).expect("it can be sent");
        fixture.engine.free(buf);
        let quiet = fixture.slab.may_be_quiet(id);
        assert_eq!(quiet, expected);
        fixture.slab.settle(id, quiet);
        // SAFETY: the fixture stands for the engine.
        let wanted = unsafe { (*des).flags } & abi::DES_ALWAYS_CALLBACK != 0;
        assert_eq!(wanted, !expected, "Open MPI is told by the flag");
        ids.push(id);
    }
    assert!(fixture.slab.complete(ids[0].cookie(), &mut None).is_some());
    assert!(!fixture.slab.is_low(), "an ended one makes room");
}

#[test]
fn a_callback_that_was_asked_for_comes() {
    let mut fixture = Fixture::new(8);
    let flags = abi::DES_BTL_OWNERSHIP | abi::DES_ALWAYS_CALLBACK;
    for flags in [flags, abi::DES_ALWAYS_CALLBACK, 0] {
        let des = fixture.hand_out(10, flags).expect("one is free");
        let (id, _) = fixture.slab.start(des, ptr::null_mut()).expect("it can be sent");
        assert!(!fixture.slab.may_be_quiet(id), "flags {flags}");
    }
}
