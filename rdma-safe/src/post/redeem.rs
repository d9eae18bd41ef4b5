//! Redeeming: a completion gives back what was posted.

use crate::payload::{Payload, Span};
use crate::qp::QueuePair;
use crate::ring::{InFlight, Kind, is_send, kind_of};
use crate::slot::Slot;
use crate::wc::{Done, Extra, Op, Wc};
use rdma_sys::{ibv_wc, ibv_wc_opcode};

impl QueuePair {
    /// Redeems a completion, once. `None` when it is not this queue pair's, stale, or spent; a live one keeps its worth
    /// then.
    ///
    /// A failed completion puts the queue pair into [`QpState::Error`](crate::QpState::Error).
    #[inline(always)]
    pub fn complete(&mut self, wc: &mut Wc) -> Option<Done> {
        match self.redeem_plain(wc) {
            Some(done) => Some(done),
            None => {
                let mut done = None;
                self.redeem_into(wc, &mut done);
                let Done { slot, payload, op, status, byte_len, vendor_err, extra } = done?;
                Some(Done { slot, payload, op, status, byte_len, vendor_err, extra })
            }
        }
    }

    /// [`redeem`](Self::redeem). Were the result of that the caller's, the usual case would go through memory too.
    #[cold]
    #[inline(never)]
    fn redeem_into(&mut self, wc: &mut Wc, done: &mut Option<Done>) {
        *done = self.redeem(wc);
    }

    /// [`complete`](Self::complete) for a plain send or receive that worked; leaves everything else as it is. With and
    /// without a slot apart, so that whoever asks for the slot need not be told twice that there is one.
    #[inline(always)]
    pub(crate) fn redeem_plain(&mut self, wc: &mut Wc) -> Option<Done> {
        let id = wc.0.wr_id;
        if wc.0.status.0 | wc.0.wc_flags | self.flight.odd() != 0 {
            return None;
        }
        if let Some(slot) = self.flight.redeem_slot(id) {
            wc.spend();
            let (op, byte_len) = match is_send(id) {
                true => (Op::Send, 0),
                false => (Op::Recv, received(&slot, wc)),
            };
            return Some(Done::plain(Some(slot), op, byte_len));
        }
        if self.flight.redeem_inline(id) {
            wc.spend();
            return Some(Done::plain(None, Op::Send, 0));
        }
        None
    }

    /// [`complete`](Self::complete) for a slot that was sent or received well; leaves everything else as it is. The bytes
    /// received, if it was a receive.
    #[inline(always)]
    pub(crate) fn redeem_slot(&mut self, wc: &mut Wc) -> Option<(Slot, Option<usize>)> {
        let id = wc.0.wr_id;
        if wc.0.status.0 | wc.0.wc_flags | self.flight.odd() != 0 {
            return None;
        }
        let slot = self.flight.redeem_slot(id)?;
        wc.spend();
        let len = match is_send(id) {
            true => None,
            false => Some(received(&slot, wc)),
        };
        Some((slot, len))
    }

    /// [`complete`](Self::complete) for everything.
    #[cold]
    #[inline(never)]
    pub(crate) fn redeem(&mut self, wc: &mut Wc) -> Option<Done> {
        let id = wc.0.wr_id;
        let payload = match !wc.status().is_ok() && self.recovers() {
            true => self.flight.redeem_alone(id)?,
            false => self.flight.redeem(id)?,
        };
        let datagram = self.config().kind == crate::QpKind::Ud;
        let done = settle(&self.flight, id, payload, wc, datagram);
        wc.spend();
        if !done.status.is_ok()
            && let Some(kind) = kind_of(id)
        {
            self.note_failure(kind);
        }
        Some(done)
    }
}

/// Bytes received: the device's number, so bounded before anyone indexes with it.
#[inline(always)]
pub(crate) fn received(slot: &Slot, wc: &Wc) -> usize {
    (wc.0.byte_len as usize).min(slot.capacity())
}

/// What a redeemed entry was and held.
pub(crate) fn settle(
    flight: &InFlight,
    id: u64,
    payload: Option<Payload>,
    wc: &Wc,
    datagram: bool,
) -> Done {
    let status = wc.status();
    let op = match kind_of(id) {
        // The mark of a plain send is of an earlier post.
        Some(Kind::Send) if Payload::is_plain_or_none(&payload) => Op::Send,
        Some(Kind::Send) => flight.op_of(id),
        _ if status.is_ok() && wc.0.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
            Op::RecvWithImm
        }
        _ => Op::Recv,
    };
    let worked = op.is_recv() && status.is_ok();
    let mut payload = payload.and_then(Payload::settle);
    if let Some(window) = payload.as_mut().and_then(Payload::window)
        && status.is_ok()
    {
        match op {
            Op::Bind => window.settle_bind(),
            _ => window.settle_invalidate(),
        }
    }
    let byte_len = match payload.as_ref().and_then(Payload::span) {
        _ if op != Op::Recv || !worked => 0,
        Some(Span::One(wire)) => wc.0.byte_len.min(wire.capacity) as usize,
        Some(Span::Many(list)) => u64::from(wc.0.byte_len).min(list.total()) as usize,
        // A raw request: only the caller knows.
        None => wc.0.byte_len as usize,
    };
    let extra = if worked { Extra::of(wc, datagram) } else { Extra::default() };
    let (slot, payload) = match payload.map(Payload::into_slot) {
        None => (None, None),
        Some(Ok(slot)) => (Some(slot), None),
        Some(Err(payload)) => (None, Some(payload)),
    };
    Done { slot, payload, op, status, byte_len, vendor_err: wc.0.vendor_err, extra }
}

/// Immediate data as it was on the wire, or the invalidated key.
pub(crate) fn wc_word(wc: &ibv_wc) -> u32 {
    // SAFETY: both members of the union are a u32, and every bit pattern is one.
    unsafe { wc.__bindgen_anon_1.imm_data }
}
