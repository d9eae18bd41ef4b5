//! The one table of what devices do that no query tells.
//!
//! Sources: kernel and rdma-core sources, RFC 5040/5041/5044, Open MPI's device parameter file, and measurements on
//! siw and rxe. A device that is not listed gets its transport's rules and [`LoopbackSupport::Unknown`](crate::LoopbackSupport) on iWARP.

#![forbid(unsafe_code)]

mod table;

pub use table::TABLE;

use crate::caps::{Caps, Transport};

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

/// How a credit fares that is told over another queue pair than the one whose receive it stands for.
///
/// Nothing in RFC 5040, RFC 5041 or IBTA orders a receive posted on one queue pair against a message on another, so the
/// **default route of a credit is its own queue pair, on every device**. This column says how bad the other route is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CrossQueueCredits {
    /// Sure to lose: the receive waits behind sends in its ring, and the peer's data overtakes it. Never to be used.
    Race,
    /// Its users say that it loses.
    Claimed,
    /// Its rings are separate, and nothing says that it cannot lose.
    Unproven,
    /// No loss is known.
    NotSeen,
}

/// One family of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// What becomes of a credit told over another queue pair.
    pub credits: CrossQueueCredits,
    /// iWARP: the driver can send a ready-to-receive frame of its own when it connects (RFC 6581), as its default. No call
    /// tells whether it did, so the initiator sends first whatever this says ([`Caps::INITIATOR_FIRST`]); with
    /// [`Answer::No`] nothing else keeps the rule.
    pub ready_to_receive: Answer,
    /// A connection from the device to its own address. [`Answer::Unknown`] on iWARP where nobody has tried it and the
    /// driver's source only suggests it.
    pub loopback: Answer,
    /// The largest inline send in bytes, where the driver or Open MPI's parameter file states one; the queue pair that
    /// was made knows better.
    pub max_inline: Option<u32>,
    /// RDMA reliable connections exist at all; without them nothing in this crate works.
    pub reliable_connections: bool,
    /// What else is to be known.
    pub note: &'static str,
}

/// Vendor id of siw (the letters "bmt").
pub const VENDOR_SIW: u32 = 0x62_6d74;
/// Vendor id of rxe.
pub const VENDOR_RXE: u32 = 0xff_ffff;

/// The row for a device, if it is known.
pub fn find(vendor: u32, part: u32) -> Option<&'static Quirk> {
    TABLE.iter().find(|q| q.vendors.contains(&vendor) && q.parts.contains(part))
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
    caps.set(Caps::REMOTE_COMPLETION | Caps::FAST_READS, !iwarp);
    let siw_only = Caps::SIGNAL_LARGE_SENDS | Caps::INLINE_SMALL_SENDS | Caps::NUDGE_AFTER_ACCEPT;
    caps.set(siw_only, siw);
    // siw_reg_user_mr does not use the address.
    caps.set(Caps::IOVA, !siw);
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
        assert!(!c.intersects(Caps::RNR_NAK | Caps::IMM | Caps::REMOTE_COMPLETION));
        assert!(c.contains(
            Caps::INITIATOR_FIRST | Caps::SIGNAL_LARGE_SENDS | Caps::READ_SINK_REMOTE_WRITE
        ));
        let c = caps(0x1425, 0x30, Transport::Iwarp, ALL);
        assert!(c.contains(Caps::SHARED_WORK_QUEUE));
    }

    /// Every card of Open MPI's mca-btl-openib-device-params.ini has its row. (Soft iWARP is there with part 0, which the
    /// driver never uses.)
    #[test]
    fn the_cards_that_open_mpi_lists_have_a_row() {
        for (vendor, part, name) in [
            (0x2c9, 23108, "mthca"),
            (0x2c9, 24204, "mthca"),
            (0x15b3, 25218, "mthca"),
            (0x119f, 26428, "mlx4"),
            (0x2c9, 4113, "mlx5"),
            (0x2c9, 4123, "mlx5"),
            (0x5076, 0, "ehca"),
            (0x5076, 1, "ehca"),
            (0x1fc1, 13, "InfiniPath"),
            (0x1077, 29216, "InfiniPath"),
            (0x1175, 29474, "InfiniPath"),
            (0x1175, 9457, "hfi1 Omni-Path"),
            (0x1077, 32880, "qedr QL4xxxx"),
            (0x1425, 0x36, "cxgb3 T3"),
            (0x1425, 0xa000, "cxgb4 T4/T5, samples"),
            (0x1425, 0x4481, "cxgb4 T4/T5/T6"),
            (0x1425, 0xb001, "cxgb4 T4/T5, samples"),
            (0x1425, 0x5413, "cxgb4 T4/T5/T6"),
            (0x1425, 0x6415, "cxgb4 T4/T5/T6"),
            (0x4040, 0x100, "NetXen"),
            (0x1b21, 0x110, "nes NE020"),
            (0x8086, 0, "Xeon Phi"),
            (0x62_6d74, 0, "siw"),
            (0x14e4, 0x1605, "bnxt_re"),
            (0x14e4, 0xd804, "bnxt_re"),
        ] {
            assert_eq!(find(vendor, part).map(|q| q.name), Some(name), "{vendor:#x}:{part}");
        }
    }

    /// One ring for both queues is the reason for the race, and the soft devices have neither.
    #[test]
    fn a_shared_ring_races() {
        for q in TABLE {
            assert_eq!(q.shared_work_queue, q.credits == CrossQueueCredits::Race, "{}", q.name);
        }
        for vendor in [VENDOR_SIW, VENDOR_RXE] {
            assert_eq!(find(vendor, 0).map(|q| q.credits), Some(CrossQueueCredits::NotSeen));
        }
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
