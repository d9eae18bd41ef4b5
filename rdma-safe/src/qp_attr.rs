//! How a queue pair is made and moved between states.

#![forbid(unsafe_code)]

use bitflags::bitflags;
use rdma_sys::*;

/// What a queue pair speaks (ibv_create_qp(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QpKind {
    /// Reliable, connected to one peer: everything can be posted.
    #[default]
    Rc,
    /// Unreliable, connected to one peer: sends and writes, in order, each whole or not at all.
    Uc,
    /// Unreliable datagrams to anybody: sends of at most one packet, each with its receiver's address.
    Ud,
    /// The sending half of an extended reliable connection: no receives of its own.
    XrcSend,
    /// Whole Ethernet frames.
    RawPacket,
}

impl QpKind {
    /// Whether it has a receive queue.
    pub(crate) fn has_receives(self) -> bool {
        self != QpKind::XrcSend
    }

    pub(crate) fn raw(self) -> ibv_qp_type {
        match self {
            QpKind::Rc => ibv_qp_type::IBV_QPT_RC,
            QpKind::Uc => ibv_qp_type::IBV_QPT_UC,
            QpKind::Ud => ibv_qp_type::IBV_QPT_UD,
            QpKind::XrcSend => ibv_qp_type::IBV_QPT_XRC_SEND,
            QpKind::RawPacket => ibv_qp_type::IBV_QPT_RAW_PACKET,
        }
    }
}

/// Kind and sizes of a queue pair.
///
/// Made from the default: `QpConfig { send_depth: 8, ..QpConfig::default() }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpConfig {
    /// What it speaks.
    pub kind: QpKind,
    /// Most sends in flight; at least 1.
    pub send_depth: u32,
    /// Most receives in flight; at least 1. Without a meaning where there is no receive queue (XRC).
    pub recv_depth: u32,
    /// Longest inline send wanted, bytes; 0 for none, which devices without inline sends need. Else at least 32 are asked
    /// for. What the device granted is [`QueuePair::max_inline`](crate::QueuePair::max_inline).
    pub max_inline: u32,
    /// Most pieces one send gathers from; at least 1.
    pub max_send_sge: u32,
    /// Most pieces one receive scatters to; at least 1.
    pub max_recv_sge: u32,
}

impl QpConfig {
    /// Entries of its own receive queue.
    pub(crate) fn receives(&self) -> u32 {
        if self.kind.has_receives() { self.recv_depth } else { 0 }
    }
}

impl Default for QpConfig {
    /// Reliable connected; 64 sends, 64 receives, 64 bytes inline, one piece for each request.
    fn default() -> QpConfig {
        QpConfig {
            kind: QpKind::Rc,
            send_depth: 64,
            recv_depth: 64,
            max_inline: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
        }
    }
}

bitflags! {
    /// How to send. The empty set is a signalled send, copied inline when it is small.
    ///
    /// The bits are those of `ibv_send_flags`, with [`UNSIGNALLED`](Self::UNSIGNALLED) in the place, and with the
    /// opposite meaning, of `IBV_SEND_SIGNALED`. Bits without a name here are not passed to the device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// No completion of its own unless it fails; a later signalled send finishes it and its slot comes back from
        /// [`reclaim`](crate::QueuePair::reclaim). The queue signals it anyway where it has to: on siw from a page up,
        /// and when half of the queue is unsignalled.
        const UNSIGNALLED = ibv_send_flags::IBV_SEND_SIGNALED.0;
        /// Copy the data at post time; at most `max_inline` bytes.
        const INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
        /// Wake a receiver that waits for solicited completions only.
        const SOLICITED = ibv_send_flags::IBV_SEND_SOLICITED.0;
        /// Start only after earlier RDMA reads and atomics are done.
        const FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
    }
}

/// State of a queue pair as this crate knows it: from its own modify calls, [`mark_connected`] and error completions.
///
/// [`mark_connected`]: crate::QueuePair::mark_connected
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just created: nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Connected: sends and receives can be posted.
    ReadyToSend,
    /// Send queue being drained: no sends.
    Draining,
    /// The send queue has failed and the receive queue works on (UC and UD): no sends.
    SendQueueError,
    /// Failed, or a post failed: no posts; slots come back with flush completions or from `close`.
    Error,
}

impl QpState {
    pub(crate) fn of(raw: ibv_qp_state) -> QpState {
        match raw {
            ibv_qp_state::IBV_QPS_RESET => QpState::Reset,
            ibv_qp_state::IBV_QPS_INIT => QpState::Init,
            ibv_qp_state::IBV_QPS_RTR => QpState::ReadyToReceive,
            ibv_qp_state::IBV_QPS_RTS => QpState::ReadyToSend,
            ibv_qp_state::IBV_QPS_SQD => QpState::Draining,
            ibv_qp_state::IBV_QPS_SQE => QpState::SendQueueError,
            _ => QpState::Error,
        }
    }
}

/// Attributes for one modify call: the struct and the mask that says which fields count.
#[derive(Clone, Copy)]
pub struct QpAttr {
    pub(crate) raw: ibv_qp_attr,
    pub(crate) mask: i32,
}

impl QpAttr {
    /// Takes what `rdma_init_qp_attr` filled in. Plain numbers: a wrong one makes the modify fail or the connection
    /// unusable, nothing worse.
    pub fn from_raw(attr: ibv_qp_attr, mask: i32) -> QpAttr {
        // MAC addresses and VLANs, which some kernels let out with RoCE attributes (librdmacm masks them too).
        const KERNEL_ONLY: i32 = 0x01e0_0000;
        QpAttr { raw: attr, mask: mask & !KERNEL_ONLY }
    }

    /// Only a state, for transitions that need no more.
    pub(crate) fn state_only(state: ibv_qp_state) -> QpAttr {
        let raw = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
        QpAttr { raw, mask: ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed() }
    }

    pub(crate) fn has(&self, bit: ibv_qp_attr_mask) -> bool {
        self.mask & bit.0.cast_signed() != 0
    }

    /// The state it asks for, if it does.
    pub fn state(&self) -> Option<QpState> {
        self.has(ibv_qp_attr_mask::IBV_QP_STATE).then(|| QpState::of(self.raw.qp_state))
    }

    /// The raw attributes and mask.
    pub fn as_raw(&self) -> (&ibv_qp_attr, i32) {
        (&self.raw, self.mask)
    }
}

impl std::fmt::Debug for QpAttr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QpAttr({:?}, mask {:#x})", self.state(), self.mask)
    }
}
