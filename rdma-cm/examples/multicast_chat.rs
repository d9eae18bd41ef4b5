//! A chat in a multicast group of unreliable datagrams, over InfiniBand or RoCE.
//!
//! `multicast_chat 10.78.0.1 239.1.2.3 ann`: an address that an RDMA device of this host has, a group, a name. Lines from the
//! input go to everybody in the group; what the others say is printed. Ends with the input.
use rdma_cm::{EventChannel, Membership};
use rdma_safe::{Device, GRH_SIZE, Op, QpConfig, QpKind, Request, Wc};
use std::error::Error;
use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

/// The longest line, with the name; datagrams of this size fit one packet everywhere.
const LINE: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [own, group, name] = &words[..] else {
        return Err("usage: multicast_chat OWN-ADDRESS GROUP NAME".into());
    };
    let group = SocketAddr::new(group.parse()?, 0);
    let mut events = EventChannel::new()?;
    let id = events.datagram()?;
    events.bind_source(&id, SocketAddr::new(own.parse()?, 0))?;
    let everybody = events.join_multicast(&id, group, Membership::Full, Duration::from_secs(5))?;

    let device = events.device_name(&id).ok_or("the device has gone")?;
    let context = Device::by_name(&device)?.open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq_with(64, &context.completion_channel()?)?;
    let config =
        QpConfig { kind: QpKind::Ud, send_depth: 8, recv_depth: 32, ..QpConfig::default() };
    let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config)?;
    events.ready_datagram_qp(&id, &mut qp)?;
    for slot in pd.slots(GRH_SIZE + LINE, 32)? {
        qp.post_recv(slot)?;
    }
    qp.attach_multicast(everybody.gid(), everybody.lid())?;
    let way = pd.create_ah(&everybody.address())?;
    let mut outgoing = pd.slots(LINE, 8)?;

    let (typed, lines) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| typed.send(line))
    });
    let prefix = format!("{name}: ");
    let mut wc = [Wc::empty()];
    loop {
        if let Some(mut slot) = outgoing.pop() {
            match lines.try_recv() {
                Ok(line) => {
                    let text = format!("{prefix}{line}");
                    let len = text.len().min(LINE);
                    slot[..len].copy_from_slice(&text.as_bytes()[..len]);
                    let request = Request::send(slot, len);
                    qp.post(request.to(&way, everybody.qp_num(), everybody.qkey()))?;
                }
                Err(TryRecvError::Empty) => outgoing.push(slot),
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        if cq.poll_wait(&mut wc, Duration::from_millis(50))? == 0 {
            continue;
        }
        let Some(done) = qp.complete(&mut wc[0]) else { continue };
        match (done.op, done.slot) {
            (Op::Recv, Some(slot)) => {
                let text = String::from_utf8_lossy(&slot[GRH_SIZE..done.byte_len.max(GRH_SIZE)]);
                if done.status.is_ok() && !text.starts_with(&prefix) {
                    println!("{text}");
                }
                qp.post_recv(slot)?;
            }
            (_, Some(slot)) => outgoing.push(slot),
            _ => {}
        }
    }
}
