//! Copies a file into the memory of another host by RDMA writes: `file_copy receive ADDRESS:PORT FILE` on one host, at an
//! address that its RDMA device has; `file_copy ADDRESS:PORT FILE` on the other.
use rdma_cm::{ConnParams, Event, EventChannel, PrivateData};
use rdma_safe::*;
use std::{error::Error, fs, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
const LIMIT: Duration = Duration::from_secs(60);
const CHUNK: usize = 1 << 20;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [to, file] if to != "receive" => send(file, to),
        [_, at, file] => receive(at, file),
        _ => Err("usage: file_copy receive ADDRESS:PORT FILE | file_copy ADDRESS:PORT FILE".into()),
    }
}

fn make(context: &Context) -> Result<(ProtectionDomain, PollGroup, QueuePair)> {
    let cq = context.create_cq_with(128, &context.completion_channel()?)?;
    let pd = context.alloc_pd()?;
    let qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &QpConfig::default())?;
    Ok((pd, PollGroup::new(cq), qp))
}

fn receive(at: &str, file: &str) -> Result<()> {
    let mut channel = EventChannel::new()?;
    let listener = channel.listen(at.parse()?, 1)?;
    let request = channel.wait_request(&listener, LIMIT)?.ok_or("nobody came")?;
    let size = u64::from_be_bytes(request.private_data().payload()?.try_into()?) as usize;
    let (pd, mut group, mut qp) = make(&channel.open_device(&request)?)?;
    let memory = OwnedMemory::zeroed(size.max(1))?; // there are no empty regions
    let region = pd.register_remote(memory, RemoteAccess::Write)?;
    channel.init_qp(&request, &mut qp)?;
    qp.post_recv(pd.slots(64, 1)?.remove(0))?;
    let there = PrivateData::framed(&region.remote().to_bytes())?;
    let accepting = channel.accept(request, &mut qp, &ConnParams::with_private_data(there))?;
    group.adopt(qp).map_err(|(_, e)| e)?;
    // The sender's one message arrives when all that it wrote before is in place.
    group.poll_wait(LIMIT)?.filter(|done| done.status.is_ok()).ok_or("the sender is gone")?;
    let mut bytes = vec![0; size];
    region.copy_out(0, &mut bytes)?;
    fs::write(file, bytes)?;
    let connection = channel.wait_established(accepting, LIMIT)?;
    channel.disconnect(&connection)?; // which says that the file is saved
    Ok(())
}

fn send(file: &str, to: &str) -> Result<()> {
    let bytes = fs::read(file)?;
    let len = bytes.len();
    let mut channel = EventChannel::new()?;
    let connector = channel.resolve(None, to.parse()?, LIMIT)?;
    let (pd, mut group, mut qp) = make(&channel.open_device(&connector)?)?;
    channel.init_qp(&connector, &mut qp)?;
    let params = PrivateData::framed(&(len as u64).to_be_bytes())?;
    let params = ConnParams::with_private_data(params);
    let connection = channel.connect(connector, &mut qp, &params, LIMIT)?;
    let there = RemoteRange::from_bytes(connection.private_data().payload()?.try_into()?);
    let key = group.adopt(qp).map_err(|(_, e)| e)?;
    let source = (len > 0).then(|| pd.register(bytes.into())).transpose()?.map(|r| r.into_shared());
    for at in (0..len).step_by(CHUNK) {
        let n = CHUNK.min(len - at);
        let part = source.as_ref().ok_or("empty")?.slice(at, n)?;
        let to = there.slice(at as u64, n as u64).ok_or("the receiver has too little room")?;
        group.post(key, Request::write(part, n, to))?;
        group.poll_wait(LIMIT)?.filter(|done| done.status.is_ok()).ok_or("a write failed")?;
    }
    group.post_inline(key, b"done", SendFlags::empty())?;
    // Soft iWARP may overlook a message that comes while the peer accepts, until the next one comes.
    let gone = |event| matches!(event, Some(Event::Disconnected { .. }));
    while !gone(channel.next_event_of(&connection, LIMIT / 600)?) {
        group.qp_mut(key).ok_or("closed")?.post_empty_write()?;
        while group.poll()?.is_some() {}
    }
    println!("{len} bytes copied");
    Ok(())
}
