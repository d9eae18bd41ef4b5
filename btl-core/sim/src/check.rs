//! The invariants of lanes, computed from bytes, posts and polls alone.
//!
//! Names as in the table of the crate's front page. Nothing here uses `btl_core::credit` or
//! `btl_core::wire`; the header is read by this crate's own [`frame`].
use crate::frame::{self, FrameKind};

/// An invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Invariant {
    S1,
    S2,
    S3,
    S4,
    S5,
    S6,
    S7,
    S8,
    S9,
    S10,
    S11,
    S12,
    S13,
    S14,
    L1,
    L2,
    L3,
    L4,
    L5,
}

impl Invariant {
    /// What it says.
    pub fn meaning(self) -> &'static str {
        match self {
            Invariant::S1 => "no acceptor sends on a lane before it received on it",
            Invariant::S2 => "no credit without a receive posted on the lane ahead of it",
            Invariant::S3 => "no message finds no receive (TERMINATE, RNR NAK)",
            Invariant::S4 => "credits are conserved",
            Invariant::S5 => "no more work is posted than the queues hold",
            Invariant::S6 => "every buffer has one owner and comes home",
            Invariant::S7 => "no completion of a dead lane is acted on",
            Invariant::S8 => "each message once, in order, unchanged; each send ends once",
            Invariant::S9 => "a failure is reported once, for a cause, and nothing comes after",
            Invariant::S10 => "everything that grows has a limit",
            Invariant::S11 => "no panic",
            Invariant::S12 => "who breaks the protocol hurts only itself, and hears why",
            Invariant::S13 => "what was put is in place when a message says so, or a fence ends",
            Invariant::S14 => {
                "with recovery, nothing ends before the peer has it, nor is made again then"
            }
            Invariant::L1 => "everything accepted completes or fails",
            Invariant::L2 => "no deadlock",
            Invariant::L3 => "every connect ends",
            Invariant::L4 => "one connection a lane, with opposite roles",
            Invariant::L5 => "a close ends",
        }
    }
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// How.
    pub what: String,
}

/// What was seen of one queue pair, from its owner's side.
#[derive(Clone, Debug)]
pub struct LaneBook {
    /// Whose it is, and of which class.
    rank: u32,
    class: u8,
    /// Whose the other end is.
    peer: Option<u32>,
    /// In its Hello or the answer to that.
    generation: Option<u32>,
    acceptor: bool,
    /// For reports.
    label: String,
    depth: u64,
    send_depth: u64,
    /// Receives posted.
    posted: u64,
    /// Receives completed and polled.
    recvd: u64,
    /// Well-ended receives among them.
    heard_messages: u64,
    /// Sends posted.
    sent: u64,
    /// Sends completed and polled.
    send_done: u64,
    /// One-sided operations posted and not polled.
    rma_open: u64,
    /// Reads and atomics among those.
    reads_open: u64,
    /// Credits in the messages posted here.
    told: u64,
    /// Credits in the messages polled here.
    heard: u64,
    said_bye: bool,
    heard_bye: bool,
    recover: bool,
    /// Messages of the application sent here, received here, and those acknowledged here and by the peer.
    data_sent: u64,
    data_heard: u64,
    acked: u64,
    heard_acked: u64,
    /// Receives the peer has.
    window: u64,
    /// What the peer did wrong.
    broken: Option<String>,
}

/// What both sides of a lane have at rest (S4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtRest {
    /// Receives posted and unused.
    pub receives: u64,
    /// Of these: told to the peer.
    pub usable: u64,
    /// Of these: not told yet.
    pub untold: u64,
}

/// All queue pairs by number.
#[derive(Debug, Default)]
pub struct LaneChecker {
    /// Someone sends what it must not: look at what arrives.
    pub hostile: bool,
    books: Vec<LaneBook>,
    violations: Vec<Violation>,
}

impl LaneChecker {
    /// A queue pair was made; they are numbered in this order.
    pub fn add(
        &mut self,
        (rank, class): (u32, u8),
        acceptor: bool,
        label: String,
        depth: u16,
        send_depth: u16,
    ) {
        self.books.push(LaneBook {
            rank,
            class,
            peer: None,
            generation: None,
            acceptor,
            label,
            depth: u64::from(depth),
            send_depth: u64::from(send_depth),
            posted: 0,
            recvd: 0,
            heard_messages: 0,
            sent: 0,
            send_done: 0,
            rma_open: 0,
            reads_open: 0,
            told: 0,
            heard: 0,
            said_bye: false,
            heard_bye: false,
            recover: false,
            data_sent: 0,
            data_heard: 0,
            acked: 0,
            heard_acked: 0,
            window: u64::MAX,
            broken: None,
        });
    }

    /// Two queue pairs are the ends of one connection.
    pub fn join(&mut self, a: u32, b: u32) {
        for (here, there) in [(a, b), (b, a)] {
            self.books[here as usize].window = self.books[there as usize].depth;
            self.books[here as usize].peer = Some(self.books[there as usize].rank);
        }
    }

    /// Both ends recover: acknowledgements count, and may follow a goodbye.
    pub fn recovers(&mut self, a: u32, b: u32) {
        for qp in [a, b] {
            self.books[qp as usize].recover = true;
        }
    }

    /// What the peer did wrong on this queue pair.
    pub fn broken_by_peer(&self, qp: u32) -> Option<String> {
        self.books.get(qp as usize)?.broken.clone()
    }

    /// Enters a violation.
    pub fn fail(&mut self, invariant: Invariant, what: String) {
        if self.violations.len() < 16 {
            self.violations.push(Violation { invariant, what });
        }
    }

    /// What was found.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// The lane that credits on another one are for, from the side of who has queue pair `qp`.
    fn named(&self, qp: u32, bytes: &[u8], dialled_here: bool) -> Option<(usize, u64)> {
        let it = frame::other_lane(bytes)?;
        let (rank, peer) = (self.books[qp as usize].rank, self.books[qp as usize].peer);
        let is = |book: &LaneBook| {
            (book.rank, book.peer, book.class) == (rank, peer, it.class)
                && book.generation == Some(it.generation)
                && book.acceptor != (it.dialled == dialled_here)
        };
        Some((self.books.iter().position(is)?, u64::from(it.credits)))
    }

    /// Credits of another lane were posted on `qp`.
    fn told_elsewhere(&mut self, qp: u32, bytes: &[u8]) {
        let Some((other, credits)) = self.named(qp, bytes, true) else {
            let what = "tells credits of a lane that it does not have";
            return self.fail(Invariant::S2, format!("{} {what}", self.books[qp as usize].label));
        };
        let book = &mut self.books[other];
        book.told += credits;
        if 1 + book.told > book.posted {
            let (label, told, posted) = (&book.label, 1 + book.told, book.posted);
            let what = format!("{label} tells {told} receives elsewhere, {posted} are posted");
            self.fail(Invariant::S2, what);
        }
    }

    /// A receive was posted.
    pub fn on_post_recv(&mut self, qp: u32) {
        let book = &mut self.books[qp as usize];
        book.posted += 1;
        if book.posted - book.recvd > book.depth {
            let what = format!("{}: {} receives posted", book.label, book.posted - book.recvd);
            self.fail(Invariant::S5, what);
        }
    }

    /// A message was posted.
    pub fn on_post_send(&mut self, qp: u32, bytes: &[u8]) {
        let book = &mut self.books[qp as usize];
        let mut found = Vec::new();
        book.sent += 1;
        if let Some(what) = &book.broken {
            found.push((Invariant::S12, format!("sends after its peer sent {what}")));
        }
        if book.acceptor && book.heard_messages == 0 {
            found.push((Invariant::S1, "sends before it received anything".to_owned()));
        }
        if book.sent - book.send_done + book.rma_open > book.send_depth {
            let n = book.sent - book.send_done + book.rma_open;
            found.push((Invariant::S5, format!("{n} sends posted of {}", book.send_depth)));
        }
        // One receive is known without being told: the first, for Hello or its answer.
        let usable = 1 + book.heard;
        if book.sent > usable {
            let n = book.sent;
            found.push((Invariant::S2, format!("message {n}, but {usable} told on this lane")));
        }
        match frame::read(bytes) {
            Err(what) => found.push((Invariant::S8, format!("sends a message with {what}"))),
            Ok(view) => {
                if matches!(view.kind, FrameKind::Hello | FrameKind::HelloAck) {
                    book.generation = frame::generation(bytes);
                }
                book.frame_sent(view, &mut found);
                if view.kind == FrameKind::LaneCredit {
                    self.told_elsewhere(qp, bytes);
                }
            }
        }
        for (invariant, what) in found {
            let what = format!("{} {what}", self.books[qp as usize].label);
            self.fail(invariant, what);
        }
    }

    /// A one-sided operation was posted; `reads`: the most reads and atomics there may be.
    pub fn on_post_rma(&mut self, qp: u32, read: bool, reads: u16) {
        let book = &mut self.books[qp as usize];
        let mut found = Vec::new();
        book.rma_open += 1;
        book.reads_open += u64::from(read);
        if book.acceptor && book.heard_messages == 0 {
            found.push((Invariant::S1, "has an operation before it received anything"));
        }
        if !book.acceptor && book.sent == 0 {
            found.push((Invariant::S1, "has an operation before its Hello"));
        }
        if book.said_bye {
            found.push((Invariant::S8, "has an operation after Bye"));
        }
        if book.sent - book.send_done + book.rma_open > book.send_depth {
            found.push((Invariant::S5, "has more posted than its send queue holds"));
        }
        if book.reads_open > u64::from(reads) {
            found.push((Invariant::S5, "has more reads outstanding than were agreed"));
        }
        for (invariant, what) in found {
            let what = format!("{} {what}", self.books[qp as usize].label);
            self.fail(invariant, what);
        }
    }

    /// The completion of one was polled.
    pub fn on_rma_polled(&mut self, qp: u32, read: bool) {
        let book = &mut self.books[qp as usize];
        book.rma_open = book.rma_open.saturating_sub(1);
        book.reads_open = book.reads_open.saturating_sub(u64::from(read));
    }

    /// A completed receive or send was polled; `bytes` are those of a message that arrived.
    pub fn on_polled(&mut self, qp: u32, send: bool, bytes: Option<&[u8]>) {
        let book = &mut self.books[qp as usize];
        if send {
            book.send_done += 1;
            return;
        }
        book.recvd += 1;
        if let Some(bytes) = bytes {
            if self.hostile && book.broken.is_none() {
                book.broken = book.judge(bytes);
            }
            book.heard_messages += 1;
            let data = |view: frame::FrameView| view.kind == FrameKind::Data;
            book.data_heard += u64::from(frame::read_padded(bytes).is_ok_and(data));
            let Ok(view) = frame::read(bytes) else { return };
            if matches!(view.kind, FrameKind::Hello | FrameKind::HelloAck) {
                book.generation = frame::generation(bytes);
            }
            if view.kind != FrameKind::Stray {
                book.heard += u64::from(view.credits);
            }
            if view.kind == FrameKind::LaneCredit
                && let Some((other, credits)) = self.named(qp, bytes, false)
            {
                self.books[other].heard += credits;
            }
        }
    }

    /// Checks the sum of one direction when nothing is under way: `from` sends to `to`.
    pub fn at_rest(&mut self, from: u32, to: u32) -> Option<AtRest> {
        let (a, b) = (&self.books[from as usize], &self.books[to as usize]);
        let receives = b.posted.checked_sub(b.recvd);
        let usable = (1 + a.heard).checked_sub(a.sent);
        let untold = b.posted.checked_sub(1 + b.told);
        let mut found = None;
        let rest = match (receives, usable, untold) {
            (Some(receives), Some(usable), Some(untold)) => {
                if a.heard != b.told || a.sent != b.heard_messages {
                    let (x, y) = (a.sent, b.heard_messages);
                    found = Some(format!("{x} messages left, {y} arrived, at rest"));
                } else if receives != b.depth {
                    found = Some(format!("{receives} of {} receives are posted", b.depth));
                } else if untold >= b.depth.div_ceil(2) {
                    found = Some(format!("{untold} of {} receives were never told", b.depth));
                }
                Some(AtRest { receives, usable, untold })
            }
            _ => {
                found = Some("a sum is negative".to_owned());
                None
            }
        };
        if let Some(what) = found {
            let what = format!("{} to {}: {what}", a.label, b.label);
            self.fail(Invariant::S4, what);
        }
        rest
    }
}

impl LaneBook {
    /// What is wrong with a message that arrives next.
    fn judge(&mut self, bytes: &[u8]) -> Option<String> {
        let view = match frame::read_padded(bytes) {
            Ok(view) => view,
            Err(what) => return Some(format!("a message with {what}")),
        };
        let first = if self.acceptor { FrameKind::Hello } else { FrameKind::HelloAck };
        let greeting = matches!(view.kind, FrameKind::Hello | FrameKind::HelloAck);
        let may = (1 + self.heard + u64::from(view.credits)).saturating_sub(self.sent);
        let late = self.recover && matches!(view.kind, FrameKind::Ack | FrameKind::FenceAck);
        self.heard_acked += u64::from(view.acks);
        let wrong = if self.recover && self.heard_acked > self.data_sent {
            format!("{} acknowledgements of {} messages", self.heard_acked, self.data_sent)
        } else if self.heard_bye && !late {
            format!("{:?} after Bye", view.kind)
        } else if self.heard_messages == 0 && view.kind != first {
            format!("{:?} as its first message", view.kind)
        } else if self.heard_messages > 0 && greeting {
            format!("another {:?}", view.kind)
        } else if may > self.window {
            format!("credits for {may} messages, and has {} receives", self.window)
        } else {
            self.heard_bye |= view.kind == FrameKind::Bye;
            return None;
        };
        Some(wrong)
    }

    fn frame_sent(&mut self, view: frame::FrameView, found: &mut Vec<(Invariant, String)>) {
        let first = match self.acceptor {
            false => FrameKind::Hello,
            true => FrameKind::HelloAck,
        };
        if (self.sent == 1) != (view.kind == first) {
            found.push((Invariant::S1, format!("has {:?} as message {}", view.kind, self.sent)));
        }
        let late = self.recover && matches!(view.kind, FrameKind::Ack | FrameKind::FenceAck);
        if self.said_bye && !late {
            found.push((Invariant::S8, format!("sends {:?} after Bye", view.kind)));
        }
        self.said_bye |= view.kind == FrameKind::Bye;
        self.data_sent += u64::from(view.kind == FrameKind::Data);
        self.acked += u64::from(view.acks);
        if self.acked > self.data_heard {
            let (n, heard) = (self.acked, self.data_heard);
            found.push((Invariant::S14, format!("acknowledges {n} messages, but got {heard}")));
        }
        if view.kind == FrameKind::Stray {
            return;
        }
        self.told += u64::from(view.credits);
        if 1 + self.told > self.posted {
            let (told, posted) = (1 + self.told, self.posted);
            found.push((Invariant::S2, format!("tells {told} receives, {posted} are posted")));
        }
    }
}
