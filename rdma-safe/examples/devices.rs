//! Lists the RDMA devices of this machine, and what this crate knows about each.

use rdma_safe::devices;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all = devices()?;
    if all.is_empty() {
        return Err(
            "no RDMA device; e.g. `rdma link add siw0 type siw netdev eth0` makes one".into()
        );
    }
    for device in all {
        let ctx = match device.open() {
            Ok(ctx) => ctx,
            Err(e) => {
                println!("{}: {e}", device.name());
                continue;
            }
        };
        let family = ctx.quirk().map_or("not in the quirk table", |q| q.name);
        println!("{}: {family}, {:?}, {:?}", ctx.name(), ctx.transport(), ctx.caps());
        println!("  connects to itself: {} ({})", ctx.loopback(), ctx.loopback_reason());
        for port in 1..=ctx.attr().port_count {
            println!("  port {port}: {:?}", ctx.port(port)?);
        }
    }
    Ok(())
}
