//! Keeps a buffer for the message that tells the peer of a put.
//!
//! Where the end of a put says nothing of the peer (iWARP), the order on the lane does: ob1 sends its FIN from within
//! the put's callback, over the same rail. Did it get no descriptor then, it would send the FIN later, over whichever
//! rail has one first, and there the FIN may overtake the bytes. So the callback is made only when there is a buffer,
//! and the first `alloc` in it gets that one.

use crate::abi;
use crate::rail::{Inner, Rail};
use core::cell::Cell;
use core::ptr;

thread_local! {
    /// The buffer kept for the callback that this thread is in, and the rail it is of.
    static SPARE: Cell<(*const Rail, *mut abi::Descriptor)> =
        const { Cell::new((ptr::null(), ptr::null_mut())) };
}

/// Room for the longest control message of ob1.
pub(crate) const ROOM: usize = 256;

/// This thread is going to call Open MPI back.
pub(crate) fn keep(rail: &Rail, des: *mut abi::Descriptor) {
    SPARE.set((rail, des));
}

/// Gives the buffer back, if one is kept for this thread and rail: the caller, who has the rail's lock, or whoever comes
/// after it, can have it.
pub(crate) fn release(rail: &Rail, inner: &mut Inner) {
    let (of, des) = SPARE.get();
    if !des.is_null() && ptr::eq(of, rail) {
        SPARE.set((ptr::null(), ptr::null_mut()));
        if let Some(Some(buf)) = inner.slab.take_back(des) {
            inner.engine.free(buf);
        }
    }
}
