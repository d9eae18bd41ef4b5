//! Links the libraries, or makes the linker say what to install.
//!
//! A build script's warnings are hidden when the crate comes from a registry, and its errors would also end `cargo
//! check` and `cargo doc`, which need no libraries. So a missing library is linked under a name that is the message:
//! it costs nothing until a program is linked, and then the linker prints it as the library that it cannot find.

use std::{env, path::Path, process::Command};

/// What to do where the libraries or headers are missing. No character that `-l` or a linker gives a meaning to.
pub(crate) const INSTALL: &str = "Install them with one of - \
Debian, Ubuntu - apt install libibverbs-dev librdmacm-dev - \
Fedora, RHEL - dnf install rdma-core-devel - \
SUSE - zypper install rdma-core-devel - \
Arch - pacman -S rdma-core";

const LIBRARIES: [&str; 2] = ["ibverbs", "rdmacm"];

pub(crate) fn link() {
    println!("cargo::rerun-if-env-changed=RDMA_SYS_LIB_DIR");
    let mut probe = Probe::new();
    if let Some(dir) = env::var_os("RDMA_SYS_LIB_DIR") {
        println!("cargo::rustc-link-search=native={}", Path::new(&dir).display());
        probe.args.push(format!("-L{}", Path::new(&dir).display()));
    }
    let missing: Vec<_> = LIBRARIES.into_iter().filter(|library| !probe.finds(library)).collect();
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    if missing.is_empty() {
        return;
    }
    // The linker puts "-l" before it: "cannot find -libverbs and rdmacm. Install them with one of ...".
    let names = missing.join(" and ");
    let message = format!("{names}. {INSTALL} - or set RDMA_SYS_LIB_DIR to their directory");
    println!("cargo::warning=missing libraries: {message}");
    println!("cargo::rustc-link-lib=dylib={message}");
    // A file that never exists: look again at each build, so that installing the package is enough.
    println!("cargo::rerun-if-changed=build/look-again-while-libraries-are-missing");
}

/// Asks the linker that rustc will use whether it finds a library.
struct Probe {
    linker: Option<String>,
    args: Vec<String>,
}

impl Probe {
    fn new() -> Self {
        let linker = env::var("RUSTC_LINKER").ok();
        let native = env::var("HOST") == env::var("TARGET");
        println!("cargo::rerun-if-env-changed=LIBRARY_PATH");
        Self {
            // For another target and without its linker nothing can be asked; rustc will complain of more than this.
            linker: linker.or_else(|| native.then(|| "cc".to_owned())),
            args: rustflags(),
        }
    }

    /// Whether a link with the library succeeds. True if the linker cannot be asked: then the link itself shows it.
    fn finds(&self, library: &str) -> bool {
        let (Some(linker), Ok(out)) = (&self.linker, env::var("OUT_DIR")) else { return true };
        let mut command = Command::new(linker);
        command
            .args(["-shared", "-nostdlib", "-o"])
            .arg(Path::new(&out).join("probe.so"))
            .arg("-lc");
        command.args(&self.args);
        let empty = command.output();
        let with = command.arg(format!("-l{library}")).output();
        // Only if the same link works without the library does its failure mean that the library is missing.
        match (empty, with) {
            (Ok(empty), Ok(with)) => with.status.success() || !empty.status.success(),
            _ => true,
        }
    }
}

/// The search paths and linker arguments among the flags given to rustc.
fn rustflags() -> Vec<String> {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut args = Vec::new();
    let mut words = flags.split('\x1f');
    while let Some(word) = words.next() {
        let (option, value) = match word {
            "-L" | "-C" | "--codegen" => (word, words.next().unwrap_or_default()),
            _ if word.starts_with("-L") || word.starts_with("-C") => word.split_at(2),
            _ => continue,
        };
        if option == "-L" {
            let dir = value.split_once('=').map_or(value, |(_, dir)| dir);
            args.push(format!("-L{dir}"));
        } else if let Some(arg) = value.strip_prefix("link-arg=") {
            args.push(arg.to_owned());
        } else if let Some(list) = value.strip_prefix("link-args=") {
            args.extend(list.split_whitespace().map(str::to_owned));
        }
    }
    args
}
