//! The end of a connection.

#![forbid(unsafe_code)]

use crate::channel::EventChannel;
use crate::error::Result;
use crate::id::Connected;

impl EventChannel {
    /// Ends a connection. Both sides get [`Event::Disconnected`](crate::Event::Disconnected).
    ///
    /// Agree with the peer first: on iWARP the TCP connection is closed at once, and what the peer has not yet taken may
    /// be lost. On InfiniBand and RoCE this only tells the peer; move the queue pair to the error state
    /// (`QueuePair::to_error`) to have its requests flushed. Then drain or destroy the queue pair, then
    /// [`destroy`](Self::destroy) the handle.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) from rdma_disconnect; EINVAL when there is no connection (any more).
    pub fn disconnect(&mut self, connection: &impl Connected) -> Result<()> {
        let (entry, _) = self.entry_on_device(connection.key(), "disconnect")?;
        entry.raw.disconnect()
    }
}
