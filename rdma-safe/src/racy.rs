//! Copying to and from memory that a peer's device may change at any moment.
//!
//! No reference is made to such memory and every access is atomic, so the compiler may assume nothing about it. A
//! peer's access meanwhile leaves a mixture of old and new bytes, never anything worse.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Bytes before the first 8-byte boundary, at most `len`.
fn head(at: *const u8, len: usize) -> usize {
    (at.addr().wrapping_neg() & (WORD - 1)).min(len)
}

/// Copies `data` to `to`.
///
/// # Safety
/// `to` is valid for writes of `data.len()` bytes, and no other thread of this process uses them meanwhile.
pub(crate) unsafe fn copy_in(to: *mut u8, data: &[u8]) {
    // SAFETY: `i` and what follows stay below the length the caller vouches for; words are only stored at addresses
    // that are multiples of their size; source words are read unaligned from a slice that is long enough.
    unsafe {
        let byte = |i: usize| AtomicU8::from_ptr(to.add(i)).store(*data.as_ptr().add(i), Relaxed);
        let mut i = head(to, data.len());
        (0..i).for_each(byte);
        while data.len() - i >= WORD {
            let word = ptr::read_unaligned(data.as_ptr().add(i).cast::<u64>());
            AtomicU64::from_ptr(to.add(i).cast()).store(word, Relaxed);
            i += WORD;
        }
        (i..data.len()).for_each(byte);
    }
}

/// Copies from `from` to `data`.
///
/// # Safety
/// `from` is valid for reads of `data.len()` bytes, and no other thread of this process writes them meanwhile.
pub(crate) unsafe fn copy_out(from: *mut u8, data: &mut [u8]) {
    let (len, out) = (data.len(), data.as_mut_ptr());
    // SAFETY: as in copy_in, with source and target exchanged.
    unsafe {
        let byte = |i: usize| out.add(i).write(AtomicU8::from_ptr(from.add(i)).load(Relaxed));
        let mut i = head(from, len);
        (0..i).for_each(byte);
        while len - i >= WORD {
            let word = AtomicU64::from_ptr(from.add(i).cast()).load(Relaxed);
            ptr::write_unaligned(out.add(i).cast::<u64>(), word);
            i += WORD;
        }
        (i..len).for_each(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exactly_what_it_is_told() {
        let source: Vec<u8> = (1..=64).collect();
        for start in 0..9 {
            for len in 0..40 {
                let mut memory = [0u8; 64];
                let mut back = vec![0; len];
                // SAFETY: start + len is below 64, and the memory is this thread's.
                unsafe {
                    copy_in(memory.as_mut_ptr().add(start), &source[3..3 + len]);
                    copy_out(memory.as_mut_ptr().add(start), &mut back);
                }
                assert_eq!(back, source[3..3 + len]);
                assert_eq!(memory[start..start + len], source[3..3 + len]);
                assert!(memory[..start].iter().chain(&memory[start + len..]).all(|b| *b == 0));
            }
        }
    }
}
