//! The command line of the programs that run in two processes: shared with perftest's tests by name.

use std::net::SocketAddr;

/// What to run.
pub(crate) struct Spec {
    pub(crate) server: bool,
    pub(crate) addr: SocketAddr,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// Messages.
    pub(crate) count: usize,
    /// Most sends in flight.
    pub(crate) depth: usize,
    /// Receives posted.
    pub(crate) receives: usize,
}

impl Spec {
    /// Reads `server|client ADDR:PORT SIZE ITERATIONS DEPTH RECEIVES`.
    pub(crate) fn read(args: &[String]) -> Result<Spec, Box<dyn std::error::Error>> {
        let [role, addr, size, count, depth, receives] = args else {
            let usage = "usage: TEST server|client ADDR:PORT SIZE ITERATIONS DEPTH RECEIVES";
            return Err(usage.into());
        };
        let server = match role.as_str() {
            "server" => true,
            "client" => false,
            other => return Err(format!("{other} is neither server nor client").into()),
        };
        Ok(Spec {
            server,
            addr: addr.parse()?,
            size: size.parse()?,
            count: count.parse()?,
            depth: depth.parse()?,
            receives: receives.parse()?,
        })
    }

    /// Prints the rate of all messages as the guest's script reads it.
    pub(crate) fn print_rate(&self, time: std::time::Duration) {
        #[expect(clippy::cast_precision_loss, reason = "bytes of a short run")]
        let mib = (self.size * self.count) as f64 / 1_048_576.0;
        println!("mib_per_s {:.3}", mib / time.as_secs_f64());
    }
}
