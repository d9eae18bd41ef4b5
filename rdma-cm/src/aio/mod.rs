//! Connecting, and connections, in a [tokio](https://docs.rs/tokio) runtime (feature `tokio`).
//!
//! * [`AsyncEventChannel`]: everything an [`EventChannel`](crate::EventChannel) waits for, awaited by any number of tasks.
//! * [`Connection`]: a connection with its queue pair and buffers; send and receive.
//!
//! **Every future here may be dropped at any point.** Events belong to the channel and buffers to the queue pair until the
//! poll that returns them; an attempt to connect or accept that is dropped is given up, and its id destroyed.
//!
//! No thread of the runtime is ever blocked: `rdma_connect`, which soft iWARP blocks for minutes on a silent host, runs on a
//! thread of its own and is interrupted when nobody waits for it any more; what may block while it is destroyed is
//! destroyed on such a thread. The runtime needs `enable_io` and `enable_time`.
//!
//! ```no_run
//! # async fn f(pd: rdma_safe::ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
//! use rdma_cm::aio::{AsyncConfig, AsyncEventChannel, Connection};
//! use std::time::Duration;
//!
//! let limit = Duration::from_secs(5);
//! let channel = AsyncEventChannel::new()?;
//! let to = "10.77.0.1:7471".parse()?;
//! let connection = Connection::connect(&channel, &pd, to, &AsyncConfig::default(), limit).await?;
//! connection.send(b"ping").await?;
//! let pong = connection.receive().await?;
//! # let _ = pong;
//! connection.close(limit).await?;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod channel;
mod connection;
mod dial;

pub use channel::AsyncEventChannel;
pub use connection::Connection;
#[doc(no_inline)]
pub use rdma_safe::aio::{AsyncConfig, AsyncQueuePair, Message, QueueError, SendBuffer};
