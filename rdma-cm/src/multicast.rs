//! Multicast: groups of datagram receivers, named by IP addresses.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::channel::{self, EventChannel, Phase};
use crate::datagram::{Datagram, DatagramPeer, refuse_iwarp};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::id::Id;

/// How to be in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Membership {
    /// Send to it and receive from it.
    #[default]
    Full,
    /// Only send to it (RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER).
    SendOnly,
}

impl Membership {
    fn flags(self) -> u32 {
        use rdma_sys::rdma_cm_mc_join_flags as flags;
        match self {
            Membership::Full => flags::RDMA_MC_JOIN_FLAG_FULLMEMBER.0,
            Membership::SendOnly => flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0,
        }
    }
}

impl EventChannel {
    /// Joins a multicast group, within `timeout`, and tells how to send to it. **To receive from it the queue pair has to be
    /// attached** to the group's GID and LID ([`DatagramPeer::gid`], [`DatagramPeer::lid`]) by its owner: the id does not
    /// know the queue pair.
    ///
    /// The id needs a device: [`bind_source`](Self::bind_source), or an address it has resolved (the group's will do). A
    /// group is left by [`leave_multicast`](Self::leave_multicast) or with the id.
    ///
    /// # Errors
    /// As [`begin_join`](Self::begin_join); [`Error::Os`] with the errno of MULTICAST_ERROR; [`Error::Timeout`], after which
    /// the group is left; [`Error::Cancelled`].
    pub fn join_multicast(
        &mut self,
        id: &Datagram,
        group: SocketAddr,
        membership: Membership,
        timeout: Duration,
    ) -> Result<DatagramPeer> {
        let deadline = channel::deadline(timeout);
        self.begin_join(id, group, membership)?;
        let joined = self.await_join(id, group, deadline, timeout);
        if joined.is_err() {
            // It cannot be used, so it must not stand in the way of a second try.
            let _ = self.leave_multicast(id, group);
        }
        joined
    }

    fn await_join(
        &mut self,
        id: &Datagram,
        group: SocketAddr,
        deadline: std::time::Instant,
        limit: Duration,
    ) -> Result<DatagramPeer> {
        const OP: &str = "rdma_join_multicast_ex";
        let key = id.key();
        let mine = |event: &Event| match event {
            Event::MulticastJoin { id, group: g, .. }
            | Event::MulticastError { id, group: g, .. } => *id == key && *g == group,
            Event::DeviceRemoval { id } => *id == key,
            _ => false,
        };
        match self.next_matching(deadline, mine)? {
            Some(Event::MulticastJoin { peer, .. }) => Ok(peer),
            Some(Event::MulticastError { errno, .. }) => {
                Err(Error::errno_of(OP, errno).about(group))
            }
            Some(_) => Err(Error::errno_of(OP, libc::ENODEV)
                .hint_for(&[libc::ENODEV], "the device was removed")),
            None => Err(Error::Timeout { op: "joining a multicast group", limit }),
        }
    }

    /// Joins without waiting. Ends with [`Event::MulticastJoin`] or [`Event::MulticastError`]; the latter may also come
    /// later, when the group is lost.
    ///
    /// # Errors
    /// [`Error::State`] without a device, for a group the id is in already, or after the id has asked for a peer;
    /// [`Error::NotSupported`] on iWARP; [`Error::Os`] from rdma_join_multicast_ex (EINVAL: no multicast address).
    pub fn begin_join(
        &mut self,
        id: &Datagram,
        group: SocketAddr,
        membership: Membership,
    ) -> Result<()> {
        const OP: &str = "join_multicast";
        let (entry, device) = self.entry_on_device(id.key(), OP)?;
        refuse_iwarp(&device, OP)?;
        if !group.ip().is_multicast() {
            return Err(Error::errno_of(OP, libc::EINVAL)
                .about(group)
                .hint_for(&[libc::EINVAL], "that is no multicast address"));
        }
        if !matches!(entry.phase, Phase::Idle | Phase::AddrResolved) {
            let why = "a group is joined with a bound id, or after its address and before its route is resolved";
            return Err(Error::State { op: OP, why });
        }
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        entry.raw.join(group, membership.flags(), NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Leaves a group. Its events that have not been read are void.
    ///
    /// # Errors
    /// [`Error::State`] when the id is not in it; [`Error::Os`] from rdma_leave_multicast, after which the id is no longer
    /// in it either.
    pub fn leave_multicast(&mut self, id: &Datagram, group: SocketAddr) -> Result<()> {
        let left = self.entry(id, "leave_multicast")?.raw.leave(group);
        self.forget_group(id.key(), group);
        left
    }
}
