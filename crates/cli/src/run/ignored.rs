//! Settings that will have no effect on the program. Without a message, such a setting can cost its user hours.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use bfc_sys::interposer::{Order, pool_flags};
use bfc_sys::{
    BFC_ALLOW_GROWTH, BFC_GARBAGE_COLLECTION, BFC_QUARANTINE, BFC_SPLIT_ALWAYS, BFC_TIMESTAMPS, BFC_TWO_ENDS,
};

use super::args::Run;
use super::file::Facts;
use super::settings::Settings;
use super::{check_report, files, verdict};
use crate::environment::{self as names, Resolved};
use crate::library::Library;

/// Flags that the interposer sets itself: what it sets them to, and why. A flag of the environment does not count.
struct Flag {
    name: &'static str,
    is_on: bool,
    why: &'static str,
}

/// How many characters of a variable's value a note shows.
const LONGEST_SHOWN: usize = 100;

/// Returns a note for each option and variable that will have no effect. `folder` holds the interposer and the library.
pub fn notes(args: &Run, settings: &Settings, program: &Facts, folder: &Path) -> Vec<String> {
    let mut notes = mistakes(settings, folder);
    let value = |name: &str| value(settings, name);
    // With --check it is reported at the end, with the observations.
    if !args.check {
        let causes = verdict::causes_of_file(program);
        let causes = causes.iter().map(|cause| check_report::cause_in_words(cause, program));
        notes.extend(causes.map(|cause| format!("libbfc and the options have no effect: {cause}")));
    }
    for Flag { name, is_on, why } in flags(serves_async(&value)) {
        if let Some(text) = value(name).filter(|text| switch(text) == Some(!is_on)) {
            notes.push(format!("{name}={text} has no effect under bfc run: {why}"));
        }
    }
    if let Some(text) = value(names::BACKEND).filter(|text| is_of_host(text)) {
        notes.push(format!(
            "{}={text} has no effect under bfc run: a program needs memory of its device; use --backend cuda or \
             cuda-vmm",
            names::BACKEND
        ));
    }
    if let Some(text) = value(names::FRAGMENTATION_FRACTION).filter(|text| is_share(text)) {
        notes.push(format!(
            "{}={text} has no effect under bfc run: every remainder is split off",
            names::FRAGMENTATION_FRACTION
        ));
    }
    if let Some(path) = value(names::PLAN).filter(|_| !serves_async(&value)) {
        notes.push(format!(
            "{}={path} has no effect under bfc run without --async: a plan excludes BFC_TIMESTAMPS, which preserve the \
             meaning of cudaFree",
            names::PLAN
        ));
    }
    let is_overridden = args.history.is_some() || args.leaks;
    if let Some(path) = value(names::HISTORY_FILE).filter(|path| !is_overridden && !Path::new(path).exists())
        && let Err(error) = files::try_to_make(Path::new(&path))
    {
        notes.push(format!(
            "{}={path} has no effect: no file can be created there: {error}",
            names::HISTORY_FILE
        ));
    }
    // A limit by an option is meant to precede the environment.
    if let Some(text) = value(names::MEMORY_FRACTION).filter(|_| args.limit.is_none() && has_limit(&value)) {
        notes.push(format!("{}={text} has no effect: {} comes first", names::MEMORY_FRACTION, names::LIMIT));
    }
    notes
}

/// Returns a note for each variable whose name or value the library does not know. The library itself is asked, because
/// it warns about values only with BFC_LOG, and never about names. If it cannot be opened, the program runs
/// nevertheless.
fn mistakes(settings: &Settings, folder: &Path) -> Vec<String> {
    let resolved = Library::in_folder(folder).and_then(|library| Resolved::defaults(&library).ok());
    let variables = resolved.as_ref().map_or(&[][..], Resolved::variables);
    let is_changed = |name: &str| settings.changes().iter().any(|(changed, _)| *changed == name);
    let kept = variables.iter().filter(|variable| !is_changed(&variable.name));
    let notes = kept.filter_map(|variable| {
        let (name, value, mistake) = (&variable.name, &variable.value, variable.mistake()?);
        let dots = if value.chars().nth(LONGEST_SHOWN).is_some() { "..." } else { "" };
        Some(format!("{name}={value:.LONGEST_SHOWN$}{dots} {mistake}"))
    });
    notes.collect()
}

/// Returns whether the options or the environment limit the pool.
pub fn is_limited(args: &Run) -> bool {
    let value = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
    let share = || value(names::MEMORY_FRACTION).is_some_and(|text| is_share(&text));
    args.limit.is_some() || args.fraction.is_some() || has_limit(&value) || share()
}

fn flags(serves_async: bool) -> [Flag; 6] {
    let (order, stamps) = if serves_async {
        (Order::Streams, "with --async memory is reused in the order of streams")
    } else {
        (Order::Stamps, "stamps preserve the meaning of cudaFree")
    };
    let flag = |name, bit, why| Flag { name, is_on: pool_flags(order) & bit != 0, why };
    [
        flag("BFC_ALLOW_GROWTH", BFC_ALLOW_GROWTH, "pools grow; use --growth off"),
        flag(
            "BFC_GARBAGE_COLLECTION",
            BFC_GARBAGE_COLLECTION,
            "free regions are returned before a request fails",
        ),
        flag("BFC_SPLIT_ALWAYS", BFC_SPLIT_ALWAYS, "every remainder is split off"),
        flag("BFC_TWO_ENDS", BFC_TWO_ENDS, "the interposer sets the flags of its pools"),
        flag("BFC_TIMESTAMPS", BFC_TIMESTAMPS, stamps),
        flag("BFC_QUARANTINE", BFC_QUARANTINE, stamps),
    ]
}

/// Returns the value that the program will find.
fn value(settings: &Settings, name: &str) -> Option<String> {
    let change = settings.changes().iter().rev().find(|(changed, _)| *changed == name);
    let value: Option<OsString> = change.map_or_else(|| env::var_os(name), |(_, value)| value.clone());
    value.map(|value| value.to_string_lossy().trim().to_owned()).filter(|value| !value.is_empty())
}

fn serves_async(value: &dyn Fn(&str) -> Option<String>) -> bool {
    value(names::PRELOAD_ASYNC).is_some_and(|text| switch(&text) == Some(true))
}

fn has_limit(value: &dyn Fn(&str) -> Option<String>) -> bool {
    value(names::LIMIT).is_some_and(|text| crate::size::parse_nonzero(&text).is_ok())
}

fn is_share(text: &str) -> bool {
    crate::size::parse_fraction(text).is_ok()
}

fn is_of_host(text: &str) -> bool {
    ["host", "host_vmm", "host-vmm"].iter().any(|name| text.eq_ignore_ascii_case(name))
}

/// Reads a switch as the library does.
fn switch(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is(["1", "true", "on", "yes"]) => Some(true),
        () if is(["0", "false", "off", "no"]) => Some(false),
        () => None,
    }
}
