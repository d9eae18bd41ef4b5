//! Scatter-gather lists: several pieces of memory in one request.

use crate::error::{Error, ErrorKind, Result};
use crate::payload::{Payload, PayloadKind, Span};
use crate::pd::PdInner;
use crate::remote_slot::RemoteSlot;
use crate::shared::SharedSlice;
use crate::slot::Slot;
use rdma_sys::ibv_sge;
use std::fmt;

/// Longest message of any transport, bytes (InfiniBand 1.2.1, 9.7.7).
const MESSAGE_MAX: u64 = 1 << 31;

/// What a [`SgList`] owns.
#[repr(align(8))]
pub(crate) struct List {
    sges: Vec<ibv_sge>,
    pieces: Vec<Payload>,
    total: u64,
    pd: *const PdInner,
    shared: u32,
    remote: u32,
}

// SAFETY: owner of the pieces, which are Send; the PD is an identity that is compared and never read through.
unsafe impl Send for List {}
// SAFETY: as above, and the pieces are Sync.
unsafe impl Sync for List {}

impl List {
    pub(crate) fn sges(&self) -> &[ibv_sge] {
        &self.sges
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn is_of(&self, pd: *const PdInner) -> bool {
        std::ptr::eq(self.pd, pd)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.shared == 0
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.remote as usize == self.pieces.len()
    }

    fn count(&mut self, piece: &Payload, by: u32) {
        self.shared = self.shared.wrapping_add(if piece.is_writable() { 0 } else { by });
        self.remote = self.remote.wrapping_add(if piece.is_remote() { by } else { 0 });
    }
}

/// An owned list of pieces of memory that one request gathers from or scatters to, in order. One word.
///
/// The device's form of the list is made as pieces are pushed, so that posting it again costs nothing. Posting moves
/// the list into the queue, its completion gives it back.
pub struct SgList(pub(crate) Box<List>);

static_assertions::assert_eq_size!(Option<SgList>, usize);

impl SgList {
    /// An empty list, which cannot be posted.
    pub fn new() -> SgList {
        SgList(Box::new(List {
            sges: Vec::new(),
            pieces: Vec::new(),
            total: 0,
            pd: std::ptr::null(),
            shared: 0,
            remote: 0,
        }))
    }

    /// Appends the first `len` bytes of a piece.
    ///
    /// # Errors
    /// Gives the piece back when `len` is 0 (some devices read that as 2 GiB), more than the piece holds, or makes the
    /// list longer than 2 GiB ([`InvalidArgument`](ErrorKind::InvalidArgument)), or when it belongs to another
    /// protection domain than the others ([`WrongContext`](ErrorKind::WrongContext)).
    pub fn push(
        &mut self,
        piece: impl Piece,
        len: usize,
    ) -> std::result::Result<(), (Payload, Error)> {
        let piece: Payload = piece.into();
        let list = &mut *self.0;
        let Some(Span::One(wire)) = piece.span() else {
            return Err((
                piece,
                refused(ErrorKind::InvalidArgument, "it is not one piece of memory"),
            ));
        };
        let (total, length) = (list.total.saturating_add(len as u64), u32::try_from(len));
        let length = match length {
            Ok(l) if l > 0 && l <= wire.capacity && total <= MESSAGE_MAX => l,
            _ => {
                let why = format!(
                    "{len} bytes of a piece of {}, to a list of {}",
                    wire.capacity, list.total
                );
                return Err((piece, refused(ErrorKind::InvalidArgument, why)));
            }
        };
        if !list.pieces.is_empty() && !list.is_of(wire.pd) {
            let why = "the piece belongs to another protection domain than the list";
            return Err((piece, refused(ErrorKind::WrongContext, why)));
        }
        list.pd = wire.pd;
        list.sges.push(ibv_sge { addr: wire.addr, length, lkey: wire.lkey });
        list.total = total;
        list.count(&piece, 1);
        list.pieces.push(piece);
        Ok(())
    }

    /// Takes the last piece off.
    pub fn pop(&mut self) -> Option<PayloadKind> {
        let list = &mut *self.0;
        let piece = list.pieces.pop()?;
        list.total = list.total.saturating_sub(list.sges.pop()?.length.into());
        list.count(&piece, 1u32.wrapping_neg());
        Some(piece.into_kind())
    }

    /// Changes how many bytes of the piece `index` count.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) as [`push`](Self::push), and when there is no such piece.
    pub fn set_len(&mut self, index: usize, len: usize) -> Result<()> {
        let list = &mut *self.0;
        if let (Some(sge), Some(Span::One(wire)), Ok(length)) = (
            list.sges.get_mut(index),
            list.pieces.get(index).and_then(Payload::span),
            u32::try_from(len),
        ) {
            let total = list.total.saturating_sub(sge.length.into()).saturating_add(length.into());
            if length > 0 && length <= wire.capacity && total <= MESSAGE_MAX {
                (sge.length, list.total) = (length, total);
                return Ok(());
            }
        }
        Err(refused(ErrorKind::InvalidArgument, format!("{len} bytes of piece {index}")))
    }

    /// Bytes of all pieces together.
    pub fn total_len(&self) -> u64 {
        self.0.total
    }

    /// How many pieces.
    pub fn len(&self) -> usize {
        self.0.pieces.len()
    }

    /// No piece yet.
    pub fn is_empty(&self) -> bool {
        self.0.pieces.is_empty()
    }

    /// The bytes of piece `index` that count, if it is local memory.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        let len = self.0.sges.get(index)?.length as usize;
        self.0.pieces.get(index)?.local()?.get(..len)
    }

    /// The bytes of piece `index` that count, if it is a slot.
    pub fn bytes_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let len = self.0.sges.get(index)?.length as usize;
        self.0.pieces.get_mut(index)?.local_mut()?.get_mut(..len)
    }

    /// Copies the first `len` bytes of what the pieces hold together, in order; what a receive of `len` bytes left.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the list is shorter.
    pub fn copy_out(&self, data: &mut [u8]) -> Result<()> {
        if data.len() as u64 > self.0.total {
            let why = format!("{} bytes of a list of {}", data.len(), self.0.total);
            return Err(refused(ErrorKind::InvalidArgument, why));
        }
        let mut rest = data;
        for (piece, sge) in self.0.pieces.iter().zip(&self.0.sges) {
            let (now, later) = rest.split_at_mut(rest.len().min(sge.length as usize));
            piece.read(now)?;
            rest = later;
        }
        Ok(())
    }

    /// The pieces, in order.
    pub fn into_pieces(self) -> Vec<PayloadKind> {
        self.0.pieces.into_iter().map(Payload::into_kind).collect()
    }
}

/// What can be a piece of an [`SgList`].
pub trait Piece: Into<Payload> + sealed::Sealed {}
impl Piece for Slot {}
impl Piece for RemoteSlot {}
impl Piece for SharedSlice {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Slot {}
    impl Sealed for super::RemoteSlot {}
    impl Sealed for super::SharedSlice {}
}

fn refused(kind: ErrorKind, why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::refused("scatter-gather list", kind, why)
}

impl Default for SgList {
    fn default() -> SgList {
        SgList::new()
    }
}

impl fmt::Debug for SgList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SgList({} bytes in {} pieces)", self.total_len(), self.len())
    }
}
