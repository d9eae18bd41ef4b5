//! Keeping a queue pair's number its own while another thread uses it.
//!
//! A thread that connects a queue pair knows it by its number only (rdma_connect(3)), and devices give a dead queue pair's
//! number to the next at once. So the destruction waits for that thread, as it would in the kernel a moment later.

#![forbid(unsafe_code)]

use crate::qp::QueuePair;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Who uses the number.
#[derive(Default)]
pub(crate) struct Holds {
    count: Mutex<u32>,
    none: Condvar,
}

impl Holds {
    fn change(&self, by: i32) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add_signed(by);
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Blocks until nobody uses it.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            count = self.none.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// While it lives, the destruction of the queue pair blocks.
#[doc(hidden)]
pub struct NumberHold(Arc<Holds>);

impl Drop for NumberHold {
    fn drop(&mut self) {
        self.0.change(-1);
    }
}

impl QueuePair {
    /// See [`NumberHold`]. Whoever has one promises to drop it within a limit.
    #[doc(hidden)]
    pub fn hold_number(&mut self) -> NumberHold {
        let holds = self.holds.get_or_insert_default();
        holds.change(1);
        NumberHold(Arc::clone(holds))
    }
}
