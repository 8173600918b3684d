//! The figures as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::held::{self, Held};
use crate::measure::Row;
use crate::table::{self, mean_ratio};

const SIZE: (u32, u32) = (960, 420);
const OWN: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const OTHER: RGBColor = RGBColor(0xb0, 0xb0, 0xb0);
/// Of lines other than libbfc's: they can be told apart and read on white.
const COLORS: [RGBColor; 8] = [
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0xc0, 0x39, 0x2b),
    RGBColor(0x4d, 0x4d, 0x4d),
    RGBColor(0x99, 0x4f, 0x9e),
    RGBColor(0x1b, 0x7f, 0x4c),
    RGBColor(0xb5, 0x89, 0x00),
    RGBColor(0x2a, 0x9d, 0xa5),
];
const FONT: &str = "sans-serif";

/// Writes the charts for which there are figures.
pub fn write(folder: &Path, rows: &[Row], held: &[Held], peers: &[String]) -> Result<()> {
    let recorded: Vec<&Row> = rows.iter().filter(|row| row.is_recorded).collect();
    let mut bars: Vec<(&str, f64)> =
        peers.iter().filter_map(|peer| Some((peer.as_str(), mean_ratio(&recorded, peer)?))).collect();
    if !bars.is_empty() {
        bars.sort_by(|one, other| other.1.total_cmp(&one.1));
        draw(&folder.join("recorded.svg"), |root| recorded_chart(root, &bars))?;
        bars.retain(|(peer, _)| PEERS_BY_NAME.contains(peer));
        let beyond = |way: &held::Way| Some((way.name, 100.0 * (held::mean(held, way.name)? - 1.0)));
        let mut beyond: Vec<(&str, f64)> = held::WAYS.iter().filter_map(beyond).collect();
        beyond.sort_by(|one, other| other.1.total_cmp(&one.1));
        if !beyond.is_empty() {
            draw(&folder.join("summary.svg"), |root| summary_chart(root, &bars, &beyond))?;
        }
    }
    for (kind, file, title) in [
        ("uniform/", "uniform.svg", "Random sizes up to 1 MiB: nanoseconds of an operation"),
        (
            "log-uniform/",
            "log-uniform.svg",
            "Random sizes, small ones as likely as large ones: nanoseconds of an operation",
        ),
    ] {
        // What is wrapped is for the tables: the lines would be too many.
        let plain = peers.iter().filter(|peer| !peer.contains('+'));
        let lines: Vec<Line<'_>> = plain.filter_map(|peer| line(rows, kind, peer)).collect();
        if !lines.is_empty() {
            draw(&folder.join(file), |root| random_chart(root, title, &lines))?;
        }
    }
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(path: &Path, chart: impl Fn(&Area<'_>) -> Result<()>) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
    chart(&root)?;
    root.present().map_err(|error| anyhow!("cannot write {}: {error}", path.display()))
}

/// Bars from libbfc's time to each peer's: on a logarithmic scale there is no other place to begin.
fn recorded_chart(root: &Area<'_>, bars: &[(&str, f64)]) -> Result<()> {
    let least = bars.iter().map(|bar| bar.1).fold(0.5, f64::min) * 0.8;
    let most = bars.iter().map(|bar| bar.1).fold(2.0, f64::max) * 2.0;
    let count = bars.len() as f64;
    let mut chart = ChartBuilder::on(root)
        .caption(
            "Seven recorded programs: time of an operation, libbfc = 1 (geometric mean; to the left is faster)",
            (FONT, 17),
        )
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(10)
        .build_cartesian_2d((least..most).log_scale(), 0.0..count)
        .map_err(|error| anyhow!("{error}"))?;
    chart
        .configure_mesh()
        .disable_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_label_formatter(&|value| format!("{value}"))
        .draw()
        .map_err(|error| anyhow!("{error}"))?;
    let bar = |(place, &(_, ratio)): (usize, &(&str, f64))| {
        let at = place as f64;
        Rectangle::new([(ratio.min(1.0), at + 0.2), (ratio.max(1.0), at + 0.8)], OTHER.filled())
    };
    chart.draw_series(bars.iter().enumerate().map(bar)).map_err(|error| anyhow!("{error}"))?;
    let own = PathElement::new([(1.0, 0.0), (1.0, count)], OWN.stroke_width(3));
    chart.draw_series([own]).map_err(|error| anyhow!("{error}"))?;
    let label = |(place, &(name, ratio)): (usize, &(&str, f64))| {
        let color = if name == table::BASE { OWN } else { BLACK };
        let style = (FONT, 15).into_font().color(&color);
        EmptyElement::at((ratio.max(1.0), place as f64 + 0.5))
            + Text::new(format!("{name}  {ratio:.2}"), (6, -7), style)
    };
    chart.draw_series(bars.iter().enumerate().map(label)).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

/// What frameworks bring along, of which most readers have one.
const PEERS_BY_NAME: [&str; 4] = ["libbfc", "tensorflow", "pytorch", "rmm-pool"];

/// Two charts side by side: how long an operation takes, and how much is held in percent beyond what is live.
fn summary_chart(root: &Area<'_>, times: &[(&str, f64)], beyond: &[(&str, f64)]) -> Result<()> {
    let halves = root.split_evenly((1, 2));
    bar_chart(&halves[0], "Time of an operation, libbfc = 1", times, |time| format!("{time:.1}"))?;
    bar_chart(&halves[1], "Memory held beyond what is live", beyond, |percent| format!("{percent:.0} %"))
}

/// Bars from 0 on, each with its name and its figure.
fn bar_chart(
    root: &Area<'_>,
    title: &str,
    bars: &[(&str, f64)],
    figure: impl Fn(f64) -> String,
) -> Result<()> {
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max) * 1.9;
    let mut chart = ChartBuilder::on(root)
        .caption(title, (FONT, 17))
        .margin(12)
        .build_cartesian_2d(0.0..most, 0.0..bars.len() as f64)
        .map_err(|error| anyhow!("{error}"))?;
    let color = |name: &str| if name.starts_with(table::BASE) { OWN } else { OTHER };
    let bar = |(place, &(name, value)): (usize, &(&str, f64))| {
        Rectangle::new([(0.0, place as f64 + 0.2), (value, place as f64 + 0.8)], color(name).filled())
    };
    chart.draw_series(bars.iter().enumerate().map(bar)).map_err(|error| anyhow!("{error}"))?;
    let label = |(place, &(name, value)): (usize, &(&str, f64))| {
        let text = format!("{name}  {}", figure(value));
        EmptyElement::at((value, place as f64 + 0.5)) + Text::new(text, (6, -7), (FONT, 15).into_font())
    };
    chart.draw_series(bars.iter().enumerate().map(label)).map_err(|error| anyhow!("{error}"))?;
    Ok(())
}

/// A peer's nanoseconds by live chunks.
struct Line<'a> {
    peer: &'a str,
    points: Vec<(f64, f64)>,
}

fn line<'a>(rows: &[Row], kind: &str, peer: &'a str) -> Option<Line<'a>> {
    let point = |row: &Row| {
        let live = row.program.strip_prefix(kind)?.parse().ok()?;
        Some((live, row.outcome(peer)?.median()?.0))
    };
    let points: Vec<(f64, f64)> = rows.iter().filter_map(point).collect();
    (!points.is_empty()).then_some(Line { peer, points })
}

fn random_chart(root: &Area<'_>, title: &str, lines: &[Line<'_>]) -> Result<()> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = points().map(|point| point.1).fold(f64::MAX, f64::min) * 0.8;
    let most = points().map(|point| point.1).fold(0.0, f64::max) * 1.3;
    let (first, last) =
        (points().map(|at| at.0).fold(f64::MAX, f64::min), points().map(|at| at.0).fold(0.0, f64::max));
    let mut chart = ChartBuilder::on(root)
        .caption(title, (FONT, 17))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(60)
        // Names stand right of the last point.
        .margin_right(150)
        .build_cartesian_2d((first..last.max(2.0 * first)).log_scale(), (least..most).log_scale())
        .map_err(|error| anyhow!("{error}"))?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc("live chunks")
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()
        .map_err(|error| anyhow!("{error}"))?;
    for (place, line) in lines.iter().enumerate() {
        let is_own = line.peer == table::BASE;
        let color = if is_own { OWN.to_rgba() } else { COLORS[place % COLORS.len()].mix(0.8) };
        let style = color.stroke_width(if is_own { 4 } else { 2 });
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style))
            .map_err(|error| anyhow!("{error}"))?;
    }
    names(root, &chart, lines)
}

/// Writes the peers' names at the right, moved apart where lines end close together.
fn names<X, Y>(
    root: &Area<'_>,
    chart: &ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    lines: &[Line<'_>],
) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    const HEIGHT: i32 = 16;
    let mut ends: Vec<((i32, i32), usize)> = lines
        .iter()
        .enumerate()
        .filter_map(|(place, line)| Some((chart.backend_coord(line.points.last()?), place)))
        .collect();
    ends.sort_by_key(|&((_, y), _)| y);
    let mut lowest = i32::MIN;
    for ((x, y), place) in ends {
        let y = y.max(lowest.saturating_add(HEIGHT));
        lowest = y;
        let line = &lines[place];
        let is_own = line.peer == table::BASE;
        let color = if is_own { OWN.to_rgba() } else { COLORS[place % COLORS.len()].to_rgba() };
        let style = TextStyle::from((FONT, 14).into_font()).color(&color);
        root.draw(&Text::new(line.peer.to_owned(), (x + 8, y - 8), style))
            .map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}
