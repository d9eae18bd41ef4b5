//! Many connects and messages between two processes through the whole of btl-core, without MPI: on
//! one host and across two.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};

use super::mpi::{BROKEN, never_unready, telling};
use super::parts::{clean, test_device};
use super::{Bench, Count};
use crate::cargo;
use crate::demo::mpi::probe;
use crate::deps::{self, Group};
use crate::guest::{Device, Job, KERNEL_TROUBLE};

const LIMIT: Duration = Duration::from_secs(600);
const SOAK_LIMIT: Duration = Duration::from_secs(3600);

/// Builds and runs the example `connect_storm` of btl-core on `device`.
pub(super) fn run(bench: &mut Bench, device: Device) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let built = cargo::build(&[
        "build",
        "--release",
        "--package",
        "btl-core",
        "--example",
        "connect_storm",
    ])?;
    let storm = built.into_iter().find(|artifact| artifact.name == "connect_storm");
    let program = storm.context("btl-core built no example connect_storm")?.path;
    let (connects, messages, limit) =
        if bench.soak { ("10000", "1000000", SOAK_LIMIT) } else { ("1000", "100000", LIMIT) };
    let kind = device.name();
    let (peer_device, first_device) = (format!("{kind}b"), format!("{kind}a"));
    let (name, address) = test_device(device);
    let one_host = vec!["--device", name, "--addr", address];
    let two_hosts = vec![
        "--device",
        &first_device,
        "--addr",
        "10.9.0.1",
        "--via",
        "on-host hostb",
        "--peer-device",
        &peer_device,
        "--peer-addr",
        "10.9.0.2",
    ];
    let mut count = Count::default();
    for (place, across, args) in
        [("on one host", false, one_host), ("across two hosts", true, two_hosts)]
    {
        let mut command = vec![program.clone().into_os_string()];
        let amount = ["--connects", connects, "--messages", messages];
        command.extend(amount.iter().chain(&args).map(OsString::from));
        let mut job = Job::new(device, command, limit)?;
        job.two_hosts = across;
        probe(&mut job, name, "0")?;
        let what = format!("{connects} connects, {messages} messages {place} with {kind}");
        let outcome = bench.in_guest(&what, &job)?;
        let ok = outcome.stdout.lines().any(|line| line.starts_with("OK connects="));
        let result = match outcome.code {
            0 if ok => Ok(()),
            0 => Err("ended without its line OK".to_owned()),
            124 => Err(format!("did not end within {} s", limit.as_secs())),
            code => Err(format!("ended with status {code}: {}", telling(&outcome.stderr))),
        };
        count.case(&what, result);
        let log = clean(&outcome.klog, KERNEL_TROUBLE).and(clean(&outcome.klog, BROKEN));
        count.case(&format!("{what}: the kernel's log"), log);
        if device == Device::Rxe {
            count.case(
                &format!("{what}: every receive was posted in time"),
                never_unready(&outcome),
            );
        }
    }
    Ok(count)
}
