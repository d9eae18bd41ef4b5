use super::*;

fn addr(text: &str) -> RailAddr {
    let (at, prefix) = text.split_once('/').expect("ADDRESS:PORT/BITS");
    RailAddr { at: at.parse().expect("an address"), prefix: prefix.parse().expect("bits") }
}

fn rail(carrier: Carrier, addrs: &[&str]) -> Rail {
    let addrs = addrs.iter().map(|a| addr(a)).collect();
    Rail { carrier, loopback: true, eager: 12288, lanes: vec![12288, 65536], addrs }
}

fn iwarp(addrs: &[&str]) -> Rail {
    rail(Carrier::Iwarp, addrs)
}

fn host(rails: Vec<Rail>) -> Host {
    let mine = rails.iter().flat_map(|r| r.addrs.iter().map(|a| a.at.ip())).collect();
    Host { me: ProcName { job: 1, rank: 0 }, rails, mine, any_subnet: false }
}

/// What each rail of `a` got of `b`'s, and the other way round: checked to agree, by first address.
fn both_ways(a: &Host, b: &Host, on_node: bool) -> Vec<Option<SocketAddr>> {
    let see = |us: &Host, they: &Host, lower: bool| {
        let them = Them { rails: &they.rails, on_node, lower };
        (0..us.rails.len())
            .map(|i| pair(us, i, &them).ok().map(|partner| partner.addrs[0]))
            .collect::<Vec<_>>()
    };
    // Whoever has the lower name, they agree.
    for a_lower in [true, false] {
        let (from_a, from_b) = (see(a, b, !a_lower), see(b, a, a_lower));
        for (i, found) in from_a.iter().enumerate() {
            let Some(found) = found else { continue };
            let at = |rail: &Rail| rail.addrs.iter().any(|addr| addr.at == *found);
            let j = b.rails.iter().position(at).expect("an address of theirs");
            let back = from_b[j].expect("the other side has a partner too");
            assert!(a.rails[i].addrs.iter().any(|addr| addr.at == back), "{i} and {j} disagree");
        }
        let pairs = |found: &[Option<SocketAddr>]| found.iter().flatten().count();
        assert_eq!(pairs(&from_a), pairs(&from_b), "both sides have as many pairs");
    }
    see(a, b, false)
}

fn at(text: &str) -> Option<SocketAddr> {
    Some(text.parse().expect("an address"))
}

fn refusal(us: &Host, index: usize, theirs: &[Rail]) -> String {
    let them = Them { rails: theirs, on_node: false, lower: false };
    pair(us, index, &them).expect_err("has no partner").to_string()
}

#[test]
fn rails_pair_by_transport_and_network() {
    let a = host(vec![iwarp(&["10.77.0.1:1/24"]), rail(Carrier::Roce, &["10.78.0.1:2/24"])]);
    let b = host(vec![rail(Carrier::Roce, &["10.78.0.2:3/24"]), iwarp(&["10.77.0.2:4/24"])]);
    assert_eq!(both_ways(&a, &b, false), [at("10.77.0.2:4"), at("10.78.0.2:3")]);
    // Two ports in two networks, in another order.
    let a = host(vec![iwarp(&["10.1.0.1:1/24"]), iwarp(&["10.2.0.1:2/24"])]);
    let b = host(vec![iwarp(&["10.2.0.2:3/24"]), iwarp(&["10.1.0.2:4/24"])]);
    assert_eq!(both_ways(&a, &b, false), [at("10.1.0.2:4"), at("10.2.0.2:3")]);
}

#[test]
fn ports_of_one_network_pair_in_order_and_the_rest_stays_out() {
    let a = host((1..=3).map(|i| iwarp(&[&format!("10.1.0.{i}:{i}/24")])).collect());
    let b = host((11..=12).map(|i| iwarp(&[&format!("10.1.0.{i}:{i}/24")])).collect());
    assert_eq!(both_ways(&a, &b, false), [at("10.1.0.11:11"), at("10.1.0.12:12"), None]);
    assert_eq!(both_ways(&b, &a, false), [at("10.1.0.1:1"), at("10.1.0.2:2")]);
    assert!(refusal(&a, 2, &b.rails).contains("fewer such ports"), "{}", refusal(&a, 2, &b.rails));
}

#[test]
fn aliases_and_both_families_count() {
    let a = host(vec![iwarp(&["10.1.0.1:1/24", "10.2.0.1:2/24", "[fd00::1]:3/64"])]);
    let alias = host(vec![iwarp(&["192.168.0.2:4/24", "10.2.0.2:5/24"])]);
    assert_eq!(both_ways(&a, &alias, false), [at("10.2.0.2:5")], "the common network comes first");
    let v6 = host(vec![iwarp(&["10.9.0.2:4/24", "[fd00::2]:5/64"])]);
    assert_eq!(both_ways(&a, &v6, false), [at("[fd00::2]:5")]);
    let other = host(vec![iwarp(&["[fd01::2]:5/64"])]);
    assert_eq!(both_ways(&a, &other, false), [None]);
}

#[test]
fn a_network_is_common_only_if_both_say_so() {
    let wide = host(vec![iwarp(&["10.1.0.1:1/16"])]);
    let narrow = host(vec![iwarp(&["10.1.7.2:2/24"])]);
    assert_eq!(both_ways(&wide, &narrow, false), [None]);
    let unknown = host(vec![iwarp(&["10.1.0.2:2/0"])]);
    assert_eq!(both_ways(&wide, &unknown, false), [None]);
}

#[test]
fn a_peer_in_another_network_is_told_how_to_be_reached() {
    let a = host(vec![iwarp(&["10.1.0.1:1/24", "[fd00::1]:3/64"])]);
    let b = host(vec![iwarp(&["10.2.0.2:2/24"])]);
    assert_eq!(
        refusal(&a, 0, &b.rails),
        "it shares no network with this port: 10.2.0.0/24 there, 10.1.0.0/24, fd00::/64 here; where routers join them, \
         set btl_verbs_allow_different_subnets to 1 in all processes"
    );
    let (a, b) = (Host { any_subnet: true, ..a }, Host { any_subnet: true, ..b });
    assert_eq!(both_ways(&a, &b, false), [at("10.2.0.2:2")]);
}

#[test]
fn with_any_network_the_near_ones_pair_first() {
    let any = |rails| Host { any_subnet: true, ..host(rails) };
    let a = any(vec![iwarp(&["10.1.0.1:1/24"]), iwarp(&["10.2.0.1:2/24"])]);
    let b = any(vec![iwarp(&["10.2.0.2:3/24"]), iwarp(&["10.3.0.2:4/24"])]);
    assert_eq!(both_ways(&a, &b, false), [at("10.3.0.2:4"), at("10.2.0.2:3")]);
}

#[test]
fn another_transport_never_pairs() {
    let a = host(vec![iwarp(&["10.1.0.1:1/24"])]);
    let b = host(vec![rail(Carrier::Roce, &["10.1.0.2:2/24"])]);
    assert_eq!(both_ways(&a, &b, false), [None]);
    assert_eq!(refusal(&a, 0, &b.rails), "it has no iWARP port (RoCE)");
    assert_eq!(refusal(&a, 0, &[]), "it has no iWARP port (it has none at all)");
    assert!(refusal(&a, 0, &[iwarp(&[])]).contains("without an address"));
}

#[test]
fn my_own_addresses_lead_to_nobody_on_another_node() {
    // As bridges of container engines have them on every node.
    let a = host(vec![iwarp(&["172.17.0.1:1/16"]), iwarp(&["10.1.0.1:2/24"])]);
    let b = host(vec![iwarp(&["172.17.0.1:3/16"]), iwarp(&["10.1.0.2:4/24"])]);
    assert_eq!(both_ways(&a, &b, false), [None, at("10.1.0.2:4")]);
    assert!(
        refusal(&a, 0, &b.rails[..1]).contains("its address 172.17.0.1 is also one of this host")
    );
    // An address of this host that no device here has.
    let here = Host {
        mine: vec!["10.1.0.2".parse().expect("an address")],
        ..host(vec![iwarp(&["10.1.0.1:2/24"])])
    };
    assert!(refusal(&here, 0, &b.rails[1..]).contains("10.1.0.2 is also one of this host"));
    // On this node it is the way.
    assert_eq!(both_ways(&a, &b, true), [at("172.17.0.1:3"), at("10.1.0.2:4")]);
}

#[test]
fn what_the_partner_has_is_told() {
    let a = host(vec![iwarp(&["10.1.0.1:1/24"])]);
    let mut b = iwarp(&["10.1.0.2:2/24"]);
    b.lanes = vec![16384];
    let them = Them { rails: &[b], on_node: false, lower: true };
    assert_eq!(pair(&a, 0, &them).map(|partner| partner.lanes), Ok(vec![16384]));
    assert_eq!(pair(&a, 7, &them), Err(NoPairing::Taken), "no such rail of ours");
}

/// Both sides refuse, whoever has the small buffers or the device without the flag: else one would wait for the other.
#[test]
fn buffers_too_small_and_no_loopback_are_seen_from_both_sides() {
    let mut small = iwarp(&["10.1.0.2:2/24"]);
    (small.lanes, small.eager) = (vec![2048], 2048);
    let (a, b) = (host(vec![iwarp(&["10.1.0.1:1/24"])]), host(vec![small]));
    assert_eq!(both_ways(&a, &b, false), [None]);
    assert_eq!(
        refusal(&a, 0, &b.rails),
        "the largest buffers there have 2048 bytes, but an eager message from here takes up to 12288: lower \
         btl_verbs_eager_limit and btl_verbs_rndv_eager_limit here to 2040, or make the buffers larger with \
         btl_verbs_receive_queues"
    );
    let back = refusal(&b, 0, &a.rails);
    let expected = "the largest buffers here have 2048 bytes, but an eager message from there";
    assert!(back.starts_with(expected), "{back}");
    let mut mute = iwarp(&["10.1.0.2:2/24"]);
    mute.loopback = false;
    let them = Them { rails: &[mute], on_node: true, lower: false };
    assert_eq!(pair(&a, 0, &them), Err(NoPairing::NoLoopback));
    assert!(pair(&a, 0, &Them { on_node: false, ..them }).is_ok());
}
