//! The options to try: those of the run, and one change to them at a time.

use bfc_sys::{BFC_HOST_DEVICE, BFC_PINNED_DEVICE};
use serde::Serialize;

use super::program::{MOST_PLANNED, Owner, Program};
use crate::device::{Backend, Frees, GrowthPolicy, PoolConfig};
use crate::size::human;
use bfc_formats::history::layout::options;

/// More than any pool holds. Addresses are numbers there.
const CAPACITY: u64 = 1 << 60;

/// How a change is made.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The environment variable. For a program that creates its own pools, if its options leave it open.
    pub variable: Option<String>,
    /// The field or flag of `bfc_options_t`.
    pub option: Option<String>,
    /// The option of `bfc run`.
    pub run: Option<String>,
}

impl Setting {
    /// For a program that creates its own pools.
    fn of_program(variable: &str, option: &str) -> Self {
        Setting { variable: Some(variable.to_owned()), option: Some(option.to_owned()), run: None }
    }

    fn of_run(option: impl Into<String>) -> Self {
        Setting { run: Some(option.into()), ..Setting::default() }
    }

    /// The one that readers see first.
    pub fn shown(&self) -> &str {
        let Setting { variable, option, run } = self;
        run.as_deref().or(variable.as_deref()).or(option.as_deref()).unwrap_or_default()
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

/// Each change that has an effect on the pool, and a limit, in bytes, that was found to suffice.
pub fn others(program: &Program, enough: Option<u64>) -> Vec<Change> {
    // A device without more memory has none for a higher limit.
    let enough = enough.filter(|_| !program.exceeds_device());
    match program.owner {
        Owner::Program => of_program(program, enough),
        Owner::Run => of_run(program, enough),
        Owner::RunPinned => Vec::new(),
    }
}

/// The changes that `bfc run` has options for. The interposer sets all else itself.
fn of_run(program: &Program, enough: Option<u64>) -> Vec<Change> {
    let base = config(program);
    let change = |name: &str, option: &str, config: PoolConfig| Change {
        name: name.to_owned(),
        set: Setting::of_run(option),
        config,
        limit: program.limit,
        is_planned: false,
    };
    let mut changes = Vec::new();
    if base.backend != Backend::HostVmm {
        changes.push(change("virtual memory", "--backend cuda-vmm", virtual_memory(&base)));
        if base.growth {
            let config = PoolConfig { growth: false, growth_policy: None, ..base.clone() };
            changes.push(change("one region of the limit", "--growth off", config));
        }
        if base.growth_policy == Some(GrowthPolicy::TensorFlow) {
            let config = PoolConfig { growth_policy: Some(GrowthPolicy::Need), ..base.clone() };
            changes.push(change("regions as large as needed", "--growth need", config));
        }
    }
    if program.frees == Some(Frees::Wait) {
        let config = PoolConfig { interposed: Some(Frees::AtOnce), ..base.clone() };
        changes.push(change("cudaFree that synchronizes", "--free sync", config));
    } else if !program.has(options::TIMESTAMPS) && program.trace.requests <= MOST_PLANNED {
        // There is no option for it.
        let set = Setting { variable: Some("BFC_PLAN=FILE".to_owned()), ..Setting::default() };
        changes.push(Change { set, is_planned: true, ..change("a plan", "", base.clone()) });
    }
    if let Some(limit) = enough {
        let name = format!("a limit of {}", human(limit));
        changes.push(Change { limit, ..change(&name, &format!("--limit {limit}"), base) });
    }
    changes
}

fn virtual_memory(base: &PoolConfig) -> PoolConfig {
    PoolConfig {
        backend: Backend::HostVmm,
        device_capacity: None,
        split_always: true,
        two_ends: false,
        fragmentation_fraction: None,
        ..base.clone()
    }
}

/// The changes of a program that creates its pools.
fn of_program(program: &Program, enough: Option<u64>) -> Vec<Change> {
    let base = config(program);
    let is_virtual = base.backend == Backend::HostVmm;
    let has_stamps = program.has(options::TIMESTAMPS);
    let mut changes = Vec::new();
    let mut add = |name: String, set: Setting, config: PoolConfig| {
        changes.push(Change { name, set, config, limit: program.limit, is_planned: false });
    };
    if !is_virtual {
        // Memory that the driver did not allocate cannot be mapped by it either, and pinned memory cannot be mapped in
        // granules.
        let set = match program.device {
            Some(BFC_PINNED_DEVICE) => None,
            Some(BFC_HOST_DEVICE..) => {
                Some(Setting::of_program("BFC_BACKEND=host_vmm", "backend = BFC_BACKEND_HOST_VMM"))
            }
            _ => Some(Setting::of_program("BFC_BACKEND=cuda_vmm", "backend = BFC_BACKEND_CUDA_VMM")),
        };
        if let Some(set) = set {
            add("virtual memory".to_owned(), set, virtual_memory(&base));
        }
        split_rules(&base, has_stamps, &mut add);
    }
    if base.growth {
        let set = Setting::of_program("BFC_ALLOW_GROWTH=0", "flags without BFC_ALLOW_GROWTH");
        if !is_virtual {
            let config = PoolConfig { growth: false, growth_policy: None, gc: false, ..base.clone() };
            add("one region of the limit".to_owned(), set, config);
        }
        if base.growth_policy == Some(GrowthPolicy::TensorFlow) && !is_virtual {
            let set = Setting::of_program("BFC_GROWTH=need", "growth_policy = BFC_GROWTH_NEED");
            let config = PoolConfig { growth_policy: Some(GrowthPolicy::Need), ..base.clone() };
            add("regions as large as needed".to_owned(), set, config);
        }
        if !base.gc && !is_virtual {
            let set = Setting::of_program("BFC_GARBAGE_COLLECTION=1", "flags |= BFC_GARBAGE_COLLECTION");
            add("garbage collection".to_owned(), set, PoolConfig { gc: true, ..base.clone() });
        }
    }
    // With timestamps no plan is followed.
    if !has_stamps && program.trace.requests <= MOST_PLANNED {
        changes.push(Change {
            name: "a plan".to_owned(),
            set: Setting::of_program("BFC_PLAN=FILE", "plan = FILE of bfc plan"),
            config: PoolConfig { two_ends: false, ..base.clone() },
            limit: program.limit,
            is_planned: true,
        });
    }
    if let Some(limit) = enough {
        changes.push(Change {
            name: format!("a limit of {}", human(limit)),
            set: Setting::of_program(
                &format!("BFC_MEMORY_LIMIT={limit}"),
                &format!("memory_limit = {limit}"),
            ),
            config: base,
            limit,
            is_planned: false,
        });
    }
    changes
}

/// The rules by which larger chunks are split, except that of the run.
fn split_rules(base: &PoolConfig, has_stamps: bool, add: &mut impl FnMut(String, Setting, PoolConfig)) {
    let is_default = !base.split_always && !base.two_ends && base.fragmentation_fraction.is_none();
    let plain =
        PoolConfig { split_always: false, two_ends: false, fragmentation_fraction: None, ..base.clone() };
    if !base.split_always || base.two_ends {
        let set = Setting::of_program("BFC_SPLIT_ALWAYS=1", "flags |= BFC_SPLIT_ALWAYS");
        add("split every remainder".to_owned(), set, PoolConfig { split_always: true, ..plain.clone() });
    }
    if !base.two_ends && !has_stamps {
        let set = Setting::of_program("BFC_TWO_ENDS=1", "flags |= BFC_TWO_ENDS");
        add("two ends".to_owned(), set, PoolConfig { split_always: true, two_ends: true, ..plain.clone() });
    }
    if !is_default {
        let set = Setting::of_program("BFC_SPLIT_ALWAYS=0", "flags without BFC_SPLIT_ALWAYS");
        add("split at twice the size".to_owned(), set, plain.clone());
    }
    if base.fragmentation_fraction.is_none() {
        let set = Setting::of_program("BFC_FRAGMENTATION_FRACTION=0.01", "fragmentation_fraction = 0.01");
        add(
            "split off 1% of the limit".to_owned(),
            set,
            PoolConfig { fragmentation_fraction: Some(0.01), ..plain },
        );
    }
}

/// The options of the run, on a device that needs no memory.
fn config(program: &Program) -> PoolConfig {
    let interposed = program.frees;
    let Some(recorded) = program.options else {
        return PoolConfig { interposed, ..defaults_of_run() };
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
        interposed,
        plan: None,
        regions: Vec::new(),
    }
}

/// The options of `bfc run`.
fn defaults_of_run() -> PoolConfig {
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
        interposed: None,
        plan: None,
        regions: Vec::new(),
    }
}
