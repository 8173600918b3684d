//! The holders of memory at a moment: the operations, and where they allocated it.

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

use serde::Serialize;

use crate::names::{self, shown};
use crate::size::{counted, human};
use bfc_readers::history::reader::History;
use bfc_readers::history::stacks::{Backtrace, Frame};
use bfc_readers::history::timeline::PoolState;

/// How many operations are listed.
const LISTED: usize = 10;
/// How many backtraces of a holder the text shows, and how many frames of each.
const LISTED_STACKS: usize = 3;
const LISTED_FRAMES: usize = 8;
/// In place of frames, here and on the page.
pub const NO_BACKTRACE: &str = "(no backtrace)";

#[derive(Serialize, Clone)]
pub struct Holder {
    operation: Option<Rc<str>>,
    bytes: u64,
    allocations: u64,
    /// Where they were allocated, the most bytes first. Empty without backtraces.
    stacks: Vec<HolderStack>,
}

#[derive(Serialize, Clone)]
pub struct HolderStack {
    bytes: u64,
    allocations: u64,
    frames: Backtrace,
}

pub fn write_holders(text: &mut String, holders: &[Holder]) {
    for holder in holders {
        let name = names::operation(holder.operation.as_deref());
        let _ = writeln!(
            text,
            "    {:>11}  {}  {name}",
            human(holder.bytes),
            counted(holder.allocations as usize, "allocation")
        );
        write_stacks(text, &holder.stacks, (holder.bytes, holder.allocations));
    }
}

impl Holder {
    pub fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }
}

/// Writes where most of this memory was allocated, and what has no backtrace beside others that have one.
pub fn write_stacks(text: &mut String, stacks: &[HolderStack], (bytes, allocations): Sum) {
    for stack in stacks.iter().take(LISTED_STACKS) {
        let calls = counted(stack.allocations as usize, "allocation");
        let _ = writeln!(text, "      {:>11} in {calls} by {}", human(stack.bytes), chain(&stack.frames));
    }
    if stacks.len() > LISTED_STACKS {
        let more = counted(stacks.len() - LISTED_STACKS, "backtrace");
        let _ = writeln!(text, "      and {more} more (--json has all)");
    }
    let explained = |of: fn(&HolderStack) -> u64| stacks.iter().map(of).fold(0, u64::saturating_add);
    let rest = allocations.saturating_sub(explained(|stack| stack.allocations));
    if !stacks.is_empty() && rest != 0 {
        let bytes = human(bytes.saturating_sub(explained(|stack| stack.bytes)));
        let calls = counted(rest as usize, "allocation");
        let _ = writeln!(text, "      {bytes:>11} in {calls} by {NO_BACKTRACE}");
    }
}

/// The frames of a backtrace in a line, each called by the one after it.
pub fn chain(frames: &[Frame]) -> String {
    let mut shown: Vec<String> = frames.iter().take(LISTED_FRAMES).map(described).collect();
    if frames.len() > LISTED_FRAMES {
        shown.push("...".into());
    }
    shown.join(" < ")
}

fn described(frame: &Frame) -> String {
    let function = shown(&frame.function);
    let Some(file) = &frame.file else { return function };
    // The folder is in the JSON.
    let name = shown(file.rsplit('/').next().unwrap_or_default());
    match frame.line {
        0 => format!("{function} ({name})"),
        line => format!("{function} ({name}:{line})"),
    }
}

/// The operations that hold most, and the rest as none.
pub fn holders(history: &History, pool: u16, state: &PoolState) -> Vec<Holder> {
    let mut sums: HashMap<u32, HolderSum> = HashMap::new();
    for live in state.live.values() {
        let sum = sums.entry(live.operation).or_default();
        add(&mut sum.all, live.bytes);
        if live.stack != 0 {
            add(sum.stacks.entry(live.stack).or_default(), live.bytes);
        }
    }
    let mut sums: Vec<(Option<Rc<str>>, HolderSum)> =
        sums.into_iter().map(|(number, sum)| (history.operation_name(pool, number), sum)).collect();
    sums.sort_by(|(a, a_sum), (b, b_sum)| b_sum.all.0.cmp(&a_sum.all.0).then_with(|| a.cmp(b)));
    let rest = if sums.len() > LISTED { sums.split_off(LISTED - 1) } else { Vec::new() };
    let holder = |(operation, HolderSum { all: (bytes, allocations), stacks })| Holder {
        operation,
        bytes,
        allocations,
        stacks: by_frames(history, stacks),
    };
    let mut holders: Vec<Holder> = sums.into_iter().map(holder).collect();
    if !rest.is_empty() {
        let sum =
            |of: fn(&HolderSum) -> u64| rest.iter().map(|(_, sum)| of(sum)).fold(0, u64::saturating_add);
        holders.push(Holder {
            operation: Some(format!("({} others)", rest.len()).into()),
            bytes: sum(|sum| sum.all.0),
            allocations: sum(|sum| sum.all.1),
            stacks: Vec::new(),
        });
    }
    holders
}

/// Bytes and allocations.
pub type Sum = (u64, u64);

#[derive(Default)]
struct HolderSum {
    all: Sum,
    stacks: HashMap<u32, Sum>,
}

pub fn add(sum: &mut Sum, bytes: u64) {
    *sum = (sum.0.saturating_add(bytes), sum.1 + 1);
}

/// The backtraces with their frames, the most bytes first.
pub fn by_frames(history: &History, stacks: HashMap<u32, Sum>) -> Vec<HolderStack> {
    // Equal ones are the same.
    let mut sums: HashMap<*const Frame, HolderStack> = HashMap::new();
    for (stack, (bytes, allocations)) in stacks {
        let frames = history.frames(stack);
        let new = || HolderStack { bytes: 0, allocations: 0, frames: frames.clone() };
        let sum = sums.entry(frames.as_ptr()).or_insert_with(new);
        (sum.bytes, sum.allocations) = (sum.bytes.saturating_add(bytes), sum.allocations + allocations);
    }
    let mut list: Vec<HolderStack> = sums.into_values().collect();
    list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.frames.cmp(&b.frames)));
    list
}
