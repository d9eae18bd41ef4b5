//! One-sided operations under way, and whom to tell when they are over.
#![forbid(unsafe_code)]

use crate::abi;
use core::ffi::c_void;
use std::collections::VecDeque;

/// Whom Open MPI wants called, and with what.
#[derive(Clone, Copy)]
pub(crate) struct Whom {
    /// The peer's handle.
    pub(crate) endpoint: *mut abi::BtlEndpoint,
    /// The memory here.
    pub(crate) local: *mut c_void,
    /// Its handle.
    pub(crate) handle: *mut abi::BtlHandle,
    /// The function.
    pub(crate) done: abi::RdmaDoneFn,
    /// For the function.
    pub(crate) context: *mut c_void,
    /// For the function.
    pub(crate) data: *mut c_void,
}

/// What is under way; a fixed number.
pub(crate) struct Ops {
    entries: Vec<Option<Whom>>,
    free: Vec<usize>,
    /// Who is to be told that it cannot be done.
    impossible: VecDeque<Whom>,
}

impl Ops {
    /// Room for `n` operations.
    pub(crate) fn new(n: usize) -> Self {
        Self { entries: vec![None; n], free: (0..n).rev().collect(), impossible: VecDeque::new() }
    }

    /// Takes one in; its cookie for the engine. `None`: no room.
    pub(crate) fn add(&mut self, whom: Whom) -> Option<u64> {
        let at = self.free.pop()?;
        *self.entries.get_mut(at)? = Some(whom);
        Some(at as u64)
    }

    /// Takes one out; `None` for a cookie that names none under way.
    pub(crate) fn take(&mut self, cookie: u64) -> Option<Whom> {
        let at = usize::try_from(cookie).ok()?;
        let whom = self.entries.get_mut(at)?.take()?;
        self.free.push(at);
        Some(whom)
    }

    /// Takes one in that cannot be done, which is told later, as for all others.
    pub(crate) fn add_impossible(&mut self, whom: Whom) {
        self.impossible.push_back(whom);
    }

    /// The next one that cannot be done.
    pub(crate) fn take_impossible(&mut self) -> Option<Whom> {
        self.impossible.pop_front()
    }

    /// Operations under way, to one peer or to all.
    pub(crate) fn under_way(&self, endpoint: Option<*mut abi::BtlEndpoint>) -> usize {
        let of = |whom: &&Whom| endpoint.is_none_or(|wanted| whom.endpoint == wanted);
        self.entries.iter().flatten().filter(of).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    fn whom(endpoint: usize) -> Whom {
        Whom {
            endpoint: ptr::without_provenance_mut(endpoint),
            local: ptr::null_mut(),
            handle: ptr::null_mut(),
            done: None,
            context: ptr::null_mut(),
            data: ptr::null_mut(),
        }
    }

    #[test]
    fn a_cookie_serves_once_and_the_room_comes_back() {
        let mut ops = Ops::new(2);
        let (a, b) = (ops.add(whom(8)).expect("room"), ops.add(whom(16)).expect("room"));
        assert_ne!(a, b);
        assert!(ops.add(whom(8)).is_none(), "more than fit");
        assert_eq!(ops.under_way(None), 2);
        assert_eq!(ops.under_way(Some(ptr::without_provenance_mut(8))), 1);
        assert_eq!(ops.take(a).map(|whom| whom.endpoint.addr()), Some(8));
        assert!(ops.take(a).is_none() && ops.take(7).is_none() && ops.take(u64::MAX).is_none());
        assert!(ops.add(whom(24)).is_some());
    }
}
