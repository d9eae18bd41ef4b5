//! One-sided operations, registration and Open MPI's registration cache. The same in every series but for the size of
//! a registration, which the series' own file has.

use super::{BtlEndpoint, Module, RcacheRegistration};
use core::ffi::{c_char, c_int, c_uint, c_void};

constants! {
    /// The module can `put`.
    BTL_FLAGS_PUT: u32 = 2 = "MCA_BTL_FLAGS_PUT";
    /// The module can `get`.
    BTL_FLAGS_GET: u32 = 4 = "MCA_BTL_FLAGS_GET";
    /// The module can do `atomic_fop` and `atomic_cswap`.
    BTL_FLAGS_ATOMIC_FOPS: u32 = 0x10000 = "MCA_BTL_FLAGS_ATOMIC_FOPS";
    /// Atomics add.
    ATOMIC_SUPPORTS_ADD: u32 = 1 = "MCA_BTL_ATOMIC_SUPPORTS_ADD";
    /// Atomics compare and swap.
    ATOMIC_SUPPORTS_CSWAP: u32 = 0x1000_0000 = "MCA_BTL_ATOMIC_SUPPORTS_CSWAP";
    /// The operation "add" of `atomic_fop`.
    ATOMIC_ADD: c_uint = 1 = "MCA_BTL_ATOMIC_ADD";
    /// A flag of an atomic: 4 bytes instead of 8.
    ATOMIC_FLAG_32BIT: c_int = 1 = "MCA_BTL_ATOMIC_FLAG_32BIT";
    /// The operation cannot be done so; ob1 takes another way.
    ERR_NOT_SUPPORTED: c_int = -8 = "OPAL_ERR_NOT_SUPPORTED";

    /// The own device writes.
    ACCESS_LOCAL_WRITE: u32 = 1 = "MCA_RCACHE_ACCESS_LOCAL_WRITE";
    /// Peers read.
    ACCESS_REMOTE_READ: u32 = 2 = "MCA_RCACHE_ACCESS_REMOTE_READ";
    /// Peers write.
    ACCESS_REMOTE_WRITE: u32 = 4 = "MCA_RCACHE_ACCESS_REMOTE_WRITE";
    /// Peers count.
    ACCESS_REMOTE_ATOMIC: u32 = 8 = "MCA_RCACHE_ACCESS_REMOTE_ATOMIC";
    /// All of these.
    ACCESS_ANY: u32 = 15 = "MCA_RCACHE_ACCESS_ANY";

    /// A registration is for this use only.
    RCACHE_BYPASS: u32 = 1 = "MCA_RCACHE_FLAGS_CACHE_BYPASS";

    /// A parameter's value is the default.
    VAR_SOURCE_DEFAULT: c_uint = 0 = "MCA_BASE_VAR_SOURCE_DEFAULT";
}

/// `mca_btl_base_registration_handle_t`; ours to define, see `memory.rs`.
#[repr(C)]
pub(crate) struct BtlHandle {
    _opaque: [u8; 0],
}

/// `mca_btl_base_rdma_completion_fn_t`.
pub(crate) type RdmaDoneFn = Option<
    unsafe extern "C" fn(
        btl: *mut Module,
        endpoint: *mut BtlEndpoint,
        local: *mut c_void,
        handle: *mut BtlHandle,
        context: *mut c_void,
        data: *mut c_void,
        status: c_int,
    ),
>;

/// `mca_btl_base_module_put_fn_t` and `mca_btl_base_module_get_fn_t`.
pub(crate) type TransferFn = Option<
    unsafe extern "C" fn(
        btl: *mut Module,
        endpoint: *mut BtlEndpoint,
        local: *mut c_void,
        remote: u64,
        local_handle: *mut BtlHandle,
        remote_handle: *mut BtlHandle,
        size: usize,
        flags: c_int,
        order: c_int,
        done: RdmaDoneFn,
        context: *mut c_void,
        data: *mut c_void,
    ) -> c_int,
>;

/// `mca_btl_base_module_atomic_fop64_fn_t`.
pub(crate) type FetchOpFn = Option<
    unsafe extern "C" fn(
        btl: *mut Module,
        endpoint: *mut BtlEndpoint,
        local: *mut c_void,
        remote: u64,
        local_handle: *mut BtlHandle,
        remote_handle: *mut BtlHandle,
        op: c_uint,
        operand: u64,
        flags: c_int,
        order: c_int,
        done: RdmaDoneFn,
        context: *mut c_void,
        data: *mut c_void,
    ) -> c_int,
>;

/// `mca_btl_base_module_atomic_cswap64_fn_t`.
pub(crate) type CompareSwapFn = Option<
    unsafe extern "C" fn(
        btl: *mut Module,
        endpoint: *mut BtlEndpoint,
        local: *mut c_void,
        remote: u64,
        local_handle: *mut BtlHandle,
        remote_handle: *mut BtlHandle,
        compare: u64,
        value: u64,
        flags: c_int,
        order: c_int,
        done: RdmaDoneFn,
        context: *mut c_void,
        data: *mut c_void,
    ) -> c_int,
>;

/// `mca_btl_base_module_register_mem_fn_t`.
pub(crate) type RegisterMemFn = Option<
    unsafe extern "C" fn(
        btl: *mut Module,
        endpoint: *mut BtlEndpoint,
        base: *mut c_void,
        size: usize,
        flags: u32,
    ) -> *mut BtlHandle,
>;

/// `mca_btl_base_module_deregister_mem_fn_t`.
pub(crate) type DeregisterMemFn =
    Option<unsafe extern "C" fn(btl: *mut Module, handle: *mut BtlHandle) -> c_int>;

/// `mca_btl_base_module_flush_fn_t`.
pub(crate) type FlushFn =
    Option<unsafe extern "C" fn(btl: *mut Module, endpoint: *mut BtlEndpoint) -> c_int>;

/// `mca_btl_base_module_dump_fn_t`.
pub(crate) type DumpFn =
    Option<unsafe extern "C" fn(btl: *mut Module, endpoint: *mut BtlEndpoint, verbose: c_int)>;

/// `mca_rcache_base_resources_t`: what a cache is made of.
#[repr(C)]
pub(crate) struct RcacheResources {
    /// Caches of one name share their least recently used registrations.
    pub(crate) name: *const c_char,
    /// Handed to the two functions.
    pub(crate) data: *mut c_void,
    /// Bytes of a registration with what its owner keeps in it.
    pub(crate) sizeof_registration: usize,
    /// Out of resource: the cache gives something up and comes again.
    pub(crate) register: Option<
        unsafe extern "C" fn(
            data: *mut c_void,
            base: *mut c_void,
            size: usize,
            registration: *mut RcacheRegistration,
        ) -> c_int,
    >,
    pub(crate) deregister: Option<
        unsafe extern "C" fn(data: *mut c_void, registration: *mut RcacheRegistration) -> c_int,
    >,
}

/// `mca_rcache_base_module_t` up to `rcache_deregister`; it is longer.
#[repr(C)]
pub(crate) struct Rcache {
    _component: *const c_void,
    pub(crate) register: Option<
        unsafe extern "C" fn(
            rcache: *mut Rcache,
            base: *mut c_void,
            size: usize,
            flags: u32,
            access: i32,
            registration: *mut *mut RcacheRegistration,
        ) -> c_int,
    >,
    pub(crate) deregister: Option<
        unsafe extern "C" fn(rcache: *mut Rcache, registration: *mut RcacheRegistration) -> c_int,
    >,
}

unsafe extern "C" {
    /// Makes a registration cache; NULL when it cannot. The name in the resources is copied or not needed later.
    pub(crate) fn mca_rcache_base_module_create(
        name: *const c_char,
        user_data: *mut c_void,
        resources: *mut RcacheResources,
    ) -> *mut Rcache;
    /// Gives back every registration that nobody uses, then the cache.
    pub(crate) fn mca_rcache_base_module_destroy(rcache: *mut Rcache) -> c_int;
    /// The number of a parameter; negative when there is none. NULL matches anything.
    pub(crate) fn mca_base_var_find(
        project: *const c_char,
        framework: *const c_char,
        component: *const c_char,
        name: *const c_char,
    ) -> c_int;
    /// Where a parameter's value comes from (`source`); places that are NULL are left out.
    pub(crate) fn mca_base_var_get_value(
        index: c_int,
        value: *mut c_void,
        source: *mut c_uint,
        file: *mut *const c_char,
    ) -> c_int;
}

layout! {
    RcacheResources = "mca_rcache_base_resources_t", 40, 8 {
        name = "cache_name" @ 0, data = "reg_data" @ 8, sizeof_registration = "sizeof_reg" @ 16,
        register = "register_mem" @ 24, deregister = "deregister_mem" @ 32,
    }
}

const _: () = assert!(core::mem::offset_of!(Rcache, register) == 8);
const _: () = assert!(core::mem::offset_of!(Rcache, deregister) == 16);

/// Offsets in the struct that is bound only up to the field used.
#[cfg(test)]
pub(crate) const PREFIXES: &[crate::abi::layout::Fact] = &[
    crate::abi::layout::Fact {
        expr: "offsetof(mca_rcache_base_module_t, rcache_register)",
        value: 8,
    },
    crate::abi::layout::Fact {
        expr: "offsetof(mca_rcache_base_module_t, rcache_deregister)",
        value: 16,
    },
];
