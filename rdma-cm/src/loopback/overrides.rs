//! What the user says about loopback: a file, two environment variables, or text from a program's own argument.
//!
//! One entry a line, or several separated by commas: a device's name, or vendor and part as
//! `ibv_device_attr` has them (`ibv_devinfo` prints them), then `yes` or `no`. What follows `#` is the reason, which comes
//! up in errors.
//!
//! ```text
//! siw0          = no       # the firewall drops it
//! 0x1425:0x5410 = yes      # one part of a vendor, in hexadecimal or decimal
//! 0x1425:*      = no       # every other one
//! ```
#![forbid(unsafe_code)]

use std::fs;
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// Names a file of overrides.
pub const LOOPBACK_FILE_VARIABLE: &str = "RDMA_LOOPBACK_FILE";
/// Holds overrides itself; they are stronger than those of the file.
pub const LOOPBACK_VARIABLE: &str = "RDMA_LOOPBACK";

/// What an entry is about, the weakest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Vendor(u32),
    Part(u32, u32),
    Name(String),
}

/// One override and where it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: Key,
    works: bool,
    said: String,
}

/// Overrides in the order in which they were said. The most specific wins, and of equal ones the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides(Vec<Entry>);

/// A device as overrides name it: its name, and vendor and part where it could be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a str,
    pub(crate) part: Option<(u32, u32)>,
}

impl Overrides {
    /// Adds one for a device by name.
    pub(crate) fn push(&mut self, device: &str, works: bool) {
        let key = Key::Name(device.to_owned());
        self.0.push(Entry { key, works, said: "an override of the program".into() });
    }

    /// Adds what a text says; `place` is where it stands, for messages.
    pub(crate) fn read(&mut self, text: &str, place: &str) -> Result<()> {
        for (number, line) in text.lines().enumerate() {
            let (entries, comment) = match line.split_once('#') {
                Some((entries, comment)) => (entries, comment.trim()),
                None => (line, ""),
            };
            for entry in entries.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
                let place = match text.lines().nth(1) {
                    Some(_) => format!("{place}, line {}", number + 1),
                    None => place.to_owned(),
                };
                let (key, works) = parse(entry).map_err(|why| Error::Override {
                    place: place.clone(),
                    entry: entry.to_owned(),
                    why: why.into(),
                })?;
                let reason =
                    if comment.is_empty() { String::new() } else { format!(" ({comment})") };
                let said = format!("{place} says {entry}{reason}");
                self.0.push(Entry { key, works, said });
            }
        }
        Ok(())
    }

    /// Adds what a file says.
    pub(crate) fn read_file(&mut self, path: &str) -> Result<()> {
        let text = fs::read_to_string(path).map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EINVAL);
            Error::errno_of("reading loopback overrides from", errno).about(path)
        })?;
        self.read(&text, path)
    }

    /// What the environment says; it is read once, by the first caller.
    pub(crate) fn from_env() -> Result<Self> {
        static READ: OnceLock<std::result::Result<Overrides, (String, String, String)>> =
            OnceLock::new();
        let read = READ.get_or_init(|| {
            let variable = |name| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
            let file = variable(LOOPBACK_FILE_VARIABLE);
            let text = variable(LOOPBACK_VARIABLE);
            // Only text can be kept for ever and given to every caller.
            Self::from_variables(file.as_deref(), text.as_deref()).map_err(|error| match error {
                Error::Override { place, entry, why } => (place, entry, why.into_owned()),
                other => {
                    (LOOPBACK_FILE_VARIABLE.into(), file.unwrap_or_default(), other.to_string())
                }
            })
        });
        match read {
            Ok(overrides) => Ok(overrides.clone()),
            Err((place, entry, why)) => Err(Error::Override {
                place: place.clone(),
                entry: entry.clone(),
                why: why.clone().into(),
            }),
        }
    }

    fn from_variables(file: Option<&str>, text: Option<&str>) -> Result<Self> {
        let mut overrides = Self::default();
        if let Some(path) = file {
            overrides.read_file(path)?;
        }
        if let Some(text) = text {
            overrides.read(text, LOOPBACK_VARIABLE)?;
        }
        Ok(overrides)
    }

    /// The answer about a device, and who says so.
    pub(crate) fn find(&self, device: Subject<'_>) -> Option<(bool, &str)> {
        let fits = |entry: &&Entry| match &entry.key {
            Key::Name(name) => name == device.name,
            Key::Part(vendor, part) => device.part == Some((*vendor, *part)),
            Key::Vendor(vendor) => device.part.is_some_and(|(v, _)| v == *vendor),
        };
        // Of equal keys max_by_key takes the last.
        let best = self.0.iter().filter(fits).max_by_key(|entry| entry.key.rank());
        best.map(|entry| (entry.works, entry.said.as_str()))
    }
}

impl Key {
    fn rank(&self) -> u8 {
        match self {
            Key::Vendor(_) => 0,
            Key::Part(..) => 1,
            Key::Name(_) => 2,
        }
    }
}

fn parse(entry: &str) -> std::result::Result<(Key, bool), &'static str> {
    let (key, answer) = entry.split_once('=').ok_or("write it as DEVICE = yes or DEVICE = no")?;
    let works = match answer.trim() {
        "yes" => true,
        "no" => false,
        _ => return Err("the answer is yes or no"),
    };
    let key = key.trim();
    let key = match key.split_once(':') {
        Some((vendor, "*")) => Key::Vendor(number(vendor)?),
        Some((vendor, part)) => Key::Part(number(vendor)?, number(part)?),
        None if !key.is_empty() && key.chars().all(|c| c.is_ascii_graphic()) => {
            Key::Name(key.to_owned())
        }
        None => return Err("the name of a device has no spaces and is not empty"),
    };
    Ok((key, works))
}

fn number(text: &str) -> std::result::Result<u32, &'static str> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "vendor and part are numbers like 0x1425:48, and * stands for every part")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Overrides {
        let mut overrides = Overrides::default();
        overrides.read(text, "test").unwrap();
        overrides
    }

    fn answer(overrides: &Overrides, name: &str, part: Option<(u32, u32)>) -> Option<bool> {
        overrides.find(Subject { name, part }).map(|(works, _)| works)
    }

    #[test]
    fn the_most_specific_wins_and_of_equals_the_last() {
        let o = read(
            "# all of Chelsio\n0x1425:* = no\n5157:0x5410 = yes # tried\n\ncxgb4_0=no\nsiw0=no,siw0 = yes",
        );
        assert_eq!(answer(&o, "cxgb4_0", Some((0x1425, 0x5410))), Some(false));
        assert_eq!(answer(&o, "cxgb4_1", Some((0x1425, 0x5410))), Some(true));
        assert_eq!(answer(&o, "cxgb4_1", Some((0x1425, 0x5411))), Some(false));
        assert_eq!(answer(&o, "cxgb4_1", None), None);
        assert_eq!(answer(&o, "siw0", None), Some(true));
        assert_eq!(answer(&o, "siw1", Some((1, 1))), None);
    }

    #[test]
    fn the_place_and_the_reason_are_told() {
        let o = read("\nsiw0 = no # the firewall");
        let said = o.find(Subject { name: "siw0", part: None }).unwrap().1;
        assert_eq!(said, "test, line 2 says siw0 = no (the firewall)");
        let o = read("siw0=no");
        assert_eq!(o.find(Subject { name: "siw0", part: None }).unwrap().1, "test says siw0=no");
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        for (text, word) in [
            ("siw0", "yes"),
            ("siw0 = maybe", "yes or no"),
            ("siw0 = ", "yes or no"),
            ("= no", "name"),
            ("si w0 = no", "name"),
            ("0x14zz:1 = no", "number"),
            ("1:2:3 = no", "number"),
            (":* = no", "number"),
            ("99999999999:1 = no", "number"),
            ("a = yes, b", "yes"),
        ] {
            let error =
                Overrides::default().read(&format!("ok = yes\n{text}"), "file").unwrap_err();
            let message = error.to_string();
            assert!(message.contains("file, line 2") && message.contains(word), "{message}");
        }
    }

    #[test]
    fn variables_beat_the_file_and_a_missing_file_is_an_error() {
        let dir = std::env::temp_dir().join(format!("rdma-loopback-{}", std::process::id()));
        fs::write(&dir, "siw0 = no\nsiw1 = no\n").unwrap();
        let path = dir.to_str().unwrap();
        let read = Overrides::from_variables(Some(path), Some("siw0=yes"));
        let missing = Overrides::from_variables(Some("/no/such/file"), None);
        fs::remove_file(&dir).unwrap();
        let o = read.unwrap();
        assert_eq!(answer(&o, "siw0", None), Some(true));
        assert_eq!(answer(&o, "siw1", None), Some(false));
        let message = missing.unwrap_err().to_string();
        assert!(message.contains("/no/such/file") && message.contains("No such file"), "{message}");
        assert_eq!(Overrides::from_variables(None, None).unwrap(), Overrides::default());
    }
}
