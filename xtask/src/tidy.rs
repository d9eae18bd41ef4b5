//! `cargo xtask tidy`: the rules of structure and style that are greps. What they are about is in ARCHITECTURE.md.
//!
//! The lists below are meant to be edited, together with the reason for it.

mod commands;
mod places;
mod rules;
mod soundness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{paths, ui};

/// Written by a program, or fixed by somebody else's layout.
const GENERATED: &[&str] = &["rdma-sys/src/bindings.rs", "btl-ompi/src/abi/", "Cargo.lock"];
/// Where `unsafe` may be: the crates at the edge to C, benchmarks on raw requests, and a counting allocator. (In xtask and
/// btl-core the compiler forbids it; in which modules of the lower crates it may be, `soundness` checks.)
const UNSAFE: &[&str] = &[
    "rdma-sys/",
    "rdma-safe/",
    "rdma-cm/",
    "btl-ompi/",
    "bench/",
    "xtask/",
    "btl-core/tests/alloc.rs",
    "btl-core/tests/device_own.rs",
    "btl-core/tests/device_own.rs",
    "btl-core/tests/device_tests/foreign.rs",
    "btl-core/tests/memory.rs",
];
/// Where code may ask whether it is on iWARP.
const IWARP: &[&str] = &[
    "rdma-safe/src/caps.rs",
    "rdma-safe/src/context.rs",
    "rdma-safe/src/quirks.rs",
    "rdma-safe/src/quirks/table.rs",
    "rdma-safe/src/mr.rs",
    "rdma-cm/src/loopback.rs",
    "btl-core/src/first_send.rs",
];
/// Of the engine and the simulator: what makes a run unrepeatable, or calls the system. The driver `verbs` may.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "std::thread",
    "println!",
    "TcpStream",
    "UdpSocket",
];
/// Of these, what is meant for people to read may print.
const MAY_PRINT: &[&str] = &[
    "btl-core/src/verbs/",
    "btl-core/sim/src/main.rs",
    "btl-core/sim/src/rails_cli.rs",
    "btl-core/sim/src/trace.rs",
    // A test in a file of its own.
    "btl-core/src/lane/model.rs",
];
/// Left over from work in progress.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "dbg!("];
const NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
/// Of somebody's machine.
const LOCAL: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/tmp/", "target"),
];

/// What prints or logs, and names of what must not be.
const PRINTING: &[&str] = &["println!(", "eprintln!(", "say(", "verbose!(", "log("];
const SECRETS: &[&str] = &["rkey", "lkey", "{key", "job_key", "payload:?", "bytes:?"];

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;
const LINE_COLUMNS: usize = 140;

/// One file, as text, with what the rules want to know of it.
struct File {
    /// From the workspace's root, with `/`.
    path: String,
    text: String,
    /// Of line numbers: from here on the file is tests.
    tests_from: usize,
}

/// A rule's name and what it finds wrong in a file: line (0: the file as a whole) and words.
type Rule = (&'static str, fn(&File) -> Vec<(usize, String)>);

const RULES: &[Rule] = &[
    ("no file has more than 800 lines", long_file),
    ("no function has more than 70 lines", long_functions),
    ("no line has more than 140 columns", long_lines),
    ("unsafe only at the edge to C", stray_unsafe),
    ("every unsafe block and impl says why it is sound", unexplained_unsafe),
    ("only the rule files and the tables know iWARP", stray_iwarp),
    ("rule 1's right is made in first_send.rs only", forged_right),
    ("rule 2's witnesses are made in credit.rs only", forged_credit),
    ("the engine posts through lane.rs only", stray_post),
    ("the engine and the simulator are pure", impure),
    ("nothing is unfinished", unfinished),
    ("no path of somebody's machine", local_path),
    ("no key and no payload is printed", printed_secret),
];

/// `cargo xtask tidy …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the rules of standards with their places and tests, and write them to specs/RULES.md
    #[arg(long)]
    report: bool,
}

/// All rules on all files: each rule with what it found.
///
/// # Errors
/// The source cannot be read.
pub(crate) fn check() -> Result<Vec<(&'static str, Vec<String>)>> {
    let files = all_files()?;
    let found = |rule: fn(&File) -> Vec<(usize, String)>| {
        let of_file = |file: &File| {
            rule(file)
                .into_iter()
                .map(|(line, what)| format!("{}:{line}: {what}", file.path))
                .collect::<Vec<_>>()
        };
        files.iter().flat_map(of_file).collect()
    };
    let mut all: Vec<_> = RULES.iter().map(|(name, rule)| (*name, found(*rule))).collect();
    all.extend(soundness::check(&files));
    all.extend(rules::check(&files));
    all.push(("every command of xtask in a document exists", commands::check(&files)));
    Ok(all)
}

fn all_files() -> Result<Vec<File>> {
    let mut files = Vec::new();
    collect(&paths::root(), &paths::root(), &mut files)?;
    Ok(files)
}

/// Prints what is wrong.
///
/// # Errors
/// The source cannot be read, or the table cannot be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.report {
        let text = rules::report(&all_files()?)?;
        print!("{text}");
        let file = paths::root().join(rules::REPORT);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut wrong = 0;
    for (rule, found) in check()? {
        for place in &found {
            println!("{place}   [{rule}]");
        }
        wrong += found.len();
    }
    if wrong > 0 {
        ui::say(&format!("{wrong} places to tidy"));
        return Ok(ExitCode::FAILURE);
    }
    ui::say("tidy");
    Ok(ExitCode::SUCCESS)
}

fn collect(dir: &Path, root: &Path, files: &mut Vec<File>) -> Result<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == ".git" {
            // A folder, or in a linked working copy a file that names one.
            continue;
        }
        if path.is_dir() {
            let skip = name == "target"
                || name.starts_with('.') && !matches!(name.as_str(), ".ci" | ".cargo");
            if !skip {
                collect(&path, root, files)?;
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            let path =
                path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            if !GENERATED.iter().any(|generated| path.starts_with(generated)) {
                files.push(File::new(path, text));
            }
        }
    }
    Ok(())
}

impl File {
    fn new(path: String, text: String) -> Self {
        let whole = ["/tests/", "/examples/", "/benches/"].iter().any(|dir| path.contains(dir))
            || path.ends_with("_test.rs")
            || path.ends_with("_tests.rs")
            || path.ends_with("/tests.rs");
        let first = text
            .lines()
            .position(|line| line.trim_start().starts_with("#[cfg(test)]"))
            .map_or(usize::MAX, |line| line + 1);
        Self { path, text, tests_from: if whole { 0 } else { first } }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn within(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    /// Its lines with their numbers, from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// The code of its lines: without comments, and without what strings say.
    fn code(&self) -> impl Iterator<Item = (usize, String)> {
        self.lines().map(|(number, line)| (number, code_of(line)))
    }

    /// Like [`File::code`], without the tests.
    fn shipped(&self) -> impl Iterator<Item = (usize, String)> {
        self.code().filter(|(number, _)| *number < self.tests_from)
    }
}

/// A line without a comment at its end and with empty strings.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let (mut in_string, mut escaped) = (false, false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => {
                in_string = !in_string;
                code.push('"');
            }
            _ if in_string => {}
            // A character literal that would look like the beginning of a string.
            '\'' if chars.peek() == Some(&'"') => drop(chars.next()),
            '/' if chars.peek() == Some(&'/') => break,
            _ => code.push(c),
        }
    }
    code
}

/// Whether `word` stands alone in `code`.
fn has_word(code: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word).any(|(at, _)| {
        !part(code[..at].chars().next_back()) && !part(code[at + word.len()..].chars().next())
    })
}

fn long_file(file: &File) -> Vec<(usize, String)> {
    let lines = file.text.lines().count();
    let checked = [".rs", ".sh", ".c", ".h"].iter().any(|ending| file.path.ends_with(ending));
    if checked && lines > FILE_LINES { vec![(0, format!("{lines} lines"))] } else { Vec::new() }
}

/// rustfmt puts a function's closing brace below the first letter of its first line.
fn long_functions(file: &File) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    if !file.is_rust() {
        return found;
    }
    let mut open: Option<(usize, String)> = None;
    let mut body = false;
    for (number, line) in file.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        match &open {
            Some((start, end)) if line == end => {
                let lines = number - start + 1;
                if lines > FUNCTION_LINES {
                    found.push((*start, format!("a function of {lines} lines")));
                }
                open = None;
            }
            // A row of a macro's table: no body.
            Some(_) if !body && line.trim_end().ends_with(';') => open = None,
            Some(_) => body |= line.contains('{'),
            // `:ident` is a macro's pattern.
            None if has_word(&code_of(line), "fn")
                && !line.contains(":ident")
                && !line.trim_end().ends_with([';', '}', ',']) =>
            {
                open = Some((number, format!("{indent}}}")));
                body = line.contains('{');
            }
            _ => {}
        }
    }
    found
}

fn long_lines(file: &File) -> Vec<(usize, String)> {
    let checked = [".rs", ".sh", ".c", ".h"].iter().any(|ending| file.path.ends_with(ending));
    let columns = file.lines().map(|(number, line)| (number, line.chars().count()));
    columns
        .filter(|(_, n)| checked && *n > LINE_COLUMNS)
        .map(|(number, n)| (number, format!("{n} columns")))
        .collect()
}

fn stray_unsafe(file: &File) -> Vec<(usize, String)> {
    if !file.is_rust() || file.within(UNSAFE) {
        return Vec::new();
    }
    file.code()
        .filter(|(_, code)| has_word(code, "unsafe"))
        .map(|(number, _)| (number, "unsafe here".to_owned()))
        .collect()
}

fn unexplained_unsafe(file: &File) -> Vec<(usize, String)> {
    /// A comment may stand above the statement that the block is part of.
    const ABOVE: usize = 12;
    if !file.is_rust() {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let needs = |code: &str| code.contains("unsafe {") || code.contains("unsafe impl");
    let explained = |number: usize| {
        lines[number.saturating_sub(ABOVE + 1)..number].iter().any(|line| line.contains("SAFETY:"))
    };
    let unexplained = file.code().filter(|(number, code)| needs(code) && !explained(*number));
    unexplained
        .map(|(number, _)| (number, "unsafe without a comment `SAFETY:`".to_owned()))
        .collect()
}

/// The lines of shipped Rust code below `scope` and not in `allowed` that have one of `words` in them.
fn words_outside(
    file: &File,
    scope: &[&str],
    allowed: &[&str],
    words: &[&str],
) -> Vec<(usize, String)> {
    if !file.is_rust() || !file.within(scope) || file.within(allowed) {
        return Vec::new();
    }
    let hit = |code: &str| {
        words.iter().find(|word| code.contains(**word)).map(|word| format!("`{word}` here"))
    };
    file.shipped().filter_map(|(number, code)| hit(&code).map(|what| (number, what))).collect()
}

fn stray_iwarp(file: &File) -> Vec<(usize, String)> {
    words_outside(
        file,
        &["rdma-safe/", "rdma-cm/", "btl-core/", "btl-ompi/"],
        IWARP,
        &["Transport::Iwarp"],
    )
}

fn forged_right(file: &File) -> Vec<(usize, String)> {
    words_outside(
        file,
        &["btl-core/", "btl-ompi/"],
        &["btl-core/src/first_send.rs"],
        &["SendRight(", "SendRight {", "Heard("],
    )
}

fn forged_credit(file: &File) -> Vec<(usize, String)> {
    let makers = ["btl-core/src/credit.rs"];
    words_outside(
        file,
        &["btl-core/", "btl-ompi/"],
        &makers,
        &[" Credit {", " Advert {", " PostedRecv {", " Credit(", " PostedRecv("],
    )
}

fn stray_post(file: &File) -> Vec<(usize, String)> {
    words_outside(
        file,
        &["btl-core/src/"],
        &["btl-core/src/lane.rs", "btl-core/src/verbs/"],
        &[".post_send(", ".post_send_later("],
    )
}

fn impure(file: &File) -> Vec<(usize, String)> {
    words_outside(file, &["btl-core/src/", "btl-core/sim/src/"], MAY_PRINT, IMPURE)
}

fn unfinished(file: &File) -> Vec<(usize, String)> {
    if !file.is_rust() {
        return Vec::new();
    }
    let hit = |text: &str, words: &[&str]| {
        words.iter().find(|word| text.contains(**word)).map(|word| format!("`{word}`"))
    };
    let both = file.lines().zip(file.code()).map(|((number, line), (_, code))| {
        (number, hit(line, NOTES).or_else(|| hit(&code, UNFINISHED)))
    });
    both.filter_map(|(number, what)| what.map(|what| (number, what))).collect()
}

fn local_path(file: &File) -> Vec<(usize, String)> {
    let hit = |line: &str| {
        LOCAL.iter().find(|path| line.contains(**path)).map(|path| format!("`{path}`"))
    };
    file.lines().filter_map(|(number, line)| hit(line).map(|what| (number, what))).collect()
}

/// By name: what a key or a message is called stands in the line that prints it, or in one of the next two.
fn printed_secret(file: &File) -> Vec<(usize, String)> {
    let shipped = ["rdma-safe/src/", "rdma-cm/src/", "btl-core/src/", "btl-ompi/src/"];
    if !file.is_rust() || !file.within(&shipped) {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let prints = |code: &str| PRINTING.iter().any(|word| code.contains(word));
    let secret = |number: usize| {
        let text = lines[number - 1..(number + 2).min(lines.len())].concat();
        SECRETS.iter().find(|name| text.contains(**name)).map(|name| format!("`{name}` is printed"))
    };
    let printing = file.shipped().filter(|(_, code)| prints(code));
    printing.filter_map(|(number, _)| secret(number).map(|what| (number, what))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path.to_owned(), text.to_owned())
    }

    #[test]
    fn code_is_what_is_neither_comment_nor_string() {
        assert_eq!(code_of(r#"let a = "unsafe \" // no"; // unsafe"#), r#"let a = ""; "#);
        assert_eq!(code_of("x('\"', 1) // y"), "x(', 1) ");
        assert!(
            has_word("pub unsafe fn", "unsafe") && !has_word("#![forbid(unsafe_code)]", "unsafe")
        );
    }

    #[test]
    fn each_rule_catches_its_case() {
        let long = format!("fn f() {{\n{}}}\n", "    x();\n".repeat(69));
        assert_eq!(
            long_functions(&file("a/src/a.rs", &long)),
            [(1, "a function of 71 lines".to_owned())]
        );
        assert!(
            long_functions(&file("a/src/a.rs", &long.replacen("    x();\n", "", 1))).is_empty()
        );
        assert_eq!(long_file(&file("a/src/a.rs", &"x\n".repeat(801))).len(), 1);
        assert_eq!(stray_unsafe(&file("btl-core/src/lane.rs", "unsafe { x() }\n")).len(), 1);
        assert!(stray_unsafe(&file("rdma-cm/src/id.rs", "unsafe { x() }\n")).is_empty());
        assert_eq!(unexplained_unsafe(&file("rdma-cm/src/id.rs", "unsafe { x() }\n")).len(), 1);
        assert!(
            unexplained_unsafe(&file("rdma-cm/src/id.rs", "// SAFETY: y\nunsafe { x() }\n"))
                .is_empty()
        );
        assert_eq!(
            stray_iwarp(&file("btl-core/src/lane.rs", "if t == Transport::Iwarp {}\n")).len(),
            1
        );
        assert!(
            stray_iwarp(&file("btl-core/src/lane.rs", "#[cfg(test)]\nTransport::Iwarp\n"))
                .is_empty()
        );
        assert_eq!(stray_post(&file("btl-core/src/engine.rs", "port.post_send(x)\n")).len(), 1);
        assert_eq!(impure(&file("btl-core/src/engine.rs", "let t = Instant::now();\n")).len(), 1);
        assert_eq!(local_path(&file("README.md", concat!("see /wo", "rk/x\n"))).len(), 1);
    }

    #[test]
    fn keys_are_not_printed() {
        let found = |text: &str| printed_secret(&file("btl-core/src/rma.rs", text)).len();
        assert_eq!(found("println!(\"{rkey}\");\n"), 1);
        assert_eq!(found("say(format_args!(\n    \"{}\",\n    range.rkey\n));\n"), 1);
        assert_eq!(found("let rkey = 3;\nprintln!(\"done\");\n"), 0, "before it");
        assert_eq!(found("#[cfg(test)]\nprintln!(\"{rkey}\");\n"), 0, "in a test");
        assert!(printed_secret(&file("xtask/src/a.rs", "println!(\"{rkey}\");\n")).is_empty());
    }
}
