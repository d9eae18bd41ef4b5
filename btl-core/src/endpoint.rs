//! One peer: its lanes by class, and what waits for them.
use crate::error::PeerFault;
use crate::frag::Fifo;
use crate::names::{LaneId, Nanos, PeerId, ProcName};
use crate::recover::Saved;
use crate::stats::Stats;

/// Connections that ended before their Hello was answered, in a row, before the peer has failed.
/// Nothing but Hello was sent on them, so nothing was lost.
pub(crate) const EARLY_ENDS: u8 = 8;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: PeerId,
    pub(crate) name: ProcName,
    pub(crate) state: State,
    /// Whether an address of it is known: it was added, and did not just connect.
    pub(crate) announced: bool,
    /// Whether `PeerConnected` was reported.
    pub(crate) connected: bool,
    pub(crate) classes: Box<[Class]>,
    /// What closed lanes did, and what happened without one.
    pub(crate) stats: Stats,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// Orderly close; the deadline is set by the first poll at a later time than it began.
    Closing(Option<Nanos>),
    Failed(PeerFault),
}

/// One lane class of a peer.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) link: Link,
    /// Payload bytes that fit one buffer of the peer; 0: it has no such lane; [`UNTOLD`]: it did not
    /// say, and has the same as we.
    pub(crate) room: u32,
    /// Messages that wait, oldest first.
    pub(crate) pending: Fifo,
    pub(crate) early_ends: u8,
    /// Kept between connections that recover.
    pub(crate) saved: Option<Box<Saved>>,
}

impl Class {
    /// Messages that wait, for whatever.
    pub(crate) fn waiting(&self) -> u32 {
        self.pending.len() + self.saved.as_ref().map_or(0, |saved| saved.open.len())
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.saved.as_ref().is_some_and(|saved| saved.loss.is_some())
    }
}

/// A peer did not say how large its buffers are.
pub(crate) const UNTOLD: u32 = u32::MAX;

impl Default for Class {
    fn default() -> Class {
        Class {
            link: Link::Idle,
            room: UNTOLD,
            pending: Fifo::default(),
            early_ends: 0,
            saved: None,
        }
    }
}

impl Class {
    /// Whether a message fits, given that it fits the lane here.
    #[inline]
    pub(crate) fn fits(&self, len: u32) -> bool {
        len <= self.room && self.room > 0
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Idle,
    Connecting,
    Up(LaneId),
}

impl Endpoint {
    pub(crate) fn new(id: PeerId, name: ProcName, lanes: usize) -> Endpoint {
        let classes = (0..lanes).map(|_| Class::default()).collect();
        let (state, stats) = (State::Open, Stats::default());
        Endpoint { id, name, state, announced: false, connected: false, classes, stats }
    }

    /// The lane for a message in a buffer of `class`: that class, or where the peer's buffers are
    /// smaller than ours, or it has fewer lanes, the smallest one that fits.
    #[inline]
    pub(crate) fn lane_for(&self, class: u8, len: u32) -> Option<u8> {
        match self.classes.get(usize::from(class)) {
            Some(own) if own.fits(len) => Some(class),
            _ => self.other_lane_for(len),
        }
    }

    #[cold]
    fn other_lane_for(&self, len: u32) -> Option<u8> {
        // An untold lane is as large as ours, which is not what this message is in a buffer for.
        let fits = |class: &Class| class.room != UNTOLD && class.fits(len);
        self.classes.iter().position(fits).and_then(|class| u8::try_from(class).ok())
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing(_))
    }

    /// Messages that wait on all classes.
    pub(crate) fn waiting(&self) -> u32 {
        self.classes.iter().map(Class::waiting).sum()
    }

    /// Whether a lane that failed is to be made anew.
    pub(crate) fn is_recovering(&self) -> bool {
        self.classes.iter().any(Class::is_recovering)
    }

    /// Whether no lane is up.
    pub(crate) fn has_no_lane(&self) -> bool {
        !self.classes.iter().any(|class| matches!(class.link, Link::Up(_)))
    }
}
