//! The component's MCA parameters: names, defaults, help texts and allowed ranges.
//!
//! Names are those of openib where the meaning is equal (`if_include`, `if_exclude`, `max_btls`);
//! the ones every BTL has (`eager_limit`, `max_send_size`, `exclusivity`, …) are registered by Open
//! MPI itself. This file is plain Rust: `register.rs` carries [`NUMBERS`] and [`STRINGS`] to Open
//! MPI and brings the values back as a [`Raw`].

use crate::driver::How;
use btl_core::{Config, LaneConfig, Nanos, ProcName};
use std::fmt;
use std::str::FromStr;

/// A numeric parameter.
pub(crate) struct Number {
    /// Name without the prefix `btl_verbs_`, ending in NUL for C.
    pub(crate) name: &'static str,
    /// What `ompi_info` prints, ending in NUL for C.
    pub(crate) help: &'static str,
    /// Value when the user says nothing.
    pub(crate) default: i32,
    /// Smallest value allowed.
    pub(crate) min: i32,
    /// Largest value allowed.
    pub(crate) max: i32,
}

/// A text parameter; all default to the empty string.
pub(crate) struct Text {
    /// Name without the prefix `btl_verbs_`, ending in NUL for C.
    pub(crate) name: &'static str,
    /// What `ompi_info` prints, ending in NUL for C.
    pub(crate) help: &'static str,
}

/// Indices into [`NUMBERS`].
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum N {
    /// Number of modules at most.
    MaxBtls,
    /// Buffer bytes of lane 0.
    Lane0Size,
    /// Receives of lane 0.
    Lane0Depth,
    /// Sends of lane 0.
    Lane0SendDepth,
    /// Send buffers of lane 0.
    Lane0SendSlots,
    /// Buffer bytes of lane 1.
    Lane1Size,
    /// Receives of lane 1.
    Lane1Depth,
    /// Sends of lane 1.
    Lane1SendDepth,
    /// Send buffers of lane 1.
    Lane1SendSlots,
    /// Completions of a queue.
    CqSize,
    /// Time for one attempt to connect.
    ConnectTimeout,
    /// Time for all attempts.
    GiveUpTimeout,
    /// Time for the first message.
    FirstTimeout,
    /// Time for closing.
    CloseTimeout,
    /// How much is told.
    Verbose,
    /// Whether a summary is printed.
    Report,
}

/// Indices into [`STRINGS`].
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum S {
    /// Ports to use.
    IfInclude,
    /// Ports not to use.
    IfExclude,
}

/// Smallest buffer of a lane: ob1's largest header and some payload must fit.
const MIN_BUFFER: i32 = 1024;
/// Largest buffer of a lane.
const MAX_BUFFER: i32 = 16 << 20;
/// Fewest receives of a lane (the credit rule needs this many).
const MIN_DEPTH: i32 = 4;
/// Most receives or sends of a lane.
const MAX_DEPTH: i32 = 4096;
/// Fewest sends of a lane (one place is kept for credits).
const MIN_SENDS: i32 = 2;
/// Fewest send buffers of a class.
const MIN_SLOTS: i32 = 16;
/// Most send buffers of a class.
const MAX_SLOTS: i32 = 65536;

/// Lanes of processes that Open MPI has not announced. It announces a process when this one sends to
/// it: to a process that only receives, a whole job is unannounced.
const MAX_UNKNOWN: u32 = 1 << 17;

/// All numeric parameters, in the order of [`N`].
pub(crate) const NUMBERS: [Number; 16] = [
    Number {
        name: "max_btls\0",
        help: "Maximum number of device ports to use (-1 = all)\0",
        default: -1,
        min: -1,
        max: 255,
    },
    Number {
        name: "lane0_size\0",
        help: "Bytes of a buffer of lane 0, which carries all eager messages, header included \
               (1024..16777216; must be equal in all processes)\0",
        default: 12288,
        min: MIN_BUFFER,
        max: MAX_BUFFER,
    },
    Number {
        name: "lane0_depth\0",
        help: "Receive buffers a process posts on lane 0 for each peer (4..4096; must be equal in all processes)\0",
        default: 16,
        min: MIN_DEPTH,
        max: MAX_DEPTH,
    },
    Number {
        name: "lane0_send_depth\0",
        help: "Sends that can be under way on lane 0 to each peer (2..4096)\0",
        default: 16,
        min: MIN_SENDS,
        max: MAX_DEPTH,
    },
    Number {
        name: "lane0_send_slots\0",
        help: "Send buffers of lane 0, shared by all peers (16..65536)\0",
        default: 512,
        min: MIN_SLOTS,
        max: MAX_SLOTS,
    },
    Number {
        name: "lane1_size\0",
        help: "Bytes of a buffer of lane 1, which carries fragments of large messages, header included \
               (1024..16777216, more than lane0_size; must be equal in all processes)\0",
        default: 65536,
        min: MIN_BUFFER,
        max: MAX_BUFFER,
    },
    Number {
        name: "lane1_depth\0",
        help: "Receive buffers a process posts on lane 1 for each peer (4..4096; must be equal in all processes)\0",
        default: 4,
        min: MIN_DEPTH,
        max: MAX_DEPTH,
    },
    Number {
        name: "lane1_send_depth\0",
        help: "Sends that can be under way on lane 1 to each peer (2..4096)\0",
        default: 8,
        min: MIN_SENDS,
        max: MAX_DEPTH,
    },
    Number {
        name: "lane1_send_slots\0",
        help: "Send buffers of lane 1, shared by all peers (16..65536)\0",
        default: 64,
        min: MIN_SLOTS,
        max: MAX_SLOTS,
    },
    Number {
        name: "cq_size\0",
        help: "Completions of one completion queue at most; more queues are made as peers come (256..4194304)\0",
        default: 16_384,
        min: 256,
        max: 4_194_304,
    },
    Number {
        name: "connect_timeout\0",
        help: "Milliseconds one attempt to connect may take before the next address is tried (100..600000)\0",
        default: 60_000,
        min: 100,
        max: 600_000,
    },
    Number {
        name: "give_up_timeout\0",
        help: "Milliseconds after which a peer that could not be connected has failed (100..86400000)\0",
        default: 300_000,
        min: 100,
        max: 86_400_000,
    },
    Number {
        name: "first_timeout\0",
        help: "Milliseconds a peer that connected without being announced may take for its first message \
               (100..600000)\0",
        default: 30_000,
        min: 100,
        max: 600_000,
    },
    Number {
        name: "close_timeout\0",
        help: "Milliseconds MPI_Finalize waits at most for connections to close in order (1..60000)\0",
        default: 5_000,
        min: 1,
        max: 60_000,
    },
    Number {
        name: "verbose\0",
        help: "How much the component tells on stderr: 0 errors, 1 why a device or peer is not used, \
               10 life of the component, 20 connections; btl_base_verbose counts too (0..100)\0",
        default: 0,
        min: 0,
        max: 100,
    },
    Number {
        name: "report\0",
        help: "1: every process prints at MPI_Finalize which device carried its messages (0..1)\0",
        default: 0,
        min: 0,
        max: 1,
    },
];

/// All text parameters, in the order of [`S`].
pub(crate) const STRINGS: [Text; 2] = [
    Text {
        name: "if_include\0",
        help: "Comma-separated devices or device ports to use, e.g. \"siw0,mlx5_0:1\"; empty means all. \
               Excludes if_exclude\0",
    },
    Text {
        name: "if_exclude\0",
        help: "Comma-separated devices or device ports not to use, e.g. \"rxe0,mlx5_0:2\". Excludes if_include\0",
    },
];

/// The values as Open MPI gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raw {
    /// In the order of [`N`].
    pub(crate) numbers: [i32; NUMBERS.len()],
    /// In the order of [`S`].
    pub(crate) strings: [String; STRINGS.len()],
}

impl Default for Raw {
    fn default() -> Self {
        Self { numbers: NUMBERS.each_ref().map(|n| n.default), strings: Default::default() }
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
    /// An entry of a list of devices that is no `device` or `device:port`.
    Device {
        /// Which parameter.
        name: &'static str,
        /// The entry.
        entry: String,
    },
    /// Both lists are given.
    BothLists,
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
            Self::Device { name, entry } => {
                write!(
                    f,
                    "btl_verbs_{name}: \"{entry}\" is neither DEVICE nor DEVICE:PORT with a port of 1..255"
                )
            }
            Self::BothLists => f.write_str(
                "btl_verbs_if_include and btl_verbs_if_exclude exclude each other: give one",
            ),
        }
    }
}

impl std::error::Error for ParamError {}

/// A device, or one port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortName {
    /// Name of the verbs device.
    pub(crate) device: String,
    /// Port number from 1; `None` means every port.
    pub(crate) port: Option<u8>,
}

impl PortName {
    /// Whether it means this port (or every port of its device).
    pub(crate) fn covers(&self, port: &Self) -> bool {
        self.device == port.device && (self.port.is_none() || self.port == port.port)
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.device),
            None => f.write_str(&self.device),
        }
    }
}

impl FromStr for PortName {
    type Err = ();

    fn from_str(entry: &str) -> Result<Self, ()> {
        let (device, port) = match entry.split_once(':') {
            Some((device, port)) => {
                (device, Some(port.parse::<u8>().ok().filter(|p| *p > 0).ok_or(())?))
            }
            None => (entry, None),
        };
        if device.is_empty() { Err(()) } else { Ok(Self { device: device.to_owned(), port }) }
    }
}

/// Which ports are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Every port.
    All,
    /// These only.
    Only(Vec<PortName>),
    /// All but these.
    Not(Vec<PortName>),
}

impl Wanted {
    /// Whether the port is wanted.
    pub(crate) fn has(&self, port: &PortName) -> bool {
        let listed = |list: &[PortName]| list.iter().any(|name| name.covers(port));
        match self {
            Self::All => true,
            Self::Only(list) => listed(list),
            Self::Not(list) => !listed(list),
        }
    }

    /// Devices the user asked for by name.
    pub(crate) fn named(&self) -> &[PortName] {
        match self {
            Self::Only(list) => list,
            Self::All | Self::Not(_) => &[],
        }
    }
}

/// The checked parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// Which ports are wanted.
    pub(crate) wanted: Wanted,
    /// Ports at most; `usize::MAX` for all.
    pub(crate) max_btls: usize,
    /// Lane 0 and lane 1.
    pub(crate) lanes: [LaneConfig; 2],
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
            within(
                number.name,
                i64::from(value),
                i64::from(number.min),
                i64::from(number.max),
                "",
            )?;
        }
        let lanes = [
            self.lane([N::Lane0Size, N::Lane0Depth, N::Lane0SendDepth, N::Lane0SendSlots])?,
            self.lane([N::Lane1Size, N::Lane1Depth, N::Lane1SendDepth, N::Lane1SendSlots])?,
        ];
        within(
            "lane1_size",
            i64::from(lanes[1].buffer_size),
            i64::from(lanes[0].buffer_size) + 1,
            i64::from(MAX_BUFFER),
            " (more than btl_verbs_lane0_size)",
        )?;
        let include = devices("if_include", &self.strings[S::IfInclude as usize])?;
        let exclude = devices("if_exclude", &self.strings[S::IfExclude as usize])?;
        let wanted = match (include.is_empty(), exclude.is_empty()) {
            (true, true) => Wanted::All,
            (false, true) => Wanted::Only(include),
            (true, false) => Wanted::Not(exclude),
            (false, false) => return Err(ParamError::BothLists),
        };
        Ok(Params {
            wanted,
            max_btls: usize::try_from(self.number(N::MaxBtls)).unwrap_or(usize::MAX),
            lanes,
            t_conn: self.nanos(N::ConnectTimeout),
            t_give_up: self.nanos(N::GiveUpTimeout),
            t_first: self.nanos(N::FirstTimeout),
            t_close: self.nanos(N::CloseTimeout),
            report: self.number(N::Report) != 0,
            how: How { cq_depth: self.number(N::CqSize).unsigned_abs() },
        })
    }

    /// A number as given; only meaningful for reporting before [`Raw::check`].
    pub(crate) fn number(&self, which: N) -> i32 {
        self.numbers[which as usize]
    }

    fn lane(
        &self,
        [size, depth, send_depth, send_slots]: [N; 4],
    ) -> Result<LaneConfig, ParamError> {
        Ok(LaneConfig {
            buffer_size: self.number(size).unsigned_abs(),
            depth: small(depth, self.number(depth))?,
            send_depth: small(send_depth, self.number(send_depth))?,
            send_slots: self.number(send_slots).unsigned_abs(),
        })
    }

    /// A time given in milliseconds.
    fn nanos(&self, which: N) -> Nanos {
        Nanos::from(self.number(which).unsigned_abs()) * 1_000_000
    }
}

impl Params {
    /// The engine's settings. `job`: the key shared by all processes that may connect to each
    /// other.
    pub(crate) fn config(&self, me: ProcName, job: u64) -> Config {
        Config {
            lanes: self.lanes.to_vec(),
            t_conn: self.t_conn,
            t_give_up: self.t_give_up,
            t_first: self.t_first,
            t_close: self.t_close,
            max_unknown: MAX_UNKNOWN,
            ..Config::new(me, job)
        }
    }
}

fn small(which: N, value: i32) -> Result<u16, ParamError> {
    let number = &NUMBERS[which as usize];
    u16::try_from(value).map_err(|_| ParamError::Range {
        name: number.name.trim_end_matches('\0'),
        value: i64::from(value),
        min: i64::from(number.min),
        max: i64::from(number.max),
        why: "",
    })
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

fn devices(name: &'static str, list: &str) -> Result<Vec<PortName>, ParamError> {
    list.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            entry.parse().map_err(|()| ParamError::Device { name, entry: entry.to_owned() })
        })
        .collect()
}

/// The limits that Open MPI's own parameters set on a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `btl_verbs_eager_limit`.
    pub(crate) eager: usize,
    /// `btl_verbs_rndv_eager_limit`.
    pub(crate) rndv_eager: usize,
    /// `btl_verbs_max_send_size`.
    pub(crate) max_send: usize,
}

/// Smallest eager limit: ob1 refuses to start when its largest header does not fit.
const MIN_EAGER: usize = 256;

impl Limits {
    /// Fits the limits to what one frame of each lane carries. Matching traffic must stay on lane
    /// 0, whose frames arrive in order, so the eager limits cannot exceed its payload. A limit that
    /// still has its default is lowered.
    ///
    /// # Errors
    /// [`ParamError::Range`] for the first limit the user set that does not fit.
    pub(crate) fn fit(
        self,
        default: Self,
        lane0_payload: usize,
        lane1_payload: usize,
    ) -> Result<Self, ParamError> {
        let lane0 = " (a frame of lane 0 carries so much: see btl_verbs_lane0_size)";
        let lane1 = " (a frame of lane 1 carries so much: see btl_verbs_lane1_size)";
        Ok(Self {
            eager: fit("eager_limit", self.eager, default.eager, lane0_payload, lane0)?,
            rndv_eager: fit(
                "rndv_eager_limit",
                self.rndv_eager,
                default.rndv_eager,
                lane0_payload,
                lane0,
            )?,
            max_send: fit("max_send_size", self.max_send, default.max_send, lane1_payload, lane1)?,
        })
    }
}

fn fit(
    name: &'static str,
    value: usize,
    default: usize,
    payload: usize,
    why: &'static str,
) -> Result<usize, ParamError> {
    let value = if value == default { value.min(payload) } else { value };
    let wide = |x: usize| i64::try_from(x).unwrap_or(i64::MAX);
    within(name, wide(value), wide(MIN_EAGER), wide(payload), why)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(which: N, value: i32) -> Raw {
        let mut raw = Raw::default();
        raw.numbers[which as usize] = value;
        raw
    }

    fn lists(include: &str, exclude: &str) -> Raw {
        Raw { strings: [include.to_owned(), exclude.to_owned()], ..Raw::default() }
    }

    #[test]
    fn defaults_are_allowed() {
        let params = Raw::default().check().expect("the defaults pass");
        assert_eq!(params.wanted, Wanted::All);
        assert_eq!(params.max_btls, usize::MAX);
        let me = ProcName { job: 7, rank: 1 };
        let own = Config::new(me, 7);
        let config = params.config(me, 7);
        // A process that only receives: all of a large job is unannounced to it.
        assert!(config.max_unknown > 60_000 * 2 && config.max_unknown > own.max_unknown);
        assert_eq!(
            Config { max_unknown: own.max_unknown, ..config },
            own,
            "defaults differ from the engine's own"
        );
    }

    #[test]
    fn names_and_help_end_in_nul_and_name_the_range() {
        let texts = NUMBERS
            .iter()
            .map(|n| (n.name, n.help))
            .chain(STRINGS.iter().map(|t| (t.name, t.help)));
        for (name, help) in texts {
            for text in [name, help] {
                assert_eq!(text.find('\0'), Some(text.len() - 1), "{name}: {text:?}");
            }
        }
        for number in NUMBERS.iter().filter(|n| n.max > 0 && n.min >= 0) {
            let range = format!("{}..{}", number.min, number.max);
            assert!(
                number.help.contains(&range),
                "the help of {} does not say {range}",
                number.name
            );
            assert!((number.min..=number.max).contains(&number.default), "{}", number.name);
        }
    }

    #[test]
    fn both_ends_of_every_range_are_enforced() {
        for (i, number) in NUMBERS.iter().enumerate() {
            for (value, good) in [
                (number.min, true),
                (number.max, true),
                (number.min - 1, false),
                (number.max + 1, false),
            ] {
                let mut raw = Raw::default();
                raw.numbers[i] = value;
                let result = raw.check();
                // Lane sizes depend on each other: only the complaint about the range itself
                // counts.
                let own = matches!(&result, Err(ParamError::Range { why: "", .. }));
                assert_eq!(!own, good, "{} = {value}: {result:?}", number.name);
            }
        }
    }

    #[test]
    fn messages_name_parameter_value_and_range() {
        let why = raw(N::Lane0Depth, 3).check().expect_err("too few");
        assert_eq!(
            why.to_string(),
            "btl_verbs_lane0_depth = 3 is out of range: 4..4096 is allowed"
        );
        let why = raw(N::Lane1Size, 8192).check().expect_err("smaller than lane 0");
        assert_eq!(
            why.to_string(),
            "btl_verbs_lane1_size = 8192 is out of range: 12289..16777216 is allowed (more than btl_verbs_lane0_size)"
        );
    }

    #[test]
    fn limits_fit_the_lanes() {
        let default = Limits { eager: 12280, rndv_eager: 12280, max_send: 65528 };
        let fit = |limits: Limits, lane0, lane1| limits.fit(default, lane0, lane1);
        assert_eq!(fit(default, 12280, 65528), Ok(default));
        let lowered = Limits { eager: 4088, rndv_eager: 4088, max_send: 8184 };
        assert_eq!(fit(default, 4088, 8184), Ok(lowered), "defaults follow smaller lanes");
        let why = fit(Limits { eager: 12281, ..default }, 12280, 65528).expect_err("does not fit");
        assert_eq!(
            why.to_string(),
            "btl_verbs_eager_limit = 12281 is out of range: 256..12280 is allowed \
             (a frame of lane 0 carries so much: see btl_verbs_lane0_size)"
        );
        assert!(fit(Limits { max_send: 65529, ..default }, 12280, 65528).is_err());
        assert!(fit(Limits { rndv_eager: 255, ..default }, 12280, 65528).is_err());
        assert!(fit(Limits { rndv_eager: 256, ..default }, 12280, 65528).is_ok());
    }

    #[test]
    fn device_lists_are_parsed_and_exclude_each_other() {
        let only = lists(" siw0, mlx5_0:2,, ", "").check().expect("fine").wanted;
        let port = |text: &str| text.parse().expect("a port");
        let has = |wanted: &Wanted, text: &str| wanted.has(&port(text));
        assert!(has(&only, "siw0:1") && has(&only, "siw0:2") && has(&only, "mlx5_0:2"));
        assert!(!has(&only, "mlx5_0:1") && !has(&only, "rxe0:1"));
        assert_eq!(only.named().len(), 2);
        let not = lists("", "rxe0,mlx5_0:2").check().expect("fine").wanted;
        assert!(
            has(&not, "siw0:1")
                && has(&not, "mlx5_0:1")
                && !has(&not, "rxe0:1")
                && !has(&not, "mlx5_0:2")
        );
        assert_eq!(lists("siw0", "rxe0").check(), Err(ParamError::BothLists));
        for bad in ["siw0:", "siw0:0", "siw0:x", ":1", "siw0:256"] {
            assert!(
                matches!(
                    lists(bad, "").check(),
                    Err(ParamError::Device { name: "if_include", .. })
                ),
                "{bad}"
            );
        }
    }
}
