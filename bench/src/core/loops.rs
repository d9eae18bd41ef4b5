//! What is counted, an operation at a time. The functions whose instructions are collected have names that valgrind can be told.
//!
//! Both ends are in one process and one thread, so what each end does is known without asking a clock.

use btl_core::{Event, PeerId, SendBuf, Sent};
use rdma_safe::Slot;

use crate::{Core, Outcome, fabric};

/// Bytes of a message.
const MESSAGE: usize = 8;
const TAG: u8 = 7;
/// Messages of a burst: more than the window.
const BURST: usize = 40;
/// No timer is due.
const NOW: u64 = 0;

/// One end.
pub(crate) struct End {
    core: Core,
    peer: PeerId,
    /// The buffer that the last message left, as in the other loops, which send one slot again and again.
    buf: Option<SendBuf<Slot>>,
    sent: u64,
    heard: u64,
}

impl End {
    fn new(mut core: Core, peer: PeerId) -> End {
        let buf = core.alloc(MESSAGE).ok();
        End { core, peer, buf, sent: 0, heard: 0 }
    }
}

/// Ends the program where a loop meets what cannot be.
#[cold]
#[inline(never)]
fn broken() -> ! {
    std::process::abort()
}

/// Sends one message.
#[allow(unsafe_code)] // the name: nothing else in the program has it
#[unsafe(no_mangle)]
#[inline(never)]
fn core_say(end: &mut End) {
    let Some(mut buf) = end.buf.take() else { broken() };
    match buf.first_chunk_mut::<MESSAGE>() {
        Some(to) => *to = end.sent.to_le_bytes(),
        None => broken(),
    }
    match end.core.send(end.peer, TAG, buf, end.sent) {
        Ok(Sent::Posted) => end.sent += 1,
        _ => broken(),
    }
}

/// Takes the buffer of a message that has left.
#[allow(unsafe_code)] // the name: nothing else in the program has it
#[unsafe(no_mangle)]
#[inline(never)]
fn core_reap(end: &mut End) {
    match end.core.poll(NOW) {
        Some(Event::Sent { buf: Some(buf), result: Ok(()), .. }) => end.buf = Some(buf),
        _ => broken(),
    }
}

/// Receives one message and releases its buffer.
#[allow(unsafe_code)] // the name: nothing else in the program has it
#[unsafe(no_mangle)]
#[inline(never)]
fn core_hear(end: &mut End) {
    match end.core.poll(NOW) {
        Some(Event::Message { buf, tag: TAG, .. }) if *buf == end.heard.to_le_bytes() => {
            end.heard += 1;
            end.core.release(buf);
        }
        _ => broken(),
    }
}

/// Finds nothing.
#[allow(unsafe_code)] // the name: nothing else in the program has it
#[unsafe(no_mangle)]
#[inline(never)]
fn core_empty(end: &mut End) {
    if end.core.poll(NOW).is_some() {
        broken();
    }
}

pub(crate) fn run(scenario: &str, count: usize) -> Outcome {
    let [mut a, mut b] = fabric::pair()?.map(|(core, peer)| End::new(core, peer));
    match scenario {
        "flood" => {
            for _ in 0..count {
                core_say(&mut a);
                core_hear(&mut b);
                core_reap(&mut a);
            }
        }
        "pingpong" => {
            for _ in 0..count {
                core_say(&mut a);
                core_reap(&mut a);
                core_hear(&mut b);
                core_say(&mut b);
                core_reap(&mut b);
                core_hear(&mut a);
            }
        }
        "empty" => {
            core_empty(&mut a);
            for _ in 0..count {
                core_empty(&mut a);
            }
        }
        "burst" => {
            for _ in 0..count {
                burst(&mut a, &mut b)?;
            }
        }
        other => return Err(format!("there is no {other}").into()),
    }
    check_credits(scenario, count, &a, &b)
}

/// More than the window holds at a time: what has to wait leaves as credits come.
fn burst(a: &mut End, b: &mut End) -> Outcome {
    for _ in 0..BURST {
        let mut buf = a.core.alloc(MESSAGE)?;
        buf.copy_from_slice(&a.sent.to_le_bytes());
        a.core.send(a.peer, TAG, buf, a.sent).map_err(|refused| refused.kind)?;
        a.sent += 1;
    }
    let until = b.heard + BURST as u64;
    let mut left = BURST;
    while b.heard < until || left > 0 {
        while b.heard < until
            && let Some(event) = b.core.poll(NOW)
        {
            if let Event::Message { buf, .. } = event {
                b.heard += 1;
                b.core.release(buf);
            }
        }
        while let Some(event) = a.core.poll(NOW) {
            if let Event::Sent { buf: Some(buf), .. } = event {
                left -= 1;
                a.core.free(buf);
            }
        }
    }
    Ok(())
}

/// A flood makes at most one message of credits for half a window; an exchange makes none.
fn check_credits(scenario: &str, count: usize, a: &End, b: &End) -> Outcome {
    let alone = a.core.stats().credit_only_sent + b.core.stats().credit_only_sent;
    let most = match scenario {
        "pingpong" => 0,
        // Half of the default window, and the greetings.
        _ => count as u64 * if scenario == "burst" { BURST as u64 } else { 1 } / 8 + 1,
    };
    if alone > most {
        return Err(format!("{alone} messages of credits alone, at most {most} are due").into());
    }
    Ok(())
}
