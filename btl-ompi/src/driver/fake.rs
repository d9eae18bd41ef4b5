//! For tests: lanes over local sockets of one host, so that everything above the port can run under
//! a real Open MPI without devices.
//!
//! It is stricter than a device: a send by the side that accepted before it received anything, and
//! a message that finds no receive posted, end the process with a panic that names the rule.

mod ports;
mod rma;

use super::{How, Opened};
use crate::clock::monotonic;
use btl_core::connect::{Action, DialOutcome, Input, Machine};
use btl_core::error::PortError;
use btl_core::lane::SendPermit;
use btl_core::lane::{RmaPermit, RmaPosted};
use btl_core::port::{
    self, CmEvent, CmRequest, Completion, LaneUp, Op, Posted, Refused, RefusedWhy, RmaRefused,
    SetupQp, Status,
};
use btl_core::rma::{RmaCaps, RmaErrorKind, RmaPost, Verb};
use btl_core::setup::SetupLane;
use btl_core::wire::{PrivateData, RejectReason};
use btl_core::{Config, ConnToken, LaneId, Role};
pub(crate) use ports::{Candidate, exists, find, host_addresses, published};
pub(crate) use rma::{Domain, Region, SelfLink};
use rma::{MESSAGE, OneSided, Slice};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connection requests, accepts and rejects start with one of these.
const CONNECT: u8 = b'C';
const ACCEPT: u8 = b'A';
const REJECT: u8 = b'R';

/// Queue pairs a port can have.
const QUEUE_PAIRS: &str = "BTL_VERBS_FAKE_QPS";

/// The abstract address of a port number.
fn address(port: u16) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: numbers only: all-zero bytes are a valid address.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("btl-verbs-fake-{port}");
    for (to, from) in addr.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    (addr, len as libc::socklen_t)
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed; the descriptor is new and ours.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?)) }
}

fn listen(port: u16) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let (addr, len) = address(port);
    // SAFETY: a valid address of that length.
    unsafe {
        check(libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len))?;
        check(libc::listen(fd.as_raw_fd(), 1024))?;
    }
    Ok(fd)
}

fn dial(port: u16) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let (addr, len) = address(port);
    // SAFETY: a valid address of that length.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(fd)
}

fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no address is asked for; the descriptor is new and ours.
    unsafe {
        let fd =
            libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// One end of a connection, shared by the two sides that drive it.
struct Wire {
    fd: OwnedFd,
    /// The peer closed it and everything before was received.
    ended: AtomicBool,
}

impl Wire {
    fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, ended: AtomicBool::new(false) })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a readable slice.
        let n =
            unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends a message of a lane.
    fn send_message(&self, bytes: &[u8]) -> io::Result<()> {
        let mut kind = MESSAGE;
        let mut parts = parts(&mut kind, bytes.as_ptr().cast_mut(), bytes.len());
        let message = header(&mut parts);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the parts are readable, and only read.
        let n = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a message of a lane, which is there.
    fn recv_message(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut kind = 0;
        let mut parts = parts(&mut kind, bytes.as_mut_ptr(), bytes.len());
        let mut message = header(&mut parts);
        // SAFETY: the parts are writable.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        match usize::try_from(n) {
            Ok(n) => Ok(n.saturating_sub(1)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// `Ok(None)`: nothing there; `Ok(Some(0))`: the end.
    fn recv(&self, bytes: &mut [u8], flags: libc::c_int) -> io::Result<Option<usize>> {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: a writable slice.
        let n = unsafe {
            libc::recv(self.fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags)
        };
        match usize::try_from(n) {
            Ok(n) => Ok(Some(n)),
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                e if e.raw_os_error() == Some(libc::ECONNRESET) => Ok(Some(0)),
                e => Err(e),
            },
        }
    }

    fn letter(&self, kind: u8, data: PrivateData) -> io::Result<()> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(data.as_slice());
        self.send(&bytes)
    }

    fn read_letter(&self) -> io::Result<Option<(u8, PrivateData)>> {
        let mut bytes = [0; 128];
        match self.recv(&mut bytes, 0)? {
            None => Ok(None),
            Some(n) => match bytes.get(..n).and_then(<[u8]>::split_first) {
                Some((kind, data)) => Ok(Some((*kind, PrivateData::from_slice(data)))),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
    }
}

fn parts(kind: &mut u8, bytes: *mut u8, len: usize) -> [libc::iovec; 2] {
    [
        libc::iovec { iov_base: ptr::from_mut(kind).cast(), iov_len: 1 },
        libc::iovec { iov_base: bytes.cast(), iov_len: len },
    ]
}

fn header(parts: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: numbers and pointers: all-zero bytes are a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

/// Plain memory.
pub(crate) struct Memory {
    /// The send pool it belongs to.
    class: Option<u8>,
    bytes: Vec<u8>,
}

impl Memory {
    fn new(class: Option<u8>, len: u32) -> Self {
        Self { class, bytes: vec![0; len as usize] }
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// One end of a lane.
pub(crate) struct Qp {
    wire: Arc<Wire>,
    role: Role,
    /// Something was received.
    heard: bool,
    receives: VecDeque<Memory>,
    sent: VecDeque<Memory>,
    one_sided: OneSided,
}

impl Qp {
    fn new(wire: Arc<Wire>, role: Role) -> Self {
        let (receives, sent) = (VecDeque::new(), VecDeque::new());
        Self { wire, role, heard: false, receives, sent, one_sided: OneSided::default() }
    }

    fn receive(&mut self) -> Option<(Memory, usize)> {
        self.one_sided.flush(&self.wire);
        while !self.wire.ended.load(Ordering::Relaxed) {
            let mut kind = [0];
            match self.wire.recv(&mut kind, libc::MSG_PEEK) {
                Ok(Some(1)) if kind == [MESSAGE] => return self.message(),
                Ok(Some(1)) => self.serve(),
                Ok(None) => return None,
                Ok(Some(_)) | Err(_) => self.wire.ended.store(true, Ordering::Relaxed),
            }
        }
        None
    }

    fn message(&mut self) -> Option<(Memory, usize)> {
        let slot = self.receives.front_mut();
        let Some(slot) = slot else {
            panic!("rule 2 is broken: a message found no receive posted");
        };
        let n = self.wire.recv_message(slot).ok()?;
        self.heard = true;
        self.receives.pop_front().map(|slot| (slot, n))
    }

    /// One frame of a one-sided operation.
    fn serve(&mut self) {
        let mut frame = vec![0; 1 << 17];
        if let Ok(Some(n)) = self.wire.recv(&mut frame, 0) {
            self.heard = true;
            self.one_sided.serve(frame.get(..n).unwrap_or(&[]));
            self.one_sided.flush(&self.wire);
        }
    }

    /// Rule 1 holds for everything that is sent.
    fn check_role(&self) {
        assert!(
            self.role == Role::Initiator || self.heard,
            "rule 1 is broken: the side that accepted sends before it received"
        );
    }
}

impl SetupQp for Qp {
    type Slot = Memory;

    fn post_recv(&mut self, slot: Memory) -> Result<(), Refused<Memory>> {
        self.receives.push_back(slot);
        Ok(())
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Memory,
        len: usize,
    ) -> Result<Posted, Refused<Memory>> {
        self.check_role();
        match self.wire.send_message(slot.get(..len).unwrap_or(&[])) {
            Ok(()) => {
                self.sent.push_back(slot);
                Ok(permit.posted())
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(Refused { why: RefusedWhy::Again, slot: Some(slot) })
            }
            Err(e) => {
                let why = PortError::new(e.raw_os_error().unwrap_or(0), format!("send: {e}"));
                Err(Refused { why: RefusedWhy::Broken(why), slot: Some(slot) })
            }
        }
    }

    fn max_reads(&self) -> u16 {
        4
    }
}

/// The data path.
pub(crate) struct Port {
    info: port::PortInfo,
    pools: Vec<Vec<Memory>>,
    lanes: Vec<Option<(LaneId, Qp)>>,
    /// The lane looked at next.
    at: usize,
    /// Memory of one-sided operations that are over.
    back: VecDeque<(LaneId, u32, Slice)>,
}

impl Port {
    fn new(config: &Config, info: port::PortInfo) -> Self {
        let pool = |(class, lane): (u8, &btl_core::LaneConfig)| {
            (0..lane.send_slots).map(|_| Memory::new(Some(class), lane.buffer_size)).collect()
        };
        Self {
            info,
            pools: (0..).zip(&config.lanes).map(pool).collect(),
            lanes: Vec::new(),
            at: 0,
            back: VecDeque::new(),
        }
    }

    fn qp(&mut self, lane: LaneId) -> Option<&mut Qp> {
        self.lanes.get_mut(lane.index())?.as_mut().filter(|(id, _)| *id == lane).map(|(_, qp)| qp)
    }
}

fn no_lane(slot: Memory) -> Refused<Memory> {
    Refused {
        why: RefusedWhy::Broken(PortError::new(0, "there is no such lane")),
        slot: Some(slot),
    }
}

impl port::Port for Port {
    type Slot = Memory;
    type Qp = Qp;
    type Memory = Slice;

    fn attach(&mut self, lane: LaneId, qp: Qp) -> Result<(), PortError> {
        if self.lanes.len() <= lane.index() {
            self.lanes.resize_with(lane.index() + 1, || None);
        }
        if let Some(place) = self.lanes.get_mut(lane.index()) {
            *place = Some((lane, qp));
        }
        Ok(())
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Memory,
        len: usize,
    ) -> Result<Posted, Refused<Memory>> {
        match self.qp(permit.lane()) {
            Some(qp) => qp.post_send(permit, slot, len),
            None => Err(no_lane(slot)),
        }
    }

    fn post_recv(&mut self, lane: LaneId, slot: Memory) -> Result<(), Refused<Memory>> {
        match self.qp(lane) {
            Some(qp) => qp.post_recv(slot),
            None => Err(no_lane(slot)),
        }
    }

    fn poll(&mut self) -> Option<Completion<Memory>> {
        for _ in 0..self.lanes.len() {
            self.at = (self.at + 1) % self.lanes.len();
            let Some(Some((lane, qp))) = self.lanes.get_mut(self.at) else { continue };
            let lane = *lane;
            if let Some(slot) = qp.sent.pop_front() {
                return Some(Completion {
                    lane,
                    op: Op::Send,
                    slot: Some(slot),
                    len: 0,
                    status: Status::Ok,
                });
            }
            if let Some(done) = qp.one_sided.next_done() {
                self.back.push_back((lane, done.token, done.memory));
                let (op, status) = (Op::OneSided, Status::Ok);
                return Some(Completion { lane, op, slot: None, len: 0, status });
            }
            if let Some((slot, len)) = qp.receive() {
                return Some(Completion {
                    lane,
                    op: Op::Recv,
                    slot: Some(slot),
                    len,
                    status: Status::Ok,
                });
            }
        }
        None
    }

    fn close(&mut self, lane: LaneId) -> Vec<Memory> {
        let Some(place) = self.lanes.get_mut(lane.index()) else { return Vec::new() };
        let Some((_, mut qp)) = place.take_if(|(id, _)| *id == lane) else { return Vec::new() };
        let back = qp.one_sided.take().into_iter().map(|it| (lane, it.token, it.memory));
        self.back.extend(back);
        qp.receives.into_iter().chain(qp.sent).collect()
    }

    fn send_slot(&mut self, class: u8) -> Option<Memory> {
        self.pools.get_mut(usize::from(class))?.pop()
    }

    fn info(&self) -> port::PortInfo {
        self.info.clone()
    }

    fn recycle(&mut self, slot: Memory) {
        if let Some(pool) = slot.class.and_then(|class| self.pools.get_mut(usize::from(class))) {
            pool.push(slot);
        }
    }

    fn rma_caps(&self) -> RmaCaps {
        rma::caps()
    }

    fn check_memory(&self, memory: &Slice, _verb: Verb, len: u64) -> Result<(), RmaErrorKind> {
        let max = memory.len() as u64;
        if len > max { Err(RmaErrorKind::TooLong { len, max }) } else { Ok(()) }
    }

    fn post_rma(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        memory: Slice,
    ) -> Result<RmaPosted, RmaRefused<Slice>> {
        let Some(qp) = self.qp(permit.lane()) else {
            let why = RefusedWhy::Broken(PortError::new(0, "there is no such lane"));
            return Err(RmaRefused { why, memory: Some(memory) });
        };
        qp.check_role();
        match qp.one_sided.post(&qp.wire, post, memory) {
            Ok(()) => Ok(permit.posted()),
            Err((e, memory)) => {
                let why = match e.kind() {
                    io::ErrorKind::WouldBlock => RefusedWhy::Again,
                    _ => RefusedWhy::Broken(PortError::new(
                        e.raw_os_error().unwrap_or(0),
                        format!("send: {e}"),
                    )),
                };
                Err(RmaRefused { why, memory: Some(memory) })
            }
        }
    }

    fn take_memory(&mut self, lane: LaneId) -> Option<(u32, Slice)> {
        let at = self.back.iter().position(|(of, ..)| *of == lane)?;
        self.back.remove(at).map(|(_, token, memory)| (token, memory))
    }
}

/// A connection on the way up.
struct Pending {
    wire: Arc<Wire>,
    lane: Option<SetupLane<Qp>>,
    dialled: bool,
}

/// The connection manager's side, driven by the engine's polls.
pub(crate) struct Cm {
    config: Config,
    listener: OwnedFd,
    machine: Machine,
    /// Accepted sockets whose request has not come yet.
    fresh: Vec<Arc<Wire>>,
    pending: HashMap<ConnToken, Pending>,
    up: HashMap<ConnToken, Arc<Wire>>,
    events: VecDeque<CmEvent<Qp>>,
}

impl Cm {
    fn new(config: Config, listener: OwnedFd) -> Self {
        let machine = Machine::new(&config);
        let (pending, up) = (HashMap::new(), HashMap::new());
        Self { config, listener, machine, fresh: Vec::new(), pending, up, events: VecDeque::new() }
    }

    fn input(&mut self, input: Input) {
        self.machine.handle(input, monotonic());
        while let Some(action) = self.machine.poll_action() {
            if let Some(answer) = self.act(action) {
                self.machine.handle(answer, monotonic());
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Dial { conn, class, addr, data, .. } => {
                match self.start(class, addr.port(), data) {
                    Ok(pending) => {
                        self.pending.insert(conn, pending);
                        None
                    }
                    Err(why) => Some(Input::DialDone { conn, outcome: DialOutcome::Failed(why) }),
                }
            }
            Action::Accept { conn, class, data, .. } => {
                let wire = Arc::clone(&self.pending.get(&conn)?.wire);
                let lane = self.set_up(&wire, class, Role::Acceptor);
                let outcome = match lane {
                    Ok(lane) => {
                        self.pending.get_mut(&conn)?.lane = Some(lane);
                        wire.letter(ACCEPT, data).map_err(|e| e.to_string())
                    }
                    Err(why) => {
                        let _ = wire.letter(REJECT, RejectReason::Busy.encode());
                        Err(why)
                    }
                };
                Some(Input::AcceptDone { conn, outcome })
            }
            Action::Reject { conn, data } => {
                let _ = self.pending.remove(&conn)?.wire.letter(REJECT, data);
                None
            }
            Action::HandOver { conn, name, class, role, agreed, announced } => {
                let pending = self.pending.remove(&conn)?;
                let ctl = Memory::new(None, 256);
                match pending.lane?.established(agreed, ctl) {
                    Ok(lane) => {
                        self.up.insert(conn, pending.wire);
                        self.events.push_back(CmEvent::LaneUp(LaneUp {
                            name,
                            class,
                            role,
                            announced,
                            conn,
                            lane,
                        }));
                        None
                    }
                    Err((_, why)) => Some(Input::HandOverFailed { conn, why: why.to_string() }),
                }
            }
            Action::Drop { conn } => {
                self.pending.remove(&conn);
                self.up.remove(&conn);
                None
            }
            Action::Failed { name, class, fault } => {
                self.events.push_back(CmEvent::ConnectFailed { name, class, fault });
                None
            }
            Action::Gone { conn } => {
                self.up.remove(&conn);
                self.events.push_back(CmEvent::Disconnected { conn });
                None
            }
            Action::Stopped => {
                self.events.push_back(CmEvent::Stopped);
                None
            }
        }
    }

    fn start(&self, class: u8, port: u16, data: PrivateData) -> Result<Pending, String> {
        let wire = Wire::new(dial(port).map_err(|e| e.to_string())?);
        let lane = self.set_up(&wire, class, Role::Initiator)?;
        wire.letter(CONNECT, data).map_err(|e| e.to_string())?;
        Ok(Pending { wire, lane: Some(lane), dialled: true })
    }

    fn set_up(&self, wire: &Arc<Wire>, class: u8, role: Role) -> Result<SetupLane<Qp>, String> {
        let most = std::env::var(QUEUE_PAIRS).ok().and_then(|n| n.parse::<usize>().ok());
        if most.is_some_and(|most| self.up.len() + self.pending.len() >= most) {
            return Err("the device has no more queue pairs".to_owned());
        }
        let qp = Qp::new(Arc::clone(wire), role);
        let mut lane = SetupLane::new(&self.config, class, role, qp).map_err(|e| e.to_string())?;
        let size = self.config.lane(class).map_or(0, |lane| lane.buffer_size);
        lane.post_receives(std::iter::repeat_with(|| Memory::new(None, size)))
            .map_err(|refused| refused.why.into_error().to_string())?;
        Ok(lane)
    }

    /// Looks at everything that can have happened.
    fn look(&mut self) {
        while let Some(fd) = accept(&self.listener) {
            self.fresh.push(Wire::new(fd));
        }
        let mut requests = Vec::new();
        self.fresh.retain(|wire| match wire.read_letter() {
            Ok(None) => true,
            Ok(Some((CONNECT, data))) => {
                requests.push((Arc::clone(wire), data));
                false
            }
            Ok(Some(_)) | Err(_) => false,
        });
        for (wire, data) in requests {
            let conn = self.machine.token();
            self.pending.insert(conn, Pending { wire, lane: None, dialled: false });
            self.input(Input::Request { conn, data });
        }
        let answers: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.dialled)
            .filter_map(|(conn, pending)| Some((*conn, pending.wire.read_letter().transpose()?)))
            .collect();
        for (conn, answer) in answers {
            let outcome = match answer {
                Ok((ACCEPT, data)) => DialOutcome::Established(data),
                Ok((REJECT, data)) => DialOutcome::Rejected(data),
                Ok(_) => DialOutcome::Failed("no answer of this protocol".to_owned()),
                Err(e) => DialOutcome::Failed(e.to_string()),
            };
            if let Some(pending) = self.pending.get_mut(&conn) {
                pending.dialled = false;
            }
            self.input(Input::DialDone { conn, outcome });
        }
        let ended: Vec<_> = self
            .up
            .iter()
            .filter(|(_, wire)| wire.ended.load(Ordering::Relaxed))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in ended {
            self.up.remove(&conn);
            self.input(Input::Disconnected { conn });
        }
        if self.machine.next_timeout().is_some_and(|at| at <= monotonic()) {
            self.input(Input::Tick);
        }
    }
}

impl port::Cm for Cm {
    type Qp = Qp;

    fn request(&mut self, request: CmRequest) {
        self.input(match request {
            CmRequest::Announce { name, addrs } => Input::Announce { name, addrs },
            CmRequest::Forget { name } => Input::Forget { name },
            CmRequest::Connect { name, class, rejoin } => Input::Want { name, class, rejoin },
            CmRequest::Disconnect { conn } => Input::Hangup { conn },
            CmRequest::Stop => Input::Stop,
        });
    }

    fn poll(&mut self) -> Option<CmEvent<Qp>> {
        if self.events.is_empty() {
            self.look();
        }
        self.events.pop_front()
    }
}
