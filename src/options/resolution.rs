//! What an allocator would be created with, for clients that ask without creating one.

use super::environment::{PRIVILEGED, Warnings, guard_wanted, setting, trim_after};
use super::types::{ALLOW_GROWTH, BackendKind, Options, SPLIT_ALWAYS, TIMESTAMPS};
use super::values::{huge_pages, numa, switch};
use super::variables::{self as names, Kind, Variable};
use crate::backend::HugePages;
use crate::error::Error;
use crate::sys::numa::Placement;
use os::variables;
use std::fmt;
use std::time::Duration;

/// The settings of an allocator as far as they are known without its backend.
pub(crate) struct Resolution {
    /// What the caller gave.
    given: Options<'static>,
    /// The settings with the environment and the defaults.
    pub(crate) options: Options<'static>,
    pub(crate) backend: BackendKind,
    pub(crate) guard: bool,
    pub(crate) report_failures: bool,
    pub(crate) trim_after: Option<Duration>,
    /// How host memory is obtained, if the backend is [`BackendKind::Host`].
    pub(crate) huge_pages: HugePages,
    pub(crate) numa: Option<Placement>,
    pub(crate) populate: bool,
    /// Whether the caller's options name a plan, or forbid one.
    given_plan: bool,
    /// Whether a plan is named. Its file is not read.
    pub(crate) plan: bool,
}

/// A variable of the environment whose name begins with `BFC_`.
pub(crate) struct SetVariable<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a str,
    /// Whether it determines a setting of this allocator.
    pub(crate) is_used: bool,
    /// What becomes of the value, if it is not simply used.
    pub(crate) remark: Option<Remark>,
}

/// What becomes of a variable's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remark {
    UnknownName,
    Privileged,
    Empty,
    TakenForWarn,
    Malformed(Kind),
    MalformedInPart(Kind),
    NotGiven,
    Needs(&'static str),
    Overruled(&'static str),
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::UnknownName => f.write_str("unknown: no variable of libbfc has this name"),
            Remark::Privileged => write!(f, "ignored: {PRIVILEGED}"),
            Remark::Empty => f.write_str("empty: counts as not set"),
            Remark::TakenForWarn => write!(f, "taken for warn: it must be {}", Kind::Level.expected()),
            Remark::Malformed(kind) => write!(f, "ignored: it must be {}", kind.expected()),
            Remark::MalformedInPart(kind) => write!(f, "ignored in part: it must be {}", kind.expected()),
            Remark::NotGiven => f.write_str("counts as not given"),
            Remark::Needs(other) => write!(f, "ignored: it needs {other}"),
            Remark::Overruled(other) => write!(f, "ignored: {other} comes first"),
        }
    }
}

impl Resolution {
    /// Resolves options for a device as its creation does, but without opening the backend. `default_flags` apply where
    /// neither the options nor the environment set anything.
    pub(crate) fn new(given: &Options<'_>, device: i32, default_flags: u32) -> Result<Self, Error> {
        given.check()?;
        let given_plan = given.plan.is_some();
        let named = match given.plan {
            Some(path) => !path.as_os_str().is_empty(),
            None => variables::value(names::PLAN.name).is_some(),
        };
        let given = given.with_texts(None, None);
        let mut options = given.with_environment(default_flags, Warnings::Silent);
        let backend = options.kind_on(device)?;
        // A limit counts before a fraction.
        if options.memory_limit != 0 {
            options.memory_fraction = 0.0;
        }
        let remaps = matches!(backend, BackendKind::CudaVmm | BackendKind::HostVmm);
        if remaps && options.fragmentation_fraction == 0.0 {
            options.flags |= SPLIT_ALWAYS;
        }
        let guard = guard_wanted(Warnings::Silent) && backend != BackendKind::Custom;
        let report_failures = setting(&names::REPORT_ON_FAILURE, Warnings::Silent, switch).unwrap_or(false);
        let trim_after = trim_after(Warnings::Silent);
        let plan = named && !guard && options.flags & TIMESTAMPS == 0;
        let huge_pages = setting(&names::HUGE_PAGES, Warnings::Silent, huge_pages).unwrap_or_default();
        let numa = setting(&names::NUMA, Warnings::Silent, numa);
        let populate = setting(&names::POPULATE, Warnings::Silent, switch).unwrap_or(false);
        Ok(Resolution {
            given,
            options,
            backend,
            guard,
            report_failures,
            trim_after,
            huge_pages,
            numa,
            populate,
            given_plan,
            plan,
        })
    }

    /// Visits all variables of the environment whose names begin with `BFC_`.
    pub(crate) fn each_variable(
        &self,
        mut visit: impl FnMut(&SetVariable<'_>) -> fmt::Result,
    ) -> fmt::Result {
        variables::each(b"BFC_", |name, value| {
            let variable = Variable::named(name);
            let remark = self.remark(variable, value);
            let is_used = variable.is_some_and(|variable| is_given(variable, value) && self.uses(variable));
            visit(&SetVariable { name, value, is_used, remark })
        })
    }

    /// Returns whether a variable with a well-formed value determines a setting.
    fn uses(&self, variable: &Variable) -> bool {
        let Resolution { given, options, .. } = self;
        let is = |other: &Variable| variable.is(other);
        match () {
            () if is(&names::BACKEND) => given.backend.is_open(),
            () if is(&names::MEMORY_LIMIT) => given.memory_limit == 0,
            () if is(&names::MEMORY_FRACTION) => given.memory_fraction == 0.0 && options.memory_limit == 0,
            () if is(&names::ALLOW_GROWTH) => given.flags == 0 && !forces_growth(),
            () if is(&names::GARBAGE_COLLECTION) || is(&names::TIMESTAMPS) => given.flags == 0,
            () if is(&names::SPLIT_ALWAYS) || is(&names::TWO_ENDS) => given.flags == 0,
            () if is(&names::QUARANTINE) => given.flags == 0 && options.flags & TIMESTAMPS != 0,
            () if is(&names::FRAGMENTATION_FRACTION) => {
                given.fragmentation_fraction == 0.0 && options.flags & SPLIT_ALWAYS == 0
            }
            // Without growth the first region is all of the limit.
            () if is(&names::INITIAL_REGION_BYTES) => {
                given.initial_region_bytes == 0 && options.flags & ALLOW_GROWTH != 0
            }
            () if is(&names::GROWTH) => given.growth_policy.is_open() && options.flags & ALLOW_GROWTH != 0,
            () if is(&names::RETRY_TIMEOUT_MS) => given.retry_timeout_ms == 0,
            () if is(&names::PLAN) => self.plan && !self.given_plan,
            () if is(&names::DEBUG) => self.guard,
            () if is(&names::FORCE_ALLOW_GROWTH) => true,
            () if is(&names::HUGE_PAGES) || is(&names::NUMA) => self.backend == BackendKind::Host,
            () if is(&names::POPULATE) => {
                self.backend == BackendKind::Host && !self.guard && self.huge_pages != HugePages::Hugetlb
            }
            () if is(&names::TRIM_AFTER) => self.trim_after.is_some(),
            () if is(&names::REPORT_ON_FAILURE) || is(&names::HASH_SEED) || is(&names::LOG) => true,
            // The interposer's and the command's.
            () => false,
        }
    }

    fn remark(&self, variable: Option<&Variable>, value: &str) -> Option<Remark> {
        let Some(variable) = variable else { return Some(Remark::UnknownName) };
        let (kind, is) = (variable.kind, |other: &Variable| variable.is(other));
        let timestamps = setting(&names::TIMESTAMPS, Warnings::Silent, switch) == Some(true);
        match () {
            () if value.is_empty() => Some(Remark::Empty),
            () if variables::is_ignored(variable.name) => Some(Remark::Privileged),
            () if kind == Kind::Level && kind.misreads(value) => Some(Remark::TakenForWarn),
            () if kind.rejects(value) => Some(Remark::Malformed(kind)),
            () if kind.is_not_given(value) => Some(Remark::NotGiven).filter(|_| kind != Kind::Backend),
            () if kind.misreads(value) => Some(Remark::MalformedInPart(kind)),
            () if is(&names::QUARANTINE) && switch(value.trim()) == Some(true) && !timestamps => {
                Some(Remark::Needs("BFC_TIMESTAMPS=1"))
            }
            () if is(&names::MEMORY_FRACTION)
                && self.options.memory_limit != 0
                && self.given.memory_limit == 0 =>
            {
                Some(Remark::Overruled("BFC_MEMORY_LIMIT"))
            }
            () if is(&names::PLAN) && !self.given_plan && self.guard => {
                Some(Remark::Overruled("BFC_DEBUG=guard"))
            }
            () if is(&names::PLAN) && !self.given_plan && self.options.flags & TIMESTAMPS != 0 => {
                Some(Remark::Overruled("BFC_TIMESTAMPS"))
            }
            () if is(&names::ALLOW_GROWTH) && forces_growth() => {
                Some(Remark::Overruled("BFC_FORCE_ALLOW_GROWTH"))
            }
            () if self.is_overruled(variable) => Some(Remark::Overruled("bfc_options_t")),
            () => None,
        }
    }

    /// Returns whether the caller's options set what a variable is for.
    fn is_overruled(&self, variable: &Variable) -> bool {
        let given = &self.given;
        let is = |other: &Variable| variable.is(other);
        match () {
            () if is(&names::BACKEND) => !given.backend.is_open(),
            () if is(&names::MEMORY_LIMIT) => given.memory_limit != 0,
            () if is(&names::MEMORY_FRACTION) => given.memory_limit != 0 || given.memory_fraction != 0.0,
            () if is(&names::FRAGMENTATION_FRACTION) => given.fragmentation_fraction != 0.0,
            () if is(&names::INITIAL_REGION_BYTES) => given.initial_region_bytes != 0,
            () if is(&names::RETRY_TIMEOUT_MS) => given.retry_timeout_ms != 0,
            () if is(&names::GROWTH) => !given.growth_policy.is_open(),
            () if is(&names::PLAN) => self.given_plan,
            () => {
                let flags = [
                    names::ALLOW_GROWTH,
                    names::GARBAGE_COLLECTION,
                    names::TIMESTAMPS,
                    names::QUARANTINE,
                    names::SPLIT_ALWAYS,
                    names::TWO_ENDS,
                ];
                given.flags != 0 && flags.iter().any(is)
            }
        }
    }
}

/// Returns whether a value is neither ignored nor the same as none.
fn is_given(variable: &Variable, value: &str) -> bool {
    let is_ignored = value.is_empty() || variables::is_ignored(variable.name);
    !is_ignored && !variable.kind.rejects(value) && !variable.kind.is_not_given(value)
}

fn forces_growth() -> bool {
    setting(&names::FORCE_ALLOW_GROWTH, Warnings::Silent, switch).is_some()
}
