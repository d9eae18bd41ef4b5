//! `specs/rules.toml`: each sentence of a standard or manual that the code relies on, with its place in the code and its
//! tests. What is named there must exist, and `specs/RULES.md` must be the same as a table.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{File, places};

pub(super) const BOOK: &str = "specs/rules.toml";
pub(super) const REPORT: &str = "specs/RULES.md";
/// Longer sentences are not kept in mind; and nobody else's text is copied at length.
const WORDS: usize = 25;
/// What a source is called, and whether a section has to follow.
const SOURCES: &[(&str, bool)] = &[
    ("RFC 5040", true),
    ("RFC 5041", true),
    ("RFC 5042", true),
    ("RFC 5044", true),
    ("RFC 6581", true),
    ("man ", false),
    ("btl.h", true),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    rule: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Names it for ever: small letters, digits, hyphens.
    id: String,
    /// `RFC 5044, 7.1.2 (4)`, `man ibv_poll_cq`, `btl.h, put`.
    source: String,
    says: String,
    words: Words,
    /// `file::item`.
    code: Vec<String>,
    /// As [`places::test`] understands them.
    tests: Vec<String>,
}

/// Whose words a sentence is in.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Words {
    /// The source's, without a change.
    Quoted,
    /// Ours.
    Ours,
}

/// Each rule of tidiness with what it found.
pub(super) fn check(files: &[File]) -> Vec<(&'static str, Vec<String>)> {
    let (book, report) = match read(files) {
        Ok(book) => (faults(&book, files), stale(&book, files)),
        Err(why) => (vec![format!("{BOOK}: {why:#}")], Vec::new()),
    };
    vec![
        ("each rule of a standard has its place in the code and its tests", book),
        ("the table of rules is that of specs/rules.toml", report),
    ]
}

/// The table for people.
///
/// # Errors
/// The list is missing or is no list of rules.
pub(super) fn report(files: &[File]) -> Result<String> {
    Ok(table(&read(files)?))
}

fn read(files: &[File]) -> Result<Book> {
    let file = files.iter().find(|file| file.path == BOOK).context("there is no such file")?;
    toml::from_str(&file.text).context("is no list of rules")
}

fn faults(book: &Book, files: &[File]) -> Vec<String> {
    let mut found = Vec::new();
    let mut ids = BTreeSet::new();
    for rule in &book.rule {
        let mut add = |what: String| found.push(format!("{BOOK}: {}: {what}", rule.id));
        if !ids.insert(&rule.id) {
            add("this id is used twice".to_owned());
        }
        let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if rule.id.is_empty() || !rule.id.chars().all(small) {
            add("an id has small letters, digits and hyphens".to_owned());
        }
        if !is_source(&rule.source) {
            add(format!("`{}` is no source with its section", rule.source));
        }
        let words = rule.says.split_whitespace().count();
        if words == 0 || words > WORDS {
            add(format!("the sentence has {words} words, and may have {WORDS}"));
        }
        if rule.code.is_empty() {
            add("it has no place in the code".to_owned());
        }
        if rule.tests.is_empty() {
            add("it has no test".to_owned());
        }
        let code = rule.code.iter().map(|place| places::item(files, place));
        let tests = rule.tests.iter().map(|test| places::test(files, test));
        code.chain(tests).filter_map(Result::err).for_each(add);
    }
    found
}

fn is_source(text: &str) -> bool {
    SOURCES.iter().any(|(name, section)| {
        let rest = text.strip_prefix(name);
        rest.is_some_and(|rest| match section {
            true => rest.strip_prefix(", ").is_some_and(|section| !section.is_empty()),
            false => !rest.is_empty() && !rest.contains(' '),
        })
    })
}

fn stale(book: &Book, files: &[File]) -> Vec<String> {
    let have = files.iter().find(|file| file.path == REPORT).map(|file| file.text.as_str());
    match have == Some(&*table(book)) {
        true => Vec::new(),
        false => vec![format!("{REPORT}: is not up to date: run `cargo xtask tidy --report`")],
    }
}

fn table(book: &Book) -> String {
    let mut text = format!(
        "# What we rely on, where, and what proves it\n\n\
         Written by `cargo xtask tidy --report` from [rules.toml](rules.toml); `cargo xtask tidy` fails where a place or a test\n\
         named here does not exist. Sentences in “quotation marks” are the source's, the others are our wording. A test\n\
         `sim S1` is an invariant that the simulator checks in every run, `mutant …` one of its broken rules that must be\n\
         noticed ([MUTANTS.md](../btl-core/sim/MUTANTS.md)).\n\n\
         {} rules.\n\n| id | source | says | code | tests |\n|---|---|---|---|---|\n",
        book.rule.len()
    );
    for rule in &book.rule {
        let says = match rule.words {
            Words::Quoted => format!("“{}”", rule.says),
            Words::Ours => rule.says.clone(),
        };
        let list = |all: &[String]| {
            all.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join("<br>")
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            rule.id,
            rule.source,
            says.replace('|', "\\|"),
            list(&rule.code),
            list(&rule.tests)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[rule]]
        id = "waits"
        source = "RFC 5044, 7.1.2 (4)"
        says = "The responder waits."
        words = "ours"
        code = ["a/src/a.rs::Gate"]
        tests = ["a/src/a.rs::it_waits"]
    "#;
    const CODE: &str = "pub struct Gate;\n#[test]\nfn it_waits() {}\n";

    fn found(book: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File::new(path.to_owned(), text.to_owned());
        let mut files = vec![file(BOOK, book), file("a/src/a.rs", CODE)];
        if let Ok(report) = report(&files) {
            files.push(file(REPORT, &report));
        }
        check(&files).into_iter().flat_map(|(_, found)| found).collect()
    }

    #[test]
    fn a_good_book_is_good() {
        assert_eq!(found(GOOD), Vec::<String>::new());
    }

    #[test]
    fn each_fault_of_a_book_is_told_with_the_rule() {
        let long = "word ".repeat(26);
        let twice = format!("{GOOD}{GOOD}");
        for (from, to, told) in [
            ("The responder waits.", &*long, "waits: the sentence has 26 words, and may have 25"),
            ("The responder waits.", " ", "waits: the sentence has 0 words, and may have 25"),
            ("id = \"waits\"", "id = \"It Waits\"", "an id has small letters"),
            ("RFC 5044, 7.1.2 (4)", "RFC 5044", "`RFC 5044` is no source with its section"),
            ("RFC 5044, 7.1.2 (4)", "RFC 9999, 1", "`RFC 9999, 1` is no source"),
            ("RFC 5044, 7.1.2 (4)", "man ", "`man ` is no source"),
            ("a/src/a.rs::Gate", "a/src/b.rs::Gate", "a/src/b.rs: there is no such file"),
            ("a/src/a.rs::Gate", "a/src/a.rs::Gat", "a/src/a.rs has no item `Gat`"),
            ("::it_waits", "::it_works", "a/src/a.rs has no test `it_works`"),
            ("[\"a/src/a.rs::Gate\"]", "[]", "waits: it has no place in the code"),
            ("[\"a/src/a.rs::it_waits\"]", "[]", "waits: it has no test"),
            (GOOD, &*twice, "waits: this id is used twice"),
            ("\"ours\"", "\"theirs\"", "is no list of rules"),
            ("words =", "word =", "is no list of rules"),
            ("tests =", "more =", "is no list of rules"),
        ] {
            let bad = GOOD.replacen(from, to, 1);
            assert_ne!(bad, GOOD, "{from}");
            let all = found(&bad).join("; ");
            assert!(all.contains(told), "{to}: {all:?} does not say {told:?}");
        }
    }

    #[test]
    fn an_old_table_is_found_and_a_missing_one() {
        let file = |path: &str, text: &str| File::new(path.to_owned(), text.to_owned());
        let mut files = vec![file(BOOK, GOOD), file("a/src/a.rs", CODE)];
        assert_eq!(stale(&read(&files).expect("a book"), &files).len(), 1, "missing");
        files.push(file(REPORT, "# old\n"));
        assert_eq!(stale(&read(&files).expect("a book"), &files).len(), 1, "old");
        assert!(check(&[]).iter().any(|(_, found)| !found.is_empty()), "there is no book");
    }

    #[test]
    fn the_table_tells_quotations_from_our_words() {
        let quoted = GOOD.replace("ours", "quoted");
        let text = |book: &str| table(&toml::from_str(book).expect("a book"));
        assert!(text(&quoted).contains("| “The responder waits.” |"));
        assert!(text(GOOD).contains(
            "| waits | RFC 5044, 7.1.2 (4) | The responder waits. | `a/src/a.rs::Gate` |"
        ));
    }
}
