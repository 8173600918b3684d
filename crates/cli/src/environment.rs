//! The effect of the BFC_ variables. The rules are the library's, so the command asks it (bfc_resolve_options).

use std::collections::BTreeMap;
use std::ptr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::device::{GrowthPolicy, PoolConfig};
use crate::library::{CallError, Library};
use crate::simulated_device::SimulatedDevice;

/// Bytes of the pool.
pub const LIMIT: &str = "BFC_MEMORY_LIMIT";
/// The pool's share of the device.
pub const MEMORY_FRACTION: &str = "BFC_MEMORY_FRACTION";
/// Where the pool's memory comes from.
pub const BACKEND: &str = "BFC_BACKEND";
/// How large regions are.
pub const GROWTH: &str = "BFC_GROWTH";
/// Whether the pool grows, whatever the flags say.
pub const FORCE_ALLOW_GROWTH: &str = "BFC_FORCE_ALLOW_GROWTH";
/// The share of the limit from which remainders are split off.
pub const FRAGMENTATION_FRACTION: &str = "BFC_FRAGMENTATION_FRACTION";
/// The file of a plan.
pub const PLAN: &str = "BFC_PLAN";
/// The seconds without a request after which free memory is returned.
pub const TRIM_AFTER: &str = "BFC_TRIM_AFTER";
/// Where the history is recorded.
pub const HISTORY_FILE: &str = "BFC_HISTORY_FILE";
/// Which backtraces it has.
pub const HISTORY_STACKS: &str = "BFC_HISTORY_STACKS";
/// How many events of it.
pub const HISTORY: &str = "BFC_HISTORY";
/// Whether the statistics are published for bfc top.
pub const PUBLISH: &str = "BFC_PUBLISH";
/// It does not change what a replay shows.
const HASH_SEED: &str = "BFC_HASH_SEED";

/// The interposer's file, or its folder: for this command.
pub const PRELOAD_LIBRARY: &str = "BFC_PRELOAD_LIBRARY";
/// Whether each cudaFree synchronises.
pub const PRELOAD_FREE: &str = "BFC_PRELOAD_FREE";
/// Whether cudaMallocAsync is served.
pub const PRELOAD_ASYNC: &str = "BFC_PRELOAD_ASYNC";
/// Whether cudaMallocHost is served.
pub const PRELOAD_PINNED: &str = "BFC_PRELOAD_PINNED";
/// Whether memory is shared with other processes by legacy handles.
pub const PRELOAD_IPC: &str = "BFC_PRELOAD_IPC";
/// The least size that is pooled.
pub const PRELOAD_MIN: &str = "BFC_PRELOAD_MIN";
/// The largest.
pub const PRELOAD_MAX: &str = "BFC_PRELOAD_MAX";
/// Where a trace is written.
pub const PRELOAD_TRACE: &str = "BFC_PRELOAD_TRACE";
/// Where summaries are written.
pub const PRELOAD_REPORT: &str = "BFC_PRELOAD_REPORT";
/// The number of the program's own process, whose report also says that it used no pool.
pub const PRELOAD_PROGRAM: &str = "BFC_PRELOAD_PROGRAM";
/// The file that the interposer writes its observations to.
pub const PRELOAD_CHECK: &str = "BFC_PRELOAD_CHECK";

/// The settings of a pool with what the environment adds: the answer of bfc_resolve_options.
#[derive(Deserialize)]
pub struct Resolved {
    fragmentation_fraction: f64,
    initial_region_bytes: u64,
    allow_growth: bool,
    growth_policy: GrowthPolicy,
    garbage_collection: bool,
    split_always: bool,
    two_ends: bool,
    costs: Vec<Cost>,
    environment: Vec<Variable>,
}

/// A setting that makes pools hold more memory than most programs need.
#[derive(Deserialize, Serialize)]
pub struct Cost {
    setting: String,
    effect: String,
    advice: String,
}

/// A variable of the environment.
#[derive(Deserialize, Serialize)]
pub struct Variable {
    pub name: String,
    pub value: String,
    used: bool,
    remark: Option<String>,
}

impl Variable {
    /// Returns what is wrong with the name or the value, for any allocator.
    pub fn mistake(&self) -> Option<String> {
        let (kind, why) = self.remark.as_deref()?.split_once(": ")?;
        match kind {
            "unknown" => Some(format!("has no effect: {why}; check its spelling")),
            // Other values are ignored in favour of others.
            "ignored" if why.starts_with("it must be") => Some(format!("has no effect: {why}")),
            "ignored in part" | "taken for warn" => Some(format!("is {kind}: {why}")),
            _ => None,
        }
    }
}

impl Resolved {
    /// Asks the library about an allocator without options.
    pub fn defaults(library: &Library) -> Result<Self> {
        Self::read(library.resolved_options(0, None))
    }

    /// Asks the library about the pool of a replay.
    pub fn of_replay(library: &Library, config: &PoolConfig) -> Result<Self> {
        // A replay names its limit, so which one makes no difference.
        const ANY_LIMIT: u64 = 1 << 30;
        let mut options = config.options(ANY_LIMIT);
        let plan = config.plan_path()?;
        options.plan = plan.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        let simulated = config.device_capacity.map(SimulatedDevice::new);
        let suballocator = simulated.as_ref().map(SimulatedDevice::suballocator);
        options.suballocator = suballocator.as_ref().map_or(ptr::null(), ptr::from_ref);
        Self::read(library.resolved_options(config.backend.ordinal(), Some(&options)))
    }

    fn read(text: Result<String, CallError>) -> Result<Self> {
        let resolved: Result<Self, _> = serde_json::from_str(&text?);
        let mut resolved = resolved.context(
            "the settings that the library resolved cannot be read; use a bfc command and a library of one version",
        )?;
        resolved.environment.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(resolved)
    }

    /// Returns the variables that have an effect on a replay, with their values.
    pub fn steering(&self) -> BTreeMap<&str, &str> {
        let used = self.environment.iter().filter(|variable| variable.used && variable.name != HASH_SEED);
        used.map(|variable| (&*variable.name, &*variable.value)).collect()
    }

    /// Returns the pool of a replay as the library creates it.
    pub fn in_force(&self, config: &PoolConfig) -> PoolConfig {
        let given = |fraction: f64| (fraction != 0.0).then_some(fraction);
        PoolConfig {
            growth: self.allow_growth,
            growth_policy: Some(self.growth_policy).filter(|_| self.allow_growth),
            gc: self.garbage_collection,
            split_always: self.split_always,
            two_ends: self.two_ends,
            fragmentation_fraction: given(self.fragmentation_fraction),
            initial_region: Some(self.initial_region_bytes).filter(|&bytes| bytes != 0),
            ..config.clone()
        }
    }

    /// Returns the settings that make pools hold more memory than most programs need.
    pub fn costs(&self) -> &[Cost] {
        &self.costs
    }

    /// Returns these settings with their effect and what to set instead.
    pub fn advice(&self) -> Vec<(&str, String)> {
        let advised = self
            .costs
            .iter()
            .map(|Cost { setting, effect, advice }| (setting.as_str(), format!("{effect}; {advice}")));
        advised.collect()
    }

    /// Returns every variable of the environment whose name begins with `BFC_`, by name.
    pub fn variables(&self) -> &[Variable] {
        &self.environment
    }

    /// Returns every variable with its value, and with the library's remark on it.
    pub fn remarks(&self) -> Vec<(&str, String)> {
        let remarked = self.environment.iter().map(|Variable { name, value, remark, .. }| {
            let value_and_remark = match remark {
                Some(remark) if value.is_empty() => format!("({remark})"),
                Some(remark) => format!("{value}  ({remark})"),
                None => value.clone(),
            };
            (name.as_str(), value_and_remark)
        });
        remarked.collect()
    }
}
