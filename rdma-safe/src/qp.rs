//! Queue pairs: how they are made, moved between states and destroyed. Posting is in `post`.
//!
//! What providers do wrong and how it is absorbed here:
//! * A failed post may leave the request in the ring (siw, rxe): the slot stays, the queue pair takes no more posts.
//! * A post before the connection stands wedges siw's send queue: refused by the state kept here.
//! * A post on a failed siw queue pair returns 0 and never completes: slots come back from the destruction, which is
//!   the only point at which no provider touches them any more. No marker request is used for draining.
//! * Lists of requests may fail with a return of 0 (siw): whatever the return, a request named as failed has failed.
//! * A return may be negative, positive or -1 with errno: all are understood.
//! * A queue of depth 0 fails or divides by zero: refused. Empty receives cannot be made, because slots are not empty.
//! * siw's doorbell may fail with ENOTCONN while the connection is being closed: as any failed post.
//! * A destroy that fails (EIO after hot removal): everything the queue pair owns is leaked, nothing is freed.
//!
//! In a child after fork(2) the queues are shared with the parent: do nothing but exec or _exit there.

use crate::ah;
use crate::can;
use crate::cq::{CqInner, CqRef};
use crate::error::{Error, ErrorKind, Result};
use crate::group::QpKey;
use crate::multicast::Membership;
use crate::payload::Payload;
use crate::pd::{PdInner, ProtectionDomain};
use crate::post::Ops;
use crate::qp_attr::{QpAttr, QpConfig, QpKind, QpState};
use crate::qp_create::{check, explain_create, init_attr, inline_wanted, next_serial, reserve};
use crate::ring::{InFlight, Kind};
use crate::slot::Slot;
use crate::srq::{Joining, SrqRef};
use crate::states::{self, Row};
use crate::{Caps, Context};
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Weak};

/// Sends up to this size are always inline where the queue pair can: siw's kernel thread may not touch smaller user
/// buffers by itself (it copies from user addresses), and everywhere else it saves a DMA.
pub(crate) const SMALL: u32 = 32;
/// From this size on siw sends unsignalled requests zero-copy and reports nothing when it is done with the pages.
const SIW_ZERO_COPY: usize = 4096;

/// A queue pair. `Send`: it may be used from any one thread at a time.
///
/// Made by [`ProtectionDomain::create_qp`](crate::ProtectionDomain::create_qp) and connected by the `rdma-cm` crate, or
/// by the steps of a [`ManualQp`](crate::ManualQp).
///
/// Dropping it destroys it and frees its slots; [`close`](Self::close) gives them back instead. Both may block while
/// the connection manager is in a blocking call for it (siw's `rdma_connect`).
pub struct QueuePair {
    pub(crate) raw: NonNull<ibv_qp>,
    /// What may be posted now: `CAN_` bits of `can`, recomputed by `set_state`.
    pub(crate) can: u8,
    /// What may ever be posted.
    ever: u8,
    state: QpState,
    pub(crate) small: u32,
    pub(crate) max_inline: usize,
    pub(crate) signal_from: usize,
    /// Whose memory it may use.
    pub(crate) pd: ManuallyDrop<Arc<PdInner>>,
    /// The same, or a parent domain over it.
    made_in: ManuallyDrop<Arc<PdInner>>,
    /// Zeroed once, so that a post writes only the fields a SEND uses.
    pub(crate) template: ibv_send_wr,
    pub(crate) ops: Ops,
    /// Its name in the group that has it.
    pub(crate) key: QpKey,
    /// Identity of `pd`.
    pub(crate) domain: *const PdInner,
    /// The same while sends, and receives, may be posted, else null: one comparison with a slot's tells both.
    pub(crate) send_domain: *const PdInner,
    pub(crate) recv_domain: *const PdInner,
    pub(crate) flight: ManuallyDrop<InFlight>,
    serial: u64,
    config: QpConfig,
    /// Multicast groups it is in.
    pub(crate) groups: Vec<Membership>,
    /// Windows of type 2 that may be bound on it.
    pub(crate) windows: Vec<Weak<crate::mw::Handle>>,
    /// Threads that use its number, for which its destruction waits.
    #[cfg(feature = "tokio")]
    pub(crate) holds: Option<Arc<crate::aio::Holds>>,
    srq: ManuallyDrop<Option<SrqRef>>,
    send_cq: ManuallyDrop<Arc<CqInner>>,
    recv_cq: ManuallyDrop<Arc<CqInner>>,
}

// SAFETY: sole owner of the ibv_qp, whose calls are thread safe; the pointers in the template are dangling between
// calls and never read, and the domains' are only compared.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        config: &QpConfig,
        srq: Option<&SrqRef>,
    ) -> Result<QueuePair> {
        let ctx = pd.context();
        // With a shared receive queue it has none of its own.
        let config =
            &QpConfig { recv_depth: if srq.is_some() { 0 } else { config.recv_depth }, ..*config };
        check(ctx, send_cq, recv_cq, config, srq.is_some())?;
        let serial = next_serial()?;
        let (send_cq, recv_cq) = (&send_cq.0, &recv_cq.0);
        let joining = srq.map(|srq| srq.join(pd, recv_cq, config.kind)).transpose()?;
        reserve(send_cq, recv_cq, config)?;
        let inline = inline_wanted(config, ctx.caps());
        let raw_srq = srq.map_or(null_mut(), SrqRef::as_raw);
        let mut attr = init_attr(send_cq, recv_cq, config, serial, inline, raw_srq);
        // SAFETY: PD and CQs are alive and of one context; the attributes are complete.
        let raw = unsafe { (ctx.0.verbs.create_qp)(pd.as_raw(), &mut attr) };
        let Some(raw) = NonNull::new(raw) else {
            let e = Error::last("ibv_create_qp");
            send_cq.unreserve(config.send_depth);
            recv_cq.unreserve(config.receives());
            return Err(explain_create(e, config));
        };
        send_cq.born(serial);
        recv_cq.born(serial);
        joining.into_iter().for_each(Joining::done);
        let flight = InFlight::new(serial, config.send_depth, config.receives());
        let flight = if config.kind == QpKind::Ud { flight.with_datagrams() } else { flight };
        Ok(QueuePair {
            raw,
            can: 0,
            ever: can::ever(config.kind, ctx.caps())
                & if srq.is_some() { !can::CAN_RECV } else { !0 },
            state: QpState::Reset,
            small: SMALL.min(attr.cap.max_inline_data),
            max_inline: attr.cap.max_inline_data as usize,
            signal_from: match ctx.caps().contains(Caps::SIGNAL_LARGE_SENDS) {
                true => SIW_ZERO_COPY,
                false => usize::MAX,
            },
            pd: ManuallyDrop::new(Arc::clone(pd.root())),
            made_in: ManuallyDrop::new(Arc::clone(&pd.0)),
            template: ibv_send_wr {
                num_sge: 1,
                opcode: ibv_wr_opcode::IBV_WR_SEND,
                ..ibv_send_wr::default()
            },
            flight: ManuallyDrop::new(flight),
            key: QpKey::UNKNOWN,
            // SAFETY: the context is open.
            ops: unsafe { Ops::of(ctx.as_raw()) },
            domain: Arc::as_ptr(pd.root()),
            send_domain: null(),
            recv_domain: null(),
            serial,
            config: *config,
            groups: Vec::new(),
            windows: Vec::new(),
            #[cfg(feature = "tokio")]
            holds: None,
            srq: ManuallyDrop::new(srq.cloned()),
            send_cq: ManuallyDrop::new(Arc::clone(send_cq)),
            recv_cq: ManuallyDrop::new(Arc::clone(recv_cq)),
        })
    }

    /// Changes attributes (ibv_modify_qp(3)); for connecting, with what `rdma_init_qp_attr` says.
    ///
    /// Everything is checked against the state table first: what the move needs, what it may carry, and the state the
    /// queue pair is in as this crate knows it.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState) for a move that does not exist, for leaving the error state, for going back
    /// to RESET (make a new queue pair: its requests would be forgotten by the device but not by us), and for going (on)
    /// to RTS while unsignalled sends are in flight on a queue pair whose send queue may have failed and work again (UC,
    /// UD): which of them failed, only completions tell that are not redeemed yet;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) with the names of all attributes that are missing or do not belong
    /// there, for changing depths, and for a RoCE address without its global part; else the errno of the call.
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        if attr.has(ibv_qp_attr_mask::IBV_QP_CAP) {
            return Err(Error::refused(
                "ibv_modify_qp",
                ErrorKind::InvalidArgument,
                "queue depths are fixed",
            ));
        }
        let target = attr.state();
        match (self.state, target) {
            (QpState::Error, Some(t)) if t != QpState::Error => {
                return Err(self.wrong_state(
                    "ibv_modify_qp",
                    "a failed queue pair cannot be used again; make a new one",
                ));
            }
            (s, Some(QpState::Reset)) if s != QpState::Reset => {
                return Err(self.wrong_state(
                    "ibv_modify_qp",
                    "going back to RESET would orphan posted slots; make a new one",
                ));
            }
            (QpState::ReadyToSend | QpState::Draining | QpState::SendQueueError, Some(t))
                if t == QpState::ReadyToSend
                    && self.recovers()
                    && self.flight.unsignalled() > 0 =>
            {
                return Err(self.wrong_state(
                    "ibv_modify_qp",
                    "unsignalled sends are in flight that may have failed: redeem all completions first, \
                     or make a new queue pair",
                ));
            }
            _ => {}
        }
        let transport = self.context().transport();
        states::check(Row::of(self.config.kind, transport), transport, self.state, attr)?;
        // SAFETY: the QP is alive and of this context.
        unsafe { modify_raw(self.context(), self.raw, attr) }?;
        if let Some(t) = target {
            self.set_state(t);
        }
        Ok(())
    }

    /// Tells that the connection stands, on iWARP: there the kernel moves the queue pair to RTS during
    /// `rdma_connect` and `rdma_accept`, and queries do not show it (siw on Linux 6.1 always says RESET).
    ///
    /// Saying so too early makes the first post fail, no more.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState) on other transports, where [`modify`](Self::modify) to RTS tells, and for a
    /// failed queue pair.
    pub fn mark_connected(&mut self) -> Result<()> {
        match self.state {
            _ if !self.context().transport().is_iwarp() => Err(self.wrong_state(
                "mark_connected",
                "on this transport the queue pair is connected by modify to RTS",
            )),
            QpState::Error | QpState::Draining => {
                Err(self.wrong_state("mark_connected", "the queue pair has failed"))
            }
            _ => {
                self.set_state(QpState::ReadyToSend);
                Ok(())
            }
        }
    }

    /// Moves the queue pair to the error state: it takes no more posts, and the device flushes what it flushes. Slots
    /// it does not flush come back from [`close`](Self::close).
    ///
    /// # Errors
    /// The errno of the modify; posts are refused from here on even then.
    pub fn to_error(&mut self) -> Result<()> {
        // There is no such move, and nothing to flush.
        if self.state == QpState::Reset {
            self.set_state(QpState::Error);
            return Ok(());
        }
        let done = self.modify(&QpAttr::state_only(ibv_qp_state::IBV_QPS_ERR));
        self.set_state(QpState::Error);
        done
    }

    /// The only way the state changes, so that `can` is always right.
    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.can = can::now(self.ever, state);
        let domain_if = |bit| if self.can & bit != 0 { self.domain } else { null() };
        (self.send_domain, self.recv_domain) = (domain_if(can::CAN_SEND), domain_if(can::CAN_RECV));
    }

    /// A send or a receive completed with an error.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_failure(&mut self, queue: Kind) {
        let unreliable = matches!(self.config.kind, QpKind::Uc | QpKind::Ud);
        let sends_only = queue == Kind::Send && unreliable;
        self.set_state(match self.state {
            // InfiniBand 1.2.1, 10.3.1.7: the receive queue works on. If the device has stopped that too, receives
            // come back flushed.
            QpState::ReadyToSend | QpState::Draining | QpState::SendQueueError if sends_only => {
                QpState::SendQueueError
            }
            _ => QpState::Error,
        });
    }

    /// Whether its send queue can work again after a failure (InfiniBand 1.2.1, 10.3.1.7).
    pub(crate) fn recovers(&self) -> bool {
        !matches!(self.config.kind, QpKind::Rc | QpKind::XrcSend)
    }

    #[cold]
    fn wrong_state(&self, op: &'static str, hint: &str) -> Error {
        Error::refused(op, ErrorKind::WrongState, format!("{hint} (state {:?})", self.state))
    }

    /// What may be posted in the right state: `CAN_` bits.
    pub(crate) fn ever(&self) -> u8 {
        self.ever
    }

    /// State as this crate knows it.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The device's number of it, for the connection manager. Reused by devices: use [`serial`](Self::serial) as a key.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the QP is alive. Only this field is read: the counters beside it change in other threads.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// A number no other queue pair of this process has or will have; at least 1.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Depths as asked for.
    pub fn config(&self) -> &QpConfig {
        &self.config
    }

    /// Longest inline send, bytes, as granted.
    pub fn max_inline(&self) -> usize {
        self.max_inline
    }

    /// Sends and receives posted and not yet redeemed.
    pub fn in_flight(&self) -> (usize, usize) {
        let (sends, recvs) = self.flight.used();
        (sends as usize, recvs as usize)
    }

    /// Sends and receives that can still be posted.
    pub fn room(&self) -> (usize, usize) {
        let (sends, recvs) = self.flight.room();
        (sends as usize, recvs as usize)
    }

    /// The context it was made on.
    pub fn context(&self) -> &Context {
        &self.pd.ctx
    }

    /// Whether both its queues complete into `cq`.
    pub fn is_on(&self, cq: &CqRef) -> bool {
        Arc::ptr_eq(&self.send_cq, &cq.0) && Arc::ptr_eq(&self.recv_cq, &cq.0)
    }

    /// The raw queue pair, valid as long as `self` lives. Posting to it by other means needs request ids from here;
    /// destroying it is not allowed.
    pub fn as_raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    /// Destroys the queue pair and gives back every slot it still had. What it had of other kinds is dropped.
    ///
    /// # Errors
    /// The errno of ibv_destroy_qp(3); queue pair and slots are leaked then, because the device may still use them.
    pub fn close(self) -> Result<Vec<Slot>> {
        Ok(self.close_payloads()?.into_iter().filter_map(|p| p.into_slot().ok()).collect())
    }

    /// Destroys the queue pair and gives back everything it still had.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn close_payloads(self) -> Result<Vec<Payload>> {
        let mut me = ManuallyDrop::new(self);
        me.destroy()?;
        // SAFETY: destroyed, and `me` is never dropped, so this happens once.
        Ok(unsafe { me.take_flight() }.into_payloads().collect())
    }

    fn destroy(&mut self) -> Result<()> {
        self.leave_groups();
        for window in std::mem::take(&mut self.windows) {
            if let Some(window) = window.upgrade() {
                window.end_with(self.serial, self.pd.ctx.0.verbs);
            }
        }
        #[cfg(feature = "tokio")]
        if let Some(holds) = self.holds.take() {
            holds.wait();
        }
        let number = self.qp_num();
        // SAFETY: the QP is alive; it is not used again after this, whatever the outcome.
        let rc = unsafe { (self.pd.ctx.0.verbs.destroy_qp)(self.raw.as_ptr()) };
        Error::check("ibv_destroy_qp", rc)?;
        let (sends, recvs) = self.flight.used();
        self.send_cq.bury(self.serial, self.config.send_depth, sends);
        self.recv_cq.bury(self.serial, self.config.receives(), recvs);
        if self.srq.is_some() {
            self.recv_cq.haunt(number);
        }
        Ok(())
    }

    /// The shared receive queue it receives from.
    pub fn srq(&self) -> Option<&SrqRef> {
        self.srq.as_ref()
    }

    /// Most pieces that one read can scatter to.
    pub(crate) fn read_pieces(&self) -> u32 {
        // An iWARP read request names one sink (RFC 5040 4.4); siw drops the others without a word.
        let device = match self.context().transport().is_iwarp() {
            true => 1,
            false => self.context().attr().max_sge_rd.max(1),
        };
        device.min(self.config.max_send_sge)
    }

    /// Takes the table out and lets go of PD and CQs.
    ///
    /// # Safety
    /// `destroy` succeeded; called once, and `self` is not used after.
    unsafe fn take_flight(&mut self) -> InFlight {
        // SAFETY: the caller promises that each is taken once.
        unsafe {
            let flight = ManuallyDrop::take(&mut self.flight);
            ManuallyDrop::drop(&mut self.srq);
            ManuallyDrop::drop(&mut self.send_cq);
            ManuallyDrop::drop(&mut self.recv_cq);
            ManuallyDrop::drop(&mut self.made_in);
            ManuallyDrop::drop(&mut self.pd);
            flight
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.destroy().is_ok() {
            // SAFETY: destroyed, and Drop runs once. On failure everything stays where it is: leaked.
            drop(unsafe { self.take_flight() });
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("serial", &self.serial)
            .field("qp_num", &self.qp_num())
            .field("state", &self.state)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Hands checked attributes to the device.
///
/// # Safety
/// `qp` is a live queue pair of `ctx`.
pub(crate) unsafe fn modify_raw(ctx: &Context, qp: NonNull<ibv_qp>, attr: &QpAttr) -> Result<()> {
    let mut raw = attr.raw;
    // SAFETY: the caller passes a live QP; the attributes are a complete struct, which is not kept.
    let rc = unsafe { (ctx.0.verbs.modify_qp)(qp.as_ptr(), &mut raw, attr.mask) };
    Error::check("ibv_modify_qp", rc).map_err(|e| match e.errno() {
        libc::EINVAL => e.with_hint(
            "the attributes fit the state, so a value is out of range (port, GID index, MTU, depth of reads), or the \
             device is in another state: see QueuePair::query",
        ),
        libc::EPERM => e.with_hint("a Q_Key with its top bit set needs CAP_NET_RAW"),
        _ if attr.has(ibv_qp_attr_mask::IBV_QP_AV) => ah::explain(e),
        _ => e,
    })
}
