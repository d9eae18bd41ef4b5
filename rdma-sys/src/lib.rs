//! Raw bindings of libibverbs and librdmacm, the user space libraries of RDMA on Linux (InfiniBand, RoCE, iWARP).
//!
//! All that the headers `infiniband/{verbs,ib,sa,opcode,tm_types}.h` and `rdma/{rdma_cma,rdma_verbs,rsocket}.h` of
//! rdma-core 44 declare is here under its C name. Newer releases only append, so the crate works with any later one.
//! For safe wrappers see the crates `rdma-safe` and `rdma-cm`.
//!
//! ```no_run
//! let mut count = 0;
//! // SAFETY: the list is freed once, and no pointer out of it is used afterwards.
//! unsafe {
//!     let list = rdma_sys::ibv_get_device_list(&raw mut count);
//!     if list.is_null() {
//!         panic!("no RDMA support: {}", std::io::Error::last_os_error());
//!     }
//!     for i in 0..usize::try_from(count).unwrap_or(0) {
//!         let name = std::ffi::CStr::from_ptr(rdma_sys::ibv_get_device_name(*list.add(i)));
//!         println!("{}", name.to_string_lossy());
//!     }
//!     rdma_sys::ibv_free_device_list(list);
//! }
//! ```
//!
//! # Differences from C
//! - An enum is a struct around an integer with associated constants (`ibv_qp_state::IBV_QPS_RTS`): a value that this
//!   crate does not know is no undefined behaviour. Enums of flags have `|` and `&`.
//! - Functions that the headers define inline (`ibv_post_send`, `ibv_poll_cq`, `ibv_wr_*`, `rdma_post_*` ...) have Rust
//!   bodies. An operation that a provider lacks is the error `EOPNOTSUPP` where C may jump to address 0:
//!   `ibv_poll_cq` returns its negative, functions that return a pointer return null and set errno, the `ibv_wr_*`
//!   setters return an `int` instead of nothing, and `ibv_wc_read_*` return an `Option`.
//! - `ibv_reg_mr`, `ibv_reg_mr_iova` and `ibv_query_port` are what the macros of these names do.
//! - `Default` of a struct is all zeros, which is a valid value of each type here (though not always a meaningful one).
//!
//! # Linking
//! A build needs `libibverbs.so` and `librdmacm.so` when a program is linked (Debian, Ubuntu: `libibverbs-dev
//! librdmacm-dev`; Fedora, RHEL, SUSE: `rdma-core-devel`; Arch: `rdma-core`), no headers and no clang. Without the
//! libraries `cargo check` and `cargo doc` work, and the linker's error names the packages. Libraries in a folder of
//! their own are found with the environment variable `RDMA_SYS_LIB_DIR`, or `LIBRARY_PATH` as the compiler reads it.
//!
//! # Features
//! - `bindgen` (off): makes the bindings at build time from the installed headers, found with pkg-config. It needs
//!   libclang, and gives what the installed rdma-core has beyond 44. Do not rely on its struct literals being
//!   complete with the next headers: end them with `..Default::default()`.
//!
//! The checked-in bindings are renewed, on a machine with rdma-core 44, by `cargo xtask bindings`, which runs
//! `RDMA_SYS_WRITE_BINDINGS=1 cargo build -p rdma-safe-sys --features bindgen`. The output has no path of the machine and is
//! the same each time.
//!
//! # Safety
//! Every function has the contract of its man page; those with a Rust body state it. In short:
//! - Handles are live, and used with handles of the same context. An object is destroyed after all that depends on it.
//! - Memory named by a posted request stays registered and valid until its completion has been polled, or its queue
//!   pair has been destroyed with success; what the device or a peer may write must not be reachable by a Rust reference.
//! - Verbs may be called from any thread, but an id of librdmacm and its event channel are one thread's at a time, and
//!   of a structure only its owner writes fields.
//! - After `fork` the child uses nothing of it, unless the kernel or `ibv_fork_init` makes that safe.
//!
//! # Targets
//! Linux with 64-bit pointers. Sizes of mutexes and conditions inside of objects come from the crate libc. Tested on
//! `x86_64`.

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
