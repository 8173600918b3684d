//! What every backend's allocator does: one suite, run over each backend by a file of its own.
//!
//! A file implements [`Fixture`], which says what is peculiar to its backend, and has `conformance!` make the tests.
//! All that is asked here is in the header or in the contract; placement is other tests' concern.

#![allow(dead_code)] // a fixture uses a part

pub mod amounts;
pub mod basics;
pub mod cuda;
pub mod life;
pub mod order;
pub mod private;
pub mod questions;
pub mod real;
pub mod stamps;
pub mod threads;

use crate::common::*;

/// A backend under test.
pub trait Fixture: Sized + Sync {
    /// Memory comes from the backend and goes back to it in multiples of this, which divides [`UNIT`].
    const GRANULE: u64;
    /// However much the pool grows, it is one region: chunks merge across what was obtained at different times, and
    /// whatever is free at a time may go back.
    const ONE_REGION: bool;
    /// In a forked child the pool is there as the child's own.
    const SURVIVES_FORK: bool;
    /// Streams are a device's, and end their work by themselves; else tokens, and the caller says when.
    const DEVICE: bool;
    /// Whether it knows how much memory there is at all.
    const KNOWS_TOTAL: bool;

    /// Runs a test of that name with the backend, in a process of its own where it needs one.
    fn run(test: &str, body: impl FnOnce(&Self));

    /// A pool on an ordinal that no other has, after `change` to its options.
    fn try_pool(&self, limit: u64, change: &dyn Fn(&mut bfc_options_t)) -> Result<Pool, Status>;

    /// Has a range written, at once, with what depends on the pattern and on the place.
    fn write(&self, address: u64, bytes: u64, pattern: u64);

    /// Whether a range still has what was written.
    fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool;

    /// What the backend has given to all pools of this fixture.
    fn held(&self) -> Option<u64> {
        None
    }

    /// How many pools there can be at a time.
    fn pools_at_once(&self) -> usize {
        usize::MAX
    }

    /// A thread that will use the fixture.
    fn enter_thread(&self) {}

    /// A new stream, or a token.
    fn stream(&self) -> u64;

    /// Queues work on a stream that will not be done before [`Fixture::finish`].
    fn occupy(&self, _stream: u64) {}

    /// The stream's work is done, and the library can know it.
    fn finish(&self, pool: &Pool, stream: u64);

    /// The stream ends; the library knows already.
    fn end_stream(&self, _stream: u64) {}

    /// A pool of so many units.
    #[track_caller]
    fn pool(&self, units: u64, flags: u32) -> Pool {
        self.pool_with(units, |options| options.flags = flags)
    }

    /// The same with other options.
    #[track_caller]
    fn pool_with(&self, units: u64, change: impl Fn(&mut bfc_options_t)) -> Pool {
        let change = |options: &mut bfc_options_t| {
            options.initial_region_bytes = UNIT;
            change(options);
        };
        self.try_pool(units * UNIT, &change).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
    }
}

/// Whether a test cannot run, and says so: it needs so many pools at once.
pub fn lacks_pools<F: Fixture>(fixture: &F, count: usize) -> bool {
    let lacks = fixture.pools_at_once() < count;
    if lacks {
        println!("skipped: it needs {count} devices, and there is {}", fixture.pools_at_once());
    }
    lacks
}

/// What tests count in: a region of the least size that all backends can give.
pub const UNIT: u64 = 2 * MIB;

pub const GROWTH: u32 = BFC_ALLOW_GROWTH;
pub const COLLECT: u32 = BFC_GARBAGE_COLLECTION;

/// A live chunk with something in it.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    pub address: u64,
    pub bytes: u64,
    pub pattern: u64,
}

impl Filled {
    /// Writes into all of a new chunk.
    pub fn new<F: Fixture>(fixture: &F, pool: &Pool, address: u64, pattern: u64) -> Filled {
        let bytes = pool.allocated_size(address).expect("live");
        fixture.write(address, bytes, pattern);
        Filled { address, bytes, pattern }
    }

    /// Nobody has written into it since.
    #[track_caller]
    pub fn assert_intact<F: Fixture>(&self, fixture: &F) {
        assert!(fixture.holds(self.address, self.bytes, self.pattern), "somebody wrote into {self:x?}");
    }
}

/// Chunks that hold all the pool has, of one unit each.
#[track_caller]
pub fn fill_up<F: Fixture>(fixture: &F, pool: &Pool, bytes: u64) -> Vec<Filled> {
    let some = std::iter::from_fn(|| pool.alloc(bytes).ok());
    let all: Vec<Filled> = some.map(|address| Filled::new(fixture, pool, address, !address)).collect();
    assert!(!all.is_empty(), "{}", last_error());
    all
}

/// A word in each 256 bytes, which is what chunks are made of: no other chunk can lie there unnoticed.
fn places(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (address..address + bytes).step_by(256).chain([address + bytes - 8])
}

/// Writes to memory of this process.
pub fn write_host(address: u64, bytes: u64, pattern: u64) {
    for place in places(address, bytes) {
        // SAFETY: live memory of this process, which the caller has for itself.
        unsafe { (place as *mut u64).write_volatile(pattern ^ place) };
    }
}

/// Reads it.
pub fn host_holds(address: u64, bytes: u64, pattern: u64) -> bool {
    // SAFETY: as above.
    let read = |place: u64| unsafe { (place as *const u64).read_volatile() };
    places(address, bytes).all(|place| read(place) == pattern ^ place)
}

/// Makes a test of every behaviour, for a fixture.
macro_rules! conformance {
    ($fixture:ty) => {
        conformance!(@ $fixture:
            basics: sizes alignments nothing_and_null wrong_pointers contents_are_kept all_of_a_chunk_is_usable
                any_request_any_alignment;
            amounts: grows_on_demand one_region_without_growth the_limit_holds fraction_of_all trims collects
                out_of_memory_changes_nothing limits_that_are_no_multiple the_limit_changes
                a_small_request_leaves_large_chunks_whole;
            questions: statistics reports ranges_and_owners reset_statistics words_and_outputs;
            life: ends_only_when_empty ends_by_force begins_again several_at_once forks bad_options;
            threads: a_free_serves_who_waits the_time_is_up the_end_wakes_who_waits many_threads;
            stamps: stamps_rise_and_merge_when_safe quarantine stamps_exclude_streams;
            order: one_stream_is_like_none streams_wait_for_each_other synchronised_is_for_all
                recorded_streams_are_waited_for forgotten_streams frees_of_either_kind wrong_pointers_on_streams
                a_request_on_a_stream nothing_is_stranded;
            private: private_memory_stays_private private_names
        );
    };
    (@ $fixture:ty: $($file:ident: $($name:ident)+);+) => {
        $($(
            #[test]
            fn $name() {
                <$fixture as $crate::conformance::Fixture>::run(stringify!($name), |fixture| {
                    $crate::conformance::$file::$name(fixture);
                });
            }
        )+)+
    };
}

/// For backends of host memory, within a [`Fixture`]: the memory is this process's, and streams are tokens.
#[allow(unused_macros)] // each file uses one of them
macro_rules! tokens {
    () => {
        fn write(&self, address: u64, bytes: u64, pattern: u64) {
            $crate::conformance::write_host(address, bytes, pattern);
        }

        fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
            $crate::conformance::host_holds(address, bytes, pattern)
        }

        fn stream(&self) -> u64 {
            static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(100);
            NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }

        fn finish(&self, pool: &Pool, stream: u64) {
            assert_eq!(pool.vouch(stream), BFC_OK, "{}", last_error());
        }
    };
}

/// For backends of the simulated devices, within a [`Fixture`] with a [`cuda::Devices`].
#[allow(unused_macros)]
macro_rules! devices {
    ($fixture:ident, $backend:expr) => {
        const SURVIVES_FORK: bool = false;
        const DEVICE: bool = true;
        const KNOWS_TOTAL: bool = true;

        fn run(test: &str, body: impl FnOnce(&Self)) {
            Devices::run(test, |devices| body(&$fixture(devices)));
        }

        fn try_pool(&self, limit: u64, change: &dyn Fn(&mut bfc_options_t)) -> Result<Pool, Status> {
            self.0.try_pool($backend, limit, change)
        }

        fn write(&self, address: u64, bytes: u64, pattern: u64) {
            self.0.write(address, bytes, pattern);
        }

        fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
            self.0.holds(address, bytes, pattern)
        }

        fn held(&self) -> Option<u64> {
            self.0.held()
        }

        fn pools_at_once(&self) -> usize {
            self.0.count()
        }

        fn enter_thread(&self) {
            self.0.enter_thread();
        }

        fn stream(&self) -> u64 {
            self.0.stream()
        }

        fn occupy(&self, stream: u64) {
            self.0.occupy(stream);
        }

        fn finish(&self, _: &Pool, stream: u64) {
            self.0.finish(stream);
        }

        fn end_stream(&self, stream: u64) {
            self.0.end_stream(stream);
        }
    };
}
