//! Random programs on the fake provider, with every fault it has. No device needed.
//!
//! Also run under AddressSanitizer and LeakSanitizer (`cargo xtask test --only asan`).

mod fake;
mod programs;

use fake::Fake;
use fake::chaos::LeaksOnPurpose;
use programs::fabric::Fabric;
use programs::{Alive, Failing, Fault, Ledger, Mood, Tally, Watch, World, run_all};
use rdma_safe::{Context, QueuePair};
use rdma_sys::ibv_event_type;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

struct OnFake {
    fake: Fake,
    honest: bool,
    leaks: bool,
}

impl Fabric for OnFake {
    fn context(&self) -> &Context {
        &self.fake.ctx
    }

    fn connect(&mut self, a: &mut QueuePair, b: &mut QueuePair) -> bool {
        self.fake.connect(a.qp_num(), b.qp_num());
        a.mark_connected().unwrap();
        b.mark_connected().unwrap();
        true
    }

    fn progress(&mut self) {
        self.fake.progress();
    }

    fn fail(&mut self, qp: &mut QueuePair) {
        self.fake.fail(qp.qp_num());
    }

    fn ended(&mut self, _: u64) {}

    fn inject(&mut self, fault: Fault) {
        let f = &mut self.fake.state().faults;
        match fault {
            Fault::PostSend => f.post_send_fails = true,
            Fault::PostRecv => f.post_recv_fails = true,
            Fault::DestroyQp => f.destroy_qp_fails = libc::EIO,
            Fault::Dereg => f.dereg_fails = true,
            Fault::DestroyCq => f.destroy_cq_fails = true,
            Fault::DeallocPd => f.dealloc_fails = true,
            Fault::CreateQp => f.create_qp_fails = libc::ENOMEM,
            Fault::RegMr => f.reg_mr_fails = true,
            Fault::Poll => f.poll_fails = -libc::EIO,
            Fault::FlushOnDestroy => f.flush_on_destroy = true,
            Fault::Duplicate => f.duplicate = true,
            Fault::Status => f.status = 0x7fff_fff0,
            Fault::Length => f.byte_len = u32::MAX,
            Fault::Gone => f.gone = libc::EIO,
        }
        self.honest &= !matches!(fault, Fault::Duplicate | Fault::Status | Fault::Length);
    }

    fn heal(&mut self) {
        self.fake.state().faults = Default::default();
    }

    fn failing(&self) -> Failing {
        let f = self.fake.state().faults;
        Failing {
            destroy_qp: f.destroy_qp_fails != 0 || f.gone != 0,
            dereg: f.dereg_fails || f.gone != 0,
            destroy_cq: f.destroy_cq_fails || f.gone != 0,
            dealloc_pd: f.dealloc_fails || f.gone != 0,
        }
    }

    fn repeat(&mut self, times: u8) {
        self.honest = false;
        self.fake.repeat(times.into());
    }

    fn garbage(&mut self, random: u64) {
        self.honest = false;
        self.fake.garbage(random);
    }

    fn async_event(&mut self, random: u8) {
        match random {
            0..64 => self.fake.raise_cqs(ibv_event_type::IBV_EVENT_CQ_ERR),
            _ => self.fake.raise(random.into(), 1),
        }
    }

    fn may_touch(&self, range: Range<usize>) -> Option<bool> {
        Some(self.fake.state().owns_range(range))
    }

    fn alive(&self) -> Option<Alive> {
        Some(self.fake.state().alive())
    }

    fn check(&self) {
        // Duplicates and garbage overflow a queue through no fault of ours.
        match self.honest {
            true => self.fake.check(),
            false => self.fake.check_use(),
        }
    }

    fn on_thread(&self) -> Box<dyn Any> {
        Box::new(self.leaks.then(LeaksOnPurpose::new))
    }

    fn honest(&self) -> bool {
        self.honest
    }
}

fn run(steps: Vec<programs::Step>, leaks: bool) -> Tally {
    let _leaks = leaks.then(LeaksOnPurpose::new);
    let fake = Fake::open();
    let state = fake.shared_state();
    let watch: Watch = Arc::new(move |range: Range<usize>| {
        let state = state.lock().unwrap();
        match state.is_registered(range.clone()) || state.owns_range(range) {
            true => Some("memory freed under the device".to_owned()),
            false => None,
        }
    });
    World::new(OnFake { fake, honest: true, leaks }, watch, Arc::new(Ledger::default()))
        .run(steps)
        .0
}

/// A test whose programs do nothing is no test.
fn busy(cases: u64, t: Tally) {
    let enough = [t.posted, t.refused, t.redeemed + t.routed, t.received];
    assert!(enough.iter().all(|n| *n >= cases / 2), "{t:?}");
    assert!(t.closed_with_slots > 0 && t.panics > 0 && t.not_redeemed > 0, "{t:?}");
}

#[test]
fn random_programs_end_clean() {
    let (cases, t) = run_all(300, 250, Mood::Clean, 4000, |p| run(p, false));
    busy(cases, t);
    assert!(t.reclaimed > 0, "{t:?}");
    assert_eq!((t.programs_with_leaks, t.failed_posts), (0, 0));
}

#[test]
fn random_programs_that_forget() {
    let (cases, t) = run_all(200, 160, Mood::Forgetful, 4000, |p| run(p, true));
    busy(cases, t);
    assert!(t.programs_with_leaks > 0, "{t:?}");
}

#[test]
fn random_programs_with_faults() {
    let (cases, t) = run_all(500, 160, Mood::Faulty, 4000, |p| run(p, true));
    busy(cases, t);
    assert!(t.programs_with_leaks > 0 && t.failed_posts > 0, "{t:?}");
}
