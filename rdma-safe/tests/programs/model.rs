//! What must be true, computed from the steps alone: who owns each slot, and what exists.
//!
//! It shares nothing with the crate: no ids, no tables; a slot is known by its address.

use std::collections::{BTreeMap, BTreeSet};

/// Address of a slot's first byte.
pub(crate) type Address = usize;

/// Which queue of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Recv,
}

/// Who has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Program,
    Queue(u64, Side),
    /// Nobody will ever have it again.
    Lost,
}

#[derive(Debug)]
struct Slot {
    owner: Owner,
    region: usize,
}

/// What stands in the way of an object's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// Its end failed, or it was forgotten: it stays for ever, with what it stands on.
    Leaked,
}

#[derive(Debug)]
struct Region {
    pd: usize,
    life: Life,
}

#[derive(Debug)]
struct Qp {
    pd: usize,
    cqs: [usize; 2],
    life: Life,
}

/// A protection domain or a completion queue.
#[derive(Debug)]
struct Base {
    /// The program has a handle.
    held: bool,
    life: Life,
}

/// Which ends fail at the moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Failing {
    pub(crate) destroy_qp: bool,
    pub(crate) dereg: bool,
    pub(crate) destroy_cq: bool,
    pub(crate) dealloc_pd: bool,
}

/// Queue pairs, completion queues, regions and domains.
pub(crate) type Alive = (usize, usize, usize, u32);

#[derive(Debug, Default)]
pub(crate) struct Model {
    slots: BTreeMap<Address, Slot>,
    regions: Vec<Region>,
    qps: BTreeMap<u64, Qp>,
    pds: Vec<Base>,
    cqs: Vec<Base>,
    ended: Ended,
}

/// What is gone.
#[derive(Debug, Default)]
struct Ended {
    regions: BTreeSet<usize>,
    pds: BTreeSet<usize>,
    cqs: BTreeSet<usize>,
}

impl Model {
    pub(crate) fn pd_made(&mut self) -> usize {
        self.pds.push(Base { held: true, life: Life::Alive });
        self.pds.len() - 1
    }

    pub(crate) fn pd_dropped(&mut self, pd: usize) {
        self.pds[pd].held = false;
    }

    pub(crate) fn cq_made(&mut self) -> usize {
        self.cqs.push(Base { held: true, life: Life::Alive });
        self.cqs.len() - 1
    }

    pub(crate) fn cq_dropped(&mut self, cq: usize) {
        self.cqs[cq].held = false;
    }

    pub(crate) fn qp_made(&mut self, serial: u64, pd: usize, cqs: [usize; 2]) {
        let old = self.qps.insert(serial, Qp { pd, cqs, life: Life::Alive });
        assert!(old.is_none(), "serial {serial} came twice");
    }

    pub(crate) fn slots_made(&mut self, pd: usize, addresses: impl Iterator<Item = Address>) {
        self.regions.push(Region { pd, life: Life::Alive });
        let region = self.regions.len() - 1;
        for a in addresses {
            let new = Slot { owner: Owner::Program, region };
            if let Some(old) = self.slots.insert(a, new) {
                panic!("memory at {a:#x} was given out again while it is {:?}", old.owner);
            }
        }
    }

    /// A slot went into a queue.
    pub(crate) fn posted(&mut self, a: Address, serial: u64, side: Side) {
        let slot = self.slots.get_mut(&a).expect("a slot that exists");
        assert_eq!(slot.owner, Owner::Program, "posted by somebody who does not have it");
        slot.owner = Owner::Queue(serial, side);
    }

    /// A slot came back from a queue.
    pub(crate) fn returned(&mut self, a: Address, serial: u64, side: Option<Side>) {
        let slot = self.slots.get_mut(&a).expect("a slot that exists");
        match slot.owner {
            Owner::Queue(s, at) if s == serial && side.is_none_or(|side| side == at) => {}
            other => panic!("{a:#x} came back from {serial} {side:?}, but it is {other:?}"),
        }
        slot.owner = Owner::Program;
    }

    pub(crate) fn slot_dropped(&mut self, a: Address) {
        let slot = self.slots.remove(&a).expect("a slot that exists");
        assert_eq!(slot.owner, Owner::Program);
    }

    pub(crate) fn slot_forgotten(&mut self, a: Address) {
        self.slots.get_mut(&a).expect("a slot that exists").owner = Owner::Lost;
    }

    /// Slots a queue pair has.
    pub(crate) fn held_by(&self, serial: u64) -> usize {
        let of = |s: &&Slot| matches!(s.owner, Owner::Queue(q, _) if q == serial);
        self.slots.values().filter(of).count()
    }

    /// The program gave up a queue pair. Its slots come back before (`returned`), or are freed or lost with it.
    pub(crate) fn qp_dropped(&mut self, serial: u64, failing: Failing) {
        if failing.destroy_qp {
            return self.qp_forgotten(serial);
        }
        self.qps.remove(&serial);
        self.slots.retain(|_, s| !matches!(s.owner, Owner::Queue(q, _) if q == serial));
    }

    pub(crate) fn qp_forgotten(&mut self, serial: u64) {
        self.qps.get_mut(&serial).expect("a queue pair that exists").life = Life::Leaked;
        for s in self.slots.values_mut() {
            if matches!(s.owner, Owner::Queue(q, _) if q == serial) {
                s.owner = Owner::Lost;
            }
        }
    }

    /// Ends what nobody needs any more, in the order in which the crate has to.
    pub(crate) fn settle(&mut self, failing: Failing) {
        for (i, r) in self.regions.iter_mut().enumerate() {
            let used = self.slots.values().any(|s| s.region == i);
            if !used && r.life == Life::Alive && !self.ended.regions.contains(&i) {
                match failing.dereg {
                    true => r.life = Life::Leaked,
                    false => drop(self.ended.regions.insert(i)),
                }
            }
        }
        for (i, c) in self.cqs.iter_mut().enumerate() {
            let used = self.qps.values().any(|q| q.cqs.contains(&i));
            let over = !c.held && !used && c.life == Life::Alive && !self.ended.cqs.contains(&i);
            if over {
                match failing.destroy_cq {
                    true => c.life = Life::Leaked,
                    false => drop(self.ended.cqs.insert(i)),
                }
            }
        }
        for (i, p) in self.pds.iter_mut().enumerate() {
            let region = |(n, r): (usize, &Region)| r.pd == i && !self.ended.regions.contains(&n);
            let used =
                self.qps.values().any(|q| q.pd == i) || self.regions.iter().enumerate().any(region);
            let over = !p.held && !used && p.life == Life::Alive && !self.ended.pds.contains(&i);
            if over {
                match failing.dealloc_pd {
                    true => p.life = Life::Leaked,
                    false => drop(self.ended.pds.insert(i)),
                }
            }
        }
    }

    /// What exists now.
    pub(crate) fn alive(&self) -> Alive {
        (
            self.qps.len(),
            self.cqs.len() - self.ended.cqs.len(),
            self.regions.len() - self.ended.regions.len(),
            u32::try_from(self.pds.len() - self.ended.pds.len()).unwrap(),
        )
    }

    /// Whether something will stay for ever.
    pub(crate) fn leaks(&self) -> bool {
        self.qps.values().any(|q| q.life == Life::Leaked)
            || self.regions.iter().any(|r| r.life == Life::Leaked)
            || self.pds.iter().chain(&self.cqs).any(|b| b.life == Life::Leaked)
            || self.slots.values().any(|s| s.owner == Owner::Lost)
    }
}
