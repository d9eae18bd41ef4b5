//! R2: who brings memory of its own kind vouches for it.
struct Mine(Vec<u8>);

impl rdma_safe::StableBuffer for Mine { //~ E0200
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

fn main() {}
