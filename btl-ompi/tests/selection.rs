//! Parameters, files, peers that differ and data that is wrong, under the installed Open MPI with the test transport:
//! `cargo test -p btl-ompi --no-default-features --features fake-transport --test selection`.
#![cfg(feature = "fake-transport")]

mod support;

use std::path::Path;
use support::*;

/// Two ports in two networks, on every node alike.
const TWO: &str = "iw0@192.0.2.1/24,iw1@198.51.100.1/24";

/// Runs a program with these ports and returns how much each has sent, per report line: (port, messages).
fn sent(ports: &str, parameters: &[(&str, &str)], name: &str) -> Vec<(String, u64)> {
    let script = by_rank("ports", &format!("export BTL_VERBS_FAKE_PORTS='{ports}'"));
    let mut all = parameters.to_vec();
    all.push(("btl_verbs_report", "1"));
    let job = scripted("self,verbs", 2, &all, &script, name, &[]);
    assert_eq!(job.code, Some(0), "{}", job.told());
    let line = |line: &&str| {
        let rest = line.split("btl:verbs: ").nth(1)?;
        let (port, rest) = rest.split_once(" (").filter(|(port, _)| !port.starts_with("peer "))?;
        let number = rest.split("sent ").nth(1)?.split(' ').next()?;
        Some((port.to_owned(), number.parse().ok()?))
    };
    let mut found: Vec<_> = job.said().iter().filter_map(line).collect();
    found.sort();
    found
}

/// The ports that carried messages, each once.
fn used(ports: &str, parameters: &[(&str, &str)]) -> Vec<String> {
    let mut names: Vec<String> = sent(ports, parameters, "ring")
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|it| it.0)
        .collect();
    names.dedup();
    names
}

#[test]
fn messages_are_striped_over_all_ports_and_lists_choose() {
    assert_eq!(used(TWO, &[]), ["iw0:1", "iw1:1"]);
    for (name, value, expected) in [
        ("btl_verbs_if_include", "iw1", "iw1:1"),
        ("btl_verbs_if_exclude", "iw1:1", "iw0:1"),
        ("btl_verbs_ipaddr_include", "198.51.0.0/16", "iw1:1"),
        ("btl_verbs_ipaddr_exclude", "198.51.100.1", "iw0:1"),
        ("btl_verbs_max_btls", "1", "iw0:1"),
    ] {
        assert_eq!(used(TWO, &[(name, value)]), [expected], "{name} = {value}");
    }
    let mixed = "iw0@192.0.2.1/24,roce0@198.51.100.1/24@2001:db8::1/64";
    assert_eq!(used(mixed, &[("btl_verbs_device_type", "ib")]), ["roce0:1"]);
    assert_eq!(used(mixed, &[("btl_verbs_ipaddr_include", "2001:db8::/32")]), ["roce0:1"]);
}

#[test]
fn a_list_that_leaves_nothing_is_told() {
    let ring = program("ring");
    for (parameter, words) in [
        (
            ("btl_verbs_if_include", "nodev"),
            ["there is no device port nodev; there is: fake0:1", ""],
        ),
        (("btl_verbs_if_exclude", "fake0"), ["btl_verbs_if_exclude leaves no device port", ""]),
        (
            ("btl_verbs_ipaddr_include", "10.0.0.0/8"),
            ["btl_verbs_ipaddr_include leaves fake0:1 no address", ""],
        ),
        (
            ("btl_verbs_device_type", "iwarp"),
            ["fake0:1 is transport 255", "btl_verbs_device_type leaves out"],
        ),
        (
            ("btl_verbs_device_type", "opa"),
            ["btl_verbs_device_type: \"opa\" is none of all, ib", "iwarp"],
        ),
        (
            ("btl_verbs_cq_size", "3"),
            ["btl_verbs_cq_size = 3 is out of range: 256..4194304 is allowed", ""],
        ),
        (("btl_verbs_cq_size", "many"), ["btl_verbs_cq_size = \"many\" is not a number", ""]),
        (
            ("btl_verbs_eager_limit", "100000"),
            ["btl_verbs_eager_limit = 100000 is out of range", "256..65528"],
        ),
        (
            ("btl_verbs_receive_queues", "P,2048:S,65536"),
            ["entry 2 (\"S,65536\")", "for example P,12288,16:P"],
        ),
        (("btl_verbs_ipaddr_exclude", "10.1/16"), ["\"10.1/16\" is no network like", ""]),
    ] {
        let job = mpirun(2, &[parameter], &ring, &[]);
        job.fails_with(&words);
        assert!(job.said().len() <= 2, "once per rank at most: {}", job.told());
        // Another BTL goes on.
        let job = over("self,tcp,verbs", 2, &[parameter], &ring, &["--iters", "1"]);
        assert_eq!(job.code, Some(0), "{parameter:?}: {}", job.told());
    }
}

#[test]
fn a_name_that_fits_nothing_is_told_and_the_others_are_used() {
    let ring = program("ring");
    let include = ("btl_verbs_if_include", "nodev,fake0");
    let job = mpirun(2, &[include], &ring, &["--iters", "1"]);
    assert_eq!(job.code, Some(0), "{}", job.told());
    assert_eq!(job.said().len(), 2, "{}", job.told());
    assert!(job.said()[0].contains("no device port nodev"), "{}", job.told());
    let quiet =
        mpirun(2, &[include, ("btl_verbs_warn_nonexistent_if", "0")], &ring, &["--iters", "1"]);
    assert_eq!((quiet.code, quiet.said().len()), (Some(0), 0), "{}", quiet.told());
    let exclude = mpirun(2, &[("btl_verbs_if_exclude", "nodev")], &ring, &["--iters", "1"]);
    assert!(exclude.said()[0].contains("there is no device of nodev"), "{}", exclude.told());
}

/// Three processes with other lanes each: every byte arrives, and nobody is refused.
#[test]
fn lanes_that_differ_between_ranks_are_reconciled() {
    let script = by_rank(
        "differ",
        "case $RANK in\n\
         1) export OMPI_MCA_btl_verbs_receive_queues=P,16384,8:P,32768,4:P,131072,4;;\n\
         2) export OMPI_MCA_btl_verbs_receive_queues=P,65536,64;;\n\
         esac",
    );
    for (name, arguments) in [("ring", ["--iters", "3"]), ("stress", ["--messages", "3000"])] {
        let job = scripted("self,verbs", 3, &[], &script, name, &arguments);
        assert_eq!(job.code, Some(0), "{name}: {}", job.told());
        assert!(job.stdout.contains(&format!("OK {name}")), "{}", job.told());
    }
}

#[test]
fn a_peer_whose_buffers_hold_no_eager_message_is_told() {
    let script = by_rank(
        "small",
        "[ $RANK = 1 ] && export OMPI_MCA_btl_verbs_receive_queues=P,2048,8\ntrue",
    );
    let job = scripted("self,verbs", 2, &[], &script, "ring", &[]);
    job.fails_with(&[
        "the largest buffers",
        "have 2048 bytes",
        "lower btl_verbs_eager_limit",
        "2040",
    ]);
    let job = scripted("self,tcp,verbs", 2, &[], &script, "ring", &["--iters", "1"]);
    assert_eq!(job.code, Some(0), "both leave it to tcp: {}", job.told());
    let limits = [("btl_verbs_eager_limit", "2040"), ("btl_verbs_rndv_eager_limit", "2040")];
    let job = scripted("self,verbs", 2, &limits, &script, "ring", &["--iters", "2"]);
    assert_eq!(job.code, Some(0), "{}", job.told());
}

#[test]
fn a_peer_in_another_network_is_told_and_other_btls_reach_it() {
    let script = by_rank("networks", "export BTL_VERBS_FAKE_PORTS=iw0@192.0.$RANK.1/24");
    let run =
        |btl, parameters: &[_]| scripted(btl, 2, parameters, &script, "ring", &["--iters", "1"]);
    let words = ["shares no network with this port", "btl_verbs_allow_different_subnets"];
    run("self,verbs", &[]).fails_with(&words);
    let job = run("self,tcp,verbs", &[("btl_verbs_verbose", "1")]);
    assert_eq!(job.code, Some(0), "{}", job.told());
    assert!(job.said().iter().any(|line| line.contains(words[0])), "{}", job.told());
    let job = run("self,verbs", &[("btl_verbs_allow_different_subnets", "1")]);
    assert_eq!(job.code, Some(0), "{}", job.told());
}

/// Report 3: the message names the device, the flag and what to set; shared memory does without.
#[test]
fn a_device_that_cannot_loop_back_is_told_with_what_to_set() {
    let script = by_rank("loop", "export BTL_VERBS_FAKE_PORTS='iw3@192.0.2.1/24!'");
    let run =
        |btl, parameters: &[_]| scripted(btl, 2, parameters, &script, "ring", &["--iters", "1"]);
    run("self,verbs", &[]).fails_with(&[
        "iw3 lacks the flag LOOPBACK",
        "--mca btl_verbs_loopback iw3=yes",
        "vader",
    ]);
    let job = run("self,vader,verbs", &[]);
    assert_eq!((job.code, job.said().len()), (Some(0), 0), "nobody is bothered: {}", job.told());
    let job = run("self,verbs", &[("btl_verbs_loopback", "iw3=yes")]);
    assert_eq!(job.code, Some(0), "{}", job.told());
    // The same from a file, and the parameter goes before it.
    let ini = stage().dir.join("loop.ini");
    std::fs::write(&ini, "[iw3]\nvendor_id = 0xfa4e\nvendor_part_id = 3\nloopback_capable = yes\n")
        .expect("a file");
    let file = ("btl_verbs_device_param_files", ini.to_str().expect("a path"));
    let job = run("self,verbs", &[file]);
    assert_eq!(job.code, Some(0), "{}", job.told());
    let job = run("self,verbs", &[file, ("btl_verbs_loopback", "iw3=no")]);
    job.fails_with(&["iw3 lacks the flag LOOPBACK", "btl_verbs_loopback says so"]);
}

#[test]
fn files_say_what_devices_are_used_with() {
    let ring = program("ring");
    let ini = |name: &str, text: &str| {
        let file = stage().dir.join(name);
        let text = format!("[fake]\nvendor_id = 0xfa4e\nvendor_part_id = 0\n{text}\n");
        std::fs::write(&file, text)
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
        file.display().to_string()
    };
    let (good, bad) =
        (ini("good.ini", "receive_queues = P,32768,8"), ini("bad.ini", "receive_queues = P,x"));
    let run = |files: &str, more: &[(&'static str, &'static str)]| {
        let mut parameters =
            vec![("btl_verbs_device_param_files", files), ("btl_verbs_verbose", "10")];
        parameters.extend(more);
        mpirun(2, &parameters, &ring, &["--iters", "1"])
    };
    let job = run(&good, &[]);
    assert!(job.stderr.contains("fragments of 32760 B"), "{}", job.told());
    run(&bad, &[])
        .fails_with(&["bad.ini:4 [fake]: receive_queues: entry 1 (\"P,x\")", "for example"]);
    // The last one counts, and the parameter before all.
    let job = run(&format!("{bad}:{good}"), &[]);
    assert!(job.code == Some(0) && job.stderr.contains("fragments of 32760 B"), "{}", job.told());
    let job = run(&bad, &[("btl_verbs_receive_queues", "P,12288,16:P,16384,4")]);
    assert!(job.code == Some(0) && job.stderr.contains("fragments of 16376 B"), "{}", job.told());
    let job = run(&ini("ignore.ini", "ignore_device = yes"), &[]);
    job.fails_with(&["fake0:1 cannot be used", "ignore.ini:4 [fake] says ignore_device"]);
    let job = run(
        &format!("/no/such/file.ini:{}", ini("odd.ini", "nonsense = 1\ncredit_route = both")),
        &[],
    );
    assert_eq!(job.code, Some(0), "{}", job.told());
    for fault in [
        "/no/such/file.ini: No such file",
        "odd.ini:4 [fake]: there is no key",
        "must be own or first",
    ] {
        assert!(job.stderr.contains(fault), "{fault}: {}", job.told());
    }
}

/// What rank 1 publishes cannot be read: rank 0 says so, and another BTL carries the job.
#[test]
fn data_that_cannot_be_read_makes_that_peer_unreachable_and_nothing_else() {
    for (what, words) in [
        ("garbage", "the data is not from a btl:verbs of this project"),
        ("truncated", "the data ends too early"),
        ("version", "its btl:verbs writes format 9, this one reads"),
    ] {
        let script =
            by_rank("modex", &format!("[ $RANK = 1 ] && export BTL_VERBS_FAKE_MODEX={what}\ntrue"));
        let job = scripted("self,verbs", 2, &[], &script, "ring", &[]);
        job.fails_with(&["what it published cannot be read", words]);
        // As it is where two versions meet: each finds the other's.
        let script = by_rank("modexes", &format!("export BTL_VERBS_FAKE_MODEX={what}"));
        let job = scripted("self,tcp,verbs", 2, &[], &script, "ring", &["--iters", "1"]);
        assert_eq!(job.code, Some(0), "{what}: {}", job.told());
    }
}

#[test]
fn a_device_without_queue_pairs_ends_the_job_with_one_message() {
    let script = by_rank("qps", "export BTL_VERBS_FAKE_QPS=0");
    let limits = [("btl_verbs_give_up_timeout", "1000")];
    let job = scripted("self,verbs", 2, &limits, &script, "ring", &[]);
    assert!(job.code.is_some_and(|code| code != 0 && code != 124), "{}", job.told());
    for words in ["btl:verbs: fake0:1", "cannot connect", "the device has no more queue pairs"] {
        assert!(job.stderr.contains(words), "{words}: {}", job.told());
    }
}

/// One line for each peer and port: how it was reached, over which lanes, and how much it got.
#[test]
fn each_peer_has_a_line_in_the_report() {
    let job = {
        let parameters = [("btl_verbs_credit_route", "first"), ("btl_verbs_flags", "send")];
        succeeds(3, &parameters, "ring", &["--iters", "2"])
    };
    let lines: Vec<_> =
        job.said().into_iter().filter(|line| line.contains("btl:verbs: peer rank ")).collect();
    assert_eq!(lines.len(), 6, "each process and its neighbours: {}", job.told());
    for words in [
        "lanes 0: 12288 B x 16",
        "1: 65536 B x 4",
        "credit route first (both sides asked for it)",
        "transport 255 over fake0:1",
    ] {
        assert!(lines.iter().any(|line| line.contains(words)), "{words}: {}", job.told());
    }
    assert!(lines.iter().all(|line| line.contains("; sent ")), "{}", job.told());
}

#[test]
fn the_main_counters_can_be_read_through_mpi_t() {
    let job = succeeds(2, &[], "counters", &["--messages", "50"]);
    assert!(job.stdout.contains("messages=50"), "{}", job.told());
}

/// The job ends, in time, and says what happened.
#[test]
fn a_rank_that_dies_ends_the_job() {
    let die = program("die");
    for (how, words) in [
        ("0", &["MPI_ABORT", "goodbye"][..]),
        ("1", &["signal 9", "goodbye"]),
        ("2", &["goodbye", "exited"]),
    ] {
        let job = mpirun(3, &[], Path::new(&die), &["--how", how]);
        assert!(job.code.is_some_and(|code| code != 0 && code != 124), "{how}: {}", job.told());
        let text = format!("{}{}", job.stdout, job.stderr);
        assert!(words.iter().any(|word| text.contains(word)), "{how}: {}", job.told());
        assert!(!text.contains("FAILED"), "{}", job.told());
    }
}
