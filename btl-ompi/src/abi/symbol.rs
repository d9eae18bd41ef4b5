//! Symbols that not every release series has: looked up by name after the version gate, so that the
//! component also loads into the wrong Open MPI and can say so.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

/// Looks a symbol up by name, as the dynamic linker would for this component.
#[cfg(not(test))]
pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is NUL-terminated; the handle is the documented default.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// What the stand-in for Open MPI has.
#[cfg(test)]
pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    super::stub::symbol(name)
}
