//! Rust bodies of the functions that the C headers define as `static inline`.
//!
//! They carry their C names and need no C shim, so a poll or a post costs one indirect call, as in C.
//! The one difference: a provider operation that is missing is an error here and a jump to address 0 in C.
//! Where the C return type has no room for an error the Rust one makes room, see the [crate] documentation.

use libc::c_int;

use crate::{
    ibv_context, ibv_cq, ibv_ops_wr, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, ibv_wq,
    verbs_context,
};

mod cm;
mod cq_ex;
mod ib;
mod object;
mod qp_ex;
mod query;

pub use self::{cm::*, cq_ex::*, ib::*, object::*, qp_ex::*, query::*};

/// What a function returns when the provider lacks the operation.
trait Missing {
    fn missing() -> Self;
}

impl Missing for c_int {
    #[cold]
    fn missing() -> Self {
        libc::EOPNOTSUPP
    }
}

impl<T> Missing for *mut T {
    #[cold]
    fn missing() -> Self {
        set_errno(libc::EOPNOTSUPP);
        std::ptr::null_mut()
    }
}

/// Sets this thread's `errno`.
fn set_errno(errno: c_int) {
    // SAFETY: __errno_location returns a valid pointer to this thread's errno, and nothing else uses it meanwhile.
    unsafe { *libc::__errno_location() = errno }
}

/// The extended context around `ctx`, or null for a provider that has none.
///
/// # Safety
/// `ctx` points to an open context made by libibverbs.
///
/// Source: `verbs_get_ctx` in `infiniband/verbs.h`.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller passes an open context.
    let marker = unsafe { (*ctx).abi_compat };
    // __VERBS_ABI_IS_EXTENDED
    if marker.addr() != usize::MAX {
        return std::ptr::null_mut();
    }
    // SAFETY: the marker says that libibverbs allocated this context as the last field of a verbs_context.
    unsafe { ctx.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

/// `verbs_get_ctx_op` of the header: the operation as an `Option`, `None` if the library is older than the field or the provider lacks it.
/// To be used in an unsafe block, with an open context.
macro_rules! ctx_op {
    ($ctx:expr, $op:ident) => {{
        let vctx = $crate::verbs_get_ctx($ctx);
        // The struct grows at its front, so the size tells which fields exist.
        let needed =
            size_of::<$crate::verbs_context>() - std::mem::offset_of!($crate::verbs_context, $op);
        if vctx.is_null() || (*vctx).sz < needed { None } else { (*vctx).$op }
    }};
}
use ctx_op;

/// Defines functions that forward to an operation of the extended context (`ext`) or answer that it is missing.
macro_rules! forward {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $ctx:expr => $op:ident;
    )*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// Every pointer is valid for what the man page says the call does with it: handles are live objects of
        /// libibverbs and belong to one context, attributes are initialised.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the caller passes live handles, so their context is open, and valid arguments for the operation.
            unsafe {
                match $crate::inline::ctx_op!($ctx, $op) {
                    Some(op) => op($($arg),*),
                    None => $crate::inline::Missing::missing(),
                }
            }
        }
    )*};
}
use forward;

/// Takes up to `num_entries` completions from the queue.
///
/// Returns how many were written to `wc`, or a negative number on failure (`-EOPNOTSUPP` if the provider cannot poll).
/// Of a completion whose status is not success only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
/// Man page: ibv_poll_cq(3).
///
/// # Safety
/// `cq` is live; `wc` is valid for writes of `num_entries` elements, and only the returned number of them is initialised.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a live queue and room for num_entries completions.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(op) => op(cq, num_entries, wc),
            None => -libc::EOPNOTSUPP,
        }
    }
}

/// The type of a provider's poll; see [`poll_cq_op`].
pub type PollCqOp = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// What [`ibv_poll_cq`] calls, looked up once: for loops that poll a queue of this context all the time.
///
/// If the provider cannot poll, it is a function that answers `-EOPNOTSUPP`. Providers set the operation when the context is
/// opened and keep it; it is not in the C headers. To be called as [`ibv_poll_cq`], while the context is open.
///
/// # Safety
/// `ctx` is an open context.
#[inline]
#[must_use]
pub unsafe fn poll_cq_op(ctx: *mut ibv_context) -> PollCqOp {
    unsafe extern "C" fn missing(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
        -libc::EOPNOTSUPP
    }
    // SAFETY: the caller passes an open context.
    unsafe { (*ctx).ops.poll_cq }.unwrap_or(missing)
}

/// Asks for an event on the queue's completion channel when the next completion arrives.
///
/// With `solicited_only` not 0, only solicited or failed completions count. Returns 0 or an errno.
/// Man page: ibv_req_notify_cq(3).
///
/// # Safety
/// `cq` is live.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a live queue.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(op) => op(cq, solicited_only),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Posts a list of work requests to the send queue.
///
/// Returns 0 or an errno; on failure `*bad_wr` is the first request that was not posted. Some providers return
/// negative errnos or -1 (see `errno` then). Man page: ibv_post_send(3).
///
/// # Safety
/// `qp` is live, `wr` is a valid list, `bad_wr` is valid for writes. The memory the requests name stays registered and
/// valid until their completions (or those of later requests) are polled, unless sent inline.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair and valid pointers.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(op) => op(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of work requests to the receive queue.
///
/// Returns 0 or an errno; on failure `*bad_wr` is the first request that was not posted. Man page: ibv_post_recv(3).
///
/// # Safety
/// `qp` is live and has no SRQ, `wr` is a valid list, `bad_wr` is valid for writes. The device may write to the named
/// memory until the completion is polled or the queue pair destroyed; nobody else may use it until then.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair and valid pointers.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(op) => op(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of work requests to a shared receive queue.
///
/// Returns 0 or an errno; on failure `*bad_wr` is the first request that was not posted. Man page: ibv_post_srq_recv(3).
///
/// # Safety
/// As [`ibv_post_recv`], with the shared receive queue in place of the queue pair.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue and valid pointers.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(op) => op(srq, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of tag-matching operations to a shared receive queue.
///
/// Returns 0 or an errno; on failure `*bad_op` is the first operation that was not posted. Man page: ibv_post_srq_ops(3).
///
/// # Safety
/// `srq` is live and of the tag-matching kind, `op` is a valid list, `bad_op` is valid for writes; memory as for [`ibv_post_recv`].
#[inline]
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue and valid pointers.
    unsafe {
        match ctx_op!((*srq).context, post_srq_ops) {
            Some(post) => post(srq, op, bad_op),
            None => {
                *bad_op = op;
                libc::EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of work requests to a work queue of type `IBV_WQT_RQ`.
///
/// Returns 0 or an errno; on failure `*bad_wr` is the first request that was not posted. Man page: ibv_post_wq_recv in ibv_create_wq(3).
///
/// # Safety
/// As [`ibv_post_recv`], with the work queue in place of the queue pair.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a live queue and valid pointers.
    unsafe {
        match (*wq).post_recv {
            Some(op) => op(wq, wr, bad_wr),
            None => {
                *bad_wr = wr;
                libc::EOPNOTSUPP
            }
        }
    }
}
