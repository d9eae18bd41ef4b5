//! The creation of queue pairs: what is asked for, checked, booked and explained.

#![forbid(unsafe_code)]

use crate::cq::{CqInner, CqRef};
use crate::error::{Error, ErrorKind, Result};
use crate::qp::SMALL;
use crate::qp_attr::{QpConfig, QpKind};
use crate::ring::{DEPTH_MAX, SERIAL_MAX};
use crate::{Caps, Context};
use rdma_sys::*;
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The next serial, or an error when all are used up: one must never come twice.
pub(crate) fn next_serial() -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    serial_from(&NEXT)
}

fn serial_from(counter: &AtomicU64) -> Result<u64> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < SERIAL_MAX).then_some(n + 1))
        .map_err(|_| {
            Error::refused(
                "create_qp",
                ErrorKind::Other,
                "this process has used up its 2^39 queue pairs",
            )
        })
}

pub(crate) fn check(
    ctx: &Context,
    send_cq: &CqRef,
    recv_cq: &CqRef,
    config: &QpConfig,
    shared: bool,
) -> Result<()> {
    if !send_cq.0.ctx.is_same(ctx) || !recv_cq.0.ctx.is_same(ctx) {
        return Err(Error::refused(
            "create_qp",
            ErrorKind::WrongContext,
            "protection domain and completion queues belong to different contexts",
        ));
    }
    supported(ctx, config.kind)?;
    if shared && !config.kind.has_receives() {
        let why = "an XRC sender receives nothing, also from no shared queue";
        return Err(Error::refused("create_qp", ErrorKind::InvalidArgument, why));
    }
    let max = ctx.attr().max_qp_wr.min(DEPTH_MAX);
    size("send queue", config.send_depth, max)?;
    size("send's pieces", config.max_send_sge, ctx.attr().max_sge)?;
    if config.kind.has_receives() && !shared {
        size("receive queue", config.recv_depth, max)?;
        size("receive's pieces", config.max_recv_sge, ctx.attr().max_sge)?;
    }
    Ok(())
}

/// What is known of the device before it is asked.
fn supported(ctx: &Context, kind: QpKind) -> Result<()> {
    let reliable = matches!(kind, QpKind::Rc | QpKind::XrcSend);
    let why = if ctx.transport().is_iwarp() && kind != QpKind::Rc {
        format!("iWARP has reliable connections only, and no {kind:?}")
    } else if reliable && ctx.quirk().is_some_and(|q| !q.reliable_connections) {
        "this device has no reliable connections".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::refused("create_qp", ErrorKind::Unsupported, why))
}

fn size(what: &str, wanted: u32, max: u32) -> Result<()> {
    if (1..=max).contains(&wanted) {
        return Ok(());
    }
    Err(Error::refused(
        "create_qp",
        ErrorKind::InvalidArgument,
        format!("a {what} of {wanted}: not between 1 and this device's {max}"),
    ))
}

/// Books both queues' completions: as one share where they meet, so that the message names the sum.
pub(crate) fn reserve(
    send_cq: &Arc<CqInner>,
    recv_cq: &Arc<CqInner>,
    config: &QpConfig,
) -> Result<()> {
    let receives = config.receives();
    if Arc::ptr_eq(send_cq, recv_cq) {
        return send_cq.reserve(config.send_depth.saturating_add(receives));
    }
    send_cq.reserve(config.send_depth)?;
    recv_cq.reserve(receives).inspect_err(|_| send_cq.unreserve(config.send_depth))
}

/// Bytes to ask for inline. A device without inline sends would refuse more than 0, and only siw needs them.
pub(crate) fn inline_wanted(config: &QpConfig, caps: Caps) -> u32 {
    match config.max_inline {
        0 if !caps.contains(Caps::INLINE_SMALL_SENDS) => 0,
        n => n.max(SMALL),
    }
}

pub(crate) fn init_attr(
    send_cq: &CqInner,
    recv_cq: &CqInner,
    config: &QpConfig,
    serial: u64,
    max_inline_data: u32,
    srq: *mut ibv_srq,
) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        // Only a number: it names the queue pair in asynchronous events.
        qp_context: without_provenance_mut(serial as usize),
        send_cq: send_cq.raw.as_ptr(),
        recv_cq: recv_cq.raw.as_ptr(),
        srq,
        cap: ibv_qp_cap {
            max_send_wr: config.send_depth,
            max_recv_wr: config.receives(),
            max_send_sge: config.max_send_sge,
            max_recv_sge: if config.kind.has_receives() { config.max_recv_sge } else { 0 },
            max_inline_data,
        },
        qp_type: config.kind.raw(),
        sq_sig_all: 0,
    }
}

pub(crate) fn explain_create(e: Error, config: &QpConfig) -> Error {
    match e.kind() {
        ErrorKind::InvalidArgument => e.with_hint(format!("the device refuses these sizes: {config:?}")),
        ErrorKind::OutOfMemory => e.with_hint(format!(
            "no room for {config:?}: the device has too many queue pairs, or RLIMIT_MEMLOCK (`ulimit -l`) is too low for its rings"
        )),
        ErrorKind::Unsupported => e.with_hint(format!("the device has no queue pairs of kind {:?}", config.kind)),
        ErrorKind::PermissionDenied => e.with_hint("raw packets need CAP_NET_RAW"),
        _ => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_is_asked_for_unless_none_is_wanted_or_needed() {
        let wanted =
            |max_inline, caps| inline_wanted(&QpConfig { max_inline, ..QpConfig::default() }, caps);
        let siw = Caps::INLINE_SMALL_SENDS;
        assert_eq!((wanted(0, Caps::empty()), wanted(0, siw)), (0, SMALL));
        assert_eq!((wanted(1, Caps::empty()), wanted(64, siw)), (SMALL, 64));
    }

    #[test]
    fn serials_run_out_instead_of_repeating() {
        let c = AtomicU64::new(SERIAL_MAX - 1);
        assert_eq!(serial_from(&c).unwrap(), SERIAL_MAX - 1);
        assert!(serial_from(&c).is_err());
        assert!(serial_from(&c).is_err());
    }
}
