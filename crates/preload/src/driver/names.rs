//! The driver's functions that are hooked, by the names passed to `dlsym` and `cuGetProcAddress`.

use std::ffi::{CStr, c_int};

use cuda_sys::{FUNCTIONS, NEWEST_HEADERS};

use super::functions::{ANALYZED, Function, UNANALYZED, all};
use crate::unanalyzed_list::{HARMLESS, TOUCHING};

/// Returns whether a function that the driver exports by this name is hooked.
pub(crate) fn is_hooked(symbol: &CStr) -> bool {
    all().any(|function| function.symbol == symbol)
}

/// Returns whether any function that `cuGetProcAddress` returns for this name is hooked.
pub(crate) fn has_name(name: &CStr) -> bool {
    name.to_str().is_ok_and(has_name_of)
}

fn has_name_of(name: &str) -> bool {
    UNANALYZED.iter().any(|function| function.of == name)
        || FUNCTIONS
            .iter()
            .filter(|known| known.name == name)
            .any(|known| ANALYZED.iter().any(|function| function.of == known.symbol))
}

/// Returns whether work may use memory through the functions that `cuGetProcAddress` returns for this name.
pub(crate) fn is_touching(name: &CStr) -> bool {
    name.to_str().is_ok_and(|name| {
        // The 32-bit functions share the names of others.
        may_touch(name) && (has_name_of(name) || !is_harmless(name))
    })
}

/// Returns whether work may use memory through a function that is not hooked: one that no known header declares, or a
/// known one that is not hooked for a reason other than being harmless.
pub(crate) fn may_touch_unseen(symbol: &CStr) -> bool {
    symbol.to_str().is_ok_and(|name| may_touch(name) && !is_harmless(name) && !is_hooked(symbol))
}

/// Returns the hooked function that `cuGetProcAddress` returns for a name, a version and flags, by its documentation.
/// Returns `None` for a version later than the headers that cuda-sys's list was compared with, because that may be
/// another function of another type.
pub(crate) fn by_version(name: &CStr, version: c_int, per_thread: bool) -> Option<&'static Function> {
    if version > NEWEST_HEADERS {
        return None;
    }
    let name = name.to_str().ok()?;
    let is_twin = |function: &Function| {
        [&b"_ptsz"[..], b"_ptds"].iter().any(|twin| function.symbol.to_bytes().ends_with(twin))
    };
    let unanalyzed = UNANALYZED.iter().filter(|function| function.of == name && function.since <= version);
    let is_wanted = |function: &&Function| is_twin(function) == per_thread;
    // Not all have a twin.
    let newest = unanalyzed.clone().filter(is_wanted).max_by_key(|function| function.since);
    if let Some(function) = newest.or_else(|| unanalyzed.max_by_key(|function| function.since)) {
        return Some(function);
    }
    let known = FUNCTIONS.iter().filter(|known| known.name == name && known.since <= version);
    let listed = known.max_by_key(|known| known.since)?;
    let twin = listed.twin.filter(|_| per_thread && version >= 7000);
    let symbol = twin.unwrap_or(listed.symbol);
    ANALYZED
        .iter()
        .find(|function| function.of == listed.symbol && function.symbol.to_bytes() == symbol.as_bytes())
}

/// Returns whether work may use memory through a function, judging by its name.
fn may_touch(name: &str) -> bool {
    TOUCHING.iter().any(|pattern| fits(name, pattern))
}

/// Returns whether a function is in the list of harmless ones.
fn is_harmless(symbol: &str) -> bool {
    HARMLESS.iter().flat_map(|(names, _)| names.split(' ')).any(|pattern| fits(symbol, pattern))
}

/// Returns whether a name fits a pattern, in which each `*` stands for any text.
fn fits(name: &str, pattern: &str) -> bool {
    let Some((beginning, rest)) = pattern.split_once('*') else { return name == pattern };
    let mut ends =
        name.strip_prefix(beginning).into_iter().flat_map(|left| (0..=left.len()).map(|at| left.get(at..)));
    ends.any(|end| end.is_some_and(|end| fits(end, rest)))
}
