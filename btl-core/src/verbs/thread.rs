//! The connection manager's thread: owns the event channel, the listeners, every connection and
//! the connection machine, and carries the machine's actions out. It never waits for the engine,
//! so connections come up while the application computes.
use super::cm::Mail;
use super::dial::{DialError, Dialed, Dialers, Done, Job};
use super::port::VerbsQp;
use super::workshop::Workshop;
use crate::connect::{Action, DialOutcome, Input, Machine};
use crate::names::{ConnToken, Nanos, ProcName, Role};
use crate::port::{CmEvent, CmRequest, LaneUp};
#[cfg(feature = "sabotage")]
use crate::setup::UpLane;
use crate::setup::{Agreed, SetupLane};
use crate::wire::{self, RejectReason};
use rdma_cm::{
    Accepting, Acceptor, CancelToken, ConnectError, ConnectRequest, Established, Event,
    EventChannel, Id, IdKey, Initiator, Listener, PrivateData,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for an event. Everything that matters wakes the thread earlier.
const NAP: Duration = Duration::from_secs(60);
/// How long an ended connection waits for the peer's answer.
const LEAVE: Duration = Duration::from_secs(5);
/// How long a dial that is not wanted any more may go on.
const UNWANTED: Duration = Duration::from_secs(2);
/// The same as LEAVE for all that are left when everything ends.
const LEAVE_AT_END: Duration = Duration::from_millis(500);

/// A connection on its way up or down. While it is `Up` the engine has its queue pair.
enum Conn {
    Requested(ConnectRequest),
    Dialing(CancelToken),
    Accepting(SetupLane<VerbsQp>, Accepting, Nanos),
    Ready(SetupLane<VerbsQp>, Link),
    Up(Link),
}

/// An established connection.
enum Link {
    Initiator(Established<Initiator>),
    Acceptor(Established<Acceptor>),
    /// Test only: taken for established right after the accept.
    #[cfg(feature = "sabotage")]
    Early(Accepting),
}

pub(super) struct Driver {
    mail: Arc<Mail>,
    workshop: Arc<Workshop>,
    machine: Machine,
    dialers: Dialers,
    conns: HashMap<ConnToken, Conn>,
    /// Which connection an id of the channel belongs to.
    ids: HashMap<IdKey, ConnToken>,
    /// Connections that this side has ended, until the peer's answer, and how long to wait for that.
    leaving: HashMap<IdKey, (Link, Instant)>,
    /// Dials that nobody wants any more, and when they are interrupted.
    unwanted: Vec<(CancelToken, Instant)>,
    listeners: Vec<Listener>,
    channel: EventChannel,
    start: Instant,
    removed: bool,
    stopped: bool,
}

impl Link {
    fn key(&self) -> IdKey {
        match self {
            Link::Initiator(link) => link.key(),
            Link::Acceptor(link) => link.key(),
            #[cfg(feature = "sabotage")]
            Link::Early(link) => link.key(),
        }
    }
}

impl Driver {
    pub(super) fn new(
        mail: Arc<Mail>,
        workshop: Arc<Workshop>,
        channel: EventChannel,
        listeners: Vec<Listener>,
        dialers: Dialers,
    ) -> Driver {
        Driver {
            machine: Machine::new(&workshop.config),
            mail,
            workshop,
            dialers,
            conns: HashMap::new(),
            ids: HashMap::new(),
            leaving: HashMap::new(),
            unwanted: Vec::new(),
            listeners,
            channel,
            start: Instant::now(),
            removed: false,
            stopped: false,
        }
    }

    /// Runs until the engine asks for the end, or is gone.
    pub(super) fn run(mut self) {
        loop {
            if self.mail.has_quit() {
                self.feed(Input::Stop);
            }
            for request in self.mail.take_requests() {
                self.take_request(request);
            }
            for done in self.dialers.take_done() {
                self.dial_done(done);
            }
            self.look_at_clock();
            if self.stopped {
                break;
            }
            match self.channel.next_event(Some(self.next_wait())) {
                Ok(Some(event)) => self.take_event(event),
                Ok(None) => {}
                // The descriptor itself fails: nothing can be heard from the device any more.
                Err(_) => {
                    self.device_removed();
                    self.feed(Input::Stop);
                }
            }
        }
        self.end();
    }

    fn now(&self) -> Nanos {
        Nanos::try_from(self.start.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// Tells the machine something and carries out what it asks for.
    fn feed(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(input, now);
        while let Some(action) = self.machine.poll_action() {
            self.carry_out(action);
        }
    }

    fn take_request(&mut self, request: CmRequest) {
        self.feed(match request {
            CmRequest::Announce { name, addrs } => Input::Announce { name, addrs },
            CmRequest::Forget { name } => Input::Forget { name },
            CmRequest::Connect { name, class, rejoin } => Input::Want { name, class, rejoin },
            CmRequest::Disconnect { conn } => Input::Hangup { conn },
            CmRequest::Stop => Input::Stop,
        });
    }

    /// Accepts that took too long, and the machine's own timers.
    fn look_at_clock(&mut self) {
        let now = self.now();
        let late = |(conn, entry): (&ConnToken, &Conn)| match entry {
            Conn::Accepting(_, _, deadline) if *deadline <= now => Some(*conn),
            _ => None,
        };
        let late: Vec<ConnToken> = self.conns.iter().filter_map(late).collect();
        for conn in late {
            self.accept_failed(conn, "the initiator did not complete the connection in time");
        }
        let at = Instant::now();
        let over = self.leaving.iter().filter(|(_, (_, by))| *by <= at).map(|(id, _)| *id);
        for id in over.collect::<Vec<_>>() {
            self.left(id);
        }
        self.unwanted.retain(|(cancel, by)| {
            let late = *by <= at;
            if late {
                cancel.cancel();
            }
            !late
        });
        if self.machine.next_timeout().is_some_and(|at| at <= now) {
            self.feed(Input::Tick);
        }
    }

    fn next_wait(&self) -> Duration {
        let accepts = self.conns.values().filter_map(|entry| match entry {
            Conn::Accepting(_, _, deadline) => Some(*deadline),
            _ => None,
        });
        let next = accepts.chain(self.machine.next_timeout()).min();
        let calm = self.leaving.is_empty() && self.unwanted.is_empty();
        let nap = if calm { NAP } else { UNWANTED };
        next.map_or(nap, |at| Duration::from_nanos(at.saturating_sub(self.now())).min(nap))
    }

    fn take_event(&mut self, event: Event) {
        let of = |ids: &HashMap<IdKey, ConnToken>, id: IdKey| ids.get(&id).copied();
        match event {
            Event::ConnectRequest { request, .. } => self.requested(request),
            Event::DeviceRemoval { .. } => self.device_removed(),
            Event::Established { id, .. } => {
                if let Some(conn) = of(&self.ids, id) {
                    self.established(conn);
                }
            }
            Event::ConnectError { id, status } | Event::Unreachable { id, status } => {
                if let Some(conn) = of(&self.ids, id) {
                    self.gone(conn, &format!("the connection failed (status {status})"));
                }
            }
            Event::Rejected { id, .. } => {
                if let Some(conn) = of(&self.ids, id) {
                    self.gone(conn, "the initiator withdrew");
                }
            }
            Event::Disconnected { id } => match of(&self.ids, id) {
                Some(conn) => self.gone(conn, "disconnected while connecting"),
                None => self.left(id),
            },
            Event::TimewaitExit { id } => self.left(id),
            _ => {}
        }
    }

    fn requested(&mut self, request: ConnectRequest) {
        let conn = self.machine.token();
        let data = wire::PrivateData::from_slice(request.private_data().as_bytes());
        self.conns.insert(conn, Conn::Requested(request));
        self.feed(Input::Request { conn, data });
    }

    /// The initiator has confirmed an accept.
    fn established(&mut self, conn: ConnToken) {
        match self.conns.remove(&conn) {
            Some(Conn::Accepting(lane, accepting, deadline)) => {
                match self.channel.established(accepting) {
                    Ok(link) => {
                        self.conns.insert(conn, Conn::Ready(lane, Link::Acceptor(link)));
                        self.feed(Input::AcceptDone { conn, outcome: Ok(()) });
                    }
                    Err(accepting) => {
                        self.conns.insert(conn, Conn::Accepting(lane, accepting, deadline));
                    }
                }
            }
            Some(other) => {
                self.conns.insert(conn, other);
            }
            None => {}
        }
    }

    /// A connection ended, or an accept failed.
    fn gone(&mut self, conn: ConnToken, why: &str) {
        match self.conns.get(&conn) {
            Some(Conn::Accepting(..)) => self.accept_failed(conn, why),
            Some(_) => self.feed(Input::Disconnected { conn }),
            None => {}
        }
    }

    fn accept_failed(&mut self, conn: ConnToken, why: &str) {
        self.mail.counts.accept_failed(why);
        self.drop_conn(conn);
        self.feed(Input::AcceptDone { conn, outcome: Err(why.to_owned()) });
    }

    fn device_removed(&mut self) {
        if std::mem::replace(&mut self.removed, true) {
            return;
        }
        self.mail.push(CmEvent::DeviceRemoved);
        // The kernel's removal waits for every id of the device, so they go now, whatever the
        // application is doing. The queue pairs that are up are the engine's.
        self.listeners.clear();
        self.leaving.clear();
        let all: Vec<ConnToken> = self.conns.keys().copied().collect();
        for conn in all {
            match self.conns.get(&conn) {
                Some(Conn::Dialing(cancel)) => cancel.cancel(),
                Some(Conn::Accepting(..)) => self.accept_failed(conn, "the device was removed"),
                _ => {
                    self.drop_conn(conn);
                    self.feed(Input::Disconnected { conn });
                }
            }
        }
    }

    fn dial_done(&mut self, done: Done) {
        let Done { conn, result } = done;
        if !matches!(self.conns.get(&conn), Some(Conn::Dialing(_))) {
            // Not wanted any more.
            if let Ok(dialed) = result {
                self.take_over(conn, dialed);
                self.drop_conn(conn);
            }
            return;
        }
        self.conns.remove(&conn);
        self.mail.counts.dial_done();
        let outcome = match result {
            Ok(dialed) => self.take_over(conn, dialed),
            Err(DialError::Connect(ConnectError::Rejected { private_data, .. })) => {
                self.mail.counts.dial_rejected();
                DialOutcome::Rejected(wire::PrivateData::from_slice(private_data.as_bytes()))
            }
            // A rejection that came too late to be one.
            Err(e @ DialError::Connect(ConnectError::Disconnected)) => {
                self.mail.counts.dial_rejected();
                DialOutcome::Failed(e.to_string())
            }
            Err(e) => {
                let why = e.to_string();
                self.mail.counts.dial_failed(&why);
                DialOutcome::Failed(why)
            }
        };
        self.feed(Input::DialDone { conn, outcome });
    }

    /// Brings a dialled connection onto this thread's channel.
    fn take_over(&mut self, conn: ConnToken, dialed: Dialed) -> DialOutcome {
        let Dialed { lane, mut channel, connection } = dialed;
        match self.channel.adopt(&mut channel, connection) {
            Ok(connection) => {
                let data = wire::PrivateData::from_slice(connection.private_data().as_bytes());
                self.ids.insert(connection.key(), conn);
                self.conns.insert(conn, Conn::Ready(lane, Link::Initiator(connection)));
                DialOutcome::Established(data)
            }
            Err((connection, e)) => {
                self.workshop.scrap_lane(lane);
                channel.destroy(connection);
                let why = e.to_string();
                self.mail.counts.dial_failed(&why);
                DialOutcome::Failed(why)
            }
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Dial { conn, class, addr, data, deadline, .. } => {
                self.dial(conn, class, addr, data, deadline);
            }
            Action::Accept { conn, class, data, deadline, .. } => {
                self.accept(conn, class, &data, deadline);
            }
            Action::Reject { conn, data } => {
                if let Some(Conn::Requested(request)) = self.conns.remove(&conn) {
                    self.reject(request, &data);
                }
            }
            Action::HandOver { conn, name, class, role, agreed, announced } => {
                let up = LaneTo { conn, name, class, role, announced };
                self.hand_over(up, agreed);
            }
            Action::Drop { conn } => self.drop_conn(conn),
            Action::Failed { name, class, fault } => {
                self.mail.push(CmEvent::ConnectFailed { name, class, fault });
            }
            Action::Gone { conn } => self.mail.push(CmEvent::Disconnected { conn }),
            Action::Stopped => self.stopped = true,
        }
    }

    fn dial(
        &mut self,
        conn: ConnToken,
        class: u8,
        addr: SocketAddr,
        data: wire::PrivateData,
        deadline: Nanos,
    ) {
        let submitted = self.submit(conn, class, addr, data, deadline);
        match submitted {
            Ok(cancel) => {
                self.conns.insert(conn, Conn::Dialing(cancel));
            }
            Err(why) => self.answer(Input::DialDone { conn, outcome: DialOutcome::Failed(why) }),
        }
    }

    fn submit(
        &mut self,
        conn: ConnToken,
        class: u8,
        addr: SocketAddr,
        data: wire::PrivateData,
        deadline: Nanos,
    ) -> Result<CancelToken, String> {
        if self.removed {
            return Err("the device was removed".into());
        }
        let cancel = CancelToken::new().map_err(|e| e.to_string())?;
        let deadline = self.start + Duration::from_nanos(deadline);
        let job = Job { conn, class, addr, data, deadline, cancel: cancel.clone() };
        self.dialers.submit(job).map_err(|e| format!("no thread to dial with: {e}"))?;
        Ok(cancel)
    }

    /// Tells the machine something from within an action; `feed` carries out what follows.
    fn answer(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(input, now);
    }

    fn accept(&mut self, conn: ConnToken, class: u8, data: &wire::PrivateData, deadline: Nanos) {
        let Some(Conn::Requested(request)) = self.conns.remove(&conn) else { return };
        self.mail.counts.accepting();
        let outcome = match self.lane_for(&request, class) {
            Ok(lane) => self.accept_with(conn, request, lane, data, deadline),
            Err(why) => {
                self.reject(request, &RejectReason::Busy.encode());
                Err(why)
            }
        };
        if let Err(why) = outcome {
            self.mail.counts.accept_failed(&why);
            self.answer(Input::AcceptDone { conn, outcome: Err(why) });
        }
    }

    /// A lane on the request's device with all receives posted: from the accept on, the
    /// initiator's Hello may come at any moment.
    fn lane_for(
        &mut self,
        request: &ConnectRequest,
        class: u8,
    ) -> Result<SetupLane<VerbsQp>, String> {
        let mut lane = self.workshop.make_lane(class, Role::Acceptor)?;
        let ready = self.channel.init_qp(request, &mut lane.qp_mut().qp);
        let ready = ready.map_err(|e| e.to_string());
        match ready.and_then(|()| self.workshop.post_receives(&mut lane)) {
            Ok(()) => Ok(lane),
            Err(why) => {
                self.workshop.scrap_lane(lane);
                Err(why)
            }
        }
    }

    fn accept_with(
        &mut self,
        conn: ConnToken,
        request: ConnectRequest,
        mut lane: SetupLane<VerbsQp>,
        data: &wire::PrivateData,
        deadline: Nanos,
    ) -> Result<(), String> {
        let accepted =
            PrivateData::raw(data.as_slice()).map_err(rdma_cm::Error::from).and_then(|data| {
                let params = self.workshop.params(lane.class(), data);
                self.channel.accept(request, &mut lane.qp_mut().qp, &params)
            });
        match accepted {
            Ok(accepting) => {
                self.ids.insert(accepting.key(), conn);
                self.keep_accepting(conn, lane, accepting, deadline);
                Ok(())
            }
            Err(e) => {
                self.workshop.scrap_lane(lane);
                Err(e.to_string())
            }
        }
    }

    fn keep_accepting(
        &mut self,
        conn: ConnToken,
        lane: SetupLane<VerbsQp>,
        accepting: Accepting,
        deadline: Nanos,
    ) {
        #[cfg(feature = "sabotage")]
        if self.workshop.config.sabotage.acceptor_sends_at_once {
            self.conns.insert(conn, Conn::Ready(lane, Link::Early(accepting)));
            self.answer(Input::AcceptDone { conn, outcome: Ok(()) });
            return;
        }
        self.conns.insert(conn, Conn::Accepting(lane, accepting, deadline));
    }

    fn reject(&mut self, request: ConnectRequest, data: &wire::PrivateData) {
        // Fails only when the initiator has gone, and a rejection is never longer than allowed.
        let data = PrivateData::raw(data.as_slice()).unwrap_or_default();
        let _ = self.channel.reject(request, &data);
    }

    fn hand_over(&mut self, to: LaneTo, agreed: Agreed) {
        let conn = to.conn;
        let Some(Conn::Ready(mut lane, link)) = self.conns.remove(&conn) else { return };
        lane.qp_mut().learn_reads();
        let up = match self.workshop.control() {
            Ok(Some(slot)) => lane.established(agreed, slot).map_err(|(qp, e)| {
                self.workshop.scrap(qp);
                e.to_string()
            }),
            Ok(None) => {
                self.workshop.scrap_lane(lane);
                Err("no buffer for control messages".into())
            }
            Err(e) => {
                self.workshop.scrap_lane(lane);
                Err(e.to_string())
            }
        };
        self.conns.insert(conn, Conn::Up(link));
        match up {
            Ok(lane) => {
                #[cfg(feature = "sabotage")]
                let lane = self.sabotage(lane, to.role);
                let LaneTo { conn, name, class, role, announced } = to;
                let up = LaneUp { name, class, role, announced, conn, lane };
                self.mail.push(CmEvent::LaneUp(up));
            }
            Err(why) => {
                self.drop_conn(conn);
                self.answer(Input::HandOverFailed { conn, why });
            }
        }
    }

    #[cfg(feature = "sabotage")]
    fn sabotage(&self, mut lane: UpLane<VerbsQp>, role: Role) -> UpLane<VerbsQp> {
        if role == Role::Acceptor && self.workshop.config.sabotage.acceptor_sends_at_once {
            super::sabotage::speak_too_soon(&mut lane);
        }
        lane
    }

    /// Ends a connection in whatever state it is. A queue pair that was not handed over goes
    /// first: an id may be destroyed under one, but then its messages would still be under way.
    fn drop_conn(&mut self, conn: ConnToken) {
        match self.conns.remove(&conn) {
            Some(Conn::Requested(request)) => self.channel.destroy(request),
            // Nearly always it ends by itself in a moment, and the peer need not see a connect break off.
            Some(Conn::Dialing(cancel)) if !self.removed && !self.stopped => {
                self.unwanted.push((cancel, Instant::now() + UNWANTED));
            }
            Some(Conn::Dialing(cancel)) => cancel.cancel(),
            Some(Conn::Accepting(lane, accepting, _)) => {
                self.ids.remove(&accepting.key());
                self.workshop.scrap_lane(lane);
                self.channel.destroy(accepting);
            }
            Some(Conn::Ready(lane, link)) => {
                self.workshop.scrap_lane(lane);
                self.drop_link(link);
            }
            Some(Conn::Up(link)) => self.drop_link(link),
            None => {}
        }
    }

    /// Says goodbye at the connection manager's level. The id stays until the answer is there: destroying it earlier
    /// cancels the repeats of a goodbye that was lost (InfiniBand and RoCE; cm_destroy_id).
    fn drop_link(&mut self, link: Link) {
        let key = link.key();
        self.ids.remove(&key);
        let said = match &link {
            Link::Initiator(link) => self.channel.disconnect(link),
            Link::Acceptor(link) => self.channel.disconnect(link),
            #[cfg(feature = "sabotage")]
            Link::Early(link) => self.channel.disconnect(link),
        };
        match said {
            Ok(()) if !self.removed => {
                self.leaving.insert(key, (link, Instant::now() + LEAVE));
            }
            // The peer was faster, or there is nobody to answer.
            _ => self.destroy(link),
        }
    }

    fn destroy(&mut self, link: Link) {
        match link {
            Link::Initiator(link) => self.channel.destroy(link),
            Link::Acceptor(link) => self.channel.destroy(link),
            #[cfg(feature = "sabotage")]
            Link::Early(link) => self.channel.destroy(link),
        }
    }

    /// The end of a connection that this side ended.
    fn left(&mut self, id: IdKey) {
        if let Some((link, _)) = self.leaving.remove(&id) {
            self.destroy(link);
        }
    }

    /// Waits a moment for the answers that are still to come, then for none.
    fn leave(&mut self) {
        let limit = Instant::now() + LEAVE_AT_END;
        while !self.leaving.is_empty() {
            let left = limit.saturating_duration_since(Instant::now());
            match self.channel.next_event(Some(left)) {
                Ok(Some(Event::Disconnected { id } | Event::TimewaitExit { id })) => self.left(id),
                Ok(Some(_)) => {}
                Ok(None) if left.is_zero() => break,
                Ok(None) => {}
                Err(_) => break,
            }
        }
        self.leaving.clear();
    }

    fn end(mut self) {
        self.listeners.clear();
        let rest: Vec<ConnToken> = self.conns.keys().copied().collect();
        for conn in rest {
            self.drop_conn(conn);
        }
        self.unwanted.drain(..).for_each(|(cancel, _)| cancel.cancel());
        self.leave();
        self.dialers.end();
        // The last word: whoever hears it may unload this code after joining the thread.
        self.mail.push(CmEvent::Stopped);
    }
}

/// Where a lane goes.
struct LaneTo {
    conn: ConnToken,
    name: ProcName,
    class: u8,
    role: Role,
    announced: bool,
}
