//! The helpers of `infiniband/ib.h` for native InfiniBand addresses.

use libc::c_int;

use crate::{__be32, ib_addr, ib_addr__bindgen_ty_1};

/// The bytes of an address; every member of the union has the same 16.
fn bytes(addr: &ib_addr) -> [u8; 16] {
    // SAFETY: any 16 bytes are a valid value of each member.
    unsafe { addr.ib_u.uib_addr8 }
}

/// 1 if the address is all zeros, else 0.
#[inline]
#[must_use]
pub fn ib_addr_any(addr: &ib_addr) -> c_int {
    c_int::from(u128::from_be_bytes(bytes(addr)) == 0)
}

/// 1 if the address is `::1`, else 0.
#[inline]
#[must_use]
pub fn ib_addr_loopback(addr: &ib_addr) -> c_int {
    c_int::from(u128::from_be_bytes(bytes(addr)) == 1)
}

/// Sets the address to four big-endian words.
#[inline]
pub fn ib_addr_set(addr: &mut ib_addr, w1: __be32, w2: __be32, w3: __be32, w4: __be32) {
    addr.ib_u = ib_addr__bindgen_ty_1 { uib_addr32: [w1, w2, w3, w4] };
}

/// 0 if the addresses are equal, else below or above 0 in the order of their bytes.
#[inline]
#[must_use]
pub fn ib_addr_cmp(a: &ib_addr, b: &ib_addr) -> c_int {
    bytes(a).cmp(&bytes(b)) as c_int
}
