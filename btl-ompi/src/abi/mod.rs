//! The C interface of Open MPI's BTL framework, for the release series that the features choose:
//! 6.0 with `ompi60`, else 5.0 with `ompi50`, else 4.1.
//!
//! Everything outside this folder uses one set of names. What is the same in all series is in
//! `common.rs`, what differs in the series' own file: the process record, how a message is handed
//! up, the modex. Only what the component touches is bound; sizes and offsets are asserted at build
//! time and compared with the headers by the test in `check.rs`.

#[macro_use]
mod layout;
mod common;
#[cfg(any(feature = "ompi50", feature = "ompi60"))]
mod pmix;
mod rma;
#[cfg_attr(feature = "ompi60", path = "series/v60.rs")]
#[cfg_attr(all(feature = "ompi50", not(feature = "ompi60")), path = "series/v50.rs")]
#[cfg_attr(not(any(feature = "ompi50", feature = "ompi60")), path = "series/v41.rs")]
mod series;
mod symbol;

#[cfg(test)]
mod check;
#[cfg(test)]
pub(crate) mod stub;

pub(crate) use common::*;
pub(crate) use rma::*;
pub(crate) use series::*;
pub(crate) use symbol::symbol;
