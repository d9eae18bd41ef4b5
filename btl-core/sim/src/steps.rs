//! What happens below the processes, for the loops of worlds other than the one of `run`.
use crate::net::{Ev, Net};

impl Net {
    /// Carries out an event of the devices. Of one of a connection manager, the host whose CM side has to take the step.
    pub(crate) fn carry_out(&mut self, ev: Ev) -> Option<u32> {
        let wire = |wire: u32| &self.wires[wire as usize];
        match ev {
            Ev::CmRequest { rank } | Ev::CmDeadline { rank, .. } | Ev::CmTick { rank } => {
                return Some(rank);
            }
            Ev::CmIncoming { wire: w }
            | Ev::CmAcceptUp { wire: w }
            | Ev::CmAcceptError { wire: w } => return Some(wire(w).to),
            Ev::CmDialUp { wire: w }
            | Ev::CmRejected { wire: w }
            | Ev::CmDialError { wire: w, .. } => return wire(w).from,
            Ev::CmGone { wire: w, initiator } | Ev::CmNoise { wire: w, initiator } => {
                return if initiator { wire(w).from } else { Some(wire(w).to) };
            }
            Ev::Nic { qp } => self.nic(qp),
            Ev::Arrive { qp } => self.arrive(qp),
            Ev::Cqe { qp } => self.cqe(qp),
            Ev::Place { qp } => self.place_all(qp),
            Ev::GiveUp { qp } => self.give_up(qp),
            Ev::CmReply { wire } => self.reply(wire),
            Ev::PhantomEnd { wire } => self.phantom_end(wire),
            Ev::Intruder { rank } => self.intrude(rank),
            // Of the processes, who have them carried out elsewhere.
            Ev::Poll { .. }
            | Ev::CmDeliver { .. }
            | Ev::Fault { .. }
            | Ev::Obituary { .. }
            | Ev::Resume { .. }
            | Ev::Close { .. } => {}
        }
        None
    }

    /// Whether this poll of a host is the newest one planned; it is over then.
    pub(crate) fn is_current(&mut self, rank: u32, stamp: u64) -> bool {
        let host = &mut self.hosts[rank as usize];
        let current = host.stamp == stamp && !host.dead;
        if current {
            host.next_poll = u64::MAX;
        }
        current
    }
}
