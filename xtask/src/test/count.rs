//! How many tests passed and failed, read from what test programs print.

use std::ops::AddAssign;

/// A sum of results, with a line for each thing worth telling.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// What failed and why, or what to do about it.
    pub(crate) notes: Vec<String>,
}

impl Count {
    /// One case.
    pub(crate) fn case(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(why) => self.fail(format!("{name}: {why}")),
        }
    }

    /// One failed case.
    pub(crate) fn fail(&mut self, note: String) {
        self.failed += 1;
        self.notes.push(note);
    }

    /// The sums of all `test result:` lines that libtest printed. A program that died, or that ran no test at all, is a failure:
    /// it has no line that says so. So is a test that was ignored: what is not run is not known to work.
    pub(crate) fn of_libtest(what: &str, code: i32, output: &str) -> Self {
        let mut count = Self::default();
        let mut results = 0_u32;
        for line in output.lines() {
            if let Some(name) =
                line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
            {
                count.notes.push(format!("{what}: {name}"));
            }
            if line.contains("test result: ") {
                results += 1;
                count.passed += number_before(line, " passed");
                count.failed += number_before(line, " failed");
                let ignored = number_before(line, " ignored");
                if ignored > 0 {
                    count.failed += ignored;
                    count.notes.push(format!("{what}: {ignored} ignored, counted as failed"));
                }
            }
        }
        match code {
            124 => count.fail(format!("{what}: ended after its time limit")),
            0 if results == 0 => count.fail(format!("{what}: no test was run")),
            0 => {}
            _ if count.failed == 0 => count.fail(format!("{what}: ended with status {code}")),
            _ => {}
        }
        count
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.notes.extend(other.notes);
    }
}

/// The number that ends before `word`: 12 in `ok. 12 passed;`.
pub(crate) fn number_before(line: &str, word: &str) -> u64 {
    let before = line.find(word).map_or("", |at| &line[..at]);
    let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    before[before.len() - digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "test a ... ok\ntest result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";

    #[test]
    fn sums_of_several_programs() {
        let bad = "test b::c ... FAILED\ntest result: FAILED. 3 passed; 1 failed; 0 ignored;\n";
        let count = Count::of_libtest("unit", 101, &format!("{GOOD}{bad}"));
        assert_eq!((count.passed, count.failed), (15, 1));
        assert_eq!(count.notes, ["unit: b::c"]);
    }

    #[test]
    fn what_did_not_run_is_a_failure() {
        assert_eq!(Count::of_libtest("x", 0, GOOD).failed, 0);
        assert_eq!(Count::of_libtest("x", 0, "").failed, 1, "no test");
        assert_eq!(Count::of_libtest("x", 139, GOOD).failed, 1, "died after its tests");
        assert_eq!(Count::of_libtest("x", 124, "test a ... ").failed, 1, "too long");
        assert_eq!(
            Count::of_libtest("x", 0, "test result: ok. 1 passed; 0 failed; 2 ignored;").failed,
            2
        );
    }
}
