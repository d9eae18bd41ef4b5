//! Test only: an acceptor that does not wait.
use super::port::VerbsQp;
use crate::lane::{Frame, transmit_setup};
use crate::setup::UpLane;
use crate::wire::Kind;

/// Posts a message on a lane whose gate is broken, as soon as it was accepted.
pub(super) fn speak_too_soon(up: &mut UpLane<VerbsQp>) {
    let Some(ctl) = up.ctl.take() else { return };
    up.hello_addr = Some(ctl.as_ptr().addr());
    let frame = Frame { kind: Kind::Credit, tag: 0, acks: 0, len: 0 };
    // What is not sent now the engine sends later.
    let _ = transmit_setup(&mut up.acct, &mut up.qp, frame, ctl);
}
