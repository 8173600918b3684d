//! The options to try: those of the run, and one change to them at a time.

use serde::Serialize;

use super::MOST_PLANNED;
use super::program::Program;
use crate::device::{Backend, GrowthPolicy, PoolConfig};
use crate::history::layout::options;
use crate::size::human;

/// More than any pool holds. Addresses are numbers there.
const CAPACITY: u64 = 1 << 60;

/// How a change is made.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The environment variable, for a program whose options leave it open.
    pub variable: Option<String>,
    /// The field or flag of `bfc_options_t`.
    pub option: Option<String>,
    /// The option of `bfc run`.
    pub run: Option<String>,
}

impl Setting {
    fn new(variable: &str, option: &str, run: Option<&str>) -> Self {
        let owned = |text: &str| Some(text.to_owned());
        Setting { variable: owned(variable), option: owned(option), run: run.and_then(owned) }
    }
}

/// What to replay with.
pub struct Change {
    pub name: String,
    pub set: Setting,
    pub config: PoolConfig,
    pub limit: u64,
    /// Whether a plan is computed and followed.
    pub is_planned: bool,
}

/// The options of the run.
pub fn baseline(program: &Program) -> Change {
    Change {
        name: "as recorded".to_owned(),
        set: Setting::default(),
        config: PoolConfig { regions: program.regions.clone(), ..config(program) },
        limit: program.limit,
        is_planned: false,
    }
}

/// Each change, and a limit of so many bytes that was found to be enough.
pub fn others(program: &Program, enough: Option<u64>) -> Vec<Change> {
    let base = config(program);
    let is_virtual = base.backend == Backend::HostVmm;
    let has_stamps = program.has(options::TIMESTAMPS);
    let mut changes = Vec::new();
    let mut add = |name: String, set: Setting, config: PoolConfig| {
        changes.push(Change { name, set, config, limit: program.limit, is_planned: false });
    };
    if !is_virtual {
        let set = Setting::new(
            "BFC_BACKEND=cuda_vmm",
            "backend = BFC_BACKEND_CUDA_VMM",
            Some("--backend cuda-vmm"),
        );
        let config = PoolConfig {
            backend: Backend::HostVmm,
            device_capacity: None,
            split_always: true,
            ..base.clone()
        };
        add(
            "virtual memory".to_owned(),
            set,
            PoolConfig { two_ends: false, fragmentation_fraction: None, ..config },
        );
        split_rules(&base, has_stamps, &mut add);
    }
    if base.growth {
        let run = Some("--growth off");
        let set = Setting::new("BFC_ALLOW_GROWTH=0", "flags without BFC_ALLOW_GROWTH", run);
        if !is_virtual {
            let config = PoolConfig { growth: false, growth_policy: None, gc: false, ..base.clone() };
            add("one region of the limit".to_owned(), set, config);
        }
        if base.growth_policy == Some(GrowthPolicy::TensorFlow) && !is_virtual {
            let set =
                Setting::new("BFC_GROWTH=need", "growth_policy = BFC_GROWTH_NEED", Some("--growth need"));
            let config = PoolConfig { growth_policy: Some(GrowthPolicy::Need), ..base.clone() };
            add("regions as large as needed".to_owned(), set, config);
        }
        if !base.gc {
            let set = Setting::new("BFC_GARBAGE_COLLECTION=1", "flags |= BFC_GARBAGE_COLLECTION", None);
            add("garbage collection".to_owned(), set, PoolConfig { gc: true, ..base.clone() });
        }
    }
    // With timestamps no plan is followed.
    if !has_stamps && program.trace.requests <= MOST_PLANNED {
        changes.push(Change {
            name: "a plan".to_owned(),
            set: Setting::new("BFC_PLAN=FILE", "plan = FILE of bfc plan", None),
            config: PoolConfig { two_ends: false, ..base.clone() },
            limit: program.limit,
            is_planned: true,
        });
    }
    if let Some(limit) = enough {
        let run = format!("--limit {limit}");
        changes.push(Change {
            name: format!("a limit of {}", human(limit)),
            set: Setting::new(
                &format!("BFC_MEMORY_LIMIT={limit}"),
                &format!("memory_limit = {limit}"),
                Some(&run),
            ),
            config: base,
            limit,
            is_planned: false,
        });
    }
    changes
}

/// The rules by which larger chunks are split, but that of the run.
fn split_rules(base: &PoolConfig, has_stamps: bool, add: &mut impl FnMut(String, Setting, PoolConfig)) {
    let is_default = !base.split_always && !base.two_ends && base.fragmentation_fraction.is_none();
    let plain =
        PoolConfig { split_always: false, two_ends: false, fragmentation_fraction: None, ..base.clone() };
    if !base.split_always || base.two_ends {
        let set = Setting::new("BFC_SPLIT_ALWAYS=1", "flags |= BFC_SPLIT_ALWAYS", None);
        add("split every remainder".to_owned(), set, PoolConfig { split_always: true, ..plain.clone() });
    }
    if !base.two_ends && !has_stamps {
        let set = Setting::new("BFC_TWO_ENDS=1", "flags |= BFC_TWO_ENDS", None);
        add("two ends".to_owned(), set, PoolConfig { split_always: true, two_ends: true, ..plain.clone() });
    }
    if !is_default {
        let set = Setting::new("BFC_SPLIT_ALWAYS=0", "flags without BFC_SPLIT_ALWAYS", None);
        add("split at twice the size".to_owned(), set, plain.clone());
    }
    if base.fragmentation_fraction.is_none() {
        let set = Setting::new("BFC_FRAGMENTATION_FRACTION=0.01", "fragmentation_fraction = 0.01", None);
        add(
            "split off 1% of the limit".to_owned(),
            set,
            PoolConfig { fragmentation_fraction: Some(0.01), ..plain },
        );
    }
}

/// The options of the run, on a device that needs no memory.
fn config(program: &Program) -> PoolConfig {
    let Some(recorded) = program.options else {
        return of_run();
    };
    let has = |flag: u32| recorded.flags & flag != 0;
    let policy = if has(options::GROWTH_NEED) { GrowthPolicy::Need } else { GrowthPolicy::TensorFlow };
    let given = recorded.fragmentation_fraction;
    PoolConfig {
        backend: if has(options::VIRTUAL) { Backend::HostVmm } else { Backend::Simulated },
        growth: has(options::GROWTH),
        growth_policy: has(options::GROWTH).then_some(policy),
        gc: has(options::GARBAGE_COLLECTION),
        split_always: has(options::SPLIT_ALWAYS),
        two_ends: has(options::TWO_ENDS),
        fragmentation_fraction: (given != 0.0).then_some(given),
        initial_region: Some(recorded.initial_region).filter(|&bytes| bytes != 0),
        device_capacity: (!has(options::VIRTUAL)).then_some(CAPACITY),
        stream_ordered: false,
        plan: None,
        regions: Vec::new(),
    }
}

/// The options of `bfc run`.
fn of_run() -> PoolConfig {
    PoolConfig {
        backend: Backend::Simulated,
        growth: true,
        growth_policy: Some(GrowthPolicy::Need),
        gc: true,
        split_always: true,
        two_ends: false,
        fragmentation_fraction: None,
        initial_region: None,
        device_capacity: Some(CAPACITY),
        stream_ordered: false,
        plan: None,
        regions: Vec::new(),
    }
}
