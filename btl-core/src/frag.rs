//! The table of messages under way, made once, and first-in first-out lists through it.

/// No entry.
const NIL: u32 = u32::MAX;

/// One message in a slot.
#[derive(Debug)]
pub(crate) struct Frag<S> {
    /// `None` while the device has it.
    pub(crate) slot: Option<S>,
    /// Where the slot's memory is, to know it again when a lane is closed.
    /// Of a one-sided operation: its place among those.
    pub(crate) addr: usize,
    pub(crate) cookie: u64,
    /// Payload bytes.
    pub(crate) len: u32,
    /// Most payload bytes of its class.
    pub(crate) max: u32,
    pub(crate) tag: u8,
    /// The class of its buffer, which need not be that of the lane it travels on.
    pub(crate) class: u8,
    /// A one-sided operation, not a message.
    pub(crate) one_sided: bool,
}

#[derive(Debug)]
struct Entry<S> {
    frag: Option<Frag<S>>,
    /// Next in the list this entry is on; of a free one the next free one.
    next: u32,
}

/// A fixed number of messages.
#[derive(Debug)]
pub(crate) struct Table<S> {
    entries: Vec<Entry<S>>,
    /// The last that became free, which is the likeliest to be in the cache.
    free: u32,
}

/// A first-in first-out list of entries of one [`Table`]. An entry is on at most one list.
#[derive(Debug)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { head: NIL, tail: NIL, len: 0 }
    }
}

impl Fifo {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        (self.len > 0).then_some(self.head)
    }
}

impl<S> Table<S> {
    pub(crate) fn new(size: u32) -> Table<S> {
        let mut table = Table { entries: Vec::new(), free: NIL };
        table.grow(size);
        table
    }

    pub(crate) fn size(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Makes room for `more` entries: at the start, and when a lane is added.
    pub(crate) fn grow(&mut self, more: u32) {
        self.entries.reserve(more as usize);
        for _ in 0..more {
            let i = self.entries.len() as u32;
            self.entries.push(Entry { frag: None, next: self.free });
            self.free = i;
        }
    }

    /// Takes a message in; gives it back if the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, frag: Frag<S>) -> Result<u32, Frag<S>> {
        let i = self.free;
        // Beyond the table when nothing is free.
        let Some(entry) = self.entries.get_mut(i as usize) else { return Err(frag) };
        self.free = entry.next;
        entry.frag = Some(frag);
        Ok(i)
    }

    /// Takes a message out. It must be on no list.
    #[inline]
    pub(crate) fn remove(&mut self, i: u32) -> Option<Frag<S>> {
        let entry = self.entries.get_mut(i as usize)?;
        let frag = entry.frag.take()?;
        entry.next = self.free;
        self.free = i;
        Some(frag)
    }

    /// The entry that the next [`fill`](Table::fill) takes.
    #[inline(always)]
    pub(crate) fn vacancy(&self) -> Option<u32> {
        (self.free != NIL).then_some(self.free)
    }

    /// Puts a message into the [`vacancy`](Table::vacancy), and that at the end of a list.
    #[inline(always)]
    pub(crate) fn fill(&mut self, i: u32, frag: Frag<S>, list: &mut Fifo) {
        // The last entry of an empty list is the one it is filled with, so there is one to link in any case.
        let last = if list.len == 0 { i } else { list.tail };
        if let Some(entry) = self.entries.get_mut(last as usize) {
            let free = std::mem::replace(&mut entry.next, i);
            if list.len == 0 {
                self.free = free;
                list.head = i;
            }
        }
        if let Some(entry) = self.entries.get_mut(i as usize) {
            if list.len != 0 {
                self.free = entry.next;
            }
            entry.next = NIL;
            entry.frag = Some(frag);
        }
        list.tail = i;
        list.len += 1;
    }

    /// Takes the first message of a list out, if its slot is with the device: cookie, length, most, class.
    #[inline(always)]
    pub(crate) fn pop_posted(&mut self, list: &mut Fifo) -> Option<(u64, u32, u32, u8)> {
        let i = list.front()?;
        let entry = self.entries.get_mut(i as usize)?;
        let &Frag { slot: None, cookie, len, max, class, .. } = entry.frag.as_ref()? else {
            return None;
        };
        entry.frag = None;
        list.head = std::mem::replace(&mut entry.next, self.free);
        list.len -= 1;
        self.free = i;
        Some((cookie, len, max, class))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, i: u32) -> Option<&mut Frag<S>> {
        self.entries.get_mut(i as usize)?.frag.as_mut()
    }

    #[inline]
    pub(crate) fn push(&mut self, list: &mut Fifo, i: u32) {
        push(&mut self.entries, list, i);
    }

    #[inline]
    pub(crate) fn pop(&mut self, list: &mut Fifo) -> Option<u32> {
        pop(&self.entries, list)
    }

    /// Moves all of `more` behind `list`.
    pub(crate) fn append(&mut self, list: &mut Fifo, more: &mut Fifo) {
        let more = std::mem::take(more);
        if list.len == 0 {
            *list = more;
        } else if more.len > 0 {
            if let Some(tail) = self.entries.get_mut(list.tail as usize) {
                tail.next = more.head;
            }
            (list.tail, list.len) = (more.tail, list.len + more.len);
        }
    }

    /// Whether any entry of `list` is like that.
    pub(crate) fn any(&self, list: &Fifo, mut is: impl FnMut(&Frag<S>) -> bool) -> bool {
        let mut at = list.head;
        (0..list.len).any(|_| {
            let Some(entry) = self.entries.get(at as usize) else { return false };
            at = entry.next;
            entry.frag.as_ref().is_some_and(&mut is)
        })
    }

    /// The entry of `list` whose slot lies at `addr`.
    pub(crate) fn find(&mut self, list: &Fifo, addr: usize) -> Option<u32> {
        let mut at = list.front();
        for _ in 0..list.len {
            let i = at?;
            let entry = self.entries.get(i as usize)?;
            if entry.frag.as_ref().is_some_and(|frag| frag.addr == addr && !frag.one_sided) {
                return Some(i);
            }
            at = (entry.next != NIL).then_some(entry.next);
        }
        None
    }
}

#[inline]
fn push<S>(entries: &mut [Entry<S>], list: &mut Fifo, i: u32) {
    if let Some(entry) = entries.get_mut(i as usize) {
        entry.next = NIL;
    }
    if list.len == 0 {
        list.head = i;
    } else if let Some(tail) = entries.get_mut(list.tail as usize) {
        tail.next = i;
    }
    list.tail = i;
    list.len += 1;
}

#[inline]
fn pop<S>(entries: &[Entry<S>], list: &mut Fifo) -> Option<u32> {
    let i = list.front()?;
    list.head = entries.get(i as usize)?.next;
    list.len -= 1;
    Some(i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frag(cookie: u64) -> Frag<u8> {
        Frag {
            slot: Some(0),
            addr: cookie as usize,
            cookie,
            len: 0,
            max: 0,
            tag: 0,
            class: 0,
            one_sided: false,
        }
    }

    #[test]
    fn full_table_gives_the_message_back() {
        let mut t = Table::new(2);
        let (a, b) = (t.insert(frag(1)).unwrap(), t.insert(frag(2)).unwrap());
        assert_eq!(t.insert(frag(3)).unwrap_err().cookie, 3);
        assert_eq!(t.remove(a).unwrap().cookie, 1);
        assert!(t.remove(a).is_none());
        assert_eq!(t.insert(frag(4)).unwrap(), a);
        assert_ne!(a, b);
        t.grow(1);
        assert!(t.insert(frag(5)).is_ok());
    }

    #[test]
    fn lists_keep_order_and_find_by_address() {
        let mut t = Table::new(8);
        let (mut x, mut y) = (Fifo::default(), Fifo::default());
        for n in 0..8 {
            let i = t.insert(frag(n)).unwrap();
            t.push(if n % 2 == 0 { &mut x } else { &mut y }, i);
        }
        assert!(t.find(&x, 4).is_some() && t.find(&y, 4).is_none() && t.find(&x, 6).is_some());
        for n in [0, 2, 4, 6] {
            let i = t.pop(&mut x).unwrap();
            assert_eq!(t.remove(i).unwrap().cookie, n);
        }
        assert!(t.pop(&mut x).is_none() && x.is_empty() && y.len() == 4);
        let i = t.insert(frag(9)).unwrap();
        t.push(&mut x, i);
        assert_eq!(x.front(), Some(i));
        t.append(&mut x, &mut y);
        assert!(y.is_empty());
        t.append(&mut x, &mut y);
        t.append(&mut y, &mut x);
        for n in [9, 1, 3, 5, 7] {
            let i = t.pop(&mut y).unwrap();
            assert_eq!(t.remove(i).unwrap().cookie, n);
        }
        assert!(x.is_empty() && y.is_empty());
    }
}
