//! Stands in for libopen-pal in unit tests: the symbols the component needs, and a record of what
//! was done with them.

use super::{
    BaseComponent, Bitmap, Class, Convertor, Framework, GetValueFn, IoVec, Module, Proc, Rcache,
    RcacheResources, RecvCallback, SERIES, TAG_MAX,
};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Zero bytes that C code would own.
#[repr(transparent)]
pub(crate) struct Foreign<T>(UnsafeCell<T>);

// SAFETY: only used while a `Stub` is held, which is exclusive.
unsafe impl<T> Sync for Foreign<T> {}

#[unsafe(no_mangle)]
static opal_version_string: Foreign<[u8; 16]> = Foreign(UnsafeCell::new([0; 16]));
#[unsafe(no_mangle)]
// SAFETY: pointers and numbers: all-zero bytes are a valid record.
static opal_btl_base_framework: Foreign<Framework> =
    Foreign(UnsafeCell::new(unsafe { core::mem::zeroed() }));
#[unsafe(no_mangle)]
static mca_btl_base_active_message_trigger: Foreign<[RecvCallback; TAG_MAX]> =
    Foreign(UnsafeCell::new([RecvCallback { cbfunc: None, cbdata: ptr::null_mut() }; TAG_MAX]));
static CUDA: Foreign<u8> = Foreign(UnsafeCell::new(0));

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static REGISTERED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stand-in, for one test at a time.
pub(crate) struct Stub {
    _turn: MutexGuard<'static, ()>,
}

impl Stub {
    /// Waits for its turn; an Open MPI of the right series without CUDA.
    pub(crate) fn new() -> Self {
        let stub = Self { _turn: lock(&ONE_AT_A_TIME) };
        stub.set_version(&format!("{SERIES}4"));
        stub.set_cuda(false);
        lock(&LINES).clear();
        lock(&REGISTERED).clear();
        stub
    }

    /// Pretends to be this version.
    pub(crate) fn set_version(&self, version: &str) {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().take(15).zip(version.bytes()) {
            *to = from;
        }
        // SAFETY: this stub is the only one, and the component's threads do not exist in unit
        // tests.
        unsafe { *opal_version_string.0.get() = bytes };
    }

    /// Pretends to be built with or without CUDA.
    pub(crate) fn set_cuda(&self, cuda: bool) {
        // SAFETY: as above.
        unsafe { *CUDA.0.get() = u8::from(cuda) };
    }

    /// What was printed since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        std::mem::take(&mut lock(&LINES))
    }

    /// Names of parameters registered since the last call; "(base)" for those common to all BTLs.
    pub(crate) fn registered(&self) -> Vec<String> {
        std::mem::take(&mut lock(&REGISTERED))
    }
}

/// What the dynamic linker would find.
pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    (name == c"opal_built_with_cuda_support").then(|| NonNull::from(&CUDA.0).cast())
}

/// # Safety
/// `text` is a NUL-terminated string.
unsafe fn owned(text: *const c_char) -> String {
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn opal_output(_stream: c_int, format: *const c_char, text: *const c_char) {
    // SAFETY: the component always passes "%s" and one string.
    let (format, text) = unsafe { (owned(format), owned(text)) };
    assert_eq!(format, "%s");
    lock(&LINES).push(text);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mca_base_component_var_register(
    _component: *const BaseComponent,
    name: *const c_char,
    description: *const c_char,
    _kind: c_uint,
    _enumerator: *mut c_void,
    _bind: c_int,
    _flags: c_uint,
    _info_level: c_uint,
    _scope: c_uint,
    storage: *mut c_void,
) -> c_int {
    assert!(!storage.is_null() && !description.is_null());
    // SAFETY: the component passes a NUL-terminated name.
    lock(&REGISTERED).push(unsafe { owned(name) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mca_base_component_pvar_register(
    _component: *const BaseComponent,
    _name: *const c_char,
    _description: *const c_char,
    _verbosity: c_uint,
    _class: c_int,
    _kind: c_uint,
    _enumerator: *mut c_void,
    _bind: c_int,
    _flags: c_uint,
    get_value: GetValueFn,
    _set_value: *mut c_void,
    _notify: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    assert!(get_value.is_some());
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mca_btl_base_param_register(
    _component: *mut BaseComponent,
    module: *mut Module,
) -> c_int {
    assert!(!module.is_null());
    lock(&REGISTERED).push("(base)".to_owned());
    0
}

#[unsafe(no_mangle)]
extern "C" fn opal_proc_local_get() -> *mut Proc {
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn opal_bitmap_set_bit(_map: *mut Bitmap, _bit: c_int) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn opal_class_initialize(_class: *mut Class) {}

#[unsafe(no_mangle)]
extern "C" fn opal_convertor_pack(
    _convertor: *mut Convertor,
    _iov: *mut IoVec,
    _count: *mut u32,
    _bytes: *mut usize,
) -> i32 {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn mca_base_component_to_string(_component: *const BaseComponent) -> *mut c_char {
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn mca_rcache_base_module_create(
    _name: *const c_char,
    _user_data: *mut c_void,
    _resources: *mut RcacheResources,
) -> *mut Rcache {
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn mca_rcache_base_module_destroy(_rcache: *mut Rcache) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn mca_base_var_find(
    _project: *const c_char,
    _framework: *const c_char,
    _component: *const c_char,
    _name: *const c_char,
) -> c_int {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn mca_base_var_get_value(
    _index: c_int,
    _value: *mut c_void,
    _source: *mut c_uint,
    _file: *mut *const c_char,
) -> c_int {
    -1
}
