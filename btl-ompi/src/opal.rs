//! Open MPI's services in Rust words: messages, modex, process records.
//!
//! Symbols that not every release series has are looked up by name after the version gate, so that
//! the component also loads into the wrong Open MPI and can say so.

use crate::abi;
use crate::component;
use btl_core::ProcName;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};

/// `btl_verbs_verbose`, for messages before and after the parameters are read.
static OWN_VERBOSE: AtomicI32 = AtomicI32::new(0);

/// Why a device or a peer is not used.
pub(crate) const WHY: i32 = 1;
/// The life of the component.
pub(crate) const LIFE: i32 = 10;
/// Connections.
pub(crate) const PEERS: i32 = 20;

/// Remembers `btl_verbs_verbose`.
pub(crate) fn set_verbose(level: i32) {
    OWN_VERBOSE.store(level, Ordering::Relaxed);
}

/// Whether a message of this level is printed.
pub(crate) fn is_verbose(level: i32) -> bool {
    framework(|f| f.verbose).max(OWN_VERBOSE.load(Ordering::Relaxed)) >= level
}

fn framework<T>(read: impl FnOnce(&abi::Framework) -> T) -> T {
    // SAFETY: the record lives in libopen-pal, which outlives the component, and is changed only
    // while components are being opened or closed, by the thread that calls us.
    read(unsafe { &abi::opal_btl_base_framework })
}

/// Prints one line through Open MPI, whatever the verbosity.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut line = format!("btl:verbs: {text}").into_bytes();
    line.retain(|byte| *byte != 0);
    let Ok(line) = CString::new(line) else { return };
    // SAFETY: the format takes one string, which lives until the call returns. Stream 0 always
    // exists.
    unsafe { abi::opal_output(0, c"%s".as_ptr(), line.as_ptr()) };
}

/// Prints one line if the verbosity asks for it.
macro_rules! verbose {
    ($level:expr, $($arg:tt)*) => {
        if $crate::opal::is_verbose($level) {
            $crate::opal::say(format_args!($($arg)*));
        }
    };
}
pub(crate) use verbose;

/// Open MPI's version, e.g. "4.1.4".
pub(crate) fn version() -> String {
    // SAFETY: a NUL-terminated constant of libopen-pal; the address is taken without reading.
    let text = unsafe { CStr::from_ptr((&raw const abi::opal_version_string).cast::<c_char>()) };
    text.to_string_lossy().into_owned()
}

/// Looks a symbol up by name, as the dynamic linker would for this component.
#[cfg(not(test))]
fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is NUL-terminated; the handle is the documented default.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

#[cfg(test)]
fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    abi::stub::symbol(name)
}

/// Whether Open MPI was built with CUDA, which changes the layout of the module.
pub(crate) fn has_cuda() -> bool {
    // SAFETY: a C `bool` of libopen-pal, constant after it was loaded; any byte but 0 is true.
    symbol(c"opal_built_with_cuda_support")
        .is_some_and(|flag| unsafe { flag.cast::<u8>().read() } != 0)
}

/// Whether the user named this component: `--mca btl self,verbs`.
pub(crate) fn asked_for_by_name() -> bool {
    let selection = framework(|f| f.selection);
    if selection.is_null() {
        return false;
    }
    // SAFETY: not NULL, so a NUL-terminated string owned by the parameter system until the
    // framework closes.
    let selection = unsafe { CStr::from_ptr(selection) }.to_string_lossy();
    names_component(&selection, component::NAME)
}

fn names_component(selection: &str, name: &str) -> bool {
    !selection.trim_start().starts_with('^')
        && selection.split(',').any(|entry| entry.trim() == name)
}

/// A process record of Open MPI.
#[derive(Clone, Copy)]
pub(crate) struct Proc(NonNull<abi::Proc>);

impl Proc {
    /// # Safety
    /// `raw` is NULL or points to a process record that outlives the value.
    pub(crate) unsafe fn new(raw: *mut abi::Proc) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    /// The record of this process.
    pub(crate) fn local() -> Option<Self> {
        NonNull::new(abi::opal_proc_local_get()).map(Self)
    }

    fn get(&self) -> &abi::Proc {
        // SAFETY: by the contract of `new`; names and locality do not change after the record was
        // made.
        unsafe { self.0.as_ref() }
    }

    /// Whether both are the same process.
    pub(crate) fn is(&self, other: Self) -> bool {
        self.0 == other.0
    }

    /// Its name in the transport's words.
    pub(crate) fn name(&self) -> ProcName {
        let name = self.get().name;
        ProcName { job: u64::from(name.jobid), rank: name.vpid }
    }

    /// Whether it runs on this node.
    pub(crate) fn on_node(&self) -> bool {
        self.get().flags & abi::PROC_ON_NODE == abi::PROC_ON_NODE
    }

    /// The record, for Open MPI.
    pub(crate) fn as_ptr(&self) -> *mut abi::Proc {
        self.0.as_ptr()
    }
}

/// The modex key, "btl.verbs.0.1"; both peers must have the same component version.
struct Key(NonNull<c_char>);

impl Key {
    fn new() -> Option<Self> {
        // SAFETY: the component's record is initialised at compile time and Open MPI only reads its
        // versions and names.
        NonNull::new(unsafe { abi::mca_base_component_to_string(component::base()) }).map(Self)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the string came from malloc and nobody else has it.
        unsafe { libc::free(self.0.as_ptr().cast()) };
    }
}

fn pmix() -> Option<NonNull<abi::Pmix>> {
    symbol(c"opal_pmix").map(NonNull::cast)
}

/// Publishes data for all peers.
///
/// # Errors
/// Open MPI's error code.
pub(crate) fn modex_put(blob: &[u8]) -> Result<(), c_int> {
    let (Some(pmix), Some(class), Some(key)) = (pmix(), symbol(c"opal_value_t_class"), Key::new())
    else {
        return Err(abi::ERR_NOT_AVAILABLE);
    };
    let size = i32::try_from(blob.len()).map_err(|_| abi::ERR_BAD_PARAM)?;
    // SAFETY: `Value` is plain data for which all-zero bytes are valid.
    let mut value: abi::Value = unsafe { core::mem::zeroed() };
    // SAFETY: the class is that of `opal_value_t`; the value is as large as the class says and not
    // shared.
    unsafe { construct((&raw mut value).cast(), class.cast().as_ptr()) };
    value.key = key.0.as_ptr();
    value.kind = abi::BYTE_OBJECT;
    // The callee copies the bytes and does not change them.
    value.data.bo = abi::ByteObject { size, bytes: blob.as_ptr().cast_mut() };
    // SAFETY: the table is filled when MPI_Init has reached the BTLs; only one field is read.
    let Some(put) = (unsafe { (*pmix.as_ptr()).put }) else { return Err(abi::ERR_NOT_AVAILABLE) };
    // SAFETY: key and data live until the call returns. The value is not destructed afterwards: its
    // destructor would free the key and the data, which are not its own.
    match unsafe { put(abi::PMIX_GLOBAL, &raw mut value) } {
        abi::SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// What a peer published under this component's name; `None` when it published nothing.
///
/// May take long when the peer is remote. No lock may be held.
pub(crate) fn modex_get(proc: Proc) -> Option<Vec<u8>> {
    let key = Key::new()?;
    // SAFETY: as in `modex_put`.
    let get = unsafe { (*pmix()?.as_ptr()).get }?;
    let mut value: *mut abi::Value = ptr::null_mut();
    let name = proc.get().name;
    // SAFETY: name, key and `value` live until the call returns; a NULL info list means no
    // directives.
    let code = unsafe { get(&raw const name, key.0.as_ptr(), ptr::null_mut(), &raw mut value) };
    let value = NonNull::new(value)?;
    let bytes = if code == abi::SUCCESS { byte_object(value) } else { None };
    // SAFETY: the value is ours now, made by Open MPI's own constructor, and not used afterwards.
    unsafe { release(value.as_ptr().cast()) };
    bytes
}

fn byte_object(value: NonNull<abi::Value>) -> Option<Vec<u8>> {
    // SAFETY: the value was returned to us and nobody changes it.
    let value = unsafe { value.as_ref() };
    if value.kind != abi::BYTE_OBJECT {
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
unsafe fn construct(object: *mut abi::Object, class: *mut abi::Class) {
    // SAFETY: by the contract; a class that is initialised already is left alone.
    unsafe {
        abi::opal_class_initialize(class);
        (*object).class = class;
        (*object).reference_count = 1;
        walk((*class).construct_array, object);
    }
}

/// OBJ_RELEASE of an object that only the caller refers to.
///
/// # Safety
/// `object` was made by OBJ_NEW, and the caller's reference is the only one.
unsafe fn release(object: *mut abi::Object) {
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
unsafe fn walk(
    mut array: *const Option<unsafe extern "C" fn(*mut abi::Object)>,
    object: *mut abi::Object,
) {
    // SAFETY: by the contract.
    unsafe {
        while let Some(function) = *array {
            function(object);
            array = array.add(1);
        }
    }
}

/// Marks entry `i` of a reachability map; NULL is allowed, as in `add_procs` for a single process.
///
/// # Safety
/// `map` is NULL or Open MPI's bitmap.
pub(crate) unsafe fn mark(map: *mut abi::Bitmap, i: usize) {
    let Ok(bit) = c_int::try_from(i) else { return };
    if !map.is_null() {
        // SAFETY: by the contract. The map only grows; a failure leaves the peer unreachable.
        unsafe { abi::opal_bitmap_set_bit(map, bit) };
    }
}

/// Packs the next at most `len` bytes of a send buffer to `to`; returns how many.
///
/// # Errors
/// Open MPI's convertor failed.
///
/// # Safety
/// `convertor` is Open MPI's and used by nobody else now; `to` points to `len` writable bytes.
pub(crate) unsafe fn pack(
    convertor: *mut abi::Convertor,
    to: *mut u8,
    len: usize,
) -> Result<usize, ()> {
    let mut iov = abi::IoVec { iov_base: to.cast(), iov_len: len };
    let mut count = 1_u32;
    let mut packed = len;
    // SAFETY: by the contract; one vector entry of `len` bytes.
    let rc = unsafe {
        abi::opal_convertor_pack(convertor, &raw mut iov, &raw mut count, &raw mut packed)
    };
    if rc < 0 || packed > len { Err(()) } else { Ok(packed) }
}

#[cfg(test)]
mod tests {
    use super::names_component;

    #[test]
    fn a_component_is_asked_for_only_by_its_name() {
        for yes in ["verbs", "self,verbs", "self, verbs ,tcp"] {
            assert!(names_component(yes, "verbs"), "{yes}");
        }
        for no in ["", "self,tcp", "^verbs", "^tcp,verbs", "self,verbsx"] {
            assert!(!names_component(no, "verbs"), "{no}");
        }
    }
}
