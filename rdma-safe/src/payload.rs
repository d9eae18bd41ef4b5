//! What a request owns while the device has it, in one word: a pointer whose low bits say what it points at.
//!
//! A plain slot has the low bits 0, so the message path tells it from everything else with one test.

use crate::mw::MemoryWindow;
use crate::remote_slot::RemoteSlot;
use crate::sg::{List, SgList};
use crate::shared::{Piece, SharedSlice};
use crate::slot::{HeaderPtr, Slot, SlotHeader, Wire};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, without_provenance_mut};

const TAG_BITS: u32 = 3;
const TAG_MASK: usize = (1 << TAG_BITS) - 1;
const SLOT: usize = 0;
const REMOTE: usize = 1;
const SHARED: usize = 2;
const LIST: usize = 3;
const WINDOW: usize = 4;
/// A slot again, in a request that is not a plain send or receive.
const OTHER_SLOT: usize = 5;
/// Nothing; which of several, the rest of the word says: all bits 0 in a request that is not a plain send.
const NOTHING: usize = 6;
const VACANT: usize = 1 << TAG_BITS | NOTHING;
const INLINE: usize = 2 << TAG_BITS | NOTHING;
const TOKEN: usize = 7;

/// Tokens of raw requests are below this.
pub(crate) const TOKEN_MAX: usize = 1 << (usize::BITS - TAG_BITS);

/// What was moved into a queue and comes back: memory of any kind, a window, or the token of a raw request. One word.
///
/// Everything that can be posted converts into it; [`into_kind`](Self::into_kind) tells what it is.
#[repr(transparent)]
pub struct Payload(NonNull<u8>);

static_assertions::assert_eq_size!(Option<Payload>, usize);
static_assertions::assert_impl_all!(Slot: Send, Sync);
static_assertions::assert_impl_all!(RemoteSlot: Send, Sync);
static_assertions::assert_impl_all!(SharedSlice: Send, Sync);
static_assertions::assert_impl_all!(SgList: Send, Sync);
static_assertions::assert_impl_all!(MemoryWindow: Send, Sync);
static_assertions::const_assert!(align_of::<Wire>() > TAG_MASK);
static_assertions::const_assert!(align_of::<Piece>() > TAG_MASK);
static_assertions::const_assert!(align_of::<List>() > TAG_MASK);
static_assertions::const_assert!(align_of::<crate::mw::Window>() > TAG_MASK);

// SAFETY: it owns one of the types asserted above, or nothing.
unsafe impl Send for Payload {}
// SAFETY: as above.
unsafe impl Sync for Payload {}

/// The kinds of [`Payload`].
#[derive(Debug)]
#[non_exhaustive]
pub enum PayloadKind {
    /// Exclusive local memory.
    Slot(Slot),
    /// Memory that peers may use as well.
    Remote(RemoteSlot),
    /// A part of shared, read-only memory.
    Shared(SharedSlice),
    /// Several pieces.
    List(SgList),
    /// A memory window.
    Window(MemoryWindow),
    /// The token of a raw request.
    Token(usize),
}

impl Payload {
    fn new<T>(at: NonNull<T>, tag: usize) -> Payload {
        Payload(at.cast::<u8>().map_addr(|a| a | tag))
    }

    /// A word that is no pointer; its tag is not 0.
    fn word(word: usize) -> Payload {
        // SAFETY: the tag is not 0.
        Payload(unsafe { NonNull::new_unchecked(without_provenance_mut(word)) })
    }

    /// What an entry of an in-flight table holds while nothing is in flight.
    pub(crate) const VACANT: Payload = Payload(Payload::word_of(VACANT));
    /// Nothing, in a plain send, whose data was inline.
    pub(crate) const INLINE: Payload = Payload(Payload::word_of(INLINE));

    const fn word_of(word: usize) -> NonNull<u8> {
        match NonNull::new(without_provenance_mut(word)) {
            Some(word) => word,
            None => panic!("a word with a tag is not 0"),
        }
    }

    fn tag(&self) -> usize {
        self.0.addr().get() & TAG_MASK
    }

    fn at<T>(&self) -> NonNull<T> {
        // SAFETY: what was tagged is a pointer to an object, whose address is not 0 without the tag either.
        unsafe { NonNull::new_unchecked(self.0.as_ptr().map_addr(|a| a & !TAG_MASK).cast()) }
    }

    /// Whether there is nothing, or a plain slot.
    pub(crate) fn is_plain_or_none(payload: &Option<Payload>) -> bool {
        payload.as_ref().map_or(SLOT, Payload::tag) == SLOT
    }

    /// Takes the slot of a plain request out and leaves [`VACANT`](Self::VACANT); `None` leaves everything as it is.
    #[inline(always)]
    pub(crate) fn take_slot(&mut self) -> Option<Slot> {
        let at = self.0;
        if at.addr().get() & TAG_MASK != SLOT {
            return None;
        }
        // No drop: what is overwritten moves out below.
        self.0 = const { Payload::word_of(VACANT) };
        // SAFETY: with tag 0 it is the pointer that `From<Slot>` took, and it was in this place only.
        Some(unsafe { Slot::from_header(HeaderPtr::from_raw(at.cast())) })
    }

    #[inline(always)]
    pub(crate) fn is_vacant(&self) -> bool {
        self.0.addr().get() == VACANT
    }

    #[inline(always)]
    pub(crate) fn is_inline(&self) -> bool {
        self.0.addr().get() == INLINE
    }

    /// Itself, unless it stands for the nothing of a vacant entry or of a plain send.
    pub(crate) fn present(self) -> Option<Payload> {
        if self.is_vacant() || self.is_inline() {
            std::mem::forget(self);
            return None;
        }
        Some(self)
    }

    /// For a request that is no plain send or receive: its redemption has to look further.
    pub(crate) fn other(payload: Option<Payload>) -> Payload {
        match payload {
            None => Payload::word(NOTHING),
            Some(p) if p.tag() == SLOT => {
                let at = ManuallyDrop::new(p).0;
                Payload::new(at, OTHER_SLOT)
            }
            Some(p) => p,
        }
    }

    /// Undoes [`other`](Self::other).
    pub(crate) fn settle(self) -> Option<Payload> {
        match self.tag() {
            NOTHING => {
                let _ = ManuallyDrop::new(self);
                None
            }
            OTHER_SLOT => {
                let at = ManuallyDrop::new(self).at::<u8>();
                Some(Payload(at))
            }
            _ => Some(self),
        }
    }

    /// Whether it owns nothing that could come back.
    pub(crate) fn is_nothing(&self) -> bool {
        self.tag() == NOTHING
    }

    /// The token of a raw request, below [`TOKEN_MAX`].
    pub(crate) fn token(token: usize) -> Payload {
        Payload::word(token << TAG_BITS | TOKEN)
    }

    /// What it is.
    pub fn into_kind(self) -> PayloadKind {
        let me = ManuallyDrop::new(self);
        // SAFETY: each tag is only given by the conversion from its type, whose ownership moved into `self` and moves
        // out here, once.
        unsafe {
            match me.tag() {
                REMOTE => {
                    PayloadKind::Remote(RemoteSlot::from_header(HeaderPtr::from_raw(me.at())))
                }
                SHARED => PayloadKind::Shared(SharedSlice(Box::from_raw(me.at().as_ptr()))),
                LIST => PayloadKind::List(SgList(Box::from_raw(me.at().as_ptr()))),
                WINDOW => PayloadKind::Window(MemoryWindow(Box::from_raw(me.at().as_ptr()))),
                SLOT | OTHER_SLOT => {
                    PayloadKind::Slot(Slot::from_header(HeaderPtr::from_raw(me.at())))
                }
                // A NOTHING never leaves the queue (`settle`).
                _ => PayloadKind::Token(me.0.addr().get() >> TAG_BITS),
            }
        }
    }

    /// The slot, or itself if it is something else.
    ///
    /// # Errors
    /// Itself.
    pub fn into_slot(self) -> Result<Slot, Payload> {
        match self.tag() {
            SLOT | OTHER_SLOT => {
                let at = ManuallyDrop::new(self).at();
                // SAFETY: as in `into_kind`.
                Ok(unsafe { Slot::from_header(HeaderPtr::from_raw(at)) })
            }
            _ => Err(self),
        }
    }

    /// Where its bytes are, as the device knows them, and in how many pieces. `None` for what has no bytes.
    pub(crate) fn span(&self) -> Option<Span<'_>> {
        // SAFETY: headers of slots, and the boxes of slices and lists, live as long as what `self` owns; the first two
        // begin with a `Wire` (repr(C)).
        unsafe {
            match self.tag() {
                SLOT | OTHER_SLOT | REMOTE | SHARED => Some(Span::One(self.at::<Wire>().as_ref())),
                LIST => Some(Span::Many(self.at::<List>().as_ref())),
                _ => None,
            }
        }
    }

    /// Whether the device may write into it.
    pub(crate) fn is_writable(&self) -> bool {
        match self.span() {
            Some(Span::One(_)) => self.tag() != SHARED,
            Some(Span::Many(list)) => list.is_writable(),
            None => false,
        }
    }

    /// Whether all of it is memory that peers may be allowed to write.
    pub(crate) fn is_remote(&self) -> bool {
        match self.span() {
            Some(Span::One(_)) => self.tag() == REMOTE,
            Some(Span::Many(list)) => list.is_remote(),
            None => false,
        }
    }

    /// The bytes, where they are local memory in one piece.
    pub(crate) fn local(&self) -> Option<&[u8]> {
        // SAFETY: a slot is the word it is made of (transparent), and only borrowed; a slice lives in its box.
        unsafe {
            match self.tag() {
                SLOT | OTHER_SLOT => {
                    let at = self.at::<SlotHeader>();
                    let slot = ManuallyDrop::new(Slot::from_header(HeaderPtr::from_raw(at)));
                    Some(std::slice::from_raw_parts(slot.as_ptr(), slot.len()))
                }
                SHARED => Some(self.at::<Piece>().as_ref()),
                _ => None,
            }
        }
    }

    /// The bytes, to be written, where they are a slot.
    pub(crate) fn local_mut(&mut self) -> Option<&mut [u8]> {
        match self.tag() {
            SLOT | OTHER_SLOT => {
                // SAFETY: as in `local`, and `self` is borrowed exclusively.
                unsafe {
                    let at = self.at::<SlotHeader>();
                    let mut slot = ManuallyDrop::new(Slot::from_header(HeaderPtr::from_raw(at)));
                    Some(std::slice::from_raw_parts_mut(slot.as_mut_ptr(), slot.len()))
                }
            }
            _ => None,
        }
    }

    /// Copies its first bytes out, of memory in one piece.
    pub(crate) fn read(&self, out: &mut [u8]) -> crate::Result<()> {
        if self.tag() == REMOTE {
            // SAFETY: as in `into_kind`, and only borrowed.
            let slot = unsafe { RemoteSlot::from_header(HeaderPtr::from_raw(self.at())) };
            return ManuallyDrop::new(slot).copy_out(0, out);
        }
        match self.local().and_then(|b| b.get(..out.len())) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => {
                let why = "it does not hold so many bytes";
                return Err(crate::Error::refused("copy", crate::ErrorKind::InvalidArgument, why));
            }
        }
        Ok(())
    }

    /// The window in it.
    pub(crate) fn window_ref(&self) -> Option<&crate::mw::Window> {
        // SAFETY: the box of a window, which `self` owns.
        (self.tag() == WINDOW).then(|| unsafe { self.at::<crate::mw::Window>().as_ref() })
    }

    /// The window in it, to be changed.
    pub(crate) fn window(&mut self) -> Option<&mut crate::mw::Window> {
        // SAFETY: the box of a window, which `self` owns and is borrowed exclusively.
        (self.tag() == WINDOW).then(|| unsafe { self.at::<crate::mw::Window>().as_mut() })
    }
}

/// The bytes of a payload.
pub(crate) enum Span<'a> {
    One(&'a Wire),
    Many(&'a List),
}

impl Drop for Payload {
    #[inline(always)]
    fn drop(&mut self) {
        drop_word(self.0);
    }
}

#[cold]
#[inline(never)]
fn drop_word(word: NonNull<u8>) {
    let me = Payload(word);
    if me.tag() == NOTHING {
        std::mem::forget(me);
    } else {
        drop(me.into_kind());
    }
}

impl From<Slot> for Payload {
    #[inline(always)]
    fn from(slot: Slot) -> Payload {
        Payload(slot.into_header().into_raw().cast())
    }
}

impl From<RemoteSlot> for Payload {
    fn from(slot: RemoteSlot) -> Payload {
        Payload::new(slot.into_header().into_raw(), REMOTE)
    }
}

impl From<SharedSlice> for Payload {
    fn from(slice: SharedSlice) -> Payload {
        Payload::new(NonNull::from(Box::leak(slice.0)), SHARED)
    }
}

impl From<SgList> for Payload {
    fn from(list: SgList) -> Payload {
        Payload::new(NonNull::from(Box::leak(list.0)), LIST)
    }
}

impl From<MemoryWindow> for Payload {
    fn from(window: MemoryWindow) -> Payload {
        Payload::new(NonNull::from(Box::leak(window.0)), WINDOW)
    }
}

impl From<PayloadKind> for Payload {
    fn from(kind: PayloadKind) -> Payload {
        match kind {
            PayloadKind::Slot(p) => p.into(),
            PayloadKind::Remote(p) => p.into(),
            PayloadKind::Shared(p) => p.into(),
            PayloadKind::List(p) => p.into(),
            PayloadKind::Window(p) => p.into(),
            PayloadKind::Token(t) => Payload::token(t),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.tag() {
            SLOT | OTHER_SLOT => "Payload(slot)",
            REMOTE => "Payload(remote slot)",
            SHARED => "Payload(shared slice)",
            LIST => "Payload(list)",
            WINDOW => "Payload(window)",
            NOTHING => "Payload(nothing)",
            _ => "Payload(token)",
        })
    }
}
