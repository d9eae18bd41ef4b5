//! Whether Open MPI learns when memory goes back to the system, without which a registration must not be kept: later
//! memory at the same address has other pages, and the device would go on with the old ones.
//!
//! Open MPI learns it by code that it writes over the beginning of functions of the C library (its "memory hooks"). So
//! does UCX, which comes along with Open MPI 5.0 and may be started by any other component, also without being used:
//! who comes last is told, and the one before is not. With both, `free` shrinks the heap through UCX's `sbrk` and Open
//! MPI is not told (5.0.7 with UCX 1.18; `UCX_MEM_EVENTS=n` keeps UCX from it). Therefore three things are looked at:
//! that an unmapped page is told, once; that nobody but the C library itself is in `sbrk`, once; and that since then
//! nobody has changed any of the functions, each time.

use crate::abi;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Functions through which memory goes.
const WAYS: [&CStr; 6] = [c"munmap", c"mremap", c"madvise", c"mmap", c"brk", c"sbrk"];
/// The one that Open MPI leaves alone: it calls `brk`.
const UNTOUCHED: &CStr = c"sbrk";
/// Bytes at the beginning of a function; whoever takes one over needs no more.
const HEAD: usize = 16;

type Head = [u8; HEAD];

/// What the functions looked like when they were found to tell Open MPI.
pub(crate) struct Hooks {
    seen: Option<Vec<(*const Head, Head)>>,
}

// SAFETY: the addresses are of code, which stays and is only read.
unsafe impl Send for Hooks {}
// SAFETY: as above.
unsafe impl Sync for Hooks {}

impl Hooks {
    /// Looks; to be called when Open MPI's registration cache has been made, which is what sets its hooks.
    pub(crate) fn look() -> Self {
        let seen: Option<Vec<_>> = WAYS.iter().map(|name| Some(head_of(function(name)?))).collect();
        let as_built = function(UNTOUCHED).is_some_and(|at| as_in_its_file(at) == Some(true));
        Self { seen: seen.filter(|_| as_built && unmapping_is_told()) }
    }

    /// Whether a registration may be kept after its use.
    pub(crate) fn hold(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| {
            // SAFETY: the beginning of a function of the C library, which is never unloaded.
            seen.iter().all(|(at, head)| unsafe { at.read_volatile() } == *head)
        })
    }
}

/// Whether Open MPI was to keep registrations (`mpi_leave_pinned`).
pub(crate) fn are_wanted() -> bool {
    abi::symbol(c"opal_leave_pinned").is_some_and(|flag| {
        // SAFETY: a C `int` of libopen-pal that was settled when the cache was made.
        let flag = unsafe { flag.cast::<c_int>().read() };
        flag != 0
    })
}

fn function(name: &CStr) -> Option<*const Head> {
    // SAFETY: the name is NUL-terminated; the handle is the documented default.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address.cast_const().cast())
}

fn head_of(at: *const Head) -> (*const Head, Head) {
    // SAFETY: the beginning of a function, which is longer than that or followed by other code.
    (at, unsafe { at.read_volatile() })
}

/// Whether the code at an address is that of the file it was loaded from; `None` if that cannot be told.
fn as_in_its_file(at: *const Head) -> Option<bool> {
    let mut place = Place { address: at.addr() as u64, found: None };
    // SAFETY: `place` lives until the call returns, and the function has the type it is called with.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut place).cast()) };
    let (file, offset) = place.found?;
    let mut head = [0; HEAD];
    File::open(OsStr::from_bytes(&file)).ok()?.read_exact_at(&mut head, offset).ok()?;
    Some(head == head_of(at).1)
}

/// The search for the file that an address was loaded from.
struct Place {
    address: u64,
    /// Its name, and where in it.
    found: Option<(Vec<u8>, u64)>,
}

unsafe extern "C" fn visit(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    place: *mut c_void,
) -> c_int {
    // SAFETY: the linker passes a record that is good until the return, and what `as_in_its_file` gave it.
    let (object, place) = unsafe { (&*object, &mut *place.cast::<Place>()) };
    if object.dlpi_phdr.is_null() || object.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the record says how many headers there are.
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let base = object.dlpi_addr;
    let inside =
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD).find_map(|header| {
            let at = place.address.checked_sub(base.wrapping_add(header.p_vaddr))?;
            (at < header.p_filesz).then_some(header.p_offset + at)
        });
    let Some(offset) = inside else { return 0 };
    // SAFETY: a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(object.dlpi_name.cast::<c_char>()) };
    place.found = Some((name.to_bytes().to_vec(), offset));
    1
}

/// `opal_mem_hooks_callback_fn_t`.
type ReleaseFn =
    unsafe extern "C" fn(base: *mut c_void, size: usize, data: *mut c_void, from_alloc: bool);
/// `opal_mem_hooks_register_release`.
type RegisterFn = unsafe extern "C" fn(function: ReleaseFn, data: *mut c_void) -> c_int;
/// `opal_mem_hooks_unregister_release`.
type UnregisterFn = unsafe extern "C" fn(function: ReleaseFn) -> c_int;

/// That Open MPI told of the page below.
static TOLD: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn told(base: *mut c_void, _size: usize, page: *mut c_void, _from_alloc: bool) {
    // Other threads may unmap something meanwhile.
    if base == page {
        TOLD.store(true, Ordering::Relaxed);
    }
}

/// Whether Open MPI is told of a page that is mapped and unmapped.
fn unmapping_is_told() -> bool {
    let symbols = (
        abi::symbol(c"opal_mem_hooks_register_release"),
        abi::symbol(c"opal_mem_hooks_unregister_release"),
    );
    let (Some(register), Some(unregister)) = symbols else { return false };
    // SAFETY: the types are those of Open MPI's header opal/memoryhooks/memory.h.
    let (register, unregister) = unsafe {
        (
            mem::transmute::<*mut c_void, RegisterFn>(register.as_ptr()),
            mem::transmute::<*mut c_void, UnregisterFn>(unregister.as_ptr()),
        )
    };
    TOLD.store(false, Ordering::Relaxed);
    // SAFETY: a new page of nobody; it is unmapped once. The callback does not use it.
    unsafe {
        let page = libc::mmap(
            ptr::null_mut(),
            1,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return false;
        }
        let registered = register(told, page) == abi::SUCCESS;
        libc::munmap(page, 1);
        if registered {
            unregister(told);
        }
    }
    TOLD.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_function_is_that_of_its_file() {
        for name in WAYS {
            let at = function(name).expect("the C library has it");
            assert_eq!(as_in_its_file(at), Some(true), "{name:?}");
        }
    }

    #[test]
    fn changed_code_is_noticed() {
        let sbrk = function(c"sbrk").expect("the C library has it");
        let mut code = head_of(sbrk).1;
        let at: *const Head = &raw const code;
        let hooks = Hooks { seen: Some(vec![(at, code)]) };
        assert!(hooks.hold());
        code[3] ^= 1;
        std::hint::black_box(&mut code);
        assert!(!hooks.hold());
        assert_eq!(as_in_its_file(&raw const code), None, "it is from no file");
    }

    #[test]
    fn without_open_mpi_nothing_is_kept() {
        assert!(!Hooks::look().hold());
    }
}
