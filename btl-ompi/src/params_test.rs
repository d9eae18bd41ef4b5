use super::*;

fn raw(which: N, value: i32) -> Raw {
    let mut raw = Raw::default();
    raw.numbers[which as usize] = value;
    raw
}

fn texts(pairs: &[(T, &str)]) -> Raw {
    let mut raw = Raw::default();
    for (which, text) in pairs {
        raw.texts[*which as usize] = (*text).to_owned();
    }
    raw
}

fn told(raw: &Raw) -> String {
    raw.check().expect_err("is refused").to_string()
}

#[test]
fn defaults_are_allowed_and_those_of_the_engine() {
    let params = Raw::default().check().expect("the defaults pass");
    assert_eq!((&params.ports, &params.nets), (&Wanted::All, &Wanted::All));
    assert_eq!((params.max_btls, &params.queues, params.credit_route), (usize::MAX, &None, None));
    let me = ProcName { job: 7, rank: 1 };
    let own = Config::new(me, 7);
    let config = params.config(me, 7);
    // A process that only receives: all of a large job is unannounced to it.
    assert!(config.max_unknown > 60_000 * 2 && config.max_unknown > own.max_unknown);
    assert_eq!(
        Config { max_unknown: own.max_unknown, ..config },
        own,
        "defaults differ from the engine's own"
    );
}

#[test]
fn the_default_lanes_are_those_of_the_engine() {
    let own = Config::new(ProcName { job: 0, rank: 0 }, 0).lanes;
    let text = own.iter().map(|l| format!("P,{},{}", l.buffer_size, l.depth)).collect::<Vec<_>>();
    assert_eq!(QUEUES.trim_end_matches('\0'), text.join(":"), "change QUEUES with Config::new");
}

#[test]
fn names_and_help_end_in_nul_and_name_the_range() {
    let numbers = NUMBERS.iter().map(|n| (n.name, n.help, n.level));
    let switches = SWITCHES.iter().map(|s| (s.name, s.help, s.level));
    let texts = TEXTS.iter().map(|t| (t.name, t.help, t.level));
    for (name, help, level) in numbers.chain(switches).chain(texts) {
        for text in [name, help] {
            assert_eq!(text.find('\0'), Some(text.len() - 1), "{name}: {text:?}");
            assert!(text.len() > 2, "{name}");
        }
        assert!((1..=9).contains(&level), "{name}");
    }
    for text in &TEXTS {
        assert_eq!(text.default.find('\0'), Some(text.default.len() - 1), "{}", text.name);
    }
    for number in NUMBERS.iter().filter(|n| n.name != "max_btls\0") {
        let range = format!("{}..{}", number.min, number.max);
        assert!(number.help.contains(&range), "the help of {} does not say {range}", number.name);
        assert!((number.min..=number.max).contains(&number.default), "{}", number.name);
    }
}

#[test]
fn both_ends_of_every_range_are_enforced() {
    for (i, number) in NUMBERS.iter().enumerate() {
        let ends = [
            (number.min, true),
            (number.max, true),
            (number.min - 1, false),
            (number.max + 1, false),
        ];
        for (value, good) in ends {
            let mut raw = Raw::default();
            raw.numbers[i] = value;
            let result = raw.check();
            assert_eq!(result.is_ok(), good, "{} = {value}: {result:?}", number.name);
        }
    }
    // Where 0 is automatic, the least real value is larger.
    assert!(raw(N::SendDepth, 2).check().is_ok() && raw(N::FreeListMax, 16).check().is_ok());
    assert_eq!(
        told(&raw(N::FreeListMax, 15)),
        "btl_verbs_free_list_max = 15 is out of range: 16..65536 is allowed (or 0 for automatic)"
    );
    assert!(told(&raw(N::SendDepth, 1)).contains("2..4096"));
}

#[test]
fn messages_name_parameter_value_and_range() {
    assert_eq!(
        told(&raw(N::CqSize, 3)),
        "btl_verbs_cq_size = 3 is out of range: 256..4194304 is allowed"
    );
    assert_eq!(
        told(&texts(&[(T::ReceiveQueues, "P,12288,16:S,65536")])),
        "btl_verbs_receive_queues: entry 2 (\"S,65536\"): a receive queue shared by all peers (S) is not supported: an \
         overrun of it is harmless only on devices that report a receiver which is not ready, and its buffers have no \
         credits; use P; write for example P,12288,16:P,65536,4"
    );
    for (which, text, expected) in [
        (
            T::IfInclude,
            "siw0:0",
            "btl_verbs_if_include: \"siw0:0\" is neither DEVICE nor DEVICE:PORT",
        ),
        (T::IfExclude, "a,:1", "btl_verbs_if_exclude: \":1\" is neither"),
        (
            T::IpaddrInclude,
            "10.1/16",
            "btl_verbs_ipaddr_include: \"10.1/16\" is no network like 10.1.0.0/16",
        ),
        (T::IpaddrExclude, "::/129", "btl_verbs_ipaddr_exclude: \"::/129\" is no network"),
        (T::DeviceType, "iwarp,opa", "btl_verbs_device_type: \"opa\" is none of all, ib"),
        (T::CreditRoute, "both", "btl_verbs_credit_route: \"both\" is neither own nor first"),
        (T::Loopback, "siw0", "btl_verbs_loopback: \"siw0\" is neither DEVICE=yes nor DEVICE=no"),
        (T::Loopback, "=yes", "\"=yes\" is neither"),
        (T::Loopback, "siw0=maybe", "\"siw0=maybe\" is neither"),
        (T::ReceiveQueues, "", "btl_verbs_receive_queues: entry 1 (\"\"): it is empty"),
    ] {
        let why = told(&texts(&[(which, text)]));
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn lists_are_parsed_and_exclude_each_other() {
    let only = texts(&[(T::IfInclude, " siw0, mlx5_0:2,, ")]).check().expect("fine").ports;
    let has = |wanted: &Wanted<PortName>, text: &str| {
        let port = text.parse().expect("a port");
        wanted.has(|entry| entry.covers(&port))
    };
    assert!(has(&only, "siw0:1") && has(&only, "siw0:2") && has(&only, "mlx5_0:2"));
    assert!(!has(&only, "mlx5_0:1") && !has(&only, "rxe0:1") && only.is_only());
    assert_eq!(only.entries().len(), 2);
    let not = texts(&[(T::IfExclude, "rxe0,mlx5_0:2")]).check().expect("fine").ports;
    assert!(has(&not, "siw0:1") && has(&not, "mlx5_0:1") && !has(&not, "rxe0:1"));
    assert!(!has(&not, "mlx5_0:2") && !not.is_only());
    let both = texts(&[(T::IfInclude, "siw0"), (T::IfExclude, "rxe0")]);
    assert!(
        told(&both).contains("btl_verbs_if_include and btl_verbs_if_exclude exclude each other")
    );
    let both = texts(&[(T::IpaddrInclude, "::/0"), (T::IpaddrExclude, "::/0")]);
    assert!(told(&both).contains("btl_verbs_ipaddr_include and"));
    // Ports by name and by address go together.
    let nets = texts(&[(T::IfInclude, "siw0"), (T::IpaddrExclude, "10.9.0.0/16, fd00::/8")]);
    let nets = nets.check().expect("fine").nets;
    let wants = |ip: &str| nets.has(|net| net.has(ip.parse().expect("an address")));
    assert!(wants("10.8.0.1") && !wants("10.9.1.1") && !wants("fd00::7") && wants("2001:db8::1"));
}

#[test]
fn words_are_read() {
    let all = texts(&[
        (T::CreditRoute, "first"),
        (T::Loopback, "siw0=no, mlx5_0 = yes"),
        (T::DeviceParamFiles, "/etc/a.ini::b.ini"),
        (T::ReceiveQueues, "P,65536,64"),
    ]);
    let params = all.check().expect("fine");
    assert_eq!(params.credit_route, Some(CreditRoute::FirstLane));
    assert_eq!(params.loopback, [("siw0".to_owned(), false), ("mlx5_0".to_owned(), true)]);
    assert_eq!(params.files, ["/etc/a.ini", "b.ini"]);
    assert_eq!(params.queues, Some(vec![Queue { size: 65536, count: 64 }]));
}

#[test]
fn what_is_no_number_is_found_in_the_environment() {
    let one = |value: &str| {
        let value = value.to_owned();
        check_types(move |name| (name == "OMPI_MCA_btl_verbs_cq_size").then(|| value.clone()))
    };
    for good in ["256", "0x100", "16k", "4M", "-1", " 300 ", "0400"] {
        assert_eq!(one(good), Ok(()), "{good}");
    }
    for bad in ["", "many", "12x", "0x", "1 2", "k", "1.5"] {
        let why = one(bad).expect_err(bad).to_string();
        assert_eq!(why, format!("btl_verbs_cq_size = \"{bad}\" is not a number"));
    }
    assert_eq!(check_types(|_| None), Ok(()));
}
