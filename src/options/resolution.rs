//! What an allocator would be created with, for clients that ask without creating one.

use super::chosen::{Dropped, reason};
use super::environment::{PRIVILEGED, Warnings, setting};
use super::table::{Rule, Setting, TABLE, Value};
use super::types::{BackendKind, Chosen, Flags, Options};
use super::values::switch;
use super::variables::{self as names, Kind, Variable};
use crate::error::ErrorKind;
use os::variables;
use std::fmt;

/// The settings of an allocator as far as they are known without its backend.
pub(crate) struct Resolution<'a> {
    /// What the caller gave.
    given: &'a Options<'a>,
    /// The settings with the environment and the defaults, without those that have no effect. The file of a plan is not
    /// read.
    pub(crate) chosen: Chosen<'a>,
    dropped: Dropped,
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
    Dropped(Rule),
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
            Remark::Dropped(rule) => write!(f, "ignored: {rule}"),
            Remark::Overruled(other) => write!(f, "ignored: {other} comes first"),
        }
    }
}

impl<'a> Resolution<'a> {
    /// Resolves options for a device as its creation does, but without opening the backend. `default_flags` apply where
    /// neither the options nor the environment set anything.
    pub(crate) fn new(given: &'a Options<'a>, device: i32, default_flags: Flags) -> Result<Self, ErrorKind> {
        given.check()?;
        let mut chosen = given.choose(default_flags, Warnings::Silent);
        chosen.check(given)?;
        let backend = chosen.options.kind_on(device)?;
        if backend == BackendKind::Custom {
            chosen.options.choose_limit(&chosen.options.custom()?)?;
        }
        let dropped = chosen.drop_ineffective(backend);
        Ok(Resolution { given, chosen, dropped })
    }

    /// Visits all settings in force, by name.
    pub(crate) fn each_setting(
        &self,
        mut visit: impl FnMut(&'static str, Value) -> fmt::Result,
    ) -> fmt::Result {
        TABLE.iter().try_for_each(|setting| visit(setting.key, setting.value(&self.chosen)))
    }

    /// Visits the settings of the caller's options that have no effect, with the reason.
    pub(crate) fn each_ignored(
        &self,
        mut visit: impl FnMut(&'static str, &dyn fmt::Display) -> fmt::Result,
    ) -> fmt::Result {
        let asked = TABLE.iter().zip(&self.dropped).filter(|(setting, _)| setting.is_asked(self.given));
        let mut ignored = asked.filter_map(|(setting, dropped)| Some((setting.key, dropped.as_ref()?)));
        ignored.try_for_each(|(key, rule)| visit(key, rule))
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

    /// Returns whether a variable with a well-formed value determines a setting. Those of the interposer, the command and
    /// the history do not.
    fn uses(&self, variable: &Variable) -> bool {
        let of_every_allocator = [names::FORCE_ALLOW_GROWTH, names::HASH_SEED, names::LOG];
        match Setting::of(variable) {
            Some(_) => self.why_not(variable).is_none(),
            None => of_every_allocator.iter().any(|other| variable.is(other)),
        }
    }

    fn remark(&self, variable: Option<&Variable>, value: &str) -> Option<Remark> {
        let Some(variable) = variable else { return Some(Remark::UnknownName) };
        let kind = variable.kind;
        match () {
            () if value.is_empty() => Some(Remark::Empty),
            () if variables::is_ignored(variable.name) => Some(Remark::Privileged),
            () if kind == Kind::Level && kind.misreads(value) => Some(Remark::TakenForWarn),
            () if kind.rejects(value) => Some(Remark::Malformed(kind)),
            () if kind.is_not_given(value) => Some(Remark::NotGiven).filter(|_| kind != Kind::Backend),
            () => self
                .why_not(variable)
                .or_else(|| kind.misreads(value).then_some(Remark::MalformedInPart(kind))),
        }
    }

    /// Returns why a well-formed value of a variable does not count.
    fn why_not(&self, variable: &Variable) -> Option<Remark> {
        let is_given = Setting::of(variable).is_some_and(|setting| setting.is_given(self.given));
        match () {
            () if variable.is(&names::ALLOW_GROWTH) && forces_growth() => {
                Some(Remark::Overruled("BFC_FORCE_ALLOW_GROWTH"))
            }
            () if is_given => Some(Remark::Overruled("bfc_options_t")),
            () => reason(&self.dropped, variable).map(Remark::Dropped),
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
