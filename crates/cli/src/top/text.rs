//! The text of `bfc top --once`, and how figures and names are written on a screen.

use std::fmt::Write;

use os::terms::{NO_LIMIT, NO_OPERATION, is_no_limit};

use super::rates::Row;
use crate::names::shown;
use bfc_readers::published::reader::{Reading, State};

/// Printed if there is nothing to show.
pub const NOTHING: &str =
    "no process publishes its statistics: start one with BFC_PUBLISH=1, or by bfc run --publish";

/// The columns, as a heading and whether they are numbers.
pub const COLUMNS: [(&str, bool); 13] = [
    ("PID", true),
    ("PROGRAM", false),
    ("DEVICE", true),
    ("POOL", false),
    ("LIVE", true),
    ("IN USE", true),
    ("HELD", true),
    ("LIMIT", true),
    ("PEAK", true),
    ("OVERHEAD", true),
    ("FRAG", true),
    ("ALLOCS/S", true),
    ("FAILED", true),
];

/// Bytes in at most 7 characters: `1.50 GiB` is `1.50G`.
pub fn short(bytes: u64) -> String {
    let power = bytes.max(1).ilog2() / 10;
    let unit = ['B', 'K', 'M', 'G', 'T', 'P', 'E'][power as usize];
    let value = bytes as f64 / (1_u64 << (10 * power)) as f64;
    match power {
        0 => format!("{bytes}B"),
        _ if value < 10.0 => format!("{value:.2}{unit}"),
        _ if value < 100.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

/// A rate in at most 6 characters.
pub fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".into(),
        Some(rate) if rate < 10_000.0 => format!("{rate:.0}"),
        Some(rate) if rate < 9_999_500.0 => format!("{:.0}k", rate / 1e3),
        Some(rate) => format!("{:.0}M", rate / 1e6),
    }
}

pub fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.0}%", share * 100.0))
}

pub fn factor(factor: Option<f64>) -> String {
    factor.map_or("-".into(), |factor| if factor < 999.5 { format!("{factor:.2}x") } else { ">999x".into() })
}

/// A name without characters that control a terminal or the direction of text, truncated to this many characters.
pub fn plain(name: &str, most: usize) -> String {
    let name = shown(name);
    if name.chars().count() <= most {
        return name;
    }
    name.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// The cells of a row, one for each of [`COLUMNS`].
pub fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let bytes = |name: &str| short(row.get(name));
    let limit = row.get("bytes_limit");
    [
        row.process.id.to_string(),
        plain(&row.process.program, 16),
        row.pool.device.to_string(),
        plain(&row.pool.name, 16),
        bytes("bytes_requested"),
        bytes("bytes_in_use"),
        bytes("pool_bytes"),
        if is_no_limit(limit) { NO_LIMIT.into() } else { short(limit) },
        bytes("peak_bytes_in_use"),
        factor(row.overhead()),
        percent(row.fragmentation()),
        rate(row.allocs_per_second),
        row.get("num_failures").to_string(),
    ]
}

/// A remark on a row besides its figures, empty for most.
pub fn remark(row: &Row) -> &'static str {
    match row.process.state {
        _ if row.pool.is_failed => "disabled after an internal error",
        State::Running => "",
        State::Stalled => "does not publish now: stopped, or replaced by another program",
        State::Ended => "the process has ended; last statistics",
        State::Unknown => "in another container, or hidden; may have ended",
    }
}

/// The whole text: the table, and the largest holders of each pool with names.
pub fn once(reading: &Reading, rows: &[Row]) -> String {
    if rows.is_empty() {
        let silent = reading.processes.len();
        return match silent {
            0 => format!("{NOTHING}\n"),
            1 => "1 process publishes, and has no pool\n".to_owned(),
            _ => format!("{silent} processes publish, and have no pool\n"),
        };
    }
    let lines: Vec<_> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|cells| cells[column].chars().count());
        cells.chain([COLUMNS[column].0.len()]).max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let line = |cells: [&str; COLUMNS.len()], remark: &str| {
        let mut line = String::new();
        for ((cell, width), (_, is_number)) in cells.iter().zip(widths).zip(COLUMNS) {
            let _ =
                if is_number { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:width$}  ") };
        }
        line.push_str(remark);
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    };
    let mut text = line(COLUMNS.map(|(name, _)| name), "");
    for (row, cells) in rows.iter().zip(&lines) {
        text += &line(cells.each_ref().map(String::as_str), remark(row));
    }
    for row in rows.iter().filter(|row| !row.pool.holders.is_empty()) {
        let (id, device) = (row.process.id, row.pool.device);
        let _ = writeln!(text, "\nlargest holders of process {id}, device {device}:");
        for holder in &row.pool.holders {
            let name = holder.operation.as_deref().unwrap_or(NO_OPERATION);
            let chunks =
                crate::size::counted(usize::try_from(holder.chunks).unwrap_or(usize::MAX), "allocation");
            let _ = writeln!(text, "  {:>7}  {}, {chunks}", short(holder.bytes), plain(name, 120));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::rates::Rates;
    use super::super::rates::tests::{pool, process, reading};
    use super::*;

    #[test]
    fn figures_are_short() {
        let shown = [0, 1023, 1024, 1536, 10 << 20, 999 << 20, 1023 << 30, u64::MAX].map(short);
        assert_eq!(shown, ["0B", "1023B", "1.00K", "1.50K", "10.0M", "999M", "1023G", "16.0E"]);
        let shown = [None, Some(0.0), Some(9999.0), Some(10_000.0), Some(2.5e7)].map(rate);
        assert_eq!(shown, ["-", "0", "9999", "10k", "25M"]);
        assert_eq!((percent(Some(0.126)), percent(None)), ("13%".into(), "-".into()));
        assert_eq!((factor(Some(1.25)), factor(Some(1e9))), ("1.25x".into(), ">999x".into()));
    }

    #[test]
    fn a_name_controls_no_terminal() {
        assert_eq!(
            plain("\x1b[2J\x07\u{202e}evil\u{9b}\n", 99),
            "\u{fffd}[2J\u{fffd}\u{fffd}evil\u{fffd}\u{fffd}"
        );
        assert_eq!((plain("attention", 5), plain("été", 3)), ("atte…".into(), "été".into()));
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        assert_eq!(once(&reading(vec![]), &[]), format!("{NOTHING}\n"));
        let idle = reading(vec![process(7, State::Running, vec![])]);
        assert_eq!(once(&idle, &[]), "1 process publishes, and has no pool\n");
    }

    #[test]
    fn a_process_that_has_ended_is_said_to_have_ended() {
        let ended = reading(vec![process(7, State::Ended, vec![pool(1, 2, 1, 1024)])]);
        let text = once(&ended, &Rates::default().take(&ended));
        let expected = "\
PID  PROGRAM  DEVICE  POOL  LIVE  IN USE   HELD  LIMIT   PEAK  OVERHEAD  FRAG  ALLOCS/S  FAILED
  7  train         0  bfc   512B   1.00K  2.00K  1.00G  1.00K     4.00x   75%         -       0  \
the process has ended; last statistics
";
        assert_eq!(text, expected);
    }
}
