//! The file of `bfc run --report=FILE`: a record of counters for each process, and its summary.

use std::fmt::{Display, Write};
use std::io::Read;
use std::sync::atomic::Ordering;

use anyhow::{Error, Result, anyhow};
use bfc_formats::counters::{Counted, ENDED, REPLACED, Record};
use bfc_readers::counters::{Malformed, read};
use bfc_readers::process::{self, Liveness};

use crate::names::shown;

/// Returns the summaries of the records up to the first damaged one, and what is wrong with it. `name` is that of the
/// file.
pub fn summaries(file: impl Read, name: &dyn Display) -> Result<(Vec<String>, Result<()>)> {
    let (records, damage) = read(file).map_err(|why| explain(why, name))?;
    let end = damage.map_or(Ok(()), |why| Err(explain(why, name)));
    Ok((records.iter().map(summary).collect(), end))
}

fn explain(why: Malformed, name: &dyn Display) -> Error {
    match why {
        Malformed::Unreadable(error) => Error::new(error).context(format!("cannot read {name}")),
        Malformed::TooLarge(error) => Error::new(error).context(format!("no host memory for all of {name}")),
        Malformed::OtherVersion => {
            anyhow!("{name} is of another version of libbfc; use the bfc command of that version")
        }
        Malformed::OtherFile => {
            anyhow!("{name} is not a report; name the FILE of bfc run --report=FILE or --history FILE")
        }
        Malformed::Damaged(number) => anyhow!(
            "record {number} of {name} is damaged, and later ones cannot be read; remove the file before the next \
             run, or name another"
        ),
    }
}

fn summary(record: &Record) -> String {
    let (state, explanation) = state(record);
    let program = shown(&text(&record.program));
    let mut summary =
        format!("process {}: {program}\n  began        {}\n", record.process, time(record.began));
    let _ = writeln!(summary, "  state        {state}: {explanation}");
    let lost = record.lost_events.load(Ordering::Relaxed);
    if lost != 0 {
        let _ = writeln!(
            summary,
            "  trace        incomplete: it lacks {}, because it could not grow",
            Counted(lost, "event")
        );
    }
    if let Some(refusal) = record.refusal() {
        let _ = write!(summary, "{refusal}");
    }
    for (name, counters) in record.used() {
        let _ = write!(summary, "{name}\n{counters}{}", record.advice(&name, counters));
    }
    summary
}

/// What became of the process, and what that means.
fn state(record: &Record) -> (&'static str, &'static str) {
    match record.state.load(Ordering::Acquire) {
        ENDED => ("ended", "by exit, or by returning from main"),
        REPLACED => ("replaced", "it executed another program (exec)"),
        _ if text(&record.boot) != text(&process::boot()) => (
            "unknown",
            "it ran on another machine, or before this one was restarted, and its end was not recorded",
        ),
        _ if record.namespace != process::namespace() => {
            ("unknown", "it runs or ran in another container, and its end was not recorded")
        }
        _ => match process::liveness(record.process, record.started) {
            Liveness::Running => ("running", "the counters are current"),
            Liveness::Unknown => ("unknown", "the system does not report whether it is still running"),
            Liveness::Ended => ("killed", "ended by a signal or _exit, without its exit handlers"),
        },
    }
}

/// Text up to the first NUL.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end().to_owned()
}

/// Formats seconds since 1970.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

/// The date that many days after January 1, 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    loop {
        let length = 365 + u64::from(is_leap(year));
        // Numbers of a damaged file may have any value.
        if days < length || year == 9999 {
            break;
        }
        days -= length;
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use bfc_formats::counters::MAGIC;
    use bfc_readers::counters::BYTES;

    use super::*;

    /// Records of random numbers, some of which are cut off: each before the damage is shown.
    #[test]
    fn records_of_any_content_are_shown() {
        let mut state = 7_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut damaged = 0;
        for _ in 0..300 {
            let mut file = Vec::new();
            for _ in 0..2 {
                let end = file.len() + if next() % 8 == 0 { next() as usize % BYTES } else { BYTES };
                file.extend(MAGIC);
                file.resize_with(end.max(file.len()), || next() as u8);
            }
            let (summaries, end) = summaries(&file[..], &"file").expect("a buffer can be read");
            let whole = file.len() / BYTES;
            assert!(summaries.len() <= whole && (end.is_err() || summaries.len() == whole));
            assert!(summaries.iter().all(|summary| summary.starts_with("process ")));
            damaged += u32::from(end.is_err());
        }
        assert!((10..200).contains(&damaged), "{damaged}");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(time(951_826_153), "2000-02-29 12:09:13 UTC");
        assert_eq!(time(1_795_302_000), "2026-11-21 23:00:00 UTC");
        assert_eq!(date(364), (1970, 12, 31));
        assert_eq!(date(u64::MAX).0, 9999);
    }
}
