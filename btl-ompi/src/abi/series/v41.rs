//! Open MPI 4.1: BTL 3.1.0, modex through the table `opal_pmix` in libopen-pal.
//!
//! The layouts are the same in every 4.1.x without CUDA.

use super::common::{
    BtlEndpoint, Class, Convertor, Descriptor, ERR_BAD_PARAM, ERR_NOT_AVAILABLE, FreeListItem,
    ListItem, Module, Object, ProcessName, SUCCESS, Segment,
};
use super::symbol;
use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use core::mem;
use core::ptr::{self, NonNull};

/// The release series, as its version strings begin.
pub(crate) const SERIES: &str = "4.1.";
/// For messages; and in the file, the mark by which tools know it.
pub(crate) const BUILT_FOR: &str = "built for Open MPI 4.1.x";
/// The BTL interface of the series.
pub(crate) const BTL_VERSION: [c_int; 3] = [3, 1, 0];
/// The release whose headers the bindings were made from. Open MPI does not check it.
pub(crate) const PROJECT_VERSION: [c_int; 3] = [4, 1, 4];

/// The series has no flag for it: a put that is done is taken to be in place.
pub(crate) const BTL_FLAGS_REMOTE_COMPLETION: u32 = 0;

constants! {
    /// A byte object in an `opal_value_t`.
    BYTE_OBJECT: u8 = 20 = "OPAL_BYTE_OBJECT";
    /// Modex data for every process.
    PMIX_GLOBAL: c_uint = 3 = "OPAL_PMIX_GLOBAL";
}

/// `opal_proc_t`.
#[repr(C)]
pub(crate) struct Proc {
    pub(crate) item: ListItem,
    pub(crate) name: ProcessName,
    pub(crate) arch: u32,
    /// Locality bits, see [`PROC_ON_NODE`](super::PROC_ON_NODE).
    pub(crate) flags: u16,
    pub(crate) convertor: *mut Convertor,
    /// May be NULL.
    pub(crate) hostname: *const c_char,
}

/// Whether receivers are told from whom a message is.
pub(crate) const TELLS_SENDER: bool = false;

/// `mca_btl_base_module_recv_cb_fn_t`.
pub(crate) type RecvFn =
    unsafe extern "C" fn(btl: *mut Module, tag: u8, des: *mut Descriptor, cbdata: *mut c_void);

/// Hands a message to whoever asked for its tag. This series does not tell from whom it is.
///
/// # Safety
/// `callback` and `cbdata` are of one entry of Open MPI's table, `btl` is a module it knows, and
/// `segment` describes the message.
pub(crate) unsafe fn deliver(
    callback: RecvFn,
    cbdata: *mut c_void,
    btl: *mut Module,
    _from: *mut BtlEndpoint,
    tag: u8,
    segment: &mut Segment,
) {
    // SAFETY: pointers, numbers and an absent function: all-zero bytes are a valid descriptor.
    let mut des: Descriptor = unsafe { mem::zeroed() };
    des.segments = segment;
    des.segment_count = 1;
    // SAFETY: by the contract. Descriptor, segment and data live until it returns, and it does not
    // keep them.
    unsafe { callback(btl, tag, &raw mut des, cbdata) };
}

/// `opal_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ByteObject {
    size: i32,
    bytes: *mut u8,
}

/// The union in `opal_value_t`: the member used, and the room of the largest.
#[repr(C)]
union ValueData {
    bo: ByteObject,
    _room: [u64; 10],
}

/// `opal_value_t`.
#[repr(C)]
struct Value {
    item: ListItem,
    key: *mut c_char,
    kind: u8,
    data: ValueData,
}

/// `opal_pmix_base_module_t` up to `get`; it is longer, and lives in libopen-pal.
#[repr(C)]
struct Pmix {
    _before: [*const c_void; 8],
    put: Option<unsafe extern "C" fn(scope: c_uint, val: *mut Value) -> c_int>,
    get: Option<
        unsafe extern "C" fn(
            proc_: *const ProcessName,
            key: *const c_char,
            info: *mut c_void,
            val: *mut *mut Value,
        ) -> c_int,
    >,
}

unsafe extern "C" {
    /// Builds the arrays of constructors; does nothing when they exist.
    fn opal_class_initialize(class: *mut Class);
}

fn pmix() -> Option<NonNull<Pmix>> {
    symbol(c"opal_pmix").map(NonNull::cast)
}

/// Publishes `blob` under `key` for all peers.
///
/// # Errors
/// Open MPI's error code.
pub(crate) fn modex_put(key: &CStr, blob: &[u8]) -> Result<(), c_int> {
    let (Some(pmix), Some(class)) = (pmix(), symbol(c"opal_value_t_class")) else {
        return Err(ERR_NOT_AVAILABLE);
    };
    let size = i32::try_from(blob.len()).map_err(|_| ERR_BAD_PARAM)?;
    // SAFETY: `Value` is plain data for which all-zero bytes are valid.
    let mut value: Value = unsafe { mem::zeroed() };
    // SAFETY: the class is that of `opal_value_t`; the value is as large as the class says and not
    // shared.
    unsafe { construct((&raw mut value).cast(), class.cast().as_ptr()) };
    // The callee copies key and bytes and does not change them.
    value.key = key.as_ptr().cast_mut();
    value.kind = BYTE_OBJECT;
    value.data.bo = ByteObject { size, bytes: blob.as_ptr().cast_mut() };
    // SAFETY: the table is filled when MPI_Init has reached the BTLs; only one field is read.
    let Some(put) = (unsafe { (*pmix.as_ptr()).put }) else { return Err(ERR_NOT_AVAILABLE) };
    // SAFETY: key and data live until the call returns. The value is not destructed afterwards: its
    // destructor would free the key and the data, which are not its own.
    match unsafe { put(PMIX_GLOBAL, &raw mut value) } {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// What a process published under `key`; `None` when it published nothing.
pub(crate) fn modex_get(of: ProcessName, key: &CStr) -> Option<Vec<u8>> {
    // SAFETY: as in `modex_put`.
    let get = unsafe { (*pmix()?.as_ptr()).get }?;
    let mut value: *mut Value = ptr::null_mut();
    // SAFETY: name, key and `value` live until the call returns; a NULL info list means no
    // directives.
    let code = unsafe { get(&raw const of, key.as_ptr(), ptr::null_mut(), &raw mut value) };
    let value = NonNull::new(value)?;
    let bytes = if code == SUCCESS { byte_object(value) } else { None };
    // SAFETY: the value is ours now, made by Open MPI's own constructor, and not used afterwards.
    unsafe { release(value.as_ptr().cast()) };
    bytes
}

fn byte_object(value: NonNull<Value>) -> Option<Vec<u8>> {
    // SAFETY: the value was returned to us and nobody changes it.
    let value = unsafe { value.as_ref() };
    if value.kind != BYTE_OBJECT {
        return None;
    }
    // SAFETY: the type says that this member of the union is the one in use.
    let object = unsafe { value.data.bo };
    let len = usize::try_from(object.size).ok()?;
    if object.bytes.is_null() || len == 0 {
        return None;
    }
    // SAFETY: the byte object owns `size` bytes at `bytes`.
    Some(unsafe { std::slice::from_raw_parts(object.bytes, len) }.to_vec())
}

/// OBJ_CONSTRUCT.
///
/// # Safety
/// `object` points to memory of the class's size that nobody else uses; `class` is one of Open
/// MPI's classes.
unsafe fn construct(object: *mut Object, class: *mut Class) {
    // SAFETY: by the contract; a class that is initialised already is left alone.
    unsafe {
        opal_class_initialize(class);
        (*object).class = class;
        (*object).reference_count = 1;
        walk((*class).construct_array, object);
    }
}

/// OBJ_RELEASE of an object that only the caller refers to.
///
/// # Safety
/// `object` was made by OBJ_NEW, and the caller's reference is the only one.
unsafe fn release(object: *mut Object) {
    // SAFETY: by the contract nobody else has a reference, so the count needs no atomic operation.
    unsafe {
        walk((*(*object).class).destruct_array, object);
        libc::free(object.cast());
    }
}

/// Calls the functions of a NULL-terminated array.
///
/// # Safety
/// `array` is such an array of constructors or destructors for `object`.
unsafe fn walk(mut array: *const Option<unsafe extern "C" fn(*mut Object)>, object: *mut Object) {
    // SAFETY: by the contract.
    unsafe {
        while let Some(function) = *array {
            function(object);
            array = array.add(1);
        }
    }
}

/// `mca_rcache_base_registration_t`.
#[repr(C)]
pub(crate) struct RcacheRegistration {
    pub(crate) item: FreeListItem,
    _rcache: *mut c_void,
    /// First byte, at the start of a page.
    pub(crate) base: *mut c_uchar,
    /// Last byte.
    pub(crate) bound: *mut c_uchar,
    _alloc_base: *mut c_uchar,
    _ref_count: i32,
    _flags: u32,
    _context: *mut c_void,
    /// What the registration has to allow.
    pub(crate) access: i32,
    _padding: [c_uchar; 64],
}

layout! {
    Proc = "opal_proc_t", 72, 8 {
        name = "proc_name" @ 40, arch = "proc_arch" @ 48, flags = "proc_flags" @ 52,
        convertor = "proc_convertor" @ 56, hostname = "proc_hostname" @ 64,
    }
    ByteObject = "opal_byte_object_t", 16, 8 { size = "size" @ 0, bytes = "bytes" @ 8 }
    Value = "opal_value_t", 136, 8 { key = "key" @ 40, kind = "type" @ 48, data = "data" @ 56 }
    RcacheRegistration = "mca_rcache_base_registration_t", 176, 8 {
        base = "base" @ 64, bound = "bound" @ 72, access = "access_flags" @ 104,
    }
}

const _: () = assert!(mem::offset_of!(Pmix, put) == 64 && mem::offset_of!(Pmix, get) == 72);

/// Offsets in the struct that is bound only up to the field used.
#[cfg(test)]
pub(crate) const PREFIXES: &[crate::abi::layout::Fact] = &[
    crate::abi::layout::Fact { expr: "offsetof(opal_pmix_base_module_t, put)", value: 64 },
    crate::abi::layout::Fact { expr: "offsetof(opal_pmix_base_module_t, get)", value: 72 },
];

/// Headers that only this series has.
#[cfg(test)]
pub(crate) const HEADERS: &[&str] = &["opal/mca/pmix/pmix.h"];
