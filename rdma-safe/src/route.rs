//! From a queue pair's serial to its place in a group: open addressing on the serial itself.
//!
//! Serials are dense and issued in order, so nearly every look-up is one comparison; a std HashMap costs more than the
//! rest of a poll.

#![forbid(unsafe_code)]

#[derive(Clone, Copy)]
struct Entry {
    /// 0: free. Serials start at 1.
    serial: u64,
    index: u32,
}

const FREE: Entry = Entry { serial: 0, index: 0 };

/// The table; at most half full, its size a power of two.
pub(crate) struct Route {
    entries: Box<[Entry]>,
    used: usize,
}

impl Route {
    pub(crate) fn new() -> Route {
        Route { entries: Box::new([FREE; 8]), used: 0 }
    }

    #[inline(always)]
    fn mask(&self) -> usize {
        self.entries.len().wrapping_sub(1)
    }

    #[inline(always)]
    pub(crate) fn get(&self, serial: u64) -> Option<u32> {
        let mask = self.mask();
        let mut i = serial as usize & mask;
        // Half the entries are free, so this ends.
        while let Some(e) = self.entries.get(i) {
            if e.serial == serial {
                return (serial != 0).then_some(e.index);
            }
            if e.serial == 0 {
                return None;
            }
            i = (i + 1) & mask;
        }
        None
    }

    pub(crate) fn insert(&mut self, serial: u64, index: u32) {
        if (self.used + 1) * 2 > self.entries.len() {
            let bigger = vec![FREE; self.entries.len() * 2].into_boxed_slice();
            let old = std::mem::replace(&mut self.entries, bigger);
            self.used = 0;
            for e in old.iter().filter(|e| e.serial != 0) {
                self.place(*e);
            }
        }
        self.place(Entry { serial, index });
    }

    fn place(&mut self, new: Entry) {
        let mask = self.mask();
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
    pub(crate) fn remove(&mut self, serial: u64) {
        let mask = self.mask();
        let mut gap = serial as usize & mask;
        loop {
            match self.entries.get(gap) {
                Some(e) if e.serial == serial && serial != 0 => break,
                Some(e) if e.serial != 0 => gap = (gap + 1) & mask,
                _ => return,
            }
        }
        self.used -= 1;
        let mut i = gap;
        loop {
            i = (i + 1) & mask;
            let Some(&e) = self.entries.get(i).filter(|e| e.serial != 0) else { break };
            let home = e.serial as usize & mask;
            // It may move back to the gap if that is not before its home.
            if i.wrapping_sub(home) & mask >= i.wrapping_sub(gap) & mask {
                if let Some(g) = self.entries.get_mut(gap) {
                    *g = e;
                }
                gap = i;
            }
        }
        if let Some(g) = self.entries.get_mut(gap) {
            *g = FREE;
        }
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
                route.remove(serial);
                model.remove(&serial);
            }
            let probe = 1 + (x >> 20) % 2600;
            assert_eq!(route.get(probe), model.get(&probe).copied());
            assert_eq!(route.used, model.len());
        }
        for (s, i) in &model {
            assert_eq!(route.get(*s), Some(*i));
        }
        assert_eq!(route.get(0), None);
    }
}
