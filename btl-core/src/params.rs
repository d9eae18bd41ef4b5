//! Device parameters from ini files, in the syntax of Open MPI's `mca-btl-openib-device-params.ini`.
//!
//! A section names devices by vendor and part and says how to use them. What is said here goes before what
//! `rdma_safe::quirks` knows; what is not said stays as it is there. This module reads text, not files.
//!
//! ```
//! use btl_core::params::{CreditRoute, DeviceParams};
//! let mut params = DeviceParams::default();
//! params.read("site.ini", "[My NIC]\nvendor_id = 0x1425\nvendor_part_id = 0x5401,0x5402\ncredit_route = own\n");
//! let route = params.of(0x1425, 0x5402).credit_route.unwrap();
//! assert_eq!(route.value, CreditRoute::OwnLane);
//! assert_eq!(route.place.to_string(), "site.ini:4 [My NIC]");
//! assert!(params.of(0x1425, 0x5403).credit_route.is_none());
//! ```
//!
//! | key | value | is |
//! |---|---|---|
//! | `vendor_id`, `vendor_part_id` | integers (decimal, `0x…`, octal `0…`), by commas | the devices; every pair counts |
//! | `credit_route` | `own` or `first` | the lane on which credits travel |
//! | `loopback_capable` | boolean | whether the device can connect to its own address |
//! | `shared_work_queue` | boolean | sends and receives share one ring |
//! | `receive_queues` | text | lanes, in openib's syntax |
//! | `max_inline_data` | bytes, or -1 for the device's own choice | longest inline send |
//! | `mtu` | 256, 512, 1024, 2048 or 4096 | path MTU, bytes |
//! | `use_eager_rdma` | boolean | read and not used: polling on the last byte of a write is against RFC 5040 5.5 |
//! | `rdmacm_reject_causes_connect_error` | boolean | a rejected connect is reported as a connect error |
//! | `ignore_device` | boolean | the device is not used |
//!
//! A boolean is an integer (0: no), `yes`, `no`, `true` or `false`. The section of vendor 0 and part 0 holds for what
//! a device's own sections leave open. A section may be repeated, in the same file or a later one: the last word counts,
//! key by key. A line that cannot be read is a [`Warning`] and is left out; the rest of its section holds.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use ini_core::{Item, Parser};

/// The lane on which credits for a lane's receives travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum CreditRoute {
    /// The lane they are for. Right on every device.
    #[default]
    OwnLane,
    /// The first lane of the peer, as Open MPI's openib did it. Wrong where a receive becomes usable only after earlier
    /// sends of its own queue pair.
    FirstLane,
}

impl fmt::Display for CreditRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnLane => "own",
            Self::FirstLane => "first",
        })
    }
}

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name the file was read under.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Name of the section, empty before the first.
    pub section: Arc<str>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match &*self.section {
            "" => Ok(()),
            name => write!(f, " [{name}]"),
        }
    }
}

/// A value and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub place: Place,
}

/// Something in a file that was not understood, and is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Where it stands.
    pub place: Place,
    /// What is wrong and what is allowed.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// What the files say about one device. `None`: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The lane on which credits travel.
    pub credit_route: Option<Setting<CreditRoute>>,
    /// Whether the device can connect to its own address.
    pub loopback_capable: Option<Setting<bool>>,
    /// Sends and receives share one ring.
    pub shared_work_queue: Option<Setting<bool>>,
    /// Lanes, in openib's syntax; not parsed here.
    pub receive_queues: Option<Setting<String>>,
    /// Longest inline send in bytes; inner `None`: the device's own choice.
    pub max_inline_data: Option<Setting<Option<u32>>>,
    /// Path MTU, bytes.
    pub mtu: Option<Setting<u32>>,
    /// Not used; kept so that it can be shown.
    pub use_eager_rdma: Option<Setting<bool>>,
    /// A rejected connect is reported as a connect error.
    pub rdmacm_reject_causes_connect_error: Option<Setting<bool>>,
    /// The device is not used.
    pub ignore_device: Option<Setting<bool>>,
}

impl Settings {
    /// Takes over what the other says.
    fn override_with(&mut self, other: &Settings) {
        fn take<T: Clone>(to: &mut Option<Setting<T>>, from: &Option<Setting<T>>) {
            if from.is_some() {
                to.clone_from(from);
            }
        }
        take(&mut self.credit_route, &other.credit_route);
        take(&mut self.loopback_capable, &other.loopback_capable);
        take(&mut self.shared_work_queue, &other.shared_work_queue);
        take(&mut self.receive_queues, &other.receive_queues);
        take(&mut self.max_inline_data, &other.max_inline_data);
        take(&mut self.mtu, &other.mtu);
        take(&mut self.use_eager_rdma, &other.use_eager_rdma);
        take(
            &mut self.rdmacm_reject_causes_connect_error,
            &other.rdmacm_reject_causes_connect_error,
        );
        take(&mut self.ignore_device, &other.ignore_device);
    }

    /// Sets one key; says what is wrong otherwise. `None`: there is no such key.
    fn set(&mut self, key: &str, text: &str, place: Place) -> Option<Result<(), String>> {
        fn put<T>(
            to: &mut Option<Setting<T>>,
            value: Result<T, String>,
            place: Place,
        ) -> Result<(), String> {
            *to = Some(Setting { value: value?, place });
            Ok(())
        }
        Some(match key {
            "credit_route" => put(&mut self.credit_route, route(text), place),
            "loopback_capable" => put(&mut self.loopback_capable, boolean(text), place),
            "shared_work_queue" => put(&mut self.shared_work_queue, boolean(text), place),
            "receive_queues" => put(&mut self.receive_queues, Ok(text.to_owned()), place),
            "max_inline_data" => put(&mut self.max_inline_data, inline(text), place),
            "mtu" => put(&mut self.mtu, mtu(text), place),
            "use_eager_rdma" => put(&mut self.use_eager_rdma, boolean(text), place),
            "rdmacm_reject_causes_connect_error" => {
                put(&mut self.rdmacm_reject_causes_connect_error, boolean(text), place)
            }
            "ignore_device" => put(&mut self.ignore_device, boolean(text), place),
            _ => return None,
        })
    }
}

/// One section, as far as it was understood.
#[derive(Clone, Debug, Default)]
struct Section {
    vendors: Vec<u32>,
    parts: Vec<u32>,
    settings: Settings,
}

impl Section {
    fn names(&self, vendor: u32, part: u32) -> bool {
        self.vendors.contains(&vendor) && self.parts.contains(&part)
    }
}

/// What all files said, in the order in which they were read.
#[derive(Clone, Debug, Default)]
pub struct DeviceParams {
    sections: Vec<Section>,
    warnings: Vec<Warning>,
    /// Unknown keys that were warned of, by file.
    unknown: BTreeSet<(Arc<str>, String)>,
}

/// The section being read.
struct Open {
    place: Place,
    /// Line of the section's header.
    header: u32,
    section: Section,
    named: bool,
}

impl DeviceParams {
    /// Reads the text of one more file; what it says goes before what earlier ones said. `name` is for messages.
    pub fn read(&mut self, name: &str, text: &str) {
        // A byte order mark is no letter of the first line; indentation means nothing.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text: String = text.lines().flat_map(|line| [line.trim(), "\n"]).collect();
        // A carriage return within a line ends none, whatever the parser thinks.
        let text = text.replace('\r', " ");
        let file: Arc<str> = name.into();
        let mut open = Open {
            place: Place { file, line: 0, section: "".into() },
            header: 0,
            section: Section::default(),
            named: false,
        };
        let mut parser = Parser::new(&text).comment_char(b'#').auto_trim(true);
        loop {
            open.place.line = parser.line() + 1;
            match parser.next() {
                None => break,
                Some(Item::Section(name)) => {
                    open.place.section = name.into();
                    open.header = open.place.line;
                    open.named = true;
                }
                Some(Item::SectionEnd) => self.close(&mut open),
                Some(Item::Property(key, value)) => self.property(&mut open, key, value),
                Some(Item::Error(line)) => {
                    // Whose values follow is not known, so they belong to nobody.
                    open.named = false;
                    open.place.section = "".into();
                    self.warn(&open.place, format!("`{line}` is no section header: `[name]`"));
                }
                Some(Item::Comment(_) | Item::Blank) => {}
            }
        }
    }

    fn property(&mut self, open: &mut Open, key: &str, value: Option<&str>) {
        if key.starts_with("//") {
            return;
        }
        let value = value.map(|value| value.split(" #").next().unwrap_or(value).trim());
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return self.warn(&open.place, format!("`{key}` has no value: `key = value`"));
        };
        if !open.named {
            return self.warn(&open.place, format!("`{key}` stands in no section"));
        }
        let list = match key {
            "vendor_id" => Some(&mut open.section.vendors),
            "vendor_part_id" => Some(&mut open.section.parts),
            _ => None,
        };
        if let Some(list) = list {
            for word in value.split(',').map(str::trim) {
                match integer(word) {
                    Some(number) => list.push(number),
                    None => self
                        .warn(&open.place, format!("`{word}` in {key} is no integer of 32 bits")),
                }
            }
            return;
        }
        match open.section.settings.set(key, value, open.place.clone()) {
            Some(Ok(())) => {}
            Some(Err(why)) => self.warn(&open.place, format!("{key} = {value}: {why}")),
            None => {
                let seen = (Arc::clone(&open.place.file), key.to_owned());
                if self.unknown.insert(seen) {
                    self.warn(&open.place, format!("there is no key `{key}`; it is ignored"));
                }
            }
        }
    }

    fn close(&mut self, open: &mut Open) {
        let section = std::mem::take(&mut open.section);
        if !open.named {
            return;
        }
        if section.vendors.is_empty() || section.parts.is_empty() {
            let text = "the section names no device: it needs vendor_id and vendor_part_id";
            // Said at the end of the section, but about its beginning.
            let place = Place { line: open.header, ..open.place.clone() };
            self.warn(&place, text.to_owned());
            return;
        }
        self.sections.push(section);
    }

    fn warn(&mut self, place: &Place, text: String) {
        self.warnings.push(Warning { place: place.clone(), text });
    }

    /// Everything that was not understood.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Sections that name a device.
    pub fn sections(&self) -> usize {
        self.sections.len()
    }

    /// Whether a section names this device.
    pub fn knows(&self, vendor: u32, part: u32) -> bool {
        self.sections.iter().any(|section| section.names(vendor, part))
    }

    /// What holds for a device, by its `vendor_id` and `vendor_part_id` of `ibv_query_device(3)`.
    pub fn of(&self, vendor: u32, part: u32) -> Settings {
        let mut settings = Settings::default();
        let own = (vendor, part) != (0, 0);
        for (vendor, part) in [(0, 0)].into_iter().chain(own.then_some((vendor, part))) {
            for section in self.sections.iter().filter(|section| section.names(vendor, part)) {
                settings.override_with(&section.settings);
            }
        }
        settings
    }
}

/// As C's strtoul with base 0 reads it.
fn integer(text: &str) -> Option<u32> {
    let digits = |text: &str, radix| {
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric());
        u32::from_str_radix(text, radix).ok().filter(|_| plain)
    };
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => digits(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => digits(text, 8),
        None => digits(text, 10),
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => integer(text).map(|n| n != 0).ok_or_else(|| "must be 0, 1, yes or no".to_owned()),
    }
}

fn route(text: &str) -> Result<CreditRoute, String> {
    match text {
        "own" => Ok(CreditRoute::OwnLane),
        "first" => Ok(CreditRoute::FirstLane),
        _ => Err("must be own or first".to_owned()),
    }
}

fn inline(text: &str) -> Result<Option<u32>, String> {
    match text {
        "-1" => Ok(None),
        _ => integer(text).map(Some).ok_or_else(|| "must be a number of bytes, or -1".to_owned()),
    }
}

fn mtu(text: &str) -> Result<u32, String> {
    integer(text)
        .filter(|mtu| [256, 512, 1024, 2048, 4096].contains(mtu))
        .ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> DeviceParams {
        let mut params = DeviceParams::default();
        params.read("a.ini", text);
        params
    }

    fn complaints(params: &DeviceParams) -> Vec<String> {
        params.warnings().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn integers_are_read_as_c_reads_them() {
        for (text, value) in [("10", 10), ("0x66a", 0x66a), ("0X1F", 31), ("017", 15), ("0", 0)] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in ["", "0x", "08", "+1", "-1", "1 2", "4294967296", "0x1g", "ten"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn every_pair_of_vendor_and_part_counts_and_the_default_fills_in() {
        let params = read(
            "[default]\nvendor_id = 0\nvendor_part_id = 0\nmtu = 1024\nmax_inline_data = 128\n\
             [N]\n  vendor_id = 0x1,2\nvendor_part_id = 3, 010\nmax_inline_data = -1 # as it likes\n",
        );
        assert_eq!(complaints(&params), [""; 0]);
        for (vendor, part) in [(1, 3), (1, 8), (2, 3), (2, 8)] {
            let settings = params.of(vendor, part);
            assert_eq!(settings.max_inline_data.map(|s| s.value), Some(None));
            assert_eq!(settings.mtu.map(|s| s.value), Some(1024), "from the default");
        }
        assert_eq!(params.of(1, 4).max_inline_data.map(|s| s.value), Some(Some(128)));
        assert!(params.knows(2, 8) && !params.knows(1, 4));
    }

    #[test]
    fn the_last_word_counts_key_by_key_in_later_files_too() {
        let mut params = read("[N]\nvendor_id=1\nvendor_part_id=1\nmtu=256\ncredit_route=own\n");
        params.read("b.ini", "[N again]\nvendor_id=1\nvendor_part_id=1\ncredit_route=first\n");
        params.read("c.ini", "[M]\nvendor_id=9\nvendor_part_id=1\ncredit_route=own\n");
        let settings = params.of(1, 1);
        assert_eq!(
            settings.mtu.as_ref().map(|s| s.place.to_string()).as_deref(),
            Some("a.ini:4 [N]")
        );
        let route = settings.credit_route.unwrap();
        assert_eq!(route.value, CreditRoute::FirstLane);
        assert_eq!(route.place.to_string(), "b.ini:4 [N again]");
        assert_eq!(
            params.of(9, 1).credit_route.unwrap().value,
            CreditRoute::OwnLane,
            "the last file"
        );
    }

    #[test]
    fn what_is_not_understood_is_told_with_its_place_and_the_rest_holds() {
        let params = read(
            "stray = 1\n[N]\nvendor_id = 1,x\nvendor_part_id = 1\nmtu = 9000\nnonsense = 1\nnonsense = 2\n\
             credit_route = both\nmax_inline_data\nloopback_capable = maybe\nshared_work_queue = yes\n\
             // a comment\n[Broken\nmtu = 256\n[Empty]\nmtu = 256\n",
        );
        assert_eq!(
            complaints(&params),
            [
                "a.ini:1: `stray` stands in no section",
                "a.ini:3 [N]: `x` in vendor_id is no integer of 32 bits",
                "a.ini:5 [N]: mtu = 9000: must be 256, 512, 1024, 2048 or 4096",
                "a.ini:6 [N]: there is no key `nonsense`; it is ignored",
                "a.ini:8 [N]: credit_route = both: must be own or first",
                "a.ini:9 [N]: `max_inline_data` has no value: `key = value`",
                "a.ini:10 [N]: loopback_capable = maybe: must be 0, 1, yes or no",
                "a.ini:13: `[Broken` is no section header: `[name]`",
                "a.ini:14: `mtu` stands in no section",
                "a.ini:15 [Empty]: the section names no device: it needs vendor_id and vendor_part_id",
            ]
        );
        let settings = params.of(1, 1);
        assert_eq!(settings.shared_work_queue.map(|s| s.value), Some(true));
        assert!(settings.mtu.is_none() && settings.credit_route.is_none());
    }

    #[test]
    fn odd_files_are_read() {
        assert_eq!(read("").sections(), 0);
        let params = read("\u{feff}[N]\r\nvendor_id = 7\r\nvendor_part_id = 7\r\nmtu = 512");
        assert_eq!(params.of(7, 7).mtu.map(|s| s.value), Some(512));
        assert_eq!(complaints(&params), [""; 0]);
        for text in ["=", "[]", "[", "\0", "a=b=c", "[a]\n=1\n", "\u{1f600} = \u{1f600}"] {
            assert!(read(text).sections() == 0, "{text:?}");
        }
    }
}
