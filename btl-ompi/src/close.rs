//! The end of a rail: an orderly close within a limit.

use crate::clock::monotonic;
use crate::opal::{LIFE, say, verbose};
use crate::rail::{Inner, Rail};
use btl_core::report::{PeerReport, PeerState};
use btl_core::{Event, SECOND};
use std::time::Duration;

/// Between two looks for the answers of peers.
const PAUSE: Duration = Duration::from_micros(200);

/// Closes a rail; does nothing if it is closed already. Afterwards its queue pairs, memory and
/// threads are gone. Takes at most twice the limit of the close and one second more, whatever peers
/// do; and as long as the kernel holds a connect that a peer has not answered (soft iWARP: 10 s).
pub(crate) fn close(rail: &Rail) {
    let Some(mut inner) = rail.take() else {
        // Open MPI's cache may be there without an engine, when the opening failed.
        rail.close_memory();
        return;
    };
    if inner.about.report {
        let left = inner.engine.report().into_iter();
        let left: Vec<_> =
            left.filter(|report| report.state != PeerState::Closing && matters(report)).collect();
        inner.reports.extend(left);
    }
    let start = monotonic();
    let limit = inner.about.t_close.saturating_mul(2).saturating_add(SECOND);
    inner.engine.close(start);
    let in_order = loop {
        let now = monotonic();
        match inner.engine.poll(now) {
            Some(Event::Closed) => break true,
            Some(event) => discard(&mut inner, event),
            None if now.saturating_sub(start) > limit => break false,
            // Nothing here is in a hurry, and on a machine with few CPUs the peers need them to
            // answer.
            None => std::thread::sleep(PAUSE),
        }
    };
    if in_order {
        verbose!(LIFE, "{} is closed", inner.about.name);
    } else {
        say(format_args!(
            "{} did not close in order within {} ms",
            inner.about.name,
            limit / 1_000_000
        ));
    }
    if inner.about.report {
        report(&inner);
    }
    // First the queue pairs, then the memory that they use.
    drop(inner);
    rail.close_memory();
}

/// Open MPI is not told of anything any more.
fn discard(inner: &mut Inner, event: crate::driver::Event) {
    match event {
        Event::Message { tag, buf, .. } => {
            verbose!(LIFE, "{}: a message with tag {tag:#x} came too late", inner.about.name);
            inner.engine.release(buf);
        }
        Event::Sent { buf: Some(buf), .. } => inner.engine.free(buf),
        Event::Sent { buf: None, .. } | Event::Closed => {}
        Event::PeerFailed { fault, .. } => {
            verbose!(LIFE, "{}: while closing: {fault}", inner.about.name)
        }
        Event::PeerConnected { .. }
        | Event::NewPeer { .. }
        | Event::Done { .. }
        | Event::Fenced { .. } => {}
    }
}

/// Whether a peer is worth a line: it is connected, or something was sent, received or done. Who said goodbye first is
/// idle by now.
pub(crate) fn matters(report: &PeerReport) -> bool {
    let stats = &report.stats;
    let carried =
        [stats.messages_sent, stats.messages_received, stats.puts, stats.gets, stats.atomics];
    report.state != PeerState::Idle || carried.iter().any(|n| *n > 0)
}

/// One line for each peer, and one that says what this rail carried.
fn report(inner: &Inner) {
    for report in &inner.reports {
        say(format_args!("peer {report}"));
    }
    let stats = inner.engine.stats();
    let stalls = &stats.stalls;
    say(format_args!(
        "{}: sent {} messages ({} B), received {} ({} B), put {} ({} B), got {} ({} B), atomics {}, \
         {} lanes, credits {} with messages and {} alone; waited for: connect {}, first message {}, credits {}, send queue {}",
        inner.about.name,
        stats.messages_sent,
        stats.bytes_sent,
        stats.messages_received,
        stats.bytes_received,
        stats.puts,
        stats.bytes_put,
        stats.gets,
        stats.bytes_got,
        stats.atomics,
        stats.lanes_up,
        stats.credits_piggybacked,
        stats.credits_alone,
        stalls.connect,
        stalls.gate,
        stalls.credit.saturating_add(stalls.last_credit),
        stalls.send_queue,
    ));
}
