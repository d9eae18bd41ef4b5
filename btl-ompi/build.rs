//! Link options of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Open MPI unloads a component that declines at once; Rust's thread-local destructors and the
    // threads of the connection manager must not lose their code then.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A symbol that this Open MPI does not have is noticed when the component is loaded, not in the
    // middle of a job.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
