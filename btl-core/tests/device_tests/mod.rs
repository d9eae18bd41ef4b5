//! The tests, and what their peers do.
mod connect;
mod exchange;
mod faults;
mod foreign;
mod open;
mod rma;
mod strangers;

use crate::device_support::die;

/// Every test; the last ones take the device away for a moment.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("open_says_what_it_published", open::published),
    ("open_names_a_device_that_is_not_there", open::no_such_device),
    ("open_names_an_address_that_is_not_there", open::address_not_here),
    ("exchange_100k_messages_each_way", exchange::both_ways),
    ("exchange_over_many_completion_queues", exchange::many_queues),
    ("sends_from_upcalls", exchange::echo_from_upcalls),
    ("setup_does_not_need_the_application", connect::both_compute),
    ("lanes_close_and_connect_again", connect::again_and_again),
    ("killed_peer_is_reported", faults::killed_peer),
    ("wrong_job_is_rejected", faults::wrong_job),
    ("wrong_process_is_not_connected", faults::wrong_process),
    ("nobody_listening_is_reported", faults::nobody_listening),
    ("silent_host_is_reported", faults::silent_host),
    ("drop_ends_a_dial_to_a_silent_host", faults::drop_while_dialling),
    ("garbage_request_is_rejected", strangers::garbage_request),
    ("stranger_without_hello_is_dropped", strangers::no_hello),
    ("garbage_instead_of_hello_is_a_fault", strangers::garbage_hello),
    ("acceptor_is_silent_before_hello", strangers::acceptor_waits),
    ("puts_arrive_before_their_notice", rma::puts_arrive_before_their_notice),
    ("every_kind_of_memory_is_put_and_got", rma::every_kind_of_memory),
    ("gets_beyond_the_limit_wait", rma::gets_beyond_the_limit),
    ("atomics_or_a_clear_refusal", rma::atomics_or_a_clear_refusal),
    ("fences_end_when_all_is_there", rma::fences_end_when_all_is_there),
    ("a_wrong_key_fails_the_peer", rma::a_wrong_key_fails_the_peer),
    ("a_killed_peer_ends_operations", rma::a_killed_peer_ends_operations),
    ("link_down_is_reported_by_open", open::link_down),
];

/// A peer process: the first word says what it does.
pub(crate) fn peer(words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["exchange", addr, messages, depth] => exchange::peer(addr, messages, depth),
        ["echo", addr] => exchange::echo_peer(addr),
        ["compute", addr, seconds] => connect::compute_peer(addr, seconds),
        ["again", addr, rounds] => connect::again_peer(addr, rounds),
        ["rma", addr] => rma::peer(addr),
        ["listen", job, rank] => faults::listen_peer(job, rank),
        other => die(&format!("no such peer: {other:?}")),
    }
}
