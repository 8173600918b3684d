//! Looking into the pool at the moment that matters.
//!
//! The moment of peak use is known only afterwards, and looking is not free, so none of this happens in
//! the timed run: the trace is played again, untimed, once to find the moments and once to look at them.
//! Placements do not depend on the clock, so it is the same moment. Only several threads at once cannot
//! be repeated; for them the copies are played in turns by one thread, an event each.
//!
//! The occupancy and the fragmentation are taken at peak use. The memory map and the report answer "what
//! filled the pool", so they are taken at the first failed request where there is one, and else at peak
//! use: at the end of a trace, where everything is freed, there is nothing to see.

use std::ops::ControlFlow;

use anyhow::Result;
use serde::Serialize;

use crate::device::Device;
use crate::replay::{Job, Player, place};
use crate::trace::Event;

/// The pool at the moment of peak use.
#[derive(Debug, Serialize)]
pub struct Peak {
    /// The event after which it was, counted from 1.
    pub event: usize,
    /// The step or request of the trace it belongs to.
    pub mark: Option<String>,
    /// Chunk bytes in use.
    pub bytes_in_use: u64,
    /// Bytes held from the backend.
    pub pool_bytes: u64,
    /// One request could get this much.
    pub largest_free_block_bytes: u64,
    /// 1 - largest free block / free bytes.
    pub fragmentation: f64,
    /// 100 columns: '*' used, 'x' slack, '_' free.
    pub occupancy: String,
}

/// What was seen.
pub struct Inspection {
    /// At peak use.
    pub peak: Peak,
    /// When the map and the report are from, in words.
    pub shown: String,
    /// The memory map, JSON.
    pub memory_map: String,
    /// The human report.
    pub report: String,
}

/// Plays the trace twice more and looks.
pub fn inspect(job: &Job<'_>) -> Result<Inspection> {
    let moments = find(job)?;
    let shown_at = moments.first_failure.unwrap_or(moments.peak);
    let mut peak = None;
    let mut shown = None;
    walk(job, |device, event, _| {
        if event == moments.peak {
            peak = Some(look(job, device, event)?);
        }
        if event == shown_at {
            shown = Some((device.memory_map()?, device.report()?));
        }
        let done = peak.is_some() && shown.is_some();
        Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let kind = if moments.first_failure.is_some() { "the first failed request" } else { "peak use" };
    // A trace has events, and both moments are among them.
    let (Some(peak), Some((memory_map, report))) = (peak, shown) else { unreachable!("no such event") };
    Ok(Inspection { peak, shown: format!("at {kind}: {}", place(job.trace, shown_at)), memory_map, report })
}

struct Moments {
    peak: usize,
    first_failure: Option<usize>,
}

/// Finds the events after which most was in use, and at which a request first failed.
fn find(job: &Job<'_>) -> Result<Moments> {
    let mut moments = Moments { peak: 0, first_failure: None };
    let mut most = 0;
    let mut in_use = 0;
    // By copy and slot: a chunk's size has to be known when it is already gone.
    let mut sizes = vec![vec![0_u64; job.trace.slots]; job.threads];
    walk(job, |device, event, players| {
        for (player, sizes) in players.iter().zip(&mut sizes) {
            match job.trace.events[event] {
                Event::Alloc { slot, .. } => {
                    let address = player.address(slot);
                    let size = if address == 0 { 0 } else { device.allocated_size(address)? };
                    sizes[slot as usize] = size;
                    in_use += size;
                }
                Event::Free { slot, .. } => in_use -= std::mem::take(&mut sizes[slot as usize]),
            }
        }
        if in_use > most {
            most = in_use;
            moments.peak = event;
        }
        if moments.first_failure.is_none() && players.iter().any(|player| player.failed > 0) {
            moments.first_failure = Some(event);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(moments)
}

/// Plays the trace event by event on a fresh pool, every copy in turn, until `visit` breaks off.
fn walk(
    job: &Job<'_>,
    mut visit: impl FnMut(&Device<'_>, usize, &[Player<'_>]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let device = job.device()?;
    let mut players: Vec<_> = (0..job.threads).map(|_| Player::new(&device, job.trace)).collect();
    for event in 0..job.trace.events.len() {
        for player in &mut players {
            player.play(event..event + 1)?;
        }
        if visit(&device, event, &players)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn look(job: &Job<'_>, device: &Device<'_>, event: usize) -> Result<Peak> {
    let stats = device.stats()?;
    Ok(Peak {
        event: event + 1,
        mark: job.trace.mark_of(event).map(str::to_owned),
        bytes_in_use: stats.bytes_in_use,
        pool_bytes: stats.pool_bytes,
        largest_free_block_bytes: stats.largest_free_block_bytes,
        fragmentation: stats.fragmentation(),
        occupancy: device.occupancy()?,
    })
}
