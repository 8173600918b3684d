//! The progress of a running program: its last line, or how many of its tests have ended.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use console::style;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Without a terminal, a line at this interval shows that a long suite is still running.
const EVERY: Duration = Duration::from_secs(20);

/// Whether a spinner is shown. Two would overwrite each other.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Shows that a program is running as part of a command: on a terminal until it ends, elsewhere by a line from time to
/// time.
pub struct Waiting(Option<ProgressBar>);

impl Waiting {
    /// Shows the program's name and the time.
    pub fn begin(name: &str, is_verbose: bool) -> Self {
        let is_free = !is_verbose && !IS_SHOWN.swap(true, Relaxed);
        Self(is_free.then(|| spinner(name)))
    }

    /// Shows the program's last line.
    pub fn line(&self, last: &str) {
        if let Some(spinner) = &self.0 {
            spinner.set_message(last.trim().to_owned());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(spinner) = &self.0 {
            spinner.finish_and_clear();
            IS_SHOWN.store(false, Relaxed);
        }
    }
}

fn spinner(name: &str) -> ProgressBar {
    let (target, template) = match console::user_attended_stderr() {
        true => (ProgressDrawTarget::stderr(), "   {spinner} {prefix} {spoken} {wide_msg:.dim}"),
        false => (progress_lines::target(), "   {prefix}: {spoken} {wide_msg}"),
    };
    let spinner = ProgressBar::with_draw_target(None, target).with_prefix(name.to_owned());
    let style = ProgressStyle::with_template(template).expect("it is a template");
    let time = |state: &ProgressState, line: &mut dyn fmt::Write| {
        let _ = line.write_str(&spoken(state.elapsed()));
    };
    spinner.set_style(style.with_key("spoken", time));
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A time to the second. In minutes, three lines would show the same time, as if nothing happened.
fn spoken(time: Duration) -> String {
    let (minutes, seconds) = (time.as_secs() / 60, time.as_secs() % 60);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m {seconds:02}s"),
        (hours, minutes) => format!("{hours}h {minutes:02}m {seconds:02}s"),
    }
}

/// A program that runs.
pub struct Progress {
    name: String,
    /// On a terminal; elsewhere lines are printed.
    spinner: Option<ProgressBar>,
    start: Instant,
    told: Instant,
    is_in_line: bool,
    ended: usize,
    failed: usize,
}

impl Progress {
    /// Prints the name before the program runs, because it may take minutes.
    pub fn begin(name: &str, is_verbose: bool) -> Self {
        let spinner = (console::user_attended() && !is_verbose).then(|| spinner(name));
        IS_SHOWN.store(true, Relaxed);
        if spinner.is_none() {
            print!("   {name} ... ");
            // A line that cannot be printed is no reason to fail.
            let _ = io::stdout().flush();
        }
        let now = Instant::now();
        let name = name.to_owned();
        Self { name, spinner, start: now, told: now, is_in_line: true, ended: 0, failed: 0 }
    }

    /// Counts a test that has ended.
    pub fn count(&mut self, has_passed: bool, test: &str) {
        self.ended += 1;
        self.failed += usize::from(!has_passed);
        self.line(test);
    }

    /// Shows the counts so far, and the last test.
    pub fn line(&mut self, last: &str) {
        let failed = match self.failed {
            0 => String::new(),
            failed => format!(", {}", style(format!("{failed} failed")).red()),
        };
        let so_far = format!("{} ended{failed}; {last}", self.ended);
        if let Some(spinner) = &self.spinner {
            spinner.set_message(so_far);
        } else if self.told.elapsed() > EVERY {
            let end_of_line = if std::mem::take(&mut self.is_in_line) { "\n" } else { "" };
            println!("{end_of_line}     {}: {so_far}", spoken(self.start.elapsed()));
            self.told = Instant::now();
        }
    }

    /// Says how it has ended.
    pub fn end(self, is_well: bool, result: &str) {
        let result = if is_well { style(result).green() } else { style(result).red() };
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        IS_SHOWN.store(false, Relaxed);
        match self.spinner.is_none() && self.is_in_line {
            true => println!("{result}"),
            false => println!("   {} ... {result}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_another_time() {
        let times = [0, 59, 60, 125, 3599, 4205].map(|seconds| spoken(Duration::from_secs(seconds)));
        assert_eq!(times, ["0s", "59s", "1m 00s", "2m 05s", "59m 59s", "1h 10m 05s"]);
    }
}
