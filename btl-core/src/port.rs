//! What the engine needs from the machine below it: [`Port`] for data, [`Cm`] for connections.
//! Static dispatch; implemented on real verbs, by the simulator, and by tests.
//!
//! # How to write a port
//! Two halves share the device: [`Cm`] with its driver makes connections, maybe on a thread of its own; [`Port`] moves
//! messages where the engine is. `tests/common/mod.rs` is a whole one, in memory, of some 400 lines.
//!
//! 1. The driver feeds a [`Machine`](crate::connect::Machine) with requests of the engine, connect requests and ends of dials,
//!    and carries out its actions. For [`Action::Dial`](crate::connect::Action) and `Accept` it makes a queue pair, puts it
//!    into a [`SetupLane`](crate::setup::SetupLane), and posts its receives **before** it connects or accepts.
//! 2. On [`Action::HandOver`](crate::connect::Action) it calls [`SetupLane::established`](crate::setup::SetupLane), which sends
//!    the initiator's Hello, and gives the engine [`CmEvent::LaneUp`].
//! 3. [`Port::attach`] takes the queue pair over. What completed on it before must come out of [`Port::poll`] after that.
//! 4. Every post completes once, in the order of its kind and lane, with the slot it was given, also when it fails
//!    ([`Status::Flushed`]), until [`Port::close`], which returns the rest. A device that cannot promise that for
//!    unsignalled posts has to signal.
//! 5. A post that was not taken gives its slot back ([`RefusedWhy::Again`]: later; `Broken`: the lane is over) and drops the
//!    permit. A permit is used with `permit.posted()` only when the device has the message.
//! 6. A message that arrives finds a receive, as long as the port posts what it said it posted: the rules are the engine's.
use crate::error::{ConnectFault, PortError};
use crate::lane::{RmaPermit, RmaPosted, SendPermit};
use crate::names::{ConnToken, LaneId, ProcName, Role};
use crate::recover::Rejoin;
use crate::rma::{RmaCaps, RmaErrorKind, RmaPost, Verb};
use crate::setup::UpLane;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// The engine's data path. Called from one thread at a time.
pub trait Port {
    /// Registered memory of fixed size with one owner. Dereferences to its whole capacity, whose
    /// address must not change when the slot is moved.
    type Slot: Deref<Target = [u8]> + DerefMut;
    /// A connected queue pair handed over by the connection manager's side.
    type Qp: SetupQp<Slot = Self::Slot>;
    /// Registered memory of this side that a one-sided operation reads from or writes to. It moves into the operation
    /// and comes back with it. [`Infallible`](std::convert::Infallible) for a port without one-sided operations.
    type Memory;

    /// Takes the queue pair in and calls it `lane` from now on. Completions of it that arrived
    /// before were kept back and come out of [`poll`](Port::poll) after this call, in order.
    ///
    /// # Errors
    /// The queue pair cannot be driven; it was destroyed.
    fn attach(&mut self, lane: LaneId, qp: Self::Qp) -> Result<(), PortError>;

    /// Sends the first `len` bytes of `slot` on `permit.lane()`. Every send is completed through
    /// [`poll`](Port::poll), in the order of the posts of its lane.
    ///
    /// An implementation returns `Ok(permit.posted())` when the device took the message, and
    /// drops the permit otherwise.
    ///
    /// # Errors
    /// [`Refused`]: the device did not take it.
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Self::Slot,
        len: usize,
    ) -> Result<Posted, Refused<Self::Slot>>;

    /// As [`post_send`](Port::post_send), but the device may be told with the next [`ring`](Port::ring) of the lane, which
    /// comes before anything else is posted on any lane: so that what had to wait goes with one doorbell.
    ///
    /// # Errors
    /// [`Refused`]: it will not be posted.
    fn post_send_later(
        &mut self,
        permit: SendPermit<'_>,
        slot: Self::Slot,
        len: usize,
    ) -> Result<Posted, Refused<Self::Slot>> {
        Self::post_send(self, permit, slot, len)
    }

    /// Hands over what [`post_send_later`](Port::post_send_later) has kept.
    ///
    /// # Errors
    /// The device did not take all of it: the lane is broken. The slots it did not take come out of
    /// [`close`](Port::close), like those it has.
    fn ring(&mut self, lane: LaneId) -> Result<(), PortError> {
        let _ = lane;
        Ok(())
    }

    /// Posts the whole slot as a receive on `lane`. Called by the lane's account only.
    ///
    /// # Errors
    /// [`Refused`]: the device did not take it.
    fn post_recv(&mut self, lane: LaneId, slot: Self::Slot) -> Result<(), Refused<Self::Slot>>;

    /// The next completion: one at a time, batched inside. Completions of a lane come in the
    /// order of the posts of their kind; of a closed lane none come.
    fn poll(&mut self) -> Option<Completion<Self::Slot>>;

    /// Whether [`poll_message`](Port::poll_message) would find nothing. A port that cannot tell at little cost says `false`.
    #[inline(always)]
    fn is_idle(&mut self) -> bool {
        false
    }

    /// The next completion as [`poll`](Port::poll) gives it, taken apart for the messages that went well.
    #[inline(always)]
    fn poll_message(&mut self) -> Found<Self::Slot> {
        match self.poll() {
            None => Found::Nothing,
            Some(Completion { lane, op, slot: Some(slot), len, status: Status::Ok }) => match op {
                Op::Send => Found::Sent(lane, slot),
                Op::Recv => Found::Received(lane, slot, len),
                Op::OneSided => {
                    let (slot, status) = (Some(slot), Status::Ok);
                    Found::Done(Completion { lane, op, slot, len, status })
                }
            },
            Some(done) => Found::Done(done),
        }
    }

    /// Destroys the lane's queue pair and gives the slots back that were posted on it and did not
    /// complete, in any order. Slots that the device would not let go are missing.
    fn close(&mut self, lane: LaneId) -> Vec<Self::Slot>;

    /// A send buffer of `class` from the pool of the process; its capacity is at least the
    /// class's `buffer_size`. `None`: all are in use.
    fn send_slot(&mut self, class: u8) -> Option<Self::Slot>;

    /// Takes a slot back: a send buffer into its pool, the receive buffer of a closed lane to
    /// wherever it came from.
    fn recycle(&mut self, slot: Self::Slot);

    /// [`recycle`](Port::recycle) for a slot that [`send_slot`](Port::send_slot) gave out for `class`.
    #[inline]
    fn recycle_send(&mut self, class: u8, slot: Self::Slot) {
        let _ = class;
        self.recycle(slot);
    }

    /// Bytes that are sent without reading the slot after the post. For information.
    fn max_inline(&self) -> usize {
        0
    }

    /// What the port is. The same all the time.
    fn info(&self) -> PortInfo {
        PortInfo::default()
    }

    /// What the device can do one-sided. The same all the time.
    fn rma_caps(&self) -> RmaCaps {
        RmaCaps::NONE
    }

    /// Whether an operation of `len` bytes can use this memory: long enough, of the right kind, and where `len` is more
    /// than [`RmaCaps::max_piece`], divisible. Asked before an operation is accepted.
    ///
    /// # Errors
    /// [`RmaErrorKind::WrongMemory`] or [`RmaErrorKind::TooLong`].
    fn check_memory(
        &self,
        memory: &Self::Memory,
        verb: Verb,
        len: u64,
    ) -> Result<(), RmaErrorKind> {
        let _ = (memory, verb, len);
        Err(RmaErrorKind::NotSupported { what: "one-sided operations" })
    }

    /// Posts a one-sided operation, or a piece of one, on `permit.lane()`. Every post is completed through
    /// [`poll`](Port::poll) as [`Op::OneSided`], in the order of the posts of its lane, and its memory comes out of
    /// [`take_memory`](Port::take_memory) right after.
    ///
    /// An implementation returns `Ok(permit.posted())` when the device took it, and drops the permit otherwise.
    ///
    /// # Errors
    /// [`RmaRefused`]: the device did not take it.
    fn post_rma(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        memory: Self::Memory,
    ) -> Result<RmaPosted, RmaRefused<Self::Memory>> {
        let _ = (permit, post);
        let why = PortError::new(0, "this port has no one-sided operations");
        Err(RmaRefused { why: RefusedWhy::Broken(why), memory: Some(memory) })
    }

    /// Memory that the device has let go of, with the token of its post: after a completion [`Op::OneSided`] that of
    /// the operation, once; after [`close`](Port::close) one for each operation that did not complete, in any order.
    /// `None`: no more, or the device would not let it go.
    fn take_memory(&mut self, lane: LaneId) -> Option<(u32, Self::Memory)> {
        let _ = lane;
        None
    }
}

/// What a port is: for reports, and for what depends on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// Its name, like `siw0:1`; empty if it has none.
    pub device: String,
    /// What it speaks, like `iWARP`.
    pub transport: String,
    /// It is iWARP: a message that finds no receive ends the connection.
    pub iwarp: bool,
    /// It works off receives behind the sends of the same queue pair.
    pub shared_work_queue: bool,
    /// Why it cannot connect to itself; `None`: it can, or that is not known.
    pub no_loopback: Option<String>,
}

/// What the connection manager's side does to a queue pair before it hands it over.
pub trait SetupQp {
    /// Registered memory; see [`Port::Slot`].
    type Slot: Deref<Target = [u8]> + DerefMut;

    /// Posts a receive. Called by the lane's account only.
    ///
    /// # Errors
    /// [`Refused`]: the device did not take it.
    fn post_recv(&mut self, slot: Self::Slot) -> Result<(), Refused<Self::Slot>>;

    /// Sends the first `len` bytes of `slot`: the initiator's Hello, once the connection is
    /// established. See [`Port::post_send`] for what to return.
    ///
    /// # Errors
    /// [`Refused`]: the device did not take it.
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Self::Slot,
        len: usize,
    ) -> Result<Posted, Refused<Self::Slot>>;

    /// RDMA reads and atomics that may be outstanding on the connection towards the peer, as both sides agreed (the
    /// smaller of this side's initiator depth and the peer's responder resources). 0: none at all.
    fn max_reads(&self) -> u16 {
        0
    }
}

/// Proof that a permit was used. Made by [`SendPermit::posted`] only.
#[derive(Debug)]
#[must_use]
pub struct Posted {
    pub(crate) told: u16,
}

/// A post that the device did not take.
#[derive(Debug)]
pub struct Refused<S> {
    /// Whether a later try may succeed.
    pub why: RefusedWhy,
    /// The slot, unless the device kept it.
    pub slot: Option<S>,
}

/// A one-sided post that the device did not take.
#[derive(Debug)]
pub struct RmaRefused<M> {
    /// Whether a later try may succeed.
    pub why: RefusedWhy,
    /// The memory, unless the device kept it.
    pub memory: Option<M>,
}

/// Why a post was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedWhy {
    /// A passing lack of something (ENOMEM): try again later.
    Again,
    /// The lane is broken.
    Broken(PortError),
}

/// One completed post.
#[derive(Debug)]
pub struct Completion<S> {
    /// The lane, as named in [`Port::attach`].
    pub lane: LaneId,
    /// Send or receive.
    pub op: Op,
    /// The slot; `None` only if the device kept it.
    pub slot: Option<S>,
    /// Bytes received; for sends of no meaning.
    pub len: usize,
    /// How it ended.
    pub status: Status,
}

/// What [`Port::poll_message`] found.
#[derive(Debug)]
pub enum Found<S> {
    /// Nothing has completed.
    Nothing,
    /// A send, well.
    Sent(LaneId, S),
    /// A receive of so many bytes, well.
    Received(LaneId, S, usize),
    /// Another completion.
    Done(Completion<S>),
    /// [`Port::poll`] tells what comes next, and must be asked.
    Other,
}

/// The kind of a completed post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A send.
    Send,
    /// A receive.
    Recv,
    /// A put, get or atomic. The completion has no slot; see [`Port::take_memory`].
    OneSided,
}

/// How a post ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Well.
    Ok,
    /// The queue pair failed or was closed before it was executed (WR_FLUSH_ERR).
    Flushed,
    /// It failed.
    Error(PortError),
}

/// The engine's view of the connection manager's side. Never blocks.
pub trait Cm {
    /// The queue pairs it hands over.
    type Qp: SetupQp;

    /// Asks for something; the answer, if any, comes out of [`poll`](Cm::poll).
    fn request(&mut self, request: CmRequest);

    /// The next event. Called on every empty poll of the engine: must be cheap when there is
    /// nothing.
    fn poll(&mut self) -> Option<CmEvent<Self::Qp>>;

    /// Whether [`poll`](Cm::poll) may have an event. What has to be driven by polls says `true`.
    #[inline(always)]
    fn has_news(&self) -> bool {
        true
    }
}

/// What the engine asks of the connection manager's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CmRequest {
    /// A peer and its addresses, best first. May be repeated with other addresses.
    Announce {
        /// Its name.
        name: ProcName,
        /// Where it listens.
        addrs: Vec<SocketAddr>,
    },
    /// No connect to this peer is wanted any more. Connections that are up are not touched.
    Forget {
        /// Its name.
        name: ProcName,
    },
    /// A lane of this class is needed. Answered by `LaneUp` or `ConnectFailed`.
    Connect {
        /// The peer, announced before or met through `LaneUp`.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// What this side has of the lane's messages.
        rejoin: Rejoin,
    },
    /// The lane is over: disconnect it. Its queue pair is destroyed already.
    Disconnect {
        /// As in `LaneUp`.
        conn: ConnToken,
    },
    /// Stop listening and dialling. Answered by `Stopped`.
    Stop,
}

/// What the connection manager's side tells the engine.
pub enum CmEvent<Q: SetupQp> {
    /// A connection is established: receives are posted, the initiator's Hello too.
    LaneUp(LaneUp<Q>),
    /// A lane that was asked for cannot be had, after all retries.
    ConnectFailed {
        /// The peer.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// Why.
        fault: ConnectFault,
    },
    /// The connection of a lane is gone. Everything the peer sent before has completed.
    Disconnected {
        /// As in `LaneUp`.
        conn: ConnToken,
    },
    /// The device is gone; every lane with it.
    DeviceRemoved,
    /// Nothing comes after this.
    Stopped,
}

/// A lane that is ready to be used.
pub struct LaneUp<Q: SetupQp> {
    /// The peer.
    pub name: ProcName,
    /// The lane's class.
    pub class: u8,
    /// This side's role.
    pub role: Role,
    /// Whether the peer was announced when the connection was made.
    pub announced: bool,
    /// Names the connection in `Disconnect` and `Disconnected`.
    pub conn: ConnToken,
    /// The queue pair with its account.
    pub lane: UpLane<Q>,
}
