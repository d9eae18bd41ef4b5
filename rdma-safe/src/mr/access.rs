//! Access flags: made in one place, from what the memory is for and what the device needs and can do.

#![forbid(unsafe_code)]

use crate::caps::Caps;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use bitflags::bitflags;
use rdma_sys::ibv_access_flags;

/// What a peer may do to a [`Remote`](crate::Remote) region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteAccess {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    ReadWrite,
    /// Both, and count in it: fetch-and-add, compare-and-swap.
    ReadWriteAtomic,
    /// Nothing on purpose: it is the sink of our own RDMA reads. On iWARP that needs remote write access, and the peer
    /// learns the key.
    ReadSink,
    /// Nothing by itself: peers use memory windows that are bound to it.
    Windows,
}

bitflags! {
    /// What device and peers may do to memory that this crate does not own
    /// ([`register_foreign`](crate::ProtectionDomain::register_foreign); `ibv_access_flags`). Reading by the own device
    /// is always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The own device writes: receives, sinks of reads and atomics.
        const LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// Peers write. Needs and implies `LOCAL_WRITE` (ibv_reg_mr(3)).
        const REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// Peers read.
        const REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// Peers count. Needs and implies `LOCAL_WRITE`.
        const REMOTE_ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Memory windows can be bound to it.
        const BIND_WINDOWS = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
    }
}

impl Access {
    /// What the sink of an RDMA read needs on this device: on iWARP the peer must be able to write it.
    pub fn read_sink(caps: Caps) -> Access {
        match caps.contains(Caps::READ_SINK_REMOTE_WRITE) {
            true => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            false => Access::LOCAL_WRITE,
        }
    }

    fn of_remote(access: RemoteAccess, caps: Caps) -> Access {
        match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
            RemoteAccess::ReadWrite => Access::REMOTE_READ | Access::REMOTE_WRITE,
            RemoteAccess::ReadWriteAtomic => {
                Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
            }
            RemoteAccess::ReadSink => Access::read_sink(caps),
            RemoteAccess::Windows => Access::BIND_WINDOWS,
        }
    }
}

/// How to register memory, beside what peers may do: the empty one is pinned, strictly ordered, at its own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registration {
    on_demand: bool,
    relaxed_ordering: bool,
    windows: bool,
    pub(super) iova: Option<u64>,
}

impl Registration {
    /// The plain one.
    pub fn new() -> Registration {
        Registration::default()
    }

    /// Not pinned: pages are faulted in when the device needs them, and count against no memory limit. Needs a device
    /// with on-demand paging ([`DeviceAttrEx::odp`](crate::DeviceAttrEx::odp): rxe since Linux 6.15, mlx5).
    pub fn on_demand(mut self) -> Registration {
        self.on_demand = true;
        self
    }

    /// Writes may arrive in any order, which is faster on some hosts: the completion still comes after all of them, but
    /// watching memory change proves nothing. Devices and kernels that do not know it ignore it.
    pub fn relaxed_ordering(mut self) -> Registration {
        self.relaxed_ordering = true;
        self
    }

    /// Memory windows can be bound to it. Only for regions peers may use.
    pub fn windows(mut self) -> Registration {
        self.windows = true;
        self
    }

    /// Peers name the first byte by this address instead of its own (ibv_reg_mr_iova(3)). Most devices want it to have
    /// the same offset within a page. Needs [`Caps::IOVA`].
    pub fn iova(mut self, iova: u64) -> Registration {
        self.iova = Some(iova);
        self
    }
}

/// The flags for the kernel, or why the device cannot do that.
pub(super) fn flags(ctx: &Context, access: Access, how: &Registration) -> Result<u32> {
    let caps = ctx.caps();
    let mut access = access & Access::all();
    if how.windows {
        access |= Access::BIND_WINDOWS;
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::BIND_WINDOWS) {
        access |= Access::LOCAL_WRITE;
    }
    if access.contains(Access::REMOTE_ATOMIC) && !caps.contains(Caps::ATOMICS) {
        return Err(unsupported(ctx, "has no remote atomics"));
    }
    if access.contains(Access::BIND_WINDOWS) && !caps.contains(Caps::MEMORY_WINDOWS) {
        return Err(unsupported(ctx, "has no memory windows"));
    }
    if how.iova.is_some() && !caps.contains(Caps::IOVA) {
        return Err(unsupported(ctx, "knows memory by its own address only"));
    }
    let mut raw = access.bits();
    if how.on_demand {
        if !ctx.attr_ex()?.odp.supported {
            return Err(unsupported(ctx, "has no on-demand paging; register pinned memory"));
        }
        raw |= ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    }
    if how.relaxed_ordering {
        raw |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    }
    Ok(raw)
}

/// The same for a region only this process uses.
pub(super) fn local_flags(ctx: &Context, how: &Registration) -> Result<u32> {
    if how.windows {
        return Err(Error::refused(
            "ibv_reg_mr",
            ErrorKind::InvalidArgument,
            "a window would give peers access to a local region; register it as remote",
        ));
    }
    flags(ctx, Access::LOCAL_WRITE, how)
}

/// The same for a region peers use. The own device may always write it.
pub(super) fn remote_flags(ctx: &Context, access: RemoteAccess, how: &Registration) -> Result<u32> {
    flags(ctx, Access::LOCAL_WRITE | Access::of_remote(access, ctx.caps()), how)
}

fn unsupported(ctx: &Context, what: &str) -> Error {
    Error::refused("ibv_reg_mr", ErrorKind::Unsupported, format!("{} {what}", ctx.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_follow_use_and_transport() {
        let bits = |access, caps| Access::of_remote(access, caps).bits();
        let none = Caps::empty();
        assert_eq!(bits(RemoteAccess::Read, none), 4);
        assert_eq!(bits(RemoteAccess::Write, none), 2);
        assert_eq!(bits(RemoteAccess::ReadWrite, none), 2 | 4);
        assert_eq!(bits(RemoteAccess::ReadWriteAtomic, none), 2 | 4 | 8);
        assert_eq!(bits(RemoteAccess::Windows, none), 16);
        assert_eq!(bits(RemoteAccess::ReadSink, none), 1);
        assert_eq!(bits(RemoteAccess::ReadSink, Caps::READ_SINK_REMOTE_WRITE), 1 | 2);
    }
}
