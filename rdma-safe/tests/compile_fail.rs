//! What the type system must refuse: each program of `compile_fail/` fails to compile, with exactly the errors that its
//! lines name in comments (`//~ E0382`).
//!
//! trybuild compiles them. Its own comparison, of the compiler's whole text, would break with every compiler and with
//! every method added; so it writes the text it got beside a copy of the program, and what is compared is which error
//! is on which line.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Line and code.
type Errors = BTreeSet<(usize, String)>;

#[test]
fn unsound_programs_do_not_compile() {
    sees_code_and_line();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let copies = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile_fail");
    let _ = fs::remove_dir_all(&copies);
    fs::create_dir_all(&copies).unwrap();
    let programs: Vec<PathBuf> = fs::read_dir(&source)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect();
    assert!(programs.len() >= 14, "{} programs in {}", programs.len(), source.display());
    for program in &programs {
        fs::copy(program, copies.join(program.file_name().unwrap())).unwrap();
    }
    compile(&copies);
    let mut wrong = Vec::new();
    for program in &programs {
        let copy = copies.join(program.file_name().unwrap());
        let wanted = wanted(&fs::read_to_string(program).unwrap());
        assert!(!wanted.is_empty(), "{} names no error", program.display());
        let text = fs::read_to_string(copy.with_extension("stderr")).unwrap_or_default();
        let got = errors_in(&text);
        if wanted != got {
            wrong.push(format!("{}: wanted {wanted:?}, got {got:?}\n{text}", program.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fails when one of the programs compiles.
fn compile(folder: &Path) {
    // SAFETY: the only test of this program, which has started no thread that reads the environment yet.
    unsafe { std::env::set_var("TRYBUILD", "overwrite") };
    // Runs when it is dropped.
    trybuild::TestCases::new().compile_fail(folder.join("*.rs"));
}

/// What the comments of a program promise.
fn wanted(program: &str) -> Errors {
    let lines = program.lines().zip(1..);
    lines
        .filter_map(|(line, at)| Some((at, line.split_once("//~ ")?.1.trim().to_owned())))
        .collect()
}

/// The errors in the compiler's text: their codes, and the line that each first points at.
fn errors_in(text: &str) -> Errors {
    let mut errors = Errors::new();
    let mut code: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("error[") {
            code = rest.split_once(']').map(|(code, _)| code.to_owned());
        } else if line.starts_with("error:") && !line.contains("aborting") {
            errors.insert((0, line.to_owned()));
        } else if let Some(place) = line.trim_start().strip_prefix("--> ")
            && let Some(code) = code.take()
        {
            let at = place.rsplit(':').nth(1).and_then(|n| n.parse().ok());
            errors.insert((at.unwrap_or(0), code));
        }
    }
    errors
}

/// The comparison can fail.
fn sees_code_and_line() {
    let text = "error[E0382]: borrow of moved value: `slot`\n --> tests/x.rs:6:5\n  |\nerror: something else\n";
    let got = errors_in(text);
    assert_eq!(got, [(0, "error: something else".into()), (6, "E0382".into())].into());
    assert_eq!(wanted("fn f() {}\nx //~ E0308\n"), [(2, "E0308".to_owned())].into());
}
