//! The process of one peer and one program: it runs passes when it is told to.
//!
//! Peers have processes of their own because their libraries do not always bear each other, and because one that fails
//! must not end the others.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::crates;
use crate::native::Native;
use crate::peer::Peer;
use crate::program::{Name, Op, Program};
use crate::smallest::Smallest;
use crate::wrapped::Wrapped;

/// The clock is read after so many operations.
const OPS: usize = 256;

/// A measurement takes at most so many times what it should.
const MOST_PASSES: u32 = 4;

/// For what is run before the first measurement, at least.
const WARM_UP: Duration = Duration::from_millis(100);

/// The check ends after this, wherever it is.
const LONGEST_CHECK: Duration = Duration::from_secs(2);

/// The bytes between two that are written to.
const PAGE: u64 = 4096;

/// Serves the orders on standard input until it ends: `time MS` answers with the nanoseconds of an operation, `check`
/// with `good` or what is wrong.
pub fn serve(peer: &str, program: &Name) -> Result<()> {
    let program = program.load()?;
    match peer {
        "smallest" => answer(Runner::<Smallest>::new(program)?),
        "smallest+lock+map" => answer(Runner::<Wrapped<Smallest>>::new(program)?),
        "offset-allocator+lock+map" => answer(Runner::<Wrapped<crates::OffsetAllocator>>::new(program)?),
        "rlsf+lock+map" => answer(Runner::<Wrapped<crates::Rlsf>>::new(program)?),
        "gpu-allocator" => answer(Runner::<crates::GpuAllocator>::new(program)?),
        "offset-allocator" => answer(Runner::<crates::OffsetAllocator>::new(program)?),
        "rlsf" => answer(Runner::<crates::Rlsf>::new(program)?),
        "mimalloc" => answer(Runner::<crates::Mimalloc>::new(program)?),
        "jemalloc" => answer(Runner::<crates::Jemalloc>::new(program)?),
        "glibc" => answer(Runner::<crates::Glibc>::new(program)?),
        "overlapping" => answer(Runner::<crates::Overlapping>::new(program)?),
        _ => answer(Runner::<Native>::new(program)?),
    }
}

fn answer<P: Peer>(mut runner: Runner<P>) -> Result<()> {
    let mut answers = std::io::stdout();
    // What is not measured, and all that a failure would stop.
    runner.time(WARM_UP)?;
    writeln!(answers, "ready")?;
    for order in std::io::stdin().lock().lines() {
        let order = order?;
        match order.strip_prefix("time ") {
            Some(least) => writeln!(answers, "{}", runner.time(Duration::from_millis(least.parse()?))?)?,
            None if order == "check" => {
                runner.check()?;
                writeln!(answers, "good")?;
            }
            None => bail!("{order} is no order"),
        }
    }
    Ok(())
}

struct Runner<P: Peer> {
    pass: Vec<Op>,
    /// How far the program is in its pass.
    at: usize,
    slots: Slots<P>,
}

/// An allocator and what is allocated from it.
struct Slots<P: Peer> {
    peer: P,
    live: Vec<Option<P::Piece>>,
    bytes: Vec<u64>,
    touched: bool,
}

impl<P: Peer> Slots<P> {
    fn run(&mut self, ops: &[Op]) -> Result<()> {
        for op in ops {
            let slot = op.slot as usize;
            if op.bytes == 0 {
                if let Some(piece) = self.live[slot].take() {
                    self.peer.free(piece, self.bytes[slot]);
                }
                continue;
            }
            let Some(piece) = self.peer.alloc(op.bytes) else { bail!("no memory for {} bytes", op.bytes) };
            if self.touched {
                touch(self.peer.addr(&piece), op.bytes);
            }
            self.live[slot] = Some(piece);
            self.bytes[slot] = op.bytes;
        }
        Ok(())
    }

    fn addr(&self, slot: usize) -> Option<u64> {
        self.live[slot].as_ref().map(|piece| self.peer.addr(piece))
    }
}

impl<P: Peer> Runner<P> {
    fn new(program: Program) -> Result<Self> {
        let peer = P::open(program.capacity, program.touched)?;
        let count = program.slots as usize;
        let live = std::iter::repeat_with(|| None).take(count).collect();
        let mut slots = Slots { peer, live, bytes: vec![0; count], touched: program.touched };
        slots.run(&program.setup)?;
        Ok(Self { pass: program.pass, at: 0, slots })
    }

    /// Runs some operations, at most to the end of the pass. Returns how many.
    fn step(&mut self) -> Result<usize> {
        let end = self.pass.len().min(self.at + OPS);
        self.slots.run(&self.pass[self.at..end])?;
        let count = end - self.at;
        self.at = end % self.pass.len();
        Ok(count)
    }

    /// Returns the nanoseconds of an operation, over whole passes of at least some time together. A pass that takes much
    /// longer is cut, and goes on with the next measurement.
    fn time(&mut self, least: Duration) -> Result<f64> {
        let (start, mut ops) = (Instant::now(), 0);
        loop {
            ops += self.step()?;
            let passed = start.elapsed();
            if passed >= least && self.at == 0 || passed >= MOST_PASSES * least {
                return Ok(passed.as_nanos() as f64 / ops as f64);
            }
        }
    }

    /// Runs up to a pass and fails if two live pieces overlap.
    fn check(&mut self) -> Result<()> {
        let mut taken = BTreeMap::new();
        for slot in 0..self.slots.live.len() {
            if let Some(addr) = self.slots.addr(slot) {
                place(&mut taken, addr, self.slots.bytes[slot])?;
            }
        }
        let start = Instant::now();
        for _ in 0..self.pass.len() {
            let op = self.pass[self.at];
            let slot = op.slot as usize;
            if op.bytes == 0 {
                self.slots.addr(slot).map(|addr| taken.remove(&addr));
            }
            self.slots.run(&[op])?;
            self.at = (self.at + 1) % self.pass.len();
            if let Some(addr) = self.slots.addr(slot) {
                place(&mut taken, addr, op.bytes)?;
            }
            if start.elapsed() > LONGEST_CHECK {
                break;
            }
        }
        Ok(())
    }
}

/// Enters a piece among those that are live.
fn place(taken: &mut BTreeMap<u64, u64>, addr: u64, bytes: u64) -> Result<()> {
    let before = taken.range(..=addr).next_back().is_some_and(|(&at, &bytes)| at + bytes > addr);
    let behind = taken.range(addr..).next().is_some_and(|(&at, _)| addr + bytes > at);
    if before || behind {
        bail!("{bytes} bytes at {addr:#x} overlap with a piece that is live");
    }
    taken.insert(addr, bytes);
    Ok(())
}

/// Writes a byte of each page.
fn touch(addr: u64, bytes: u64) {
    let mut at = 0;
    while at < bytes {
        let ptr = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(addr + at).unwrap_or_default());
        // SAFETY: the allocator has given this memory to the harness.
        unsafe { black_box(ptr).write_volatile(1) };
        at += PAGE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_touch_do_not_overlap() {
        let mut taken = BTreeMap::new();
        place(&mut taken, 512, 256).unwrap();
        place(&mut taken, 256, 256).unwrap();
        place(&mut taken, 768, 1).unwrap();
        for (addr, bytes) in [(511, 2), (600, 1), (512, 256), (0, 257), (0, 4096), (768, 1)] {
            assert!(place(&mut taken, addr, bytes).is_err(), "{addr} {bytes}");
        }
    }

    #[test]
    fn a_peer_whose_memory_overlaps_is_found() {
        let check = |wrong: bool| {
            let program = Name("uniform/100".to_owned()).load().unwrap();
            match wrong {
                true => Runner::<crates::Overlapping>::new(program).unwrap().check(),
                false => Runner::<crates::OffsetAllocator>::new(program).unwrap().check(),
            }
        };
        assert!(check(true).unwrap_err().to_string().contains("overlap"));
        check(false).unwrap();
    }
}
