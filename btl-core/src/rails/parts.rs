//! Puts, gets and atomics in parts, one or more for each rail.
use super::error::{PartFault, RailsFault};
use super::event::{PartDone, RailsEvent};
use super::link::{Link, Speed, State};
use super::peer::Life;
use super::{Rails, RailsPeer, peer_in};
use crate::error::PeerFault;
use crate::port::{Cm, Port};
use crate::rma::{Atomic, RemoteRange, RmaErrorKind, Verb};
use std::fmt;

/// Most parts of one operation.
const MAX_PARTS: usize = 255;
/// Shorter shares are not worth a rail of their own.
const MIN_SHARE: u64 = 16 << 10;
/// Shares begin at multiples of this.
const ALIGN: u64 = 4096;

/// A part of a one-sided operation: memory of one rail's device, and of the same rail's device of the peer.
#[derive(Debug)]
pub struct Part<M> {
    /// The rail's number.
    pub rail: usize,
    /// Memory here.
    pub memory: M,
    /// Bytes, 1 to 2^63.
    pub len: u64,
    /// Memory of the peer.
    pub remote: RemoteRange,
}

/// What part of a range which rail should carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The rail's number.
    pub rail: usize,
    /// Where in the range it begins, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A one-sided operation that was not taken, with its parts.
pub struct PartsError<M> {
    /// Why.
    pub kind: PartsErrorKind,
    /// The parts, untouched.
    pub parts: Vec<Part<M>>,
}

/// Why a one-sided operation was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartsErrorKind {
    /// The peer failed or left before.
    #[error("{0}")]
    Failed(RailsFault),
    /// The peer was removed, or the rails are closing.
    #[error("the peer was removed or the rails are closing")]
    Closing,
    /// No parts, or too many.
    #[error("{n} parts, but an operation has 1 to {max}")]
    Count {
        /// How many.
        n: usize,
        /// The most there may be.
        max: usize,
    },
}

impl<M> fmt::Debug for PartsError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartsError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for PartsError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<M> std::error::Error for PartsError<M> {}

/// An operation under way.
struct Op<M> {
    peer: RailsPeer,
    cookie: u64,
    /// Parts and fences that are not over.
    left: u32,
    parts: Vec<PartDone<M>>,
    /// Rails whose fence the engine had no room for.
    unfenced: Vec<usize>,
}

/// Operations under way, by the number that is in the cookies given to engines.
pub(super) struct Ops<M> {
    entries: Vec<Option<Op<M>>>,
    free: Vec<u32>,
    /// Those with fences to start.
    unfenced: Vec<u32>,
}

impl<M> Default for Ops<M> {
    fn default() -> Self {
        Ops { entries: Vec::new(), free: Vec::new(), unfenced: Vec::new() }
    }
}

impl<M> Ops<M> {
    fn insert(&mut self, op: Op<M>) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        if let Some(entry) = self.entries.get_mut(at as usize) {
            *entry = Some(op);
        }
        at
    }

    fn get(&mut self, at: u32) -> Option<&mut Op<M>> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    fn remove(&mut self, at: u32) -> Option<Op<M>> {
        let op = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(op)
    }
}

/// Operation and part (or rail) in the cookie given to an engine.
fn cookie(op: u32, n: usize) -> u64 {
    u64::from(op) << 8 | n as u64
}

fn from_cookie(cookie: u64) -> (u32, usize) {
    ((cookie >> 8) as u32, (cookie & 0xff) as usize)
}

impl<P: Port, C: Cm<Qp = P::Qp>> Rails<P, C> {
    /// How to divide `len` bytes among the rails to a peer: in proportion to their bandwidth, in multiples of 4 KiB; what
    /// is short takes one rail. Rails that are up; if none is, those that may come up. Empty: there is no such peer, no
    /// rail to it, or `len` is 0.
    pub fn shares(&self, peer: RailsPeer, len: u64) -> Vec<Share> {
        let Some(it) = self.peer_ref(peer).filter(|it| it.is_active() && len > 0) else {
            return Vec::new();
        };
        let speed = |at: usize| {
            self.rails.get(at).map_or(Speed { bandwidth: 1, latency: 0 }, |entry| Speed {
                bandwidth: entry.rail.bandwidth,
                latency: entry.rail.latency,
            })
        };
        let with = |test: &dyn Fn(&Link) -> bool| -> Vec<(usize, Speed)> {
            let links = it.links.iter().enumerate().filter(|(_, link)| test(link));
            links.map(|(at, _)| (at, speed(at))).collect()
        };
        let mut rails = with(&Link::is_up);
        if rails.is_empty() {
            rails = with(&|link| link.is_hope() && link.id.is_some());
        }
        divide(&rails, len)
    }

    /// Writes to the peer's memory, each part on its rail. Ends with one [`RailsEvent::Done`]; a part that is `Ok` there is
    /// in the peer's memory, on every transport. Where that takes a fence (iWARP), the peer has to poll.
    ///
    /// # Errors
    /// [`PartsError`]: not taken; the parts come back. What a single rail refuses is told in `Done`.
    pub fn put(
        &mut self,
        peer: RailsPeer,
        parts: Vec<Part<P::Memory>>,
        cookie: u64,
    ) -> Result<(), PartsError<P::Memory>> {
        self.start(peer, Verb::Put, parts, cookie)
    }

    /// Reads the peer's memory, each part on its rail. As [`put`](Rails::put).
    ///
    /// # Errors
    /// As [`put`](Rails::put).
    pub fn get(
        &mut self,
        peer: RailsPeer,
        parts: Vec<Part<P::Memory>>,
        cookie: u64,
    ) -> Result<(), PartsError<P::Memory>> {
        self.start(peer, Verb::Get, parts, cookie)
    }

    /// Changes 8 bytes of the peer's memory over one rail; see [`Engine::atomic`](crate::Engine::atomic). Atomics over
    /// different rails are not atomic towards each other: different devices carry them out.
    ///
    /// # Errors
    /// As [`put`](Rails::put).
    pub fn atomic(
        &mut self,
        peer: RailsPeer,
        part: Part<P::Memory>,
        what: Atomic,
        cookie: u64,
    ) -> Result<(), PartsError<P::Memory>> {
        self.start(peer, Verb::Atomic(what), vec![part], cookie)
    }

    fn start(
        &mut self,
        peer: RailsPeer,
        verb: Verb,
        parts: Vec<Part<P::Memory>>,
        user: u64,
    ) -> Result<(), PartsError<P::Memory>> {
        let refused = match self.peer_ref(peer).map(|it| &it.life) {
            None | Some(Life::Closing(_)) => Some(PartsErrorKind::Closing),
            Some(Life::Failed(fault)) => Some(PartsErrorKind::Failed(fault.clone())),
            Some(Life::Open) if (1..=MAX_PARTS).contains(&parts.len()) => None,
            Some(Life::Open) => Some(PartsErrorKind::Count { n: parts.len(), max: MAX_PARTS }),
        };
        if let Some(kind) = refused {
            return Err(PartsError { kind, parts });
        }
        let blank = Op { peer, cookie: user, left: 0, parts: Vec::new(), unfenced: Vec::new() };
        let at = self.ops.insert(blank);
        let mut used = [false; super::MAX_RAILS];
        for (n, part) in parts.into_iter().enumerate() {
            let rail = part.rail;
            let done = self.start_part(peer, verb, part, cookie(at, n));
            let began = done.is_none();
            if let Some(used) = used.get_mut(rail).filter(|_| began) {
                *used = true;
            }
            let Some(op) = self.ops.get(at) else { continue };
            op.left += u32::from(began);
            op.parts.push(done.unwrap_or(PartDone { rail, memory: None, result: Ok(()) }));
        }
        if verb == Verb::Put {
            self.fence_rails(at, used);
        }
        self.finish_op(at);
        Ok(())
    }

    /// Gives a part to its rail. `None`: it has begun.
    fn start_part(
        &mut self,
        peer: RailsPeer,
        verb: Verb,
        part: Part<P::Memory>,
        cookie: u64,
    ) -> Option<PartDone<P::Memory>> {
        let Part { rail, memory, len, remote } = part;
        let done =
            |memory, fault| Some(PartDone { rail, memory: Some(memory), result: Err(fault) });
        let place = peer_in(&mut self.peers, peer.index);
        let link = place.and_then(|it| it.links.get_mut(rail));
        let usable = link.filter(|link| link.is_hope() && link.state != State::Ending);
        let entry = self.rails.get_mut(rail);
        let (Some(link), Some(entry)) = (usable, entry) else {
            return done(memory, PartFault::NotUp { rail });
        };
        let Some(id) = link.id else { return done(memory, PartFault::NotUp { rail }) };
        let engine = &mut entry.rail.engine;
        let taken = match verb {
            Verb::Put => engine.put(id, memory, len, remote, cookie),
            Verb::Get => engine.get(id, memory, len, remote, cookie),
            Verb::Atomic(what) => engine.atomic(id, memory, remote, what, cookie),
        };
        match taken {
            Ok(_) => {
                link.ops += 1;
                None
            }
            Err(error) => done(error.memory, PartFault::Refused(error.kind)),
        }
    }

    /// Where a completed put says nothing about the peer, a fence does.
    fn fence_rails(&mut self, at: u32, used: [bool; super::MAX_RAILS]) {
        #[cfg(feature = "sabotage")]
        if self.config.sabotage.no_fence {
            return;
        }
        let placed = |rail: usize| {
            self.rails.get(rail).is_none_or(|entry| entry.rail.engine.rma_caps().placed)
        };
        let rails: Vec<usize> = (0..used.len())
            .filter(|rail| used.get(*rail) == Some(&true) && !placed(*rail))
            .collect();
        let Some(op) = self.ops.get(at) else { return };
        op.left += rails.len() as u32;
        op.unfenced = rails;
        self.start_fences(at);
    }

    /// Starts the fences of an operation that the engines have room for.
    fn start_fences(&mut self, at: u32) {
        let Some(op) = self.ops.get(at) else { return };
        let (peer, rails) = (op.peer, std::mem::take(&mut op.unfenced));
        let mut later = Vec::new();
        for rail in rails {
            let id = self.peer_ref(peer).and_then(|it| it.links.get(rail)?.id);
            let entry = self.rails.get_mut(rail);
            let fenced = match (id, entry) {
                (Some(id), Some(entry)) => {
                    entry.rail.engine.fence(id, cookie(at, rail)).map(|_| ())
                }
                // The rail was dropped: its parts report that.
                _ => Err(crate::rma::RmaError { kind: RmaErrorKind::Closing, memory: () }),
            };
            match fenced {
                Ok(()) => {}
                Err(error) if error.kind == RmaErrorKind::Busy => later.push(rail),
                Err(error) => self.unfenced(at, rail, &PartFault::Refused(error.kind)),
            }
        }
        if let Some(op) = self.ops.get(at)
            && !later.is_empty()
        {
            op.unfenced = later;
            self.ops.unfenced.push(at);
        }
        self.finish_op(at);
    }

    /// Starts the fences that had to wait.
    pub(super) fn retry_fences(&mut self) {
        for at in std::mem::take(&mut self.ops.unfenced) {
            self.start_fences(at);
        }
    }

    /// The fence of a rail failed: nothing is known of its parts.
    fn unfenced(&mut self, at: u32, rail: usize, fault: &PartFault) {
        let Some(op) = self.ops.get(at) else { return };
        op.left = op.left.saturating_sub(1);
        for part in op.parts.iter_mut().filter(|part| part.rail == rail && part.result.is_ok()) {
            part.result = Err(fault.clone());
        }
    }

    /// The engine of a rail has ended a part.
    pub(super) fn part_done(
        &mut self,
        cookie: u64,
        memory: Option<P::Memory>,
        result: Result<(), PeerFault>,
    ) {
        let (at, n) = from_cookie(cookie);
        let Some(op) = self.ops.get(at) else { return };
        let (peer, mut rail) = (op.peer, 0);
        op.left = op.left.saturating_sub(1);
        if let Some(part) = op.parts.get_mut(n) {
            (part.memory, rail) = (memory, part.rail);
            // A fence that failed before is the better reason.
            if let (Ok(()), Err(fault)) = (&part.result, result) {
                part.result = Err(PartFault::Rail(fault));
            }
        }
        if let Some(link) = self.peer_mut(peer).and_then(|it| it.links.get_mut(rail)) {
            link.ops = link.ops.saturating_sub(1);
            link.moved();
        }
        self.finish_op(at);
    }

    /// The engine of a rail has ended a fence.
    pub(super) fn part_fenced(&mut self, cookie: u64, result: Result<(), PeerFault>) {
        let (at, rail) = from_cookie(cookie);
        match result {
            Ok(()) => {
                if let Some(op) = self.ops.get(at) {
                    op.left = op.left.saturating_sub(1);
                }
            }
            Err(fault) => self.unfenced(at, rail, &PartFault::Rail(fault)),
        }
        self.finish_op(at);
    }

    /// Reports an operation of which nothing is left.
    fn finish_op(&mut self, at: u32) {
        if self.ops.get(at).is_none_or(|op| op.left > 0) {
            return;
        }
        if let Some(Op { peer, cookie, parts, .. }) = self.ops.remove(at) {
            self.events.push_back(RailsEvent::Done { peer, cookie, parts });
        }
    }
}

/// Divides `len` bytes in proportion to the bandwidth.
fn divide(rails: &[(usize, Speed)], len: u64) -> Vec<Share> {
    let total: u64 = rails.iter().map(|(_, speed)| u64::from(speed.bandwidth)).sum();
    let quickest = rails.iter().min_by_key(|(_, speed)| speed.finish(len)).map(|(at, _)| *at);
    let Some(quickest) = quickest else { return Vec::new() };
    let part = |bandwidth: u32| {
        let exact = u128::from(len) * u128::from(bandwidth) / u128::from(total.max(1));
        // At most `len`.
        (exact as u64) / ALIGN * ALIGN
    };
    let mut shares: Vec<Share> = rails
        .iter()
        .map(|(rail, speed)| Share { rail: *rail, offset: 0, len: part(speed.bandwidth) })
        .filter(|share| share.len >= MIN_SHARE || share.rail == quickest)
        .collect();
    let given: u64 = shares.iter().map(|share| share.len).sum();
    let mut offset = 0;
    for share in &mut shares {
        if share.rail == quickest {
            share.len += len - given;
        }
        share.offset = offset;
        offset += share.len;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAILS: [(usize, Speed); 3] = [
        (0, Speed { bandwidth: 100, latency: 1000 }),
        (2, Speed { bandwidth: 300, latency: 2000 }),
        (5, Speed { bandwidth: 1, latency: 500 }),
    ];

    #[test]
    fn shares_cover_the_range_in_proportion() {
        for len in [1, 4095, 60_000, 1 << 20, (1 << 20) + 17, (1 << 40) + 3, 1 << 63] {
            let shares = divide(&RAILS, len);
            let mut at = 0;
            for share in &shares {
                assert_eq!(share.offset, at, "{len}: {shares:?}");
                assert!(share.len > 0, "{len}: {shares:?}");
                at += share.len;
            }
            assert_eq!(at, len, "{shares:?}");
        }
        let shares = divide(&RAILS, 4 << 20);
        let lens: Vec<(usize, u64)> = shares.iter().map(|s| (s.rail, s.len >> 10)).collect();
        assert_eq!(
            lens,
            [(0, 1020), (2, 3076)],
            "the slow one is left out, its part to the quickest"
        );
    }

    #[test]
    fn what_is_short_takes_the_quickest_rail() {
        assert_eq!(divide(&RAILS, 8), [Share { rail: 0, offset: 0, len: 8 }]);
        assert_eq!(divide(&RAILS, 30_000), [Share { rail: 2, offset: 0, len: 30_000 }]);
        assert!(divide(&[], 8).is_empty());
    }

    #[test]
    fn cookies_come_back() {
        for (op, n) in [(0, 0), (u32::MAX, 255), (7, 3)] {
            assert_eq!(from_cookie(cookie(op, n)), (op, n));
        }
    }
}
