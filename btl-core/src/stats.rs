//! Counters that are always on.

/// What an engine did since it was made, or one peer of it since it was added. Plain numbers beside the lane they count
/// for; [`Engine::stats`](crate::Engine::stats) adds them up, [`Engine::report`](crate::Engine::report) has them by peer.
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
    /// Of these, credits told on the first lane of the peer ([`CreditRoute::FirstLane`](crate::CreditRoute)).
    pub credits_on_first_lane: u64,
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
    /// Times that posts of a lane were tried again which the device had refused for the moment.
    pub retries: u64,
    /// Lanes that failed and were made anew ([`Config::recover`](crate::Config::recover)).
    pub recoveries: u64,
    /// Messages and one-sided operations sent again after that.
    pub retransmitted: u64,
    /// Messages that came again and were dropped.
    pub duplicates: u64,
    /// Messages that carried nothing but acknowledgements (and what credits there were).
    pub acks_alone: u64,
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

/// `+=` of every field; one that is left out does not compile.
macro_rules! sum {
    ($name:ident: $($field:ident),* $(,)?) => {
        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                let $name { $($field),* } = other;
                $(self.$field += $field;)*
            }
        }
    };
}

sum!(Stats: messages_sent, bytes_sent, messages_received, bytes_received, credit_only_sent, credits_alone,
    credits_on_first_lane, credits_piggybacked, puts, bytes_put, gets, bytes_got, atomics, fences, stalls, lanes_up,
    lanes_closed, peers_failed, stale_completions, receives_refused, retries, recoveries, retransmitted, duplicates,
    acks_alone);

sum!(Stalls: connect, behind, gate, credit, last_credit, send_queue, reads, fence, device);

/// `credit 12, send queue 3`: what is not 0, or `-`.
impl std::fmt::Display for Stalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            ("connect", self.connect),
            ("others before", self.behind),
            ("Hello", self.gate),
            ("credit", self.credit.wrapping_add(self.last_credit)),
            ("send queue", self.send_queue),
            ("reads", self.reads),
            ("fence", self.fence),
            ("device", self.device),
        ];
        let mut some = all.iter().filter(|(_, n)| *n > 0);
        let Some((why, n)) = some.next() else { return f.write_str("-") };
        write!(f, "{why} {n}")?;
        some.try_for_each(|(why, n)| write!(f, ", {why} {n}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_count_every_part_and_stalls_name_what_is_not_zero() {
        let mut all = Stats::default();
        let stalls = Stalls { credit: 2, last_credit: 1, device: 4, ..Stalls::default() };
        let one = Stats { messages_sent: 3, retries: 5, stalls, ..Stats::default() };
        all += one;
        all += one;
        assert_eq!((all.messages_sent, all.retries, all.stalls.device), (6, 10, 8));
        assert_eq!(stalls.to_string(), "credit 3, device 4");
        assert_eq!(Stalls::default().to_string(), "-");
    }
}
