//! Raw bindings of libibverbs and librdmacm.
// One layout: pointers of 64 bits. The headers of rdma-core have no other one in use.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rdma-safe-sys supports Linux on 64-bit targets");

mod aliases;
mod bindings {
    // Generated: lints and formatting do not apply.
    #![allow(
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        missing_docs,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unsafe_op_in_unsafe_fn
    )]
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    #[cfg(not(feature = "bindgen"))]
    include!("bindings.rs");
}
mod inline;
mod layout;

pub use aliases::*;
pub use bindings::*;
pub use inline::*;
