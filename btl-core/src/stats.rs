//! Counters that are always on.

/// What an engine did since it was made. All counts wrap at 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages of the upper layer given to the device.
    pub messages_sent: u64,
    /// Their payload bytes.
    pub bytes_sent: u64,
    /// Messages of the upper layer received.
    pub messages_received: u64,
    /// Their payload bytes.
    pub bytes_received: u64,
    /// Messages that carried nothing but credits.
    pub credit_only_sent: u64,
    /// Credits told in such messages.
    pub credits_alone: u64,
    /// Credits told in other messages.
    pub credits_piggybacked: u64,
    /// Puts given to the device whole.
    pub puts: u64,
    /// Bytes of puts.
    pub bytes_put: u64,
    /// Gets.
    pub gets: u64,
    /// Bytes of gets.
    pub bytes_got: u64,
    /// Atomics.
    pub atomics: u64,
    /// Fences that ended well.
    pub fences: u64,
    /// Messages that had to wait, by what they waited for first.
    pub stalls: Stalls,
    /// Lanes that came up.
    pub lanes_up: u64,
    /// Lanes that ended.
    pub lanes_closed: u64,
    /// Peers that failed.
    pub peers_failed: u64,
    /// Completions of lanes that were closed before.
    pub stale_completions: u64,
    /// Receives that the device did not take at first.
    pub receives_refused: u64,
}

/// Why messages had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// No connection yet.
    pub connect: u64,
    /// Behind another message that waits.
    pub behind: u64,
    /// Rule 1: the peer's Hello has not come yet.
    pub gate: u64,
    /// Rule 2: no credit.
    pub credit: u64,
    /// Rule 2: one credit left, and none to give back.
    pub last_credit: u64,
    /// The send queue was full.
    pub send_queue: u64,
    /// A one-sided operation: as many reads were outstanding as the connection allows.
    pub reads: u64,
    /// One behind an unfinished fence or piece of its own.
    pub fence: u64,
    /// The device refused for the moment.
    pub device: u64,
}
