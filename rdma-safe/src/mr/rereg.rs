//! Changing a registration, and advising the device about one.

use super::{
    Backing, Local, MemoryRegion, Owned, Region, Registration, Remote, RemoteAccess, access, empty,
};
use crate::error::{Error, ErrorKind, Result, last_errno};
use crate::memory::OwnedMemory;
use crate::pd::ProtectionDomain;
use rdma_sys::*;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

const REREG: &str = "ibv_rereg_mr";

/// What a region registered on demand is about to be used for (ibv_advise_mr(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// It will be read by the device: bring the pages in.
    Prefetch,
    /// It will be written by the device: bring the pages in, writable.
    PrefetchWrite,
    /// Tell the device about pages that are in, and bring in none.
    PrefetchNoFault,
}

/// What becomes of a registration whose change failed.
enum Outcome {
    /// It is as before.
    AsBefore(Error),
    /// It cannot be used any more, and the device may know either memory.
    Unusable(Error),
}

/// Re-registration. siw cannot do it, rxe only with a provider newer than rdma-core 44.
///
/// While a memory window is bound to a region it cannot be changed ([`Busy`](ErrorKind::Busy)).
impl<A: Owned> MemoryRegion<A> {
    /// Puts other memory under the registration and gives back the old (ibv_rereg_mr(3)). The keys may change, and device
    /// and peers name it by its own address from here on.
    ///
    /// # Errors
    /// With the new memory while the region is as it was: [`InvalidArgument`](ErrorKind::InvalidArgument) for an empty one,
    /// [`Busy`](ErrorKind::Busy), [`Unsupported`](ErrorKind::Unsupported) where device or provider cannot do it, and what the
    /// kernel refuses before it begins. Without it the region may be unusable: its requests and its peers' fail, and both
    /// memories stay until it is dropped.
    pub fn exchange_memory(
        &mut self,
        memory: OwnedMemory,
    ) -> std::result::Result<OwnedMemory, (Option<OwnedMemory>, Error)> {
        let (start, len) = (memory.as_ptr(), memory.len());
        if len == 0 {
            return Err((Some(memory), empty()));
        }
        let flag = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION;
        let region = match sole(&mut self.region) {
            Ok(region) if matches!(*region.backing, Backing::Owned(_)) => region,
            Ok(_) => return Err((Some(memory), empty())),
            Err(e) => return Err((Some(memory), e)),
        };
        // SAFETY: the memory is valid for `len` bytes, and kept as long as the device may know it.
        match unsafe { region.rereg(flag, null_mut(), (start, len), 0) } {
            Ok(()) => {}
            Err(Outcome::AsBefore(e)) => return Err((Some(memory), e)),
            Err(Outcome::Unusable(e)) => {
                // An earlier one that may be with the device stays for ever.
                std::mem::forget(region.stranded.replace(memory));
                return Err((None, e));
            }
        }
        (region.start, region.len) = (start, len);
        region.iova = start.expose_provenance() as u64;
        match std::mem::replace(&mut *region.backing, Backing::Owned(memory)) {
            Backing::Owned(old) => Ok(old),
            // Found to be owned above.
            Backing::Foreign | Backing::Device(_) => Err((None, empty())),
        }
    }

    /// Moves the registration to another protection domain of the same context (ibv_rereg_mr(3)). The keys may change.
    ///
    /// # Errors
    /// [`WrongContext`](ErrorKind::WrongContext) for a domain of another context, [`Busy`](ErrorKind::Busy),
    /// [`Unsupported`](ErrorKind::Unsupported) where device or provider cannot do it. After any other errno the region may
    /// be unusable, and is of neither domain.
    pub fn move_to(&mut self, pd: &ProtectionDomain) -> Result<()> {
        let region = sole(&mut self.region)?;
        if !region.pd.ctx.is_same(pd.context()) {
            return Err(Error::refused(
                REREG,
                ErrorKind::WrongContext,
                "the protection domain belongs to another context",
            ));
        }
        let flag = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD;
        // SAFETY: no memory changes; the domain is alive, of the same context, and held from here on.
        match unsafe { region.rereg(flag, pd.root().raw.as_ptr(), (null_mut(), 0), 0) } {
            Ok(()) => {
                drop(std::mem::replace(&mut *region.pd, Arc::clone(pd.root())));
                Ok(())
            }
            Err(Outcome::AsBefore(e)) => Err(e),
            Err(Outcome::Unusable(e)) => {
                // The kernel may have it in either domain: the new one stays too.
                std::mem::forget(Arc::clone(pd.root()));
                Err(e)
            }
        }
    }

    fn change_flags(
        &mut self,
        flags: Result<u32>,
        how: &Registration,
    ) -> std::result::Result<(), Outcome> {
        let flags = flags.map_err(Outcome::AsBefore)?;
        if how.iova.is_some() {
            let why = "the address by which peers name a region stays what it is: register it anew";
            let e = Error::refused(REREG, ErrorKind::InvalidArgument, why);
            return Err(Outcome::AsBefore(e));
        }
        let flag = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS;
        let region = sole(&mut self.region).map_err(Outcome::AsBefore)?;
        // SAFETY: neither memory nor domain changes.
        unsafe { region.rereg(flag, null_mut(), (null_mut(), 0), flags) }
    }
}

impl MemoryRegion<Remote> {
    /// Changes what peers may do (ibv_rereg_mr(3)). The keys may change.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for another [address](Registration::iova), which this cannot give;
    /// [`Busy`](ErrorKind::Busy); [`Unsupported`](ErrorKind::Unsupported) where device or provider cannot do it. After any
    /// other errno the region may be unusable.
    pub fn change_access(&mut self, access: RemoteAccess, how: &Registration) -> Result<()> {
        let flags = access::remote_flags(&self.region.pd.ctx, access, how);
        self.change_flags(flags, how).map_err(|(Outcome::AsBefore(e) | Outcome::Unusable(e))| e)
    }
}

impl MemoryRegion<Local> {
    /// Opens the region to peers without registering it anew (ibv_rereg_mr(3)).
    ///
    /// # Errors
    /// As [`change_access`](MemoryRegion::change_access), with the region, if it is as it was; one that may have been
    /// opened half way is dropped.
    #[allow(clippy::result_large_err)] // the region must come back, and this is not the message path
    pub fn into_remote(
        mut self,
        access: RemoteAccess,
        how: &Registration,
    ) -> std::result::Result<MemoryRegion<Remote>, (Option<MemoryRegion<Local>>, Error)> {
        let flags = access::remote_flags(&self.region.pd.ctx, access, how);
        match self.change_flags(flags, how) {
            Ok(()) => Ok(MemoryRegion { region: self.region, access: PhantomData }),
            Err(Outcome::AsBefore(e)) => Err((Some(self), e)),
            Err(Outcome::Unusable(e)) => Err((None, e)),
        }
    }
}

fn sole(region: &mut Arc<Region>) -> Result<&mut Region> {
    Arc::get_mut(region).ok_or_else(|| {
        Error::refused(REREG, ErrorKind::Busy, "memory windows are bound to the region")
    })
}

impl Region {
    /// # Safety
    /// New memory is valid for its length as long as the device may know it; a new domain is alive likewise.
    unsafe fn rereg(
        &mut self,
        what: ibv_rereg_mr_flags,
        pd: *mut ibv_pd,
        (start, len): (*mut u8, usize),
        flags: u32,
    ) -> std::result::Result<(), Outcome> {
        let what = what.0.cast_signed();
        // SAFETY: the registration is alive and ours alone; the caller vouches for the rest.
        let rc = unsafe {
            let rereg = self.pd.ctx.0.verbs.rereg_mr;
            rereg(self.raw.as_ptr(), what, pd, start.cast(), len, flags.cast_signed())
        };
        if rc == 0 {
            return Ok(());
        }
        let e = Error::os(REREG, last_errno());
        Err(match ibv_rereg_mr_err_code(rc) {
            // A change that was made; only the marking for fork(2) failed.
            ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_DO_FORK_OLD => return Ok(()),
            ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT
            | ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_DONT_FORK_NEW => Outcome::AsBefore(e),
            // A provider without the operation has done nothing, whatever the code says.
            _ if e.kind() == ErrorKind::Unsupported => Outcome::AsBefore(e.with_hint(
                "this device or its provider cannot change a registration; make a new one",
            )),
            _ => Outcome::Unusable(
                e.with_hint("the region may be unusable now; drop it and register the memory anew"),
            ),
        })
    }
}

impl<A> MemoryRegion<A> {
    /// Says what `len` bytes at `offset` of a region registered on demand will be used for (ibv_advise_mr(3)). `wait`
    /// returns only when it is done. It is advice: nothing depends on it.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where device or provider take no advice (siw; rxe with rdma-core 44);
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the range is not within the region or beyond 4 GiB; else the
    /// errno of the call.
    pub fn advise(&self, offset: usize, len: usize, advice: Advice, wait: bool) -> Result<()> {
        const OP: &str = "ibv_advise_mr";
        self.within(OP, offset, len)?;
        let Ok(length) = u32::try_from(len) else {
            let why = format!("{len} bytes are more than one call can name (4 GiB - 1)");
            return Err(Error::refused(OP, ErrorKind::InvalidArgument, why));
        };
        let wire = self.region.wire(offset, length);
        let mut sge = ibv_sge { addr: wire.addr, length, lkey: wire.lkey };
        let advice = match advice {
            Advice::Prefetch => ib_uverbs_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH,
            Advice::PrefetchWrite => {
                ib_uverbs_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
            }
            Advice::PrefetchNoFault => {
                ib_uverbs_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
            }
        };
        let flags = if wait { ib_uverbs_advise_mr_flag::IBV_ADVISE_MR_FLAG_FLUSH.0 } else { 0 };
        let pd = &self.region.pd;
        // SAFETY: domain and registration are alive; a list of one element.
        let rc = unsafe { (pd.ctx.0.verbs.advise_mr)(pd.raw.as_ptr(), advice, flags, &mut sge, 1) };
        Error::check(OP, rc)
    }
}
