//! Memory that knows when it is freed.

use rdma_safe::StableBuffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asked with the addresses of memory that is about to be freed; says what is wrong with that.
pub(crate) type Watch = Arc<dyn Fn(std::ops::Range<usize>) -> Option<String> + Send + Sync>;

/// How much memory is there, and what went wrong with it.
#[derive(Default)]
pub(crate) struct Ledger {
    live: AtomicUsize,
    wrong: std::sync::Mutex<Vec<String>>,
}

impl Ledger {
    /// Buffers that are not freed.
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// What went wrong so far.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }
}

/// A heap block of its own, so that a sanitizer sees every access beyond or after it.
pub(crate) struct Watched {
    block: *mut [u8],
    watch: Watch,
    ledger: Arc<Ledger>,
}

// SAFETY: plain memory, owned by this value alone.
unsafe impl Send for Watched {}

impl Watched {
    pub(crate) fn new(len: usize, watch: &Watch, ledger: &Arc<Ledger>) -> Watched {
        ledger.live.fetch_add(1, Ordering::Relaxed);
        let block = Box::into_raw(vec![0u8; len].into_boxed_slice());
        Watched { block, watch: Arc::clone(watch), ledger: Arc::clone(ledger) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let start = self.block.cast::<u8>().addr();
        if let Some(why) = (self.watch)(start..start + self.block.len()) {
            self.ledger.wrong.lock().unwrap().push(why);
        }
        self.ledger.live.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: made by Box::into_raw, freed once.
        drop(unsafe { Box::from_raw(self.block) });
    }
}

// SAFETY: a heap block stays where it is until Drop frees it.
unsafe impl StableBuffer for Watched {
    fn as_ptr(&self) -> *mut u8 {
        self.block.cast()
    }
    fn len(&self) -> usize {
        self.block.len()
    }
}
