//! The example programs of rdma-cm and btl-core, as a reader would run them: both sides, on a device.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::parts::{clean, test_device};
use super::{Bench, Count};
use crate::cargo;
use crate::deps::{self, Group};
use crate::guest::{Device, Job, KERNEL_TROUBLE};
use crate::paths;

const LIMIT: Duration = Duration::from_secs(90);
/// Most lines of an example of rdma-cm, so that it can be taken in at one look; of btl-core's, which have an engine to drive.
const LINES_MAX: usize = 79;
const CORE_LINES_MAX: usize = 150;
/// The examples of btl-core that are run here. Of the others, one is a stress test with a part of its own, one belongs to
/// `doctor`, and `memory_port` is in the documentation, whose tests run it.
const CORE: &[&str] = &["active_messages"];

/// One run. In the script `$E` is the folder of the programs and `$A` the device's address; the shell ends at the first command
/// that fails. A client is started until its server is there.
struct Case {
    example: &'static str,
    what: &'static str,
    /// Where it works; elsewhere it has to say that it does not.
    on: &'static [Device],
    script: &'static str,
}

const BOTH: &[Device] = &[Device::Siw, Device::Rxe];

const CASES: &[Case] = &[
    Case {
        example: "devinfo",
        what: "names the device and its address",
        on: BOTH,
        script: r#"$E/devinfo | tee out; grep -q "$A" out"#,
    },
    Case {
        example: "ping_pong",
        what: "answers 200 messages of 1000 bytes",
        on: BOTH,
        script: r#"$E/ping_pong serve $A:7471 & until $E/ping_pong $A:7471 200 1000; do sleep 0.2; done; kill $!"#,
    },
    Case {
        example: "file_copy",
        what: "copies 5 MB",
        on: BOTH,
        script: r#"head -c 5000001 /dev/urandom >in; $E/file_copy receive $A:7471 out &
            until $E/file_copy $A:7471 in; do sleep 0.2; done; wait $!; cmp in out"#,
    },
    Case {
        example: "file_copy",
        what: "copies an empty file",
        on: BOTH,
        script: r#": >in; $E/file_copy receive $A:7471 out & until $E/file_copy $A:7471 in; do sleep 0.2; done; wait $!; cmp in out"#,
    },
    Case {
        example: "kv",
        what: "finds what is there and says what is not",
        on: BOTH,
        script: r#"$E/kv $A:7471 name=Ada 'two words=a=b' &
            until test "$($E/kv $A:7471 name)" = Ada; do sleep 0.2; done
            test "$($E/kv $A:7471 'two words')" = a=b
            if $E/kv $A:7471 nam 2>err; then exit 1; fi; grep -q 'no such key' err; kill $!"#,
    },
    Case {
        example: "chat",
        what: "carries words between two programs",
        on: &[Device::Rxe],
        script: r#"(for i in 1 2 3 4 5 6; do sleep 0.5; echo "I am here $i"; done) | $E/chat $A 239.1.2.3 ada >ada.out &
            (for i in 1 2 3 4 5 6; do sleep 0.5; echo "so am I $i"; done) | $E/chat $A 239.1.2.3 bob >bob.out
            wait; grep -q 'bob: so am I' ada.out; grep -q 'ada: I am here' bob.out"#,
    },
    Case {
        example: "chat",
        what: "says that there are no datagrams",
        on: &[Device::Siw],
        script: r#"if $E/chat $A 239.1.2.3 ada 2>err; then exit 1; fi; grep -q 'neither datagrams nor multicast' err"#,
    },
    Case {
        example: "tokio_echo",
        what: "echoes 500 messages",
        on: BOTH,
        script: r#"$E/tokio_echo server $A:7471 & until $E/tokio_echo client $A:7471 500; do sleep 0.2; done; kill $!"#,
    },
    Case {
        example: "active_messages",
        what: "calls its own function 1000 times over a lane to itself",
        on: BOTH,
        script: r#"$E/active_messages | tee out; grep -q '= 500500' out"#,
    },
];

pub(super) fn run(bench: &mut Bench, device: Device) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let built =
        cargo::build(&["build", "--package", "rdma-cm", "--examples", "--features", "tokio"])?;
    let core = cargo::build(&["build", "--package", "btl-core", "--example", "active_messages"])?;
    let shown = |a: &&cargo::Artifact| a.kind == "example" && CORE.contains(&a.name.as_str());
    let core = core.iter().filter(shown);
    let programs: Vec<_> = built.iter().filter(|a| a.kind == "example").chain(core).collect();
    let folder =
        programs.first().and_then(|a| a.path.parent()).context("rdma-cm has no examples")?;
    let mut count = Count::default();
    let tried: BTreeSet<&str> = CASES.iter().map(|case| case.example).collect();
    for program in &programs {
        let name = &program.name;
        count.case(
            name,
            match tried.contains(name.as_str()) {
                true => Ok(()),
                false => Err("is not run by any test".to_owned()),
            },
        );
        let (package, most) = match CORE.contains(&name.as_str()) {
            true => ("btl-core", CORE_LINES_MAX),
            false => ("rdma-cm", LINES_MAX),
        };
        let file = paths::root().join(package).join("examples").join(format!("{name}.rs"));
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let lines = text.lines().count();
        count.case(
            &format!("the length of {name}"),
            match lines <= most {
                true => Ok(()),
                false => Err(format!("{lines} lines are more than {most}")),
            },
        );
    }
    let (name, address) = test_device(device);
    for case in CASES.iter().filter(|case| case.on.contains(&device)) {
        let script = format!("set -eu; cd \"$(mktemp -d)\"; {}", case.script);
        let command = ["bash", "-c", &script].map(Into::into).to_vec();
        let mut job = Job::new(device, command, LIMIT)?;
        job.env = vec![
            ("E".to_owned(), folder.to_string_lossy().into_owned()),
            ("A".to_owned(), address.to_owned()),
        ];
        let what = format!("{} {} on {name}", case.example, case.what);
        let outcome = bench.in_guest(&what, &job)?;
        count.case(
            &what,
            match outcome.code {
                0 => clean(&outcome.klog, KERNEL_TROUBLE),
                124 => Err("hung".to_owned()),
                code => Err(format!("status {code}: {}", outcome.stderr.trim())),
            },
        );
    }
    Ok(count)
}
