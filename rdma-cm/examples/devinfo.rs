//! Tells of each RDMA device what decides how it can be used: one line per device, fields `key=value` separated by tabs.
//! With `--probe` it also tries whether a device can connect to its own address, which takes some seconds at most.
//!
//! `cargo xtask doctor` reads it.
use rdma_cm::{LoopbackPolicy, device_addresses, probe_loopback};
use rdma_safe::{Context, Device, devices};
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let policy = LoopbackPolicy::from_env()?;
    let probe = std::env::args().any(|arg| arg == "--probe");
    for device in devices()? {
        let mut fields = vec![("name", device.name())];
        match device.open() {
            Ok(context) => {
                policy.refine(&context);
                if probe && let Err(e) = probe_loopback(&context, Duration::from_secs(3)) {
                    fields.push(("trial", format!("could not be made: {e}")));
                }
                describe(&device, &context, &mut fields)?;
            }
            Err(e) => fields.push(("error", e.to_string())),
        }
        // A message may have any character in it; the fields must stay apart.
        let plain = |text: &str| text.replace(['\t', '\n'], " ");
        let line: Vec<String> = fields.iter().map(|(k, v)| format!("{k}={}", plain(v))).collect();
        println!("{}", line.join("\t"));
    }
    Ok(())
}

fn describe(
    device: &Device,
    context: &Context,
    fields: &mut Vec<(&'static str, String)>,
) -> Result<(), Box<dyn Error>> {
    fields.push(("transport", format!("{:?}", context.transport())));
    for port in 1..=context.attr().port_count {
        let state = match context.port(port) {
            Ok(attr) if attr.active => "active".to_owned(),
            Ok(_) => "not active (is its network interface up?)".to_owned(),
            Err(e) => e.to_string(),
        };
        fields.push(("port", format!("{port} {state}")));
    }
    let addresses = device_addresses(&device.name())?;
    if addresses.is_empty() {
        fields.push(("address", "none: give its network interface an IP address".to_owned()));
    }
    for address in addresses {
        fields.push(("address", format!("{} on {}", address.addr, address.netdev)));
    }
    let support = context.loopback();
    let source = support.source().map(|source| format!("{source}: ")).unwrap_or_default();
    fields.push(("loopback", format!("{support} ({source}{})", context.loopback_reason())));
    fields.push((
        "capabilities",
        context.caps().iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" "),
    ));
    let Some(quirk) = context.quirk() else {
        fields.push(("table", "not in the quirk table".to_owned()));
        return Ok(());
    };
    let mut row = quirk.name.to_owned();
    if let Some(bytes) = quirk.max_inline {
        row += &format!(", {bytes} bytes inline");
    }
    if !quirk.note.is_empty() {
        row += &format!("; {}", quirk.note);
    }
    fields.push(("table", row));
    Ok(())
}
