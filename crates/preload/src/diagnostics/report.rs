//! The report: the effect of the pools on a process. `bfc report` reads its counters from a file; without a file a
//! summary is printed on standard error at the end.
//!
//! The counters are kept up to date in a [`Record`], and in its copy in the file, which is complete however the process
//! ends.

use bfc_sys::bfc_stats_t;
use os::terminal::Printable;
use os::variables;
use std::ffi::CStr;
use std::fmt::Write;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::{record, trace};
use crate::sys::lock::OwnerLock;
use crate::sys::text::Number;
use crate::sys::window::CUT_OFF;
use crate::sys::{process, text};
use crate::{bfc, settings};
use bfc_formats::counters::{self, Counted, Counters, ENDED, POOLS, Record};

const REPORT: &CStr = c"BFC_PRELOAD_REPORT";
/// The process of the program that `bfc run` with `--report` or `--history` has started, which is reported even if it used
/// no pool. Its helper processes, of which there may be many, are not.
const PROGRAM: &CStr = c"BFC_PRELOAD_PROGRAM";
const HISTORY: &CStr = c"BFC_HISTORY_FILE";

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const FILE: u8 = 2;
const STANDARD_ERROR: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The process that the record belongs to. The child of a fork has the mapping too, and must not write to it.
static OWNER: AtomicI32 = AtomicI32::new(0);

static RECORD: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// The copy in the file. Null without one, and once it can no longer be written.
static COPY: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Set when the process has reached its end. Other threads may continue, and allocate for the first time.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Held to create the record, and to write more than a single number. Threads that fail to take it leave the update to
/// the next event.
static WRITER: OwnerLock<()> = OwnerLock::new(());

/// How many requests failed because memory ran out, also without a report.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// For each pool, the number of calls covered by the newest statistics in the record.
static SEEN: [AtomicU64; POOLS] = [const { AtomicU64::new(0) }; POOLS];

/// The data of a pool that the report needs.
pub(crate) trait Reported: Copy {
    /// Its ordinal in libbfc's table.
    fn ordinal(self) -> i32;

    /// Returns the pool's activity so far.
    fn activity(self) -> Activity;

    /// Returns libbfc's statistics of the pool, if the interposer uses it.
    fn stats(self) -> Option<bfc_stats_t>;
}

/// The activity of a pool so far.
pub(crate) struct Activity {
    pub(crate) served: u64,
    pub(crate) freed: u64,
    /// Regions obtained from the driver, and returned to it.
    pub(crate) obtained: u64,
    pub(crate) returned: u64,
    pub(crate) synchronizations: u64,
}

/// Returns the destination of the report.
#[inline]
fn state() -> u8 {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => find_out(),
        known => known,
    }
}

#[cold]
fn find_out() -> u8 {
    let state = match variables::value(REPORT) {
        None => OFF,
        Some(path) if path == c"-" => STANDARD_ERROR,
        Some(_) => FILE,
    };
    STATE.store(state, Ordering::Relaxed);
    state
}

/// Returns this process's record, which the first event creates.
fn record() -> Option<&'static Record> {
    let process = process::id();
    let owner = OWNER.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
    if owner.is_err_and(|owner| owner != process) {
        return None;
    }
    made().or_else(|| {
        let _only = WRITER.lock_briefly()?;
        // Another thread may have created it meanwhile, or failed to.
        if state() == OFF || made().is_some() {
            return made();
        }
        match create() {
            Some(record) => RECORD.store(ptr::from_ref(record).cast_mut(), Ordering::Release),
            None => STATE.store(OFF, Ordering::Relaxed),
        }
        made()
    })
}

/// Returns this process's record, if it was created.
fn made() -> Option<&'static Record> {
    // SAFETY: NULL, or a record that is never unmapped.
    unsafe { RECORD.load(Ordering::Acquire).as_ref() }
}

/// Writes parts of the record to the file, if there is one, in this order.
fn write<const PARTS: usize>(record: &Record, parts: [Range<usize>; PARTS]) {
    let copy = COPY.load(Ordering::Acquire);
    if !copy.is_null()
        && record::update(copy, record, parts).is_err()
        && !COPY.swap(ptr::null_mut(), Ordering::AcqRel).is_null()
        && let Some(path) = settings::file(REPORT)
    {
        text::print_error(format_args!(
            "the report {path} can no longer be written: {CUT_OFF}; the program goes on without it"
        ));
    }
}

/// Returns the place of a field of the record.
fn place_of<T>(record: &Record, field: &T) -> Range<usize> {
    let start = ptr::from_ref(field).addr() - ptr::from_ref(record).addr();
    start..start + size_of::<T>()
}

/// Returns whether there is a report. If not, there will be none.
#[inline]
pub(crate) fn is_on() -> bool {
    state() != OFF
}

/// Updates the report after memory of a pool was allocated or freed.
#[inline]
pub(crate) fn note(pool: impl Reported) {
    if is_on() {
        update(pool);
    }
}

/// Reports a request that failed because memory ran out, if a pool might have served it.
#[cold]
pub(crate) fn refused(pool: impl Reported, bytes: usize, verdict: &str) {
    FAILED.fetch_add(1, Ordering::Relaxed);
    if state() == OFF {
        return;
    }
    let Some(record) = record() else { return };
    let Some(counters) = place(pool).and_then(|at| record.pools.get(at)) else { return };
    counters.refused.fetch_add(1, Ordering::Relaxed);
    counters.largest_refused.fetch_max(bytes as u64, Ordering::Relaxed);
    if let Some(_only) = WRITER.lock_briefly() {
        write_verdict(record, bytes, verdict);
    }
    update(pool);
}

/// Writes a verdict. The length is written last, so an incomplete text has none.
fn write_verdict(record: &Record, bytes: usize, verdict: &str) {
    record.verdict_length.store(0, Ordering::Release);
    write(record, [place_of(record, &record.verdict_length)]);
    record.last_refused.store(bytes as u64, Ordering::Relaxed);
    for (place, byte) in record.verdict.iter().zip(verdict.as_bytes()) {
        place.store(if *byte == b'\n' { b' ' } else { *byte }, Ordering::Relaxed);
    }
    #[allow(clippy::cast_possible_truncation)] // at most VERDICT
    record.verdict_length.store(verdict.len().min(counters::VERDICT) as u32, Ordering::Release);
    let (text, bytes) = (place_of(record, &record.verdict), place_of(record, &record.last_refused));
    write(record, [text, bytes, place_of(record, &record.verdict_length)]);
}

/// The index of a pool in the record.
fn place(pool: impl Reported) -> Option<usize> {
    match pool.ordinal() {
        bfc::PINNED => Some(counters::PINNED),
        device => usize::try_from(device).ok().filter(|&device| device < counters::PINNED),
    }
}

/// Updates a pool's counters.
fn update(pool: impl Reported) {
    let Some(at) = place(pool) else { return };
    let Activity { served, freed, .. } = pool.activity();
    // Before the lock is taken. A pool that is poisoned or has ended keeps its last values.
    let stats = pool.stats();
    let Some(record) = record() else { return };
    let (Some(counters), Some(seen)) = (record.pools.get(at), SEEN.get(at)) else { return };
    let Some(_only) = WRITER.lock_briefly() else { return };
    let latest = pool.activity();
    for (to, from) in [
        (&counters.served, latest.served),
        (&counters.freed, latest.freed),
        (&counters.obtained, latest.obtained),
        (&counters.returned, latest.returned),
        (&counters.synchronizations, latest.synchronizations),
    ] {
        to.store(from, Ordering::Relaxed);
    }
    record.lost_events.store(trace::lost(), Ordering::Relaxed);
    if let Some(stats) = stats {
        update_sizes(counters, seen, &stats, served + freed);
    }
    write(record, [place_of(record, counters), place_of(record, &record.lost_events)]);
}

/// Updates the counters of bytes with statistics that cover that many calls.
fn update_sizes(counters: &Counters, seen: &AtomicU64, stats: &bfc_stats_t, calls: u64) {
    counters.peak_requested.fetch_max(stats.peak_bytes_requested, Ordering::Relaxed);
    counters.peak_in_use.fetch_max(stats.peak_bytes_in_use, Ordering::Relaxed);
    counters.peak_held.fetch_max(stats.peak_pool_bytes, Ordering::Relaxed);
    // Another thread may have used the pool later and arrived here earlier.
    if seen.load(Ordering::Relaxed) <= calls {
        seen.store(calls, Ordering::Relaxed);
        counters.requested.store(stats.bytes_requested, Ordering::Relaxed);
    }
}

/// Writes the final counters of these pools when the process ends, and the summary if it goes to standard error.
pub(crate) fn finish(pools: impl Iterator<Item = impl Reported>) {
    IS_ENDING.store(true, Ordering::SeqCst);
    // Waits for a thread that is creating the record. A later one creates a record that has ended.
    drop(WRITER.lock_briefly());
    let Some(record) = made() else { return say_unused() };
    if OWNER.load(Ordering::Relaxed) != process::id() {
        return;
    }
    for pool in pools.filter(|&pool| pool.activity().served != 0) {
        update(pool);
    }
    record.state.store(ENDED, Ordering::Release);
    write(record, [place_of(record, &record.state)]);
    if state() == STANDARD_ERROR {
        record.used().for_each(|(name, counters)| summarize(record, &name, counters));
    }
}

/// Reports that the program has used no pool of the interposer. A missing summary would look like a report that failed.
#[cold]
fn say_unused() {
    if state() == STANDARD_ERROR && is_program() {
        text::print_error(format_args!(
            "process {} used no pool of the interposer (--history also records the pools of a program that uses libbfc \
             itself); bfc run --check shows where its allocations went",
            process::id()
        ));
    }
}

/// Returns whether this is the process of the program that `bfc run` has started.
fn is_program() -> bool {
    variables::value(PROGRAM)
        .is_some_and(|number| Number::new().put(format_args!("{}", process::id())) == number.to_bytes())
}

/// Names the command that shows what held the memory, if requests failed and `bfc run --history` records the program.
pub(crate) fn say_next_step() {
    let failed = FAILED.load(Ordering::Relaxed);
    if failed != 0
        && is_program()
        && let Some(history) = variables::value(HISTORY)
    {
        text::print_error(format_args!(
            "{} found no memory; bfc report {} shows what held it",
            Counted(failed, "request"),
            variables::text_of(history)
        ));
    }
}

/// Prints one message. It is built on the heap, because the thread that ends the process may have a small stack.
#[cold]
#[inline(never)]
fn summarize(record: &Record, name: &counters::Name, counters: &Counters) {
    let mut text = Summary(Vec::new());
    // Text that does not fit into host memory is truncated.
    let _ = write!(
        text,
        "libbfc: process {}, {name}\n{counters}{}",
        record.process,
        record.advice(name, counters)
    );
    if counters.refused.load(Ordering::Relaxed) != 0 {
        let _ = record.refusal().map(|refusal| write!(text, "{refusal}"));
    }
    text::write(libc::STDERR_FILENO, &text.0);
}

struct Summary(Vec<u8>);

impl Write for Summary {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        Printable(text).parts().try_for_each(|part| {
            self.0.try_reserve(part.len()).map_err(|_| std::fmt::Error)?;
            self.0.extend_from_slice(part.as_bytes());
            Ok(())
        })
    }
}

/// Marks the previous program in this process, if any, as replaced by exec.
pub(crate) fn loaded() {
    if state() == FILE
        && let Some(path) = settings::file(REPORT)
    {
        record::mark_replaced(&path);
    }
}

fn create() -> Option<&'static Record> {
    let own = record::map()?;
    if IS_ENDING.load(Ordering::SeqCst) {
        own.state.store(ENDED, Ordering::Relaxed);
    }
    if state() == STANDARD_ERROR {
        return Some(own);
    }
    let path = settings::file(REPORT)?;
    match record::append(&path, own) {
        Ok(copy) => COPY.store(copy, Ordering::Release),
        Err(why) => {
            text::print_error(format_args!(
                "cannot write the report {path}: {why}; the program runs without it"
            ));
            return None;
        }
    }
    Some(own)
}
