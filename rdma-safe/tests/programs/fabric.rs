//! What a random program runs on.

use super::model::{Alive, Failing};
use super::ops::Fault;
use rdma_safe::{Context, QueuePair};
use std::any::Any;
use std::ops::Range;

/// A device, or something that behaves like one.
pub(crate) trait Fabric: Send {
    fn context(&self) -> &Context;
    /// Connects two fresh queue pairs; false when that did not work (a real device may refuse).
    fn connect(&mut self, a: &mut QueuePair, b: &mut QueuePair) -> bool;
    /// Lets requests be worked off.
    fn progress(&mut self);
    /// Fails a queue pair from outside.
    fn fail(&mut self, qp: &mut QueuePair);
    /// The device is done with this queue pair.
    fn ended(&mut self, serial: u64);
    /// Switches a fault on, if this fabric has it.
    fn inject(&mut self, fault: Fault);
    fn heal(&mut self);
    fn failing(&self) -> Failing;
    /// The latest completion again.
    fn repeat(&mut self, times: u8);
    /// Completions that nobody asked for.
    fn garbage(&mut self, random: u64);
    fn async_event(&mut self, random: u8);
    /// Whether the device may still use any of this memory; `None` when it cannot be asked.
    fn may_touch(&self, range: Range<usize>) -> Option<bool>;
    /// What the device has; `None` when it cannot be asked.
    fn alive(&self) -> Option<Alive>;
    /// Panics if the device was used as no correct user does.
    fn check(&self);
    /// Kept by every thread that runs steps.
    fn on_thread(&self) -> Box<dyn Any>;
    /// Whether its completions can be believed so far: no faults that invent or change them.
    fn honest(&self) -> bool;
}
