//! What one is told who may not lock memory or open the device. Alone in their process, because they give up rights.
//!
//! Needs root, as the test machine has.

#[path = "support/under_test.rs"]
mod under_test;

use rdma_safe::{Device, ErrorKind};
use std::os::unix::fs::PermissionsExt;

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
fn the_error_names_the_memory_limit() {
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

#[test]
fn the_error_names_the_missing_right() {
    let ctx = under_test::open();
    // SAFETY: an open context's device; the array is NUL-terminated.
    let node = unsafe { std::ffi::CStr::from_ptr((*(*ctx.as_raw()).device).dev_name.as_ptr()) };
    let path = format!("/dev/infiniband/{}", node.to_str().unwrap());
    let device = Device::by_name(ctx.name()).unwrap();
    drop(ctx);
    let before = std::fs::metadata(&path).unwrap().permissions();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    // A thread of its own: the raw system call changes only the calling thread's user.
    let opened = std::thread::spawn(move || {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: setresuid(2) with plain numbers.
        let rc = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(rc, 0, "setresuid: {}", std::io::Error::last_os_error());
        device.open()
    })
    .join()
    .unwrap();
    std::fs::set_permissions(&path, before).unwrap();
    let e = opened.expect_err("opened without the right to");
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.to_string().contains("/dev/infiniband"), "{e}");
}

/// No descriptors left: every call that needs one says so, and what exists goes on.
#[test]
fn the_error_names_the_descriptor_limit() {
    let ctx = under_test::open();
    let device = Device::by_name(ctx.name()).unwrap();
    // A child of its own would be needed for a limit of its own; so all that is left is used up instead.
    let mut hoard = Vec::new();
    let limit = {
        let mut l = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a writable rlimit.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut l) }, 0);
        l
    };
    let low = libc::rlimit { rlim_cur: 64, ..limit };
    // SAFETY: a valid rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &low) }, 0);
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    let opened = device.open();
    let channel = ctx.completion_channel();
    let pd = ctx.alloc_pd();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    drop(hoard);
    for e in [opened.map(drop).unwrap_err(), channel.map(drop).unwrap_err()] {
        assert_eq!(e.errno(), libc::EMFILE, "{e}");
        assert!(e.to_string().contains("RLIMIT_NOFILE is 64"), "{e}");
        assert!(e.to_string().contains("ulimit -n"), "{e}");
    }
    drop(pd.expect("needs no descriptor").slots(64, 1).unwrap());
    drop(device.open().expect("as before"));
}
