//! Queue pairs connected by hand: each state is a type, so what the next step needs cannot be forgotten.
//!
//! ```no_run
//! # use rdma_safe::*;
//! # fn peer() -> (u32, u32, Gid) { (0, 0, Gid([0; 16])) }
//! # fn f(ctx: &Context, pd: &ProtectionDomain, cq: &CqRef, slot: Slot) -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let qp = pd.create_manual_qp(cq, cq, &QpConfig::default())?;
//! let ours = (qp.qp_num(), 4711, ctx.roce_v2_gid(1, None)?.gid); // number, first PSN, address: tell the peer
//! let (their_number, their_psn, their_gid) = peer(); // by a socket, a file, MPI …
//! let index = u8::try_from(ctx.roce_v2_gid(1, None)?.index)?;
//! let mut qp = qp.init(&InitAttr::default())?;
//! qp.post_recv(slot)?; // from here on
//! let rtr = RtrAttr {
//!     path: Some(AddressVector::roce(1, index, their_gid)),
//!     dest_qp_num: their_number,
//!     rq_psn: their_psn,
//!     ..RtrAttr::default()
//! };
//! let qp = qp.ready_to_receive(&rtr)?;
//! // … once the peer is ready to receive, too:
//! let qp: QueuePair = qp.ready_to_send(&RtsAttr { sq_psn: ours.1, ..RtsAttr::default() })?;
//! # Ok(()) }
//! ```
//!
//! Nothing of it is for iWARP, where only rdma_cm connects, and little of it is for InfiniBand and RoCE where rdma_cm
//! can be had: the `rdma-cm` crate does all of this and notices when the peer dies.

#![forbid(unsafe_code)]

use crate::ah::AddressVector;
use crate::cq::CqRef;
use crate::error::{Error, ErrorKind, Result};
use crate::pd::ProtectionDomain;
use crate::post::PostError;
use crate::qp::QueuePair;
use crate::qp_attr::{QpAttr, QpConfig, QpKind, QpState};
use crate::remote_slot::RemoteSlot;
use crate::sg::SgList;
use crate::slot::Slot;
use crate::srq::SrqRef;
use crate::states::{Row, table};
use bitflags::bitflags;
use rdma_sys::{ibv_access_flags, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as a, ibv_qp_state};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

/// State RESET: nothing can be posted.
#[derive(Debug, Clone, Copy)]
pub enum Reset {}
/// State INIT: receives can be posted.
#[derive(Debug, Clone, Copy)]
pub enum Init {}
/// State RTR: it hears, and does not speak.
#[derive(Debug, Clone, Copy)]
pub enum Rtr {}

bitflags! {
    /// What the peer may do through this queue pair, to regions and windows that allow it too.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PeerAccess: u32 {
        /// RDMA writes.
        const WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// RDMA reads.
        const READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// Atomics.
        const ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    }
}

/// What INIT needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitAttr {
    /// Port, numbered from 1.
    pub port: u8,
    /// Index in the port's partition table; not for raw packets.
    pub pkey_index: u16,
    /// What the peer may do; not for datagrams and raw packets.
    pub access: PeerAccess,
    /// Datagrams only: what arrives with another key is dropped. With the top bit set it needs CAP_NET_RAW.
    pub qkey: u32,
}

impl Default for InitAttr {
    /// Port 1, default partition, no remote access, key 0x11111111.
    fn default() -> InitAttr {
        InitAttr { port: 1, pkey_index: 0, access: PeerAccess::empty(), qkey: 0x1111_1111 }
    }
}

/// What RTR needs. Datagrams and raw packets need nothing: the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttr {
    /// The way to the peer; `None` for datagrams and raw packets only.
    pub path: Option<AddressVector>,
    /// Bytes in a packet: 256, 512, 1024, 2048 or 4096, at most the port's active MTU, the same on both sides.
    pub path_mtu: u32,
    /// The peer's queue pair number, 24 bits.
    pub dest_qp_num: u32,
    /// The peer's first packet sequence number ([`RtsAttr::sq_psn`]), 24 bits.
    pub rq_psn: u32,
    /// Reads and atomics of the peer answered at once; RC and XRC targets.
    pub max_dest_rd_atomic: u8,
    /// How long a peer that found no receive is told to wait: 0 to 31, the coding of InfiniBand table 45 (12: 0.64 ms).
    pub min_rnr_timer: u8,
}

impl Default for RtrAttr {
    /// No path; 1024 bytes, which every port has; 1 read at once; 0.64 ms.
    fn default() -> RtrAttr {
        RtrAttr {
            path: None,
            path_mtu: 1024,
            dest_qp_num: 0,
            rq_psn: 0,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }
}

/// What RTS needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// First packet sequence number, 24 bits.
    pub sq_psn: u32,
    /// How long to wait for an acknowledgement: 4.096 us * 2^n, n from 1 to 31; 0 for ever. RC and XRC.
    pub timeout: u8,
    /// Times to try again after that, 0 to 7. RC and XRC senders.
    pub retry_count: u8,
    /// Times to try again when the peer has no receive, 0 to 6; 7 for ever. RC and XRC senders.
    pub rnr_retry: u8,
    /// Reads and atomics asked at once, at most the peer's [`RtrAttr::max_dest_rd_atomic`]. RC and XRC senders.
    pub max_rd_atomic: u8,
}

impl Default for RtsAttr {
    /// PSN 0; 67 ms and 7 more times; without an end while the peer has no receive; 1 read at once.
    fn default() -> RtsAttr {
        RtsAttr { sq_psn: 0, timeout: 14, retry_count: 7, rnr_retry: 7, max_rd_atomic: 1 }
    }
}

/// The attributes that this row of the table needs for the move.
fn build(row: Row, from: QpState, to: ibv_qp_state, raw: ibv_qp_attr) -> QpAttr {
    let needed = table::masks(row, from, QpState::of(to)).map_or(0, |m| m.required);
    let raw = ibv_qp_attr { qp_state: to, ..raw };
    QpAttr::from_raw(raw, (needed | a::IBV_QP_STATE.0).cast_signed())
}

fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::refused("ibv_modify_qp", ErrorKind::InvalidArgument, what)
}

impl InitAttr {
    pub(crate) fn build(&self, row: Row, ports: u8) -> Result<QpAttr> {
        if !(1..=ports).contains(&self.port) {
            return Err(wrong(format!("port {} is not between 1 and {ports}", self.port)));
        }
        let raw = ibv_qp_attr {
            port_num: self.port,
            pkey_index: self.pkey_index,
            qp_access_flags: (self.access & PeerAccess::all()).bits(),
            qkey: self.qkey,
            ..ibv_qp_attr::default()
        };
        Ok(build(row, QpState::Reset, ibv_qp_state::IBV_QPS_INIT, raw))
    }
}

impl RtrAttr {
    pub(crate) fn build(&self, row: Row, ctx: &crate::Context) -> Result<QpAttr> {
        let mut raw = ibv_qp_attr {
            dest_qp_num: self.dest_qp_num,
            rq_psn: self.rq_psn,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            ..ibv_qp_attr::default()
        };
        match (row, self.path) {
            (Row::Ud | Row::RawPacket, None) => {}
            (Row::Ud | Row::RawPacket, Some(_)) => {
                return Err(wrong("this kind of queue pair has no path: each send has its own"));
            }
            (_, None) => return Err(wrong("a path to the peer (RtrAttr::path) is missing")),
            (_, Some(path)) => {
                path.check("ibv_modify_qp", ctx)?;
                raw.ah_attr = path.to_raw();
            }
        }
        raw.path_mtu = mtu(self.path_mtu)?;
        if (self.dest_qp_num | self.rq_psn) >> 24 != 0 || self.min_rnr_timer > 31 {
            return Err(wrong(
                "queue pair numbers and PSNs have 24 bits, the receiver-not-ready timer has 5",
            ));
        }
        Ok(build(row, QpState::Init, ibv_qp_state::IBV_QPS_RTR, raw))
    }
}

impl RtsAttr {
    pub(crate) fn build(&self, row: Row) -> Result<QpAttr> {
        if self.sq_psn >> 24 != 0 || self.timeout > 31 || (self.retry_count | self.rnr_retry) > 7 {
            return Err(wrong("a PSN has 24 bits, the timeout has 5, the retry counts have 3"));
        }
        let raw = ibv_qp_attr {
            sq_psn: self.sq_psn,
            timeout: self.timeout,
            retry_cnt: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            ..ibv_qp_attr::default()
        };
        Ok(build(row, QpState::ReadyToReceive, ibv_qp_state::IBV_QPS_RTS, raw))
    }
}

fn mtu(bytes: u32) -> Result<ibv_mtu> {
    match bytes {
        256 | 512 | 1024 | 2048 | 4096 => Ok(ibv_mtu(bytes.ilog2() - 7)),
        _ => Err(wrong(format!("a path MTU of {bytes} is none of 256, 512, 1024, 2048 and 4096"))),
    }
}

/// A step that failed: the queue pair is as it was.
pub struct StepError<S> {
    /// The queue pair, to try again or to drop.
    pub qp: ManualQp<S>,
    /// What was wrong.
    pub error: Error,
}

impl<S> fmt::Debug for StepError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S> fmt::Display for StepError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S> std::error::Error for StepError<S> {}

impl<S> From<StepError<S>> for Error {
    /// Drops the queue pair.
    fn from(e: StepError<S>) -> Error {
        e.error
    }
}

/// A queue pair on its way to being connected by hand, in state `S`.
///
/// Made by [`ProtectionDomain::create_manual_qp`](crate::ProtectionDomain::create_manual_qp); the module has
/// [an example](crate::manual).
///
/// ```compile_fail,E0599
/// # fn f(qp: rdma_safe::ManualQp<rdma_safe::manual::Reset>) {
/// qp.ready_to_send(&rdma_safe::RtsAttr::default()); // RESET does not go to RTS
/// # }
/// ```
pub struct ManualQp<S> {
    /// Boxed, so that errors that carry it back are small.
    qp: Box<QueuePair>,
    state: PhantomData<fn() -> S>,
}

impl<S> ManualQp<S> {
    fn row(&self) -> Row {
        Row::of(self.qp.config().kind, self.qp.context().transport())
    }

    fn step<T>(mut self, attr: Result<QpAttr>) -> std::result::Result<ManualQp<T>, StepError<S>> {
        match attr.and_then(|attr| self.qp.modify(&attr)) {
            Ok(()) => Ok(ManualQp { qp: self.qp, state: PhantomData }),
            Err(error) => Err(StepError { qp: self, error }),
        }
    }

    /// The queue pair as it is, for going on with [`QueuePair::modify`].
    pub fn into_inner(self) -> QueuePair {
        *self.qp
    }
}

impl<S> Deref for ManualQp<S> {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        &self.qp
    }
}

impl<S> fmt::Debug for ManualQp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualQp({:?})", self.qp)
    }
}

impl ManualQp<Reset> {
    /// To INIT.
    ///
    /// # Errors
    /// [`StepError`] with the queue pair, still in RESET: [`InvalidArgument`](ErrorKind::InvalidArgument) for a port that
    /// does not exist, else the errno of ibv_modify_qp(3): EINVAL for a partition index that does not (rxe takes any), EPERM for a Q_Key
    /// that needs CAP_NET_RAW.
    pub fn init(self, attr: &InitAttr) -> std::result::Result<ManualQp<Init>, StepError<Reset>> {
        let attr = attr.build(self.row(), self.context().attr().port_count);
        self.step(attr)
    }
}

impl ManualQp<Init> {
    /// To RTR: from here on it answers the peer.
    ///
    /// # Errors
    /// [`StepError`] with the queue pair, still in INIT: [`InvalidArgument`](ErrorKind::InvalidArgument) for a missing or
    /// superfluous path and for values out of range, else the errno of ibv_modify_qp(3): EINVAL or ENODATA for a GID index
    /// that is not in use, EINVAL for an MTU beyond the port's largest, EHOSTUNREACH or ETIMEDOUT for a peer that cannot be
    /// resolved (RoCE).
    pub fn ready_to_receive(
        self,
        attr: &RtrAttr,
    ) -> std::result::Result<ManualQp<Rtr>, StepError<Init>> {
        let attr = attr.build(self.row(), self.context());
        self.step(attr)
    }
}

impl ManualQp<Rtr> {
    /// To RTS: connected. The peer must be RTR by the time of the first send.
    ///
    /// # Errors
    /// [`StepError`] with the queue pair, still in RTR: [`InvalidArgument`](ErrorKind::InvalidArgument) for values out of
    /// range, else the errno of ibv_modify_qp(3).
    pub fn ready_to_send(self, attr: &RtsAttr) -> std::result::Result<QueuePair, StepError<Rtr>> {
        let attr = attr.build(self.row());
        self.step::<()>(attr).map(ManualQp::into_inner)
    }
}

/// Refuses where no hand can connect.
fn by_hand(pd: &ProtectionDomain) -> Result<()> {
    if !pd.context().transport().is_iwarp() {
        return Ok(());
    }
    let why = "iWARP queue pairs are connected by rdma_connect and rdma_accept only: use create_qp and the rdma-cm crate";
    Err(Error::refused("create_manual_qp", ErrorKind::Unsupported, why))
}

/// States in which receives can be posted.
pub trait Receives: sealed::Sealed {}
impl Receives for Init {}
impl Receives for Rtr {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Init {}
    impl Sealed for super::Rtr {}
}

impl<S: Receives> ManualQp<S> {
    /// [`QueuePair::post_recv`].
    ///
    /// # Errors
    /// As there.
    pub fn post_recv(&mut self, slot: Slot) -> std::result::Result<(), PostError> {
        self.qp.post_recv(slot)
    }

    /// [`QueuePair::post_recv_list`].
    ///
    /// # Errors
    /// As there.
    pub fn post_recv_list(&mut self, list: SgList) -> std::result::Result<(), PostError> {
        self.qp.post_recv_list(list)
    }

    /// [`QueuePair::post_recv_remote`].
    ///
    /// # Errors
    /// As there.
    pub fn post_recv_remote(&mut self, slot: RemoteSlot) -> std::result::Result<(), PostError> {
        self.qp.post_recv_remote(slot)
    }
}

impl ProtectionDomain {
    /// Creates a queue pair of any kind in state RESET, to be connected by hand.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) on iWARP, where only rdma_cm connects; else as
    /// [`create_qp`](Self::create_qp).
    pub fn create_manual_qp(
        &self,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        config: &QpConfig,
    ) -> Result<ManualQp<Reset>> {
        by_hand(self)?;
        let qp = Box::new(self.create_qp(send_cq, recv_cq, config)?);
        Ok(ManualQp { qp, state: PhantomData })
    }

    /// As [`create_manual_qp`](Self::create_manual_qp), on a shared receive queue
    /// ([`create_qp_on_srq`](Self::create_qp_on_srq)).
    ///
    /// # Errors
    /// As those.
    pub fn create_manual_qp_on_srq(
        &self,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        srq: &SrqRef,
        config: &QpConfig,
    ) -> Result<ManualQp<Reset>> {
        by_hand(self)?;
        let qp = Box::new(self.create_qp_on_srq(send_cq, recv_cq, srq, config)?);
        Ok(ManualQp { qp, state: PhantomData })
    }

    /// Creates a datagram queue pair that is ready to send and to receive: [`QpKind::Ud`] whatever `config` says.
    ///
    /// Each receive needs [`GRH_SIZE`](crate::GRH_SIZE) bytes more than the message has, and a message has at most the
    /// port's active MTU. What comes before the first receive is posted is lost, and so is everything else the network
    /// loses.
    ///
    /// # Errors
    /// As [`create_manual_qp`](Self::create_manual_qp) and its steps.
    pub fn create_ud_qp(
        &self,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        config: &QpConfig,
        attr: &InitAttr,
    ) -> Result<QueuePair> {
        let config = QpConfig { kind: QpKind::Ud, ..*config };
        let qp = self.create_manual_qp(send_cq, recv_cq, &config)?.init(attr)?;
        Ok(qp.ready_to_receive(&RtrAttr::default())?.ready_to_send(&RtsAttr::default())?)
    }
}
