//! The processor's own clock, as perftest reads it: a system call for every message would be most of its time in a guest.

use std::time::{Duration, Instant};

/// Cycles of the time stamp counter.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline]
pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Nanoseconds, where there is no such counter that programs may read.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn cycles() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Its frequency, measured for a moment.
pub(crate) fn per_microsecond() -> f64 {
    let (start, counter) = (Instant::now(), cycles());
    std::thread::sleep(Duration::from_millis(50));
    let (counter, time) = (cycles() - counter, start.elapsed());
    #[expect(clippy::cast_precision_loss, reason = "cycles of a moment")]
    let cycles = counter as f64;
    cycles / (time.as_secs_f64() * 1e6)
}
