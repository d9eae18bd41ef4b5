//! Dials run on workers: on soft iWARP a connect to a silent host blocks inside the system call
//! for minutes. Every blocking call here ends at the dial's deadline or when it is cancelled.
use super::device::source_for;
use super::handover::{Jobs, Tray};
use super::port::VerbsQp;
use super::workshop::Workshop;
use crate::names::{ConnToken, Role};
use crate::setup::SetupLane;
use crate::wire;
use rdma_cm::{
    CancelToken, ConnectError, Connector, Established, EventChannel, Initiator, LoopbackPolicy,
    PrivateData, Waker,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Dials that may block at a time.
const WORKERS: usize = 8;

/// One dial to do.
pub(super) struct Job {
    pub(super) conn: ConnToken,
    pub(super) class: u8,
    pub(super) addr: SocketAddr,
    pub(super) data: wire::PrivateData,
    pub(super) deadline: Instant,
    pub(super) cancel: CancelToken,
}

/// A dial that has ended.
pub(super) struct Done {
    pub(super) conn: ConnToken,
    pub(super) result: Result<Dialed, DialError>,
}

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The connection manager or the peer said no.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No lane could be made here.
    #[error("{0}")]
    Lane(String),
}

impl From<rdma_cm::Error> for DialError {
    fn from(error: rdma_cm::Error) -> DialError {
        DialError::Connect(error.into())
    }
}

/// A connection, on a channel of its own.
pub(super) struct Dialed {
    pub(super) lane: SetupLane<VerbsQp>,
    pub(super) channel: EventChannel,
    pub(super) connection: Established<Initiator>,
}

/// The workers; started when they are needed.
pub(super) struct Dialers {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

/// What the workers share.
struct Desk {
    jobs: Jobs<Job>,
    done: Tray<Done>,
    workshop: Arc<Workshop>,
    /// Addresses of the port, to dial from.
    own: Vec<SocketAddr>,
    waker: Waker,
}

impl Dialers {
    /// `waker` wakes whoever calls [`take_done`](Self::take_done).
    pub(super) fn new(workshop: Arc<Workshop>, own: Vec<SocketAddr>, waker: Waker) -> Dialers {
        let desk = Desk { jobs: Jobs::new(), done: Tray::new(), workshop, own, waker };
        Dialers { desk: Arc::new(desk), threads: Vec::new() }
    }

    /// Queues a dial.
    ///
    /// # Errors
    /// There is no worker and none could be started.
    pub(super) fn submit(&mut self, job: Job) -> std::io::Result<()> {
        let Dialers { desk, threads } = self;
        desk.jobs.put(job, |all_busy| {
            if !all_busy || threads.len() >= WORKERS {
                return Ok(());
            }
            let desk = Arc::clone(desk);
            let worker = std::thread::Builder::new().name("btl-dial".into());
            match worker.spawn(move || desk.work()) {
                Ok(thread) => threads.push(thread),
                Err(e) if threads.is_empty() => return Err(e),
                // Those that run will come to it.
                Err(_) => {}
            }
            Ok(())
        })
    }

    /// Dials that have ended since the last call.
    pub(super) fn take_done(&self) -> Vec<Done> {
        self.desk.done.take()
    }

    /// Ends the workers; every dial must have been cancelled before. What they still deliver is
    /// dropped.
    pub(super) fn end(&mut self) {
        self.desk.jobs.end();
        for thread in self.threads.drain(..) {
            // It does not panic; if it did, it is over all the same.
            let _ = thread.join();
        }
        drop(self.take_done());
    }
}

impl Desk {
    fn work(&self) {
        while let Some(job) = self.jobs.next() {
            let conn = job.conn;
            let result = self.dial(job);
            self.done.put(Done { conn, result });
            self.waker.wake();
        }
    }

    fn dial(&self, job: Job) -> Result<Dialed, DialError> {
        if job.cancel.is_cancelled() {
            return Err(ConnectError::Cancelled.into());
        }
        let left = || job.deadline.saturating_duration_since(Instant::now());
        let mut channel = EventChannel::with_cancel(job.cancel.clone())?;
        let policy = LoopbackPolicy::new().with_context(self.workshop.context());
        channel.set_loopback_policy(policy);
        let connector = channel.resolve(source_for(&self.own, job.addr), job.addr, left())?;
        if self.workshop.ack_timeout > 0 {
            channel.set_ack_timeout(&connector, self.workshop.ack_timeout)?;
        }
        let mut lane =
            self.workshop.make_lane(job.class, Role::Initiator).map_err(DialError::Lane)?;
        let connected = self.connect(&mut channel, connector, &mut lane, &job);
        match connected {
            Ok(connection) => Ok(Dialed { lane, channel, connection }),
            Err(e) => {
                self.workshop.scrap_lane(lane);
                Err(e)
            }
        }
    }

    fn connect(
        &self,
        channel: &mut EventChannel,
        connector: Connector,
        lane: &mut SetupLane<VerbsQp>,
        job: &Job,
    ) -> Result<Established<Initiator>, DialError> {
        channel.init_qp(&connector, &mut lane.qp_mut().qp)?;
        self.workshop.post_receives(lane).map_err(DialError::Lane)?;
        let data = PrivateData::raw(job.data.as_slice()).map_err(rdma_cm::Error::from)?;
        let params = self.workshop.params(job.class, data);
        let left = job.deadline.saturating_duration_since(Instant::now());
        Ok(channel.connect(connector, &mut lane.qp_mut().qp, &params, left)?)
    }
}
