//! What is left of a process: its trace and its counters must be whole whatever ended it.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::stage::{Link, Stage};
use crate::cargo::Profile;
use crate::files;
use crate::simcuda;
use crate::suites::context::Context;
use crate::workspace::{Workspace, capture, without};

/// What ffi-tests/preload/deaths.c and interrupted.py allocate before they die, and what is said of it.
const TRACE: &str = "+ 0 1000 0\n+ 1 2000 0\n- 0 0\n+ 2 3000 0\n";
const SERVED: [&str; 2] = ["  served       3 allocations, 1 frees\n", "; 4.9 KiB live now\n"];

const KILLED: &str = "  state        killed: ";
const ENDED: &str = "  state        ended: ";
const REPLACED: &str = "  state        replaced: ";
const RUNNING: &str = "  state        running: ";

/// Each of the ways to die.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = stage.compile(context, "deaths", "deaths.c", Link::Runtime(12), &[])?;
    let bfc = context.built(Profile::Release)?.command.clone();
    let deaths = Deaths { stage, program, bfc };
    deaths.by_itself(context);
    deaths.by_signal(context);
    deaths.several(context);
    deaths.refused(context);
    deaths.full_disk(context)?;
    deaths.removed(context);
    deaths.messages(context);
    Ok(())
}

struct Deaths<'a> {
    stage: &'a Stage,
    program: PathBuf,
    bfc: PathBuf,
}

/// The files of a process, in a folder of their own.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn new(stage: &Stage) -> Result<Self> {
        let folder = stage.file("deaths.d");
        files::remove_all(&folder)?;
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    fn report(&self) -> PathBuf {
        self.folder.join("report")
    }

    fn trace(&self) -> PathBuf {
        self.folder.join("trace")
    }

    /// All traces: `trace`, `trace.PID`, `trace.PID.2`.
    fn traces(&self) -> Result<Vec<PathBuf>> {
        let is_trace = |path: &PathBuf| path.display().to_string().contains("/trace");
        let mut traces: Vec<_> = files::entries(&self.folder)?.into_iter().filter(is_trace).collect();
        traces.sort();
        Ok(traces)
    }
}

impl Deaths<'_> {
    /// `bfc run` with a trace and a report, of this program.
    fn run(&self, context: &Context, files: &Files, program: &Path) -> Command {
        let mut command = self.stage.plain(context, &self.bfc);
        command.arg("run").arg("--preload").arg(self.stage.interposer());
        command.arg("--trace").arg(files.trace()).arg(format!("--report={}", files.report().display()));
        command.arg("--").arg(program);
        command
    }

    fn reported(&self, workspace: &Workspace, files: &Files) -> Result<String> {
        reported(workspace, &self.bfc, &files.report())
    }

    fn by_itself(&self, context: &mut Context) {
        let cases = [
            ("ends", ENDED),
            ("aborts", KILLED),
            ("crashes", KILLED),
            ("leaves_at_once", KILLED),
            ("leaves_quickly", KILLED),
            ("kills_itself", KILLED),
            ("executes_other", REPLACED),
        ];
        for (case, state) in cases {
            let command = Files::new(self.stage).map(|files| {
                let mut command = self.run(context, &files, &self.program);
                command.arg(case);
                (files, command)
            });
            context.check(
                &format!("trace and counters of a process that {}", case.replace('_', " ")),
                |workspace| {
                    let (files, command) = command?;
                    workspace.run(&format!("preload: {case}"), command)?;
                    let report = self.reported(workspace, &files)?;
                    has(&report, &[SERVED.as_slice(), &[state]].concat())?;
                    is(&events(&files.trace())?, TRACE)
                },
            );
        }
    }

    fn by_signal(&self, context: &mut Context) {
        let runtime = self.stage.simulation.join(simcuda::runtime(12));
        let script = context.workspace.path("ffi-tests/preload/interrupted.py");
        let python = files::program("python3");
        if python.is_none() {
            context.skip("Ctrl-C on a Python script", "there is no python3");
        }
        for signal in ["TERM", "INT", "KILL"] {
            let programs = [(Some(&self.program), "a C program"), (python.as_ref(), "a Python script")];
            for (program, what) in programs {
                let Some(program) = program else { continue };
                let command = Files::new(self.stage).map(|files| {
                    let mut command = self.run(context, &files, program);
                    match what {
                        "a C program" => command.arg("waits"),
                        _ => command.arg(&script).arg(&runtime),
                    };
                    (files, command)
                });
                context.check(&format!("trace and counters of {what} that SIG{signal} ends"), |workspace| {
                    let (files, mut command) = command?;
                    let mut child = ready(&mut command)?;
                    let alive = self.reported(workspace, &files)?;
                    send(&child, signal)?;
                    child.wait()?;
                    // bfc run became the program: it is the process that was started.
                    has(&alive, &[&format!("process {}: ", child.id()), RUNNING, SERVED[0]])?;
                    has(&self.reported(workspace, &files)?, &[SERVED.as_slice(), &[KILLED]].concat())?;
                    is(&events(&files.trace())?, TRACE)
                });
            }
        }
    }

    /// Several programs and processes: each has files, or records, of its own.
    fn several(&self, context: &mut Context) {
        let cases: [(&str, &[&str], usize); 3] = [
            ("forks", &[ENDED, KILLED], 2),
            ("executes", &[REPLACED, REPLACED, KILLED], 3),
            ("threads", &[KILLED], 1),
        ];
        for (case, states, processes) in cases {
            let command = Files::new(self.stage).map(|files| {
                let mut command = self.run(context, &files, &self.program);
                command.arg(case);
                (files, command)
            });
            context.check(&format!("each of several has its own: {case}"), |workspace| {
                let (files, command) = command?;
                workspace.run(&format!("preload: {case}"), command)?;
                let report = self.reported(workspace, &files)?;
                for state in states {
                    let wanted = states.iter().filter(|other| *other == state).count();
                    ensure!(report.matches(state).count() == wanted, "not {wanted} times{state}:\n{report}");
                }
                let traces = files.traces()?;
                ensure!(traces.len() == processes, "the traces are {traces:?}");
                if case == "threads" {
                    has(&report, &["  served       2003 allocations, 2001 frees\n", "; 4.9 KiB live now\n"])?;
                    ensure!(events(&traces[0])?.lines().count() == 4004, "lines are missing");
                    return Ok(());
                }
                ensure!(report.matches(SERVED[0]).count() == processes, "{report}");
                traces.iter().try_for_each(|trace| is(&events(trace)?, TRACE))
            });
        }
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.run(context, &files, &self.program);
            command.arg("forks_after_use");
            (files, command)
        });
        context.check("a child leaves its parent's trace and counters alone", |workspace| {
            let (files, command) = command?;
            workspace.run_well("preload: forks_after_use", command)?;
            let report = self.reported(workspace, &files)?;
            has(&report, &["  served       4 allocations, 2 frees\n", ENDED])?;
            ensure!(files.traces()?.len() == 1 && report.matches("process ").count() == 1, "{report}");
            is(&events(&files.trace())?, &format!("{TRACE}+ 3 4000 0\n- 3 0\n"))
        });
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.stage.plain(context, &self.bfc);
            command.arg("run").arg("--preload").arg(self.stage.interposer());
            command
                .arg("--trace")
                .arg(files.folder.join("trace.%p.of"))
                .arg("--")
                .arg(&self.program)
                .arg("executes");
            (files, command)
        });
        context.check("%p in a name is the process", |_| {
            let (files, mut command) = command?;
            let mut child = command.spawn()?;
            child.wait()?;
            let own = format!("trace.{}.of", child.id());
            let wanted = ["", &format!(".{}", child.id()), &format!(".{}.2", child.id())];
            let wanted: Vec<_> = wanted.iter().map(|end| files.folder.join(format!("{own}{end}"))).collect();
            ensure!(files.traces()? == wanted, "the traces are {:?}", files.traces()?);
            Ok(())
        });
    }

    /// What there was no memory for.
    fn refused(&self, context: &mut Context) {
        let limit = 1000_u64 << 20;
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.run(context, &files, &self.program);
            command.arg("aborts_out_of_memory").env("BFC_MEMORY_LIMIT", limit.to_string());
            (files, command)
        });
        context.check("an out of memory is in the report, and can be replayed", |workspace| {
            let (files, command) = command?;
            workspace.run("preload: aborts_out_of_memory", command)?;
            let report = self.reported(workspace, &files)?;
            has(
                &report,
                &[KILLED, "  refused      1 request for want of memory, the largest of 64.0 MiB\n"],
            )?;
            has(&report, &["  last refused 64.0 MiB: preload: "])?;
            let trace = written(&files.trace())?;
            let last = trace.lines().last().unwrap_or_default();
            ensure!(last.starts_with("! 67108864 0 # preload: "), "the last line is {last}");
            let mut replay = workspace.command(&self.bfc);
            without(&mut replay, &["BFC_"]);
            replay.args([
                "replay",
                "--growth",
                "--gc",
                "--split-always",
                "--json",
                "--limit",
                &limit.to_string(),
            ]);
            let said = capture(replay.arg("--library").arg(&self.stage.lib).arg(files.trace()))?;
            let said: serde_json::Value = serde_json::from_str(&said)?;
            let replayed = &said["traces"][0];
            let event = events(&files.trace())?.lines().count();
            ensure!(replayed["failed"] == 1 && replayed["failure"]["event"] == event, "{replayed:#}");
            ensure!(replayed["trace"]["refused"] == 1, "{replayed:#}");
            Ok(())
        });
        let modes =
            ["", "BFC_MEMORY_LIMIT=100M", "BFC_MEMORY_LIMIT=100M BFC_PRELOAD_ASYNC=1", "BFC_PRELOAD_MAX=1M"];
        for settings in modes {
            let command = Files::new(self.stage).map(|files| {
                let mut command = self.run(context, &files, &self.program);
                command.arg("is_refused");
                command.envs(settings.split_whitespace().filter_map(|setting| setting.split_once('=')));
                (files, command)
            });
            context.check(format!("every request is refused {settings}").trim_end(), |workspace| {
                let (files, command) = command?;
                workspace.run_well("preload: is_refused", command)?;
                let report = self.reported(workspace, &files)?;
                let refused = "  refused      6 requests for want of memory, the largest of 293.0 GiB\n";
                has(&report, &[ENDED, refused, "  last refused 48.8 GiB: ", "  served       nothing\n"])?;
                let sizes = [100_000_u64, 50_000, 200_000, 50_000, 300_000, 50_000];
                let wanted: String = sizes.iter().map(|size| format!("! {} 0\n", size << 20)).collect();
                is(&events(&files.trace())?, &wanted)?;
                let trace = written(&files.trace())?;
                ensure!(
                    !trace.lines().any(|line| line.trim_end().ends_with('#')),
                    "a verdict is missing:\n{trace}"
                );
                Ok(())
            });
        }
    }

    fn removed(&self, context: &mut Context) {
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.run(context, &files, &self.program);
            command.arg("removes_its_trace");
            command
        });
        context.check("a trace that is removed meanwhile is told", |workspace| {
            let said = workspace.run_well("preload: removes_its_trace", command?)?;
            has(&said, &["deaths.d/trace was removed or replaced while the program ran"])
        });
    }

    /// The trace cannot grow: the program goes on, and what is missing is told.
    fn full_disk(&self, context: &mut Context) -> Result<()> {
        let library = self.stage.compile(context, "libfull_disk.so", "full_disk.c", Link::Library, &[])?;
        for (what, after) in [("at once", "0"), ("later", "1")] {
            let command = Files::new(self.stage).map(|files| {
                let mut command = self.run(context, &files, &self.program);
                command.arg("fills").env("LD_PRELOAD", &library).env("FULL_DISK_AFTER", after);
                (files, command)
            });
            context.check(&format!("a disk that is full {what}"), |workspace| {
                let (files, command) = command?;
                let said = workspace.run_well("preload: fills", command)?;
                let report = self.reported(workspace, &files)?;
                has(&report, &["  served       100000 allocations, 100000 frees\n"])?;
                if after == "0" {
                    return has(&said, &["libbfc: cannot write the trace ", "No space left on device"]);
                }
                self.is_cut_short(&files, &said, &report, "No space left on device")
            });
        }
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.run(context, &files, &self.program);
            command.arg("ends").env("LD_PRELOAD", &library).env("FULL_DISK_AFTER", "9");
            command.env("FULL_DISK_CUTS", "");
            let mut second = self.run(context, &files, &self.program);
            second.arg("ends");
            (files, command, second)
        });
        context.check("a disk that has room for a part of a record", |workspace| {
            let (files, command, second) = command?;
            let said = workspace.run_well("preload: ends", command)?;
            has(&said, &["libbfc: cannot write the report ", "No space left on device"])?;
            workspace.run_well("preload: ends", second)?;
            has(&self.reported(workspace, &files)?, &[SERVED.as_slice(), &[ENDED]].concat())
        });
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.run(context, &files, &self.program);
            command.arg("exits_in_a_handler").env("LD_PRELOAD", &library).env("FULL_DISK_AFTER", "1");
            command.env("FULL_DISK_SIGNALS", "");
            (files, command)
        });
        context.check("a signal's handler that interrupts the recorder and exits", |workspace| {
            let (files, command) = command?;
            workspace.run_well("preload: exits_in_a_handler", command)?;
            // The free in the exit handler.
            let report = self.reported(workspace, &files)?;
            has(&report, &[ENDED, "  trace        incomplete: 1 events are not in it"])
        });
        let command = Files::new(self.stage).map(|files| {
            let mut command = self.run(context, &files, &self.program);
            command.arg("fills_to_a_limit");
            (files, command)
        });
        context.check("a limit of the size of files", |workspace| {
            let (files, command) = command?;
            let said = workspace.run_well("preload: fills", command)?;
            let report = self.reported(workspace, &files)?;
            self.is_cut_short(&files, &said, &report, "File too large")
        });
        Ok(())
    }

    /// What is lost is counted, and what is not lost is whole.
    fn is_cut_short(&self, files: &Files, said: &str, report: &str, why: &str) -> Result<()> {
        let text = files::read(&files.trace())?;
        let there = events(&files.trace())?.lines().count();
        let all: usize = if why.starts_with("File") { 200_002 } else { 200_000 };
        let lost = all - there;
        ensure!(
            there > 1000 && text.ends_with(&format!("%incomplete {}\n", why_of(&text))),
            "it ends otherwise"
        );
        ensure!(why_of(&text).starts_with(why), "it is incomplete because {}", why_of(&text));
        has(
            said,
            &["cannot grow and ends here: ", why, &format!("is incomplete: {lost} events are not in it\n")],
        )?;
        has(report, &[&format!("  trace        incomplete: {lost} events are not in it")])?;
        let mut replay = Command::new(&self.bfc);
        without(&mut replay, &["BFC_"]);
        replay.args(["replay", "--quiet"]).arg("--library").arg(&self.stage.lib).arg(files.trace());
        capture(&mut replay).map(drop)
    }

    /// Each summary and each complaint comes in one piece: a datagram is what one call writes.
    fn messages(&self, context: &mut Context) {
        for (case, wanted) in [("ends", "libbfc: process "), ("is_refused", "libbfc: process ")] {
            let mut command = self.stage.plain(context, &self.bfc);
            command.arg("run").arg("--preload").arg(self.stage.interposer()).arg("--report").arg("--");
            command.arg(&self.program).arg(case);
            context.check(&format!("a summary is written at once: {case}"), |_| {
                let messages = complaints(command)?;
                let [message] = &messages[..] else { bail!("the messages are {messages:#?}") };
                ensure!(message.starts_with(wanted) && message.contains("\n  served       "), "{message}");
                ensure!(
                    (case == "is_refused") == message.contains("\n  refused      6 requests"),
                    "{message}"
                );
                Ok(())
            });
        }
        let command = self.stage.run(context, &self.program).map(|run| run.command);
        context.check("a report that cannot be written is told once", |_| {
            let mut command = command?;
            command.arg("ends").env("BFC_PRELOAD_REPORT", "/nonexistent/report");
            command.env("BFC_PRELOAD_TRACE", "/nonexistent/trace");
            let messages = complaints(command)?;
            let wanted = ["trace", "report"].map(|what| {
                format!(
                    "libbfc: cannot write the {what} /nonexistent/{what}: No such file or directory (os error \
                     2); the program runs without it\n"
                )
            });
            let mut messages = messages;
            messages.sort_by_key(|message| !message.contains("the trace"));
            ensure!(messages == wanted, "the messages are {messages:#?}");
            Ok(())
        });
    }
}

/// Each piece that a program writes to standard error.
fn complaints(mut command: Command) -> Result<Vec<String>> {
    let (reader, writer) = UnixDatagram::pair()?;
    let ended = command.stdout(Stdio::null()).stderr(OwnedFd::from(writer)).status()?;
    drop(command);
    ensure!(ended.success(), "it ended with {ended}");
    reader.set_nonblocking(true)?;
    let mut messages = Vec::new();
    let mut buffer = [0; 1 << 16];
    while let Ok(length) = reader.recv(&mut buffer) {
        if length == 0 {
            break;
        }
        messages.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    Ok(messages)
}

/// Starts a program, and waits until it says `ready`.
fn ready(command: &mut Command) -> Result<Child> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("it is piped")?).read_line(&mut line)?;
    if line != "ready\n" {
        let _ = child.kill();
        bail!("it said {line:?} and ended with {}", child.wait()?);
    }
    Ok(child)
}

fn send(child: &Child, signal: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    capture(kill.arg(format!("-{signal}")).arg(child.id().to_string())).map(drop)
}

/// What `bfc report` says.
pub fn reported(workspace: &Workspace, bfc: &Path, report: &Path) -> Result<String> {
    let mut command = workspace.command(bfc);
    without(&mut command, &["BFC_"]);
    capture(command.arg("report").arg(report))
}

/// The events of a trace, without remarks: not what is no event, nor what was not written any more.
pub fn events(trace: &Path) -> Result<String> {
    let event = |line: &str| format!("{}\n", line.split(" # ").next().unwrap_or_default());
    Ok(written(trace)?.lines().filter(|line| !line.starts_with('%')).map(event).collect())
}

/// The lines of a trace.
fn written(trace: &Path) -> Result<String> {
    let text = files::read(trace)?;
    Ok(text.split('\0').next().unwrap_or_default().to_owned())
}

/// Why the trace says that it is incomplete.
fn why_of(text: &str) -> &str {
    text.trim_end().rsplit("%incomplete ").next().unwrap_or_default()
}

fn is(text: &str, wanted: &str) -> Result<()> {
    ensure!(text == wanted, "it is\n{text}\nand not\n{wanted}");
    Ok(())
}

fn has(text: &str, wanted: &[&str]) -> Result<()> {
    match wanted.iter().find(|part| !text.contains(**part)) {
        Some(missing) => bail!("it does not have `{missing}`:\n{text}"),
        None => Ok(()),
    }
}
