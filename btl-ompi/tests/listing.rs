//! What `ompi_info` shows of the component, and what became of openib's parameters.
#![cfg(feature = "fake-transport")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::stage;

/// The parameters of a BTL: name without prefix, to what `ompi_info` says about it by field.
fn shown(component: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let path = format!("SYSTEM_DEFAULT:{}", stage().dir.display());
    let out = Command::new("ompi_info")
        .args(["--parsable", "--param", "btl", component, "--level", "9"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("OMPI_MCA_mca_base_component_path", path)
        .output()
        .unwrap_or_else(|e| panic!("cannot run ompi_info: {e}; it comes with Open MPI"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let head = format!("mca:btl:{component}:param:btl_{component}_");
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.trim_matches('"').strip_prefix(&head)) {
        let mut fields = line.splitn(3, ':');
        let (Some(name), Some(field), Some(value)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let value = value.trim_matches('"').to_owned();
        all.entry(name.to_owned()).or_default().insert(field.to_owned(), value);
    }
    assert!(!all.is_empty(), "ompi_info shows no parameter of {component}:\n{text}");
    all
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Names, types, levels and defaults as checked in. After a change on purpose: `BLESS=1 cargo test … --test listing`.
#[test]
fn ompi_info_shows_what_is_checked_in() {
    const LIST: &str = "tests/ompi_info.txt";
    let mut text = String::new();
    for (name, fields) in shown("verbs") {
        let field = |name: &str| fields.get(name).map_or("?", String::as_str);
        assert!(field("help").len() > 10, "{name} has no help");
        text +=
            &format!("{name} {} level {} = {}\n", field("type"), field("level"), field("value"));
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file(LIST), &text).unwrap_or_else(|e| panic!("{LIST}: {e}"));
    }
    let expected = read(LIST);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (is, should) = (lines(&text), lines(&expected));
    let (new, gone): (Vec<_>, Vec<_>) =
        (is.difference(&should).collect(), should.difference(&is).collect());
    assert!(new.is_empty() && gone.is_empty(), "shown now: {new:#?}\nchecked in: {gone:#?}");
}

/// Rows of PARAMETERS.md: openib's name and what stands beside it.
fn rows() -> BTreeMap<String, String> {
    let text = read("PARAMETERS.md");
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').to_owned();
        assert!(rows.insert(name.clone(), cells[2].to_owned()).is_none(), "{name} is there twice");
        assert!(cells[2] != "gone" || !cells[3].is_empty(), "{name} is gone without a reason");
    }
    rows
}

#[test]
fn every_parameter_of_openib_is_mapped() {
    let (rows, ours) = (rows(), shown("verbs"));
    // Of a build with rdma_cm, or with a subnet administrator: Debian's has neither. `mtu` is not shown as a parameter
    // of its own there.
    let elsewhere = [
        "connect_rdmacm_port",
        "connect_rdmacm_priority",
        "connect_rdmacm_reject_causes_connect_error",
        "connect_rdmacm_resolve_timeout",
        "connect_rdmacm_retry_count",
        "ib_path_record_service_level",
        "mtu",
    ];
    let openib: BTreeSet<String> = shown("openib").into_keys().collect();
    assert!(openib.len() > 60, "only {} parameters of openib", openib.len());
    let missing: Vec<_> = openib.iter().filter(|name| !rows.contains_key(*name)).collect();
    assert!(missing.is_empty(), "PARAMETERS.md says nothing about {missing:?}");
    for (name, here) in &rows {
        let known = openib.contains(name) || elsewhere.contains(&name.as_str());
        assert!(known, "openib has no {name}");
        match here.as_str() {
            "gone" => assert!(!ours.contains_key(name), "{name} is not gone"),
            "*same*" => assert!(ours.contains_key(name), "there is no {name} here"),
            other => {
                let other = other.trim_matches('`');
                assert!(ours.contains_key(other), "there is no {other} here, for {name}");
            }
        }
    }
}

/// Whatever openib has not, the page names as new.
#[test]
fn what_is_new_is_named() {
    let (rows, text) = (rows(), read("PARAMETERS.md"));
    let new = text.split("New here:").nth(1).expect("a list of what is new");
    let only_ours = shown("verbs").into_keys().filter(|name| !rows.contains_key(name));
    // Open MPI registers these for every BTL; openib has them only in some builds.
    let common = ["get_local_registration_threshold", "put_local_registration_threshold"];
    for name in only_ours.filter(|name| !common.contains(&name.as_str())) {
        assert!(new.contains(&format!("`{name}`")), "{name} is not named as new");
    }
}
