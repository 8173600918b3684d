//! Random programs against a model of intervals, without bins, trees or tables.
//!
//! Free memory is what no interval covers. A gap between allocations is exactly one free chunk, so the model predicts
//! every address by examining all gaps. With timestamps a freed interval stays separate until the frontier has passed
//! its stamp. After every step the arena's invariants hold, and its chunks and statistics equal the model's. A failure
//! prints the program so far.

mod intervals;
mod planned;
mod program;

use crate::arena::{Arena, RegionGrowth, Reuse, Settings};
use crate::request::Request;
use crate::stamps::Forced;
use crate::stream_id::Stream;
use crate::testing::Random;
use crate::units::{MAX_CHUNK, UNIT};
use crate::vmm::Range;

/// Where the backend puts regions.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    Up,
    /// From the end of the address space downwards.
    Down,
    Any,
}

/// The parameters of a family of programs.
#[derive(Clone, Copy, Debug)]
struct Family {
    settings: Settings,
    layout: Layout,
    /// The backend sometimes refuses, or gives more or less than requested.
    moody: bool,
    /// The most that the backend gives at once.
    most: u64,
    /// The largest request.
    largest: u64,
    /// The approximate number of live allocations.
    live: u64,
    steps: u64,
    aligned: bool,
    named: bool,
    trims: bool,
    /// Regions obtained before the first request.
    regions: u64,
    /// A range with granules, instead of regions.
    range: Option<Range>,
    /// Requests may have planned places.
    planned: bool,
    /// Requests may be short-lived, and in pools without stamps and ranges that is learnt.
    two_ends: bool,
    /// Small requests spare large chunks where the pool grows by need.
    spares_large: bool,
}

/// A pool of one region.
fn fixed(limit: u64, largest: u64) -> Family {
    let settings = Settings::new(limit);
    let (layout, most, live, steps) = (Layout::Up, u64::MAX, 16, 45);
    let (moody, aligned, named, trims, regions) = (false, false, false, false, 0);
    let (range, planned, two_ends, spares_large) = (None, false, false, false);
    Family {
        settings,
        layout,
        moody,
        most,
        largest,
        live,
        steps,
        aligned,
        named,
        trims,
        regions,
        range,
        planned,
        two_ends,
        spares_large,
    }
}

/// A pool that grows in small or large steps.
fn growing(random: &mut Random) -> Family {
    let (limit, largest) = random.pick(&[(1 << 20, 1 << 16), (64 << 20, 8 << 20), ((9 << 30) + 77, 1 << 30)]);
    let mut family = fixed(limit, largest);
    family.settings.growth = any_growth(random);
    family.settings.initial_region = random.pick(&[0, 1, 4096, 100_000, 1 << 20, u64::MAX]);
    family.layout = random.pick(&[Layout::Up, Layout::Down, Layout::Any]);
    family.moody = random.chance(50);
    family
}

/// Stamps in so many of a hundred cases, and half of those with quarantine.
fn any_reuse(random: &mut Random, percent: u64) -> Reuse {
    match random.chance(percent) {
        true if random.chance(50) => Reuse::Quarantine,
        true => Reuse::Stamps,
        false => Reuse::Streams,
    }
}

/// Either policy for the sizes of regions.
fn any_growth(random: &mut Random) -> RegionGrowth {
    random.pick(&[RegionGrowth::Doubling, RegionGrowth::ByNeed])
}

/// A pool with any combination of settings.
fn any(random: &mut Random) -> Family {
    let mut family = growing(random);
    let settings = &mut family.settings;
    settings.growth = if random.chance(80) { any_growth(random) } else { RegionGrowth::Whole };
    settings.garbage_collection = random.chance(50);
    settings.coalesce_regions = random.chance(50);
    settings.split_always = random.chance(20);
    settings.fragmentation_fraction = random.pick(&[0.0, 0.0, 1e-9, 0.01]);
    settings.reuse = any_reuse(random, 40);
    family.trims = random.chance(50);
    family.aligned = random.chance(50);
    family.named = random.chance(30);
    family
}

/// A pool of few granules, in a range that is large enough for any layout.
fn granular(random: &mut Random) -> Family {
    let granule = random.pick(&[UNIT, 4 * UNIT, 16 * UNIT]);
    let granules = 4 + random.below(20);
    let limit = granules * granule;
    let mut family = fixed(limit, limit >> random.below(4));
    let range = granules * granules / 4 + granules;
    family.range = Some(Range { base: random.pick(&[1 << 40, 16 * UNIT]), bytes: range * granule, granule });
    let settings = &mut family.settings;
    settings.growth = if random.chance(80) { any_growth(random) } else { RegionGrowth::Whole };
    settings.split_always = random.chance(70);
    settings.initial_region = random.pick(&[0, 0, 1, 3 * granule + 1, u64::MAX]);
    settings.garbage_collection = random.chance(50);
    Family { steps: 70, live: 24, trims: random.chance(50), moody: random.chance(40), ..family }
}

/// Runs programs, each of a family that its seed determines.
fn programs(count: u64, family: impl Fn(&mut Random) -> Family) {
    let run = |seed| program::Program::run(family(&mut Random(seed)), !seed);
    let steps: usize = (0..count).map(run).sum();
    println!("{count} programs, {steps} steps");
    assert!(steps as u64 > 20 * count);
}

#[test]
fn fixed_pools() {
    let limits = [UNIT, 4196, 1 << 16, 1 << 20, (4 << 30) + 777];
    programs(200, |random| {
        let limit = random.pick(&limits);
        fixed(limit, (limit >> random.below(8)).max(1))
    });
}

#[test]
fn growing_pools() {
    programs(250, growing);
}

#[test]
fn coalescing_regions() {
    programs(200, |random| {
        let mut family = growing(random);
        family.settings.coalesce_regions = true;
        Family { trims: random.chance(50), ..family }
    });
}

#[test]
fn garbage_collection_and_trim() {
    programs(250, |random| {
        let mut family = growing(random);
        family.settings.garbage_collection = true;
        family.settings.coalesce_regions = random.chance(30);
        Family { trims: true, ..family }
    });
}

#[test]
fn alignments_and_scopes() {
    programs(200, |random| {
        let family = if random.chance(50) { growing(random) } else { fixed(16 << 20, 1 << 20) };
        Family { aligned: random.chance(80), named: random.chance(50), ..family }
    });
}

#[test]
fn split_rules() {
    programs(200, |random| {
        let mut family = if random.chance(50) { growing(random) } else { fixed(1 << 30, 300 << 20) };
        family.settings.split_always = random.chance(30);
        family.settings.fragmentation_fraction = random.pick(&[1e-12, 0.001, 0.02, 0.5, 1.0]);
        family
    });
}

#[test]
fn timestamps() {
    programs(200, |random| {
        let mut family = any(random);
        family.settings.reuse = Reuse::Stamps;
        Family { steps: 60, ..family }
    });
}

#[test]
fn quarantine() {
    programs(200, |random| {
        let mut family = any(random);
        family.settings.reuse = Reuse::Quarantine;
        family
    });
}

#[test]
fn everything_at_once() {
    programs(300, |random| {
        let family = any(random);
        Family { spares_large: random.chance(50), ..family }
    });
}

/// Small requests beside free chunks of up to 300 MiB.
#[test]
fn small_requests_spare_large_chunks() {
    programs(400, |random| {
        let mut family = Family { spares_large: true, aligned: random.chance(30), ..growing(random) };
        (family.settings.growth, family.settings.limit) =
            (RegionGrowth::ByNeed, random.pick(&[9 << 30, 1 << 40]));
        family.settings.initial_region = random.pick(&[0, 0, 4096, 100_000, 5 << 20, 9 << 20]);
        family.settings.coalesce_regions = random.chance(30);
        family.settings.reuse = any_reuse(random, 30);
        family.largest = random.pick(&[20 << 20, 40 << 20, 300 << 20]);
        Family { live: 12, steps: 80, trims: random.chance(50), ..family }
    });
}

#[test]
fn granules() {
    programs(300, granular);
}

#[test]
fn granules_with_alignments_and_scopes() {
    programs(150, |random| Family { aligned: true, named: random.chance(30), ..granular(random) });
}

#[test]
fn granules_with_stamps() {
    programs(200, |random| {
        let mut family = granular(random);
        family.settings.reuse = if random.chance(40) { Reuse::Quarantine } else { Reuse::Stamps };
        Family { aligned: random.chance(30), ..family }
    });
}

#[test]
fn two_ends() {
    programs(400, |random| {
        let mut family = if random.chance(50) { any(random) } else { fixed(1 << 16, 4096) };
        family.settings.split_always = random.chance(70);
        Family { two_ends: true, planned: random.chance(10), steps: 90, ..family }
    });
}

#[test]
fn two_ends_of_granules() {
    programs(100, |random| Family { two_ends: true, aligned: random.chance(30), ..granular(random) });
}

/// Plans whose places overlap, and programs that leave them.
#[test]
fn plans() {
    programs(400, |random| {
        let mut family = if random.chance(50) { any(random) } else { fixed(1 << 16, 4096) };
        family.settings.reuse = Reuse::Streams;
        Family { planned: true, steps: 90, ..family }
    });
}

#[test]
fn plans_in_a_range() {
    programs(200, |random| Family { planned: true, aligned: random.chance(30), ..granular(random) });
}

/// Long programs that map some granules a hundred times.
#[test]
fn granules_for_long() {
    programs(6, |random| Family { steps: 1500, trims: true, live: 40, ..granular(random) });
}

/// Packed so densely that the address map becomes flat.
#[test]
fn granules_of_small_chunks() {
    programs(10, |random| {
        let mut family = Family { live: 150, steps: 400, largest: 600, trims: true, ..granular(random) };
        family.settings.limit = 64 * 4096;
        family.range = Some(Range { base: 1 << 40, bytes: 2000 * 4096, granule: 4096 });
        family
    });
}

/// Packed so densely that the address map becomes flat. A trim makes it sparse again.
#[test]
fn small_chunks_packed() {
    programs(20, |random| {
        let family = Family { live: 120, steps: 250, trims: true, largest: 400, ..any(random) };
        let mut packed =
            if random.chance(50) { Family { moody: true, ..family } } else { fixed(1 << 15, 400) };
        packed.settings.limit = 1 << 16;
        packed.settings.initial_region = 4096;
        Family { live: 120, steps: 250, trims: true, ..packed }
    });
}

/// So many chunks that the address map stays flat through a trim.
#[test]
fn small_chunks_by_the_hundred() {
    programs(1, |_| Family { live: 480, steps: 800, trims: true, ..fixed(1 << 17, UNIT) });
}

#[test]
fn two_tebibytes_in_one_region() {
    programs(80, |random| Family { aligned: random.chance(50), steps: 80, ..fixed(2 << 40, 1 << 38) });
}

#[test]
fn chunks_as_large_as_can_be() {
    programs(150, |random| {
        let most = MAX_CHUNK + random.pick(&[0, 0, 1, UNIT, 1 << 46]);
        let layout = random.pick(&[Layout::Up, Layout::Down, Layout::Any]);
        let largest = random.pick(&[MAX_CHUNK, MAX_CHUNK - UNIT, MAX_CHUNK / 2]);
        let mut family = Family { most, layout, live: 12, ..fixed(u64::MAX, largest) };
        family.settings.growth =
            random.pick(&[RegionGrowth::Whole, RegionGrowth::Doubling, RegionGrowth::ByNeed]);
        family.settings.coalesce_regions = random.chance(50);
        family.settings.garbage_collection = random.chance(50);
        family.settings.reuse = if random.chance(30) { Reuse::Stamps } else { Reuse::Streams };
        Family { aligned: random.chance(30), trims: random.chance(50), ..family }
    });
}

#[test]
fn hundreds_of_regions() {
    programs(2, |random| {
        let odd = Family { layout: Layout::Any, moody: true, most: 50_001, largest: 40_000, ..any(random) };
        let mut family = Family { regions: 700, live: 300, steps: 120, ..odd };
        family.settings.limit = 1 << 36;
        family.settings.growth = RegionGrowth::Doubling;
        family
    });
}

/// Forced merges into one chunk, then as many frees as possible. The stamp queue has room for all of them.
#[test]
fn a_free_needs_no_memory_after_forced_merges() {
    let mut settings = fixed(16 << 20, 1).settings;
    (settings.reuse, settings.split_always) = (Reuse::Stamps, true);
    let mut arena = Arena::new(settings).unwrap();
    let plan = arena.plan_extension(UNIT).unwrap();
    arena.add_region(&plan, 1 << 40, settings.limit).unwrap();
    let take =
        |arena: &mut Arena, size| arena.alloc(&Request::plain(size, size, Stream::NONE)).unwrap().unwrap();
    let run: Vec<u64> = (0..2001).map(|_| take(&mut arena, UNIT)).collect();
    let [_, other, _] = [UNIT, 1800 * UNIT, UNIT].map(|size| take(&mut arena, size));
    // The first chunk is freed last. Every second chunk is merged into it, under its stamp.
    let order = (1..2000).step_by(2).chain((2..2001).step_by(2)).chain([0]);
    order.for_each(|place| arena.free(run[place]).unwrap());
    let mut pass = arena.begin_forced_pass();
    assert_eq!(arena.merge_forced_some(&mut pass, 1 << 40, usize::MAX), Forced::Over);
    assert_eq!(arena.stamps().iter().count(), 1, "one chunk waits, once");
    arena.free(other).unwrap();
    let small: Vec<u64> = (0..1600).map(|_| take(&mut arena, UNIT)).collect();
    let before = arena.stats().metadata_bytes;
    small.into_iter().for_each(|addr| arena.free(addr).unwrap());
    assert_eq!((arena.stats().metadata_bytes, arena.check()), (before, Ok(())));
}
