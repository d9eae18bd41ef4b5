//! The device parameter file that Open MPI ships is read whole.

use btl_core::params::{CreditRoute, DeviceParams};
use std::path::Path;

const NAME: &str = "mca-btl-openib-device-params.ini";

/// Where Open MPI's data files are, as its own tool says.
fn shipped() -> String {
    let info = std::process::Command::new("ompi_info")
        .args(["--parsable", "--path", "pkgdatadir"])
        .output();
    let info = info.expect("ompi_info comes with Open MPI");
    let text = String::from_utf8_lossy(&info.stdout).into_owned();
    let dir = text.lines().find_map(|line| line.strip_prefix("path:pkgdatadir:"));
    let file = Path::new(dir.expect("ompi_info says where its data is")).join(NAME);
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

#[test]
fn the_shipped_file_is_read_whole() {
    let mut params = DeviceParams::default();
    params.read(NAME, &shipped());
    assert_eq!(params.warnings(), []);
    assert_eq!(params.sections(), 26);
    let t5 = params.of(0x1425, 0x5410);
    assert_eq!(t5.receive_queues.map(|s| s.value).as_deref(), Some("P,65536,64"));
    assert_eq!(params.of(0x2c9, 25208).mtu.map(|s| s.value), Some(1024));
    assert!(params.of(0x8086, 0).ignore_device.is_some_and(|s| s.value));
    assert_eq!(params.of(0xdead, 1).max_inline_data.map(|s| s.value), Some(Some(128)), "[default]");
}

#[test]
fn a_file_of_the_site_goes_before_it() {
    let mut params = DeviceParams::default();
    params.read(NAME, &shipped());
    params.read(
        "site.ini",
        "[T5]\nvendor_id = 0x1425\nvendor_part_id = 0x5410\ncredit_route = first\n",
    );
    let t5 = params.of(0x1425, 0x5410);
    assert_eq!(t5.credit_route.map(|s| s.value), Some(CreditRoute::FirstLane));
    assert_eq!(t5.receive_queues.map(|s| s.value).as_deref(), Some("P,65536,64"), "still");
}
