//! Links libibverbs and librdmacm.
fn main() {
    println!("cargo::rustc-link-lib=dylib=ibverbs");
    println!("cargo::rustc-link-lib=dylib=rdmacm");
}
