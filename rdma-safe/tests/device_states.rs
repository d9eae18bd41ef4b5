//! The state table against what the kernel really takes: for each kind of queue pair, each pair of states and each set of
//! attributes that lacks one or has one too many, our verdict and the kernel's.
//!
//! On siw, where the connection manager moves the states, it is about what is refused and why.

mod support;

use rdma_safe::*;
use rdma_sys::{ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as a, ibv_qp_state as s};
use std::time::Instant;
use support::under_test::open;
use support::{LIMIT, address};

/// Bits of `ibv_qp_attr_mask` but the target state.
const BITS: [a; 21] = [
    a::IBV_QP_CUR_STATE,
    a::IBV_QP_EN_SQD_ASYNC_NOTIFY,
    a::IBV_QP_ACCESS_FLAGS,
    a::IBV_QP_PKEY_INDEX,
    a::IBV_QP_PORT,
    a::IBV_QP_QKEY,
    a::IBV_QP_AV,
    a::IBV_QP_PATH_MTU,
    a::IBV_QP_TIMEOUT,
    a::IBV_QP_RETRY_CNT,
    a::IBV_QP_RNR_RETRY,
    a::IBV_QP_RQ_PSN,
    a::IBV_QP_MAX_QP_RD_ATOMIC,
    a::IBV_QP_ALT_PATH,
    a::IBV_QP_MIN_RNR_TIMER,
    a::IBV_QP_SQ_PSN,
    a::IBV_QP_MAX_DEST_RD_ATOMIC,
    a::IBV_QP_PATH_MIG_STATE,
    a::IBV_QP_CAP,
    a::IBV_QP_DEST_QPN,
    a::IBV_QP_RATE_LIMIT,
];
const KINDS: [QpKind; 3] = [QpKind::Rc, QpKind::Uc, QpKind::Ud];
/// States that software can bring a queue pair to.
const FROM: [s; 6] = [
    s::IBV_QPS_RESET,
    s::IBV_QPS_INIT,
    s::IBV_QPS_RTR,
    s::IBV_QPS_RTS,
    s::IBV_QPS_SQD,
    s::IBV_QPS_ERR,
];
const TO: [s; 7] = [
    s::IBV_QPS_RESET,
    s::IBV_QPS_INIT,
    s::IBV_QPS_RTR,
    s::IBV_QPS_RTS,
    s::IBV_QPS_SQD,
    s::IBV_QPS_SQE,
    s::IBV_QPS_ERR,
];

/// The way to RTS as the specification has it, written down again.
fn way(kind: QpKind, to: s) -> a {
    let path = a::IBV_QP_AV | a::IBV_QP_PATH_MTU | a::IBV_QP_DEST_QPN | a::IBV_QP_RQ_PSN;
    let open = a::IBV_QP_PKEY_INDEX | a::IBV_QP_PORT;
    match (to, kind) {
        (s::IBV_QPS_INIT, QpKind::Ud) => open | a::IBV_QP_QKEY,
        (s::IBV_QPS_INIT, _) => open | a::IBV_QP_ACCESS_FLAGS,
        (s::IBV_QPS_RTR, QpKind::Rc) => {
            path | a::IBV_QP_MAX_DEST_RD_ATOMIC | a::IBV_QP_MIN_RNR_TIMER
        }
        (s::IBV_QPS_RTR, QpKind::Uc) => path,
        (s::IBV_QPS_RTS, QpKind::Rc) => {
            a::IBV_QP_SQ_PSN
                | a::IBV_QP_TIMEOUT
                | a::IBV_QP_RETRY_CNT
                | a::IBV_QP_RNR_RETRY
                | a::IBV_QP_MAX_QP_RD_ATOMIC
        }
        (s::IBV_QPS_RTS, _) => a::IBV_QP_SQ_PSN,
        _ => a(0),
    }
}

fn small(kind: QpKind) -> QpConfig {
    QpConfig { kind, send_depth: 1, recv_depth: 1, ..QpConfig::default() }
}

struct Bench {
    ctx: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    values: ibv_qp_attr,
}

impl Bench {
    fn new() -> Bench {
        let ctx = open();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(64).unwrap();
        let values = match ctx.transport().is_iwarp() {
            true => ibv_qp_attr { port_num: 1, ..ibv_qp_attr::default() },
            false => values(&ctx),
        };
        Bench { ctx, pd, cq, values }
    }

    fn qp(&self, kind: QpKind) -> QueuePair {
        let cq = self.cq.cq_ref();
        self.pd.create_qp(&cq, &cq, &small(kind)).unwrap()
    }

    fn attr(&self, to: Option<s>, from: s, mask: a) -> QpAttr {
        let state = to.map_or(0, |_| a::IBV_QP_STATE.0);
        let raw = ibv_qp_attr {
            qp_state: to.unwrap_or(s::IBV_QPS_RESET),
            cur_qp_state: from,
            ..self.values
        };
        QpAttr::from_raw(raw, (mask.0 | state).cast_signed())
    }

    /// A queue pair that went all the way to `state`, by our own modify.
    fn qp_in(&self, kind: QpKind, state: s) -> QueuePair {
        let mut qp = self.qp(kind);
        let steps: &[s] = match state {
            s::IBV_QPS_RESET => &[],
            s::IBV_QPS_INIT | s::IBV_QPS_ERR => &[s::IBV_QPS_INIT],
            s::IBV_QPS_RTR => &[s::IBV_QPS_INIT, s::IBV_QPS_RTR],
            _ => &[s::IBV_QPS_INIT, s::IBV_QPS_RTR, s::IBV_QPS_RTS],
        };
        for to in steps {
            qp.modify(&self.attr(Some(*to), s::IBV_QPS_RESET, way(kind, *to))).unwrap();
        }
        if matches!(state, s::IBV_QPS_SQD | s::IBV_QPS_ERR) {
            qp.modify(&self.attr(Some(state), s::IBV_QPS_RESET, a(0))).unwrap();
        }
        let end = Instant::now() + LIMIT;
        while qp.query().unwrap().draining {
            assert!(Instant::now() < end, "an idle queue is drained at once");
            std::thread::yield_now();
        }
        qp
    }
}

/// A right value for every attribute.
fn values(ctx: &Context) -> ibv_qp_attr {
    let gid = ctx.roce_v2_gid(1, Some(address().into())).unwrap();
    let mut raw = ibv_qp_attr {
        path_mtu: ibv_mtu::IBV_MTU_1024,
        qkey: 0x1111,
        dest_qp_num: 17,
        port_num: 1,
        alt_port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        ..ibv_qp_attr::default()
    };
    raw.ah_attr.is_global = 1;
    raw.ah_attr.port_num = 1;
    raw.ah_attr.grh.sgid_index = u8::try_from(gid.index).unwrap();
    raw.ah_attr.grh.dgid.raw = gid.gid.0;
    raw.ah_attr.grh.hop_limit = 64;
    raw.alt_ah_attr = raw.ah_attr;
    raw
}

/// The kernel's own answer, past this crate: 0 or an errno.
fn kernel(qp: &QueuePair, attr: &QpAttr) -> i32 {
    let (raw, mask) = attr.as_raw();
    let mut raw = *raw;
    // SAFETY: the QP is alive and the attributes are complete; the QP is dropped afterwards if this changed it.
    unsafe { rdma_sys::ibv_modify_qp(qp.as_raw(), &mut raw, mask) }.abs()
}

/// What kernel and crate are meant to disagree on: `None` if nothing. `true`: the kernel takes it and we do not.
fn meant(kind: QpKind, from: s, to: Option<s>, mask: a) -> Option<bool> {
    let has = |bit: a| mask.0 & bit.0 != 0;
    let target = to.unwrap_or(from);
    match to {
        // Posted requests would be forgotten by the device and not by us.
        Some(s::IBV_QPS_RESET) if from != s::IBV_QPS_RESET => Some(true),
        // rxe consults the table only when a state is given.
        None => Some(true),
        // The kernel adds the port to a new path in SQD, and the table has no port for UC there.
        Some(_) if kind == QpKind::Uc && target == s::IBV_QPS_SQD && has(a::IBV_QP_AV) => {
            Some(false)
        }
        _ => None,
    }
}

/// The sets to try: nothing, and each step's right set, each with every single attribute added or taken away.
fn candidates(kind: QpKind) -> Vec<a> {
    let mut all = Vec::new();
    for base in
        [a(0), way(kind, s::IBV_QPS_INIT), way(kind, s::IBV_QPS_RTR), way(kind, s::IBV_QPS_RTS)]
    {
        all.push(base);
        all.extend(BITS.map(|bit| a(base.0 ^ bit.0)));
    }
    all.sort_by_key(|m| m.0);
    all.dedup();
    all
}

fn needs_roce(ctx: &Context) -> bool {
    match ctx.transport() {
        Transport::Roce => true,
        Transport::Iwarp => {
            // Said by the other test of this file, in detail.
            let pd = ctx.alloc_pd().unwrap();
            let cq = ctx.create_cq(64).unwrap().cq_ref();
            let e = pd.create_manual_qp(&cq, &cq, &small(QpKind::Rc)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            false
        }
        other => panic!("these tests know siw and rxe, not {other:?}"),
    }
}

#[test]
fn the_table_is_the_kernels() {
    let bench = Bench::new();
    if !needs_roce(&bench.ctx) {
        return;
    }
    let (mut tried, mut taken) = (0, 0);
    let mut wrong = Vec::new();
    for kind in KINDS {
        for from in FROM {
            let mut pair = (bench.qp_in(kind, from), bench.qp_in(kind, from));
            for to in TO.map(Some).into_iter().chain([None]) {
                for mask in candidates(kind) {
                    let attr = bench.attr(to, from, mask);
                    let theirs = kernel(&pair.0, &attr);
                    let ours = pair.1.modify(&attr);
                    tried += 1;
                    taken += i32::from(ours.is_ok());
                    let refused = matches!(&ours, Err(e) if e.errno() == 0);
                    let what =
                        || format!("{kind:?} {from:?} to {to:?} {:#x}: {theirs}, {ours:?}", mask.0);
                    if theirs == libc::EOPNOTSUPP {
                        // Not about the table: rxe has no such attribute.
                        assert_ne!(mask.0 & a::IBV_QP_RATE_LIMIT.0, 0, "{}", what());
                    } else if refused != (theirs != 0) {
                        match meant(kind, from, to, mask) {
                            Some(theirs_too) if theirs_too == refused => {}
                            _ => wrong.push(what()),
                        }
                    }
                    if theirs == 0 || ours.is_ok() {
                        pair = (bench.qp_in(kind, from), bench.qp_in(kind, from));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    // 3 kinds x 6 states x 8 targets x the sets.
    assert!(tried > 9000 && taken > 100, "{taken} of {tried} taken");
    println!("{tried} moves tried, {taken} taken");
}

/// Each attribute that a step needs, left out, is named; and one that it does not take, put in.
#[test]
fn the_diagnosis_names_each_attribute() {
    let bench = Bench::new();
    if !needs_roce(&bench.ctx) {
        return;
    }
    let steps = [s::IBV_QPS_RESET, s::IBV_QPS_INIT, s::IBV_QPS_RTR, s::IBV_QPS_RTS];
    let mut named = 0;
    for kind in KINDS {
        for step in steps.windows(2) {
            let mut qp = bench.qp_in(kind, step[0]);
            let right = way(kind, step[1]);
            for bit in BITS.iter().filter(|b| right.0 & b.0 != 0) {
                let e = qp
                    .modify(&bench.attr(Some(step[1]), step[0], a(right.0 & !bit.0)))
                    .unwrap_err();
                assert_eq!((e.kind(), e.errno()), (ErrorKind::InvalidArgument, 0));
                let text = e.to_string();
                assert!(text.contains(" needs ") && text.contains("(IBV_QP_"), "{text}");
                assert_eq!(text.matches("IBV_QP_").count(), 1, "{text}");
                named += 1;
            }
            let e = qp
                .modify(&bench.attr(Some(step[1]), step[0], right | a::IBV_QP_EN_SQD_ASYNC_NOTIFY))
                .unwrap_err();
            assert!(e.to_string().contains("does not take event when drained"), "{e}");
            qp.modify(&bench.attr(Some(step[1]), step[0], right)).unwrap();
        }
    }
    assert_eq!(named, 14 + 8 + 4);
}

/// On iWARP the kernel refuses what we refuse, and no hand can connect a queue pair.
#[test]
fn iwarp_is_moved_by_its_connection_manager() {
    let bench = Bench::new();
    if bench.ctx.transport() != Transport::Iwarp {
        let cq = bench.cq.cq_ref();
        assert!(bench.pd.create_manual_qp(&cq, &cq, &small(QpKind::Rc)).is_ok());
        return;
    }
    let cq = bench.cq.cq_ref();
    let e = bench.pd.create_manual_qp(&cq, &cq, &small(QpKind::Rc)).unwrap_err();
    assert_eq!((e.kind(), e.errno()), (ErrorKind::Unsupported, 0));
    assert!(e.to_string().contains("rdma-cm"), "{e}");
    let mut qp = bench.qp(QpKind::Rc);
    let open = a::IBV_QP_ACCESS_FLAGS | a::IBV_QP_PORT;
    let e = qp.modify(&bench.attr(Some(s::IBV_QPS_INIT), s::IBV_QPS_RESET, open | a::IBV_QP_QKEY));
    assert!(e.unwrap_err().to_string().contains("Q_Key"));
    qp.modify(&bench.attr(Some(s::IBV_QPS_INIT), s::IBV_QPS_RESET, open)).unwrap();
    for to in [s::IBV_QPS_RTR, s::IBV_QPS_RTS] {
        let attr = bench.attr(Some(to), s::IBV_QPS_INIT, a(0));
        let e = qp.modify(&attr).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::WrongState, 0), "{e}");
        assert!(e.to_string().contains("rdma-cm"), "{e}");
    }
    let rts = bench.attr(Some(s::IBV_QPS_RTS), s::IBV_QPS_INIT, a(0));
    assert_eq!(kernel(&qp, &rts), libc::EINVAL, "without a connection there is no RTS");
    qp.to_error().unwrap();
    assert_eq!(qp.state(), QpState::Error);
}
