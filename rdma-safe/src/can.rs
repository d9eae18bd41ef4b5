//! What may be posted to a queue pair just now: one byte, so that the message path makes one test.

#![forbid(unsafe_code)]

use crate::caps::Caps;
use crate::qp_attr::{QpKind, QpState};

/// A receive.
pub(crate) const CAN_RECV: u8 = 1;
/// A send that needs no address: the queue pair has one peer, or the packet has its own header.
pub(crate) const CAN_SEND: u8 = 1 << 1;
/// A send that names its receiver by an address handle.
pub(crate) const CAN_SEND_TO: u8 = 1 << 2;
/// A send that names the peer's shared receive queue (XRC).
pub(crate) const CAN_SEND_XRC: u8 = 1 << 3;
/// An RDMA write. With immediate data it takes a receive, which on XRC has to be named.
pub(crate) const CAN_WRITE: u8 = 1 << 4;
/// An RDMA read.
pub(crate) const CAN_READ: u8 = 1 << 5;
/// An atomic.
pub(crate) const CAN_ATOMIC: u8 = 1 << 6;
/// A bind of a memory window or a local invalidation.
pub(crate) const CAN_BIND: u8 = 1 << 7;

/// What a queue pair of this kind can ever post on a device with these capabilities.
///
/// Which operations a kind has: InfiniBand 1.2.1 table 36; the device's own limits: its query.
pub(crate) fn ever(kind: QpKind, caps: Caps) -> u8 {
    let all = match kind {
        QpKind::Rc => CAN_RECV | CAN_SEND | CAN_WRITE | CAN_READ | CAN_ATOMIC | CAN_BIND,
        QpKind::Uc => CAN_RECV | CAN_SEND | CAN_WRITE | CAN_BIND,
        QpKind::Ud => CAN_RECV | CAN_SEND_TO,
        QpKind::XrcSend => CAN_SEND_XRC | CAN_WRITE | CAN_READ | CAN_ATOMIC | CAN_BIND,
        QpKind::RawPacket => CAN_RECV | CAN_SEND,
    };
    let atomics = if caps.contains(Caps::ATOMICS) { 0 } else { CAN_ATOMIC };
    let windows = if caps.contains(Caps::MEMORY_WINDOWS) { 0 } else { CAN_BIND };
    all & !(atomics | windows)
}

/// Of that, what it can post in this state.
pub(crate) fn now(ever: u8, state: QpState) -> u8 {
    match state {
        QpState::Reset | QpState::Error => 0,
        QpState::Init | QpState::ReadyToReceive | QpState::Draining | QpState::SendQueueError => {
            ever & CAN_RECV
        }
        QpState::ReadyToSend => ever,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_devices_limit_what_is_posted() {
        let all = Caps::ATOMICS | Caps::MEMORY_WINDOWS;
        assert_eq!(ever(QpKind::Rc, all), !(CAN_SEND_TO | CAN_SEND_XRC));
        let soft = ever(QpKind::Rc, Caps::empty());
        assert_eq!(soft, CAN_RECV | CAN_SEND | CAN_WRITE | CAN_READ);
        assert_eq!(ever(QpKind::Ud, all) & CAN_SEND, 0, "without an address it goes nowhere");
        assert_eq!(ever(QpKind::Uc, all) & (CAN_READ | CAN_ATOMIC), 0);
        assert_eq!(ever(QpKind::XrcSend, all) & (CAN_RECV | CAN_SEND), 0);
    }

    #[test]
    fn sends_need_a_connection_and_receives_a_queue() {
        let rc = ever(QpKind::Rc, Caps::empty());
        assert_eq!(now(rc, QpState::ReadyToSend), rc);
        for s in [QpState::Init, QpState::ReadyToReceive, QpState::Draining] {
            assert_eq!(now(rc, s), CAN_RECV);
        }
        assert_eq!(now(rc, QpState::SendQueueError), CAN_RECV);
        assert_eq!(now(rc, QpState::Reset) | now(rc, QpState::Error), 0);
    }
}
