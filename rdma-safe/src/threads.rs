//! Which types may go to another thread (`Send`), and which be used by several at once (`Sync`), and why.
//!
//! libibverbs serialises calls on each of its objects (ibv_alloc_td(3): all are thread safe by default), and the two
//! ways out of that are closed: a provider told by the environment to leave its locks out is not opened, and a thread
//! domain takes an `unsafe` promise. So what decides is this crate's own bookkeeping: what posts or polls takes
//! `&mut self`, has no locks, and is used by one thread at a time.
//!
//! * [`Device`], [`Context`], [`ProtectionDomain`], [`ThreadDomain`], [`XrcDomain`]: **`Send` and `Sync`**. Shared
//!   handles (`Arc`) to objects that are only named when others are made.
//! * [`CompletionChannel`], [`CqRef`], [`AddressHandle`], [`DeviceMemory`]: **`Send` and `Sync`**. The same; what
//!   they count is atomic or behind a lock.
//! * [`CompletionQueue`], [`ExtendedCq`]: **`Send`, not `Sync`**. The right to poll is one thread's: two pollers
//!   would need the lock this crate has not got; others name a queue by its [`CqRef`].
//! * [`QueuePair`], [`ManualQp`], [`PollGroup`]: **`Send`, not `Sync`**. Posting and redeeming change tables
//!   without locks; the provider's objects move with them.
//! * [`SharedReceiveQueue`], [`XrcTarget`]: **`Send`**. The same; whether they are `Sync` is not promised.
//! * [`Slot`], [`RemoteSlot`], [`SharedSlice`], [`SgList`], [`MemoryWindow`], [`Payload`]: **`Send` and `Sync`**.
//!   Sole owners of their memory; through `&` it is read, or copied atomically.
//! * [`MemoryRegion`], [`SharedRegion`]: **`Send` and `Sync`**. `&` of a local or shared one reads; of a remote one
//!   it copies and counts with atomics; a foreign one has only numbers.
//! * [`OwnedMemory`]: **`Send`, not `Sync`**. The buffer under it need only be `Send` ([`StableBuffer`]).
//! * [`Wc`], [`ExtendedWc`], [`Done`], [`Completion`]: **`Send` and `Sync`**. Numbers, and what owns memory.
//! * [`AsyncEvents`], [`GidChoice`]: **`Send` and `Sync`**. Reading takes `&mut`.
//! * [`Borrowed`], [`ScopedDone`]: **`Send` and `Sync`**. As a slot, for the length of its scope.
//! * [`Scope`]: **`Send`, not `Sync`**. It stands for a queue pair and the queue it is polled from; a thread that ends
//!   within the scope may have it.
//! * attributes, addresses, flags, events, errors: **`Send` and `Sync`**. Plain values.

#![forbid(unsafe_code)]

use crate::*;
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Device: Clone, Send, Sync);
assert_impl_all!(Context: Clone, Send, Sync);
assert_impl_all!(ProtectionDomain: Clone, Send, Sync);
assert_impl_all!(ThreadDomain: Clone, Send, Sync);
assert_impl_all!(XrcDomain: Send, Sync);
assert_impl_all!(CompletionChannel: Clone, Send, Sync);
assert_impl_all!(CqRef: Clone, Send, Sync);
assert_impl_all!(AddressHandle: Clone, Send, Sync);
assert_impl_all!(DeviceMemory: Clone, Send, Sync);
assert_impl_all!(CompletionQueue: Send);
assert_not_impl_any!(CompletionQueue: Sync, Clone);
assert_impl_all!(ExtendedCq: Send);
assert_not_impl_any!(ExtendedCq: Sync, Clone);
assert_impl_all!(QueuePair: Send);
assert_not_impl_any!(QueuePair: Sync, Clone);
assert_impl_all!(SharedReceiveQueue: Send);
assert_not_impl_any!(SharedReceiveQueue: Clone);
assert_impl_all!(PollGroup: Send);
assert_not_impl_any!(PollGroup: Sync, Clone);
assert_impl_all!(XrcTarget: Send);
assert_impl_all!(Slot: Send, Sync);
assert_not_impl_any!(Slot: Clone, Copy);
assert_impl_all!(RemoteSlot: Send, Sync);
assert_impl_all!(SharedSlice: Send, Sync);
assert_impl_all!(SgList: Send, Sync);
assert_impl_all!(MemoryWindow: Send, Sync);
assert_impl_all!(Payload: Send, Sync);
assert_impl_all!(MemoryRegion<Local>: Send, Sync);
assert_impl_all!(MemoryRegion<Remote>: Send, Sync);
assert_impl_all!(MemoryRegion<Foreign>: Send, Sync);
assert_impl_all!(SharedRegion: Clone, Send, Sync);
assert_impl_all!(OwnedMemory: Send);
assert_not_impl_any!(OwnedMemory: Sync, Clone);
assert_impl_all!(Wc: Send, Sync);
assert_impl_all!(ExtendedWc: Send, Sync);
assert_impl_all!(Done: Send, Sync);
assert_impl_all!(Completion: Send, Sync);
assert_impl_all!(AsyncEvents: Send, Sync);
assert_impl_all!(GidChoice: Send, Sync);
assert_impl_all!(Borrowed<'static>: Send, Sync);
assert_impl_all!(ScopedDone<'static>: Send, Sync);
assert_impl_all!(Scope<'static, 'static>: Send);
assert_not_impl_any!(Scope<'static, 'static>: Sync, Clone);
assert_impl_all!(Error: Send, Sync);
assert_impl_all!(PostError: Send, Sync);
assert_impl_all!(Request<'static>: Send);
assert_impl_all!(DeviceAttr: Send, Sync);
assert_impl_all!(AsyncEvent: Copy, Send, Sync);
assert_impl_all!(RemoteRange: Copy, Send, Sync);
