//! A key-value store that clients read by RDMA, without the server's CPU: `kv ADDRESS:PORT KEY=VALUE...` serves at an address
//! that an RDMA device of this host has; `kv ADDRESS:PORT KEY` elsewhere looks a key up.
use rdma_cm::{ConnParams, Event, EventChannel, Id, PrivateData};
use rdma_safe::*;
use std::{collections::HashMap, error::Error, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn Error>>;
const LIMIT: Duration = Duration::from_secs(10);
/// Places of the table, and bytes of one: a pair, KEY=VALUE, and zeros.
const PLACES: usize = 1024;
const SIZE: usize = 256;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [from, key] if !key.contains('=') => get(from, key),
        [at, pairs @ ..] => serve(at, pairs),
        [] => Err("usage: kv ADDRESS:PORT KEY=VALUE... (serve) | kv ADDRESS:PORT KEY (get)".into()),
    }
}

/// Where a key is, if it is there (FNV-1a). Two keys in one place are refused.
fn place(key: &str) -> usize {
    let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    key.bytes().fold(0xcbf2_9ce4_8422_2325, mix) as usize % PLACES * SIZE
}

fn serve(at: &str, pairs: &[String]) -> Result<()> {
    let mut channel = EventChannel::new()?;
    let listener = channel.listen(at.parse()?, 16)?;
    let pd = channel.open_device(&listener)?.alloc_pd()?;
    let table = OwnedMemory::zeroed(PLACES * SIZE)?;
    let table = pd.register_remote(table, RemoteAccess::Read)?;
    for pair in pairs {
        let (key, _) = pair.split_once('=').ok_or("a pair is KEY=VALUE")?;
        let free = table.load_u64(place(key))? == 0 && pair.len() <= SIZE;
        free.then_some(()).ok_or(format!("no room for {pair}"))?;
        table.copy_in(place(key), pair.as_bytes())?;
    }
    println!("serving {} pairs at {}", pairs.len(), listener.local_addr());
    let params = ConnParams::with_private_data(PrivateData::framed(&table.remote().to_bytes())?);
    let (cq, mut clients) = (pd.context().create_cq(4096)?, HashMap::new());
    while let Some(event) = channel.next_event(None)? {
        if let Event::ConnectRequest { request, .. } = event {
            let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &QpConfig::default())?;
            channel.init_qp(&request, &mut qp)?;
            let client = channel.accept(request, &mut qp, &params)?;
            clients.insert(client.key(), (client, qp));
        } else if let Event::Disconnected { id } = event {
            clients.remove(&id);
        }
    }
    Ok(())
}

fn get(from: &str, key: &str) -> Result<()> {
    let mut channel = EventChannel::new()?;
    let connector = channel.resolve(None, from.parse()?, LIMIT)?;
    let pd = channel.open_device(&connector)?.alloc_pd()?;
    let cq = pd.context().create_cq_with(128, &pd.context().completion_channel()?)?;
    let mut qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &QpConfig::default())?;
    channel.init_qp(&connector, &mut qp)?;
    let connection = channel.connect(connector, &mut qp, &ConnParams::default(), LIMIT)?;
    let table = RemoteRange::from_bytes(connection.private_data().payload()?.try_into()?);
    let mut group = PollGroup::new(cq);
    let qp = group.adopt(qp).map_err(|(_, e)| e)?;
    let sink = pd.register_remote(vec![0; SIZE].into(), RemoteAccess::ReadSink)?;
    let there = table.slice(place(key) as u64, SIZE as u64).ok_or("the table is too small")?;
    group.post(qp, Request::read(sink.into_slots(SIZE, 1)?.remove(0), SIZE, there))?;
    let done = group.poll_wait(LIMIT)?.filter(|d| d.status.is_ok()).ok_or("no answer")?;
    let mut text = [0; SIZE];
    if let Some(PayloadKind::Remote(sink)) = done.payload.map(|p| p.into_kind()) {
        sink.copy_out(0, &mut text)?;
    }
    let text = String::from_utf8_lossy(&text);
    let value = text.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
    println!("{}", value.ok_or("there is no such key")?.trim_end_matches('\0'));
    Ok(())
}
