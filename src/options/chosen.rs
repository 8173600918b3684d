//! What the caller's options, the environment and the defaults choose together, and what of it has an effect.

use super::environment::{Warnings, given, ignored, setting};
use super::table::{Rule, Setting, TABLE};
use super::types::{BackendKind, Chosen, Flags, GrowthPolicy, Options};
use super::values::switch;
use super::variables::{self as names, Variable};
use crate::error::{ErrorKind, fail};
use os::variables;

/// Why settings were dropped, as far as they were, in the order of the table.
pub(super) type Dropped = [Option<Rule>; TABLE.len()];

impl<'a> Options<'a> {
    /// Takes what the options leave open from the environment, and else from the defaults. Malformed values there are
    /// ignored. `default_flags` apply where neither sets a flag.
    #[inline(never)]
    pub(super) fn choose(&self, default_flags: Flags, warnings: Warnings) -> Chosen<'a> {
        let mut chosen = Chosen::of(self);
        let open = || TABLE.iter().filter(|setting| !setting.is_given(self));
        open().filter(|setting| !setting.is_flag()).for_each(|it| take_setting(it, &mut chosen, warnings));
        // An empty path: no plan, whatever the environment says.
        let plan = chosen.options.plan.filter(|path| !path.as_os_str().is_empty());
        chosen.options.plan = plan;
        if self.flags.is_empty() {
            // A fraction selects another split rule.
            let has_fraction = chosen.options.fragmentation_fraction != 0.0;
            chosen.options.flags =
                if has_fraction { default_flags - Flags::SPLIT_ALWAYS } else { default_flags };
            open().filter(|setting| setting.is_flag()).for_each(|it| take_setting(it, &mut chosen, warnings));
        }
        if chosen.options.growth_policy.is_open() {
            chosen.options.growth_policy = self.default_growth_policy();
        }
        if let Some(is_on) = setting(&names::FORCE_ALLOW_GROWTH, warnings, switch) {
            chosen.set_flag(Flags::ALLOW_GROWTH, is_on);
        }
        chosen
    }

    /// Returns the policy where neither the options nor the environment name one. Callers that set the flag have
    /// TensorFlow's, as they had before there was a choice.
    fn default_growth_policy(&self) -> GrowthPolicy {
        let asked = self.growth_policy == GrowthPolicy::Default && self.flags.contains(Flags::ALLOW_GROWTH);
        if asked { GrowthPolicy::TensorFlow } else { GrowthPolicy::Need }
    }
}

impl Chosen<'_> {
    /// Drops the settings that have no effect on a backend, and together with each other.
    pub(super) fn drop_ineffective(&mut self, backend: BackendKind) -> Dropped {
        self.options.backend = backend;
        let mut dropped = [None; TABLE.len()];
        for (why, setting) in dropped.iter_mut().zip(TABLE) {
            *why = setting.drop_ineffective(self);
        }
        dropped
    }

    /// Refuses what the caller's options and the environment exclude together.
    pub(super) fn check(&self, given: &Options<'_>) -> Result<(), ErrorKind> {
        if given.plan.is_some() && self.options.plan.is_some() && self.has(Flags::TIMESTAMPS) {
            return Err(fail!(
                ErrorKind::InvalidArgument,
                "a plan cannot be followed with BFC_TIMESTAMPS: leave out one of them"
            ));
        }
        Ok(())
    }
}

/// Returns why a setting was dropped.
pub(super) fn reason(dropped: &Dropped, variable: &Variable) -> Option<Rule> {
    let place = TABLE.iter().position(|setting| setting.variable.is(variable))?;
    dropped[place]
}

/// Takes a setting of an allocator from the environment, if it has one. A malformed value is ignored with a warning.
fn take_setting(setting: &Setting, chosen: &mut Chosen<'_>, warnings: Warnings) {
    let variable = &setting.variable;
    let Some(value) = given(variable, warnings) else { return };
    let (text, expected) = (variables::text_of(value), variable.kind.expected());
    if setting.take(chosen, value).is_none() {
        ignored(variable, text, warnings, &format_args!(": it must be {expected}"));
    } else if variable.kind.misreads(text) {
        ignored(variable, text, warnings, &format_args!(" in part: it must be {expected}"));
    }
}
