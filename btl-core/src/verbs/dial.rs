//! Dials run on workers: on soft iWARP a connect to a silent host blocks inside the system call
//! for minutes. Every blocking call here ends at the dial's deadline or when it is cancelled.
use super::device::source_for;
use super::port::VerbsQp;
use super::workshop::{Workshop, lock};
use crate::names::{ConnToken, Role};
use crate::setup::SetupLane;
use crate::wire;
use rdma_cm::{
    CancelToken, ConnectError, Connector, Established, EventChannel, Initiator, LoopbackPolicy,
    PrivateData, Waker,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
    jobs: Mutex<Jobs>,
    /// There is a job, or the end has come.
    changed: Condvar,
    done: Mutex<Vec<Done>>,
    workshop: Arc<Workshop>,
    /// Addresses of the port, to dial from.
    own: Vec<SocketAddr>,
    waker: Waker,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    idle: usize,
    over: bool,
}

impl Dialers {
    /// `waker` wakes whoever calls [`take_done`](Self::take_done).
    pub(super) fn new(workshop: Arc<Workshop>, own: Vec<SocketAddr>, waker: Waker) -> Dialers {
        let (jobs, done, changed) = (Mutex::default(), Mutex::default(), Condvar::new());
        let desk = Desk { jobs, changed, done, workshop, own, waker };
        Dialers { desk: Arc::new(desk), threads: Vec::new() }
    }

    /// Queues a dial.
    ///
    /// # Errors
    /// There is no worker and none could be started.
    pub(super) fn submit(&mut self, job: Job) -> std::io::Result<()> {
        let mut jobs = lock(&self.desk.jobs);
        if jobs.idle <= jobs.queue.len() && self.threads.len() < WORKERS {
            let desk = Arc::clone(&self.desk);
            let worker = std::thread::Builder::new().name("btl-dial".into());
            match worker.spawn(move || desk.work()) {
                Ok(thread) => self.threads.push(thread),
                Err(e) if self.threads.is_empty() => return Err(e),
                // Those that run will come to it.
                Err(_) => {}
            }
        }
        jobs.queue.push_back(job);
        drop(jobs);
        self.desk.changed.notify_one();
        Ok(())
    }

    /// Dials that have ended since the last call.
    pub(super) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut lock(&self.desk.done))
    }

    /// Ends the workers; every dial must have been cancelled before. What they still deliver is
    /// dropped.
    pub(super) fn end(&mut self) {
        let mut jobs = lock(&self.desk.jobs);
        jobs.over = true;
        jobs.queue.clear();
        drop(jobs);
        self.desk.changed.notify_all();
        for thread in self.threads.drain(..) {
            // It does not panic; if it did, it is over all the same.
            let _ = thread.join();
        }
        drop(self.take_done());
    }
}

impl Desk {
    fn work(&self) {
        while let Some(job) = self.next_job() {
            let conn = job.conn;
            let result = self.dial(job);
            lock(&self.done).push(Done { conn, result });
            self.waker.wake();
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut jobs = lock(&self.jobs);
        loop {
            if jobs.over {
                return None;
            }
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            jobs.idle += 1;
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.idle = jobs.idle.saturating_sub(1);
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
