//! Every size, alignment, offset, constant and function of the bindings, compared with the C headers of this machine.
//!
//! With `RDMA_SYS_TEST_INCLUDE` set to a folder, its headers (of a newer rdma-core) are compared instead. Those may
//! have appended to a type, nothing else.

use std::{collections::BTreeMap, env, fs, process::Command};

#[path = "support/facts.rs"]
mod facts;
#[path = "support/parse.rs"]
mod parse;
mod support;

type Facts = BTreeMap<String, i128>;

/// The version of rdma-core that the checked-in bindings were made from.
const BASE: u32 = 44;

const BINDINGS: &str = include_str!("../src/bindings.rs");
const ALIASES: &str = include_str!("../src/aliases.rs");

/// The bindings with the names that the headers define as macros.
fn all() -> parse::Bindings {
    let mut all = parse::parse(BINDINGS);
    for (name, values) in parse::parse(ALIASES).enums {
        all.enums.entry(name).or_default().extend(values);
    }
    all
}

fn facts(text: &str) -> Facts {
    let line = |line: &str| {
        let (key, value) = line.rsplit_once(' ').expect("a key and a value");
        (key.to_owned(), value.parse().expect("a number"))
    };
    text.lines().map(line).collect()
}

/// What the C headers say.
fn from_c(folder: &str, source: &str) -> Facts {
    let dir = support::folder(folder);
    let (file, program) = (dir.join("facts.c"), dir.join("facts"));
    fs::write(&file, source).expect("write facts.c");
    let mut cc = Command::new(env::var_os("CC").unwrap_or("cc".into()));
    if let Some(include) = env::var_os("RDMA_SYS_TEST_INCLUDE") {
        cc.arg("-I").arg(include);
    }
    // A function that Rust has and the header does not is an error.
    cc.args(["-std=gnu11", "-w", "-Werror=implicit-function-declaration", "-o"])
        .arg(&program)
        .arg(&file);
    support::succeed(cc.args(["-libverbs", "-lrdmacm"]));
    facts(&support::text(&support::succeed(&mut Command::new(program))))
}

/// What this crate says.
fn from_rust(source: &str) -> Facts {
    let dir = support::folder("layout-rust");
    support::program(&dir, &support::by_path(), source);
    support::succeed(&mut support::cargo(&dir, &["build", "--quiet"]));
    let program = dir.join("target/debug/user");
    facts(&support::text(&support::succeed(&mut Command::new(program))))
}

/// The differences, each a line. `newer` headers may make a type larger.
fn compare(c: &Facts, rust: &Facts, newer: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, ours) in rust {
        let Some(theirs) = c.get(key) else {
            wrong.push(format!("{key}: missing in C"));
            continue;
        };
        let grows = newer && key.starts_with("size ");
        // A new field may come out of a reserved one; its place is then that field's, not ours.
        let spent = newer && key.starts_with("width ") && key.ends_with(".reserved");
        if ours != theirs && !(grows && theirs > ours) && !(spent && theirs < ours) {
            wrong.push(format!("{key}: {ours} in Rust, {theirs} in C"));
        }
    }
    wrong.extend(
        c.keys()
            .filter(|key| !rust.contains_key(*key))
            .map(|key| format!("{key}: missing in Rust")),
    );
    wrong
}

/// The installed rdma-core's version: 44 for a libibverbs 1.14.44.0.
fn installed() -> u32 {
    let output = support::succeed(Command::new("pkg-config").args(["--modversion", "libibverbs"]));
    let text = support::text(&output);
    text.trim()
        .split('.')
        .nth(2)
        .and_then(|part| part.parse().ok())
        .expect("a version of three parts")
}

#[test]
fn all_is_as_in_the_headers() {
    let bindings = all();
    let programs = facts::Programs::new(&bindings);
    let (c, rust) = (from_c("layout-c", &programs.c), from_rust(&programs.rust));

    let newer = env::var_os("RDMA_SYS_TEST_INCLUDE").is_some() || installed() > BASE;
    let wrong = compare(&c, &rust, newer);
    assert!(
        wrong.is_empty(),
        "{} of {} facts differ\n{}",
        wrong.len(),
        rust.len(),
        wrong.join("\n")
    );

    let count = |kind: &str| rust.keys().filter(|key| key.split(' ').next() == Some(kind)).count();
    let kinds =
        ["size", "align", "offset", "width", "value", "function"].map(|kind| (kind, count(kind)));
    println!("compared with the C headers: {kinds:?}");
    // Whatever the list misses would be missing on both sides, so count in the text, by other means than the parser.
    let lines = |start: &str| BINDINGS.lines().filter(|line| line.starts_with(start)).count();
    let opaque = lines("    _unused: [u8; 0]") + lines("    pub _address: u8");
    assert_eq!(
        count("size"),
        lines("pub struct ") + lines("pub union ") - opaque - nested(),
        "each type that has a name in C"
    );
    assert_eq!(count("function"), lines("    pub fn "), "each function");
    let aliases = ALIASES.lines().filter(|line| line.starts_with("    pub const ")).count();
    let methods = BINDINGS.lines().filter(|line| line.starts_with("    pub const fn")).count();
    assert_eq!(
        count("value"),
        lines("pub const ") + lines("    pub const ") - methods + aliases,
        "each constant"
    );
    let asserted = BINDINGS.matches("\"Offset of field: ").count();
    let anonymous = BINDINGS.matches("::__bindgen_anon_").count();
    assert_eq!(count("offset"), asserted - anonymous, "each field");
}

/// Types that bindgen named because C does not.
fn nested() -> usize {
    let types = |line: &&str| line.starts_with("pub struct ") || line.starts_with("pub union ");
    BINDINGS.lines().filter(types).filter(|line| line.contains("__bindgen_ty_")).count()
}

/// A test of the test: one wrong fact of each kind is told.
#[test]
fn a_wrong_entry_is_found() {
    let c: Facts = [
        ("size ibv_sge", 16),
        ("align ibv_sge", 8),
        ("offset ibv_sge.lkey", 12),
        ("width ibv_sge.lkey", 4),
        ("value IBV_QPS_RTS", 3),
        ("function ibv_open_device", 1),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    assert_eq!(compare(&c, &c, false), Vec::<String>::new());
    for key in c.keys() {
        let mut rust = c.clone();
        *rust.get_mut(key).expect("the key") += 1;
        assert_eq!(compare(&c, &rust, false).len(), 1, "{key} off by one");
        // Newer headers may only have grown a type: a smaller one, or any other change, is wrong with them too.
        assert_eq!(compare(&c, &rust, true).len(), 1, "{key} off by one with newer headers");
        rust.remove(key);
        assert_eq!(compare(&c, &rust, false).len(), 1, "{key} missing in Rust");
        assert_eq!(compare(&rust, &c, false).len(), 1, "{key} missing in C");
    }
}

/// A test of the test, through the compiler: a wrong signature or name does not pass.
#[test]
fn a_wrong_signature_is_found() {
    let mut bindings = parse::parse(BINDINGS);
    let close = bindings.functions.get_mut("ibv_close_device").expect("the function");
    close.args.push("::core::ffi::c_int".to_owned());
    let open = bindings.functions.get_mut("ibv_open_device").expect("the function");
    open.ret = "*mut ibv_device".to_owned();
    let c = from_c("layout-wrong", &facts::Programs::new(&bindings).c);
    let wrong: Vec<_> =
        c.iter().filter(|(key, value)| key.starts_with("function ") && **value != 1).collect();
    let names: Vec<_> = wrong.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["function ibv_close_device", "function ibv_open_device"]);
}

/// Every function that a public header defines inline has a Rust body of its name.
#[test]
fn no_inline_function_is_missing() {
    const RUST: [&str; 7] = [
        include_str!("../src/inline.rs"),
        include_str!("../src/inline/cm.rs"),
        include_str!("../src/inline/cq_ex.rs"),
        include_str!("../src/inline/ib.rs"),
        include_str!("../src/inline/object.rs"),
        include_str!("../src/inline/qp_ex.rs"),
        include_str!("../src/inline/query.rs"),
    ];
    /// Parts of a macro; the Rust function has the macro's name.
    const PARTS: [&str; 2] = ["__ibv_reg_mr", "__ibv_reg_mr_iova"];
    let dir = support::folder("layout-inline");
    let file = dir.join("all.c");
    fs::write(&file, include_str!("../build/wrapper.h")).expect("write all.c");
    let mut cc = Command::new(env::var_os("CC").unwrap_or("cc".into()));
    let text = support::text(&support::succeed(cc.arg("-E").arg(&file)));

    let mut names = Vec::new();
    let (mut ours, mut head) = (false, String::new());
    for line in text.lines() {
        if line.starts_with("# ") {
            ours = line.contains("/infiniband/") || line.contains("/rdma/");
        } else if ours {
            if line.contains("static inline") {
                head.clear();
            }
            head.push_str(line);
            head.push(' ');
            if let Some(rest) = head.split_once("static inline").map(|(_, rest)| rest)
                && let Some((before, _)) = rest.split_once('(')
            {
                let name = before.trim().rsplit([' ', '*']).next().unwrap_or_default();
                names.push(name.to_owned());
                head.clear();
            }
        }
    }
    assert!(names.len() > 100, "the headers' inline functions: {names:?}");
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !PARTS.contains(&name.as_str()))
        .filter(|name| !RUST.iter().any(|text| has_function(text, name)))
        .collect();
    println!("{} inline functions in the headers", names.len());
    assert!(missing.is_empty(), "no Rust body: {missing:?}");
}

fn has_function(text: &str, name: &str) -> bool {
    [format!("fn {name}("), format!("fn {name} =>")].iter().any(|head| text.contains(head))
}
