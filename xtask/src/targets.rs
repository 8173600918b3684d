//! What the project wants of its speed and its host memory, held against what the benchmark has measured.

use std::fmt::Write;

use serde_json::Value;

use crate::driver_calls;
use crate::interposer;

#[cfg(test)]
mod tests;

/// How many programs were recorded; a mean over fewer is another figure.
const TRACES: usize = 7;

/// A target and what came of it.
pub struct Target {
    /// What is measured.
    what: String,
    /// What is wanted.
    wanted: String,
    /// What was measured, or why nothing was.
    measured: String,
    /// Whether it is met; nothing if that was not measured.
    pub met: Option<bool>,
}

/// What was found of a figure.
enum Found {
    Number(f64),
    /// It is among the figures and is no number, or it is not among those of its section.
    Fault(String),
    /// Its section was left out, or TensorFlow was not there.
    Nothing,
}

/// The order in which a figure and its bound have to be.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Under(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::Under(bound) => value < bound,
        }
    }

    fn words(self, unit: &str) -> String {
        match self {
            Self::AtLeast(bound) => format!("at least {bound} {unit}"),
            Self::AtMost(bound) => format!("at most {bound} {unit}"),
            Self::Under(bound) => format!("under {bound} {unit}"),
        }
    }
}

/// All targets, for the figures that ffi-tests/tensorflow/bench writes.
pub fn judge(figures: &Value) -> Vec<Target> {
    let speed = |section: &str, name: &str| ratio(figures, section, name).map(|ratio| 1.0 / ratio);
    let own = |section: &str, name: &str| number(figures, section, name, "libbfc");
    let mut targets = Vec::new();
    let mut add = |what: &str, found: Found, bound: Bound, unit: &str| {
        targets.push(Target::new(what, found, bound, unit));
    };

    let times = "times TensorFlow's speed";
    let (mean, worst) = traces(figures);
    add("recorded programs, geometric mean", mean, Bound::AtLeast(4.0), times);
    add("the recorded program with the least gain", worst, Bound::AtLeast(3.0), times);
    for (sizes, suffix, bound) in [("uniform", "", 4.0), ("log-uniform", ", log-uniform", 2.5)] {
        for live in [100, 1000, 10_000, 100_000] {
            let what = format!("random sizes, {sizes}, {live} live");
            let found = speed("random_sizes", &format!("{live} live{suffix}"));
            add(&what, found, Bound::AtLeast(bound), times);
        }
    }
    let most = match (own("random_sizes", "1000000 live"), own("random_sizes", "1000 live")) {
        (Found::Number(million), Found::Number(thousand)) => Found::Number(million / thousand),
        (Found::Number(_), other) | (other, _) => other,
    };
    add("random sizes, uniform, a million live", most, Bound::AtMost(20.0), "times a thousand live");
    // Pairs a second and not the time of one: here more is better.
    for (name, bound) in [("1 thread", 4.0), ("2 threads", 3.0), ("4 threads", 2.5), ("8 threads", 2.5)] {
        let what = format!("{name} on one device, pairs a second");
        add(&what, ratio(figures, "threads", name), Bound::AtLeast(bound), "times TensorFlow's");
    }
    let crowd = match (own("threads", "8 threads"), own("threads", "2 threads")) {
        (Found::Number(eight), Found::Number(two)) => Found::Number(eight / two),
        (Found::Number(_), other) | (other, _) => other,
    };
    add("8 threads on one device, pairs a second of all", crowd, Bound::AtLeast(1.0), "times those of 2");

    let plain = "times the plain pair";
    let (slowest, four) = streams(figures);
    add("bfc_alloc_async and bfc_free_async, one stream", slowest, Bound::AtMost(1.5), plain);
    add("the same on four streams, serve_mix", four, Bound::AtMost(1.6), plain);
    let apart = ratio(figures, "streams", "serve_mix, four, never in step");
    add("the same without synchronisations", apart, Bound::AtMost(1.6), plain);

    let calls = |name: &str, key: &str| count(figures, driver_calls::SECTION, name, key);
    let alone = calls(driver_calls::ALONE, "libbfc");
    add("driver calls of a free, one stream alone", alone, Bound::AtMost(0.0), "calls");
    let of_thread = calls(driver_calls::OF_THREAD, "libbfc");
    add("driver calls of a free, a thread's default stream", of_thread, Bound::AtMost(2.0), "calls");
    let several = calls(driver_calls::SEVERAL, "events");
    add("events that a free records, four streams", several, Bound::AtMost(1.0), "events");
    let recorded = calls(driver_calls::RECORDED, "events");
    add("the same, with a use recorded on one other stream", recorded, Bound::AtMost(2.0), "events");

    let first = "first_allocation";
    let what = "creation and first allocation, pool of 80 GiB";
    add(what, own(first, "wall time"), Bound::Under(1.0), "ms");
    let resident = own(first, "growth of resident memory");
    add("resident memory that takes", resident, Bound::Under(2.0), "MiB");
    let metadata = own("host_memory", "metadata_bytes");
    add("host memory a chunk, a million live", metadata, Bound::AtMost(100.0), "bytes");

    let times = "times the live bytes";
    let (mean, worst) = waste(figures);
    add("recorded programs' least limit on HOST_VMM, geometric mean", mean, Bound::AtMost(1.01), times);
    add("the recorded program that needs most, but for mlp_tiny", worst, Bound::AtMost(1.02), times);

    let pair = ratio(figures, interposer::SECTION, "a pair, with the interposer");
    let what = "cudaMalloc and cudaFree through the interposer, simulated driver included";
    add(what, pair, Bound::AtMost(3.0), plain);
    let frees = match interposer::fewest_frees(&rows(figures, interposer::SECTION)) {
        Some(frees) => Found::Number(frees),
        None => Found::Nothing,
    };
    let what = "the interposer's synchronisations, limit of twice a peak over 1 GiB";
    add(what, frees, Bound::AtLeast(100.0), "frees each");
    targets
}

impl Target {
    fn new(what: &str, found: Found, bound: Bound, unit: &str) -> Self {
        let (measured, met) = match found {
            Found::Number(value) => (format!("{value:.3}"), Some(bound.holds(value))),
            Found::Fault(why) => (why, Some(false)),
            Found::Nothing => ("not measured".to_owned(), None),
        };
        Self { what: what.to_owned(), wanted: bound.words(unit), measured, met }
    }
}

impl Found {
    fn map(self, change: impl FnOnce(f64) -> f64) -> Self {
        match self {
            Self::Number(value) => Self::Number(change(value)),
            other => other,
        }
    }
}

/// How many times as fast the recorded programs are: the geometric mean, and the least.
fn traces(figures: &Value) -> (Found, Found) {
    let nothing = || (Found::Nothing, Found::Nothing);
    // The first pass over a fresh allocator has a row of its own, and is noisy: it is over at once.
    let rows = rows(figures, "traces");
    let names = rows.iter().filter_map(|row| row["name"].as_str());
    let names: Vec<&str> = names.filter(|name| !name.ends_with(", first pass")).collect();
    let mut gains = Vec::new();
    for name in &names {
        match ratio(figures, "traces", name) {
            Found::Number(ratio) => gains.push(1.0 / ratio),
            Found::Fault(why) => return (Found::Fault(why.clone()), Found::Fault(why)),
            Found::Nothing => return nothing(),
        }
    }
    if rows.is_empty() {
        return nothing();
    }
    if gains.len() < TRACES {
        let why = format!("{} of {TRACES} were run", gains.len());
        return (Found::Fault(why.clone()), Found::Fault(why));
    }
    let logarithms: f64 = gains.iter().map(|gain| gain.ln()).sum();
    let mean = (logarithms / gains.len() as f64).exp();
    let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
    (Found::Number(mean), Found::Number(least))
}

/// The least limits over the live bytes: the geometric mean, and the most. The second is without the program whose
/// peak is twenty granules: it shows the size of a granule.
fn waste(figures: &Value) -> (Found, Found) {
    let rows = rows(figures, "waste");
    if rows.is_empty() {
        return (Found::Nothing, Found::Nothing);
    }
    let fault = |why: String| (Found::Fault(why.clone()), Found::Fault(why));
    if rows.len() < TRACES {
        return fault(format!("{} of {TRACES} were run", rows.len()));
    }
    let (mut logarithms, mut most) = (0.0, 0f64);
    for row in &rows {
        // No limit below the live bytes can do.
        let Some(ratio) = row["libbfc"].as_f64().filter(|ratio| *ratio >= 1.0) else {
            return fault(format!("no ratio of {}", row["name"]));
        };
        logarithms += ratio.ln();
        most = if row["name"] == "mlp_tiny" { most } else { most.max(ratio) };
    }
    (Found::Number((logarithms / rows.len() as f64).exp()), Found::Number(most))
}

/// What stream order costs: on one stream the most that any recorded program pays, and serve_mix on four.
fn streams(figures: &Value) -> (Found, Found) {
    let rows = rows(figures, "streams");
    let names = rows.iter().filter_map(|row| row["name"].as_str());
    let names: Vec<&str> = names.filter(|name| name.ends_with(", one stream")).collect();
    let mut slowest = if names.is_empty() || rows.is_empty() {
        Found::Nothing
    } else if names.len() < TRACES {
        Found::Fault(format!("{} of {TRACES} were run", names.len()))
    } else {
        Found::Number(0.0)
    };
    for name in names {
        slowest = match (slowest, ratio(figures, "streams", name)) {
            (Found::Number(so_far), Found::Number(ratio)) => Found::Number(so_far.max(ratio)),
            (Found::Number(_), other) => other,
            (other, _) => other,
        };
    }
    (slowest, ratio(figures, "streams", "serve_mix, four streams"))
}

/// libbfc's figure over TensorFlow's, or over what else it is held against.
fn ratio(figures: &Value, section: &str, name: &str) -> Found {
    number(figures, section, name, "ratio")
}

/// A figure that may be 0.
fn count(figures: &Value, section: &str, name: &str, key: &str) -> Found {
    let rows = rows(figures, section);
    if rows.is_empty() {
        return Found::Nothing;
    }
    let row = rows.into_iter().find(|row| row["name"] == *name);
    match row.and_then(|row| row[key].as_f64()).filter(|value| *value >= 0.0) {
        Some(value) => Found::Number(value),
        None => Found::Fault(format!("no {key} of {section}, {name}")),
    }
}

/// A figure. The program writes null for what is no number, and leaves TensorFlow's out without it.
fn number(figures: &Value, section: &str, name: &str, key: &str) -> Found {
    let rows = rows(figures, section);
    if rows.is_empty() {
        return Found::Nothing;
    }
    let Some(row) = rows.into_iter().find(|row| row["name"] == *name) else {
        return Found::Fault(format!("{section} has no row {name}"));
    };
    match row.get(key) {
        None if key == "ratio" => Found::Nothing,
        value => match value.and_then(Value::as_f64) {
            Some(value) if value > 0.0 => Found::Number(value),
            _ => Found::Fault(format!("no {key} of {section}, {name}")),
        },
    }
}

fn rows<'a>(figures: &'a Value, section: &str) -> Vec<&'a Value> {
    let rows = figures["results"].as_array().into_iter().flatten();
    rows.filter(|row| row["section"] == *section).collect()
}

/// The table for people.
pub fn table(targets: &[Target]) -> String {
    let header = ("The project's targets", "wanted", "measured", "met");
    let lines = targets.iter().map(|target| {
        let met = match target.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        (&*target.what, &*target.wanted, &*target.measured, met)
    });
    let lines: Vec<_> = std::iter::once(header).chain(lines).collect();
    let [what, wanted, measured] =
        [|line: &Line<'_>| line.0.len(), |line: &Line<'_>| line.1.len(), |line: &Line<'_>| line.2.len()]
            .map(|width| lines.iter().map(width).max().unwrap_or(0));
    let mut text = String::new();
    for line in &lines {
        let _ = writeln!(text, "{:<what$}  {:<wanted$}  {:>measured$}  {}", line.0, line.1, line.2, line.3);
    }
    if targets.iter().any(|target| target.met == Some(false)) {
        text.push_str("A target is missed. Times are noisy: see whether it is again, on an idle machine.\n");
    }
    text
}

type Line<'a> = (&'a str, &'a str, &'a str, &'a str);
