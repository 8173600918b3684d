//! Replaying a trace through the library, with timing.
//!
//! The clock runs only while a batch of events is played. It is stopped to update the progress bar and to check for
//! failures. A run's time is the sum of its batches. Besides the library's calls, a batch costs reading 16 bytes per
//! event and two stores.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bfc_sys::bfc_stats_t;
use indicatif::ProgressBar;

use crate::device::{Device, PoolConfig};
use crate::library::Library;
use bfc_readers::trace::{Event, Trace};

/// What is to be run.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// The library under test.
    pub library: &'a Library,
    /// The trace.
    pub trace: &'a Trace,
    /// The pool as the command line describes it, without its limit.
    pub config: &'a PoolConfig,
    /// The same including the environment: the settings that the pool really has.
    pub in_force: &'a PoolConfig,
    /// The pool's limit in bytes.
    pub limit: u64,
    /// How many threads play the trace at once on the pool, each with its own allocations.
    pub threads: usize,
    /// Whether the trace is played once on the pool before anything is measured or inspected.
    pub warm: bool,
}

impl<'a> Job<'a> {
    /// A pool for this job: fresh, or warm with its statistics at zero.
    pub fn device(&self) -> Result<Device<'a>> {
        let device = Device::create(self.library, self.config, self.limit, &self.trace.name)?;
        if self.warm {
            let mut player = Player::new(&device, self.trace);
            player.play(0..self.trace.events.len())?;
            player.free_rest()?;
            drop(player);
            device.reset_stats()?;
        }
        Ok(device)
    }
}

/// What one run gave.
pub struct Run {
    /// Calls that were made: requests, and frees of what was granted.
    pub ops: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Time in the loop per call, as a thread sees it.
    pub ns_per_op: f64,
    /// Calls of all threads over the time from the first call to the last.
    pub ops_per_second: f64,
    /// Statistics after the last event.
    pub stats: bfc_stats_t,
    /// FNV-1a over the addresses as in `golden.tsv`. None with several threads, because the addresses depend on their
    /// timing.
    pub fnv1a64: Option<u64>,
}

/// Plays the whole trace once, timed, on a new pool.
pub fn run(job: &Job<'_>, bar: &ProgressBar) -> Result<Run> {
    let device = job.device()?;
    let chunks = job.trace.chunks();
    let missing = AtomicUsize::new(job.threads);
    let mut players = thread::scope(|scope| {
        let play = || play_timed(&device, job.trace, &chunks, &missing, bar);
        let spawned: Vec<_> =
            (0..job.threads).map(|_| thread::Builder::new().spawn_scoped(scope, play)).collect();
        // Threads that could not be started will never arrive, so the others must not wait for them.
        let refused = spawned.iter().filter(|thread| thread.is_err()).count();
        missing.fetch_sub(refused, Ordering::AcqRel);
        let joined = spawned.into_iter().map(|thread| {
            let thread = thread.context("cannot start a thread")?;
            let panicked = |_| Err(anyhow!("a replaying thread panicked"));
            thread.join().unwrap_or_else(panicked)
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let stats = device.stats()?;
    for player in &mut players {
        player.free_rest()?;
    }
    let run = tally(&players, stats);
    drop(players);
    // The pool can be destroyed once everything is freed. This checks its metadata.
    device.destroy()?;
    Ok(run)
}

fn tally(players: &[Player<'_>], stats: bfc_stats_t) -> Run {
    let ops = players.iter().map(|player| player.ops).sum();
    let busy: Duration = players.iter().map(|player| player.busy).sum();
    let began = players.iter().filter_map(|player| player.began).min();
    let ended = players.iter().filter_map(|player| player.ended).max();
    let wall = began.zip(ended).map_or(busy, |(began, ended)| ended - began);
    let fnv1a64 = match players {
        [only] => Some(hash_of(&only.addresses)),
        _ => None,
    };
    Run {
        ops,
        failed: players.iter().map(|player| player.failed).sum(),
        // A trace has at least one event, and the first is a request, so there is a call to divide by.
        ns_per_op: busy.as_nanos() as f64 / ops as f64,
        ops_per_second: ops as f64 / wall.as_secs_f64().max(1e-9),
        stats,
        fnv1a64,
    }
}

fn play_timed<'a>(
    device: &'a Device<'a>,
    trace: &'a Trace,
    chunks: &[Range<usize>],
    missing: &AtomicUsize,
    bar: &ProgressBar,
) -> Result<Player<'a>> {
    let mut player = Player::new(device, trace);
    // All start together. A barrier would wake them one after another, and a short trace would be over by then.
    missing.fetch_sub(1, Ordering::AcqRel);
    while missing.load(Ordering::Acquire) > 0 {
        thread::yield_now();
    }
    for chunk in chunks {
        let began = Instant::now();
        let played = player.play(chunk.clone());
        let ended = Instant::now();
        player.busy += ended - began;
        player.began.get_or_insert(began);
        player.ended = Some(ended);
        played?;
        bar.inc(chunk.len() as u64);
    }
    Ok(player)
}

/// A copy of the trace that is being played on a pool.
pub struct Player<'a> {
    device: &'a Device<'a>,
    trace: &'a Trace,
    /// Address by slot; 0 if nothing is live there, including requests that failed.
    live: Vec<usize>,
    /// Address by request; 0 for those that failed.
    addresses: Vec<usize>,
    requests: usize,
    ops: u64,
    /// Requests that failed so far.
    pub failed: u64,
    /// Time in the calls, without the time between batches.
    busy: Duration,
    began: Option<Instant>,
    ended: Option<Instant>,
    /// On a device where freed memory waits: its number of frees after each free of the trace, and the next position in
    /// the trace's list.
    freed: Vec<u64>,
    next_reusable: usize,
    /// Frees so far.
    frees: u64,
}

impl<'a> Player<'a> {
    /// A copy at its beginning.
    pub fn new(device: &'a Device<'a>, trace: &'a Trace) -> Self {
        Self {
            device,
            trace,
            // Not zeros, because those would be fresh pages that fault one by one in the timed loop.
            live: vec![usize::MAX; trace.slots],
            addresses: vec![usize::MAX; trace.requests],
            requests: 0,
            ops: 0,
            failed: 0,
            busy: Duration::ZERO,
            began: None,
            ended: None,
            freed: Vec::new(),
            next_reusable: 0,
            frees: 0,
        }
    }

    /// Plays these events, the next in order. A request that finds no memory is counted; anything else
    /// that fails ends the replay.
    pub fn play(&mut self, events: Range<usize>) -> Result<()> {
        if self.device.waits() { self.play_waiting(events) } else { self.play_all::<false>(events) }
    }

    /// Like `play`, if freed memory waits.
    fn play_waiting(&mut self, mut events: Range<usize>) -> Result<()> {
        let trace = self.trace;
        while let Some(next) = trace.reusable.get(self.next_reusable).filter(|next| next.event < events.end) {
            self.play_all::<true>(events.start..next.event)?;
            events.start = next.event;
            if let Some(at) = next.frees.checked_sub(1) {
                self.device.make_reusable(self.freed.get(at).copied().unwrap_or(0));
            }
            self.next_reusable += 1;
        }
        self.play_all::<true>(events)
    }

    fn play_all<const WAITS: bool>(&mut self, events: Range<usize>) -> Result<()> {
        let first = events.start;
        let mut skipped = 0;
        for (index, event) in self.trace.events[events.clone()].iter().enumerate() {
            match *event {
                Event::Alloc { bytes, slot, stream } => {
                    self.live[slot as usize] = self.request(bytes, stream, first + index)?;
                }
                Event::Free { slot, stream } => {
                    let address = std::mem::take(&mut self.live[slot as usize]);
                    match address {
                        0 => skipped += 1,
                        address => self.free(address, stream, first + index)?,
                    }
                    if WAITS {
                        self.frees += u64::from(address != 0);
                        self.freed.push(self.frees);
                    }
                }
                Event::Refused { bytes, stream } => {
                    let address = self.request(bytes, stream, first + index)?;
                    // The recorded program never had it.
                    if address != 0 {
                        self.free(address, stream, first + index)?;
                        self.ops += 1;
                        self.frees += u64::from(WAITS);
                    }
                }
            }
        }
        self.ops += events.len() as u64 - skipped;
        Ok(())
    }

    /// Makes a request. Returns its address, or 0 if there is no memory.
    #[inline]
    fn request(&mut self, bytes: u64, stream: u16, event: usize) -> Result<usize> {
        let (status, address) = self.device.alloc(bytes, stream);
        self.addresses[self.requests] = address;
        self.requests += 1;
        if status != bfc_sys::BFC_OK {
            self.failed += 1;
            if status != bfc_sys::BFC_ERROR_OUT_OF_MEMORY {
                let error = self.device.alloc_error(status);
                return Err(error).with_context(|| self.place(event));
            }
        }
        Ok(address)
    }

    #[inline]
    fn free(&self, address: usize, stream: u16, event: usize) -> Result<()> {
        let status = self.device.free(address, stream);
        if status != bfc_sys::BFC_OK {
            let error = self.device.free_error(status);
            return Err(error).with_context(|| self.place(event));
        }
        Ok(())
    }

    /// The address that is live in the slot, or 0.
    pub fn address(&self, slot: u32) -> usize {
        self.live[slot as usize]
    }

    /// Frees the allocations that are live at the end of the trace. Neither timed nor counted, because the trace has no
    /// such events.
    fn free_rest(&mut self) -> Result<()> {
        for address in self.live.iter_mut().map(std::mem::take) {
            // Slots that were never used still hold their first filling.
            if address != 0 && address != usize::MAX {
                let status = self.device.free(address, 0);
                if status != bfc_sys::BFC_OK {
                    return Err(self.device.free_error(status)).context("after the last event");
                }
            }
        }
        Ok(())
    }

    fn place(&self, event: usize) -> String {
        place(self.trace, event)
    }
}

/// An event as text: `gpt2.trace.gz, event 12 (step 0)`.
pub fn place(trace: &Trace, event: usize) -> String {
    let mark = trace.mark_of(event).map_or(String::new(), |mark| format!(" ({mark})"));
    format!("{}, event {}{mark}", trace.name, event + 1)
}

/// FNV-1a over 8 little-endian bytes per address.
fn hash_of(addresses: &[usize]) -> u64 {
    fnv1a64(addresses.iter().flat_map(|address| (*address as u64).to_le_bytes()))
}

/// FNV-1a, with the basis that was used for `golden.tsv`.
pub fn fnv1a64(bytes: impl Iterator<Item = u8>) -> u64 {
    const BASIS: u64 = 1_469_598_103_934_665_603;
    const PRIME: u64 = 1_099_511_628_211;
    bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv1a_over_little_endian_bytes() {
        assert_eq!(hash_of(&[]), 1_469_598_103_934_665_603);
        // Computed by hand for the byte string 01 00 00 00 00 00 00 00.
        let mut expected = (1_469_598_103_934_665_603_u64 ^ 1).wrapping_mul(1_099_511_628_211);
        for _ in 0..7 {
            expected = expected.wrapping_mul(1_099_511_628_211);
        }
        assert_eq!(hash_of(&[1]), expected);
        assert_ne!(hash_of(&[1, 2]), hash_of(&[2, 1]));
    }

    #[test]
    fn a_place_names_the_trace_the_event_and_the_step() {
        let trace = Trace::from_reader("t", &b"+ 1 5 0\n# step 0\n- 1 0\n"[..]).expect("well-formed");
        assert_eq!(place(&trace, 0), "t, event 1");
        assert_eq!(place(&trace, 1), "t, event 2 (step 0)");
    }
}
