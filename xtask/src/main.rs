//! Runs the demo, the tests and the guest.
fn main() {}
