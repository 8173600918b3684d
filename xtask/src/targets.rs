//! The project's targets for speed and host memory, and whether the measured figures meet them.

use serde_json::Value;

/// The number of recorded programs; a mean over fewer is not comparable.
const TRACES: usize = 7;

/// Programs with a peak over this count for the interposer's target.
const LARGE: f64 = (1_u64 << 30) as f64;

/// A target and its outcome.
pub struct Target {
    what: String,
    wanted: String,
    measured: String,
    /// Whether it is met; `None` if it was not measured.
    pub met: Option<bool>,
}

/// Why there is no number.
#[derive(Clone)]
enum Missing {
    /// The figure is absent from its section or is no number: the target is missed.
    Fault(String),
    /// Its section was not run, or TensorFlow is not available.
    NotMeasured,
}

type Found = Result<f64, Missing>;

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Under(f64),
}

use Bound::{AtLeast, AtMost, Under};

/// All targets, for the rows of all sections of the benchmark.
pub fn judge(figures: &Value) -> Vec<Target> {
    let figures = Figures(figures);
    let ratio = |section: &str, name: &str| figures.number(section, name, "ratio");
    let own = |section: &str, name: &str| figures.number(section, name, "libbfc");
    let quotient = |section: &str, over: &str, under: &str| Ok(own(section, over)? / own(section, under)?);
    let calls = |name: &str, key: &str| figures.count("driver_calls", name, key);

    // The first pass over a fresh allocator is over at once, so its time is noisy.
    let ratios = figures.column("traces", "ratio", TRACES, |name| !name.ends_with(", first pass"));
    let gains: Result<Vec<f64>, Missing> = ratios.map(|all| all.iter().map(|ratio| 1.0 / ratio).collect());
    let one_stream = figures.column("streams", "ratio", TRACES, |name| name.ends_with(", one stream"));
    let waste = figures.waste(TRACES, |_| true);
    // The peak of mlp_tiny is twenty granules: it shows the size of a granule.
    let large_waste = figures.waste(TRACES - 1, |name| name != "mlp_tiny");

    let speed = "times TensorFlow's speed";
    let pairs = "times TensorFlow's";
    let plain = "times the plain pair";
    let live = "times the live bytes";
    let mut targets = vec![
        target("recorded programs, geometric mean", mean(&gains), AtLeast(4.0), speed),
        target("the recorded program with the least gain", least(&gains), AtLeast(3.0), speed),
    ];
    for (sizes, suffix, bound) in [("uniform", "", 4.0), ("log-uniform", ", log-uniform", 2.5)] {
        for live in [100, 1000, 10_000, 100_000] {
            let gain = ratio("random_sizes", &format!("{live} live{suffix}")).map(|ratio| 1.0 / ratio);
            targets.push(target(&format!("random sizes, {sizes}, {live} live"), gain, AtLeast(bound), speed));
        }
    }
    let million = quotient("random_sizes", "1000000 live", "1000 live");
    let crowd = quotient("threads", "8 threads", "2 threads");
    // Ratios of threads are of pairs a second, so more is better.
    let threads = |name: &str| ratio("threads", name);
    let four_streams = ratio("streams", "serve_mix, four streams");
    let never_in_step = ratio("streams", "serve_mix, four, never in step");
    let alone = calls("one stream alone, free", "libbfc");
    let of_thread = calls("a thread's default stream alone, free", "libbfc");
    let several = calls("four streams, free", "events");
    let recorded = calls("two streams, a use recorded on the other, free", "events");
    let wall_time = own("first_allocation", "wall time");
    let resident = own("first_allocation", "growth of resident memory");
    let metadata = own("host_memory", "metadata_bytes");
    let interposed = ratio("preload", "a pair, with the interposer");
    let frees = figures.fewest_frees();
    targets.extend([
        target("random sizes, uniform, a million live", million, AtMost(20.0), "times a thousand live"),
        target("1 thread on one device, pairs a second", threads("1 thread"), AtLeast(4.0), pairs),
        target("2 threads on one device, pairs a second", threads("2 threads"), AtLeast(3.0), pairs),
        target("4 threads on one device, pairs a second", threads("4 threads"), AtLeast(2.5), pairs),
        target("8 threads on one device, pairs a second", threads("8 threads"), AtLeast(2.5), pairs),
        target("8 threads on one device, pairs a second of all", crowd, AtLeast(1.0), "times those of 2"),
        target("bfc_alloc_async and bfc_free_async, one stream", most(&one_stream), AtMost(1.5), plain),
        target("the same on four streams, serve_mix", four_streams, AtMost(1.6), plain),
        target("the same without synchronisations", never_in_step, AtMost(1.6), plain),
        target("driver calls of a free, one stream alone", alone, AtMost(0.0), "calls"),
        target("driver calls of a free, a thread's default stream", of_thread, AtMost(2.0), "calls"),
        target("events that a free records, four streams", several, AtMost(1.0), "events"),
        target("the same, with a use recorded on one other stream", recorded, AtMost(2.0), "events"),
        target("creation and first allocation, pool of 80 GiB", wall_time, Under(1.0), "ms"),
        target("resident memory that takes", resident, Under(2.0), "MiB"),
        target("host memory a chunk, a million live", metadata, AtMost(100.0), "bytes"),
        target("least limit on HOST_VMM, geometric mean of programs", mean(&waste), AtMost(1.01), live),
        target("the program that needs most, but for mlp_tiny", most(&large_waste), AtMost(1.02), live),
        target("a pair through the interposer, driver included", interposed, AtMost(3.0), plain),
        target("its synchronisations, limit of twice a peak over 1 GiB", frees, AtLeast(100.0), "frees each"),
    ]);
    targets
}

fn target(what: &str, found: Found, bound: Bound, unit: &str) -> Target {
    let (wanted, is_met): (String, fn(f64, f64) -> bool) = match bound {
        AtLeast(bound) => (format!("at least {bound} {unit}"), |value, bound| value >= bound),
        AtMost(bound) => (format!("at most {bound} {unit}"), |value, bound| value <= bound),
        Under(bound) => (format!("under {bound} {unit}"), |value, bound| value < bound),
    };
    let (AtLeast(limit) | AtMost(limit) | Under(limit)) = bound;
    let (measured, met) = match found {
        Ok(value) => (format!("{value:.3}"), Some(is_met(value, limit))),
        Err(Missing::Fault(why)) => (why, Some(false)),
        Err(Missing::NotMeasured) => ("not measured".to_owned(), None),
    };
    Target { what: what.to_owned(), wanted, measured, met }
}

/// The geometric mean.
fn mean(column: &Result<Vec<f64>, Missing>) -> Found {
    let column = column.clone()?;
    Ok((column.iter().map(|value| value.ln()).sum::<f64>() / column.len() as f64).exp())
}

fn least(column: &Result<Vec<f64>, Missing>) -> Found {
    Ok(column.clone()?.into_iter().fold(f64::INFINITY, f64::min))
}

fn most(column: &Result<Vec<f64>, Missing>) -> Found {
    Ok(column.clone()?.into_iter().fold(0.0, f64::max))
}

/// The rows of all sections, as the benchmark writes them.
struct Figures<'a>(&'a Value);

impl<'a> Figures<'a> {
    /// The rows of a section that was run.
    fn rows(&self, section: &str) -> Result<Vec<&'a Value>, Missing> {
        let rows = self.0["results"].as_array().into_iter().flatten();
        let rows: Vec<&Value> = rows.filter(|row| row["section"] == *section).collect();
        if rows.is_empty() { Err(Missing::NotMeasured) } else { Ok(rows) }
    }

    /// A figure that may be 0.
    fn count(&self, section: &str, name: &str, key: &str) -> Found {
        let row = self.rows(section)?.into_iter().find(|row| row["name"] == *name);
        let row = row.ok_or_else(|| Missing::Fault(format!("{section} has no row {name}")))?;
        // Without TensorFlow there is nothing to compare with.
        if key == "ratio" && row.get(key).is_none() {
            return Err(Missing::NotMeasured);
        }
        let value = row[key].as_f64().filter(|value| *value >= 0.0);
        value.ok_or_else(|| Missing::Fault(format!("no {key} of {section}, {name}")))
    }

    /// A figure that cannot be 0.
    fn number(&self, section: &str, name: &str, key: &str) -> Found {
        match self.count(section, name, key)? {
            0.0 => Err(Missing::Fault(format!("{key} of {section}, {name} is 0"))),
            value => Ok(value),
        }
    }

    /// The figures of at least `expected` rows with such names.
    fn column(
        &self,
        section: &str,
        key: &str,
        expected: usize,
        is_named: impl Fn(&str) -> bool,
    ) -> Result<Vec<f64>, Missing> {
        let rows = self.rows(section)?;
        let names = rows.iter().filter_map(|row| row["name"].as_str()).filter(|name| is_named(name));
        let column =
            names.map(|name| self.number(section, name, key)).collect::<Result<Vec<f64>, Missing>>()?;
        match column.len() {
            found if found < expected => Err(Missing::Fault(format!("{found} of {expected} were run"))),
            _ => Ok(column),
        }
    }

    /// Least limits over the live bytes.
    fn waste(&self, expected: usize, is_named: impl Fn(&str) -> bool) -> Result<Vec<f64>, Missing> {
        let column = self.column("waste", "libbfc", expected, is_named)?;
        if column.iter().any(|ratio| *ratio < 1.0) {
            return Err(Missing::Fault("a limit below the live bytes".to_owned()));
        }
        Ok(column)
    }

    /// The fewest frees for a synchronisation of the large programs on regions.
    fn fewest_frees(&self) -> Found {
        let rows = self.rows("preload")?;
        let on_regions =
            rows.iter().filter(|row| row["name"].as_str().is_some_and(|it| it.ends_with(", cuda")));
        let large = on_regions.filter(|row| row["peak"].as_f64() > Some(LARGE));
        let frees = large.filter_map(|row| row["frees at 2"].as_f64());
        frees.reduce(f64::min).ok_or(Missing::NotMeasured)
    }
}

/// The table for people.
pub fn table(targets: &[Target]) -> String {
    let mut text = format!("{:<55}  {:<36}  {:>12}  met\n", "The project's targets", "wanted", "measured");
    for Target { what, wanted, measured, met } in targets {
        let met = met.map_or("-", |met| if met { "yes" } else { "NO" });
        text += &format!("{what:<55}  {wanted:<36}  {measured:>12}  {met}\n");
    }
    if targets.iter().any(|target| target.met == Some(false)) {
        text += "A target is missed. Times are noisy: see whether it is again, on an idle machine.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Figures each of which just meets its target.
    fn good() -> Vec<Value> {
        let mut rows = Vec::new();
        let mut add = |section: &str, name: &str, more: Value| {
            let mut row = json!({"section": section, "name": name});
            // These are held against each other.
            match name {
                "1000 live" => row["libbfc"] = 40.0.into(),
                "2 threads" | "8 threads" => row["libbfc"] = 9.0.into(),
                _ => {}
            }
            row.as_object_mut().expect("a row").extend(more.as_object().expect("fields").clone());
            rows.push(row);
        };
        for (number, gain) in [3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0 * 4.0 / 3.0].into_iter().enumerate() {
            add("traces", &format!("trace{number}"), json!({"ratio": 1.0 / (gain + 1e-9)}));
            add("traces", &format!("trace{number}, first pass"), json!({"ratio": 5.0}));
            add("streams", &format!("trace{number}, one stream"), json!({"ratio": 1.5}));
            let waste = [1.03, 1.02, 1.019, 1.0, 1.0, 1.0, 1.0][number];
            let name = if number == 0 { "mlp_tiny".to_owned() } else { format!("trace{number}") };
            add("waste", &name, json!({"libbfc": waste}));
        }
        add("streams", "serve_mix, four streams", json!({"ratio": 1.6}));
        add("streams", "serve_mix, four, never in step", json!({"ratio": 1.6}));
        for live in [100, 1000, 10_000, 100_000] {
            add("random_sizes", &format!("{live} live"), json!({"ratio": 0.25}));
            add("random_sizes", &format!("{live} live, log-uniform"), json!({"ratio": 0.4}));
        }
        add("random_sizes", "1000000 live", json!({"libbfc": 800.0}));
        add("first_allocation", "wall time", json!({"libbfc": 0.999}));
        add("first_allocation", "growth of resident memory", json!({"libbfc": 1.999}));
        add("host_memory", "metadata_bytes", json!({"libbfc": 100.0}));
        for (name, ratio) in [("1 thread", 4.0), ("2 threads", 3.0), ("4 threads", 2.5), ("8 threads", 2.5)] {
            add("threads", name, json!({"ratio": ratio}));
        }
        add("preload", "a pair, with the interposer", json!({"ratio": 3.0}));
        add("preload", "a, cuda", json!({"peak": 2_u64 << 30, "frees at 2": 100.0}));
        add("preload", "a, cuda_vmm", json!({"peak": 2_u64 << 30, "frees at 2": 1.0}));
        add("preload", "small, cuda", json!({"peak": 1, "frees at 2": 1.0}));
        add("driver_calls", "one stream alone, free", json!({"libbfc": 0.0}));
        add("driver_calls", "four streams, free", json!({"events": 1.0}));
        add("driver_calls", "two streams, a use recorded on the other, free", json!({"events": 2.0}));
        add("driver_calls", "a thread's default stream alone, free", json!({"libbfc": 2.0}));
        rows
    }

    fn judged(rows: Vec<Value>) -> Vec<Target> {
        judge(&json!({"results": rows}))
    }

    /// The good figures with one changed.
    fn with(section: &str, name: &str, key: &str, value: impl Into<Value>) -> Vec<Value> {
        let mut rows = good();
        let row = rows.iter_mut().find(|row| row["section"] == *section && row["name"] == *name);
        row.expect("a row of that name")[key] = value.into();
        rows
    }

    fn without(name: &str) -> Vec<Value> {
        good().into_iter().filter(|row| row["name"] != *name).collect()
    }

    fn missed(rows: Vec<Value>) -> usize {
        judged(rows).iter().filter(|target| target.met == Some(false)).count()
    }

    #[test]
    fn figures_that_just_reach_all_targets_pass() {
        let targets = judged(good());
        assert_eq!(targets.len(), 30);
        assert!(targets.iter().all(|target| target.met == Some(true)), "{}", table(&targets));
        assert!(!table(&targets).contains("missed"));
    }

    #[test]
    fn each_figure_a_little_worse_is_a_target_missed() {
        for row in good() {
            for key in ["libbfc", "ratio", "events", "frees at 2"] {
                let Some(value) = row[key].as_f64() else { continue };
                let [section, name] = ["section", "name"].map(|key| row[key].as_str().expect("text"));
                // The first is better if it is lower, the second if it is higher; every figure has one of them that counts.
                let worse =
                    [value * 1.2 + 0.01, value / 1.2].map(|bad| missed(with(section, name, key, bad)));
                let is_judged =
                    !name.ends_with("first pass") && !["a, cuda_vmm", "small, cuda"].contains(&name);
                assert_eq!(worse.iter().sum::<usize>() > 0, is_judged, "{section}, {name}, {key}");
            }
        }
        assert!(table(&judged(with("threads", "1 thread", "ratio", 3.99))).contains("A target is missed."));
    }

    #[test]
    fn a_figure_that_is_absent_or_no_number_is_a_target_missed() {
        for (section, name, key, targets) in [
            ("traces", "trace3", "ratio", 2),
            ("threads", "2 threads", "ratio", 1),
            ("host_memory", "metadata_bytes", "libbfc", 1),
            ("streams", "trace5, one stream", "ratio", 1),
            ("driver_calls", "four streams, free", "events", 1),
            ("waste", "trace6", "libbfc", 2),
        ] {
            assert_eq!(missed(with(section, name, key, Value::Null)), targets, "{name}");
        }
        assert_eq!(missed(with("host_memory", "metadata_bytes", "libbfc", 0)), 1);
        assert_eq!(missed(with("waste", "trace6", "libbfc", 0.99)), 2);
        for (name, targets) in
            [("1000 live", 2), ("trace6, one stream", 1), ("serve_mix, four streams", 1), ("trace6", 4)]
        {
            assert_eq!(missed(without(name)), targets, "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_missed() {
        let not_measured = |rows: Vec<Value>| {
            let targets = judged(rows);
            assert!(targets.iter().all(|target| target.met != Some(false)), "{}", table(&targets));
            targets.iter().filter(|target| target.met.is_none()).count()
        };
        let mut alone = good();
        alone.iter_mut().for_each(|row| drop(row.as_object_mut().expect("a row").remove("ratio")));
        assert_eq!(not_measured(alone), 18);
        for (section, targets) in [("traces", 2), ("waste", 2), ("preload", 2), ("driver_calls", 4)] {
            let rest = good().into_iter().filter(|row| row["section"] != *section);
            assert_eq!(not_measured(rest.collect()), targets, "{section}");
        }
        assert_eq!(not_measured(Vec::new()), 30);
    }
}
