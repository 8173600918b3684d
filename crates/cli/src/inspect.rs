//! Inspecting the pool at the moment that matters.
//!
//! The moment of peak use is known only afterwards, and inspection takes time, so none of this happens in the timed
//! run: the trace is played again, untimed, once to find the moments and once to inspect the pool at them. Placements
//! do not depend on the clock, so they are the same moments. Only a run of several threads cannot be repeated. For it
//! one thread plays the copies in turn, one event each. That is another run, with another peak, and the output says so.
//!
//! The occupancy and the fragmentation are taken at peak use. The memory map and the report answer "what
//! filled the pool", so they are taken at the first failed request if there is one, and otherwise at peak use. At the
//! end of a trace everything is freed, so there would be nothing to see.

use std::ops::ControlFlow;

use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::device::Device;
use crate::ffi;
use crate::replay::{Job, Player, place};
use bfc_readers::trace::Event;

/// Events played between two updates of the progress bar.
const STRIDE: usize = 1024;

/// The pool at the moment of peak use.
#[derive(Debug, Serialize)]
pub struct Peak {
    /// The event after which the pool was inspected, counted from 1.
    pub event: usize,
    /// The step or request of the trace that it belongs to.
    pub mark: Option<String>,
    /// Chunk bytes in use.
    pub bytes_in_use: u64,
    /// Bytes held from the backend.
    pub pool_bytes: u64,
    /// The most that one request could get.
    pub largest_free_block_bytes: u64,
    /// 1 - largest free block / free bytes.
    pub fragmentation: f64,
    /// 100 columns: '*' used, 'x' slack, '_' free.
    pub occupancy: String,
}

/// The first request that failed.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// The event, counted from 1.
    pub event: usize,
    /// The step or request of the trace that it belongs to.
    pub mark: Option<String>,
    /// What was requested.
    pub bytes: u64,
    /// The reason, as `bfc_last_error` returns it.
    pub words: String,
}

/// What was seen.
pub struct Inspection {
    /// At peak use.
    pub peak: Peak,
    /// The first failed request, if any.
    pub failure: Option<Failure>,
    /// The moment of the map and the report, as text.
    pub shown: String,
    /// The memory map, JSON.
    pub memory_map: String,
    /// The human report.
    pub report: String,
}

/// Plays the trace twice more and inspects the pool.
pub fn inspect(job: &Job<'_>, bar: &ProgressBar) -> Result<Inspection> {
    let (peak_at, failure) = find(job, bar)?;
    let shown_at = failure.as_ref().map_or(peak_at, |failure| failure.event - 1);
    let mut peak = None;
    let mut shown = None;
    walk(job, bar, |device, event, _| {
        if event == peak_at {
            peak = Some(look(job, device, event)?);
        }
        if event == shown_at {
            shown = Some((device.memory_map()?, device.report()?));
        }
        let done = peak.is_some() && shown.is_some();
        Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let kind = if failure.is_some() { "the first failed request" } else { "peak use" };
    let run = if job.threads == 1 { String::new() } else { in_turns(job.threads) };
    // A trace has events, and both moments are at events.
    let (Some(peak), Some((memory_map, report))) = (peak, shown) else { unreachable!("no such event") };
    let shown = format!("at {kind}{run}: {}", place(job.trace, shown_at));
    Ok(Inspection { peak, failure, shown, memory_map, report })
}

/// The run to which a moment belongs, as text, if several threads play copies.
pub fn in_turns(copies: usize) -> String {
    format!(" of the {copies} copies played in turns by one thread")
}

/// Finds the event after which most was in use, and the request that failed first.
fn find(job: &Job<'_>, bar: &ProgressBar) -> Result<(usize, Option<Failure>)> {
    let mut peak = 0;
    let mut most = 0;
    let mut in_use = 0;
    // By copy and slot, because a chunk's size is needed after it is freed.
    let mut sizes = vec![vec![0_u64; job.trace.slots]; job.threads];
    let failure = walk(job, bar, |device, event, players| {
        for (player, sizes) in players.iter().zip(&mut sizes) {
            match job.trace.events[event] {
                Event::Alloc { slot, .. } => {
                    let address = player.address(slot);
                    let size = if address == 0 { 0 } else { device.allocated_size(address)? };
                    sizes[slot as usize] = size;
                    in_use += size;
                }
                Event::Free { slot, .. } => in_use -= std::mem::take(&mut sizes[slot as usize]),
                // Memory that it is granted is free again.
                Event::Refused { .. } => {}
            }
        }
        if in_use > most {
            most = in_use;
            peak = event;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((peak, failure))
}

/// Plays the trace event by event on a fresh pool, every copy in turn, until `visit` stops it. Passes on the first
/// request that failed so far.
pub fn walk(
    job: &Job<'_>,
    bar: &ProgressBar,
    mut visit: impl FnMut(&Device<'_>, usize, &[Player<'_>]) -> Result<ControlFlow<()>>,
) -> Result<Option<Failure>> {
    let device = job.device()?;
    let mut failure = None;
    let mut players: Vec<_> = (0..job.threads).map(|_| Player::new(&device, job.trace)).collect();
    for event in 0..job.trace.events.len() {
        if event % STRIDE == STRIDE - 1 {
            bar.inc(STRIDE as u64);
        }
        for player in &mut players {
            player.play(event..event + 1)?;
            if failure.is_none() && player.failed > 0 {
                // Immediately, because the next failed call replaces the message.
                failure = Some(failed(job, &device, event));
            }
        }
        if visit(&device, event, &players)?.is_break() {
            break;
        }
    }
    Ok(failure)
}

/// The request at `event`, which has just failed.
fn failed(job: &Job<'_>, device: &Device<'_>, event: usize) -> Failure {
    let bytes = match job.trace.events[event] {
        Event::Alloc { bytes, .. } | Event::Refused { bytes, .. } => bytes,
        Event::Free { .. } => unreachable!("a free that fails ends the replay"),
    };
    // The only failure after which a replay continues.
    let words = device.alloc_error(bfc_sys::BFC_ERROR_OUT_OF_MEMORY).words().to_owned();
    Failure { event: event + 1, mark: job.trace.mark_of(event).map(str::to_owned), bytes, words }
}

fn look(job: &Job<'_>, device: &Device<'_>, event: usize) -> Result<Peak> {
    let stats = device.stats()?;
    Ok(Peak {
        event: event + 1,
        mark: job.trace.mark_of(event).map(str::to_owned),
        bytes_in_use: stats.bytes_in_use,
        pool_bytes: stats.pool_bytes,
        largest_free_block_bytes: stats.largest_free_block_bytes,
        fragmentation: ffi::fragmentation(&stats),
        occupancy: device.occupancy()?,
    })
}
