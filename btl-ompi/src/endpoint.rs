//! What Open MPI calls an endpoint: a peer of one rail.

use crate::abi;
use crate::opal::Proc;
use btl_core::{PeerId, ProcName};
use std::sync::atomic::{AtomicBool, Ordering};

/// A peer of one rail. Its address is Open MPI's handle, so it stays in place until the rail
/// closes.
pub(crate) struct Endpoint {
    /// The engine's name for it; `None` for this process itself, with whom there are only one-sided operations.
    pub(crate) peer: Option<PeerId>,
    /// Its process name.
    pub(crate) name: ProcName,
    /// Open MPI's record of it.
    pub(crate) proc: Proc,
    /// Whether `del_procs` was called for it.
    removed: AtomicBool,
}

/// The endpoints of a rail, found by address (Open MPI's side) or by peer (the engine's side).
#[derive(Default)]
pub(crate) struct Endpoints {
    #[allow(clippy::vec_box, reason = "the addresses are handed out")]
    all: Vec<Box<Endpoint>>,
    /// Index into `all` by `PeerId::index`.
    by_peer: Vec<Option<usize>>,
    /// This process.
    own: Option<Box<Endpoint>>,
}

// SAFETY: the record of Open MPI that an endpoint refers to is only read, and its fields do not
// change.
unsafe impl Send for Endpoints {}

impl Endpoint {
    /// # Safety
    /// `raw` was given out by [`Endpoints::add`] of a rail that was not closed since.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut abi::BtlEndpoint) -> Option<&'a Self> {
        // SAFETY: by the contract; NULL becomes `None`.
        unsafe { raw.cast::<Self>().as_ref() }
    }

    /// Open MPI is done with the peer.
    pub(crate) fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    /// Whether Open MPI is done with the peer.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }
}

impl Endpoints {
    /// The handle of a peer; made when it is new or was removed before.
    pub(crate) fn add(
        &mut self,
        peer: PeerId,
        name: ProcName,
        proc: Proc,
    ) -> *mut abi::BtlEndpoint {
        let known =
            self.index_of(peer).filter(|i| self.all.get(*i).is_some_and(|ep| !ep.is_removed()));
        let index = known.unwrap_or_else(|| {
            let removed = AtomicBool::new(false);
            self.all.push(Box::new(Endpoint { peer: Some(peer), name, proc, removed }));
            let index = self.all.len() - 1;
            if self.by_peer.len() <= peer.index() {
                self.by_peer.resize(peer.index() + 1, None);
            }
            if let Some(place) = self.by_peer.get_mut(peer.index()) {
                *place = Some(index);
            }
            index
        });
        self.all
            .get_mut(index)
            .map_or(std::ptr::null_mut(), |endpoint| (&raw mut **endpoint).cast())
    }

    /// The handle of this process itself.
    pub(crate) fn own(&mut self, name: ProcName, proc: Proc) -> *mut abi::BtlEndpoint {
        let new = || Box::new(Endpoint { peer: None, name, proc, removed: AtomicBool::new(false) });
        (&raw mut **self.own.get_or_insert_with(new)).cast()
    }

    /// The endpoint of a peer, if Open MPI was given one.
    pub(crate) fn of(&self, peer: PeerId) -> Option<&Endpoint> {
        self.all.get(self.index_of(peer)?).map(|endpoint| &**endpoint)
    }

    /// Open MPI's handle of a peer; NULL if it was given none, or is done with the peer.
    pub(crate) fn handle(&self, peer: PeerId) -> *mut abi::BtlEndpoint {
        let endpoint = self.of(peer).filter(|endpoint| !endpoint.is_removed());
        endpoint
            .map_or(std::ptr::null_mut(), |endpoint| std::ptr::from_ref(endpoint).cast_mut().cast())
    }

    fn index_of(&self, peer: PeerId) -> Option<usize> {
        let index = (*self.by_peer.get(peer.index())?)?;
        (self.all.get(index)?.peer == Some(peer)).then_some(index)
    }
}
