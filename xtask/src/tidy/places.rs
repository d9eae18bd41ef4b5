//! Finds what a list names: items of the code, tests, invariants and mutants of the simulator.

use super::{File, has_word};

/// Where the simulator's invariants are, one a line.
const INVARIANTS: &str = "btl-core/sim/src/check.rs";
/// The table of what it breaks on purpose.
const MUTANTS: &str = "btl-core/sim/MUTANTS.md";
/// What defines an item.
const DEFINING: &[&str] =
    &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union", "macro_rules!"];
/// Attributes and comments above a test's first line are at most so many lines.
const ABOVE: usize = 12;

/// `file::item` or `file::Type::item`: whether the file has that item.
///
/// # Errors
/// Says what is missing.
pub(super) fn item(files: &[File], place: &str) -> Result<(), String> {
    let (path, item) =
        place.split_once("::").ok_or(format!("`{place}` names no item of a file"))?;
    let file = find(files, path)?;
    let mut parts: Vec<&str> = item.split("::").collect();
    let last = parts.pop().unwrap_or_default();
    let defined = file.code().any(|(_, code)| defines(&code, last));
    let around = |part: &&str| file.code().any(|(_, code)| has_word(&code, part));
    match defined && parts.iter().all(around) {
        true => Ok(()),
        false => Err(format!("{path} has no item `{item}`")),
    }
}

/// Whether such a test exists:
/// - `sim S3`, an invariant of the simulator;
/// - `mutant NAME`, one of its broken rules;
/// - `file::name`, a function with the attribute, or a name in the table of a program that is its own harness;
/// - `file (compile_fail)`, examples of the documentation that must not compile;
/// - `file`, a program that must not compile, an MPI program, or a test program that is its own harness.
///
/// # Errors
/// Says what is missing.
pub(super) fn test(files: &[File], test: &str) -> Result<(), String> {
    if let Some(name) = test.strip_prefix("sim ") {
        let line = format!("{name},");
        let known = find(files, INVARIANTS)?.lines().any(|(_, text)| text.trim() == line);
        return known.then_some(()).ok_or(format!("the simulator has no invariant {name}"));
    }
    if let Some(name) = test.strip_prefix("mutant ") {
        let cell = format!("| {name} |");
        let known = find(files, MUTANTS)?.text.contains(&cell);
        return known.then_some(()).ok_or(format!("the simulator has no mutant {name}"));
    }
    if let Some(path) = test.strip_suffix(" (compile_fail)") {
        let has = find(files, path)?.text.contains("```compile_fail");
        return has.then_some(()).ok_or(format!("{path} has no example that must not compile"));
    }
    let Some((path, name)) = test.split_once("::") else {
        let file = find(files, test)?;
        let own = file.is_rust() && test.contains("/tests/") && file.text.contains("fn main()");
        let program = test.contains("/compile_fail/") || test.contains("/tests/mpi/");
        return (own || program).then_some(()).ok_or(format!("{test} alone is no test"));
    };
    let file = find(files, path)?;
    match has_test(file, name) || in_table(file, name) {
        true => Ok(()),
        false => Err(format!("{path} has no test `{name}`")),
    }
}

/// Whether the name stands in a table of tests: `("name", …)`, of a program that is its own harness.
pub(super) fn in_table(file: &File, name: &str) -> bool {
    file.path.contains("/tests/") && file.text.contains(&format!("(\"{name}\", "))
}

fn find<'f>(files: &'f [File], path: &str) -> Result<&'f File, String> {
    files.iter().find(|file| file.path == path).ok_or(format!("{path}: there is no such file"))
}

fn defines(code: &str, name: &str) -> bool {
    let words: Vec<&str> = code
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!'))
        .filter(|word| !word.is_empty())
        .collect();
    words.windows(2).any(|pair| DEFINING.contains(&pair[0]) && pair[1] == name)
}

fn has_test(file: &File, name: &str) -> bool {
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let attribute = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let above = |at: usize| {
        let lines = lines[at.saturating_sub(ABOVE)..at].iter().rev();
        lines.take_while(|line| line.starts_with("#[") || line.starts_with("//")).any(attribute)
    };
    lines.iter().enumerate().any(|(at, line)| {
        let code = super::code_of(line);
        defines(&code, name) && has_word(&code, "fn") && above(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
        /// Text.\npub struct Gate;\nimpl Gate {\n    pub(crate) unsafe fn right(&mut self) {}\n}\n\
        // fn commented() {}\n#[test]\n// Why.\n#[cfg(unix)]\nfn works() {}\nfn helper() {}\n\
        #[tokio::test(flavor = \"x\")]\nasync fn waits() {}\n/// ```compile_fail\n";
    const TABLE: &str = "const ALL: &[(&str, fn())] = &[\n    (\"both_talk\", a::both),\n];\n";

    fn files() -> Vec<File> {
        let file = |path: &str, text: &str| File::new(path.to_owned(), text.to_owned());
        vec![
            file("a/src/a.rs", CODE),
            file("a/tests/own.rs", "fn main() {}\n"),
            file("a/tests/one.rs", "#[test]\nfn x() {}\n"),
            file("a/tests/cases/mod.rs", TABLE),
            file("a/tests/compile_fail/bad.rs", ""),
            file(INVARIANTS, "enum I {\n    S1,\n    S13,\n}\n"),
            file(MUTANTS, "| M1 | acceptor-sends | siw |\n"),
        ]
    }

    #[test]
    fn items_are_found_where_they_are_defined_only() {
        let found = |place: &str| item(&files(), place).is_ok();
        assert!(found("a/src/a.rs::Gate") && found("a/src/a.rs::right"));
        assert!(found("a/src/a.rs::Gate::right"));
        assert!(!found("a/src/a.rs::Other::right"), "no such type");
        assert!(!found("a/src/a.rs::commented"), "in a comment");
        assert!(!found("a/src/a.rs::self"), "used only");
        assert!(!found("a/src/a.rs"), "no item");
        assert!(!found("a/src/b.rs::Gate"), "no such file");
    }

    #[test]
    fn tests_are_functions_with_the_attribute_or_rows_of_a_table() {
        let found = |name: &str| test(&files(), name).is_ok();
        assert!(found("a/src/a.rs::works") && found("a/src/a.rs::waits"));
        assert!(!found("a/src/a.rs::helper"), "no attribute");
        assert!(!found("a/src/a.rs::missing"));
        assert!(found("a/tests/cases/mod.rs::both_talk"));
        assert!(!found("a/tests/cases/mod.rs::both"));
        assert!(found("a/tests/own.rs") && !found("a/tests/one.rs") && !found("a/src/a.rs"));
        assert!(found("a/tests/compile_fail/bad.rs") && !found("a/tests/compile_fail/good.rs"));
        assert!(found("a/src/a.rs (compile_fail)") && !found("a/tests/own.rs (compile_fail)"));
    }

    #[test]
    fn the_simulators_names_are_looked_up() {
        let found = |name: &str| test(&files(), name).is_ok();
        assert!(found("sim S1") && found("sim S13") && !found("sim S3"));
        assert!(found("mutant acceptor-sends") && !found("mutant acceptor"));
        assert!(test(&[], "sim S1").is_err() && test(&[], "mutant x").is_err());
    }
}
