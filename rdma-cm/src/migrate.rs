//! Moving an id from one channel to another.
use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::id::Id;

impl EventChannel {
    /// Takes an id over from another channel (rdma_migrate_id(3)), whatever it is and however far it has come, with the
    /// events that were read there and not handed out. Its [key](Id::key) is a new one.
    ///
    /// The requests to a listener that were read before stay with `other`, under the listener's old key; those that were not
    /// move along.
    ///
    /// # Errors
    /// The id, which stays with `other`, and why: [`Error::State`] when it is none of `other`'s, or [`Error::Os`].
    pub fn adopt<I: Id>(&mut self, other: &mut EventChannel, mut id: I) -> Result<I, (I, Error)> {
        let (index, key, handle, channel) = self.newcomer();
        let moved = other.entry(&id, "adopt").and_then(|entry| {
            // SAFETY: our own channel, which from now on owns the id; ids are destroyed before their channel.
            unsafe { entry.raw.migrate(channel, index as usize) }
        });
        if let Err(error) = moved {
            handle.into_key();
            self.give_back(index);
            return Err((id, error));
        }
        let old = id.replace_handle(handle).into_key();
        if let Some((entry, events)) = other.remove(old) {
            self.take_in(index, entry);
            self.keep(events.into_iter().map(|event| event.renamed(key)));
        }
        Ok(id)
    }
}
