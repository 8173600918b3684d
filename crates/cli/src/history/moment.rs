//! A moment of a history, as a user names it: a mark, a time, the peak, the beginning or the end.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use serde::Serialize;

use super::summary::seconds;
use crate::names::shown;
use crate::size::counted;
use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::{History, Recorded};
use bfc_readers::history::timeline::follow;

/// What `--from`, `--to` and `FILE@MOMENT` accept.
pub const FORMS: &str = "\
Moments of a history:
  begin, end         of the recording
  peak               when the pools together had most in use for the first time
  12.5s              12.5 seconds after the recording began
  NAME               the mark of that name, if there is one
  NAME#2             the second mark of that name
  mark:NAME          the same, for names such as peak and 3s";

/// A name of a moment.
#[derive(Clone, Debug, PartialEq)]
pub enum Moment {
    Begin,
    End,
    Peak,
    /// Nanoseconds since the recording began.
    Time(u64),
    Mark(String),
}

/// A moment of a certain history.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub moment: String,
    pub seconds: f64,
    /// Events with lower numbers have happened.
    #[serde(skip)]
    pub number: u64,
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("mark:") {
            return Ok(Moment::Mark(name.to_owned()));
        }
        let time = text.strip_suffix('s').and_then(|number| number.parse::<f64>().ok());
        match (text, time) {
            ("", _) => Err("a moment has no name; write begin, end, peak, 12.5s or a mark".to_owned()),
            ("begin", _) => Ok(Moment::Begin),
            ("end", _) => Ok(Moment::End),
            ("peak", _) => Ok(Moment::Peak),
            // `infs` and `nans` are marks.
            (_, Some(time)) if time.is_finite() && time < 0.0 => {
                Err("a moment before the recording began; write 0s or later".to_owned())
            }
            (_, Some(time)) if time.is_finite() => Ok(Moment::Time((time * 1e9) as u64)),
            _ => Ok(Moment::Mark(text.to_owned())),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.3} s)", shown(&self.moment), self.seconds)
    }
}

impl Moment {
    /// Finds the moment in a history.
    pub fn find(&self, history: &History) -> Result<Point> {
        let last = history.events.last().map_or(0, |event| event.time);
        let (moment, time, number) = match self {
            Moment::Begin => ("begin".to_owned(), 0, 0),
            Moment::End => ("end".to_owned(), last, u64::MAX),
            Moment::Peak => {
                let (time, number) = peak(history);
                ("peak".to_owned(), time, number)
            }
            Moment::Time(time) if *time > last => {
                bail!("there is no moment {:.3} s: the recording has {:.3} s", seconds(*time), seconds(last))
            }
            Moment::Time(time) => {
                let later = history.events.iter().find(|event| event.time > *time);
                (format!("{:.3}s", seconds(*time)), *time, later.map_or(u64::MAX, |event| event.number))
            }
            Moment::Mark(name) => {
                let mark = find_mark(history, name)?;
                (format!("mark {name}"), mark.time, mark.number)
            }
        };
        Ok(Point { moment, seconds: seconds(time), number })
    }
}

/// The moment after the event with which most was in use.
fn peak(history: &History) -> (u64, u64) {
    let mut in_use = std::collections::HashMap::new();
    let (mut sum, mut most, mut found) = (0_u64, 0, (0, 0));
    follow(history, |event, state| {
        if event.kind == Kind::Mark {
            return;
        }
        let before = in_use.insert(event.pool, state.in_use).unwrap_or(0);
        // A damaged file may contain any numbers.
        sum = sum.saturating_sub(before).saturating_add(state.in_use);
        if sum > most {
            (most, found) = (sum, (event.time, event.number + 1));
        }
    });
    found
}

/// The mark with a name. If several marks have the name, it needs a number after it.
fn find_mark<'a>(history: &'a History, name: &str) -> Result<&'a Recorded> {
    let marks = |name: &str| {
        let is_named = |event: &&Recorded| event.kind == Kind::Mark && **history.mark(event.name) == *name;
        history.events.iter().filter(is_named).collect::<Vec<_>>()
    };
    let named = marks(name);
    match (&named[..], name.rsplit_once('#')) {
        ([mark], _) => return Ok(mark),
        ([_, _, ..], _) => {
            let count = named.len();
            bail!(
                "{} have the name {}: write {}#1 to {}#{count}",
                counted(count, "mark"),
                shown(name),
                shown(name),
                shown(name)
            )
        }
        ([], Some((base, number))) => {
            let of_name = marks(base);
            if let Some(index) = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1)) {
                if let Some(mark) = of_name.get(index) {
                    return Ok(mark);
                }
                if !of_name.is_empty() {
                    bail!("only {} of the name {}", there_are(of_name.len()), shown(base));
                }
            }
        }
        ([], None) => {}
    }
    let mut known: Vec<&str> = Vec::new();
    for event in history.events.iter().filter(|event| event.kind == Kind::Mark) {
        let name = &**history.mark(event.name);
        if !known.contains(&name) {
            known.push(name);
        }
        if known.len() > 10 {
            break;
        }
    }
    let listed: Vec<String> = known.iter().take(10).map(|name| shown(name)).collect();
    match known.len() {
        0 => bail!("there is no mark {}: the history has none (bfc_history_mark sets them)", shown(name)),
        1..=10 => bail!("there is no mark {}: the history has {}", shown(name), listed.join(", ")),
        _ => bail!("there is no mark {}: the history has {} and more", shown(name), listed.join(", ")),
    }
}

fn there_are(count: usize) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(count, "mark"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_word_a_time_or_a_mark() {
        let parse = |text: &str| text.parse::<Moment>();
        let mark = |name: &str| Ok(Moment::Mark(name.to_owned()));
        assert_eq!(
            ["begin", "end", "peak"].map(parse),
            [Ok(Moment::Begin), Ok(Moment::End), Ok(Moment::Peak)]
        );
        assert_eq!(parse("12.5s"), Ok(Moment::Time(12_500_000_000)));
        assert_eq!(parse("0s"), Ok(Moment::Time(0)));
        for name in ["epoch 1", "infs", "nans", "s", "12.5", "steps"] {
            assert_eq!(parse(name), mark(name));
        }
        assert_eq!(parse("mark:peak"), mark("peak"));
        assert!(parse("").is_err() && parse("-1s").is_err());
    }
}
