//! Copying to and from memory that peers' devices and other threads may change at any moment.
//!
//! Every access is atomic, and every byte is always accessed in the same unit: the 8-byte word it lies in, or alone, if
//! it lies in no whole word of the region. (Atomics of different sizes on the same bytes would be a data race.) So
//! whoever holds a share of the region may copy, and count in its words, while others do. What is copied while it
//! changes is a mixture of old and new; nothing worse happens.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

const WORD: usize = size_of::<u64>();

/// Memory, and where its whole words begin and end.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    start: *mut u8,
    len: usize,
    /// Offset of the first whole word, and of the first byte behind the last.
    first: usize,
    end: usize,
}

impl Words {
    /// # Safety
    /// `start` is valid for reads and writes of `len` bytes as long as the value is used, and nobody in this process
    /// accesses them but through a `Words` of the same memory.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Words {
        let first = (start.addr().wrapping_neg() & (WORD - 1)).min(len);
        Words { start, len, first, end: first + (len - first) / WORD * WORD }
    }

    /// The word at `offset`, if it is a whole one.
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let whole =
            offset >= self.first && offset < self.end && (offset - self.first).is_multiple_of(WORD);
        // SAFETY: a whole word of memory that is valid as `new` was promised; aligned, because the first one is.
        whole.then(|| unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) })
    }

    fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        // SAFETY: within the memory.
        (offset < self.len).then(|| unsafe { AtomicU8::from_ptr(self.start.add(offset)) })
    }

    /// The whole word around `offset`, and how far in that is.
    fn around(&self, offset: usize) -> Option<(&AtomicU64, usize)> {
        let within = offset.wrapping_sub(self.first) % WORD;
        Some((self.word(offset.checked_sub(within)?)?, within))
    }

    /// Copies to `offset` as much as fits.
    pub(crate) fn copy_in(&self, offset: usize, mut data: &[u8]) {
        let mut at = offset;
        while !data.is_empty() {
            let took = match self.around(at) {
                Some((word, within)) => {
                    let (piece, _) = data.split_at(data.len().min(WORD - within));
                    put(word, within, piece);
                    piece.len()
                }
                None => {
                    let (Some(byte), Some(b)) = (self.byte(at), data.first()) else { return };
                    byte.store(*b, Relaxed);
                    1
                }
            };
            at += took;
            data = data.get(took..).unwrap_or_default();
        }
    }

    /// Copies from `offset` as much as there is.
    pub(crate) fn copy_out(&self, offset: usize, mut data: &mut [u8]) {
        let mut at = offset;
        while !data.is_empty() {
            let took = match self.around(at) {
                Some((word, within)) => {
                    let bytes = word.load(Relaxed).to_ne_bytes();
                    let took = data.len().min(WORD - within);
                    data.iter_mut().zip(bytes.iter().skip(within)).for_each(|(d, b)| *d = *b);
                    took
                }
                None => {
                    let (Some(byte), Some(d)) = (self.byte(at), data.first_mut()) else { return };
                    *d = byte.load(Relaxed);
                    1
                }
            };
            at += took;
            data = data.get_mut(took..).unwrap_or_default();
        }
    }
}

/// Replaces the bytes of a word from `within` on, and no others, whoever changes those meanwhile.
#[inline]
fn put(word: &AtomicU64, within: usize, piece: &[u8]) {
    if let Ok(whole) = <[u8; WORD]>::try_from(piece) {
        word.store(u64::from_ne_bytes(whole), Relaxed);
        return;
    }
    let changed = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes.iter_mut().skip(within).zip(piece).for_each(|(b, new)| *b = *new);
        Some(u64::from_ne_bytes(bytes))
    };
    // Always Ok: `changed` never declines.
    let _ = word.fetch_update(Relaxed, Relaxed, changed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exactly_what_it_is_told() {
        let source: Vec<u8> = (1..=64).collect();
        for start in 0..9 {
            for size in 0..30 {
                for from in 0..=size {
                    for len in 0..=size - from {
                        let mut memory = [0u8; 48];
                        let mut back = vec![0; len];
                        // SAFETY: start + size is below 48, and the memory is this thread's.
                        let words = unsafe { Words::new(memory.as_mut_ptr().add(start), size) };
                        words.copy_in(from, &source[..len]);
                        words.copy_out(from, &mut back);
                        assert_eq!(back, source[..len]);
                        let at = start + from;
                        assert_eq!(memory[at..at + len], source[..len]);
                        let others = memory[..at].iter().chain(&memory[at + len..]);
                        assert!(others.copied().all(|b| b == 0), "{start} {size} {from} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn neighbours_in_a_word_do_not_disturb_each_other() {
        let mut memory = [0u64; 2];
        // SAFETY: 16 bytes that outlive the threads, which use them through `words` alone.
        let words = unsafe { Words::new(memory.as_mut_ptr().cast(), 16) };
        struct Shared(Words);
        // SAFETY: `Words` accesses its memory atomically only.
        unsafe impl Sync for Shared {}
        let shared = &Shared(words);
        std::thread::scope(|s| {
            for i in 0..8 {
                s.spawn(move || {
                    let mut last = 0;
                    for n in 0..if cfg!(miri) { 20 } else { 20_000u32 } {
                        let mut seen = [0];
                        shared.0.copy_out(4 + i, &mut seen);
                        assert_eq!(seen[0], last, "byte {i} lost a write");
                        last = n as u8;
                        shared.0.copy_in(4 + i, &[last]);
                    }
                });
            }
        });
    }
}
