//! From a serial to who has it: open addressing on the serial itself.
//!
//! Serials are dense and issued in order, so nearly every look-up is one comparison; a std HashMap costs more than the
//! rest of a poll.

struct Entry<T> {
    /// 0: free. Serials start at 1.
    serial: u64,
    value: Option<T>,
}

/// The table; at most half full, its size a power of two.
pub(crate) struct Route<T> {
    entries: Box<[Entry<T>]>,
    /// One less than their number: kept, so that a look-up need not ask whether there are any.
    mask: usize,
    used: usize,
}

fn free<T>(n: usize) -> Box<[Entry<T>]> {
    (0..n).map(|_| Entry { serial: 0, value: None }).collect()
}

impl<T> Route<T> {
    pub(crate) fn new() -> Route<T> {
        Route { entries: free(8), mask: 7, used: 0 }
    }

    #[inline(always)]
    fn find(&self, serial: u64) -> Option<usize> {
        let mask = self.mask;
        let mut i = serial as usize & mask;
        // Half the entries are free, so this ends.
        while let Some(e) = self.entries.get(i) {
            if e.serial == serial {
                return Some(i);
            }
            if e.serial == 0 {
                return None;
            }
            i = (i + 1) & mask;
        }
        None
    }

    pub(crate) fn get(&self, serial: u64) -> Option<&T> {
        self.entries.get(self.find(serial)?)?.value.as_ref()
    }

    /// Where the entry of a serial nearly always is. Only the low bits of `serial` count.
    #[inline(always)]
    fn home(&mut self, serial: u64) -> &mut Entry<T> {
        // SAFETY: `mask` is one less than the length (`new` and `insert` set them together; nothing else does), which
        // is at least 8, so the index is below the length.
        unsafe { self.entries.get_unchecked_mut(serial as usize & self.mask) }
    }

    /// What is where the entry of a serial nearly always is, whosever it is. Only the low bits of `serial` count.
    #[inline(always)]
    pub(crate) fn near(&mut self, serial: u64) -> Option<&mut T> {
        self.home(serial).value.as_mut()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut T> {
        match self.home(serial).serial == serial {
            true => self.home(serial).value.as_mut(),
            false => self.far(serial),
        }
    }

    #[cold]
    #[inline(never)]
    fn far(&mut self, serial: u64) -> Option<&mut T> {
        let i = self.find(serial)?;
        self.entries.get_mut(i)?.value.as_mut()
    }

    pub(crate) fn insert(&mut self, serial: u64, value: T) {
        if (self.used + 1) * 2 > self.entries.len() {
            let bigger = free(self.entries.len() * 2);
            let old = std::mem::replace(&mut self.entries, bigger);
            self.mask = self.entries.len() - 1;
            self.used = 0;
            for e in old.into_iter().filter(|e| e.serial != 0) {
                self.place(e);
            }
        }
        self.place(Entry { serial, value: Some(value) });
    }

    fn place(&mut self, new: Entry<T>) {
        let mask = self.mask;
        let mut i = new.serial as usize & mask;
        while let Some(e) = self.entries.get_mut(i) {
            if e.serial == 0 {
                *e = new;
                self.used += 1;
                return;
            }
            i = (i + 1) & mask;
        }
    }

    /// Takes an entry out and closes the gap, so that no look-up runs over it.
    pub(crate) fn remove(&mut self, serial: u64) -> Option<T> {
        let mask = self.mask;
        let mut gap = self.find(serial).filter(|_| serial != 0)?;
        let out = self.take(gap);
        self.used -= 1;
        let mut i = gap;
        loop {
            i = (i + 1) & mask;
            let Some(e) = self.entries.get(i).filter(|e| e.serial != 0) else { break };
            let home = e.serial as usize & mask;
            // It may move back to the gap if that is not before its home.
            if i.wrapping_sub(home) & mask >= i.wrapping_sub(gap) & mask {
                let moved = self.take(i);
                if let (Some(g), Some(moved)) = (self.entries.get_mut(gap), moved) {
                    *g = moved;
                }
                gap = i;
            }
        }
        out?.value
    }

    fn take(&mut self, i: usize) -> Option<Entry<T>> {
        let e = self.entries.get_mut(i)?;
        Some(std::mem::replace(e, Entry { serial: 0, value: None }))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|e| e.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Against a map, with serials that collide on purpose.
    #[test]
    fn behaves_like_a_map() {
        let (mut route, mut model) = (Route::new(), BTreeMap::new());
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for step in 0..20_000u32 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let serial = 1 + (x % 40) * [1, 8, 64][(x >> 40) as usize % 3];
            if x >> 60 < 8 && !model.contains_key(&serial) {
                route.insert(serial, step);
                model.insert(serial, step);
            } else {
                assert_eq!(route.remove(serial), model.remove(&serial));
            }
            let probe = 1 + (x >> 20) % 2600;
            assert_eq!(route.get(probe), model.get(&probe));
            assert_eq!(route.get_mut(probe).copied(), model.get(&probe).copied());
            assert_eq!(route.used, model.len());
        }
        for (s, i) in &model {
            assert_eq!(route.get(*s), Some(i));
        }
        assert_eq!(route.values().count(), model.len());
        assert!(route.get(0).is_none() && route.get_mut(0).is_none());
        assert_eq!(route.remove(0), None);
    }
}
