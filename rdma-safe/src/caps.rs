//! What a device is and can do: transport and capability flags.

#![forbid(unsafe_code)]

use bitflags::bitflags;

/// The wire protocol a device speaks, which decides the rules a connection has to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand.
    Ib,
    /// RDMA over Converged Ethernet.
    Roce,
    /// RDMA over TCP (RFC 5040, 5041, 5044). The initiator of a connection must send first.
    Iwarp,
    /// Anything else: the raw `ibv_transport_type`.
    Other(i32),
}

impl Transport {
    /// True for iWARP.
    pub fn is_iwarp(self) -> bool {
        matches!(self, Transport::Iwarp)
    }
}

bitflags! {
    /// Capabilities of a device, from its query and the quirk table ([`quirks`](crate::quirks)).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Caps: u32 {
        /// A message that finds no posted receive is retried (InfiniBand, RoCE) and does not end the connection.
        const RNR_NAK = 1 << 0;
        /// Fetch-and-add and compare-and-swap on remote memory.
        const ATOMICS = 1 << 1;
        /// Sends and writes can carry 32 bits of immediate data.
        const IMM = 1 << 2;
        /// Shared receive queues.
        const SRQ = 1 << 3;
        /// The side that initiated a connection must send its first message (RFC 5044 7.1.2 rule 4).
        const INITIATOR_FIRST = 1 << 4;
        /// Send and receive requests share one work queue, so a receive becomes usable only after earlier sends.
        const SHARED_WORK_QUEUE = 1 << 5;
        /// A connection from the device to its own address works. 127/8, ::1 and wildcards never count.
        const LOOPBACK = 1 << 6;
        /// The sink of an RDMA read must be registered with remote write access, so the peer can write it.
        const READ_SINK_REMOTE_WRITE = 1 << 7;
        /// Memory windows.
        const MEMORY_WINDOWS = 1 << 8;
        /// An unsignalled send of a page or more is finished only by its own completion (siw).
        const SIGNAL_LARGE_SENDS = 1 << 9;
        /// Small sends must be inline (siw copies them from user addresses in a kernel thread otherwise).
        const INLINE_SMALL_SENDS = 1 << 10;
        /// A first message that arrives while the peer is still accepting may stay unread there until more bytes come
        /// (siw answers the connect before it listens to the socket):
        /// [`post_empty_write`](crate::QueuePair::post_empty_write) makes the peer look.
        const NUDGE_AFTER_ACCEPT = 1 << 11;
        /// Memory can be registered at an address of the caller's choice. (siw takes the choice and ignores it.)
        const IOVA = 1 << 12;
        /// A completed RDMA write is in the peer's memory. Without it (iWARP; RFC 5040 5.5, 9) its completion only means
        /// that the memory here can be used again.
        const REMOTE_COMPLETION = 1 << 13;
        /// RDMA reads are about as fast as writes. On iWARP they are not: soft iWARP reads at half the speed.
        const FAST_READS = 1 << 14;
    }
}
