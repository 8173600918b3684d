//! The advice for people.

use std::fmt::Write;

use super::{Advice, OutOfMemory, PoolAdvice, Tried};
use crate::names::{self, shown};
use crate::size::{self, counted, human};

impl Advice {
    /// The advice for people.
    pub fn text(&self) -> String {
        let events = counted(self.events, "event");
        let mut text = format!("what would have helped, by replaying {events} in {:.1} s\n", self.seconds);
        if self.left_out != 0 {
            let _ = writeln!(text, "  the first {} are left out", counted(self.left_out, "event"));
        }
        if self.pools.is_empty() {
            text.push_str("  no allocator has a request to replay\n");
        }
        self.pools.iter().for_each(|pool| pool.write(&mut text));
        text
    }
}

impl PoolAdvice {
    fn write(&self, text: &mut String) {
        let device = names::device(self.device);
        let _ = writeln!(
            text,
            "{device} ({}): {}, at most {} live, limit {}",
            shown(&self.name),
            counted(self.requests, "request"),
            human(self.live),
            size::limit(self.limit)
        );
        let rows: Vec<[String; 5]> = self.changes.iter().map(Tried::row).collect();
        let heading = ["options", "out of memory", "held", "overhead", "lowest limit"].map(str::to_owned);
        let mut widths = [0; 5];
        for row in rows.iter().chain([&heading]) {
            widths = std::array::from_fn(|at| widths[at].max(row[at].chars().count()));
        }
        let sets = self.changes.iter().map(|tried| tried.set.shown());
        for (row, set) in std::iter::once((&heading, "set by")).chain(rows.iter().zip(sets)) {
            let [name, memory, held, overhead, lowest] = row;
            let [a, b, c, d, e] = widths;
            let line = format!("  {name:a$}  {memory:b$}  {held:>c$}  {overhead:>d$}  {lowest:>e$}  {set}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let failed = self.changes.iter().filter_map(|tried| Some((&tried.change, tried.error.as_ref()?)));
        for (change, error) in failed {
            let _ = writeln!(text, "  {change} cannot be tried: {}", shown(error));
        }
        for note in &self.notes {
            let _ = writeln!(text, "  note: {note}");
        }
    }
}

impl Tried {
    fn row(&self) -> [String; 5] {
        let memory = match (self.out_of_memory, self.failed) {
            (OutOfMemory::NoneInReplay, _) => "none in the replay".to_owned(),
            (OutOfMemory::None, _) => "none".to_owned(),
            (OutOfMemory::Remains, Some(failed)) => format!("{failed} failed"),
            _ => "unknown".to_owned(),
        };
        // The exact numbers are in the JSON document: a row must fit in a line.
        let short = |bytes: u64| human(bytes).split(" (").next().unwrap_or_default().to_owned();
        let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), short);
        [
            self.change.clone(),
            memory,
            bytes(self.peak_held),
            self.overhead.map_or("-".to_owned(), |overhead| format!("{overhead:.4}")),
            bytes(self.lowest_limit),
        ]
    }
}
