//! The requests of a recorded pool as a trace.

use std::collections::{BTreeMap, HashSet};

use bfc_sys::interposer::{self, Waiting};
use serde::Serialize;

use crate::device::Frees;
use crate::simulated_device::Region;
use bfc_formats::history::layout::{Kind, options};
use bfc_readers::history::ranges::Ranges;
use bfc_readers::history::reader::{History, PoolOptions, Recorded};
use bfc_readers::history::timeline::PoolState;
use bfc_readers::trace::{Parser, Trace};

/// The causes of failures that more memory would have avoided: exhaustion and fragmentation.
const OF_MEMORY: [u8; 2] = [1, 2];

/// A plan is not computed for more requests, because a placement takes more steps than there are requests.
pub const MOST_PLANNED: usize = 100_000;

/// A pool that is to be replayed.
pub struct Program {
    pub device: Option<i32>,
    pub trace: Trace,
    /// None if the file had no room for them.
    pub options: Option<PoolOptions>,
    /// What the run could hold.
    pub limit: u64,
    pub recorded: Figures,
    /// Whether the recording has all events of the pool.
    pub is_complete: bool,
    /// The regions that the run obtained, in order.
    pub regions: Vec<Region>,
    /// What sizes are rounded up to.
    pub alignment: u64,
    /// How its options are set.
    pub owner: Owner,
    /// When freed memory is reusable in a pool of the interposer.
    pub frees: Option<Frees>,
    pub facts: Facts,
}

/// The result of a run, as the statistics count it.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub allocations: u64,
    pub frees: u64,
    pub failed: u64,
    pub peak_in_use: u64,
    pub peak_held: u64,
}

/// The creator of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The program.
    Program,
    /// The interposer, for a device: `bfc run` has options for it.
    Run,
    /// The interposer, for pinned memory, which has no options.
    RunPinned,
}

impl Owner {
    pub fn of(name: &str) -> Self {
        match name {
            _ if interposer::DEVICE_POOL.to_str() == Ok(name) => Owner::Run,
            _ if interposer::PINNED_POOL.to_str() == Ok(name) => Owner::RunPinned,
            _ => Owner::Program,
        }
    }
}

/// What a replay does not know or show.
#[derive(Default)]
pub struct Facts {
    /// Allocations that were live before the first event that is replayed.
    pub earlier: usize,
    /// Bytes that are live to the end and that no known event explains.
    pub unknown: u64,
    /// The limit of the run, if the device gave less.
    pub unreached_limit: Option<u64>,
    pub streams: usize,
}

/// Returns the programs of all pools. The first `left_out` events are only followed, to find out what is live after
/// them.
pub fn of(history: &History, left_out: usize) -> Vec<Program> {
    let mut pools: BTreeMap<u16, Follower> = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        if at == left_out {
            pools.values_mut().for_each(Follower::begin);
        }
        if event.kind != Kind::Mark {
            let pool = pools.entry(event.pool).or_insert_with(|| Follower::new(history, event.pool));
            pool.follow(event, at >= left_out);
        }
    }
    let is_whole = history.incomplete == 0;
    let programs = pools.into_iter().map(|(pool, follower)| follower.program(history, pool, is_whole));
    programs.filter(|program| program.trace.requests != 0).collect()
}

enum Step {
    Alloc {
        address: u64,
        bytes: u64,
        stream: u64,
    },
    Free {
        address: u64,
        stream: u64,
    },
    Refused {
        bytes: u64,
    },
    /// The memory of this many first frees is reusable.
    Reusable {
        frees: usize,
    },
}

/// Collects what a pool did.
#[derive(Default)]
struct Follower {
    state: PoolState,
    steps: Vec<Step>,
    /// Addresses of allocations in memory that was given back. If the pool continues, they are gone, because the
    /// context was lost. A destroyed pool frees nothing.
    lost: Vec<u64>,
    /// Address and bytes of what was live before the first step.
    earlier: BTreeMap<u64, u64>,
    /// Whether the first event of the pool is among the steps.
    has_begun: bool,
    /// Whether something was in use when the recording of the pool began.
    was_in_use: bool,
    /// Bytes in use that no event explains.
    unknown: u64,
    regions: Vec<Region>,
    recorded: Figures,
    streams: HashSet<u64>,
    /// Memory that was freed and not allocated again, with the number of its free, from 1.
    waiting: Ranges<usize>,
    frees: usize,
    /// How many of the frees were reusable, judging by memory that was allocated again or given back.
    reusable: usize,
    /// Whether a chunk was no multiple of 512 bytes.
    has_small_units: bool,
    /// What was held when a request failed although the limit left room for it.
    refused_at: Option<u64>,
}

impl Follower {
    fn new(history: &History, pool: u16) -> Self {
        Follower { state: PoolState::of_pool(history, pool), ..Follower::default() }
    }

    /// Begins to collect, starting with what is live.
    fn begin(&mut self) {
        self.earlier = self.state.live.iter().map(|(&address, live)| (address, live.requested)).collect();
    }

    fn follow(&mut self, event: &Recorded, is_replayed: bool) {
        if is_replayed {
            self.collect(event);
        }
        self.state.apply(event);
        let Figures { allocations, frees, failed, peak_in_use, peak_held } = &mut self.recorded;
        (*allocations, *frees, *failed) = (self.state.allocations, self.state.frees, self.state.failures);
        *peak_in_use = self.state.in_use.max(*peak_in_use);
        *peak_held = self.state.held.max(*peak_held);
        if matches!(event.kind, Kind::Alloc | Kind::Free) {
            self.unknown = self.state.in_use.saturating_sub(self.state.known);
        }
    }

    fn collect(&mut self, event: &Recorded) {
        // 0x1 is the default stream too.
        let stream = event.stream.filter(|&stream| stream != 1).unwrap_or(0);
        let &Recorded { address, bytes, requested, .. } = event;
        if matches!(event.kind, Kind::Alloc | Kind::Free | Kind::OutOfMemory) {
            self.frees += self.lost.len();
            let lost = self.lost.drain(..);
            self.steps.extend(lost.map(|address| Step::Free { address, stream: 0 }));
        }
        match event.kind {
            Kind::Alloc | Kind::Present => {
                self.has_small_units |= !bytes.is_multiple_of(512);
                self.was_in_use |= event.kind == Kind::Present;
                self.streams.insert(stream);
                self.see_reuse(event);
                self.steps.push(Step::Alloc { address, bytes: requested, stream });
            }
            Kind::Free => {
                if !self.state.live.contains_key(&address) {
                    // Its allocation was displaced.
                    self.earlier.entry(address).or_insert(bytes);
                }
                self.frees += 1;
                self.waiting.insert(address, address.saturating_add(bytes), self.frees);
                self.steps.push(Step::Free { address, stream });
            }
            Kind::Obtained => self.regions.push(Region { base: address, bytes }),
            Kind::Returned => {
                let gone = self.state.live.range(address..address.saturating_add(bytes));
                self.lost.extend(gone.map(|(&address, _)| address));
                self.waiting.remove(address, address.saturating_add(bytes));
            }
            Kind::OutOfMemory => {
                let room = self.state.limit.saturating_sub(self.state.held);
                // Virtual memory is mapped in granules.
                if OF_MEMORY.contains(&event.cause) && requested.saturating_add(4 << 20) <= room {
                    self.refused_at = Some(self.state.held);
                }
                self.reusable = self.frees;
                self.steps.push(Step::Refused { bytes: requested });
            }
            Kind::Begin => self.has_begun = true,
            Kind::Mark | Kind::Step | Kind::End | Kind::Trim | Kind::Limit => {}
        }
    }

    /// Memory that is used again shows that the work before its free was done, and that before every earlier free. If
    /// the interposer would not have queried it, the program must have waited for the work.
    fn see_reuse(&mut self, event: &Recorded) {
        let &Recorded { address, bytes, requested, .. } = event;
        let reused = self.waiting.remove(address, address.saturating_add(bytes));
        let last = reused.iter().map(|&(.., free)| free).max().unwrap_or(0);
        if last <= self.reusable {
            return;
        }
        let waiting = Waiting {
            frees: (self.frees - self.reusable) as u64,
            in_use: self.state.in_use,
            peak_in_use: self.recorded.peak_in_use,
            held: self.state.held,
            limit: self.state.limit,
        };
        if waiting.frees >= interposer::MAX_WAITING_FREES || waiting.is_worth_a_probe(requested) {
            self.reusable = self.frees;
        } else {
            self.reusable = last;
            self.steps.push(Step::Reusable { frees: last });
        }
    }

    fn program(self, history: &History, pool: u16, is_whole: bool) -> Program {
        let (device, name) = history.pool(pool).unzip();
        let owner = Owner::of(name.unwrap_or_default());
        let options = history.options(pool).copied();
        let has_stamps = options.is_some_and(|given| given.flags & options::TIMESTAMPS != 0);
        let frees = (owner != Owner::Program).then_some(if has_stamps { Frees::Wait } else { Frees::AtOnce });
        let alignment = if self.has_small_units { 256 } else { 512 };
        let mut facts = Facts {
            earlier: self.earlier.len(),
            unknown: self.unknown,
            unreached_limit: None,
            streams: self.streams.len(),
        };
        let mut limit = if self.state.limit == 0 { u64::MAX } else { self.state.limit };
        // Had the pool grown later, the request would have failed for another reason.
        if self.refused_at.is_some_and(|held| held != 0 && held >= self.recorded.peak_held) {
            facts.unreached_limit = Some(limit);
            limit = self.recorded.peak_held;
        }
        let is_complete = is_whole && self.has_begun && !self.was_in_use && facts.earlier == 0;
        Program {
            device,
            limit,
            options,
            recorded: self.recorded,
            is_complete,
            alignment,
            owner,
            frees,
            facts,
            trace: trace(name.unwrap_or_default(), &self.earlier, self.unknown, &self.steps, alignment),
            regions: self.regions,
        }
    }
}

/// Makes a trace of steps. Allocations that were live before come first, in the order of their addresses. An impossible
/// step (the file is damaged, or an event is missing) is left out.
fn trace(name: &str, earlier: &BTreeMap<u64, u64>, unknown: u64, steps: &[Step], alignment: u64) -> Trace {
    let rounded = |bytes: u64| bytes.checked_next_multiple_of(alignment).unwrap_or(bytes);
    let mut parser = Parser::default();
    let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 0;
    let mut alloc =
        |parser: &mut Parser, ids: &mut BTreeMap<u64, u64>, address: u64, bytes: u64, stream: u64| {
            if let Some(id) = ids.remove(&address) {
                let _ = parser.free(id, stream);
            }
            if parser.alloc(next, rounded(bytes), stream).is_ok() {
                ids.insert(address, next);
                next += 1;
            }
        };
    // No event has the address 0.
    if unknown != 0 {
        alloc(&mut parser, &mut ids, 0, unknown, 0);
    }
    for (&address, &bytes) in earlier {
        alloc(&mut parser, &mut ids, address, bytes, 0);
    }
    // Impossible steps are not events of the trace.
    let mut frees = Vec::new();
    for step in steps {
        match *step {
            Step::Alloc { address, bytes, stream } => alloc(&mut parser, &mut ids, address, bytes, stream),
            Step::Free { address, stream } => {
                if let Some(id) = ids.remove(&address) {
                    let _ = parser.free(id, stream);
                }
                frees.push(parser.frees());
            }
            Step::Reusable { frees: last } => {
                if let Some(&frees) = frees.get(last - 1) {
                    parser.reusable(frees);
                }
            }
            Step::Refused { bytes } => {
                let _ = parser.refused(rounded(bytes), 0);
            }
        }
    }
    parser.finish(name)
}

impl Program {
    /// Returns whether an option of the run was set.
    pub fn has(&self, flag: u32) -> bool {
        self.options.is_some_and(|options| options.flags & flag != 0)
    }

    /// Returns whether the device had less memory than the limit.
    pub fn exceeds_device(&self) -> bool {
        self.facts.unreached_limit.is_some()
    }
}
