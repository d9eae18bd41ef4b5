//! A chat by multicast datagrams: `chat ADDRESS GROUP NAME`, with an address that a RoCE or InfiniBand device of this host has
//! and a group like 239.1.2.3. What is typed goes to everyone in the group (soft RoCE gives one's own words
//! back as well); nothing says whether it arrived.
use rdma_cm::{EventChannel, Membership};
use rdma_safe::{PollGroup, QpConfig, QpKind, Request};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, TryRecvError};
use std::{error::Error, io, thread, time::Duration};

const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a line at most, so that it fits a datagram on every path (RoCE over Ethernet: 1024).
const LINE: usize = 900;
/// In front of every received datagram there is room for a global routing header.
const HEADER: usize = rdma_safe::GRH_SIZE;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, group, name] = &words[..] else {
        return Err("usage: chat ADDRESS GROUP NAME".into());
    };
    let (address, group): (IpAddr, IpAddr) = (address.parse()?, group.parse()?);
    let mut channel = EventChannel::new()?;
    let id = channel.datagram()?;
    channel.bind_source(&id, SocketAddr::new(address, 0))?;
    let group = SocketAddr::new(group, 0);
    let everybody = channel.join_multicast(&id, group, Membership::Full, LIMIT)?;

    let context = channel.open_device(&id)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq_with(64, &context.completion_channel()?)?;
    let config =
        QpConfig { kind: QpKind::Ud, send_depth: 16, recv_depth: 32, ..QpConfig::default() };
    let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config)?;
    channel.ready_datagram_qp(&id, &mut qp)?;
    for slot in pd.slots(HEADER + LINE, 32)? {
        qp.post_recv(slot)?;
    }
    qp.attach_multicast(everybody.gid(), everybody.lid())?;
    let to = pd.create_ah(&everybody.address())?;

    let lines = read_lines();
    let mut free = pd.slots(LINE, 16)?;
    let mut queue = PollGroup::new(cq);
    let key = queue.adopt(qp).map_err(|(_, e)| e)?;
    loop {
        match lines.try_recv() {
            Ok(line) => {
                let text = format!("{name}: {line}");
                let text = text.as_bytes().get(..LINE).unwrap_or(text.as_bytes());
                let mut slot = free.pop().ok_or("the device does not send")?;
                slot[..text.len()].copy_from_slice(text);
                let datagram = Request::send(slot, text.len());
                queue.post(key, datagram.to(&to, everybody.qp_num(), everybody.qkey()))?;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) if free.len() == 16 => return Ok(()),
            Err(TryRecvError::Disconnected) => {}
        }
        let Some(done) = queue.poll_wait(Duration::from_millis(50))? else { continue };
        if done.op.is_recv() {
            println!("{}", String::from_utf8_lossy(done.message()));
            queue.post_recv(key, done.slot.ok_or("a receive without memory")?)?;
        } else {
            free.extend(done.slot);
        }
    }
}

/// Standard input by lines, read by a thread of its own.
fn read_lines() -> mpsc::Receiver<String> {
    let (give, take) = mpsc::channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|l| give.send(l)));
    take
}
