//! The formats of the environment variables' values.

use crate::backend::HugePages;
use crate::history::{NATIVE, PYTHON};
use crate::sys::numa::Placement;
use std::time::Duration;

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

/// Parses a number of seconds.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    // Not "nan", "inf" or "1e9".
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_plain).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Parses a switch.
pub(super) fn switch(text: &str) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is(&["1", "true", "on", "yes"]) => Some(true),
        () if is(&["0", "false", "off", "no"]) => Some(false),
        () => None,
    }
}

/// Parses whether regions of host memory are on huge pages.
pub(super) fn huge_pages(text: &str) -> Option<HugePages> {
    HugePages::ALL.into_iter().find(|choice| text.eq_ignore_ascii_case(choice.name()))
}

/// Parses on which node host memory lies.
pub(super) fn numa(text: &str) -> Option<Placement> {
    Placement::ALL.into_iter().find(|placement| text.eq_ignore_ascii_case(placement.name()))
}

/// Parses which backtraces a history has, as bits.
pub(super) fn stacks(text: &str) -> Option<u32> {
    let known = [("none", 0), ("native", NATIVE), ("python", PYTHON), ("both", NATIVE | PYTHON)];
    known.into_iter().find(|(word, _)| text.eq_ignore_ascii_case(word)).map(|(_, bits)| bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backtraces_are_words() {
        assert_eq!((stacks("Native"), stacks("python"), stacks("both")), (Some(1), Some(2), Some(3)));
        assert_eq!((stacks("none"), stacks("1"), stacks("")), (Some(0), None, None));
    }

    #[test]
    fn seconds_are_plain_numbers() {
        assert_eq!(seconds("30"), Some(Duration::from_secs(30)));
        assert_eq!((seconds("0.25"), seconds("0")), (Some(Duration::from_millis(250)), Some(Duration::ZERO)));
        for text in ["", "-1", "1s", "nan", "inf", "1e9", "1.2.3", "99999999999999999999999"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

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
}
