//! Open MPI 5.0: BTL 3.3.0. All else it has in common with 6.0 (`pmix.rs`).

use core::ffi::c_int;

pub(crate) use super::pmix::*;

/// The release series, as its version strings begin.
pub(crate) const SERIES: &str = "5.0.";
/// For messages; and in the file, the mark by which tools know it.
pub(crate) const BUILT_FOR: &str = "built for Open MPI 5.0.x";
/// The release whose headers the bindings were made from. Open MPI does not check it.
pub(crate) const PROJECT_VERSION: [c_int; 3] = [5, 0, 7];
