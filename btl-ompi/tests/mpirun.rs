//! Runs MPI programs over the component under the installed Open MPI, with the test transport
//! instead of devices: `cargo test -p btl-ompi --no-default-features --features fake-transport`.
//! Needs Open MPI 4.1 with mpicc (Debian: libopenmpi-dev openmpi-bin). The same programs run over
//! real devices in the guest.
#![cfg(feature = "fake-transport")]

mod support;

use std::path::Path;
use std::process::Command;
use support::*;

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
        ("btl_verbs_receive_queues", "P,1024,4:P,2048,4"),
        ("btl_verbs_eager_limit", "1016"),
        ("btl_verbs_rndv_eager_limit", "1016"),
        ("btl_verbs_send_depth", "2"),
        ("btl_verbs_free_list_max", "16"),
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
        ("btl_verbs_receive_queues", "P,1024,4:P,2048,4"),
        ("btl_verbs_eager_limit", "1016"),
        ("btl_verbs_rndv_eager_limit", "1016"),
        ("btl_verbs_send_depth", "2"),
        ("btl_verbs_free_list_max", "16"),
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
