//! One-sided operations in the devices: memory that peers use, writes that complete before they are placed (iWARP) or
//! when the peer's device has acknowledged them, reads and atomics that come back.
use crate::check::Invariant;
use crate::cover::Hit;
use crate::net::{Cqe, Ev, Net};
use crate::options::Model;
use crate::qp::{Item, State, Wr};
use crate::slots::{Owner, SimSlot};
use btl_core::error::PortError;
use btl_core::port::{RefusedWhy, RmaRefused, Status};
use btl_core::rma::{Atomic, RemoteRange, RmaCaps, RmaPost, Verb};

/// The longest request of a device: small, so that operations are cut.
pub(crate) const MAX_PIECE: u64 = 700;
/// What a rank writes to memory that it uses again.
const USED: u8 = 0xa5;
/// Addresses of a rank's shared memory begin here.
const BASE: u64 = 1 << 20;

/// Memory of an operation.
#[derive(Debug)]
pub struct SimMemory {
    pub(crate) bytes: Vec<u8>,
    /// Number in its rank's book.
    pub(crate) id: u32,
}

/// A one-sided operation that the device has.
#[derive(Debug)]
pub(crate) struct RmaWork {
    pub(crate) post: RmaPost,
    pub(crate) memory: SimMemory,
}

/// What a send queue holds and completes.
#[derive(Debug)]
pub(crate) enum Load {
    Slot(SimSlot),
    Rma(RmaWork),
}

/// Work that has left a device, until its completion.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) load: Load,
    pub(crate) done: bool,
}

/// A part of an operation on its way.
#[derive(Debug)]
pub(crate) enum Flight {
    Put(RemoteRange, Vec<u8>),
    Ask(u32, RemoteRange, Verb),
    Answer(u32, Vec<u8>),
}

impl Load {
    /// Waits for an answer of the peer.
    fn reads(&self) -> bool {
        matches!(self, Load::Rma(work) if work.post.verb.reads())
    }
}

/// What a rank shares, and who owns the memory of its operations.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) arena: Vec<u8>,
    owners: Vec<Option<Owner>>,
}

impl Shared {
    /// More shared memory, of these bytes.
    pub(crate) fn share(&mut self, rank: u32, bytes: &[u8]) -> RemoteRange {
        let at = self.arena.len().next_multiple_of(8);
        self.arena.resize(at, 0);
        self.arena.extend_from_slice(bytes);
        RemoteRange { addr: BASE + at as u64, len: bytes.len() as u64, rkey: 1000 + rank }
    }

    pub(crate) fn look(&self, range: RemoteRange) -> &[u8] {
        let at = (range.addr - BASE) as usize;
        &self.arena[at..at + range.len as usize]
    }

    /// Its owner writes something else there.
    pub(crate) fn use_again(&mut self, range: RemoteRange) {
        let at = (range.addr - BASE) as usize;
        self.arena[at..at + range.len as usize].fill(USED);
    }

    /// Whether that is what is still there.
    pub(crate) fn is_intact(&self, range: RemoteRange) -> bool {
        self.look(range).iter().all(|byte| *byte == USED)
    }

    fn at(&mut self, rank: u32, range: RemoteRange) -> Option<&mut [u8]> {
        let at = usize::try_from(range.addr.checked_sub(BASE)?).ok()?;
        let right = range.rkey == 1000 + rank;
        self.arena.get_mut(at..at.checked_add(range.len as usize)?).filter(|_| right)
    }

    /// Memory for an operation.
    pub(crate) fn lend(&mut self, bytes: Vec<u8>) -> SimMemory {
        self.owners.push(Some(Owner::Host));
        SimMemory { bytes, id: self.owners.len() as u32 - 1 }
    }

    fn pass(&mut self, id: u32, from: Owner, to: Option<Owner>) -> Result<(), String> {
        let owner = &mut self.owners[id as usize];
        if *owner != Some(from) {
            return Err(format!(
                "memory {id} passes from {from:?} to {to:?}, but {owner:?} has it"
            ));
        }
        *owner = to;
        Ok(())
    }

    /// Memory came home.
    pub(crate) fn home(&mut self, memory: &SimMemory) -> Result<(), String> {
        self.pass(memory.id, Owner::Host, None)
    }

    /// The first that is not home.
    pub(crate) fn first_away(&self) -> Option<(usize, Owner)> {
        self.owners.iter().enumerate().find_map(|(id, owner)| Some((id, (*owner)?)))
    }
}

impl Net {
    pub(crate) fn rma_caps(&self) -> RmaCaps {
        let placed = !self.opt.model.is_iwarp();
        RmaCaps {
            put: true,
            get: true,
            atomics: placed,
            get_is_fast: placed,
            placed,
            max_piece: MAX_PIECE,
        }
    }

    /// An operation is posted.
    pub(crate) fn post_rma(&mut self, q: u32, work: RmaWork) -> Result<(), RmaRefused<SimMemory>> {
        if let Some(why) = self.refusal(q) {
            return Err(RmaRefused { why, memory: Some(work.memory) });
        }
        let reads = self.opt.max_reads;
        self.check.on_post_rma(q, work.post.verb.reads(), reads);
        let (token, len) = (u64::from(work.post.token), work.post.len);
        self.trace.note(self.now, "post-rma", u64::from(q), token, len);
        self.pass_memory(q, &work.memory, true);
        match self.qps[q as usize].state {
            State::Rts => {
                self.qps[q as usize].wq.push_back(Wr::Rma(work));
                self.kick(q);
            }
            State::Init | State::Dead => {
                self.fail(Invariant::S1, format!("qp {q}: an operation before it is connected"));
                self.complete(q, true, Load::Rma(work), 0, Status::Flushed);
            }
            State::Error if self.opt.model == Model::Siw => {
                self.cover.hit(Hit::NeverCompleted);
                self.qps[q as usize].wq.push_back(Wr::Rma(work));
            }
            State::Error => self.complete(q, true, Load::Rma(work), 0, Status::Flushed),
        }
        Ok(())
    }

    /// Memory goes to the device of a queue pair, or comes back from it.
    pub(crate) fn pass_memory(&mut self, q: u32, memory: &SimMemory, to_device: bool) {
        let rank = self.qps[q as usize].rank as usize;
        let (host, device) = (Owner::Host, Owner::Device(q));
        let (from, to) = if to_device { (host, device) } else { (device, host) };
        let passed = self.hosts[rank].shared.pass(memory.id, from, Some(to));
        self.own(passed);
    }

    /// The device takes up an operation.
    pub(crate) fn transmit_rma(&mut self, q: u32, work: RmaWork) {
        let RmaPost { verb, token, offset, len, remote } = work.post;
        let at = self.now + self.rng.delay(self.opt.dev.wire);
        let from = offset as usize;
        let flight = match verb {
            Verb::Put => Flight::Put(remote, work.memory.bytes[from..from + len as usize].to_vec()),
            _ => Flight::Ask(token, remote, verb),
        };
        self.mark(q, if verb == Verb::Put { "put" } else { "get or atomic" }, false);
        let done = verb == Verb::Put && self.opt.model.is_iwarp();
        let qp = &mut self.qps[q as usize];
        qp.last_arrival = at.max(qp.last_arrival);
        qp.pipe.push_back(Item::Rma(qp.last_arrival, flight));
        qp.tx.push_back(Sent { load: Load::Rma(work), done });
        // On iWARP, TCP has it: that is all a completed put says.
        self.complete_in_order(q);
        self.start_pipe(q);
    }

    /// Completions of a send queue come in the order of its posts: those behind a read wait for it.
    pub(crate) fn complete_in_order(&mut self, q: u32) {
        while self.qps[q as usize].tx.front().is_some_and(|sent| sent.done) {
            let Some(sent) = self.qps[q as usize].tx.pop_front() else { return };
            self.complete(q, true, sent.load, 0, Status::Ok);
        }
    }

    /// The oldest work that was not acknowledged, is.
    pub(crate) fn acknowledged(&mut self, q: u32) {
        let mut tx = self.qps[q as usize].tx.iter_mut();
        if let Some(sent) = tx.find(|sent| !sent.done && !sent.load.reads()) {
            sent.done = true;
        }
        self.complete_in_order(q);
    }

    /// A part of an operation arrives at `p`, which is connected. `false`: `p` refuses it.
    pub(crate) fn rma_arrives(&mut self, q: u32, p: u32, flight: &Flight) -> bool {
        let rank = self.qps[p as usize].rank;
        self.trace.note(self.now, "rma", u64::from(q), u64::from(p), 0);
        self.qps[p as usize].received = true;
        match flight {
            Flight::Put(range, bytes) => {
                if self.hosts[rank as usize].shared.at(rank, *range).is_none() {
                    return false;
                }
                self.qps[p as usize].unplaced.push((*range, bytes.clone()));
                if self.opt.model.is_iwarp() && self.rng.chance(1, 2) {
                    // It is there when the next message of this queue pair is delivered, and not sooner.
                    self.cover.hit(Hit::PlacedLate);
                    let delay = self.rng.delay(self.opt.dev.wire);
                    self.after(delay, Ev::Place { qp: p });
                } else {
                    self.place_all(p);
                }
            }
            Flight::Ask(token, range, verb) => {
                self.place_all(p);
                let Some(there) = self.hosts[rank as usize].shared.at(rank, *range) else {
                    return false;
                };
                let old = there.to_vec();
                if let Verb::Atomic(atomic) = verb {
                    change(there, *atomic);
                }
                let at = self.now + self.rng.delay(self.opt.dev.wire);
                let qp = &mut self.qps[p as usize];
                qp.last_arrival = at.max(qp.last_arrival);
                qp.pipe.push_back(Item::Rma(qp.last_arrival, Flight::Answer(*token, old)));
                self.start_pipe(p);
            }
            Flight::Answer(token, bytes) => self.answered(p, *token, bytes),
        }
        true
    }

    fn answered(&mut self, p: u32, token: u32, bytes: &[u8]) {
        let mut tx = self.qps[p as usize].tx.iter_mut();
        let found = tx.find_map(|sent| match &mut sent.load {
            Load::Rma(work) if work.post.token == token && !sent.done => {
                sent.done = true;
                Some(work)
            }
            _ => None,
        });
        if let Some(work) = found {
            let from = work.post.offset as usize;
            work.memory.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        }
        self.complete_in_order(p);
    }

    /// Everything that arrived on a queue pair is in the memory now.
    pub(crate) fn place_all(&mut self, p: u32) {
        let rank = self.qps[p as usize].rank;
        for (range, bytes) in std::mem::take(&mut self.qps[p as usize].unplaced) {
            if let Some(there) = self.hosts[rank as usize].shared.at(rank, range) {
                there.copy_from_slice(&bytes);
            }
        }
    }

    /// The peer's device refuses an operation: a wrong key or range.
    pub(crate) fn access_error(&mut self, q: u32, p: u32) {
        self.fail(Invariant::S8, format!("qp {p} refuses an operation of qp {q}"));
        if self.opt.model.is_iwarp() {
            self.break_stream(p);
        } else {
            self.fail_qp(q, Some(PortError::new(10, "remote access error")));
        }
    }

    /// A completion with its operation, for the engine.
    pub(crate) fn hand_back(&mut self, rank: u32, lane: btl_core::LaneId, work: RmaWork) {
        let token = work.post.token;
        self.hosts[rank as usize].back.push_back((lane, token, work.memory));
    }
}

fn change(there: &mut [u8], atomic: Atomic) {
    let Ok(bytes) = <[u8; 8]>::try_from(&*there) else { return };
    let old = u64::from_ne_bytes(bytes);
    let new = match atomic {
        Atomic::FetchAdd { add } => old.wrapping_add(add),
        Atomic::CompareSwap { compare, swap } if compare == old => swap,
        Atomic::CompareSwap { .. } => old,
    };
    there.copy_from_slice(&new.to_ne_bytes());
}

impl Cqe {
    /// Whose it is in the book of owners.
    pub(crate) fn is_rma(&self) -> bool {
        matches!(self.load, Load::Rma(_))
    }
}

/// A post on a lane that is closed.
pub(crate) fn no_lane(memory: SimMemory) -> RmaRefused<SimMemory> {
    let why = RefusedWhy::Broken(PortError::new(22, "no such lane"));
    RmaRefused { why, memory: Some(memory) }
}
