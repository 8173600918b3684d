//! A backend of granules that only keeps books, and asserts the contract: what is mapped where, never a granule
//! more than the limit. Every call of it is made to fail at every position.

use super::super::slot::Slot;
use super::super::{alloc, free, lifecycle};
use super::*;
use crate::backend::life::Life;
use crate::backend::{AnyBackend, Backend, Granted, Owned};
use crate::core::arena::Settings;
use crate::core::stream_id::Stream;
use crate::core::units::Span;
use crate::core::vmm::Range;
use crate::error::with_last_error;
use crate::options::Resolved;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

mod lost;

const GRANULE: u64 = 4096;

/// When calls fail.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Failing {
    Never,
    /// The call with this number, counted from 0.
    Once(u64),
    From(u64),
    /// Whatever needs new memory.
    New,
    /// All memory goes in the middle of the call with this number: which fails, or of which that is not seen.
    Loses(u64, bool),
}

struct Books {
    mapped: BTreeSet<u64>,
    kept: u64,
    calls: u64,
    failing: Failing,
    error: Error,
    /// Granules that were moved, and waits for the device.
    attached: u64,
    waits: u64,
}

struct Fake {
    range: Range,
    limit: u64,
    books: Mutex<Books>,
    /// All of its memory is gone.
    over: AtomicBool,
    /// How it went on.
    renewed: OnceLock<&'static Fake>,
}

impl Fake {
    fn new(range: Range, limit: u64) -> &'static Fake {
        let (failing, error) = (Failing::Never, Error::OutOfMemory);
        let books =
            Books { mapped: BTreeSet::new(), kept: 0, calls: 0, failing, error, attached: 0, waits: 0 };
        let (over, renewed) = (AtomicBool::new(false), OnceLock::new());
        Box::leak(Box::new(Fake { range, limit, books: Mutex::new(books), over, renewed }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// Counts a call, and fails it if its time has come.
    fn call(&self, new: bool) -> Result<MutexGuard<'_, Books>, Error> {
        // So that threads get in each other's way.
        std::thread::yield_now();
        let mut books = self.books();
        let number = books.calls;
        books.calls += 1;
        let fails = match books.failing {
            Failing::Never => false,
            Failing::Once(at) => number == at,
            Failing::From(at) => number >= at,
            Failing::New => new,
            Failing::Loses(at, seen) => {
                self.over.fetch_or(number == at, SeqCst);
                number > at || (number == at && seen)
            }
        };
        if fails { Err(fail(books.error, number)) } else { Ok(books) }
    }

    fn granules(&self, span: Span) -> impl Iterator<Item = u64> + use<> {
        assert!(span.base.is_multiple_of(GRANULE) && span.bytes.is_multiple_of(GRANULE) && span.bytes != 0);
        assert!(span.base >= self.range.base && span.base + span.bytes <= self.range.end());
        (span.base..span.base + span.bytes).step_by(GRANULE as usize)
    }

    fn insert(&self, books: &mut Books, span: Span) {
        self.granules(span).for_each(|granule| assert!(books.mapped.insert(granule), "mapped twice"));
        let held = books.mapped.len() as u64 + books.kept;
        assert!(held * GRANULE <= self.limit, "{held} granules are held, over the limit");
    }

    fn remove(&self, books: &mut Books, span: Span) {
        self.granules(span).for_each(|granule| assert!(books.mapped.remove(&granule), "not mapped"));
    }
}

fn fail(error: Error, number: u64) -> Error {
    crate::error::fail!(error, "call {number} was to fail")
}

impl Granules for Fake {
    fn range(&self) -> Range {
        self.range
    }

    fn wait_until_idle(&self) -> Result<(), Error> {
        self.call(false).map(|mut books| books.waits += 1)
    }

    fn map(&self, span: Span) -> Result<(), Error> {
        self.call(true).map(|mut books| self.insert(&mut books, span))
    }

    fn release(&self, span: Span) -> Result<(), Error> {
        self.call(false).map(|mut books| self.remove(&mut books, span))
    }

    fn detach(&self, span: Span) -> Result<(), Error> {
        let mut books = self.call(false)?;
        self.remove(&mut books, span);
        books.kept += span.bytes / GRANULE;
        Ok(())
    }

    fn attach(&self, span: Span) -> Result<(), Error> {
        let mut books = self.call(false)?;
        books.kept = books.kept.checked_sub(span.bytes / GRANULE).expect("so many are kept");
        books.attached += span.bytes / GRANULE;
        self.insert(&mut books, span);
        Ok(())
    }

    fn drop_kept(&self) {
        self.books().kept = 0;
    }
}

impl Backend for Fake {
    fn alloc(&self, _: u64, _: u64) -> Result<Option<Granted>, Error> {
        panic!("granules are no regions")
    }

    fn free(&self, granted: Granted) -> Result<(), Error> {
        let mut books = self.books();
        assert_eq!(granted.bytes, books.mapped.len() as u64 * GRANULE, "what was held at the end");
        books.mapped.clear();
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

    fn look(&self, _: Option<Granted>, _: bool) -> bool {
        false
    }

    fn end(&self) {
        self.over.store(true, SeqCst);
    }

    fn renew(&self) -> Result<AnyBackend, Error> {
        let range = Range { base: self.range.base + self.range.bytes, ..self.range };
        let fake = Fake::new(range, self.limit);
        assert!(self.renewed.set(fake).is_ok(), "it begins anew once");
        Ok(AnyBackend::Test(fake))
    }
}

/// A pool of so many granules, in a range of so many.
fn pool(granules: u64, range: u64, growth: bool) -> (&'static Slot, &'static Fake) {
    let limit = granules * GRANULE;
    let range = Range { base: 1 << 40, bytes: range * GRANULE, granule: GRANULE };
    let fake = Fake::new(range, limit);
    let settings = Settings {
        limit,
        growth,
        garbage_collection: false,
        split_always: true,
        fragmentation_fraction: 0.0,
        initial_region: 0,
        timestamps: false,
        quarantine: false,
        coalesce_regions: false,
        events: true,
        seed: 1,
    };
    let backend = Owned::new(AnyBackend::Test(fake));
    let (retry, name) = (Duration::ZERO, String::from("t"));
    let slot = Box::leak(Box::new(Slot::new()));
    lifecycle::create(
        slot,
        0,
        Resolved { settings, backend, retry, report_failures: false, guard: false, name },
    )
    .unwrap();
    (slot, fake)
}

/// Books and backend agree, and nothing is on its way.
fn agree(slot: &Slot, fake: &Fake) {
    let guard = slot.enter().unwrap();
    assert_eq!(guard.arena.check(), Ok(()));
    assert!(!guard.arena.is_moving());
    let books = fake.books();
    let stats = guard.arena.stats();
    assert_eq!((stats.pool_bytes, books.kept), (books.mapped.len() as u64 * GRANULE, 0));
    assert_eq!(guard.arena.growth().available(), fake.limit - stats.pool_bytes, "nothing stays reserved");
    // Every byte of every chunk is mapped, and nothing else.
    let (chunks, mut mapped) = (guard.arena.chunks(), 0);
    for id in chunks.ids().filter(|&id| !guard.arena.is_unmapped(id)) {
        let (addr, size) = (chunks.addr(id), chunks.size(id));
        mapped += size;
        let granules = (addr / GRANULE * GRANULE..addr + size).step_by(GRANULE as usize);
        granules.for_each(|granule| assert!(books.mapped.contains(&granule), "{granule:#x} is not mapped"));
    }
    assert_eq!(mapped, stats.pool_bytes);
}

/// Growth, holes, and requests that need many pieces moved, whatever fails meanwhile. The live allocations are
/// returned, by address.
fn program(slot: &Slot, fake: &Fake) -> BTreeMap<u64, u64> {
    let mut live = BTreeMap::new();
    let alloc = |live: &mut BTreeMap<u64, u64>, bytes: u64| {
        let (before, mapped) = (live.clone(), fake.books().mapped.clone());
        match alloc::alloc_plain(slot, bytes, Stream::NONE) {
            Ok(addr) => {
                let below = before.range(..addr + bytes).next_back();
                assert!(below.is_none_or(|(&at, &size)| at + size <= addr), "it overlaps a live one");
                live.insert(addr, bytes);
            }
            Err(error) => {
                let books = fake.books();
                assert!([Error::OutOfMemory, books.error].contains(&error), "{error:?}");
                // One failure alone keeps nothing from being restored.
                assert!(books.mapped == mapped || matches!(books.failing, Failing::From(_)), "{error:?}");
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
        let before = fake.books().mapped.len() as u64 * GRANULE;
        if let Ok(released) = lifecycle::trim(slot, keep) {
            assert_eq!(fake.books().mapped.len() as u64 * GRANULE, before - released);
        }
        agree(slot, fake);
    };
    // Full, with every other granule free.
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
        let calls = fake.books().calls;
        let attached = fake.books().attached;
        let waits = fake.books().waits;
        assert!(attached > 5 && waits > 2, "{calls} calls, {attached} moved, {waits} waits");
        let mut failures = 0;
        for at in 0..=calls + 20 {
            for error in [Error::OutOfMemory, Error::BackendFailed, Error::ShuttingDown] {
                for failing in [Failing::Once(at), Failing::From(at)] {
                    let (slot, fake) = pool(20, 150, growth);
                    (fake.books().failing, fake.books().error) = (failing, error);
                    let live = program(slot, fake);
                    failures += fake.books().calls.saturating_sub(at).min(1);
                    fake.books().failing = Failing::Never;
                    // All that was live still is, and all of the memory serves again.
                    live.keys().for_each(|&addr| assert_eq!(free::free(slot, addr), Ok(())));
                    let all = alloc::alloc_plain(slot, 20 * GRANULE, Stream::NONE).unwrap();
                    free::free(slot, all).unwrap();
                    assert_eq!(lifecycle::trim(slot, 0), Ok(20 * GRANULE));
                    agree(slot, fake);
                    assert_eq!(lifecycle::destroy(slot, false), Ok(()));
                    assert!(fake.books().mapped.is_empty());
                }
            }
        }
        assert!(failures > 100, "{failures}");
    }
}

/// What the backend has no memory for may still be had from what is free.
#[test]
fn a_refusal_to_grow_is_no_refusal_to_move() {
    let (slot, fake) = pool(20, 150, true);
    let all: Vec<u64> =
        (0..6).map(|_| alloc::alloc_plain(slot, 2 * GRANULE, Stream::NONE).unwrap()).collect();
    all.iter().step_by(2).for_each(|&addr| free::free(slot, addr).unwrap());
    fake.books().failing = Failing::New;
    alloc::alloc_plain(slot, 5 * GRANULE, Stream::NONE).unwrap();
    assert_eq!(fake.books().attached, 5);
    assert_eq!(fake.books().mapped.len(), 12);
    agree(slot, fake);
}

/// The words are those of the call that failed first, not of one that was to restore.
#[test]
fn a_failed_backend_says_why() {
    let (slot, fake) = pool(4, 30, true);
    let all: Vec<u64> = (0..4).map(|_| alloc::alloc_plain(slot, GRANULE, Stream::NONE).unwrap()).collect();
    [0, 2].into_iter().for_each(|place| free::free(slot, all[place]).unwrap());
    let first = fake.books().calls;
    // The wait, a detach, and then everything: what cannot be put back is a hole.
    (fake.books().failing, fake.books().error) = (Failing::From(first + 2), Error::BackendFailed);
    assert_eq!(alloc::alloc_plain(slot, 2 * GRANULE, Stream::NONE), Err(Error::BackendFailed));
    with_last_error(|words| assert!(words.contains(&format!("call {} was", first + 2)), "{words}"));
    fake.books().failing = Failing::Never;
    agree(slot, fake);
    assert_eq!(fake.books().mapped.len(), 3, "one granule was lost to the system, and none to the books");
    alloc::alloc_plain(slot, 2 * GRANULE, Stream::NONE).unwrap();
    agree(slot, fake);
}

/// How many granules of a pool are in nobody's use, mapped or not.
fn granules_left(granules: u64, live: &[(u64, u64)]) -> u64 {
    let of = |&(addr, bytes): &(u64, u64)| addr / GRANULE..(addr + bytes).div_ceil(GRANULE);
    let used: std::collections::BTreeSet<u64> = live.iter().flat_map(of).collect();
    granules - used.len() as u64
}

/// A hundred times the bytes of the range are moved; holes are filled before the range is used up, so that a request is
/// refused only where there are fewer granules than it needs.
#[test]
fn the_range_is_never_used_up() {
    let (slot, fake) = pool(16, 16 * 16 / 4 + 16, true);
    let mut live = vec![(alloc::alloc_plain(slot, GRANULE, Stream::NONE).unwrap(), GRANULE)];
    let mut seed = 1u64;
    let mut random = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    let (mut rounds, mut refused) = (0, 0);
    while fake.books().attached < 100 * fake.range.bytes / GRANULE {
        rounds += 1;
        assert!(rounds < 1_000_000, "it hardly moves");
        let bytes = match random(3) {
            0 => 1 + random(3000),
            1 => GRANULE,
            _ => GRANULE + random(9 * GRANULE),
        };
        match alloc::alloc_plain(slot, bytes, Stream::NONE) {
            Ok(addr) => live.push((addr, bytes)),
            Err(error) => {
                assert_eq!(error, Error::OutOfMemory);
                let left = granules_left(16, &live);
                assert!(
                    left < bytes.div_ceil(GRANULE),
                    "{bytes} bytes are refused with {left} granules left"
                );
                refused += 1;
            }
        }
        while live.len() as u64 > random(14) {
            let (gone, _) = live.swap_remove(random(live.len() as u64) as usize);
            free::free(slot, gone).unwrap();
        }
        if rounds % 1000 == 0 {
            agree(slot, fake);
        }
    }
    agree(slot, fake);
    assert!(refused > 10, "{refused} refusals");
}

/// Threads that allocate, free and trim: one plan at a time, and the limit is kept throughout.
#[test]
fn threads_share_a_pool() {
    let (slot, fake) = pool(32, 600, true);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..400u64 {
                    let bytes = GRANULE / 3 + (round * 7919 + thread * 104_729) % (6 * GRANULE);
                    // With at most 7 granules each, and one for what they share, there is enough for four.
                    let addr = alloc::alloc_plain(slot, bytes, Stream::NONE).unwrap();
                    if round % 5 == thread {
                        lifecycle::trim(slot, round % 32 * GRANULE).unwrap();
                    }
                    free::free(slot, addr).unwrap();
                }
            });
        }
    });
    agree(slot, fake);
    lifecycle::trim(slot, 0).unwrap();
    assert!(fake.books().mapped.is_empty());
}
