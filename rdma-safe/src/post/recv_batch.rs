//! Several receives with one call: the same for a queue pair's own receive queue and for a shared one.

use super::error::{BatchError, PostError};
use super::staging::{CHUNK, End, Staging, chunk_failed};
use crate::ring::InFlight;
use crate::slot::{Slot, Wire};
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr::{eq, null_mut};

/// What differs between the two.
pub(crate) trait ReceiveQueue: Sized {
    /// The table of what the device has.
    fn flight(&mut self) -> &mut InFlight;

    /// Puts a slot into the table, or says why not.
    fn put(&mut self, slot: Slot) -> Result<u64, PostError>;

    /// Hands the list over.
    ///
    /// # Safety
    /// `first` begins a list of complete requests, whose slots are in the table.
    unsafe fn hand_over(&mut self, first: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int;

    /// The device failed with this return; the queue takes no more posts.
    fn failed(&mut self, rc: c_int) -> PostError;
}

/// Posts all slots in order, up to 16 with one call, and returns how many.
pub(crate) fn post_all<Q: ReceiveQueue>(
    queue: &mut Q,
    slots: impl IntoIterator<Item = Slot>,
) -> Result<usize, BatchError> {
    let mut slots = slots.into_iter();
    let mut posted = 0;
    loop {
        let mut sges = [ibv_sge::default(); CHUNK];
        let mut wrs = [ibv_recv_wr::default(); CHUNK];
        let mut end: End = None;
        let mut chunk = Staging::new(queue, unstage);
        for (wr, sge) in wrs.iter_mut().zip(&mut sges) {
            let Some(slot) = slots.next() else {
                end = Some(Ok(()));
                break;
            };
            let Wire { addr, capacity: length, lkey, .. } = *slot.wire();
            match chunk.queue.put(slot) {
                Ok(wr_id) => {
                    *sge = ibv_sge { addr, length, lkey };
                    *wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: sge, num_sge: 1 };
                    chunk.push(wr_id);
                }
                Err(e) => {
                    end = Some(Err(e));
                    break;
                }
            }
        }
        let n = chunk.done();
        if let Err(e) = post_chunk(queue, wrs.get_mut(..n).unwrap_or_default()) {
            return Err(chunk_failed(posted, e, end));
        }
        posted += n;
        match end {
            None => {}
            Some(Ok(())) => return Ok(posted),
            Some(Err(error)) => return Err(BatchError { posted, error, unseen: Vec::new() }),
        }
    }
}

fn unstage<Q: ReceiveQueue>(queue: &mut Q, ids: &[u64]) {
    drop(queue.flight().unput_recvs(ids.iter().copied()));
}

fn post_chunk<Q: ReceiveQueue>(queue: &mut Q, wrs: &mut [ibv_recv_wr]) -> Result<(), BatchError> {
    let mut next = null_mut();
    for wr in wrs.iter_mut().rev() {
        wr.next = next;
        next = wr;
    }
    if next.is_null() {
        return Ok(());
    }
    let mut bad = null_mut();
    // SAFETY: the list is of complete requests, linked above; `put` has put their slots into the table.
    let rc = unsafe { queue.hand_over(next, &mut bad) };
    if rc == 0 && bad.is_null() {
        return Ok(());
    }
    let at = wrs.iter().position(|wr| eq(wr, bad));
    let unseen = at.and_then(|at| wrs.get(at + 1..)).unwrap_or_default();
    let unseen = queue.flight().unput_recvs(unseen.iter().map(|wr| wr.wr_id));
    Err(BatchError { posted: at.unwrap_or(0), error: queue.failed(rc), unseen })
}
