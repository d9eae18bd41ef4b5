//! The demo's figures: as a table on the terminal, as CSV, and as an SVG plot.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};

use crate::plot;

/// Of the plot, in pixels.
const SIZE: (u32, u32) = (1100, 480);

/// One row of a ping-pong: message size, time of one way, and rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bytes: u64,
    latency_us: f64,
    mb_per_s: f64,
}

/// A ping-pong over one transport.
#[derive(Debug)]
pub(super) struct Series {
    name: String,
    points: Vec<Point>,
}

impl Series {
    /// Reads the lines `SIZE LATENCY BANDWIDTH` that the program prints.
    ///
    /// # Errors
    /// There are none.
    pub(super) fn read(name: &str, output: &str) -> Result<Self> {
        let points: Vec<Point> = output.lines().filter_map(point).collect();
        if points.is_empty() {
            bail!("the ping-pong printed no figures");
        }
        Ok(Self { name: name.to_owned(), points })
    }

    fn at(&self, bytes: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.bytes == bytes)
    }
}

fn point(line: &str) -> Option<Point> {
    let mut words = line.split_whitespace();
    let point = Point {
        bytes: words.next()?.parse().ok()?,
        latency_us: words.next()?.parse().ok()?,
        mb_per_s: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(point)
}

/// All series.
#[derive(Default)]
pub(super) struct Report {
    series: Vec<Series>,
}

impl Report {
    pub(super) fn add(&mut self, series: Series) {
        self.series.push(series);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> =
            self.series.iter().flat_map(|s| s.points.iter().map(|point| point.bytes)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// For the terminal.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        let mut header = vec!["bytes".to_owned()];
        header.extend(
            self.series.iter().flat_map(|s| [format!("{}\nµs", s.name), "\nMB/s".to_owned()]),
        );
        table.load_style(presets::NOTHING).set_header(header);
        for bytes in self.sizes() {
            let mut row = vec![bytes.to_string()];
            for series in &self.series {
                let cells = series
                    .at(bytes)
                    .map(|p| [format!("{:.1}", p.latency_us), format!("{:.1}", p.mb_per_s)]);
                row.extend(cells.unwrap_or_default());
            }
            table.add_row(row);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn csv(&self) -> String {
        let mut text = String::from("size_bytes,transport,latency_us,bandwidth_mb_per_s\n");
        for series in &self.series {
            for p in &series.points {
                // Writing to a String cannot fail.
                let _ =
                    writeln!(text, "{},{},{},{}", p.bytes, series.name, p.latency_us, p.mb_per_s);
            }
        }
        text
    }

    /// Writes `pingpong.csv` and `pingpong.svg`; returns a line for each.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(&self, dir: &Path) -> Result<Vec<String>> {
        plot::write(dir, "pingpong", &self.csv(), SIZE, |root| self.draw(root))
    }

    fn draw<'a>(&self, root: &plot::Area<'a>) -> plot::Drawn<'a> {
        let (left, right) = root.split_horizontally(SIZE.0 / 2);
        let times = self.lines(|point| point.latency_us);
        plot::lines(&left, "Ping-pong: time of one way", "µs", &times)?;
        let rates = self.lines(|point| point.mb_per_s);
        plot::lines(&right, "Ping-pong: bandwidth", "MB/s", &rates)
    }

    fn lines(&self, y: impl Fn(&Point) -> f64) -> Vec<plot::Line> {
        let line = |series: &Series| {
            #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
            let points = series.points.iter().map(|point| (point.bytes as f64, y(point))).collect();
            plot::Line { name: series.name.clone(), points }
        };
        self.series.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "size_bytes latency_us bandwidth_MBps\n0 12.34 0.00\n4096 20.5 199.8\nOK pingpong ranks=2 checked\n";

    #[test]
    fn figures_are_read_and_written() {
        let mut report = Report::default();
        report.add(Series::read("siw", OUTPUT).expect("figures"));
        assert_eq!(report.sizes(), [0, 4096]);
        assert!(report.csv().ends_with("0,siw,12.34,0\n4096,siw,20.5,199.8\n"));
        let table = report.table().to_string();
        assert!(table.contains("4096") && table.contains("199.8"), "{table}");
        let svg = plot::svg(SIZE, |root| report.draw(root)).expect("a plot");
        assert!(
            svg.starts_with("<svg") && svg.contains("siw") && svg.contains("bandwidth"),
            "{svg}"
        );
    }

    #[test]
    fn no_figures_are_an_error() {
        assert!(Series::read("siw", "OK pingpong\n").is_err());
    }
}
