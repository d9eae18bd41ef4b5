//! Whether a device can connect to its own address, who says so, and why.
//!
//! No query of verbs tells. An answer starts with the quirk table or a rule of the transport, and better ones replace it:
//! a trial connection, and above all what the user says.

#![forbid(unsafe_code)]

use crate::caps::Transport;
use crate::quirks::{Answer, Quirk};
use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Where a statement about loopback comes from, the weakest first: a later one replaces an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LoopbackSource {
    /// A rule of the transport: InfiniBand requires loopback, RoCE devices have it.
    Rule,
    /// The quirk table.
    Table,
    /// A live connection of the device to itself.
    Probe,
    /// A file, an environment variable or an argument of the user.
    Override,
}

impl fmt::Display for LoopbackSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoopbackSource::Rule => "rule of the transport",
            LoopbackSource::Table => "quirk table",
            LoopbackSource::Probe => "trial connection",
            LoopbackSource::Override => "override",
        })
    }
}

/// Whether a device can connect to its own address.
///
/// It is never about 127/8, ::1 or a wildcard: those work on no transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoopbackSupport {
    /// It can.
    Yes(LoopbackSource),
    /// It cannot.
    No(LoopbackSource),
    /// Not known before a probe.
    Unknown,
}

impl LoopbackSupport {
    /// True only for a definite yes.
    pub fn is_yes(self) -> bool {
        matches!(self, LoopbackSupport::Yes(_))
    }

    /// True only for a definite no.
    pub fn is_no(self) -> bool {
        matches!(self, LoopbackSupport::No(_))
    }

    /// Where the answer comes from; `None` for `Unknown`.
    pub fn source(self) -> Option<LoopbackSource> {
        match self {
            LoopbackSupport::Yes(s) | LoopbackSupport::No(s) => Some(s),
            LoopbackSupport::Unknown => None,
        }
    }
}

/// `yes`, `no` or `unknown`; the source is told by [`LoopbackSupport::source`].
impl fmt::Display for LoopbackSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoopbackSupport::Yes(_) => "yes",
            LoopbackSupport::No(_) => "no",
            LoopbackSupport::Unknown => "unknown",
        })
    }
}

/// The answer of one context, shared by its clones. Never on the message path, so a lock will do.
pub(crate) struct Refinable(Mutex<(LoopbackSupport, Cow<'static, str>)>);

impl Refinable {
    /// What is known without a trial.
    pub(crate) fn new(quirk: Option<&Quirk>, transport: Transport) -> Refinable {
        Refinable(Mutex::new(initial(quirk, transport)))
    }

    pub(crate) fn support(&self) -> LoopbackSupport {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn reason(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone().into_owned()
    }

    /// Takes an answer whose source is at least as good as the present one's.
    pub(crate) fn refine(&self, answer: LoopbackSupport, reason: String) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let better = answer.source() >= known.0.source();
        if better {
            *known = (answer, Cow::Owned(reason));
        }
        better
    }
}

fn initial(quirk: Option<&Quirk>, transport: Transport) -> (LoopbackSupport, Cow<'static, str>) {
    use LoopbackSource::{Rule, Table};
    match (quirk.map(|q| (q.loopback, q.name)), transport) {
        (Some((Answer::Yes, name)), _) => {
            (LoopbackSupport::Yes(Table), format!("{name} is known to connect to itself").into())
        }
        (Some((Answer::No, name)), _) => {
            (LoopbackSupport::No(Table), format!("{name} is known not to").into())
        }
        (_, Transport::Ib) => (
            LoopbackSupport::Yes(Rule),
            "InfiniBand requires an adapter to loop back (IBTA 17.3.1)".into(),
        ),
        (_, Transport::Roce) => {
            (LoopbackSupport::Yes(Rule), "no RoCE device is known that cannot".into())
        }
        (Some((Answer::Unknown, name)), _) => {
            (LoopbackSupport::Unknown, format!("nobody has tried {name}; a trial tells").into())
        }
        (None, _) => {
            (LoopbackSupport::Unknown, "the quirk table has no such device; a trial tells".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quirks::{VENDOR_SIW, find};

    fn support(vendor: u32, part: u32, transport: Transport) -> LoopbackSupport {
        Refinable::new(find(vendor, part), transport).support()
    }

    #[test]
    fn loopback_from_table_rule_or_nowhere() {
        use LoopbackSource::{Rule, Table};
        let (iwarp, roce) = (Transport::Iwarp, Transport::Roce);
        assert_eq!(support(0x1425, 0x30, iwarp), LoopbackSupport::No(Table));
        assert_eq!(support(0x8086, 0x1592, roce), LoopbackSupport::Yes(Rule));
        assert_eq!(support(0x8086, 0x1592, iwarp), LoopbackSupport::Unknown);
        assert_eq!(support(0xdead, 1, iwarp), LoopbackSupport::Unknown);
        assert_eq!(support(0xdead, 1, Transport::Ib), LoopbackSupport::Yes(Rule));
        assert_eq!(support(VENDOR_SIW, 1, iwarp), LoopbackSupport::Yes(Table));
    }

    #[test]
    fn a_better_source_replaces_a_weaker_one_and_never_the_other_way_round() {
        use LoopbackSource::{Override, Probe, Rule, Table};
        let known = Refinable::new(find(VENDOR_SIW, 1), Transport::Iwarp);
        assert!(known.reason().contains("siw"));
        assert!(!known.refine(LoopbackSupport::No(Rule), "a guess".into()));
        assert!(!known.refine(LoopbackSupport::Unknown, "forgotten".into()));
        assert_eq!(known.support(), LoopbackSupport::Yes(Table));
        assert!(known.refine(LoopbackSupport::No(Probe), "timed out".into()));
        assert!(known.refine(LoopbackSupport::Yes(Probe), "tried again".into()));
        assert!(known.refine(LoopbackSupport::No(Override), "the user".into()));
        assert!(!known.refine(LoopbackSupport::Yes(Probe), "tried once more".into()));
        assert_eq!((known.support().is_no(), known.reason().as_str()), (true, "the user"));
    }

    #[test]
    fn every_answer_has_a_reason() {
        for transport in [Transport::Ib, Transport::Roce, Transport::Iwarp, Transport::Other(3)] {
            for quirk in crate::quirks::TABLE.iter().map(Some).chain([None]) {
                let (answer, reason) = initial(quirk, transport);
                assert!(!reason.is_empty(), "{answer:?} of {quirk:?}");
            }
        }
    }
}
