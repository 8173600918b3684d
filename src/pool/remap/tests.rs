//! Tests with a backend of granules that only keeps records. It asserts the contract: which granules are mapped, and
//! never one more than the limit. Every call of it is made to fail at every position.

use super::super::slot::Slot;
use super::super::{alloc, free, idle::trim, lifecycle};
use super::*;
use crate::backend::life::Life;
use crate::backend::{AnyBackend, Backend, Granted, Owned};
use crate::error::with_last_error;
use crate::options::Resolved;
use bfc_core::arena::{RegionGrowth, Reuse, Settings};
use bfc_core::stream_id::Stream;
use bfc_core::units::Span;
use bfc_core::vmm::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock};

mod lost;

const GRANULE: u64 = 4096;

/// When calls fail.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Failing {
    Never,
    /// The call with this number fails, counted from 0.
    Once(u64),
    From(u64),
    /// Every call that needs new memory fails.
    New,
    /// All memory is lost during the call with this number. The flag says whether that call fails.
    Loses(u64, bool),
}

struct Records {
    mapped: BTreeSet<u64>,
    kept: u64,
    calls: u64,
    failing: Failing,
    error: ErrorKind,
    /// The number of granules that were moved.
    attached: u64,
    /// The number of waits for the device.
    waits: u64,
}

struct Fake {
    range: Range,
    limit: u64,
    records: Mutex<Records>,
    /// Whether all of its memory is lost.
    over: AtomicBool,
    /// The backend that it was renewed as.
    renewed: OnceLock<&'static Fake>,
}

impl Fake {
    fn new(range: Range, limit: u64) -> &'static Fake {
        let (failing, error) = (Failing::Never, ErrorKind::OutOfMemory);
        let records =
            Records { mapped: BTreeSet::new(), kept: 0, calls: 0, failing, error, attached: 0, waits: 0 };
        let (over, renewed) = (AtomicBool::new(false), OnceLock::new());
        Box::leak(Box::new(Fake { range, limit, records: Mutex::new(records), over, renewed }))
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    /// Counts a call, and fails it if it is due to fail.
    fn call(&self, new: bool) -> Result<MutexGuard<'_, Records>, ErrorKind> {
        // Make threads interfere with each other.
        std::thread::yield_now();
        let mut records = self.records();
        let number = records.calls;
        records.calls += 1;
        let fails = match records.failing {
            Failing::Never => false,
            Failing::Once(at) => number == at,
            Failing::From(at) => number >= at,
            Failing::New => new,
            Failing::Loses(at, seen) => {
                self.over.fetch_or(number == at, SeqCst);
                number > at || (number == at && seen)
            }
        };
        if fails { Err(fail(records.error, number)) } else { Ok(records) }
    }

    fn granules(&self, span: Span) -> impl Iterator<Item = u64> + use<> {
        assert!(span.base.is_multiple_of(GRANULE) && span.bytes.is_multiple_of(GRANULE) && span.bytes != 0);
        assert!(span.base >= self.range.base && span.base + span.bytes <= self.range.end());
        (span.base..span.base + span.bytes).step_by(GRANULE as usize)
    }

    fn insert(&self, records: &mut Records, span: Span) {
        self.granules(span).for_each(|granule| assert!(records.mapped.insert(granule), "mapped twice"));
        let held = records.mapped.len() as u64 + records.kept;
        assert!(held * GRANULE <= self.limit, "{held} granules are held, over the limit");
    }

    fn remove(&self, records: &mut Records, span: Span) {
        self.granules(span).for_each(|granule| assert!(records.mapped.remove(&granule), "not mapped"));
    }
}

fn fail(error: ErrorKind, number: u64) -> ErrorKind {
    crate::error::fail!(error, "call {number} was to fail")
}

impl Granules for Fake {
    fn range(&self) -> Range {
        self.range
    }

    fn wait_until_idle(&self) -> Result<(), ErrorKind> {
        self.call(false).map(|mut records| records.waits += 1)
    }

    fn map(&self, span: Span) -> Result<(), ErrorKind> {
        self.call(true).map(|mut records| self.insert(&mut records, span))
    }

    fn release(&self, span: Span) -> Result<(), ErrorKind> {
        self.call(false).map(|mut records| self.remove(&mut records, span))
    }

    fn detach(&self, span: Span) -> Result<(), ErrorKind> {
        let mut records = self.call(false)?;
        self.remove(&mut records, span);
        records.kept += span.bytes / GRANULE;
        Ok(())
    }

    fn attach(&self, span: Span) -> Result<(), ErrorKind> {
        let mut records = self.call(false)?;
        records.kept = records.kept.checked_sub(span.bytes / GRANULE).expect("so many are kept");
        records.attached += span.bytes / GRANULE;
        self.insert(&mut records, span);
        Ok(())
    }

    fn drop_kept(&self) {
        self.records().kept = 0;
    }
}

impl Backend for Fake {
    fn alloc(&self, _: u64, _: u64) -> Result<Option<Granted>, ErrorKind> {
        panic!("granules are no regions")
    }

    fn free(&self, granted: Granted) -> Result<(), ErrorKind> {
        let mut records = self.records();
        assert_eq!(granted.bytes, records.mapped.len() as u64 * GRANULE, "what was held at the end");
        records.mapped.clear();
        Ok(())
    }

    fn total_memory(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> &'static str {
        "fake"
    }

    fn granules(&self) -> Option<&dyn Granules> {
        Some(self)
    }

    fn life(&self) -> Option<&dyn Life> {
        Some(self)
    }
}

impl Life for Fake {
    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    fn probe(&self, _: Option<Granted>, _: bool) -> bool {
        false
    }

    fn end(&self) {
        self.over.store(true, SeqCst);
    }

    fn renew(&self) -> Result<AnyBackend, ErrorKind> {
        let range = Range { base: self.range.base + self.range.bytes, ..self.range };
        let fake = Fake::new(range, self.limit);
        assert!(self.renewed.set(fake).is_ok(), "it begins anew once");
        Ok(AnyBackend::Test(fake))
    }
}

/// Creates a pool of at most `granules` granules, in a range of `range` granules.
fn pool(granules: u64, range: u64, growth: bool) -> (&'static Slot, &'static Fake) {
    let limit = granules * GRANULE;
    let range = Range { base: 1 << 40, bytes: range * GRANULE, granule: GRANULE };
    let fake = Fake::new(range, limit);
    let settings = Settings {
        limit,
        growth: if growth { RegionGrowth::Doubling } else { RegionGrowth::Whole },
        garbage_collection: false,
        split_always: true,
        fragmentation_fraction: 0.0,
        initial_region: 0,
        reuse: Reuse::Streams,
        coalesce_regions: false,
        releases_at_once: false,
        events: true,
        seed: 1,
    };
    let backend = Owned::new(AnyBackend::Test(fake));
    let slot = Box::leak(Box::new(Slot::new()));
    lifecycle::create(slot, 0, Resolved::with_settings(settings, backend, "t")).unwrap();
    (slot, fake)
}

/// Asserts that the pool and the backend agree, and that no plan is under way.
fn agree(slot: &Slot, fake: &Fake) {
    let guard = slot.enter().unwrap();
    assert_eq!(guard.arena.check(), Ok(()));
    assert!(!guard.arena.is_moving());
    let records = fake.records();
    let stats = guard.arena.stats();
    assert_eq!((stats.pool_bytes, records.kept), (records.mapped.len() as u64 * GRANULE, 0));
    assert_eq!(guard.arena.growth().available(), fake.limit - stats.pool_bytes, "nothing stays reserved");
    // Every byte of a chunk that is not unmapped is mapped, and nothing else is.
    let (chunks, mut mapped) = (guard.arena.chunks(), 0);
    for id in chunks.ids().filter(|&id| !guard.arena.is_unmapped(id)) {
        let (addr, size) = (chunks.addr(id), chunks.size(id));
        mapped += size;
        let granules = (addr / GRANULE * GRANULE..addr + size).step_by(GRANULE as usize);
        granules.for_each(|granule| assert!(records.mapped.contains(&granule), "{granule:#x} is not mapped"));
    }
    assert_eq!(mapped, stats.pool_bytes);
}

/// Runs a program with growth, unmapped ranges, and requests that need many pieces moved, whatever calls fail. Returns
/// the live allocations by address.
fn program(slot: &Slot, fake: &Fake) -> BTreeMap<u64, u64> {
    let mut live = BTreeMap::new();
    let alloc = |live: &mut BTreeMap<u64, u64>, bytes: u64| {
        let (before, mapped) = (live.clone(), fake.records().mapped.clone());
        match alloc::alloc(slot, bytes, Stream::NONE) {
            Ok(addr) => {
                let below = before.range(..addr + bytes).next_back();
                assert!(below.is_none_or(|(&at, &size)| at + size <= addr), "it overlaps a live one");
                live.insert(addr, bytes);
            }
            Err(error) => {
                let records = fake.records();
                assert!([ErrorKind::OutOfMemory, records.error].contains(&error), "{error:?}");
                // After a single failure everything can be restored.
                assert!(records.mapped == mapped || matches!(records.failing, Failing::From(_)), "{error:?}");
            }
        }
        agree(slot, fake);
    };
    let free = |live: &mut BTreeMap<u64, u64>, every: usize| {
        let gone: Vec<u64> = live.keys().copied().step_by(every).collect();
        for addr in gone {
            live.remove(&addr);
            assert_eq!(free::free(slot, addr), Ok(()));
        }
        agree(slot, fake);
    };
    let trim = |keep: u64| {
        let before = fake.records().mapped.len() as u64 * GRANULE;
        if let Ok(released) = trim::trim(slot, keep) {
            assert_eq!(fake.records().mapped.len() as u64 * GRANULE, before - released);
        }
        agree(slot, fake);
    };
    // The pool is full, and then every other granule is freed.
    (0..20).for_each(|_| alloc(&mut live, GRANULE));
    free(&mut live, 2);
    alloc(&mut live, 4 * GRANULE);
    trim(18 * GRANULE);
    alloc(&mut live, 3 * GRANULE + 1);
    free(&mut live, 1);
    (1..12).for_each(|step| alloc(&mut live, step * 900));
    free(&mut live, 2);
    alloc(&mut live, 5 * GRANULE);
    trim(8 * GRANULE);
    alloc(&mut live, 7 * GRANULE + 300);
    free(&mut live, 3);
    (0..6).for_each(|_| alloc(&mut live, 3 * GRANULE / 2));
    free(&mut live, 2);
    alloc(&mut live, 6 * GRANULE);
    trim(0);
    alloc(&mut live, 4 * GRANULE - 256);
    alloc(&mut live, 100 * GRANULE);
    live
}

#[test]
fn every_call_fails_at_every_position() {
    for growth in [true, false] {
        let (slot, fake) = pool(20, 150, growth);
        program(slot, fake);
        let calls = fake.records().calls;
        let attached = fake.records().attached;
        let waits = fake.records().waits;
        assert!(attached > 5 && waits > 2, "{calls} calls, {attached} moved, {waits} waits");
        let mut failures = 0;
        for at in 0..=calls + 20 {
            for error in [ErrorKind::OutOfMemory, ErrorKind::BackendFailed, ErrorKind::ShuttingDown] {
                for failing in [Failing::Once(at), Failing::From(at)] {
                    let (slot, fake) = pool(20, 150, growth);
                    (fake.records().failing, fake.records().error) = (failing, error);
                    let live = program(slot, fake);
                    failures += fake.records().calls.saturating_sub(at).min(1);
                    fake.records().failing = Failing::Never;
                    // All live allocations still are, and afterwards all memory can be allocated again.
                    live.keys().for_each(|&addr| assert_eq!(free::free(slot, addr), Ok(())));
                    let all = alloc::alloc(slot, 20 * GRANULE, Stream::NONE).unwrap();
                    free::free(slot, all).unwrap();
                    assert_eq!(trim::trim(slot, 0), Ok(20 * GRANULE));
                    agree(slot, fake);
                    assert_eq!(lifecycle::destroy(slot, false), Ok(()));
                    assert!(fake.records().mapped.is_empty());
                }
            }
        }
        assert!(failures > 100, "{failures}");
    }
}

/// If the backend has no new memory, a request may still be served by moving free granules.
#[test]
fn a_refusal_to_grow_is_no_refusal_to_move() {
    let (slot, fake) = pool(20, 150, true);
    let all: Vec<u64> = (0..6).map(|_| alloc::alloc(slot, 2 * GRANULE, Stream::NONE).unwrap()).collect();
    all.iter().step_by(2).for_each(|&addr| free::free(slot, addr).unwrap());
    fake.records().failing = Failing::New;
    alloc::alloc(slot, 5 * GRANULE, Stream::NONE).unwrap();
    assert_eq!(fake.records().attached, 5);
    assert_eq!(fake.records().mapped.len(), 12);
    agree(slot, fake);
}

/// The error message is that of the call that failed first, not of one that was to restore the state.
#[test]
fn a_failed_backend_says_why() {
    let (slot, fake) = pool(4, 30, true);
    let all: Vec<u64> = (0..4).map(|_| alloc::alloc(slot, GRANULE, Stream::NONE).unwrap()).collect();
    [0, 2].into_iter().for_each(|place| free::free(slot, all[place]).unwrap());
    let first = fake.records().calls;
    // The wait and one detach succeed, and then every call fails. Memory that cannot be put back becomes unmapped.
    (fake.records().failing, fake.records().error) = (Failing::From(first + 2), ErrorKind::BackendFailed);
    assert_eq!(alloc::alloc(slot, 2 * GRANULE, Stream::NONE), Err(ErrorKind::BackendFailed));
    with_last_error(|words| assert!(words.contains(&format!("call {} was", first + 2)), "{words}"));
    fake.records().failing = Failing::Never;
    agree(slot, fake);
    assert_eq!(fake.records().mapped.len(), 3, "one granule was lost to the system, and none to the books");
    alloc::alloc(slot, 2 * GRANULE, Stream::NONE).unwrap();
    agree(slot, fake);
}

/// Threads allocate, free and trim. There is one plan at a time, and the limit holds throughout.
#[test]
fn threads_share_a_pool() {
    let (slot, fake) = pool(32, 600, true);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..400u64 {
                    let bytes = GRANULE / 3 + (round * 7919 + thread * 104_729) % (6 * GRANULE);
                    // Each thread uses at most 7 granules and one shared with others, which is enough for four threads.
                    let addr = alloc::alloc(slot, bytes, Stream::NONE).unwrap();
                    if round % 5 == thread {
                        trim::trim(slot, round % 32 * GRANULE).unwrap();
                    }
                    free::free(slot, addr).unwrap();
                }
            });
        }
    });
    agree(slot, fake);
    trim::trim(slot, 0).unwrap();
    assert!(fake.records().mapped.is_empty());
}
