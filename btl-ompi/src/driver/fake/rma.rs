//! One-sided operations of the test transport: frames that the other process carries out when it polls, in the order of
//! the lane. It is as strict as a device: what was not registered, or not for this, ends the process with a panic.

use super::{Port, Wire};
use crate::abi;
use crate::driver::{NotRegistered, SelfDone};
use btl_core::rma::{RmaErrorKind, RmaPost, Verb};
use btl_core::{Atomic, RemoteRange, RmaCaps};
use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// First byte of a frame: a message.
pub(super) const MESSAGE: u8 = b'M';
/// Bytes to be placed.
const PUT: u8 = b'P';
/// Bytes wanted.
const GET: u8 = b'G';
/// 8 bytes to be changed.
const ATOMIC: u8 = b'X';
/// The answer to any of them.
const REPLY: u8 = b'Y';

/// Longest piece of an operation: a frame has to fit the buffer of a socket.
const PIECE: u64 = 1 << 16;
/// Kind, address, key.
const HEAD: usize = 13;

/// Whether puts are over only when they are in place, and atomics exist, as on RoCE; else as on iWARP.
fn is_like_roce() -> bool {
    static LIKE: OnceLock<bool> = OnceLock::new();
    *LIKE.get_or_init(|| env::var("BTL_VERBS_FAKE").is_ok_and(|like| like == "roce"))
}

/// What this transport can do.
pub(super) fn caps() -> RmaCaps {
    let roce = is_like_roce();
    RmaCaps {
        put: true,
        get: true,
        atomics: roce,
        get_is_fast: roce,
        placed: roce,
        max_piece: PIECE,
    }
}

/// Registered memory by key.
static REGISTERED: Mutex<BTreeMap<u32, Entry>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    len: usize,
    access: u32,
}

/// Where memory is registered: this process.
pub(crate) struct Domain;

/// What ends a registration when the last user lets go of it.
struct Registered {
    key: u32,
    entry: Entry,
}

impl Drop for Registered {
    fn drop(&mut self) {
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// Registered memory of the program.
pub(crate) struct Region(Arc<Registered>);

/// A part of it.
pub(crate) struct Slice {
    of: Arc<Registered>,
    address: usize,
    len: usize,
}

/// Bytes that can be registered in all: `BTL_VERBS_FAKE_MEMLOCK`.
fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    let read = || env::var("BTL_VERBS_FAKE_MEMLOCK").ok().and_then(|text| text.parse().ok());
    *LIMIT.get_or_init(|| read().unwrap_or(usize::MAX))
}

impl Domain {
    /// Registers memory.
    ///
    /// # Safety
    /// As for real devices.
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Region, NotRegistered> {
        let mut all = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
        let used: usize = all.values().map(|entry| entry.len).sum();
        if len > limit().saturating_sub(used) {
            let why = format!("BTL_VERBS_FAKE_MEMLOCK is {}", limit());
            return Err(NotRegistered { scarce: true, why });
        }
        let key = all.keys().next_back().map_or(1, |last| last + 1);
        let entry = Entry { start: start.expose_provenance(), len, access };
        all.insert(key, entry);
        Ok(Region(Arc::new(Registered { key, entry })))
    }
}

impl Region {
    /// The key for peers.
    pub(crate) fn key(&self) -> u32 {
        self.0.key
    }

    /// A part of it.
    ///
    /// # Safety
    /// As for real devices.
    pub(crate) unsafe fn slice(&self, address: usize, len: usize) -> Option<Slice> {
        let Entry { start, len: whole, .. } = self.0.entry;
        let offset = address.checked_sub(start)?;
        let fits = len > 0 && offset.checked_add(len).is_some_and(|end| end <= whole);
        fits.then(|| Slice { of: Arc::clone(&self.0), address, len })
    }
}

impl Slice {
    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn piece(&self, post: &RmaPost) -> (*mut u8, usize) {
        let (offset, len) = (post.offset as usize, post.len as usize);
        assert!(offset + len <= self.len, "a piece is not within its memory");
        (std::ptr::with_exposed_provenance_mut(self.address + offset), len)
    }
}

/// An operation the other side has not answered, or that the engine has not been told of.
pub(super) struct Posted {
    pub(super) token: u32,
    pub(super) memory: Slice,
    post: RmaPost,
    done: bool,
}

/// The one-sided part of a lane's end.
#[derive(Default)]
pub(super) struct OneSided {
    posted: VecDeque<Posted>,
    replies: VecDeque<Vec<u8>>,
}

fn frame(kind: u8, post: &RmaPost) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&post.remote.addr.to_ne_bytes());
    bytes.extend_from_slice(&post.remote.rkey.to_ne_bytes());
    bytes
}

impl OneSided {
    /// Sends a request; gives the memory back when the socket is full or broken.
    pub(super) fn post(
        &mut self,
        wire: &Wire,
        post: &RmaPost,
        memory: Slice,
    ) -> Result<(), (io::Error, Slice)> {
        let (bytes, done) = Self::request(post, &memory);
        match wire.send(&bytes) {
            Ok(()) => {
                self.posted.push_back(Posted { token: post.token, memory, post: *post, done });
                Ok(())
            }
            Err(e) => Err((e, memory)),
        }
    }

    /// A request as a frame, and whether it is over as soon as it is sent.
    fn request(post: &RmaPost, memory: &Slice) -> (Vec<u8>, bool) {
        let (at, len) = memory.piece(post);
        let mut done = false;
        let bytes = match post.verb {
            Verb::Put => {
                let mut bytes = frame(PUT, post);
                // SAFETY: whoever registered it vouched for the memory until the operation is over.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, len) });
                done = !is_like_roce();
                bytes
            }
            Verb::Get => {
                let mut bytes = frame(GET, post);
                bytes.extend_from_slice(&post.len.to_ne_bytes());
                bytes
            }
            Verb::Atomic(atomic) => {
                let mut bytes = frame(ATOMIC, post);
                let (kind, a, b) = match atomic {
                    Atomic::FetchAdd { add } => (0_u8, add, 0),
                    Atomic::CompareSwap { compare, swap } => (1, compare, swap),
                };
                bytes.push(kind);
                bytes.extend_from_slice(&a.to_ne_bytes());
                bytes.extend_from_slice(&b.to_ne_bytes());
                bytes
            }
        };
        let writes_here = post.verb.reads();
        let access = memory.of.entry.access;
        assert!(
            !writes_here || access & abi::ACCESS_LOCAL_WRITE != 0,
            "memory that is read into is not registered for it"
        );
        (bytes, done)
    }

    /// The next operation that is over, in the order of the posts.
    pub(super) fn next_done(&mut self) -> Option<Posted> {
        if self.posted.front()?.done { self.posted.pop_front() } else { None }
    }

    /// All that are not over; the lane is closed.
    pub(super) fn take(&mut self) -> VecDeque<Posted> {
        std::mem::take(&mut self.posted)
    }

    /// Sends answers that wait.
    pub(super) fn flush(&mut self, wire: &Wire) {
        while let Some(reply) = self.replies.front() {
            if wire.send(reply).is_err() {
                return;
            }
            self.replies.pop_front();
        }
    }

    /// Carries out what the other side asks for, or takes its answer.
    pub(super) fn serve(&mut self, frame: &[u8]) {
        let (kind, rest) = frame.split_first().unwrap_or((&0, &[]));
        if *kind == REPLY {
            return self.answered(rest);
        }
        let (addr, key, rest) = request(rest);
        let place = |len, access| place(addr, key, len, access);
        let mut reply = vec![REPLY];
        match *kind {
            PUT => {
                let at = place(rest.len(), abi::ACCESS_REMOTE_WRITE);
                // SAFETY: registered for it, so it is mapped and left alone.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), at, rest.len()) };
                if !is_like_roce() {
                    return;
                }
            }
            GET => {
                let len = u64_at(rest, 0) as usize;
                let at = place(len, abi::ACCESS_REMOTE_READ);
                // SAFETY: as above.
                reply.extend_from_slice(unsafe { std::slice::from_raw_parts(at, len) });
            }
            ATOMIC => {
                let at = place(8, abi::ACCESS_REMOTE_ATOMIC).cast::<u64>();
                let (a, b) = (u64_at(rest, 1), u64_at(rest, 9));
                // SAFETY: as above; the engine refuses what is not aligned.
                unsafe {
                    let old = at.read();
                    match rest.first() {
                        Some(0) => at.write(old.wrapping_add(a)),
                        _ if old == a => at.write(b),
                        _ => {}
                    }
                    reply.extend_from_slice(&old.to_ne_bytes());
                }
            }
            other => panic!("an unknown kind of frame, {other}"),
        }
        self.replies.push_back(reply);
    }

    /// The answers come in the order of the requests.
    fn answered(&mut self, data: &[u8]) {
        let Some(posted) = self.posted.iter_mut().find(|posted| !posted.done) else {
            panic!("an answer nobody waits for");
        };
        if posted.post.verb.reads() {
            let (at, len) = posted.memory.piece(&posted.post);
            assert_eq!(data.len(), len, "an answer of another length");
            // SAFETY: whoever registered it vouched for the memory until the operation is over.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, len) };
        }
        posted.done = true;
    }
}

/// A connection of this process to itself: each operation is over at once.
#[derive(Default)]
pub(crate) struct SelfLink {
    lane: OneSided,
    cookies: VecDeque<u64>,
}

impl SelfLink {
    pub(crate) fn open(_port: &Port, _number: u8) -> Result<Self, String> {
        Ok(Self::default())
    }

    pub(crate) fn start(
        &mut self,
        verb: Verb,
        memory: Slice,
        remote: RemoteRange,
        cookie: u64,
    ) -> Result<(), (RmaErrorKind, Slice)> {
        let post = RmaPost { verb, token: 0, offset: 0, len: remote.len, remote };
        let (bytes, done) = OneSided::request(&post, &memory);
        self.lane.posted.push_back(Posted { token: 0, memory, post, done });
        self.lane.serve(&bytes);
        while let Some(reply) = self.lane.replies.pop_front() {
            self.lane.serve(&reply);
        }
        self.cookies.push_back(cookie);
        Ok(())
    }

    pub(crate) fn poll(&mut self) -> Option<SelfDone> {
        let done = self.lane.next_done()?;
        Some((self.cookies.pop_front()?, done.memory, Ok(())))
    }

    pub(crate) fn under_way(&self) -> usize {
        self.cookies.len()
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_ne_bytes(eight.unwrap_or_default())
}

fn request(bytes: &[u8]) -> (u64, u32, &[u8]) {
    assert!(bytes.len() >= HEAD - 1, "a short frame");
    let key = bytes.get(8..12).and_then(|b| b.try_into().ok()).unwrap_or_default();
    (u64_at(bytes, 0), u32::from_ne_bytes(key), bytes.get(HEAD - 1..).unwrap_or(&[]))
}

/// Where `len` bytes of registered memory are.
fn place(addr: u64, key: u32, len: usize, access: u32) -> *mut u8 {
    let all = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let addr = addr as usize;
    let fits = all.get(&key).is_some_and(|entry| {
        let offset = addr.wrapping_sub(entry.start);
        entry.access & access != 0 && offset <= entry.len && len <= entry.len - offset
    });
    assert!(fits, "{len} bytes at {addr:#x} with key {key} are not registered for access {access}");
    std::ptr::with_exposed_provenance_mut(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_registered(key: u32) -> bool {
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&key)
    }

    /// As with devices, where a share of the registration is in the slice.
    #[test]
    fn memory_stays_registered_while_an_operation_uses_it() {
        let mut bytes = vec![0_u8; 100];
        // SAFETY: the bytes outlive the region and its parts, and no operation is started.
        let (region, part) = unsafe {
            let region = Domain.register(bytes.as_mut_ptr(), 100, 0).ok().expect("registered");
            let part = region.slice(bytes.as_ptr().addr() + 10, 90).expect("within");
            assert!(region.slice(bytes.as_ptr().addr() + 10, 91).is_none(), "beyond the end");
            assert!(region.slice(bytes.as_ptr().addr() - 1, 2).is_none(), "before the start");
            (region, part)
        };
        let key = region.key();
        drop(region);
        assert!(is_registered(key), "deregistered under an operation");
        drop(part);
        assert!(!is_registered(key), "left registered");
    }
}
