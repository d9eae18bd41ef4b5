//! A connection made by hand: a program that knows how to connect and then does what it likes.
#![allow(dead_code, unreachable_pub)] // each program uses its part
use crate::device_support::{JOB, die, name, selection};
use btl_core::Config;
use btl_core::wire::{Greeting, PrivateData as Greet};
use rdma_cm::{ConnParams, ConnectError, Established, EventChannel, Initiator, PrivateData};
use rdma_safe::{CompletionQueue, Context, Device, QpConfig, QueuePair, SendFlags, Slot, Wc};
use std::net::SocketAddr;
use std::time::Duration;

/// A connection made by hand.
pub struct Stranger {
    cq: CompletionQueue,
    qp: QueuePair,
    slots: Vec<Slot>,
    channel: EventChannel,
    connection: Option<Established<Initiator>>,
}

pub const LIMIT: Duration = Duration::from_secs(10);

impl Stranger {
    pub fn new() -> Stranger {
        let device = selection().device.unwrap_or_default();
        let context: Context =
            Device::by_name(&device).and_then(|d| d.open()).unwrap_or_else(|e| die(&e.to_string()));
        let cq = context.create_cq(64).unwrap_or_else(|e| die(&e.to_string()));
        let pd = context.alloc_pd().unwrap_or_else(|e| die(&e.to_string()));
        let config =
            QpConfig { send_depth: 16, recv_depth: 16, max_inline: 0, ..QpConfig::default() };
        let made = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config);
        let qp = made.unwrap_or_else(|e| die(&e.to_string()));
        let slots = pd.slots(16 << 10, 20).unwrap_or_else(|e| die(&e.to_string()));
        let channel = EventChannel::new().unwrap_or_else(|e| die(&e.to_string()));
        Stranger { cq, qp, slots, channel, connection: None }
    }

    pub fn connect(&mut self, to: SocketAddr, data: &[u8]) -> Result<(), ConnectError> {
        let connector = self.channel.resolve(None, to, LIMIT)?;
        self.channel.init_qp(&connector, &mut self.qp)?;
        for slot in self.slots.drain(..16) {
            if let Err(e) = self.qp.post_recv(slot) {
                die(&format!("post_recv: {e}"));
            }
        }
        let data = PrivateData::raw(data).unwrap_or_default();
        let params = ConnParams::with_private_data(data);
        let done = self.channel.connect(connector, &mut self.qp, &params, LIMIT)?;
        self.connection = Some(done);
        Ok(())
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let Some(mut slot) = self.slots.pop() else { die("no slot") };
        slot[..bytes.len()].copy_from_slice(bytes);
        if let Err(e) = self.qp.post_send(slot, bytes.len(), SendFlags::empty()) {
            die(&format!("post_send: {e}"));
        }
    }

    /// Successful receives so far.
    pub fn received(&mut self) -> usize {
        let mut wc: [Wc; 16] = std::array::from_fn(|_| Wc::empty());
        let n = self.cq.poll(&mut wc).unwrap_or_else(|e| die(&e.to_string()));
        let done = wc.iter_mut().take(n).filter_map(|wc| self.qp.complete(wc));
        done.filter(|done| done.op == rdma_safe::Op::Recv && done.status.is_ok()).count()
    }
}

/// The greeting of a process of the job that nobody announced.
pub fn greeting(rank: u32, config: &Config) -> Greet {
    let lane = config.lanes[0];
    Greeting {
        job: JOB,
        from: name(rank),
        to: config.me,
        class: 0,
        generation: 1,
        buffer_size: lane.buffer_size,
        depth: lane.depth,
        route: config.credit_route,
        recover: false,
        lost: None,
    }
    .encode()
}
