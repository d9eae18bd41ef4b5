//! The driver on real devices: [`Port`](crate::port::Port) on poll groups of `rdma-safe`,
//! [`Cm`](crate::port::Cm) on `rdma-cm`.
//!
//! [`open`] starts one thread for a port, which makes and accepts connections without any help of
//! the application's: queue pairs, receives, the initiator's Hello. Up to eight more threads dial.
//! They end, and are joined, when the [`VerbsCm`] is dropped; nothing of the port runs after that.
//!
//! ```no_run
//! use btl_core::verbs::{self, Selection};
//! use btl_core::{Config, Engine, ProcName};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::new(ProcName { job: 1, rank: 0 }, 0x5ec7e7);
//! let (port, cm, published) = verbs::open(&Selection::default(), &config)?;
//! println!("tell the peers: {:?}", published.addrs);
//! let engine = Engine::new(config, port, cm)?;
//! # drop(engine);
//! # Ok(()) }
//! ```
//!
//! | file | is |
//! |---|---|
//! | `device` | which port |
//! | `workshop` | queue pairs and receive buffers for lanes to come |
//! | `port` | the engine's data path |
//! | `rma` | its one-sided operations |
//! | `own` | a connection of a port to itself |
//! | `idle` | when a polling loop gives the CPU away |
//! | `nudge` | a workaround for soft iWARP |
//! | `cm` | the engine's handle of the thread |
//! | `thread` | the thread that drives the connection machine |
//! | `dial` | the workers that dial |
//! | `handover` | the queues between them |
mod cm;
mod device;
mod dial;
mod error;
mod handover;
mod idle;
mod nudge;
mod own;
mod port;
mod rma;
#[cfg(feature = "sabotage")]
mod sabotage;
mod thread;
mod workshop;

/// What [`handover`] synchronises with.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

use crate::config::Config;
use cm::Mail;
use dial::Dialers;
use rdma_cm::{EventChannel, LocalAddress};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use thread::Driver;
use workshop::Workshop;

pub use cm::{CmStats, VerbsCm};
pub use device::{DEFAULT_CQ_DEPTH, LISTEN_TRIES, PortChoice, Selection, find, host_addresses};
pub use error::OpenError;
pub use idle::Idle;
pub use own::{SelfDone, SelfLink};
pub use port::{VerbsPort, VerbsQp};
pub use rdma_safe::{Caps, LoopbackSupport, Transport};
pub use rma::VerbsMemory;

/// Connect requests the kernel keeps until the thread reads them.
const BACKLOG: u16 = 1024;

/// What the peers have to know about an open port, and what a user wants to.
#[derive(Clone, Debug)]
pub struct Published {
    /// The device, like `siw0`.
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// The network interface of the first address.
    pub netdev: String,
    /// What the device speaks.
    pub transport: Transport,
    /// What it can do.
    pub caps: Caps,
    /// Whether it can connect to its own address, and how that is known.
    pub loopback: LoopbackSupport,
    /// Why it is thought so, for people.
    pub loopback_reason: String,
    /// Where the listeners are, with the port numbers they really have; best first, never empty.
    pub addrs: Vec<SocketAddr>,
}

/// Opens the first usable port of the selection; see [`find`] and [`open_port`].
///
/// # Errors
/// [`OpenError`]: what is missing, and what to do.
pub fn open(
    selection: &Selection,
    config: &Config,
) -> Result<(VerbsPort, VerbsCm, Published), OpenError> {
    match find(selection)?.first() {
        Some(choice) => open_port(choice, selection, config),
        None => Err(OpenError::NoDevice),
    }
}

/// Opens a port: registers its send buffers, listens on its addresses, starts its thread. Of the
/// selection only how to use a port matters, not which.
///
/// # Errors
/// As [`open`].
pub fn open_port(
    choice: &PortChoice,
    selection: &Selection,
    config: &Config,
) -> Result<(VerbsPort, VerbsCm, Published), OpenError> {
    config.validate()?;
    let context = &choice.context;
    // What the user says about loopback goes into the context, which the dialers and the caller ask.
    rdma_cm::LoopbackPolicy::from_env()?.refine(context);
    let info = choice.info(selection);
    if !config.force_credit_route {
        config.credit_route.check(&info).map_err(crate::error::Error::from)?;
    }
    let device = || context.name().to_owned();
    let refused = |source| OpenError::Device { device: device(), source };
    let pd = context.alloc_pd().map_err(refused)?;
    let workshop = Arc::new(Workshop::new(config, pd.clone(), selection).map_err(refused)?);
    let bytes = config.lanes.iter().map(|l| l.buffer_size as usize * l.send_slots as usize).sum();
    let max_message = context.port(choice.port).map_err(refused)?.max_msg_sz;
    let port = VerbsPort::new(Arc::clone(&workshop), &pd, info, max_message);
    let port = port.map_err(|source| OpenError::Memory { device: device(), bytes, source })?;

    let mut channel = EventChannel::new()?;
    let waker = channel.waker()?;
    let listeners = listen(&mut channel, &choice.addrs, selection.listen_port)?;
    let addrs: Vec<SocketAddr> = listeners.iter().map(rdma_cm::Listener::local_addr).collect();
    let dialers = Dialers::new(Arc::clone(&workshop), addrs.clone(), waker.clone());
    let mail = Arc::new(Mail::default());
    let driver = Driver::new(Arc::clone(&mail), workshop, channel, listeners, dialers);
    let thread = std::thread::Builder::new()
        .name("btl-cm".into())
        .spawn(move || driver.run())
        .map_err(OpenError::Thread)?;
    let cm = VerbsCm { mail, waker, inbox: VecDeque::new(), thread: Some(thread) };
    let published = Published {
        device: device(),
        port: choice.port,
        netdev: choice.addrs.first().map(|a| a.netdev.clone()).unwrap_or_default(),
        transport: context.transport(),
        caps: context.caps(),
        loopback: context.loopback(),
        loopback_reason: context.loopback_reason(),
        addrs,
    };
    Ok((port, cm, published))
}

/// Listens on every address that can be listened on; at least one.
fn listen(
    channel: &mut EventChannel,
    addrs: &[LocalAddress],
    port: u16,
) -> Result<Vec<rdma_cm::Listener>, OpenError> {
    let mut listeners = Vec::new();
    let mut first_error = None;
    for addr in addrs {
        match listen_on(channel, addr, port) {
            Ok(listener) => listeners.push(listener),
            // Another address may do: an IPv6 address that is still tentative, for example.
            Err(e) => first_error = first_error.or(Some(e)),
        }
    }
    match first_error {
        Some(e) if listeners.is_empty() => Err(e.into()),
        _ => Ok(listeners),
    }
}

/// Listens on the port number, or on one of the next where another process has it.
fn listen_on(
    channel: &mut EventChannel,
    addr: &LocalAddress,
    port: u16,
) -> Result<rdma_cm::Listener, rdma_cm::Error> {
    let last = if port == 0 { 0 } else { port.saturating_add(LISTEN_TRIES - 1) };
    let mut at = port;
    loop {
        match channel.listen(addr.socket_addr(at), BACKLOG) {
            Err(e) if e.errno() == Some(libc::EADDRINUSE) && at < last => at += 1,
            result => return result,
        }
    }
}
