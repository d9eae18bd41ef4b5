//! The component's MCA parameters, checked.
//!
//! Names are those of openib where the meaning is equal; the ones every BTL has (`eager_limit`, `max_send_size`,
//! `exclusivity`, …) are registered by Open MPI itself. All of this is plain Rust: `register.rs` carries the list of
//! `params/table.rs` to Open MPI and brings the values back as a [`Raw`].

mod limits;
mod ports;
mod table;

use crate::driver::How;
use crate::queues::{self, MIN_SLOTS, Queue, QueueError, SendSide};
use btl_core::params::CreditRoute;
use btl_core::{Config, Nanos, ProcName};
use std::fmt;
use std::str::FromStr;

pub(crate) use limits::Limits;
pub(crate) use ports::{Carriers, Net, PortName, Wanted};
pub(crate) use table::{B, N, NUMBERS, QUEUES, SWITCHES, T, TEXTS};

/// Lanes of processes that Open MPI has not announced. It announces a process when this one sends to
/// it: to a process that only receives, a whole job is unannounced.
const MAX_UNKNOWN: u32 = 1 << 17;

/// The values as Open MPI gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    /// In the order of [`N`].
    pub(crate) numbers: [i32; NUMBERS.len()],
    /// In the order of [`B`].
    pub(crate) switches: [bool; SWITCHES.len()],
    /// In the order of [`T`].
    pub(crate) texts: [String; TEXTS.len()],
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            numbers: NUMBERS.each_ref().map(|n| n.default),
            switches: SWITCHES.each_ref().map(|s| s.default),
            texts: TEXTS.each_ref().map(|t| t.default.trim_end_matches('\0').to_owned()),
        }
    }
}

/// Why the parameters cannot be used; the text names the parameter, its value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParamError {
    /// A number outside its range.
    Range {
        /// Which.
        name: &'static str,
        /// Its value.
        value: i64,
        /// Smallest allowed.
        min: i64,
        /// Largest allowed.
        max: i64,
        /// Where the limit comes from, or empty.
        why: &'static str,
    },
    /// Something that is no number at all.
    Type {
        /// Which.
        name: &'static str,
        /// What was written.
        value: String,
    },
    /// An entry of a list, or a word, that is none of those allowed.
    Entry {
        /// Which parameter.
        name: &'static str,
        /// The entry.
        entry: String,
        /// What it should be.
        is_not: &'static str,
    },
    /// Two lists that exclude each other.
    BothLists {
        /// What of (`if`, `ipaddr`).
        of: &'static str,
    },
    /// The lanes.
    Queues(QueueError),
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { name, value, min, max, why } => {
                write!(
                    f,
                    "btl_verbs_{name} = {value} is out of range: {min}..{max} is allowed{why}"
                )
            }
            Self::Type { name, value } => {
                write!(f, "btl_verbs_{name} = \"{value}\" is not a number")
            }
            Self::Entry { name, entry, is_not } => {
                write!(f, "btl_verbs_{name}: \"{entry}\" is {is_not}")
            }
            Self::BothLists { of } => write!(
                f,
                "btl_verbs_{of}_include and btl_verbs_{of}_exclude exclude each other: give one"
            ),
            Self::Queues(why) => write!(f, "btl_verbs_receive_queues: {why}"),
        }
    }
}

impl std::error::Error for ParamError {}

/// The checked parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// Which ports are wanted.
    pub(crate) ports: Wanted<PortName>,
    /// Which addresses are wanted.
    pub(crate) nets: Wanted<Net>,
    /// Which transports are wanted.
    pub(crate) carriers: Carriers,
    /// Whether an entry that fits nothing is told.
    pub(crate) warn_nonexistent: bool,
    /// Whether a device in no file is told.
    pub(crate) warn_no_params: bool,
    /// Whether peers in other networks are reached.
    pub(crate) any_subnet: bool,
    /// Ports at most; `usize::MAX` for all.
    pub(crate) max_btls: usize,
    /// The lanes, if the user said which.
    pub(crate) queues: Option<Vec<Queue>>,
    /// Their send side.
    pub(crate) send: SendSide,
    /// The lane of credits, if the user said which.
    pub(crate) credit_route: Option<CreditRoute>,
    /// Whether that is used on devices that are known, or feared, to fail with it.
    pub(crate) force_route: bool,
    /// Ini files, in order.
    pub(crate) files: Vec<String>,
    /// Devices that can, or cannot, connect to themselves.
    pub(crate) loopback: Vec<(String, bool)>,
    /// Reads outstanding towards a peer.
    pub(crate) reads: u8,
    /// Limit of one attempt to connect.
    pub(crate) t_conn: Nanos,
    /// Limit of all attempts together.
    pub(crate) t_give_up: Nanos,
    /// Limit for the first message of an unannounced peer.
    pub(crate) t_first: Nanos,
    /// Limit for closing.
    pub(crate) t_close: Nanos,
    /// Whether a summary is printed.
    pub(crate) report: bool,
    /// What the engine does not know of.
    pub(crate) how: How,
}

impl Raw {
    /// Checks every value.
    ///
    /// # Errors
    /// [`ParamError`] for the first value that is not allowed.
    pub(crate) fn check(&self) -> Result<Params, ParamError> {
        for (number, value) in NUMBERS.iter().zip(self.numbers) {
            let [value, min, max] = [value, number.min, number.max].map(i64::from);
            within(number.name, value, min, max, "")?;
        }
        Ok(Params {
            ports: self.wanted("if", T::IfInclude, T::IfExclude, PORT)?,
            nets: self.wanted("ipaddr", T::IpaddrInclude, T::IpaddrExclude, NET)?,
            carriers: self.carriers()?,
            warn_nonexistent: self.switch(B::WarnNonexistentIf),
            warn_no_params: self.switch(B::WarnNoDeviceParams),
            any_subnet: self.switch(B::AllowDifferentSubnets),
            max_btls: usize::try_from(self.number(N::MaxBtls)).unwrap_or(usize::MAX),
            queues: self.queues()?,
            send: self.send_side()?,
            credit_route: self.credit_route()?,
            force_route: self.switch(B::CreditRouteForce),
            files: self.files(),
            loopback: self.loopback()?,
            reads: u8::try_from(self.number(N::QpOusRdAtom)).unwrap_or(u8::MAX),
            t_conn: self.nanos(N::ConnectTimeout),
            t_give_up: self.nanos(N::GiveUpTimeout),
            t_first: self.nanos(N::FirstTimeout),
            t_close: self.nanos(N::CloseTimeout),
            report: self.number(N::Report) != 0,
            how: self.how(),
        })
    }

    /// A number as given; only meaningful for reporting before [`Raw::check`].
    pub(crate) fn number(&self, which: N) -> i32 {
        self.numbers[which as usize]
    }

    fn switch(&self, which: B) -> bool {
        self.switches[which as usize]
    }

    fn text(&self, which: T) -> &str {
        &self.texts[which as usize]
    }

    /// A time given in milliseconds.
    fn nanos(&self, which: N) -> Nanos {
        Nanos::from(self.number(which).unsigned_abs()) * 1_000_000
    }

    fn how(&self) -> How {
        let small = |which| u8::try_from(self.number(which)).unwrap_or(u8::MAX);
        How {
            cq_depth: self.number(N::CqSize).unsigned_abs(),
            listen_port: u16::try_from(self.number(N::ConnectPort)).unwrap_or(0),
            max_inline: u32::try_from(self.number(N::MaxInlineData)).ok(),
            retry_count: small(N::RetryCount),
            rnr_retry_count: small(N::RnrRetry),
            min_rnr_timer: small(N::MinRnrTimer),
            ack_timeout: small(N::Timeout),
            shared_work_queue: None,
        }
    }

    fn wanted<E: FromStr>(
        &self,
        of: &'static str,
        include: T,
        exclude: T,
        is_not: &'static str,
    ) -> Result<Wanted<E>, ParamError> {
        let (include, exclude) = (self.list(include, is_not)?, self.list(exclude, is_not)?);
        match (include.is_empty(), exclude.is_empty()) {
            (true, true) => Ok(Wanted::All),
            (false, true) => Ok(Wanted::Only(include)),
            (true, false) => Ok(Wanted::Not(exclude)),
            (false, false) => Err(ParamError::BothLists { of }),
        }
    }

    fn list<E: FromStr>(&self, which: T, is_not: &'static str) -> Result<Vec<E>, ParamError> {
        entries(self.text(which))
            .map(|entry| entry.parse().map_err(|_| self.bad_entry(which, entry, is_not)))
            .collect()
    }

    fn bad_entry(&self, which: T, entry: &str, is_not: &'static str) -> ParamError {
        let name = TEXTS[which as usize].name.trim_end_matches('\0');
        ParamError::Entry { name, entry: entry.to_owned(), is_not }
    }

    fn carriers(&self) -> Result<Carriers, ParamError> {
        let is_not = "none of all, ib, infiniband, roce, iw, iwarp";
        let text = self.text(T::DeviceType);
        text.parse().map_err(|word: String| self.bad_entry(T::DeviceType, &word, is_not))
    }

    /// `None` where the default stands: then a device's section may say something else.
    fn queues(&self) -> Result<Option<Vec<Queue>>, ParamError> {
        let text = self.text(T::ReceiveQueues);
        if text == QUEUES.trim_end_matches('\0') {
            return Ok(None);
        }
        queues::parse(text).map(Some).map_err(ParamError::Queues)
    }

    fn send_side(&self) -> Result<SendSide, ParamError> {
        let or_automatic = |which: N, min: u32| {
            let (number, value) = (&NUMBERS[which as usize], self.number(which));
            if value == 0 {
                return Ok(0);
            }
            let why = " (or 0 for automatic)";
            let [value, min, max] = [i64::from(value), i64::from(min), i64::from(number.max)];
            within(number.name, value, min, max, why)?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let depth = or_automatic(N::SendDepth, 2)?;
        let slots = or_automatic(N::FreeListMax, MIN_SLOTS)?;
        Ok(SendSide { depth: u16::try_from(depth).unwrap_or(0), slots })
    }

    fn credit_route(&self) -> Result<Option<CreditRoute>, ParamError> {
        match self.text(T::CreditRoute).trim() {
            "" => Ok(None),
            "own" => Ok(Some(CreditRoute::OwnLane)),
            "first" => Ok(Some(CreditRoute::FirstLane)),
            other => Err(self.bad_entry(T::CreditRoute, other, "neither own nor first")),
        }
    }

    fn files(&self) -> Vec<String> {
        let text = self.text(T::DeviceParamFiles);
        text.split(':').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn loopback(&self) -> Result<Vec<(String, bool)>, ParamError> {
        let is_not = "neither DEVICE=yes nor DEVICE=no";
        entries(self.text(T::Loopback))
            .map(|entry| {
                let parts =
                    entry.split_once('=').map(|(name, answer)| (name.trim(), answer.trim()));
                match parts {
                    Some((name, "yes" | "1")) if !name.is_empty() => Ok((name.to_owned(), true)),
                    Some((name, "no" | "0")) if !name.is_empty() => Ok((name.to_owned(), false)),
                    _ => Err(self.bad_entry(T::Loopback, entry, is_not)),
                }
            })
            .collect()
    }
}

const PORT: &str = "neither DEVICE nor DEVICE:PORT with a port of 1..255";
const NET: &str = "no network like 10.1.0.0/16 or fd00::/8";

impl Params {
    /// The engine's settings but for the lanes, which differ between devices. `job`: the key shared by all processes
    /// that may connect to each other.
    pub(crate) fn config(&self, me: ProcName, job: u64) -> Config {
        Config {
            rma_reads: self.reads,
            force_credit_route: self.force_route,
            t_conn: self.t_conn,
            t_give_up: self.t_give_up,
            t_first: self.t_first,
            t_close: self.t_close,
            max_unknown: MAX_UNKNOWN,
            ..Config::new(me, job)
        }
    }
}

/// Open MPI reads a number from the front of a text and takes 0 for what has none. So what stands in the environment,
/// where mpirun puts what it was given, is looked at again. `get`: the environment.
///
/// # Errors
/// [`ParamError::Type`] for the first number that is none.
pub(crate) fn check_types(get: impl Fn(&str) -> Option<String>) -> Result<(), ParamError> {
    for number in &NUMBERS {
        let name = number.name.trim_end_matches('\0');
        match get(&format!("OMPI_MCA_btl_verbs_{name}")) {
            Some(value) if !is_number(value.trim()) => {
                return Err(ParamError::Type { name, value });
            }
            _ => {}
        }
    }
    Ok(())
}

/// As Open MPI reads it: as C's strtoull with base 0, with k, m or g behind it.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let text = text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G']).unwrap_or(text);
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match hex {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// The entries of a list, without empty ones.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

fn within(
    name: &'static str,
    value: i64,
    min: i64,
    max: i64,
    why: &'static str,
) -> Result<(), ParamError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ParamError::Range { name: name.trim_end_matches('\0'), value, min, max, why })
    }
}

#[cfg(test)]
#[path = "params_test.rs"]
mod tests;
