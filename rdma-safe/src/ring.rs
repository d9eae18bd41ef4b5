//! In-flight tables: who owns what while the device has it.
//!
//! A request id is `[generation 6 | kind 2 | serial 39 | index 17]`: the serial names the queue pair (or shared receive
//! queue) and is never used again in this process, the index names the entry, and the generation tells this post from
//! earlier ones. One comparison of the id on redeeming checks kind, owner, entry and generation; that the entry holds
//! something tells that it has not been redeemed yet. `qp_num` is not used for anything: siw gives a dead queue
//! pair's number to the next one at once, and the dead one's flush completions may arrive after that.

#![forbid(unsafe_code)]

use crate::ah::AddressHandle;
use crate::payload::Payload;
use crate::slot::Slot;
use crate::wc::Op;

const INDEX_BITS: u32 = 17;
const SERIAL_BITS: u32 = 39;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Serials are below this.
pub(crate) const SERIAL_MAX: u64 = 1 << SERIAL_BITS;
const KIND_SHIFT: u32 = INDEX_BITS + SERIAL_BITS;
/// The generation is at the top, so that the next one is one addition that wraps out of the word.
const GENERATION_ONE: u64 = 1 << (KIND_SHIFT + 2);
const KIND_MASK: u64 = 3 << KIND_SHIFT;
/// Most entries of one queue.
pub(crate) const DEPTH_MAX: u32 = 1 << (INDEX_BITS - 1);
/// No posted id is 0: every kind is at least 1.
pub(crate) const NO_ID: u64 = 0;

/// Which sort of queue an id belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Send = 1,
    Recv = 2,
    SharedRecv = 3,
}

const SEND: u64 = (Kind::Send as u64) << KIND_SHIFT;
const RECV: u64 = (Kind::Recv as u64) << KIND_SHIFT;
const SHARED_RECV: u64 = (Kind::SharedRecv as u64) << KIND_SHIFT;

#[inline(always)]
pub(crate) fn kind_of(id: u64) -> Option<Kind> {
    match id & KIND_MASK {
        SEND => Some(Kind::Send),
        RECV => Some(Kind::Recv),
        SHARED_RECV => Some(Kind::SharedRecv),
        _ => None,
    }
}

/// Whether a redeemed id was a send's.
#[inline(always)]
pub(crate) fn is_send(id: u64) -> bool {
    id & KIND_MASK == SEND
}

/// Whether an id is of a shared receive queue.
#[inline(always)]
pub(crate) fn is_shared(id: u64) -> bool {
    id & KIND_MASK == SHARED_RECV
}

#[inline(always)]
pub(crate) fn serial_of(id: u64) -> u64 {
    (id >> INDEX_BITS) & (SERIAL_MAX - 1)
}

/// The serial of an id and, above it, other bits.
#[inline(always)]
pub(crate) fn serial_and_more(id: u64) -> u64 {
    id >> INDEX_BITS
}

/// The entry of an id: for the sends of one queue, numbers below its depth.
#[cfg(feature = "tokio")]
pub(crate) fn place_of(id: u64) -> usize {
    (id & INDEX_MASK) as usize
}

struct Entry {
    /// Of the latest post.
    id: u64,
    /// [`Payload::VACANT`]: nothing is in flight.
    payload: Payload,
}

impl Entry {
    #[inline(always)]
    fn in_flight(&self) -> bool {
        !self.payload.is_vacant()
    }

    /// Vacant to in flight; returns the new id.
    #[inline(always)]
    fn occupy(&mut self, payload: Option<Payload>) -> u64 {
        self.id = self.id.wrapping_add(GENERATION_ONE);
        // Not `unwrap_or`: a default that is not used would be dropped.
        let payload = match payload {
            Some(payload) => payload,
            None => Payload::INLINE,
        };
        // A vacant entry holds nothing; forgetting that spares the drop code on the message path.
        std::mem::forget(std::mem::replace(&mut self.payload, payload));
        self.id
    }

    /// In flight to vacant; the id it has is dead.
    fn vacate(&mut self) -> Option<Payload> {
        std::mem::replace(&mut self.payload, Payload::VACANT).present()
    }
}

/// What is known of a send beside its being in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Will complete by itself.
    Signalled,
    /// Finished by the completion of a later send.
    Unsignalled,
    /// Was unsignalled and is finished; what it owned waits to be reclaimed.
    Finished,
}

/// Tells the compiler that the usual case is not the end of the ring.
#[cold]
#[inline]
fn next_round() {}

/// In `lazy`: every message has 40 bytes in front.
const DATAGRAMS: u32 = 1 << 31;

/// The two queues of a queue pair, each posted round and round: sends first, then receives. Allocated once.
pub(crate) struct InFlight {
    entries: Box<[Entry]>,
    send_next: u32,
    recv_next: u32,
    send_depth: u32,
    /// Unsignalled sends and finished ones: while there is none, redeeming need not look for any. With [`DATAGRAMS`].
    lazy: u32,
    marks: Box<[(Mark, Op)]>,
    unsignalled: u32,
    reclaim_from: u32,
    /// Receivers of datagrams.
    held: Box<[Option<AddressHandle>]>,
}

impl InFlight {
    /// Depths are at most [`DEPTH_MAX`], `serial` below [`SERIAL_MAX`] (checked by the caller).
    pub(crate) fn new(serial: u64, send_depth: u32, recv_depth: u32) -> InFlight {
        InFlight::of(serial, send_depth, recv_depth, RECV)
    }

    /// Tells that no receive is plain.
    pub(crate) fn with_datagrams(self) -> InFlight {
        let held = (0..self.send_depth).map(|_| None).collect();
        InFlight { lazy: self.lazy | DATAGRAMS, held, ..self }
    }

    /// Keeps the receiver of the latest send until its entry names another one: so sends to the same receiver change no
    /// count.
    pub(crate) fn hold(&mut self, id: u64, to: &AddressHandle) {
        if let Some(held) = self.held.get_mut((id & INDEX_MASK) as usize)
            && held.as_ref().is_none_or(|h| !std::ptr::eq(h.as_raw(), to.as_raw()))
        {
            *held = Some(to.clone());
        }
    }

    /// The table of a shared receive queue.
    pub(crate) fn shared(serial: u64, depth: u32) -> InFlight {
        InFlight::of(serial, 0, depth, SHARED_RECV)
    }

    fn of(serial: u64, send_depth: u32, recv_depth: u32, recv_kind: u64) -> InFlight {
        let sends = (0..u64::from(send_depth)).map(|i| SEND | i);
        let recvs = (0..u64::from(recv_depth)).map(|i| recv_kind | (i + u64::from(send_depth)));
        let entry = |id: u64| Entry { id: id | serial << INDEX_BITS, payload: Payload::VACANT };
        InFlight {
            entries: sends.chain(recvs).map(entry).collect(),
            send_next: 0,
            recv_next: send_depth,
            send_depth,
            lazy: 0,
            marks: (0..send_depth).map(|_| (Mark::Signalled, Op::Send)).collect(),
            unsignalled: 0,
            reclaim_from: 0,
            held: Box::default(),
        }
    }

    /// Moves a plain send in and returns its request id, or gives it back when the queue is full.
    #[inline(always)]
    pub(crate) fn put_send(
        &mut self,
        payload: Option<Payload>,
        signalled: bool,
    ) -> Result<u64, Option<Payload>> {
        let index = self.send_next;
        match self.entries.get_mut(index as usize) {
            Some(e) if !e.in_flight() => {
                let id = e.occupy(payload);
                let next = index + 1;
                self.send_next = if next == self.send_depth {
                    next_round();
                    0
                } else {
                    next
                };
                if !signalled {
                    self.mark_unsignalled(index);
                }
                Ok(id)
            }
            _ => Err(payload),
        }
    }

    /// Moves any other send in.
    pub(crate) fn put_other(
        &mut self,
        payload: Option<Payload>,
        op: Op,
        signalled: bool,
    ) -> Result<u64, Option<Payload>> {
        let index = self.send_next as usize;
        let word = Payload::other(payload);
        let id = self.put_send(Some(word), signalled).map_err(|p| p.and_then(Payload::settle))?;
        if let Some(m) = self.marks.get_mut(index) {
            m.1 = op;
        }
        Ok(id)
    }

    /// Moves a receive in and returns its request id, or gives it back when the queue is full.
    #[inline(always)]
    pub(crate) fn put_recv(&mut self, payload: Payload) -> Result<u64, Payload> {
        self.put_own_recv(payload).or_else(|payload| self.put_recv_far(payload))
    }

    /// [`put_recv`](Self::put_recv) for a queue that is not shared: when its next entry is taken, it is full.
    #[inline(always)]
    pub(crate) fn put_own_recv(&mut self, payload: Payload) -> Result<u64, Payload> {
        let index = self.recv_next;
        match self.entries.get_mut(index as usize) {
            Some(e) if !e.in_flight() => {
                let id = e.occupy(Some(payload));
                let (next, first) = (index + 1, self.send_depth);
                let last = next as usize == self.entries.len();
                self.recv_next = if last { first } else { next };
                Ok(id)
            }
            _ => Err(payload),
        }
    }

    /// The next entry is taken. In a shared queue another may be free: its receives complete in any order, and one that
    /// a failed queue pair had taken may never.
    #[cold]
    #[inline(never)]
    fn put_recv_far(&mut self, payload: Payload) -> Result<u64, Payload> {
        let next = self.recv_next as usize;
        let shared = self.entries.get(next).is_some_and(|e| e.id & KIND_MASK == SHARED_RECV);
        let (before, after) = self.entries.split_at(next.min(self.entries.len()));
        let vacant = |e: &Entry| !e.in_flight();
        let found = match after.iter().position(vacant) {
            Some(at) => Some(next + at),
            None => before.iter().position(vacant),
        };
        match found {
            // Lossless: the table has at most 2^17 entries. It is vacant, so this does not come here again.
            Some(at) if shared => {
                self.recv_next = at as u32;
                self.put_recv(payload)
            }
            _ => Err(payload),
        }
    }

    #[cold]
    #[inline(never)]
    fn mark_unsignalled(&mut self, index: u32) {
        if let Some(m) = self.marks.get_mut(index as usize) {
            m.0 = Mark::Unsignalled;
            self.unsignalled += 1;
            self.lazy += 1;
        }
    }

    /// Whether the next send has to be signalled so that the queue can never fill up with sends nobody hears of.
    #[inline(always)]
    pub(crate) fn must_signal(&self) -> bool {
        self.unsignalled >= self.send_depth / 2
    }

    /// Takes out what an entry owned, exactly once per posted id. `None`: stale, repeated or foreign.
    #[inline(always)]
    pub(crate) fn redeem(&mut self, id: u64) -> Option<Option<Payload>> {
        let index = (id & INDEX_MASK) as usize;
        let e = self.entries.get_mut(index)?;
        if e.id != id || !e.in_flight() {
            return None;
        }
        let payload = e.vacate();
        if self.lazy & !DATAGRAMS != 0 {
            self.sweep(index);
        }
        Some(payload)
    }

    /// [`redeem`](Self::redeem) of a failed send whose queue may work again: it says nothing of the unsignalled sends
    /// before it, which may have failed too and have completions of their own. Were such an entry used again, a kept
    /// completion would be redeemed for another request once its generation comes round.
    pub(crate) fn redeem_alone(&mut self, id: u64) -> Option<Option<Payload>> {
        let index = (id & INDEX_MASK) as usize;
        let e = self.entries.get_mut(index)?;
        if e.id != id || !e.in_flight() {
            return None;
        }
        let payload = e.vacate();
        self.settle_mark(index);
        Some(payload)
    }

    /// The [`place_of`] the latest send.
    #[cfg(feature = "tokio")]
    pub(crate) fn latest_send(&self) -> usize {
        self.send_next.checked_sub(1).unwrap_or(self.send_depth.saturating_sub(1)) as usize
    }

    /// Unsignalled sends that nothing has finished yet.
    pub(crate) fn unsignalled(&self) -> u32 {
        self.unsignalled
    }

    /// Not 0: no completion is plain, or there are unsignalled sends to look for.
    #[inline(always)]
    pub(crate) fn odd(&self) -> u32 {
        self.lazy
    }

    /// [`redeem`](Self::redeem) for a plain send or receive of a slot while the queue is not [`odd`](Self::odd). `None`
    /// leaves everything as it is.
    #[inline(always)]
    pub(crate) fn redeem_slot(&mut self, id: u64) -> Option<Slot> {
        let e = self.entries.get_mut((id & INDEX_MASK) as usize)?;
        if e.id != id {
            return None;
        }
        e.payload.take_slot()
    }

    /// The same for a send that had no slot, only inline data; `false` leaves everything as it is.
    #[inline]
    pub(crate) fn redeem_inline(&mut self, id: u64) -> bool {
        match self.entries.get_mut((id & INDEX_MASK) as usize) {
            Some(e) if e.id == id && e.payload.is_inline() => {
                e.payload = Payload::VACANT;
                true
            }
            _ => false,
        }
    }

    /// What a redeemed send was.
    pub(crate) fn op_of(&self, id: u64) -> Op {
        self.marks.get((id & INDEX_MASK) as usize).map_or(Op::Send, |m| m.1)
    }

    /// Undoes the latest `n` posts of the send queue, newest first: the device never saw them.
    pub(crate) fn unput_sends(&mut self, n: usize) -> Vec<Payload> {
        let mut back = Vec::new();
        for _ in 0..n {
            let before = self.send_next.checked_sub(1).or(self.send_depth.checked_sub(1));
            let Some(index) = before else { break };
            self.send_next = index;
            back.extend(self.take_back(index));
        }
        back.reverse();
        back
    }

    /// Undoes the latest posts of the receive queue, whose ids these are, in their order.
    pub(crate) fn unput_recvs(&mut self, ids: impl Iterator<Item = u64>) -> Vec<Payload> {
        let mut back = Vec::new();
        let mut first = None;
        for id in ids {
            let index = (id & INDEX_MASK) as u32;
            first = first.or(Some(index));
            back.extend(self.take_back(index));
        }
        self.recv_next = first.unwrap_or(self.recv_next);
        back
    }

    fn take_back(&mut self, index: u32) -> Option<Payload> {
        let e = self.entries.get_mut(index as usize).filter(|e| e.in_flight())?;
        let payload = e.vacate();
        let mark = self.marks.get_mut(index as usize);
        let was = mark.map(|m| std::mem::replace(m, (Mark::Signalled, Op::Send)));
        if was.is_some_and(|(mark, _)| mark == Mark::Unsignalled) {
            self.unsignalled = self.unsignalled.wrapping_sub(1);
            self.lazy = self.lazy.wrapping_sub(1);
        }
        let mut payload = payload.and_then(Payload::settle)?;
        if was.is_some_and(|(_, op)| op == Op::Bind)
            && let Some(window) = payload.window()
        {
            window.unstage();
        }
        Some(payload)
    }

    /// How many entries before `index` can hold older posts; behind those lie newer ones, if the queue is full.
    fn older_than(&self, index: u32) -> u32 {
        // The next post takes the place of the oldest.
        let oldest = self.send_next;
        if index >= oldest {
            index - oldest
        } else {
            index + self.send_depth.saturating_sub(oldest)
        }
    }

    /// A completion also finishes the unsignalled sends directly before it: a send queue works in order. It stops at
    /// the first signalled one, whose own completion has swept or will sweep further, in whatever order they are
    /// redeemed, and at the oldest: in a full queue the newest sends, which the device still has, lie right behind it.
    #[cold]
    #[inline(never)]
    fn sweep(&mut self, index: usize) {
        // Receives have no mark.
        if index >= self.marks.len() {
            return;
        }
        self.settle_mark(index);
        // Lossless: the table has at most 2^17 entries.
        let index = index as u32;
        let mut i = index;
        for _ in 0..self.older_than(index) {
            i = if i == 0 { self.send_depth - 1 } else { i - 1 };
            match self.marks.get_mut(i as usize) {
                Some(m) if m.0 == Mark::Unsignalled => m.0 = Mark::Finished,
                _ => break,
            }
            self.unsignalled = self.unsignalled.wrapping_sub(1);
            if self.entries.get(i as usize).is_some_and(|e| e.payload.is_nothing()) {
                self.free(i);
            }
        }
    }

    /// A send is done by its own completion: an unsignalled one that failed has one.
    fn settle_mark(&mut self, index: usize) {
        let Some(m) = self.marks.get_mut(index) else { return };
        match std::mem::replace(&mut m.0, Mark::Signalled) {
            Mark::Signalled => {}
            Mark::Unsignalled => {
                self.unsignalled = self.unsignalled.wrapping_sub(1);
                self.lazy = self.lazy.wrapping_sub(1);
            }
            Mark::Finished => self.lazy = self.lazy.wrapping_sub(1),
        }
    }

    fn free(&mut self, index: u32) -> Option<Payload> {
        if let Some(m) = self.marks.get_mut(index as usize) {
            m.0 = Mark::Signalled;
            self.lazy = self.lazy.wrapping_sub(1);
        }
        let e = self.entries.get_mut(index as usize).filter(|e| e.in_flight())?;
        e.vacate().and_then(Payload::settle)
    }

    /// What a finished unsignalled send owned, oldest first.
    pub(crate) fn reclaim(&mut self) -> Option<Payload> {
        for _ in 0..self.send_depth {
            if self.lazy & !DATAGRAMS == self.unsignalled {
                return None;
            }
            let i = self.reclaim_from;
            self.reclaim_from = if i + 1 >= self.send_depth { 0 } else { i + 1 };
            if self.marks.get(i as usize).is_some_and(|m| m.0 == Mark::Finished)
                && let Some(payload) = self.free(i)
            {
                return Some(payload);
            }
        }
        None
    }

    /// Sends and receives in flight. Walks the table.
    pub(crate) fn used(&self) -> (u32, u32) {
        let (sends, recvs) =
            self.entries.split_at(self.entries.len().min(self.send_depth as usize));
        // Lossless: the table has at most 2^17 entries.
        let count = |e: &[Entry]| e.iter().filter(|e| e.in_flight()).count() as u32;
        (count(sends), count(recvs))
    }

    /// Sends and receives that would still fit, if completions come in order.
    pub(crate) fn room(&self) -> (u32, u32) {
        let (sends, recvs) = self.used();
        let recv_depth = self.entries.len() as u32 - self.send_depth;
        (self.send_depth.saturating_sub(sends), recv_depth.saturating_sub(recvs))
    }

    /// Everything it owns. Only for a queue that is destroyed.
    pub(crate) fn into_payloads(self) -> impl Iterator<Item = Payload> {
        self.entries.into_iter().filter_map(|e| e.payload.settle())
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
