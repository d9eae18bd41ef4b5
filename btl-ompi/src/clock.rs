//! The coarse clock that is handed to the engine.

use btl_core::Nanos;

/// Polls between two looks at the clock while nothing is pending. Reading the clock may be a system
/// call.
const EVERY: u32 = 64;

/// Remembers the time between looks at the clock.
pub(crate) struct Clock {
    now: Nanos,
    left: u32,
}

impl Clock {
    /// A clock that looks at the first use.
    pub(crate) fn new() -> Self {
        Self { now: 0, left: 0 }
    }

    /// The time, at most 64 calls old; exact when `pending` says that a timer may be running.
    pub(crate) fn now(&mut self, pending: bool) -> Nanos {
        if pending || self.left == 0 {
            self.now = monotonic();
            self.left = EVERY;
        }
        self.left -= 1;
        self.now
    }
}

/// The monotonic clock.
pub(crate) fn monotonic() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer; this clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = Nanos::try_from(time.tv_sec).unwrap_or(0);
    let nanos = Nanos::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(btl_core::SECOND).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_every_64_calls_and_whenever_something_is_pending() {
        let mut clock = Clock::new();
        let first = clock.now(false);
        for _ in 1..EVERY {
            assert_eq!(clock.now(false), first);
        }
        while monotonic() == first {}
        let second = clock.now(false);
        assert!(second > first);
        while monotonic() == second {}
        assert!(clock.now(true) > second);
    }
}
