//! The plan of a new allocator: from the caller's options, or from the environment.

use super::environment::{Warnings, ignored};
use super::types::{Chosen, Options};
use super::variables as names;
use crate::error::{ErrorKind, fail};
use crate::sys::file::{self, Unreadable};
use bfc_core::plan::{Malformed, PlacementPlan};
use bfc_hostmem::try_box;
use std::fmt;
use std::path::Path;

/// The bytes of a plan's file, at most.
const MOST_BYTES: usize = 64 << 20;

/// Why there is no plan in a file.
enum NoPlan {
    Unreadable(Unreadable),
    Malformed(Malformed),
}

impl NoPlan {
    fn is_for_lack_of_memory(&self) -> bool {
        matches!(self, NoPlan::Unreadable(Unreadable::HostMemory) | NoPlan::Malformed(Malformed::HostMemory))
    }
}

impl fmt::Display for NoPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPlan::Unreadable(why) => why.fmt(f),
            NoPlan::Malformed(why) => why.fmt(f),
        }
    }
}

impl Chosen<'_> {
    /// Reads the plan, if there is one. A plan of the caller's options that cannot be used is an error; one of the
    /// environment is ignored with a warning.
    #[inline(never)]
    pub(super) fn read_plan(&self, given: &Options<'_>) -> Result<Option<Box<PlacementPlan>>, ErrorKind> {
        let Some(path) = self.options.plan else { return Ok(None) };
        let read = read(path).and_then(|plan| Ok(try_box(plan).map_err(Malformed::from)?));
        let why = match read {
            Ok(plan) => return Ok(Some(plan)),
            Err(why) => why,
        };
        if given.plan.is_none() {
            ignored(&names::PLAN, text_of(path), Warnings::Logged, &format_args!(": {why}"));
            return Ok(None);
        }
        let error =
            if why.is_for_lack_of_memory() { ErrorKind::OutOfMemory } else { ErrorKind::InvalidArgument };
        Err(fail!(error, "the plan {}: {why}", path.display()))
    }
}

/// Returns a path for a message, without memory.
pub(super) fn text_of(path: &Path) -> &str {
    path.to_str().unwrap_or("(not UTF-8)")
}

impl From<Malformed> for NoPlan {
    fn from(why: Malformed) -> Self {
        NoPlan::Malformed(why)
    }
}

fn read(path: &Path) -> Result<PlacementPlan, NoPlan> {
    let text = file::read(path, MOST_BYTES).map_err(NoPlan::Unreadable)?;
    Ok(PlacementPlan::parse(&text)?)
}
