//! Calls that block until device work is done: the work they run meanwhile, and how they end if the work cannot.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cuda_sys::{CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_NOT_PERMITTED};

use crate::abi::Answer;
use crate::options::Choice;
use crate::rules::streams::{run_next, run_ready};
use crate::sim::{self, Guard, Sim};
use crate::state::stream::Point;
use crate::state::work::Work;
use crate::system;

/// How long a call waits for another thread that holds streams or runs a kernel.
const PATIENCE: Duration = Duration::from_secs(60);

/// The next step needed for the work up to a point to be done.
enum Next {
    /// Nothing, because it is done.
    Done,
    /// The first item of this stream can be run, held or not.
    Run(u64),
    /// Another thread runs an item.
    Busy,
    /// This thread itself runs an item of that stream.
    Own,
    /// No queued work can complete it. The reasons, step by step.
    Never(Vec<String>),
}

/// Blocks until everything up to the points is done. Held work is run as far as needed and no further, or waited for
/// until another thread steps it (`Choice::SynchronizeWaits`).
pub(crate) fn finish(mut sim: Guard, points: &[Point]) -> Answer<Guard> {
    sim = run_ready(sim);
    let mut stuck_since = None;
    for point in points {
        while !sim.is_done(*point) {
            if sim.pass_time() {
                sim = run_ready(sim);
                continue;
            }
            sim = advance(sim, *point, &mut stuck_since)?;
        }
    }
    sim.learn(points);
    Ok(run_ready(sim))
}

/// Runs one item before the point, or waits until another thread has done something. `stuck_since` is when the call
/// first saw a deadlock.
fn advance(mut sim: Guard, point: Point, stuck_since: &mut Option<Instant>) -> Answer<Guard> {
    let patient = sim.options.is_on(Choice::SynchronizeWaits);
    let next = sim.next_for(point, &mut BTreeSet::new());
    if !matches!(next, Next::Never(_)) {
        *stuck_since = None;
    }
    match next {
        Next::Done => Ok(sim),
        Next::Run(stream) if !patient => Ok(run_next(sim, stream)),
        Next::Run(_) | Next::Busy => wait(sim, point),
        Next::Own => {
            sim.record.misuse("a host function or simulated kernel waits for its own stream".to_owned());
            Err(CUDA_ERROR_NOT_PERMITTED)
        }
        Next::Never(chain) => wait_for_rescue(sim, &chain, *stuck_since.get_or_insert_with(Instant::now)),
    }
}

fn wait(sim: Guard, point: Point) -> Answer<Guard> {
    let (mut sim, has_moved) = sim::wait(sim, PATIENCE);
    if has_moved {
        return Ok(sim);
    }
    let Point { item, stream } = point;
    sim.record.misuse(format!("a call waited a minute for held work, item {item} of stream {stream}"));
    Err(CUDA_ERROR_LAUNCH_TIMEOUT)
}

/// How often a call that waits looks whether the program itself has stored a value (`Work::WaitValue`).
const LOOK: Duration = Duration::from_millis(10);

/// Waits for another thread to queue the missing work. Reports a deadlock when the limit is over.
fn wait_for_rescue(mut sim: Guard, chain: &[String], since: Instant) -> Answer<Guard> {
    let limit = u64::try_from(sim.options.get(Choice::DeadlockMilliseconds)).unwrap_or(0);
    let left = Duration::from_millis(limit).saturating_sub(since.elapsed());
    if !sim.is_deadlocked && !left.is_zero() {
        let (after, _) = sim::wait(sim, left.min(LOOK));
        return Ok(run_ready(after));
    }
    sim.is_deadlocked = true;
    sim.record.misuse(format!("deadlock: a blocking call waits for {}", chain.join(", ")));
    Err(CUDA_ERROR_LAUNCH_TIMEOUT)
}

impl Sim {
    /// Follows what a point waits for. `seen` are the streams followed so far: the first item of each waits, directly
    /// or not, for this point.
    fn next_for(&self, point: Point, seen: &mut BTreeSet<u64>) -> Next {
        let Some(stream) = self.streams.get(&point.stream) else { return Next::Done };
        if self.is_done(point) {
            return Next::Done;
        }
        match stream.runner() {
            Some(runner) if runner == system::thread() => return Next::Own,
            Some(_) => return Next::Busy,
            None => (),
        }
        let Some(item) = stream.first() else { return Next::Done };
        let here = format!("item {} of stream {}", item.number, point.stream);
        if !seen.insert(point.stream) {
            return Next::Never(vec![format!("{here} again")]);
        }
        for other in &item.after {
            match self.next_for(*other, seen) {
                Next::Done => (),
                Next::Never(chain) => return Next::Never(prepend(here, chain)),
                next => return next,
            }
        }
        if self.is_met(stream, &item.work) {
            return Next::Run(point.stream);
        }
        let (waits, lacks, rescuers) = match item.work {
            Work::Receive { channel } => (
                format!("a receive on channel {channel}"),
                format!("a send on channel {channel}, of which none is queued"),
                self.queued(|work| matches!(work, Work::Send { channel: to } if *to == channel)),
            ),
            Work::WaitValue { at, .. } => (
                format!("a wait for a value at {at:#x}"),
                format!("a store to {at:#x}, of which none is queued"),
                self.queued(|work| work.stores_to(at)),
            ),
            _ => return Next::Run(point.stream),
        };
        let mut found = vec![lacks];
        for rescuer in rescuers {
            match self.next_for(rescuer, seen) {
                Next::Never(chain) => found = chain,
                Next::Done => (),
                next => return next,
            }
        }
        Next::Never(prepend(format!("{here}, {waits}"), found))
    }

    /// Returns the queued items with such work.
    fn queued(&self, is_meant: impl Fn(&Work) -> bool) -> Vec<Point> {
        let streams = self.streams.iter();
        let items = streams.flat_map(|(stream, there)| there.items().map(move |item| (*stream, item)));
        let meant = items.filter(|(_, item)| is_meant(&item.work));
        meant.map(|(stream, item)| Point { stream, item: item.number }).collect()
    }
}

fn prepend(first: String, mut chain: Vec<String>) -> Vec<String> {
    chain.insert(0, first);
    chain
}
