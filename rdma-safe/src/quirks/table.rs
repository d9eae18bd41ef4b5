//! The rows.

use super::Answer::{No, Unknown, Yes};
use super::{CrossQueueCredits, Parts, Quirk, VENDOR_RXE, VENDOR_SIW};
use crate::caps::Transport;

const IB: &[Transport] = &[Transport::Ib];
const ROCE: &[Transport] = &[Transport::Roce];
const IWARP: &[Transport] = &[Transport::Iwarp];
const IB_ROCE: &[Transport] = &[Transport::Ib, Transport::Roce];
const ROCE_IWARP: &[Transport] = &[Transport::Roce, Transport::Iwarp];
const MELLANOX: &[u32] = &[0x02c9, 0x05ad, 0x066a, 0x08f1, 0x1708, 0x03ba, 0x15b3, 0x119f];
const CHELSIO: &[u32] = &[0x1425];
const INTEL: &[u32] = &[0x8086];

const fn row(
    name: &'static str,
    vendors: &'static [u32],
    parts: Parts,
    transports: &'static [Transport],
) -> Quirk {
    Quirk {
        name,
        vendors,
        parts,
        transports,
        shared_work_queue: false,
        credits: CrossQueueCredits::NotSeen,
        ready_to_receive: Unknown,
        loopback: Unknown,
        max_inline: None,
        reliable_connections: true,
        note: "",
    }
}

impl Quirk {
    const fn loops(mut self, loopback: super::Answer) -> Self {
        self.loopback = loopback;
        self
    }

    const fn sends_rtr(mut self, answer: super::Answer) -> Self {
        self.ready_to_receive = answer;
        self
    }

    const fn inline(mut self, bytes: u32) -> Self {
        self.max_inline = Some(bytes);
        self
    }

    const fn credits(mut self, credits: CrossQueueCredits) -> Self {
        self.credits = credits;
        self
    }

    const fn shared_ring(mut self) -> Self {
        self.shared_work_queue = true;
        self.credits(CrossQueueCredits::Race)
    }

    const fn no_connections(mut self) -> Self {
        self.reliable_connections = false;
        self
    }

    const fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }
}

/// The table. The first row that fits wins.
pub const TABLE: &[Quirk] = &[
    row("siw", &[VENDOR_SIW], Parts::Any, IWARP).loops(Yes).sends_rtr(No).inline(80).note(
        "software iWARP; part ids count the devices made, from 1",
    ),
    row("rxe", &[VENDOR_RXE], Parts::List(&[0]), ROCE).loops(Yes).inline(512).note(
        "software RoCE v2; completion queues of at most 32767",
    ),
    row(
        "cxgb3 T3",
        CHELSIO,
        Parts::List(&[0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x30, 0x31, 0x32, 0x35, 0x36]),
        IWARP,
    )
    .shared_ring()
    .loops(No)
    .inline(64)
    .note("rdma_connect to its own address gives ENOSYS; RTR only with its module option peer2peer"),
    row("cxgb4 T4/T5/T6", CHELSIO, Parts::Range(0x4400, 0x6fff), IWARP)
        .credits(CrossQueueCredits::Unproven)
        .loops(Yes)
        .sends_rtr(Yes)
        .inline(280)
        .note("loopback since Linux 3.15"),
    row("cxgb4 T4/T5, samples", CHELSIO, Parts::List(&[0xa000, 0xb000, 0xb001]), IWARP)
        .credits(CrossQueueCredits::Unproven)
        .loops(Yes)
        .sends_rtr(Yes)
        .inline(280),
    row("nes NE020", &[0x1678, 0x1255, 0x1b21], Parts::List(&[0x100, 0x110]), IWARP)
        .sends_rtr(Yes)
        .inline(64)
        .note("said to loop back by its own address; never tested"),
    row("i40iw/irdma X722", INTEL, Parts::Range(0x3700, 0x37ff), IWARP)
        .sends_rtr(Yes)
        .inline(48)
        .note("late requests on a failed QP are not flushed; its driver has a loopback path that nobody has tried"),
    row("irdma E810", INTEL, Parts::Range(0x1591, 0x159b), ROCE_IWARP)
        .sends_rtr(Yes)
        .inline(101)
        .note("transport by configuration; its driver has a loopback path that nobody has tried on iWARP"),
    row("Xeon Phi", INTEL, Parts::List(&[0]), IB).note("Open MPI ignores it"),
    row("NetXen", &[0x4040], Parts::List(&[1, 2, 3, 4, 5, 0x24, 0x25, 0x100]), IWARP).inline(64),
    row("qedr QL4xxxx", &[0x1077], Parts::Range(0x8070, 0x8191), ROCE_IWARP)
        .sends_rtr(Yes)
        .inline(256)
        .note("transport by configuration; reports RNR NAK on iWARP too"),
    row("InfiniPath", &[0x1fc1, 0x1077, 0x1175], Parts::List(&[13, 16, 29216, 29474]), IB)
        .loops(Yes)
        .inline(0),
    row("hfi1 Omni-Path", &[0x1175], Parts::List(&[9456, 9457]), IB).loops(Yes).inline(0),
    row("ocrdma", &[0x10df], Parts::List(&[0xe220, 0x720, 0x728]), ROCE).loops(Yes),
    row("bnxt_re", &[0x14e4], Parts::Any, ROCE).loops(Yes).inline(96),
    row("mthca", MELLANOX, Parts::List(&[23108, 25208, 25218, 25204, 24204]), IB)
        .loops(Yes)
        .inline(128),
    row(
        "mlx4",
        MELLANOX,
        Parts::List(&[
            4099, 4100, 4103, 25408, 25418, 25428, 25448, 26418, 26428, 26438, 26448, 26468, 26478,
            26488,
        ]),
        IB_ROCE,
    )
    .loops(Yes),
    row("mlx5", MELLANOX, Parts::Any, IB_ROCE).loops(Yes),
    row("ehca", &[0x5076], Parts::List(&[0, 1]), IB)
        .credits(CrossQueueCredits::Claimed)
        .loops(Yes)
        .inline(0)
        .note("a receive posted on one QP is said to trail a send on another"),
    row("efa", &[0x1d0f], Parts::Any, &[Transport::Other(5)])
        .no_connections()
        .note("no RC, no rdma_cm"),
    row("erdma", &[0x1ded], Parts::Any, IWARP)
        .sends_rtr(No)
        .inline(96)
        .note("speaks only to itself (MPA revision 129)"),
    row("mana", &[0x1414], Parts::Any, ROCE).note("RC is new there"),
    row("hns", &[0x19e5], Parts::Any, ROCE).loops(Yes),
    row("usnic", &[0x1137], Parts::Any, &[Transport::Other(3)])
        .no_connections()
        .note("no RC, no rdma_cm"),
    row("ionic", &[0x1dd8], Parts::Any, ROCE).note("Linux 6.18 and later"),
];
