//! `cargo xtask demo`: a newcomer's first impression of the library.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::BinaryBytes;
use serde_json::Value;

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::workspace::{VERSION, Workspace, capture, without};

/// The modes of golden.tsv: the options of `bfc replay` for each, and its description for new readers.
const MODES: [(&str, &[&str], &str); 5] = [
    ("fixed", &[], "one region, roomy"),
    ("tight", &[], "one region, too small for all"),
    ("growth", &["--growth"], "regions on demand"),
    ("growth_gc", &["--growth", "--gc"], "on demand, empty ones given back"),
    ("backpedal", &["--growth", "--gc"], "on demand, a device nearly full"),
];

/// The arguments of `cargo xtask demo`.
#[derive(Args)]
pub struct Demo {
    /// The recorded trace to replay, one of those in tests/traces
    #[arg(long, value_name = "NAME", default_value = "gpt2")]
    trace: String,
}

impl Demo {
    /// Builds, replays on host memory, and compares with TensorFlow's recorded placements.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        // What TensorFlow's own allocator did with the recorded traces.
        let golden = files::read(&workspace.path("tests/traces/golden.tsv"))?;
        let rows = golden.lines().filter(|line| !line.starts_with('#'));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split('\t').collect()).collect();
        let mut known: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        known.dedup();
        let (trace, names) = (&self.trace, known.join(", "));
        ensure!(known.contains(&&**trace), "there is no recorded trace {trace}; there are {names}");
        println!("libbfc {}: TensorFlow's best-fit-with-coalescing (BFC) allocator as a library.\n", VERSION);
        println!("[1/3] Building libbfc.so and the bfc command (release; a minute the first time)");
        let start = Instant::now();
        let built = cargo::build(workspace, Profile::Release)?;
        println!("      done in {:.1} s\n", start.elapsed().as_secs_f64());

        let replay = |options: &[&str]| replay(workspace, &built, trace, options);
        println!("[2/3] Replaying {} through libbfc.so on host memory", self.trace);
        print!("{}", host(&replay(&["--repeat=5", "--warm"])?)?);

        println!("\n[3/3] Replaying it on a simulated device, beside TensorFlow");
        let all_equal = beside_tensorflow(replay, rows.iter().filter(|row| row[0] == *trace))?;
        ensure!(all_equal, "libbfc placed the trace differently from TensorFlow: do not use this build");
        println!("{}", next_steps(workspace, &built));
        Ok(())
    }
}

/// The result of one trace by `bfc replay --json` with more options.
fn replay(workspace: &Workspace, built: &Built, trace: &str, options: &[&str]) -> Result<Value> {
    // Relative to the root, where it runs, because the name is shown.
    let trace = Path::new("tests/traces").join(format!("{trace}.trace.gz"));
    let mut command = workspace.command(&built.command);
    command.arg("--library").arg(&built.shared);
    command.args(["replay", "--json", "--quiet"]).args(options).arg(trace);
    // The demonstration must not depend on the variables of the user's shell.
    let document: Value = serde_json::from_str(&capture(without(&mut command, &["BFC_"]))?)
        .context("bfc replay --json did not print JSON")?;
    Ok(document["traces"][0].clone())
}

/// The result of the run on host memory, for readers who see these figures for the first time.
fn host(result: &Value) -> Result<String> {
    let figure = |path: &str| {
        let value = result.pointer(path).and_then(Value::as_f64);
        value.with_context(|| format!("bfc replay --json has no figure {path}: {result}"))
    };
    let (requests, marks, failed) = (figure("/trace/requests")?, figure("/trace/marks")?, figure("/failed")?);
    let (live, in_use) = (figure("/trace/peak_live_bytes")?, figure("/stats/peak_bytes_in_use")?);
    let (pool, metadata) = (figure("/stats/peak_pool_bytes")?, figure("/stats/metadata_bytes")?);
    let ns = figure("/ns_per_op/best")?;
    // TensorFlow's allocator finds a pointer's chunk in a table, which it fills when it takes a region.
    let table = (pool / 256.0).floor() * 8.0;
    ensure!(failed == 0.0, "{failed} requests failed on host memory, in a pool with room for all of them");
    let slack = (in_use / live.max(1.0) - 1.0) * 100.0;
    let occupancy = result["peak"]["occupancy"].as_str().unwrap_or_default().trim_end();
    Ok(format!(
        "
      what ran       {requests} allocations and their frees, in {marks} steps, recorded from PyTorch
      failed         none
      time           {ns:.0} ns for an allocation or a free, through the C ABI
      beside it      `cargo xtask bench` times TensorFlow's allocator in the same run
      alive at once  {live}: the most that the program needed at any moment
      in chunks      {in_use}: what that took in the pool, {slack:.1}% more; a chunk
                     may be larger than the request, as TensorFlow's are
      pool           {pool}: address space held; the host gives memory only to pages
                     that are touched, and a replay touches none
      metadata       {metadata} of host memory. For a pool of this size TensorFlow's table of
                     pointers alone takes {table} (computed: 8 bytes for each 256)

      The pool at that moment, from its first byte to its last (* used, x lost inside chunks, _ free):
      {occupancy}
",
        live = size(live),
        in_use = size(in_use),
        pool = size(pool),
        metadata = size(metadata),
        table = size(table),
    ))
}

/// Replays in every mode in which the trace was recorded. Returns whether all addresses are TensorFlow's.
fn beside_tensorflow<'a>(
    replay: impl Fn(&[&str]) -> Result<Value>,
    rows: impl Iterator<Item = &'a Vec<&'a str>>,
) -> Result<bool> {
    println!(
        "
      Each run's addresses make one hash; TensorFlow's were recorded in tests/traces/golden.tsv.

      {:<33} {:<17} {:<17} failed",
        "pool", "libbfc", "TensorFlow 2.21"
    );
    let (mut all_equal, mut placed) = (true, 0);
    for row in rows {
        let [_, mode, limit, capacity, theirs, failed, ..] = row[..] else {
            bail!("golden.tsv has a short row: {row:?}");
        };
        let known = MODES.into_iter().find(|(name, ..)| *name == mode);
        let (_, flags, mode) = known.with_context(|| format!("golden.tsv has an unknown mode {mode}"))?;
        let sizes = ["--limit", limit, "--device-capacity", capacity];
        let result = replay(&[&sizes, flags].concat())?;
        let hash = result["fnv1a64"].as_str().unwrap_or("none");
        let equal = hash == theirs && result["failed"].as_u64() == Some(failed.parse()?);
        all_equal &= equal;
        placed += result["stats"]["num_allocs"].as_u64().unwrap_or(0);
        let mark = if equal { "equal" } else { "DIFFERENT" };
        println!("      {mode:<33} {hash:<17} {theirs:<17} {failed:<6} {mark}");
    }
    if all_equal {
        println!(
            "
      Every one of these {placed} addresses is where TensorFlow 2.21 would have put it, and the
      requests that failed are those that TensorFlow could not serve either."
        );
    }
    Ok(all_equal)
}

fn next_steps(workspace: &Workspace, built: &Built) -> String {
    // As typed in the checkout.
    let relative = |path: &Path| {
        let inside = path.strip_prefix(&workspace.root).unwrap_or(path);
        inside.display().to_string()
    };
    let replay = format!("{} replay", relative(&built.command));
    let steps = [
        (format!("{replay} --help"), "all options of a replay"),
        (format!("{replay} --report tests/traces/vit.trace.gz"), "where the memory went"),
        (format!("{replay} --find-limit tests/traces/*.gz"), "the least memory that suffices"),
        (
            format!("{} run --check -- PROGRAM", relative(&built.command)),
            "a program with libbfc's cudaMalloc",
        ),
        ("cargo xtask demo --trace resnet50".into(), "another recorded program"),
        ("cargo xtask test".into(), "the tests"),
        ("cargo xtask bench".into(), "the speed, beside TensorFlow's own"),
        ("cargo xtask install --prefix ~/.local".into(), "the library for C, C++ and CMake"),
    ];
    let width = steps.iter().map(|(step, _)| step.len()).max().unwrap_or(0);
    let mut text = "\nWhat to try next:".to_owned();
    for (step, gives) in &steps {
        text.push_str(&format!("\n  {step:width$}  {gives}"));
    }
    text
}

/// A size as people say it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn size(bytes: f64) -> BinaryBytes {
    BinaryBytes(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_figure_and_a_failed_request_are_errors() {
        let result = json!({
            "trace": {"requests": 4735, "marks": 3, "peak_live_bytes": 1_u64 << 30},
            "stats": {"peak_bytes_in_use": 3_u64 << 29, "peak_pool_bytes": 1_u64 << 31, "metadata_bytes": 74016},
            "failed": 0,
            "ns_per_op": {"best": 41.7},
        });
        let text = host(&result).expect("all figures are there");
        assert!(text.contains("50.0% more") && text.contains("alone takes 64.00 MiB (computed"), "{text}");
        for (pointer, bad) in [("/stats/metadata_bytes", Value::Null), ("/failed", 1.into())] {
            let mut result = result.clone();
            *result.pointer_mut(pointer).expect("a figure") = bad;
            assert!(host(&result).is_err(), "{pointer}");
        }
    }
}
