//! Memory of somebody else, as a library has it that registers what its user hands it.
use crate::device_support::die;
use rdma_safe::{Access, Foreign, ForeignSlice, MemoryRegion, ProtectionDomain, Registration};

/// A box whose memory the device uses through a pointer. Leaked if not taken back.
pub(crate) struct Lent {
    memory: *mut [u8],
    region: MemoryRegion<Foreign>,
}

impl Lent {
    pub(crate) fn new(pd: &ProtectionDomain, bytes: Vec<u8>) -> Lent {
        let memory = Box::into_raw(bytes.into_boxed_slice());
        let access = Access::read_sink(pd.context().caps()) | Access::LOCAL_WRITE;
        let (start, len) = (memory.cast::<u8>(), memory.len());
        // SAFETY: the memory stays until `take_back`, which deregisters first; nothing refers to it meanwhile.
        let region = unsafe { pd.register_foreign(start, len, access, &Registration::new()) };
        Lent { memory, region: region.unwrap_or_else(|e| die(&e.to_string())) }
    }

    /// All of it, for an operation.
    pub(crate) fn slice(&self) -> ForeignSlice {
        // SAFETY: nothing but the device uses the memory until `take_back`, which needs the slice to be gone.
        let slice = unsafe { self.region.slice(0, self.memory.len()) };
        slice.unwrap_or_else(|e| die(&e.to_string()))
    }

    /// The bytes, when no operation has a slice of it any more.
    pub(crate) fn take_back(self) -> Box<[u8]> {
        // Refused while a slice holds the region.
        self.region.deregister().unwrap_or_else(|e| die(&e.to_string()));
        // SAFETY: from `into_raw` above, taken back once; the registration is over.
        unsafe { Box::from_raw(self.memory) }
    }
}
