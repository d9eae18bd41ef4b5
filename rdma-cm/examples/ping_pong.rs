//! Messages back and forth between two programs, and how long they take.
//!
//! On one side `ping_pong serve 10.77.0.1:7471`, an address that an RDMA device of this host has; on the other
//! `ping_pong 10.77.0.1:7471 [messages] [bytes]`. Works over InfiniBand, RoCE and iWARP.
use rdma_cm::blocking::{Caller, Config, Server};
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", at] => serve(at),
        [to] => call(to, 1000, 8),
        [to, messages] => call(to, messages.parse()?, 8),
        [to, messages, bytes] => call(to, messages.parse()?, bytes.parse()?),
        _ => {
            Err("usage: ping_pong serve ADDRESS:PORT, or ping_pong ADDRESS:PORT [messages] [bytes]"
                .into())
        }
    }
}

fn serve(at: &str) -> Result<(), Box<dyn Error>> {
    let mut server = Server::bind(at, &Config::default())?;
    println!("serving at {}", server.local_addr());
    loop {
        match server.accept() {
            Ok(Some(mut session)) => {
                let from = session.peer_addr();
                match session.serve(|ping, pong| pong.extend_from_slice(ping)) {
                    Ok(count) => println!("{count} messages from {from:?}"),
                    Err(error) => println!("{from:?}: {error}"),
                }
            }
            Ok(None) => {}
            Err(error) => println!("a caller was lost: {error}"),
        }
    }
}

fn call(to: &str, messages: u32, bytes: usize) -> Result<(), Box<dyn Error>> {
    let config = Config { message_size: bytes.max(1), ..Config::default() };
    let mut caller = Caller::dial(to, &config)?;
    let ping = vec![0x5a; bytes];
    caller.call(&ping)?; // The first one is slower: caches, and the peer's queue.
    let start = Instant::now();
    for _ in 0..messages {
        let pong = caller.call(&ping)?;
        if pong != ping {
            return Err("the answer is not what was sent".into());
        }
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / f64::from(messages.max(1));
    println!("{messages} messages of {bytes} bytes: {:.1} us each way", each / 2.0);
    Ok(())
}
