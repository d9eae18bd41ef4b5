//! Compares the bindings with the installed Open MPI headers (Debian: libopenmpi-dev).

use super::layout::Fact;
use super::v41;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Headers that define what is bound, relative to the include path of `mpicc --showme:incdirs`.
const HEADERS: &[&str] = &[
    "opal_config.h",
    "opal/constants.h",
    "opal/mca/btl/btl.h",
    "opal/mca/btl/base/base.h",
    "opal/mca/base/mca_base_var.h",
    "opal/mca/hwloc/hwloc-internal.h",
    "opal/mca/pmix/pmix.h",
    "opal/util/output.h",
    "opal/util/proc.h",
];

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("btl-ompi-abi-{}", std::process::id()));
        std::fs::create_dir_all(&dir)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command, hint: &str) -> String {
    let shown = format!("{command:?}");
    let out = command.output().unwrap_or_else(|e| panic!("cannot run {shown}: {e}; {hint}"));
    assert!(
        out.status.success(),
        "{shown} failed: {}\n{hint}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap_or_else(|e| panic!("{shown} printed no text: {e}"))
}

/// Values of the C expressions in the order asked.
fn values_in_c(facts: &[&Fact], dir: &Path) -> Vec<u64> {
    let mut source = String::new();
    for header in HEADERS {
        let _ = writeln!(source, "#include \"{header}\"");
    }
    source.push_str("#include <stdio.h>\n#include <stddef.h>\nint main(void) {\n");
    for fact in facts {
        let _ = writeln!(source, "printf(\"%lld\\n\", (long long)({}));", fact.expr);
    }
    source.push_str("return 0; }\n");
    let file = dir.join("facts.c");
    std::fs::write(&file, source)
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));

    let hint = "install the Open MPI 4.1 headers and a C compiler (Debian: libopenmpi-dev gcc)";
    let dirs = run(Command::new("mpicc").arg("--showme:incdirs"), hint);
    let program = dir.join("facts");
    let mut cc = Command::new("cc");
    for include in dirs.split_whitespace() {
        cc.arg("-I").arg(include).arg("-I").arg(format!("{include}/openmpi"));
    }
    run(cc.arg(&file).arg("-o").arg(&program), hint);
    let printed = run(&mut Command::new(&program), hint);
    printed
        .lines()
        .map(|line| {
            line.parse::<i64>().unwrap_or_else(|e| panic!("{line:?} is no number: {e}")) as u64
        })
        .collect()
}

#[test]
fn bindings_match_the_installed_headers() {
    let facts: Vec<&Fact> = v41::LAYOUT.iter().chain(v41::CONSTANTS).chain(v41::PREFIXES).collect();
    assert!(facts.len() > 100, "the tables of facts are empty: the macros are broken");
    let scratch = Scratch::new();
    let values = values_in_c(&facts, &scratch.0);
    assert_eq!(values.len(), facts.len(), "the C program printed another number of lines");
    let wrong: Vec<String> = facts
        .iter()
        .zip(&values)
        .filter(|(fact, value)| fact.value != **value)
        .map(|(fact, value)| format!("{} is {value} in C, {} here", fact.expr, fact.value))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
