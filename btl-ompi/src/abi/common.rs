//! What is the same in Open MPI 4.1, 5.0 and 6.0: BTL 3.1.0 and 3.3.0 on MCA 2.1.0.
//!
//! Written after the output of bindgen on the headers of 4.1.4, cut down to what the component
//! uses. Names are Rust's; the C name stands beside each item. What differs between the series is
//! in the file of each.

use super::rma::{
    CompareSwapFn, DeregisterMemFn, DumpFn, FetchOpFn, FlushFn, RegisterMemFn, TransferFn,
};
use super::{Proc, RecvFn};
use core::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

constants! {
    /// The call worked.
    SUCCESS: c_int = 0 = "OPAL_SUCCESS";
    /// Failure without a better word.
    ERROR: c_int = -1 = "OPAL_ERROR";
    /// A resource is used up for now; the caller comes again.
    ERR_OUT_OF_RESOURCE: c_int = -2 = "OPAL_ERR_OUT_OF_RESOURCE";
    /// As above; from `send` it must never be returned (half of ob1's callers take it for success).
    ERR_RESOURCE_BUSY: c_int = -4 = "OPAL_ERR_RESOURCE_BUSY";
    /// An argument makes no sense.
    ERR_BAD_PARAM: c_int = -5 = "OPAL_ERR_BAD_PARAM";
    /// The peer cannot be reached.
    ERR_UNREACH: c_int = -12 = "OPAL_ERR_UNREACH";
    /// "Leave me out", without a complaint by the loader.
    ERR_NOT_AVAILABLE: c_int = -16 = "OPAL_ERR_NOT_AVAILABLE";

    /// The module can `send`.
    BTL_FLAGS_SEND: u32 = 1 = "MCA_BTL_FLAGS_SEND";
    /// The exclusivity of network transports that are not a last resort.
    EXCLUSIVITY_DEFAULT: u32 = 1024 = "MCA_BTL_EXCLUSIVITY_DEFAULT";
    /// The BTL frees the descriptor after its completion.
    DES_BTL_OWNERSHIP: u32 = 2 = "MCA_BTL_DES_FLAGS_BTL_OWNERSHIP";
    /// The completion callback is wanted in any case.
    DES_ALWAYS_CALLBACK: u32 = 4 = "MCA_BTL_DES_SEND_ALWAYS_CALLBACK";
    /// The job cannot go on.
    ERROR_FLAGS_FATAL: i32 = 1 = "MCA_BTL_ERROR_FLAGS_FATAL";
    /// "Any order": the value of a descriptor's `order`.
    NO_ORDER: u8 = 255 = "MCA_BTL_NO_ORDER";
    /// Entries in the table of receive callbacks.
    TAG_MAX: usize = 255 = "MCA_BTL_TAG_MAX";

    /// Both bits set: the process runs on this node.
    PROC_ON_NODE: u16 = 0xc = "OPAL_PROC_ON_NODE";

    /// Variable type `int`.
    VAR_INT: c_uint = 0 = "MCA_BASE_VAR_TYPE_INT";
    /// Variable type `unsigned long long`.
    VAR_UNSIGNED_LONG_LONG: c_uint = 3 = "MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG";
    /// Variable type `char *`.
    VAR_STRING: c_uint = 5 = "MCA_BASE_VAR_TYPE_STRING";
    /// Variable type `bool`.
    VAR_BOOL: c_uint = 7 = "MCA_BASE_VAR_TYPE_BOOL";
    /// Set before start, readable afterwards.
    VAR_SCOPE_READONLY: c_uint = 1 = "MCA_BASE_VAR_SCOPE_READONLY";
    /// Shown to every user by `ompi_info`; the other levels follow, up to 9.
    INFO_LVL_1: c_uint = 0 = "OPAL_INFO_LVL_1";

    /// A performance variable that counts events.
    PVAR_CLASS_COUNTER: c_int = 6 = "MCA_BASE_PVAR_CLASS_COUNTER";
    /// It cannot be written.
    PVAR_READONLY: c_uint = 0x80 = "MCA_BASE_PVAR_FLAG_READONLY";
    /// It runs from when a handle is made.
    PVAR_CONTINUOUS: c_uint = 0x100 = "MCA_BASE_PVAR_FLAG_CONTINUOUS";

    /// MCA major version.
    MCA_MAJOR: c_int = 2 = "MCA_BASE_VERSION_MAJOR";
    /// MCA minor version.
    MCA_MINOR: c_int = 1 = "MCA_BASE_VERSION_MINOR";
}

/// `opal_class_t`, up to the arrays of constructors.
#[repr(C)]
pub(crate) struct Class {
    pub(crate) name: *const c_char,
    pub(crate) parent: *mut Class,
    pub(crate) construct: Option<unsafe extern "C" fn(*mut Object)>,
    pub(crate) destruct: Option<unsafe extern "C" fn(*mut Object)>,
    pub(crate) initialized: c_int,
    pub(crate) depth: c_int,
    /// Ends with a NULL entry.
    pub(crate) construct_array: *const Option<unsafe extern "C" fn(*mut Object)>,
    /// Ends with a NULL entry.
    pub(crate) destruct_array: *const Option<unsafe extern "C" fn(*mut Object)>,
    pub(crate) sizeof: usize,
}

/// `opal_object_t`.
#[repr(C)]
pub(crate) struct Object {
    pub(crate) class: *mut Class,
    /// Changed by atomic operations when Open MPI runs threads.
    pub(crate) reference_count: i32,
}

/// `opal_list_item_t`.
#[repr(C)]
pub(crate) struct ListItem {
    pub(crate) object: Object,
    pub(crate) next: *mut ListItem,
    pub(crate) prev: *mut ListItem,
    pub(crate) item_free: i32,
}

/// `opal_free_list_item_t`.
#[repr(C)]
pub(crate) struct FreeListItem {
    pub(crate) item: ListItem,
    pub(crate) registration: *mut c_void,
    pub(crate) ptr: *mut c_void,
}

/// `opal_bitmap_t`; only passed on.
#[repr(C)]
pub(crate) struct Bitmap {
    _object: Object,
    _bitmap: *mut u64,
    _array_size: c_int,
    _max_size: c_int,
}

/// `opal_convertor_t`; opaque.
#[repr(C)]
pub(crate) struct Convertor {
    _opaque: [u8; 0],
}

/// `mca_btl_base_endpoint_t`; ours to define, see `endpoint.rs`.
#[repr(C)]
pub(crate) struct BtlEndpoint {
    _opaque: [u8; 0],
}

/// `opal_process_name_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessName {
    pub(crate) jobid: u32,
    pub(crate) vpid: u32,
}

/// `mca_base_framework_t` up to `framework_output`; it is longer, and lives in libopen-pal.
#[repr(C)]
pub(crate) struct Framework {
    _before: [*const c_void; 6],
    _flags: c_uint,
    _refcnt: c_int,
    _static_components: *const c_void,
    /// What the user wrote for `--mca btl`, or NULL.
    pub(crate) selection: *const c_char,
    pub(crate) verbose: c_int,
    pub(crate) output: c_int,
}

/// `mca_base_component_2_1_0_t`.
#[repr(C)]
pub(crate) struct BaseComponent {
    pub(crate) mca_version: [c_int; 3],
    pub(crate) project_name: [c_char; 16],
    pub(crate) project_version: [c_int; 3],
    pub(crate) type_name: [c_char; 32],
    pub(crate) type_version: [c_int; 3],
    pub(crate) name: [c_char; 64],
    pub(crate) version: [c_int; 3],
    pub(crate) open: Option<unsafe extern "C" fn() -> c_int>,
    pub(crate) close: Option<unsafe extern "C" fn() -> c_int>,
    pub(crate) query:
        Option<unsafe extern "C" fn(module: *mut *mut c_void, priority: *mut c_int) -> c_int>,
    pub(crate) register: Option<unsafe extern "C" fn() -> c_int>,
    pub(crate) flags: i32,
    pub(crate) reserved: [c_char; 28],
}

/// `mca_base_component_data_2_0_0_t`.
#[repr(C)]
pub(crate) struct ComponentData {
    pub(crate) param_field: u32,
    pub(crate) reserved: [c_char; 32],
}

/// `mca_btl_base_component_3_0_0_t`: what the component exports.
#[repr(C)]
pub(crate) struct Component {
    pub(crate) base: BaseComponent,
    pub(crate) data: ComponentData,
    /// Returns an array from `malloc` (the caller frees it), or NULL for "nothing here".
    pub(crate) init: Option<
        unsafe extern "C" fn(
            num_btls: *mut c_int,
            progress_threads: bool,
            mpi_threads: bool,
        ) -> *mut *mut Module,
    >,
    pub(crate) progress: Option<unsafe extern "C" fn() -> c_int>,
}

/// `mca_btl_base_segment_t`; the address is a union with a 64-bit integer in C.
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) addr: *mut c_void,
    pub(crate) len: u64,
}

/// `mca_btl_base_completion_fn_t`.
pub(crate) type CompletionFn = Option<
    unsafe extern "C" fn(
        btl: *mut Module,
        endpoint: *mut BtlEndpoint,
        des: *mut Descriptor,
        status: c_int,
    ),
>;

/// `mca_btl_base_descriptor_t`.
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) super_: FreeListItem,
    pub(crate) segments: *mut Segment,
    pub(crate) segment_count: usize,
    pub(crate) cbfunc: CompletionFn,
    pub(crate) cbdata: *mut c_void,
    /// Written by bml.
    pub(crate) context: *mut c_void,
    pub(crate) flags: u32,
    pub(crate) order: u8,
}

/// `mca_btl_active_message_callback_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RecvCallback {
    pub(crate) cbfunc: Option<RecvFn>,
    pub(crate) cbdata: *mut c_void,
}

/// `mca_btl_base_module_error_cb_fn_t`.
pub(crate) type ErrorFn =
    Option<unsafe extern "C" fn(btl: *mut Module, flags: i32, proc_: *mut Proc, info: *mut c_char)>;

/// `mca_base_get_value_fn_t`; the first argument is a `mca_base_pvar_t`, which is not looked into.
pub(crate) type GetValueFn = Option<
    unsafe extern "C" fn(pvar: *const c_void, value: *mut c_void, object: *mut c_void) -> c_int,
>;

/// A function of the module that the component leaves NULL.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

/// `mca_btl_base_module_t`.
#[repr(C)]
pub(crate) struct Module {
    pub(crate) component: *mut Component,
    pub(crate) eager_limit: usize,
    pub(crate) rndv_eager_limit: usize,
    pub(crate) max_send_size: usize,
    pub(crate) rdma_pipeline_send_length: usize,
    pub(crate) rdma_pipeline_frag_size: usize,
    pub(crate) min_rdma_pipeline_size: usize,
    pub(crate) exclusivity: u32,
    pub(crate) latency: u32,
    /// Mbit/s; 0 weighs all modules alike.
    pub(crate) bandwidth: u32,
    pub(crate) flags: u32,
    pub(crate) atomic_flags: u32,
    pub(crate) registration_handle_size: usize,
    pub(crate) get_limit: usize,
    pub(crate) get_alignment: usize,
    pub(crate) put_limit: usize,
    pub(crate) put_alignment: usize,
    pub(crate) get_local_registration_threshold: usize,
    pub(crate) put_local_registration_threshold: usize,
    pub(crate) add_procs: Option<
        unsafe extern "C" fn(
            btl: *mut Module,
            n: usize,
            procs: *mut *mut Proc,
            endpoints: *mut *mut BtlEndpoint,
            reachable: *mut Bitmap,
        ) -> c_int,
    >,
    pub(crate) del_procs: Option<
        unsafe extern "C" fn(
            btl: *mut Module,
            n: usize,
            procs: *mut *mut Proc,
            endpoints: *mut *mut BtlEndpoint,
        ) -> c_int,
    >,
    pub(crate) register: Unused,
    pub(crate) finalize: Option<unsafe extern "C" fn(btl: *mut Module) -> c_int>,
    pub(crate) alloc: Option<
        unsafe extern "C" fn(
            btl: *mut Module,
            endpoint: *mut BtlEndpoint,
            order: u8,
            size: usize,
            flags: u32,
        ) -> *mut Descriptor,
    >,
    pub(crate) free: Option<unsafe extern "C" fn(btl: *mut Module, des: *mut Descriptor) -> c_int>,
    pub(crate) prepare_src: Option<
        unsafe extern "C" fn(
            btl: *mut Module,
            endpoint: *mut BtlEndpoint,
            convertor: *mut Convertor,
            order: u8,
            reserve: usize,
            size: *mut usize,
            flags: u32,
        ) -> *mut Descriptor,
    >,
    pub(crate) send: Option<
        unsafe extern "C" fn(
            btl: *mut Module,
            endpoint: *mut BtlEndpoint,
            des: *mut Descriptor,
            tag: u8,
        ) -> c_int,
    >,
    pub(crate) sendi: Option<
        unsafe extern "C" fn(
            btl: *mut Module,
            endpoint: *mut BtlEndpoint,
            convertor: *mut Convertor,
            header: *mut c_void,
            header_size: usize,
            payload_size: usize,
            order: u8,
            flags: u32,
            tag: u8,
            des: *mut *mut Descriptor,
        ) -> c_int,
    >,
    pub(crate) put: TransferFn,
    pub(crate) get: TransferFn,
    pub(crate) dump: DumpFn,
    pub(crate) atomic_op: Unused,
    pub(crate) atomic_fop: FetchOpFn,
    pub(crate) atomic_cswap: CompareSwapFn,
    pub(crate) register_mem: RegisterMemFn,
    pub(crate) deregister_mem: DeregisterMemFn,
    pub(crate) mpool: *mut c_void,
    pub(crate) register_error: Option<unsafe extern "C" fn(btl: *mut Module, cb: ErrorFn) -> c_int>,
    /// 4.1: `btl_ft_event`, a function; later: `btl_accelerator_max_send_size`. Stays 0.
    _reserved: usize,
    pub(crate) flush: FlushFn,
    pub(crate) padding: [c_uchar; 256],
}

/// `struct iovec` as the convertor takes it.
pub(crate) use libc::iovec as IoVec;

unsafe extern "C" {
    /// "4.1.4" and the like.
    pub(crate) safe static opal_version_string: [c_char; 1];
    /// The BTL framework's own record.
    pub(crate) static opal_btl_base_framework: Framework;
    /// Who wants which tag.
    pub(crate) static mca_btl_base_active_message_trigger: [RecvCallback; TAG_MAX];

    /// Prints a line with printf's rules.
    pub(crate) fn opal_output(stream: c_int, format: *const c_char, ...);
    /// The record of this process; never NULL after start-up.
    pub(crate) safe fn opal_proc_local_get() -> *mut Proc;
    /// Sets a bit, growing the map.
    pub(crate) fn opal_bitmap_set_bit(map: *mut Bitmap, bit: c_int) -> c_int;
    /// Packs the next bytes of a send buffer; negative on errors.
    pub(crate) fn opal_convertor_pack(
        convertor: *mut Convertor,
        iov: *mut IoVec,
        count: *mut u32,
        bytes: *mut usize,
    ) -> i32;
    /// "btl.verbs.0.1" in memory from malloc.
    pub(crate) fn mca_base_component_to_string(component: *const BaseComponent) -> *mut c_char;
    /// Registers a variable whose value goes to `storage`; negative on errors.
    pub(crate) fn mca_base_component_var_register(
        component: *const BaseComponent,
        name: *const c_char,
        description: *const c_char,
        kind: c_uint,
        enumerator: *mut c_void,
        bind: c_int,
        flags: c_uint,
        info_level: c_uint,
        scope: c_uint,
        storage: *mut c_void,
    ) -> c_int;
    /// Registers a performance variable, which goes away with the component; negative on errors.
    pub(crate) fn mca_base_component_pvar_register(
        component: *const BaseComponent,
        name: *const c_char,
        description: *const c_char,
        verbosity: c_uint,
        class: c_int,
        kind: c_uint,
        enumerator: *mut c_void,
        bind: c_int,
        flags: c_uint,
        get_value: GetValueFn,
        set_value: *mut c_void,
        notify: *mut c_void,
        context: *mut c_void,
    ) -> c_int;
    /// Registers the parameters that every BTL has, with the module's values as defaults.
    pub(crate) fn mca_btl_base_param_register(
        component: *mut BaseComponent,
        module: *mut Module,
    ) -> c_int;
}

layout! {
    Class = "opal_class_t", 64, 8 {
        construct_array = "cls_construct_array" @ 40, destruct_array = "cls_destruct_array" @ 48,
    }
    Object = "opal_object_t", 16, 8 {
        class = "obj_class" @ 0, reference_count = "obj_reference_count" @ 8,
    }
    ListItem = "opal_list_item_t", 40, 8 {}
    FreeListItem = "opal_free_list_item_t", 56, 8 {}
    Bitmap = "opal_bitmap_t", 32, 8 {}
    ProcessName = "opal_process_name_t", 8, 4 { jobid = "jobid" @ 0, vpid = "vpid" @ 4 }
    BaseComponent = "mca_base_component_2_1_0_t", 224, 8 {
        mca_version = "mca_major_version" @ 0, project_name = "mca_project_name" @ 12,
        project_version = "mca_project_major_version" @ 28, type_name = "mca_type_name" @ 40,
        type_version = "mca_type_major_version" @ 72, name = "mca_component_name" @ 84,
        version = "mca_component_major_version" @ 148, open = "mca_open_component" @ 160,
        close = "mca_close_component" @ 168, query = "mca_query_component" @ 176,
        register = "mca_register_component_params" @ 184, flags = "mca_component_flags" @ 192,
    }
    ComponentData = "mca_base_component_data_2_0_0_t", 36, 4 {}
    Component = "mca_btl_base_component_3_0_0_t", 280, 8 {
        data = "btl_data" @ 224, init = "btl_init" @ 264, progress = "btl_progress" @ 272,
    }
    Segment = "mca_btl_base_segment_t", 16, 8 { addr = "seg_addr" @ 0, len = "seg_len" @ 8 }
    RecvCallback = "mca_btl_active_message_callback_t", 16, 8 { cbfunc = "cbfunc" @ 0, cbdata = "cbdata" @ 8 }
    Descriptor = "mca_btl_base_descriptor_t", 104, 8 {
        segments = "des_segments" @ 56, segment_count = "des_segment_count" @ 64, cbfunc = "des_cbfunc" @ 72,
        cbdata = "des_cbdata" @ 80, context = "des_context" @ 88, flags = "des_flags" @ 96, order = "order" @ 100,
    }
    Module = "mca_btl_base_module_t", 560, 8 {
        component = "btl_component" @ 0, eager_limit = "btl_eager_limit" @ 8,
        rndv_eager_limit = "btl_rndv_eager_limit" @ 16, max_send_size = "btl_max_send_size" @ 24,
        rdma_pipeline_send_length = "btl_rdma_pipeline_send_length" @ 32,
        rdma_pipeline_frag_size = "btl_rdma_pipeline_frag_size" @ 40,
        min_rdma_pipeline_size = "btl_min_rdma_pipeline_size" @ 48, exclusivity = "btl_exclusivity" @ 56,
        latency = "btl_latency" @ 60, bandwidth = "btl_bandwidth" @ 64, flags = "btl_flags" @ 68,
        atomic_flags = "btl_atomic_flags" @ 72, registration_handle_size = "btl_registration_handle_size" @ 80,
        get_limit = "btl_get_limit" @ 88, get_alignment = "btl_get_alignment" @ 96,
        put_limit = "btl_put_limit" @ 104, put_alignment = "btl_put_alignment" @ 112,
        get_local_registration_threshold = "btl_get_local_registration_threshold" @ 120,
        put_local_registration_threshold = "btl_put_local_registration_threshold" @ 128,
        add_procs = "btl_add_procs" @ 136, del_procs = "btl_del_procs" @ 144, register = "btl_register" @ 152,
        finalize = "btl_finalize" @ 160, alloc = "btl_alloc" @ 168, free = "btl_free" @ 176,
        prepare_src = "btl_prepare_src" @ 184, send = "btl_send" @ 192, sendi = "btl_sendi" @ 200,
        put = "btl_put" @ 208, get = "btl_get" @ 216, dump = "btl_dump" @ 224, atomic_op = "btl_atomic_op" @ 232,
        atomic_fop = "btl_atomic_fop" @ 240, atomic_cswap = "btl_atomic_cswap" @ 248,
        register_mem = "btl_register_mem" @ 256, deregister_mem = "btl_deregister_mem" @ 264,
        mpool = "btl_mpool" @ 272, register_error = "btl_register_error" @ 280,
        flush = "btl_flush" @ 296, padding = "padding" @ 304,
    }
}

// Prefixes of longer structs: only what is read has a place to be checked.
const _: () = assert!(core::mem::offset_of!(Framework, selection) == 64);
const _: () = assert!(core::mem::offset_of!(Framework, verbose) == 72);
const _: () = assert!(core::mem::offset_of!(Framework, output) == 76);

/// Offsets in the structs that are bound only up to the field used.
#[cfg(test)]
pub(crate) const PREFIXES: &[crate::abi::layout::Fact] = &[
    crate::abi::layout::Fact {
        expr: "offsetof(mca_base_framework_t, framework_selection)",
        value: 64,
    },
    crate::abi::layout::Fact {
        expr: "offsetof(mca_base_framework_t, framework_verbose)",
        value: 72,
    },
    crate::abi::layout::Fact {
        expr: "offsetof(mca_base_framework_t, framework_output)",
        value: 76,
    },
];
