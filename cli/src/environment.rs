//! The BFC_ variables: which the library knows, which values it would take, and which of them steer a replay.
//!
//! The rules are those of docs/environment.md, written down a second time because a client cannot ask the
//! library for them. A test sets many values and compares with the library's own warnings.

use std::collections::BTreeMap;
use std::env;

use crate::device::{Backend, PoolConfig};
use crate::library::LIBRARY_VARIABLE;

/// What a variable's value has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Backend,
    Size,
    Fraction,
    Milliseconds,
    Number,
    Switch,
    /// What is no level means `warn`: every value counts.
    Level,
    /// Words of the debug mode.
    Debug,
    /// When the interposer waits for the device.
    Free,
    Path,
}

const BACKEND: &str = "BFC_BACKEND";
/// Bytes of the pool.
pub const LIMIT: &str = "BFC_MEMORY_LIMIT";
/// The pool's share of the device.
pub const MEMORY_FRACTION: &str = "BFC_MEMORY_FRACTION";
const GROWTH: &str = "BFC_ALLOW_GROWTH";
const FORCE_GROWTH: &str = "BFC_FORCE_ALLOW_GROWTH";
const GC: &str = "BFC_GARBAGE_COLLECTION";
const TIMESTAMPS: &str = "BFC_TIMESTAMPS";
const QUARANTINE: &str = "BFC_QUARANTINE";
const SPLIT_ALWAYS: &str = "BFC_SPLIT_ALWAYS";
const FRAGMENTATION: &str = "BFC_FRAGMENTATION_FRACTION";
const INITIAL_REGION: &str = "BFC_INITIAL_REGION_BYTES";

const HASH_SEED: &str = "BFC_HASH_SEED";

const DEBUG: &str = "BFC_DEBUG";

/// What the interposer reads, and the library does not, begins so.
const PRELOAD: &str = "BFC_PRELOAD_";
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
/// Where the interposer says what it sees.
pub const PRELOAD_CHECK: &str = "BFC_PRELOAD_CHECK";

const VARIABLES: [(&str, Kind); 27] = [
    (BACKEND, Kind::Backend),
    (LIMIT, Kind::Size),
    (MEMORY_FRACTION, Kind::Fraction),
    (GROWTH, Kind::Switch),
    (FORCE_GROWTH, Kind::Switch),
    (GC, Kind::Switch),
    (TIMESTAMPS, Kind::Switch),
    (QUARANTINE, Kind::Switch),
    (SPLIT_ALWAYS, Kind::Switch),
    (FRAGMENTATION, Kind::Fraction),
    (INITIAL_REGION, Kind::Size),
    ("BFC_RETRY_TIMEOUT_MS", Kind::Milliseconds),
    ("BFC_REPORT_ON_FAILURE", Kind::Switch),
    (HASH_SEED, Kind::Number),
    (DEBUG, Kind::Debug),
    ("BFC_LOG", Kind::Level),
    (LIBRARY_VARIABLE, Kind::Path),
    (PRELOAD_LIBRARY, Kind::Path),
    (PRELOAD_FREE, Kind::Free),
    (PRELOAD_ASYNC, Kind::Switch),
    (PRELOAD_PINNED, Kind::Switch),
    (PRELOAD_IPC, Kind::Switch),
    (PRELOAD_MIN, Kind::Size),
    (PRELOAD_MAX, Kind::Size),
    (PRELOAD_TRACE, Kind::Path),
    (PRELOAD_REPORT, Kind::Path),
    (PRELOAD_CHECK, Kind::Path),
];

impl Kind {
    fn of(name: &str) -> Option<Self> {
        VARIABLES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    fn takes(self, text: &str) -> bool {
        let text = text.trim();
        match self {
            Self::Backend => {
                let text = text.replace('-', "_");
                let names = ["auto", "host", "cuda", "cuda_vmm", "host_vmm"];
                names.iter().any(|name| text.eq_ignore_ascii_case(name))
            }
            Self::Size => size(text).is_some(),
            Self::Fraction => fraction(text).is_some(),
            Self::Milliseconds => text.parse::<u32>().is_ok(),
            Self::Number => text.parse::<u64>().is_ok(),
            Self::Switch => switch(text).is_some(),
            // One word that is known will do; those that are not are passed over.
            Self::Debug => words(text).next().is_none() || words(text).any(is_guard),
            Self::Free => ["wait", "sync"].iter().any(|word| text.eq_ignore_ascii_case(word)),
            Self::Level | Self::Path => true,
        }
    }

    /// Whether a value that is well-formed counts as not given.
    fn is_nothing(self, text: &str) -> bool {
        let text = text.trim();
        match self {
            Self::Backend => text.eq_ignore_ascii_case("auto"),
            Self::Size => size(text) == Some(0),
            Self::Fraction => fraction(text) == Some(0.0),
            Self::Milliseconds => text.parse() == Ok(0_u32),
            Self::Debug => words(text).next().is_none(),
            Self::Number | Self::Switch | Self::Level | Self::Free | Self::Path => false,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Backend => "auto, host, cuda, cuda_vmm or host_vmm",
            Self::Size => "a size like 8GiB",
            Self::Fraction => "a number from 0 to 1",
            Self::Milliseconds => "milliseconds as a whole number",
            Self::Number => "a whole number",
            Self::Switch => "1 or 0 (or true, false, on, off, yes, no)",
            Self::Debug => "guard",
            Self::Level => "error, warn, info, debug or off",
            Self::Free => "wait or sync",
            Self::Path => "a path",
        }
    }
}

/// The BFC_ variables that are set.
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// This process's.
    pub fn of_process() -> Self {
        let variables = env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        Self { variables: variables.filter(|(name, _)| name.starts_with("BFC_")).collect() }
    }

    /// The variables that have a say in a replay on a pool of this `config`, with their values. A replay
    /// names its backend and its limit, so the variables for those have none; nor have malformed values.
    pub fn steering(&self, config: &PoolConfig) -> BTreeMap<&str, &str> {
        let pool = self.in_force(config);
        let names = VARIABLES.iter().map(|(name, _)| *name).filter(|name| match *name {
            BACKEND | LIMIT | MEMORY_FRACTION | LIBRARY_VARIABLE => false,
            // Of what a replay shows it changes nothing.
            HASH_SEED => false,
            // A replay calls the library itself.
            _ if name.starts_with(PRELOAD) => false,
            // The simulated device is a suballocator to the library, whose memory it never touches.
            DEBUG => config.backend != Backend::Simulated,
            GROWTH => config.flags() == 0 && self.switch(FORCE_GROWTH).is_none(),
            GC | TIMESTAMPS | SPLIT_ALWAYS => config.flags() == 0,
            QUARANTINE => config.flags() == 0 && self.switch(TIMESTAMPS) == Some(true),
            FRAGMENTATION => config.fragmentation_fraction.is_none() && !pool.split_always,
            // Without growth the first region is all of the limit.
            INITIAL_REGION => config.initial_region.is_none() && pool.growth,
            _ => true,
        });
        names.filter_map(|name| Some((name, self.given(name)?))).collect()
    }

    /// What the pool of a replay is like when the library has read the variables too.
    pub fn in_force(&self, config: &PoolConfig) -> PoolConfig {
        let mut pool = config.clone();
        // The flags are one field: any of them in the options, and the variables for flags do not count.
        if config.flags() == 0 {
            let flags =
                [(&mut pool.growth, GROWTH), (&mut pool.gc, GC), (&mut pool.split_always, SPLIT_ALWAYS)];
            for (flag, name) in flags {
                *flag = self.switch(name).unwrap_or(false);
            }
        }
        pool.growth = self.switch(FORCE_GROWTH).unwrap_or(pool.growth);
        if !pool.split_always {
            let fraction = || fraction(self.given(FRAGMENTATION)?.trim());
            pool.fragmentation_fraction = pool.fragmentation_fraction.or_else(fraction);
        }
        if pool.growth {
            pool.initial_region = pool.initial_region.or_else(|| size(self.given(INITIAL_REGION)?.trim()));
        }
        pool
    }

    /// Every variable with its value, and with what the library makes of it where that is a surprise.
    pub fn remarks(&self) -> Vec<(&str, String)> {
        let remarked = self.variables.iter().map(|(name, value)| {
            let value_and_remark = match self.remark(name, value) {
                Some(remark) if value.is_empty() => format!("({remark})"),
                Some(remark) => format!("{value}  ({remark})"),
                None => value.clone(),
            };
            (name.as_str(), value_and_remark)
        });
        remarked.collect()
    }

    fn remark(&self, name: &str, value: &str) -> Option<String> {
        let Some(kind) = Kind::of(name) else {
            return Some("unknown: no variable of libbfc has this name".to_owned());
        };
        if value.is_empty() {
            return Some("empty: counts as not set".to_owned());
        }
        if kind == Kind::Level && !is_level(value) {
            return Some(format!("taken for warn: it must be {}", kind.wanted()));
        }
        if !kind.takes(value) {
            return Some(format!("ignored: it must be {}", kind.wanted()));
        }
        if kind.is_nothing(value) && kind != Kind::Backend {
            return Some("counts as not given".to_owned());
        }
        match name {
            QUARANTINE if self.switch(name) == Some(true) && self.switch(TIMESTAMPS) != Some(true) => {
                Some(format!("ignored: it needs {TIMESTAMPS}=1"))
            }
            DEBUG if !words(value).all(is_guard) => {
                Some(format!("ignored in part: it must be {}", kind.wanted()))
            }
            MEMORY_FRACTION if self.given(LIMIT).is_some() => Some(format!("ignored: {LIMIT} comes first")),
            GROWTH if self.switch(FORCE_GROWTH).is_some() => {
                Some(format!("ignored: {FORCE_GROWTH} comes first"))
            }
            _ => None,
        }
    }

    /// The value, if the library would use it.
    fn given(&self, name: &str) -> Option<&str> {
        let kind = Kind::of(name)?;
        let value = self.variables.get(name).map(String::as_str)?;
        (!value.is_empty() && kind.takes(value) && !kind.is_nothing(value)).then_some(value)
    }

    fn switch(&self, name: &str) -> Option<bool> {
        self.given(name).and_then(|value| switch(value.trim()))
    }
}

/// The words of a list.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

fn is_guard(word: &str) -> bool {
    word.eq_ignore_ascii_case("guard")
}

fn is_level(text: &str) -> bool {
    const LEVELS: [&str; 13] =
        ["off", "none", "0", "error", "1", "warn", "warning", "2", "info", "3", "debug", "trace", "4"];
    LEVELS.iter().any(|level| text.eq_ignore_ascii_case(level))
}

fn switch(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is(["1", "true", "on", "yes"]) => Some(true),
        () if is(["0", "false", "off", "no"]) => Some(false),
        () => None,
    }
}

fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value| (0.0..=1.0).contains(value))
}

/// As the library reads it, which is a little more lenient than the options of this command are: `.5g`, `1.`.
fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let letters = unit.strip_suffix(['b', 'B']).unwrap_or(unit);
    let letters = letters.strip_suffix(['i', 'I']).unwrap_or(letters);
    let shift = ["", "k", "m", "g", "t"].iter().position(|name| letters.eq_ignore_ascii_case(name))? * 10;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment { variables: variables.collect() }
    }

    fn plain() -> PoolConfig {
        PoolConfig {
            backend: Backend::Host,
            growth: false,
            gc: false,
            split_always: false,
            fragmentation_fraction: None,
            initial_region: None,
            device_capacity: None,
            stream_ordered: false,
        }
    }

    fn steering(variables: &[(&str, &str)], config: &PoolConfig) -> Vec<String> {
        environment(variables).steering(config).into_keys().map(str::to_owned).collect()
    }

    #[test]
    fn what_a_replay_gives_itself_does_not_steer_it() {
        let set = [
            (BACKEND, "host"),
            (LIMIT, "8MiB"),
            (MEMORY_FRACTION, "0.5"),
            (LIBRARY_VARIABLE, "x"),
            ("BFC_MEMORY_LIMT", "1"),
            (PRELOAD_FREE, "sync"),
            (PRELOAD_MIN, "1MiB"),
            (PRELOAD_TRACE, "x"),
        ];
        assert_eq!(steering(&set, &plain()), [""; 0]);
        let set = [(FRAGMENTATION, "0.5"), (INITIAL_REGION, "1MiB"), (FORCE_GROWTH, "1")];
        assert_eq!(steering(&set, &plain()), [FORCE_GROWTH, FRAGMENTATION, INITIAL_REGION]);
        let given = PoolConfig { fragmentation_fraction: Some(0.1), initial_region: Some(256), ..plain() };
        assert_eq!(steering(&set, &given), [FORCE_GROWTH]);
    }

    #[test]
    fn the_variables_of_the_interposer_are_known() {
        for (name, value, remark) in [
            (PRELOAD_LIBRARY, "/opt/lib", None),
            (PRELOAD_FREE, "Sync", None),
            (PRELOAD_FREE, "never", Some("ignored: it must be wait or sync")),
            (PRELOAD_ASYNC, "on", None),
            (PRELOAD_PINNED, "2", Some("ignored: it must be 1 or 0 (or true, false, on, off, yes, no)")),
            (PRELOAD_MIN, "4k", None),
            (PRELOAD_MAX, "much", Some("ignored: it must be a size like 8GiB")),
            (PRELOAD_REPORT, "-", None),
            ("BFC_PRELOAD_REPORTS", "-", Some("unknown: no variable of libbfc has this name")),
        ] {
            assert_eq!(environment(&[]).remark(name, value).as_deref(), remark, "{name}={value}");
        }
    }

    #[test]
    fn variables_for_flags_count_where_no_flag_option_is_given() {
        let set = [(GROWTH, "1"), (GC, "on"), (SPLIT_ALWAYS, "0"), (QUARANTINE, "1")];
        assert_eq!(steering(&set, &plain()), [GROWTH, GC, SPLIT_ALWAYS]);
        let pool = environment(&set).in_force(&plain());
        assert_eq!((pool.growth, pool.gc, pool.split_always), (true, true, false));
        let asked = PoolConfig { split_always: true, ..plain() };
        assert_eq!(steering(&set, &asked), [""; 0]);
        let pool = environment(&set).in_force(&asked);
        assert_eq!((pool.growth, pool.gc, pool.split_always), (false, false, true));
        let both = [(QUARANTINE, "1"), (TIMESTAMPS, "1")];
        assert_eq!(steering(&both, &plain()), [QUARANTINE, TIMESTAMPS]);
    }

    #[test]
    fn forced_growth_comes_before_everything() {
        let off = environment(&[(FORCE_GROWTH, "no"), (INITIAL_REGION, "1MiB")]);
        let asked = PoolConfig { growth: true, ..plain() };
        assert!(!off.in_force(&asked).growth);
        assert_eq!(off.in_force(&asked).initial_region, None);
        let on = environment(&[(FORCE_GROWTH, "1"), (GROWTH, "0"), (INITIAL_REGION, "1MiB")]);
        assert!(on.in_force(&plain()).growth);
        assert_eq!(on.in_force(&plain()).initial_region, Some(1 << 20));
        assert_eq!(on.steering(&plain()).into_keys().collect::<Vec<_>>(), [FORCE_GROWTH, INITIAL_REGION]);
    }

    #[test]
    fn what_is_malformed_or_nothing_does_not_count() {
        for (name, value) in [
            (FORCE_GROWTH, "perhaps"),
            (FORCE_GROWTH, ""),
            (FRAGMENTATION, "0"),
            (FRAGMENTATION, "2"),
            ("BFC_RETRY_TIMEOUT_MS", "0"),
            ("BFC_RETRY_TIMEOUT_MS", "1s"),
            ("BFC_LOG", ""),
        ] {
            assert_eq!(steering(&[(name, value)], &plain()), [""; 0], "{name}={value}");
        }
        assert_eq!(steering(&[("BFC_LOG", "loud")], &plain()), ["BFC_LOG"]);
        for (value, steers) in [("guard", true), ("more, Guard", true), ("more", false), (",", false)] {
            assert_eq!(steering(&[(DEBUG, value)], &plain()).len(), usize::from(steers), "{value}");
            let simulated = PoolConfig { backend: Backend::Simulated, ..plain() };
            assert_eq!(steering(&[(DEBUG, value)], &simulated), [""; 0]);
        }
    }
}
