//! `bfc report -o report.html`: a page in one file that shows a history in a browser without a network.
//!
//! ```text
//!   mod      the page: crates/cli/assets/report and the data     pool     the page's data about a pool
//!   columns  numbers, packed                              lives    when each chunk and region existed, and where
//!                                                         free_space  what is free in one piece
//! ```
//!
//! Nothing from a history becomes markup. Names are in a JSON document in which `<` is written by its number, and the script shows them as
//! text. A policy in the page forbids it to load or send anything, and to run a script other than its own.

mod columns;
mod free_space;
pub(super) mod lives;
mod pool;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;

use anyhow::Result;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::summary::Summary;
use crate::json;
use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::History;
use columns::{Columns, MOST};
use pool::Pool;

// The vendored files are uPlot 1.6.32 (MIT) and d3-hierarchy 3.1.3 (ISC), from npm. LICENSE-THIRD-PARTY contains their
// licences.
const PAGE: &str = include_str!("../../../assets/report/page.html");
const VENDORED_STYLE: &str = include_str!("../../../assets/report/vendor/uPlot.min.css");
const STYLE: &str = include_str!("../../../assets/report/page.css");
const VENDORED_SCRIPTS: [&str; 2] = [
    include_str!("../../../assets/report/vendor/uPlot.iife.js"),
    include_str!("../../../assets/report/vendor/d3-hierarchy.js"),
];
/// One script, in which each part uses those before it.
const SCRIPTS: [&str; 9] = [
    include_str!("../../../assets/report/format.js"),
    include_str!("../../../assets/report/data.js"),
    include_str!("../../../assets/report/levels.js"),
    include_str!("../../../assets/report/colors.js"),
    include_str!("../../../assets/report/charts.js"),
    include_str!("../../../assets/report/map.js"),
    include_str!("../../../assets/report/flame.js"),
    include_str!("../../../assets/report/tables.js"),
    include_str!("../../../assets/report/page.js"),
];

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    /// The name of the history's file. The program's name may be that of an interpreter.
    file: &'a str,
    summary: &'a Summary,
    marks: Vec<Mark<'a>>,
    pools: Vec<Pool>,
}

/// A mark of all pools.
#[derive(Serialize)]
struct Mark<'a> {
    name: &'a str,
    /// Nanoseconds since the recording began.
    time: u64,
    /// The number of events, of all pools, before it.
    number: u64,
}

/// Writes the page.
pub fn write(history: &History, summary: &Summary, out: &mut dyn Write) -> Result<()> {
    let mut columns = Columns::default();
    let pools = pool::pools(history, &mut columns);
    let marks = history.events.iter().filter(|event| event.kind == Kind::Mark).map(|event| Mark {
        name: history.mark(event.name),
        time: event.time.min(MOST),
        number: event.number,
    });
    let document =
        Document { schema: "bfc-page/1", file: &history.file, summary, marks: marks.collect(), pools };

    // Names come from the history, so the policy cannot rely on a word that they may contain.
    let nonce = nonce();
    for (at, part) in PAGE.split("{{").enumerate() {
        let (slot, rest) = if at == 0 { ("", part) } else { part.split_once("}}").unwrap_or(("", part)) };
        match slot {
            "nonce" => out.write_all(nonce.as_bytes())?,
            "style" => [VENDORED_STYLE, STYLE].iter().try_for_each(|part| out.write_all(part.as_bytes()))?,
            "script" => write_script(out)?,
            "document" => json::write_for_page(&mut *out, &document)?,
            "columns" => {
                let encoder = EncoderWriter::new(&mut *out, &STANDARD);
                let mut encoder = GzEncoder::new(encoder, Compression::new(6));
                columns.write(&mut encoder)?;
                encoder.finish()?.finish()?;
            }
            _ => {}
        }
        out.write_all(rest.as_bytes())?;
    }
    Ok(())
}

fn write_script(out: &mut dyn Write) -> Result<()> {
    for script in VENDORED_SCRIPTS {
        writeln!(out, "{script}")?;
    }
    // Its names do not collide with those of the libraries.
    out.write_all(b"(() => {\n\"use strict\";\n")?;
    SCRIPTS.iter().try_for_each(|part| out.write_all(part.as_bytes()))?;
    out.write_all(b"})();\n")?;
    Ok(())
}

/// A word that no history knows.
fn nonce() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(history: &History) -> String {
        let mut page = Vec::new();
        write(history, &Summary::new(history, bfc_readers::process::Liveness::Ended), &mut page)
            .expect("into memory");
        String::from_utf8(page).expect("text")
    }

    fn of_program(name: &str) -> History {
        let mut history = History::default();
        name.clone_into(&mut history.program);
        history
    }

    #[test]
    fn a_hostile_name_ends_no_element() {
        let name = "</script><script>alert(1)</script><!--{{columns}}&amp;";
        let page = page(&of_program(name));
        assert!(!page.contains("alert(1)</script>") && !page.contains("<!--{{"), "it is escaped");
        assert!(page.contains("\\u003c/script\\u003e\\u003cscript\\u003ealert(1)"), "it is there");
        assert_eq!(page.matches("<script").count(), 3);
        assert_eq!(page.matches("</script>").count(), 3);
    }

    #[test]
    fn the_policy_forbids_all_but_the_pages_own_script() {
        let pages = [page(&History::default()), page(&History::default())];
        let policy = |page: &str| {
            let (_, policy) = page.split_once("Content-Security-Policy\" content=\"").expect("a policy");
            policy.split_once('"').expect("an attribute").0.to_owned()
        };
        let [one, other] = pages.each_ref().map(|page| policy(page));
        assert!(one.starts_with("default-src 'none'; script-src 'nonce-"), "{one}");
        assert!(!one.contains("unsafe") && !one.contains("http"), "{one}");
        assert_ne!(one, other);
    }
}
