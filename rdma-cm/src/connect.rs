//! The request of the active side and everything that may answer it.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_safe::QueuePair;

use crate::channel::{self, EventChannel, Phase};
use crate::error::{ConnectError, Error};
use crate::event::Event;
use crate::id::{Connecting, Connector, Established, Id, Initiator};
use crate::interrupt::interruptible;
use crate::params::ConnParams;
use crate::private_data::{Carrier, PrivateData};
use crate::qp::{self, Ready};
use crate::raw::RawId;

/// IB_CM_REJ_INVALID_SERVICE_ID: nobody listens.
const INVALID_SERVICE_ID: i32 = 8;

impl EventChannel {
    /// Connects, within `timeout`: [`begin_connect`](Self::begin_connect), then
    /// [`finish_connect`](Self::finish_connect).
    ///
    /// Post receives first; see [`init_qp`](Self::init_qp). When it returns, the queue pair may send, and on iWARP it
    /// **must**: the acceptor may not send before it has received.
    ///
    /// # Errors
    /// See [`ConnectError`]. The connector is gone; throw the queue pair away.
    pub fn connect(
        &mut self,
        connector: Connector,
        qp: &mut QueuePair,
        params: &ConnParams,
        timeout: Duration,
    ) -> Result<Established<Initiator>, ConnectError> {
        let start = Instant::now();
        let attempt = self.begin_connect(connector, qp, params, timeout)?;
        let left = timeout.saturating_sub(start.elapsed());
        self.finish_connect(attempt, qp, left).map_err(|error| match error {
            ConnectError::Timeout { .. } => ConnectError::Timeout { limit: timeout },
            other => other,
        })
    }

    /// Sends the request. On iWARP that opens the TCP connection and so may block until `timeout`, when it is interrupted
    /// (see [`INTERRUPT_SIGNAL`](crate::INTERRUPT_SIGNAL)); elsewhere it returns at once.
    ///
    /// Where the listener is on soft iWARP too, its kernel (Linux 7.2) may lose count of it when an attempt is broken off after
    /// the host has answered, and warns when the listener ends (refcount in `siw_destroy_listen`). A limit is for hosts that
    /// keep silent; give those that answer time enough to do so.
    ///
    /// Then wait for [`finish_connect`](Self::finish_connect), or watch [`next_event`](Self::next_event) for
    /// [`Event::ConnectResponse`] and the others and hand them to [`answer`](Self::answer).
    ///
    /// # Errors
    /// See [`ConnectError`]; [`Error::State`] within it when the route is not resolved.
    pub fn begin_connect(
        &mut self,
        connector: Connector,
        qp: &mut QueuePair,
        params: &ConnParams,
        timeout: Duration,
    ) -> Result<Connecting, ConnectError> {
        let deadline = channel::deadline(timeout);
        let prepared = self.prepare_connect(connector, qp, params)?;
        self.send_request(prepared, deadline, timeout)
    }

    /// The part of [`begin_connect`](Self::begin_connect) that needs the queue pair, and does not block.
    pub(crate) fn prepare_connect(
        &mut self,
        connector: Connector,
        qp: &mut QueuePair,
        params: &ConnParams,
    ) -> Result<Prepared, ConnectError> {
        const OP: &str = "connect";
        if self.cancel_token().is_cancelled() {
            return Err(ConnectError::Cancelled);
        }
        let (entry, device) = self.entry_on_device(connector.key(), OP)?;
        if entry.phase != Phase::Routed {
            return Err(Error::State { op: OP, why: "the route is not resolved" }.into());
        }
        qp::check_device(&device, qp)?;
        params.check(Carrier::Request, device.iwarp, qp)?;
        if qp::is_reset(qp) {
            qp::init(&entry.raw, qp)?;
        }
        let (params, qp_num) = (params.clone(), qp.qp_num());
        Ok(Prepared { connector, params, qp_num, iwarp: device.iwarp })
    }

    /// The part of [`begin_connect`](Self::begin_connect) that may block.
    pub(crate) fn send_request(
        &mut self,
        prepared: Prepared,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Connecting, ConnectError> {
        let token = self.cancel_token();
        let Prepared { connector, params, qp_num, iwarp } = prepared;
        let (entry, _) = self.entry_on_device(connector.key(), "connect")?;
        let raw = &entry.raw;
        interruptible(&token, deadline, || {
            loop {
                if token.is_cancelled() {
                    return Err(ConnectError::Cancelled);
                }
                let sent = raw.connect(params.to_raw(qp_num));
                match sent {
                    Err(error) if error.errno() == Some(libc::EINTR) => {
                        if Instant::now() >= deadline && !token.is_cancelled() {
                            return Err(ConnectError::Timeout { limit: timeout });
                        }
                        // Somebody else's signal: the kernel has put the id back to where it was.
                    }
                    other => return other.map_err(|error| sync_error(error, raw.local_addr())),
                }
            }
        })??;
        entry.phase = Phase::Connecting;
        let handle = connector.handle;
        Ok(Connecting { handle, iwarp, min_rnr_timer: params.min_rnr_timer })
    }

    /// Waits for the answer to a request and finishes the connection.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn finish_connect(
        &mut self,
        mut attempt: Connecting,
        qp: &mut QueuePair,
        timeout: Duration,
    ) -> Result<Established<Initiator>, ConnectError> {
        let deadline = channel::deadline(timeout);
        loop {
            let event = match self.event_of(attempt.key(), deadline) {
                Ok(Some(event)) => event,
                Ok(None) => return Err(ConnectError::Timeout { limit: timeout }),
                Err(error) => return Err(error.into()),
            };
            match self.answer(attempt, qp, event)? {
                Answer::Established(connection) => return Ok(connection),
                Answer::NotYet(same) => attempt = same,
            }
        }
    }

    /// Takes an event of an attempt, and finishes the connection when it is the acceptor's consent: CONNECT_RESPONSE on
    /// InfiniBand and RoCE, where the queue pair is made ready and the acceptor told; ESTABLISHED on iWARP, where the
    /// kernel has done that.
    ///
    /// # Errors
    /// See [`ConnectError`]; an event that ends the attempt is one.
    pub fn answer(
        &mut self,
        attempt: Connecting,
        qp: &mut QueuePair,
        event: Event,
    ) -> Result<Answer, ConnectError> {
        const SOON: Duration = Duration::from_millis(50);
        self.answer_within(attempt, qp, event, SOON)
    }

    /// [`answer`](Self::answer), waiting no longer than `soon` for the reason of a failure.
    pub(crate) fn answer_within(
        &mut self,
        attempt: Connecting,
        qp: &mut QueuePair,
        event: Event,
        soon: Duration,
    ) -> Result<Answer, ConnectError> {
        if event.id() != attempt.key() {
            return Ok(Answer::NotYet(attempt));
        }
        match event {
            Event::ConnectResponse { private_data, .. } => {
                let ready = Ready {
                    responder_resources: None,
                    initiator_depth: None,
                    min_rnr_timer: attempt.min_rnr_timer,
                };
                let entry = self.entry(&attempt, "connect")?;
                if let Err(error) = respond(&entry.raw, qp, ready) {
                    // The acceptor waits for an answer: tell it, so that it need not wait for its limit.
                    let _ = entry.raw.reject(&[]);
                    return Err(self
                        .ended_meanwhile(&attempt, soon)
                        .unwrap_or_else(|| error.into()));
                }
                entry.phase = Phase::Established;
                Ok(established(attempt, private_data))
            }
            Event::Established { private_data, .. } => {
                if attempt.iwarp {
                    qp.mark_connected()?;
                }
                Ok(established(attempt, private_data))
            }
            Event::Rejected { status: INVALID_SERVICE_ID, .. } if !attempt.iwarp => {
                Err(ConnectError::Refused)
            }
            Event::Rejected { status, private_data, .. } => {
                Err(ConnectError::Rejected { status, private_data })
            }
            Event::Unreachable { status, .. } => {
                Err(ConnectError::Unreachable { errno: status.saturating_abs() })
            }
            Event::ConnectError { status, .. } => Err(ConnectError::failed(status, attempt.iwarp)),
            Event::Disconnected { .. } => Err(ConnectError::Disconnected),
            Event::DeviceRemoval { .. } => Err(ConnectError::DeviceRemoved),
            _ => Ok(Answer::NotYet(attempt)),
        }
    }

    /// Once the acceptor has ended the connection the kernel refuses everything with EINVAL (ib_cm_init_qp_attr,
    /// ib_send_cm_rtu); the event that says so comes behind.
    fn ended_meanwhile(&mut self, attempt: &Connecting, soon: Duration) -> Option<ConnectError> {
        match self.event_of(attempt.key(), channel::deadline(soon)) {
            Ok(Some(Event::Disconnected { .. })) => Some(ConnectError::Disconnected),
            Ok(Some(Event::Rejected { status, private_data, .. })) => {
                Some(ConnectError::Rejected { status, private_data })
            }
            Ok(Some(Event::DeviceRemoval { .. })) => Some(ConnectError::DeviceRemoved),
            _ => None,
        }
    }
}

/// A request that can be sent.
pub(crate) struct Prepared {
    pub(crate) connector: Connector,
    pub(crate) params: ConnParams,
    pub(crate) qp_num: u32,
    pub(crate) iwarp: bool,
}

/// What an event has made of an attempt.
#[derive(Debug)]
pub enum Answer {
    /// The connection is there.
    Established(Established<Initiator>),
    /// The attempt goes on.
    NotYet(Connecting),
}

fn established(attempt: Connecting, private_data: PrivateData) -> Answer {
    Answer::Established(Established::new(attempt.handle, private_data))
}

fn respond(raw: &RawId, qp: &mut QueuePair, ready: Ready) -> Result<(), Error> {
    qp::make_ready(raw, qp, ready)?;
    raw.establish()
}

/// What rdma_connect itself reports: on iWARP it opens the TCP connection inside the call.
fn sync_error(error: Error, local: Option<SocketAddr>) -> ConnectError {
    match error.errno() {
        Some(libc::EADDRINUSE) => ConnectError::PortInUse { local },
        Some(libc::ECONNREFUSED) => ConnectError::Refused,
        Some(
            errno @ (libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN),
        ) => ConnectError::Unreachable { errno },
        _ => error.into(),
    }
}
