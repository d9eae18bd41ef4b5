//! Several requests with one doorbell.

use super::error::{BatchError, PostError, Why};
use super::other::Staged;
use super::recv_batch::{ReceiveQueue, post_all};
use super::request::Request;
use super::staging::{CHUNK, End, Staging, chunk_failed};
use crate::can::CAN_RECV;
use crate::payload::Payload;
use crate::qp::QueuePair;
use crate::ring::InFlight;
use crate::slot::Slot;
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

impl QueuePair {
    /// Posts requests in order, with one doorbell for up to 16 of them, and returns how many. Allocates nothing.
    ///
    /// Pass `&mut iterator` to keep what was not taken from it when it ends early.
    ///
    /// # Errors
    /// [`BatchError`]: requests before the one refused were posted. When the device fails half way the queue pair keeps
    /// what the device may have, has failed, and gives back what it never saw. A device that reports success and a
    /// failed request at once (siw) has failed. When the iterator panics, up to 15 requests it had given before are
    /// dropped unposted.
    pub fn post_batch<'a>(
        &mut self,
        requests: impl IntoIterator<Item = Request<'a>>,
    ) -> std::result::Result<usize, BatchError> {
        let mut requests = requests.into_iter();
        let mut posted = 0;
        loop {
            let mut sges = [ibv_sge::default(); CHUNK];
            let mut wrs = [ibv_send_wr::default(); CHUNK];
            let (mut end, mut bind): (End, _) = (None, None);
            let mut chunk = Staging::new(self, QueuePair::unstage_sends);
            for (wr, sge) in wrs.iter_mut().zip(&mut sges) {
                let Some(request) = requests.next() else {
                    end = Some(Ok(()));
                    break;
                };
                match chunk.queue.stage(request, sge, wr) {
                    Ok(Staged::Listed) => chunk.push(wr.wr_id),
                    Ok(Staged::Bind(mw, b, region)) => {
                        bind = Some((mw, b, region));
                        break;
                    }
                    Err(e) => {
                        end = Some(Err(e));
                        break;
                    }
                }
            }
            let n = chunk.done();
            if let Err(e) = self.ring_sends(wrs.get_mut(..n).unwrap_or_default(), bind.is_some()) {
                return Err(chunk_failed(posted, e, end));
            }
            posted += n;
            if let Some((mw, mut b, _region)) = bind {
                // SAFETY: as in `post`.
                let rc = unsafe { ibv_bind_mw(self.raw.as_ptr(), mw, &mut b) };
                self.settle_post(rc, true).map_err(|error| BatchError {
                    posted,
                    error,
                    unseen: Vec::new(),
                })?;
                posted += 1;
            }
            match end {
                None => {}
                Some(Ok(())) => return Ok(posted),
                Some(Err(error)) => return Err(BatchError { posted, error, unseen: Vec::new() }),
            }
        }
    }

    fn unstage_sends(&mut self, ids: &[u64]) {
        drop(self.flight.unput_sends(ids.len()));
    }

    /// Posts a chunk that is staged; with `more`, one more request is staged behind it.
    fn ring_sends(
        &mut self,
        wrs: &mut [ibv_send_wr],
        more: bool,
    ) -> std::result::Result<(), BatchError> {
        let mut next = null_mut();
        for wr in wrs.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: the QP is alive and the list is of complete requests; `stage` has put what they name into the table.
        let rc = unsafe { ibv_post_send(self.raw.as_ptr(), next, &mut bad) };
        if rc == 0 && bad.is_null() {
            return Ok(());
        }
        let at = wrs.iter().position(|wr| std::ptr::eq(wr, bad));
        let unseen = at.map_or(0, |at| wrs.len() - at - 1) + usize::from(more);
        let unseen = self.flight.unput_sends(unseen);
        Err(self.half_failed(rc, at, unseen))
    }

    #[cold]
    fn half_failed(&mut self, rc: i32, at: Option<usize>, unseen: Vec<Payload>) -> BatchError {
        BatchError { posted: at.unwrap_or(0), error: self.broke(rc), unseen }
    }

    /// Posts receives in order, with one doorbell for up to 16 of them, and returns how many. Allocates nothing.
    ///
    /// # Errors
    /// As [`post_batch`](Self::post_batch).
    pub fn post_recv_batch(
        &mut self,
        slots: impl IntoIterator<Item = Slot>,
    ) -> std::result::Result<usize, BatchError> {
        post_all(self, slots)
    }
}

impl ReceiveQueue for QueuePair {
    fn flight(&mut self) -> &mut InFlight {
        &mut self.flight
    }

    fn put(&mut self, slot: Slot) -> std::result::Result<u64, PostError> {
        if self.can & CAN_RECV == 0 || !slot.is_of(self.domain()) {
            return Err(self.refused(CAN_RECV, Some(slot.into())));
        }
        let put = self.flight.put_recv(slot.into());
        put.map_err(|payload| PostError::of(Why::Full, Some(payload)))
    }

    unsafe fn hand_over(&mut self, first: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the QP is alive and has a receive queue (`put` has checked); the caller vouches for the list.
        unsafe { ibv_post_recv(self.raw.as_ptr(), first, bad) }
    }

    fn failed(&mut self, rc: c_int) -> PostError {
        self.broke(rc)
    }
}
