//! R6: a window is bound to a region, and both are objects.
use rdma_safe::{Local, MemoryRegion, MemoryWindow, Request, WindowAccess};

fn pointers() {
    let (window, region) = (8 as *mut rdma_sys::ibv_mw, 16 as *mut rdma_sys::ibv_mr);
    let _ = Request::bind(window, region, 0, 1, WindowAccess::READ); //~ E0308
}

fn local(window: MemoryWindow, region: &MemoryRegion<Local>) {
    let _ = Request::bind(window, region, 0, 1, WindowAccess::READ); //~ E0308
}

fn main() {}
