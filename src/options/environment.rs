//! Reading variables of the environment.

use super::variables::Variable;
use crate::log::{self, Level};
use os::variables;
use std::ffi::CStr;

/// Whether ignored values are reported to the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Warnings {
    Logged,
    Silent,
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
        log::emit(Level::Warn, format_args!("{} is ignored: {PRIVILEGED}", variable.text()));
    }
    variables::value(variable.name)
}

/// Why a privileged process ignores a variable.
pub(super) const PRIVILEGED: &str = "the process has more rights than its user";

/// Warns that a variable's value is ignored.
pub(super) fn ignored(variable: &Variable, text: &str, warnings: Warnings, how: &dyn std::fmt::Display) {
    if warnings == Warnings::Logged {
        // Cut off, so that a very long value does not displace the advice.
        let dots = if text.chars().nth(LONGEST_SHOWN).is_some() { "..." } else { "" };
        let name = variable.text();
        log::emit(Level::Warn, format_args!("{name}={text:.LONGEST_SHOWN$}{dots} is ignored{how}"));
    }
}
