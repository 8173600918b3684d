//! The project's targets for speed and host memory, benches/targets.tsv, and whether the measured figures meet them.

use serde_json::Value;

const TARGETS: &str = include_str!("../../benches/targets.tsv");

/// The number of recorded programs; a mean over fewer is not comparable.
const TRACES: usize = 7;

/// Recorded programs with a smaller peak do not count for the interposer's target.
const LARGE: f64 = (1_u64 << 30) as f64;

/// A target and its outcome.
pub struct Target {
    what: &'static str,
    wanted: String,
    measured: String,
    /// Whether it is met; `None` if it was not measured.
    pub met: Option<bool>,
}

/// Why there is no number.
enum Missing {
    /// The figure is absent from its section or is no number: the target is missed.
    Fault(String),
    /// Its section was not run, or TensorFlow is not available.
    NotMeasured,
}

type Found<T = f64> = Result<T, Missing>;

/// The columns of the table.
fn targets() -> impl Iterator<Item = [&'static str; 6]> {
    let lines = TARGETS.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('\t').collect::<Vec<_>>().try_into().expect("a target has six columns"))
}

/// All targets, for the rows of all sections of the benchmark.
pub fn judge(figures: &Value) -> Vec<Target> {
    let figures = Figures(figures);
    let judged = targets().map(|[what, section, rows, figure, wanted, unit]| {
        let (measured, met) = match figures.find(section, rows, figure) {
            Ok(value) => (format!("{value:.3}"), Some(is_met(value, wanted))),
            Err(Missing::Fault(why)) => (why, Some(false)),
            Err(Missing::NotMeasured) => ("not measured".to_owned(), None),
        };
        Target { what, wanted: format!("{wanted} {unit}"), measured, met }
    });
    judged.collect()
}

fn is_met(value: f64, wanted: &str) -> bool {
    let (word, limit) = wanted.rsplit_once(' ').expect("a word and a number");
    let limit: f64 = limit.parse().expect("a word and a number");
    match word {
        "at least" => value >= limit,
        "at most" => value <= limit,
        "under" => value < limit,
        _ => unreachable!("{wanted}"),
    }
}

/// The rows of all sections, as the benchmark writes them.
struct Figures<'a>(&'a Value);

impl<'a> Figures<'a> {
    fn find(&self, section: &str, rows: &str, figure: &str) -> Found {
        if let Some((figure, other)) = figure.split_once(" / ") {
            return Ok(self.number(section, rows, figure)? / self.number(section, other, figure)?);
        }
        let Some(rows) = rows.strip_prefix('*') else { return self.number(section, rows, figure) };
        let (fold, key) = figure.split_once(' ').expect("a fold and a key");
        let column = self.column(section, rows, key)?;
        Ok(match fold {
            "mean" => (column.iter().map(|value| value.ln()).sum::<f64>() / column.len() as f64).exp(),
            "least" => column.into_iter().fold(f64::INFINITY, f64::min),
            _ => column.into_iter().fold(0.0, f64::max),
        })
    }

    /// The rows of a section that was run.
    fn rows(&self, section: &str) -> Found<Vec<&'a Value>> {
        let rows = self.0["results"].as_array().into_iter().flatten();
        let rows: Vec<&Value> = rows.filter(|row| row["section"] == *section).collect();
        if rows.is_empty() { Err(Missing::NotMeasured) } else { Ok(rows) }
    }

    /// A figure. Only a count of driver calls may be 0.
    fn number(&self, section: &str, name: &str, key: &str) -> Found {
        if key == "gain" {
            return Ok(1.0 / self.number(section, name, "ratio")?);
        }
        let row = self.rows(section)?.into_iter().find(|row| row["name"] == *name);
        let row = row.ok_or_else(|| Missing::Fault(format!("{section} has no row {name}")))?;
        // Without TensorFlow there is nothing to compare with.
        if key == "ratio" && row.get(key).is_none() {
            return Err(Missing::NotMeasured);
        }
        let is_good = |value: &f64| match section {
            "driver_calls" => *value >= 0.0,
            // A limit below the live bytes.
            "waste" => *value >= 1.0,
            _ => *value > 0.0,
        };
        let value = row[key].as_f64().filter(is_good);
        value.ok_or_else(|| Missing::Fault(format!("{key} of {section}, {name} is {}", row[key])))
    }

    /// The figures of all recorded programs, whose rows end in this way, or of all but one.
    fn column(&self, section: &str, rows: &str, key: &str) -> Found<Vec<f64>> {
        let (end, left_out) = rows.split_once(" but ").unwrap_or((rows, ""));
        // The first pass over a new allocator is short, so its time is noisy, and its row ends differently.
        let is_one =
            |name: &str| name != left_out && name.strip_suffix(end).is_some_and(|it| !it.contains(','));
        let large =
            self.rows(section)?.into_iter().filter(|row| row["peak"].as_f64().unwrap_or(LARGE) >= LARGE);
        let names = large.filter_map(|row| row["name"].as_str()).filter(|name| is_one(name));
        let column = names.map(|name| self.number(section, name, key)).collect::<Found<Vec<f64>>>()?;
        let expected = if section == "preload" { 1 } else { TRACES - usize::from(!left_out.is_empty()) };
        match column.len() {
            found if found < expected => Err(Missing::Fault(format!("{found} of {expected} were run"))),
            _ => Ok(column),
        }
    }
}

/// The table for people.
pub fn table(targets: &[Target]) -> String {
    let mut text = format!("{:<55}  {:<38}  {:>12}  met\n", "The project's targets", "wanted", "measured");
    for Target { what, wanted, measured, met } in targets {
        let Some(met) = met else { continue };
        let met = if *met { "yes" } else { "NO" };
        text += &format!("{what:<55}  {wanted:<38}  {measured:>12}  {met}\n");
    }
    if let not_measured @ 1.. = targets.iter().filter(|target| target.met.is_none()).count() {
        text += &format!("{not_measured} more were not measured.\n");
    }
    if targets.iter().any(|target| target.met == Some(false)) {
        text += "A target is missed. Times are noisy: repeat the run on an idle machine.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    type Rows = Vec<Value>;

    fn set(rows: &mut Rows, section: &str, name: &str, key: &str, value: impl Into<Value>) {
        let is_it = |row: &Value| row["section"] == *section && row["name"] == *name;
        if !rows.iter().any(is_it) {
            rows.push(json!({"section": section, "name": name}));
        }
        rows.iter_mut().find(|row| is_it(row)).expect("it is there")[key] = value.into();
    }

    /// Figures each of which just meets its target, except for one, which misses it by as much.
    fn figures(worse: &str, by: f64) -> Rows {
        let mut rows = Vec::new();
        for [what, section, name, figure, wanted, _] in targets().filter(|target| !target[2].starts_with('*'))
        {
            let (word, limit) = wanted.rsplit_once(' ').expect("a word and a number");
            let by = if what == worse { by } else { 0.0 };
            let by = if word == "at least" { -by } else { by };
            let value =
                limit.parse::<f64>().expect("a number") + by - if word == "under" { 0.001 } else { 0.0 };
            match figure.split_once(" / ") {
                Some((figure, other)) => {
                    set(&mut rows, section, name, figure, value * 10.0);
                    set(&mut rows, section, other, figure, 10.0);
                }
                None if figure == "gain" => set(&mut rows, section, name, "ratio", 1.0 / value),
                None => set(&mut rows, section, name, figure, value),
            }
        }
        for (number, gain) in [3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0 * 4.0 / 3.0].into_iter().enumerate() {
            let name = if number == 0 { "mlp_tiny".to_owned() } else { format!("trace{number}") };
            set(&mut rows, "traces", &name, "ratio", 1.0 / (gain + 1e-9));
            set(&mut rows, "traces", &format!("{name}, first pass"), "ratio", 5.0);
            set(&mut rows, "streams", &format!("{name}, one stream"), "ratio", 1.5);
            set(&mut rows, "waste", &name, "libbfc", [1.03, 1.02, 1.019, 1.0, 1.0, 1.0, 1.0][number]);
        }
        for (name, peak, frees) in
            [("a, cuda", LARGE, 100.0), ("a, cuda_vmm", LARGE, 1.0), ("b, cuda", 1.0, 1.0)]
        {
            set(&mut rows, "preload", name, "peak", peak);
            set(&mut rows, "preload", name, "frees at 2", frees);
        }
        rows
    }

    /// The targets that are missed if good figures are changed.
    fn missed(change: impl FnOnce(&mut Rows)) -> usize {
        let mut rows = figures("", 0.0);
        change(&mut rows);
        judge(&json!({"results": rows})).iter().filter(|target| target.met == Some(false)).count()
    }

    #[test]
    fn figures_that_just_reach_all_targets_pass_and_worse_ones_do_not() {
        let judged = |worse: &str| judge(&json!({"results": figures(worse, 0.01)}));
        assert!(judged("").iter().all(|target| target.met == Some(true)), "{}", table(&judged("")));
        for [what, ..] in targets().filter(|target| !target[2].starts_with('*')) {
            let missed = judged(what).into_iter().filter(|target| target.met != Some(true));
            assert_eq!(missed.map(|target| target.what).collect::<Vec<_>>(), [what]);
        }
        assert!(table(&judged("1 thread on one device, pairs a second")).contains("A target is missed."));
        for (section, name, key, worse, targets) in [
            ("traces", "mlp_tiny", "ratio", 0.34, 2),
            ("traces", "trace1, first pass", "ratio", 9.0, 0),
            ("streams", "trace5, one stream", "ratio", 1.51, 1),
            ("waste", "trace1", "libbfc", 1.03, 2),
            ("waste", "trace6", "libbfc", 0.99, 2),
            ("preload", "a, cuda", "frees at 2", 99.0, 1),
            ("preload", "b, cuda", "frees at 2", 0.5, 0),
        ] {
            assert_eq!(missed(|rows| set(rows, section, name, key, worse)), targets, "{section}, {name}");
        }
    }

    #[test]
    fn a_figure_that_is_absent_or_no_number_is_a_target_missed() {
        for (section, name, key, targets) in [
            ("traces", "trace3", "ratio", 2),
            ("threads", "2 threads", "ratio", 1),
            ("driver_calls", "four streams, free", "events", 1),
            ("waste", "trace6", "libbfc", 2),
        ] {
            assert_eq!(missed(|rows| set(rows, section, name, key, Value::Null)), targets, "{name}");
        }
        assert_eq!(missed(|rows| set(rows, "host_memory", "metadata_bytes", "libbfc", 0.0)), 1);
        for (name, targets) in [("1000 live", 2), ("trace6, one stream", 1), ("trace6", 4)] {
            assert_eq!(missed(|rows| rows.retain(|row| row["name"] != *name)), targets, "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_missed() {
        let not_measured = |rows: Rows| {
            let targets = judge(&json!({"results": rows}));
            assert!(targets.iter().all(|target| target.met != Some(false)), "{}", table(&targets));
            targets.iter().filter(|target| target.met.is_none()).count()
        };
        let mut alone = figures("", 0.0);
        alone.iter_mut().for_each(|row| drop(row.as_object_mut().expect("a row").remove("ratio")));
        assert_eq!(not_measured(alone), 18);
        for (section, targets) in [("traces", 2), ("waste", 2), ("preload", 2), ("driver_calls", 4)] {
            let rest = figures("", 0.0).into_iter().filter(|row| row["section"] != *section);
            assert_eq!(not_measured(rest.collect()), targets, "{section}");
        }
        assert_eq!(not_measured(Vec::new()), targets().count());
    }
}
