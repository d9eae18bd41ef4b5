//! Queries and registration that the headers wrap in macros or inline functions.

use libc::{c_int, c_void, size_t, ssize_t};

use crate::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_context, ibv_device_attr_ex, ibv_gid_entry,
    ibv_mr, ibv_pd, ibv_port_attr, ibv_qp_type, ibv_query_device, ibv_query_device_ex_input,
    ibv_reg_mr_iova2, ibv_values_ex,
};

use super::ctx_op;

/// The library's own functions under names that the header hides behind macros.
mod hidden {
    use super::*;
    unsafe extern "C" {
        /// Writes only the fields that the first ABI had; `port_attr` is larger.
        pub(super) fn ibv_query_port(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
        ) -> c_int;
        pub(super) fn ibv_reg_mr(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: size_t,
            access: c_int,
        ) -> *mut ibv_mr;
        pub(super) fn ibv_reg_mr_iova(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: size_t,
            iova: u64,
            access: c_int,
        ) -> *mut ibv_mr;
    }
}

/// Reads the attributes of a port (numbered from 1).
///
/// Returns 0 or an errno. Man page: ibv_query_port(3).
///
/// # Safety
/// `context` is open, `port_attr` is valid for writes.
#[inline]
pub unsafe fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer; all zeros is a valid ibv_port_attr.
    unsafe {
        match ctx_op!(context, query_port) {
            Some(op) => op(context, port_num, port_attr, size_of::<ibv_port_attr>()),
            None => {
                port_attr.write_bytes(0, 1);
                hidden::ibv_query_port(context, port_num, port_attr)
            }
        }
    }
}

/// The header's inner name of [`ibv_query_port`].
///
/// # Safety
/// As [`ibv_query_port`].
#[inline]
pub unsafe fn ___ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: same contract.
    unsafe { ibv_query_port(context, port_num, port_attr) }
}

/// Reads one entry of a port's GID table, with its type and netdev. `flags` is 0.
///
/// Returns 0 or an errno (`ENODATA`: the entry is empty). Man page: ibv_query_gid_ex(3).
///
/// # Safety
/// `context` is open, `entry` is valid for writes.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer; the size is that of the type behind it.
    unsafe {
        _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>())
    }
}

/// Reads all valid entries of the device's GID tables. `flags` is 0.
///
/// Returns the number of entries, or a negative errno. Man page: ibv_query_gid_table(3).
///
/// # Safety
/// `context` is open, `entries` is valid for writes of `max_entries` elements.
#[inline]
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
) -> ssize_t {
    // SAFETY: the caller passes an open context and room for the entries; the size is that of one of them.
    unsafe {
        _ibv_query_gid_table(context, entries, max_entries, flags, size_of::<ibv_gid_entry>())
    }
}

/// Registers memory for use by the device.
///
/// `access` is a set of `ibv_access_flags`. Optional flags are dropped where the kernel does not know them.
/// Returns null and sets errno on failure (`ENOMEM`: often the memlock limit). Man page: ibv_reg_mr(3).
///
/// # Safety
/// `pd` is live; `addr..addr + length` is mapped memory that stays mapped until [`ibv_dereg_mr`](crate::ibv_dereg_mr),
/// and writable if `access` lets the device or a peer write.
#[inline]
pub unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    let flags = access.cast_unsigned();
    // SAFETY: same contract.
    unsafe {
        if has_optional(flags) {
            ibv_reg_mr_iova2(pd, addr, length, addr.expose_provenance() as u64, flags)
        } else {
            hidden::ibv_reg_mr(pd, addr, length, access)
        }
    }
}

/// Registers memory that peers address from `iova` on instead of by its own address.
///
/// Returns null and sets errno on failure. Man page: ibv_reg_mr(3).
///
/// # Safety
/// As [`ibv_reg_mr`].
#[inline]
pub unsafe fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    let flags = access.cast_unsigned();
    // SAFETY: same contract.
    unsafe {
        if has_optional(flags) {
            ibv_reg_mr_iova2(pd, addr, length, iova, flags)
        } else {
            hidden::ibv_reg_mr_iova(pd, addr, length, iova, access)
        }
    }
}

/// Whether `access` has flags that only `ibv_reg_mr_iova2` takes.
fn has_optional(access: u32) -> bool {
    access & crate::ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0 != 0
}

/// Reads the device's extended attributes; falls back to the classic ones, with all else 0.
///
/// `input` may be null. Returns 0 or an errno (`EINVAL`: `input.comp_mask` is not 0). Man page: ibv_query_device_ex(3).
///
/// # Safety
/// `context` is open, `input` is null or valid, `attr` is valid for writes.
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller passes an open context and valid pointers; all zeros is a valid ibv_device_attr_ex.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            return libc::EINVAL;
        }
        if let Some(op) = ctx_op!(context, query_device_ex) {
            let ret = op(context, input, attr, size_of::<ibv_device_attr_ex>());
            if ret != libc::EOPNOTSUPP && ret != libc::ENOSYS {
                return ret;
            }
        }
        attr.write_bytes(0, 1);
        ibv_query_device(context, &raw mut (*attr).orig_attr)
    }
}

/// Reads the values that `values.comp_mask` (a set of `ibv_values_mask`) asks for, such as the device's clock.
///
/// Returns 0 or an errno. Man page: ibv_query_rt_values_ex(3).
///
/// # Safety
/// `context` is open, `values` is valid and its `comp_mask` is set.
#[inline]
pub unsafe fn ibv_query_rt_values_ex(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer.
    unsafe {
        match ctx_op!(context, query_rt_values) {
            Some(op) => op(context, values),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Whether `caps` (such as `ibv_tso_caps.supported_qpts`) has the bit of queue pair type `qpt`: 1 or 0.
///
/// Source: `infiniband/verbs.h`.
#[inline]
#[must_use]
pub fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    // C shifts without a check; a type beyond the mask is one it does not have.
    c_int::from(1u32.checked_shl(qpt.0).is_some_and(|bit| caps & bit != 0))
}
