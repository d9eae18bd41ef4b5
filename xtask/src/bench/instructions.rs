//! `cargo xtask bench instructions`: the same loops in C, on our crates and on others, over one fake libibverbs.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};

use super::callgrind::{Counter, Counts};
use super::engine;
use super::programs::{Programs, Variant};
use crate::deps::{self, Group};
use crate::{paths, plot, ui};

/// `cargo xtask bench instructions …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave the other crates out
    #[arg(long)]
    ours: bool,
    /// Where table and plot go [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What the programs call it, and what it is.
const SCENARIOS: [(&str, &str); 5] = [
    ("send", "send + poll"),
    ("recv", "receive + poll"),
    ("window16", "16 in flight"),
    ("qps1000", "1,000 QPs"),
    ("empty", "empty poll"),
];
const EMPTY: usize = 4;
/// Operations of the short run: many times the queue pairs, and whole windows.
const COUNT: u64 = 8000;
/// Most that polling an empty queue may cost, in times of C.
const EMPTY_TARGET: f64 = 1.05;
/// Of the plot, in pixels.
const SIZE: (u32, u32) = (1100, 520);

/// Everything from missing packages to the plot.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let groups = [Group::Build, Group::Headers, Group::Count, Group::Rivals];
    deps::ensure(if args.ours { &groups[..3] } else { &groups })?;
    ui::say("building the fake device and the loops");
    let programs = Programs::build(!args.ours)?;
    let rows = count(&programs)?;
    let results = Results { rows };
    println!(
        "\nInstructions per message (over plain C), x86-64, release profile, under callgrind:\n"
    );
    println!("{}\n", results.table());
    let engine = engine::count(&programs)?;
    println!("The transport of btl-core, 8 bytes, without what the device executes:\n");
    println!("{}\n", engine::table(&engine));
    let dir = args.out.clone().unwrap_or_else(|| paths::target().join("bench"));
    let written =
        plot::write(&dir, "instructions", &results.csv(), SIZE, |area| results.draw(area));
    let written =
        written.with_context(|| format!("cannot write the results to {}", dir.display()))?;
    println!("{}", written.join("\n"));
    let csv = dir.join("engine.csv");
    std::fs::write(&csv, engine::csv(&engine))
        .with_context(|| format!("cannot write {}", csv.display()))?;
    println!("{}", csv.display());
    let mut judged = results.judge();
    judged.extend(engine::judge(&engine).into_iter().map(|(what, met)| Target { what, met }));
    for target in judged.iter().filter(|target| !target.met) {
        println!("FAILED: {}", target.what);
    }
    let met = judged.iter().filter(|target| target.met).count();
    println!("bench: {met} passed, {} failed", judged.len() - met);
    Ok(if met == judged.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn count(programs: &Programs) -> Result<Vec<Row>> {
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut counter = Counter::new(&programs.fake, scratch.path());
    let total = programs.variants.len() * SCENARIOS.len();
    let mut progress = ui::Progress::new("counting", total as u64);
    let mut rows = Vec::new();
    for variant in &programs.variants {
        let mut cells = Vec::new();
        for (scenario, _) in SCENARIOS {
            let line = |count| variant.command_line(scenario, count);
            let counts = counter.per_operation(COUNT, line);
            cells.push(counts.with_context(|| format!("{} {scenario}", variant.name))?);
            progress.step();
        }
        rows.push(Row::new(variant, cells));
    }
    progress.finish();
    Ok(rows)
}

/// One variant's counts, one for each scenario.
struct Row {
    name: &'static str,
    target: Option<f64>,
    ours: bool,
    cells: Vec<Counts>,
}

/// A promise about one number.
struct Target {
    what: String,
    met: bool,
}

impl Row {
    fn new(variant: &Variant, cells: Vec<Counts>) -> Self {
        Self { name: variant.name, target: variant.target, ours: variant.is_ours(), cells }
    }

    /// The most of something that a message takes.
    fn most(&self, what: fn(&Counts) -> f64) -> f64 {
        self.cells.iter().map(what).fold(0.0, f64::max)
    }
}

struct Results {
    /// The first is plain C.
    rows: Vec<Row>,
}

impl Results {
    /// Plain C's instructions.
    fn base(&self, scenario: usize) -> f64 {
        self.rows.first().and_then(|row| row.cells.get(scenario)).map_or(0.0, |c| c.instructions)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        let mut header = vec![String::new()];
        header.extend(SCENARIOS.iter().map(|(_, name)| (*name).to_owned()));
        header.extend(["allocations", "locks", "atomics"].map(str::to_owned));
        table.load_style(presets::NOTHING).set_header(header);
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = vec![row.name.to_owned()];
            line.extend(row.cells.iter().enumerate().map(|(scenario, cell)| {
                let over = cell.instructions - self.base(scenario);
                let over = if i == 0 { String::new() } else { format!(" ({over:+.0})") };
                format!("{:.0}{over}", cell.instructions)
            }));
            for what in [|c: &Counts| c.allocations, |c: &Counts| c.locks, |c: &Counts| c.atomics] {
                line.push(format!("{:.0}", row.most(what)));
            }
            table.add_row(line);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn csv(&self) -> String {
        let mut text =
            String::from("variant,scenario,instructions,over_plain_c,allocations,locks,atomics\n");
        for row in &self.rows {
            for (i, (cell, (scenario, _))) in row.cells.iter().zip(SCENARIOS).enumerate() {
                let over = cell.instructions - self.base(i);
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "\"{}\",{scenario},{:.2},{over:.2},{:.2},{:.2},{:.2}",
                    row.name, cell.instructions, cell.allocations, cell.locks, cell.atomics
                );
            }
        }
        text
    }

    fn draw<'a>(&self, area: &plot::Area<'a>) -> plot::Drawn<'a> {
        let groups = SCENARIOS.map(|(_, name)| name.to_owned());
        let series: Vec<(String, Vec<f64>)> = self
            .rows
            .iter()
            .map(|row| (row.name.to_owned(), row.cells.iter().map(|c| c.instructions).collect()))
            .collect();
        plot::bars(area, "What a message costs", "instructions", 10.0, &groups, &series)
    }

    /// Every target of ours, and whether it is met.
    fn judge(&self) -> Vec<Target> {
        let mut targets = Vec::new();
        for row in self.rows.iter().filter(|row| row.ours) {
            for (i, (cell, (_, scenario))) in row.cells.iter().zip(SCENARIOS).enumerate() {
                let (name, base) = (row.name, self.base(i));
                let (over, times) = (cell.instructions - base, cell.instructions / base);
                targets.push(if i == EMPTY {
                    let what =
                        format!("{name}, {scenario}: {times:.3} times C, at most {EMPTY_TARGET}");
                    // Half a percent for what the two runs differ in by themselves.
                    Target { what, met: times < EMPTY_TARGET + 0.005 }
                } else {
                    let most = row.target.unwrap_or_default();
                    let what = format!("{name}, {scenario}: {over:+.1} over C, at most +{most:.0}");
                    Target { what, met: over < most + 0.5 }
                });
            }
            for (what, most) in [
                ("allocations", row.most(|c| c.allocations)),
                ("locks", row.most(|c| c.locks)),
                ("atomics", row.most(|c| c.atomics)),
            ] {
                let what = format!("{}: {most:.2} {what} per message, none allowed", row.name);
                targets.push(Target { what, met: most < 0.005 });
            }
        }
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, target: Option<f64>, instructions: f64, atomics: f64) -> Row {
        let cell = Counts { instructions, atomics, ..Counts::default() };
        Row { name, target, ours: target.is_some(), cells: vec![cell; SCENARIOS.len()] }
    }

    #[test]
    fn targets_are_over_plain_c() {
        let rows = vec![row("C", None, 100.0, 0.0), row("raw", Some(6.0), 106.0, 1.0)];
        let results = Results { rows };
        let missed: Vec<String> =
            results.judge().into_iter().filter(|t| !t.met).map(|t| t.what).collect();
        assert_eq!(
            missed,
            [
                "raw, empty poll: 1.060 times C, at most 1.05",
                "raw: 1.00 atomics per message, none allowed"
            ]
        );
        assert!(results.csv().contains("\"raw\",send,106.00,6.00,0.00,0.00,1.00\n"));
        assert!(results.table().to_string().contains("106 (+6)"));
        assert!(plot::svg(SIZE, |area| results.draw(area)).expect("a plot").contains("1,000 QPs"));
    }
}
