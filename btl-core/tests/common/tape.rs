//! Records what travels, and lets a side speak with the tongue of another version.
use super::Net;
use btl_core::wire::PrivateData;

/// Where the version is in private data, and in the payload of a Hello.
const VERSION_AT: usize = 4;

/// What travelled, oldest first, each with its sender.
#[derive(Default)]
pub struct Tape {
    pub on: bool,
    pub entries: Vec<(usize, &'static str, Vec<u8>)>,
    /// All connect requests say that they are of this version.
    pub version: Option<u8>,
}

impl Net {
    /// Private data, as it is delivered.
    pub(super) fn letter(
        &mut self,
        from: usize,
        what: &'static str,
        data: PrivateData,
    ) -> PrivateData {
        let mut bytes = data.as_slice().to_vec();
        if let (Some(version), "connect") = (self.tape.version, what) {
            bytes[VERSION_AT] = version;
        }
        let data = PrivateData::from_slice(&bytes);
        if self.tape.on {
            self.tape.entries.push((from, what, bytes));
        }
        data
    }

    /// A message.
    pub(super) fn message(&mut self, from: usize, bytes: &[u8]) {
        if self.tape.on {
            self.tape.entries.push((from, "message", bytes.to_vec()));
        }
    }
}
