//! Runs MPI programs over the component under the installed Open MPI, with the test transport
//! instead of devices: `cargo test -p btl-ompi --no-default-features --features fake-transport`.
//! Needs Open MPI 4.1 with mpicc (Debian: libopenmpi-dev openmpi-bin). The same programs run over
//! real devices in the guest.
#![cfg(feature = "fake-transport")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Seconds one job may take.
const LIMIT: &str = "120";

/// The plug-in under its real name, and the compiled programs.
struct Stage {
    dir: PathBuf,
}

static STAGE: OnceLock<Stage> = OnceLock::new();

fn stage() -> &'static Stage {
    STAGE.get_or_init(|| {
        let exe = std::env::current_exe().unwrap_or_else(|e| panic!("no path of this test: {e}"));
        let deps = exe.parent().unwrap_or_else(|| panic!("{} is in no folder", exe.display()));
        let dir = deps.join("mpirun-stage");
        std::fs::create_dir_all(&dir)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
        let built = deps.join("libmca_btl_verbs.so");
        let bytes = std::fs::read(&built).unwrap_or_default();
        let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        assert!(
            has(b"fake0") && has(b"built for Open MPI 4.1.x"),
            "{} is of a build with other features: remove it",
            built.display()
        );
        std::fs::copy(&built, dir.join("mca_btl_verbs.so"))
            .unwrap_or_else(|e| panic!("cannot copy {}: {e}", built.display()));
        Stage { dir }
    })
}

/// Compiles a program of `tests/mpi`, once: another test may be running it.
fn program(name: &str) -> PathBuf {
    static COMPILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi").join(format!("{name}.c"));
    let target = stage().dir.join(name);
    if compiled.iter().any(|done| done == name) {
        return target;
    }
    let out = Command::new("mpicc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(&source)
        .arg("-o")
        .arg(&target)
        .output()
        .unwrap_or_else(|e| panic!("cannot run mpicc: {e}; install it (Debian: libopenmpi-dev)"));
    assert!(
        out.status.success(),
        "mpicc {}: {}",
        source.display(),
        String::from_utf8_lossy(&out.stderr)
    );
    compiled.push(name.to_owned());
    target
}

/// What a job did.
struct Job {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Job {
    /// The sum over all processes of the number that stands behind `word` in their reports.
    fn carried(&self, word: &str) -> u64 {
        let numbers = self.stderr.lines().filter_map(|line| {
            let (_, report) = line.split_once("btl:verbs: fake0:1")?;
            let (_, number) = report.split_once(word)?;
            number.split([' ', ',']).next()?.parse::<u64>().ok()
        });
        numbers.sum()
    }
}

fn mpirun(ranks: u32, parameters: &[(&str, &str)], program: &Path, arguments: &[&str]) -> Job {
    let mut command = Command::new("timeout");
    command.args([
        "-k",
        "5",
        LIMIT,
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        &ranks.to_string(),
    ]);
    let path = format!("SYSTEM_DEFAULT:{}", stage().dir.display());
    let fixed = [("mca_base_component_path", path.as_str()), ("pml", "ob1"), ("btl", "self,verbs")];
    for (name, value) in fixed.iter().chain(parameters) {
        // The test transport is told by the environment how to behave.
        match name.starts_with("BTL_VERBS_FAKE") {
            true => command.args(["-x", &format!("{name}={value}")]),
            false => command.args(["--mca", name, value]),
        };
    }
    let out = command
        .arg(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("cannot run mpirun: {e}; install it (Debian: openmpi-bin)"));
    Job {
        code: out.status.code(),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Runs a program that must succeed, say so once, and have used this component for all its
/// messages.
fn succeeds(ranks: u32, parameters: &[(&str, &str)], name: &str, arguments: &[&str]) -> Job {
    let program = program(name);
    let mut parameters = parameters.to_vec();
    parameters.push(("btl_verbs_report", "1"));
    let job = mpirun(ranks, &parameters, &program, arguments);
    let told = format!("{name} {arguments:?}: exit {:?}\n{}\n{}", job.code, job.stdout, job.stderr);
    assert_eq!(job.code, Some(0), "{told}");
    let ok = format!("OK {name} ");
    assert_eq!(job.stdout.lines().filter(|line| line.starts_with(&ok)).count(), 1, "{told}");
    let reports = job
        .stderr
        .lines()
        .filter(|line| line.contains("btl:verbs: fake0:1") && line.contains("sent "));
    let processes = if name == "spawn" { 2 * ranks } else { ranks };
    assert_eq!(
        reports.count(),
        processes as usize,
        "every process reports what it carried\n{told}"
    );
    assert!(!job.stderr.contains("did not close in order"), "{told}");
    job
}

#[test]
fn four_say_hello() {
    succeeds(4, &[], "hello", &[]);
}

#[test]
fn every_pair_of_five_speaks() {
    succeeds(5, &[], "connectivity", &[]);
}

#[test]
fn ring_of_four() {
    succeeds(4, &[], "ring", &["--iters", "5"]);
}

#[test]
fn allreduce_of_four() {
    succeeds(4, &[], "allreduce", &["--iters", "3"]);
}

#[test]
fn pingpong_prints_a_table() {
    let job = succeeds(2, &[], "pingpong", &["--iters", "20"]);
    let rows = job.stdout.lines().filter(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        fields.len() == 3 && fields.iter().all(|field| field.parse::<f64>().is_ok())
    });
    assert_eq!(rows.count(), 24, "0 B and 1 B to 4 MiB\n{}", job.stdout);
}

#[test]
fn stress_of_three() {
    succeeds(3, &[], "stress", &["--messages", "30000"]);
}

/// So few buffers that every way to wait is taken: credits, send queues, descriptors.
#[test]
fn stress_with_the_smallest_lanes() {
    let small = [
        ("btl_verbs_lane0_size", "1024"),
        ("btl_verbs_lane0_depth", "4"),
        ("btl_verbs_lane0_send_depth", "2"),
        ("btl_verbs_lane0_send_slots", "16"),
        ("btl_verbs_lane1_size", "2048"),
        ("btl_verbs_lane1_depth", "4"),
        ("btl_verbs_lane1_send_depth", "2"),
        ("btl_verbs_lane1_send_slots", "16"),
    ];
    succeeds(3, &small, "stress", &["--messages", "6000", "--window", "200"]);
}

/// Longest messages: of the pipeline, and of all else.
const LONG: &str = "3145735";
const SHORT: &str = "300001";

/// A protocol of ob1 for large messages under certain parameters, and what has to have been used.
fn large(parameters: &[(&str, &str)], max: &str, puts: bool, gets: bool) -> Job {
    let job = succeeds(2, parameters, "large", &["--rounds", "1", "--max", max]);
    assert_eq!(job.carried(", put ") > 0, puts, "{parameters:?}\n{}", job.stderr);
    assert_eq!(job.carried(", got ") > 0, gets, "{parameters:?}\n{}", job.stderr);
    job
}

/// The test transport says that its reads are slow, as iWARP does.
#[test]
fn large_messages_are_put_and_slow_reads_are_not_used() {
    large(&[], LONG, true, false);
}

#[test]
fn large_messages_are_read_where_the_user_says_so() {
    large(&[("btl_verbs_flags", "send,put,get")], SHORT, false, true);
    large(&[("btl_verbs_flags", "send,get")], LONG, false, true);
    // The default in so many words is a wish too.
    let default = [("btl_verbs_flags", "send,put,get,fetching-atomics")];
    large(&default, SHORT, false, true);
}

/// Memory that is registered for one message only: long ones go in a pipeline, its end in messages.
#[test]
fn large_messages_in_a_pipeline() {
    large(&[("mpi_leave_pinned", "0")], LONG, true, false);
    large(&[("mpi_leave_pinned_pipeline", "1")], LONG, true, false);
    let small = [
        ("mpi_leave_pinned", "0"),
        ("btl_verbs_flags", "send,put,get"),
        ("btl_verbs_rdma_pipeline_send_length", "30000"),
        ("btl_verbs_rdma_pipeline_frag_size", "70000"),
        ("btl_verbs_min_rdma_pipeline_size", "50000"),
    ];
    large(&small, SHORT, true, true);
}

#[test]
fn large_messages_in_pieces_when_only_messages_are_allowed() {
    large(&[("btl_verbs_flags", "send")], SHORT, false, false);
}

#[test]
fn limits_of_one_read_are_kept() {
    let parameters = [("btl_verbs_flags", "send,get"), ("btl_verbs_get_limit", "100000")];
    let job = large(&parameters, SHORT, false, true);
    assert!(job.carried(", got ") > 150, "reads of 100000 bytes at most\n{}", job.stderr);
}

/// As iWARP, which has no atomics: Open MPI takes another way by itself.
#[test]
fn windows_by_messages() {
    let job = succeeds(2, &[("osc", "^ucx")], "windows", &["--iters", "5"]);
    assert_eq!(job.carried(", atomics "), 0, "{}", job.stderr);
}

/// As RoCE.
#[test]
fn windows_by_atomics() {
    let parameters = [("osc", "rdma"), ("BTL_VERBS_FAKE", "roce")];
    let job = succeeds(2, &parameters, "windows", &["--iters", "5"]);
    assert!(job.carried(", atomics ") > 0, "{}", job.stderr);
}

/// Where memory cannot be registered, messages are copied; each process says so once.
#[test]
fn large_messages_without_enough_locked_memory() {
    for (limit, flags) in [("0", "send,put"), ("0", "send,get"), ("300000", "send,put")] {
        for leave_pinned in ["0", "1"] {
            let parameters = [
                ("btl_verbs_flags", flags),
                ("mpi_leave_pinned", leave_pinned),
                ("BTL_VERBS_FAKE_MEMLOCK", limit),
            ];
            let job = succeeds(2, &parameters, "large", &["--rounds", "1", "--max", SHORT]);
            let told = "messages are copied instead where that happens";
            let said = job.stderr.lines().filter(|line| line.contains(told)).count();
            assert_eq!(said, 2, "{limit} {parameters:?}\n{}", job.stderr);
            let one_sided = job.carried(", put ") + job.carried(", got ");
            assert_eq!(one_sided > 0, limit != "0", "{limit} {parameters:?}\n{}", job.stderr);
        }
    }
}

/// So few buffers that puts wait for one before they are told.
#[test]
fn large_messages_with_the_smallest_lanes() {
    let small = [
        ("btl_verbs_lane0_size", "1024"),
        ("btl_verbs_lane0_depth", "4"),
        ("btl_verbs_lane0_send_depth", "2"),
        ("btl_verbs_lane0_send_slots", "16"),
        ("btl_verbs_lane1_size", "2048"),
        ("btl_verbs_rdma_pipeline_frag_size", "5000"),
    ];
    large(&small, SHORT, true, false);
}

#[test]
fn both_ranks_compute_while_messages_wait() {
    succeeds(2, &[], "compute", &["--seconds", "2"]);
}

#[test]
fn processes_started_later_join() {
    succeeds(2, &[], "spawn", &[]);
}

#[test]
fn threads_share_a_module() {
    let job = succeeds(2, &[], "threads", &["--iters", "100"]);
    assert!(job.carried(", put ") > 0, "puts by several threads at once\n{}", job.stderr);
}

/// A component built for 4.1 in another Open MPI, pretended by a library with another version
/// string.
#[test]
fn another_open_mpi_is_refused() {
    let (source, library) = (stage().dir.join("version.c"), stage().dir.join("version.so"));
    std::fs::write(&source, "const char opal_version_string[] = \"5.0.7\";\n")
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", source.display()));
    let built =
        Command::new("cc").args(["-shared", "-fPIC"]).arg(&source).arg("-o").arg(&library).status();
    assert!(built.is_ok_and(|status| status.success()), "cc cannot build {}", library.display());
    let preload = format!("LD_PRELOAD={}", library.display());
    let ring = program("ring");
    let job = mpirun(2, &[], Path::new("env"), &[&preload, &ring.display().to_string()]);
    assert!(job.code.is_some_and(|code| code != 0 && code != 124), "exit {:?}", job.code);
    // The first process that gives up takes the other one with it, which may not have come so far.
    let message = "btl:verbs: this component is built for Open MPI 4.1.x, but this is Open MPI 5.0.7: \
                   the component is not used";
    let said = job.stderr.lines().filter(|line| line.contains("btl:verbs: ")).collect::<Vec<_>>();
    assert!(
        (1..=2).contains(&said.len()) && said.iter().all(|line| line.contains(message)),
        "{}",
        job.stderr
    );
}

/// One message that names parameter, value and range, and a job that fails.
#[test]
fn a_parameter_out_of_range_is_named() {
    let ring = program("ring");
    let cases = [
        (
            ("btl_verbs_lane0_depth", "3"),
            "btl_verbs_lane0_depth = 3 is out of range: 4..4096 is allowed",
        ),
        (
            ("btl_verbs_eager_limit", "100000"),
            "btl_verbs_eager_limit = 100000 is out of range: 256..12280 is allowed",
        ),
        (
            ("btl_verbs_if_include", "nodev"),
            "btl_verbs_if_include: there is no device port nodev; there is: fake0:1",
        ),
    ];
    for (parameter, message) in cases {
        let job = mpirun(2, &[parameter], &ring, &[]);
        assert!(
            job.code.is_some_and(|code| code != 0 && code != 124),
            "{parameter:?}: exit {:?}",
            job.code
        );
        let lines = job.stderr.lines().filter(|line| line.contains("btl:verbs: "));
        let said: Vec<_> = lines.collect();
        assert!(
            !said.is_empty() && said.iter().all(|line| line.contains(message)),
            "{parameter:?}: {said:?}"
        );
        assert!(said.len() <= 2, "once per rank at most: {said:?}");
    }
}

/// Processes whose lanes differ do not talk to each other, and say why.
#[test]
fn lanes_that_differ_between_ranks_are_named() {
    let ring = program("ring");
    let script = stage().dir.join("differ.sh");
    let text = "#!/bin/sh\nexport OMPI_MCA_btl_verbs_lane1_size=$((65536 + OMPI_COMM_WORLD_RANK * 4096))\nexec \"$@\"\n";
    std::fs::write(&script, text)
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", script.display()));
    let job = mpirun(
        2,
        &[],
        Path::new("sh"),
        &[&script.display().to_string(), &ring.display().to_string()],
    );
    assert!(job.code.is_some_and(|code| code != 0 && code != 124), "exit {:?}", job.code);
    let expected = "give all processes the same btl_verbs_lane0_size and btl_verbs_lane1_size";
    assert!(job.stderr.contains(expected), "{}", job.stderr);
}
