//! An echo server and its client in tokio.
//!
//! ```text
//! tokio_echo server 10.77.0.1:7471
//! tokio_echo client 10.77.0.1:7471 1000
//! tokio_echo both 10.77.0.1:0 1000        one process, to try it
//! ```
use std::net::SocketAddr;
use std::time::Duration;

use rdma_cm::aio::{AsyncConfig, AsyncEventChannel, Connection};
use rdma_cm::{ConnParams, ListenOptions, Listener};
use rdma_safe::{Device, ProtectionDomain};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LIMIT: Duration = Duration::from_secs(10);

/// A protection domain on the device that the connection manager has chosen.
fn domain_on(name: &str) -> Result<ProtectionDomain> {
    Ok(Device::by_name(name)?.open()?.alloc_pd()?)
}

async fn serve(channel: AsyncEventChannel, listener: Listener) -> Result<()> {
    loop {
        let Some(request) = channel.request(&listener, LIMIT).await? else { continue };
        let channel = channel.clone();
        tokio::spawn(async move {
            let pd = domain_on(request.device_name())?;
            let (config, params) = (AsyncConfig::default(), ConnParams::default());
            let peer = Connection::accept(&channel, &pd, request, &config, &params, LIMIT).await?;
            let name = peer.peer_addr().ok_or("nobody is there")?;
            println!("{name} is here");
            while let Some(message) = peer.receive().await? {
                peer.send(&message).await?;
            }
            println!("{name} has gone");
            Result::Ok(())
        });
    }
}

async fn echo(channel: AsyncEventChannel, to: SocketAddr, count: u32) -> Result<()> {
    let connector = channel.resolve(None, to, LIMIT).await?;
    let device = channel.with(|c| c.device_name(&connector))?.ok_or("no device leads there")?;
    let (pd, config, params) = (domain_on(&device)?, AsyncConfig::default(), ConnParams::default());
    let peer = Connection::connect_with(&channel, &pd, connector, &config, &params, LIMIT).await?;
    let start = std::time::Instant::now();
    for i in 0..count {
        let text = format!("message {i}");
        peer.send(text.as_bytes()).await?;
        let answer = tokio::time::timeout(LIMIT, peer.receive()).await??;
        assert_eq!(answer.ok_or("the server has gone")?[..], *text.as_bytes());
    }
    println!("{count} messages echoed in {:?}", start.elapsed());
    peer.close(LIMIT).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let channel = AsyncEventChannel::new()?;
    let (role, addr, count) = match args[..] {
        [role, addr] => (role, addr.parse()?, 1000),
        [role, addr, count] => (role, addr.parse()?, count.parse()?),
        _ => return Err("tokio_echo server|client|both ADDRESS:PORT [COUNT]".into()),
    };
    if role == "client" {
        return echo(channel, addr, count).await;
    }
    let listener = channel.listen(addr, &ListenOptions::default())?;
    let addr = listener.local_addr();
    println!("listening on {addr}");
    let server = tokio::spawn(serve(channel, listener));
    if role == "both" { echo(AsyncEventChannel::new()?, addr, count).await } else { server.await? }
}
