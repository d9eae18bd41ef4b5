//! Simulated registered memory, and the book of who owns each piece (S6).
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// What a slot was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A send buffer of a class.
    Send(u8),
    /// A receive buffer of a class.
    Recv(u8),
    /// The control buffer of a lane.
    Control,
}

/// A piece of registered memory.
#[derive(Debug)]
pub struct SimSlot {
    mem: Box<[u8]>,
    /// Number in its rank's book.
    pub(crate) id: u32,
    pub(crate) purpose: Use,
    dropped: Rc<Cell<u64>>,
}

impl Deref for SimSlot {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.mem
    }
}

impl DerefMut for SimSlot {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.mem
    }
}

impl Drop for SimSlot {
    fn drop(&mut self) {
        // A control slot is lost with a Hello that could not be posted: the lane was never there.
        if self.purpose != Use::Control {
            self.dropped.set(self.dropped.get() + 1);
        }
    }
}

/// Who has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It is free.
    Pool,
    /// The engine, the application, or the CM side.
    Host,
    /// The device, on this queue pair.
    Device(u32),
}

/// All slots of one rank.
#[derive(Debug)]
pub struct SlotBook {
    owners: Vec<Owner>,
    control: Vec<bool>,
    free_send: Vec<Vec<SimSlot>>,
    free_recv: Vec<Vec<SimSlot>>,
    free_control: Vec<SimSlot>,
    sizes: Vec<usize>,
    dropped: Rc<Cell<u64>>,
}

impl SlotBook {
    /// `lanes`: buffer size and number of send slots by class.
    pub fn new(lanes: impl Iterator<Item = (usize, u32)> + Clone) -> SlotBook {
        let sizes: Vec<usize> = lanes.clone().map(|(size, _)| size).collect();
        let mut book = SlotBook {
            owners: Vec::new(),
            control: Vec::new(),
            free_send: sizes.iter().map(|_| Vec::new()).collect(),
            free_recv: sizes.iter().map(|_| Vec::new()).collect(),
            free_control: Vec::new(),
            sizes,
            dropped: Rc::default(),
        };
        for (class, (size, count)) in lanes.enumerate() {
            for _ in 0..count {
                let slot = book.make(size, Use::Send(class as u8));
                book.free_send[class].push(slot);
            }
        }
        book
    }

    fn make(&mut self, size: usize, purpose: Use) -> SimSlot {
        let id = self.owners.len() as u32;
        self.owners.push(Owner::Pool);
        self.control.push(purpose == Use::Control);
        let mem = vec![0; size].into_boxed_slice();
        SimSlot { mem, id, purpose, dropped: Rc::clone(&self.dropped) }
    }

    fn out(&mut self, slot: SimSlot) -> SimSlot {
        self.owners[slot.id as usize] = Owner::Host;
        slot
    }

    /// A send slot, if one is free.
    pub fn take_send(&mut self, class: u8) -> Option<SimSlot> {
        let slot = self.free_send.get_mut(usize::from(class))?.pop()?;
        Some(self.out(slot))
    }

    /// A receive slot; there are always enough.
    pub fn take_recv(&mut self, class: u8) -> SimSlot {
        let slot = self.free_recv[usize::from(class)].pop();
        let size = self.sizes[usize::from(class)];
        let slot = slot.unwrap_or_else(|| self.make(size, Use::Recv(class)));
        self.out(slot)
    }

    /// A control slot.
    pub fn take_control(&mut self) -> SimSlot {
        let slot = self.free_control.pop().unwrap_or_else(|| self.make(64, Use::Control));
        self.out(slot)
    }

    /// A slot changes hands; `Err` says what is wrong with that.
    pub fn pass(&mut self, id: u32, from: Owner, to: Owner) -> Result<(), String> {
        let owner = &mut self.owners[id as usize];
        if *owner != from {
            return Err(format!(
                "slot {id} is passed from {from:?} to {to:?}, but {owner:?} has it"
            ));
        }
        *owner = to;
        Ok(())
    }

    /// Takes a slot back.
    pub fn give_back(&mut self, slot: SimSlot) -> Result<(), String> {
        let passed = self.pass(slot.id, Owner::Host, Owner::Pool);
        match slot.purpose {
            Use::Send(class) => self.free_send[usize::from(class)].push(slot),
            Use::Recv(class) => self.free_recv[usize::from(class)].push(slot),
            Use::Control => self.free_control.push(slot),
        }
        passed
    }

    /// How many slots were dropped: each is memory that nobody can use again.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// The first slot that is not in the pool, with its owner; control slots apart.
    pub fn first_away(&self) -> Option<(u32, Owner)> {
        let mut both = self.owners.iter().zip(&self.control);
        let at = both.position(|(owner, control)| *owner != Owner::Pool && !control)?;
        Some((at as u32, self.owners[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_slot_and_a_double_owner_are_seen() {
        let mut book = SlotBook::new([(64, 2)].into_iter());
        let a = book.take_send(0).expect("one of two");
        assert_eq!(book.first_away(), Some((a.id, Owner::Host)));
        assert!(book.pass(a.id, Owner::Host, Owner::Device(3)).is_ok());
        assert!(book.pass(a.id, Owner::Host, Owner::Device(4)).is_err());
        assert!(book.pass(a.id, Owner::Device(3), Owner::Host).is_ok());
        assert_eq!(book.dropped(), 0);
        assert!(book.give_back(a).is_ok());
        assert_eq!(book.first_away(), None);
        drop(book.take_recv(0));
        assert_eq!(book.dropped(), 1);
    }
}
