//! `bfc top --json`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use super::rates::Row;
use crate::json;
use bfc_formats::published::layout::STATISTICS;
use bfc_readers::published::reader::Reading;

/// Shown by `bfc top --help`.
pub const SCHEMA: &str = "\
The JSON document of --json (sizes in bytes, times in nanoseconds since 1970; fields may be added):
  schema         \"bfc-top/1\"
  processes[]    by number; each has
    process        the process id
    program        the program's name
    state          running, stalled (it runs, but does not publish), ended, or unknown
    updated        when it last published
    pools_left_out pools beyond the 32 that a process publishes
    pools[]        by ordinal; each has
      device, name, backend
      failed         whether the pool was disabled after an internal error
      time           when the statistics were copied
      stats          bfc_stats at that time, under the names of the C fields
      allocs_per_second, frees_per_second   between the last two readings, or null
      fragmentation  1 - largest free block / free bytes; null without free bytes
      overhead       pool_bytes / bytes_requested; null if nothing is live
      holders[]      operation (null for memory that was allocated outside of all
                     scopes), bytes, chunks, last_step; at most 8, the largest first
      holders_time   when they were summed up; null without named operations
  unreadable[]   file, reason";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    processes: Vec<ProcessPart<'a>>,
    unreadable: Vec<Unreadable<'a>>,
}

#[derive(Serialize)]
struct ProcessPart<'a> {
    process: u32,
    program: &'a str,
    state: &'static str,
    updated: u64,
    pools_left_out: u64,
    pools: Vec<PoolPart<'a>>,
}

#[derive(Serialize)]
struct PoolPart<'a> {
    device: u64,
    name: &'a str,
    backend: &'a str,
    failed: bool,
    time: u64,
    stats: BTreeMap<&'static str, u64>,
    allocs_per_second: Option<f64>,
    frees_per_second: Option<f64>,
    fragmentation: Option<f64>,
    overhead: Option<f64>,
    holders: Vec<HolderPart<'a>>,
    holders_time: Option<u64>,
}

#[derive(Serialize)]
struct HolderPart<'a> {
    operation: Option<&'a str>,
    bytes: u64,
    chunks: u64,
    last_step: u64,
}

#[derive(Serialize)]
struct Unreadable<'a> {
    file: String,
    reason: &'a str,
}

/// The document on one line.
pub fn document(reading: &Reading, rows: &[Row]) -> Result<String> {
    let processes = reading.processes.iter().map(|process| ProcessPart {
        process: process.id,
        program: &process.program,
        state: process.state.name(),
        updated: process.updated,
        pools_left_out: process.left_out,
        pools: rows
            .iter()
            .filter(|row| (row.process.id, row.process.started) == (process.id, process.started))
            .map(pool)
            .collect(),
    });
    let unreadable = reading.unreadable.iter();
    let document = Document {
        schema: "bfc-top/1",
        processes: processes.collect(),
        unreadable: unreadable
            .map(|(file, reason)| Unreadable { file: file.to_string_lossy().into_owned(), reason })
            .collect(),
    };
    let mut line = Vec::new();
    json::write_line(&mut line, &document).context("cannot write JSON")?;
    line.push(b'\n');
    String::from_utf8(line).context("cannot write JSON")
}

fn pool(row: &Row) -> PoolPart<'_> {
    let pool = &row.pool;
    let holders = pool.holders.iter().map(|holder| HolderPart {
        operation: holder.operation.as_deref(),
        bytes: holder.bytes,
        chunks: holder.chunks,
        last_step: holder.last_step,
    });
    PoolPart {
        device: pool.device,
        name: &pool.name,
        backend: &pool.backend,
        failed: pool.is_failed,
        time: pool.time,
        stats: STATISTICS.into_iter().zip(pool.statistics).collect(),
        allocs_per_second: row.allocs_per_second,
        frees_per_second: row.frees_per_second,
        fragmentation: row.fragmentation(),
        overhead: row.overhead(),
        holders: holders.collect(),
        holders_time: Some(pool.holders_time).filter(|&time| time != 0),
    }
}
