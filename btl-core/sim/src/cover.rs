//! "Sometimes" assertions: what a long run must have met, so that its silence means something.

use crate::swarm::Trick;
use btl_core::error::FaultKind;

macro_rules! hits {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $must:literal;)*) => {
        /// Something that happens sometimes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Hit { $($name),* }

        impl Hit {
            /// All of them.
            pub const ALL: &[Hit] = &[$(Hit::$name),*];

            /// In words.
            pub fn text(self) -> &'static str {
                match self { $(Hit::$name => $text),* }
            }

            /// Whether a clean run of all models must meet it.
            pub fn is_required(self) -> bool {
                match self { $(Hit::$name => $must),* }
            }
        }
    };
}

hits! {
    StallConnect = "a message waited for a connection", true;
    StallBehind = "a message waited behind another", true;
    StallGate = "a message waited for Hello (rule 1)", true;
    StallCredit = "a message waited for a credit (rule 2)", true;
    StallLastCredit = "a message left the last credit alone (rule 2)", true;
    StallSendQueue = "a message waited for the send queue", true;
    StallDevice = "a message waited for the device", true;
    CreditAlone = "credits travelled alone", true;
    CreditElsewhere = "credits travelled on the first lane", true;
    Oneself = "a message of a rank to itself arrived", true;
    RecvRefused = "a receive was refused at first", true;
    AllocBusy = "no send buffer was free", true;
    NewPeer = "an unknown peer connected", true;
    RejectGarbage = "reject: garbage", true;
    RejectVersion = "reject: version", true;
    RejectJob = "reject: job", true;
    RejectWrongProcess = "reject: wrong process", true;
    RejectCrossing = "reject: crossing", true;
    RejectBusy = "reject: busy", true;
    RejectUnknownLane = "reject: unknown lane", true;
    RejectLimits = "reject: limits", true;
    RejectClosing = "reject: closing", true;
    RejectUnknownPeer = "reject: unknown peer", true;
    Refused = "a connect was refused", true;
    DialDeadline = "a dial ran into its deadline", true;
    Lost = "a connect request was lost", true;
    Parked = "a completion came before its lane", true;
    EarlyReceive = "a message came before ESTABLISHED", true;
    LateReceive = "a receive waited behind sends in its work queue", true;
    AckTimeout = "a packet came before the peer was ready", false;
    PostInError = "something was posted on a broken queue pair", true;
    Flushed = "work was flushed", true;
    Gone = "a connection was gone", true;
    ResetLoss = "messages were lost with a reset", true;
    RetryExceeded = "a peer did not answer any more", true;
    PeerFailed = "a peer failed", true;
    Broke = "a queue pair broke", true;
    Died = "a process died", true;
    NeverThere = "a process was never there", true;
    Vanished = "a host was gone without a word", true;
    ClosedEarly = "a rank closed in the middle of everything", true;
    DeviceFatal = "all queue pairs of a device broke", true;
    DeviceRemoved = "a device was removed", true;
    Paused = "a process stood still", true;
    CutShort = "a link was down for a moment", true;
    CutForLong = "a link was down longer than devices try", true;
    CutOneWay = "a link was down in one direction", true;
    AckLost = "a message arrived and its sender could not know", false;
    Enomem = "a post was refused for lack of memory", true;
    Duplicate = "a connect request came twice", true;
    Phantom = "a connect that nobody was behind was accepted", true;
    CmNoise = "an event that means nothing to a connection", true;
    Intruder = "a process that is not of the job connected", true;
    Burst = "completions came in bursts", true;
    Stale = "a completion of a dead queue pair showed up", true;
    NeverCompleted = "a post on a broken queue pair never completed", true;
    CqOverflow = "a completion queue overflowed", false;
    TrickVersion = "hostile: another version", true;
    TrickKind = "hostile: an unknown kind", true;
    TrickShort = "hostile: less than a header", true;
    TrickLength = "hostile: a length that is not there", true;
    TrickCredits = "hostile: all credits there can be", true;
    TrickFewCredits = "hostile: a few credits too many", true;
    TrickNoHello = "hostile: no Hello", true;
    TrickTwoHellos = "hostile: Hello twice", true;
    TrickWrongHello = "hostile: the Hello of another connection", true;
    TrickFlood = "hostile: more messages than credits", true;
    TrickNoise = "hostile: bytes at random", true;
    TrickEarlyBye = "hostile: a message after Bye", true;
    TrickTooLong = "hostile: a message longer than any buffer", true;
    TrickAcks = "hostile: acknowledgements of what was never sent", false;
    TrickResume = "hostile: a Hello that claims what was never sent", false;
    FaultConnect = "peer failed: cannot connect", true;
    FaultProtocol = "peer failed: broke the protocol", true;
    FaultLane = "peer failed: a lane failed", true;
    FaultDisconnected = "peer failed: disconnected", true;
    FaultClosed = "peer failed: it closed", false;
    FaultNoHello = "peer failed: no Hello", false;
    FaultDeviceRemoved = "peer failed: the device was removed", true;
    FaultNotRecovered = "peer failed: a lane could not be made anew", false;
    Recovered = "a lane that failed was made anew", true;
    Resent = "something was sent again", true;
    ComeAgain = "a message came again and was dropped", false;
    AckAlone = "acknowledgements travelled alone", true;
    AtomicUnknown = "an atomic ended without an answer", false;
    Put = "a put ended", true;
    Got = "a get ended", true;
    Counted = "an atomic ended", true;
    Fenced = "a fence ended", true;
    RmaFailed = "a one-sided operation failed", true;
    StallReads = "an operation waited for a read", true;
    StallFence = "an operation waited for a fence or a piece", true;
    PlacedLate = "a put was placed late", true;
    RailDown = "a rail to a peer was dropped", false;
    RailStalled = "a rail to a peer stalled", false;
    RailMoved = "a piece went again over another rail", false;
    Terminate = "TERMINATE: no receive", false;
    RnrNak = "RNR NAK", false;
    RnrExceeded = "RNR retry count exceeded", false;
    MpaConnectError = "MPA: CONNECT_ERROR", false;
    MpaTornDown = "MPA: torn down by the acceptor", false;
    MpaPassed = "MPA: an early message passed", false;
}

impl Hit {
    /// The one for a trick.
    pub fn for_trick(trick: Trick) -> Hit {
        match trick {
            Trick::Version => Hit::TrickVersion,
            Trick::Kind => Hit::TrickKind,
            Trick::Short => Hit::TrickShort,
            Trick::Length => Hit::TrickLength,
            Trick::Credits => Hit::TrickCredits,
            Trick::FewCredits => Hit::TrickFewCredits,
            Trick::NoHello => Hit::TrickNoHello,
            Trick::TwoHellos => Hit::TrickTwoHellos,
            Trick::WrongHello => Hit::TrickWrongHello,
            Trick::Flood => Hit::TrickFlood,
            Trick::Noise => Hit::TrickNoise,
            Trick::EarlyBye => Hit::TrickEarlyBye,
            Trick::TooLong => Hit::TrickTooLong,
            Trick::Acks => Hit::TrickAcks,
            Trick::Resume => Hit::TrickResume,
        }
    }

    /// The one for what happened to a peer.
    pub fn for_fault(kind: &FaultKind) -> Option<Hit> {
        Some(match kind {
            FaultKind::Connect(_) => Hit::FaultConnect,
            FaultKind::Protocol(_) => Hit::FaultProtocol,
            FaultKind::Lane { .. } => Hit::FaultLane,
            FaultKind::Disconnected { .. } => Hit::FaultDisconnected,
            FaultKind::Closed { .. } => Hit::FaultClosed,
            FaultKind::NoHello { .. } => Hit::FaultNoHello,
            FaultKind::DeviceRemoved => Hit::FaultDeviceRemoved,
            FaultKind::NotRecovered { .. } => Hit::FaultNotRecovered,
            _ => return None,
        })
    }
}

/// How often each was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Times, by [`Hit`].
    times: Vec<u64>,
    /// Runs that met it at least once.
    runs: Vec<u64>,
}

impl Default for Cover {
    fn default() -> Self {
        Cover { times: vec![0; Hit::ALL.len()], runs: vec![0; Hit::ALL.len()] }
    }
}

impl Cover {
    /// It happened.
    pub fn hit(&mut self, hit: Hit) {
        self.add(hit, 1);
    }

    /// It happened `n` times.
    pub fn add(&mut self, hit: Hit, n: u64) {
        self.times[hit as usize] += n;
        if n > 0 {
            self.runs[hit as usize] = 1;
        }
    }

    /// How often it happened.
    pub fn count(&self, hit: Hit) -> u64 {
        self.times[hit as usize]
    }

    /// Whether it happened.
    pub fn has(&self, hit: Hit) -> bool {
        self.times[hit as usize] > 0
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Cover) {
        for (a, b) in self.times.iter_mut().zip(&other.times) {
            *a += b;
        }
        for (a, b) in self.runs.iter_mut().zip(&other.runs) {
            *a += b;
        }
    }

    /// Required ones that fewer than 1 % of `runs` have met.
    pub fn missing(&self, runs: u64) -> Vec<Hit> {
        let rare = |hit: &&Hit| hit.is_required() && self.runs[**hit as usize] * 100 < runs;
        Hit::ALL.iter().filter(rare).copied().collect()
    }

    /// One line for each: times, runs, words.
    pub fn lines(&self) -> Vec<String> {
        let line = |hit: &Hit| {
            let at = *hit as usize;
            format!("{:>12} in {:>8} runs  {}", self.times[at], self.runs[at], hit.text())
        };
        Hit::ALL.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_met_is_missing() {
        let mut one = Cover::default();
        one.hit(Hit::Parked);
        one.hit(Hit::Parked);
        let mut sum = Cover::default();
        sum.merge(&one);
        assert!(!sum.missing(100).contains(&Hit::Parked));
        assert!(sum.missing(101).contains(&Hit::Parked));
        assert!(sum.missing(1).contains(&Hit::Lost));
    }
}
