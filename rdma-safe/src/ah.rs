//! Address handles: where a datagram goes, and the answer to where one came from.

use crate::caps::Transport;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::gid::Gid;
use crate::pd::{PdInner, ProtectionDomain};
use crate::wc::Wc;
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes before the payload of every received datagram: the global routing header, or junk where the packet had none.
/// A receive for a datagram of `n` bytes needs `GRH_SIZE + n`.
pub const GRH_SIZE: usize = 40;

/// The part of an address that crosses subnets; RoCE addresses always have it (InfiniBand 1.2.1, 8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// The receiver's GID, or a multicast group's.
    pub dgid: Gid,
    /// Our own GID: its index in the port's table.
    pub sgid_index: u8,
    /// 20 bits; on RoCE v2 it spreads flows over UDP source ports.
    pub flow_label: u32,
    /// Routers the packet may pass; RoCE v2 routers refuse 0 and 1.
    pub hop_limit: u8,
    /// Class of service; on RoCE v2 the IP header's.
    pub traffic_class: u8,
}

/// An address vector (`ibv_ah_attr`): the path to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// Our port, numbered from 1.
    pub port: u8,
    /// The receiver's local identifier; 0 on RoCE.
    pub dlid: u16,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Low bits of our own local identifier, 0 to 127.
    pub src_path_bits: u8,
    /// Rate limit as `ibv_rate`; 0 for none.
    pub static_rate: u8,
    /// The global part. RoCE needs it; on InfiniBand only other subnets and multicast do.
    pub global: Option<GlobalRoute>,
}

impl AddressVector {
    /// The RoCE address `dgid` as seen from entry `sgid_index` of our port's GID table.
    pub fn roce(port: u8, sgid_index: u8, dgid: Gid) -> AddressVector {
        let global =
            GlobalRoute { dgid, sgid_index, flow_label: 0, hop_limit: 64, traffic_class: 0 };
        AddressVector { global: Some(global), ..AddressVector::infiniband(port, 0) }
    }

    /// The InfiniBand local identifier `dlid`, in our own subnet.
    pub fn infiniband(port: u8, dlid: u16) -> AddressVector {
        AddressVector {
            port,
            dlid,
            service_level: 0,
            src_path_bits: 0,
            static_rate: 0,
            global: None,
        }
    }

    /// What providers and kernels cut off silently, or refuse without a word.
    pub(crate) fn check(&self, op: &'static str, ctx: &Context) -> Result<()> {
        let label = self.global.map_or(0, |g| g.flow_label);
        let wrong = if ctx.transport().is_iwarp() {
            let hint = "iWARP has no address vectors: connect with rdma_cm";
            return Err(Error::refused(op, ErrorKind::Unsupported, hint));
        } else if !(1..=ctx.attr().port_count).contains(&self.port) {
            format!("port {} is not between 1 and {}", self.port, ctx.attr().port_count)
        } else if ctx.transport() == Transport::Roce && self.global.is_none() {
            "a RoCE address needs its global part (GRH)".to_owned()
        } else if self.service_level > 15 || self.src_path_bits > 127 || label >= 1 << 20 {
            "the service level has 4 bits, the path bits are 7, and the flow label has 20"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(Error::refused(op, ErrorKind::InvalidArgument, wrong))
    }

    pub(crate) fn to_raw(self) -> ibv_ah_attr {
        let mut raw = ibv_ah_attr {
            dlid: self.dlid,
            sl: self.service_level,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: u8::from(self.global.is_some()),
            port_num: self.port,
            ..ibv_ah_attr::default()
        };
        if let Some(g) = self.global {
            raw.grh = ibv_global_route {
                dgid: ibv_gid { raw: g.dgid.0 },
                flow_label: g.flow_label,
                sgid_index: g.sgid_index,
                hop_limit: g.hop_limit,
                traffic_class: g.traffic_class,
            };
        }
        raw
    }

    pub(crate) fn of_raw(raw: &ibv_ah_attr) -> AddressVector {
        let g = &raw.grh;
        AddressVector {
            port: raw.port_num,
            dlid: raw.dlid,
            service_level: raw.sl,
            src_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
            global: (raw.is_global != 0).then_some(GlobalRoute {
                // SAFETY: both members of the union are 16 plain bytes.
                dgid: Gid(unsafe { g.dgid.raw }),
                sgid_index: g.sgid_index,
                flow_label: g.flow_label,
                hop_limit: g.hop_limit,
                traffic_class: g.traffic_class,
            }),
        }
    }
}

/// Where a received datagram came from, as its completion says. Meaningful for a successful receive on a datagram queue
/// pair; else numbers without a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// The sender's queue pair number.
    pub src_qp: u32,
    /// Whether the first [`GRH_SIZE`] bytes of the buffer are a routing header; always on RoCE.
    pub has_grh: bool,
    slid: u16,
    sl: u8,
    path_bits: u8,
    pkey_index: u16,
}

impl Origin {
    pub(crate) fn of(raw: &ibv_wc) -> Origin {
        Origin {
            src_qp: raw.src_qp,
            has_grh: raw.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0,
            slid: raw.slid,
            sl: raw.sl,
            path_bits: raw.dlid_path_bits,
            pkey_index: raw.pkey_index,
        }
    }

    fn to_raw(self) -> ibv_wc {
        ibv_wc {
            src_qp: self.src_qp,
            wc_flags: u32::from(self.has_grh) * ibv_wc_flags::IBV_WC_GRH.0,
            slid: self.slid,
            sl: self.sl,
            dlid_path_bits: self.path_bits,
            pkey_index: self.pkey_index,
            ..ibv_wc::default()
        }
    }
}

impl Wc {
    /// Where a received datagram came from; also after the completion was redeemed.
    pub fn origin(&self) -> Origin {
        Origin::of(&self.0)
    }
}

struct AhInner {
    raw: NonNull<ibv_ah>,
    pd: ManuallyDrop<Arc<PdInner>>,
}

// SAFETY: nothing changes an ibv_ah after its creation; libibverbs serialises its destruction.
unsafe impl Send for AhInner {}
// SAFETY: as above.
unsafe impl Sync for AhInner {}

impl Drop for AhInner {
    fn drop(&mut self) {
        // SAFETY: the last owner; every request that names the handle holds a share until it is done.
        let rc = unsafe { (self.pd.ctx.0.verbs.destroy_ah)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here. Otherwise the kernel still has the handle, and its domain stays with it.
            unsafe { ManuallyDrop::drop(&mut self.pd) }
        }
    }
}

/// A receiver of datagrams, ready for use by sends on any datagram queue pair of its protection domain.
///
/// Made by [`ProtectionDomain::create_ah`](crate::ProtectionDomain::create_ah) and
/// [`ProtectionDomain::create_reply_ah`](crate::ProtectionDomain::create_reply_ah); named by
/// [`Request::to`](crate::Request::to).
///
/// Cheap to clone; destroyed when the last clone is gone, those held by sends in flight included.
#[derive(Clone)]
pub struct AddressHandle(Arc<AhInner>);

static_assertions::assert_impl_all!(AddressHandle: Clone, Send, Sync);

impl AddressHandle {
    /// Whether it was made in this protection domain, as the sends that use it have to be.
    pub fn is_of(&self, pd: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.0.pd, pd.root())
    }

    /// Identity of its protection domain, to compare.
    pub(crate) fn domain(&self) -> *const PdInner {
        Arc::as_ptr(&self.0.pd)
    }

    /// The raw handle, valid as long as `self` or a clone lives. It must not be destroyed.
    pub fn as_raw(&self) -> *mut ibv_ah {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressHandle({:p})", self.0.raw)
    }
}

impl ProtectionDomain {
    /// Makes an address handle (ibv_create_ah(3)). On RoCE the kernel resolves the receiver's MAC address first, which
    /// can take seconds for a host that does not answer.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) on iWARP; [`InvalidArgument`](ErrorKind::InvalidArgument) for a port that
    /// does not exist, a RoCE address without its global part, or a field beyond its bits; else the errno of the call:
    /// EINVAL or ENODATA for a GID index that is not in use, EHOSTUNREACH or ETIMEDOUT for a receiver that cannot be resolved.
    pub fn create_ah(&self, to: &AddressVector) -> Result<AddressHandle> {
        to.check("ibv_create_ah", self.context())?;
        // SAFETY: the domain is alive, the attributes are complete and not kept.
        let raw =
            unsafe { (self.0.ctx.0.verbs.create_ah)(self.root().raw.as_ptr(), &mut to.to_raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| explain(Error::last("ibv_create_ah")))?;
        Ok(AddressHandle(Arc::new(AhInner { raw, pd: ManuallyDrop::new(Arc::clone(self.root())) })))
    }

    /// The way back to the sender of a datagram (ibv_init_ah_from_wc(3)): its completion's [`Wc::origin`], the port that
    /// received it, and the buffer it was received into, whose first [`GRH_SIZE`] bytes are the routing header.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a buffer shorter than the header, or one that names an address
    /// which is not ours; [`Unsupported`](ErrorKind::Unsupported) on iWARP; else as [`create_ah`](Self::create_ah).
    pub fn reply_vector(&self, origin: Origin, port: u8, buffer: &[u8]) -> Result<AddressVector> {
        const OP: &str = "ibv_init_ah_from_wc";
        let Some(header) = buffer.first_chunk::<GRH_SIZE>() else {
            let hint = format!("{} bytes hold no header of {GRH_SIZE}", buffer.len());
            return Err(Error::refused(OP, ErrorKind::InvalidArgument, hint));
        };
        let any = AddressVector::infiniband(port, 0);
        AddressVector { global: origin.has_grh.then_some(GlobalRoute::default()), ..any }
            .check(OP, self.context())?;
        // SAFETY: an ibv_grh is 40 bytes without any invalid pattern; the source may be unaligned.
        let mut grh = unsafe { header.as_ptr().cast::<ibv_grh>().read_unaligned() };
        let mut attr = ibv_ah_attr::default();
        // SAFETY: live context, complete completion and header, writable attributes; none is kept.
        let rc = unsafe {
            let ctx = self.0.ctx.as_raw();
            let call = self.0.ctx.0.verbs.init_ah_from_wc;
            call(ctx, port, &mut origin.to_raw(), &mut grh, &mut attr)
        };
        match rc {
            0 => Ok(AddressVector::of_raw(&attr)),
            // It returns -1 for a header it cannot read or an address that is in no GID table, mostly without an errno.
            rc => Err(Error::os(OP, if rc == -1 { libc::EINVAL } else { rc })
                .with_hint("the header names no address of this port: was it this buffer?")),
        }
    }

    /// A handle for the way back to the sender of a datagram: [`reply_vector`](Self::reply_vector), then
    /// [`create_ah`](Self::create_ah). Keep it for the next answer to the same sender: making one is slow.
    ///
    /// The answer goes [to](crate::Request::to) the queue pair [`Origin::src_qp`] with a Q_Key that no datagram tells;
    /// queue pairs made ready by the `rdma-cm` crate have its `UDP_QKEY`.
    ///
    /// ```no_run
    /// # use rdma_safe::*;
    /// # const QKEY: u32 = 0x0123_4567;
    /// # fn f(pd: &ProtectionDomain, qp: &mut QueuePair, asked: Done, answer: Slot, len: usize)
    /// #     -> std::result::Result<(), Box<dyn std::error::Error>> {
    /// if let (Some(origin), Some(buffer)) = (asked.extra.origin(), asked.slot) {
    ///     let back = pd.create_reply_ah(origin, 1, &buffer)?;
    ///     qp.post(Request::send(answer, len).to(&back, origin.src_qp, QKEY))?;
    ///     qp.post_recv(buffer)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As those.
    pub fn create_reply_ah(
        &self,
        origin: Origin,
        port: u8,
        buffer: &[u8],
    ) -> Result<AddressHandle> {
        self.create_ah(&self.reply_vector(origin, port, buffer)?)
    }
}

impl Default for GlobalRoute {
    /// The unspecified GID from entry 0, 64 hops.
    fn default() -> GlobalRoute {
        GlobalRoute {
            dgid: Gid([0; 16]),
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        }
    }
}

/// Adds what the errnos of an address mean.
pub(crate) fn explain(e: Error) -> Error {
    match e.errno() {
        libc::EINVAL | libc::ENODATA | libc::ENOENT => e
            .with_kind(ErrorKind::InvalidArgument)
            .with_hint("is the GID index in use? The table changes with the host's addresses"),
        libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT => e.with_hint(
            "the receiver's MAC address cannot be resolved: is it up, and on this network?",
        ),
        _ => e,
    }
}

static_assertions::const_assert_eq!(size_of::<ibv_grh>(), GRH_SIZE);
