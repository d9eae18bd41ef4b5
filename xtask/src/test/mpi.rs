//! MPI programs over the BTL, in the guest.

use std::time::Duration;

use anyhow::Result;

use super::parts::{clean, test_device};
use super::{Bench, Count};
use crate::demo::mpi::{Programs, probe};
use crate::guest::{Device, Job, KERNEL_TROUBLE, Outcome};
use crate::ompi::Series;

/// One run of a program.
#[derive(Clone, Copy)]
struct Case {
    program: &'static str,
    args: &'static [&'static str],
    ranks: u32,
    /// In seconds.
    limit: u64,
    /// Open MPI's parameters.
    mca: &'static [(&'static str, &'static str)],
    /// What has to be in the component's reports.
    carried: &'static [Carried],
}

/// Something that all processes together have to have done, or not.
enum Carried {
    /// At least once.
    Some(&'static str),
    /// Never.
    None(&'static str),
    /// Something that one of them has to say.
    Says(&'static str),
}

const PUT: &str = "put ";
const GOT: &str = "got ";
const ATOMICS: &str = "atomics ";

const CASES: &[Case] = &[
    plain("hello", &[], 4, 120),
    plain("connectivity", &[], 4, 120),
    plain("ring", &[], 4, 180),
    plain("allreduce", &[], 4, 180),
    plain("pingpong", &[], 2, 180),
    plain("stress", &[], 2, 300),
    plain("threads", &[], 2, 300),
    plain("spawn", &[], 2, 120),
    plain("compute", &["--seconds", "60"], 2, 180),
];

/// Of these, what runs with every Open MPI.
const BRIEF: &[&str] = &["hello", "connectivity", "allreduce", "threads", "spawn", "sessions"];

/// What MPI 4 added.
const CASES_MPI4: &[Case] = &[plain("sessions", &[], 3, 180)];

/// Of two hosts joined by a cable: what differs is the path, not the program.
const ACROSS: &[Case] = &[plain("ring", &[], 4, 180), plain("stress", &[], 2, 300)];

/// Any program with the parameters as they are.
const fn plain(
    program: &'static str,
    args: &'static [&'static str],
    ranks: u32,
    limit: u64,
) -> Case {
    Case { program, args, ranks, limit, mca: &[], carried: &[] }
}

const ONE_ROUND: &[&str] = &["--rounds", "1"];
const SHORT: &[&str] = &["--rounds", "1", "--max", "300001"];

/// Large messages by every protocol of ob1, in one host. The reads of iWARP are slow: it puts by itself.
const LARGE_SIW: &[Case] = &[
    large(&[], &[Carried::Some(PUT), Carried::None(GOT)]),
    large(&[("mpi_leave_pinned", "0")], &[Carried::Some(PUT), Carried::None(GOT)]),
    large(&[("btl_verbs_flags", "send,get")], &[Carried::None(PUT), Carried::Some(GOT)]),
    Case { args: SHORT, ..large(SMALL_PIPELINE, &[Carried::Some(PUT), Carried::Some(GOT)]) },
    Case {
        args: SHORT,
        ..large(&[("btl_verbs_flags", "send")], &[Carried::None(PUT), Carried::None(GOT)])
    },
];

/// The same where reads are as fast as writes.
const LARGE_RXE: &[Case] = &[
    large(&[], &[Carried::None(PUT), Carried::Some(GOT)]),
    large(&[("mpi_leave_pinned", "0")], &[Carried::Some(PUT), Carried::Some(GOT)]),
    large(&[("btl_verbs_flags", "send,put")], &[Carried::Some(PUT), Carried::None(GOT)]),
    Case { args: SHORT, ..large(SMALL_PIPELINE, &[Carried::Some(PUT), Carried::Some(GOT)]) },
    Case {
        args: SHORT,
        ..large(&[("btl_verbs_flags", "send")], &[Carried::None(PUT), Carried::None(GOT)])
    },
];

/// Windows: by the device's atomics where it has them, else by messages; Open MPI chooses.
const WINDOWS: &[&str] = &["--iters", "10"];
const WINDOWS_SIW: Case = plain("windows", WINDOWS, 2, 120);
const WINDOWS_RXE: Case =
    Case { carried: &[Carried::Some(ATOMICS)], ..plain("windows", WINDOWS, 2, 120) };

/// Short messages are read, long ones put in a pipeline, their ends sent.
const SMALL_PIPELINE: &[(&str, &str)] = &[
    ("mpi_leave_pinned", "0"),
    ("btl_verbs_flags", "send,put,get"),
    ("btl_verbs_rdma_pipeline_send_length", "30000"),
    ("btl_verbs_rdma_pipeline_frag_size", "70000"),
    ("btl_verbs_min_rdma_pipeline_size", "50000"),
];

/// The same without reads.
const PUT_PIPELINE: &[(&str, &str)] = &[
    ("mpi_leave_pinned", "0"),
    ("btl_verbs_flags", "send,put"),
    ("btl_verbs_rdma_pipeline_send_length", "30000"),
    ("btl_verbs_rdma_pipeline_frag_size", "70000"),
    ("btl_verbs_min_rdma_pipeline_size", "50000"),
];

/// With so little locked memory, most of which the process's own buffers take, long messages cannot be registered. They
/// are copied, and that is said.
const LITTLE_MEMORY: Case = large(&[], &[Carried::Says("messages are copied instead")]);
const LITTLE_KIB: &str = "12288";

const fn large(mca: &'static [(&'static str, &'static str)], carried: &'static [Carried]) -> Case {
    Case { program: "large", args: ONE_ROUND, ranks: 2, limit: 120, mca, carried }
}

/// Where puts and the messages that tell of them have most time to change places: every transport has to send again.
const BAD_CABLE: &[Case] = &[
    Case { args: SHORT, limit: 180, ..large(PUT_PIPELINE, &[Carried::Some(PUT)]) },
    Case {
        args: SHORT,
        limit: 180,
        ..large(&[("btl_verbs_flags", "send,put")], &[Carried::Some(PUT)])
    },
];

/// Where the ranks of a case are.
#[derive(Clone, Copy)]
enum Place {
    /// On one host.
    Here,
    /// Half of them on each of two hosts.
    Across,
    /// The same, with a cable that delays and drops packets.
    BadCable,
    /// On one host, with a limit of locked memory.
    LittleMemory,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Here => "on one host",
            Self::Across => "across two hosts",
            Self::BadCable => "across a bad cable",
            Self::LittleMemory => "with little locked memory",
        }
    }
}

/// Arguments of `stress` with `--soak`.
const SOAK: &[&str] = &["--messages", "1000000"];

/// What a connection that broke leaves in the log, besides what is trouble anyway.
pub(super) const BROKEN: &[&str] = &["TERMINATE", "terminate"];

/// Builds the BTL and the programs, and runs each of them on `device`: in one host and across two.
pub(super) fn run(bench: &mut Bench, device: Device) -> Result<Count> {
    let (large, windows) = match device {
        Device::Rxe => (LARGE_RXE, WINDOWS_RXE),
        _ => (LARGE_SIW, WINDOWS_SIW),
    };
    let four = Case { ranks: 4, ..windows };
    let newer = if bench.ompi == Series::V41 { &[] } else { CASES_MPI4 };
    let here = CASES.iter().chain(newer).chain(large).chain([&windows]);
    let here = here.map(|case| (Place::Here, case));
    let across = ACROSS.iter().chain([&four]).map(|case| (Place::Across, case));
    let cable = BAD_CABLE.iter().map(|case| (Place::BadCable, case));
    let little = [(Place::LittleMemory, &LITTLE_MEMORY)];
    let cases: Vec<_> = here.chain(little).chain(across).chain(cable).collect();
    run_cases(bench, device, &cases)
}

/// The part that differs from one Open MPI to the next: start, end, names, and one run of every way
/// through the component.
pub(super) fn run_brief(bench: &mut Bench, device: Device) -> Result<Count> {
    let large = if device == Device::Rxe { LARGE_RXE } else { LARGE_SIW };
    let wanted = |case: &&Case| BRIEF.contains(&case.program);
    let newer = if bench.ompi == Series::V41 { &[] } else { CASES_MPI4 };
    let here = CASES.iter().chain(newer).filter(wanted).chain(large.first());
    let here = here.map(|case| (Place::Here, case));
    let four = Case { ranks: 4, carried: &[], ..WINDOWS_SIW };
    // Open MPI 6 answers one-sided messages to their sender; in 5.0 the case is of `--ompi 5.0` only.
    let windows = (bench.ompi == Series::V60).then_some(&four);
    let across = ACROSS.first().into_iter().chain(windows).map(|case| (Place::Across, case));
    let cases: Vec<_> = here.chain(across).collect();
    run_cases(bench, device, &cases)
}

fn run_cases(bench: &mut Bench, device: Device, cases: &[(Place, &Case)]) -> Result<Count> {
    let programs = Programs::build(bench.ompi)?;
    let mut count = Count::default();
    for (place, case) in cases {
        let soak = bench.soak && case.program == "stress";
        let args = if soak { SOAK } else { case.args };
        let mut job = programs.job(device, case.ranks, case.program, args, "self,verbs")?;
        let mca = case.mca.iter().chain(&[("btl_verbs_report", "1")]);
        let words = mca.flat_map(|(name, value)| ["--mca", name, value]).map(Into::into);
        job.command.splice(1..1, words);
        job.limit = Duration::from_secs(if soak { 3600 } else { case.limit });
        match place {
            Place::Here => {}
            Place::LittleMemory => limit_memory(&mut job),
            Place::Across => programs.across(&mut job, case.ranks),
            Place::BadCable => {
                programs.across(&mut job, case.ranks);
                spoil(&mut job, device);
            }
        }
        let place = place.name();
        probe(&mut job, test_device(device).0, "0")?;
        let how: String = case.mca.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let name = format!("{}{how} {place} with {}", case.program, device.name());
        let outcome = bench.in_guest(&name, &job)?;
        count.case(&name, verdict(case, &outcome));
        if place == Place::BadCable.name() {
            count.case(&format!("{name}: the cable dropped packets"), dropped(&outcome));
        }
        let log = clean(&outcome.klog, KERNEL_TROUBLE);
        count.case(&format!("{name}: the kernel's log"), log.and(clean(&outcome.klog, BROKEN)));
        if device == Device::Rxe {
            count.case(
                &format!("{name}: every receive was posted in time"),
                never_unready(&outcome),
            );
        }
    }
    Ok(count)
}

fn verdict(case: &Case, outcome: &Outcome) -> Result<(), String> {
    match outcome.code {
        0 if outcome.stdout.contains(&format!("OK {}", case.program)) => {
            case.carried.iter().try_for_each(|carried| carried.check(&outcome.stderr))
        }
        0 => Err("ended without its line OK".to_owned()),
        124 => Err("did not end in time".to_owned()),
        code => Err(format!("ended with status {code}: {}", telling(&outcome.stderr))),
    }
}

/// Makes the cable between the hosts delay and drop packets; in the end the job tells how many it dropped.
fn spoil(job: &mut Job, device: Device) {
    let netem = match device {
        Device::Rxe => "delay 1ms loss 0.3%",
        _ => "delay 2ms loss 1%",
    };
    let script = format!(
        "tc qdisc add dev va root netem {netem} && on-host hostb 'tc qdisc add dev vb root netem {netem}' || exit 99; \
         \"$@\"; code=$?; echo \"@dropped $(tc -s qdisc show dev va | sed -n 's/.*(dropped \\([0-9]*\\).*/\\1/p')\"; \
         exit $code"
    );
    let mut command = vec!["bash".into(), "-c".into(), script.into(), "bash".into()];
    command.append(&mut job.command);
    job.command = command;
}

/// Runs a job without the right to lock more memory than its limit.
fn limit_memory(job: &mut Job) {
    let script = format!(
        "ulimit -l {LITTLE_KIB}; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"$@\""
    );
    let mut command = vec!["bash".into(), "-c".into(), script.into(), "bash".into()];
    command.append(&mut job.command);
    job.command = command;
}

/// A cable that dropped nothing proves nothing.
fn dropped(outcome: &Outcome) -> Result<(), String> {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("@dropped "));
    match line.and_then(|number| number.trim().parse::<u64>().ok()) {
        Some(0) => Err("not one packet was dropped".to_owned()),
        Some(_) => Ok(()),
        None => Err("the job did not tell how many packets were dropped".to_owned()),
    }
}

impl Carried {
    fn check(&self, reports: &str) -> Result<(), String> {
        let (Self::Some(word) | Self::None(word) | Self::Says(word)) = self;
        let numbers =
            reports.lines().filter(|line| line.contains("btl:verbs: ")).filter_map(|line| {
                let (_, rest) = line.split_once(&format!(", {word}"))?;
                rest.split([' ', ',']).next()?.parse::<u64>().ok()
            });
        match (self, numbers.sum::<u64>()) {
            (Self::Says(words), _) if !reports.contains(words) => {
                Err(format!("nobody said \"{words}\""))
            }
            (Self::Some(_), 0) => Err(format!("{word}nothing, but had to")),
            (Self::None(_), n) if n > 0 => Err(format!("{word}{n} times, but was not to")),
            _ => Ok(()),
        }
    }
}

/// rxe counts receivers that were not ready; with credits there is never any. (On siw such a
/// receiver ends the connection, and so the program.)
pub(super) fn never_unready(outcome: &Outcome) -> Result<(), String> {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("@rnr "));
    match line.and_then(|number| number.trim().parse::<u64>().ok()) {
        Some(0) => Ok(()),
        Some(n) => Err(format!("{n} receiver-not-ready errors on the device's counters")),
        None => Err("the probe told no counter of receiver-not-ready errors".to_owned()),
    }
}

/// The line of a job's words that tells most: the program's own, else the last.
pub(super) fn telling(text: &str) -> &str {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines()
        .find(|line| line.contains("FAILED"))
        .or_else(|| lines().next_back())
        .unwrap_or("it said nothing")
}
