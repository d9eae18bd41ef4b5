//! Tells of each RDMA device what decides how it can be used: one line per device, fields `key=value` separated by tabs.
//!
//! `cargo xtask doctor` reads it.
use rdma_cm::device_addresses;
use rdma_safe::{Context, Device, LoopbackSource, LoopbackSupport, devices};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    for device in devices()? {
        let mut fields = vec![("name", device.name())];
        match device.open() {
            Ok(context) => describe(&device, &context, &mut fields)?,
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
    fields.push(("loopback", loopback(context.loopback())));
    fields.push((
        "capabilities",
        context.caps().iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" "),
    ));
    fields.push(("table", context.quirk().map_or("not in the quirk table", |q| q.name).to_owned()));
    Ok(())
}

fn loopback(support: LoopbackSupport) -> String {
    let reason = |source| match source {
        LoopbackSource::Override => "said by the user",
        LoopbackSource::Probe => "tried",
        LoopbackSource::Table => "known of this device",
        LoopbackSource::Rule => "true of all devices of this transport",
        _ => "from elsewhere",
    };
    match support {
        LoopbackSupport::Yes(source) => format!("yes ({})", reason(source)),
        LoopbackSupport::No(source) => format!("no ({})", reason(source)),
        LoopbackSupport::Unknown => "unknown: only a try can tell".to_owned(),
    }
}
