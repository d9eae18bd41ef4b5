//! What ini files say about devices: the ones of `device_param_files`, after those that come with the component.

use crate::opal::{WHY, say, verbose};
use crate::params::PortName;
use btl_core::params::{DeviceParams, Settings};

/// The values for the devices of the field reports; the same syntax as a site's own files.
const SHIPPED: &str = include_str!("../mca-btl-verbs-device-params.ini");
/// How messages name it.
const SHIPPED_NAME: &str = "mca-btl-verbs-device-params.ini (built in)";
/// Faults of files that are told one by one.
const TOLD: usize = 5;

/// Reads the files in order; what a later one says goes before what earlier ones said. A file that cannot be read, and
/// what is not understood in one, is told (by every process with `verbose`, else by the one that is `loud`) and left out.
pub(crate) fn read(files: &[String], loud: bool) -> DeviceParams {
    let mut params = DeviceParams::default();
    params.read(SHIPPED_NAME, SHIPPED);
    let mut faults = Vec::new();
    for file in files {
        match std::fs::read(file) {
            Ok(bytes) => params.read(file, &String::from_utf8_lossy(&bytes)),
            Err(e) => faults.push(format!("{file}: {e}; it is left out")),
        }
    }
    faults.extend(params.warnings().iter().map(ToString::to_string));
    let more = faults.len().saturating_sub(TOLD);
    for fault in faults.iter().take(TOLD) {
        tell(loud, &format!("btl_verbs_device_param_files: {fault}"));
    }
    if more > 0 {
        tell(loud, &format!("btl_verbs_device_param_files: {more} more faults are not shown"));
    }
    params
}

fn tell(loud: bool, text: &str) {
    if loud {
        say(format_args!("{text}"));
    } else {
        verbose!(WHY, "{text}");
    }
}

/// What the files say about a port's device, by its vendor and part. Where none names it, that is told if `warn` says so.
pub(crate) fn settings(
    params: &DeviceParams,
    name: &PortName,
    (vendor, part): (u32, u32),
    warn: bool,
) -> Settings {
    if !params.knows(vendor, part) {
        let text = format!(
            "no file of btl_verbs_device_param_files has a section for {name} (vendor_id = {vendor:#x}, vendor_part_id = \
             {part}); its defaults hold"
        );
        tell(warn, &text);
    }
    params.of(vendor, part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::stub::Stub;
    use btl_core::params::CreditRoute;

    #[test]
    fn the_shipped_values_are_read_whole_and_name_the_reported_devices() {
        let stub = Stub::new();
        let params = read(&[], true);
        assert_eq!(stub.lines(), Vec::<String>::new());
        assert!(params.sections() > 10);
        // A T3, a T4, an NE020, an eHCA: the ones the reports are about.
        for (vendor, part) in [(0x1425, 0x20), (0x1425, 0x4401), (0x1678, 0x110), (0x5076, 1)] {
            let route = params.of(vendor, part).credit_route;
            assert_eq!(route.map(|s| s.value), Some(CreditRoute::OwnLane), "{vendor:#x} {part:#x}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_or_not_understood_is_told_and_left_out() {
        let stub = Stub::new();
        let dir = std::env::temp_dir().join(format!("btl-verbs-ini-{}", std::process::id()));
        let text = "stray = 1\n[A]\nvendor_id = 7\nvendor_part_id = 7\nmtu = 9000\ncredit_route = first\nx\ny\nz\n";
        std::fs::write(&dir, text).expect("a file");
        let files = ["/nowhere/at/all.ini".to_owned(), dir.display().to_string()];
        let params = read(&files, true);
        std::fs::remove_file(&dir).expect("its end");
        let lines = stub.lines();
        assert_eq!(lines.len(), TOLD + 1, "{lines:?}");
        assert!(lines[0].contains("/nowhere/at/all.ini: No such file"), "{}", lines[0]);
        assert!(lines[1].contains(":1: `stray` stands in no section"), "{}", lines[1]);
        assert!(lines[TOLD].contains("more faults are not shown"), "{}", lines[TOLD]);
        let route = params.of(7, 7).credit_route.map(|setting| setting.value);
        assert_eq!(route, Some(CreditRoute::FirstLane), "the rest of the section holds");
        read(&files, false);
        assert_eq!(stub.lines(), Vec::<String>::new(), "the others keep quiet");
    }

    #[test]
    fn a_device_in_no_file_is_told_if_asked_for() {
        let stub = Stub::new();
        let params = read(&[], true);
        let name: PortName = "siw9:1".parse().expect("a port");
        settings(&params, &name, (0xdead, 5), false);
        assert_eq!(stub.lines(), Vec::<String>::new());
        settings(&params, &name, (0xdead, 5), true);
        let lines = stub.lines();
        assert!(lines[0].contains("siw9:1 (vendor_id = 0xdead, vendor_part_id = 5)"), "{lines:?}");
    }
}
