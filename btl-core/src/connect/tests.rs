//! Two machines and a network between them, in every order of events.
use super::*;
use crate::names::SECOND;
use crate::recover::Rejoin;
use crate::wire::{Greeting, RejectReason};
use crate::{Config, CreditRoute, LaneConfig};
use std::collections::HashSet;

const NAMES: [ProcName; 2] = [ProcName { job: 1, rank: 0 }, ProcName { job: 1, rank: 1 }];

fn config(side: usize) -> Config {
    let mut config = Config::new(NAMES[side], 9);
    config.lanes = vec![LaneConfig { buffer_size: 256, depth: 4, send_depth: 4, send_slots: 4 }];
    config
}

fn addr(n: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], n))
}

#[derive(Clone, Debug)]
enum Pending {
    Want {
        side: usize,
    },
    /// A request on its way to the other side; `link` is its number.
    Request {
        from: usize,
        link: usize,
        data: PrivateData,
    },
    Reply {
        to: usize,
        link: usize,
        outcome: DialOutcome,
    },
    Accepted {
        side: usize,
        link: usize,
    },
    Gone {
        side: usize,
        link: usize,
    },
    /// The engine heard that its lane is gone: it hangs up and wants another.
    Hangup {
        side: usize,
        conn: ConnToken,
    },
}

/// One dial and what became of it.
#[derive(Clone, Debug)]
struct Link {
    dialler: usize,
    dial: ConnToken,
    accept: Option<ConnToken>,
    /// Which ends still have it: the dialler's, the acceptor's.
    open: [bool; 2],
}

#[derive(Clone, Debug)]
struct World {
    machines: [Machine; 2],
    links: Vec<Link>,
    pending: Vec<Pending>,
    now: Nanos,
    ticks: u32,
    failures: u32,
}

impl World {
    fn new(failures: u32, wants: &[usize]) -> World {
        let mut machines = [Machine::new(&config(0)), Machine::new(&config(1))];
        for (side, machine) in machines.iter_mut().enumerate() {
            let addrs = vec![addr(1)];
            machine.handle(Input::Announce { name: NAMES[1 - side], addrs }, 0);
        }
        let pending = wants.iter().map(|side| Pending::Want { side: *side }).collect();
        World { machines, links: Vec::new(), pending, now: 0, ticks: 4, failures }
    }

    fn input(&mut self, side: usize, input: Input) {
        self.machines[side].handle(input, self.now);
        while let Some(action) = self.machines[side].poll_action() {
            self.act(side, action);
        }
    }

    fn act(&mut self, side: usize, action: Action) {
        match action {
            Action::Dial { conn, data, .. } => {
                let link = self.links.len();
                let (dialler, accept) = (side, None);
                self.links.push(Link { dialler, dial: conn, accept, open: [true, false] });
                self.pending.push(Pending::Request { from: side, link, data });
            }
            Action::Accept { conn, data, .. } => {
                let (link, _) = self.end(side, conn).expect("a request that was made");
                self.links[link].open[1] = true;
                let to = 1 - side;
                let outcome = DialOutcome::Established(data);
                self.pending.push(Pending::Reply { to, link, outcome });
                self.pending.push(Pending::Accepted { side, link });
            }
            Action::Reject { conn, data } => {
                let found =
                    self.links.iter().position(|l| l.accept == Some(conn) && l.dialler == 1 - side);
                let link = found.expect("a request that was made");
                let outcome = DialOutcome::Rejected(data);
                self.pending.push(Pending::Reply { to: 1 - side, link, outcome });
            }
            Action::HandOver { .. } => {}
            Action::Drop { conn } => {
                if let Some((link, end)) = self.end(side, conn) {
                    self.close(link, end);
                }
            }
            Action::Gone { conn } => self.pending.push(Pending::Hangup { side, conn }),
            Action::Failed { fault, .. } => panic!("{fault}"),
            Action::Stopped => {}
        }
    }

    /// The link and the end that `conn` of `side` names.
    fn end(&self, side: usize, conn: ConnToken) -> Option<(usize, usize)> {
        self.links.iter().enumerate().find_map(|(i, l)| {
            let (dial, accept) = (l.dialler == side, l.dialler != side);
            if dial && l.dial == conn {
                Some((i, 0))
            } else if accept && l.accept == Some(conn) {
                Some((i, 1))
            } else {
                None
            }
        })
    }

    /// One end lets go; the other hears of it.
    fn close(&mut self, link: usize, end: usize) {
        let l = &mut self.links[link];
        l.open[end] = false;
        if l.open[1 - end] {
            let side = if end == 1 { l.dialler } else { 1 - l.dialler };
            self.pending.push(Pending::Gone { side, link });
        }
    }

    fn step(&mut self, at: usize) {
        match self.pending.remove(at) {
            Pending::Want { side } => {
                self.input(
                    side,
                    Input::Want { name: NAMES[1 - side], class: 0, rejoin: Rejoin::default() },
                );
            }
            Pending::Request { from, link, data } => {
                let conn = self.machines[1 - from].token();
                self.links[link].accept = Some(conn);
                self.input(1 - from, Input::Request { conn, data });
            }
            Pending::Reply { to, link, outcome } => {
                let Link { dial: conn, open, .. } = self.links[link];
                match (&outcome, open) {
                    // The dialler has let go meanwhile.
                    (_, [false, _]) => return,
                    (DialOutcome::Established(_), [true, true]) => {}
                    _ => self.links[link].open = [false, false],
                }
                let lost = matches!(outcome, DialOutcome::Established(_)) && !open[1];
                let outcome = if lost { DialOutcome::Failed("reset".into()) } else { outcome };
                self.input(to, Input::DialDone { conn, outcome });
            }
            Pending::Accepted { side, link } => {
                let Link { accept: Some(conn), open: [_, true], .. } = self.links[link] else {
                    return;
                };
                self.input(side, Input::AcceptDone { conn, outcome: Ok(()) });
            }
            Pending::Gone { side, link } => {
                let l = &self.links[link];
                let (conn, end) = if l.dialler == side { (Some(l.dial), 0) } else { (l.accept, 1) };
                let Some(conn) = conn.filter(|_| l.open[end]) else { return };
                // A dial that was not answered hears it as its outcome.
                self.input(side, Input::Disconnected { conn });
            }
            Pending::Hangup { side, conn } => {
                self.input(side, Input::Hangup { conn });
                self.input(
                    side,
                    Input::Want { name: NAMES[1 - side], class: 0, rejoin: Rejoin::default() },
                );
            }
        }
    }

    /// The dial whose request or answer is pending fails at the dialler.
    fn fail(&mut self, at: usize) -> bool {
        let link = match &self.pending[at] {
            Pending::Request { link, .. } => *link,
            Pending::Reply { link, outcome: DialOutcome::Established(_), .. } => *link,
            _ => return false,
        };
        if self.failures == 0 || !self.links[link].open[0] {
            return false;
        }
        self.failures -= 1;
        self.pending.remove(at);
        let Link { dialler, dial: conn, .. } = self.links[link];
        self.close(link, 0);
        let outcome = DialOutcome::Failed("timed out".into());
        self.input(dialler, Input::DialDone { conn, outcome });
        true
    }

    /// Time passes until the next timer of a side.
    fn tick(&mut self, side: usize) -> bool {
        let Some(at) = self.machines[side].next_timeout() else { return false };
        if self.ticks == 0 {
            return false;
        }
        self.ticks -= 1;
        self.now = self.now.max(at);
        self.input(side, Input::Tick);
        true
    }

    fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.machines.iter().all(|m| m.next_timeout().is_none())
    }

    fn check(&self) {
        let roles = [0, 1].map(|side| self.machines[side].role(NAMES[1 - side], 0));
        let open: Vec<_> = self.links.iter().filter(|l| l.open == [true, true]).collect();
        assert_eq!(open.len(), 1, "one connection: {self:#?}");
        let half = self.links.iter().filter(|l| l.open[0] != l.open[1]).count();
        assert_eq!(half, 0, "{self:#?}");
        let mut expected = [Some(Role::Acceptor); 2];
        expected[open[0].dialler] = Some(Role::Initiator);
        assert_eq!(roles, expected, "opposite roles");
    }

    /// Without more failures, and with time passing only when nothing else happens, it comes to
    /// rest soon.
    fn must_settle(&self) {
        let mut it = self.clone();
        it.ticks = u32::MAX;
        for _ in 0..40 {
            if it.is_quiet() {
                return it.check();
            }
            if !it.pending.is_empty() {
                it.step(0);
                continue;
            }
            let due = |side: &usize| it.machines[*side].next_timeout().unwrap_or(Nanos::MAX);
            let side = [0, 1].into_iter().min_by_key(due).unwrap_or(0);
            it.tick(side);
        }
        panic!("no rest: {self:#?}");
    }

    fn next(&self) -> Vec<World> {
        let mut all = Vec::new();
        for at in 0..self.pending.len() {
            let mut it = self.clone();
            it.step(at);
            all.push(it);
            let mut it = self.clone();
            if it.fail(at) {
                all.push(it);
            }
        }
        for side in 0..2 {
            let mut it = self.clone();
            if it.tick(side) {
                all.push(it);
            }
        }
        all
    }
}

/// Visits every state; returns how many there are and how many of them are at rest.
fn explore(start: World) -> (usize, usize) {
    let mut seen = HashSet::from([format!("{start:?}")]);
    let (mut stack, mut quiet) = (vec![start], 0);
    while let Some(world) = stack.pop() {
        if world.is_quiet() {
            world.check();
            quiet += 1;
        }
        world.must_settle();
        for next in world.next() {
            if seen.insert(format!("{next:?}")) {
                stack.push(next);
            }
        }
    }
    (seen.len(), quiet)
}

#[test]
fn crossing_connects_end_in_one_connection_in_every_order() {
    let (states, quiet) = explore(World::new(0, &[0, 1]));
    println!("{states} states, {quiet} at rest");
    assert!(quiet > 0);
}

#[test]
fn so_they_do_when_a_dial_fails() {
    for wants in [&[0, 1][..], &[0], &[1]] {
        let (states, quiet) = explore(World::new(1, wants));
        println!("wanted by {wants:?}: {states} states, {quiet} at rest");
        assert!(quiet > 0);
    }
}

fn greeting(from: usize, to: usize) -> Greeting {
    Greeting {
        job: 9,
        from: NAMES[from],
        to: NAMES[to],
        class: 0,
        generation: 1,
        buffer_size: 256,
        depth: 4,
        route: CreditRoute::OwnLane,
        recover: false,
        lost: None,
    }
}

fn machine(change: impl FnOnce(&mut Config)) -> Machine {
    let mut config = config(1);
    change(&mut config);
    Machine::new(&config)
}

fn answer(machine: &mut Machine, data: PrivateData) -> Result<ConnToken, RejectReason> {
    let conn = machine.token();
    machine.handle(Input::Request { conn, data }, 0);
    loop {
        match machine.poll_action() {
            Some(Action::Accept { conn: c, .. }) if c == conn => return Ok(conn),
            Some(Action::Reject { conn: c, data }) if c == conn => {
                return Err(RejectReason::decode(&data).expect("a reason"));
            }
            Some(_) => {}
            None => panic!("no answer"),
        }
    }
}

#[test]
fn requests_that_do_not_fit_are_rejected_with_the_reason() {
    let good = greeting(0, 1);
    let cases: [(Greeting, RejectReason); 6] = [
        (Greeting { job: 8, ..good }, RejectReason::Job),
        (Greeting { to: NAMES[0], ..good }, RejectReason::WrongProcess),
        (Greeting { from: NAMES[1], ..good }, RejectReason::WrongProcess),
        (Greeting { class: 1, ..good }, RejectReason::UnknownLane),
        (Greeting { buffer_size: 255, ..good }, RejectReason::Limits),
        (Greeting { depth: 3, ..good }, RejectReason::Limits),
    ];
    for (greeting, reason) in cases {
        assert_eq!(answer(&mut machine(|_| {}), greeting.encode()), Err(reason), "{greeting:?}");
    }
    let garbage = PrivateData::from_slice(b"GET / HTTP/1.0");
    assert_eq!(answer(&mut machine(|_| {}), garbage), Err(RejectReason::Garbage));
    assert_eq!(
        answer(&mut machine(|c| c.max_unknown = 0), good.encode()),
        Err(RejectReason::UnknownPeer)
    );
    let mut stopped = machine(|_| {});
    stopped.handle(Input::Stop, 0);
    assert_eq!(stopped.poll_action(), Some(Action::Stopped));
    assert_eq!(answer(&mut stopped, good.encode()), Err(RejectReason::Closing));
    // Who meant another process must not take this one's end for that one's.
    let other = Greeting { to: NAMES[0], ..good };
    assert_eq!(answer(&mut stopped, other.encode()), Err(RejectReason::WrongProcess));
    assert!(answer(&mut machine(|_| {}), good.encode()).is_ok());
    let larger = Greeting { buffer_size: 257, ..good };
    assert!(answer(&mut machine(|_| {}), larger.encode()).is_ok(), "buffers may differ");
}

#[test]
fn floods_of_connects_are_bounded() {
    let mut m = machine(|c| {
        c.max_unknown = 3;
        c.max_accepting = 2;
    });
    let stranger = |rank| Greeting { from: ProcName { job: 1, rank }, ..greeting(0, 1) }.encode();
    let first = answer(&mut m, stranger(10)).unwrap();
    answer(&mut m, stranger(11)).unwrap();
    // Two accepts are under way.
    assert_eq!(answer(&mut m, stranger(12)), Err(RejectReason::Busy));
    m.handle(Input::AcceptDone { conn: first, outcome: Ok(()) }, 0);
    assert!(matches!(m.poll_action(), Some(Action::HandOver { announced: false, .. })));
    let third = answer(&mut m, stranger(12)).unwrap();
    m.handle(Input::AcceptDone { conn: third, outcome: Ok(()) }, 0);
    // Three lanes of strangers.
    assert_eq!(answer(&mut m, stranger(13)), Err(RejectReason::Busy));
    // The same request again is stale; a newer one replaces the older accept.
    assert_eq!(answer(&mut m, stranger(11)), Err(RejectReason::Busy));
    // Announced peers are not counted.
    let addrs = vec![addr(1)];
    m.handle(Input::Announce { name: ProcName { job: 1, rank: 11 }, addrs }, 0);
    let newer = Greeting { from: ProcName { job: 1, rank: 11 }, generation: 2, ..greeting(0, 1) };
    answer(&mut m, newer.encode()).unwrap();
    // Room again once a stranger is gone.
    m.handle(Input::Disconnected { conn: first }, 0);
    m.handle(Input::Hangup { conn: first }, 0);
    assert!(answer(&mut m, stranger(13)).is_ok());
}

#[test]
fn connections_that_come_and_go_while_the_engine_computes_are_bounded() {
    // An announced peer, then a stranger under ever new names.
    for (strangers, bound) in [(false, 4), (true, 3)] {
        let mut m = machine(|c| c.max_unknown = 3);
        let from = |n: u32| match strangers {
            false => greeting(0, 1).from,
            true => ProcName { job: 1, rank: 10 + n },
        };
        let request = |n| Greeting { from: from(n), generation: n + 1, ..greeting(0, 1) }.encode();
        m.handle(Input::Announce { name: greeting(0, 1).from, addrs: vec![addr(1)] }, 0);
        let mut gone = Vec::new();
        let refused = loop {
            match answer(&mut m, request(gone.len() as u32)) {
                Ok(conn) => {
                    m.handle(Input::AcceptDone { conn, outcome: Ok(()) }, 0);
                    m.handle(Input::Disconnected { conn }, 0);
                    while m.poll_action().is_some() {}
                    gone.push(conn);
                }
                Err(why) => break why,
            }
            assert!(gone.len() < 100, "no bound");
        };
        assert_eq!((refused, gone.len()), (RejectReason::Busy, bound));
        // The engine has looked.
        m.handle(Input::Hangup { conn: gone[0] }, 0);
        while m.poll_action().is_some() {}
        assert!(answer(&mut m, request(200)).is_ok());
    }
}

/// Dials once; returns the token and the request.
fn dial(m: &mut Machine, now: Nanos) -> (ConnToken, SocketAddr, Greeting) {
    loop {
        match m.poll_action() {
            Some(Action::Dial { conn, addr, data, deadline, .. }) => {
                assert_eq!(deadline, now + 60 * SECOND);
                return (conn, addr, Greeting::decode(&data).unwrap());
            }
            Some(_) => {}
            None => panic!("no dial"),
        }
    }
}

#[test]
fn failed_dials_take_the_next_address_after_a_growing_pause() {
    let mut m = Machine::new(&config(0));
    let (name, class) = (NAMES[1], 0);
    m.handle(Input::Announce { name, addrs: vec![addr(1), addr(2)] }, 0);
    m.handle(Input::Want { name, class, rejoin: Rejoin::default() }, 0);
    let mut now = 0;
    let mut last = 0;
    for n in 0..40u32 {
        let (conn, to, greeting) = dial(&mut m, now);
        assert_eq!((to, greeting.generation), (addr(1 + n as u16 % 2), n + 1));
        m.handle(Input::DialDone { conn, outcome: DialOutcome::Failed("no".into()) }, now);
        assert_eq!(m.poll_action(), None);
        let at = m.next_timeout().unwrap();
        let pause = at - now;
        assert!(pause >= last && (SECOND / 50..=2 * SECOND).contains(&pause));
        m.handle(Input::Tick, at - 1);
        assert_eq!(m.poll_action(), None);
        (now, last) = (at, pause);
        m.handle(Input::Tick, now);
    }
    let (conn, ..) = dial(&mut m, now);
    let outcome = DialOutcome::Failed("no route".into());
    m.handle(Input::DialDone { conn, outcome }, 301 * SECOND);
    let Some(Action::Failed { fault, .. }) = m.poll_action() else { panic!() };
    assert!(fault.to_string().contains("no route") && fault.to_string().contains("41 tries"));
    assert_eq!((m.poll_action(), m.next_timeout()), (None, None));
}

#[test]
fn rejects_decide_whether_it_is_tried_again() {
    use RejectReason as R;
    for (reason, again, next) in [
        (Some(R::Busy), true, 1),
        (Some(R::Crossing), true, 1),
        (Some(R::UnknownPeer), true, 1),
        (Some(R::WrongProcess), true, 2),
        (None, true, 2),
        (Some(R::Version), false, 0),
        (Some(R::Job), false, 0),
        (Some(R::Limits), false, 0),
        (Some(R::Closing), false, 0),
    ] {
        let mut m = Machine::new(&config(0));
        m.handle(Input::Announce { name: NAMES[1], addrs: vec![addr(1), addr(2)] }, 0);
        m.handle(Input::Want { name: NAMES[1], class: 0, rejoin: Rejoin::default() }, 0);
        let (conn, ..) = dial(&mut m, 0);
        let data = reason.map_or_else(PrivateData::default, R::encode);
        m.handle(Input::DialDone { conn, outcome: DialOutcome::Rejected(data) }, 0);
        if again {
            let at = m.next_timeout().unwrap();
            m.handle(Input::Tick, at);
            assert_eq!(dial(&mut m, at).1, addr(next), "{reason:?}");
        } else {
            let failed = m.poll_action();
            let expected = ConnectFault::Rejected(reason.unwrap());
            assert!(
                matches!(&failed, Some(Action::Failed { fault, .. }) if *fault == expected),
                "{failed:?}"
            );
            assert_eq!(m.next_timeout(), None);
        }
    }
}

#[test]
fn a_wrong_answer_ends_the_connect() {
    for change in 0..6 {
        let mut m = Machine::new(&config(0));
        m.handle(Input::Announce { name: NAMES[1], addrs: vec![addr(1)] }, 0);
        m.handle(Input::Want { name: NAMES[1], class: 0, rejoin: Rejoin::default() }, 0);
        let (conn, ..) = dial(&mut m, 0);
        let mut answer = greeting(1, 0);
        match change {
            0 => {}
            1 => answer.job += 1,
            2 => answer.from.rank = 7,
            3 => answer.generation = 2,
            4 => answer.depth = 0,
            _ => answer.buffer_size = 0,
        }
        let outcome = DialOutcome::Established(answer.encode());
        m.handle(Input::DialDone { conn, outcome }, 0);
        if change == 0 {
            assert!(matches!(
                m.poll_action(),
                Some(Action::HandOver { role: Role::Initiator, announced: true, .. })
            ));
            continue;
        }
        assert_eq!(m.poll_action(), Some(Action::Drop { conn }));
        let failed = m.poll_action();
        assert!(matches!(failed, Some(Action::Failed { fault: ConnectFault::BadAnswer(_), .. })));
    }
}

#[test]
fn late_and_unknown_events_are_ignored() {
    let mut m = Machine::new(&config(0));
    m.handle(Input::Announce { name: NAMES[1], addrs: vec![addr(1)] }, 0);
    m.handle(Input::Want { name: NAMES[1], class: 0, rejoin: Rejoin::default() }, 0);
    let (conn, ..) = dial(&mut m, 0);
    m.handle(Input::Forget { name: NAMES[1] }, 0);
    assert_eq!(m.poll_action(), Some(Action::Drop { conn }));
    let data = greeting(1, 0).encode();
    m.handle(Input::DialDone { conn, outcome: DialOutcome::Established(data) }, 0);
    m.handle(Input::AcceptDone { conn, outcome: Ok(()) }, 0);
    m.handle(Input::Disconnected { conn }, 0);
    m.handle(Input::Hangup { conn }, 0);
    m.handle(Input::HandOverFailed { conn, why: String::new() }, 0);
    m.handle(Input::Tick, Nanos::MAX);
    assert_eq!((m.poll_action(), m.next_timeout()), (None, None));
    // A lane that nobody could make, and a peer nobody knows.
    m.handle(Input::Want { name: NAMES[1], class: 9, rejoin: Rejoin::default() }, 0);
    assert!(matches!(m.poll_action(), Some(Action::Failed { class: 9, .. })));
    m.handle(Input::Want { name: NAMES[1], class: 0, rejoin: Rejoin::default() }, 0);
    let failed = m.poll_action();
    assert!(matches!(failed, Some(Action::Failed { fault: ConnectFault::NoAddress, .. })));
}

#[test]
fn a_hand_over_that_fails_is_tried_again() {
    let mut m = Machine::new(&config(0));
    m.handle(Input::Announce { name: NAMES[1], addrs: vec![addr(1)] }, 0);
    m.handle(Input::Want { name: NAMES[1], class: 0, rejoin: Rejoin::default() }, 0);
    let (conn, ..) = dial(&mut m, 0);
    let outcome = DialOutcome::Established(greeting(1, 0).encode());
    m.handle(Input::DialDone { conn, outcome }, 0);
    assert!(matches!(m.poll_action(), Some(Action::HandOver { .. })));
    m.handle(Input::HandOverFailed { conn, why: "no memory".into() }, 0);
    let at = m.next_timeout().unwrap();
    m.handle(Input::Tick, at);
    let (_, _, greeting) = dial(&mut m, at);
    assert_eq!(greeting.generation, 2);
}

#[test]
fn a_dial_is_given_up_when_the_peers_own_connect_stands() {
    let mut m = Machine::new(&config(1));
    m.handle(Input::Announce { name: NAMES[0], addrs: vec![addr(0)] }, 0);
    m.handle(Input::Want { name: NAMES[0], class: 0, rejoin: Rejoin::default() }, 0);
    let (dialled, ..) = dial(&mut m, 0);
    let accepted = answer(&mut m, greeting(0, 1).encode()).unwrap();
    m.handle(Input::AcceptDone { conn: accepted, outcome: Ok(()) }, 0);
    let mut actions = Vec::new();
    actions.extend(std::iter::from_fn(|| m.poll_action()));
    assert!(actions.contains(&Action::Drop { conn: dialled }), "{actions:?}");
    assert!(
        actions.iter().any(|a| matches!(a, Action::HandOver { conn, .. } if *conn == accepted))
    );
    // It may stand all the same by now: nobody hears of it.
    let outcome = DialOutcome::Established(greeting(0, 1).encode());
    m.handle(Input::DialDone { conn: dialled, outcome }, 0);
    assert_eq!(m.poll_action(), None);
}

/// One machine connects to itself; what it says about its own dial and about others in its name.
#[test]
fn a_machine_connects_to_itself_and_to_no_other_of_its_name() {
    let mut m = machine(|_| {});
    let me = NAMES[1];
    m.handle(Input::Announce { name: me, addrs: vec![addr(1)] }, 0);
    assert_eq!(answer(&mut m, greeting(1, 1).encode()), Err(RejectReason::WrongProcess));
    m.handle(Input::Want { name: me, class: 0, rejoin: Rejoin::default() }, 0);
    let Some(Action::Dial { conn: dial, data, .. }) = m.poll_action() else { panic!("no dial") };
    let hello = Greeting::decode(&data).expect("a greeting");
    let other = Greeting { generation: hello.generation + 1, ..hello };
    assert_eq!(answer(&mut m, other.encode()), Err(RejectReason::WrongProcess));
    let accept = answer(&mut m, data).expect("its own dial");
    m.handle(Input::AcceptDone { conn: accept, outcome: Ok(()) }, 0);
    m.handle(Input::DialDone { conn: dial, outcome: DialOutcome::Established(data) }, 0);
    let mut ends = Vec::new();
    while let Some(action) = m.poll_action() {
        let Action::HandOver { conn, name, class, role, .. } = action else { panic!("{action:?}") };
        assert_eq!((name, class), (me, 0));
        ends.push((conn, role));
    }
    assert_eq!(ends, [(accept, Role::Acceptor), (dial, Role::Initiator)]);
    assert_eq!((m.connections(), m.role(me, 0)), (2, Some(Role::Initiator)));
    for (conn, role) in [(dial, Role::Initiator), (accept, Role::Acceptor)] {
        m.handle(Input::Disconnected { conn }, 0);
        assert_eq!(m.poll_action(), Some(Action::Gone { conn }), "{role:?}");
        m.handle(Input::Hangup { conn }, 0);
        assert_eq!(m.poll_action(), Some(Action::Drop { conn }), "{role:?}");
    }
    assert_eq!((m.connections(), m.role(me, 0)), (0, None));
    m.handle(Input::Want { name: me, class: 1, rejoin: Rejoin::default() }, 0);
    assert!(matches!(m.poll_action(), Some(Action::Failed { class: 1, .. })));
}
