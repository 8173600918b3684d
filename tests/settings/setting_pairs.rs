//! All pairs of settings, from the environment and from the options: what bfc.h says, what `bfc_resolve_options` reports and
//! what `bfc_create` does are the same.

use crate::common::*;
use crate::plan_files::{InMemory, plan};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::CString;

/// A setting that differs from the default.
struct Setting {
    /// Its name in the resolved settings.
    key: &'static str,
    variable: &'static str,
    value: String,
    /// Sets it in the options, if they have it.
    field: Option<fn(&mut bfc_options_t)>,
}

/// The limit of allocators for which the pair sets none, and the one that it sets.
const LIMITS: [u64; 2] = [16 * MIB, 12 * MIB];
const FRACTION: f64 = 0.0005;
const INITIAL: u64 = 4 * MIB;

/// The sentences that say that a setting has no effect. Those about variables alone are in the documentation.
const SENTENCES: &[(&str, &str)] = &[
    ("include/bfc.h", "Used if memory_limit is 0."),
    ("include/bfc.h", "With BFC_TIMESTAMPS, no call hands out a chunk whose stamp is not safe."),
    ("include/bfc.h", "Not with BFC_TIMESTAMPS."),
    (
        "include/bfc.h",
        "No effect with BFC_TIMESTAMPS, on a virtual range, with a plan, and once a second stream is used.",
    ),
    (
        "include/bfc.h",
        "Any remainder is split off, as with BFC_SPLIT_ALWAYS, unless fragmentation_fraction is given.",
    ),
    ("include/bfc.h", "No effect with BFC_SPLIT_ALWAYS."),
    ("include/bfc.h", "The size in bytes of the first region with growth."),
    ("include/bfc.h", "the sizes of regions with BFC_ALLOW_GROWTH. No effect without growth."),
    ("include/bfc.h", "A virtual range grows by need with every policy"),
    ("include/bfc.h", "No effect in a virtual range, where granules move instead."),
    (
        "docs/environment.md",
        "| `populate` | without the host backend; with `BFC_HUGE_PAGES=hugetlb`; with `BFC_DEBUG=guard` |",
    ),
    (
        "docs/reports.md",
        "**Host backends with `BFC_TIMESTAMPS`, custom backends**: the debug mode is ignored with a warning.",
    ),
    (
        "docs/environment.md",
        "ignored with a warning if it cannot be used, with timestamps, and with `BFC_DEBUG=guard`",
    ),
];

#[test]
fn the_documents_say_what_is_expected_here() {
    for (file, sentence) in SENTENCES {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).expect("the page").replace("// ", " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(sentence), "{file}: {sentence}");
    }
}

/// The backends, and whether allocators are created on them here.
const BACKENDS: [(&str, u32, i32, bool); 5] = [
    ("host", BFC_BACKEND_HOST, 300, true),
    ("host_vmm", BFC_BACKEND_HOST_VMM, 300, true),
    ("custom", BFC_BACKEND_CUSTOM, 300, true),
    ("cuda", BFC_BACKEND_CUDA, 0, false),
    ("cuda_vmm", BFC_BACKEND_CUDA_VMM, 0, false),
];

/// An allocator to be: settings on top of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Case {
    backend: usize,
    /// `BFC_FORCE_ALLOW_GROWTH=1`.
    grows: bool,
    /// Settings come from the options, if these have them.
    in_options: bool,
    /// The settings, a bit each.
    set: u32,
}

/// What an allocator does.
#[derive(Clone, PartialEq, Debug)]
struct Facts {
    limit: u64,
    first_region: u64,
    /// What is held once an allocation of that size and one more are there.
    both_regions: u64,
    stamps: bool,
    quarantine: bool,
    two_ends: bool,
    planned: bool,
    guarded: bool,
    /// Whether remainders of 1 KiB, and of more than the fraction of the limit, are split off.
    splits: [bool; 2],
    /// Whether most of the limit can be obtained in one piece after all was freed.
    regains: bool,
}

struct Pairs {
    settings: Vec<Setting>,
    backend: Box<Backend>,
    plan: &'static CString,
    known: HashMap<Case, Result<Facts, Status>>,
    wrong: Vec<String>,
}

/// The child of the test below. By itself it does nothing.
#[test]
fn pairs() {
    if !child::is_child("setting_pairs::pairs") {
        return;
    }
    let file = Box::leak(Box::new(InMemory::with(&plan(16384, 0, &[(4096, Some(12288))]))));
    let mut pairs = Pairs {
        settings: settings(&file.path),
        backend: Box::new(Backend::new(1 << 40)),
        plan: &file.path,
        known: HashMap::new(),
        wrong: Vec::new(),
    };
    let count = pairs.settings.len();
    for backend in 0..BACKENDS.len() {
        for (grows, in_options) in [(false, false), (false, true), (true, false), (true, true)] {
            for (one, other) in (0..count).flat_map(|one| (one..count).map(move |other| (one, other))) {
                let case = Case { backend, grows, in_options, set: 1 << one | 1 << other };
                pairs.check(case);
            }
        }
    }
    println!("{} allocators were created", pairs.known.len());
    println!("{} mistakes", pairs.wrong.len());
    pairs.wrong.iter().for_each(|wrong| println!("fact {wrong}"));
}

#[test]
fn a_setting_has_no_effect_where_the_documents_say_so() {
    let ended = child::expect_success("setting_pairs::pairs", &[]);
    assert!(ended.text.contains("\n0 mistakes\n"), "{}", ended.text);
}

fn settings(plan: &CString) -> Vec<Setting> {
    let new = |key, variable, value: &str, field| Setting { key, variable, value: value.to_owned(), field };
    vec![
        new("memory_limit", "BFC_MEMORY_LIMIT", "12MiB", Some(|o| o.memory_limit = LIMITS[1])),
        new("memory_fraction", "BFC_MEMORY_FRACTION", "0.001", Some(|o| o.memory_fraction = 0.001)),
        new("allow_growth", "BFC_ALLOW_GROWTH", "1", Some(|o| o.flags |= BFC_ALLOW_GROWTH)),
        new("growth_policy", "BFC_GROWTH", "tensorflow", Some(|o| o.growth_policy = BFC_GROWTH_TENSORFLOW)),
        new("garbage_collection", "BFC_GARBAGE_COLLECTION", "1", Some(|o| o.flags |= BFC_GARBAGE_COLLECTION)),
        new("timestamps", "BFC_TIMESTAMPS", "1", Some(|o| o.flags |= BFC_TIMESTAMPS)),
        new("quarantine", "BFC_QUARANTINE", "1", Some(|o| o.flags |= BFC_QUARANTINE)),
        new("split_always", "BFC_SPLIT_ALWAYS", "1", Some(|o| o.flags |= BFC_SPLIT_ALWAYS)),
        new("two_ends", "BFC_TWO_ENDS", "1", Some(|o| o.flags |= BFC_TWO_ENDS)),
        new(
            "fragmentation_fraction",
            "BFC_FRAGMENTATION_FRACTION",
            "0.0005",
            Some(|o| o.fragmentation_fraction = FRACTION),
        ),
        new(
            "initial_region_bytes",
            "BFC_INITIAL_REGION_BYTES",
            "4MiB",
            Some(|o| o.initial_region_bytes = INITIAL),
        ),
        new("retry_timeout_ms", "BFC_RETRY_TIMEOUT_MS", "1", Some(|o| o.retry_timeout_ms = 1)),
        // The path is set below.
        new("plan", "BFC_PLAN", plan.to_str().expect("UTF-8"), Some(|_| {})),
        new("trim_after", "BFC_TRIM_AFTER", "60", None),
        new("guard", "BFC_DEBUG", "guard", None),
        new("huge_pages", "BFC_HUGE_PAGES", "hugetlb", None),
        new("numa", "BFC_NUMA", "interleave", None),
        new("populate", "BFC_POPULATE", "1", None),
        new("report_on_failure", "BFC_REPORT_ON_FAILURE", "1", None),
    ]
}

impl Pairs {
    fn bit(&self, key: &str) -> u32 {
        1 << self.settings.iter().position(|setting| setting.key == key).expect("a setting")
    }

    fn has(&self, case: Case, key: &str) -> bool {
        case.set & self.bit(key) != 0
    }

    /// Returns what the documents say: the settings without effect, or the status that refuses them.
    fn expected(&self, case: Case) -> Result<u32, Status> {
        let backend = BACKENDS[case.backend].0;
        let (is_range, is_host) = (backend.ends_with("_vmm"), backend == "host");
        let set = |key| self.has(case, key);
        let growth = set("allow_growth") || case.grows;
        let stamps = set("timestamps");
        let guard = set("guard") && backend != "custom" && (!stamps || backend.starts_with("cuda"));
        let plan = set("plan") && !stamps && !guard;
        let two_ends = set("two_ends") && !stamps && !is_range && !plan;
        let is_limited = set("memory_limit") || !set("memory_fraction");
        if case.in_options && (set("quarantine") && !stamps || set("plan") && stamps)
            || backend == "custom" && !is_limited
        {
            return Err(BFC_ERROR_INVALID_ARGUMENT);
        }
        let ignored = [
            ("memory_fraction", is_limited),
            ("growth_policy", !growth || is_range),
            ("garbage_collection", is_range),
            ("quarantine", !stamps),
            ("two_ends", !two_ends),
            ("fragmentation_fraction", set("split_always") || two_ends),
            ("initial_region_bytes", !growth),
            ("plan", !plan),
            ("guard", !guard),
            ("huge_pages", !is_host),
            ("numa", !is_host),
            ("populate", !is_host || guard || set("huge_pages")),
        ];
        let bits = ignored.into_iter().filter(|(_, is_ignored)| *is_ignored).map(|(key, _)| self.bit(key));
        Ok(bits.fold(0, |all, bit| all | bit) & case.set)
    }

    /// Sets the environment, and calls `with` with the options.
    fn with<T>(&self, case: Case, with: impl FnOnce(&bfc_options_t) -> T) -> T {
        let (_, backend, ..) = BACKENDS[case.backend];
        let functions = self.backend.functions();
        let mut options = options();
        options.backend = backend;
        if backend == BFC_BACKEND_CUSTOM {
            options.suballocator = &functions;
        }
        if !self.has(case, "memory_limit") && !self.has(case, "memory_fraction") {
            options.memory_limit = LIMITS[0];
        }
        let put = |name: &str, value: Option<&str>| match value {
            // SAFETY: this test is alone in its process, and the library's threads do not read the environment.
            Some(value) => unsafe { std::env::set_var(name, value) },
            // SAFETY: as above.
            None => unsafe { std::env::remove_var(name) },
        };
        put("BFC_FORCE_ALLOW_GROWTH", case.grows.then_some("1"));
        for (at, setting) in self.settings.iter().enumerate() {
            let is_set = case.set & 1 << at != 0;
            let field = setting.field.filter(|_| is_set && case.in_options);
            put(setting.variable, Some(&*setting.value).filter(|_| is_set && field.is_none()));
            if let Some(field) = field {
                field(&mut options);
                if setting.key == "plan" {
                    options.plan = self.plan.as_ptr();
                }
            }
        }
        with(&options)
    }

    fn resolved(&self, case: Case) -> Result<Value, Status> {
        let text = self
            .with(case, |options| crate::resolved_options::resolve(BACKENDS[case.backend].2, Some(options)));
        text.map(|text| serde_json::from_str(&text).expect("JSON"))
    }

    fn facts(&mut self, case: Case) -> Result<Facts, Status> {
        if let Some(facts) = self.known.get(&case) {
            return facts.clone();
        }
        let created = self.with(case, |options| Pool::create(BACKENDS[case.backend].2, options, None));
        let facts = created.map(|pool| observed(&pool));
        self.known.insert(case, facts.clone());
        facts
    }

    /// Returns the settings that a report says are ignored.
    fn reported(&mut self, case: Case, resolved: &Value) -> u32 {
        let mut ignored = 0;
        let list = |key: &str| resolved[key].as_array().cloned().unwrap_or_default();
        let mut wrong = Vec::new();
        for (at, setting) in self.settings.iter().enumerate().filter(|(at, _)| case.set & 1 << at != 0) {
            let is_ignored = match setting.field.filter(|_| case.in_options) {
                Some(_) => list("ignored").iter().any(|ignored| ignored["setting"] == setting.key),
                None => {
                    let environment = list("environment");
                    let found = environment.iter().find(|variable| variable["name"] == setting.variable);
                    let found = found.expect("it is set");
                    let is_ignored = found["remark"].as_str().is_some_and(|how| how.starts_with("ignored: "));
                    if found["used"] == is_ignored {
                        wrong.push(format!("{}: {found}", self.name(case)));
                    }
                    is_ignored
                }
            };
            ignored |= u32::from(is_ignored) << at;
        }
        self.wrong.extend(wrong);
        ignored
    }

    fn check(&mut self, case: Case) {
        // What is forced is not asked of the flag.
        if case.grows && self.has(case, "allow_growth") {
            return;
        }
        let name = self.name(case);
        let (expected, resolved) = (self.expected(case), self.resolved(case));
        let created = BACKENDS[case.backend].3.then(|| self.facts(case));
        let statuses = [
            expected.err(),
            resolved.as_ref().err().copied(),
            created.as_ref().and_then(|facts| facts.clone().err()),
        ];
        let of_creation = if created.is_some() { statuses[2] } else { statuses[0] };
        if statuses[0] != statuses[1] || statuses[0] != of_creation {
            self.wrong.push(format!("{name}: expected, resolved and created: {statuses:?}"));
        }
        let (Ok(expected), Ok(resolved)) = (expected, resolved) else { return };
        let reported = self.reported(case, &resolved);
        if reported != expected {
            let [reported, expected] = [reported, expected].map(|set| self.keys(set));
            self.wrong.push(format!("{name}: reported as ignored: {reported}; documented: {expected}"));
        }
        let Some(Ok(facts)) = created else { return };
        self.compare(&name, &resolved, &facts);
        for (at, bit) in
            (0..self.settings.len()).map(|at| (at, 1 << at)).filter(|(_, bit)| case.set & bit != 0)
        {
            // Without it another limit is the default.
            let key = self.settings[at].key;
            let Ok(without) = self.facts(Case { set: case.set & !bit, ..case }) else { continue };
            let is_ignored = expected & bit != 0;
            let has_effect = without != facts;
            if is_ignored && has_effect {
                self.wrong
                    .push(format!("{name}: {key} has an effect: {without:?} without it, and {facts:?}"));
            }
            if !is_ignored && !has_effect && self.is_visible(key, case, &facts) {
                self.wrong.push(format!("{name}: {key} has no effect: {facts:?}"));
            }
        }
    }

    /// Compares the resolved settings with what an allocator does.
    fn compare(&mut self, name: &str, resolved: &Value, facts: &Facts) {
        let mut pairs = vec![
            ("timestamps", facts.stamps),
            ("quarantine", facts.quarantine),
            ("two_ends", facts.two_ends),
            ("plan", facts.planned),
            ("guard", facts.guarded),
            ("allow_growth", facts.first_region < facts.limit / 2),
        ];
        // Guards and planned places change how chunks are split.
        if !facts.guarded && !facts.planned {
            pairs.push(("split_always", facts.splits == [true; 2]));
        }
        for (key, fact) in pairs {
            if resolved[key] != fact {
                self.wrong.push(format!(
                    "{name}: {key} is {} in the report, and {fact} in {facts:?}",
                    resolved[key]
                ));
            }
        }
    }

    /// Returns whether a setting that is not ignored shows in the facts.
    fn is_visible(&self, key: &str, case: Case, facts: &Facts) -> bool {
        let grows = facts.first_region < facts.limit / 2;
        match key {
            "split_always" | "fragmentation_fraction" if facts.guarded || facts.planned => false,
            "split_always" => !facts.two_ends && BACKENDS[case.backend].0 != "host_vmm",
            "garbage_collection" => grows,
            // The default of options with growth.
            "growth_policy" => !(case.in_options && self.has(case, "allow_growth")),
            "retry_timeout_ms" | "trim_after" | "huge_pages" | "numa" | "populate" | "report_on_failure" => {
                false
            }
            _ => true,
        }
    }

    fn keys(&self, set: u32) -> String {
        let keys = self.settings.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
        keys.map(|(_, setting)| setting.key).collect::<Vec<_>>().join(" + ")
    }

    fn name(&self, case: Case) -> String {
        let Case { backend, grows, in_options, set } = case;
        let from = if in_options { "options" } else { "environment" };
        let growth = if grows { ", forced growth" } else { "" };
        format!("{}{growth}, {from}: {}", BACKENDS[backend].0, self.keys(set))
    }
}

fn observed(pool: &Pool) -> Facts {
    let stamps = pool.timestamp().is_ok();
    let settle = || {
        if let Ok(last) = pool.timestamp() {
            pool.set_safe_frontier(last + 1);
        }
    };
    let put = |address| {
        pool.put(address);
        settle();
    };
    let limit = pool.stats().bytes_limit;
    let first = pool.get(4096);
    let (planned, first_region) = (pool.stats().num_planned_allocs == 1, pool.stats().pool_bytes);
    put(first);
    // A size that is freed soon.
    (0..4).for_each(|_| put(pool.get(5000)));
    let last = pool.get(5000);
    let region = pool.range(last).expect("its region").region;
    let two_ends = last + (64 << 10) > region.0 + region.1;
    put(last);
    let mut walls = Vec::new();
    let mut splits = |remainder: u64, times: u64| {
        walls.push(pool.get(256));
        let hole = pool.get(remainder * (times + 1));
        walls.push(pool.get(256));
        put(hole);
        let again = pool.get(remainder * times);
        walls.push(again);
        pool.allocated_size(again) == Ok(remainder * times)
    };
    let beyond = (FRACTION * limit as f64 * 1.5) as u64 & !255;
    let splits = [splits(1024, 2), splits(beyond, 2)];
    walls.into_iter().for_each(put);
    let (held, wall) = (pool.get(7000), pool.get(256));
    pool.put(held);
    let again = pool.get(7000);
    let quarantine = again != held;
    [again, wall].into_iter().for_each(put);
    let both = [pool.alloc(first_region), pool.alloc(first_region / 2)];
    let both_regions = pool.stats().pool_bytes;
    both.into_iter().flatten().for_each(put);
    let most = pool.alloc(limit - MIB);
    let regains = most.is_ok();
    most.into_iter().for_each(put);
    let guarded = pool.memory_map().contains("guard_violations");
    pool.check();
    Facts {
        limit,
        first_region,
        both_regions,
        stamps,
        quarantine,
        two_ends,
        planned,
        guarded,
        splits,
        regains,
    }
}
