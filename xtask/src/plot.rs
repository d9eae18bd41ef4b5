//! Figures as files: CSV, and SVG plots of one look.

use std::error::Error;
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Part of a picture.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What drawing returns.
pub(crate) type Drawn<'a> = Result<(), Box<dyn Error + 'a>>;

const COLORS: [RGBColor; 8] = [
    RGBColor(0, 102, 204),
    RGBColor(204, 68, 0),
    RGBColor(110, 110, 110),
    RGBColor(0, 140, 80),
    RGBColor(140, 60, 170),
    RGBColor(200, 160, 0),
    RGBColor(0, 160, 180),
    RGBColor(200, 40, 110),
];
const FONT: (&str, u32) = ("sans-serif", 20);
const GRID: RGBColor = RGBColor(235, 235, 235);
const FRAME: RGBColor = RGBColor(200, 200, 200);

fn color(i: usize) -> RGBColor {
    COLORS[i % COLORS.len()]
}

/// Writes `stem.csv` and `stem.svg` into the folder, which is made; returns a line for each.
///
/// # Errors
/// A file cannot be written, or `draw` fails.
pub(crate) fn write(
    dir: &Path,
    stem: &str,
    csv: &str,
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&Area<'a>) -> Drawn<'a>,
) -> Result<Vec<String>> {
    fs::create_dir_all(dir)?;
    let (csv_file, svg_file) = (dir.join(format!("{stem}.csv")), dir.join(format!("{stem}.svg")));
    fs::write(&csv_file, csv)?;
    fs::write(&svg_file, svg(size, draw)?)?;
    Ok(vec![format!("figures: {}", csv_file.display()), format!("plot:    {}", svg_file.display())])
}

/// The picture as text.
///
/// # Errors
/// `draw` fails.
pub(crate) fn svg(
    size: (u32, u32),
    draw: impl for<'a> FnOnce(&Area<'a>) -> Drawn<'a>,
) -> Result<String> {
    let mut text = String::new();
    on_white(&mut text, size, draw)
        .map_err(|error| anyhow!("the plot could not be drawn: {error}"))?;
    Ok(text)
}

fn on_white<'a>(
    text: &'a mut String,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'a>) -> Drawn<'a>,
) -> Drawn<'a> {
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    draw(&root)?;
    root.present()?;
    Ok(())
}

/// A named line through points.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines over message sizes, both scales logarithmic.
pub(crate) fn lines<'a>(area: &Area<'a>, title: &str, unit: &str, series: &[Line]) -> Drawn<'a> {
    // What is 0 has no place on a logarithmic scale.
    let shown = |line: &Line| -> Vec<(f64, f64)> {
        line.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect()
    };
    let all: Vec<(f64, f64)> = series.iter().flat_map(shown).collect();
    let (xs, ys) = (range(&all, |point| point.0), range(&all, |point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, FONT)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(xs.log_scale().base(4.0), ys.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size in bytes")
        .y_desc(unit)
        .light_line_style(GRID)
        .x_label_formatter(&|x| bytes(*x))
        .y_label_formatter(&|y| format!("{y:.*}", usize::from(*y < 1.0) * 2))
        .draw()?;
    for (i, line) in series.iter().enumerate() {
        let (color, points) = (color(i), shown(line));
        chart
            .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(line.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(FRAME)
        .draw()?;
    Ok(())
}

fn range(points: &[(f64, f64)], value: fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
    let (min, max) = points
        .iter()
        .map(value)
        .fold((f64::MAX, f64::MIN_POSITIVE), |(a, b), v| (a.min(v), b.max(v)));
    (min.min(max) / 1.3)..(max * 1.3)
}

/// `65536` → `64 Ki`.
fn bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1_048_576.0 => format!("{:.0} Mi", b / 1_048_576.0),
        b if b >= 1024.0 => format!("{:.0} Ki", b / 1024.0),
        b => format!("{b:.0}"),
    }
}

/// Groups of bars: `values[i]` has a bar of each group for `names[i]`. The scale is logarithmic and begins at `floor`.
pub(crate) fn bars<'a>(
    area: &Area<'a>,
    title: &str,
    unit: &str,
    floor: f64,
    groups: &[String],
    series: &[(String, Vec<f64>)],
) -> Drawn<'a> {
    let top = series.iter().flat_map(|(_, values)| values).fold(floor * 2.0, |a, b| a.max(*b));
    // A group is as wide as its bars and one more, for the space between.
    #[expect(clippy::cast_precision_loss, reason = "a handful of bars")]
    let (step, width) = (series.len() as f64 + 1.0, groups.len() as f64);
    let mut chart = ChartBuilder::on(area)
        .caption(title, FONT)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..width * step, (floor..top * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(unit)
        .light_line_style(GRID)
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for (i, (name, values)) in series.iter().enumerate() {
        let color = color(i);
        #[expect(clippy::cast_precision_loss, reason = "a handful of bars")]
        let left = move |group: usize| group as f64 * step + 0.5 + i as f64;
        let bar = |(group, value): (usize, &f64)| {
            let corners = [(left(group), floor), (left(group) + 0.9, value.max(floor))];
            Rectangle::new(corners, color.filled())
        };
        chart
            .draw_series(values.iter().enumerate().filter(|(_, v)| v.is_finite()).map(bar))?
            .label(name.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 5)], color.filled()));
    }
    for (group, text) in groups.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a handful of bars")]
        let middle = (group as f64 + 0.5) * step;
        name(area, text, chart.backend_coord(&(middle, floor)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(FRAME)
        .draw()?;
    Ok(())
}

/// A value with its interval.
pub(crate) struct Interval {
    pub(crate) name: String,
    pub(crate) middle: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Ratios with their intervals, beside 1 and a limit.
pub(crate) fn intervals<'a>(
    area: &Area<'a>,
    title: &str,
    limit: f64,
    values: &[Interval],
) -> Drawn<'a> {
    let least = values.iter().map(|v| v.low).fold(0.9, f64::min);
    let most = values.iter().map(|v| v.high).fold(1.1, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "a handful of values")]
    let width = values.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, FONT)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..width, least - 0.05..most + 0.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc("ratio, with the 95 % interval of its median")
        .light_line_style(GRID)
        .y_label_formatter(&|y| format!("{y:.2}"))
        .draw()?;
    for (level, color) in [(1.0, COLORS[2]), (limit, COLORS[1])] {
        chart.draw_series([PathElement::new([(0.0, level), (width, level)], color)])?;
    }
    for (i, value) in values.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a handful of values")]
        let x = i as f64 + 0.5;
        let style = COLORS[0].stroke_width(2);
        let bar = PathElement::new([(x, value.low), (x, value.high)], style);
        chart.draw_series([bar])?;
        chart.draw_series([Circle::new((x, value.middle), 4, COLORS[0].filled())])?;
        name(area, &value.name, chart.backend_coord(&(x, least - 0.05)))?;
    }
    Ok(())
}

/// Writes a name under a place of the axis.
fn name<'a>(area: &Area<'a>, text: &str, at: (i32, i32)) -> Drawn<'a> {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let style = ("sans-serif", 15).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
    // Coordinates are the picture's, text is placed in the area.
    let (left, top) = area.get_base_pixel();
    area.draw_text(text, &style, (at.0 - left, at.1 - top + 10))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_hold_their_names() {
        let line =
            Line { name: "siw".to_owned(), points: vec![(0.0, 1.0), (8.0, 2.0), (4096.0, 9.0)] };
        let text = svg((600, 400), |area| lines(area, "Title", "µs", &[line])).expect("a plot");
        assert!(text.starts_with("<svg") && text.contains("siw") && text.contains("Title"));
        let series =
            [("plain C".to_owned(), vec![80.0, f64::NAN]), ("raw".to_owned(), vec![84.0, 90.0])];
        let groups = ["send".to_owned(), "receive".to_owned()];
        let text = svg((600, 400), |area| bars(area, "Title", "n", 10.0, &groups, &series));
        let text = text.expect("a plot");
        assert!(text.contains("plain C") && text.contains("receive"), "{text}");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([bytes(8.0), bytes(65536.0), bytes(4_194_304.0)], ["8", "64 Ki", "4 Mi"]);
    }
}
