//! Reads `bindings.rs`, whose form bindgen and prettyplease fix, into lists of what must equal the C headers.

use std::collections::BTreeMap;

/// A struct or union and its fields with the start of their types.
pub(crate) struct Record {
    pub(crate) union: bool,
    pub(crate) fields: Vec<(String, String)>,
}

impl Record {
    /// Declared but not defined in C.
    pub(crate) fn opaque(&self) -> bool {
        self.fields.iter().all(|(name, _)| name == "_unused" || name == "_address")
    }
}

/// An extern function: its C signature's parts as Rust types.
pub(crate) struct Function {
    pub(crate) args: Vec<String>,
    pub(crate) ret: String,
}

#[derive(Default)]
pub(crate) struct Bindings {
    pub(crate) records: BTreeMap<String, Record>,
    pub(crate) enums: BTreeMap<String, Vec<String>>,
    pub(crate) constants: Vec<String>,
    pub(crate) functions: BTreeMap<String, Function>,
}

pub(crate) fn parse(text: &str) -> Bindings {
    let mut found = Bindings::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("pub const ") {
            found.constants.push(word(rest));
        } else if let Some(rest) =
            line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub union "))
        {
            let name = word(rest);
            if rest[name.len()..].starts_with('(') {
                found.enums.entry(name).or_default();
            } else if rest.ends_with(" {") {
                let union = line.starts_with("pub union ");
                found.records.insert(name, Record { union, fields: fields(&mut lines) });
            } else {
                panic!("unknown form of a type: {line}");
            }
        } else if let Some(rest) = line.strip_prefix("impl ") {
            let name = word(rest);
            if rest == format!("{name} {{") {
                let values = found.enums.entry(name).or_default();
                let body = lines.by_ref().take_while(|line| *line != "}");
                values
                    .extend(body.filter_map(|line| line.strip_prefix("    pub const ").map(word)));
            }
        } else if line == "unsafe extern \"C\" {" {
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "}").collect();
            let (name, function) = function(&body.join(" "));
            found.functions.insert(name, function);
        }
    }
    found
}

/// The identifier at the start of the text.
fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The fields up to the closing brace. Of a type that goes over several lines the first is enough.
fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let body = lines.take_while(|line| *line != "}");
    body.filter_map(|line| {
        let field = line.strip_prefix("    ").filter(|rest| !rest.starts_with([' ', '>', ')']))?;
        let (name, ty) = field.strip_prefix("pub ").unwrap_or(field).split_once(": ")?;
        Some((name.to_owned(), ty.trim_end_matches(',').to_owned()))
    })
    .collect()
}

/// One declaration, joined to a line.
fn function(text: &str) -> (String, Function) {
    let text = text.trim().strip_prefix("pub fn ").expect("a function").trim_end_matches(';');
    let (head, ret) = text.split_once(") -> ").unwrap_or((text.trim_end_matches(')'), "()"));
    let (name, args) = head.split_once('(').expect("arguments");
    let args = args.split(',').filter_map(|arg| {
        let arg = arg.trim();
        match arg.split_once(": ") {
            Some((_, ty)) => Some(ty.to_owned()),
            None => (!arg.is_empty()).then(|| arg.to_owned()),
        }
    });
    (name.to_owned(), Function { args: args.collect(), ret: ret.to_owned() })
}
