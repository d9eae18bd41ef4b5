//! What a peer has to know to use a piece of our memory, and we of its.

#![forbid(unsafe_code)]

/// A piece of remotely accessible memory: address, length and key, as its owner tells them to a peer.
///
/// Of our own memory from [`MemoryRegion::remote`](crate::MemoryRegion::remote),
/// [`RemoteSlot::remote`](crate::RemoteSlot::remote) and [`MemoryWindow::remote`](crate::MemoryWindow::remote).
///
/// It is only a name. One that is wrong, stale or made up by the peer is refused by the device that owns the memory,
/// and ends the connection, no more: our own memory is never touched through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRange {
    /// Address of the first byte, as the owner's device knows it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The owner's key.
    pub rkey: u32,
}

impl RemoteRange {
    /// Bytes of the form on the wire.
    pub const WIRE_LEN: usize = 20;

    /// `len` bytes from `offset` on; `None` when they are not all within the range, or its addresses wrap.
    ///
    /// ```
    /// # use rdma_safe::RemoteRange;
    /// let whole = RemoteRange { addr: 4096, len: 100, rkey: 7 };
    /// assert_eq!(whole.slice(10, 20), Some(RemoteRange { addr: 4106, len: 20, rkey: 7 }));
    /// assert_eq!(whole.slice(90, 11), None);
    /// ```
    pub fn slice(self, offset: u64, len: u64) -> Option<RemoteRange> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len)?;
        self.addr.checked_add(end)?;
        Some(RemoteRange { addr: self.addr.checked_add(offset)?, len, rkey: self.rkey })
    }

    /// To tell a peer: address, length, key, each big endian.
    pub fn to_bytes(self) -> [u8; Self::WIRE_LEN] {
        let mut out = [0; Self::WIRE_LEN];
        let (addr, rest) = out.split_at_mut(8);
        let (len, rkey) = rest.split_at_mut(8);
        addr.copy_from_slice(&self.addr.to_be_bytes());
        len.copy_from_slice(&self.len.to_be_bytes());
        rkey.copy_from_slice(&self.rkey.to_be_bytes());
        out
    }

    /// What a peer told with [`to_bytes`](Self::to_bytes). Every value is accepted, see the type.
    pub fn from_bytes(bytes: &[u8; Self::WIRE_LEN]) -> RemoteRange {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, rkey @ ..] = *bytes;
        RemoteRange {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            len: u64::from_be_bytes([i, j, k, l, m, n, o, p]),
            rkey: u32::from_be_bytes(rkey),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside() {
        let r = RemoteRange { addr: 100, len: 10, rkey: 1 };
        assert_eq!(r.slice(0, 10), Some(r));
        assert_eq!(r.slice(10, 0).map(|s| (s.addr, s.len)), Some((110, 0)));
        for (offset, len) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(r.slice(offset, len), None, "{len} at {offset}");
        }
        let wraps = RemoteRange { addr: u64::MAX - 3, len: 10, rkey: 1 };
        assert_eq!(wraps.slice(0, 10), None);
        assert_eq!(wraps.slice(1, 1).map(|s| s.addr), Some(u64::MAX - 2));
    }

    #[test]
    fn the_wire_form_is_big_endian() {
        let r = RemoteRange { addr: 0x0102_0304_0506_0708, len: 9, rkey: 0x0a0b_0c0d };
        let bytes = r.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12, 13]);
        assert_eq!(RemoteRange::from_bytes(&bytes), r);
    }
}
