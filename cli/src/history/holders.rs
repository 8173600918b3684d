//! Who holds memory at a moment: the operations, and where they allocated it.

use std::collections::HashMap;
use std::fmt::Write;

use serde::Serialize;

use super::reader::History;
use super::stacks::Frame;
use super::timeline::PoolState;
use crate::names::shown;
use crate::size::{counted, human};

/// How many operations are listed.
const LISTED: usize = 10;
/// How many backtraces of a holder people see, and how many frames of each.
const LISTED_STACKS: usize = 3;
const LISTED_FRAMES: usize = 8;

#[derive(Serialize, Clone)]
pub struct Holder {
    operation: Option<String>,
    bytes: u64,
    allocations: u64,
    /// Where they were allocated, the most bytes first. Empty without backtraces.
    stacks: Vec<HolderStack>,
}

#[derive(Serialize, Clone)]
pub struct HolderStack {
    bytes: u64,
    allocations: u64,
    frames: Vec<Frame>,
}

pub fn write_holders(text: &mut String, holders: &[Holder]) {
    for holder in holders {
        let name = holder.operation.as_deref().map_or("(no operation)".into(), shown);
        let _ = writeln!(
            text,
            "    {:>11}  {}  {name}",
            human(holder.bytes),
            counted(holder.allocations as usize, "allocation")
        );
        write_stacks(text, &holder.stacks);
    }
}

/// Writes where most was allocated.
pub fn write_stacks(text: &mut String, stacks: &[HolderStack]) {
    for stack in stacks.iter().take(LISTED_STACKS) {
        let calls = counted(stack.allocations as usize, "allocation");
        let _ = writeln!(text, "      {:>11} in {calls} by {}", human(stack.bytes), chain(&stack.frames));
    }
    if stacks.len() > LISTED_STACKS {
        let more = counted(stacks.len() - LISTED_STACKS, "backtrace");
        let _ = writeln!(text, "      and {more} more (--json has all)");
    }
}

/// The frames of a backtrace in a line, each called by the one behind it.
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
    let mut holders: Vec<Holder> = sums
        .into_iter()
        .map(|(number, sum)| {
            let stacks = by_frames(history, sum.stacks);
            Holder {
                operation: history.operation_name(pool, number),
                bytes: sum.all.0,
                allocations: sum.all.1,
                stacks,
            }
        })
        .collect();
    holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.operation.cmp(&b.operation)));
    if holders.len() > LISTED {
        let rest = holders.split_off(LISTED - 1);
        let sum = |of: fn(&Holder) -> u64| rest.iter().map(of).fold(0, u64::saturating_add);
        holders.push(Holder {
            operation: Some(format!("({} others)", rest.len())),
            bytes: sum(|holder| holder.bytes),
            allocations: sum(|holder| holder.allocations),
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

/// The backtraces with their frames, the most bytes first. Those that differ only in addresses have the same frames and
/// are one.
pub fn by_frames(history: &History, stacks: HashMap<u32, Sum>) -> Vec<HolderStack> {
    let mut sums: HashMap<&[Frame], Sum> = HashMap::new();
    for (stack, (bytes, allocations)) in stacks {
        let sum = sums.entry(history.frames(stack)).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1 + allocations);
    }
    let mut list: Vec<HolderStack> = sums
        .into_iter()
        .map(|(frames, (bytes, allocations))| HolderStack { bytes, allocations, frames: frames.to_vec() })
        .collect();
    list.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.frames.cmp(&b.frames)));
    list
}
