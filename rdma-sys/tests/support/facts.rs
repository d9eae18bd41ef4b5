//! Two programs, one in C and one in Rust, that print the same facts about the same names.
//!
//! A line is `KEY VALUE`. The C side stands for the installed headers, the Rust side for this crate.

use std::fmt::Write;

use crate::parse::{Bindings, Record};

/// The two programs' sources.
#[derive(Default)]
pub(crate) struct Programs {
    pub(crate) c: String,
    pub(crate) rust: String,
}

/// Types that Rust calls by one word and C by a tag.
const TAGGED: [&str; 8] =
    ["iovec", "msghdr", "pollfd", "sockaddr", "sockaddr_in", "sockaddr_in6", "timespec", "timeval"];

/// The names of C that are keywords of Rust.
fn c_name(name: &str) -> &str {
    match name {
        "type_" => "type",
        "priv_" => "priv",
        _ => name,
    }
}

impl Programs {
    /// Programs that tell all that `bindings` has.
    pub(crate) fn new(bindings: &Bindings) -> Self {
        let mut all = Self::default();
        all.c.push_str(C_HEAD);
        all.rust.push_str(RUST_HEAD);
        for (name, record) in &bindings.records {
            if !record.opaque() && !name.contains("__bindgen_ty_") {
                all.record(bindings, name, record);
            }
        }
        for name in bindings.enums.keys() {
            all.fact(
                &format!("size {name}"),
                &format!("sizeof(enum {name})"),
                &format!("size_of::<{name}>()"),
            );
        }
        for (name, values) in &bindings.enums {
            for value in values {
                all.fact(&format!("value {value}"), value, &format!("{name}::{value}.0"));
            }
        }
        for name in &bindings.constants {
            all.fact(&format!("value {name}"), name, name);
        }
        for (name, function) in &bindings.functions {
            let c_type = |ty: &str| c_type(bindings, ty);
            let args: Vec<_> = function.args.iter().map(|ty| c_type(ty)).collect();
            let args = if args.is_empty() { "void".to_owned() } else { args.join(", ") };
            // The macros of the same name take arguments, so a bare name is the function.
            let c = format!(
                "SAME({name}, {}, {args})",
                if function.ret == "()" { "void".to_owned() } else { c_type(&function.ret) }
            );
            // The address in Rust makes the linker find the function in the library.
            all.fact(
                &format!("function {name}"),
                &c,
                &format!("usize::from({name} as *const () as usize != 0)"),
            );
        }
        all.c.push_str("    return 0;\n}\n");
        all.rust.push_str("}\n");
        all
    }

    fn fact(&mut self, key: &str, c: &str, rust: &str) {
        writeln!(self.c, "    FACT(\"{key}\", {c});").expect("write to a string");
        writeln!(self.rust, "    println!(\"{key} {{}}\", ({rust}) as i128);")
            .expect("write to a string");
    }

    fn record(&mut self, bindings: &Bindings, name: &str, record: &Record) {
        let c = format!("{} {name}", if record.union { "union" } else { "struct" });
        self.fact(
            &format!("size {name}"),
            &format!("sizeof({c})"),
            &format!("size_of::<{name}>()"),
        );
        self.fact(
            &format!("align {name}"),
            &format!("_Alignof({c})"),
            &format!("align_of::<{name}>()"),
        );
        self.fields(bindings, (name, &c), record, ("", ""));
    }

    /// The fields of a record at a path inside of a root type: `path.0` in C, `path.1` in Rust.
    fn fields(
        &mut self,
        bindings: &Bindings,
        root: (&str, &str),
        record: &Record,
        path: (&str, &str),
    ) {
        for (field, ty) in &record.fields {
            let rust = format!("{}{field}", path.1);
            let inner = bindings.records.get(ty).filter(|_| ty.contains("__bindgen_ty_"));
            if field.starts_with("__bindgen_anon_") {
                // C reaches the members of an anonymous member directly.
                let inner = inner.expect("an anonymous member has a type of its own");
                self.fields(bindings, root, inner, (path.0, &format!("{rust}.")));
                continue;
            }
            let c = format!("{}{}", path.0, c_name(field));
            let (name, c_root) = root;
            // What counts in a struct that grows at its front is the distance from its last field.
            let (c_from, rust_from) = if name == "verbs_context" {
                (
                    "offsetof(struct verbs_context, context) - ",
                    "offset_of!(verbs_context, context) - ",
                )
            } else {
                ("", "")
            };
            self.fact(
                &format!("offset {name}.{c}"),
                &format!("{c_from}offsetof({c_root}, {c})"),
                &format!("{rust_from}offset_of!({name}, {rust})"),
            );
            self.fact(
                &format!("width {name}.{c}"),
                &format!("sizeof((({c_root} *)0)->{c})"),
                &format!("width(|it: *const {name}| unsafe {{ &raw const (*it).{rust} }})"),
            );
            if let Some(inner) = inner {
                self.fields(bindings, root, inner, (&format!("{c}."), &format!("{rust}.")));
            }
        }
    }
}

/// A Rust type of a signature as C writes it.
fn c_type(bindings: &Bindings, ty: &str) -> String {
    if let Some(inner) = ty.strip_prefix("*mut ") {
        return format!("{} *", c_type(bindings, inner));
    }
    if let Some(inner) = ty.strip_prefix("*const ") {
        return format!("{} const *", c_type(bindings, inner));
    }
    let name = ty.rsplit("::").next().unwrap_or(ty);
    let plain = match name {
        "c_void" => "void",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_char" => "char",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "isize" => "ssize_t",
        _ => "",
    };
    if !plain.is_empty() {
        return plain.to_owned();
    }
    if bindings.enums.contains_key(name) {
        return format!("enum {name}");
    }
    match bindings.records.get(name) {
        Some(record) if record.union => format!("union {name}"),
        Some(_) => format!("struct {name}"),
        None if TAGGED.contains(&name) => format!("struct {name}"),
        None => name.to_owned(),
    }
}

const C_HEAD: &str = r#"#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <infiniband/verbs.h>
#include <infiniband/ib.h>
#include <infiniband/opcode.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#define FACT(key, value) printf((value) < 0 ? "%s %lld\n" : "%s %llu\n", key, (unsigned long long)(value))
/* Or declared with __attribute__((const)), which is a qualifier of the function's type. */
#define SAME(name, ret, ...) \
    (__builtin_types_compatible_p(__typeof__(&name), ret (*)(__VA_ARGS__)) || \
     __builtin_types_compatible_p(__typeof__(&name), const __typeof__(ret(__VA_ARGS__)) *))

int main(void)
{
"#;

const RUST_HEAD: &str = r#"#![allow(unused_unsafe, warnings)]
use std::mem::offset_of;

use rdma_sys::*;

fn width<T, F>(_: impl Fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

fn main() {
"#;
