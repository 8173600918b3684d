//! What is to be placed: the requests of a recorded program, with the time that each lives, and the part that repeats.
//!
//! Time is counted in requests. An allocation lives from its own request to the last one before its free.
//!
//! ```text
//!   requests   a b c d  e f g h  e f g h  e f
//!              prologue repeated
//! ```
//!
//! Training repeats a step. The repeated part is found by comparing the sizes at the end of the trace with those one
//! period earlier. It is placed as if it repeated forever: an allocation has the same place in each repetition.

use anyhow::{Context, Result, bail};

use bfc_readers::trace::{Event, Trace};

/// The maximum number of requests of a plan, which is the library's limit.
pub const MOST_REQUESTS: usize = 1 << 20;

/// An allocation of the repeated part that lives for more periods than this has no place in the plan.
const MOST_PERIODS: usize = 8;

/// The repetition must cover at least one in this many of the trace's requests.
const LEAST_COVERED: usize = 4;

/// The requests during which an allocation lives, the first and the last.
pub type Span = (u32, u32);

/// An allocation, which has one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The rounded size.
    pub size: u64,
    /// When it lives first.
    pub span: Span,
    /// When it lives one repetition later, in the repeated part.
    pub again: Option<Span>,
}

impl Item {
    /// The times at which it lives.
    pub fn spans(&self) -> impl Iterator<Item = Span> + use<> {
        [Some(self.span), self.again].into_iter().flatten()
    }

    /// The number of requests for which it lives.
    pub fn life(&self) -> u64 {
        self.spans().map(|(first, last)| u64::from(last - first) + 1).sum()
    }
}

/// A request of the plan: its size, and which item it is, if it has a place.
pub type Request = (u64, Option<usize>);

/// A program to be planned.
#[derive(Debug)]
pub struct Program {
    pub requests: Vec<Request>,
    /// The first request of the repeated part; the number of requests if there is none.
    pub repeated_from: usize,
    pub items: Vec<Item>,
    /// The end of time.
    pub end: u32,
    /// The bytes that live at each time.
    pub load: Vec<u64>,
    /// The maximum of them: no placement takes less.
    pub peak: u64,
    /// Requests of the repeated part that live too long to have a place.
    pub unplaced: usize,
}

/// A request of the trace. `last` is the last request before its free, if it is freed before the last request.
#[derive(Clone, Copy)]
struct Recorded {
    size: u64,
    last: Option<u32>,
}

/// A repetition that a trace ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repetition {
    first: usize,
    period: usize,
}

impl Program {
    /// The program of a trace whose requests are rounded up to multiples of `alignment`.
    pub fn of(trace: &Trace, alignment: u64) -> Result<Self> {
        let recorded = recorded(trace, alignment)?;
        if recorded.is_empty() {
            bail!("{} has no request of more than 0 bytes", trace.name);
        }
        let sizes: Vec<u64> = recorded.iter().map(|request| request.size).collect();
        let repetition = repetition(&sizes).filter(|found| lives_repeat(&recorded, *found));
        let program = match repetition {
            Some(found) => Self::repeating(&recorded, found),
            None => Self::once(&recorded),
        };
        if program.requests.len() > MOST_REQUESTS {
            bail!(
                "{}: a plan of {} requests is too long, a plan has at most {MOST_REQUESTS}; record fewer steps",
                trace.name,
                program.requests.len()
            );
        }
        Ok(program)
    }

    /// A program without repetition.
    fn once(recorded: &[Recorded]) -> Self {
        let end = recorded.len() as u32;
        let items = (0..).zip(recorded).map(|(at, request)| first_item(at, *request, end)).collect();
        let requests = recorded.iter().enumerate().map(|(at, request)| (request.size, Some(at))).collect();
        Self::with(requests, recorded.len(), items, end, 0)
    }

    fn repeating(recorded: &[Recorded], Repetition { first, period }: Repetition) -> Self {
        let lives: Vec<_> = (first..first + period).map(|at| longest_life(recorded, at, period)).collect();
        let is_placed = |life: &&u32| **life < (MOST_PERIODS * period) as u32;
        let longest = lives.iter().flatten().filter(is_placed).max().copied().unwrap_or(0);
        // An allocation that outlives a period must not have the place of its successor.
        let periods = longest as usize / period + 1;
        let length = periods * period;
        let end = (first + 2 * length) as u32;
        let mut requests = Vec::with_capacity(first + length);
        let mut items = Vec::with_capacity(first + length);
        for (at, request) in recorded[..first].iter().enumerate() {
            requests.push((request.size, Some(items.len())));
            items.push(first_item(at as u32, *request, end));
        }
        let mut unplaced = 0;
        for at in 0..length {
            let size = recorded[first + at % period].size;
            let Some(life) = lives[at % period].filter(|life| is_placed(&life)) else {
                requests.push((size, None));
                unplaced += 1;
                continue;
            };
            let begin = (first + at) as u32;
            let again = begin + length as u32;
            requests.push((size, Some(items.len())));
            let again = (again, (again + life).min(end));
            items.push(Item { size, span: (begin, begin + life), again: Some(again) });
        }
        Self::with(requests, first, items, end, unplaced)
    }

    fn with(
        requests: Vec<Request>,
        repeated_from: usize,
        items: Vec<Item>,
        end: u32,
        unplaced: usize,
    ) -> Self {
        let mut changes = vec![0_i128; end as usize + 2];
        for item in &items {
            for (first, last) in item.spans() {
                changes[first as usize] += i128::from(item.size);
                changes[last as usize + 1] -= i128::from(item.size);
            }
        }
        let mut live = 0;
        let load: Vec<u64> = changes[..=end as usize]
            .iter()
            .map(|change| {
                live += change;
                u64::try_from(live).unwrap_or(u64::MAX)
            })
            .collect();
        let peak = load.iter().copied().max().unwrap_or(0);
        Self { requests, repeated_from, items, end, load, peak, unplaced }
    }

    /// The maximum of the bytes that live at once during the life of an item.
    pub fn contention(&self, item: &Item) -> u64 {
        let most = |(first, last): Span| self.load[first as usize..=last as usize].iter().max().copied();
        item.spans().filter_map(most).max().unwrap_or(0)
    }
}

fn first_item(at: u32, request: Recorded, end: u32) -> Item {
    Item { size: request.size, span: (at, request.last.unwrap_or(end).min(end)), again: None }
}

/// Whether the lives repeat too, not only the sizes: of those that are known in a period and in the next one, nine of
/// ten are equal.
fn lives_repeat(recorded: &[Recorded], Repetition { first, period }: Repetition) -> bool {
    let life = |at: usize| Some(recorded.get(at)?.last? - at as u32);
    let pairs = (first..recorded.len()).filter_map(|at| Some((life(at)?, life(at + period)?)));
    let (known, equal) =
        pairs.fold((0, 0), |(known, equal), (one, next)| (known + 1, equal + u64::from(one == next)));
    known > 0 && equal * 10 >= known * 9
}

/// The longest life of a request of the repeated part whose free is in the trace. None if none is freed.
fn longest_life(recorded: &[Recorded], at: usize, period: usize) -> Option<u32> {
    let lives = (at..recorded.len()).step_by(period).filter_map(|at| Some(recorded[at].last? - at as u32));
    lives.max()
}

/// The requests of a trace. Those of 0 bytes reach no allocator.
fn recorded(trace: &Trace, alignment: u64) -> Result<Vec<Recorded>> {
    let mut recorded: Vec<Recorded> = Vec::with_capacity(trace.requests);
    let mut live = vec![None; trace.slots];
    let size = |bytes: u64| {
        bytes.checked_next_multiple_of(alignment).with_context(|| {
            format!("{} has a request of {bytes} bytes, which no allocator can serve", trace.name)
        })
    };
    for event in &trace.events {
        // The last request so far.
        let now = (recorded.len() as u32).checked_sub(1);
        match *event {
            Event::Alloc { bytes: 0, slot, .. } => live[slot as usize] = None,
            Event::Alloc { bytes, slot, .. } => {
                live[slot as usize] = Some(recorded.len());
                recorded.push(Recorded { size: size(bytes)?, last: None });
            }
            Event::Free { slot, .. } => {
                if let Some(at) = live[slot as usize].take() {
                    recorded[at].last = now;
                }
            }
            Event::Refused { bytes: 0, .. } => {}
            Event::Refused { bytes, .. } => {
                let last = Some(recorded.len() as u32);
                recorded.push(Recorded { size: size(bytes)?, last });
            }
        }
    }
    // An allocation that is freed after the last request lives to the end: a longer recording might show that the
    // program keeps it.
    let end = recorded.len() as u32 - u32::from(!recorded.is_empty());
    for request in &mut recorded {
        request.last = request.last.filter(|&last| last < end);
    }
    Ok(recorded)
}

/// The repetition that covers most of the requests, counted from the end: at least two periods, and a fourth of the
/// requests.
fn repetition(sizes: &[u64]) -> Option<Repetition> {
    let reversed: Vec<u64> = sizes.iter().rev().copied().collect();
    let matches = prefix_matches(&reversed);
    let covered = |period: usize| matches[period] + period;
    let periods = (1..sizes.len()).filter(|&period| matches[period] >= period);
    // The shortest period of equal ones.
    let period = periods.max_by_key(|&period| (covered(period), usize::MAX - period))?;
    let covered = covered(period);
    (covered * LEAST_COVERED >= sizes.len()).then_some(Repetition { first: sizes.len() - covered, period })
}

/// For each position, how many values starting there equal those at the beginning (the Z function).
fn prefix_matches(values: &[u64]) -> Vec<usize> {
    let mut matches = vec![0; values.len()];
    let (mut begin, mut end) = (0, 0);
    for at in 1..values.len() {
        let mut length = if at < end { matches[at - begin].min(end - at) } else { 0 };
        while values.get(at + length).is_some_and(|value| *value == values[length]) {
            length += 1;
        }
        matches[at] = length;
        if at + length > end {
            (begin, end) = (at, at + length);
        }
    }
    matches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> Program {
        let trace = Trace::from_reader("t", text.as_bytes()).expect("well-formed");
        Program::of(&trace, 256).expect("plannable")
    }

    #[test]
    fn a_program_without_repetition_is_planned_once() {
        let program = program("+ 1 1 0\n+ 2 600 0\n- 1 0\n+ 3 256 0\n- 2 0\n- 3 0\n");
        assert_eq!(program.requests, [(256, Some(0)), (768, Some(1)), (256, Some(2))]);
        assert_eq!((program.repeated_from, program.end, program.peak), (3, 3, 1024));
        let spans: Vec<_> = program.items.iter().map(|item| (item.span, item.again)).collect();
        assert_eq!(spans, [((0, 1), None), ((1, 3), None), ((2, 3), None)]);
    }

    #[test]
    fn steps_are_found_without_marks() {
        let mut text = "+ 1 10000 0\n+ 2 20000 0\n".to_owned();
        for step in 1..=3 {
            // The last allocation of a step lives until the next step has made its own.
            let [a, b, c] = [1, 2, 3].map(|of| step * 10 + of);
            text += &format!("+ {a} 300 0\n+ {b} 600 0\n- {a} 0\n+ {c} 900 0\n- {b} 0\n");
            if step > 1 {
                text += &format!("- {} 0\n", c - 10);
            }
        }
        let program = program(&text);
        // Three requests per step. The last one lives for three more requests, so two steps are planned together.
        assert_eq!((program.repeated_from, program.requests.len(), program.unplaced), (2, 8, 0));
        assert_eq!(program.items[4].span, (4, 7));
        assert_eq!(program.items[4].again, Some((10, 13)));
        assert_eq!(program.items[1].span, (1, 14));
        // Both large ones, the last of each of two steps, and the second of a step.
        assert_eq!(program.peak, 10240 + 20224 + 2 * 1024 + 768);
    }

    #[test]
    fn what_is_never_freed_in_the_repeated_part_has_no_place() {
        let steps = (1..=4).map(|step| format!("+ {step}1 300 0\n+ {step}2 600 0\n- {step}1 0\n"));
        let program = program(&steps.collect::<String>());
        assert_eq!(program.requests, [(512, Some(0)), (768, None)]);
        assert_eq!((program.repeated_from, program.unplaced), (0, 1));
    }

    #[test]
    fn sizes_that_repeat_are_no_repetition_if_lives_do_not() {
        let program = program("+ 1 9 0\n+ 2 9 0\n+ 3 9 0\n- 2 0\n+ 4 9 0\n- 1 0\n- 3 0\n- 4 0\n");
        assert_eq!((program.repeated_from, program.requests.len(), program.peak), (4, 4, 768));
    }

    #[test]
    fn the_repetition_is_the_one_that_covers_most() {
        assert_eq!(repetition(&[9, 1, 2, 3, 1, 2, 3, 1, 2]), Some(Repetition { first: 1, period: 3 }));
        assert_eq!(
            repetition(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]),
            None,
            "two of ten are no program that repeats"
        );
        assert_eq!(repetition(&[5]), None);
        assert_eq!(prefix_matches(&[1, 1, 2, 1, 1, 2, 1]), [0, 1, 0, 4, 1, 0, 1]);
    }
}
