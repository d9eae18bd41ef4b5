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
    /// Each with its place in the order of all.
    entries: Vec<Option<(u64, Whom)>>,
    free: Vec<usize>,
    /// The place of the next one.
    next: u64,
    /// Who is to be told that it cannot be done.
    impossible: VecDeque<Whom>,
    /// Who is to be told that it is done, once there is a buffer for what it will send.
    done: VecDeque<Whom>,
}

impl Ops {
    /// Room for `n` operations.
    pub(crate) fn new(n: usize) -> Self {
        Self {
            entries: vec![None; n],
            free: (0..n).rev().collect(),
            next: 0,
            impossible: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    /// Takes one in; its cookie for the engine. `None`: no room.
    pub(crate) fn add(&mut self, whom: Whom) -> Option<u64> {
        let at = self.free.pop()?;
        *self.entries.get_mut(at)? = Some((self.next, whom));
        self.next += 1;
        Some(at as u64)
    }

    /// Takes one out; `None` for a cookie that names none under way.
    pub(crate) fn take(&mut self, cookie: u64) -> Option<Whom> {
        let at = usize::try_from(cookie).ok()?;
        let (_, whom) = self.entries.get_mut(at)?.take()?;
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

    /// Takes one in that is done and waits for a buffer.
    pub(crate) fn add_done(&mut self, whom: Whom) {
        self.done.push_back(whom);
    }

    /// The next one that is done and waits.
    pub(crate) fn next_done(&self) -> Option<Whom> {
        self.done.front().copied()
    }

    /// That one waits no more.
    pub(crate) fn pop_done(&mut self) {
        self.done.pop_front();
    }

    /// Operations under way.
    pub(crate) fn under_way(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The place in the order that the next operation will have.
    pub(crate) fn now(&self) -> u64 {
        self.next
    }

    /// Whether an operation with one peer (`None`: any) that was taken in before `when` is under way.
    pub(crate) fn any_before(&self, when: u64, endpoint: Option<*mut abi::BtlEndpoint>) -> bool {
        let mut all = self.entries.iter().flatten();
        all.any(|(at, whom)| *at < when && endpoint.is_none_or(|wanted| whom.endpoint == wanted))
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
        assert_eq!(ops.under_way(), 2);
        assert_eq!(ops.take(a).map(|whom| whom.endpoint.addr()), Some(8));
        assert!(ops.take(a).is_none() && ops.take(7).is_none() && ops.take(u64::MAX).is_none());
        assert!(ops.add(whom(24)).is_some());
    }

    #[test]
    fn what_came_later_is_not_waited_for() {
        let at = |endpoint: usize| Some(ptr::without_provenance_mut(endpoint));
        let mut ops = Ops::new(4);
        let first = ops.add(whom(8)).expect("room");
        let now = ops.now();
        let later = ops.add(whom(16)).expect("room");
        assert!(ops.any_before(now, None) && ops.any_before(now, at(8)));
        assert!(!ops.any_before(now, at(16)));
        ops.take(first);
        assert!(!ops.any_before(now, None) && ops.any_before(ops.now(), None));
        ops.take(later);
        assert!(!ops.any_before(ops.now(), None));
    }
}
