//! The C interface of Open MPI's BTL framework, one file per release series.
//!
//! Everything outside this folder uses the names of the selected series through this module, so
//! that another series is one more file and one more feature. Only what the component touches is
//! bound; sizes and offsets are asserted at build time and compared with the installed headers by
//! the test in `check.rs`.

#[macro_use]
mod layout;
mod v41;

#[cfg(test)]
mod check;
#[cfg(test)]
pub(crate) mod stub;

pub(crate) use v41::*;
