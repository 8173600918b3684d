//! Writes a history as a snapshot for PyTorch's memory viewer, with the keys of `torch.cuda.memory._snapshot()`.
//!
//! ```text
//!   trace      the events of a device without contradictions, and its state at the end
//!   pickle     the file's format
//! ```
//!
//! python/src/bfc/_snapshot.py writes the same for the pools of a running program, and says why.

mod pickle;
#[cfg(test)]
mod tests;
pub(super) mod trace;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::{History, Recorded};
use pickle::Pickler;
use trace::{Action, Block, Entry, Origin, Trace};

/// Devices with higher ordinals cannot have an allocator. The viewer wants a list for each ordinal up to the highest.
const MOST_DEVICES: usize = 1024;

/// The maximum number of marks in the traces of all devices: each trace has a copy.
const MOST_COPIES: usize = 100_000;

/// Writes the snapshot: the trace of each device, and its segments with their blocks at the end.
pub fn write(history: &History, out: &mut dyn Write) -> io::Result<()> {
    let devices = Devices::of(history);
    let pickler = Pickler::new(out)?;
    let mut writer = Writer { history, pickler, frames: HashMap::new(), calls: HashMap::new() };
    writer.pickler.begin_dict()?;
    writer.pickler.word("device_traces")?;
    let mut traces = writer.pickler.begin_list()?;
    let mut ends = Vec::new();
    for (device, events) in devices.events.iter().enumerate() {
        writer.pickler.item(&mut traces)?;
        let mut trace = Trace::of(events.iter().map(|&index| &history.events[index as usize]));
        writer.trace(&trace)?;
        trace.entries = Vec::new();
        ends.push((device, trace));
    }
    writer.pickler.end_list(&traces)?;
    writer.pickler.word("segments")?;
    let mut segments = writer.pickler.begin_list()?;
    for (device, trace) in &ends {
        for (from, to, ()) in trace.segments.iter() {
            writer.pickler.item(&mut segments)?;
            writer.segment(*device, trace, from, to)?;
        }
    }
    writer.pickler.end_list(&segments)?;
    writer.settings(&devices)?;
    writer.pickler.end_dict()?;
    writer.pickler.finish()
}

/// The events by the device of their pools.
struct Devices {
    /// The numbers of the events, for each ordinal.
    events: Vec<Vec<u32>>,
    /// The ordinals of pools.
    ordinals: BTreeMap<u16, usize>,
}

impl Devices {
    fn of(history: &History) -> Self {
        let of_pool = |event: &Recorded| match history.pool(event.pool) {
            Some((device, _)) => usize::try_from(device).ok().filter(|&device| device < MOST_DEVICES),
            None => None,
        };
        let is_of_pool = |event: &&Recorded| event.kind != Kind::Mark;
        let mut ordinals: BTreeMap<u16, Option<usize>> = BTreeMap::new();
        for event in history.events.iter().filter(is_of_pool) {
            ordinals.entry(event.pool).or_insert_with(|| of_pool(event));
        }
        // A pool whose name did not fit into the file comes last.
        let mut next = ordinals.values().flatten().max().map_or(0, |highest| highest + 1);
        let mut place = |ordinal: Option<usize>| {
            ordinal.or_else(|| {
                next += 1;
                (next <= MOST_DEVICES).then_some(next - 1)
            })
        };
        let ordinals: BTreeMap<u16, usize> =
            ordinals.into_iter().filter_map(|(pool, ordinal)| Some((pool, place(ordinal)?))).collect();
        let used: BTreeSet<usize> = ordinals.values().copied().collect();
        let mut events = vec![Vec::new(); used.last().map_or(0, |highest| highest + 1)];
        let mut marks = 0;
        for (index, event) in (0..).zip(&history.events) {
            if is_of_pool(&event) {
                ordinals.get(&event.pool).into_iter().for_each(|&device| events[device].push(index));
            } else if marks < trace::MOST_MARKS && marks * used.len() < MOST_COPIES {
                marks += 1;
                used.iter().for_each(|&device| events[device].push(index));
            }
        }
        Devices { events, ordinals }
    }
}

/// Writes the parts of a snapshot.
struct Writer<'a, W: Write> {
    history: &'a History,
    pickler: Pickler<W>,
    /// The memo's numbers of lists of frames.
    frames: HashMap<(Action, Origin), u32>,
    /// The memo's numbers of frames, by the backtrace and the position in it.
    calls: HashMap<(u32, usize), u32>,
}

impl<W: Write> Writer<'_, W> {
    fn trace(&mut self, trace: &Trace) -> io::Result<()> {
        let mut entries = self.pickler.begin_list()?;
        for entry in &trace.entries {
            let (first, second) = match entry.action {
                Action::Alloc => ("alloc", None),
                // The viewer merges both into one event if they are adjacent.
                Action::Free => ("free_requested", Some("free_completed")),
                Action::SegmentAlloc => ("segment_alloc", None),
                Action::SegmentFree => ("segment_free", None),
                Action::SegmentMap => ("segment_map", None),
                Action::SegmentUnmap => ("segment_unmap", None),
                Action::OutOfMemory => ("oom", None),
                Action::Mark | Action::Step => ("snapshot", None),
            };
            for action in [Some(first), second].into_iter().flatten() {
                self.pickler.item(&mut entries)?;
                self.entry(action, entry)?;
            }
        }
        self.pickler.end_list(&entries)
    }

    fn entry(&mut self, action: &'static str, entry: &Entry) -> io::Result<()> {
        self.pickler.begin_dict()?;
        self.pickler.word("action")?;
        self.pickler.word(action)?;
        self.number(if action == "oom" { "device_free" } else { "addr" }, entry.address)?;
        self.number("size", entry.bytes)?;
        self.number("stream", entry.stream)?;
        self.number("time_us", self.history.began.saturating_add(entry.time) / 1000)?;
        self.pickler.word("frames")?;
        self.frames(entry.action, entry.origin)?;
        self.pickler.end_dict()
    }

    fn segment(&mut self, device: usize, trace: &Trace, from: u64, to: u64) -> io::Result<()> {
        let blocks: Vec<(u64, Block)> =
            trace.blocks.range(from..to).map(|(&at, &block)| (at, block)).collect();
        let in_use: u64 = blocks.iter().map(|(_, block)| block.bytes).sum();
        self.pickler.begin_dict()?;
        self.number("device", device as u64)?;
        self.number("address", from)?;
        self.number("total_size", to - from)?;
        self.number("allocated_size", in_use)?;
        self.number("active_size", in_use)?;
        self.number("requested_size", blocks.iter().map(|(_, block)| block.requested).sum())?;
        self.number("stream", if trace.is_expandable { trace::MAPPED_STREAM } else { 0 })?;
        self.pickler.word("segment_type")?;
        self.pickler.word("large")?;
        self.pickler.word("segment_pool_id")?;
        self.pickler.int(0)?;
        self.pickler.int(0)?;
        self.pickler.pair()?;
        self.pickler.word("is_expandable")?;
        self.pickler.bool(trace.is_expandable)?;
        self.pickler.word("frames")?;
        self.frames(Action::SegmentAlloc, Origin::default())?;
        self.pickler.word("blocks")?;
        let mut list = self.pickler.begin_list()?;
        let mut end = from;
        for (address, block) in blocks {
            if end < address {
                self.pickler.item(&mut list)?;
                self.block(end, address - end, None)?;
            }
            self.pickler.item(&mut list)?;
            self.block(address, block.bytes, Some(&block))?;
            end = address + block.bytes;
        }
        if end < to {
            self.pickler.item(&mut list)?;
            self.block(end, to - end, None)?;
        }
        self.pickler.end_list(&list)?;
        self.pickler.end_dict()
    }

    fn block(&mut self, address: u64, bytes: u64, used: Option<&Block>) -> io::Result<()> {
        self.pickler.begin_dict()?;
        self.number("address", address)?;
        self.number("size", bytes)?;
        self.number("requested_size", used.map_or(0, |block| block.requested))?;
        self.pickler.word("state")?;
        self.pickler.word(if used.is_some() { "active_allocated" } else { "inactive" })?;
        self.pickler.word("frames")?;
        self.frames(Action::Alloc, used.map_or(Origin::default(), |block| block.origin))?;
        self.pickler.end_dict()
    }

    /// The settings of the allocator, as the viewer shows them.
    fn settings(&mut self, devices: &Devices) -> io::Result<()> {
        self.pickler.word("allocator_settings")?;
        self.pickler.begin_dict()?;
        self.pickler.word("allocator")?;
        self.pickler.text("libbfc")?;
        self.pickler.word("program")?;
        self.pickler.text(&self.history.program)?;
        self.number("process", u64::from(self.history.process))?;
        self.number("displaced_events", self.history.overwritten())?;
        self.pickler.word("pools")?;
        let mut pools = self.pickler.begin_list()?;
        for (&pool, &device) in &devices.ordinals {
            self.pickler.item(&mut pools)?;
            self.pickler.begin_dict()?;
            self.number("device", device as u64)?;
            self.pickler.word("name")?;
            self.pickler.text(self.history.pool(pool).map_or("", |(_, name)| name))?;
            self.pickler.end_dict()?;
        }
        self.pickler.end_list(&pools)?;
        self.pickler.end_dict()
    }

    /// Writes the stack of an entry, which the viewer shows: the operation, the mark or the step, and the backtrace.
    fn frames(&mut self, action: Action, origin: Origin) -> io::Result<()> {
        let action = if action == Action::Free { Action::Alloc } else { action };
        if let Some(&number) = self.frames.get(&(action, origin)) {
            return self.pickler.recall(number);
        }
        let history = self.history;
        let frame = match (action, origin.name) {
            (Action::Mark, name) => Some(("bfc.mark", 0, history.mark(name).clone())),
            (Action::Step, _) => Some(("bfc.step", origin.step, format!("step {}", origin.step).into())),
            (_, number) => {
                history.operation_name(origin.pool, number).map(|name| ("bfc.scope", origin.step, name))
            }
        };
        let mut frames = self.pickler.begin_list()?;
        if let Some((file, line, name)) = frame {
            self.pickler.item(&mut frames)?;
            self.frame(file, line, &name)?;
        }
        for (index, frame) in history.frames(origin.stack).iter().enumerate() {
            self.pickler.item(&mut frames)?;
            let key = (origin.stack, index);
            if let Some(&number) = self.calls.get(&key) {
                self.pickler.recall(number)?;
                continue;
            }
            // PyTorch's name for an unknown file.
            let file = frame.file.as_deref().unwrap_or("??");
            self.frame(file, frame.line.into(), &frame.function)?;
            self.calls.insert(key, self.pickler.memoize()?);
        }
        self.pickler.end_list(&frames)?;
        let number = self.pickler.memoize()?;
        self.frames.insert((action, origin), number);
        Ok(())
    }

    fn frame(&mut self, file: &str, line: u64, name: &str) -> io::Result<()> {
        self.pickler.begin_dict()?;
        self.pickler.word("filename")?;
        self.pickler.text(file)?;
        self.number("line", line)?;
        self.pickler.word("name")?;
        self.pickler.text(name)?;
        self.pickler.end_dict()
    }

    /// Writes a key with a number, which has at most 8 bytes with its sign.
    fn number(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.pickler.word(key)?;
        self.pickler.int(value.cast_signed())
    }
}
