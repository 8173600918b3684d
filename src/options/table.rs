//! The settings of an allocator in one table: the option and the variable that set each, and with which others it has no
//! effect. Creation, [`super::Resolution`] and docs/environment.md follow it.

use super::types::{BackendKind, Chosen, DebugMode, Flags, GrowthPolicy, Options};
use super::values::{fraction, huge_pages, numa, seconds, size, switch};
use super::variables::{self as names, Variable, debug_words, is_guard};
use crate::backend::HugePages;
use crate::sys::numa::Placement as Numa;
use os::variables::text_of;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A setting of an allocator.
pub(super) struct Setting {
    /// The name among the resolved settings.
    pub(super) key: &'static str,
    pub(super) variable: Variable,
    place: Place,
    /// When it has no effect. The first rule that applies is the reason.
    pub(super) rules: &'static [Rule],
}

/// Where a setting is kept.
enum Place {
    /// A bit of the options' flags.
    Flag(Flags),
    Field(for<'c, 'a> fn(&'c mut Chosen<'a>) -> &'c mut (dyn Field + 'c)),
}

/// A field of the settings, whose type determines the format of the variable.
trait Field {
    /// Sets it to the value of the variable. Returns `None` if that is malformed.
    fn take(&mut self, value: &'static CStr) -> Option<()>;

    /// Sets it back to the default. Returns whether it had a value of its own.
    fn clear(&mut self) -> bool;

    fn value(&self) -> Value;
}

/// The value of a resolved setting.
pub(crate) enum Value {
    Switch(bool),
    Whole(u64),
    Decimal(f64),
    Name(&'static str),
}

/// A rule by which a setting has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    With(Fact),
    Without(Fact),
    /// It is on, whatever was chosen.
    OnWith(Fact),
}

/// What decides whether other settings have an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    MemoryLimit,
    Growth,
    Timestamps,
    /// Stamps where nothing tells when the device's work is done.
    StampsAlone,
    Guard,
    Plan,
    TwoEnds,
    SplitAlways,
    Hugetlb,
    Range,
    /// A virtual range without a fraction of its own.
    RangeAlone,
    Host,
    Custom,
}

use Fact::*;
use Rule::*;

const fn flag(key: &'static str, variable: Variable, bit: Flags, rules: &'static [Rule]) -> Setting {
    Setting { key, variable, place: Place::Flag(bit), rules }
}

macro_rules! field {
    ($key:literal, $variable:ident, $chosen:ident => $field:expr, $rules:expr) => {
        Setting {
            key: $key,
            variable: names::$variable,
            place: Place::Field(|$chosen| &mut $field),
            rules: $rules,
        }
    };
}

/// In an order in which the rules of a setting are about earlier ones only.
pub(super) const TABLE: &[Setting] = &[
    field!("backend", BACKEND, it => it.options.backend, &[]),
    field!("memory_limit", MEMORY_LIMIT, it => it.options.memory_limit, &[]),
    field!("memory_fraction", MEMORY_FRACTION, it => it.options.memory_fraction, &[With(MemoryLimit)]),
    flag("allow_growth", names::ALLOW_GROWTH, Flags::ALLOW_GROWTH, &[]),
    field!("growth_policy", GROWTH, it => it.options.growth_policy, &[Without(Growth), With(Range)]),
    field!(
        "initial_region_bytes",
        INITIAL_REGION_BYTES,
        it => it.options.initial_region_bytes,
        &[Without(Growth)]
    ),
    flag("garbage_collection", names::GARBAGE_COLLECTION, Flags::GARBAGE_COLLECTION, &[With(Range)]),
    flag("timestamps", names::TIMESTAMPS, Flags::TIMESTAMPS, &[]),
    flag("quarantine", names::QUARANTINE, Flags::QUARANTINE, &[Without(Timestamps)]),
    field!("guard", DEBUG, it => it.guard, &[With(Custom), With(StampsAlone)]),
    field!("plan", PLAN, it => it.options.plan, &[With(Timestamps), With(Guard)]),
    flag("two_ends", names::TWO_ENDS, Flags::TWO_ENDS, &[With(Timestamps), With(Range), With(Plan)]),
    flag("split_always", names::SPLIT_ALWAYS, Flags::SPLIT_ALWAYS, &[OnWith(TwoEnds), OnWith(RangeAlone)]),
    field!(
        "fragmentation_fraction",
        FRAGMENTATION_FRACTION,
        it => it.options.fragmentation_fraction,
        &[With(TwoEnds), With(SplitAlways)]
    ),
    field!("retry_timeout_ms", RETRY_TIMEOUT_MS, it => it.options.retry_timeout_ms, &[]),
    field!("trim_after", TRIM_AFTER, it => it.trim_after, &[]),
    field!("report_on_failure", REPORT_ON_FAILURE, it => it.report_on_failure, &[]),
    field!("huge_pages", HUGE_PAGES, it => it.huge_pages, &[Without(Host)]),
    field!("numa", NUMA, it => it.numa, &[Without(Host)]),
    field!("populate", POPULATE, it => it.populate, &[Without(Host), With(Hugetlb), With(Guard)]),
];

macro_rules! formats {
    ($($type:ty: $parse:expr, $field:ident => $value:expr;)*) => {
        $(impl Field for $type {
            fn take(&mut self, value: &'static CStr) -> Option<()> {
                *self = ($parse)(text_of(value).trim())?;
                Some(())
            }

            fn clear(&mut self) -> bool {
                std::mem::take(self) != Self::default()
            }

            fn value(&self) -> Value {
                let $field = self;
                $value
            }
        })*
    };
}

formats! {
    u64: size, it => Value::Whole(*it);
    u32: |text: &str| text.parse().ok(), it => Value::Whole((*it).into());
    f64: fraction, it => Value::Decimal(*it);
    bool: switch, it => Value::Switch(*it);
    Duration: seconds, it => Value::Decimal(it.as_secs_f64());
    HugePages: huge_pages, it => Value::Name(it.name());
    Option<Numa>: |text| numa(text).map(Some), it => Value::Name(it.map_or("default", |node| node.name()));
    DebugMode: debug_mode, it => Value::Switch(it.0);
}

impl Field for BackendKind {
    fn take(&mut self, value: &'static CStr) -> Option<()> {
        let named = BackendKind::named(text_of(value).trim())?;
        // With `auto` the client's own default stays.
        *self = if named.is_open() { *self } else { named };
        Some(())
    }

    fn clear(&mut self) -> bool {
        !std::mem::take(self).is_open()
    }

    fn value(&self) -> Value {
        Value::Name(self.name())
    }
}

impl Field for GrowthPolicy {
    fn take(&mut self, value: &'static CStr) -> Option<()> {
        *self = GrowthPolicy::named(text_of(value).trim())?;
        Some(())
    }

    fn clear(&mut self) -> bool {
        !std::mem::replace(self, GrowthPolicy::Need).is_open()
    }

    fn value(&self) -> Value {
        Value::Name(self.name())
    }
}

impl Field for Option<&Path> {
    fn take(&mut self, value: &'static CStr) -> Option<()> {
        *self = Some(Path::new(OsStr::from_bytes(value.to_bytes())));
        Some(())
    }

    fn clear(&mut self) -> bool {
        self.take().is_some()
    }

    fn value(&self) -> Value {
        Value::Switch(self.is_some())
    }
}

/// Parses a list of words. Returns `None` if it has unknown words only.
fn debug_mode(text: &str) -> Option<DebugMode> {
    let is_on = debug_words(text).any(is_guard);
    (is_on || debug_words(text).next().is_none()).then_some(DebugMode(is_on))
}

impl Setting {
    /// Returns the setting of a variable, if it has one.
    pub(super) fn of(variable: &Variable) -> Option<&'static Self> {
        TABLE.iter().find(|setting| setting.variable.is(variable))
    }

    /// Returns whether it is one of the flags.
    pub(super) fn is_flag(&self) -> bool {
        matches!(self.place, Place::Flag(_))
    }

    /// Returns whether the variable does not count, because the caller's options have a value for it. The flags are one
    /// value.
    pub(super) fn is_given(&self, options: &Options<'_>) -> bool {
        match self.place {
            Place::Flag(_) => !options.flags.is_empty(),
            Place::Field(_) => self.is_asked(options),
        }
    }

    /// Returns whether the caller's options ask for it.
    pub(super) fn is_asked(&self, options: &Options<'_>) -> bool {
        match self.place {
            Place::Flag(bit) => options.flags.contains(bit),
            Place::Field(field) => field(&mut Chosen::of(options)).clear(),
        }
    }

    /// Sets it to the value of the variable. Returns `None` if that is malformed.
    pub(super) fn take(&self, chosen: &mut Chosen<'_>, value: &'static CStr) -> Option<()> {
        match self.place {
            Place::Flag(bit) => switch(text_of(value).trim()).map(|is_on| _ = chosen.set_flag(bit, is_on)),
            Place::Field(field) => field(chosen).take(value),
        }
    }

    /// Drops it if it has no effect together with the others. Returns the reason if that changes what was chosen.
    pub(super) fn drop_ineffective(&self, chosen: &mut Chosen<'_>) -> Option<Rule> {
        let rule = *self.rules.iter().find(|rule| rule.applies(chosen))?;
        let is_dropped = match self.place {
            Place::Flag(bit) => chosen.set_flag(bit, matches!(rule, OnWith(_))),
            Place::Field(field) => field(chosen).clear(),
        };
        is_dropped.then_some(rule)
    }

    pub(super) fn value(&self, chosen: &Chosen<'_>) -> Value {
        match self.place {
            Place::Flag(bit) => Value::Switch(chosen.has(bit)),
            Place::Field(field) => field(&mut { *chosen }).value(),
        }
    }
}

impl Rule {
    fn applies(self, chosen: &Chosen<'_>) -> bool {
        match self {
            With(fact) | OnWith(fact) => fact.holds(chosen),
            Without(fact) => !fact.holds(chosen),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            With(fact) => write!(f, "it has no effect with {}", fact.name()),
            Without(fact) => write!(f, "it needs {}", fact.name()),
            OnWith(fact) => write!(f, "it is always on with {}", fact.name()),
        }
    }
}

impl Fact {
    fn holds(self, chosen: &Chosen<'_>) -> bool {
        let options = &chosen.options;
        let has_range = matches!(options.backend, BackendKind::CudaVmm | BackendKind::HostVmm);
        let is_of_host = matches!(options.backend, BackendKind::Host | BackendKind::HostVmm);
        match self {
            MemoryLimit => options.memory_limit != 0,
            Growth => chosen.has(Flags::ALLOW_GROWTH),
            Timestamps => chosen.has(Flags::TIMESTAMPS),
            StampsAlone => chosen.has(Flags::TIMESTAMPS) && is_of_host,
            Guard => chosen.guard.0,
            Plan => options.plan.is_some(),
            TwoEnds => chosen.has(Flags::TWO_ENDS),
            SplitAlways => chosen.has(Flags::SPLIT_ALWAYS),
            Hugetlb => chosen.huge_pages == HugePages::Hugetlb,
            Range => has_range,
            RangeAlone => has_range && options.fragmentation_fraction == 0.0,
            Host => options.backend == BackendKind::Host,
            Custom => options.backend == BackendKind::Custom,
        }
    }

    fn name(self) -> &'static str {
        match self {
            MemoryLimit => "a memory limit",
            Growth => "BFC_ALLOW_GROWTH",
            Timestamps => "BFC_TIMESTAMPS",
            StampsAlone => {
                "BFC_TIMESTAMPS on a backend that cannot tell whether work still uses freed memory"
            }
            Guard => "BFC_DEBUG=guard",
            Plan => "a plan",
            TwoEnds => "BFC_TWO_ENDS",
            SplitAlways => "BFC_SPLIT_ALWAYS",
            Hugetlb => "BFC_HUGE_PAGES=hugetlb",
            Range => "a virtual range",
            RangeAlone => "a virtual range without BFC_FRAGMENTATION_FRACTION",
            Host => "the host backend",
            Custom => "a suballocator, whose memory libbfc never reads or writes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_the_documentation(rule: &Rule) -> String {
        match rule {
            With(fact) => format!("with {}", fact.name()),
            Without(fact) => format!("without {}", fact.name()),
            OnWith(fact) => format!("always on with {}", fact.name()),
        }
    }

    #[test]
    fn the_documentation_has_the_rules() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/environment.md");
        let page = std::fs::read_to_string(page).unwrap().replace('`', "");
        let section = page.split("### Settings without effect\n").nth(1).unwrap();
        let section = section.split("\n#").next().unwrap();
        let rows: Vec<&str> =
            section.lines().filter(|line| line.starts_with("| ") && !line.contains("no effect")).collect();
        let limited = TABLE.iter().filter(|setting| !setting.rules.is_empty());
        let expected: Vec<String> = limited
            .map(|Setting { key, rules, .. }| {
                let rules: Vec<String> = rules.iter().map(in_the_documentation).collect();
                format!("| {key} | {} |", rules.join("; "))
            })
            .collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_variable_has_one_setting() {
        for (at, setting) in TABLE.iter().enumerate() {
            let last = TABLE.iter().rposition(|other| other.variable.is(&setting.variable));
            assert_eq!(last, Some(at), "{}", setting.key);
        }
    }

    /// Otherwise a setting that is dropped would have dropped another one before.
    #[test]
    fn dropping_again_changes_nothing() {
        for backend in [BackendKind::Host, BackendKind::HostVmm, BackendKind::Custom, BackendKind::CudaVmm] {
            for bits in 0..1 << 8 {
                let options = Options {
                    flags: Flags::from_bits_truncate(bits),
                    fragmentation_fraction: if bits & 1 << 6 == 0 { 0.0 } else { 0.5 },
                    plan: Some(Path::new("x")),
                    ..Options::default()
                };
                let mut chosen = Chosen { guard: DebugMode(bits & 1 << 7 != 0), ..Chosen::of(&options) };
                let mut left = || {
                    chosen.drop_ineffective(backend);
                    format!("{chosen:?}")
                };
                assert_eq!(left(), left());
            }
        }
    }
}
