//! What the device says about a queue pair.

use crate::ah::AddressVector;
use crate::error::{Error, ErrorKind, Result};
use crate::manual::PeerAccess;
use crate::port::mtu_bytes;
use crate::qp::QueuePair;
use crate::qp_attr::{QpAttr, QpState};
use rdma_sys::*;

/// A queue pair's attributes as the device tells them (ibv_query_qp(3)). Fields that its kind does not have are what the
/// driver left there, mostly 0.
///
/// From [`QueuePair::query`](crate::QueuePair::query).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct QpQuery {
    /// The device's idea of the state. siw on Linux 6.1 always says RESET.
    pub state: QpState,
    /// Sends are still being drained.
    pub draining: bool,
    /// Port in use; 0 before INIT.
    pub port: u8,
    /// Index in the port's partition table.
    pub pkey_index: u16,
    /// Key of datagrams.
    pub qkey: u32,
    /// What the peer may do.
    pub access: PeerAccess,
    /// The way to the peer; without a meaning before RTR and for datagrams.
    pub path: AddressVector,
    /// Bytes in a packet; 0 if the driver gave no known value.
    pub path_mtu: u32,
    /// The peer's queue pair number.
    pub dest_qp_num: u32,
    /// Expected packet sequence number.
    pub rq_psn: u32,
    /// Next packet sequence number.
    pub sq_psn: u32,
    /// Reads and atomics asked at once.
    pub max_rd_atomic: u8,
    /// Reads and atomics answered at once.
    pub max_dest_rd_atomic: u8,
    /// As [`RtrAttr::min_rnr_timer`](crate::RtrAttr).
    pub min_rnr_timer: u8,
    /// As [`RtsAttr::timeout`](crate::RtsAttr).
    pub timeout: u8,
    /// As [`RtsAttr::retry_count`](crate::RtsAttr).
    pub retry_count: u8,
    /// As [`RtsAttr::rnr_retry`](crate::RtsAttr).
    pub rnr_retry: u8,
    /// Sends the device has room for; at least what was asked for.
    pub send_depth: u32,
    /// Receives the device has room for.
    pub recv_depth: u32,
    /// Most pieces of a send.
    pub max_send_sge: u32,
    /// Most pieces of a receive.
    pub max_recv_sge: u32,
    /// Longest inline send, bytes.
    pub max_inline: u32,
}

impl QpQuery {
    fn of(a: &ibv_qp_attr) -> QpQuery {
        QpQuery {
            state: QpState::of(a.qp_state),
            draining: a.sq_draining != 0,
            port: a.port_num,
            pkey_index: a.pkey_index,
            qkey: a.qkey,
            access: PeerAccess::from_bits_truncate(a.qp_access_flags),
            path: AddressVector::of_raw(&a.ah_attr),
            path_mtu: mtu_bytes(a.path_mtu),
            dest_qp_num: a.dest_qp_num,
            rq_psn: a.rq_psn,
            sq_psn: a.sq_psn,
            max_rd_atomic: a.max_rd_atomic,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            timeout: a.timeout,
            retry_count: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            send_depth: a.cap.max_send_wr,
            recv_depth: a.cap.max_recv_wr,
            max_send_sge: a.cap.max_send_sge,
            max_recv_sge: a.cap.max_recv_sge,
            max_inline: a.cap.max_inline_data,
        }
    }
}

/// Asks for everything.
///
/// # Safety
/// `qp` is a live queue pair of `ctx`.
pub(crate) unsafe fn query_raw(ctx: &crate::Context, qp: *mut ibv_qp) -> Result<QpQuery> {
    // Every attribute of the verbs standard.
    const ALL: i32 = (1 << 21) - 1;
    let mut attr = ibv_qp_attr::default();
    let mut init = ibv_qp_init_attr::default();
    // SAFETY: the caller passes a live QP; both structs are writable and not kept.
    let rc = unsafe { (ctx.0.verbs.query_qp)(qp, &mut attr, ALL, &mut init) };
    Error::check("ibv_query_qp", rc)?;
    Ok(QpQuery::of(&attr))
}

impl QueuePair {
    /// Asks the device (ibv_query_qp(3)). It changes nothing, [`state`](Self::state) neither.
    ///
    /// # Errors
    /// The errno of the call: EIO or ENODEV when the device is gone.
    pub fn query(&self) -> Result<QpQuery> {
        // SAFETY: the QP is alive and of this context.
        unsafe { query_raw(self.context(), self.as_raw()) }
    }

    /// Lets sends be posted again after [`SendQueueError`](QpState::SendQueueError): a send failed and the device
    /// stopped the send queue, and only that (UC and UD, InfiniBand 1.2.1, 10.3.1.7). What was posted behind the failed
    /// send was flushed.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState) when it is in another state, or when the device says that it has failed
    /// altogether (rxe always does): it is in [`Error`](QpState::Error) then, to be closed. Else the errno of the query
    /// or the modify.
    pub fn resume_sends(&mut self) -> Result<()> {
        const OP: &str = "resume_sends";
        if self.state() != QpState::SendQueueError {
            let why = format!("the send queue has not stopped (state {:?})", self.state());
            return Err(Error::refused(OP, ErrorKind::WrongState, why));
        }
        match self.query()?.state {
            QpState::SendQueueError => self.modify(&QpAttr::state_only(ibv_qp_state::IBV_QPS_RTS)),
            QpState::ReadyToSend => {
                self.set_state(QpState::ReadyToSend);
                Ok(())
            }
            other => {
                self.set_state(QpState::Error);
                let why = format!("the device says {other:?}: close the queue pair");
                Err(Error::refused(OP, ErrorKind::WrongState, why))
            }
        }
    }
}
