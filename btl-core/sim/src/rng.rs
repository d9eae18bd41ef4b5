//! The only source of chance: xoshiro256**, seeded through SplitMix64.
use btl_core::Nanos;

/// A generator. Two with the same seed give the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// One step of SplitMix64: turns related seeds into unrelated numbers.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A range of delays; one in `tail` draws is up to 50 times as long (0: none is).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Shortest.
    pub min: Nanos,
    /// Longest, but for the tail.
    pub max: Nanos,
    /// One in how many is long.
    pub tail: u64,
}

impl Rng {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Rng {
        let a = mix(seed);
        let b = mix(a);
        let c = mix(b);
        Rng([a, b, c, mix(c)])
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `lo` to `hi`, both included.
    pub fn range(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below(hi.saturating_sub(lo) + 1)
    }

    /// True in `num` of `den` cases.
    pub fn chance(&mut self, num: u64, den: u64) -> bool {
        self.below(den) < num
    }

    /// One of `items`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// A number of the same order of magnitude as any other between `lo` ≥ 1 and `hi`.
    pub fn log_range(&mut self, lo: u64, hi: u64) -> u64 {
        let (a, b) = (lo.max(1).ilog2(), hi.max(1).ilog2());
        let bits = self.range(u64::from(a), u64::from(b));
        (self.range(1 << bits, (2 << bits) - 1)).clamp(lo, hi)
    }

    /// A delay.
    pub fn delay(&mut self, d: Delay) -> Nanos {
        let base = self.range(d.min, d.max);
        if d.tail > 0 && self.chance(1, d.tail) { base * self.range(2, 50) } else { base }
    }
}

/// Fills a payload with the bytes that message `id` has in the run of `seed`.
pub fn fill(seed: u64, id: u64, out: &mut [u8]) {
    let mut x = mix(seed ^ mix(id));
    for chunk in out.chunks_mut(8) {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let bytes = (x ^ (x >> 29)).to_le_bytes();
        for (to, from) in chunk.iter_mut().zip(bytes) {
            *to = from;
        }
    }
}

/// Whether a payload has the bytes [`fill`] gave message `id`.
pub fn matches(seed: u64, id: u64, data: &[u8]) -> bool {
    let mut x = mix(seed ^ mix(id));
    data.chunks(8).all(|chunk| {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let bytes = (x ^ (x >> 29)).to_le_bytes();
        bytes.iter().zip(chunk).all(|(a, b)| a == b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let (x, y): (Vec<_>, Vec<_>) = (0..100).map(|_| (a.bits(), b.bits())).unzip();
        assert_eq!(x, y);
        assert!((0..100).any(|i| c.bits() != x[i]));
    }

    #[test]
    fn ranges_hold() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            assert!((3..=9).contains(&rng.range(3, 9)));
            assert!((4..=64).contains(&rng.log_range(4, 64)));
        }
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_changed_byte_is_seen() {
        let mut data = [0; 37];
        fill(1, 2, &mut data);
        assert!(matches(1, 2, &data));
        assert!(!matches(1, 3, &data));
        data[36] ^= 1;
        assert!(!matches(1, 2, &data));
    }
}
