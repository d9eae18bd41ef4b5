//! Reliable connected queue pairs: posting moves a slot in, a completion or the destruction gives it back.
//!
//! What providers do wrong and how it is absorbed here:
//! * A failed post may leave the request in the ring (siw, rxe): the slot stays, the queue pair takes no more posts.
//! * A post before the connection stands wedges siw's send queue: refused by the state kept here.
//! * A post on a failed siw queue pair returns 0 and never completes: slots come back from the destruction, which is
//!   the only point at which no provider touches them any more. No marker request is used for draining.
//! * Lists of requests may fail with a return of 0 (siw): one request per call.
//! * A return may be negative, positive or -1 with errno: all are understood.
//! * A queue of depth 0 fails or divides by zero: refused. Empty receives cannot be made, because slots are not empty.
//! * siw's doorbell may fail with ENOTCONN while the connection is being closed: as any failed post.
//! * A destroy that fails (EIO after hot removal): everything the queue pair owns is leaked, nothing is freed.
//!
//! In a child after fork(2) the queues are shared with the parent: do nothing but exec or _exit there.

use crate::cq::{CqInner, CqRef};
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::pd::{PdInner, ProtectionDomain};
use crate::post::{PostError, Why};
use crate::qp_attr::{QpAttr, QpConfig, QpState, SendFlags};
use crate::ring::{DEPTH_MAX, Kind, Ring, SERIAL_MAX, SendRing, kind_of};
use crate::slot::Slot;
use crate::wc::{Done, Op, Wc, WcStatus};
use crate::{Caps, Context};
use rdma_sys::*;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sends up to this size are always inline where the queue pair can: siw's kernel thread may not touch smaller user
/// buffers by itself (it copies from user addresses), and everywhere else it saves a DMA.
const SMALL: u32 = 32;
/// From this size on siw sends unsignalled requests zero-copy and reports nothing when it is done with the pages.
const SIW_ZERO_COPY: usize = 4096;

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// A reliable connected queue pair. `Send`: it may be used from any one thread at a time.
///
/// Dropping it destroys it and frees its slots; [`close`](Self::close) gives them back instead. Both may block while
/// the connection manager is in a blocking call for it (siw's `rdma_connect`).
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    state: QpState,
    small: usize,
    max_inline: usize,
    signal_from: usize,
    pd: ManuallyDrop<Arc<PdInner>>,
    /// Zeroed once, so that a post writes only the fields a SEND uses.
    template: ibv_send_wr,
    sends: ManuallyDrop<SendRing>,
    recvs: ManuallyDrop<Ring>,
    serial: u64,
    config: QpConfig,
    send_cq: ManuallyDrop<Arc<CqInner>>,
    recv_cq: ManuallyDrop<Arc<CqInner>>,
}

// SAFETY: sole owner of the ibv_qp, whose calls are thread safe; the pointers in the template are dangling between
// calls and never read.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        send_cq: &CqRef,
        recv_cq: &CqRef,
        config: &QpConfig,
    ) -> Result<QueuePair> {
        let ctx = pd.context();
        check(ctx, send_cq, recv_cq, config)?;
        let serial = next_serial(&NEXT_SERIAL)?;
        let (send_cq, recv_cq) = (&send_cq.0, &recv_cq.0);
        send_cq.reserve(config.send_depth)?;
        recv_cq.reserve(config.recv_depth).inspect_err(|_| send_cq.unreserve(config.send_depth))?;
        let mut attr = init_attr(send_cq, recv_cq, config, serial);
        // SAFETY: PD and CQs are alive and of one context; the attributes are complete.
        let raw = unsafe { (ctx.0.verbs.create_qp)(pd.as_raw(), &mut attr) };
        let Some(raw) = NonNull::new(raw) else {
            let e = Error::last("ibv_create_qp");
            send_cq.unreserve(config.send_depth);
            recv_cq.unreserve(config.recv_depth);
            return Err(explain_create(e, config));
        };
        send_cq.born(serial);
        recv_cq.born(serial);
        let max_inline = attr.cap.max_inline_data;
        Ok(QueuePair {
            raw,
            state: QpState::Reset,
            small: SMALL.min(max_inline) as usize,
            max_inline: max_inline as usize,
            signal_from: match ctx.caps().contains(Caps::SIGNAL_LARGE_SENDS) {
                true => SIW_ZERO_COPY,
                false => usize::MAX,
            },
            pd: ManuallyDrop::new(Arc::clone(&pd.0)),
            template: ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_SEND, ..ibv_send_wr::default() },
            sends: ManuallyDrop::new(SendRing::new(serial, config.send_depth)),
            recvs: ManuallyDrop::new(Ring::new(Kind::Recv, serial, config.recv_depth)),
            serial,
            config: *config,
            send_cq: ManuallyDrop::new(Arc::clone(send_cq)),
            recv_cq: ManuallyDrop::new(Arc::clone(recv_cq)),
        })
    }

    /// Posts a receive into the whole slot. The queue pair must be at least INIT.
    ///
    /// # Errors
    /// [`PostError`] with the slot when it was refused; without when the device failed, which keeps the slot until the
    /// queue pair is closed.
    #[inline]
    pub fn post_recv(&mut self, slot: Slot) -> std::result::Result<(), PostError> {
        let (addr, length, lkey) = slot.wire();
        if !matches!(self.state, QpState::Init | QpState::ReadyToReceive | QpState::ReadyToSend)
            || !slot.is_of(Arc::as_ptr(&self.pd))
        {
            return Err(self.refused(Some(slot)));
        }
        let id = match self.recvs.put(Some(slot)) {
            Ok(id) => id,
            Err(slot) => return Err(PostError { why: Why::Full, slot }),
        };
        let mut sge = ibv_sge { addr, length, lkey };
        let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the QP is alive and has a receive queue; the slot is in the table, from where only the completion or
        // the destruction takes it, so its memory stays registered and untouched until then.
        match unsafe { ibv_post_recv(self.raw.as_ptr(), &mut wr, &mut bad) } {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    /// Sends the first `len` bytes of the slot. The queue pair must be connected.
    ///
    /// Up to 32 bytes go inline by themselves. With `len` 0 the message is empty.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv); also [`Why::TooLong`].
    #[inline]
    pub fn post_send(
        &mut self,
        slot: Slot,
        len: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        let (addr, capacity, lkey) = slot.wire();
        if self.state != QpState::ReadyToSend || !slot.is_of(Arc::as_ptr(&self.pd)) {
            return Err(self.refused(Some(slot)));
        }
        let limit = match flags.contains(SendFlags::INLINE) {
            true => self.max_inline.min(capacity as usize),
            false => capacity as usize,
        };
        if len > limit {
            return Err(PostError { why: Why::TooLong, slot: Some(slot) });
        }
        let signalled = self.signals(len, flags);
        let id = match self.sends.put(Some(slot), signalled) {
            Ok(id) => id,
            Err(slot) => return Err(PostError { why: Why::Full, slot }),
        };
        // SAFETY: the slot is in the table, from where only its completion (or a later one's) or the destruction takes
        // it; `len` is within it, and below 2^32 as its capacity is.
        match unsafe { self.send(id, addr, len as u32, lkey, flags, signalled) } {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    /// Sends a copy of `data`, at most [`max_inline`](Self::max_inline) bytes. No slot is needed; it still occupies an
    /// entry of the send queue, and if signalled it completes with `slot: None`.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[inline]
    pub fn post_inline(
        &mut self,
        data: &[u8],
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        if self.state != QpState::ReadyToSend {
            return Err(self.refused(None));
        }
        if data.len() > self.max_inline {
            return Err(PostError { why: Why::TooLong, slot: None });
        }
        let flags = flags | SendFlags::INLINE;
        let signalled = self.signals(data.len(), flags);
        let id = match self.sends.put(None, signalled) {
            Ok(id) => id,
            Err(_) => return Err(PostError { why: Why::Full, slot: None }),
        };
        // SAFETY: inline data is copied before the call returns; its length is at most max_inline, a u32.
        match unsafe { self.send(id, data.as_ptr() as u64, data.len() as u32, 0, flags, signalled) }
        {
            0 => Ok(()),
            rc => Err(self.broke(rc)),
        }
    }

    #[inline(always)]
    fn signals(&self, len: usize, flags: SendFlags) -> bool {
        !flags.contains(SendFlags::UNSIGNALLED)
            || len >= self.signal_from
            || self.sends.must_signal()
    }

    /// Posts one SEND.
    ///
    /// # Safety
    /// `addr..addr + len` is readable, and registered under `lkey` and untouched until the request `id` is done, unless
    /// the flags say inline.
    #[inline(always)]
    unsafe fn send(
        &mut self,
        id: u64,
        addr: u64,
        len: u32,
        lkey: u32,
        flags: SendFlags,
        signalled: bool,
    ) -> i32 {
        let mut sge = ibv_sge { addr, length: len, lkey };
        let wr = &mut self.template;
        wr.wr_id = id;
        wr.sg_list = &mut sge;
        // Some providers read a length of 0 in an element as 2 GiB.
        wr.num_sge = i32::from(len != 0);
        let inline = flags.contains(SendFlags::INLINE) || len as usize <= self.small;
        wr.send_flags = bit(signalled, ibv_send_flags::IBV_SEND_SIGNALED)
            | bit(inline && len != 0, ibv_send_flags::IBV_SEND_INLINE)
            | bit(flags.contains(SendFlags::SOLICITED), ibv_send_flags::IBV_SEND_SOLICITED)
            | bit(flags.contains(SendFlags::FENCE), ibv_send_flags::IBV_SEND_FENCE);
        let mut bad = null_mut();
        // SAFETY: the QP is alive, the list is one complete request whose element lives until the call returns; the
        // caller vouches for the memory.
        unsafe { ibv_post_send(self.raw.as_ptr(), wr, &mut bad) }
    }

    /// A post the device failed: the request may be in its ring all the same.
    #[cold]
    #[inline(never)]
    fn broke(&mut self, rc: i32) -> PostError {
        self.state = QpState::Error;
        PostError { why: Why::Device(errno_of(rc)), slot: None }
    }

    #[cold]
    #[inline(never)]
    fn refused(&self, slot: Option<Slot>) -> PostError {
        let why = match self.state {
            QpState::Error => Why::Broken,
            QpState::ReadyToSend => Why::WrongDomain,
            QpState::Init | QpState::ReadyToReceive
                if slot.as_ref().is_some_and(|s| !s.is_of(Arc::as_ptr(&self.pd))) =>
            {
                Why::WrongDomain
            }
            _ => Why::NotConnected,
        };
        PostError { why, slot }
    }

    /// Redeems a completion, once. `None` when it is not this queue pair's, stale, or spent; a live one keeps its worth
    /// then.
    ///
    /// A failed completion puts the queue pair into [`QpState::Error`].
    #[inline]
    pub fn complete(&mut self, wc: &mut Wc) -> Option<Done> {
        let id = wc.0.wr_id;
        let status = wc.status();
        let (slot, op, byte_len) = match kind_of(id)? {
            Kind::Send => (self.sends.redeem(id)?, Op::Send, 0),
            Kind::Recv => {
                let slot = self.recvs.redeem(id)?;
                (slot, Op::Recv, wc.0.byte_len as usize)
            }
        };
        wc.spend();
        let byte_len = match (&slot, status.is_ok()) {
            // The device's number, so bounded before anyone indexes with it.
            (Some(slot), true) => byte_len.min(slot.capacity()),
            _ => 0,
        };
        if !status.is_ok() {
            self.failed(status);
        }
        Some(Done { slot, op, status, byte_len, vendor_err: wc.0.vendor_err })
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, _status: WcStatus) {
        self.state = QpState::Error;
    }

    /// Slots of finished unsignalled sends, one at a time.
    #[inline]
    pub fn reclaim(&mut self) -> Option<Slot> {
        self.sends.reclaim()
    }

    /// Changes attributes (ibv_modify_qp(3)); for connecting, with what `rdma_init_qp_attr` says.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState) for leaving the error state or going back to RESET (make a new queue
    /// pair: its requests would be forgotten by the device but not by us); [`InvalidArgument`](ErrorKind::InvalidArgument)
    /// for changing depths; else the errno of the call.
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
            _ => {}
        }
        let mut raw = attr.raw;
        // SAFETY: the QP is alive, the attributes are a complete struct.
        let rc = unsafe { (self.pd.ctx.0.verbs.modify_qp)(self.raw.as_ptr(), &mut raw, attr.mask) };
        Error::check("ibv_modify_qp", rc)?;
        if let Some(t) = target {
            self.state = t;
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
                self.state = QpState::ReadyToSend;
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
        let done = self.modify(&QpAttr::state_only(ibv_qp_state::IBV_QPS_ERR));
        self.state = QpState::Error;
        done
    }

    #[cold]
    fn wrong_state(&self, op: &'static str, hint: &str) -> Error {
        Error::refused(op, ErrorKind::WrongState, format!("{hint} (state {:?})", self.state))
    }

    /// State as this crate knows it.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// The device's number of it, for the connection manager. Reused by devices: use [`serial`](Self::serial) as a key.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the QP is alive.
        unsafe { self.raw.as_ref().qp_num }
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
        (self.sends.used() as usize, self.recvs.used() as usize)
    }

    /// Sends and receives that can still be posted.
    pub fn room(&self) -> (usize, usize) {
        (self.sends.room() as usize, self.recvs.room() as usize)
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

    /// Destroys the queue pair and gives back every slot it still had.
    ///
    /// # Errors
    /// The errno of ibv_destroy_qp(3); queue pair and slots are leaked then, because the device may still use them.
    pub fn close(self) -> Result<Vec<Slot>> {
        let mut me = ManuallyDrop::new(self);
        me.destroy()?;
        // SAFETY: destroyed, and `me` is never dropped, so this happens once.
        let (sends, recvs) = unsafe { me.take_rings() };
        Ok(sends.into_slots().chain(recvs.into_slots()).collect())
    }

    fn destroy(&mut self) -> Result<()> {
        // SAFETY: the QP is alive; it is not used again after this, whatever the outcome.
        let rc = unsafe { (self.pd.ctx.0.verbs.destroy_qp)(self.raw.as_ptr()) };
        Error::check("ibv_destroy_qp", rc)?;
        self.send_cq.bury(self.serial, self.config.send_depth);
        self.recv_cq.bury(self.serial, self.config.recv_depth);
        Ok(())
    }

    /// Takes the tables out and lets go of PD and CQs.
    ///
    /// # Safety
    /// `destroy` succeeded; called once, and `self` is not used after.
    unsafe fn take_rings(&mut self) -> (SendRing, Ring) {
        // SAFETY: the caller promises that each is taken once.
        unsafe {
            let rings = (ManuallyDrop::take(&mut self.sends), ManuallyDrop::take(&mut self.recvs));
            ManuallyDrop::drop(&mut self.send_cq);
            ManuallyDrop::drop(&mut self.recv_cq);
            ManuallyDrop::drop(&mut self.pd);
            rings
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.destroy().is_ok() {
            // SAFETY: destroyed, and Drop runs once. On failure everything stays where it is: leaked.
            drop(unsafe { self.take_rings() });
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

#[inline(always)]
fn bit(on: bool, flag: ibv_send_flags) -> u32 {
    if on { flag.0 } else { 0 }
}

/// The next serial, or an error when all are used up: one must never come twice.
fn next_serial(counter: &AtomicU64) -> Result<u64> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < SERIAL_MAX).then_some(n + 1))
        .map_err(|_| {
            Error::refused(
                "create_qp",
                ErrorKind::Other,
                "this process has used up its 2^40 queue pairs",
            )
        })
}

fn check(ctx: &Context, send_cq: &CqRef, recv_cq: &CqRef, config: &QpConfig) -> Result<()> {
    if !send_cq.0.ctx.is_same(ctx) || !recv_cq.0.ctx.is_same(ctx) {
        return Err(Error::refused(
            "create_qp",
            ErrorKind::WrongContext,
            "protection domain and completion queues belong to different contexts",
        ));
    }
    if ctx.quirk().is_some_and(|q| !q.reliable_connections) {
        return Err(Error::refused(
            "create_qp",
            ErrorKind::Unsupported,
            "this device has no reliable connections",
        ));
    }
    let max = ctx.attr().max_qp_wr.min(DEPTH_MAX);
    for (what, depth) in [("send", config.send_depth), ("receive", config.recv_depth)] {
        if !(1..=max).contains(&depth) {
            return Err(Error::refused(
                "create_qp",
                ErrorKind::InvalidArgument,
                format!("a {what} queue of {depth} is not between 1 and this device's {max}"),
            ));
        }
    }
    Ok(())
}

fn init_attr(
    send_cq: &CqInner,
    recv_cq: &CqInner,
    config: &QpConfig,
    serial: u64,
) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        // Only a number: it names the queue pair in asynchronous events.
        qp_context: without_provenance_mut(serial as usize),
        send_cq: send_cq.raw.as_ptr(),
        recv_cq: recv_cq.raw.as_ptr(),
        srq: null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: config.send_depth,
            max_recv_wr: config.recv_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: config.max_inline.max(SMALL),
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

fn explain_create(e: Error, config: &QpConfig) -> Error {
    match e.kind() {
        ErrorKind::InvalidArgument => e.with_hint(format!("the device refuses these sizes: {config:?}")),
        ErrorKind::OutOfMemory => e.with_hint(format!(
            "no room for {config:?}: the device has too many queue pairs, or RLIMIT_MEMLOCK (`ulimit -l`) is too low for its rings"
        )),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_run_out_instead_of_repeating() {
        let c = AtomicU64::new(SERIAL_MAX - 1);
        assert_eq!(next_serial(&c).unwrap(), SERIAL_MAX - 1);
        assert!(next_serial(&c).is_err());
        assert!(next_serial(&c).is_err());
    }
}
