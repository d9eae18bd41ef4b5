//! The state table: what a transition needs and what it may carry.
//!
//! Source: InfiniBand 1.2.1, 10.3.1 and tables 91 to 97 (the kernel checks by the same rules in `ib_modify_qp_is_ok`).
//! The part about iWARP is what its drivers take: there the connection manager's kernel half moves the queue pair.
//!
//! Compared with what the kernel accepts on rxe, for RC, UC and UD, in `tests/device_states.rs`; the other rows are of
//! devices that no software emulates.

#![forbid(unsafe_code)]

use super::Row;
use crate::qp_attr::QpState::{self, *};
use rdma_sys::ibv_qp_attr_mask as a;

/// Attributes besides the target state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Masks {
    pub(crate) required: u32,
    pub(crate) optional: u32,
}

const NOTHING: Masks = Masks { required: 0, optional: 0 };

/// The path to the one peer.
const PATH: u32 = a::IBV_QP_AV.0 | a::IBV_QP_PATH_MTU.0 | a::IBV_QP_DEST_QPN.0 | a::IBV_QP_RQ_PSN.0;
/// What the side that answers reads and atomics has to know.
const ANSWER: u32 = a::IBV_QP_MAX_DEST_RD_ATOMIC.0 | a::IBV_QP_MIN_RNR_TIMER.0;
/// What the side that asks has to know.
const ASK: u32 = a::IBV_QP_RETRY_CNT.0 | a::IBV_QP_RNR_RETRY.0 | a::IBV_QP_MAX_QP_RD_ATOMIC.0;
const PATHS_BESIDE: u32 = a::IBV_QP_ALT_PATH.0 | a::IBV_QP_ACCESS_FLAGS.0;
const MIGRATE: u32 = PATHS_BESIDE | a::IBV_QP_PATH_MIG_STATE.0;

const fn required(required: u32) -> Option<Masks> {
    Some(Masks { required, optional: 0 })
}

const fn optional(optional: u32) -> Option<Masks> {
    Some(Masks { required: 0, optional })
}

/// What the move needs; `None` when there is no such move.
pub(crate) fn masks(row: Row, from: QpState, to: QpState) -> Option<Masks> {
    match (from, to) {
        (_, Reset) => Some(NOTHING),
        (Reset, Error) => None,
        (_, Error) => Some(NOTHING),
        _ if row == Row::Iwarp => iwarp(from, to),
        (Reset, Init) => required(opening(row)),
        // A raw packet queue pair keeps its port.
        (Init, Init) if row == Row::RawPacket => Some(NOTHING),
        (Init, Init) => optional(opening(row)),
        (Init, ReadyToReceive) => Some(hearing(row)),
        (ReadyToReceive, ReadyToSend) => Some(speaking(row)),
        (ReadyToSend | Draining, ReadyToSend) => optional(working(row)),
        (ReadyToSend, Draining) if row == Row::RawPacket => Some(NOTHING),
        (ReadyToSend, Draining) => optional(a::IBV_QP_EN_SQD_ASYNC_NOTIFY.0),
        (Draining, Draining) => optional(drained(row)),
        (SendQueueError, ReadyToSend) => match row {
            Row::Uc => optional(a::IBV_QP_CUR_STATE.0 | a::IBV_QP_ACCESS_FLAGS.0),
            Row::Ud => optional(a::IBV_QP_CUR_STATE.0 | a::IBV_QP_QKEY.0),
            _ => None,
        },
        _ => None,
    }
}

fn opening(row: Row) -> u32 {
    let common = a::IBV_QP_PKEY_INDEX.0 | a::IBV_QP_PORT.0;
    match row {
        Row::Ud => common | a::IBV_QP_QKEY.0,
        Row::RawPacket => a::IBV_QP_PORT.0,
        _ => common | a::IBV_QP_ACCESS_FLAGS.0,
    }
}

fn hearing(row: Row) -> Masks {
    let late = a::IBV_QP_PKEY_INDEX.0;
    match row {
        Row::Ud => Masks { required: 0, optional: late | a::IBV_QP_QKEY.0 },
        Row::RawPacket => NOTHING,
        Row::Uc | Row::XrcSend => Masks { required: PATH, optional: late | PATHS_BESIDE },
        Row::Rc | Row::XrcTarget | Row::Iwarp => {
            Masks { required: PATH | ANSWER, optional: late | PATHS_BESIDE }
        }
    }
}

fn speaking(row: Row) -> Masks {
    let psn = a::IBV_QP_SQ_PSN.0;
    let required = match row {
        Row::Uc | Row::Ud => psn,
        Row::RawPacket => 0,
        Row::XrcTarget => psn | a::IBV_QP_TIMEOUT.0,
        Row::Rc | Row::XrcSend | Row::Iwarp => psn | a::IBV_QP_TIMEOUT.0 | ASK,
    };
    Masks { required, optional: working(row) }
}

/// What may change while the queue pair works. The rate limit is an extension of libibverbs (ibv_modify_qp(3)).
fn working(row: Row) -> u32 {
    let any = a::IBV_QP_CUR_STATE.0 | a::IBV_QP_RATE_LIMIT.0;
    match row {
        Row::Ud => any | a::IBV_QP_QKEY.0,
        Row::RawPacket => a::IBV_QP_RATE_LIMIT.0,
        Row::Uc | Row::XrcSend => any | MIGRATE,
        Row::Rc | Row::XrcTarget | Row::Iwarp => any | MIGRATE | a::IBV_QP_MIN_RNR_TIMER.0,
    }
}

/// What may change while nothing is being sent.
fn drained(row: Row) -> u32 {
    let path =
        a::IBV_QP_PORT.0 | a::IBV_QP_AV.0 | a::IBV_QP_TIMEOUT.0 | a::IBV_QP_PKEY_INDEX.0 | MIGRATE;
    match row {
        Row::Ud => a::IBV_QP_PKEY_INDEX.0 | a::IBV_QP_QKEY.0,
        Row::RawPacket => 0,
        Row::Uc => a::IBV_QP_AV.0 | a::IBV_QP_PKEY_INDEX.0 | MIGRATE,
        Row::XrcSend => path | ASK,
        Row::XrcTarget => path | ANSWER,
        Row::Rc | Row::Iwarp => path | ASK | ANSWER,
    }
}

/// On iWARP connecting is not a verb: rdma_connect and rdma_accept do it in the kernel.
fn iwarp(from: QpState, to: QpState) -> Option<Masks> {
    let opening = a::IBV_QP_ACCESS_FLAGS.0 | a::IBV_QP_PORT.0 | a::IBV_QP_PKEY_INDEX.0;
    match (from, to) {
        (Reset | Init, Init) => optional(opening),
        (ReadyToSend, ReadyToSend) => optional(a::IBV_QP_ACCESS_FLAGS.0),
        (ReadyToSend, Draining) => optional(a::IBV_QP_EN_SQD_ASYNC_NOTIFY.0),
        _ => None,
    }
}
