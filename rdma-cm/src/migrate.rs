//! Moving an id from one channel to another.
use crate::channel::{EventChannel, Phase};
use crate::error::{Error, Result};
use crate::id::Id;

impl EventChannel {
    /// Takes an id over from another channel (rdma_migrate_id(3)), however far it has come, with the events that were read
    /// there and not handed out, and those that were not read. Its [key](Id::key) is a new one.
    ///
    /// A listener cannot move: the kernel moves its unread requests to the new channel and leaves their ids with the old one,
    /// where nobody can answer them (`ucma_migrate_id`, Linux 7.2). Move the requests, or listen anew.
    ///
    /// # Errors
    /// The id, which stays with `other`, and why: [`Error::State`] when it is none of `other`'s or a listener, or
    /// [`Error::Os`].
    pub fn adopt<I: Id>(&mut self, other: &mut EventChannel, mut id: I) -> Result<I, (I, Error)> {
        const OP: &str = "adopt";
        let (index, key, handle, channel) = self.newcomer();
        let moved = other.entry(&id, OP).and_then(|entry| {
            if entry.phase == Phase::Listening {
                let why = "a listener cannot move: requests that nobody has read would be lost";
                return Err(Error::State { op: OP, why });
            }
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
