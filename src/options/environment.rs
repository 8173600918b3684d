//! Options from environment variables, and the formats of their values.

use super::{ALLOW_GROWTH, BackendKind, GARBAGE_COLLECTION, QUARANTINE, SPLIT_ALWAYS, TIMESTAMPS};
use crate::log::{self, Level};
use crate::sys::env;
use std::ffi::CStr;

pub(super) fn environment_flags(default: u32) -> u32 {
    let mut flags = default;
    for (name, bit) in [
        (c"BFC_ALLOW_GROWTH", ALLOW_GROWTH),
        (c"BFC_GARBAGE_COLLECTION", GARBAGE_COLLECTION),
        (c"BFC_TIMESTAMPS", TIMESTAMPS),
        (c"BFC_SPLIT_ALWAYS", SPLIT_ALWAYS),
        (c"BFC_QUARANTINE", QUARANTINE),
    ] {
        match flag(name) {
            Some(true) => flags |= bit,
            Some(false) => flags &= !bit,
            None => {}
        }
    }
    if flags & QUARANTINE != 0 && flags & TIMESTAMPS == 0 {
        log::emit(Level::Warn, format_args!("BFC_QUARANTINE is ignored: it needs BFC_TIMESTAMPS=1"));
        flags &= !QUARANTINE;
    }
    flags
}

/// Returns whether `BFC_DEBUG`, a comma-separated list, contains `guard`.
pub(super) fn guard_wanted() -> bool {
    let wanted = env::with(c"BFC_DEBUG", |text| {
        let (mut guard, mut unknown) = (false, false);
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let is_guard = word.eq_ignore_ascii_case("guard");
            (guard, unknown) = (guard | is_guard, unknown | !is_guard);
        }
        if unknown {
            let part = if guard { " in part" } else { "" };
            warn_of("BFC_DEBUG", text, &format_args!("{part}: it must be guard"));
        }
        guard
    });
    wanted.unwrap_or(false)
}

/// How many characters of a malformed value its warning shows.
const LONGEST_SHOWN: usize = 100;

/// Returns a variable's value. A malformed one is ignored with a warning.
pub(super) fn setting<T>(name: &CStr, wanted: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    env::with(name, |text| {
        let parsed = parse(text.trim());
        if parsed.is_none() {
            warn_of(name.to_str().unwrap_or_default(), text, &format_args!(": it must be {wanted}"));
        }
        parsed
    })?
}

fn warn_of(name: &str, text: &str, how: &dyn std::fmt::Display) {
    // Cut off, so that a very long value does not displace the advice.
    let dots = if text.chars().nth(LONGEST_SHOWN).is_some() { "..." } else { "" };
    log::emit(Level::Warn, format_args!("{name}={text:.LONGEST_SHOWN$}{dots} is ignored{how}"));
}

pub(super) fn flag(name: &CStr) -> Option<bool> {
    setting(name, "1 or 0 (or true, false, on, off, yes, no)", |text| {
        let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        match () {
            () if is(&["1", "true", "on", "yes"]) => Some(true),
            () if is(&["0", "false", "off", "no"]) => Some(false),
            () => None,
        }
    })
}

/// Parses the last part of a backend's name in the C ABI, in any case, with `-` or `_`. The custom backend cannot be
/// named.
pub(super) fn backend_named(text: &str) -> Option<BackendKind> {
    use BackendKind::*;
    let same = |letter: u8| if letter == b'-' { b'_' } else { letter.to_ascii_uppercase() };
    [Auto, Host, Cuda, CudaVmm, HostVmm]
        .into_iter()
        .find(|kind| kind.c_name().bytes().skip("BFC_BACKEND_".len()).eq(text.bytes().map(same)))
}

pub(super) fn is_fraction(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

pub(super) fn fraction(text: &str) -> Option<f64> {
    text.parse().ok().filter(|&value| is_fraction(value))
}

/// Parses sizes such as `8GiB`, `512 MB`, `1.5g` and `4096`. Units are binary, with or without the `i`.
pub(super) fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let letters = unit.strip_suffix(['b', 'B']).unwrap_or(unit);
    let letters = letters.strip_suffix(['i', 'I']).unwrap_or(letters);
    let shift = ["", "k", "m", "g", "t"].iter().position(|name| letters.eq_ignore_ascii_case(name))? * 10;
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let bytes = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
            (bytes.is_finite() && bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8GiB", 8 << 30),
            ("8 gb", 8 << 30),
            ("512M", 512 << 20),
            ("1.5g", 3 << 29),
            ("2TiB", 2 << 40),
            ("7b", 7),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "GiB", "8XiB", "-1", "1e9", "99999999999999999999", "20000000T", "1.2.3", "nan"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn backends_by_name() {
        for (text, kind) in [
            ("host", Some(BackendKind::Host)),
            ("CUDA", Some(BackendKind::Cuda)),
            ("cuda-vmm", Some(BackendKind::CudaVmm)),
            ("Host_VMM", Some(BackendKind::HostVmm)),
            ("custom", None),
            ("cuda_", None),
            ("", None),
        ] {
            assert_eq!(backend_named(text), kind, "{text}");
        }
    }
}
