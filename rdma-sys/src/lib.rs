//! Raw bindings of libibverbs and librdmacm.

#[allow(
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs
)]
mod bindings;
mod inline;

pub use bindings::*;
pub use inline::*;
