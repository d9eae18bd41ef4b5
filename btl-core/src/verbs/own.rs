//! A connection of a port to itself, for one-sided operations on this process's own memory.
//!
//! Needed where peers use atomics on the same memory: the atomics of a device are atomic towards each other, and not
//! towards those of the CPU. It is made by hand, without a connection manager, and carries no messages; so it exists on
//! InfiniBand and RoCE only, and iWARP, which cannot connect by hand, has no atomics anyway.
use super::port::VerbsPort;
use super::rma::post_foreign;
use crate::error::PortError;
use crate::rma::{RemoteRange, RmaErrorKind, RmaPost, Verb};
use rdma_safe::{
    AddressVector, Caps, ForeignSlice, InitAttr, ManualQp, PeerAccess, PollGroup, QpConfig, QpKey,
    RtrAttr, RtsAttr, Transport, WcStatus, Why, manual,
};
use std::collections::VecDeque;

/// Operations under way at a time.
const DEPTH: u16 = 64;
/// Reads and atomics under way at a time, unless the device has fewer.
const READS: u8 = 16;

/// Two queue pairs of one port that are connected to each other.
pub struct SelfLink {
    group: PollGroup,
    key: QpKey,
    /// In the order of the posts.
    posted: VecDeque<(u64, ForeignSlice)>,
    broken: Option<PortError>,
    atomics: bool,
    max_piece: u64,
}

/// An operation of a [`SelfLink`] that is over.
pub struct SelfDone {
    /// As given.
    pub cookie: u64,
    /// The memory.
    pub memory: ForeignSlice,
    /// How it ended; after an error the link is good for nothing more.
    pub result: Result<(), PortError>,
}

impl VerbsPort {
    /// Connects port `port` of the device to itself.
    ///
    /// # Errors
    /// The device has no connections that are made by hand (iWARP), or what it refused.
    pub fn self_link(&self, port: u8) -> Result<SelfLink, rdma_safe::Error> {
        let pd = self.protection_domain();
        let context = pd.context();
        let path = match context.transport() {
            Transport::Ib => AddressVector::infiniband(port, context.port(port)?.lid),
            _ => {
                let gid = context.roce_v2_gid(port, None)?;
                let index = u8::try_from(gid.index).unwrap_or(u8::MAX);
                AddressVector::roce(port, index, gid.gid)
            }
        };
        let mut group = PollGroup::new(context.create_cq(u32::from(DEPTH) * 2)?);
        let cq = group.cq_ref();
        let reads = |most: u32| READS.min(u8::try_from(most).unwrap_or(u8::MAX)).max(1);
        let attr = context.attr();
        let most = reads(attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom));
        let access = PeerAccess::WRITE | PeerAccess::READ | PeerAccess::ATOMIC;
        let make = |depth: u16| -> Result<ManualQp<manual::Init>, rdma_safe::Error> {
            let sizes =
                QpConfig { send_depth: u32::from(depth), recv_depth: 1, ..QpConfig::default() };
            let qp = pd.create_manual_qp(&cq, &cq, &sizes)?;
            Ok(qp.init(&InitAttr { port, access, ..InitAttr::default() })?)
        };
        let (asks, answers) = (make(DEPTH)?, make(1)?);
        let to = |dest_qp_num| RtrAttr {
            path: Some(path),
            dest_qp_num,
            max_dest_rd_atomic: most,
            ..RtrAttr::default()
        };
        let (to_asks, to_answers) = (to(asks.qp_num()), to(answers.qp_num()));
        let rts = RtsAttr { max_rd_atomic: most, ..RtsAttr::default() };
        let asks = asks.ready_to_receive(&to_answers)?;
        let answers = answers.ready_to_receive(&to_asks)?;
        let asks = asks.ready_to_send(&rts)?;
        let answers = answers.ready_to_send(&rts)?;
        let key = group.adopt(asks).map_err(|(_, e)| e)?;
        group.adopt(answers).map_err(|(_, e)| e)?;
        Ok(SelfLink {
            group,
            key,
            posted: VecDeque::with_capacity(usize::from(DEPTH)),
            broken: None,
            atomics: context.caps().contains(Caps::ATOMICS),
            max_piece: self.rma.caps().max_piece,
        })
    }
}

impl SelfLink {
    /// Starts an operation; [`poll`](SelfLink::poll) tells its end, in the order of the starts.
    ///
    /// # Errors
    /// [`RmaErrorKind`] with the memory: [`Busy`](RmaErrorKind::Busy) when as many as there can be are under way,
    /// [`Closing`](RmaErrorKind::Closing) when the link has failed, else as for peers.
    pub fn start(
        &mut self,
        verb: Verb,
        memory: ForeignSlice,
        remote: RemoteRange,
        cookie: u64,
    ) -> Result<(), (RmaErrorKind, ForeignSlice)> {
        if let Some(why) = self.refuse(verb, &memory, remote) {
            return Err((why, memory));
        }
        let post = RmaPost { verb, token: 0, offset: 0, len: remote.len, remote };
        let Some(qp) = self.group.qp_mut(self.key) else {
            return Err((RmaErrorKind::Closing, memory));
        };
        match post_foreign(qp, &post, &memory) {
            Ok(()) => {
                self.posted.push_back((cookie, memory));
                Ok(())
            }
            Err(e) => match e.why {
                Why::Full => Err((RmaErrorKind::Busy, memory)),
                Why::Device(errno) => {
                    // The device may have it: it comes back when the queue pair is gone, with an error.
                    self.broken = Some(PortError::new(errno, e.why.to_string()));
                    self.posted.push_back((cookie, memory));
                    Ok(())
                }
                _ => Err((RmaErrorKind::Closing, memory)),
            },
        }
    }

    fn refuse(
        &self,
        verb: Verb,
        memory: &ForeignSlice,
        remote: RemoteRange,
    ) -> Option<RmaErrorKind> {
        let (len, max) = (remote.len, self.max_piece.min(memory.len() as u64));
        match verb {
            _ if self.broken.is_some() => Some(RmaErrorKind::Closing),
            _ if self.posted.len() >= usize::from(DEPTH) => Some(RmaErrorKind::Busy),
            Verb::Atomic(_) if !self.atomics => {
                Some(RmaErrorKind::NotSupported { what: "atomics" })
            }
            Verb::Atomic(_) if !remote.addr.is_multiple_of(8) => {
                Some(RmaErrorKind::Misaligned { addr: remote.addr })
            }
            _ if len == 0 => Some(RmaErrorKind::Empty),
            _ if len > max => Some(RmaErrorKind::TooLong { len, max }),
            _ => None,
        }
    }

    /// The next operation that is over.
    pub fn poll(&mut self) -> Option<SelfDone> {
        if self.posted.is_empty() {
            return None;
        }
        if self.broken.is_none() {
            match self.group.poll() {
                Ok(None) => return None,
                Ok(Some(done)) if done.status == WcStatus::SUCCESS => {
                    return self.next(Ok(()));
                }
                Ok(Some(done)) => {
                    let code = i32::try_from(done.status.0).unwrap_or(i32::MAX);
                    self.broken = Some(PortError::new(code, done.status.to_string()));
                }
                Err(e) => self.broken = Some(PortError::new(e.errno(), e.to_string())),
            }
        }
        // What is left fails, once the device cannot use it any more.
        if let Some(qp) = self.group.release(self.key)
            && qp.close_payloads().is_err()
        {
            std::mem::forget(std::mem::take(&mut self.posted));
        }
        let why = self.broken.clone()?;
        self.next(Err(why))
    }

    fn next(&mut self, result: Result<(), PortError>) -> Option<SelfDone> {
        let (cookie, memory) = self.posted.pop_front()?;
        Some(SelfDone { cookie, memory, result })
    }

    /// Operations under way.
    pub fn under_way(&self) -> usize {
        self.posted.len()
    }
}
