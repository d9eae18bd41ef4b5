//! One-sided operations of the in-memory fabric: they take effect at once and complete when polled.
use super::{LoopPort, Net};
use btl_core::LaneId;
use btl_core::error::PortError;
use btl_core::lane::{RmaPermit, RmaPosted};
use btl_core::port::{RefusedWhy, RmaRefused, Status};
use btl_core::rma::{Atomic, RemoteRange, RmaCaps, RmaErrorKind, RmaPost, Verb};
use std::collections::VecDeque;

/// Memory of an operation; the number tells one from the other.
#[derive(Debug, PartialEq, Eq)]
pub struct Memory {
    pub id: u32,
    pub bytes: Vec<u8>,
}

/// Posts that are noted.
const LOG: usize = 1024;

/// What the fabric keeps of one-sided operations.
pub struct Rma {
    pub caps: RmaCaps,
    pub max_reads: u16,
    /// Memory that peers may use, by key.
    pub shared: Vec<Vec<u8>>,
    /// The first posts, in order: queue pair and what.
    pub log: Vec<(usize, &'static str)>,
    /// Operations do not complete.
    pub hold: bool,
    /// Memory is lost when a lane is closed.
    pub keep_memory: bool,
    /// Refuse so many posts for the moment.
    pub refuse: u32,
}

impl Default for Rma {
    fn default() -> Rma {
        let caps = RmaCaps {
            put: true,
            get: true,
            atomics: true,
            get_is_fast: true,
            placed: true,
            max_piece: 1 << 30,
        };
        Rma {
            caps,
            max_reads: 4,
            shared: Vec::new(),
            log: Vec::with_capacity(LOG),
            hold: false,
            keep_memory: false,
            refuse: 0,
        }
    }
}

/// An operation the device has.
pub struct Posted {
    token: u32,
    memory: Memory,
    status: Status,
    read: bool,
}

#[derive(Default)]
pub struct QpRma {
    pub posted: VecDeque<Posted>,
}

impl QpRma {
    pub fn reads(&self) -> usize {
        self.posted.iter().filter(|p| p.read).count()
    }

    pub fn flush(&mut self) {
        self.posted.iter_mut().for_each(|p| p.status = Status::Flushed);
    }
}

impl Net {
    pub fn note(&mut self, qp: usize, what: &'static str) {
        if self.rma.log.len() < LOG {
            self.rma.log.push((qp, what));
        }
    }

    /// Shares `bytes`.
    pub fn share(&mut self, bytes: &[u8]) -> RemoteRange {
        self.rma.shared.push(bytes.to_vec());
        let rkey = self.rma.shared.len() as u32 - 1;
        RemoteRange { addr: 4096, len: bytes.len() as u64, rkey }
    }

    fn carry_out(&mut self, post: &RmaPost, memory: &mut Memory) -> Result<(), PortError> {
        let refused = || PortError::new(10, "remote access error");
        let at = (post.remote.addr - 4096) as usize;
        let region = self.rma.shared.get_mut(post.remote.rkey as usize).ok_or_else(refused)?;
        let there = region.get_mut(at..at + post.len as usize).ok_or_else(refused)?;
        let from = post.offset as usize;
        let here = &mut memory.bytes[from..from + post.len as usize];
        match post.verb {
            Verb::Put => there.copy_from_slice(here),
            Verb::Get => here.copy_from_slice(there),
            Verb::Atomic(atomic) => {
                here.copy_from_slice(there);
                let old = u64::from_ne_bytes(here.try_into().expect("8 bytes"));
                let new = match atomic {
                    Atomic::FetchAdd { add } => old.wrapping_add(add),
                    Atomic::CompareSwap { compare, swap } if old == compare => swap,
                    Atomic::CompareSwap { .. } => old,
                };
                there.copy_from_slice(&new.to_ne_bytes());
            }
        }
        Ok(())
    }
}

impl LoopPort {
    pub(super) fn check(&self, memory: &Memory, len: u64) -> Result<(), RmaErrorKind> {
        match memory.bytes.len() as u64 {
            max if len > max => Err(RmaErrorKind::TooLong { len, max }),
            _ => Ok(()),
        }
    }

    pub(super) fn post_one_sided(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        mut memory: Memory,
    ) -> Result<RmaPosted, RmaRefused<Memory>> {
        let qp = self.qp(permit.lane());
        let mut net = self.net.borrow_mut();
        assert!(post.len > 0 && post.len <= net.rma.caps.max_piece && post.remote.len == post.len);
        if net.rma.refuse > 0 {
            net.rma.refuse -= 1;
            return Err(RmaRefused { why: RefusedWhy::Again, memory: Some(memory) });
        }
        let name = match post.verb {
            Verb::Put => "put",
            Verb::Get => "get",
            Verb::Atomic(_) => "atomic",
        };
        net.note(qp, name);
        net.early += u32::from(net.qps[qp].acceptor && !net.qps[qp].heard);
        let status = match net.qps[qp].broken {
            true => Status::Flushed,
            false => net.carry_out(post, &mut memory).map_or_else(Status::Error, |()| Status::Ok),
        };
        let (token, read) = (post.token, post.verb.reads());
        net.qps[qp].rma.posted.push_back(Posted { token, memory, status, read });
        let (reads, most) = (net.qps[qp].rma.reads(), net.rma.max_reads);
        assert!(reads <= usize::from(most), "{reads} reads of {most}");
        Ok(permit.posted())
    }

    /// The next completion of a queue pair.
    pub(super) fn complete_one_sided(&mut self, lane: LaneId, qp: usize) -> Option<Status> {
        let mut net = self.net.borrow_mut();
        let hold = net.rma.hold && !net.qps[qp].broken;
        let posted = (!hold).then(|| net.qps[qp].rma.posted.pop_front()).flatten()?;
        self.memory.push_back((lane, posted.token, posted.memory));
        Some(posted.status)
    }

    pub(super) fn close_one_sided(&mut self, lane: LaneId, qp: usize) {
        let mut net = self.net.borrow_mut();
        let rest = std::mem::take(&mut net.qps[qp].rma.posted);
        if net.rma.keep_memory {
            return;
        }
        self.memory.extend(rest.into_iter().map(|p| (lane, p.token, p.memory)).rev());
    }

    pub(super) fn memory_back(&mut self, lane: LaneId) -> Option<(u32, Memory)> {
        let at = self.memory.iter().position(|(of, ..)| *of == lane)?;
        self.memory.remove(at).map(|(_, token, memory)| (token, memory))
    }
}
