//! Open MPI's services in Rust words: messages, modex, process records.

use crate::abi;
use crate::component;
use btl_core::ProcName;
use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
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

/// Whether Open MPI was built with CUDA, which changes the layout of the module.
pub(crate) fn has_cuda() -> bool {
    // SAFETY: a C `bool` of libopen-pal, constant after it was loaded; any byte but 0 is true.
    abi::symbol(c"opal_built_with_cuda_support")
        .is_some_and(|flag| unsafe { flag.cast::<u8>().read() } != 0)
}

/// Whether the user named this component: `--mca btl self,verbs`.
pub(crate) fn asked_for_by_name() -> bool {
    names_component(&selection(), component::NAME)
}

/// Whether the BTL of shared memory (4.1: vader, later: sm) is among those the user asked for.
pub(crate) fn wants_shared_memory() -> bool {
    let selection = selection();
    let text = selection.trim();
    match text.strip_prefix('^') {
        Some(without) => !names_component(without, "vader") && !names_component(without, "sm"),
        None if text.is_empty() => true,
        None => names_component(text, "vader") || names_component(text, "sm"),
    }
}

/// What the user wrote for `--mca btl`; empty if nothing.
fn selection() -> String {
    let selection = framework(|f| f.selection);
    if selection.is_null() {
        return String::new();
    }
    // SAFETY: not NULL, so a NUL-terminated string owned by the parameter system until the
    // framework closes.
    unsafe { CStr::from_ptr(selection) }.to_string_lossy().into_owned()
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

    /// Open MPI's record of a process of this or a connected job. No lock may be held.
    pub(crate) fn of(name: ProcName) -> Option<Self> {
        type Lookup = unsafe extern "C" fn(name: abi::ProcessName) -> *mut abi::Proc;
        let jobid = u32::try_from(name.job).ok()?;
        let lookup = abi::symbol(c"opal_proc_for_name")?.cast::<Option<Lookup>>();
        // SAFETY: a variable of libopen-pal with a function of this type, set when MPI starts.
        let lookup = unsafe { lookup.read() }?;
        // SAFETY: Open MPI's own function; any name may be asked for.
        NonNull::new(unsafe { lookup(abi::ProcessName { jobid, vpid: name.rank }) }).map(Self)
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

    fn as_c_str(&self) -> &CStr {
        // SAFETY: a NUL-terminated string that is ours until the drop.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the string came from malloc and nobody else has it.
        unsafe { libc::free(self.0.as_ptr().cast()) };
    }
}

/// Publishes data for all peers.
///
/// # Errors
/// The error code of Open MPI or of PMIx.
pub(crate) fn modex_put(blob: &[u8]) -> Result<(), c_int> {
    let key = Key::new().ok_or(abi::ERR_NOT_AVAILABLE)?;
    abi::modex_put(key.as_c_str(), blob)
}

/// What a peer published under this component's name; `None` when it published nothing.
///
/// May take long when the peer is remote. No lock may be held.
pub(crate) fn modex_get(proc: Proc) -> Option<Vec<u8>> {
    let key = Key::new()?;
    abi::modex_get(proc.get().name, key.as_c_str())
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
