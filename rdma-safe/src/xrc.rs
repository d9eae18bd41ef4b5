//! Extended reliable connections: many senders, one target, and shared receive queues that each message names.
//!
//! A sender is a [`QueuePair`](crate::QueuePair) of kind [`XrcSend`](crate::QpKind::XrcSend). Its peer is an
//! [`XrcTarget`], which has no queues: what arrives there goes to the shared receive queue of the target's
//! [`XrcDomain`] whose number the message carries.
//!
//! No software device has them: tested against the fake provider only (`tests/kinds.rs`, `tests/kinds_data.rs`). On siw and
//! rxe opening a domain fails with [`Unsupported`](crate::ErrorKind::Unsupported).

use crate::context::Context;
use crate::cq::CqRef;
use crate::error::{Error, ErrorKind, Result};
use crate::manual::{InitAttr, RtrAttr, RtsAttr};
use crate::pd::ProtectionDomain;
use crate::qp::modify_raw;
use crate::qp_attr::{QpAttr, QpState};
use crate::qp_create::next_serial;
use crate::qp_query::{QpQuery, query_raw};
use crate::srq::SharedReceiveQueue;
use crate::states::{self, Row};
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::Arc;

pub(crate) struct XrcdInner {
    pub(crate) raw: NonNull<ibv_xrcd>,
    pub(crate) ctx: ManuallyDrop<Context>,
}

// SAFETY: libibverbs serialises calls on a domain, which has no state of its own here.
unsafe impl Send for XrcdInner {}
// SAFETY: as above.
unsafe impl Sync for XrcdInner {}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        // SAFETY: every target and shared receive queue holds the domain through an Arc, so none is left.
        let rc = unsafe { (self.ctx.0.verbs.close_xrcd)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here. Otherwise the kernel still has the domain and the context stays open with it.
            unsafe { ManuallyDrop::drop(&mut self.ctx) }
        }
    }
}

/// What targets and the shared receive queues behind them have in common. Cheap to clone; closed when nothing made in it
/// is left.
///
/// Made by [`XrcDomain::open`](crate::XrcDomain::open) and [`XrcDomain::open_shared`](crate::XrcDomain::open_shared).
#[derive(Clone)]
pub struct XrcDomain(pub(crate) Arc<XrcdInner>);

static_assertions::assert_impl_all!(XrcDomain: Clone, Send, Sync);

impl XrcDomain {
    /// Opens a domain of this process alone (ibv_open_xrcd(3)).
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the device has no XRC, else the errno of the call.
    pub fn open(ctx: &Context) -> Result<XrcDomain> {
        XrcDomain::with(ctx, -1)
    }

    /// Opens the domain that belongs to a file, and makes it if nobody has yet: all processes that open it with the same
    /// file on the same device share it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_shared(ctx: &Context, file: &impl AsFd) -> Result<XrcDomain> {
        XrcDomain::with(ctx, file.as_fd().as_raw_fd())
    }

    fn with(ctx: &Context, fd: i32) -> Result<XrcDomain> {
        const OP: &str = "ibv_open_xrcd";
        if ctx.transport().is_iwarp() {
            let why = "iWARP has no extended reliable connections";
            return Err(Error::refused(OP, ErrorKind::Unsupported, why));
        }
        let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
            | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
        let mut attr = ibv_xrcd_init_attr { comp_mask: mask, fd, oflags: libc::O_CREAT };
        // SAFETY: the context is alive, the attributes are complete and not kept.
        let raw = unsafe { (ctx.0.verbs.open_xrcd)(ctx.as_raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let e = Error::last(OP);
            match e.kind() {
                ErrorKind::Unsupported => e.with_hint("the device has no XRC"),
                _ => e,
            }
        })?;
        Ok(XrcDomain(Arc::new(XrcdInner { raw, ctx: ManuallyDrop::new(ctx.clone()) })))
    }

    /// The context it was opened on.
    pub fn context(&self) -> &Context {
        &self.0.ctx
    }

    /// Creates a target in state RESET (ibv_create_qp_ex(3)).
    ///
    /// # Errors
    /// The errno of the call.
    pub fn create_target(&self) -> Result<XrcTarget> {
        XrcTarget::new(self)
    }

    /// Creates a shared receive queue of the domain, of `depth` receives of one slot each in `pd`, whose completions go to
    /// `cq` (ibv_create_srq_ex(3)). Senders name it by its [number](SharedReceiveQueue::xrc_number).
    ///
    /// # Errors
    /// [`WrongContext`](ErrorKind::WrongContext) for objects of other contexts, [`CqDepth`](ErrorKind::CqDepth) when `cq`
    /// has no room for `depth` completions, [`InvalidArgument`](ErrorKind::InvalidArgument) for a depth of 0 or above the
    /// device's limit, else the errno of the call.
    pub fn create_srq(
        &self,
        pd: &ProtectionDomain,
        cq: &CqRef,
        depth: u32,
    ) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new_xrc(pd, self, &cq.0, depth)
    }

    /// The raw domain, valid as long as `self` or a clone lives. It must not be closed.
    pub fn as_raw(&self) -> *mut ibv_xrcd {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XrcDomain({})", self.0.ctx.name())
    }
}

/// The receiving half of an extended reliable connection. It has no queues: nothing is posted to it.
///
/// Made by [`XrcDomain::create_target`](crate::XrcDomain::create_target).
///
/// Destroyed when dropped; senders connected to it find no peer then.
pub struct XrcTarget {
    raw: NonNull<ibv_qp>,
    state: QpState,
    serial: u64,
    domain: ManuallyDrop<XrcDomain>,
}

// SAFETY: sole owner of the ibv_qp, whose calls are thread safe.
unsafe impl Send for XrcTarget {}

static_assertions::assert_impl_all!(XrcTarget: Send);

impl XrcTarget {
    fn new(domain: &XrcDomain) -> Result<XrcTarget> {
        let serial = next_serial()?;
        let ctx = domain.context();
        let mut attr = ibv_qp_init_attr_ex {
            // Only a number: it names the target in asynchronous events.
            qp_context: without_provenance_mut(serial as usize),
            qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
            xrcd: domain.as_raw(),
            ..ibv_qp_init_attr_ex::default()
        };
        // SAFETY: context and domain are alive and belong together; the attributes are as the mask says.
        let raw = unsafe { (ctx.0.verbs.create_qp_ex)(ctx.as_raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_qp_ex"))?;
        let domain = ManuallyDrop::new(domain.clone());
        Ok(XrcTarget { raw, state: QpState::Reset, serial, domain })
    }

    /// Changes attributes (ibv_modify_qp(3)), checked as those of a queue pair
    /// ([`QueuePair::modify`](crate::QueuePair::modify)).
    ///
    /// # Errors
    /// As there.
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        let ctx = self.domain.context();
        states::check(Row::XrcTarget, ctx.transport(), self.state, attr)?;
        // SAFETY: the target is alive and of this context.
        unsafe { modify_raw(ctx, self.raw, attr) }?;
        self.state = attr.state().unwrap_or(self.state);
        Ok(())
    }

    /// To INIT.
    ///
    /// # Errors
    /// As [`ManualQp::init`](crate::ManualQp::init).
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        let ports = self.domain.context().attr().port_count;
        self.modify(&attr.build(Row::XrcTarget, ports)?)
    }

    /// To RTR: messages are taken from here on, so the shared receive queues should have receives.
    ///
    /// # Errors
    /// As [`ManualQp::ready_to_receive`](crate::ManualQp::ready_to_receive).
    pub fn ready_to_receive(&mut self, attr: &RtrAttr) -> Result<()> {
        let attr = attr.build(Row::XrcTarget, self.domain.context())?;
        self.modify(&attr)
    }

    /// To RTS, which a target needs only for path migration.
    ///
    /// # Errors
    /// As [`ManualQp::ready_to_send`](crate::ManualQp::ready_to_send).
    pub fn ready_to_send(&mut self, attr: &RtsAttr) -> Result<()> {
        self.modify(&attr.build(Row::XrcTarget)?)
    }

    /// What the device says (ibv_query_qp(3)).
    ///
    /// # Errors
    /// The errno of the call.
    pub fn query(&self) -> Result<QpQuery> {
        // SAFETY: the target is alive and of this context.
        unsafe { query_raw(self.domain.context(), self.raw.as_ptr()) }
    }

    /// State as this crate knows it.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The device's number of it, for the sender.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the target is alive. Only this field is read: the counters beside it change in other threads.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Names it in asynchronous events; no queue pair of this process has the same.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Destroys it.
    ///
    /// # Errors
    /// The errno of ibv_destroy_qp(3); the domain stays open then.
    pub fn close(self) -> Result<()> {
        ManuallyDrop::new(self).destroy()
    }

    fn destroy(&mut self) -> Result<()> {
        // SAFETY: the target is alive; it is not used again after this, whatever the outcome.
        let rc = unsafe { (self.domain.0.ctx.0.verbs.destroy_qp)(self.raw.as_ptr()) };
        Error::check("ibv_destroy_qp", rc)?;
        // SAFETY: called once, by close or by Drop, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.domain) };
        Ok(())
    }
}

impl Drop for XrcTarget {
    fn drop(&mut self) {
        // Where it fails, the domain stays.
        let _ = self.destroy();
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget")
            .field("serial", &self.serial)
            .field("qp_num", &self.qp_num())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
