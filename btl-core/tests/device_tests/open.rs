//! Opening a port: what is published, and what is said when it cannot be opened.
use crate::device_support::{JOB, Node, die, name, selection};
use btl_core::Config;
use btl_core::verbs::{OpenError, Selection, find, open as open_port};
use std::process::Command;

pub(crate) fn published() {
    let selection = selection();
    let mut node = Node::open(&selection, &Config::new(name(0), JOB));
    let published = node.published.clone();
    assert_eq!(Some(&published.device), selection.device.as_ref());
    assert!(published.addrs.iter().all(|a| a.port() != 0 && !a.ip().is_loopback()));
    if let Some(addr) = selection.addr {
        assert_eq!(published.addrs.iter().map(|a| a.ip()).collect::<Vec<_>>(), [addr]);
    }
    assert!(published.loopback.is_yes(), "soft devices can connect to themselves");
    node.close();
}

fn error(selection: &Selection) -> OpenError {
    match open_port(selection, &Config::new(name(0), JOB)) {
        Ok(_) => die("it could be opened"),
        Err(e) => e,
    }
}

pub(crate) fn no_such_device() {
    let there = selection().device;
    let e = error(&Selection { device: Some("nosuch7".into()), ..Selection::default() });
    let text = e.to_string();
    assert!(matches!(e, OpenError::NoSuchDevice { .. }), "{text}");
    assert!(text.contains("nosuch7") && text.contains(&there.unwrap_or_default()), "{text}");
}

pub(crate) fn address_not_here() {
    let wanted = "10.255.254.253".parse().ok();
    let here = selection();
    let e = error(&Selection { addr: wanted, ..here.clone() });
    let text = e.to_string();
    assert!(matches!(e, OpenError::AddressNotHere { .. }), "{text}");
    let own = here.addr.map(|a| a.to_string()).unwrap_or_default();
    assert!(text.contains("10.255.254.253") && text.contains(&own), "{text}");
    let e = error(&Selection { port: Some(9), ..here });
    assert!(
        matches!(e, OpenError::NoUsablePort { .. }) && e.to_string().contains("no port 9"),
        "{e}"
    );
}

pub(crate) fn link_down() {
    let selection = selection();
    let found = find(&selection).unwrap_or_else(|e| die(&e.to_string()));
    let node = Node::open(&selection, &Config::new(name(0), JOB));
    let netdev = node.published.netdev.clone();
    drop(node);
    assert_eq!(found.len(), 1);
    let link = |state: &str| {
        let done = Command::new("ip").args(["link", "set", &netdev, state]).status();
        assert!(done.is_ok_and(|s| s.success()), "ip link set {netdev} {state}");
    };
    link("down");
    let e = error(&selection);
    link("up");
    assert!(e.to_string().contains("is down"), "{e}");
    assert!(e.to_string().contains(&format!("ip link set {netdev} up")), "{e}");
}
