//! The environment variables of the library, the interposer and the command: what their values must be.

use super::types::{BackendKind, GrowthPolicy};
use super::values::{fraction, huge_pages, numa, seconds, size, stacks, switch};
use crate::log;
use std::ffi::CStr;
use std::time::Duration;

/// What a variable's value must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Backend,
    Growth,
    HugePages,
    Numa,
    Size,
    Fraction,
    Milliseconds,
    Seconds,
    Number,
    Switch,
    /// Every value is accepted: one that is no level means `warn`.
    Level,
    /// A list of words, of which unknown ones are ignored.
    Debug,
    /// When the interposer waits for the device.
    Free,
    Path,
    /// Which backtraces the history has.
    Stacks,
}

/// An environment variable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    pub(super) name: &'static CStr,
    pub(super) kind: Kind,
}

macro_rules! variables {
    ($($constant:ident = $name:literal: $kind:ident;)*) => {
        $(pub(super) const $constant: Variable = Variable { name: $name, kind: Kind::$kind };)*
        /// All of them, as docs/environment.md lists them.
        pub(super) const ALL: &[Variable] = &[$($constant),*];
    };
}

variables! {
    BACKEND = c"BFC_BACKEND": Backend;
    MEMORY_LIMIT = c"BFC_MEMORY_LIMIT": Size;
    MEMORY_FRACTION = c"BFC_MEMORY_FRACTION": Fraction;
    ALLOW_GROWTH = c"BFC_ALLOW_GROWTH": Switch;
    FORCE_ALLOW_GROWTH = c"BFC_FORCE_ALLOW_GROWTH": Switch;
    GROWTH = c"BFC_GROWTH": Growth;
    GARBAGE_COLLECTION = c"BFC_GARBAGE_COLLECTION": Switch;
    TIMESTAMPS = c"BFC_TIMESTAMPS": Switch;
    QUARANTINE = c"BFC_QUARANTINE": Switch;
    SPLIT_ALWAYS = c"BFC_SPLIT_ALWAYS": Switch;
    TWO_ENDS = c"BFC_TWO_ENDS": Switch;
    FRAGMENTATION_FRACTION = c"BFC_FRAGMENTATION_FRACTION": Fraction;
    INITIAL_REGION_BYTES = c"BFC_INITIAL_REGION_BYTES": Size;
    RETRY_TIMEOUT_MS = c"BFC_RETRY_TIMEOUT_MS": Milliseconds;
    TRIM_AFTER = c"BFC_TRIM_AFTER": Seconds;
    HUGE_PAGES = c"BFC_HUGE_PAGES": HugePages;
    NUMA = c"BFC_NUMA": Numa;
    POPULATE = c"BFC_POPULATE": Switch;
    REPORT_ON_FAILURE = c"BFC_REPORT_ON_FAILURE": Switch;
    PLAN = c"BFC_PLAN": Path;
    HISTORY = c"BFC_HISTORY": Number;
    HISTORY_FILE = c"BFC_HISTORY_FILE": Path;
    HISTORY_STACKS = c"BFC_HISTORY_STACKS": Stacks;
    PUBLISH = c"BFC_PUBLISH": Switch;
    HASH_SEED = c"BFC_HASH_SEED": Number;
    DEBUG = c"BFC_DEBUG": Debug;
    LOG = c"BFC_LOG": Level;
    LIBRARY = c"BFC_LIBRARY": Path;
    PRELOAD_LIBRARY = c"BFC_PRELOAD_LIBRARY": Path;
    PRELOAD_FREE = c"BFC_PRELOAD_FREE": Free;
    PRELOAD_ASYNC = c"BFC_PRELOAD_ASYNC": Switch;
    PRELOAD_PINNED = c"BFC_PRELOAD_PINNED": Switch;
    PRELOAD_IPC = c"BFC_PRELOAD_IPC": Switch;
    PRELOAD_MIN = c"BFC_PRELOAD_MIN": Size;
    PRELOAD_MAX = c"BFC_PRELOAD_MAX": Size;
    PRELOAD_TRACE = c"BFC_PRELOAD_TRACE": Path;
    PRELOAD_REPORT = c"BFC_PRELOAD_REPORT": Path;
    PRELOAD_PROGRAM = c"BFC_PRELOAD_PROGRAM": Number;
    PRELOAD_CHECK = c"BFC_PRELOAD_CHECK": Path;
}

impl Variable {
    /// Returns the variable of a name, if there is one.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|variable| variable.name.to_bytes() == name.as_bytes())
    }

    pub(super) fn text(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Kind {
    /// Returns what a value must be, for a message.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Kind::Backend => "auto, host, cuda, cuda_vmm or host_vmm",
            Kind::Growth => "tensorflow or need",
            Kind::HugePages => "auto, always, never or hugetlb",
            Kind::Numa => "local or interleave",
            Kind::Size => "a size like 8GiB",
            Kind::Fraction => "a number from 0 to 1",
            Kind::Milliseconds => "milliseconds as a whole number",
            Kind::Seconds => "seconds like 30 or 0.5",
            Kind::Number => "a whole number",
            Kind::Switch => "1 or 0 (or true, false, on, off, yes, no)",
            Kind::Level => "error, warn, info, debug or off",
            Kind::Debug => "guard",
            Kind::Free => "wait or sync",
            Kind::Path => "a path",
            Kind::Stacks => "native, python, both or none",
        }
    }

    /// Returns whether a value is ignored as a whole.
    pub(super) fn rejects(self, text: &str) -> bool {
        let text = text.trim();
        match self {
            Kind::Backend => BackendKind::named(text).is_none(),
            Kind::Growth => GrowthPolicy::named(text).is_none(),
            Kind::HugePages => huge_pages(text).is_none(),
            Kind::Numa => numa(text).is_none(),
            Kind::Size => size(text).is_none(),
            Kind::Fraction => fraction(text).is_none(),
            Kind::Milliseconds => text.parse::<u32>().is_err(),
            Kind::Seconds => seconds(text).is_none(),
            Kind::Number => text.parse::<u64>().is_err(),
            Kind::Switch => switch(text).is_none(),
            Kind::Free => !["wait", "sync"].iter().any(|word| text.eq_ignore_ascii_case(word)),
            Kind::Debug => {
                let mut words = debug_words(text).peekable();
                words.peek().is_some() && !words.any(is_guard)
            }
            Kind::Stacks => stacks(text).is_none(),
            Kind::Level | Kind::Path => false,
        }
    }

    /// Returns whether a well-formed value counts as not given.
    pub(super) fn is_not_given(self, text: &str) -> bool {
        let text = text.trim();
        match self {
            Kind::Backend => text.eq_ignore_ascii_case("auto"),
            Kind::Size => size(text) == Some(0),
            Kind::Fraction => fraction(text) == Some(0.0),
            Kind::Milliseconds => text.parse() == Ok(0_u32),
            Kind::Seconds => seconds(text) == Some(Duration::ZERO),
            Kind::Debug => debug_words(text).next().is_none(),
            Kind::Growth | Kind::HugePages | Kind::Numa | Kind::Number | Kind::Switch => false,
            Kind::Level | Kind::Free | Kind::Path => false,
            Kind::Stacks => stacks(text) == Some(0),
        }
    }

    /// Returns whether some of a value that is not ignored has no effect: a level that is none, a word of a list.
    pub(super) fn misreads(self, text: &str) -> bool {
        match self {
            Kind::Level => !log::is_level(text),
            Kind::Debug => !debug_words(text).all(is_guard),
            _ => false,
        }
    }
}

/// Returns the words of `BFC_DEBUG`.
pub(super) fn debug_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

pub(super) fn is_guard(word: &str) -> bool {
    word.eq_ignore_ascii_case("guard")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a set-user-ID program would write, or read, what its user names.
    #[test]
    fn privileged_processes_ignore_all_that_names_a_file() {
        let honoured = |variable: &&Variable| !os::variables::is_of_the_unprivileged(variable.name);
        let files = ALL.iter().filter(|variable| matches!(variable.kind, Kind::Path));
        assert_eq!(files.filter(honoured).map(|variable| variable.name).collect::<Vec<_>>(), [c""; 0]);
    }
}
