//! Lanes from `receive_queues`, in the syntax of openib.
//!
//! ```text
//! queues = queue (":" queue)*                                    from small buffers to large ones
//! queue  = "P" "," SIZE ["," COUNT ["," LOW ["," WINDOW ["," RESERVE]]]]
//! ```
//! `SIZE` is the bytes of a buffer, `COUNT` the receives posted for each peer (256). `LOW`, `WINDOW` and `RESERVE` tune
//! openib's return of credits; they are checked and not used, since a lane tells its credits on its own queue pair when
//! half of its window is owed. Shared queues (`S`) and XRC queues (`X`) are refused with the reason.

use btl_core::LaneConfig;
use btl_core::config::{MAX_DEPTH, MAX_LANES};
use btl_core::credit::MIN_WINDOW;
use std::fmt;

/// Receives of a queue that does not say.
const COUNT: u16 = 256;
/// Smallest buffer openib's syntax is used with.
const MIN_SIZE: u32 = 64;
/// Largest buffer of a lane.
const MAX_SIZE: u32 = 16 << 20;
/// Smallest buffer of lane 0: ob1's largest header and some payload must fit.
pub(crate) const MIN_EAGER_FRAME: u32 = 1024;
/// Bytes of send buffers of a lane, unless a number is asked for.
const SEND_MEMORY: u32 = 6 << 20;
/// Fewest send buffers of a lane.
pub(crate) const MIN_SLOTS: u32 = 16;
/// Most send buffers of a lane, unless a number is asked for.
const AUTO_SLOTS: u32 = 512;
/// Fewest sends under way on a lane, unless a number is asked for.
const AUTO_SENDS: u16 = 8;
/// In every message about the syntax.
const EXAMPLE: &str = "P,12288,16:P,65536,4";

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Bytes of a buffer, header included.
    pub(crate) size: u32,
    /// Receives posted for each peer.
    pub(crate) count: u16,
}

/// What is wrong with which part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueError {
    /// The entry's number, from 1, and its text; `None`: it is about all of them.
    entry: Option<(usize, String)>,
    /// What is wrong with it.
    why: String,
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((number, text)) = &self.entry {
            write!(f, "entry {number} (\"{text}\"): ")?;
        }
        write!(f, "{}; write for example {EXAMPLE}", self.why)
    }
}

/// Reads a text.
///
/// # Errors
/// The first entry that cannot be used, and why.
pub(crate) fn parse(text: &str) -> Result<Vec<Queue>, QueueError> {
    let mut queues: Vec<Queue> = Vec::new();
    for (i, entry) in text.split(':').enumerate() {
        let entry = entry.trim();
        let wrong = |why| QueueError { entry: Some((i + 1, entry.to_owned())), why };
        let queue = parse_one(entry).map_err(wrong)?;
        if let Some(last) = queues.last().filter(|last| last.size >= queue.size) {
            return Err(wrong(format!(
                "its buffers of {} bytes are not larger than the {} before it",
                queue.size, last.size
            )));
        }
        queues.push(queue);
    }
    let largest = queues.last().map_or(0, |queue| queue.size);
    if largest < MIN_EAGER_FRAME {
        return Err(QueueError {
            entry: None,
            why: format!(
                "the largest buffers have {largest} bytes, but {MIN_EAGER_FRAME} are needed"
            ),
        });
    }
    Ok(queues)
}

fn parse_one(entry: &str) -> Result<Queue, String> {
    let mut fields = entry.split(',').map(str::trim);
    match fields.next() {
        Some("P" | "p") => {}
        Some("S" | "s") => {
            return Err("a receive queue shared by all peers (S) is not supported: an overrun of it is harmless only \
                        on devices that report a receiver which is not ready, and its buffers have no credits; use P"
                .to_owned());
        }
        Some("X" | "x") => {
            return Err(
                "XRC queues (X) exist on InfiniBand only, and rdma_cm cannot connect them; use P"
                    .to_owned(),
            );
        }
        Some("") | None => return Err("it is empty".to_owned()),
        Some(kind) => {
            return Err(format!("the kind \"{kind}\" is unknown; P is a queue for each peer"));
        }
    }
    let size = fields.next().ok_or("the bytes of a buffer are missing")?;
    let size = number("bytes of a buffer", size, MIN_SIZE, MAX_SIZE)?;
    let count = match fields.next() {
        Some(count) => number("receives", count, MIN_WINDOW.into(), MAX_DEPTH.into())?,
        None => COUNT.into(),
    };
    if let Some(low) = fields.next() {
        number("receives at which more are posted", low, 0, count.saturating_sub(1))?;
    }
    for what in ["credits that are told in a message of their own", "reserved receives"] {
        if let Some(field) = fields.next() {
            number(what, field, 0, MAX_DEPTH.into())?;
        }
    }
    if fields.next().is_some() {
        return Err("it has more than six fields".to_owned());
    }
    Ok(Queue { size, count: u16::try_from(count).unwrap_or(MAX_DEPTH) })
}

fn number(what: &str, text: &str, min: u32, max: u32) -> Result<u32, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        _ if !plain => Err(format!("the {what}, \"{text}\", are not a number")),
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(format!("the {what}, {text}, are out of range: {min}..{max} is allowed")),
    }
}

/// How the send side of a lane is made; 0 means automatic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendSide {
    /// Sends under way on a lane to a peer.
    pub(crate) depth: u16,
    /// Send buffers of a lane.
    pub(crate) slots: u32,
}

/// The lanes of a device, and the queues that got none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// From small to large.
    pub(crate) lanes: Vec<LaneConfig>,
    /// Smaller than lane 0 has to be.
    pub(crate) left_out: Vec<Queue>,
}

/// Makes lanes of queues. Lane 0 carries everything that Open MPI matches, so it is the first with buffers of
/// `eager_frame` bytes, or the largest if none has; smaller ones are left out.
///
/// # Errors
/// There are more than the transport has lanes.
pub(crate) fn plan(queues: &[Queue], eager_frame: u32, send: SendSide) -> Result<Plan, QueueError> {
    let last = queues.len().saturating_sub(1);
    let first = queues.iter().position(|queue| queue.size >= eager_frame).unwrap_or(last);
    let (left_out, used) = queues.split_at(first);
    if used.len() > MAX_LANES {
        let why = format!(
            "{} queues hold {eager_frame} bytes and more, but there are {MAX_LANES} lanes",
            used.len()
        );
        return Err(QueueError { entry: None, why });
    }
    let lane = |queue: &Queue| LaneConfig {
        buffer_size: queue.size,
        depth: queue.count,
        send_depth: if send.depth > 0 { send.depth } else { queue.count.max(AUTO_SENDS) },
        send_slots: match send.slots {
            0 => (SEND_MEMORY / queue.size.max(1)).clamp(MIN_SLOTS, AUTO_SLOTS),
            slots => slots,
        },
    };
    Ok(Plan { lanes: used.iter().map(lane).collect(), left_out: left_out.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(size: u32, count: u16) -> Queue {
        Queue { size, count }
    }

    #[test]
    fn openibs_strings_are_read() {
        assert_eq!(parse("P,65536,64"), Ok(vec![queue(65536, 64)]));
        assert_eq!(parse("P,65536,256,192,128"), Ok(vec![queue(65536, 256)]));
        assert_eq!(
            parse(" P, 2048 : p,65536,16,8,4,2 "),
            Ok(vec![queue(2048, 256), queue(65536, 16)])
        );
        assert_eq!(parse("P,128:P,12288,16:P,65536,4").map(|q| q.len()), Ok(3));
    }

    #[test]
    fn every_fault_is_told_with_its_entry_and_an_example() {
        let cases = [
            ("", "entry 1 (\"\"): it is empty"),
            ("P,2048:", "entry 2 (\"\"): it is empty"),
            ("Q,2048", "entry 1 (\"Q,2048\"): the kind \"Q\" is unknown"),
            ("P", "entry 1 (\"P\"): the bytes of a buffer are missing"),
            ("P,x", "the bytes of a buffer, \"x\", are not a number"),
            ("P,-1", "the bytes of a buffer, \"-1\", are not a number"),
            ("P,63", "the bytes of a buffer, 63, are out of range: 64..16777216 is allowed"),
            ("P,99999999999", "99999999999, are out of range"),
            (
                "P,2048,3",
                "entry 1 (\"P,2048,3\"): the receives, 3, are out of range: 4..4096 is allowed",
            ),
            ("P,2048,16,16", "the receives at which more are posted, 16, are out of range: 0..15"),
            ("P,2048,16,8,x", "told in a message of their own, \"x\", are not a number"),
            ("P,2048,16,8,4,2,1", "more than six fields"),
            (
                "P,4096:P,2048",
                "entry 2 (\"P,2048\"): its buffers of 2048 bytes are not larger than the 4096 before it",
            ),
            ("P,2048:P,2048", "not larger than the 2048 before it"),
            ("P,128,64:P,512,64", "the largest buffers have 512 bytes, but 1024 are needed"),
            (
                "P,2048:S,65536,64",
                "entry 2 (\"S,65536,64\"): a receive queue shared by all peers (S)",
            ),
            ("X,2048", "XRC queues (X)"),
        ];
        for (text, expected) in cases {
            let why = parse(text).expect_err(text).to_string();
            assert!(why.contains(expected), "{text}: {why}");
            assert!(why.ends_with("; write for example P,12288,16:P,65536,4"), "{text}: {why}");
        }
        assert!(parse(EXAMPLE).is_ok(), "the example");
    }

    #[test]
    fn lane_0_holds_what_open_mpi_matches() {
        let queues = parse("P,128,256:P,2048,64:P,12288,16:P,65536,4").expect("fine");
        let sizes = |frame| {
            let plan = plan(&queues, frame, SendSide::default()).expect("a plan");
            plan.lanes.iter().map(|lane| lane.buffer_size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(12288), [12288, 65536]);
        assert_eq!(sizes(1024), [2048, 12288, 65536]);
        assert_eq!(sizes(70_000), [65536], "none is so large: the largest, and the limits follow");
        let plan = plan(&queues, 12288, SendSide::default()).expect("a plan");
        assert_eq!(plan.left_out, queues[..2]);
    }

    #[test]
    fn the_send_side_is_automatic_or_as_asked() {
        let made =
            |text: &str, send| plan(&parse(text).expect("fine"), 1024, send).expect("a plan").lanes;
        let auto = made("P,12288,16:P,65536,4:P,1048576,4", SendSide::default());
        let sides: Vec<_> = auto.iter().map(|lane| (lane.send_depth, lane.send_slots)).collect();
        assert_eq!(sides, [(16, 512), (8, 96), (8, 16)]);
        let asked = made("P,12288,16", SendSide { depth: 2, slots: 20 });
        assert_eq!((asked[0].send_depth, asked[0].send_slots), (2, 20));
    }

    #[test]
    fn more_lanes_than_there_are_is_told() {
        let text = (1..=9).map(|i| format!("P,{}", i * 2048)).collect::<Vec<_>>().join(":");
        let queues = parse(&text).expect("fine");
        let why = plan(&queues, 1024, SendSide::default()).expect_err("nine").to_string();
        assert!(why.contains("9 queues hold 1024 bytes and more, but there are 8 lanes"), "{why}");
        assert_eq!(plan(&queues, 4096, SendSide::default()).map(|plan| plan.lanes.len()), Ok(8));
    }
}
