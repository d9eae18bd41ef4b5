//! One run over rails: the loop over events, and its phases.
use super::book::Book;
use super::proc::{Life, Process};
use super::{RailFault, RailTrouble, RailsOptions, STALL};
use crate::check::Invariant;
use crate::net::{Ev, Net};
use crate::port::SharedNet;
use crate::run::Outcome;
use crate::swarm::Cut;
use btl_core::{Nanos, SECOND};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Most events of a run: more is a livelock.
const MAX_EVENTS: u64 = 5_000_000;
/// Simulated time after which a run must be over.
const MAX_TIME: Nanos = 3_000 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until everything that was sent is acknowledged.
    Work,
    /// Until all are closed.
    Close,
    /// Until the last events are over.
    Drain(Nanos),
    Done,
}

struct World {
    net: SharedNet,
    all: Vec<Process>,
    book: Book,
    opt: RailsOptions,
    phase: Phase,
    events: u64,
}

/// Runs the simulation of `opt`. `print`: every event goes to standard output.
pub fn run(opt: &RailsOptions, print: bool) -> Outcome {
    let net = Rc::new(RefCell::new(Net::new(opt.net.clone(), print)));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(opt.clone(), Rc::clone(&net));
        world.run();
        world.finish()
    }));
    let (events, messages, panicked) = match result {
        Ok((events, messages)) => (events, messages, None),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            (0, 0, Some(text.unwrap_or("of unknown cause").to_owned()))
        }
    };
    let mut net = net.borrow_mut();
    if let Some(what) = panicked {
        net.fail(Invariant::S11, what);
    }
    Outcome {
        violations: net.check.violations().to_vec(),
        hash: net.trace.hash(),
        events,
        time: net.now,
        messages,
        cover: std::mem::take(&mut net.cover),
        no_buffer: net.no_buffer,
        faults: net.faults,
        last: net.trace.last(),
    }
}

impl World {
    fn new(opt: RailsOptions, net: SharedNet) -> World {
        let book = Book::new(opt.net.seed, opt.processes);
        let all = (0..opt.processes).map(|me| Process::new(me, &net, &opt)).collect();
        World { net, all, book, opt, phase: Phase::Work, events: 0 }
    }

    fn run(&mut self) {
        for process in &mut self.all {
            process.start(&self.opt);
        }
        for (n, fault) in self.opt.faults.iter().enumerate() {
            self.net.borrow_mut().at(fault.at, Ev::Fault { n });
        }
        while self.phase != Phase::Done {
            let Some(ev) = self.net.borrow_mut().next() else { break };
            self.events += 1;
            self.carry_out(ev);
            self.after_event();
            if self.is_over() {
                return;
            }
        }
    }

    /// Whether a violation ends the run.
    fn is_over(&mut self) -> bool {
        if !self.net.borrow().check.violations().is_empty() {
            return true;
        }
        let now = self.net.borrow().now;
        if self.events < MAX_EVENTS && now < MAX_TIME {
            return false;
        }
        let (unsent, undelivered) = self.book.open();
        let invariant = match self.phase {
            Phase::Work if self.events >= MAX_EVENTS => Invariant::L2,
            Phase::Work => Invariant::L1,
            _ => Invariant::L5,
        };
        let what = format!(
            "no end in {:?} after {} events and {} s: {undelivered} messages did not arrive, {unsent} sends and {} puts \
             did not end",
            self.phase,
            self.events,
            now / SECOND,
            self.book.open_puts(),
        );
        self.net.borrow_mut().fail(invariant, what);
        true
    }

    /// The process and the rail of a host.
    fn place(&self, host: u32) -> (usize, usize) {
        ((host % self.opt.processes) as usize, (host / self.opt.processes) as usize)
    }

    fn carry_out(&mut self, ev: Ev) {
        match ev {
            Ev::Poll { rank, stamp } => {
                let current = self.net.borrow_mut().is_current(rank, stamp);
                if current {
                    let calm = self.phase != Phase::Work;
                    let (process, _) = self.place(rank);
                    self.all[process].turn(&mut self.book, &self.opt, calm);
                }
            }
            Ev::CmDeliver { rank } => {
                let (process, rail) = self.place(rank);
                let link = Rc::clone(&self.all[process].links[rail]);
                let event = link.borrow_mut().outbox.pop_front();
                link.borrow_mut().events.extend(event);
                self.net.borrow_mut().wake(rank);
            }
            Ev::Fault { n } => self.fault(self.opt.faults[n]),
            Ev::Close { rank } => self.all[rank as usize].close(),
            ev => {
                let host = self.net.borrow_mut().carry_out(ev);
                if let Some(host) = host {
                    let (process, rail) = self.place(host);
                    self.all[process].cms[rail].step(ev);
                }
            }
        }
    }

    fn fault(&mut self, fault: RailFault) {
        if self.all[fault.process as usize].life != Life::Running {
            return;
        }
        let host = fault.rail * self.opt.processes + fault.process;
        let other = (fault.process + 1) % self.opt.processes;
        let to = fault.rail * self.opt.processes + other;
        let (from, at) = (host, fault.at);
        let mut net = self.net.borrow_mut();
        match fault.what {
            RailTrouble::Breaks => {
                net.break_one(host);
            }
            RailTrouble::DeviceFatal => net.break_all(host),
            RailTrouble::Removed => {
                if !net.hosts[host as usize].removed {
                    net.remove_device(host);
                    drop(net);
                    let (process, rail) = self.place(host);
                    self.all[process].cms[rail].device_removed();
                }
            }
            RailTrouble::Cut => {
                net.cut(Cut { from, to, both: true, at, len: STALL / 2, breaks: true });
            }
            RailTrouble::Stall => {
                net.cut(Cut { from, to, both: true, at, len: STALL, breaks: false });
            }
        }
    }

    fn after_event(&mut self) {
        let now = self.net.borrow().now;
        match self.phase {
            Phase::Work => {
                let idle = self.book.open() == (0, 0) && self.book.open_puts() == 0;
                if idle && self.all.iter().all(Process::is_done) {
                    self.start_close();
                    self.phase = Phase::Close;
                }
            }
            Phase::Close => {
                if self.all.iter().all(|process| process.life == Life::Closed) {
                    self.phase = Phase::Drain(now + SECOND);
                }
                for process in &self.all {
                    if let Life::Closing(since) = process.life
                        && now > since + 100 * SECOND
                    {
                        process.fail(Invariant::L5, "the close has no end".to_owned());
                    }
                }
            }
            Phase::Drain(until) if now > until => self.phase = Phase::Done,
            Phase::Drain(_) | Phase::Done => {}
        }
    }

    fn start_close(&mut self) {
        let mut net = self.net.borrow_mut();
        net.opt.dev.enomem = 0;
        let spread = net.rng.log_range(1, 50_000_000);
        for rank in 0..self.opt.processes {
            let delay = net.rng.below(spread);
            net.after(delay, Ev::Close { rank });
        }
    }

    /// Checks promises, and that every buffer came home.
    fn finish(&mut self) -> (u64, u64) {
        if let Some(id) = self.book.broken_promise() {
            let what = format!("message {id} was acknowledged, but never delivered");
            self.net.borrow_mut().fail(Invariant::S8, what);
        }
        for process in self.all.iter().filter(|_| self.phase == Phase::Done) {
            for rail in 0..self.opt.rails {
                let host = rail * self.opt.processes + process.me;
                let net = self.net.borrow();
                let it = &net.hosts[host as usize];
                let (dropped, away) = (it.slots.dropped(), it.slots.first_away());
                let memory = it.shared.first_away();
                drop(net);
                if dropped > 0 {
                    process.fail(Invariant::S6, format!("{dropped} buffers were dropped"));
                }
                if let Some((slot, owner)) = away {
                    process.fail(Invariant::S6, format!("buffer {slot} is not home: {owner:?}"));
                }
                if let Some((id, owner)) = memory {
                    process.fail(Invariant::S6, format!("memory {id} is not home: {owner:?}"));
                }
            }
        }
        let messages = self.book.next_id();
        (self.events + self.net.borrow().trace.count(), messages)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Queue pairs under way refer to the fabric; they go first.
        for link in self.all.iter().flat_map(|process| &process.links) {
            let (mut outbox, mut events) = Default::default();
            {
                let mut link = link.borrow_mut();
                std::mem::swap(&mut link.outbox, &mut outbox);
                std::mem::swap(&mut link.events, &mut events);
            }
            drop((outbox, events));
        }
    }
}
