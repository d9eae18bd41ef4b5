//! The random programs on a real device: `RDMA_TEST_DEVICE`, `RDMA_TEST_ADDR`. The model is the same as on the fake
//! provider; what the device has at the end is what it had before, and what the program forgot.

mod programs;
mod support;

use programs::fabric::Fabric;
use programs::{Alive, Failing, Fault, Ledger, Mood, Tally, Watch, World, run_all};
use rdma_safe::{Context, QueuePair};
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use support::cm::{Cm, Link};
use support::{LIMIT, address, device_name};

/// Links by the serials of their ends, each with channels of its own: an event of one is no answer for another.
struct OnDevice {
    links: BTreeMap<(u64, u64), (Link, Cm)>,
    ctx: Context,
}

impl Fabric for OnDevice {
    fn context(&self) -> &Context {
        &self.ctx
    }

    fn connect(&mut self, a: &mut QueuePair, b: &mut QueuePair) -> bool {
        let cm = Cm::new(address());
        let link = cm.connect(a, b, |_, _| {});
        self.links.insert((a.serial(), b.serial()), (link, cm));
        true
    }

    /// Time for the kernel's threads, which on one processor run only when nobody else does.
    fn progress(&mut self) {
        for _ in 0..4 {
            std::thread::yield_now();
        }
    }

    fn fail(&mut self, qp: &mut QueuePair) {
        let serial = qp.serial();
        if let Some((_, (link, _))) =
            self.links.iter().find(|((a, b), _)| *a == serial || *b == serial)
        {
            link.disconnect();
        }
    }

    /// The ids go when the first of their queue pairs is gone.
    fn ended(&mut self, serial: u64) {
        self.links.retain(|(a, b), _| *a != serial && *b != serial);
    }

    fn inject(&mut self, _: Fault) {}

    fn heal(&mut self) {}

    fn failing(&self) -> Failing {
        Failing::default()
    }

    fn repeat(&mut self, _: u8) {}

    fn garbage(&mut self, _: u64) {}

    fn async_event(&mut self, _: u8) {}

    fn may_touch(&self, _: Range<usize>) -> Option<bool> {
        None
    }

    fn alive(&self) -> Option<Alive> {
        None
    }

    fn check(&self) {}

    fn on_thread(&self) -> Box<dyn Any> {
        Box::new(())
    }

    fn honest(&self) -> bool {
        true
    }
}

// SAFETY: librdmacm's ids and channels may be used by any one thread at a time, and the program moves as a whole.
unsafe impl Send for OnDevice {}

/// Queue pairs, completion queues, regions and domains of the device, and open descriptors of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resources {
    kernel: Alive,
    descriptors: usize,
}

fn resources() -> Resources {
    let name = device_name();
    let out = Command::new("rdma").args(["resource", "show", &name]).output().expect("rdma runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let count = |key: &str| {
        let mut words = text.split_whitespace().skip_while(|word| *word != key);
        words.nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {key} in: {text}"))
    };
    let kernel = (count("qp"), count("cq"), count("mr"), count("pd") as u32);
    Resources { kernel, descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count() }
}

/// Waits until nothing is above `want`: the kernel lets go of a connection's queue pair when its last timer is done.
fn settles_at(want: Resources) {
    let end = std::time::Instant::now() + LIMIT;
    loop {
        let now = resources();
        if now == want {
            return;
        }
        assert!(std::time::Instant::now() < end, "{now:?} is left, expected {want:?}");
        std::thread::yield_now();
    }
}

/// Runs programs of a mood one after the other and adds up what they leaked.
fn programs(cases: u32, mood: Mood) -> (u64, Tally, Alive) {
    let leaked = Cell::new((0, 0, 0, 0));
    let watch: Watch = Arc::new(|_| None);
    let run = |steps| {
        let ctx = support::under_test::open();
        let hidden = usize::from(ctx.transport().is_iwarp());
        let device = OnDevice { links: BTreeMap::new(), ctx };
        let (tally, left) =
            World::new(device, Arc::clone(&watch), Arc::new(Ledger::default())).run(steps);
        let (q, c, m, p) = leaked.get();
        // A context that stays open keeps the completion queue that holds siw's invalid key.
        let context = if left == (0, 0, 0, 0) { 0 } else { hidden };
        leaked.set((q + left.0, c + left.1 + context, m + left.2, p + left.3));
        tally
    };
    let (cases, tally) = run_all(cases, 240, mood, 0, run);
    (cases, tally, leaked.get())
}

fn busy(cases: u64, t: Tally) {
    let enough = [t.posted, t.redeemed + t.routed, t.received];
    assert!(enough.iter().all(|n| *n >= cases / 4), "{t:?}");
}

/// One test, because the device's resources are everybody's.
#[test]
fn random_programs_on_a_device() {
    // librdmacm opens the device with its first id, and closes it with the last.
    let _kept_open = Cm::new(address());
    let before = resources();
    let (cases, tally, leaked) = programs(120, Mood::Clean);
    busy(cases, tally);
    assert_eq!(leaked, (0, 0, 0, 0));
    settles_at(before);
    let (cases, tally, leaked) = programs(60, Mood::Forgetful);
    busy(cases, tally);
    let (q, c, m, p) = before.kernel;
    let kernel = (q + leaked.0, c + leaked.1, m + leaked.2, p + leaked.3);
    assert!(leaked.0 > 0, "none was forgotten");
    let end = std::time::Instant::now() + LIMIT;
    while resources().kernel != kernel {
        assert!(std::time::Instant::now() < end, "{:?} is left, expected {kernel:?}", resources());
        std::thread::yield_now();
    }
}
