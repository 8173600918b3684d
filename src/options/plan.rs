//! The plan of a new allocator: from the caller's options, or from the environment.

use super::environment::{Warnings, given, ignored};
use super::types::Options;
use super::variables as names;
use crate::core::plan::{Malformed, PlacementPlan};
use crate::error::{Error, fail};
use crate::log::{self, Level};
use crate::sys::file::{self, Unreadable};
use crate::sys::try_box;
use os::variables;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
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

impl Options<'_> {
    /// Reads the plan that the options or the environment name, if there is one. A plan of the options that cannot be
    /// used is an error; one of the environment is ignored with a warning.
    #[inline(never)]
    pub(super) fn read_plan(
        &self,
        timestamps: bool,
        guard: bool,
    ) -> Result<Option<Box<PlacementPlan>>, Error> {
        let excluded_by = match () {
            () if timestamps => Some("BFC_TIMESTAMPS, where requests wait for stamps"),
            () if guard => Some("BFC_DEBUG=guard, where chunks are larger"),
            () => None,
        };
        let Some(path) = self.plan else {
            let path = given(&names::PLAN, Warnings::Logged);
            return Ok(path.and_then(|path| from_environment(path, excluded_by)));
        };
        // An empty path: no plan, whatever the environment says.
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let shown = path.display();
        if timestamps {
            return Err(fail!(
                Error::InvalidArgument,
                "a plan cannot be followed with BFC_TIMESTAMPS: leave out one of them"
            ));
        }
        if let Some(what) = excluded_by {
            log::emit(Level::Warn, format_args!("the plan {shown} is not followed: it excludes {what}"));
            return Ok(None);
        }
        let read = read(path).and_then(|plan| Ok(try_box(plan).map_err(Malformed::from)?));
        read.map(Some).map_err(|why| {
            let error = if why.is_for_lack_of_memory() { Error::OutOfMemory } else { Error::InvalidArgument };
            fail!(error, "the plan {shown}: {why}")
        })
    }
}

fn from_environment(path: &CStr, excluded_by: Option<&str>) -> Option<Box<PlacementPlan>> {
    let shown = variables::text_of(path);
    if let Some(what) = excluded_by {
        ignored(&names::PLAN, shown, Warnings::Logged, &format_args!(": it excludes {what}"));
        return None;
    }
    let read = read(Path::new(OsStr::from_bytes(path.to_bytes())))
        .and_then(|plan| Ok(try_box(plan).map_err(Malformed::from)?));
    if let Err(why) = &read {
        ignored(&names::PLAN, shown, Warnings::Logged, &format_args!(": {why}"));
    }
    read.ok()
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
