//! The figures as Markdown.

use std::fmt::Write as _;

use crate::held::{self, Held};
use crate::measure::{Effort, Row};
use crate::peer::{self, About};

/// What all are held against.
pub const BASE: &str = "libbfc";

/// Returns a page with all figures.
pub fn page(rows: &[Row], held: &[Held], peers: &[String], effort: Effort) -> String {
    let mut page = String::from("# libbfc beside other allocators\n\n");
    let Effort { rounds, milliseconds } = effort;
    let _ = writeln!(
        page,
        "Nanoseconds of an operation (an allocation or a free): the median of {rounds} rounds of {milliseconds} ms in which the \
         peers take turns, and half the range between the quartiles. In brackets how many times libbfc's time that is. After the \
         last round each peer ran up to two seconds more in which no two live pieces overlapped."
    );
    let recorded: Vec<&Row> = rows.iter().filter(|row| row.is_recorded).collect();
    let random: Vec<&Row> = rows.iter().filter(|row| !row.is_recorded).collect();
    section(&mut page, "Recorded programs", &recorded, peers, true);
    let of_kind =
        |kind: &str| random.iter().filter(|row| row.program.starts_with(kind)).copied().collect::<Vec<_>>();
    section(&mut page, "Random sizes up to 1 MiB, by live chunks", &of_kind("uniform"), peers, false);
    section(
        &mut page,
        "Random sizes, small ones as likely as large ones",
        &of_kind("log-uniform"),
        peers,
        false,
    );
    section(&mut page, "Random sizes up to 64 KiB, each page written to", &of_kind("touched"), peers, false);
    if !held.is_empty() {
        held::section(&mut page, held);
    }
    page.push_str("\n## What the peers do\n\n| | |\n|---|---|\n");
    for About { name, remark } in peer::ALL.iter().filter(|about| peers.iter().any(|peer| peer == about.name))
    {
        let _ = writeln!(page, "| {name} | {remark} |");
    }
    page.push_str(&not_run(rows));
    page
}

/// A table with a line for each peer that ran one of these programs.
fn section(page: &mut String, title: &str, rows: &[&Row], peers: &[String], with_mean: bool) {
    let ran = |peer: &&String| {
        rows.iter().any(|row| row.outcome(peer).is_some_and(|outcome| outcome.median().is_some()))
    };
    let peers: Vec<&String> = peers.iter().filter(ran).collect();
    if peers.is_empty() {
        return;
    }
    let _ = write!(page, "\n## {title}\n\n|");
    let mean = if with_mean { " | geometric mean" } else { "" };
    let names: Vec<&str> = rows.iter().map(|row| row.program.as_str()).collect();
    let _ = writeln!(page, "{mean} | {} |", names.join(" | "));
    let _ = writeln!(page, "|---|{}", "--:|".repeat(rows.len() + usize::from(with_mean)));
    for peer in peers {
        let _ = write!(page, "| {peer} |");
        if with_mean {
            let _ = write!(
                page,
                " {} |",
                mean_ratio(rows, peer).map_or("-".to_owned(), |mean| format!("{mean:.2}x"))
            );
        }
        for row in rows {
            let _ = write!(page, " {} |", cell(row, peer));
        }
        page.push('\n');
    }
}

fn cell(row: &Row, peer: &str) -> String {
    let Some((median, spread)) = row.outcome(peer).and_then(|outcome| outcome.median()) else {
        return "-".to_owned();
    };
    let ratio = row.ratio(peer, BASE).filter(|_| peer != BASE);
    let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2}x)"));
    format!("{median:.1} ±{spread:.1}{ratio}")
}

/// The geometric mean of a peer's times over libbfc's. Nothing unless it ran all of them.
pub fn mean_ratio(rows: &[&Row], peer: &str) -> Option<f64> {
    let ratios: Vec<f64> = rows.iter().map(|row| row.ratio(peer, BASE)).collect::<Option<_>>()?;
    let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (logs / ratios.len() as f64).exp())
}

/// What did not run, and why, a line for each reason.
fn not_run(rows: &[Row]) -> String {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for row in rows {
        for outcome in &row.outcomes {
            let Some(why) = &outcome.why_not else { continue };
            match reasons.iter_mut().find(|(peer, known, _)| (*peer, *known) == (&outcome.peer, why)) {
                Some((_, _, programs)) => programs.push(&row.program),
                None => reasons.push((&outcome.peer, why, vec![&row.program])),
            }
        }
    }
    if reasons.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n## Not run\n\n| peer | programs | why |\n|---|---|---|\n");
    for (peer, why, programs) in reasons {
        let others = rows.iter().map(|row| row.program.as_str()).filter(|name| !programs.contains(name));
        let others: Vec<&str> = others.collect();
        let programs = match (others.len(), programs.len()) {
            (0, _) => "all".to_owned(),
            (few, many) if few < many => format!("all but {}", others.join(", ")),
            _ => programs.join(", "),
        };
        let _ = writeln!(text, "| {peer} | {programs} | {} |", why.replace('|', "/").replace('\n', " "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Outcome;

    fn outcome(peer: &str, samples: &[f64], why_not: Option<&str>) -> Outcome {
        Outcome { peer: peer.to_owned(), samples: samples.to_vec(), why_not: why_not.map(str::to_owned) }
    }

    #[test]
    fn a_page_has_ratios_and_reasons() {
        let outcomes = vec![
            outcome(BASE, &[10.0, 20.0, 11.0], None),
            outcome("rlsf", &[30.0, 60.0, 22.0], None),
            outcome("glibc", &[1.0], Some("it broke")),
        ];
        let rows = [Row { program: "gpt2".to_owned(), is_recorded: true, outcomes }];
        let peers = [BASE, "rlsf", "glibc"].map(str::to_owned);
        let page = page(&rows, &[], &peers, Effort { rounds: 3, milliseconds: 1 });
        assert!(
            page.contains("\n| | geometric mean | gpt2 |\n|---|--:|--:|\n| libbfc | 1.00x | 11.0 ±2.5 |\n"),
            "{page}"
        );
        assert!(page.contains("\n| rlsf | 3.00x | 30.0 ±9.5 (3.00x) |\n"), "{page}");
        assert!(page.contains("\n| glibc | all | it broke |\n") && !page.contains("| glibc | -"), "{page}");
    }
}
