//! Work requests of every kind, as values.

#![forbid(unsafe_code)]

use crate::ah::AddressHandle;
use crate::mr::{MemoryRegion, Region, Remote};
use crate::mw::{MemoryWindow, WindowAccess};
use crate::payload::Payload;
use crate::qp_attr::SendFlags;
use crate::remote::RemoteRange;
use crate::sg::SgList;
use crate::wc::Op;
use std::sync::Arc;

/// A region to bind a window to.
#[derive(Debug)]
pub(crate) struct Bind {
    pub(crate) region: Arc<Region>,
    pub(crate) offset: usize,
    pub(crate) access: WindowAccess,
}

/// A request for a send queue, posted by [`QueuePair::post`](crate::QueuePair::post) or
/// [`post_batch`](crate::QueuePair::post_batch).
///
/// It owns the memory it names; posting moves that into the queue, its completion gives it back. Everything is checked
/// when it is posted.
///
/// ```no_run
/// # use rdma_safe::*;
/// # fn f(qp: &mut QueuePair, slot: Slot, told: &[u8; 20]) -> std::result::Result<(), PostError> {
/// let theirs = RemoteRange::from_bytes(told);
/// qp.post(Request::write(slot, 4096, theirs).imm(7))
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct Request<'a> {
    pub(crate) op: Op,
    pub(crate) payload: Option<Payload>,
    pub(crate) inline: Option<&'a [u8]>,
    pub(crate) len: usize,
    pub(crate) remote: RemoteRange,
    /// Compare or add, and swap.
    pub(crate) operands: (u64, u64),
    pub(crate) bind: Option<Bind>,
    pub(crate) flags: SendFlags,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidate: Option<u32>,
    pub(crate) srq_num: Option<u32>,
    /// Receiver, its queue pair number and key.
    pub(crate) to: Option<(&'a AddressHandle, u32, u32)>,
}

const NOWHERE: RemoteRange = RemoteRange { addr: 0, len: 0, rkey: 0 };

impl<'a> Request<'a> {
    fn new(op: Op, payload: Option<Payload>, len: usize, remote: RemoteRange) -> Request<'a> {
        Request {
            op,
            payload,
            inline: None,
            len,
            remote,
            operands: (0, 0),
            bind: None,
            flags: SendFlags::empty(),
            imm: None,
            invalidate: None,
            srq_num: None,
            to: None,
        }
    }

    /// Sends the first `len` bytes of a slot, remote slot or shared slice. Of a list only all:
    /// [`send_list`](Self::send_list).
    ///
    /// A datagram longer than the path's MTU is dropped by the device without a word, and completes as sent (InfiniBand
    /// 1.2.1, C10-93.1.1).
    pub fn send(payload: impl Into<Payload>, len: usize) -> Request<'a> {
        Request::new(Op::Send, Some(payload.into()), len, NOWHERE)
    }

    /// Sends a whole list.
    pub fn send_list(list: SgList) -> Request<'a> {
        let len = total(&list);
        Request::new(Op::Send, Some(list.into()), len, NOWHERE)
    }

    /// Sends a copy of `data`, at most [`max_inline`](crate::QueuePair::max_inline) bytes.
    pub fn send_inline(data: &'a [u8]) -> Request<'a> {
        let r = Request::new(Op::Send, None, data.len(), NOWHERE);
        Request { inline: Some(data), flags: SendFlags::INLINE, ..r }
    }

    /// Writes the first `len` bytes of a slot, remote slot or shared slice to the start of `to`.
    ///
    /// Its completion means that the memory here can be used again; on iWARP it promises nothing about the peer. A
    /// later message on the same queue pair is received after the bytes are in place.
    pub fn write(payload: impl Into<Payload>, len: usize, to: RemoteRange) -> Request<'a> {
        Request::new(Op::Write, Some(payload.into()), len, to)
    }

    /// Writes a whole list to the start of `to`.
    pub fn write_list(list: SgList, to: RemoteRange) -> Request<'a> {
        let len = total(&list);
        Request::new(Op::Write, Some(list.into()), len, to)
    }

    /// Writes a copy of `data`, at most [`max_inline`](crate::QueuePair::max_inline) bytes.
    pub fn write_inline(data: &'a [u8], to: RemoteRange) -> Request<'a> {
        let r = Request::new(Op::Write, None, data.len(), to);
        Request { inline: Some(data), flags: SendFlags::INLINE, ..r }
    }

    /// Reads the first `len` bytes of `from` into the start of `sink`: a remote slot, or on other transports than iWARP
    /// also a slot. Always signalled: other completions may overtake it.
    pub fn read(sink: impl Into<Payload>, len: usize, from: RemoteRange) -> Request<'a> {
        Request::new(Op::Read, Some(sink.into()), len, from)
    }

    /// Reads as many bytes as a list holds from the start of `from`. Many devices can only read into one piece.
    pub fn read_list(sink: SgList, from: RemoteRange) -> Request<'a> {
        let len = total(&sink);
        Request::new(Op::Read, Some(sink.into()), len, from)
    }

    /// Puts `swap` into the first 8 bytes of `at` if they are `compare`; what was there before comes back in the first
    /// 8 bytes of `old`. All in host order. Always signalled.
    pub fn compare_swap(
        old: impl Into<Payload>,
        at: RemoteRange,
        compare: u64,
        swap: u64,
    ) -> Request<'a> {
        let r = Request::new(Op::CompareSwap, Some(old.into()), 8, at);
        Request { operands: (compare, swap), ..r }
    }

    /// Adds to the first 8 bytes of `at`, wrapping; what was there before comes back in the first 8 bytes of `old`. All
    /// in host order. Always signalled.
    pub fn fetch_add(old: impl Into<Payload>, at: RemoteRange, add: u64) -> Request<'a> {
        let r = Request::new(Op::FetchAdd, Some(old.into()), 8, at);
        Request { operands: (add, 0), ..r }
    }

    /// Binds a window to `len` bytes at `offset` of a region registered with
    /// [`RemoteAccess::Windows`](crate::RemoteAccess::Windows). With `len` 0 it takes the right back (type 1). The
    /// window keeps the region registered while it is bound. Always signalled.
    pub fn bind(
        window: MemoryWindow,
        region: &MemoryRegion<Remote>,
        offset: usize,
        len: usize,
        access: WindowAccess,
    ) -> Request<'a> {
        let r = Request::new(Op::Bind, Some(window.into()), len, NOWHERE);
        let region = Arc::clone(&region.region);
        Request { bind: Some(Bind { region, offset, access }), ..r }
    }

    /// Takes back what a bound window of type 2 allows. Always signalled.
    pub fn local_invalidate(window: MemoryWindow) -> Request<'a> {
        Request::new(Op::LocalInvalidate, Some(window.into()), 0, NOWHERE)
    }

    /// Adds immediate data to a send or write, in host order. A write with it consumes a receive at the peer.
    pub fn imm(self, imm: u32) -> Request<'a> {
        Request { imm: Some(imm), ..self }
    }

    /// Makes a send invalidate a key of the peer's on arrival. siw's peer does so with any region's.
    pub fn invalidate(self, rkey: u32) -> Request<'a> {
        Request { invalidate: Some(rkey), ..self }
    }

    /// Adds flags.
    pub fn flags(self, flags: SendFlags) -> Request<'a> {
        Request { flags: self.flags | flags, ..self }
    }

    /// Names the receiver of a datagram: its address, the number of its queue pair, and that one's Q key.
    ///
    /// The queue pair may hold the handle longer than the send is in flight: until the entry of its send queue is used
    /// for another receiver, or it is closed.
    pub fn to(self, to: &'a AddressHandle, qp_num: u32, qkey: u32) -> Request<'a> {
        Request { to: Some((to, qp_num, qkey)), ..self }
    }

    /// Names the peer's shared receive queue, which sends and writes with immediate data need over XRC.
    pub fn to_srq(self, srq_num: u32) -> Request<'a> {
        Request { srq_num: Some(srq_num), ..self }
    }
}

/// Lossless where it matters: a list is at most 2 GiB.
fn total(list: &SgList) -> usize {
    usize::try_from(list.total_len()).unwrap_or(usize::MAX)
}
