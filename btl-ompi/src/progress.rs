//! Progress: pulls events out of the engine one at a time and makes Open MPI's callbacks, with no
//! lock held.

use crate::abi;
use crate::descriptor::Done;
use crate::driver::{self, Memory, Slot};
use crate::module::new_descriptor;
use crate::opal::{PEERS, Proc, WHY, say, verbose};
use crate::ops::Whom;
use crate::rail::{Inner, Rail};
use crate::spare;
use btl_core::error::{FaultKind, PeerFault};
use btl_core::{Event, PeerId, RecvBuf, SendBuf};
use core::ffi::c_int;

/// Upcalls of one call of progress at most, so that other components get their turn.
const BUDGET: c_int = 64;

/// What Open MPI has to be told.
enum Upcall {
    /// A message.
    Receive {
        tag: u8,
        peer: PeerId,
        /// Open MPI's handle of the sender; NULL when it has none.
        from: *mut abi::BtlEndpoint,
        buf: RecvBuf<Slot>,
    },
    /// A send has ended; `fault` says why it failed.
    Complete { done: Done, fault: Option<Fault> },
    /// A put, get or atomic has ended; `fault` says that the peer failed.
    OneSided { whom: Whom, memory: Option<Memory>, status: c_int, fault: Option<Fault> },
    /// A put, get or atomic is done, and there is a buffer for the message that tells the peer.
    Done { whom: Whom, spare: *mut abi::Descriptor },
    /// Memory of an operation that nobody is told of.
    Drop(Option<Memory>),
    /// A peer failed.
    Fault(Fault),
}

/// A failed peer.
struct Fault {
    /// Open MPI's record of it.
    proc_: Proc,
    /// What happened, with the names of rail and peer.
    text: String,
}

/// What is left to do on the engine after an upcall.
enum After {
    Nothing,
    /// Post a received buffer again.
    Release(RecvBuf<Slot>),
    /// Free a descriptor.
    Free(*mut abi::Descriptor),
    /// Free the buffer that was kept, if it is still there.
    Spare,
}

/// The result of one step on the engine.
enum Step {
    /// Make this upcall and come back.
    Upcall(Upcall),
    /// Nothing is there; whether something is under way that another thread or process works on.
    Empty { pending: bool },
}

/// One round on one rail; returns the number of upcalls.
pub(crate) fn round(rail: &Rail) -> c_int {
    let mut upcalls = 0;
    let Some(mut step) = rail.try_with(next) else { return 0 };
    loop {
        let upcall = match step {
            Step::Upcall(upcall) => upcall,
            Step::Empty { pending } => {
                if pending && upcalls == 0 {
                    yield_cpu();
                }
                return upcalls;
            }
        };
        let after = make(rail, upcall);
        upcalls += 1;
        let more = upcalls < BUDGET;
        let Some(next_step) = rail.with(|inner| {
            match after {
                After::Spare => spare::release(rail, inner),
                after => settle(inner, after),
            }
            more.then(|| next(inner))
        }) else {
            return upcalls;
        };
        match next_step {
            Some(next_step) => step = next_step,
            None => return upcalls,
        }
    }
}

/// Lets the process or thread run that set-up waits for.
pub(crate) fn yield_cpu() {
    // SAFETY: no arguments, no memory.
    unsafe { libc::sched_yield() };
}

/// The next event that Open MPI has to hear of; what it need not hear of is dealt with here.
fn next(inner: &mut Inner) -> Step {
    loop {
        let own = inner.own.as_ref().is_some_and(|own| own.under_way() > 0);
        let pending = inner.engine.busy() || own;
        let now = inner.clock.now(pending);
        if own && let Some(upcall) = on_oneself(inner) {
            return Step::Upcall(upcall);
        }
        if let Some(whom) = inner.ops.next_done() {
            let spare = new_descriptor(inner, whom.endpoint, spare::ROOM, 0);
            if !spare.is_null() {
                inner.ops.pop_done();
                return Step::Upcall(Upcall::Done { whom, spare });
            }
        }
        if let Some(whom) = inner.ops.take_impossible() {
            let status = abi::ERR_NOT_SUPPORTED;
            return Step::Upcall(Upcall::OneSided { whom, memory: None, status, fault: None });
        }
        let Some(event) = inner.engine.poll(now) else { return Step::Empty { pending } };
        if let Some(upcall) = translate(inner, event) {
            return Step::Upcall(upcall);
        }
    }
}

fn translate(inner: &mut Inner, event: driver::Event) -> Option<Upcall> {
    match event {
        Event::Message { peer, tag, buf } => {
            return Some(Upcall::Receive { tag, peer, from: inner.endpoints.handle(peer), buf });
        }
        Event::Sent { peer, cookie, buf, result } => {
            let fault = match result {
                Ok(()) => None,
                Err(fault) => {
                    let endpoint = inner.endpoints.of(peer).filter(|ep| !ep.is_removed());
                    // A peer Open MPI is done with is owed no answer.
                    let Some(endpoint) = endpoint else {
                        abandon(inner, cookie, buf);
                        return None;
                    };
                    Some(Fault {
                        proc_: endpoint.proc,
                        text: format!("{}: {fault}", inner.about.name),
                    })
                }
            };
            return completed(inner, cookie, buf, fault);
        }
        Event::PeerFailed { peer, fault } => {
            let text = format!("{}: {fault}", inner.about.name);
            match inner.endpoints.of(peer) {
                Some(endpoint) if !endpoint.is_removed() => {
                    return Some(Upcall::Fault(Fault { proc_: endpoint.proc, text }));
                }
                Some(_) => verbose!(PEERS, "{text} (the peer was removed before)"),
                None => {
                    // Nobody Open MPI knows: a stranger cannot end the job.
                    verbose!(WHY, "{text} (no process of this job has asked for it)");
                    inner.engine.remove_peer(peer);
                }
            }
        }
        Event::PeerConnected { name, .. } => {
            verbose!(PEERS, "{}: connected to {name}", inner.about.name)
        }
        Event::NewPeer { name, .. } => {
            verbose!(PEERS, "{}: {name} connected by itself", inner.about.name)
        }
        Event::Done { peer, cookie, memory, result } => {
            return one_sided(inner, peer, cookie, memory, result);
        }
        // No fence is asked for.
        Event::Fenced { .. } | Event::Closed => {}
    }
    None
}

/// The next operation on this process's own memory that is over.
fn on_oneself(inner: &mut Inner) -> Option<Upcall> {
    let (cookie, memory, result) = inner.own.as_mut()?.poll()?;
    let Some(whom) = inner.ops.take(cookie) else { return Some(Upcall::Drop(Some(memory))) };
    let status = match result {
        Ok(()) => abi::SUCCESS,
        Err(why) => {
            say(format_args!("{}: the connection to itself failed: {why}", inner.about.name));
            abi::ERR_UNREACH
        }
    };
    Some(Upcall::OneSided { whom, memory: Some(memory), status, fault: None })
}

/// A put, get or atomic is over.
fn one_sided(
    inner: &mut Inner,
    peer: PeerId,
    cookie: u64,
    memory: Option<Memory>,
    result: Result<(), PeerFault>,
) -> Option<Upcall> {
    let Some(whom) = inner.ops.take(cookie) else {
        verbose!(WHY, "{}: a completion names no operation ({cookie})", inner.about.name);
        return Some(Upcall::Drop(memory));
    };
    let (status, fault) = match result {
        Ok(()) if !inner.engine.rma_caps().placed => {
            inner.ops.add_done(whom);
            return Some(Upcall::Drop(memory));
        }
        Ok(()) => (abi::SUCCESS, None),
        // This operation only: Open MPI takes another way.
        Err(PeerFault { kind: FaultKind::NoReads, .. }) => (abi::ERR_NOT_SUPPORTED, None),
        Err(fault) => {
            let endpoint = inner.endpoints.of(peer).filter(|ep| !ep.is_removed());
            // A peer Open MPI is done with is owed no answer.
            let Some(endpoint) = endpoint else { return Some(Upcall::Drop(memory)) };
            let text = format!("{}: {fault}", inner.about.name);
            (abi::ERR_UNREACH, Some(Fault { proc_: endpoint.proc, text }))
        }
    };
    Some(Upcall::OneSided { whom, memory, status, fault })
}

/// Takes the descriptor of an ended send back from the engine.
fn completed(
    inner: &mut Inner,
    cookie: u64,
    mut buf: Option<SendBuf<Slot>>,
    fault: Option<Fault>,
) -> Option<Upcall> {
    match inner.slab.complete(cookie, &mut buf) {
        // The usual end of a small message: Open MPI was told long ago.
        Some(done) if done.callback.is_none() && fault.is_none() && done.owned => {
            settle(inner, After::Free(done.des));
            None
        }
        Some(done) => Some(Upcall::Complete { done, fault }),
        None => {
            verbose!(
                WHY,
                "{}: a completion names no message under way ({cookie})",
                inner.about.name
            );
            if let Some(buf) = buf {
                inner.engine.free(buf);
            }
            fault.map(Upcall::Fault)
        }
    }
}

/// Frees an ended send without telling Open MPI.
fn abandon(inner: &mut Inner, cookie: u64, mut buf: Option<SendBuf<Slot>>) {
    let done = inner.slab.complete(cookie, &mut buf);
    if let Some(done) = done {
        settle(inner, After::Free(done.des));
    }
    if let Some(buf) = buf {
        inner.engine.free(buf);
    }
}

fn settle(inner: &mut Inner, after: After) {
    match after {
        After::Nothing | After::Spare => {}
        After::Release(buf) => inner.engine.release(buf),
        After::Free(des) => {
            if let Some(Some(buf)) = inner.slab.take_back(des) {
                inner.engine.free(buf);
            }
        }
    }
}

/// Makes one upcall. No lock is held: Open MPI comes back into `send`, `alloc` and `free` from
/// here.
fn make(rail: &Rail, upcall: Upcall) -> After {
    match upcall {
        Upcall::Receive { tag, peer, from, mut buf } => {
            let from =
                if from.is_null() && abi::TELLS_SENDER { introduce(rail, peer) } else { from };
            receive(rail, tag, from, &mut buf);
            After::Release(buf)
        }
        Upcall::Complete { done, fault } => {
            let status = if fault.is_some() { abi::ERR_UNREACH } else { abi::SUCCESS };
            if let Some(fault) = fault {
                rail.fatal(Some(fault.proc_), &fault.text);
            }
            if let Some(callback) = done.callback {
                // SAFETY: Open MPI's own function, with the module, endpoint and descriptor it was
                // registered for.
                unsafe { callback(rail.module(), done.endpoint, done.des, status) };
            }
            if done.owned { After::Free(done.des) } else { After::Nothing }
        }
        Upcall::OneSided { whom, memory, status, fault } => {
            // It may be the last of its registration, whose end is a system call.
            drop(memory);
            if let Some(fault) = fault {
                rail.fatal(Some(fault.proc_), &fault.text);
            }
            call_back(rail, whom, status);
            After::Nothing
        }
        Upcall::Done { whom, spare } => {
            spare::keep(rail, spare);
            call_back(rail, whom, abi::SUCCESS);
            After::Spare
        }
        Upcall::Drop(memory) => {
            drop(memory);
            After::Nothing
        }
        Upcall::Fault(fault) => {
            rail.fatal(Some(fault.proc_), &fault.text);
            After::Nothing
        }
    }
}

/// Tells Open MPI that an operation is over.
fn call_back(rail: &Rail, whom: Whom, status: c_int) {
    if let Some(done) = whom.done {
        let Whom { endpoint, local, handle, context, data, .. } = whom;
        // SAFETY: Open MPI's own function, with what it was given for it.
        unsafe { done(rail.module(), endpoint, local, handle, context, data, status) };
    }
}

/// The handle of a sender that Open MPI has not asked for: since 5.0 a receiver may answer to it (its
/// one-sided communication in messages does, and ends the program without one). NULL when Open MPI
/// does not know the process, or is done with it.
fn introduce(rail: &Rail, peer: PeerId) -> *mut abi::BtlEndpoint {
    let name = rail.with(|inner| match inner.endpoints.of(peer) {
        Some(_) => None,
        None => inner.engine.peer_name(peer),
    });
    // No lock is held here: Open MPI may make a record of the process.
    let known = name.flatten().and_then(|name| Some((name, Proc::of(name)?)));
    known
        .and_then(|(name, proc_)| rail.with(|inner| inner.endpoints.add(peer, name, proc_)))
        .unwrap_or(std::ptr::null_mut())
}

fn receive(rail: &Rail, tag: u8, from: *mut abi::BtlEndpoint, buf: &mut RecvBuf<Slot>) {
    // SAFETY: the table lives in libopen-pal; an entry is written before the first message with its
    // tag can be sent.
    let entry = unsafe {
        (&raw const abi::mca_btl_base_active_message_trigger)
            .cast::<abi::RecvCallback>()
            .add(usize::from(tag).min(abi::TAG_MAX - 1))
            .read()
    };
    let Some(callback) = entry.cbfunc.filter(|_| usize::from(tag) < abi::TAG_MAX) else {
        verbose!(WHY, "a message with tag {tag:#x}, which nobody has asked for, is dropped");
        return;
    };
    let mut segment = abi::Segment { addr: buf.as_mut_ptr().cast(), len: buf.len() as u64 };
    // SAFETY: Open MPI's own function with its data, our module and an endpoint of it.
    unsafe { abi::deliver(callback, entry.cbdata, rail.module(), from, tag, &mut segment) };
}
