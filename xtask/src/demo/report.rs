//! The demo's figures: as a table on the terminal, as CSV, and as an SVG plot.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use comfy_table::{CellAlignment, Table, presets};
use plotters::prelude::*;

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
        fs::create_dir_all(dir)?;
        let (csv, svg) = (dir.join("pingpong.csv"), dir.join("pingpong.svg"));
        fs::write(&csv, self.csv())?;
        let mut text = String::new();
        self.plot(&mut text).map_err(|error| anyhow!("the plot could not be drawn: {error}"))?;
        fs::write(&svg, text)?;
        Ok(vec![format!("figures: {}", csv.display()), format!("plot:    {}", svg.display())])
    }

    fn plot<'a>(&self, svg: &'a mut String) -> Result<(), Box<dyn std::error::Error + 'a>> {
        let root = SVGBackend::with_string(svg, (1100, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, right) = root.split_horizontally(550);
        self.panel(&left, "Ping-pong: time of one way", "µs", |point| point.latency_us)?;
        self.panel(&right, "Ping-pong: bandwidth", "MB/s", |point| point.mb_per_s)?;
        root.present()?;
        Ok(())
    }

    fn panel<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
        title: &str,
        unit: &str,
        y: impl Fn(&Point) -> f64,
    ) -> Result<(), Box<dyn std::error::Error + 'a>> {
        const COLORS: [RGBColor; 3] =
            [RGBColor(0, 102, 204), RGBColor(204, 68, 0), RGBColor(110, 110, 110)];
        // Both scales are logarithmic: what is 0 has no place on them.
        let line = |series: &Series| -> Vec<(f64, f64)> {
            #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
            let both = series.points.iter().map(|point| (point.bytes as f64, y(point)));
            both.filter(|(x, y)| *x > 0.0 && *y > 0.0).collect()
        };
        let all: Vec<(f64, f64)> = self.series.iter().flat_map(line).collect();
        let range = |value: fn(&(f64, f64)) -> f64| {
            let (min, max) = all
                .iter()
                .map(value)
                .fold((f64::MAX, f64::MIN_POSITIVE), |(a, b), v| (a.min(v), b.max(v)));
            (min.min(max) / 1.3)..(max * 1.3)
        };
        let (xs, ys) = (range(|point| point.0), range(|point| point.1));
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(xs.log_scale().base(4.0), ys.log_scale())?;
        chart
            .configure_mesh()
            .x_desc("message size in bytes")
            .y_desc(unit)
            .light_line_style(RGBColor(235, 235, 235))
            .x_label_formatter(&|x| size(*x))
            .y_label_formatter(&|y| format!("{y:.*}", usize::from(*y < 1.0) * 2))
            .draw()?;
        for (series, color) in self.series.iter().zip(COLORS.iter().cycle()) {
            let color = *color;
            let points = line(series);
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
                .label(series.name.as_str())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
            chart.draw_series(
                points.into_iter().map(|point| Circle::new(point, 3, color.filled())),
            )?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        Ok(())
    }
}

/// `65536` → `64 Ki`.
fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1_048_576.0 => format!("{:.0} Mi", b / 1_048_576.0),
        b if b >= 1024.0 => format!("{:.0} Ki", b / 1024.0),
        b => format!("{b:.0}"),
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
        let mut svg = String::new();
        report.plot(&mut svg).expect("a plot");
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
