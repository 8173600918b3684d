//! The contents of a history, as text and as JSON.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::rc::Rc;

use serde::Serialize;

use super::advice::Advice;
use super::holders::{Holder, NO_BACKTRACE, chain, holders, write_holders};
use crate::names::{self, shown};
use crate::size::{self, counted, human};
use bfc_formats::history::layout::{Kind, cause_name};
use bfc_readers::history::reader::{History, Recorded};
use bfc_readers::history::stacks::Backtrace;
use bfc_readers::history::timeline::{PoolState, follow};
use bfc_readers::process::Liveness;

/// How many failures and marks are listed.
const LISTED: usize = 10;

#[derive(Serialize)]
pub struct Summary {
    schema: &'static str,
    process: u32,
    program: String,
    state: &'static str,
    /// Nanoseconds since 1970.
    began: u64,
    seconds: f64,
    events: u64,
    /// Events that newer ones have displaced.
    overwritten: u64,
    incomplete: u64,
    texts_lost: u64,
    stacks_lost: u64,
    pools: Vec<PoolSummary>,
    marks: Vec<MarkSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Advice>,
}

#[derive(Serialize)]
struct PoolSummary {
    device: Option<i32>,
    name: String,
    limit: u64,
    held: u64,
    in_use: u64,
    /// Live memory that was allocated by an event in the file, or existed when the recording began.
    known_bytes: u64,
    live: usize,
    allocations: u64,
    frees: u64,
    failures: Vec<Failure>,
    failed: u64,
    /// How often free memory was given back, except by requests, and how much.
    trims: u64,
    trimmed_bytes: u64,
    limit_changes: u64,
    peak: Moment,
    peak_held: Peak,
    /// The holders at the end.
    holders: Vec<Holder>,
}

#[derive(Serialize, Default, Clone, Copy)]
struct Peak {
    seconds: f64,
    bytes: u64,
}

#[derive(Serialize, Default)]
struct Moment {
    seconds: f64,
    in_use: u64,
    held: u64,
    #[serde(flatten)]
    phase: Phase,
    holders: Vec<Holder>,
}

/// The program's position at a moment.
#[derive(Serialize, Default)]
struct Phase {
    /// The step of the pool's last operation.
    step: Option<u64>,
    /// The last mark.
    mark: Option<Rc<str>>,
}

#[derive(Serialize)]
struct Failure {
    seconds: f64,
    #[serde(flatten)]
    phase: Phase,
    requested: u64,
    largest_free: u64,
    in_use: u64,
    held: u64,
    cause: &'static str,
    /// What the request was for.
    operation: Option<Rc<str>>,
    /// The backtrace of the request, the innermost frame first.
    frames: Backtrace,
    holders: Vec<Holder>,
}

#[derive(Serialize)]
struct MarkSummary {
    seconds: f64,
    name: Rc<str>,
    in_use: u64,
    held: u64,
    /// What was allocated since the previous mark and is live at this one.
    kept_bytes: u64,
    kept_allocations: u64,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        match &self.mark {
            Some(mark) => write!(f, ", after the mark {}", shown(mark)),
            None => Ok(()),
        }
    }
}

/// Nanoseconds as seconds.
pub fn seconds(time: u64) -> f64 {
    time as f64 / 1e9
}

impl Summary {
    /// Follows the history twice: to find the peaks, and then the holders at the peaks.
    pub fn new(history: &History, process: Liveness) -> Self {
        let mut peaks: HashMap<u16, (u64, u64)> = HashMap::new();
        let mut held: HashMap<u16, Peak> = HashMap::new();
        follow(history, |event, state| {
            if event.kind == Kind::Mark {
                return;
            }
            let peak = peaks.entry(event.pool).or_insert((event.number, 0));
            if state.in_use > peak.1 {
                *peak = (event.number, state.in_use);
            }
            let most = held.entry(event.pool).or_default();
            if state.held > most.bytes {
                *most = Peak { seconds: seconds(event.time), bytes: state.held };
            }
        });
        let (mut moments, mut failures) = (HashMap::new(), HashMap::<u16, Vec<Failure>>::new());
        let mut marks = Marks::default();
        let ends = follow(history, |event, state| {
            marks.see(history, event, state);
            if event.kind == Kind::Mark {
                return;
            }
            if peaks.get(&event.pool).is_some_and(|&(number, _)| number == event.number) {
                let phase = marks.phase(state);
                moments.insert(event.pool, moment(history, event, state, phase));
            }
            let of_pool = failures.entry(event.pool).or_default();
            if event.kind == Kind::OutOfMemory && of_pool.len() < LISTED {
                of_pool.push(failure(history, event, state, marks.phase(state)));
            }
        });
        let pools = ends.iter().map(|(&pool, state)| {
            let (device, name) = history.pool(pool).unzip();
            PoolSummary {
                device,
                name: name.unwrap_or_default().to_owned(),
                limit: state.limit,
                held: state.held,
                in_use: state.in_use,
                known_bytes: state.known,
                live: state.live.len(),
                allocations: state.allocations,
                frees: state.frees,
                failures: failures.remove(&pool).unwrap_or_default(),
                failed: state.failures,
                trims: state.trims,
                trimmed_bytes: state.trimmed,
                limit_changes: state.limit_changes,
                peak: moments.remove(&pool).unwrap_or_default(),
                peak_held: held.get(&pool).copied().unwrap_or_default(),
                holders: holders(history, pool, state),
            }
        });
        Summary {
            schema: "bfc-history/1",
            process: history.process,
            program: history.program.clone(),
            state: match (history.is_open, process) {
                (false, _) => "stopped",
                (true, Liveness::Running) => "recording",
                (true, Liveness::Ended) => "ended",
                (true, Liveness::Unknown) => "unknown",
            },
            began: history.began,
            seconds: history.events.last().map_or(0.0, |last| seconds(last.time)),
            events: history.events.len() as u64,
            overwritten: history.overwritten(),
            incomplete: history.incomplete,
            texts_lost: history.texts_lost,
            stacks_lost: history.stacks_lost,
            pools: pools.collect(),
            marks: marks.list,
            advice: None,
        }
    }

    /// Adds what would have helped.
    pub fn with_advice(self, advice: Advice) -> Self {
        Summary { advice: Some(advice), ..self }
    }

    /// The summary for people.
    pub fn text(&self) -> String {
        let mut text = format!("history of process {}: {}\n", self.process, shown(&self.program));
        let state = match self.state {
            "stopped" => "the recording was stopped",
            "recording" => "the recording continues: this is its current state",
            "ended" => "the process has ended, by itself or by a signal",
            _ => "it is not known whether the process is still running",
        };
        let _ = writeln!(text, "  state        {state}");
        let events = counted(self.events as usize, "event");
        let _ = writeln!(text, "  recorded     {events} in {:.3} s", self.seconds);
        if self.overwritten != 0 {
            let _ = writeln!(
                text,
                "  displaced    {} before them, for which the file has no room: what they allocated is unknown \
                 (record more with BFC_HISTORY)",
                counted(self.overwritten as usize, "event")
            );
        }
        let missing =
            [(self.incomplete, "event"), (self.texts_lost, "name"), (self.stacks_lost, "backtrace")];
        for (number, what) in missing {
            if number != 0 {
                let _ = writeln!(text, "  missing      {}", counted(number as usize, what));
            }
        }
        if self.pools.is_empty() {
            text.push_str("  no allocator was recorded\n");
        }
        self.pools.iter().for_each(|pool| pool.write(&mut text, self.stacks_lost));
        self.write_marks(&mut text);
        if let Some(advice) = &self.advice {
            text.push_str(&advice.text());
        } else if self.pools.iter().any(|pool| pool.failed != 0) {
            text.push_str("bfc report --advice FILE shows what would have helped\n");
        }
        text
    }

    fn write_marks(&self, text: &mut String) {
        if self.marks.is_empty() {
            return;
        }
        text.push_str(
            "marks: when, in use, held, and what was allocated since the previous mark and is live\n",
        );
        for mark in self.marks.iter().take(LISTED) {
            let kept = counted(mark.kept_allocations as usize, "allocation");
            let _ = writeln!(
                text,
                "  {:9.3} s  {:>11}  {:>11}  {:>11} in {kept}  {}",
                mark.seconds,
                human(mark.in_use),
                human(mark.held),
                human(mark.kept_bytes),
                shown(&mark.name)
            );
        }
        if self.marks.len() > LISTED {
            let _ = writeln!(text, "  and {} more (--json has all)", self.marks.len() - LISTED);
        }
    }
}

impl PoolSummary {
    fn write(&self, text: &mut String, stacks_lost: u64) {
        let device = names::device(self.device);
        let _ = writeln!(text, "{device} ({})", shown(&self.name));
        let changes = match self.limit_changes {
            0 => String::new(),
            changes => format!(", after {}", counted(changes as usize, "change")),
        };
        let _ = writeln!(text, "  limit        {}{changes}", size::limit(self.limit));
        let _ =
            writeln!(text, "  held         {}, at most {}", human(self.held), human(self.peak_held.bytes));
        let live = counted(self.live, "allocation");
        let _ = writeln!(
            text,
            "  in use       {} in {live}, at most {}",
            human(self.in_use),
            human(self.peak.in_use)
        );
        if self.known_bytes < self.in_use {
            let _ = writeln!(
                text,
                "  unknown      {} were allocated by displaced events",
                human(self.in_use - self.known_bytes)
            );
        }
        let calls = counted(self.allocations as usize, "allocation");
        let _ = writeln!(text, "  calls        {calls}, {}", counted(self.frees as usize, "free"));
        if self.trims != 0 {
            let trims = counted(self.trims as usize, "trim");
            let _ = writeln!(text, "  given back   {} in {trims}", human(self.trimmed_bytes));
        }
        if self.peak.in_use != 0 {
            let _ = writeln!(text, "  at the peak, after {:.3} s{}:", self.peak.seconds, self.peak.phase);
            write_holders(text, &self.peak.holders);
        }
        for failure in &self.failures {
            let Failure { seconds, phase, requested, largest_free, in_use, held, cause, .. } = failure;
            let operation = failure.operation.as_deref().map(|name| format!(" for {}", shown(name)));
            let _ = writeln!(
                text,
                "  out of memory after {seconds:.3} s{phase}: {} requested{}, {cause}; {} in use of {} held, largest free chunk {}:",
                human(*requested),
                operation.unwrap_or_default(),
                human(*in_use),
                human(*held),
                human(*largest_free)
            );
            if !failure.frames.is_empty() {
                let _ = writeln!(text, "    requested by {}", chain(&failure.frames));
            } else if stacks_lost == 0 && failure.holders.iter().any(Holder::has_stacks) {
                // Backtraces were recorded, and the thread had none.
                let _ = writeln!(
                    text,
                    "    requested by {NO_BACKTRACE}; for PyTorch's backward pass call \
                     torch.autograd.set_multithreading_enabled(False)"
                );
            }
            write_holders(text, &failure.holders);
        }
        if self.failed > self.failures.len() as u64 {
            let _ = writeln!(
                text,
                "  and {} more",
                counted((self.failed as usize) - self.failures.len(), "failed request")
            );
        }
        if self.live != 0 {
            text.push_str("  at the end:\n");
            write_holders(text, &self.holders);
        }
    }
}

fn moment(history: &History, event: &Recorded, state: &PoolState, phase: Phase) -> Moment {
    Moment {
        seconds: seconds(event.time),
        in_use: state.in_use,
        held: state.held,
        phase,
        holders: holders(history, event.pool, state),
    }
}

fn failure(history: &History, event: &Recorded, state: &PoolState, phase: Phase) -> Failure {
    Failure {
        seconds: seconds(event.time),
        phase,
        requested: event.requested,
        largest_free: event.bytes,
        in_use: state.in_use,
        held: state.held,
        cause: cause_name(event.cause),
        operation: history.operation_name(event.pool, event.name),
        frames: history.frames(event.stack).clone(),
        holders: holders(history, event.pool, state),
    }
}

/// Collects the marks.
#[derive(Default)]
struct Marks {
    list: Vec<MarkSummary>,
    /// What is in use and held in each pool, and in all.
    pools: HashMap<u16, (u64, u64)>,
    sums: (u128, u128),
    /// What was allocated since the last mark and is live.
    kept: HashMap<(u16, u64), u64>,
}

impl Marks {
    /// The program's position when a pool is in this state.
    fn phase(&self, state: &PoolState) -> Phase {
        Phase { step: state.step, mark: self.list.last().map(|mark| mark.name.clone()) }
    }

    fn see(&mut self, history: &History, event: &Recorded, state: &PoolState) {
        match event.kind {
            Kind::Mark => self.add(history, event),
            Kind::Alloc => {
                self.kept.insert((event.pool, event.address), event.bytes);
            }
            Kind::Free => {
                self.kept.remove(&(event.pool, event.address));
            }
            _ => {}
        }
        if event.kind != Kind::Mark {
            let now = (state.in_use, state.held);
            let before = self.pools.insert(event.pool, now).unwrap_or_default();
            let sum = |sum: u128, before: u64, now: u64| sum - u128::from(before) + u128::from(now);
            self.sums = (sum(self.sums.0, before.0, now.0), sum(self.sums.1, before.1, now.1));
        }
    }

    fn add(&mut self, history: &History, event: &Recorded) {
        // The sums of a damaged file may overflow.
        let sum = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        self.list.push(MarkSummary {
            seconds: seconds(event.time),
            name: history.mark(event.name).clone(),
            in_use: sum(self.sums.0),
            held: sum(self.sums.1),
            kept_bytes: self.kept.values().copied().fold(0, u64::saturating_add),
            kept_allocations: self.kept.len() as u64,
        });
        self.kept.clear();
    }
}
