//! Settings of an engine, with their limits.
use crate::credit::MIN_WINDOW;
use crate::error::Error;
use crate::names::{Nanos, ProcName, SECOND};
use crate::route::CreditRoute;
use crate::wire::HEADER;

/// Most lanes a peer can have.
pub const MAX_LANES: usize = 8;
/// Smallest buffer of a lane, in bytes: every control message fits.
pub const MIN_BUFFER: u32 = 256;
/// Largest buffer of a lane, in bytes.
pub const MAX_BUFFER: u32 = 1 << 24;
/// Most receives (or sends) of a lane.
pub const MAX_DEPTH: u16 = 4096;

/// One lane of every peer. Processes may differ in sizes, depths and the number of lanes: each sends
/// what fits the other's buffers, see [`Engine::set_peer_lanes`](crate::Engine::set_peer_lanes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// Bytes of one buffer, header of [`HEADER`] bytes included.
    pub buffer_size: u32,
    /// Receives posted per peer: the window of its sends, at least [`MIN_WINDOW`].
    pub depth: u16,
    /// Places of the send queue per peer, at least 2 (one is kept for control messages).
    pub send_depth: u16,
    /// Send buffers of this size, shared by all peers of the process.
    pub send_slots: u32,
}

/// How lanes that fail are made anew. All limits count from the failure, and begin anew when a message got through (or,
/// with nothing under way, when the new connection lasted for [`backoff_max`](Recovery::backoff_max)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Most connects and dials of a lane before its peer has failed. Default 16.
    pub attempts: u32,
    /// First pause between two of them; it doubles up to `backoff_max`. Default 10 ms.
    pub backoff_min: Nanos,
    /// Longest pause. Default 2 s.
    pub backoff_max: Nanos,
    /// After this long without a connection the peer has failed. Default 60 s.
    pub t_recover: Nanos,
    /// A message that was delivered is acknowledged within this time (and the time to the next poll) also when nothing
    /// else is sent to the peer. Default 100 µs.
    pub t_ack: Nanos,
}

impl Default for Recovery {
    fn default() -> Recovery {
        Recovery {
            attempts: 16,
            backoff_min: SECOND / 100,
            backoff_max: 2 * SECOND,
            t_recover: 60 * SECOND,
            t_ack: SECOND / 10_000,
        }
    }
}

impl Recovery {
    /// The pause before connect number `tries`, from 0.
    pub(crate) fn pause(&self, tries: u32) -> Nanos {
        let doubled = 1u64.checked_shl(tries.saturating_sub(1)).unwrap_or(u64::MAX);
        let pause = self.backoff_min.saturating_mul(doubled).min(self.backoff_max);
        if tries == 0 { 0 } else { pause }
    }

    fn validate(&self) -> Result<(), Error> {
        let check = |what, value: u64, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(Error::Config { what, value, allowed }) }
        };
        let attempts = u64::from(self.attempts);
        check("recover.attempts", attempts, attempts > 0, "at least 1")?;
        for (what, t) in [
            ("recover.backoff_min", self.backoff_min),
            ("recover.backoff_max", self.backoff_max),
            ("recover.t_recover", self.t_recover),
        ] {
            let ok = (SECOND / 1000..=86_400 * SECOND).contains(&t);
            check(what, t, ok, "1 ms to 1 day, in nanoseconds")?;
        }
        let ok = self.backoff_min <= self.backoff_max;
        check("recover.backoff_min", self.backoff_min, ok, "at most recover.backoff_max")?;
        let ok = (1000..=SECOND).contains(&self.t_ack);
        check("recover.t_ack", self.t_ack, ok, "1 µs to 1 s, in nanoseconds")
    }
}

/// Settings of an engine and of the connection machine that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process.
    pub me: ProcName,
    /// Key shared by all processes that may connect to each other; anyone else is rejected.
    pub job: u64,
    /// The lanes of every peer, from small buffers to large ones.
    pub lanes: Vec<LaneConfig>,
    /// Most peers an engine keeps.
    pub max_peers: u32,
    /// Puts, gets, atomics and fences under way at a time, of all peers; 0 for none. Each takes some 150 bytes.
    pub rma_ops: u32,
    /// RDMA reads and atomics outstanding towards each peer at a time, and allowed to it; cut to what the device can.
    /// Not more than the devices of most peers can: the smaller of both sides' counts.
    pub rma_reads: u8,
    /// On which lane credits travel that have no message to ride on. Anything but their own needs the peer's consent,
    /// and a device that can be trusted with it: see [`route`](crate::route).
    pub credit_route: CreditRoute,
    /// Uses that route also where the device is known to lose messages with it, or may.
    pub force_credit_route: bool,
    /// Makes lanes that fail anew, so that no message is lost or comes twice; `None` (the default): the peer has failed
    /// then. Both sides must have it, else neither does: [`Engine::recovers`](crate::Engine::recovers).
    pub recover: Option<Recovery>,
    /// Limit of one dial, and of an accept.
    pub t_conn: Nanos,
    /// After this long without a connection, a wanted lane has failed.
    pub t_give_up: Nanos,
    /// A process that nobody announced must send its Hello within this time. Peers that were
    /// announced have no such limit.
    pub t_first: Nanos,
    /// Limit of an orderly close.
    pub t_close: Nanos,
    /// First pause between two dials; it doubles up to `backoff_max`.
    pub backoff_min: Nanos,
    /// Longest pause between two dials.
    pub backoff_max: Nanos,
    /// Accepts under way at a time; more connects are told to come back.
    pub max_accepting: u32,
    /// Lanes of processes nobody announced; more connects are told to come back. 0: only
    /// announced processes may connect.
    pub max_unknown: u32,
    /// Test only: rules to break.
    #[cfg(feature = "sabotage")]
    pub sabotage: Sabotage,
}

/// Test only: which rule to break. The simulator and the device tests prove with it that a broken
/// rule is noticed.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// The acceptor does not wait for the Hello (breaks rule 1).
    pub acceptor_sends_at_once: bool,
    /// Only lane 0 says Hello; the other lanes send at will from the start (breaks rule 1).
    pub hello_on_lane_0_only: bool,
    /// Credits of the other lanes are told in messages on lane 0 (breaks rule 2).
    pub credits_on_lane_0: bool,
    /// A receive is told before it is posted (breaks rule 2).
    pub advertise_before_post: bool,
    /// The depth in the private data of connect and accept counts as credits, and most receives
    /// are posted only then (breaks rule 2).
    pub credits_in_private_data: bool,
    /// A message that had to wait gives its credit back when it leaves.
    pub credit_twice: bool,
    /// A message that had to wait costs two credits.
    pub credit_lost: bool,
    /// The last credit may be used by any message.
    pub no_reserve: bool,
    /// What waits is not sent when credits arrive.
    pub deaf_to_grants: bool,
    /// What waits is not sent when Hello arrives.
    pub deaf_to_hello: bool,
    /// Completions of a lane that is over count for the one that has its place now.
    pub old_generations: bool,
    /// Of two crossing connects both are accepted.
    pub both_keep: bool,
    /// Of two crossing connects both are rejected.
    pub both_drop: bool,
    /// One message more than the send queue holds.
    pub send_queue_off_by_one: bool,
    /// Flushed sends do not give their buffers back.
    pub flush_lost: bool,
    /// No grant is too large.
    pub credits_unchecked: bool,
    /// The length in a header is believed.
    pub length_unchecked: bool,
    /// A receive is told when its message is delivered, not when its buffer is released.
    pub release_early: bool,
    /// Puts travel on the last lane, beside the messages that tell of them.
    pub puts_on_last_lane: bool,
    /// With recovery: everything that was not acknowledged is sent again, whatever the peer says it has.
    pub forget_delivered: bool,
    /// With recovery: sends are over when the device is done with them.
    pub acked_too_early: bool,
    /// With recovery: nothing is sent again.
    pub resend_nothing: bool,
    /// With recovery: puts are made again though the peer has a message that was sent after them.
    pub repeat_puts: bool,
    /// With recovery: nobody acknowledges what was not followed by more traffic.
    pub no_tail_acks: bool,
}

impl Config {
    /// The default settings: two lanes, 12 KiB × 16 and 64 KiB × 4. A peer whose lanes are both up pins 448 KiB for its
    /// receives, and less than 512 KiB in all; send buffers are shared by all peers. A known peer that is not connected
    /// costs less than 1 KiB.
    pub fn new(me: ProcName, job: u64) -> Config {
        Config {
            me,
            job,
            lanes: vec![
                LaneConfig { buffer_size: 12 << 10, depth: 16, send_depth: 16, send_slots: 512 },
                LaneConfig { buffer_size: 64 << 10, depth: 4, send_depth: 8, send_slots: 64 },
            ],
            max_peers: 1 << 20,
            rma_ops: 1024,
            rma_reads: 16,
            credit_route: CreditRoute::OwnLane,
            force_credit_route: false,
            recover: None,
            t_conn: 60 * SECOND,
            t_give_up: 300 * SECOND,
            t_first: 30 * SECOND,
            t_close: 5 * SECOND,
            backoff_min: SECOND / 50,
            backoff_max: 2 * SECOND,
            max_accepting: 256,
            max_unknown: 1024,
            #[cfg(feature = "sabotage")]
            sabotage: Sabotage::default(),
        }
    }

    /// The lane of a class.
    pub fn lane(&self, class: u8) -> Option<&LaneConfig> {
        self.lanes.get(usize::from(class))
    }

    /// Send buffers of all classes.
    pub(crate) fn send_slots(&self) -> u32 {
        self.lanes.iter().fold(0, |sum, lane| sum.saturating_add(lane.send_slots))
    }

    /// Messages and one-sided operations under way, control messages apart.
    pub(crate) fn message_entries(&self) -> u32 {
        self.send_slots().saturating_add(self.rma_ops)
    }

    /// Events of messages that may be over all at once: those that a peer acknowledges.
    pub(crate) fn acked_entries(&self) -> usize {
        self.recover.map_or(0, |_| self.message_entries() as usize)
    }

    /// Checks every value against its limits.
    ///
    /// # Errors
    /// [`Error::Config`] names the first value that is out of range, and the range.
    pub fn validate(&self) -> Result<(), Error> {
        let check = |what, value: u64, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(Error::Config { what, value, allowed }) }
        };
        let n = self.lanes.len();
        check("the number of lanes", n as u64, (1..=MAX_LANES).contains(&n), "1 to 8")?;
        let mut last = 0;
        for lane in &self.lanes {
            let size = lane.buffer_size;
            let fits = (MIN_BUFFER..=MAX_BUFFER).contains(&size);
            check("a lane's buffer_size", u64::from(size), fits, "256 bytes to 16 MiB")?;
            check(
                "a lane's buffer_size",
                u64::from(size),
                size > last,
                "larger than the lane's before it",
            )?;
            last = size;
            let depth = (MIN_WINDOW..=MAX_DEPTH).contains(&lane.depth);
            check("a lane's depth", u64::from(lane.depth), depth, "4 to 4096")?;
            let send = (2..=MAX_DEPTH).contains(&lane.send_depth);
            check("a lane's send_depth", u64::from(lane.send_depth), send, "2 to 4096")?;
            let slots = (1..=1 << 20).contains(&lane.send_slots);
            check("a lane's send_slots", u64::from(lane.send_slots), slots, "1 to 1048576")?;
        }
        check("max_peers", u64::from(self.max_peers), self.max_peers > 0, "at least 1")?;
        let ops = u64::from(self.rma_ops);
        check("rma_ops", ops, ops <= 1 << 20, "at most 1048576")?;
        check("rma_reads", u64::from(self.rma_reads), self.rma_reads > 0, "at least 1")?;
        self.recover.iter().try_for_each(Recovery::validate)?;
        check(
            "max_accepting",
            u64::from(self.max_accepting),
            self.max_accepting > 0,
            "at least 1",
        )?;
        for (what, t) in [
            ("t_conn", self.t_conn),
            ("t_give_up", self.t_give_up),
            ("t_first", self.t_first),
            ("t_close", self.t_close),
            ("backoff_min", self.backoff_min),
            ("backoff_max", self.backoff_max),
        ] {
            let ok = (SECOND / 1000..=86_400 * SECOND).contains(&t);
            check(what, t, ok, "1 ms to 1 day, in nanoseconds")?;
        }
        let ok = self.backoff_min <= self.backoff_max;
        check("backoff_min", self.backoff_min, ok, "at most backoff_max")
    }

    /// Payload bytes of the largest message on a lane of `class`.
    pub fn max_payload(&self, class: u8) -> usize {
        self.lane(class).map_or(0, |l| (l.buffer_size as usize).saturating_sub(HEADER))
    }

    /// The smallest class whose buffers hold `len` bytes of payload.
    pub fn class_for(&self, len: usize) -> Option<u8> {
        (0..self.lanes.len() as u8).find(|class| len <= self.max_payload(*class))
    }
}

#[cfg(feature = "sabotage")]
impl Sabotage {
    /// Breaks rules on a lane that was just established. `true`: it says no Hello.
    pub(crate) fn apply_to_setup(
        self,
        acct: &mut crate::lane::LaneAcct,
        role: crate::names::Role,
        class: u8,
        agreed: crate::setup::Agreed,
    ) -> bool {
        if self.hello_on_lane_0_only && class > 0 {
            acct.break_gate(Some(agreed.peer_depth));
            return true;
        }
        if self.acceptor_sends_at_once && role == crate::names::Role::Acceptor {
            acct.break_gate(None);
        }
        if self.no_reserve {
            acct.be_reckless();
        }
        if self.send_queue_off_by_one {
            acct.overbook();
        }
        if self.credits_unchecked {
            acct.set_window(u16::MAX);
        }
        if self.credits_in_private_data {
            acct.all_told(agreed.peer_depth);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let recovery = Recovery::default();
        recovery.validate().unwrap();
        let ms: Vec<u64> = (0..4).map(|n| recovery.pause(n) / (SECOND / 1000)).collect();
        assert_eq!(ms, [0, 10, 20, 40]);
        assert_eq!(recovery.pause(1000), recovery.backoff_max);
    }

    #[test]
    fn defaults_are_valid_and_every_limit_is_named() {
        let good = Config::new(ProcName { job: 1, rank: 0 }, 1);
        good.validate().unwrap();
        assert_eq!(good.class_for(0), Some(0));
        assert_eq!(good.class_for(12288 - 8), Some(0));
        assert_eq!(good.class_for(12288 - 7), Some(1));
        assert_eq!(good.class_for(65536 - 7), None);
        type Change = fn(&mut Config);
        fn recovery(c: &mut Config) -> &mut Recovery {
            c.recover.get_or_insert_default()
        }
        let breaks: [(&str, Change); 18] = [
            ("number of lanes", |c| c.lanes.clear()),
            ("number of lanes", |c| c.lanes = vec![c.lanes[0]; 9]),
            ("buffer_size", |c| c.lanes[0].buffer_size = 255),
            ("buffer_size", |c| c.lanes[1].buffer_size = c.lanes[0].buffer_size),
            ("depth is 3", |c| c.lanes[0].depth = 3),
            ("depth is 4097", |c| c.lanes[0].depth = 4097),
            ("send_depth", |c| c.lanes[0].send_depth = 1),
            ("send_slots", |c| c.lanes[0].send_slots = 0),
            ("max_peers", |c| c.max_peers = 0),
            ("rma_ops", |c| c.rma_ops = (1 << 20) + 1),
            ("rma_reads", |c| c.rma_reads = 0),
            ("max_accepting", |c| c.max_accepting = 0),
            ("t_conn", |c| c.t_conn = 0),
            ("backoff_min", |c| c.backoff_min = c.backoff_max + 1),
            ("recover.attempts", |c| recovery(c).attempts = 0),
            ("recover.backoff_min", |c| recovery(c).backoff_max = SECOND / 1000),
            ("recover.t_recover", |c| recovery(c).t_recover = 0),
            ("recover.t_ack", |c| recovery(c).t_ack = 2 * SECOND),
        ];
        for (text, change) in breaks {
            let mut bad = good.clone();
            change(&mut bad);
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("must be"), "{text}: {error}");
        }
    }
}
