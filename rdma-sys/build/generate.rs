//! The one recipe for `bindings.rs`: used by feature `bindgen`, and with `RDMA_SYS_WRITE_BINDINGS=1` to renew the checked-in file.

use std::{error::Error, path::Path};

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};

/// Types that libc has for every target. bindgen would write down this machine's.
const FROM_LIBC: &[&str] = &[
    "fd_set",
    "iovec",
    "msghdr",
    "nfds_t",
    "off_t",
    "pollfd",
    "pthread_cond_t",
    "pthread_mutex_t",
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
    "ssize_t",
    "timespec",
    "timeval",
];

/// What only the types above consist of.
const THEIR_PARTS: &str = "\
    __(atomic_wide|pthread|fd_mask|off_t|socklen_t|ssize_t|s?u?seconds_t|syscall_slong_t|time_t).*|\
    in6?_addr.*|in_(addr|port)_t|sa_family_t|size_t";

/// Enums whose values are or'ed: they get `|` and `&`.
const FLAGS: &str = "(ib_uverbs|ibv|rdma)_.*_(bits|caps?_flags2?|fields|flags?|general_caps|mask|op_size|packet_caps|support)";

/// Functions that the headers hide behind a macro of the same name; `src/inline` has them, with the macro's meaning.
const IN_RUST: &str = "ibv_reg_mr|ibv_reg_mr_iova|ibv_query_port|ibv_static_providers";

/// What bindgen cannot know: the traits of libc's types, and the width of some macros.
#[derive(Debug)]
struct Facts;

impl ParseCallbacks for Facts {
    fn int_macro(&self, name: &str, _: i64) -> Option<bindgen::callbacks::IntKind> {
        // Masks of 64 bits, which bindgen takes for small or negative numbers.
        name.starts_with("RDMA_IB_").then_some(bindgen::callbacks::IntKind::U64)
    }

    fn blocklisted_type_implements_trait(
        &self,
        _: &str,
        derive: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        Some(match derive {
            DeriveTrait::Copy => ImplementsTrait::Yes,
            // Default is derived by zeroing, Debug is left out: libc gives neither promise for each type and version.
            _ => ImplementsTrait::No,
        })
    }
}

/// Makes the bindings from the headers in `include`, or in the compiler's own directories.
pub(crate) fn bindings(
    wrapper: &Path,
    include: &[std::path::PathBuf],
) -> Result<String, Box<dyn Error>> {
    let text = std::fs::read_to_string(wrapper)?;
    let imports = format!("#[allow(unused_imports)]\nuse libc::{{{}}};", FROM_LIBC.join(", "));
    let bindings = bindgen::Builder::default()
        // By content: a path of this machine must not get into the output.
        .header_contents("wrapper.h", &text)
        .clang_args(include.iter().map(|dir| format!("-I{}", dir.display())))
        .allowlist_file(r".*/infiniband/[^/]*\.h")
        .allowlist_file(r".*/rdma/(rdma_cma|rdma_verbs|rsocket)\.h")
        .blocklist_type(format!("{}|{THEIR_PARTS}", FROM_LIBC.join("|")))
        .blocklist_function(IN_RUST)
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .bitfield_enum(FLAGS)
        .constified_enum("_bindgen_ty_[0-9]+")
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true)
        .use_core()
        .raw_line(imports)
        .rust_target(
            bindgen::RustTarget::stable(85, 0).map_err(|err| format!("rust target: {err:?}"))?,
        )
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .parse_callbacks(Box::new(Facts))
        .generate()?;
    Ok(tidy(&bindings.to_string()))
}

/// Limits bindgen's own layout asserts to the target they are true on (the mutexes and conditions inside of objects
/// have another size elsewhere), and gives the constants of anonymous enums the integer itself for a type, because
/// the numbers in bindgen's names for them change from header to header.
fn tidy(text: &str) -> String {
    let mut aliases = Vec::new();
    for line in text.lines() {
        let alias =
            line.strip_prefix("pub type _bindgen_ty_").and_then(|rest| rest.split_once(" = "));
        if let Some((number, ty)) = alias {
            aliases.push((
                format!(": _bindgen_ty_{number} ="),
                format!(": {} =", ty.trim_end_matches(';')),
            ));
        }
    }
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with("pub type _bindgen_ty_")) {
        if line.starts_with("const _: () = {") {
            out.push_str("#[cfg(all(target_arch = \"x86_64\", target_env = \"gnu\"))]\n");
        }
        match aliases.iter().find(|(from, _)| line.contains(from)) {
            Some((from, to)) => out.push_str(&line.replace(from, to)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}
