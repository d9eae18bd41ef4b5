//! When a polling loop gives the CPU away.
use std::time::Duration;

/// Empty polls in a row after which a loop with nothing under way sleeps: about a millisecond.
const QUIET: u32 = 1 << 16;
/// The same while something is under way.
const BUSY: u32 = 256;
/// How long. Any sleep will do, as long as it is one.
const NAP: Duration = Duration::from_micros(50);

/// Counts empty polls of an engine, and lets others run.
///
/// The connection manager's threads, and a peer on the same CPU, must run for anything to arrive.
/// Yielding is not always enough: in User-Mode Linux the threads of a process run one at a time,
/// and a thread that only yields keeps its siblings out for as long as it likes. So it also
/// sleeps, rarely.
#[derive(Debug, Default)]
pub struct Idle {
    empty: u32,
}

impl Idle {
    /// Call it after each round of polls: whether anything was `found`, and whether the engine is
    /// [`busy`](crate::Engine::busy).
    #[inline]
    pub fn polled(&mut self, found: bool, busy: bool) {
        self.empty = if found { 0 } else { self.empty.wrapping_add(1) };
        if !found && (busy || self.empty.is_multiple_of(QUIET)) {
            self.give_way(busy);
        }
    }

    #[cold]
    fn give_way(&self, busy: bool) {
        if !busy || self.empty.is_multiple_of(BUSY) {
            std::thread::sleep(NAP);
        } else {
            std::thread::yield_now();
        }
    }
}
