//! Links libibverbs and librdmacm, and with feature `bindgen` makes the bindings from the installed headers.

use std::{env, error::Error};

#[cfg(feature = "bindgen")]
mod generate;
mod link;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build");
    // docs.rs has neither the libraries nor the headers.
    if env::var_os("DOCS_RS").is_some() {
        return Ok(());
    }
    #[cfg(feature = "bindgen")]
    generate_bindings()?;
    link::link();
    Ok(())
}

/// Makes the bindings: into `OUT_DIR`, and with `RDMA_SYS_WRITE_BINDINGS=1` also into the source folder.
#[cfg(feature = "bindgen")]
fn generate_bindings() -> Result<(), Box<dyn Error>> {
    use std::path::{Path, PathBuf};

    println!("cargo::rerun-if-env-changed=RDMA_SYS_WRITE_BINDINGS");
    let mut include = Vec::new();
    for library in ["libibverbs", "librdmacm"] {
        // Prints the rerun-if lines and the search path; which libraries to link is for link.rs to say.
        let found =
            pkg_config::Config::new().cargo_metadata(false).probe(library).map_err(|err| {
                format!("feature bindgen needs the headers. {}\n{err}", link::INSTALL)
            })?;
        for dir in &found.link_paths {
            println!("cargo::rustc-link-search=native={}", dir.display());
        }
        include.extend(found.include_paths);
    }
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let text = generate::bindings(Path::new("build/wrapper.h"), &include)?;
    let mut dirs = vec![PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?)];
    if env::var("RDMA_SYS_WRITE_BINDINGS").is_ok_and(|value| value == "1") {
        dirs.push(root.join("src"));
    }
    for dir in dirs {
        let file = dir.join("bindings.rs");
        // An unchanged file keeps its time, so cargo sees nothing to rebuild.
        if !std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
            std::fs::write(&file, &text)
                .map_err(|err| format!("cannot write {}: {err}", file.display()))?;
        }
    }
    Ok(())
}
