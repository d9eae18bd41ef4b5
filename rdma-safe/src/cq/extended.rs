//! Extended completion queues: completions with what only some devices tell, such as the time. Optional; a classic
//! [`CompletionQueue`] works on every device, and faster here.
//!
//! A poll of libibverbs lends its completion: it is valid only between start and end, and in between a lock is held. So
//! everything is copied out inside one call. Each call opens and closes a poll of its own for one completion:
//! `ibv_next_poll` of librxe in rdma-core 44 gives its lock back at the end of the queue, and `ibv_end_poll` after it a
//! second time, and skips a completion.

use super::{CompletionQueue, CqRef, prepare};
use crate::channel::{CompletionChannel, deadline_after};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, errno_of};
use crate::wc::{Wc, WcStatus};
use bitflags::bitflags;
use rdma_sys::ibv_create_cq_wc_flags as With;
use rdma_sys::*;
use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

bitflags! {
    /// What completions shall tell beside what classic ones do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WcFields: u32 {
        /// When it completed, in ticks of the device's clock
        /// ([`DeviceAttrEx::core_clock_khz`](crate::DeviceAttrEx::core_clock_khz)).
        const DEVICE_TIME = With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
        /// When it completed, in nanoseconds of the real-time clock.
        const WALL_TIME = With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
        /// The tag that a flow rule gave a received packet.
        const FLOW_TAG = With::IBV_WC_EX_WITH_FLOW_TAG.0;
        /// The VLAN of a received packet.
        const VLAN = With::IBV_WC_EX_WITH_CVLAN.0;
    }
}

/// What a [`Wc`] is made of.
const CLASSIC: u32 = With::IBV_WC_EX_WITH_BYTE_LEN.0
    | With::IBV_WC_EX_WITH_IMM.0
    | With::IBV_WC_EX_WITH_QP_NUM.0
    | With::IBV_WC_EX_WITH_SRC_QP.0
    | With::IBV_WC_EX_WITH_SLID.0
    | With::IBV_WC_EX_WITH_SL.0
    | With::IBV_WC_EX_WITH_DLID_PATH_BITS.0;

/// A completion with the fields that were asked for; they are `None` for failures, where nothing but the status counts.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExtendedWc {
    /// To be redeemed as any other.
    pub wc: Wc,
    /// [`WcFields::DEVICE_TIME`].
    pub device_time: Option<u64>,
    /// [`WcFields::WALL_TIME`].
    pub wall_time_ns: Option<u64>,
    /// [`WcFields::FLOW_TAG`].
    pub flow_tag: Option<u32>,
    /// [`WcFields::VLAN`].
    pub vlan: Option<u16>,
}

/// An extended completion queue (ibv_create_cq_ex(3)) and the right to poll it. `Send`. Queue pairs are made on it, and
/// their depths booked, as on a classic one.
///
/// Made by [`Context::create_cq_ex`](crate::Context::create_cq_ex).
pub struct ExtendedCq {
    raw: NonNull<ibv_cq_ex>,
    cq: CompletionQueue,
}

// SAFETY: the same queue as `cq`, which is Send; libibverbs serialises calls on it.
unsafe impl Send for ExtendedCq {}

impl Context {
    /// Creates an extended completion queue for at most `depth` completions that tell `fields`.
    ///
    /// # Errors
    /// As [`create_cq`](Context::create_cq); [`Unsupported`](ErrorKind::Unsupported) where the provider has no extended
    /// queues (siw and most others; rxe has) or cannot tell one of the fields.
    pub fn create_cq_ex(
        &self,
        depth: u32,
        fields: WcFields,
        channel: Option<&CompletionChannel>,
    ) -> Result<ExtendedCq> {
        let (_, id, cq_context, raw_channel) = prepare(self, depth, channel)?;
        let mut attr = ibv_cq_init_attr_ex {
            cqe: depth,
            cq_context,
            channel: raw_channel,
            wc_flags: u64::from(CLASSIC | fields.bits()),
            ..ibv_cq_init_attr_ex::default()
        };
        // SAFETY: context and channel are alive, the attributes complete; the cookie is only a number.
        let raw = unsafe { (self.0.verbs.create_cq_ex)(self.as_raw(), &mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| explain(Error::last("ibv_create_cq_ex")))?;
        let classic = NonNull::new(ibv_cq_ex_to_cq(raw.as_ptr())).unwrap_or(raw.cast());
        // SAFETY: just made so. Both pointers name the same queue.
        let cq = unsafe { CompletionQueue::adopt(self, classic, depth, id, channel) };
        Ok(ExtendedCq { raw, cq })
    }
}

fn explain(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unsupported => e.with_hint(
            "this provider has no extended completion queues, or cannot tell one of the fields; \
             create_cq makes a classic one on every device",
        ),
        _ => super::explain_create(e),
    }
}

impl ExtendedCq {
    /// A handle to make queue pairs on this queue.
    pub fn cq_ref(&self) -> CqRef {
        self.cq.cq_ref()
    }

    /// Takes one completion; `None` when there is none. Does not block or allocate; a provider may lock inside.
    ///
    /// # Errors
    /// The errno of the provider; the queue is unusable then.
    pub fn poll(&mut self) -> Result<Option<ExtendedWc>> {
        let cq = self.raw.as_ptr();
        let mut attr = ibv_poll_cq_attr::default();
        // SAFETY: the queue is alive, and only `&mut self` polls.
        match unsafe { ibv_start_poll(cq, &mut attr) } {
            0 => {}
            libc::ENOENT => {
                self.cq.inner().emptied(0)?;
                return Ok(None);
            }
            rc => return Err(Error::os("ibv_start_poll", errno_of(rc))),
        }
        // SAFETY: a poll of this thread is open on the live queue; it ends here, after the last read.
        unsafe {
            let wc = read(cq);
            ibv_end_poll(cq);
            Ok(Some(wc))
        }
    }

    /// Polls, and sleeps on the channel while there is nothing; `None` after `timeout`.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_wait`].
    pub fn poll_wait(&mut self, timeout: Duration) -> Result<Option<ExtendedWc>> {
        let deadline = deadline_after(timeout);
        loop {
            if let Some(wc) = self.poll()? {
                return Ok(Some(wc));
            }
            self.cq.req_notify()?;
            if let Some(wc) = self.poll()? {
                return Ok(Some(wc));
            }
            if !self.cq.wait_event(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Arms the queue's channel; see [`CompletionQueue::req_notify`].
    ///
    /// # Errors
    /// As there.
    pub fn req_notify(&mut self) -> Result<()> {
        self.cq.req_notify()
    }

    /// The raw queue, valid as long as `self` lives. Completions polled from it by other means are lost to this crate.
    pub fn as_raw(&self) -> *mut ibv_cq_ex {
        self.raw.as_ptr()
    }
}

/// Copies the current completion out. Of a failure only what is valid then.
///
/// # Safety
/// A poll of this thread is open on the live queue.
unsafe fn read(cq: *mut ibv_cq_ex) -> ExtendedWc {
    // SAFETY: the caller's promise. A reader that the provider did not set gives `None`.
    unsafe {
        let mut wc = ibv_wc {
            wr_id: (*cq).wr_id,
            status: (*cq).status,
            vendor_err: ibv_wc_read_vendor_err(cq).unwrap_or(0),
            qp_num: ibv_wc_read_qp_num(cq).unwrap_or(0),
            ..ibv_wc::default()
        };
        let ok = WcStatus(wc.status.0).is_ok();
        if ok {
            wc.opcode = ibv_wc_read_opcode(cq).unwrap_or(ibv_wc_opcode(0));
            wc.wc_flags = ibv_wc_read_wc_flags(cq).unwrap_or(0);
            wc.byte_len = ibv_wc_read_byte_len(cq).unwrap_or(0);
            wc.src_qp = ibv_wc_read_src_qp(cq).unwrap_or(0);
            // Lossless: the classic field has 16 bits too.
            wc.slid = ibv_wc_read_slid(cq).unwrap_or(0) as u16;
            wc.sl = ibv_wc_read_sl(cq).unwrap_or(0);
            wc.dlid_path_bits = ibv_wc_read_dlid_path_bits(cq).unwrap_or(0);
            // The same four bytes, whether they are immediate data or a key.
            wc.__bindgen_anon_1.imm_data = ibv_wc_read_imm_data(cq).unwrap_or(0);
        }
        ExtendedWc {
            wc: Wc(wc),
            device_time: ibv_wc_read_completion_ts(cq).filter(|_| ok),
            wall_time_ns: ibv_wc_read_completion_wallclock_ns(cq).filter(|_| ok),
            flow_tag: ibv_wc_read_flow_tag(cq).filter(|_| ok),
            vlan: ibv_wc_read_cvlan(cq).filter(|_| ok),
        }
    }
}

impl fmt::Debug for ExtendedCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extended{:?}", self.cq)
    }
}
