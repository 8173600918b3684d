//! The pools at one moment, from a history or a memory map, in a form that allows two to be compared.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::moment::{Moment, Point};
use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::History;
use bfc_readers::history::timeline::PoolState;

/// Larger files are not memory maps.
const MOST_BYTES: u64 = 256 << 20;

/// A file, and a moment if it is a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub file: PathBuf,
    pub moment: Option<String>,
}

impl Place {
    /// Splits `FILE@MOMENT`. The names of files and marks may contain an `@`: the file that exists counts.
    pub fn of(text: &OsStr, exists: impl Fn(&Path) -> bool) -> Self {
        let whole = Place { file: text.into(), moment: None };
        if exists(&whole.file) {
            return whole;
        }
        let bytes = text.as_bytes();
        let places = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'@');
        for (at, _) in places {
            let file = PathBuf::from(OsString::from(OsStr::from_bytes(&bytes[..at])));
            if exists(&file) {
                let moment = String::from_utf8_lossy(&bytes[at + 1..]).into_owned();
                return Place { file, moment: Some(moment) };
            }
        }
        whole
    }
}

/// The pools at one moment.
#[derive(Serialize)]
pub struct Snapshot {
    file: String,
    #[serde(flatten)]
    point: Option<Point>,
    process: Option<u32>,
    #[serde(skip)]
    pub pools: Vec<PoolAt>,
}

#[derive(Clone, Default)]
pub struct PoolAt {
    pub device: Option<i32>,
    pub name: String,
    pub totals: Totals,
    /// How many allocations of an operation and a size are live.
    pub live: BTreeMap<(Option<Rc<str>>, u64), u64>,
}

/// The totals of a pool. Peaks and counts are those up to the moment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    pub limit: u64,
    pub held: u64,
    pub in_use: u64,
    pub requested: u64,
    pub peak_in_use: u64,
    pub peak_held: u64,
    pub allocations: u64,
    pub frees: u64,
    pub failures: u64,
    /// Memory in use that was allocated by events missing in the history.
    pub unknown_bytes: u64,
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::names::shown(&self.file))?;
        if let Some(point) = &self.point {
            write!(f, " at {point}")?;
        }
        self.process.map_or(Ok(()), |process| write!(f, ", process {process}"))
    }
}

impl Snapshot {
    /// Reads the file of a place, a history or a memory map.
    pub fn read(place: &Place) -> Result<Self> {
        let name = place.file.display().to_string();
        if super::is_one(&place.file) {
            let text = place.moment.as_deref().unwrap_or("end");
            let moment: Moment = text.parse().map_err(anyhow::Error::msg).with_context(|| name.clone())?;
            let history = super::read(&place.file)?;
            let point = moment.find(&history).with_context(|| name.clone())?;
            return Ok(Snapshot::of_history(name, &history, point));
        }
        let file = File::open(&place.file).with_context(|| format!("cannot open {name}"))?;
        let mut text = Vec::new();
        let read = file.take(MOST_BYTES + 1).read_to_end(&mut text);
        read.with_context(|| format!("cannot read {name}"))?;
        let what =
            "is neither a history nor a memory map; name the FILE of BFC_HISTORY_FILE or of bfc replay --map";
        if text.len() as u64 > MOST_BYTES
            || text.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{')
        {
            bail!("{name} {what}");
        }
        if let Some(moment) = &place.moment {
            bail!("{name} is a memory map, which describes one moment: leave @{moment} out");
        }
        let map: Map = serde_json::from_slice(&text).with_context(|| format!("{name} {what}"))?;
        if map.schema != 1 {
            bail!("{name} is a memory map of another version of libbfc; use the bfc command of that version");
        }
        Ok(Snapshot { file: name, point: None, process: None, pools: vec![map.pool()] })
    }

    pub(super) fn of_history(file: String, history: &History, point: Point) -> Self {
        let mut states: BTreeMap<u16, (PoolState, Totals)> = BTreeMap::new();
        for event in history.events.iter().take_while(|event| event.number < point.number) {
            if event.kind == Kind::Mark {
                continue;
            }
            let (state, totals) = states.entry(event.pool).or_default();
            state.apply(event);
            totals.peak_in_use = totals.peak_in_use.max(state.in_use);
            totals.peak_held = totals.peak_held.max(state.held);
        }
        let pools = states.iter().map(|(&pool, (state, peaks))| {
            let (device, name) = history.pool(pool).unzip();
            let mut live: BTreeMap<_, u64> = BTreeMap::new();
            for chunk in state.live.values() {
                *live.entry((history.operation_name(pool, chunk.operation), chunk.bytes)).or_default() += 1;
            }
            let totals = Totals {
                limit: state.limit,
                held: state.held,
                in_use: state.in_use,
                requested: state.requested,
                allocations: state.allocations,
                frees: state.frees,
                failures: state.failures,
                unknown_bytes: state.in_use.saturating_sub(state.known),
                ..*peaks
            };
            PoolAt { device, name: name.unwrap_or_default().to_owned(), totals, live }
        });
        let pools = pools.collect();
        Snapshot { file, point: Some(point), process: Some(history.process), pools }
    }
}

/// The fields of a memory map that are compared. docs/memory-map.md describes them.
#[derive(Deserialize)]
struct Map {
    schema: u64,
    device: i32,
    name: String,
    stats: Stats,
    regions: Vec<Region>,
}

#[derive(Deserialize)]
struct Stats {
    num_allocs: u64,
    num_frees: u64,
    num_failures: u64,
    bytes_in_use: u64,
    peak_bytes_in_use: u64,
    bytes_requested: u64,
    bytes_limit: u64,
    pool_bytes: u64,
    peak_pool_bytes: u64,
}

#[derive(Deserialize)]
struct Region {
    chunks: Vec<Chunk>,
}

#[derive(Deserialize)]
struct Chunk {
    size: u64,
    state: String,
    operation: Option<Rc<str>>,
}

impl Map {
    fn pool(self) -> PoolAt {
        let mut live: BTreeMap<_, u64> = BTreeMap::new();
        let chunks = self.regions.into_iter().flat_map(|region| region.chunks);
        for chunk in chunks.filter(|chunk| chunk.state == "in_use") {
            *live.entry((chunk.operation, chunk.size)).or_default() += 1;
        }
        let stats = self.stats;
        let totals = Totals {
            limit: stats.bytes_limit,
            held: stats.pool_bytes,
            in_use: stats.bytes_in_use,
            requested: stats.bytes_requested,
            peak_in_use: stats.peak_bytes_in_use,
            peak_held: stats.peak_pool_bytes,
            allocations: stats.num_allocs,
            frees: stats.num_frees,
            failures: stats.num_failures,
            unknown_bytes: 0,
        };
        PoolAt { device: Some(self.device), name: self.name, totals, live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_file_that_exists_and_a_moment() {
        let of = |text: &str, files: &[&str]| {
            let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
            let place = Place::of(OsStr::new(text), exists);
            (place.file.display().to_string(), place.moment)
        };
        let moment = |text: &str| Some(text.to_owned());
        assert_eq!(of("a", &["a"]), ("a".to_owned(), None));
        assert_eq!(of("a@end", &["a"]), ("a".to_owned(), moment("end")));
        assert_eq!(of("a@end", &["a", "a@end"]), ("a@end".to_owned(), None));
        assert_eq!(of("a@b@c", &["a@b"]), ("a@b".to_owned(), moment("c")));
        assert_eq!(of("a@b@c", &["a"]), ("a".to_owned(), moment("b@c")));
        assert_eq!(of("a@end", &[]), ("a@end".to_owned(), None));
    }
}
