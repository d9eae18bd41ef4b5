//! `cargo xtask bench instructions`, second half: the transport of `btl-core` as it ships, both ends in one process over the fake
//! libibverbs and librdmacm. Instructions above the verbs calls it makes: what the fake device executes is left out, and what plain C
//! executes around the same calls is taken off.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};

use super::callgrind::{Counter, Counts};
use super::programs::{Programs, Variant};
use crate::ui;

/// The library whose instructions are not ours.
const DEVICE: &str = "libibverbs.so.1";
/// Operations of the short run.
const COUNT: u64 = 4000;
/// Most instructions of a message on one side.
const MESSAGE: f64 = 300.0;
/// Most instructions of an empty poll above a bare one.
const EMPTY: f64 = 30.0;

/// One number: functions of `bench-core` in a scenario, and the verbs calls they make.
struct Part {
    name: &'static str,
    scenario: &'static str,
    functions: &'static [&'static str],
    /// Scenarios of the loops in C with the same calls.
    calls: &'static [&'static str],
    most: Option<f64>,
}

const fn part(
    name: &'static str,
    scenario: &'static str,
    functions: &'static [&'static str],
    calls: &'static [&'static str],
    most: Option<f64>,
) -> Part {
    Part { name, scenario, functions, calls, most }
}

/// `say` fills a buffer and sends it; `reap` polls it back; `hear` polls a message and releases it.
const PARTS: [Part; 7] = [
    part("flood: send", "flood", &["core_say"], &[], None),
    part("flood: poll what was sent", "flood", &["core_reap"], &[], None),
    part("flood: sender's side", "flood", &["core_say", "core_reap"], &["send"], Some(MESSAGE)),
    part("flood: receiver's side", "flood", &["core_hear"], &["recv"], Some(MESSAGE)),
    part("ping-pong: send", "pingpong", &["core_say", "core_reap"], &["send"], Some(MESSAGE)),
    part("ping-pong: receive", "pingpong", &["core_hear"], &["recv"], Some(MESSAGE)),
    part("empty poll", "empty", &["core_empty"], &["empty"], Some(EMPTY)),
];
/// In a ping-pong both ends do what is counted.
const ENDS: [(&str, f64); 2] = [("pingpong", 2.0), ("flood", 1.0)];

/// What is counted for one part.
pub(super) struct Row {
    name: &'static str,
    counts: Counts,
    /// Above plain C with the same calls.
    above: f64,
    most: Option<f64>,
}

/// Counts all parts.
///
/// # Errors
/// A program fails, or valgrind does.
pub(super) fn count(programs: &Programs) -> Result<Vec<Row>> {
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut progress = ui::Progress::new("counting the transport", PARTS.len() as u64);
    let mut rows = Vec::new();
    for part in &PARTS {
        let counts = of_core(programs, scratch.path(), part);
        let counts = counts.with_context(|| part.name.to_owned())?;
        let mut bare = 0.0;
        for scenario in part.calls {
            bare += plain(programs, scratch.path(), scenario)?;
        }
        let above = counts.instructions - bare;
        rows.push(Row { name: part.name, counts, above, most: part.most });
        progress.step();
    }
    progress.finish();
    Ok(rows)
}

fn of_core(programs: &Programs, scratch: &Path, part: &Part) -> Result<Counts> {
    let fabric = [("FAKE_FABRIC", "1")];
    let mut counter = Counter::new(&programs.fake, scratch).only(&fabric, part.functions, DEVICE);
    let program = programs.core.display().to_string();
    let line = |count: u64| vec![program.clone(), part.scenario.to_owned(), count.to_string()];
    let all = counter.per_operation(COUNT, line)?;
    let ends = ENDS.iter().find(|(scenario, _)| *scenario == part.scenario).map_or(1.0, |e| e.1);
    Ok(Counts {
        instructions: all.instructions / ends,
        allocations: all.allocations / ends,
        locks: all.locks / ends,
        atomics: all.atomics / ends,
    })
}

/// What plain C executes outside the device for one operation.
fn plain(programs: &Programs, scratch: &Path, scenario: &str) -> Result<f64> {
    let c: &Variant = programs.variants.first().context("there is no loop in C")?;
    let mut counter = Counter::new(&programs.fake, scratch).only(&[], &[], DEVICE);
    Ok(counter.per_operation(COUNT, |count| c.command_line(scenario, count))?.instructions)
}

/// For people.
pub(super) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    let header = ["", "in all", "above plain C", "at most", "allocations", "locks", "atomics"];
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        let whole = |value: f64| format!("{value:.0}");
        table.add_row([
            row.name.to_owned(),
            whole(row.counts.instructions),
            whole(row.above),
            row.most.map_or_else(String::new, whole),
            whole(row.counts.allocations),
            whole(row.counts.locks),
            whole(row.counts.atomics),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// For programs.
pub(super) fn csv(rows: &[Row]) -> String {
    let mut text = String::from("part,instructions,above_plain_c,allocations,locks,atomics\n");
    for row in rows {
        let Counts { instructions, allocations, locks, atomics } = row.counts;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\"{}\",{instructions:.2},{:.2},{allocations:.2},{locks:.2},{atomics:.2}",
            row.name, row.above
        );
    }
    text
}

/// Each promise, and whether it is kept.
pub(super) fn judge(rows: &[Row]) -> Vec<(String, bool)> {
    let mut judged = Vec::new();
    for row in rows {
        if let Some(most) = row.most {
            let what = format!("{}: {:.1} above plain C, at most {most:.0}", row.name, row.above);
            judged.push((what, row.above < most + 0.5));
        }
        let Counts { allocations, locks, atomics, .. } = row.counts;
        for (what, number) in [("allocations", allocations), ("locks", locks), ("atomics", atomics)]
        {
            let what = format!("{}: {number:.2} {what}, none allowed", row.name);
            judged.push((what, number < 0.005));
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_judged_one_by_one() {
        let row = |above, atomics, most| Row {
            name: "x",
            counts: Counts { instructions: 350.0, atomics, ..Counts::default() },
            above,
            most,
        };
        let rows = [row(310.0, 0.0, Some(300.0)), row(20.0, 1.0, None)];
        let missed: Vec<String> =
            judge(&rows).into_iter().filter(|(_, met)| !met).map(|(what, _)| what).collect();
        assert_eq!(
            missed,
            ["x: 310.0 above plain C, at most 300", "x: 1.00 atomics, none allowed"]
        );
        assert!(csv(&rows).contains("\"x\",350.00,310.00,0.00,0.00,0.00\n"));
        assert!(table(&rows).to_string().contains("310"));
    }
}
