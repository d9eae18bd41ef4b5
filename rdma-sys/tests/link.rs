//! A real link on a machine without the libraries says which package to install, also if the crate comes from a
//! registry; type checks and documentation need no libraries.
//!
//! The missing machine is this one, seen through a linker that has one folder to search: links to all libraries of the
//! compiler's own search path but those of rdma-core.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

mod support;

const PROGRAM: &str = "fn main() {
    let mut count = 0;
    // SAFETY: the list is freed once and not used.
    unsafe {
        let list = rdma_sys::ibv_get_device_list(&raw mut count);
        if !list.is_null() {
            rdma_sys::ibv_free_device_list(list);
        }
    }
}
";

/// What the message must name: the packages of Debian and Ubuntu, of Fedora, RHEL and SUSE, and of Arch.
const PACKAGES: [&str; 5] = [
    "apt install libibverbs-dev librdmacm-dev",
    "dnf install rdma-core-devel",
    "zypper install rdma-core-devel",
    "pacman -S rdma-core",
    "-libverbs and rdmacm. Install",
];

/// A linker for rustc that sees no library of rdma-core.
struct BareLinker {
    cc: PathBuf,
}

impl BareLinker {
    fn new(dir: &Path) -> Self {
        let (libraries, tools) = (dir.join("libraries"), dir.join("tools"));
        fs::create_dir_all(&libraries).expect("create libraries");
        fs::create_dir_all(&tools).expect("create tools");
        let search = search_path();
        for from in &search {
            for entry in fs::read_dir(from).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let text = name.to_string_lossy();
                if !text.starts_with("libibverbs") && !text.starts_with("librdmacm") {
                    // The first folder wins, as in a search.
                    let _ = symlink(entry.path(), libraries.join(&name));
                }
            }
        }
        // ld with our folder for its only search path: the compiler's -L options for the others are dropped.
        let dropped: Vec<_> = search.iter().map(|dir| format!("-L{}", dir.display())).collect();
        let script = format!(
            "#!/bin/sh\nn=$#\nwhile [ $n -gt 0 ]; do\n  a=$1; shift; n=$((n-1))\n  case $a in\n    -L*/*) \
             d=$(readlink -m \"${{a#-L}}\"); case \"-L$d\" in {}) continue;; esac;;\n  esac\n  \
             set -- \"$@\" \"$a\"\ndone\nexec {} -nostdlib -L {} \"$@\"\n",
            dropped.join("|"),
            program("ld"),
            libraries.display(),
        );
        executable(&tools.join("ld"), &script);
        let cc = dir.join("cc");
        // rustc may ask for its own lld, which would not come by our ld.
        let script = format!(
            "#!/bin/sh\nn=$#\nwhile [ $n -gt 0 ]; do\n  a=$1; shift; n=$((n-1))\n  case $a in\n    \
             -fuse-ld=*) ;;\n    *) set -- \"$@\" \"$a\";;\n  esac\ndone\nexec {} -B {} \"$@\"\n",
            program("cc"),
            tools.display(),
        );
        executable(&cc, &script);
        Self { cc }
    }

    /// cargo with this linker.
    fn cargo(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = support::cargo(dir, args);
        let target = target().to_uppercase().replace('-', "_");
        command.env(format!("CARGO_TARGET_{target}_LINKER"), &self.cc);
        command.env_remove("LIBRARY_PATH").env_remove("RDMA_SYS_LIB_DIR");
        command
    }
}

/// The folders that cc and ld search for libraries, without links in their paths.
fn search_path() -> Vec<PathBuf> {
    let cc = support::succeed(Command::new("cc").arg("-print-search-dirs"));
    let ld = support::succeed(Command::new("ld").arg("--verbose"));
    let (cc, ld) = (support::text(&cc), support::text(&ld));
    let of_cc = cc
        .lines()
        .filter_map(|line| line.strip_prefix("libraries: ="))
        .flat_map(|list| list.split(':'));
    let of_ld = ld.split("SEARCH_DIR(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut dirs = Vec::new();
    for dir in of_cc.chain(of_ld.map(|dir| dir.trim_start_matches('='))) {
        // Folders that do not exist are searched too, in vain.
        if let Ok(dir) = fs::canonicalize(dir)
            && !dirs.contains(&dir)
        {
            dirs.push(dir);
        }
    }
    assert!(!dirs.is_empty(), "cc names no folder it searches:\n{cc}");
    dirs
}

/// Where a program is.
fn program(name: &str) -> String {
    let output = support::succeed(Command::new("sh").args(["-c", &format!("command -v {name}")]));
    support::text(&output).trim().to_owned()
}

fn executable(file: &Path, text: &str) {
    fs::write(file, text).expect("write a script");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("make it executable");
}

/// The target that cargo builds for here.
fn target() -> String {
    let output = support::succeed(Command::new(env!("CARGO")).arg("-vV"));
    let text = support::text(&output);
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("cargo names its host")
        .to_owned()
}

/// Builds the program in `dir` without the libraries and looks for the message in the linker's words.
fn says_what_to_install(dir: &Path, linker: &BareLinker) {
    support::succeed(&mut linker.cargo(dir, &["check"]));
    let output = linker.cargo(dir, &["build"]).output().expect("start cargo");
    let text = support::text(&output);
    assert!(!output.status.success(), "it links without the libraries:\n{text}");
    let error = text
        .split("error: linking with")
        .nth(1)
        .unwrap_or_else(|| panic!("no link error:\n{text}"));
    for package in PACKAGES {
        assert!(error.contains(package), "\"{package}\" is not in the linker's message:\n{text}");
    }
}

/// A control: the bare linker links a program that needs no library of rdma-core.
fn links_other_programs(dir: &Path, linker: &BareLinker) {
    support::program(dir, &support::by_path(), "fn main() {}\n");
    let manifest = fs::read_to_string(dir.join("Cargo.toml")).expect("read Cargo.toml");
    let without = manifest
        .lines()
        .filter(|line| !line.starts_with("rdma-sys"))
        .collect::<Vec<_>>()
        .join("\n");
    fs::write(dir.join("Cargo.toml"), without).expect("write Cargo.toml");
    support::succeed(&mut linker.cargo(dir, &["build"]));
}

#[test]
fn a_path_dependency_says_what_to_install() {
    let dir = support::folder("link-path");
    let linker = BareLinker::new(&dir);
    links_other_programs(&dir.join("other"), &linker);

    let user = dir.join("user");
    support::program(&user, &support::by_path(), PROGRAM);
    says_what_to_install(&user, &linker);
    // Once the package is installed the next build works, with nothing to clean.
    support::succeed(&mut support::cargo(&user, &["build"]));
}

/// From a registry: cargo shows no warning of the build script, so the message is the linker's alone.
#[test]
fn a_registry_dependency_says_what_to_install() {
    let dir = support::folder("link-registry");
    let linker = BareLinker::new(&dir);
    let user = dir.join("user");
    let version = env!("CARGO_PKG_VERSION");
    support::program(
        &user,
        &format!("{{ package = \"rdma-safe-sys\", version = \"{version}\" }}"),
        PROGRAM,
    );
    vendor(&dir, &user.join("vendor"));
    fs::create_dir_all(user.join(".cargo")).expect("create .cargo");
    let config =
        "[source.crates-io]\nreplace-with = \"vendor\"\n[source.vendor]\ndirectory = \"vendor\"\n";
    fs::write(user.join(".cargo/config.toml"), config).expect("write config.toml");
    says_what_to_install(&user, &linker);
    support::succeed(&mut support::cargo(&user, &["build"]));
}

/// Puts the package, as `cargo package` makes it, and its dependencies into a folder that stands for crates.io.
fn vendor(dir: &Path, vendor: &Path) {
    fs::create_dir_all(vendor).expect("create vendor");
    let (root, source) = (Path::new(env!("CARGO_MANIFEST_DIR")), dir.join("source"));
    // Apart from the other members, whose state is none of this test's concern.
    let workspace =
        fs::read_to_string(root.join("../Cargo.toml")).expect("read the workspace's Cargo.toml");
    let alone = workspace.lines().map(|line| match line.split(' ').next() {
        Some("members") => "members = [\"rdma-sys\"]",
        Some("default-members") => "",
        _ => line,
    });
    fs::create_dir_all(&source).expect("create source");
    fs::write(source.join("Cargo.toml"), alone.collect::<Vec<_>>().join("\n"))
        .expect("write Cargo.toml");
    // The licences are links out of the folder.
    support::succeed(Command::new("cp").arg("-rL").arg(root).arg(source.join("rdma-sys")));
    let member = source.join("rdma-sys");
    let args = ["package", "--no-verify", "--allow-dirty", "--exclude-lockfile", "--quiet"];
    support::succeed(support::cargo(&member, &args).env("CARGO_TARGET_DIR", dir.join("target")));
    let name = concat!("rdma-safe-sys-", env!("CARGO_PKG_VERSION"));
    let file = dir.join(format!("target/package/{name}.crate"));
    support::succeed(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(vendor));
    as_vendored(&vendor.join(name));

    // The dependencies are where cargo has put them to build this test.
    let user = dir.join("paths");
    support::program(&user, &support::by_path(), "fn main() {}\n");
    let mut command = support::cargo(&user, &["metadata", "--format-version=1"]);
    let metadata = support::text(&support::succeed(&mut command));
    let manifests =
        metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    for manifest in manifests.filter(|path| path.contains("/registry/src/")) {
        let from = Path::new(manifest).parent().expect("a folder");
        support::succeed(Command::new("cp").arg("-r").arg(from).arg(vendor));
        as_vendored(&vendor.join(from.file_name().expect("a name")));
    }
}

/// Marks the folder as a package of a directory source.
fn as_vendored(dir: &Path) {
    let sums = "{\"files\":{},\"package\":null}";
    fs::write(dir.join(".cargo-checksum.json"), sums).expect("write the checksums");
}
