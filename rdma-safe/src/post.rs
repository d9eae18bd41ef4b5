//! Why a post was refused.

use crate::slot::Slot;
use std::fmt;

/// Reason of a [`PostError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// As many requests are in flight as the queue is deep: redeem completions (and `reclaim`) first.
    Full,
    /// Longer than the slot, or than `max_inline` for an inline send.
    TooLong,
    /// The queue pair is not in a state for this: receives need INIT, sends an established connection.
    NotConnected,
    /// The queue pair has failed; close it.
    Broken,
    /// The slot belongs to another protection domain.
    WrongDomain,
    /// The group has no such queue pair (any more).
    NoSuchQp,
    /// The device failed the post with this errno. The queue pair keeps the slot and has failed.
    Device(i32),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Full => {
                f.write_str("the queue is full: redeem completions first or make it deeper")
            }
            Why::TooLong => f.write_str("longer than the slot or than an inline send may be"),
            Why::NotConnected => f.write_str(
                "not connected yet: receives need INIT, sends an established connection",
            ),
            Why::Broken => f.write_str("the queue pair has failed: close it"),
            Why::WrongDomain => f.write_str("the slot belongs to another protection domain"),
            Why::NoSuchQp => f.write_str("no such queue pair in this group"),
            Why::Device(e) => write!(
                f,
                "the device failed it ({}): the queue pair keeps the slot and has to be closed",
                std::io::Error::from_raw_os_error(*e)
            ),
        }
    }
}

/// A refused post. The slot is in it if the device never saw it. Nothing was allocated to make it.
#[derive(Debug, thiserror::Error)]
#[error("post refused: {why}")]
#[must_use = "it may hold the slot"]
pub struct PostError {
    /// What was wrong.
    pub why: Why,
    /// The slot, if the device never saw it.
    pub slot: Option<Slot>,
}
