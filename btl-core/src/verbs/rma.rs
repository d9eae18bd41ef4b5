//! One-sided operations of the driver: memory moves into the queue pair with the post and comes back with its
//! completion, or with the destruction of the queue pair.
use super::port::VerbsPort;
use crate::error::PortError;
use crate::lane::{RmaPermit, RmaPosted};
use crate::names::LaneId;
use crate::port::{RefusedWhy, RmaRefused};
use crate::rma::{Atomic, RemoteRange, RmaCaps, RmaErrorKind, RmaPost, Verb};
use rdma_safe::{
    Caps, Context, ForeignSlice, Payload, PayloadKind, PostError, QueuePair, RawVerb, RemoteSlot,
    Request, SharedSlice, Slot, Why,
};
use std::collections::VecDeque;

/// Bytes of one request, unless the device says less. A power of two, so that pieces stay aligned.
const MAX_PIECE: u64 = 1 << 30;

/// Registered memory for one-sided operations, of the port's protection domain
/// ([`VerbsPort::protection_domain`]).
///
/// | | put | get, atomic |
/// |---|---|---|
/// | [`Slot`](VerbsMemory::Slot), own memory | yes | not on iWARP, whose peer has to be able to write it |
/// | [`Remote`](VerbsMemory::Remote), memory that peers may use | yes | yes |
/// | [`Shared`](VerbsMemory::Shared), read-only memory | yes | no |
/// | [`Foreign`](VerbsMemory::Foreign), somebody else's | yes | yes |
///
/// Only foreign memory is cut into pieces; an operation over the others is at most [`RmaCaps::max_piece`] long.
#[derive(Debug)]
pub enum VerbsMemory {
    /// Exclusive local memory.
    Slot(Slot),
    /// Memory that peers may use as well.
    Remote(RemoteSlot),
    /// A part of shared, read-only memory.
    Shared(SharedSlice),
    /// Memory of somebody else, who vouched for it (`MemoryRegion<Foreign>::slice`) until it comes back in
    /// [`Event::Done`](crate::Event::Done); for ever, if it does not.
    Foreign(ForeignSlice),
}

impl VerbsMemory {
    /// Bytes it has.
    fn len(&self) -> u64 {
        let len = match self {
            VerbsMemory::Slot(slot) => slot.capacity(),
            VerbsMemory::Remote(slot) => slot.capacity(),
            VerbsMemory::Shared(slice) => slice.len(),
            VerbsMemory::Foreign(slice) => slice.len(),
        };
        len as u64
    }

    /// What tells it from the others of its lane when the queue pair gives it back.
    fn address(&self) -> u64 {
        match self {
            VerbsMemory::Slot(slot) => slot.as_ptr().addr() as u64,
            VerbsMemory::Remote(slot) => slot.remote().addr,
            VerbsMemory::Shared(slice) => slice.as_ptr().addr() as u64,
            VerbsMemory::Foreign(_) => 0,
        }
    }

    fn of(payload: Payload) -> Option<VerbsMemory> {
        match payload.into_kind() {
            PayloadKind::Slot(slot) => Some(VerbsMemory::Slot(slot)),
            PayloadKind::Remote(slot) => Some(VerbsMemory::Remote(slot)),
            PayloadKind::Shared(slice) => Some(VerbsMemory::Shared(slice)),
            _ => None,
        }
    }
}

impl From<Slot> for VerbsMemory {
    fn from(slot: Slot) -> VerbsMemory {
        VerbsMemory::Slot(slot)
    }
}

impl From<RemoteSlot> for VerbsMemory {
    fn from(slot: RemoteSlot) -> VerbsMemory {
        VerbsMemory::Remote(slot)
    }
}

impl From<SharedSlice> for VerbsMemory {
    fn from(slice: SharedSlice) -> VerbsMemory {
        VerbsMemory::Shared(slice)
    }
}

impl From<ForeignSlice> for VerbsMemory {
    fn from(slice: ForeignSlice) -> VerbsMemory {
        VerbsMemory::Foreign(slice)
    }
}

impl From<rdma_safe::RemoteRange> for RemoteRange {
    fn from(range: rdma_safe::RemoteRange) -> RemoteRange {
        RemoteRange { addr: range.addr, len: range.len, rkey: range.rkey }
    }
}

impl From<RemoteRange> for rdma_safe::RemoteRange {
    fn from(range: RemoteRange) -> rdma_safe::RemoteRange {
        rdma_safe::RemoteRange { addr: range.addr, len: range.len, rkey: range.rkey }
    }
}

/// A post that the device has.
struct Posted {
    token: u32,
    /// Foreign memory; all other is in the queue pair.
    foreign: Option<ForeignSlice>,
    address: u64,
}

/// The driver's part of one-sided operations.
pub(super) struct Rma {
    caps: RmaCaps,
    /// A read needs memory that the peer may write.
    picky: bool,
    /// By lane index, in the order of the posts.
    posted: Vec<VecDeque<Posted>>,
    /// What the device has let go of.
    back: VecDeque<(LaneId, u32, VerbsMemory)>,
}

impl Rma {
    /// `max_message`: bytes of the longest message of the port.
    pub(super) fn new(context: &Context, max_message: u32) -> Rma {
        let caps = context.caps();
        let caps_here = RmaCaps {
            put: true,
            get: true,
            atomics: caps.contains(Caps::ATOMICS),
            get_is_fast: caps.contains(Caps::FAST_READS),
            placed: caps.contains(Caps::REMOTE_COMPLETION),
            max_piece: match max_message {
                0 => MAX_PIECE,
                max => MAX_PIECE.min(u64::from(max)),
            },
        };
        let picky = caps.contains(Caps::READ_SINK_REMOTE_WRITE);
        Rma { caps: caps_here, picky, posted: Vec::new(), back: VecDeque::new() }
    }

    /// Makes room for a lane, so that posts need not.
    pub(super) fn attach(&mut self, lane: LaneId, send_depth: u32) {
        while self.posted.len() <= lane.index() {
            self.posted.push(VecDeque::new());
        }
        if let Some(posted) = self.posted.get_mut(lane.index()) {
            posted.reserve(send_depth as usize);
        }
        self.back.reserve(send_depth as usize);
    }

    pub(super) fn caps(&self) -> RmaCaps {
        self.caps
    }

    pub(super) fn check(
        &self,
        memory: &VerbsMemory,
        verb: Verb,
        len: u64,
    ) -> Result<(), RmaErrorKind> {
        let why = match memory {
            VerbsMemory::Shared(_) if verb.reads() => "shared memory is never written",
            VerbsMemory::Slot(_) if verb.reads() && self.picky => {
                "on this transport the peer's device writes what is read, so it has to go into a RemoteSlot or foreign \
                 memory that is registered for that"
            }
            _ => "",
        };
        if !why.is_empty() {
            return Err(RmaErrorKind::WrongMemory { why });
        }
        let whole = memory.len();
        let max = match memory {
            VerbsMemory::Foreign(_) => whole,
            _ => whole.min(self.caps.max_piece),
        };
        if len > max { Err(RmaErrorKind::TooLong { len, max }) } else { Ok(()) }
    }

    /// The first post of a lane is done: `payload` is what the queue pair had of it.
    pub(super) fn completed(&mut self, lane: LaneId, payload: Option<Payload>) {
        let Some(posted) = self.posted.get_mut(lane.index()).and_then(VecDeque::pop_front) else {
            return;
        };
        let memory = match posted.foreign {
            Some(slice) => Some(VerbsMemory::Foreign(slice)),
            None => payload.and_then(VerbsMemory::of),
        };
        self.back.extend(memory.map(|memory| (lane, posted.token, memory)));
    }

    /// The lane is closed, and its queue pair gives back what it had: one-sided memory is kept for
    /// [`take`](Rma::take), the slots of messages are returned.
    pub(super) fn closed(&mut self, lane: LaneId, payloads: Option<Vec<Payload>>) -> Vec<Slot> {
        let posted = self.posted.get_mut(lane.index()).map(std::mem::take).unwrap_or_default();
        let Some(payloads) = payloads else {
            // The device may use all of it still: leaked.
            std::mem::forget(posted);
            return Vec::new();
        };
        let mut owned: Vec<Posted> = Vec::new();
        for it in posted {
            match it.foreign {
                Some(slice) => {
                    self.back.push_back((lane, it.token, VerbsMemory::Foreign(slice)));
                }
                None => owned.push(it),
            }
        }
        let mut slots = Vec::new();
        for memory in payloads.into_iter().filter_map(VerbsMemory::of) {
            let address = memory.address();
            match (owned.iter().position(|it| it.address == address), memory) {
                (Some(at), memory) => {
                    let token = owned.swap_remove(at).token;
                    self.back.push_back((lane, token, memory));
                }
                (None, VerbsMemory::Slot(slot)) => slots.push(slot),
                // Not reachable: nothing else is posted.
                (None, _) => {}
            }
        }
        slots
    }

    /// The next memory of a lane that came back.
    pub(super) fn take(&mut self, lane: LaneId) -> Option<(u32, VerbsMemory)> {
        let at = self.back.iter().position(|(of, ..)| *of == lane)?;
        self.back.remove(at).map(|(_, token, memory)| (token, memory))
    }
}

impl VerbsPort {
    /// The domain in which memory for one-sided operations has to be registered.
    pub fn protection_domain(&self) -> &rdma_safe::ProtectionDomain {
        self.workshop.domain()
    }

    pub(super) fn post_one_sided(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        memory: VerbsMemory,
    ) -> Result<RmaPosted, RmaRefused<VerbsMemory>> {
        let lane = permit.lane();
        let place = self.place(lane);
        let group = place.and_then(|p| Some((self.groups.get_mut(p.group)?, p.key)));
        let Some(qp) = group.and_then(|(group, key)| group.group.qp_mut(key)) else {
            let why = RefusedWhy::Broken(PortError::new(0, "the lane has no queue pair"));
            return Err(RmaRefused { why, memory: Some(memory) });
        };
        let address = memory.address();
        let (result, foreign) = match memory {
            VerbsMemory::Foreign(slice) => (post_foreign(qp, post, &slice), Some(slice)),
            VerbsMemory::Slot(slot) => (qp.post(request(post, slot.into())), None),
            VerbsMemory::Remote(slot) => (qp.post(request(post, slot.into())), None),
            VerbsMemory::Shared(slice) => (qp.post(request(post, slice.into())), None),
        };
        let why = match result {
            Ok(()) => None,
            Err(error) => match error.why {
                Why::Device(_) => Some(refusal(&error)),
                _ => {
                    let why = refusal(&error);
                    let memory = match foreign {
                        Some(slice) => Some(VerbsMemory::Foreign(slice)),
                        None => error.into_payload().and_then(VerbsMemory::of),
                    };
                    return Err(RmaRefused { why, memory });
                }
            },
        };
        let posted = Posted { token: post.token, foreign, address };
        if let Some(list) = self.rma.posted.get_mut(lane.index()) {
            list.push_back(posted);
        }
        match why {
            None => Ok(permit.posted()),
            // The queue pair keeps the memory until it is destroyed.
            Some(why) => Err(RmaRefused { why, memory: None }),
        }
    }
}

fn request<'a>(post: &RmaPost, payload: Payload) -> Request<'a> {
    // Lossless: at most MAX_PIECE.
    let len = post.len as usize;
    let remote = post.remote.into();
    match post.verb {
        Verb::Put => Request::write(payload, len, remote),
        Verb::Get => Request::read(payload, len, remote),
        Verb::Atomic(Atomic::FetchAdd { add }) => Request::fetch_add(payload, remote, add),
        Verb::Atomic(Atomic::CompareSwap { compare, swap }) => {
            Request::compare_swap(payload, remote, compare, swap)
        }
    }
}

pub(super) fn post_foreign(
    qp: &mut QueuePair,
    post: &RmaPost,
    slice: &ForeignSlice,
) -> Result<(), PostError> {
    let remote: rdma_safe::RemoteRange = post.remote.into();
    let verb = match post.verb {
        Verb::Put => RawVerb::Write(remote),
        Verb::Get => RawVerb::Read(remote),
        Verb::Atomic(Atomic::FetchAdd { add }) => RawVerb::FetchAdd { at: remote, add },
        Verb::Atomic(Atomic::CompareSwap { compare, swap }) => {
            RawVerb::CompareSwap { at: remote, compare, swap }
        }
    };
    // Lossless: within the slice, whose length is a usize.
    qp.post_foreign(verb, slice, post.offset as usize, post.len as usize, post.token as usize)
}

fn refusal(error: &PostError) -> RefusedWhy {
    match error.why {
        // As for messages: completions are still to be polled.
        Why::Full => RefusedWhy::Again,
        Why::Device(errno) => RefusedWhy::Broken(PortError::new(errno, error.why.to_string())),
        why => RefusedWhy::Broken(PortError::new(0, why.to_string())),
    }
}
