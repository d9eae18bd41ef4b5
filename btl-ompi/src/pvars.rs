//! MPI_T performance variables: the counters of all open rails together.
//!
//! Named `btl_verbs_` and the counter's name. Counters start at 0 with MPI_Init; a handle counts from when it was made.
//! They may be read by any thread; a read takes each rail's lock once.

use crate::abi;
use crate::component;
use crate::rail;
use btl_core::stats::Stats;
use core::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// A counter.
struct Counter {
    /// Name without the prefix `btl_verbs_`.
    name: &'static CStr,
    help: &'static CStr,
    of: fn(&Stats) -> u64,
    /// What Open MPI calls.
    get: abi::GetValueFn,
}

macro_rules! counters {
    ($($name:literal, $help:literal, $of:expr;)*) => {
        counters!(@ [] 0usize; $($name, $help, $of;)*);
    };
    (@ [$($done:tt)*] $at:expr; $name:literal, $help:literal, $of:expr; $($rest:tt)*) => {
        counters!(@ [$($done)* Counter { name: $name, help: $help, of: $of, get: Some(get::<{ $at }>) },]
            $at + 1usize; $($rest)*);
    };
    (@ [$($done:tt)*] $at:expr;) => {
        const COUNTERS: [Counter; $at] = [$($done)*];
    };
}

counters! {
    c"messages_sent", c"Messages given to the device", |s| s.messages_sent;
    c"bytes_sent", c"Payload bytes of messages given to the device", |s| s.bytes_sent;
    c"messages_received", c"Messages received", |s| s.messages_received;
    c"bytes_received", c"Payload bytes of messages received", |s| s.bytes_received;
    c"puts", c"Puts given to the device", |s| s.puts;
    c"bytes_put", c"Bytes of puts", |s| s.bytes_put;
    c"gets", c"Gets", |s| s.gets;
    c"bytes_got", c"Bytes of gets", |s| s.bytes_got;
    c"atomics", c"Atomic operations", |s| s.atomics;
    c"credit_messages", c"Messages that carried nothing but credits", |s| s.credit_only_sent;
    c"lanes_up", c"Connections that came up", |s| s.lanes_up;
    c"lanes_closed", c"Connections that ended", |s| s.lanes_closed;
    c"peers_failed", c"Peers that failed", |s| s.peers_failed;
    c"waited_connect", c"Messages that waited for a connection", |s| s.stalls.connect;
    c"waited_first", c"Messages that waited for the peer's first message (rule 1)", |s| s.stalls.gate;
    c"waited_credit", c"Messages that waited for a receive buffer of the peer (rule 2)", |s| {
        s.stalls.credit.saturating_add(s.stalls.last_credit)
    };
    c"waited_send_queue", c"Messages that waited for a place in the send queue", |s| s.stalls.send_queue;
    c"waited_device", c"Messages that the device refused at first", |s| s.stalls.device;
}

/// Registers all of them; what fails is left out, since a program can do without. They go away with the component.
pub(crate) fn register_all() {
    for counter in &COUNTERS {
        // SAFETY: names and texts are copied; the function is there as long as the component's code, which is never
        // unloaded.
        unsafe {
            abi::mca_base_component_pvar_register(
                component::base(),
                counter.name.as_ptr(),
                counter.help.as_ptr(),
                abi::INFO_LVL_1 + 3,
                abi::PVAR_CLASS_COUNTER,
                abi::VAR_UNSIGNED_LONG_LONG,
                ptr::null_mut(),
                0,
                abi::PVAR_READONLY | abi::PVAR_CONTINUOUS,
                counter.get,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
    }
}

/// Writes counter `I`.
unsafe extern "C" fn get<const I: usize>(
    _pvar: *const c_void,
    value: *mut c_void,
    _object: *mut c_void,
) -> c_int {
    let sum = catch_unwind(AssertUnwindSafe(|| {
        let of = COUNTERS.get(I).map(|counter| counter.of)?;
        let rails = rail::open_rails().iter();
        Some(rails.filter_map(|rail| rail.with(|inner| of(&inner.engine.stats()))).sum::<u64>())
    }));
    let (Ok(Some(sum)), false) = (sum, value.is_null()) else { return abi::ERROR };
    // SAFETY: Open MPI passes room for one value of the registered type.
    unsafe { value.cast::<u64>().write(sum) };
    abi::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_its_own_name_and_function() {
        let mut names: Vec<_> = COUNTERS.iter().map(|counter| counter.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNTERS.len());
        // Each function reads the counter it stands beside: there is no rail, so all are 0, and none is missing.
        for counter in &COUNTERS {
            let mut value = 7_u64;
            let get = counter.get.expect("a function");
            // SAFETY: room for one value.
            let code = unsafe { get(ptr::null(), (&raw mut value).cast(), ptr::null_mut()) };
            assert_eq!((code, value), (abi::SUCCESS, 0), "{:?}", counter.name);
        }
        let stats = Stats { bytes_sent: 5, ..Stats::default() };
        assert_eq!(COUNTERS.iter().map(|counter| (counter.of)(&stats)).sum::<u64>(), 5);
        // SAFETY: NULL is refused.
        assert_eq!(unsafe { get::<0>(ptr::null(), ptr::null_mut(), ptr::null_mut()) }, abi::ERROR);
    }
}
