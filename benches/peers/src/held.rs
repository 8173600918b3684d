//! How much memory peers hold on recorded programs, as their users get them: on demand, with their defaults.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::native;
use crate::program::Name;

/// A way to use a peer.
pub struct Way {
    /// What tables and charts show.
    pub name: &'static str,
    pub peer: &'static str,
    /// Variables of its environment.
    variables: &'static [(&'static str, &'static str)],
    pub remark: &'static str,
}

/// All ways, libbfc's first.
pub const WAYS: [Way; 5] = [
    Way {
        name: "libbfc, cuda_vmm",
        peer: "libbfc",
        variables: &[("BFC_BACKEND", "cuda_vmm")],
        remark: "NULL options with `BFC_BACKEND=cuda_vmm`, as PyTorch gets it",
    },
    Way { name: "libbfc, cuda", peer: "libbfc", variables: &[], remark: "NULL options" },
    Way { name: "pytorch", peer: "pytorch", variables: &[], remark: "the native CUDACachingAllocator" },
    Way { name: "tensorflow", peer: "tensorflow", variables: &[], remark: "`allow_growth`, without a limit" },
    Way { name: "rmm-pool", peer: "rmm-pool", variables: &[], remark: "a pool that begins empty" },
];

/// What a peer held on a program.
#[derive(Serialize)]
pub struct Held {
    pub way: String,
    pub program: String,
    /// The most that it held over the most that was live, each allocation rounded up to 256 bytes.
    pub share: Option<f64>,
    pub why_not: Option<String>,
}

/// Runs a program in this process and prints what its peer held.
pub fn serve(program: &Name) -> Result<()> {
    let program = program.load()?;
    println!("{}", native::held(&program)? as f64 / program.peak as f64);
    Ok(())
}

/// Measures all ways on a program. `command` starts a peer's process, or says why there is none.
pub fn measure(program: &Name, command: impl Fn(&str) -> Result<Command>) -> Vec<Held> {
    let measured = WAYS.iter().map(|way| {
        let share = command(way.peer).and_then(|mut command| {
            command.envs(way.variables.iter().copied());
            run(command)
        });
        let (way, program) = (way.name.to_owned(), program.title());
        match share {
            Ok(share) => Held { way, program, share: Some(share), why_not: None },
            Err(why) => Held { way, program, share: None, why_not: Some(format!("{why:#}")) },
        }
    });
    measured.collect()
}

fn run(mut command: Command) -> Result<f64> {
    let output = command.output().context("cannot start the peer's process")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}",
            said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed and said nothing")
        );
    }
    text.trim().parse().with_context(|| format!("instead of a number it said {text}"))
}

/// The geometric mean of a way on all programs. Nothing unless it ran all of them.
pub fn mean(held: &[Held], way: &str) -> Option<f64> {
    let shares: Vec<f64> =
        held.iter().filter(|held| held.way == way).map(|held| held.share).collect::<Option<_>>()?;
    let logs: f64 = shares.iter().map(|share| share.ln()).sum();
    (!shares.is_empty()).then(|| (logs / shares.len() as f64).exp())
}

/// Writes a table.
pub fn section(page: &mut String, held: &[Held]) {
    use std::fmt::Write as _;
    let mut programs: Vec<&str> = held.iter().map(|held| held.program.as_str()).collect();
    programs.dedup();
    let _ = writeln!(
        page,
        "\n## Memory held\n\nThe most that was held over the most that was live, on the simulated device, with the defaults that \
         users get.\n\n| | geometric mean | {} | |\n|---|--:|{}---|",
        programs.join(" | "),
        "--:|".repeat(programs.len()),
    );
    for way in &WAYS {
        let cells = held.iter().filter(|held| held.way == way.name).map(|held| match &held.share {
            Some(share) => format!("{share:.3}"),
            None => "-".to_owned(),
        });
        let mean = mean(held, way.name).map_or_else(|| "-".to_owned(), |mean| format!("{mean:.3}"));
        let cells: Vec<String> = std::iter::once(mean).chain(cells).collect();
        let _ = writeln!(page, "| {} | {} | {} |", way.name, cells.join(" | "), way.remark);
    }
    for held in held {
        if let Some(why) = &held.why_not {
            let _ = writeln!(page, "\n{} did not run {}: {why}", held.way, held.program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(way: &str, program: &str, share: Option<f64>) -> Held {
        Held { way: way.to_owned(), program: program.to_owned(), share, why_not: None }
    }

    #[test]
    fn a_mean_is_of_all_programs_or_none() {
        let all = [
            held("pytorch", "vit", Some(1.0)),
            held("pytorch", "gpt2", Some(4.0)),
            held("rmm-pool", "vit", None),
        ];
        assert_eq!(mean(&all, "pytorch"), Some(2.0));
        assert_eq!(mean(&all, "rmm-pool"), None);
        assert_eq!(mean(&all, "tensorflow"), None);
    }

    #[test]
    fn a_process_that_fails_says_why() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command)
        };
        assert_eq!(shell("echo 1.25").unwrap(), 1.25);
        assert_eq!(shell("echo no device >&2; exit 1").unwrap_err().to_string(), "no device");
        assert!(shell("echo nothing").unwrap_err().to_string().contains("instead of a number"));
    }
}
