//! What the replays do not show.

use bfc_formats::history::layout::options;

use super::program::{Facts, Figures, MOST_PLANNED, Owner, Program};
use crate::device::Frees;
use crate::size::{self, counted, human};

/// Returns what the replays do not show. `replayed` is the result with the options of the run.
pub fn of(program: &Program, replayed: Option<Figures>) -> Vec<String> {
    let Facts { earlier, unknown, unreached_limit, streams } = program.facts;
    let mut notes = Vec::new();
    if program.options.is_none() {
        notes.push(
            "the file does not contain the options of the run; those of bfc run are assumed".to_owned(),
        );
    }
    if earlier != 0 {
        let what = counted(earlier, "allocation");
        notes.push(format!(
            "{what} from before the first replayed event: they come first, in the order of their addresses"
        ));
    }
    if unknown != 0 {
        notes.push(format!(
            "{} were allocated by displaced events and not freed: one allocation represents them",
            human(unknown)
        ));
    }
    if let Some(limit) = unreached_limit {
        notes.push(format!(
            "the device had no more memory although the limit was {}: the replays are limited to the {} that the run held at most",
            size::limit(limit),
            human(program.limit)
        ));
    }
    if program.frees == Some(Frees::Wait) {
        notes.push(
            "freed memory waits in the replays as under bfc run, but the device's work is always done when bfc run queries it"
                .to_owned(),
        );
    } else if streams > 1 || (program.has(options::TIMESTAMPS) && program.frees.is_none()) {
        notes.push(
            "in the run freed memory waited for device work; in a replay it is free at once, so a run may need more"
                .to_owned(),
        );
    }
    if program.owner == Owner::Run && program.recorded.failed != 0 && !program.exceeds_device() {
        notes.push("a higher limit has an effect only on a device with that much memory".to_owned());
    }
    if program.has(options::PLAN) {
        notes.push("the run followed a plan, which the file does not contain".to_owned());
    }
    if program.trace.requests > MOST_PLANNED {
        notes.push(format!(
            "no plan is computed for more than {MOST_PLANNED} requests; bfc plan has no such limit"
        ));
    }
    if program.recorded.failed != 0 {
        notes.push(
            "after a failed request the program may have asked for less than it would with more memory"
                .to_owned(),
        );
    }
    let recorded = program.recorded;
    if !program.is_complete {
        notes.push("events are missing, so the replays cannot be compared with the run".to_owned());
    } else if let Some(replayed) = replayed.filter(|replayed| *replayed != recorded) {
        notes.push(format!(
            "the replay with the options of the run held at most {} and failed {}, the run {} and {}: the others are \
             estimates too",
            human(replayed.peak_held),
            counted(replayed.failed as usize, "request"),
            human(recorded.peak_held),
            recorded.failed
        ));
    }
    notes
}
