//! The one table of what devices do that no query tells.
//!
//! Sources: kernel and rdma-core sources, RFC 5040/5041/5044, Open MPI's device parameter file, and measurements on
//! siw and rxe. A device that is not listed gets its transport's rules and [`LoopbackSupport::Unknown`] on iWARP.

#![forbid(unsafe_code)]

use crate::caps::{Caps, LoopbackSource, LoopbackSupport, Transport};

/// Three-valued answer of a table row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Documented or measured to work.
    Yes,
    /// Documented or measured not to work.
    No,
    /// Nobody knows.
    Unknown,
}

/// Which part ids of a vendor a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parts {
    /// Every part of the vendor that no earlier row names.
    Any,
    /// Exactly these.
    List(&'static [u32]),
    /// From the first to the second, both included.
    Range(u32, u32),
}

impl Parts {
    fn contains(self, part: u32) -> bool {
        match self {
            Parts::Any => true,
            Parts::List(l) => l.contains(&part),
            Parts::Range(lo, hi) => (lo..=hi).contains(&part),
        }
    }
}

/// One family of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quirk {
    /// Kernel driver and product, for messages.
    pub name: &'static str,
    /// `ibv_device_attr.vendor_id` (a PCI vendor or an IEEE OUI).
    pub vendors: &'static [u32],
    /// `ibv_device_attr.vendor_part_id`.
    pub parts: Parts,
    /// The transports the family can speak; what a port speaks is asked at run time.
    pub transports: &'static [Transport],
    /// Send and receive requests share one ring.
    pub shared_work_queue: bool,
    /// A connection from the device to its own address. [`Answer::Unknown`] on iWARP where nobody has tried it and the
    /// driver's source only suggests it.
    pub loopback: Answer,
    /// RDMA reliable connections exist at all; without them nothing in this crate works.
    pub reliable_connections: bool,
    /// What else is to be known.
    pub note: &'static str,
}

const IB: &[Transport] = &[Transport::Ib];
const ROCE: &[Transport] = &[Transport::Roce];
const IWARP: &[Transport] = &[Transport::Iwarp];
const IB_ROCE: &[Transport] = &[Transport::Ib, Transport::Roce];
const ROCE_IWARP: &[Transport] = &[Transport::Roce, Transport::Iwarp];
const MELLANOX: &[u32] = &[0x02c9, 0x05ad, 0x066a, 0x08f1, 0x1708, 0x03ba, 0x15b3, 0x119f];

/// Vendor id of siw (the letters "bmt").
pub const VENDOR_SIW: u32 = 0x62_6d74;
/// Vendor id of rxe.
pub const VENDOR_RXE: u32 = 0xff_ffff;

const fn row(
    name: &'static str,
    vendors: &'static [u32],
    parts: Parts,
    transports: &'static [Transport],
    loopback: Answer,
    note: &'static str,
) -> Quirk {
    Quirk {
        name,
        vendors,
        parts,
        transports,
        shared_work_queue: false,
        loopback,
        reliable_connections: true,
        note,
    }
}

/// The table. The first row that fits wins.
pub const TABLE: &[Quirk] = &[
    row(
        "siw",
        &[VENDOR_SIW],
        Parts::Any,
        IWARP,
        Answer::Yes,
        "software iWARP; no RTR message, so the initiator's first send is ours to make",
    ),
    row(
        "rxe",
        &[VENDOR_RXE],
        Parts::List(&[0]),
        ROCE,
        Answer::Yes,
        "software RoCE v2; CQ depth at most 32767",
    ),
    Quirk {
        shared_work_queue: true,
        ..row(
            "cxgb3 T3",
            &[0x1425],
            Parts::List(&[0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x30, 0x31, 0x32, 0x35, 0x36]),
            IWARP,
            Answer::No,
            "rdma_connect to its own address gives ENOSYS; receives queue behind sends in one ring",
        )
    },
    row(
        "cxgb4 T4/T5/T6",
        &[0x1425],
        Parts::Range(0x4400, 0x6fff),
        IWARP,
        Answer::Yes,
        "loopback since Linux 3.15",
    ),
    row(
        "nes NE020",
        &[0x1678, 0x1255, 0x1b21],
        Parts::List(&[0x100, 0x110]),
        IWARP,
        Answer::Unknown,
        "said to loop back by its own address; never tested",
    ),
    row(
        "i40iw/irdma X722",
        &[0x8086],
        Parts::Range(0x3700, 0x37ff),
        IWARP,
        Answer::Unknown,
        "late requests on a failed QP are not flushed",
    ),
    row(
        "irdma E810",
        &[0x8086],
        Parts::Range(0x1591, 0x159b),
        ROCE_IWARP,
        Answer::Unknown,
        "transport by configuration",
    ),
    row(
        "qedr QL4xxxx",
        &[0x1077],
        Parts::Range(0x8070, 0x8191),
        ROCE_IWARP,
        Answer::Unknown,
        "transport by configuration",
    ),
    row("ocrdma", &[0x10df], Parts::List(&[0xe220, 0x720, 0x728]), ROCE, Answer::Yes, ""),
    row("bnxt_re", &[0x14e4], Parts::Any, ROCE, Answer::Yes, ""),
    row("mthca", MELLANOX, Parts::List(&[23108, 25208, 25218, 25204]), IB, Answer::Yes, ""),
    row(
        "mlx4",
        MELLANOX,
        Parts::List(&[
            4099, 4100, 4103, 25408, 25418, 25428, 25448, 26418, 26428, 26438, 26448, 26468, 26478,
            26488,
        ]),
        IB_ROCE,
        Answer::Yes,
        "",
    ),
    row("mlx5", MELLANOX, Parts::Any, IB_ROCE, Answer::Yes, ""),
    row(
        "ehca",
        &[0x5076],
        Parts::List(&[0, 1]),
        IB,
        Answer::Yes,
        "a receive posted on one QP may trail a send on another",
    ),
    Quirk {
        reliable_connections: false,
        ..row(
            "efa",
            &[0x1d0f],
            Parts::Any,
            &[Transport::Other(5)],
            Answer::Unknown,
            "no RC, no rdma_cm",
        )
    },
    row(
        "erdma",
        &[0x1ded],
        Parts::Any,
        IWARP,
        Answer::Unknown,
        "no RTR message; speaks only to itself (MPA revision 129)",
    ),
    row("mana", &[0x1414], Parts::Any, ROCE, Answer::Unknown, ""),
    row("hns", &[0x19e5], Parts::Any, ROCE, Answer::Yes, ""),
    Quirk {
        reliable_connections: false,
        ..row(
            "usnic",
            &[0x1137],
            Parts::Any,
            &[Transport::Other(3)],
            Answer::Unknown,
            "no RC, no rdma_cm",
        )
    },
    row("ionic", &[0x1dd8], Parts::Any, ROCE, Answer::Unknown, ""),
];

/// The row for a device, if it is known.
pub fn find(vendor: u32, part: u32) -> Option<&'static Quirk> {
    TABLE.iter().find(|q| q.vendors.contains(&vendor) && q.parts.contains(part))
}

/// What is known about loopback before any probe.
pub(crate) fn loopback(quirk: Option<&Quirk>, transport: Transport) -> LoopbackSupport {
    match (quirk.map(|q| q.loopback), transport) {
        (Some(Answer::Yes), _) => LoopbackSupport::Yes(LoopbackSource::Table),
        (Some(Answer::No), _) => LoopbackSupport::No(LoopbackSource::Table),
        (_, Transport::Ib | Transport::Roce) => LoopbackSupport::Yes(LoopbackSource::Rule),
        _ => LoopbackSupport::Unknown,
    }
}

/// Facts of a device's query that become capability flags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queried {
    pub(crate) rnr_nak: bool,
    pub(crate) atomics: bool,
    pub(crate) srq: bool,
    pub(crate) memory_windows: bool,
}

/// Every flag but [`Caps::LOOPBACK`], which can be refined at run time.
pub(crate) fn caps(vendor: u32, part: u32, transport: Transport, queried: Queried) -> Caps {
    let iwarp = transport.is_iwarp();
    let siw = vendor == VENDOR_SIW;
    let mut caps = Caps::empty();
    // qedr reports RNR NAK in both modes; no iWARP has it (RFC 5041 7.1 knows no such message).
    caps.set(Caps::RNR_NAK, queried.rnr_nak && !iwarp);
    caps.set(Caps::ATOMICS, queried.atomics);
    caps.set(Caps::IMM, !iwarp);
    caps.set(Caps::SRQ, queried.srq);
    caps.set(Caps::MEMORY_WINDOWS, queried.memory_windows);
    // A driver may send an RTR of its own, but no verbs call tells whether it did: the rule always holds.
    caps.set(Caps::INITIATOR_FIRST, iwarp);
    caps.set(Caps::SHARED_WORK_QUEUE, find(vendor, part).is_some_and(|q| q.shared_work_queue));
    caps.set(Caps::READ_SINK_REMOTE_WRITE, iwarp);
    let siw_only = Caps::SIGNAL_LARGE_SENDS | Caps::INLINE_SMALL_SENDS | Caps::NUDGE_AFTER_ACCEPT;
    caps.set(siw_only, siw);
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Queried = Queried { rnr_nak: true, atomics: true, srq: true, memory_windows: true };

    #[test]
    fn soft_devices_are_known() {
        assert_eq!(find(VENDOR_SIW, 7).map(|q| q.name), Some("siw"));
        assert_eq!(find(VENDOR_RXE, 0).map(|q| q.name), Some("rxe"));
        assert_eq!(find(0xdead, 0), None);
    }

    #[test]
    fn parts_tell_siblings_apart() {
        assert_eq!(find(0x1425, 0x30).map(|q| q.name), Some("cxgb3 T3"));
        assert_eq!(find(0x1425, 0x5410).map(|q| q.name), Some("cxgb4 T4/T5/T6"));
        assert_eq!(find(0x02c9, 4123).map(|q| q.name), Some("mlx5"));
        assert_eq!(find(0x02c9, 4099).map(|q| q.name), Some("mlx4"));
    }

    #[test]
    fn iwarp_never_promises_what_it_lacks() {
        let c = caps(VENDOR_SIW, 1, Transport::Iwarp, ALL);
        assert!(!c.intersects(Caps::RNR_NAK | Caps::IMM));
        assert!(c.contains(
            Caps::INITIATOR_FIRST | Caps::SIGNAL_LARGE_SENDS | Caps::READ_SINK_REMOTE_WRITE
        ));
        let c = caps(0x1425, 0x30, Transport::Iwarp, ALL);
        assert!(c.contains(Caps::SHARED_WORK_QUEUE));
    }

    #[test]
    fn loopback_from_table_rule_or_nowhere() {
        assert_eq!(
            loopback(find(0x1425, 0x30), Transport::Iwarp),
            LoopbackSupport::No(LoopbackSource::Table)
        );
        assert_eq!(
            loopback(find(0x8086, 0x1592), Transport::Roce),
            LoopbackSupport::Yes(LoopbackSource::Rule)
        );
        assert_eq!(loopback(find(0x8086, 0x1592), Transport::Iwarp), LoopbackSupport::Unknown);
        assert_eq!(loopback(None, Transport::Iwarp), LoopbackSupport::Unknown);
        assert_eq!(
            loopback(find(VENDOR_SIW, 1), Transport::Iwarp),
            LoopbackSupport::Yes(LoopbackSource::Table)
        );
    }

    /// A row that an earlier one hides can never be found.
    #[test]
    fn no_row_is_shadowed() {
        for (i, q) in TABLE.iter().enumerate() {
            let part = match q.parts {
                Parts::Any => 0x7777_7777,
                Parts::List(l) => l[0],
                Parts::Range(lo, _) => lo,
            };
            for v in q.vendors {
                assert_eq!(find(*v, part).map(|f| f.name), Some(q.name), "row {i}");
            }
        }
    }
}
