//! What Open MPI 5.0 and 6.0 have in common and 4.1 does not: BTL 3.3.0, whose receivers are told
//! from whom a message is, and the modex through libpmix itself.

use super::common::{
    BtlEndpoint, Convertor, ERR_BAD_PARAM, ERR_NOT_AVAILABLE, FreeListItem, ListItem, Module,
    ProcessName, SUCCESS, Segment,
};
use super::symbol;
use core::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use core::mem;
use core::ptr::{self, NonNull};

/// The BTL interface of both series.
pub(crate) const BTL_VERSION: [c_int; 3] = [3, 3, 0];

constants! {
    /// A put that is done is in place at the peer.
    BTL_FLAGS_REMOTE_COMPLETION: u32 = 0x80_0000 = "MCA_BTL_FLAGS_RDMA_REMOTE_COMPLETION";
    /// A byte object in a `pmix_value_t`.
    BYTE_OBJECT: u16 = 27 = "PMIX_BYTE_OBJECT";
    /// Modex data for every process.
    PMIX_GLOBAL: u8 = 3 = "PMIX_GLOBAL";
    /// Bytes of a namespace's name, its NUL not counted.
    MAX_NSLEN: usize = 255 = "PMIX_MAX_NSLEN";
    /// Bytes of a key, its NUL not counted.
    MAX_KEYLEN: usize = 511 = "PMIX_MAX_KEYLEN";
    /// The call worked.
    PMIX_SUCCESS: c_int = 0 = "PMIX_SUCCESS";
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
}

/// `mca_btl_base_receive_descriptor_t`.
#[repr(C)]
pub(crate) struct ReceiveDescriptor {
    /// May be NULL.
    endpoint: *mut BtlEndpoint,
    segments: *const Segment,
    segment_count: usize,
    tag: u8,
    cbdata: *mut c_void,
}

/// Whether receivers are told from whom a message is.
pub(crate) const TELLS_SENDER: bool = true;

/// `mca_btl_base_module_recv_cb_fn_t`.
pub(crate) type RecvFn = unsafe extern "C" fn(btl: *mut Module, des: *const ReceiveDescriptor);

/// Hands a message to whoever asked for its tag. `from` is NULL when Open MPI has no endpoint for
/// the sender.
///
/// # Safety
/// `callback` and `cbdata` are of one entry of Open MPI's table, `btl` is a module it knows, `from`
/// NULL or an endpoint of it, and `segment` describes the message.
pub(crate) unsafe fn deliver(
    callback: RecvFn,
    cbdata: *mut c_void,
    btl: *mut Module,
    from: *mut BtlEndpoint,
    tag: u8,
    segment: &mut Segment,
) {
    let des =
        ReceiveDescriptor { endpoint: from, segments: segment, segment_count: 1, tag, cbdata };
    // SAFETY: by the contract. Descriptor, segment and data live until it returns, and it does not
    // keep them.
    unsafe { callback(btl, &raw const des) };
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ByteObject {
    bytes: *mut c_char,
    size: usize,
}

/// The union in `pmix_value_t`: the member used, and the room of the largest.
#[repr(C)]
union ValueData {
    bo: ByteObject,
    _room: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: ValueData,
}

/// `pmix_proc_t`.
#[repr(C)]
struct PmixProc {
    nspace: [c_char; MAX_NSLEN + 1],
    rank: u32,
}

/// `PMIx_Put`.
type PutFn = unsafe extern "C" fn(scope: u8, key: *const c_char, value: *mut Value) -> c_int;
/// `PMIx_Get`.
type GetFn = unsafe extern "C" fn(
    proc_: *const PmixProc,
    key: *const c_char,
    info: *const c_void,
    ninfo: usize,
    value: *mut *mut Value,
) -> c_int;
/// `opal_pmix_convert_jobid`.
type ConvertJobidFn = unsafe extern "C" fn(nspace: *mut c_char, jobid: u32) -> c_int;

/// A function by its name; `None` when this process has none.
///
/// # Safety
/// `F` is the type of the C function with that name.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(mem::size_of::<F>() == mem::size_of::<*mut c_void>()) };
    // SAFETY: a function pointer has the size and representation of the address of its function,
    // and by the contract that function has this type.
    symbol(name).map(|address| unsafe { mem::transmute_copy(&address) })
}

/// Publishes `blob` under `key` for all peers.
///
/// # Errors
/// PMIx's error code, or Open MPI's when there is no PMIx.
pub(crate) fn modex_put(key: &CStr, blob: &[u8]) -> Result<(), c_int> {
    // SAFETY: the type is that of libpmix's header.
    let put: PutFn = unsafe { function(c"PMIx_Put") }.ok_or(ERR_NOT_AVAILABLE)?;
    if key.count_bytes() > MAX_KEYLEN {
        return Err(ERR_BAD_PARAM);
    }
    let bo = ByteObject { bytes: blob.as_ptr().cast_mut().cast(), size: blob.len() };
    let mut value = Value { kind: BYTE_OBJECT, data: ValueData { bo } };
    // SAFETY: key and value live until the call returns; the callee copies both and does not change
    // the bytes.
    match unsafe { put(PMIX_GLOBAL, key.as_ptr(), &raw mut value) } {
        PMIX_SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// What a process published under `key`; `None` when it published nothing.
pub(crate) fn modex_get(of: ProcessName, key: &CStr) -> Option<Vec<u8>> {
    // SAFETY: the type is that of libpmix's header.
    let get: GetFn = unsafe { function(c"PMIx_Get") }?;
    let proc_ = pmix_name(of)?;
    let mut value: *mut Value = ptr::null_mut();
    // SAFETY: process, key and `value` live until the call returns; no directives are passed.
    let code = unsafe { get(&raw const proc_, key.as_ptr(), ptr::null(), 0, &raw mut value) };
    let value = NonNull::new(value)?;
    // SAFETY: the value was returned to us and nobody else has it.
    let bytes = unsafe { take_bytes(value) };
    if code == PMIX_SUCCESS { bytes } else { None }
}

/// The process in PMIx's words. Open MPI keeps the list of names of jobs.
fn pmix_name(of: ProcessName) -> Option<PmixProc> {
    // SAFETY: the type is that of Open MPI's header.
    let convert: ConvertJobidFn = unsafe { function(c"opal_pmix_convert_jobid") }?;
    let mut proc_ = PmixProc { nspace: [0; MAX_NSLEN + 1], rank: of.vpid };
    // SAFETY: the callee writes a NUL-terminated name of at most MAX_NSLEN bytes.
    let code = unsafe { convert(proc_.nspace.as_mut_ptr(), of.jobid) };
    (code == SUCCESS).then_some(proc_)
}

/// The bytes of a value, which is freed. A value of another type has nothing we could free: what it
/// points to is lost.
///
/// # Safety
/// `value` came from `PMIx_Get`, and nobody else has it.
unsafe fn take_bytes(value: NonNull<Value>) -> Option<Vec<u8>> {
    // SAFETY: by the contract.
    let kind = unsafe { (*value.as_ptr()).kind };
    let mut bytes = None;
    if kind == BYTE_OBJECT {
        // SAFETY: the type says that this member of the union is the one in use.
        let object = unsafe { (*value.as_ptr()).data.bo };
        if !object.bytes.is_null() {
            // SAFETY: the byte object owns `size` bytes at `bytes`, from malloc.
            unsafe {
                let data = std::slice::from_raw_parts(object.bytes.cast::<u8>(), object.size);
                bytes = (!data.is_empty()).then(|| data.to_vec());
                libc::free(object.bytes.cast());
            }
        }
    }
    // SAFETY: the value itself is from malloc too.
    unsafe { libc::free(value.as_ptr().cast()) };
    bytes
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
    _accelerator_buffer: u64,
    /// What the registration has to allow.
    pub(crate) access: i32,
    _padding: [c_uchar; 64],
}

layout! {
    Proc = "opal_proc_t", 64, 8 {
        name = "proc_name" @ 40, arch = "proc_arch" @ 48, flags = "proc_flags" @ 52,
        convertor = "proc_convertor" @ 56,
    }
    ReceiveDescriptor = "mca_btl_base_receive_descriptor_t", 40, 8 {
        endpoint = "endpoint" @ 0, segments = "des_segments" @ 8, segment_count = "des_segment_count" @ 16,
        tag = "tag" @ 24, cbdata = "cbdata" @ 32,
    }
    ByteObject = "pmix_byte_object_t", 16, 8 { bytes = "bytes" @ 0, size = "size" @ 8 }
    Value = "pmix_value_t", 32, 8 { kind = "type" @ 0, data = "data" @ 8 }
    PmixProc = "pmix_proc_t", 260, 4 { nspace = "nspace" @ 0, rank = "rank" @ 256 }
    RcacheRegistration = "mca_rcache_base_registration_t", 184, 8 {
        base = "base" @ 64, bound = "bound" @ 72, access = "access_flags" @ 112,
    }
}

/// Nothing of these two series is bound in part.
#[cfg(test)]
pub(crate) const PREFIXES: &[crate::abi::layout::Fact] = &[];

/// Headers that only these two series have.
#[cfg(test)]
pub(crate) const HEADERS: &[&str] = &["pmix.h", "opal/mca/pmix/pmix-internal.h"];
