use super::{Action, DialOutcome, Input};
use crate::config::{Config, MIN_BUFFER};
use crate::credit::MIN_WINDOW;
use crate::endpoint::EARLY_ENDS;
use crate::error::ConnectFault;
use crate::names::{ConnToken, Nanos, ProcName, Role, SECOND};
use crate::recover::{Rejoin, Resume};
use crate::route;
use crate::setup::Agreed;
use crate::wire::{Greeting, PrivateData, RejectReason};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// The connection machine of one process.
#[derive(Clone, Debug)]
pub struct Machine {
    config: Config,
    peers: BTreeMap<ProcName, Peer>,
    /// Every connection that was named in an action and not dropped yet.
    conns: BTreeMap<ConnToken, Conn>,
    timers: BTreeSet<(Nanos, ProcName, u8)>,
    actions: VecDeque<Action>,
    next_token: u64,
    accepting: u32,
    /// Connections of each link that are gone and that the engine has not hung up yet: it still
    /// has, or will get, their queue pairs.
    ghosts: BTreeMap<(ProcName, u8), u32>,
    stopped: bool,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    announced: bool,
    addrs: Vec<SocketAddr>,
    links: Vec<Link>,
}

/// One lane class of one peer.
#[derive(Clone, Debug, Default)]
struct Link {
    /// The engine asked for it, and when.
    wanted: Option<Nanos>,
    /// What it said then.
    rejoin: Rejoin,
    dial: Option<ConnToken>,
    accept: Option<ConnToken>,
    up: Option<ConnToken>,
    retry_at: Option<Nanos>,
    /// Dials since the link was wanted.
    tries: u32,
    /// Picks the address of the next dial.
    next_addr: usize,
    pause: Nanos,
    /// Counts all dials.
    generation: u32,
}

#[derive(Clone, Debug)]
struct Conn {
    name: ProcName,
    class: u8,
    stage: Stage,
    generation: u32,
    /// Dials: where to.
    addr: Option<SocketAddr>,
    /// Accepts: what the request said.
    agreed: Option<Agreed>,
    /// Since when the engine wanted it, in case it is lost before the engine has it.
    wanted: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Dialing,
    Accepting,
    Up(Role),
    /// Disconnected; the engine has not hung up yet.
    Gone,
}

/// Connections of one link that came and went while the engine did not look. A process that
/// connects again and again while this one computes must not pile up queue pairs.
const MAX_GHOSTS: u32 = 4;
// An engine that finds them all at once after a long computation must not take them for a peer that fails again and
// again: half of its patience is left.
const _: () = assert!(MAX_GHOSTS <= EARLY_ENDS as u32 / 2);
/// The same, of all processes together that nobody announced.
const MAX_UNKNOWN_GHOSTS: u32 = 1024;

/// What to do about a lost try.
enum Retry {
    SameAddr,
    NextAddr,
}

impl Machine {
    /// A machine that knows nobody yet. `config` must be valid.
    pub fn new(config: &Config) -> Machine {
        Machine {
            config: config.clone(),
            peers: BTreeMap::new(),
            conns: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            next_token: 1,
            accepting: 0,
            ghosts: BTreeMap::new(),
            stopped: false,
        }
    }

    /// A fresh name for a connect request that arrived.
    pub fn token(&mut self) -> ConnToken {
        let token = ConnToken(self.next_token);
        self.next_token += 1;
        token
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle`](Machine::handle) with `Tick` if nothing else happens.
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, ..)| *at)
    }

    /// Takes in what happened. Actions come out of [`poll_action`](Machine::poll_action).
    pub fn handle(&mut self, input: Input, now: Nanos) {
        match input {
            Input::Announce { name, addrs } => self.announce(name, addrs, now),
            Input::Forget { name } => self.forget(name),
            Input::Want { name, class, rejoin } => self.want(name, class, rejoin, now),
            Input::Request { conn, data } => self.request(conn, &data, now),
            Input::DialDone { conn, outcome } => self.dial_done(conn, outcome, now),
            Input::AcceptDone { conn, outcome } => self.accept_done(conn, outcome, now),
            Input::HandOverFailed { conn, why } => self.lost(conn, &why, now),
            Input::Disconnected { conn } => self.disconnected(conn, now),
            Input::Hangup { conn } => self.hangup(conn),
            Input::Tick => self.tick(now),
            Input::Stop => self.stop(),
        }
    }

    fn announce(&mut self, name: ProcName, addrs: Vec<SocketAddr>, now: Nanos) {
        let peer = self.peers.entry(name).or_default();
        peer.announced = true;
        peer.addrs = addrs;
        for class in 0..self.config.lanes.len() as u8 {
            self.dial_if_wanted(name, class, now);
        }
    }

    fn forget(&mut self, name: ProcName) {
        let Some(peer) = self.peers.get_mut(&name) else { return };
        peer.announced = false;
        peer.addrs.clear();
        let mut over = Vec::new();
        for link in &mut peer.links {
            link.wanted = None;
            over.extend([link.dial, link.accept].into_iter().flatten());
        }
        for conn in over {
            self.drop_conn(conn);
        }
        for class in 0..self.config.lanes.len() as u8 {
            self.set_timer(name, class, None);
        }
        self.prune(name);
    }

    fn want(&mut self, name: ProcName, class: u8, rejoin: Rejoin, now: Nanos) {
        if self.stopped {
            self.fail(name, class, ConnectFault::Stopped);
            return;
        }
        let exists = self.config.lane(class).is_some();
        let Some(link) = self.link_mut(name, class).filter(|_| exists) else {
            self.fail(name, class, ConnectFault::Rejected(RejectReason::UnknownLane));
            return;
        };
        link.rejoin = rejoin;
        if link.wanted.is_some() {
            return;
        }
        if let Some(up) = link.up {
            // It is on its way to the engine already.
            if let Some(entry) = self.conns.get_mut(&up) {
                entry.wanted = Some(now);
            }
            return;
        }
        link.wanted = Some(now);
        link.tries = 0;
        link.pause = rejoin.after.unwrap_or(0);
        let later = (link.pause > 0).then(|| now.saturating_add(link.pause));
        self.set_timer(name, class, later);
        self.dial_if_wanted(name, class, now);
    }

    /// Starts a dial if the engine wants the link and nothing is under way for it.
    fn dial_if_wanted(&mut self, name: ProcName, class: u8, now: Nanos) {
        let (config_me, config_job) = (self.config.me, self.config.job);
        let Some(lane) = self.config.lane(class).copied() else { return };
        let Some(peer) = self.peers.get_mut(&name) else { return };
        let Some(link) = peer.links.get_mut(usize::from(class)) else { return };
        let idle = link.dial.is_none() && link.accept.is_none() && link.up.is_none();
        if link.wanted.is_none() || !idle || link.retry_at.is_some_and(|at| at > now) {
            return;
        }
        let n = peer.addrs.len().max(1);
        let Some(addr) = peer.addrs.get(link.next_addr % n).copied() else {
            self.fail(name, class, ConnectFault::NoAddress);
            return;
        };
        link.generation = link.generation.wrapping_add(1);
        link.tries = link.tries.saturating_add(1);
        let generation = link.generation;
        let conn = ConnToken(self.next_token);
        self.next_token += 1;
        link.dial = Some(conn);
        let data = Greeting {
            job: config_job,
            from: config_me,
            to: name,
            class,
            generation,
            buffer_size: lane.buffer_size,
            depth: lane.depth,
            route: self.config.credit_route,
            recover: self.config.recover.is_some(),
            lost: link.rejoin.lost,
        };
        let limit = give_up_of(&self.config, link.rejoin).1;
        let rejoins = link.rejoin.after.is_some();
        let last = link.wanted.unwrap_or(now).saturating_add(limit);
        self.set_timer(name, class, None);
        let stage = Stage::Dialing;
        let entry =
            Conn { name, class, stage, generation, addr: Some(addr), agreed: None, wanted: None };
        self.conns.insert(conn, entry);
        let mut deadline = now.saturating_add(self.config.t_conn);
        if rejoins {
            deadline = deadline.min(last.max(now.saturating_add(SECOND / 10)));
        }
        self.actions.push_back(Action::Dial {
            conn,
            name,
            class,
            addr,
            data: data.encode(),
            deadline,
        });
    }

    /// Which of the links of a peer a connection is for. Connected to oneself, this process has two for each lane: the
    /// connections it dialled come first, those it accepted behind them.
    fn place(&self, name: ProcName, class: u8, accepted: bool) -> u8 {
        class + if accepted && name == self.config.me { self.config.lanes.len() as u8 } else { 0 }
    }

    /// The lane class of a link.
    fn class_of(&self, place: u8) -> u8 {
        place % (self.config.lanes.len() as u8).max(1)
    }

    /// Whether a request is this process's own dial.
    fn is_own_dial(&self, hello: &Greeting) -> bool {
        let link = self.peers.get(&hello.from).and_then(|p| p.links.get(usize::from(hello.class)));
        let dial = link.and_then(|link| self.conns.get(&link.dial?));
        dial.is_some_and(|dial| dial.generation == hello.generation)
    }

    fn request(&mut self, conn: ConnToken, data: &PrivateData, now: Nanos) {
        let verdict = Greeting::decode(data).and_then(|hello| {
            self.judge(&hello)?;
            Ok(hello)
        });
        let hello = match verdict {
            Ok(hello) => hello,
            Err(reason) => {
                self.actions.push_back(Action::Reject { conn, data: reason.encode() });
                return;
            }
        };
        let (name, generation) = (hello.from, hello.generation);
        let class = self.place(name, hello.class, true);
        let older = self.link_mut(name, class).and_then(|link| link.accept.replace(conn));
        if let Some(older) = older {
            self.drop_conn(older);
        }
        self.set_timer(name, class, None);
        let agreed = self.agreed(&hello);
        let stage = Stage::Accepting;
        let entry =
            Conn { name, class, stage, generation, addr: None, agreed: Some(agreed), wanted: None };
        self.conns.insert(conn, entry);
        self.accepting += 1;
        let class = hello.class;
        let Some(lane) = self.config.lane(class) else { return };
        let answer = Greeting {
            from: self.config.me,
            to: name,
            route: self.config.credit_route,
            recover: self.config.recover.is_some(),
            lost: None,
            buffer_size: lane.buffer_size,
            depth: lane.depth,
            ..hello
        };
        let deadline = now.saturating_add(self.config.t_conn);
        let data = answer.encode();
        self.actions.push_back(Action::Accept { conn, name, class, data, deadline });
    }

    /// Whether a request may be accepted now.
    fn judge(&self, hello: &Greeting) -> Result<(), RejectReason> {
        let (me, name) = (self.config.me, hello.from);
        if hello.job != self.config.job {
            return Err(RejectReason::Job);
        }
        // Before all that concerns this process: whoever meant another one goes on looking for it.
        if hello.to != me || (name == me && !self.is_own_dial(hello)) {
            return Err(RejectReason::WrongProcess);
        }
        if self.stopped {
            return Err(RejectReason::Closing);
        }
        self.config.lane(hello.class).ok_or(RejectReason::UnknownLane)?;
        // Sizes may differ: each side sends what fits the other's.
        if hello.buffer_size < MIN_BUFFER || hello.depth < MIN_WINDOW {
            return Err(RejectReason::Limits);
        }
        if !self.peers.get(&name).is_some_and(|peer| peer.announced) {
            match self.config.max_unknown {
                0 => return Err(RejectReason::UnknownPeer),
                // Each lane has an entry in `conns`: there is nothing to count while that is short.
                max if self.conns.len() as u64 >= u64::from(max) && self.unknown_lanes() >= max => {
                    return Err(RejectReason::Busy);
                }
                max if self.unknown_ghosts() >= max.min(MAX_UNKNOWN_GHOSTS) => {
                    return Err(RejectReason::Busy);
                }
                _ => {}
            }
        }
        let place = self.place(name, hello.class, true);
        let ghosts = self.ghosts.get(&(name, place)).copied().unwrap_or(0);
        if self.accepting >= self.config.max_accepting || ghosts >= MAX_GHOSTS {
            return Err(RejectReason::Busy);
        }
        let newer = |conn: Option<ConnToken>, conns: &BTreeMap<ConnToken, Conn>| {
            let current = conn.and_then(|conn| conns.get(&conn));
            // A dialler has one dial at a time: a newer one means that it gave this one up. One
            // that we dialled is not the peer's to replace.
            current.is_none_or(|c| match c.stage {
                // Unless it says that this very one is lost there.
                Stage::Up(Role::Initiator) => hello.lost == Some(c.generation),
                _ => hello.generation.wrapping_sub(c.generation).cast_signed() > 0,
            })
        };
        let link = self.peers.get(&name).and_then(|p| p.links.get(usize::from(place)));
        if let Some(link) = link {
            if link.dial.is_some() && self.wins(name) {
                return Err(RejectReason::Crossing);
            }
            if !newer(link.accept, &self.conns) || !newer(link.up, &self.conns) {
                return Err(RejectReason::Busy);
            }
        }
        Ok(())
    }

    /// Whether this side's dial stays when both sides dial.
    fn wins(&self, name: ProcName) -> bool {
        #[cfg(feature = "sabotage")]
        if self.config.sabotage.both_keep || self.config.sabotage.both_drop {
            return self.config.sabotage.both_drop;
        }
        self.config.me < name
    }

    /// Lanes that processes nobody announced have or are getting.
    fn unknown_lanes(&self) -> u32 {
        let unknown = self.peers.values().filter(|peer| !peer.announced);
        let lanes = unknown.flat_map(|peer| &peer.links);
        lanes.filter(|link| link.accept.is_some() || link.up.is_some()).count() as u32
    }

    /// Connections of processes nobody announced that the engine has not hung up yet.
    fn unknown_ghosts(&self) -> u32 {
        let announced = |name| self.peers.get(name).is_some_and(|peer| peer.announced);
        let ghosts = self.ghosts.iter().filter(|((name, _), _)| !announced(name));
        ghosts.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    fn dial_done(&mut self, conn: ConnToken, outcome: DialOutcome, now: Nanos) {
        let Some(entry) = self.conns.get(&conn) else { return };
        if entry.stage != Stage::Dialing {
            return;
        }
        match outcome {
            DialOutcome::Established(data) => match self.check_answer(entry, &data) {
                Ok(agreed) => self.hand_over(conn, Role::Initiator, agreed),
                Err(reason) => {
                    let (name, class) = (entry.name, entry.class);
                    self.drop_conn(conn);
                    self.fail(name, class, ConnectFault::BadAnswer(reason));
                }
            },
            DialOutcome::Rejected(data) => {
                use RejectReason as R;
                let (name, class) = (entry.name, entry.class);
                match RejectReason::decode(&data) {
                    Some(why @ (R::Busy | R::Crossing | R::UnknownPeer)) => {
                        self.try_again(conn, &why.to_string(), Retry::SameAddr, now);
                    }
                    Some(why @ R::WrongProcess) => {
                        self.try_again(conn, &why.to_string(), Retry::NextAddr, now);
                    }
                    Some(why) => {
                        self.forget_conn(conn);
                        self.fail(name, class, ConnectFault::Rejected(why));
                    }
                    None => {
                        let why = "rejected by the connection manager there";
                        self.try_again(conn, why, Retry::NextAddr, now);
                    }
                }
            }
            DialOutcome::Failed(why) => self.try_again(conn, &why, Retry::NextAddr, now),
        }
    }

    fn check_answer(&self, entry: &Conn, data: &PrivateData) -> Result<Agreed, RejectReason> {
        let hello = Greeting::decode(data)?;
        if hello.job != self.config.job {
            return Err(RejectReason::Job);
        }
        if hello.from != entry.name || hello.to != self.config.me {
            return Err(RejectReason::WrongProcess);
        }
        if hello.class != entry.class || hello.generation != entry.generation {
            return Err(RejectReason::UnknownLane);
        }
        if hello.buffer_size < MIN_BUFFER || hello.depth < MIN_WINDOW {
            return Err(RejectReason::Limits);
        }
        Ok(self.agreed(&hello))
    }

    /// What a connection is like after both sides have said what they want.
    fn agreed(&self, hello: &Greeting) -> Agreed {
        let both = hello.recover && self.config.recover.is_some();
        // The two ends of a connection to oneself end together.
        let recover = both && hello.from != self.config.me;
        Agreed {
            peer_buffer_size: hello.buffer_size,
            peer_depth: hello.depth,
            generation: hello.generation,
            // Credits on another lane would be lost with that lane.
            first_lane: route::agree(self.config.credit_route, hello.route).filter(|_| !recover),
            recover,
            resume: Resume::default(),
        }
    }

    fn accept_done(&mut self, conn: ConnToken, outcome: Result<(), String>, now: Nanos) {
        let Some(entry) = self.conns.get(&conn) else { return };
        let Some(agreed) = entry.agreed.filter(|_| entry.stage == Stage::Accepting) else { return };
        match outcome {
            Ok(()) => self.hand_over(conn, Role::Acceptor, agreed),
            Err(why) => self.try_again(conn, &why, Retry::SameAddr, now),
        }
    }

    /// `conn` is the link's connection from now on. Whatever else the link had is dead: the peer
    /// has at most one connection too, and it is this one.
    fn hand_over(&mut self, conn: ConnToken, role: Role, mut agreed: Agreed) {
        let Some(entry) = self.conns.get_mut(&conn) else { return };
        let (name, class) = (entry.name, entry.class);
        if entry.stage == Stage::Accepting {
            self.accepting = self.accepting.saturating_sub(1);
        }
        entry.stage = Stage::Up(role);
        let Some(peer) = self.peers.get_mut(&name) else { return };
        let announced = peer.announced;
        let Some(link) = peer.links.get_mut(usize::from(class)) else { return };
        let old_up = link.up.replace(conn);
        entry.wanted = link.wanted.take();
        // The newest word of the engine: between its wish and this connection it has had no other.
        agreed.resume = link.rejoin.resume;
        // What else was under way is not wanted any more. It may succeed at the peer all the same; then it ends there
        // unused.
        let other = match role {
            Role::Initiator => {
                link.dial = None;
                link.accept.take()
            }
            Role::Acceptor => {
                link.accept = None;
                link.dial.take()
            }
        };
        if let Some(other) = other {
            self.drop_conn(other);
        }
        if let Some(old) = old_up
            && let Some(entry) = self.conns.get_mut(&old)
        {
            entry.stage = Stage::Gone;
            *self.ghosts.entry((name, class)).or_default() += 1;
            self.actions.push_back(Action::Gone { conn: old });
        }
        self.set_timer(name, class, None);
        let class = self.class_of(class);
        self.actions.push_back(Action::HandOver { conn, name, class, role, agreed, announced });
    }

    /// A dial or an accept did not become a connection.
    fn try_again(&mut self, conn: ConnToken, why: &str, retry: Retry, now: Nanos) {
        let Some(entry) = self.forget_conn(conn) else { return };
        let (name, class) = (entry.name, entry.class);
        let rejoin = self.link_mut(name, class).map(|link| link.rejoin).unwrap_or_default();
        let ((min, max), give_up, attempts) = give_up_of(&self.config, rejoin);
        let Some(link) = self.link_mut(name, class) else { return };
        let busy = link.up.is_some() || link.accept.is_some() || link.dial.is_some();
        let Some(since) = link.wanted.filter(|_| !busy) else {
            self.prune(name);
            return;
        };
        if now.saturating_sub(since) >= give_up || link.tries >= attempts {
            let fault = ConnectFault::GaveUp {
                tries: link.tries,
                seconds: now.saturating_sub(since) / SECOND,
                addr: entry.addr.map_or_else(|| "this process".into(), |addr| addr.to_string()),
                last: why.to_owned(),
            };
            self.fail(name, class, fault);
            return;
        }
        if matches!(retry, Retry::NextAddr) {
            link.next_addr = link.next_addr.wrapping_add(1);
        }
        link.pause = link.pause.saturating_mul(2).clamp(min, max);
        let at = now.saturating_add(link.pause).min(since.saturating_add(give_up));
        self.set_timer(name, class, Some(at));
    }

    /// A connection that was to be handed over is lost.
    fn lost(&mut self, conn: ConnToken, why: &str, now: Nanos) {
        let Some(entry) = self.conns.get(&conn) else { return };
        let (name, class, wanted) = (entry.name, entry.class, entry.wanted);
        let Some(link) = self.link_mut(name, class) else { return };
        if link.up == Some(conn) {
            link.up = None;
            link.wanted = link.wanted.or(wanted);
        }
        self.try_again(conn, why, Retry::SameAddr, now);
    }

    fn disconnected(&mut self, conn: ConnToken, now: Nanos) {
        let Some(entry) = self.conns.get_mut(&conn) else { return };
        let (name, class) = (entry.name, entry.class);
        match entry.stage {
            Stage::Dialing | Stage::Accepting => {
                self.actions.push_back(Action::Drop { conn });
                self.try_again(conn, "disconnected while connecting", Retry::SameAddr, now);
            }
            Stage::Up(_) => {
                entry.stage = Stage::Gone;
                *self.ghosts.entry((name, class)).or_default() += 1;
                if let Some(link) = self.link_mut(name, class) {
                    link.up = None;
                }
                self.actions.push_back(Action::Gone { conn });
            }
            Stage::Gone => {}
        }
    }

    fn hangup(&mut self, conn: ConnToken) {
        if let Some(name) = self.conns.get(&conn).map(|entry| entry.name) {
            self.drop_conn(conn);
            self.prune(name);
        }
    }

    fn tick(&mut self, now: Nanos) {
        while let Some(&(at, name, class)) = self.timers.first() {
            if at > now {
                break;
            }
            self.set_timer(name, class, None);
            self.dial_if_wanted(name, class, now);
        }
    }

    fn stop(&mut self) {
        if self.stopped {
            return;
        }
        self.stopped = true;
        self.timers.clear();
        for conn in std::mem::take(&mut self.conns).into_keys() {
            self.actions.push_back(Action::Drop { conn });
        }
        self.peers.clear();
        self.ghosts.clear();
        self.accepting = 0;
        self.actions.push_back(Action::Stopped);
    }

    /// The engine hears that it will not get the lane.
    fn fail(&mut self, name: ProcName, class: u8, fault: ConnectFault) {
        let wanted = self.link_mut(name, class).and_then(|link| link.wanted.take());
        if wanted.is_some() || self.stopped || self.config.lane(class).is_none() {
            self.actions.push_back(Action::Failed { name, class, fault });
        }
        self.set_timer(name, class, None);
        self.prune(name);
    }

    /// The engine has hung up a connection that was gone.
    fn lay(&mut self, name: ProcName, class: u8) {
        if let Some(n) = self.ghosts.get_mut(&(name, class)) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.ghosts.remove(&(name, class));
            }
        }
    }

    /// Takes a connection out of all tables.
    fn forget_conn(&mut self, conn: ConnToken) -> Option<Conn> {
        let entry = self.conns.remove(&conn)?;
        if entry.stage == Stage::Accepting {
            self.accepting = self.accepting.saturating_sub(1);
        }
        if entry.stage == Stage::Gone {
            self.lay(entry.name, entry.class);
        }
        let link =
            self.peers.get_mut(&entry.name).and_then(|p| p.links.get_mut(usize::from(entry.class)));
        if let Some(link) = link {
            for place in [&mut link.dial, &mut link.accept, &mut link.up] {
                if *place == Some(conn) {
                    *place = None;
                }
            }
        }
        Some(entry)
    }

    /// The same, and the driver drops it too.
    fn drop_conn(&mut self, conn: ConnToken) {
        if self.forget_conn(conn).is_some() {
            self.actions.push_back(Action::Drop { conn });
        }
    }

    /// The link, made if the class exists.
    fn link_mut(&mut self, name: ProcName, class: u8) -> Option<&mut Link> {
        let twice = if name == self.config.me { 2 } else { 1 };
        let n = self.config.lanes.len() * twice;
        if usize::from(class) >= n || self.stopped {
            return None;
        }
        let peer = self.peers.entry(name).or_default();
        peer.links.resize_with(n, Link::default);
        peer.links.get_mut(usize::from(class))
    }

    fn set_timer(&mut self, name: ProcName, class: u8, at: Option<Nanos>) {
        let link = self.peers.get_mut(&name).and_then(|p| p.links.get_mut(usize::from(class)));
        let Some(link) = link else { return };
        if let Some(old) = std::mem::replace(&mut link.retry_at, at) {
            self.timers.remove(&(old, name, class));
        }
        if let Some(at) = at {
            self.timers.insert((at, name, class));
        }
    }

    /// Forgets a peer that nobody announced and that has nothing under way.
    fn prune(&mut self, name: ProcName) {
        let idle = |link: &Link| {
            link.wanted.is_none()
                && link.dial.is_none()
                && link.accept.is_none()
                && link.up.is_none()
        };
        let Some(peer) = self.peers.get(&name) else { return };
        if !peer.announced && peer.links.iter().all(idle) {
            self.peers.remove(&name);
        }
    }

    /// Connections that were named and not dropped yet: bounded by the lanes of announced peers, `max_unknown` and
    /// `max_accepting`.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Whether a connection is up, and in which role: for tests and reports.
    pub fn role(&self, name: ProcName, class: u8) -> Option<Role> {
        let link = self.peers.get(&name)?.links.get(usize::from(class))?;
        match self.conns.get(&link.up?)?.stage {
            Stage::Up(role) => Some(role),
            _ => None,
        }
    }
}

/// How patient to be with a link: shortest and longest pause, time in all, dials in all.
fn give_up_of(config: &Config, rejoin: Rejoin) -> ((Nanos, Nanos), Nanos, u32) {
    match config.recover.filter(|_| rejoin.after.is_some()) {
        Some(it) => ((it.backoff_min, it.backoff_max), it.t_recover, it.attempts),
        None => ((config.backoff_min, config.backoff_max), config.t_give_up, u32::MAX),
    }
}
