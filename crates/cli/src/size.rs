//! Sizes and shares as people write them on a command line.

use os::terms::{NO_LIMIT, is_no_limit};

/// Units a size may carry, longest spelling first so that `KiB` is not read as `K`.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1 << 10),
    ("mb", 1 << 20),
    ("gb", 1 << 30),
    ("tb", 1 << 40),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// The error for a text that is not a size.
const NO_SIZE: &str = "not a size; write bytes, or a number with K, M, G or T, such as 8GiB";

/// Reads `8589934592`, `8GiB`, `1.5 GiB`, `512MB`, `512M`: powers of 1024, with and without the `i`, as the
/// library reads its environment.
pub fn parse(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| lower.strip_suffix(suffix).map(|number| (number.trim_end(), *unit)))
        .unwrap_or((lower.as_str(), 1));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || number.ends_with('.') {
        return Err(NO_SIZE.to_owned());
    }
    let too_large = || "does not fit in 64 bits".to_owned();
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let whole = whole.checked_mul(unit).ok_or_else(too_large)?;
    whole.checked_add(fraction_of(fraction, unit)?).ok_or_else(too_large)
}

/// The part after the decimal point in whole bytes, rounded down. Exact, unlike floating point.
fn fraction_of(digits: &str, unit: u64) -> Result<u64, String> {
    let places = u32::try_from(digits.len()).ok().filter(|places| *places <= 18);
    let places = places.ok_or("more than 18 digits after the point")?;
    let numerator: u128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| NO_SIZE)? };
    let bytes = numerator * u128::from(unit) / 10_u128.pow(places);
    u64::try_from(bytes).map_err(|_| "does not fit in 64 bits".to_owned())
}

/// A size that must not be 0, where the library reads 0 as "not given".
pub fn parse_nonzero(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err("must not be 0".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A share between 0 and 1.
pub fn parse_fraction(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1.0 => Ok(value),
        _ => Err("must be a number above 0 and at most 1".to_owned()),
    }
}

/// A number of seconds, more than 0. At most 30 years, which is written without an exponent.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e9 => Ok(value),
        _ => Err("must be a number of seconds above 0, such as 30 or 0.5".to_owned()),
    }
}

/// A precision in percent, with or without the percent sign, as a share: `0.01%` is 0.0001.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value / 100.0),
        _ => Err("must be a percentage between 0 and 100".to_owned()),
    }
}

/// Bytes for readers: `1.50 GiB (1610612736)`. Below 1 KiB the plain number suffices.
pub fn human(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..=1023 => return format!("{bytes} B"),
        1024..=1_048_575 => (1_u64 << 10, "KiB"),
        1_048_576..=1_073_741_823 => (1 << 20, "MiB"),
        1_073_741_824..=1_099_511_627_775 => (1 << 30, "GiB"),
        1_099_511_627_776..=1_125_899_906_842_623 => (1 << 40, "TiB"),
        1_125_899_906_842_624..=1_152_921_504_606_846_975 => (1 << 50, "PiB"),
        _ => (1 << 60, "EiB"),
    };
    format!("{:.2} {name} ({bytes})", bytes as f64 / unit as f64)
}

/// A limit for readers. One that no device has is none.
pub fn limit(bytes: u64) -> String {
    if is_no_limit(bytes) { NO_LIMIT.to_owned() } else { human(bytes) }
}

/// `1 event`, `2 events`.
pub fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_spelling() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("256"), Ok(256));
        assert_eq!(parse("256B"), Ok(256));
        assert_eq!(parse("8GiB"), Ok(8 << 30));
        assert_eq!(parse("8 gib"), Ok(8 << 30));
        assert_eq!(parse("512MiB"), Ok(512 << 20));
        assert_eq!(parse("512m"), Ok(512 << 20));
        assert_eq!(parse("3k"), Ok(3072));
        assert_eq!(parse("8GB"), Ok(8 << 30));
        assert_eq!(parse("1.5KiB"), Ok(1536));
        assert_eq!(parse("0.1KiB"), Ok(102));
        assert_eq!(parse("1TiB"), Ok(1 << 40));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", "-1", "+1", "1..2", "1.", ".5", "0x10", "8 GiBs", "1e9", "eight"] {
            assert!(parse(text).is_err(), "{text:?} was taken");
        }
        for text in ["18446744073709551616", "16777216TiB", "16777216.5TiB"] {
            assert_eq!(parse(text), Err("does not fit in 64 bits".to_owned()), "{text:?}");
        }
        assert!(parse("0.1234567890123456789").is_err());
        assert!(parse_nonzero("0MiB").is_err());
    }

    #[test]
    fn shares_and_percentages_have_their_ranges() {
        assert_eq!(parse_fraction("0.25"), Ok(0.25));
        for text in ["0", "1.01", "-1", "NaN", "inf", "x"] {
            assert!(parse_fraction(text).is_err(), "{text:?} was taken");
        }
        assert_eq!((parse_seconds("30"), parse_seconds(" 0.5")), (Ok(30.0), Ok(0.5)));
        for text in ["0", "-1", "NaN", "inf", "2e9", "30s"] {
            assert!(parse_seconds(text).is_err(), "{text:?} was taken");
        }
        assert_eq!(parse_percent("0.01%"), Ok(0.0001));
        assert_eq!(parse_percent("1"), Ok(0.01));
        for text in ["-1", "101%", "NaN", ""] {
            assert!(parse_percent(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.50 KiB (1536)");
        assert_eq!(human(1 << 20), "1.00 MiB (1048576)");
        assert_eq!(human(20 << 30), "20.00 GiB (21474836480)");
        assert_eq!(human(256 << 40), "256.00 TiB (281474976710656)");
        assert_eq!(human(u64::MAX), "16.00 EiB (18446744073709551615)");
        assert_eq!((limit(8 << 30), limit(u64::MAX)), (human(8 << 30), "none".to_owned()));
    }

    #[test]
    fn one_thing_is_not_things() {
        assert_eq!(["0 events", "1 event", "2 events"], [0, 1, 2].map(|count| counted(count, "event")));
    }
}
