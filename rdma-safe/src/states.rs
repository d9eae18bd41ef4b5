//! Checks every change of a queue pair's attributes against the state table before the kernel sees it, because the
//! kernel answers EINVAL to anything wrong and does not say to what.

#![forbid(unsafe_code)]

pub(crate) mod table;

use crate::caps::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::qp_attr::{QpAttr, QpKind, QpState};
use rdma_sys::{ibv_ah_attr, ibv_qp_attr_mask as a};

const OP: &str = "ibv_modify_qp";

/// Whose row of the table it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row {
    Rc,
    Uc,
    Ud,
    XrcSend,
    XrcTarget,
    RawPacket,
    Iwarp,
}

impl Row {
    pub(crate) fn of(kind: QpKind, transport: Transport) -> Row {
        match kind {
            _ if transport.is_iwarp() => Row::Iwarp,
            QpKind::Rc => Row::Rc,
            QpKind::Uc => Row::Uc,
            QpKind::Ud => Row::Ud,
            QpKind::XrcSend => Row::XrcSend,
            QpKind::RawPacket => Row::RawPacket,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Row::Rc => "a reliable connected queue pair",
            Row::Uc => "an unreliable connected queue pair",
            Row::Ud => "a datagram queue pair",
            Row::XrcSend => "an XRC sender",
            Row::XrcTarget => "an XRC target",
            Row::RawPacket => "a raw packet queue pair",
            Row::Iwarp => "an iWARP queue pair",
        }
    }
}

/// Bits of the mask, what they are, and their names in C.
const NAMES: [(a, &str, &str); 22] = [
    (a::IBV_QP_STATE, "state", "STATE"),
    (a::IBV_QP_CUR_STATE, "current state", "CUR_STATE"),
    (a::IBV_QP_EN_SQD_ASYNC_NOTIFY, "event when drained", "EN_SQD_ASYNC_NOTIFY"),
    (a::IBV_QP_ACCESS_FLAGS, "remote access", "ACCESS_FLAGS"),
    (a::IBV_QP_PKEY_INDEX, "partition key index", "PKEY_INDEX"),
    (a::IBV_QP_PORT, "port", "PORT"),
    (a::IBV_QP_QKEY, "Q_Key", "QKEY"),
    (a::IBV_QP_AV, "address vector", "AV"),
    (a::IBV_QP_PATH_MTU, "path MTU", "PATH_MTU"),
    (a::IBV_QP_TIMEOUT, "timeout", "TIMEOUT"),
    (a::IBV_QP_RETRY_CNT, "retry count", "RETRY_CNT"),
    (a::IBV_QP_RNR_RETRY, "receiver-not-ready retries", "RNR_RETRY"),
    (a::IBV_QP_RQ_PSN, "receive PSN", "RQ_PSN"),
    (a::IBV_QP_MAX_QP_RD_ATOMIC, "reads and atomics asked", "MAX_QP_RD_ATOMIC"),
    (a::IBV_QP_ALT_PATH, "alternate path", "ALT_PATH"),
    (a::IBV_QP_MIN_RNR_TIMER, "receiver-not-ready timer", "MIN_RNR_TIMER"),
    (a::IBV_QP_SQ_PSN, "send PSN", "SQ_PSN"),
    (a::IBV_QP_MAX_DEST_RD_ATOMIC, "reads and atomics answered", "MAX_DEST_RD_ATOMIC"),
    (a::IBV_QP_PATH_MIG_STATE, "path migration state", "PATH_MIG_STATE"),
    (a::IBV_QP_CAP, "queue sizes", "CAP"),
    (a::IBV_QP_DEST_QPN, "peer's number", "DEST_QPN"),
    (a::IBV_QP_RATE_LIMIT, "rate limit", "RATE_LIMIT"),
];

/// The attributes in a mask, in words; unknown bits as a number.
fn names(mask: u32) -> String {
    let mut parts: Vec<String> = NAMES
        .iter()
        .filter(|(bit, ..)| mask & bit.0 != 0)
        .map(|(_, what, c)| format!("{what} (IBV_QP_{c})"))
        .collect();
    let unknown = mask & !NAMES.iter().fold(0, |all, (bit, ..)| all | bit.0);
    if unknown != 0 {
        parts.push(format!("unknown bits {unknown:#x}"));
    }
    parts.join(", ")
}

/// Whether a queue pair in state `from` may be given these attributes.
pub(crate) fn check(row: Row, transport: Transport, from: QpState, attr: &QpAttr) -> Result<()> {
    let to = attr.state().unwrap_or(from);
    let Some(masks) = table::masks(row, from, to) else { return Err(no_such_move(row, from, to)) };
    let given = attr.mask.cast_unsigned() & !a::IBV_QP_STATE.0;
    let missing = masks.required & !given;
    let extra = given & !(masks.required | masks.optional);
    if missing | extra != 0 {
        return Err(wrong_mask(row, from, to, missing, extra));
    }
    check_values(transport, from, attr)
}

#[cold]
fn no_such_move(row: Row, from: QpState, to: QpState) -> Error {
    let why = match row {
        _ if from == to => format!("nothing of {} can be changed in state {from:?}", row.name()),
        Row::Iwarp => format!(
            "{from:?} to {to:?}: on iWARP the kernel connects in rdma_connect and rdma_accept; use rdma-cm and \
             mark_connected"
        ),
        _ => format!("{} does not go from {from:?} to {to:?}", row.name()),
    };
    Error::refused(OP, ErrorKind::WrongState, why)
}

#[cold]
fn wrong_mask(row: Row, from: QpState, to: QpState, missing: u32, extra: u32) -> Error {
    let mut why = format!("{from:?} to {to:?} of {}", row.name());
    if missing != 0 {
        why.push_str(&format!(" needs {}", names(missing)));
    }
    if extra != 0 {
        let but = if missing != 0 { " and" } else { "" };
        why.push_str(&format!("{but} does not take {}", names(extra)));
    }
    Error::refused(OP, ErrorKind::InvalidArgument, why)
}

/// Values the kernel refuses, or believes, without a word.
fn check_values(transport: Transport, from: QpState, attr: &QpAttr) -> Result<()> {
    let raw = &attr.raw;
    // rxe believes it, whatever the real state is.
    if attr.has(a::IBV_QP_CUR_STATE) && QpState::of(raw.cur_qp_state) != from {
        let claimed = QpState::of(raw.cur_qp_state);
        let why = format!("the current state is {from:?} and not {claimed:?}");
        return Err(Error::refused(OP, ErrorKind::WrongState, why));
    }
    if transport != Transport::Roce {
        return Ok(());
    }
    let without_grh = |av: &ibv_ah_attr| av.is_global == 0;
    let why = if attr.has(a::IBV_QP_ALT_PATH) {
        "alternate paths (IBV_QP_ALT_PATH) exist on InfiniBand only"
    } else if attr.has(a::IBV_QP_AV) && without_grh(&raw.ah_attr) {
        "a RoCE address vector (IBV_QP_AV) needs its global part (GRH)"
    } else {
        return Ok(());
    };
    Err(Error::refused(OP, ErrorKind::InvalidArgument, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_sys::{ibv_qp_attr, ibv_qp_state};

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
        QpState::Draining,
        QpState::SendQueueError,
        QpState::Error,
    ];
    const ROWS: [Row; 7] =
        [Row::Rc, Row::Uc, Row::Ud, Row::XrcSend, Row::XrcTarget, Row::RawPacket, Row::Iwarp];

    fn attr(state: ibv_qp_state, mask: u32) -> QpAttr {
        let raw = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
        QpAttr::from_raw(raw, (mask | a::IBV_QP_STATE.0).cast_signed())
    }

    #[test]
    fn every_row_can_be_walked_and_nothing_is_both_needed_and_optional() {
        for row in ROWS {
            for from in STATES {
                for to in STATES {
                    if let Some(m) = table::masks(row, from, to) {
                        assert_eq!(m.required & a::IBV_QP_CAP.0, 0);
                        let both = m.required & m.optional & !a::IBV_QP_MIN_RNR_TIMER.0;
                        assert_eq!(both, 0, "{row:?} {from:?} {to:?}");
                    }
                }
                assert!(table::masks(row, from, QpState::SendQueueError).is_none());
            }
            assert!(table::masks(row, QpState::Error, QpState::Init).is_none());
        }
    }

    #[test]
    fn the_diagnosis_names_what_is_missing_and_what_is_too_much() {
        let path = a::IBV_QP_AV.0 | a::IBV_QP_DEST_QPN.0 | a::IBV_QP_RQ_PSN.0;
        let wrong = attr(ibv_qp_state::IBV_QPS_RTR, path | a::IBV_QP_QKEY.0 | 1 << 30);
        let e = check(Row::Uc, Transport::Ib, QpState::Init, &wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            e.to_string(),
            "ibv_modify_qp refused: Init to ReadyToReceive of an unreliable connected queue pair needs path MTU \
             (IBV_QP_PATH_MTU) and does not take Q_Key (IBV_QP_QKEY), unknown bits 0x40000000"
        );
        let right = attr(ibv_qp_state::IBV_QPS_RTR, path | a::IBV_QP_PATH_MTU.0);
        assert!(check(Row::Uc, Transport::Ib, QpState::Init, &right).is_ok());
        let e = check(Row::Uc, Transport::Roce, QpState::Init, &right).unwrap_err();
        assert!(e.to_string().contains("GRH"), "{e}");
    }

    #[test]
    fn moves_that_do_not_exist_say_so() {
        let rts = attr(ibv_qp_state::IBV_QPS_RTS, 0);
        let e = check(Row::Rc, Transport::Ib, QpState::Init, &rts).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::WrongState);
        assert!(e.to_string().contains("does not go from Init to ReadyToSend"), "{e}");
        let e = check(Row::Iwarp, Transport::Iwarp, QpState::Init, &rts).unwrap_err();
        assert!(e.to_string().contains("rdma-cm"), "{e}");
    }

    #[test]
    fn a_wrong_idea_of_the_current_state_is_refused() {
        let mut wrong = attr(ibv_qp_state::IBV_QPS_RTS, a::IBV_QP_CUR_STATE.0);
        wrong.raw.cur_qp_state = ibv_qp_state::IBV_QPS_RTR;
        let at = |state, attr: &QpAttr| check(Row::Ud, Transport::Roce, state, attr);
        assert_eq!(at(QpState::Draining, &wrong).unwrap_err().kind(), ErrorKind::WrongState);
        wrong.raw.cur_qp_state = ibv_qp_state::IBV_QPS_SQD;
        assert!(at(QpState::Draining, &wrong).is_ok());
    }
}
