//! The message path does not allocate.
#![allow(missing_docs)]
mod common;
use btl_core::{CreditRoute, Event};
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends `n` messages of both classes each way, more at a time than the windows hold, with puts, gets and fences
/// between.
fn rounds(all: &mut [Eng], peers: &[btl_core::PeerId], world: &mut World, n: u32) -> u32 {
    let mut got = 0;
    for _ in 0..n {
        for me in 0..2 {
            while let Some(memory) = world.memory[me].pop() {
                let taken = match memory.id % 2 {
                    0 => all[me].put(peers[me], memory, 64, world.there, 0),
                    _ => all[me].get(peers[me], memory, 64, world.there, 0),
                };
                assert!(taken.is_ok());
            }
            assert!(all[me].fence(peers[me], 0).is_ok());
            for k in 0..30 {
                let len = if k % 3 == 0 { 900 } else { 100 };
                let Ok(buf) = all[me].alloc(len) else { continue };
                if let Err(refused) = all[me].send(peers[me], 1, buf, 0) {
                    all[me].free(refused.buf);
                }
            }
        }
        for me in [0, 1, 0, 1] {
            while let Some(event) = all[me].poll(0) {
                match event {
                    Event::Message { buf, .. } => {
                        got += 1;
                        all[me].release(buf);
                    }
                    Event::Sent { buf: Some(buf), .. } => all[me].free(buf),
                    Event::Done { memory: Some(memory), .. } => {
                        world.ops += 1;
                        world.memory[me].push(memory);
                    }
                    _ => {}
                }
            }
        }
    }
    got
}

/// What one-sided operations use.
struct World {
    there: btl_core::RemoteRange,
    memory: [Vec<Memory>; 2],
    ops: u32,
}

/// One message at a time, there and back, of both classes.
fn ping_pong(all: &mut [Eng], peers: &[btl_core::PeerId], n: u32) -> u32 {
    let mut hops = 0;
    for round in 0..n {
        let len = if round % 2 == 0 { 8 } else { 900 };
        let Ok(buf) = all[0].alloc(len) else { panic!("no buffer") };
        assert!(all[0].send(peers[0], 1, buf, 0).is_ok());
        let mut me = 1;
        let goal = hops + 2;
        while hops < goal {
            match all[me].poll(0) {
                Some(Event::Message { buf, .. }) => {
                    hops += 1;
                    if hops < goal {
                        let Ok(answer) = all[me].alloc(buf.len()) else { panic!("no buffer") };
                        assert!(all[me].send(peers[me], 1, answer, 0).is_ok());
                    }
                    all[me].release(buf);
                }
                Some(Event::Sent { buf: Some(buf), .. }) => all[me].free(buf),
                Some(_) => {}
                None => me = 1 - me,
            }
        }
    }
    hops
}

/// Polls until a thousand polls in a row found nothing.
fn come_to_rest(all: &mut [Eng]) {
    let mut empty = 0;
    while empty < 1000 {
        empty += 1;
        for engine in &mut *all {
            while let Some(event) = engine.poll(0) {
                empty = 0;
                match event {
                    Event::Message { buf, .. } => engine.release(buf),
                    Event::Sent { buf: Some(buf), .. } => engine.free(buf),
                    _ => {}
                }
            }
        }
    }
}

fn steady_state_allocates_nothing(route: CreditRoute) {
    let (net, mut all) = two_with(|_, config| config.credit_route = route);
    let memory = || (0..6).map(|id| Memory { id, bytes: vec![0; 64] }).collect();
    let there = net.borrow_mut().share(&[0; 64]);
    let mut world = World { there, memory: [memory(), memory()], ops: 0 };
    let peers: Vec<_> =
        (0..2).map(|me| all[me].add_peer(name(1 - me), &[addr(1 - me)]).unwrap()).collect();
    assert!(rounds(&mut all, &peers, &mut world, 200) > 1000);
    come_to_rest(&mut all);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let got = rounds(&mut all, &peers, &mut world, 200);
    come_to_rest(&mut all);
    let flood = ALLOCATIONS.load(Ordering::Relaxed);
    let hops = ping_pong(&mut all, &peers, 500);
    come_to_rest(&mut all);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(got > 5000 && world.ops > 500 && hops == 1000, "{got} {} {hops}", world.ops);
    assert_eq!((flood - before, after - flood), (0, 0), "{route}");
    let elsewhere = all[0].stats().credits_on_first_lane > 0;
    assert_eq!(elsewhere, route == CreditRoute::FirstLane);
}

// One test only: the count is of the process.
#[test]
fn no_allocation_per_message_nor_per_empty_poll() {
    steady_state_allocates_nothing(CreditRoute::OwnLane);
    steady_state_allocates_nothing(CreditRoute::FirstLane);
    // The counter counts.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(7)));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);
}
