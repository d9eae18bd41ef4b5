//! Compares the bindings with Open MPI's headers: those installed (Debian: libopenmpi-dev), or those
//! in the folders that `OMPI_HEADERS` names, separated by colons. They must be of the series that is
//! built.

use super::layout::Fact;
use super::{common, rma, series};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Headers that define what is bound, in every series.
const HEADERS: &[&str] = &[
    "opal_config.h",
    "opal/constants.h",
    "opal/mca/btl/btl.h",
    "opal/mca/btl/base/base.h",
    "opal/mca/base/mca_base_var.h",
    "opal/mca/base/mca_base_pvar.h",
    "opal/mca/hwloc/hwloc-internal.h",
    "mpi.h",
    "opal/mca/rcache/base/base.h",
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

const HINT: &str = "a C compiler and Open MPI's headers are needed (Debian: gcc libopenmpi-dev)";

/// Where the headers are.
fn include_dirs() -> Vec<PathBuf> {
    if let Some(dirs) = std::env::var_os("OMPI_HEADERS") {
        return std::env::split_paths(&dirs).collect();
    }
    let dirs = run(Command::new("mpicc").arg("--showme:incdirs"), HINT);
    dirs.split_whitespace().map(PathBuf::from).collect()
}

/// What Open MPI's own headers include since 5.0 and `make install` leaves out: only names have to
/// be there, since nothing that is bound has a lock in it.
const NOT_INSTALLED: &[(&str, &str)] = &[
    (
        "mutex",
        "#include <pthread.h>\n#include <stdbool.h>\n\
         typedef pthread_mutex_t opal_thread_internal_mutex_t;\n\
         typedef pthread_cond_t opal_thread_internal_cond_t;\n\
         int opal_thread_internal_mutex_trylock(pthread_mutex_t *);\n\
         void opal_thread_internal_mutex_lock(pthread_mutex_t *);\n\
         void opal_thread_internal_mutex_unlock(pthread_mutex_t *);\n",
    ),
    ("threads", ""),
    ("tsd", ""),
];

/// The folder with these headers, to be searched last.
fn stand_ins(dir: &Path) -> PathBuf {
    let folder = dir.join("stand-ins");
    let place = folder.join("opal/mca/threads/pthreads");
    std::fs::create_dir_all(&place)
        .unwrap_or_else(|e| panic!("cannot create {}: {e}", place.display()));
    for (name, text) in NOT_INSTALLED {
        let file = place.join(format!("threads_pthreads_{name}.h"));
        std::fs::write(&file, text)
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
    }
    folder
}

/// Values of the C expressions in the order asked.
fn values_in_c(facts: &[&Fact], dir: &Path) -> Vec<u64> {
    let mut source = String::new();
    for header in HEADERS.iter().chain(series::HEADERS) {
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

    let program = dir.join("facts");
    let mut cc = Command::new("cc");
    for include in include_dirs() {
        cc.arg("-I").arg(&include).arg("-I").arg(include.join("openmpi"));
    }
    run(cc.arg("-I").arg(stand_ins(dir)).arg(&file).arg("-o").arg(&program), HINT);
    let printed = run(&mut Command::new(&program), HINT);
    printed
        .lines()
        .map(|line| {
            line.parse::<i64>().unwrap_or_else(|e| panic!("{line:?} is no number: {e}")) as u64
        })
        .collect()
}

/// The headers are of the series this is built for, and not of a build with CUDA.
fn series_facts() -> [Fact; 3] {
    let [major, minor, _] = series::PROJECT_VERSION;
    [
        Fact { expr: "OMPI_MAJOR_VERSION", value: major as u64 },
        Fact { expr: "OMPI_MINOR_VERSION", value: minor as u64 },
        Fact { expr: "OPAL_CUDA_SUPPORT", value: 0 },
    ]
}

#[test]
fn bindings_match_the_headers() {
    let tables = [
        common::LAYOUT,
        common::CONSTANTS,
        common::PREFIXES,
        rma::LAYOUT,
        rma::CONSTANTS,
        rma::PREFIXES,
        series::LAYOUT,
        series::CONSTANTS,
        series::PREFIXES,
    ];
    let own = series_facts();
    let facts: Vec<&Fact> = own.iter().chain(tables.into_iter().flatten()).collect();
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
