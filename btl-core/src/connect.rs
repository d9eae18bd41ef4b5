//! The connection machine: decides whom to dial, what to accept, and which of two crossing
//! connects stays. Pure: no clock, no handles, no queue pairs; the driver carries its actions out.
//!
//! - Each lane class of each peer is one *link* with at most one connection.
//! - When both sides dial at once, the process with the lower name wins: it rejects the other's
//!   request early, and the other accepts the winner's. A winner whose own dial failed has none
//!   outstanding, so it accepts the next request.
//! - A dial that failed is repeated after a pause, on the next address, until `t_give_up`.
//! - Every dial has a generation, one higher than the last; Hello repeats it.
mod machine;
#[cfg(test)]
mod tests;

use crate::error::ConnectFault;
use crate::names::{ConnToken, Nanos, ProcName, Role};
use crate::recover::Rejoin;
use crate::setup::Agreed;
use crate::wire::PrivateData;
use std::net::SocketAddr;

pub use machine::Machine;

/// What happened, for [`Machine::handle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A peer and where it listens, best address first.
    Announce {
        /// Its name.
        name: ProcName,
        /// Its addresses.
        addrs: Vec<SocketAddr>,
    },
    /// The engine wants no connection to this peer any more.
    Forget {
        /// Its name.
        name: ProcName,
    },
    /// The engine needs a lane.
    Want {
        /// The peer.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// What the engine has of the lane's messages.
        rejoin: Rejoin,
    },
    /// A connect request arrived. `conn` comes from [`Machine::token`].
    Request {
        /// Names it from now on.
        conn: ConnToken,
        /// Its private data.
        data: PrivateData,
    },
    /// A dial ended.
    DialDone {
        /// As in the action.
        conn: ConnToken,
        /// How.
        outcome: DialOutcome,
    },
    /// An accept is established, or failed (the text says why).
    AcceptDone {
        /// As in the action.
        conn: ConnToken,
        /// How.
        outcome: Result<(), String>,
    },
    /// The hand-over that was asked for failed (the text says why): the queue pair is destroyed
    /// and the connection dropped.
    HandOverFailed {
        /// Which.
        conn: ConnToken,
        /// Why.
        why: String,
    },
    /// An established connection is gone (event DISCONNECTED).
    Disconnected {
        /// Which.
        conn: ConnToken,
    },
    /// The engine is done with a lane and has destroyed its queue pair.
    Hangup {
        /// Which.
        conn: ConnToken,
    },
    /// Time passed; see [`Machine::next_timeout`].
    Tick,
    /// Stop dialling and accepting.
    Stop,
}

/// How a dial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialOutcome {
    /// Established, with the accept's private data.
    Established(PrivateData),
    /// Rejected, with the reject's private data.
    Rejected(PrivateData),
    /// Anything else, in words.
    Failed(String),
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a queue pair with all its receives posted and connect it; answer with `DialDone`.
    Dial {
        /// Names it.
        conn: ConnToken,
        /// The peer.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// Where to.
        addr: SocketAddr,
        /// For the connect request.
        data: PrivateData,
        /// When the driver interrupts it (and answers `Failed`).
        deadline: Nanos,
    },
    /// Make a queue pair with all its receives posted and accept; answer with `AcceptDone` when
    /// it is established. If the queue pair cannot be made, reject with
    /// [`RejectReason::Busy`](crate::wire::RejectReason) and answer `AcceptDone` with the error.
    Accept {
        /// Which request.
        conn: ConnToken,
        /// The peer.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// For the accept.
        data: PrivateData,
        /// When the driver gives up (and answers with an error).
        deadline: Nanos,
    },
    /// Reject a request. Nothing follows.
    Reject {
        /// Which request.
        conn: ConnToken,
        /// For the reject.
        data: PrivateData,
    },
    /// The connection stays: call [`SetupLane::established`](crate::setup::SetupLane) and give the
    /// lane to the engine. If that fails, drop the
    /// connection and answer with `HandOverFailed`.
    HandOver {
        /// Which.
        conn: ConnToken,
        /// The peer.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// This side's role.
        role: Role,
        /// What both sides said.
        agreed: Agreed,
        /// Whether the peer is announced.
        announced: bool,
    },
    /// Disconnect and forget: a dial or accept that is not wanted any more (destroy its queue
    /// pair too; nothing was handed over), or a lane the engine is done with. Nothing follows; a
    /// late `DialDone`, `AcceptDone` or `Disconnected` is ignored.
    Drop {
        /// Which.
        conn: ConnToken,
    },
    /// Tell the engine: `CmEvent::ConnectFailed`.
    Failed {
        /// The peer.
        name: ProcName,
        /// The lane's class.
        class: u8,
        /// Why.
        fault: ConnectFault,
    },
    /// Tell the engine: `CmEvent::Disconnected`.
    Gone {
        /// Which.
        conn: ConnToken,
    },
    /// Everything has ended: `CmEvent::Stopped`.
    Stopped,
}
