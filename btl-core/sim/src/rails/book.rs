//! What was sent over rails, and what became of it.
use crate::check::{Invariant, Violation};
use crate::rng;
use btl_core::rma::RemoteRange;

/// The tag of messages that tell of a put: their first 8 bytes say which.
pub(super) const NOTICE: u8 = 255;

#[derive(Clone, Copy, Debug)]
struct Message {
    pair: usize,
    /// Which of the pair.
    place: usize,
    len: usize,
    notice: Option<u64>,
    over: bool,
    acknowledged: bool,
}

/// A put: its parts are at these places of the peer's devices.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) src: u32,
    pub(super) dst: u32,
    pub(super) parts: Vec<(u32, RemoteRange)>,
    pub(super) over: bool,
}

pub(super) struct Book {
    seed: u64,
    processes: u32,
    messages: Vec<Message>,
    /// By source and destination: messages in order, and how many were delivered.
    sent: Vec<(Vec<u64>, usize)>,
    pub(super) puts: Vec<Put>,
    /// Pairs whose messages may be lost: the peer failed.
    pub(super) failed: Vec<bool>,
}

fn bad(what: String) -> Violation {
    Violation { invariant: Invariant::S8, what }
}

impl Book {
    pub(super) fn new(seed: u64, processes: u32) -> Book {
        let pairs = (processes * processes) as usize;
        Book {
            seed,
            processes,
            messages: Vec::new(),
            sent: vec![(Vec::new(), 0); pairs],
            puts: Vec::new(),
            failed: vec![false; pairs],
        }
    }

    fn pair(&self, src: u32, dst: u32) -> usize {
        (src * self.processes + dst) as usize
    }

    pub(super) fn next_id(&self) -> u64 {
        self.messages.len() as u64
    }

    /// The payload of the next message.
    pub(super) fn payload(&self, len: usize, notice: Option<u64>) -> Vec<u8> {
        let mut data = vec![0; len];
        rng::fill(self.seed, self.next_id(), &mut data);
        if let (Some(put), Some(to)) = (notice, data.get_mut(..8)) {
            to.copy_from_slice(&put.to_le_bytes());
        }
        data
    }

    pub(super) fn tag(&self, id: u64, notice: bool) -> u8 {
        if notice { NOTICE } else { (rng::mix(id) % 255) as u8 }
    }

    pub(super) fn accepted(&mut self, src: u32, dst: u32, len: usize, notice: Option<u64>) {
        let (pair, id) = (self.pair(src, dst), self.next_id());
        let place = self.sent[pair].0.len();
        self.sent[pair].0.push(id);
        let (over, acknowledged) = (false, false);
        self.messages.push(Message { pair, place, len, notice, over, acknowledged });
    }

    /// A message arrived: the put it tells of.
    pub(super) fn delivered(
        &mut self,
        src: u32,
        dst: u32,
        tag: u8,
        data: &[u8],
    ) -> Result<Option<u64>, Violation> {
        let pair = self.pair(src, dst);
        let (ids, n) = &mut self.sent[pair];
        let Some(&id) = ids.get(*n) else {
            return Err(bad(format!("{src} to {dst}: one message more than were sent")));
        };
        *n += 1;
        let it = self.messages[id as usize];
        let mut want = vec![0; it.len];
        rng::fill(self.seed, id, &mut want);
        if let (Some(put), Some(to)) = (it.notice, want.get_mut(..8)) {
            to.copy_from_slice(&put.to_le_bytes());
        }
        if data != want || tag != self.tag(id, it.notice.is_some()) {
            let what = format!(
                "{src} to {dst}: {} bytes with tag {tag} arrived where message {id} of {} bytes was to",
                data.len(),
                it.len
            );
            return Err(bad(what));
        }
        Ok(it.notice)
    }

    /// A send ended.
    pub(super) fn ended(&mut self, id: u64, data: &[u8], well: bool) -> Result<(), Violation> {
        let Some(it) = self.messages.get_mut(id as usize) else {
            return Err(bad(format!("message {id}, which there is not, ended")));
        };
        if std::mem::replace(&mut it.over, true) {
            return Err(bad(format!("message {id} ended again")));
        }
        if data.len() != it.len {
            return Err(bad(format!("message {id} came back with {} bytes", data.len())));
        }
        it.acknowledged = well;
        match well || self.failed[it.pair] {
            true => Ok(()),
            false => Err(bad(format!("message {id} failed, but its peer did not"))),
        }
    }

    /// Messages not over, and not delivered though they have to be.
    pub(super) fn open(&self) -> (usize, usize) {
        let unsent = self.messages.iter().filter(|it| !it.over).count();
        let missing = |(pair, (ids, n)): (usize, &(Vec<u64>, usize))| match self.failed[pair] {
            true => 0,
            false => ids.len() - n,
        };
        (unsent, self.sent.iter().enumerate().map(missing).sum())
    }

    /// What was acknowledged and not delivered.
    pub(super) fn broken_promise(&self) -> Option<u64> {
        let all = self.messages.iter().enumerate();
        let broken = |it: &Message| it.acknowledged && it.place >= self.sent[it.pair].1;
        all.filter(|(_, it)| broken(it)).map(|(id, _)| id as u64).next()
    }

    pub(super) fn fail(&mut self, a: u32, b: u32) {
        let pairs = [self.pair(a, b), self.pair(b, a)];
        for pair in pairs {
            self.failed[pair] = true;
        }
    }

    pub(super) fn has_failed(&self, a: u32, b: u32) -> bool {
        self.failed[self.pair(a, b)]
    }

    pub(super) fn open_puts(&self) -> usize {
        self.puts.iter().filter(|put| !put.over).count()
    }

    /// The bytes of a part of a put.
    pub(super) fn put_bytes(&self, put: u64, part: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        rng::fill(self.seed ^ 0x7075_7473, put << 8 | part as u64, &mut bytes);
        bytes
    }
}
