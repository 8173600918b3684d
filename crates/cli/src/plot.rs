//! Live, in use and held over a replay or a history, as an SVG picture.
//!
//! A trace may have a million events, and a picture has some hundred columns. For each column the lowest and the
//! highest value of each curve are drawn, so that no peak is lost.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, anyhow};
use indicatif::ProgressBar;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use crate::inspect::walk;
use crate::names;
use crate::new_file;
use crate::replay::Job;
use crate::size::{self, human};
use bfc_readers::trace::{ALIGNMENT, Event, Trace};

/// The size of the picture in pixels, and the columns of a curve.
const SIZE: (u32, u32) = (1000, 480);
const COLUMNS: usize = 880;

/// A limit above this multiple of what is held is not drawn, because the curves would lie at the bottom.
const FARTHEST_LIMIT: u64 = 3;

/// Colours that colour-blind people can distinguish (Okabe and Ito), and that differ in brightness.
const LIVE: RGBColor = RGBColor(0, 158, 115);
const IN_USE: RGBColor = RGBColor(0, 114, 178);
const HELD: RGBColor = RGBColor(230, 159, 0);
const LIMIT: RGBColor = RGBColor(213, 94, 0);
const FAILED: RGBColor = RGBColor(0, 0, 0);

/// A curve of bounded size. Its points are at whole numbers: of events, or of nanoseconds.
pub struct Curve {
    end: u64,
    columns: Vec<Column>,
    pub peak: u64,
    last: (u64, u64),
}

/// The lowest and the highest value of a column, with their places.
#[derive(Clone, Copy)]
struct Column {
    number: u64,
    least: (u64, u64),
    most: (u64, u64),
}

impl Curve {
    /// A curve whose points are below `end`.
    pub fn new(end: u64) -> Self {
        Curve { end, columns: Vec::new(), peak: 0, last: (0, 0) }
    }

    /// Adds a value. The places rise.
    pub fn add(&mut self, place: u64, value: u64) {
        self.peak = self.peak.max(value);
        let number = (u128::from(place) * COLUMNS as u128 / u128::from(self.end.max(COLUMNS as u64))) as u64;
        match self.columns.last_mut().filter(|last| last.number == number) {
            Some(known) => {
                if value < known.least.1 {
                    known.least = (place, value);
                }
                if value > known.most.1 {
                    known.most = (place, value);
                }
            }
            None => {
                let is_gap = self.columns.last().is_some_and(|last| last.number + 1 < number);
                // Where nothing happened, the value stayed.
                let stayed = [self.last, (place, self.last.1)].into_iter().filter(|_| is_gap);
                for point in stayed.chain([(place, value)]) {
                    self.columns.push(Column { number, least: point, most: point });
                }
            }
        }
        self.last = (place, value);
    }

    /// The points, in order.
    fn points(&self) -> Vec<(u64, u64)> {
        let mut points = Vec::with_capacity(2 * self.columns.len());
        for column in &self.columns {
            let (least, most) = (column.least, column.most);
            points.push(if least.0 <= most.0 { least } else { most });
            if least.0 != most.0 {
                points.push(if least.0 <= most.0 { most } else { least });
            }
        }
        points.dedup();
        points
    }
}

/// What is drawn.
pub struct Picture {
    pub title: String,
    /// The meaning of the places, and how many of them are one unit of the axis.
    pub axis: (&'static str, u64),
    pub end: u64,
    pub live_name: &'static str,
    pub live: Curve,
    pub in_use: Curve,
    pub held: Curve,
    pub limit: u64,
    /// The places of requests that failed, at most one per column.
    pub failed: Vec<u64>,
}

/// Replays the job's trace once more, and writes the picture to a file that only its owner may read.
pub fn write(job: &Job<'_>, path: &Path, bar: &ProgressBar) -> Result<()> {
    let text = Picture::of(job, bar)?.svg()?;
    new_file::write(path, |out| Ok(out.write_all(text.as_bytes())?))
}

impl Picture {
    /// A picture without curves. The places are below `end`.
    pub fn new(
        title: &str,
        axis: (&'static str, u64),
        end: u64,
        live_name: &'static str,
        limit: u64,
    ) -> Self {
        let [live, in_use, held] = [end; 3].map(Curve::new);
        Picture { title: titled(title), axis, end, live_name, live, in_use, held, limit, failed: Vec::new() }
    }

    /// Marks a failed request.
    pub fn fail(&mut self, place: u64) {
        let distance = self.end / COLUMNS as u64;
        if self.failed.last().is_none_or(|last| place.saturating_sub(*last) > distance) {
            self.failed.push(place);
        }
    }

    fn of(job: &Job<'_>, bar: &ProgressBar) -> Result<Self> {
        let trace = job.trace;
        // The first event is 1.
        let end = trace.events.len() as u64 + 1;
        let axis = ("events (requests and frees)", 1);
        let mut picture = Picture::new(&trace.name, axis, end, "live", job.limit);
        let mut live = Live::new(trace);
        let mut failed = 0;
        walk(job, bar, |device, event, players| {
            let (stats, place) = (device.stats()?, event as u64 + 1);
            picture.live.add(place, live.after(trace.events[event]));
            picture.in_use.add(place, stats.bytes_in_use);
            picture.held.add(place, stats.pool_bytes);
            let now: u64 = players.iter().map(|player| player.failed).sum();
            if now > failed {
                picture.fail(place);
            }
            failed = now;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(picture)
    }

    /// Whether the limit is near enough to be drawn.
    fn has_limit(&self) -> bool {
        self.limit <= self.highest().saturating_mul(FARTHEST_LIMIT)
    }

    /// The most that any curve has.
    fn highest(&self) -> u64 {
        self.live.peak.max(self.in_use.peak).max(self.held.peak).max(1)
    }

    /// The picture as a document, with a description for readers who do not see it.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| anyhow!("cannot draw: {error}"))?;
        let description = format!(
            "Memory over {}. {}: at most {}. In use: at most {}. Held: at most {}. Limit: {}.",
            self.axis.0,
            self.live_name,
            human(self.live.peak),
            human(self.in_use.peak),
            human(self.held.peak),
            size::limit(self.limit)
        );
        let head = format!("<title>{}</title>\n<desc>{description}</desc>\n", escaped(&self.title));
        let begin = text.find(">\n").map_or(text.len(), |at| at + 2);
        text.insert_str(begin, &head);
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let top = if self.has_limit() { self.highest().max(self.limit) } else { self.highest() };
        let (unit, name) = unit_of(top);
        let scaled = |bytes: u64| bytes as f64 / unit as f64;
        let across = |place: u64| place as f64 / self.axis.1 as f64;
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        // The background of the page may be dark.
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..across(self.end), 0.0..scaled(top) * 1.5)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.15))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .x_desc(self.axis.0)
            .y_desc(format!("memory in {name}"))
            .x_label_formatter(&|place| format!("{}", (place * 1000.0).round() / 1000.0))
            .y_label_formatter(&|bytes| format!("{}", (bytes * 100.0).round() / 100.0))
            .draw()?;
        // Where two curves are equal, the wider one below shows on both sides.
        let curves = [
            (&self.held, HELD, 2, "held"),
            (&self.in_use, IN_USE, 4, "in use"),
            (&self.live, LIVE, 1, self.live_name),
        ];
        if self.has_limit() {
            let ends = [0.0, across(self.end)].map(|place| (place, scaled(self.limit)));
            chart
                .draw_series(LineSeries::new(ends, LIMIT.stroke_width(2)))?
                .label(format!("limit, {}", short(self.limit)))
                .legend(|at| sample(at, LIMIT, 2));
        }
        for (curve, colour, width, name) in curves {
            let points = curve.points().into_iter().map(|(place, bytes)| (across(place), scaled(bytes)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(width)))?
                .label(format!("{name}, at most {}", short(curve.peak)))
                .legend(move |at| sample(at, colour, width));
        }
        if !self.failed.is_empty() {
            let at = self.failed.iter().map(|&place| (across(place), scaled(top) * 1.06));
            chart
                .draw_series(at.map(|at| TriangleMarker::new(at, 5, FAILED.filled())))?
                .label("a request failed")
                .legend(|(x, y)| TriangleMarker::new((x + 10, y), 5, FAILED.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.4))
            .label_font(("sans-serif", 13))
            .draw()?;
        root.present()
    }
}

/// A piece of a curve for the legend.
fn sample((x, y): (i32, i32), colour: RGBColor, width: u32) -> PathElement<(i32, i32)> {
    PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(width))
}

/// What is live in the trace, each request rounded up.
struct Live {
    sizes: Vec<u64>,
    bytes: u64,
}

impl Live {
    fn new(trace: &Trace) -> Self {
        Live { sizes: vec![0; trace.slots], bytes: 0 }
    }

    fn after(&mut self, event: Event) -> u64 {
        match event {
            Event::Alloc { bytes, slot, .. } => {
                let size = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
                self.sizes[slot as usize] = size;
                self.bytes = self.bytes.saturating_add(size);
            }
            Event::Free { slot, .. } => {
                self.bytes = self.bytes.saturating_sub(std::mem::take(&mut self.sizes[slot as usize]));
            }
            Event::Refused { .. } => {}
        }
        self.bytes
    }
}

/// The largest unit that is not larger than the value.
fn unit_of(bytes: u64) -> (u64, &'static str) {
    const UNITS: [(u64, &str); 5] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")];
    UNITS.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "bytes"))
}

/// Bytes without the exact number.
fn short(bytes: u64) -> String {
    human(bytes).split(" (").next().unwrap_or_default().to_owned()
}

/// A name without the characters that XML does not allow, too.
fn titled(name: &str) -> String {
    names::shown(name).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}").chars().take(120).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_extremes_in_bounded_points() {
        let end = 1_000_000;
        let mut curve = Curve::new(end);
        (0..end).for_each(|place| curve.add(place, if place == 654_321 { 999 } else { place % 7 + 1 }));
        let points = curve.points();
        assert!(points.len() <= 2 * COLUMNS && points.is_sorted(), "{}", points.len());
        assert!(points.contains(&(654_321, 999)));
        assert_eq!((curve.peak, points.iter().map(|point| point.1).min()), (999, Some(1)));

        // Nothing happens for most of the time.
        let mut sparse = Curve::new(end);
        (999_000..end).for_each(|place| sparse.add(place, place));
        assert!(sparse.points().len() <= 4, "{:?}", sparse.points());

        let mut stays = Curve::new(end);
        [(0, 5), (1, 9), (2, 6), (500_000, 7), (500_001, 8)]
            .into_iter()
            .for_each(|(place, value)| stays.add(place, value));
        assert_eq!(stays.points(), [(0, 5), (1, 9), (2, 6), (500_000, 6), (500_000, 7), (500_001, 8)]);

        let mut short = Curve::new(3);
        (0..).zip([5, 4, 9]).for_each(|(place, value)| short.add(place, value));
        assert_eq!(short.points(), [(0, 5), (1, 4), (2, 9)], "a short curve has all its points");
    }
}
