//! What a registration beyond the locked-memory limit says. Alone in its process, because it lowers a limit.

#[path = "support/under_test.rs"]
mod under_test;

use rdma_safe::ErrorKind;

/// Drops all capabilities of this thread, CAP_IPC_LOCK among them.
fn drop_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: capset(2) with a version 3 header and its two data structs of three words.
    let rc = unsafe { libc::syscall(libc::SYS_capset, &header, none.as_ptr()) };
    assert_eq!(rc, 0, "capset: {}", std::io::Error::last_os_error());
}

#[test]
fn the_error_names_the_limit() {
    let ctx = under_test::open();
    let pd = ctx.alloc_pd().unwrap();
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: a valid rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
    drop_capabilities();
    let small = pd.slots(4096, 8).expect("32 KiB fit into 64");
    let e = pd.slots(4096, 256).expect_err("1 MiB does not");
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    let text = e.to_string();
    assert!(text.contains("RLIMIT_MEMLOCK is 64 KiB"), "{text}");
    assert!(text.contains("ulimit -l") && text.contains("1048576 bytes"), "{text}");
    drop(small);
}
