//! In-flight tables: who owns what while the device has it.
//!
//! A request id is `[generation 6 | kind 2 | serial 40 | index 16]`: the serial names the queue pair and is never used
//! again in this process, the index names the entry, and the generation (odd = in flight) tells this post from earlier
//! ones. One comparison of the id on redeeming checks kind, queue pair, entry, generation and occupancy. `qp_num` is
//! not used for anything: siw gives a dead queue pair's number to the next one at once, and the dead one's flush
//! completions may arrive after that.

#![forbid(unsafe_code)]

use crate::slot::Slot;

const INDEX_BITS: u32 = 16;
const SERIAL_BITS: u32 = 40;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Serials are below this.
pub(crate) const SERIAL_MAX: u64 = 1 << SERIAL_BITS;
const KIND_SHIFT: u32 = INDEX_BITS + SERIAL_BITS;
/// The generation is at the top, so that the next one is one addition that wraps out of the word.
const GENERATION_ONE: u64 = 1 << (KIND_SHIFT + 2);
/// Most entries of one ring.
pub(crate) const DEPTH_MAX: u32 = 1 << INDEX_BITS;
/// No posted id is 0: every kind is at least 1.
pub(crate) const NO_ID: u64 = 0;

/// Which queue an id belongs to. 3 is kept for shared receive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Send = 1,
    Recv = 2,
}

#[inline(always)]
pub(crate) fn kind_of(id: u64) -> Option<Kind> {
    match (id >> KIND_SHIFT) & 3 {
        1 => Some(Kind::Send),
        2 => Some(Kind::Recv),
        _ => None,
    }
}

#[inline(always)]
pub(crate) fn serial_of(id: u64) -> u64 {
    (id >> INDEX_BITS) & (SERIAL_MAX - 1)
}

#[inline(always)]
fn next_generation(id: u64) -> u64 {
    id.wrapping_add(GENERATION_ONE)
}

struct Entry {
    id: u64,
    slot: Option<Slot>,
}

impl Entry {
    #[inline(always)]
    fn in_flight(&self) -> bool {
        self.id & GENERATION_ONE != 0
    }

    /// Vacant to in flight; returns the new id.
    #[inline(always)]
    fn occupy(&mut self, slot: Option<Slot>) -> u64 {
        self.id = next_generation(self.id);
        // A vacant entry holds no slot; forgetting the None spares the drop code on the message path.
        std::mem::forget(std::mem::replace(&mut self.slot, slot));
        self.id
    }

    /// In flight to vacant; the id it had is dead.
    #[inline(always)]
    fn vacate(&mut self) -> Option<Slot> {
        self.id = next_generation(self.id);
        self.slot.take()
    }
}

/// The entries of one queue, posted round and round. Allocated once.
pub(crate) struct Ring {
    entries: Box<[Entry]>,
    cursor: u32,
    used: u32,
}

impl Ring {
    /// `depth` is at least 1 and at most [`DEPTH_MAX`], `serial` below [`SERIAL_MAX`] (checked by the caller).
    pub(crate) fn new(kind: Kind, serial: u64, depth: u32) -> Ring {
        let base = (kind as u64) << KIND_SHIFT | serial << INDEX_BITS;
        let entries = (0..u64::from(depth)).map(|i| Entry { id: base | i, slot: None }).collect();
        Ring { entries, cursor: 0, used: 0 }
    }

    /// Index the next post will use.
    #[inline(always)]
    fn cursor(&self) -> usize {
        self.cursor as usize
    }

    /// How many entries before `index` can hold older posts; behind those lie newer ones, if the queue is full.
    fn older_than(&self, index: usize) -> usize {
        // The next post takes the place of the oldest.
        let oldest = self.cursor();
        if index >= oldest {
            index - oldest
        } else {
            index + self.entries.len().saturating_sub(oldest)
        }
    }

    /// Moves the slot in and returns the request id, or gives it back when the queue is full.
    #[inline(always)]
    pub(crate) fn put(&mut self, slot: Option<Slot>) -> Result<u64, Option<Slot>> {
        match self.entries.get_mut(self.cursor as usize) {
            Some(e) if !e.in_flight() => {
                let id = e.occupy(slot);
                let next = self.cursor + 1;
                self.cursor = if next as usize == self.entries.len() { 0 } else { next };
                self.used += 1;
                Ok(id)
            }
            _ => Err(slot),
        }
    }

    /// Takes an entry's slot out, exactly once per posted id. `None`: stale, repeated or foreign.
    #[inline(always)]
    pub(crate) fn redeem(&mut self, id: u64) -> Option<Option<Slot>> {
        let e = self.entries.get_mut((id & INDEX_MASK) as usize)?;
        // A vacant entry's id has an even generation, which no posted id has; NO_ID has kind 0.
        if e.id != id || id & GENERATION_ONE == 0 {
            return None;
        }
        self.used = self.used.wrapping_sub(1);
        Some(e.vacate())
    }

    fn vacate_at(&mut self, index: usize) -> Option<Slot> {
        let e = self.entries.get_mut(index).filter(|e| e.in_flight())?;
        self.used = self.used.wrapping_sub(1);
        e.vacate()
    }

    /// Whether the entry holds a slot.
    fn holds_slot(&self, index: usize) -> bool {
        self.entries.get(index).is_some_and(|e| e.slot.is_some())
    }

    /// Entries in flight.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Posts that would still fit, if completions come in order.
    pub(crate) fn room(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX).saturating_sub(self.used)
    }

    /// All slots. Only for a queue that is destroyed.
    pub(crate) fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.entries.into_iter().filter_map(|e| e.slot)
    }
}

/// What is known of a send entry beside its being in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Will complete by itself.
    Signalled,
    /// Finished by the completion of a later send.
    Unsignalled,
    /// Was unsignalled and is finished; the slot waits to be reclaimed.
    Finished,
}

/// The send queue: a ring, and which sends are unsignalled.
pub(crate) struct SendRing {
    ring: Ring,
    marks: Box<[Mark]>,
    unsignalled: u32,
    finished: u32,
    reclaim_from: u32,
}

impl SendRing {
    pub(crate) fn new(serial: u64, depth: u32) -> SendRing {
        SendRing {
            ring: Ring::new(Kind::Send, serial, depth),
            marks: (0..depth).map(|_| Mark::Signalled).collect(),
            unsignalled: 0,
            finished: 0,
            reclaim_from: 0,
        }
    }

    /// Whether the next send has to be signalled so that the queue can never fill up with sends nobody hears of.
    #[inline(always)]
    pub(crate) fn must_signal(&self) -> bool {
        self.unsignalled as usize >= self.marks.len() / 2
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, slot: Option<Slot>, signalled: bool) -> Result<u64, Option<Slot>> {
        let index = self.ring.cursor();
        let id = self.ring.put(slot)?;
        if !signalled {
            self.mark_unsignalled(index);
        }
        Ok(id)
    }

    #[cold]
    #[inline(never)]
    fn mark_unsignalled(&mut self, index: usize) {
        if let Some(m) = self.marks.get_mut(index) {
            *m = Mark::Unsignalled;
            self.unsignalled += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn redeem(&mut self, id: u64) -> Option<Option<Slot>> {
        let slot = self.ring.redeem(id)?;
        if self.unsignalled | self.finished != 0 {
            self.sweep((id & INDEX_MASK) as usize);
        }
        Some(slot)
    }

    /// A completion also finishes the unsignalled sends directly before it: a send queue works in order. It stops at
    /// the first signalled one, whose own completion has swept or will sweep further, in whatever order they are
    /// redeemed, and at the oldest: in a full queue the newest sends, which the device still has, lie right behind it.
    #[cold]
    #[inline(never)]
    fn sweep(&mut self, index: usize) {
        // An unsignalled send that failed has a completion of its own.
        if let Some(m) = self.marks.get_mut(index) {
            match std::mem::replace(m, Mark::Signalled) {
                Mark::Signalled => {}
                Mark::Unsignalled => self.unsignalled = self.unsignalled.wrapping_sub(1),
                Mark::Finished => self.finished = self.finished.wrapping_sub(1),
            }
        }
        let n = self.marks.len();
        let mut i = index;
        for _ in 0..self.ring.older_than(index) {
            i = if i == 0 { n - 1 } else { i - 1 };
            match self.marks.get_mut(i) {
                Some(m) if *m == Mark::Unsignalled => *m = Mark::Finished,
                _ => break,
            }
            self.unsignalled = self.unsignalled.wrapping_sub(1);
            self.finished += 1;
            if !self.ring.holds_slot(i) {
                self.free(i);
            }
        }
    }

    fn free(&mut self, index: usize) -> Option<Slot> {
        if let Some(m) = self.marks.get_mut(index) {
            *m = Mark::Signalled;
            self.finished = self.finished.wrapping_sub(1);
        }
        self.ring.vacate_at(index)
    }

    /// The slot of a finished unsignalled send, oldest first.
    pub(crate) fn reclaim(&mut self) -> Option<Slot> {
        for _ in 0..self.marks.len() {
            if self.finished == 0 {
                return None;
            }
            let i = self.reclaim_from as usize;
            self.reclaim_from = if i + 1 >= self.marks.len() { 0 } else { self.reclaim_from + 1 };
            if self.marks.get(i) == Some(&Mark::Finished)
                && let Some(slot) = self.free(i)
            {
                return Some(slot);
            }
        }
        None
    }

    pub(crate) fn used(&self) -> u32 {
        self.ring.used()
    }

    pub(crate) fn room(&self) -> u32 {
        self.ring.room()
    }

    pub(crate) fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.ring.into_slots()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_redeemed_once() {
        let mut r = Ring::new(Kind::Recv, 5, 2);
        let a = r.put(None).unwrap();
        let b = r.put(None).unwrap();
        assert!(r.put(None).is_err(), "full");
        assert_eq!((kind_of(a), serial_of(a)), (Some(Kind::Recv), 5));
        assert!(r.redeem(b).is_some());
        assert!(r.redeem(b).is_none(), "spent");
        assert!(r.redeem(a).is_some());
        let c = r.put(None).unwrap();
        assert_ne!(c, a, "same entry, next generation");
        assert!(r.redeem(a).is_none(), "stale");
        assert!(r.redeem(c).is_some());
    }

    #[test]
    fn foreign_ids_are_refused() {
        let mut r = Ring::new(Kind::Recv, 5, 4);
        let id = r.put(None).unwrap();
        let mut other = Ring::new(Kind::Recv, 6, 4);
        other.put(None).unwrap();
        assert!(other.redeem(id).is_none(), "another queue pair's");
        let mut sends = Ring::new(Kind::Send, 5, 4);
        sends.put(None).unwrap();
        assert!(sends.redeem(id).is_none(), "another kind's");
        for id in [NO_ID, u64::MAX, id | INDEX_MASK, id ^ GENERATION_ONE] {
            assert!(r.redeem(id).is_none());
        }
        assert!(Ring::new(Kind::Recv, 5, 4).redeem(NO_ID).is_none());
    }

    #[test]
    fn generations_wrap_without_touching_kind_or_serial() {
        let mut r = Ring::new(Kind::Send, SERIAL_MAX - 1, 1);
        for _ in 0..200 {
            let id = r.put(None).unwrap();
            assert_eq!((kind_of(id), serial_of(id)), (Some(Kind::Send), SERIAL_MAX - 1));
            assert!(r.redeem(id).is_some());
        }
    }

    #[test]
    fn a_completion_finishes_the_unsignalled_before_it() {
        let mut s = SendRing::new(1, 8);
        let ids: Vec<_> = [false, false, true, false, true]
            .iter()
            .map(|sig| s.put(None, *sig).unwrap())
            .collect();
        assert_eq!(s.used(), 5);
        // Redeemed out of order: the later one takes only what lies behind the earlier signalled one.
        assert!(s.redeem(ids[4]).is_some());
        assert_eq!(s.used(), 3);
        assert!(s.redeem(ids[2]).is_some());
        assert_eq!(s.used(), 0);
        assert!(s.redeem(ids[0]).is_none(), "swept entries are spent");
    }

    #[test]
    fn a_failed_unsignalled_send_counts_once() {
        let mut s = SendRing::new(1, 4);
        let a = s.put(None, false).unwrap();
        let b = s.put(None, true).unwrap();
        assert!(s.redeem(a).is_some(), "its own error completion");
        assert!(s.redeem(b).is_some());
        assert_eq!((s.used(), s.unsignalled, s.finished), (0, 0, 0));
    }

    /// In a full queue the newest send is the neighbour of the oldest.
    #[test]
    fn a_completion_finishes_nothing_newer() {
        for turn in 0..4 {
            let mut s = SendRing::new(1, 4);
            for _ in 0..turn {
                let id = s.put(None, true).unwrap();
                assert!(s.redeem(id).is_some());
            }
            let ids: Vec<_> =
                [false, true, true, false].iter().map(|sig| s.put(None, *sig).unwrap()).collect();
            assert!(s.redeem(ids[1]).is_some());
            assert_eq!((s.used(), s.unsignalled), (2, 1), "the first two, and not the last");
            assert!(s.redeem(ids[2]).is_some());
            assert_eq!(s.used(), 1);
            assert!(s.redeem(ids[3]).is_some(), "still in flight: it can fail by itself");
            assert_eq!((s.used(), s.unsignalled, s.finished), (0, 0, 0));
        }
    }

    /// Any mixture, redeemed in any order, against what a send queue that works in order has finished.
    #[test]
    fn only_what_the_device_has_finished_comes_back() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x % n
        };
        for depth in 1..9 {
            let mut s = SendRing::new(1, depth);
            // Ids and signals of the posts the device has, oldest first; ids that were completed and not redeemed.
            let (mut device, mut completed) = (Vec::new(), Vec::new());
            for _ in 0..4000 {
                match random(3) {
                    0 => {
                        let signalled = random(2) == 0 || s.must_signal();
                        if let Ok(id) = s.put(None, signalled) {
                            device.push((id, signalled));
                        }
                    }
                    1 if !device.is_empty() => {
                        let (id, signalled) = device.remove(0);
                        if signalled {
                            completed.push(id);
                        }
                    }
                    _ if !completed.is_empty() => {
                        let id = completed.swap_remove(random(completed.len() as u64) as usize);
                        assert!(s.redeem(id).is_some());
                    }
                    _ => {}
                }
                let held = |id: u64| s.ring.entries[(id & INDEX_MASK) as usize].id == id;
                assert!(device.iter().all(|(id, _)| held(*id)), "depth {depth}");
                assert!(completed.iter().all(|id| held(*id)), "depth {depth}");
            }
        }
    }

    #[test]
    fn half_a_queue_of_unsignalled_sends_forces_a_signal() {
        let mut s = SendRing::new(1, 4);
        s.put(None, false).unwrap();
        assert!(!s.must_signal());
        s.put(None, false).unwrap();
        assert!(s.must_signal());
        assert!(SendRing::new(1, 1).must_signal(), "a queue of one has no later send");
    }
}
