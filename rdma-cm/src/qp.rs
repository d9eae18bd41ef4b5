//! Moves a queue pair of our own context through its states, with the attributes the connection manager knows.
//!
//! The id never sees the queue pair: it is connected by its number. So what librdmacm does to a queue pair of its own
//! (man rdma_connect, rdma_accept) is done here.

#![forbid(unsafe_code)]

use rdma_safe::{QpAttr, QpState, QueuePair};
use rdma_sys as sys;
use rdma_sys::ibv_qp_state as state;

use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::raw::{Device, RawId};

impl EventChannel {
    /// Moves a queue pair from RESET to INIT, after which **receives can be posted**: do so before
    /// [`connect`](Self::connect) or [`accept`](Self::accept), because on iWARP a message that finds no receive ends the
    /// connection, and the peer's first message may come at any moment after. `connect` and `accept` call it if it was
    /// not called.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] when the queue pair is on another device than the id; [`Error::State`] when the id is on no
    /// device yet; [`Error::Verbs`], [`Error::Os`] from the move.
    pub fn init_qp(&mut self, id: &impl Id, qp: &mut QueuePair) -> Result<()> {
        let (entry, device) = self.entry_on_device(id.key(), "init_qp")?;
        check_device(&device, qp)?;
        init(&entry.raw, qp)
    }
}

/// How a queue pair becomes ready on InfiniBand and RoCE.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    /// Reads and atomics of the peer, if the connection manager does not know them yet (an acceptor before its accept).
    pub(crate) responder_resources: Option<u8>,
    /// Reads and atomics of this side, likewise.
    pub(crate) initiator_depth: Option<u8>,
    /// See [`ConnParams::min_rnr_timer`](crate::ConnParams).
    pub(crate) min_rnr_timer: u8,
}

/// Refuses a queue pair on another device than the connection's.
pub(crate) fn check_device(device: &Device, qp: &QueuePair) -> Result<()> {
    let context = qp.context();
    if context.name() == device.name && context.guid() == device.guid {
        return Ok(());
    }
    Err(Error::WrongDevice { id_device: device.name.clone(), qp_device: context.name().to_owned() })
}

/// RESET or INIT to INIT.
pub(crate) fn init(raw: &RawId, qp: &mut QueuePair) -> Result<()> {
    let (attr, mask) = raw.qp_attr(state::IBV_QPS_INIT)?;
    modify(qp, attr, mask)
}

/// INIT to RTS, InfiniBand and RoCE only: on iWARP the kernel moves the queue pair.
pub(crate) fn make_ready(raw: &RawId, qp: &mut QueuePair, ready: Ready) -> Result<()> {
    // INIT again: only now does the connection manager know which remote accesses the connection needs.
    init(raw, qp)?;
    let (mut attr, mut mask) = raw.qp_attr(state::IBV_QPS_RTR)?;
    // Bits that some kernels leak for RoCE addresses and that no provider understands (librdmacm masks them too).
    mask &= !0x01e0_0000;
    if let Some(depth) = ready.responder_resources {
        attr.max_dest_rd_atomic = depth;
    }
    // The connection manager leaves 0, which makes a peer that finds no receive wait 655 ms.
    attr.min_rnr_timer = ready.min_rnr_timer & 31;
    modify(qp, attr, mask)?;
    let (mut attr, mask) = raw.qp_attr(state::IBV_QPS_RTS)?;
    if let Some(depth) = ready.initiator_depth {
        attr.max_rd_atomic = depth;
    }
    modify(qp, attr, mask)
}

/// RESET to RTS for datagrams.
pub(crate) fn make_datagram_ready(raw: &RawId, qp: &mut QueuePair) -> Result<()> {
    init(raw, qp)?;
    let state_mask = sys::ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
    let psn_mask = sys::ibv_qp_attr_mask::IBV_QP_SQ_PSN.0 as i32;
    let to = |qp_state| sys::ibv_qp_attr { qp_state, ..sys::ibv_qp_attr::default() };
    modify(qp, to(state::IBV_QPS_RTR), state_mask)?;
    // Any number will do for the first packet: nobody counts datagrams.
    modify(qp, to(state::IBV_QPS_RTS), state_mask | psn_mask)
}

fn modify(qp: &mut QueuePair, attr: sys::ibv_qp_attr, mask: i32) -> Result<()> {
    Ok(qp.modify(&QpAttr::from_raw(attr, mask))?)
}

/// Whether nobody has moved the queue pair yet.
pub(crate) fn is_reset(qp: &QueuePair) -> bool {
    qp.state() == QpState::Reset
}
