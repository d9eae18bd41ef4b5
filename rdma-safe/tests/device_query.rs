//! What devices say about themselves, and how they tell that it changed: attributes, ports, GID tables, asynchronous
//! events. They change addresses and links, so they run one at a time. Needs root and iproute2, as the test machine has.

#[path = "support/under_test.rs"]
mod under_test;

use rdma_safe::*;
use std::net::IpAddr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use under_test::{open, var};

/// No wait is longer than this.
const LIMIT: Duration = Duration::from_secs(10);

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address under test.
fn address() -> IpAddr {
    var("RDMA_TEST_ADDR").parse().expect("RDMA_TEST_ADDR is an IP address")
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).status().expect("iproute2's `ip` is installed").success()
}

/// The netdev that has the address under test.
fn netdev() -> String {
    let out = Command::new("ip").args(["-o", "-4", "addr", "show"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let wanted = format!(" {}/", address());
    let line = text.lines().find(|l| l.contains(&wanted)).expect("a netdev has the address");
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// Reads events until `see` is content; false when that takes too long.
fn until(events: &mut AsyncEvents, mut see: impl FnMut(&AsyncEvent) -> bool) -> bool {
    let end = Instant::now() + LIMIT;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match events.next(left).unwrap() {
            Some(e) if see(&e) => return true,
            _ => {}
        }
    }
    false
}

#[test]
fn attributes_agree_with_each_other() {
    let _one = one_at_a_time();
    let ctx = open();
    let (a, x) = (ctx.attr(), ctx.attr_ex().unwrap());
    assert_eq!(u32::from(a.port_count), x.port_count);
    assert!(a.max_sge >= 6 && a.max_sge_rd >= 1 && a.max_pd > 0 && a.max_mr > 0);
    assert_eq!(x.device_cap_flags_ex as u32, a.device_cap_flags);
    for (limit, cap) in [
        (u64::from(a.max_srq), Caps::SRQ),
        (u64::from(a.max_mw), Caps::MEMORY_WINDOWS),
        (u64::from(a.atomics != AtomicScope::None), Caps::ATOMICS),
    ] {
        assert_eq!(limit > 0, ctx.caps().contains(cap), "{cap:?}");
    }
    assert_eq!((x.max_dm_size, x.max_cq_count), (0, 0), "neither siw nor rxe has such");
    assert_eq!(ctx.guid(), a.node_guid);
}

#[test]
fn ports_have_state_link_and_tables() {
    let _one = one_at_a_time();
    let ctx = open();
    let p = ctx.port(1).unwrap();
    assert_eq!((p.state, p.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert!(p.active && p.ethernet && p.gid_table_len > 0 && p.lid == 0);
    let e = ctx.port(2).unwrap_err();
    assert_eq!((e.op(), e.errno()), ("ibv_query_port", libc::EINVAL));
    match ctx.transport().is_iwarp() {
        true => {
            assert_eq!(p.pkey_table_len, 0);
            assert!(ctx.pkey(1, 0).is_err());
        }
        false => assert_eq!(ctx.pkey(1, 0).unwrap(), 0xffff, "the default partition"),
    }
}

#[test]
fn the_gid_table_names_kind_and_netdev() {
    let _one = one_at_a_time();
    let ctx = open();
    let table = ctx.gid_table().unwrap();
    let netdev = netdev();
    assert!(!table.is_empty());
    for e in &table {
        assert_eq!(ctx.gid(1, e.index).unwrap(), Some(*e), "one by one as all at once");
        assert_eq!(e.netdev_name().as_deref(), Some(netdev.as_str()), "Linux 6.6 and later say");
    }
    let len = ctx.port(1).unwrap().gid_table_len;
    assert!(ctx.gid(1, len).is_err(), "beyond the table");
    assert!(ctx.gid(2, 0).is_err(), "no such port");
    if ctx.transport().is_iwarp() {
        assert_eq!((table.len(), table[0].kind), (1, GidKind::Ib));
        let e = ctx.roce_v2_gid(1, Some(address())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.to_string().contains("on iWARP connect with rdma_cm"), "{e}");
        return;
    }
    assert_eq!(ctx.gid(1, len - 1).unwrap(), None, "unused");
    let chosen = ctx.roce_v2_gid(1, Some(address())).unwrap();
    assert_eq!((chosen.gid.to_ip(), chosen.kind), (address(), GidKind::RoceV2));
    assert_eq!(ctx.roce_v2_gid(1, None).unwrap(), chosen, "IPv4 before link-local");
    let e = ctx.roce_v2_gid(1, Some("10.99.99.99".parse().unwrap())).unwrap_err();
    let text = e.to_string();
    assert!(text.contains("10.99.99.99") && text.contains(&address().to_string()), "{text}");
}

/// A GID index means something only until the next address comes or goes.
#[test]
fn the_choice_follows_the_addresses() {
    let _one = one_at_a_time();
    let ctx = open();
    let dev = netdev();
    let mut events = AsyncEvents::new(&ctx).unwrap();
    let second: IpAddr = match address() {
        IpAddr::V4(a) => IpAddr::from([a.octets()[0], a.octets()[1], 77, 1]),
        IpAddr::V6(_) => panic!("an IPv4 address is under test"),
    };
    let cidr = format!("{second}/24");
    let mut wanted = GidChoice::new(&ctx, 1, Some(second)).unwrap();
    let mut best = GidChoice::new(&ctx, 1, None).unwrap();
    let before = best.current().copied();
    assert_eq!(wanted.current(), None, "nobody has it yet");
    assert!(ip(&["addr", "add", &cidr, "dev", &dev]));
    if ctx.transport().is_iwarp() {
        // The one entry is the MAC address: nothing to choose, whatever addresses come.
        assert!(!wanted.refresh().unwrap() && !best.refresh().unwrap() && before.is_none());
        assert!(ip(&["addr", "del", &cidr, "dev", &dev]));
        return;
    }
    assert!(until(&mut events, |e| wanted.see(e).unwrap()), "an event tells of the new address");
    let there = *wanted.current().unwrap();
    assert_eq!((there.gid.to_ip(), there.kind), (second, GidKind::RoceV2));
    assert_eq!(ctx.roce_v2_gid(1, Some(second)).unwrap(), there);
    assert!(!best.refresh().unwrap(), "what was chosen stays");
    assert_eq!(best.current().copied(), before);

    // The first address goes: the best is another one now.
    let first = format!("{}/24", address());
    assert!(ip(&["addr", "del", &first, "dev", &dev]));
    assert!(until(&mut events, |e| best.see(e).unwrap()), "an event tells of the lost address");
    assert_eq!(best.current().unwrap().gid.to_ip(), second);
    assert!(ctx.roce_v2_gid(1, Some(address())).is_err());

    // And comes back, perhaps at another index.
    let mut own = GidChoice::new(&ctx, 1, Some(address())).unwrap();
    assert_eq!(own.current(), None);
    assert!(ip(&["addr", "add", &first, "dev", &dev]));
    assert!(until(&mut events, |e| own.see(e).unwrap()));
    assert_eq!(ctx.gid(1, own.current().unwrap().index).unwrap(), own.current().copied());
    assert!(ip(&["addr", "del", &cidr, "dev", &dev]));
    assert!(until(&mut events, |e| wanted.see(e).unwrap()));
    assert_eq!(wanted.current(), None);
}

/// Down and up again: events say so, the port's state follows, and the device still works.
#[test]
fn a_netdev_goes_down_and_up() {
    let _one = one_at_a_time();
    let ctx = open();
    let dev = netdev();
    let mut events = AsyncEvents::new(&ctx).unwrap();
    let mut seen = Vec::new();
    assert!(ip(&["link", "set", &dev, "down"]));
    let down = until(&mut events, |e| {
        seen.push(*e);
        *e == AsyncEvent::Port { port: 1, what: PortEvent::Down }
    });
    assert!(down, "no event; seen {seen:?}");
    let state = ctx.port(1).unwrap();
    assert!(!state.active, "{state:?}");
    assert!(ip(&["link", "set", &dev, "up"]));
    let up = AsyncEvent::Port { port: 1, what: PortEvent::Active };
    assert!(until(&mut events, |e| *e == up), "no event");
    assert!(ctx.port(1).unwrap().active);
    drop(ctx.alloc_pd().unwrap().slots(64, 1).unwrap());
}
