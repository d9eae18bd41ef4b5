//! What holds for each RDMA device here, and who says so: `device_params [FILE.ini …]`, the last file having the last word.
//!
//! `cargo xtask doctor --device-params` runs it.
use btl_core::params::{DeviceParams, Setting};
use rdma_safe::quirks::{self, Answer};
use rdma_safe::{Context, ErrorKind, LoopbackSource, LoopbackSupport, devices};
use std::error::Error;
use std::fmt::Display;

fn main() -> Result<(), Box<dyn Error>> {
    let mut params = DeviceParams::default();
    for file in std::env::args().skip(1) {
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("cannot read {file}: {e}"))?;
        params.read(&file, &text);
    }
    for warning in params.warnings() {
        println!("warning: {warning}");
    }
    let devices = match devices() {
        Err(e) if e.kind() == ErrorKind::NoDevice => Vec::new(),
        asked => asked?,
    };
    if devices.is_empty() {
        println!("This machine has no RDMA device. Known without asking one:");
        known_devices(&params);
    }
    for device in devices {
        match device.open() {
            Ok(context) => describe(&context, &params),
            Err(e) => println!("{}: {e}", device.name()),
        }
    }
    Ok(())
}

/// A line: what, its value, who says so.
fn line(what: &str, value: impl Display, by: impl Display) {
    println!("  {what:20} {value:24} {by}");
}

/// What a file says, else what is known otherwise.
fn either<T: Display>(what: &str, said: Option<Setting<T>>, known: impl Display, by: impl Display) {
    match said {
        Some(said) => line(what, said.value, said.place),
        None => line(what, known, by),
    }
}

fn describe(context: &Context, params: &DeviceParams) {
    let (vendor, part) = (context.attr().vendor_id, context.attr().vendor_part_id);
    let row = context.quirk();
    println!("{} (vendor {vendor:#x}, part {part:#x})", context.name());
    line("transport", format!("{:?}", context.transport()), "the device");
    line("family", row.map_or("not known", |row| row.name), "built-in table");
    let said = params.of(vendor, part);
    let shared = row.is_some_and(|row| row.shared_work_queue);
    either("credit_route", said.credit_route, "own", "the default of every device");
    either("shared_work_queue", said.shared_work_queue, shared, table(row.is_some()));
    let (loopback, by) = loopback(context.loopback());
    either("loopback_capable", said.loopback_capable, loopback, by);
    let inline = row.and_then(|row| row.max_inline);
    let inline = inline.map_or("the device's own choice".to_owned(), |bytes| bytes.to_string());
    let said_inline = said.max_inline_data.map(|said| Setting {
        value: said.value.map_or("the device's own choice".to_owned(), |bytes| bytes.to_string()),
        place: said.place,
    });
    either("max_inline_data", said_inline, inline, table(row.is_some()));
    either("receive_queues", said.receive_queues, "default lanes", "the default");
    either("mtu", said.mtu, "path MTU", "the device");
    either("ignore_device", said.ignore_device, false, "the default");
    if let Some(row) = row {
        println!("  {}", row.note);
    }
}

fn table(known: bool) -> &'static str {
    if known { "built-in table" } else { "the default of unknown devices" }
}

fn loopback(support: LoopbackSupport) -> (&'static str, String) {
    let by = |source: LoopbackSource| match source {
        LoopbackSource::Table => "built-in table".to_owned(),
        LoopbackSource::Rule => "true of all devices of this transport".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    match support {
        LoopbackSupport::Yes(source) => ("true", by(source)),
        LoopbackSupport::No(source) => ("false", by(source)),
        _ => ("unknown", "nobody has tried".to_owned()),
    }
}

fn known_devices(params: &DeviceParams) {
    println!(
        "  {:24} {:>6} {:12} {:8} {:10} {:6}",
        "family", "inline", "shared ring", "loopback", "credits", "files"
    );
    for row in quirks::TABLE {
        let inline = row.max_inline.map_or("-".to_owned(), |bytes| bytes.to_string());
        let loopback = match row.loopback {
            Answer::Yes => "yes",
            Answer::No => "no",
            Answer::Unknown => "unknown",
        };
        // A row may stand for many parts: what files say of one is shown where the device is.
        let in_files = match row.parts {
            quirks::Parts::List(parts) => parts
                .iter()
                .any(|part| row.vendors.iter().any(|vendor| params.knows(*vendor, *part))),
            _ => false,
        };
        let in_files = if in_files { "yes" } else { "" };
        println!(
            "  {:24} {inline:>6} {:12} {loopback:8} {:10} {in_files:6}",
            row.name, row.shared_work_queue, "own"
        );
    }
}
