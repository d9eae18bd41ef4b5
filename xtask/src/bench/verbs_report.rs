//! The comparison with perftest as a table, as CSV, and as a plot of ratios.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};

use super::pairs::{Calls, Kind, Limits, Run, Summary};
use crate::plot;

/// Of the plot, in pixels.
const SIZE: (u32, u32) = (1100, 480);

/// One test on one device.
pub(super) struct Row {
    pub(super) device: &'static str,
    pub(super) test: &'static str,
    /// Bytes of a message.
    pub(super) size: u32,
    pub(super) summary: Summary,
    pub(super) runs: Vec<Run>,
    pub(super) calls: Calls,
    /// Whether as many calls as perftest's are promised.
    pub(super) calls_count: bool,
    /// Pairs without a result of perftest's.
    pub(super) lost: usize,
}

/// All of them.
pub(super) struct Report {
    /// Of the files.
    name: &'static str,
    limits: Limits,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(name: &'static str, limits: Limits) -> Self {
        Self { name, limits, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// For the terminal.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "device",
            "test",
            "bytes",
            "ours",
            "perftest",
            "unit",
            "ratio",
            "95 % interval",
            "pairs",
            "(lost)",
            "syscalls/message",
            "(perftest)",
            "doorbells/message",
            "(perftest)",
        ]);
        for row in &self.rows {
            let s = &row.summary;
            table.add_row([
                row.device.to_owned(),
                row.test.to_owned(),
                row.size.to_string(),
                format!("{:.2}", s.ours),
                format!("{:.2}", s.theirs),
                s.kind.unit().to_owned(),
                format!("{:.3}", s.ratio),
                format!("{:.3}–{:.3}", s.low, s.high),
                row.runs.len().to_string(),
                row.lost.to_string(),
                format!("{:.2}", row.calls.ours.syscalls),
                format!("{:.2}", row.calls.theirs.syscalls),
                format!("{:.2}", row.calls.ours.doorbells),
                format!("{:.2}", row.calls.theirs.doorbells),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn csv(&self) -> String {
        let mut text = String::from(
            "device,test,size_bytes,unit,ours,perftest,ratio,low,high,pairs,lost,syscalls,syscalls_perftest,doorbells,doorbells_perftest\n",
        );
        for Row { device, test, size, summary: s, runs, calls, lost, .. } in &self.rows {
            let (unit, pairs, ours, theirs) = (s.kind.unit(), runs.len(), calls.ours, calls.theirs);
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{device},{test},{size},{unit},{},{},{},{},{},{pairs},{lost},{},{},{},{}",
                s.ours,
                s.theirs,
                s.ratio,
                s.low,
                s.high,
                ours.syscalls,
                theirs.syscalls,
                ours.doorbells,
                theirs.doorbells
            );
        }
        text
    }

    /// Writes `NAME.csv`, `NAME.svg` and, with every pair, `NAME-pairs.csv`; returns a line for each.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(&self, dir: &Path) -> Result<Vec<String>> {
        let mut lines = plot::write(dir, self.name, &self.csv(), SIZE, |area| self.draw(area))?;
        let mut text = String::from("device,test,ours,perftest\n");
        for row in &self.rows {
            for run in &row.runs {
                let _ = writeln!(text, "{},{},{},{}", row.device, row.test, run.ours, run.theirs);
            }
        }
        let pairs = dir.join(format!("{}-pairs.csv", self.name));
        std::fs::write(&pairs, text)?;
        lines.push(format!("pairs:   {}", pairs.display()));
        Ok(lines)
    }

    fn draw<'a>(&self, area: &plot::Area<'a>) -> plot::Drawn<'a> {
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        let of = |kind: Kind| -> Vec<plot::Interval> {
            let rows = self.rows.iter().filter(|row| row.summary.kind == kind);
            rows.map(|row| plot::Interval {
                name: format!("{} {}", row.device, row.test),
                middle: row.summary.ratio,
                low: row.summary.low,
                high: row.summary.high,
            })
            .collect()
        };
        let Limits { latency, bandwidth } = self.limits;
        plot::intervals(&left, "Latency, ours / perftest's", latency, &of(Kind::Latency))?;
        plot::intervals(&right, "Bandwidth, ours / perftest's", bandwidth, &of(Kind::Bandwidth))
    }

    /// Every target, and whether it is met.
    pub(super) fn judge(&self) -> Vec<(String, bool)> {
        let mut judged = Vec::new();
        for row in &self.rows {
            let (name, s) = (format!("{} {}", row.device, row.test), &row.summary);
            let limit = match s.kind {
                Kind::Latency => format!("beyond {}", self.limits.latency),
                Kind::Bandwidth => format!("below {}", self.limits.bandwidth),
            };
            let what = format!("{name}: all of {:.3}–{:.3} is {limit}", s.low, s.high);
            judged.push((what, s.met(self.limits)));
            if !row.calls_count {
                continue;
            }
            let calls = &row.calls;
            let what = format!(
                "{name}: {:.2} syscalls and {:.2} doorbells a message, perftest {:.2} and {:.2}",
                calls.ours.syscalls,
                calls.ours.doorbells,
                calls.theirs.syscalls,
                calls.theirs.doorbells
            );
            judged.push((what, calls.equal()));
        }
        judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::pairs::PerMessage;

    #[test]
    fn a_report_has_everything() {
        let runs = vec![Run { ours: 12.0, theirs: 10.0 }; 9];
        let one = PerMessage { syscalls: 1.0, doorbells: 1.0 };
        let limits = Limits { latency: 1.03, bandwidth: 0.97 };
        let mut report = Report::new("verbs", limits);
        report.add(Row {
            device: "siw",
            test: "send_lat",
            size: 8,
            summary: Summary::of(&runs, Kind::Latency),
            runs,
            calls: Calls { ours: one, theirs: one },
            calls_count: true,
            lost: 1,
        });
        let missed: Vec<String> =
            report.judge().into_iter().filter(|(_, met)| !met).map(|j| j.0).collect();
        assert_eq!(missed, ["siw send_lat: all of 1.200–1.200 is beyond 1.03"]);
        assert!(report.table().to_string().contains("1.200–1.200"));
        assert!(report.csv().contains("siw,send_lat,8,µs,12,10,1.2,1.2,1.2,9,1,1,1,1,1\n"));
        assert!(
            plot::svg(SIZE, |area| report.draw(area)).expect("a plot").contains("siw send_lat")
        );
    }
}
