//! A rail: one BTL module over one port of one device, with its engine and the lock around it.
//!
//! Rails live in a static table, so a module's address is good for the life of the process and the
//! component can be opened and closed any number of times. The engine and everything of a job come
//! and go with `open` and `close`.
//!
//! Lock rules: `inner` is held for single engine calls only, never while Open MPI is called (its
//! callbacks come back into `send` and `alloc`). `error_cb` is never held together with it. `memory` is held (shared)
//! while the registration cache is called, which calls back into `memory.rs` and takes locks of its own; `inner` is
//! never held then.

use crate::abi;
use crate::clock::Clock;
use crate::descriptor::Slab;
use crate::driver::{Cm, Domain, Opened, Port, SelfLink};
use crate::endpoint::Endpoints;
use crate::memory::Cache;
use crate::opal::{Proc, WHY, say, verbose};
use crate::ops::Ops;
use crate::pairing::Host;
use btl_core::report::PeerReport;
use btl_core::{Config, Engine, Nanos, PeerId};
use std::cell::UnsafeCell;
use std::ffi::CString;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

/// Rails a process can have.
pub(crate) const MAX_RAILS: usize = 8;

/// One BTL module. `module` comes first: both have one address.
#[repr(C)]
pub(crate) struct Rail {
    module: UnsafeCell<abi::Module>,
    inner: Mutex<Option<Inner>>,
    /// Where memory is registered, and the rail's name for messages; `None`: nowhere.
    memory: RwLock<Option<(Cache, String)>>,
    error_cb: Mutex<abi::ErrorFn>,
    /// Atomics are offered.
    atomics: AtomicBool,
    /// From now on nothing is an error.
    closing: AtomicBool,
    /// A panic was caught, or the lock is poisoned: told once.
    broken: AtomicBool,
}

// SAFETY: `module` is written by us only while the rail is being opened, by the one thread that
// initialises the component; later only Open MPI writes it, under its own rules. The rest
// synchronises itself.
unsafe impl Sync for Rail {}

/// What the lock guards.
pub(crate) struct Inner {
    /// The transport.
    pub(crate) engine: Engine<Port, Cm>,
    /// Descriptors.
    pub(crate) slab: Slab,
    /// One-sided operations.
    pub(crate) ops: Ops,
    /// Peers.
    pub(crate) endpoints: Endpoints,
    /// The connection to this process itself, once something needs it.
    pub(crate) own: Option<SelfLink>,
    /// Coarse time.
    pub(crate) clock: Clock,
    /// What peers that were removed did, for the end, if it is to be told.
    pub(crate) reports: Vec<PeerReport>,
    /// What this rail is.
    pub(crate) about: About,
}

impl Inner {
    /// Keeps what a peer did, if it is to be told at the end and there is anything.
    pub(crate) fn keep_report(&mut self, peer: PeerId) {
        let report = self.about.report.then(|| self.engine.report_of(peer)).flatten();
        self.reports.extend(report.filter(crate::close::matters));
    }
}

/// What a rail is; does not change while it is open.
#[derive(Clone)]
pub(crate) struct About {
    /// "siw0:1 (iWARP)", for messages.
    pub(crate) name: String,
    /// "siw0".
    pub(crate) device: String,
    /// Number of the device's port.
    pub(crate) port: u8,
    /// Which of our rails it is.
    pub(crate) index: usize,
    /// All of our rails as published, and what else decides who is reached.
    pub(crate) host: Arc<Host>,
    /// Why the device cannot reach processes of this node; `None` if it can.
    pub(crate) no_loopback: Option<String>,
    /// Whether a summary is printed at the end.
    pub(crate) report: bool,
    /// Limit of the close.
    pub(crate) t_close: Nanos,
}

static RAILS: [Rail; MAX_RAILS] = [const { Rail::empty() }; MAX_RAILS];
/// Rails `..OPEN` may be open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The rails that may be open.
pub(crate) fn open_rails() -> &'static [Rail] {
    RAILS.get(..OPEN.load(Ordering::Acquire)).unwrap_or(&[])
}

/// Forgets all rails; they must be closed.
pub(crate) fn reset() {
    OPEN.store(0, Ordering::Release);
}

impl About {
    /// Where it listens.
    pub(crate) fn addrs(&self) -> Vec<String> {
        let addrs = self.host.rails.get(self.index).map_or(&[][..], |rail| &rail.addrs);
        addrs.iter().map(|addr| addr.at.to_string()).collect()
    }
}

impl Rail {
    const fn empty() -> Self {
        Self {
            // SAFETY: numbers, NULL pointers and absent functions: all-zero bytes are a valid
            // module.
            module: UnsafeCell::new(unsafe { core::mem::zeroed() }),
            inner: Mutex::new(None),
            memory: RwLock::new(None),
            error_cb: Mutex::new(None),
            atomics: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }
}

impl Rail {
    /// The rail of a module that Open MPI names; `None` if it is not one of ours.
    pub(crate) fn of(module: *mut abi::Module) -> Option<&'static Self> {
        RAILS.iter().find(|rail| rail.module.get() == module)
    }

    /// Open MPI's handle.
    pub(crate) fn module(&self) -> *mut abi::Module {
        self.module.get()
    }

    /// Runs one step on the engine, waiting for other threads; `None` if the rail is closed or
    /// broken.
    pub(crate) fn with<T>(&self, step: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        match self.inner.lock() {
            Ok(guard) => run(guard, step),
            Err(_) => self.poisoned(),
        }
    }

    /// As [`Rail::with`], but does nothing when another thread has the engine: that thread makes
    /// progress.
    pub(crate) fn try_with<T>(&self, step: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        match self.inner.try_lock() {
            Ok(guard) => run(guard, step),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => self.poisoned(),
        }
    }

    fn poisoned<T>(&self) -> Option<T> {
        self.broke("an earlier panic left the transport in an unknown state");
        None
    }

    /// A panic was caught: the rail is of no use any more. Ends the job through Open MPI, once.
    pub(crate) fn broke(&self, what: &str) {
        if !self.broken.swap(true, Ordering::Relaxed) {
            self.fatal(None, &format!("internal error: {what}; please report it"));
        }
    }

    /// Whether Open MPI was offered atomics.
    pub(crate) fn offers_atomics(&self) -> bool {
        self.atomics.load(Ordering::Relaxed)
    }

    /// Open MPI is offered atomics.
    pub(crate) fn offer_atomics(&self) {
        self.atomics.store(true, Ordering::Relaxed);
    }

    /// Uses the registration cache, if there is one, with the rail's name. The rail's lock may not be held.
    pub(crate) fn with_memory<T>(&self, step: impl FnOnce(&Cache, &str) -> T) -> Option<T> {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.as_ref().map(|(cache, name)| step(cache, name))
    }

    /// From now on memory is registered there.
    pub(crate) fn set_memory(&self, cache: Cache, name: &str) {
        let memory = Some((cache, name.to_owned()));
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Ends all registrations; queue pairs that use them must be gone. No lock may be held.
    pub(crate) fn close_memory(&self) {
        let memory = self.memory.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((cache, _)) = memory {
            cache.destroy();
        }
    }

    /// Opens the next rail of the table; only the thread that initialises the component may call
    /// it.
    pub(crate) fn open(
        config: &Config,
        opened: Opened,
        about: About,
    ) -> Result<(&'static Self, Domain), String> {
        let at = OPEN.load(Ordering::Acquire);
        let rail = RAILS
            .get(at)
            .ok_or_else(|| format!("more than {MAX_RAILS} ports are not supported"))?;
        let engine =
            Engine::new(config.clone(), opened.port, opened.cm).map_err(|e| e.to_string())?;
        let descriptors = config.lanes.iter().map(|lane| lane.send_slots as usize).sum();
        let inner = Inner {
            engine,
            slab: Slab::new(descriptors),
            ops: Ops::new(config.rma_ops as usize),
            endpoints: Endpoints::default(),
            own: None,
            clock: Clock::new(),
            reports: Vec::new(),
            about,
        };
        *rail.inner.lock().unwrap_or_else(PoisonError::into_inner) = Some(inner);
        rail.inner.clear_poison();
        *rail.error_cb.lock().unwrap_or_else(PoisonError::into_inner) = None;
        rail.atomics.store(false, Ordering::Relaxed);
        rail.closing.store(false, Ordering::Relaxed);
        rail.broken.store(false, Ordering::Relaxed);
        OPEN.store(at + 1, Ordering::Release);
        Ok((rail, opened.domain))
    }

    /// Takes the engine and all that belongs to it out; from now on every entry point finds
    /// nothing.
    pub(crate) fn take(&self) -> Option<Inner> {
        self.closing.store(true, Ordering::Relaxed);
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Where Open MPI wants to hear of errors.
    pub(crate) fn set_error_cb(&self, callback: abi::ErrorFn) {
        *self.error_cb.lock().unwrap_or_else(PoisonError::into_inner) = callback;
    }

    /// Ends the job through Open MPI, or does nothing while closing. `proc_` may be unknown. No
    /// lock may be held.
    pub(crate) fn fatal(&self, proc_: Option<Proc>, what: &str) {
        if self.closing.load(Ordering::Relaxed) {
            verbose!(WHY, "while closing: {what}");
            return;
        }
        let callback = *self.error_cb.lock().unwrap_or_else(PoisonError::into_inner);
        let info = CString::new(format!("btl:verbs: {what}"));
        let (Some(callback), Ok(info)) = (callback, info) else {
            say(format_args!("{what}"));
            return;
        };
        let proc_ = proc_.map_or(ptr::null_mut(), |p| p.as_ptr());
        // Open MPI prints the text when it ends the job.
        // SAFETY: Open MPI's own function; module and record are good, the text lives until the
        // call returns.
        unsafe { callback(self.module(), abi::ERROR_FLAGS_FATAL, proc_, info.as_ptr().cast_mut()) };
    }
}

fn run<T>(
    mut guard: MutexGuard<'_, Option<Inner>>,
    step: impl FnOnce(&mut Inner) -> T,
) -> Option<T> {
    guard.as_mut().map(step)
}
