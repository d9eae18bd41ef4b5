//! Shared receive queues: one pool of receives for many queue pairs.

use crate::caps::Caps;
use crate::cq::CqInner;
use crate::error::{Error, ErrorKind, Result, errno_of_post};
use crate::payload::Payload;
use crate::pd::{PdInner, ProtectionDomain};
use crate::post::{BatchError, PostError, ReceiveQueue, Why, post_all, received, settle};
use crate::qp_attr::QpKind;
use crate::qp_create::next_serial;
use crate::ring::{DEPTH_MAX, InFlight};
use crate::slot::{Slot, Wire};
use crate::wc::{Done, Wc};
use crate::xrc::XrcDomain;
use rdma_sys::*;
use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

struct SrqInner {
    raw: NonNull<ibv_srq>,
    serial: u64,
    depth: u32,
    pd: ManuallyDrop<Arc<PdInner>>,
    /// What makes it one of an XRC domain: the domain, and the number by which senders name it.
    xrc: ManuallyDrop<Option<(XrcDomain, u32)>>,
    /// Whether its queue pairs take datagrams; the first one that could be made decides.
    datagrams: OnceLock<bool>,
    /// Locked while a queue pair is made on it.
    joining: Mutex<()>,
    /// Completion queues whose depth it has booked.
    booked: Mutex<Vec<Arc<CqInner>>>,
    /// What it still owned when its handle was dropped: queue pairs may still receive into it.
    left: Mutex<Option<InFlight>>,
}

// SAFETY: libibverbs serialises calls on a shared receive queue; our own state is behind mutexes.
unsafe impl Send for SrqInner {}
// SAFETY: as above.
unsafe impl Sync for SrqInner {}

impl SrqInner {
    /// Destroys it. Only when no queue pair is on it.
    fn destroy(&self) -> Result<()> {
        // SAFETY: every queue pair on it holds an Arc, so none is left; it is not used again, whatever the outcome.
        let rc = unsafe { (self.pd.ctx.0.verbs.destroy_srq)(self.raw.as_ptr()) };
        Error::check("ibv_destroy_srq", rc)?;
        let mut booked = self.booked.lock().unwrap_or_else(PoisonError::into_inner);
        for cq in booked.drain(..) {
            cq.bury(self.serial, self.depth, self.depth);
        }
        Ok(())
    }
}

impl SrqInner {
    /// Lets go of what it stands on.
    ///
    /// # Safety
    /// Destroyed; called once.
    unsafe fn let_go(&mut self) {
        // SAFETY: the caller promises that each is dropped once.
        unsafe {
            ManuallyDrop::drop(&mut self.xrc);
            ManuallyDrop::drop(&mut self.pd);
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // `close` has taken what was left and destroyed it.
        let Some(left) = left else { return };
        match self.destroy() {
            // SAFETY: dropped once, here.
            Ok(()) => unsafe { self.let_go() },
            // The device may still write: everything stays where it is.
            Err(_) => std::mem::forget(left),
        }
    }
}

/// Names a shared receive queue for making queue pairs on it, from any thread. The queue is destroyed when its handle,
/// all names and all queue pairs are gone.
///
/// From [`SharedReceiveQueue::srq_ref`](crate::SharedReceiveQueue::srq_ref).
#[derive(Clone)]
pub struct SrqRef(Arc<SrqInner>);

static_assertions::assert_impl_all!(SrqRef: Clone, Send, Sync);

impl SrqRef {
    /// A number no other shared receive queue or queue pair of this process has or will have.
    pub fn serial(&self) -> u64 {
        self.0.serial
    }

    /// Whether what it receives has 40 bytes in front.
    fn takes_datagrams(&self) -> bool {
        self.0.datagrams.get() == Some(&true)
    }

    pub(crate) fn as_raw(&self) -> *mut ibv_srq {
        self.0.raw.as_ptr()
    }

    /// Lets a queue pair of this kind be made on it, and books its completions on the queue that will use.
    pub(crate) fn join(
        &self,
        pd: &ProtectionDomain,
        cq: &Arc<CqInner>,
        kind: QpKind,
    ) -> Result<Joining<'_>> {
        let datagrams = kind == QpKind::Ud;
        let one = self.0.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let why = if self.0.xrc.is_some() {
            "messages reach the queue of an XRC domain through its targets only"
        } else if self.0.datagrams.get().is_some_and(|d| *d != datagrams) {
            "a shared receive queue takes datagrams or connections, not both: only one has 40 bytes in front"
        } else {
            self.book(pd, cq)?;
            return Ok(Joining { datagrams, queue: &self.0.datagrams, _one: one });
        };
        Err(Error::refused("create_qp", ErrorKind::InvalidArgument, why))
    }

    fn book(&self, pd: &ProtectionDomain, cq: &Arc<CqInner>) -> Result<()> {
        if !Arc::ptr_eq(&self.0.pd, pd.root()) {
            return Err(Error::refused(
                "create_qp",
                ErrorKind::WrongContext,
                "the shared receive queue belongs to another protection domain",
            ));
        }
        let mut booked = self.0.booked.lock().unwrap_or_else(PoisonError::into_inner);
        if !booked.iter().any(|b| Arc::ptr_eq(b, cq)) {
            cq.reserve(self.0.depth)?;
            cq.born(self.0.serial);
            booked.push(Arc::clone(cq));
        }
        Ok(())
    }
}

/// A queue pair is being made on a shared receive queue; no other meanwhile.
pub(crate) struct Joining<'s> {
    datagrams: bool,
    queue: &'s OnceLock<bool>,
    _one: MutexGuard<'s, ()>,
}

impl Joining<'_> {
    /// It was made.
    pub(crate) fn done(self) {
        self.queue.get_or_init(|| self.datagrams);
    }
}

impl fmt::Debug for SrqRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SrqRef({}, depth {})", self.0.serial, self.0.depth)
    }
}

/// A shared receive queue and the right to post to it. `Send`.
///
/// Made by [`ProtectionDomain::create_srq`](crate::ProtectionDomain::create_srq) and, for XRC,
/// [`XrcDomain::create_srq`](crate::XrcDomain::create_srq).
///
/// A slot that a failed queue pair had taken and not completed stays with the queue until that is closed: devices need
/// not tell.
pub struct SharedReceiveQueue {
    inner: ManuallyDrop<SrqRef>,
    flight: ManuallyDrop<InFlight>,
    post_op: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
    failed: bool,
}

static_assertions::assert_impl_all!(SharedReceiveQueue: Send);

unsafe extern "C" fn no_post(
    _: *mut ibv_srq,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> i32 {
    libc::EOPNOTSUPP
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, depth: u32) -> Result<SharedReceiveQueue> {
        let refused = |kind, why: String| Err(Error::refused("create_srq", kind, why));
        let ctx = pd.context();
        if !ctx.caps().contains(Caps::SRQ) {
            return refused(
                ErrorKind::Unsupported,
                "this device has no shared receive queues".into(),
            );
        }
        let max = ctx.attr().max_srq_wr.min(DEPTH_MAX);
        if !(1..=max).contains(&depth) {
            let why = format!("a depth of {depth} is not between 1 and this device's {max}");
            return refused(ErrorKind::InvalidArgument, why);
        }
        let serial = next_serial()?;
        let mut attr = ibv_srq_init_attr {
            // Only a number: it names the queue in asynchronous events.
            srq_context: without_provenance_mut(serial as usize),
            attr: ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the PD is alive, the attributes are complete.
        let raw = unsafe { (ctx.0.verbs.create_srq)(pd.root().raw.as_ptr(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_srq"))?;
        Ok(SharedReceiveQueue::wrap(pd, raw, serial, depth, None))
    }

    fn wrap(
        pd: &ProtectionDomain,
        raw: NonNull<ibv_srq>,
        serial: u64,
        depth: u32,
        xrc: Option<(XrcDomain, u32)>,
    ) -> SharedReceiveQueue {
        // SAFETY: the context is open.
        let post_op = unsafe { (*pd.context().as_raw()).ops.post_srq_recv }.unwrap_or(no_post);
        let inner = SrqInner {
            raw,
            serial,
            depth,
            pd: ManuallyDrop::new(Arc::clone(pd.root())),
            xrc: ManuallyDrop::new(xrc),
            datagrams: OnceLock::new(),
            joining: Mutex::default(),
            booked: Mutex::default(),
            left: Mutex::default(),
        };
        SharedReceiveQueue {
            inner: ManuallyDrop::new(SrqRef(Arc::new(inner))),
            flight: ManuallyDrop::new(InFlight::shared(serial, depth)),
            post_op,
            failed: false,
        }
    }

    /// One of an XRC domain, completing into `cq`.
    pub(crate) fn new_xrc(
        pd: &ProtectionDomain,
        domain: &XrcDomain,
        cq: &Arc<CqInner>,
        depth: u32,
    ) -> Result<SharedReceiveQueue> {
        const OP: &str = "ibv_create_srq_ex";
        let ctx = pd.context();
        if !domain.context().is_same(ctx) || !cq.ctx.is_same(ctx) {
            let why =
                "protection domain, XRC domain and completion queue belong to different contexts";
            return Err(Error::refused(OP, ErrorKind::WrongContext, why));
        }
        let max = ctx.attr().max_srq_wr.min(DEPTH_MAX);
        if !(1..=max).contains(&depth) {
            let why = format!("a depth of {depth} is not between 1 and this device's {max}");
            return Err(Error::refused(OP, ErrorKind::InvalidArgument, why));
        }
        let serial = next_serial()?;
        use ibv_srq_init_attr_mask as m;
        let mut attr = ibv_srq_init_attr_ex {
            // Only a number: it names the queue in asynchronous events.
            srq_context: without_provenance_mut(serial as usize),
            attr: ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 },
            comp_mask: m::IBV_SRQ_INIT_ATTR_TYPE.0
                | m::IBV_SRQ_INIT_ATTR_PD.0
                | m::IBV_SRQ_INIT_ATTR_XRCD.0
                | m::IBV_SRQ_INIT_ATTR_CQ.0,
            srq_type: ibv_srq_type::IBV_SRQT_XRC,
            pd: pd.root().raw.as_ptr(),
            xrcd: domain.as_raw(),
            cq: cq.raw.as_ptr(),
            ..ibv_srq_init_attr_ex::default()
        };
        cq.reserve(depth)?;
        // SAFETY: all objects are alive and of one context; the attributes are as the mask says.
        let raw = unsafe { (ctx.0.verbs.create_srq_ex)(ctx.as_raw(), &mut attr) };
        let Some(raw) = NonNull::new(raw) else {
            let e = Error::last(OP);
            cq.unreserve(depth);
            return Err(e);
        };
        cq.born(serial);
        let mut number = 0;
        // SAFETY: the queue is alive, the number writable.
        let rc = unsafe { (ctx.0.verbs.get_srq_num)(raw.as_ptr(), &mut number) };
        let srq = SharedReceiveQueue::wrap(pd, raw, serial, depth, Some((domain.clone(), number)));
        let mut booked = srq.inner.0.booked.lock().unwrap_or_else(PoisonError::into_inner);
        booked.push(Arc::clone(cq));
        drop(booked);
        // On failure its drop destroys it.
        Error::check("ibv_get_srq_num", rc).map(|()| srq)
    }

    /// The number by which senders name it ([`Request::to_srq`](crate::Request::to_srq)); `None` outside XRC.
    pub fn xrc_number(&self) -> Option<u32> {
        self.inner.0.xrc.as_ref().map(|(_, number)| *number)
    }

    /// A handle to make queue pairs on it ([`ProtectionDomain::create_qp_on_srq`]).
    pub fn srq_ref(&self) -> SrqRef {
        SrqRef::clone(&self.inner)
    }

    /// A number no other shared receive queue or queue pair of this process has or will have; it names the queue in
    /// events and completions.
    pub fn serial(&self) -> u64 {
        self.inner.serial()
    }

    /// Receives posted and not yet redeemed. Walks the queue.
    pub fn in_flight(&self) -> usize {
        self.flight.used().1 as usize
    }

    /// Receives that can still be posted. Walks the queue.
    pub fn room(&self) -> usize {
        self.flight.room().1 as usize
    }

    /// Posts a receive into the whole slot (ibv_post_srq_recv(3)). No state is needed.
    ///
    /// # Errors
    /// [`PostError`] with the slot: [`Why::Full`], [`Why::WrongDomain`], [`Why::Broken`]; without when the device
    /// failed, which keeps the slot until the queue is closed, and takes no more.
    #[inline]
    pub fn post_recv(&mut self, slot: Slot) -> std::result::Result<(), PostError> {
        let Wire { addr, capacity: length, lkey, .. } = *slot.wire();
        let wr_id = self.put(slot)?;
        let mut sge = ibv_sge { addr, length, lkey };
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the queue is alive; the slot is in the table, from where only the completion or the destruction takes
        // it.
        match unsafe { (self.post_op)(self.inner.as_raw(), &mut wr, &mut bad) } {
            0 if bad.is_null() => Ok(()),
            rc => Err(self.failed(rc)),
        }
    }

    /// Posts receives in order, with one call for up to 16 of them, and returns how many. Allocates nothing.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv_batch`](crate::QueuePair::post_recv_batch).
    pub fn post_recv_batch(
        &mut self,
        slots: impl IntoIterator<Item = Slot>,
    ) -> std::result::Result<usize, BatchError> {
        post_all(self, slots)
    }

    /// Redeems a completion, once. `None` when it is not this queue's, stale, or spent; a live one keeps its worth then.
    ///
    /// [`Extra::qp_num`](crate::Extra::qp_num) tells over which queue pair it came.
    #[inline]
    pub fn complete(&mut self, wc: &mut Wc) -> Option<Done> {
        let id = wc.0.wr_id;
        let payload = self.flight.redeem(id)?;
        let mut done = settle(&self.flight, id, payload, wc, self.inner.takes_datagrams());
        if done.status.is_ok() && done.op == crate::Op::Recv {
            done.byte_len = done.slot.as_ref().map_or(0, |slot| received(slot, wc));
        }
        wc.spend();
        Some(done)
    }

    /// Asks for one event ([`SrqEvent::LimitReached`](crate::SrqEvent::LimitReached)) when fewer than `limit` receives
    /// are left (ibv_modify_srq(3)). One event for each call.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a limit of 0 or more than the depth, else the errno of the
    /// call.
    pub fn arm_limit(&mut self, limit: u32) -> Result<()> {
        if !(1..=self.inner.0.depth).contains(&limit) {
            return Err(Error::refused(
                "ibv_modify_srq",
                ErrorKind::InvalidArgument,
                format!("a limit of {limit} for a queue of {}", self.inner.0.depth),
            ));
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
        let modify = self.inner.0.pd.ctx.0.verbs.modify_srq;
        // SAFETY: the queue is alive, the attributes are complete.
        Error::check("ibv_modify_srq", unsafe { modify(self.inner.as_raw(), &mut attr, mask) })
    }

    /// Destroys the queue and gives back every slot it still had.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) and itself while a queue pair or another handle is on it. When the destroy fails, queue
    /// and slots are leaked.
    #[allow(clippy::result_large_err)] // the queue must come back, and this is not the message path
    pub fn close(self) -> std::result::Result<Vec<Slot>, (Option<SharedReceiveQueue>, Error)> {
        let mut me = ManuallyDrop::new(self);
        if Arc::get_mut(&mut me.inner.0).is_none() {
            let why = "a queue pair or a handle is still on it";
            let e = Error::refused("ibv_destroy_srq", ErrorKind::Busy, why);
            return Err((Some(ManuallyDrop::into_inner(me)), e));
        }
        if let Err(e) = me.inner.0.destroy() {
            return Err((None, e));
        }
        // SAFETY: `me` is never dropped, so each is taken once; the queue is destroyed, and its Drop finds nothing left.
        unsafe {
            let flight = ManuallyDrop::take(&mut me.flight);
            let mut inner = ManuallyDrop::take(&mut me.inner);
            if let Some(inner) = Arc::get_mut(&mut inner.0) {
                inner.let_go();
            }
            Ok(flight.into_payloads().filter_map(|p: Payload| p.into_slot().ok()).collect())
        }
    }
}

impl ReceiveQueue for SharedReceiveQueue {
    fn flight(&mut self) -> &mut InFlight {
        &mut self.flight
    }

    #[inline(always)]
    fn put(&mut self, slot: Slot) -> std::result::Result<u64, PostError> {
        if self.failed || !slot.is_of(Arc::as_ptr(&self.inner.0.pd)) {
            let why = if self.failed { Why::Broken } else { Why::WrongDomain };
            return Err(PostError::of_slot(why, Some(slot)));
        }
        let put = self.flight.put_recv(slot.into());
        put.map_err(|payload| PostError::of(Why::Full, Some(payload)))
    }

    unsafe fn hand_over(&mut self, first: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
        // SAFETY: the queue is alive; the caller vouches for the list.
        unsafe { (self.post_op)(self.inner.as_raw(), first, bad) }
    }

    #[cold]
    fn failed(&mut self, rc: c_int) -> PostError {
        self.failed = true;
        PostError::of_slot(Why::Device(errno_of_post(rc)), None)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: dropped once; what is in flight goes to the inner part, which frees it after the destruction.
        unsafe {
            let flight = ManuallyDrop::take(&mut self.flight);
            *self.inner.0.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(flight);
            ManuallyDrop::drop(&mut self.inner);
        }
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceiveQueue({:?}, {} in flight)", *self.inner, self.in_flight())
    }
}
