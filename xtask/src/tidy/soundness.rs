//! Rules that look at more than one file: which modules may have unsafe code, and that the tests which documents name
//! exist.

use super::{File, has_word, places};

/// Crates whose `lib.rs` names the modules with unsafe code. `rdma-sys` is raw throughout; in the crates above, the
/// compiler forbids it.
const NAMING: &[&str] = &["rdma-safe", "rdma-cm"];
/// Documents with tables whose last column names tests.
const PROVING: &[&str] = &[
    "rdma-safe/FEATURES.md",
    "rdma-safe/HAZARDS.md",
    "rdma-safe/SOUNDNESS.md",
    "rdma-cm/FEATURES.md",
    "rdma-cm/HAZARDS.md",
    SECURITY,
];
/// In this one each row needs a test, or says that there is nothing to test.
const SECURITY: &str = "SECURITY.md";
const UNPROMISED: &str = "not promised";

/// Each rule with what it found.
pub(super) fn check(files: &[File]) -> Vec<(&'static str, Vec<String>)> {
    vec![
        (
            "unsafe code only where lib.rs names the module; the others forbid it",
            unnamed_unsafe(files),
        ),
        ("every test that a document names exists", missing_tests(files)),
        ("each promise of SECURITY.md has a test", untested_promises(files)),
    ]
}

/// `cq::tune` for `rdma-safe/src/cq/tune.rs`.
fn module_of(path: &str, krate: &str) -> Option<String> {
    let file = path.strip_prefix(krate)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
    let module = file.strip_suffix("/mod").unwrap_or(file);
    (module != "lib").then(|| module.replace('/', "::"))
}

/// Whether the crate's documentation names the module or one that it is in.
fn is_named(lib: &File, module: &str) -> bool {
    let named = |name: &str| {
        let docs = lib.text.lines().filter(|line| line.starts_with("//!"));
        docs.skip_while(|line| !line.contains("nsafe code"))
            .any(|line| line.contains(&format!("`{name}`")))
    };
    let ends = module.match_indices("::").map(|(at, _)| at).chain([module.len()]);
    ends.into_iter().any(|end| named(&module[..end]))
}

/// Whether the module or one that it is in forbids unsafe code.
fn forbidden_in(files: &[File], krate: &str, module: &str) -> bool {
    let around = |of: &str| module == of || module.starts_with(&format!("{of}::"));
    files
        .iter()
        .filter(|file| module_of(&file.path, krate).is_some_and(|of| around(&of)))
        .any(|file| file.text.contains("#![forbid(unsafe_code)]"))
}

fn unnamed_unsafe(files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    for krate in NAMING {
        let Some(lib) = files.iter().find(|file| file.path == format!("{krate}/src/lib.rs")) else {
            found.push(format!("{krate} has no src/lib.rs"));
            continue;
        };
        for file in files.iter().filter(|file| file.tests_from > 0) {
            let Some(module) = module_of(&file.path, krate) else { continue };
            let has_unsafe = file.code().any(|(_, code)| has_word(&code, "unsafe"));
            let forbids = forbidden_in(files, krate, &module);
            // What a module forbids its children cannot allow.
            let is_parent = file
                .code()
                .any(|(_, code)| code.trim_end().ends_with(';') && has_word(&code, "mod"));
            if has_unsafe && !is_named(lib, &module) {
                found.push(format!(
                    "{}: unsafe in `{module}`, which lib.rs does not name",
                    file.path
                ));
            } else if !has_unsafe && !forbids && !is_parent {
                found.push(format!("{}: no #![forbid(unsafe_code)]", file.path));
            }
        }
    }
    found
}

/// The last cell of a table's row.
fn last_cell(line: &str) -> Option<&str> {
    let cells = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    cells.rsplit('|').next().map(str::trim)
}

/// Names in backquotes in the last column of a table's row.
fn tests_named(line: &str) -> impl Iterator<Item = &str> {
    last_cell(line).unwrap_or_default().split('`').skip(1).step_by(2)
}

/// Whether some function, or program that must not compile, is called that; `beginning_…` stands for any. Also what
/// the simulator knows, and rows in tables of tests.
fn exists(files: &[File], name: &str) -> bool {
    if name.starts_with("sim ") || name.starts_with("mutant ") {
        return places::test(files, name).is_ok();
    }
    let name = name.rsplit("::").next().unwrap_or(name);
    let (name, whole) = match name.strip_suffix('…') {
        Some(beginning) => (beginning, false),
        None => (name, true),
    };
    let matches = |text: &str| match whole {
        true => text == name,
        false => text.starts_with(name),
    };
    files.iter().filter(|file| file.is_rust()).any(|file| {
        let program = file.path.split_once("/compile_fail/").map(|(_, program)| program);
        if program.and_then(|p| p.strip_suffix(".rs")).is_some_and(matches) {
            return true;
        }
        if places::in_table(file, name) {
            return true;
        }
        let functions = file.text.split("fn ").skip(1);
        functions.filter_map(|rest| rest.split(['(', '<']).next()).any(matches)
    })
}

fn missing_tests(files: &[File]) -> Vec<String> {
    let documents = files.iter().filter(|file| PROVING.contains(&file.path.as_str()));
    let mut found = Vec::new();
    for document in documents {
        for (number, line) in document.lines() {
            for name in tests_named(line).filter(|name| !exists(files, name)) {
                found.push(format!("{}:{number}: there is no test `{name}`", document.path));
            }
        }
    }
    found
}

/// A row of neither a head nor a rule that names no test and does not say that nothing is promised.
fn untested_promises(files: &[File]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == SECURITY) else {
        return vec![format!("there is no {SECURITY}")];
    };
    let mut found = Vec::new();
    let mut rows = 0;
    for (number, line) in document.lines() {
        let Some(last) = last_cell(line) else { continue };
        if last == "test" || last.starts_with("---") {
            continue;
        }
        rows += 1;
        if last != UNPROMISED && tests_named(line).next().is_none() {
            found.push(format!("{SECURITY}:{number}: neither a test nor `{UNPROMISED}`"));
        }
    }
    if rows == 0 {
        found.push(format!("{SECURITY} promises nothing"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path.to_owned(), text.to_owned())
    }

    const LIB: &str = "//! `late`\n//! # Unsafe code\n//! `raw`, `cq`.\n";

    fn unsafe_found(path: &str, text: &str) -> usize {
        let other = file("rdma-cm/src/lib.rs", "");
        unnamed_unsafe(&[file("rdma-safe/src/lib.rs", LIB), other, file(path, text)]).len()
    }

    #[test]
    fn unsafe_outside_named_modules_is_found() {
        let code = "unsafe { x() }\n";
        assert_eq!(unsafe_found("rdma-safe/src/raw.rs", code), 0);
        assert_eq!(unsafe_found("rdma-safe/src/cq/tune.rs", code), 0, "within a named one");
        assert_eq!(unsafe_found("rdma-safe/src/wc.rs", code), 1);
        assert_eq!(unsafe_found("rdma-safe/src/late.rs", code), 1, "named before the list");
        assert_eq!(unsafe_found("rdma-safe/src/wc.rs", "fn f() {}\n"), 1, "does not forbid it");
        assert_eq!(unsafe_found("rdma-safe/src/wc.rs", "#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(unsafe_found("rdma-safe/src/wc/mod.rs", "mod a;\n"), 0, "its children decide");
        assert_eq!(unsafe_found("rdma-safe/tests/a.rs", code), 0, "no module of the crate");
        assert_eq!(unnamed_unsafe(&[]).len(), 2, "the crates are gone");
    }

    #[test]
    fn a_test_that_is_not_there_is_found() {
        let table = "| a `b` | c | fake: `it_works`, `it_…`; `no_such` |\n| d | e | – |\n| f | g | `bad_program` |\n";
        let files = [
            file("rdma-safe/HAZARDS.md", table),
            file("rdma-safe/tests/a.rs", "#[test]\nfn it_works() {}\n"),
            file("rdma-safe/tests/compile_fail/bad_program.rs", ""),
        ];
        assert_eq!(missing_tests(&files), ["rdma-safe/HAZARDS.md:1: there is no test `no_such`"]);
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let table = "| a | test |\n|---|---|\n| b | `it_works`, `sim S1` |\n| c | not promised |\n| d | – |\n| e | soon |\n";
        let files = [
            file(SECURITY, table),
            file("btl-core/sim/src/check.rs", "    S1,\n"),
            file("a/tests/a.rs", "#[test]\nfn it_works() {}\n"),
        ];
        assert_eq!(
            untested_promises(&files),
            [5, 6].map(|n| format!("SECURITY.md:{n}: neither a test nor `not promised`"))
        );
        assert_eq!(missing_tests(&files), Vec::<String>::new());
        let one = |row: &str| missing_tests(&[file(SECURITY, row)]).len();
        assert_eq!(
            (one("| a | `sim S1` |"), one("| a | `mutant x` |"), one("| a | `x` |")),
            (1, 1, 1)
        );
        assert_eq!(untested_promises(&[]).len(), 1, "it is gone");
        assert_eq!(untested_promises(&[file(SECURITY, "# Security\n")]).len(), 1, "it is empty");
    }
}
