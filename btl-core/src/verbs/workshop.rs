//! Makes lanes before they are connected: queue pairs on a completion queue with room, and the
//! buffers of their receives. Shared by the connection manager's threads and the port.
use super::device::Selection;
use super::handover::lock;
use super::port::VerbsQp;
use crate::config::Config;
use crate::names::Role;
use crate::port::Refused;
use crate::setup::SetupLane;
use rdma_cm::{ConnParams, PrivateData};
use rdma_safe::{
    Caps, Context, CqRef, ErrorKind, PollGroup, ProtectionDomain, QpConfig, QueuePair, Slot,
};
use std::sync::Mutex;

/// Bytes of a buffer for control messages. No lane has buffers as small as this.
const CONTROL: usize = 128;
/// Buffers for control messages registered at a time.
const CONTROL_CHUNK: usize = 64;
/// Lanes for which receives are registered at a time, at most.
const LANES_PER_CHUNK: usize = 16;
/// Not more of them than one for so many lanes that have their receives: what is pinned and not used stays small beside
/// what is.
const LANES_PER_SPARE: usize = 8;
/// Most completion queues of a port.
const MAX_QUEUES: usize = 4096;
/// Sends up to this many bytes go inline where the device can, unless a limit is asked for.
const INLINE: u32 = 64;

pub(super) struct Workshop {
    pub(super) config: Config,
    pd: ProtectionDomain,
    /// Sends up to this many bytes go inline.
    inline: u32,
    retry_count: u8,
    rnr_retry_count: u8,
    min_rnr_timer: u8,
    /// See [`Selection::ack_timeout`].
    pub(super) ack_timeout: u8,
    /// Initiators nudge: see [`nudge`](super::nudge).
    nudges: bool,
    queues: Mutex<Queues>,
    buffers: Mutex<Buffers>,
}

struct Queues {
    depth: u32,
    /// One for each poll group, in the port's order.
    refs: Vec<CqRef>,
    /// Groups the port has not taken in yet: the last ones of `refs`.
    fresh: Vec<PollGroup>,
}

/// Free buffers of the lanes' receives by class, and of control messages.
struct Buffers {
    receives: Vec<Vec<Slot>>,
    control: Vec<Slot>,
    /// Lanes whose receives are registered, by class.
    lanes: Vec<usize>,
}

impl Workshop {
    /// With one completion queue.
    pub(super) fn new(
        config: &Config,
        pd: ProtectionDomain,
        how: &Selection,
    ) -> rdma_safe::Result<Workshop> {
        let classes = config.lanes.len();
        let deepest = config.lanes.iter().map(|l| u32::from(l.depth) + u32::from(l.send_depth) + 1);
        // At least one lane must fit.
        let depth = how.cq_depth.max(deepest.max().unwrap_or(1)).min(pd.context().attr().max_cqe);
        let mut queues = Queues { depth, refs: Vec::new(), fresh: Vec::new() };
        queues.grow(pd.context())?;
        let nudges = pd.context().caps().contains(Caps::NUDGE_AFTER_ACCEPT);
        Ok(Workshop {
            config: config.clone(),
            pd,
            inline: how.max_inline.unwrap_or(INLINE),
            retry_count: how.retry_count,
            rnr_retry_count: how.rnr_retry_count,
            min_rnr_timer: how.min_rnr_timer,
            ack_timeout: how.ack_timeout,
            nudges,
            queues: Mutex::new(queues),
            buffers: Mutex::new(Buffers {
                receives: (0..classes).map(|_| Vec::new()).collect(),
                control: Vec::new(),
                lanes: vec![0; classes],
            }),
        })
    }

    pub(super) fn context(&self) -> &Context {
        self.pd.context()
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// How to connect a lane. Only lane 0 has one-sided operations.
    pub(super) fn params(&self, class: u8, data: PrivateData) -> ConnParams {
        let plain = ConnParams {
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            min_rnr_timer: self.min_rnr_timer,
            ..ConnParams::with_private_data(data)
        };
        if class > 0 {
            return plain;
        }
        let attr = self.context().attr();
        let most =
            |device: u32| self.config.rma_reads.min(u8::try_from(device).unwrap_or(u8::MAX)).max(1);
        ConnParams {
            responder_resources: most(attr.max_qp_rd_atom),
            initiator_depth: most(attr.max_qp_init_rd_atom),
            ..plain
        }
    }

    /// Poll groups made since the last call.
    pub(super) fn fresh_groups(&self) -> Vec<PollGroup> {
        std::mem::take(&mut lock(&self.queues).fresh)
    }

    /// A lane with a queue pair in RESET and no receives.
    pub(super) fn make_lane(&self, class: u8, role: Role) -> Result<SetupLane<VerbsQp>, String> {
        let lane = self.config.lane(class).ok_or("there is no lane of that class")?;
        let nudge = role == Role::Initiator && self.nudges;
        let sizes = QpConfig {
            send_depth: u32::from(lane.send_depth) + u32::from(nudge),
            recv_depth: u32::from(lane.depth),
            max_inline: self.inline,
            ..QpConfig::default()
        };
        let (qp, group) = self.make_qp(&sizes).map_err(|e| e.to_string())?;
        let qp = VerbsQp { qp, group, nudge, reads: 0 };
        SetupLane::new(&self.config, class, role, qp).map_err(|e| e.to_string())
    }

    fn make_qp(&self, sizes: &QpConfig) -> rdma_safe::Result<(QueuePair, usize)> {
        let mut queues = lock(&self.queues);
        let mut full = None;
        // The newest queue is the likeliest to have room.
        for (group, cq) in queues.refs.iter().enumerate().rev() {
            match self.pd.create_qp(cq, cq, sizes) {
                Ok(qp) => return Ok((qp, group)),
                Err(e) if e.kind() == ErrorKind::CqDepth => full = Some(e),
                Err(e) => return Err(e),
            }
        }
        if let Some(e) = full.filter(|_| queues.refs.len() >= MAX_QUEUES) {
            return Err(e);
        }
        let cq = queues.grow(self.pd.context())?;
        let group = queues.refs.len() - 1;
        Ok((self.pd.create_qp(&cq, &cq, sizes)?, group))
    }

    /// Posts all receives of the lane.
    pub(super) fn post_receives(&self, lane: &mut SetupLane<VerbsQp>) -> Result<(), String> {
        let (class, n) = (lane.class(), usize::from(lane.missing()));
        let mut slots = self.receives(class, n).map_err(|e| e.to_string())?.into_iter();
        let posted = lane.post_receives(slots.by_ref());
        slots.for_each(|slot| self.home(slot));
        posted.map_err(|Refused { why, slot }| {
            if let Some(slot) = slot {
                self.home(slot);
            }
            let why = why.into_error();
            format!("posting the receives of lane {class}: {why}")
        })
    }

    fn receives(&self, class: u8, n: usize) -> rdma_safe::Result<Vec<Slot>> {
        let class = usize::from(class);
        let size = self.config.lanes.get(class).map_or(0, |l| l.buffer_size as usize);
        let mut buffers = lock(&self.buffers);
        let Buffers { receives, lanes, .. } = &mut *buffers;
        let (Some(free), Some(lanes)) = (receives.get_mut(class), lanes.get_mut(class)) else {
            return Ok(Vec::new());
        };
        if free.len() < n {
            let more = (*lanes / LANES_PER_SPARE).clamp(1, LANES_PER_CHUNK);
            free.extend(self.pd.slots(size, n.saturating_mul(more))?);
            *lanes += more;
        }
        let keep = free.len().saturating_sub(n);
        Ok(free.split_off(keep))
    }

    /// A buffer for control messages.
    pub(super) fn control(&self) -> rdma_safe::Result<Option<Slot>> {
        let mut buffers = lock(&self.buffers);
        if buffers.control.is_empty() {
            let chunk = self.pd.slots(CONTROL, CONTROL_CHUNK)?;
            buffers.control = chunk;
        }
        Ok(buffers.control.pop())
    }

    /// Takes a buffer back that [`post_receives`](Self::post_receives) or
    /// [`control`](Self::control) gave out. Its size tells where it belongs.
    pub(super) fn home(&self, slot: Slot) {
        let size = slot.capacity();
        let class = self.config.lanes.iter().position(|l| l.buffer_size as usize == size);
        let mut buffers = lock(&self.buffers);
        match class.and_then(|class| buffers.receives.get_mut(class)) {
            Some(free) => free.push(slot),
            None if size == CONTROL => buffers.control.push(slot),
            None => {}
        }
    }

    /// Destroys a queue pair and takes its buffers back.
    pub(super) fn scrap(&self, qp: VerbsQp) {
        // When it cannot be destroyed its buffers are lost with it: the device may still use them.
        for slot in qp.qp.close().unwrap_or_default() {
            self.home(slot);
        }
    }

    /// The same for a lane that will not be.
    pub(super) fn scrap_lane(&self, lane: SetupLane<VerbsQp>) {
        self.scrap(lane.into_qp());
    }
}

impl Queues {
    fn grow(&mut self, context: &Context) -> rdma_safe::Result<CqRef> {
        let group = PollGroup::new(context.create_cq(self.depth)?);
        let cq = group.cq_ref();
        self.refs.push(cq.clone());
        self.fresh.push(group);
        Ok(cq)
    }
}
