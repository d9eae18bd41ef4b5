//! Names of processes, peers and lanes.
use std::fmt;

/// Nanoseconds of the caller's monotonic clock; only differences mean anything.
pub type Nanos = u64;

/// One second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;

/// The name of a process. The total order decides which of two crossing connects stays: the
/// process with the *lower* name remains the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcName {
    /// The job (Open MPI: the job id of the process name).
    pub job: u64,
    /// The rank within the job.
    pub rank: u32,
}

impl fmt::Display for ProcName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of job {:x}", self.rank, self.job)
    }
}

/// A peer of one engine. Carries a generation, so an id of a removed peer never means another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl PeerId {
    /// A dense index below the highest number of peers the engine ever had; reused after a peer
    /// was removed.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// A lane of one engine. Carries a generation, so that a late completion of a closed lane never
/// touches the lane that took its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl LaneId {
    /// What a lane is called before the engine has it.
    pub(crate) const NONE: LaneId = LaneId { index: u32::MAX, generation: 0 };

    /// A dense index below the highest number of lanes the engine ever had; reused.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Which use of the index this is.
    pub fn generation(self) -> u32 {
        self.generation
    }
}

/// Which end of a connection this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Called connect; must send the first message (RFC 5044 7.1.2).
    Initiator,
    /// Called accept; must not send before it received.
    Acceptor,
}

/// Names one connection between the connection machine and whoever drives it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnToken(pub(crate) u64);

impl ConnToken {
    /// The number, for logs and as a key of the driver's own tables.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}
