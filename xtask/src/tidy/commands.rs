//! Commands of xtask that documents tell people to type: each verb, flag and part of the tests must exist.

use clap::{Command, CommandFactory};

use super::File;

const CALL: &str = "cargo xtask ";

/// What is told and does not exist.
pub(super) fn check(files: &[File]) -> Vec<String> {
    let root = crate::Cli::command();
    let parts: Vec<&str> = crate::test::part_names().collect();
    let documents = files.iter().filter(|file| file.path.ends_with(".md"));
    let mut found = Vec::new();
    for file in documents {
        for (number, line) in file.lines() {
            for call in line.split(CALL).skip(1) {
                if let Err(what) = exists(&root, &parts, call) {
                    found.push(format!("{}:{number}: {what}", file.path));
                }
            }
        }
    }
    found
}

/// Whether there is what stands behind `cargo xtask`; the call ends with the code that it is in.
fn exists(root: &Command, parts: &[&str], call: &str) -> Result<(), String> {
    let call = call.split(['`', '#', '|', '(', '\n']).next().unwrap_or_default();
    let trim = |word: &str| word.trim_end_matches([',', '.', ';', ':', ')']).to_owned();
    let mut words = call.split_whitespace().map(trim).peekable();
    let mut command = root;
    let mut path = "cargo xtask".to_owned();
    while command.has_subcommands() {
        let Some(word) = words.next() else { break };
        if word == "--help" || word == "…" || word.chars().all(|c| c.is_ascii_uppercase()) {
            return Ok(());
        }
        path = format!("{path} {word}");
        command = command.find_subcommand(&word).ok_or(format!("there is no `{path}`"))?;
    }
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        if flag.is_empty() {
            // What is behind goes to another program.
            break;
        }
        let name = flag.split('=').next().unwrap_or_default();
        let known = |arg: &clap::Arg| arg.get_long() == Some(name);
        let passes_on = |arg: &clap::Arg| arg.is_allow_hyphen_values_set();
        if name != "help" && !command.get_arguments().any(known) {
            if command.get_arguments().any(passes_on) {
                break;
            }
            return Err(format!("`{path}` has no --{name}"));
        }
        if name == "only"
            && let Some(part) = words.peek().filter(|part| !part.starts_with("PART"))
            && !parts.contains(&part.as_str())
        {
            return Err(format!("there is no part `{part}` of the tests"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        check(&[File::new("README.md".to_owned(), text.to_owned())])
    }

    #[test]
    fn commands_that_exist_are_fine() {
        let text = "Run `cargo xtask test --only tidy`, then\n    cargo xtask guest run --device siw -- prog --odd\n\
            see `cargo xtask --help`. (`cargo xtask doctor`) cargo xtask sim --seeds 3 # cargo xtask\n\
            `cargo xtask test --only PART`\n";
        assert_eq!(said(text), Vec::<String>::new());
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        assert_eq!(said("cargo xtask fly\n"), ["README.md:1: there is no `cargo xtask fly`"]);
        assert_eq!(
            said("`cargo xtask guest fly`"),
            ["README.md:1: there is no `cargo xtask guest fly`"]
        );
        assert_eq!(
            said("`cargo xtask test --fly`"),
            ["README.md:1: `cargo xtask test` has no --fly"]
        );
        assert_eq!(
            said("`cargo xtask test --only fly`."),
            ["README.md:1: there is no part `fly` of the tests"]
        );
        let code = File::new("a.rs".to_owned(), "cargo xtask fly".to_owned());
        assert!(check(&[code]).is_empty(), "only documents are read");
    }
}
