//! Addresses of this host: what the kernel does with them, what a user of this crate is told, and who decides whether a
//! device can connect to itself. Run as the tests in `device.rs`.
mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use common::links::{Undo, alone, ip_tool, is_alone, kind, netdev, soft_device};
use common::*;
use rdma_cm::*;
use rdma_safe::{Caps, LoopbackSource, LoopbackSupport};

/// What is refused before any call takes no longer.
const AT_ONCE: Duration = Duration::from_secs(1);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The other end of the cable under the test device: an address of this host, and of no RDMA device.
fn other_end(port: u16) -> SocketAddr {
    neighbour(2, port)
}

/// Another address in the network of the test device.
fn neighbour(last: u8, port: u16) -> SocketAddr {
    let IpAddr::V4(own) = ip() else { panic!("the test address is IPv4") };
    let [a, b, c, _] = own.octets();
    SocketAddr::from(([a, b, c, last], port))
}

/// A channel that believes the test device cannot connect to itself.
fn channel_with_no() -> EventChannel {
    let mut channel = EventChannel::new().unwrap();
    channel.set_loopback_policy(LoopbackPolicy::new().with_override(&device(), false));
    channel
}

/// The answer of resolve_addr itself: nothing was sent and nothing waited for.
fn refused_at_once(channel: &mut EventChannel, src: Option<SocketAddr>, dst: SocketAddr) -> Error {
    let start = Instant::now();
    let id = channel.connector().unwrap();
    let refused = channel.resolve_addr(&id, src, dst, LIMIT).map(|()| dst).unwrap_err();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    refused
}

#[test]
fn loopback_and_wildcard_addresses_are_refused_in_these_words() {
    let mut channel = EventChannel::new().unwrap();
    let own = format!(". Use a device's own address: {} has {}", device(), ip());
    let loopback = "a loopback address belongs to no RDMA device";
    let loopback_listen = "a loopback address belongs to no RDMA device; on InfiniBand and RoCE such a listener is open to \
                           the whole network";
    let wildcard_listen = "a wildcard listener is open on every device of this host; ask for it with \
                           ListenOptions::wildcard";
    let wildcard_source =
        "a wildcard address is no source; give none to have it chosen by the route";
    for (addr, dial, bind, from) in [
        ("127.0.0.1:7471", loopback, loopback_listen, loopback),
        ("127.255.0.9:7471", loopback, loopback_listen, loopback),
        ("[::1]:7471", loopback, loopback_listen, loopback),
        ("[::ffff:127.0.0.1]:7471", loopback, loopback_listen, loopback),
        ("0.0.0.0:7471", "a wildcard address is no destination", wildcard_listen, wildcard_source),
        ("[::]:7471", "a wildcard address is no destination", wildcard_listen, wildcard_source),
    ] {
        let addr = at(addr);
        let error = refused_at_once(&mut channel, None, addr).to_string();
        assert!(
            error.starts_with(&format!("cannot connect to {}: {dial}{own}", addr.ip())),
            "{error}"
        );
        let error = refused_at_once(&mut channel, Some(addr), neighbour(98, 1)).to_string();
        assert!(
            error.starts_with(&format!("cannot connect from {}: {from}", addr.ip())),
            "{error}"
        );
        let error = channel.listen(addr, 1).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot bind {}: {bind}{own}", addr.ip())), "{error}");
        let datagrams = channel.listen_datagram(addr, &ListenOptions::default()).unwrap_err();
        assert!(matches!(datagrams, Error::Loopback { .. }), "{datagrams:?}");
        let id = channel.connector().unwrap();
        let error = channel.bind_source(&id, addr).unwrap_err().to_string();
        assert!(error.starts_with("cannot connect from"), "{error}");
    }
    assert_eq!(channel.id_count(), 0);
}

/// What our refusals are for. If a kernel starts to do otherwise, this is where it is noticed.
#[test]
fn the_kernel_alone_binds_them_to_no_device() {
    let mut channel = EventChannel::new().unwrap();
    let both = ListenOptions { wildcard: true, loopback: true, ..ListenOptions::default() };
    for addr in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"] {
        let listener = channel.listen_with(at(addr), &both).unwrap();
        assert_ne!(listener.local_addr().port(), 0, "{addr}");
        assert_eq!(channel.device_name(&listener), None, "{addr}");
    }
}

/// Why a listener on 127.0.0.1 has to be asked for.
#[test]
fn a_loopback_listener_hears_the_network_on_roce_and_nobody_on_iwarp() {
    let mut channel = EventChannel::new().unwrap();
    let asked = ListenOptions { loopback: true, ..ListenOptions::default() };
    let listener = channel.listen_with(at("127.0.0.1:0"), &asked).unwrap();
    let mut side = Side::new();
    let to = addr(listener.local_addr().port());
    let connector = channel.resolve(None, to, LIMIT).unwrap();
    let attempt = channel.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT);
    if kind() == "siw" {
        assert!(matches!(attempt, Err(ConnectError::Refused)), "{attempt:?}");
    } else {
        assert_eq!(next_request(&mut channel, &listener).local_addr(), Some(to));
    }
}

#[test]
fn the_devices_own_address_can_be_bound_and_resolved() {
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 1).unwrap();
    assert_eq!(channel.device_name(&listener), Some(device()));
    let connector = channel.resolve(None, listener.local_addr(), LIMIT).unwrap();
    assert_eq!(channel.device_name(&connector), Some(device()));
}

#[test]
fn an_address_of_this_host_on_no_device_is_of_no_use() {
    let mut channel = EventChannel::new().unwrap();
    let bind = channel.listen(other_end(0), 1).unwrap_err();
    assert_eq!(bind.errno(), Some(libc::ENODEV), "{bind}");
    let text = format!("rdma_bind_addr {}: No such device", other_end(0));
    assert!(bind.to_string().starts_with(&text), "{bind}");
    // And what to use instead.
    for words in ["belongs to no RDMA device of this host", &format!("{} has {}", device(), ip())] {
        assert!(bind.to_string().contains(words), "{words:?} is not in: {bind}");
    }
    let resolve = channel.resolve(None, other_end(7471), LIMIT).unwrap_err();
    assert_eq!(resolve.errno(), Some(libc::ENODEV), "{resolve}");
    let text = format!("rdma_resolve_addr {}: No such device", other_end(7471));
    assert!(resolve.to_string().starts_with(&text), "{resolve}");
    assert!(resolve.to_string().contains("no RDMA device of this host leads there"), "{resolve}");
}

/// A device on the loopback interface does not make 127.0.0.1 one of RDMA. Other addresses there are found on soft RoCE by
/// newer kernels, and never on soft iWARP.
#[test]
fn a_device_on_the_loopback_interface_changes_nothing() {
    let name = format!("{}lo", kind());
    if let Some((passed, said)) = {
        let add = ["addr", "add", "10.79.0.1/32", "dev", "lo"];
        let del = ["addr", "del", "10.79.0.1/32", "dev", "lo"];
        let _made = (!is_alone()).then(|| (Undo::ip(&add, &del), soft_device(&name, "lo")));
        alone("a_device_on_the_loopback_interface_changes_nothing", &[])
    } {
        assert!(passed, "{said}");
        return;
    }
    let mut channel = EventChannel::new().unwrap();
    let refused = refused_at_once(&mut channel, None, at("127.0.0.1:7471")).to_string();
    assert!(refused.starts_with("cannot connect to 127.0.0.1: a loopback address"), "{refused}");
    assert!(!refused.contains(&format!("{name} has 127")), "it names no such address: {refused}");
    let own = device_addresses(&name).unwrap();
    assert!(own.iter().all(|a| classify(a.addr) == AddressClass::Ordinary), "{own:?}");
    let bind = channel.listen(at("10.79.0.1:0"), 1);
    let resolve = channel.resolve(None, at("10.79.0.1:7471"), LIMIT);
    let context = rdma_safe::Device::by_name(&name).unwrap().open().unwrap();
    let trial = probe_loopback(&context, LIMIT);
    match (bind, resolve) {
        (Err(bind), Err(resolve)) => {
            assert_eq!(bind.errno(), Some(libc::ENODEV), "{bind}");
            assert_eq!(resolve.errno(), Some(libc::ENODEV), "{resolve}");
            assert_eq!(trial.unwrap_err().errno(), Some(libc::ENODEV));
        }
        (Ok(listener), Ok(connector)) => {
            assert_eq!(kind(), "rxe", "soft iWARP there has no GID");
            assert_eq!(channel.device_name(&listener).as_deref(), Some(&*name));
            assert_eq!(channel.device_name(&connector).as_deref(), Some(&*name));
            assert!(trial.unwrap().is_yes(), "{}", context.loopback_reason());
        }
        other => panic!("bind and resolve disagree: {other:?}"),
    }
}

/// A device whose interface has no address cannot be tried.
#[test]
fn without_an_address_a_trial_says_what_is_missing() {
    let _cable = Undo::ip(
        &["link", "add", "lt0", "type", "veth", "peer", "name", "lt1"],
        &["link", "delete", "lt0"],
    );
    ip_tool(&["link", "set", "lt0", "up", "addrgenmode", "none"]);
    ip_tool(&["link", "set", "lt1", "up"]);
    let name = format!("{}lt", kind());
    let _device = soft_device(&name, "lt0");
    let context = rdma_safe::Device::by_name(&name).unwrap().open().unwrap();
    let before = context.loopback();
    let trial = probe_loopback(&context, LIMIT).unwrap_err();
    assert_eq!(trial.errno(), Some(libc::EADDRNOTAVAIL), "{trial}");
    assert!(trial.to_string().contains("ip addr add"), "{trial}");
    assert_eq!(context.loopback(), before);
}

/// Addresses this host gets for a test, and what takes them away again.
fn more_addresses() -> (Vec<SocketAddr>, Vec<Undo>) {
    let netdev = netdev();
    let mut undo = Vec::new();
    let alias = neighbour(7, 7471);
    let cidr = format!("{}/24", alias.ip());
    let label = format!("{netdev}:1");
    undo.push(Undo::ip(
        &["addr", "add", &cidr, "dev", &netdev, "label", &label],
        &["addr", "del", &cidr, "dev", &netdev],
    ));
    undo.push(Undo::ip(
        &["addr", "add", "fd77::1/64", "dev", &netdev, "nodad"],
        &["addr", "del", "fd77::1/64", "dev", &netdev],
    ));
    let linklocal = device_addresses(&device()).unwrap();
    let linklocal = linklocal.iter().find(|a| a.scope_id != 0).expect("a link-local address");
    (vec![alias, at("[fd77::1]:7471"), linklocal.socket_addr(7471)], undo)
}

#[test]
fn with_no_every_address_of_this_host_is_refused_over_that_device() {
    let (mut local, _undo) = more_addresses();
    let IpAddr::V4(own) = ip() else { panic!("the test address is IPv4") };
    local.push(addr(7471));
    local.push(SocketAddr::new(own.to_ipv6_mapped().into(), 7471));
    let mut channel = channel_with_no();
    for dst in local {
        let refused = refused_at_once(&mut channel, None, dst);
        assert!(matches!(refused, Error::NoSelfConnect { .. }), "{dst}: {refused:?}");
        let datagram = channel.datagram().unwrap();
        let refused = channel.resolve_addr(&datagram, None, dst, LIMIT).unwrap_err();
        assert!(matches!(refused, Error::NoSelfConnect { .. }), "{dst}: {refused:?}");
    }
    let refused = refused_at_once(&mut channel, None, addr(7471)).to_string();
    let text = format!(
        "{} is an address of this host and {} cannot connect to itself (override: an override of the program); use \
         another transport between processes of one host, or override it if the device can",
        ip(),
        device()
    );
    assert_eq!(refused, text);
}

#[test]
fn with_no_another_interfaces_address_is_refused_over_that_device() {
    let mut channel = channel_with_no();
    for dst in [other_end(7471), at("[::ffff:10.99.0.1]:7471"), at("10.99.0.1:7471")] {
        // An address that only a route makes this host's.
        let _undo = Undo::ip(
            &["route", "add", "local", "10.99.0.0/24", "dev", "lo"],
            &["route", "del", "local", "10.99.0.0/24", "dev", "lo"],
        );
        let refused = refused_at_once(&mut channel, Some(addr(0)), dst);
        assert!(matches!(refused, Error::NoSelfConnect { .. }), "{dst}: {refused:?}");
        let bound = channel.connector().unwrap();
        channel.bind_source(&bound, addr(0)).unwrap();
        let refused = channel.resolve_addr(&bound, None, dst, LIMIT).unwrap_err();
        assert!(matches!(refused, Error::NoSelfConnect { .. }), "{dst}: {refused:?}");
    }
    // Over no device in particular there is none that could be forbidden; the kernel finds none.
    let nowhere = channel.resolve(None, other_end(7471), LIMIT).unwrap_err();
    assert_eq!(nowhere.errno(), Some(libc::ENODEV), "{nowhere}");
}

#[test]
fn with_no_others_can_still_be_reached_and_can_still_come() {
    let mut channel = channel_with_no();
    let listener = channel.listen(addr(0), 8).unwrap();
    let to = listener.local_addr();
    // A host that does not answer is still a host to try.
    drop(channel.resolve(None, silent_host(), LIMIT).unwrap());
    // Somebody without that belief stands for a remote peer.
    let mut peer = EventChannel::new().unwrap();
    let mut side = Side::new();
    let connector = peer.resolve(None, to, LIMIT).unwrap();
    let attempt =
        peer.begin_connect(connector, &mut side.qp, &ConnParams::default(), LIMIT).unwrap();
    let request = next_request(&mut channel, &listener);
    channel.reject(request, &PrivateData::empty()).unwrap();
    let answer = peer.finish_connect(attempt, &mut side.qp, LIMIT);
    assert!(matches!(answer, Err(ConnectError::Rejected { .. })), "{answer:?}");
}

#[test]
fn translation_leads_to_the_device_when_asked_for() {
    let context = open();
    let mut channel = EventChannel::new().unwrap();
    let listener = channel.listen(addr(0), 8).unwrap();
    let localhost: SocketAddr = (Ipv4Addr::LOCALHOST, listener.local_addr().port()).into();
    let refused = channel.resolve(None, localhost, LIMIT).unwrap_err();
    assert!(matches!(refused, Error::Loopback { .. }), "{refused:?}");
    let translating = LoopbackPolicy::new().translating_to_device(&context).unwrap();
    channel.set_loopback_policy(translating.clone());
    let (mut active, mut passive) = (Side::new(), Side::new());
    let connector = channel.resolve(None, localhost, LIMIT).unwrap();
    assert_eq!(channel.peer_addr(&connector), Some(listener.local_addr()));
    let params = ConnParams::default();
    let attempt = channel.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
    let request = next_request(&mut channel, &listener);
    channel.init_qp(&request, &mut passive.qp).unwrap();
    passive.post_recv();
    let _accepting = channel.accept(request, &mut passive.qp, &params).unwrap();
    let _connection = channel.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
    active.send(b"through the device");
    passive.expect_message(b"through the device");
    // It does not get around a No.
    channel.set_loopback_policy(translating.with_override(&device(), false));
    let refused = refused_at_once(&mut channel, None, localhost);
    assert!(matches!(refused, Error::NoSelfConnect { .. }), "{refused:?}");
}

#[test]
fn an_override_in_the_environment_binds_programs_that_know_nothing_of_it() {
    let with = |name, value: &str| {
        let test = "an_override_in_the_environment_binds_programs_that_know_nothing_of_it";
        alone(test, &[(name, value)])
    };
    let Some((passed, said)) = with(LOOPBACK_VARIABLE, &format!("{}=no", device())) else {
        return is_overridden();
    };
    assert!(passed && said.contains("RDMA_LOOPBACK says"), "{said}");
    let all_of_a_vendor = format!("{:#x}:*=no", open().attr().vendor_id);
    let (passed, said) = with(LOOPBACK_VARIABLE, &all_of_a_vendor).unwrap();
    assert!(passed, "{said}");
    let file = std::env::temp_dir().join(format!("rdma-loopback-{}", std::process::id()));
    let text = format!("# by the administrator\n{} = no # the firewall\n", device());
    std::fs::write(&file, text).unwrap();
    let (passed, said) = with(LOOPBACK_FILE_VARIABLE, file.to_str().unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(passed && said.contains("line 2 says") && said.contains("the firewall"), "{said}");
    let (passed, said) = with(LOOPBACK_VARIABLE, "perhaps").unwrap();
    assert!(!passed && said.contains("RDMA_LOOPBACK: `perhaps`: write it as"), "{said}");
}

fn is_overridden() {
    let mut channel = EventChannel::new().unwrap_or_else(|error| panic!("{error}"));
    let refused = refused_at_once(&mut channel, None, addr(7471));
    println!("{refused}");
    assert!(matches!(refused, Error::NoSelfConnect { .. }), "{refused:?}");
    let blocking = blocking::Caller::dial(addr(7471), &blocking::Config::default()).unwrap_err();
    let local = matches!(blocking, ConnectError::Local(Error::NoSelfConnect { .. }));
    assert!(local, "{blocking:?}");
    let context = open();
    assert!(LoopbackPolicy::from_env().unwrap().refine(&context).is_no());
    assert!(!context.caps().contains(Caps::LOOPBACK));
}

/// Objects of this process that the kernel knows: queue pairs, completion queues, domains, regions, ids.
fn objects() -> String {
    let mut all = String::new();
    for what in ["qp", "cq", "pd", "mr", "cm_id"] {
        let mut command = Command::new("rdma");
        command.args(["resource", "show", what, "pid", &std::process::id().to_string()]);
        let done = command.output().expect("the rdma tool of iproute2");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        all += &String::from_utf8_lossy(&done.stdout);
    }
    all
}

#[test]
fn a_trial_says_yes_and_leaves_nothing_behind() {
    let context = open();
    assert_eq!(context.loopback(), LoopbackSupport::Yes(LoopbackSource::Table));
    let before = objects();
    let start = Instant::now();
    let yes = probe_loopback(&context, Duration::from_secs(5)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(yes, LoopbackSupport::Yes(LoopbackSource::Probe));
    assert_eq!(context.clone().loopback(), yes);
    assert!(context.caps().contains(Caps::LOOPBACK));
    let reason = context.loopback_reason();
    assert_eq!(reason, format!("{} connected to itself over {}", device(), ip()));
    assert_eq!(objects(), before);
    // The user knows better.
    assert!(LoopbackPolicy::new().with_override(&device(), false).refine(&context).is_no());
    assert_eq!(probe_loopback(&context, LIMIT).unwrap(), yes);
    assert_eq!(context.loopback(), LoopbackSupport::No(LoopbackSource::Override));
    assert!(!context.caps().contains(Caps::LOOPBACK));
}

/// A No forbids, so it must not come from a limit that nobody can keep.
#[test]
fn a_trial_has_time_enough_whatever_the_limit() {
    let context = open();
    for _ in 0..3 {
        let yes = probe_loopback(&context, Duration::ZERO).unwrap();
        assert!(yes.is_yes(), "{}", context.loopback_reason());
    }
}

/// What a trial finds decides what may be dialled.
#[test]
fn a_trial_says_no_where_the_way_is_blocked() {
    let context = open();
    let before = objects();
    let start = Instant::now();
    let no = {
        let _undo = block_own_address();
        probe_loopback(&context, Duration::from_secs(2)).unwrap()
    };
    assert_eq!(no, LoopbackSupport::No(LoopbackSource::Probe), "{}", context.loopback_reason());
    assert!(start.elapsed() < Duration::from_secs(16), "{:?}", start.elapsed());
    assert_eq!(objects(), before, "nothing is left behind");
    let mut channel = EventChannel::new().unwrap();
    channel.set_loopback_policy(LoopbackPolicy::new().with_context(&context));
    let refused = refused_at_once(&mut channel, None, addr(7471));
    let text = refused.to_string();
    assert!(
        text.contains("trial connection") && text.contains("did not connect to itself"),
        "{text}"
    );
    // The way is free again, and the next trial sees it.
    assert!(probe_loopback(&context, LIMIT).unwrap().is_yes(), "{}", context.loopback_reason());
    channel.set_loopback_policy(LoopbackPolicy::new().with_context(&context));
    drop(channel.resolve(None, addr(7471), LIMIT).unwrap());
}

/// Keeps the device from reaching its own address, until it is dropped.
fn block_own_address() -> Vec<Undo> {
    if kind() == "siw" {
        // Packets to an own address go through it.
        return vec![Undo::ip(&["link", "set", "lo", "down"], &["link", "set", "lo", "up"])];
    }
    // Soft RoCE never hands such packets to an interface, so it is the way to the address that is taken away.
    let (addr, netdev) = (ip().to_string(), netdev());
    ip_tool(&["neigh", "flush", "dev", &netdev]);
    let route = ["local", &addr, "dev", &netdev, "table", "local"];
    let del = [&["route", "del"][..], &route].concat();
    let add = [&["route", "add"][..], &route, &["scope", "host", "proto", "kernel"]].concat();
    vec![Undo::ip(&del, &add)]
}
