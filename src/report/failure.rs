//! The out-of-memory report.

use super::tally::{self, BinTally};
use super::{Bytes, Counted, Guarding, Subject, costs, occupancy};
use crate::error::OutOfMemory;
use crate::sys::clock::monotonic_ms;
use bfc_core::arena::{Arena, RegionGrowth, Reuse, View};
use bfc_core::request::Request;
use bfc_core::stats::{FailureCause, Failures};
use bfc_core::stream_id::Stream;
use bfc_core::units::{NUM_BINS, UNIT, bin_floor, round_down, round_up};
use os::terms::{NO_LIMIT, NO_OPERATION, is_no_limit};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a request failed, with the numbers at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    requested: u64,
    /// The latest acceptable stamp, and whether all chunks that are large enough have a later one.
    max_stamp: u64,
    too_new: bool,
    /// The requested size, rounded up to 256.
    wanted: u64,
    alignment: u64,
    /// The bytes that the request may use, in any number of pieces.
    free: u64,
    /// Bytes that are free, but in quarantine, or reserved for other streams and private pools.
    waiting: u64,
    /// Whether such bytes are in quarantine.
    stamped: bool,
    /// Whether a driver tells when a stream's work is done. Otherwise the caller does.
    has_driver: bool,
    largest: u64,
    /// The bytes that the limit leaves for growth. 0 if the backend refused although the limit would have allowed the
    /// request.
    available: u64,
    limit: u64,
    refused: bool,
    /// The advice if the failure is caused by fragmentation.
    remedy: Option<&'static str>,
    /// For how many bytes the same request would have been served, if that is known.
    would_fit: Option<u64>,
}

/// Returns advice against fragmentation, besides a higher limit and fewer requests.
fn remedy(arena: &Arena, backend: &str, request: &Request<'_>) -> Option<&'static str> {
    let settings = arena.settings();
    let releases = arena.range().is_some() || settings.garbage_collection && arena.regions().count() > 1;
    let has_unfinished = releases
        && !has_driver(backend)
        && request.stream != Stream::NONE
        && arena.streams().largest_own_of(request.stream) != 0;
    Some(match backend {
        _ if has_unfinished => {
            "bfc_stream_synchronized, when the stream's work is done, lets its free memory make room for a larger piece"
        }
        _ if arena.regions().count() > 1 && !settings.garbage_collection => {
            "with BFC_GARBAGE_COLLECTION free regions make room for a larger one"
        }
        _ if settings.growth == RegionGrowth::Doubling => {
            "regions double in size, which BFC_GROWTH_NEED (or BFC_GROWTH=need) avoids"
        }
        "host" => "BFC_BACKEND_HOST_VMM (or BFC_BACKEND=host_vmm) moves free memory together",
        // The caller of an attempt has options of its own.
        "cuda" if !request.is_attempt => {
            "BFC_BACKEND_CUDA_VMM (or BFC_BACKEND=cuda_vmm) moves free memory together"
        }
        _ => return None,
    })
}

/// Returns for how many bytes the same request would have been served from the largest piece or from what may be obtained.
fn would_fit(request: &Request<'_>, largest: u64, available: u64) -> Option<u64> {
    let Request { requested, size, alignment, max_stamp, .. } = *request;
    if alignment > UNIT || max_stamp != u64::MAX {
        return None;
    }
    // The debug mode's guards, and what makes a multiple of 512.
    let added = match round_up(requested) {
        Some(rounded) if !request.is_too_large() => size.saturating_sub(rounded),
        _ => 2 * UNIT,
    };
    let piece = largest.max(round_down(available)).saturating_sub(added);
    // Perhaps only multiples of 512 are served, which requests do not say.
    Some(if size % (2 * UNIT) == 0 { piece & !(2 * UNIT - 1) } else { piece })
}

/// Returns whether a driver tells when work is done.
fn has_driver(backend: &str) -> bool {
    backend.starts_with("cuda")
}

impl Verdict {
    pub(crate) fn new(arena: &Arena, backend: &str, request: &Request<'_>) -> Self {
        let Request { requested, size, alignment, max_stamp, stream, .. } = *request;
        let wanted = if request.is_too_large() { requested } else { size };
        let available = arena.growth().available();
        // The last size requested from the backend, if it had not honoured the alignment.
        let refused = available >= wanted.saturating_add(alignment.max(UNIT) - UNIT);
        let (largest, available) = (arena.largest_for(stream), if refused { 0 } else { available });
        let waiting = arena.waiting_bytes(stream);
        Verdict {
            requested,
            max_stamp,
            too_new: max_stamp != u64::MAX && !arena.has_old_enough(wanted, max_stamp),
            wanted,
            alignment,
            free: arena.usable_bytes() - arena.counters().bytes_in_use - waiting,
            waiting,
            has_driver: has_driver(backend),
            stamped: arena.settings().reuse == Reuse::Quarantine,
            largest,
            available,
            // More may be held since before the limit was lowered.
            limit: arena.growth().limit().max(arena.growth().pool_bytes()),
            refused,
            remedy: remedy(arena, backend, request),
            would_fit: would_fit(request, largest, available),
        }
    }

    /// Returns the cause. Meaningful only after a failure: if the limit had allowed the request, the backend would have
    /// been asked.
    pub(crate) fn cause(&self) -> FailureCause {
        if self.largest >= self.wanted {
            match self.too_new {
                true => FailureCause::Stamps,
                false if self.alignment > UNIT => FailureCause::Alignment,
                // The caller did not request it.
                false => FailureCause::Other,
            }
        } else if self.free.saturating_add(self.available) >= self.wanted {
            FailureCause::Fragmentation
        } else {
            FailureCause::Exhaustion
        }
    }

    /// Returns whether nothing that is freed could make the request succeed.
    fn exceeds_limit(&self) -> bool {
        !self.refused && self.wanted > self.limit
    }

    /// Returns the numbers for a program.
    pub(crate) fn numbers(&self) -> OutOfMemory {
        OutOfMemory {
            requested: self.requested,
            free: self.free,
            largest_free: self.largest,
            waiting: self.waiting,
            room_to_grow: self.available,
            limit: self.limit,
            cause: self.cause(),
            would_fit: self.would_fit,
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        self.remedy.filter(|_| self.cause() == FailureCause::Fragmentation)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { requested, wanted, free, largest, available, .. } = *self;
        let cause = match self.cause() {
            FailureCause::Exhaustion => "exhaustion",
            FailureCause::Fragmentation => "fragmentation",
            FailureCause::Stamps => "what is free has a later stamp than the request accepts",
            FailureCause::Alignment => "alignment",
            FailureCause::Other => "another error",
        };
        write!(f, "no memory for {}", Bytes(requested))?;
        match (requested >= 1024, requested == wanted) {
            (true, true) => write!(f, " ({requested} bytes)")?,
            (true, false) => write!(f, " ({requested} bytes, rounded up to {wanted})")?,
            (false, true) => {}
            (false, false) => write!(f, " (rounded up to {wanted})")?,
        }
        write!(f, ": {cause}. ")?;
        write!(f, "{} are free, the largest piece is {}, ", Bytes(free), Bytes(largest))?;
        if self.refused {
            f.write_str("and the backend gives no more")?;
        } else if self.exceeds_limit() {
            write!(f, "and the request is larger than the limit of {}", Bytes(self.limit))?;
        } else if is_no_limit(available) {
            f.write_str("and there is no limit")?;
        } else {
            write!(f, "and the limit leaves {} to grow", Bytes(available))?;
        }
        if self.waiting != 0 {
            let why = if self.stamped {
                "wait for the safe frontier"
            } else if self.has_driver {
                "are for other streams, whose work is not done, or for private pools"
            } else {
                "are for other streams, whose work is not done until bfc_stream_synchronized says so, or for private pools"
            };
            write!(f, "; {} more {why}", Bytes(self.waiting))?;
        }
        // An alignment that is small compared to the request makes no difference.
        if self.alignment > 256 && (self.cause() == FailureCause::Alignment || self.alignment >= wanted / 16)
        {
            write!(f, "; the alignment of {} narrows the choice", self.alignment)?;
        }
        match self.remedy() {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// Returns whether a report of a failure is due. There is at most one in ten seconds.
pub(crate) fn is_due() -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    is_due_at(&NEXT, monotonic_ms())
}

fn is_due_at(next: &AtomicU64, now: u64) -> bool {
    const EVERY_MS: u64 = 10_000;
    let due = next.load(Relaxed);
    // If another thread is faster, that thread writes the report.
    now >= due && next.compare_exchange(due, now + EVERY_MS, Relaxed, Relaxed).is_ok()
}

/// Writes the report. With a verdict it begins with the failed request.
pub(crate) fn write(out: &mut dyn Write, subject: &Subject<'_>, verdict: Option<&Verdict>) -> fmt::Result {
    let Subject { device, name, backend, stats, view, guards } = subject;
    writeln!(out, "memory of allocator \"{name}\" on device {device} ({backend} backend)")?;
    if let Some(verdict) = verdict {
        write_verdict(out, verdict)?;
    }
    let free = view.usable_bytes() - stats.bytes_in_use;
    let line = |out: &mut dyn Write, what: &str, bytes: u64| {
        writeln!(out, "  {what:<24}{:>14}{bytes:>20} bytes", Bytes(bytes).to_text().as_str())
    };
    if is_no_limit(stats.bytes_limit) {
        writeln!(out, "  {:<24}{NO_LIMIT:>14}", "limit")?;
    } else {
        line(out, "limit", stats.bytes_limit)?;
    }
    line(out, "held from the backend", stats.pool_bytes)?;
    line(out, "in use", stats.bytes_in_use)?;
    line(out, "requested by callers", stats.bytes_requested)?;
    line(out, "slack inside chunks", stats.bytes_in_use - stats.bytes_requested)?;
    line(out, "free", free)?;
    if let Some(bytes) = view.unmapped_bytes() {
        line(out, "unmapped", bytes)?;
    }
    line(out, "largest free chunk", stats.largest_free_block_bytes)?;
    line(out, "peak in use", stats.peak_bytes_in_use)?;
    line(out, "largest allocation", stats.largest_alloc_size)?;
    line(out, "allocator metadata", stats.metadata_bytes)?;
    let (whole, tenth) = fragmentation_permille(free, stats.largest_free_block_bytes);
    writeln!(out, "  fragmentation {whole}.{tenth}% (1 - largest free chunk / free)")?;
    let (chunks, regions) = (stats.num_chunks, stats.num_regions);
    let [chunks, regions] = [Counted(chunks, "chunk"), Counted(regions, "region")];
    writeln!(out, "  {chunks}, {} of them free, in {regions}", stats.num_free_chunks)?;
    let [allocs, frees] = [Counted(stats.num_allocs, "allocation"), Counted(stats.num_frees, "free")];
    writeln!(out, "  {allocs}, {frees}, {}", Counted(stats.num_failures, "failure"))?;
    if stats.num_planned_allocs != 0 {
        let planned = Counted(stats.num_planned_allocs, "allocation");
        writeln!(out, "  {planned} at the places of the plan")?;
    }
    write_failures(out, &view.counters().failures)?;
    for cost in costs::of(subject) {
        writeln!(out, "  {cost}")?;
    }
    if let Some(guards) = guards {
        write_guards(out, guards)?;
    }
    out.write_str("  [")?;
    occupancy::write(out, view)?;
    writeln!(out, "]\n  * used  x slack  _ free")?;
    write_bins(out, view)?;
    write_holders(out, view)
}

fn write_guards(out: &mut dyn Write, guards: &Guarding<'_>) -> fmt::Result {
    let Guarding { violations, unchecked, last } = guards;
    let unchecked = Counted(*unchecked, "free");
    writeln!(out, "  guards: {violations} damaged, {unchecked} unchecked (BFC_DEBUG=guard)")?;
    if *violations == 0 { Ok(()) } else { writeln!(out, "  the last: {last}") }
}

fn write_verdict(out: &mut dyn Write, verdict: &Verdict) -> fmt::Result {
    writeln!(out, "  {verdict}.")?;
    let (cause, fits) = (verdict.cause(), Bytes(verdict.largest.max(verdict.available)));
    match cause {
        FailureCause::Exhaustion => {
            let why = if verdict.refused {
                "The backend has no more memory"
            } else if verdict.exceeds_limit() {
                "The request is larger than the limit"
            } else {
                "The limit leaves too little"
            };
            writeln!(out, "  {why}: {fits} would have fitted.")?;
        }
        FailureCause::Fragmentation => {
            writeln!(out, "  There is enough free memory, but not in one piece: {fits} would have fitted.")?;
        }
        FailureCause::Stamps => {
            let max_stamp = verdict.max_stamp;
            writeln!(out, "  Every free chunk of that size has a stamp later than {max_stamp}.")?;
        }
        FailureCause::Alignment => {
            writeln!(out, "  No free chunk of that size has a place at the alignment.")?
        }
        FailureCause::Other => {}
    }
    if verdict.waiting != 0 {
        return if verdict.stamped {
            writeln!(out, "  Call bfc_set_safe_frontier more often: what waits for it is free.")
        } else {
            let synchronized = if verdict.has_driver {
                ""
            } else {
                "bfc_stream_synchronized when a stream's work is done, and "
            };
            writeln!(out, "  Call {synchronized}bfc_pool_release when a graph is gone.")
        };
    }
    match cause {
        FailureCause::Stamps => {
            writeln!(out, "  Call bfc_set_safe_frontier: stamps that are safe are forgotten.")
        }
        FailureCause::Exhaustion if verdict.refused => {
            writeln!(out, "  Free what else uses the device, or use less at once.")
        }
        FailureCause::Exhaustion => writeln!(out, "  Raise the limit, or use less at once."),
        FailureCause::Fragmentation | FailureCause::Alignment => {
            writeln!(out, "  Raise the limit, allocate the large blocks first, or free what lies between.")
        }
        FailureCause::Other => Ok(()),
    }
}

fn write_failures(out: &mut dyn Write, failures: &Failures) -> fmt::Result {
    let Failures { largest, last, last_cause } = *failures;
    match last_cause {
        Some(cause) => {
            let cause = cause.name();
            writeln!(
                out,
                "  the largest request that failed: {largest} bytes; the last: {last} bytes ({cause})"
            )
        }
        None => Ok(()),
    }
}

fn write_bins(out: &mut dyn Write, view: &View<'_>) -> fmt::Result {
    writeln!(out, "  bin      from    chunks    in use         bytes  bytes in use     requested")?;
    let mut bins = [BinTally::default(); NUM_BINS];
    tally::bins(view, &mut bins);
    for (number, bin) in bins.iter().enumerate().filter(|(_, bin)| bin.chunks != 0) {
        write!(out, "  {number:>3} {:>9}", Bytes(bin_floor(number)).to_text().as_str())?;
        write!(out, " {:>9} {:>9}", bin.chunks, bin.chunks_in_use)?;
        for bytes in [bin.bytes, bin.bytes_in_use, bin.bytes_requested] {
            write!(out, " {:>13}", Bytes(bytes).to_text().as_str())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_holders(out: &mut dyn Write, view: &View<'_>) -> fmt::Result {
    const SHOWN: usize = 12;
    let Ok(holders) = tally::holders(view) else {
        return writeln!(out, "  (no host memory to sum up the holders)");
    };
    if view.names.is_empty() {
        return writeln!(
            out,
            "  (to see the holders by operation, name the operations that allocate: bfc_scope_begin)"
        );
    }
    writeln!(out, "  largest holders            bytes    chunks  last step  operation")?;
    for holder in holders.iter().take(SHOWN) {
        let name = view.names.name(holder.name).unwrap_or(NO_OPERATION);
        let bytes = Bytes(holder.bytes).to_text();
        writeln!(out, "  {:>30} {:>9} {:>10}  {name}", bytes.as_str(), holder.chunks, holder.last_step)?;
    }
    let hidden = holders.len().saturating_sub(SHOWN);
    if hidden != 0 { writeln!(out, "  ... and {hidden} more") } else { Ok(()) }
}

/// Returns the fraction of the free memory that is not in the largest free chunk. 0 if nothing is free.
pub(crate) fn fragmentation(free: u64, largest: u64) -> f64 {
    if free == 0 { 0.0 } else { 1.0 - largest as f64 / free as f64 }
}

/// Returns the fragmentation in percent, as whole percent and tenths. Avoids floating point, which takes 2 KiB of stack
/// to format.
fn fragmentation_permille(free: u64, largest: u64) -> (u64, u64) {
    let (free, largest) = (u128::from(free), u128::from(largest));
    let held = free.saturating_sub(largest) * 1000 + free / 2;
    let permille = held.checked_div(free).unwrap_or(0) as u64;
    (permille / 10, permille % 10)
}

impl Bytes {
    /// Formats the value as text, so that it can be aligned in a column. `Display` of a struct does not pad by itself.
    fn to_text(&self) -> crate::error::Text<24> {
        let mut text = crate::error::Text::new();
        let _ = write!(text, "{self}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_is_rounded_to_tenths_of_a_percent() {
        let percent = [(0, 0), (8, 8), (8, 7), (3, 1), (3000, 1), (u64::MAX, 1)]
            .map(|(free, largest)| fragmentation_permille(free, largest));
        assert_eq!(percent, [(0, 0), (0, 0), (12, 5), (66, 7), (100, 0), (100, 0)]);
    }

    #[test]
    fn one_report_in_ten_seconds() {
        let next = AtomicU64::new(0);
        let due = [0, 1, 9_999, 10_000, 10_001, 19_999, 25_000].map(|now| is_due_at(&next, now));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
