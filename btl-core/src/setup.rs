//! A lane before the engine has it: lives on the connection manager's side, where its receives
//! and the initiator's Hello are posted, so that set-up never needs the application's CPU.
use crate::config::Config;
use crate::error::{Error, PortError};
use crate::lane::{Frame, LaneAcct, NotSent, transmit_setup};
use crate::names::Role;
use crate::port::{Refused, RefusedWhy, SetupQp};
use crate::recover::Resume;
use crate::route::FirstLane;
use crate::wire::{HelloInfo, Kind};

/// What the connect and the accept said about a lane; made by the connection machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Bytes of one receive buffer of the peer, header included.
    pub peer_buffer_size: u32,
    /// Receives the peer has posted: our window.
    pub peer_depth: u16,
    /// Names the connection in Hello.
    pub generation: u32,
    /// Both sides want credits that travel alone on the peer's first lane.
    pub first_lane: Option<FirstLane>,
    /// Both sides recover lanes that fail.
    pub recover: bool,
    /// Of the initiator: what its Hello says.
    pub resume: Resume,
}

/// A queue pair together with its account, not connected yet.
///
/// Order of use: [`new`](SetupLane::new), [`post_receives`](SetupLane::post_receives) *before*
/// connect or accept, then [`established`](SetupLane::established) as soon as the connection is
/// reported established.
pub struct SetupLane<Q: SetupQp> {
    acct: LaneAcct,
    qp: Q,
    class: u8,
    role: Role,
    depth: u16,
    posted: u16,
    #[cfg(feature = "sabotage")]
    sabotage: crate::config::Sabotage,
    /// Receives that are posted too late.
    #[cfg(feature = "sabotage")]
    late: Vec<Q::Slot>,
}

/// A connected queue pair with its account, for the engine.
pub struct UpLane<Q: SetupQp> {
    pub(crate) acct: LaneAcct,
    pub(crate) qp: Q,
    /// The control slot, unless the Hello is in flight in it.
    pub(crate) ctl: Option<Q::Slot>,
    /// The address of the control slot in flight.
    pub(crate) hello_addr: Option<usize>,
    pub(crate) agreed: Agreed,
}

impl<Q: SetupQp> SetupLane<Q> {
    /// `qp` must be able to take `depth` receives and `send_depth` sends of the class.
    ///
    /// # Errors
    /// No such class in the configuration.
    pub fn new(config: &Config, class: u8, role: Role, qp: Q) -> Result<Self, Error> {
        let lane = config.lane(class).ok_or(Error::NoSuchLane { class })?;
        Ok(SetupLane {
            acct: LaneAcct::new(role, lane.depth, lane.send_depth),
            qp,
            class,
            role,
            depth: lane.depth,
            posted: 0,
            #[cfg(feature = "sabotage")]
            sabotage: config.sabotage,
            #[cfg(feature = "sabotage")]
            late: Vec::new(),
        })
    }

    /// The lane's class.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// This side's role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The queue pair, to connect it with.
    pub fn qp_mut(&mut self) -> &mut Q {
        &mut self.qp
    }

    /// Receives still to be posted before connect or accept.
    pub fn missing(&self) -> u16 {
        self.depth.saturating_sub(self.posted)
    }

    /// Posts all receives of the class (each slot at least `buffer_size` long), drawn from
    /// `slots`. On iWARP a message that finds no receive ends the connection, so this comes
    /// before connect or accept.
    ///
    /// # Errors
    /// Too few slots (`slot: None`), or the device refused one, which comes back.
    pub fn post_receives(
        &mut self,
        slots: impl IntoIterator<Item = Q::Slot>,
    ) -> Result<(), Refused<Q::Slot>> {
        let mut slots = slots.into_iter();
        while self.posted < self.depth {
            let Some(slot) = slots.next() else {
                let why = PortError::new(0, "too few buffers for the receives of a lane");
                return Err(Refused { why: RefusedWhy::Broken(why), slot: None });
            };
            #[cfg(feature = "sabotage")]
            if self.sabotage.credits_in_private_data && self.posted > 0 {
                self.late.push(slot);
                self.posted += 1;
                continue;
            }
            self.acct.post_setup_recv(&mut self.qp, slot, self.posted == 0)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// The connection is established. The initiator posts its Hello in `ctl` at once; the
    /// acceptor sends nothing and keeps `ctl` for its answer. `ctl` is a slot of at least 64
    /// bytes and stays with the lane for control messages.
    ///
    /// # Errors
    /// The Hello could not be posted: the connection is of no use. The queue pair comes back to
    /// be destroyed; `ctl` does not, it is dropped.
    pub fn established(
        mut self,
        agreed: Agreed,
        mut ctl: Q::Slot,
    ) -> Result<UpLane<Q>, (Q, PortError)> {
        if self.missing() > 0 {
            return Err((self.qp, PortError::new(0, "the lane's receives were not posted")));
        }
        self.acct.set_window(agreed.peer_depth);
        #[cfg(feature = "sabotage")]
        for slot in std::mem::take(&mut self.late) {
            let _ = self.acct.post_setup_recv(&mut self.qp, slot, false);
        }
        #[cfg(feature = "sabotage")]
        if self.sabotage.apply_to_setup(&mut self.acct, self.role, self.class, agreed) {
            let (acct, qp) = (self.acct, self.qp);
            return Ok(UpLane { acct, qp, ctl: Some(ctl), hello_addr: None, agreed });
        }
        let mut up = UpLane { acct: self.acct, qp: self.qp, ctl: None, hello_addr: None, agreed };
        if self.role == Role::Acceptor {
            up.ctl = Some(ctl);
            return Ok(up);
        }
        let info = HelloInfo { class: self.class, generation: agreed.generation };
        let Some(len) = info.put(&mut ctl, agreed.resume) else {
            return Err((up.qp, PortError::new(0, "the control buffer is too small for a Hello")));
        };
        up.hello_addr = Some(ctl.as_ptr().addr());
        let frame = Frame { kind: Kind::Hello, tag: 0, acks: 0, len };
        match transmit_setup(&mut up.acct, &mut up.qp, frame, ctl) {
            Ok(_posted) => Ok(up),
            Err(NotSent::Refused(..)) => {
                Err((up.qp, PortError::new(0, "the Hello was not admitted")))
            }
            Err(NotSent::Port(refused)) => Err((up.qp, refused.why.into_error())),
        }
    }

    /// Gives the queue pair back: the connection did not come about.
    pub fn into_qp(self) -> Q {
        self.qp
    }
}
