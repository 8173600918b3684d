//! Options from the environment: a variable counts for what the options leave 0.

use super::types::{
    ALLOW_GROWTH, BackendKind, GARBAGE_COLLECTION, GrowthPolicy, Options, QUARANTINE, SPLIT_ALWAYS,
    TIMESTAMPS, TWO_ENDS,
};
use super::values::{fraction, huge_pages, numa, seconds, size, switch};
use super::variables::{self as names, Variable, debug_words, is_guard};
use crate::backend::Host;
use crate::log::{self, Level};
use os::variables;
use std::ffi::CStr;
use std::time::Duration;

/// Whether ignored values are reported to the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Warnings {
    Logged,
    Silent,
}

impl Options<'_> {
    /// Takes settings that the options leave 0 from the environment. Malformed values there are ignored.
    #[inline(never)]
    pub(super) fn with_environment(&self, default_flags: u32, warnings: Warnings) -> Self {
        let mut options = *self;
        if options.backend.is_open() {
            let named = setting(&names::BACKEND, warnings, BackendKind::named);
            options.backend = named.filter(|kind| !kind.is_open()).unwrap_or(options.backend);
        }
        if options.memory_limit == 0 {
            options.memory_limit = setting(&names::MEMORY_LIMIT, warnings, size).unwrap_or(0);
        }
        if options.memory_fraction == 0.0 {
            options.memory_fraction = setting(&names::MEMORY_FRACTION, warnings, fraction).unwrap_or(0.0);
        }
        if options.fragmentation_fraction == 0.0 {
            options.fragmentation_fraction =
                setting(&names::FRAGMENTATION_FRACTION, warnings, fraction).unwrap_or(0.0);
        }
        if options.initial_region_bytes == 0 {
            options.initial_region_bytes = setting(&names::INITIAL_REGION_BYTES, warnings, size).unwrap_or(0);
        }
        if options.retry_timeout_ms == 0 {
            options.retry_timeout_ms =
                setting(&names::RETRY_TIMEOUT_MS, warnings, |text| text.parse().ok()).unwrap_or(0);
        }
        if self.growth_policy.is_open() {
            options.growth_policy = setting(&names::GROWTH, warnings, GrowthPolicy::named)
                .unwrap_or_else(|| self.default_growth_policy());
        }
        if options.flags == 0 {
            // A fraction selects another split rule.
            let has_fraction = options.fragmentation_fraction != 0.0;
            let default_flags = if has_fraction { default_flags & !SPLIT_ALWAYS } else { default_flags };
            options.flags = environment_flags(default_flags, warnings);
        }
        match setting(&names::FORCE_ALLOW_GROWTH, warnings, switch) {
            Some(true) => options.flags |= ALLOW_GROWTH,
            Some(false) => options.flags &= !ALLOW_GROWTH,
            None => {}
        }
        if options.flags & TWO_ENDS != 0 {
            options.flags |= SPLIT_ALWAYS;
        }
        options
    }

    /// Returns the policy where neither the options nor the environment name one. Callers that set the flag have
    /// TensorFlow's, as they had before there was a choice.
    fn default_growth_policy(&self) -> GrowthPolicy {
        let asked = self.growth_policy == GrowthPolicy::Default && self.flags & ALLOW_GROWTH != 0;
        if asked { GrowthPolicy::TensorFlow } else { GrowthPolicy::Need }
    }
}

fn environment_flags(default: u32, warnings: Warnings) -> u32 {
    let mut flags = default;
    for (variable, bit) in [
        (&names::ALLOW_GROWTH, ALLOW_GROWTH),
        (&names::GARBAGE_COLLECTION, GARBAGE_COLLECTION),
        (&names::TIMESTAMPS, TIMESTAMPS),
        (&names::SPLIT_ALWAYS, SPLIT_ALWAYS),
        (&names::QUARANTINE, QUARANTINE),
        (&names::TWO_ENDS, TWO_ENDS),
    ] {
        match setting(variable, warnings, switch) {
            Some(true) => flags |= bit,
            Some(false) => flags &= !bit,
            None => {}
        }
    }
    if flags & QUARANTINE != 0 && flags & TIMESTAMPS == 0 {
        if warnings == Warnings::Logged {
            log::emit(Level::Warn, format_args!("BFC_QUARANTINE is ignored: it needs BFC_TIMESTAMPS=1"));
        }
        flags &= !QUARANTINE;
    }
    flags
}

/// Returns whether `BFC_DEBUG`, a comma-separated list, contains `guard`.
pub(super) fn guard_wanted(warnings: Warnings) -> bool {
    let wanted = given(&names::DEBUG, warnings).map(variables::text_of).map(|text| {
        let guard = debug_words(text).any(is_guard);
        if warnings == Warnings::Logged && names::DEBUG.kind.misreads(text) {
            let part = if guard { " in part" } else { "" };
            let expected = names::DEBUG.kind.expected();
            warn_of("BFC_DEBUG", text, &format_args!("{part}: it must be {expected}"));
        }
        guard
    });
    wanted.unwrap_or(false)
}

/// Returns after which time of rest free memory is given back. 0 counts as not given.
pub(super) fn trim_after(warnings: Warnings) -> Option<Duration> {
    setting(&names::TRIM_AFTER, warnings, seconds).filter(|time| !time.is_zero())
}

/// Returns the backend for host memory as the environment wants it.
pub(super) fn host(warnings: Warnings) -> Host {
    let huge_pages = setting(&names::HUGE_PAGES, warnings, huge_pages).unwrap_or_default();
    let populates = setting(&names::POPULATE, warnings, switch).unwrap_or(false);
    Host::open(huge_pages, setting(&names::NUMA, warnings, numa)).populating(populates)
}

/// How many characters of a malformed value its warning shows.
const LONGEST_SHOWN: usize = 100;

/// Returns a variable's value. A malformed one is ignored with a warning.
pub(super) fn setting<T>(
    variable: &Variable,
    warnings: Warnings,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let text = given(variable, warnings).map(variables::text_of)?;
    let parsed = parse(text.trim());
    if parsed.is_none() {
        ignored(variable, text, warnings, &format_args!(": it must be {}", variable.kind.expected()));
    }
    parsed
}

/// Returns the value of a variable, unless a privileged process ignores it, with a warning.
pub(super) fn given(variable: &Variable, warnings: Warnings) -> Option<&'static CStr> {
    if warnings == Warnings::Logged && variables::is_ignored(variable.name) {
        let name = variable.name.to_str().unwrap_or_default();
        log::emit(Level::Warn, format_args!("{name} is ignored: {PRIVILEGED}"));
    }
    variables::value(variable.name)
}

/// Why a privileged process ignores a variable.
pub(super) const PRIVILEGED: &str = "the process has more rights than its user";

/// Warns that a variable's value is ignored, for a reason that its kind does not tell.
pub(super) fn ignored(variable: &Variable, text: &str, warnings: Warnings, how: &dyn std::fmt::Display) {
    if warnings == Warnings::Logged {
        warn_of(variable.name.to_str().unwrap_or_default(), text, how);
    }
}

fn warn_of(name: &str, text: &str, how: &dyn std::fmt::Display) {
    // Cut off, so that a very long value does not displace the advice.
    let dots = if text.chars().nth(LONGEST_SHOWN).is_some() { "..." } else { "" };
    log::emit(Level::Warn, format_args!("{name}={text:.LONGEST_SHOWN$}{dots} is ignored{how}"));
}
