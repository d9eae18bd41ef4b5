//! A drawing of a run: the messages between ranks and lanes, with their credits, and what went wrong.
//!
//! Time runs downwards, one line for each instant at which something happened (so not to scale; the times stand at the
//! left). Each lane of each rank has a column.
use crate::frame::{self, FrameKind};
use btl_core::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

/// A message that left a device.
#[derive(Debug)]
struct Message {
    qp: u32,
    sent: Nanos,
    arrived: Option<(Nanos, u32)>,
    text: String,
    kind: Option<FrameKind>,
}

/// Something that happened at one place.
#[derive(Debug)]
struct Mark {
    at: Nanos,
    rank: u32,
    class: u8,
    text: String,
    bad: bool,
}

/// Records a run and draws it.
#[derive(Debug)]
pub struct Picture {
    /// Rank and class of each queue pair.
    qps: Vec<(u32, u8)>,
    messages: Vec<Message>,
    /// Of each queue pair: its messages on the way, oldest first.
    under_way: BTreeMap<u32, VecDeque<usize>>,
    marks: Vec<Mark>,
    limit: usize,
    left_out: usize,
}

const LEFT: u32 = 110;
const TOP: u32 = 60;
const LANE: u32 = 150;
const GAP: u32 = 60;
const LINE: u32 = 15;

impl Picture {
    /// Keeps at most `limit` messages and as many marks; the first ones.
    pub fn new(limit: usize) -> Picture {
        Picture {
            qps: Vec::new(),
            messages: Vec::new(),
            under_way: BTreeMap::new(),
            marks: Vec::new(),
            limit,
            left_out: 0,
        }
    }

    /// A queue pair was made; they are numbered in this order.
    pub(crate) fn add_qp(&mut self, rank: u32, class: u8) {
        self.qps.push((rank, class));
    }

    /// A message leaves the device of `qp`.
    pub(crate) fn sent(&mut self, at: Nanos, qp: u32, bytes: &[u8]) {
        let index = self.messages.len();
        self.under_way.entry(qp).or_default().push_back(index);
        if index >= self.limit {
            self.left_out += 1;
            return;
        }
        let (text, kind) = match frame::read(bytes) {
            Ok(view) => {
                let credits = match view.credits {
                    0 => String::new(),
                    n => format!(" +{n}"),
                };
                let size = match view.kind {
                    FrameKind::Data => format!(" {} B", view.payload),
                    _ => String::new(),
                };
                (format!("{:?}{size}{credits}", view.kind), Some(view.kind))
            }
            Err(why) => (why.to_owned(), None),
        };
        self.messages.push(Message { qp, sent: at, arrived: None, text, kind });
    }

    /// The oldest message on its way from `qp` arrives at `peer`.
    pub(crate) fn arrived(&mut self, at: Nanos, qp: u32, peer: u32) {
        let first = self.under_way.get_mut(&qp).and_then(VecDeque::pop_front);
        if let Some(message) = first.and_then(|index| self.messages.get_mut(index)) {
            message.arrived = Some((at, peer));
        }
    }

    /// Something happened to a queue pair.
    pub(crate) fn mark_qp(&mut self, at: Nanos, qp: u32, text: impl Into<String>, bad: bool) {
        if let Some((rank, class)) = self.qps.get(qp as usize).copied() {
            self.mark(at, rank, class, text, bad);
        }
    }

    /// Something happened to a rank's lane.
    pub(crate) fn mark(
        &mut self,
        at: Nanos,
        rank: u32,
        class: u8,
        text: impl Into<String>,
        bad: bool,
    ) {
        // What went wrong is what the reader looks for.
        if bad || self.marks.len() < self.limit {
            self.marks.push(Mark { at, rank, class, text: text.into(), bad });
        }
    }

    /// The drawing as SVG.
    pub fn svg(&self, title: &str) -> String {
        let columns = self.columns();
        let lines = self.lines();
        let width = LEFT + columns.values().max().map_or(0, |x| x + LANE);
        let height = TOP + (lines.len() as u32 + 4) * LINE;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"10\">\n\
             <defs><marker id=\"a\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"6\" markerHeight=\"6\" \
             orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"context-stroke\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"10\" y=\"16\" font-size=\"13\">{}</text>\n",
            escape(title)
        );
        for ((rank, class), x) in &columns {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"40\" text-anchor=\"middle\" font-weight=\"bold\">rank {rank} lane {class}</text>\
                 <line x1=\"{x}\" y1=\"46\" x2=\"{x}\" y2=\"{}\" stroke=\"#bbb\"/>",
                height - LINE
            );
        }
        for (at, y) in &lines {
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#888\">{}.{:03} us</text>",
                LEFT - 16,
                y + 3,
                at / 1000,
                at % 1000
            );
        }
        self.messages.iter().for_each(|message| self.draw(message, &columns, &lines, &mut out));
        for mark in &self.marks {
            let (Some(x), Some(y)) = (columns.get(&(mark.rank, mark.class)), lines.get(&mark.at))
            else {
                continue;
            };
            let colour = if mark.bad { "#d00000" } else { "#888" };
            let _ = writeln!(
                out,
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
                x + 6,
                y + 3,
                escape(&mark.text)
            );
        }
        if self.left_out > 0 {
            let _ = writeln!(
                out,
                "<text x=\"{LEFT}\" y=\"{}\">{} later messages are left out</text>",
                height - 4,
                self.left_out
            );
        }
        out + "</svg>\n"
    }

    fn draw(
        &self,
        message: &Message,
        columns: &BTreeMap<(u32, u8), u32>,
        lines: &BTreeMap<Nanos, u32>,
        out: &mut String,
    ) {
        let place = |qp: u32| columns.get(self.qps.get(qp as usize)?).copied();
        let (Some(x1), Some(y1)) = (place(message.qp), lines.get(&message.sent).copied()) else {
            return;
        };
        let end = message.arrived.and_then(|(at, peer)| Some((place(peer)?, *lines.get(&at)?)));
        let (x2, y2) = end.unwrap_or((x1 + LANE / 3, y1 + LINE));
        let colour = match message.kind {
            _ if end.is_none() => "#d00000",
            Some(FrameKind::Hello | FrameKind::HelloAck) => "#2060c0",
            Some(FrameKind::Data) => "#222",
            Some(FrameKind::Credit | FrameKind::LaneCredit | FrameKind::Ack) => "#108040",
            Some(FrameKind::Bye) => "#8040a0",
            Some(FrameKind::Fence | FrameKind::FenceAck) => "#907010",
            Some(FrameKind::Stray) | None => "#d00000",
        };
        let dash = if end.is_none() { " stroke-dasharray=\"3 3\"" } else { "" };
        let lost = if end.is_none() { " (did not arrive)" } else { "" };
        // The text stands at the sender's end, on the side to which the arrow goes.
        let (tx, anchor) = if x2 >= x1 { (x1 + 6, "start") } else { (x1 - 6, "end") };
        let _ = writeln!(
            out,
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{colour}\"{dash} marker-end=\"url(#a)\"/>\
             <text x=\"{tx}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{}{lost}</text>",
            y1 - 2,
            escape(&message.text)
        );
    }

    /// Where the column of each lane stands.
    fn columns(&self) -> BTreeMap<(u32, u8), u32> {
        let marked = self.marks.iter().map(|mark| (mark.rank, mark.class));
        let all: BTreeSet<(u32, u8)> = self.qps.iter().copied().chain(marked).collect();
        let mut x = LEFT;
        let mut last = None;
        let mut columns = BTreeMap::new();
        for (rank, class) in all {
            if last.is_some_and(|last| last != rank) {
                x += GAP;
            }
            last = Some(rank);
            columns.insert((rank, class), x);
            x += LANE;
        }
        columns
    }

    /// The line of each instant.
    fn lines(&self) -> BTreeMap<Nanos, u32> {
        let messages = self.messages.iter();
        let ends = messages.flat_map(|m| [Some(m.sent), m.arrived.map(|(at, _)| at)]).flatten();
        let all: BTreeSet<Nanos> = ends.chain(self.marks.iter().map(|mark| mark.at)).collect();
        all.into_iter().enumerate().map(|(i, at)| (at, TOP + i as u32 * LINE)).collect()
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_matched_in_order_and_lost_ones_are_told() {
        let mut picture = Picture::new(2);
        picture.add_qp(0, 0);
        picture.add_qp(1, 0);
        picture.sent(10, 0, &[0x21, 0, 2, 0, 0, 0, 0, 0]);
        picture.sent(20, 0, &[0x23, 0, 0, 0, 0, 0, 0, 0]);
        picture.sent(30, 0, &[0x24, 0, 1, 0, 0, 0, 0, 0]);
        picture.arrived(40, 0, 1);
        picture.mark_qp(50, 1, "died <here>", true);
        let svg = picture.svg("a & b");
        assert!(svg.contains("Hello +2</text>"), "{svg}");
        assert!(svg.contains("Data 0 B (did not arrive)"), "{svg}");
        assert!(svg.contains("1 later messages are left out"), "{svg}");
        assert!(svg.contains("died &lt;here&gt;") && svg.contains("a &amp; b"), "{svg}");
        assert_eq!(svg.matches("<line ").count(), 2 + 2, "two columns, two messages");
    }
}
