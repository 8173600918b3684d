//! The behaviour common to all backends: one suite, run over each backend by a file of its own.
//!
//! A file implements [`Fixture`], which describes the peculiarities of its backend, and `conformance!` creates the
//! tests. Everything checked here is in the header or in the contract. Other tests check placement.

#![allow(dead_code)] // a fixture uses a part

pub mod amounts;
pub mod basics;
pub mod cuda;
pub mod guard;
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
    /// Memory is obtained from the backend and released in multiples of this, which divides [`UNIT`].
    const GRANULE: u64;
    /// Whether the pool is one region however much it grows: chunks merge across memory obtained at different times,
    /// and any free memory may be released.
    const ONE_REGION: bool;
    /// Whether the pool exists in a forked child, as the child's own.
    const SURVIVES_FORK: bool;
    /// Whether streams belong to a device, and their work completes by itself. Otherwise they are tokens, and the
    /// caller declares completion.
    const DEVICE: bool;
    /// Whether it knows the total amount of memory.
    const KNOWS_TOTAL: bool;

    /// Runs a test of that name with the backend, in a process of its own if necessary, as with variables.
    #[track_caller]
    fn run(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Self));

    /// Creates a pool on an unused ordinal, after `change` has modified its options.
    fn try_pool(&self, limit: u64, change: &dyn Fn(&mut bfc_options_t)) -> Result<Pool, Status>;

    /// Writes a range, at once, with values that depend on the pattern and the place.
    fn write(&self, address: u64, bytes: u64, pattern: u64);

    /// Returns whether a range still has the written values.
    fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool;

    /// Writes bytes.
    fn write_bytes(&self, address: u64, bytes: &[u8]);

    /// Reads this many bytes.
    fn bytes(&self, address: u64, count: u64) -> Vec<u8>;

    /// Returns the bytes that the backend has provided to all pools of this fixture.
    fn held(&self) -> Option<u64> {
        None
    }

    /// Returns how many pools can exist at the same time.
    fn pools_at_once(&self) -> usize {
        usize::MAX
    }

    /// Prepares a thread that will use the fixture.
    fn enter_thread(&self) {}

    /// Creates a new stream, or a token.
    fn stream(&self) -> u64;

    /// Queues work on a stream that will not complete before [`Fixture::finish`].
    fn occupy(&self, _stream: u64) {}

    /// Completes the stream's work, so that the library can know.
    fn finish(&self, pool: &Pool, stream: u64);

    /// Destroys the stream. The library was notified before.
    fn end_stream(&self, _stream: u64) {}

    /// Creates a pool of this many units.
    #[track_caller]
    fn pool(&self, units: u64, flags: u32) -> Pool {
        self.pool_with(units, |options| options.flags = flags)
    }

    /// Creates a pool of this many units with other options.
    #[track_caller]
    fn pool_with(&self, units: u64, change: impl Fn(&mut bfc_options_t)) -> Pool {
        let change = |options: &mut bfc_options_t| {
            options.initial_region_bytes = UNIT;
            change(options);
        };
        self.try_pool(units * UNIT, &change).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
    }
}

/// Runs a body in this process, or with variables in a process of its own.
#[track_caller]
pub fn in_process_with(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if variables.is_empty() || child::is_child(test) {
        return body();
    }
    child::expect_success(test, variables);
}

/// Returns whether a test cannot run because it needs this many pools at the same time, and prints this.
pub fn lacks_pools<F: Fixture>(fixture: &F, count: usize) -> bool {
    let lacks = fixture.pools_at_once() < count;
    if lacks {
        println!("skipped: it needs {count} devices, and there is {}", fixture.pools_at_once());
    }
    lacks
}

/// The unit of the tests: a region of the smallest size that all backends can provide.
pub const UNIT: u64 = 2 * MIB;

pub const GROWTH: u32 = BFC_ALLOW_GROWTH;
pub const COLLECT: u32 = BFC_GARBAGE_COLLECTION;

/// A live chunk with contents.
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

    /// Checks that nothing else has written into it.
    #[track_caller]
    pub fn assert_intact<F: Fixture>(&self, fixture: &F) {
        assert!(fixture.holds(self.address, self.bytes, self.pattern), "something wrote into {self:x?}");
    }
}

/// Allocates the whole pool in chunks of one unit each.
#[track_caller]
pub fn fill_up<F: Fixture>(fixture: &F, pool: &Pool, bytes: u64) -> Vec<Filled> {
    let some = std::iter::from_fn(|| pool.alloc(bytes).ok());
    let all: Vec<Filled> = some.map(|address| Filled::new(fixture, pool, address, !address)).collect();
    assert!(!all.is_empty(), "{}", last_error());
    all
}

/// The words at a distance of 256 bytes, the unit of chunks, so that an overlap with another chunk is detected.
fn places(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (address..address + bytes).step_by(256).chain([address + bytes - 8])
}

/// Writes to memory of this process.
pub fn write_host(address: u64, bytes: u64, pattern: u64) {
    for place in places(address, bytes) {
        // SAFETY: live memory of this process, which only the caller uses.
        unsafe { (place as *mut u64).write_volatile(pattern ^ place) };
    }
}

/// Reads memory of this process.
pub fn host_holds(address: u64, bytes: u64, pattern: u64) -> bool {
    // SAFETY: as above.
    let read = |place: u64| unsafe { (place as *const u64).read_volatile() };
    places(address, bytes).all(|place| read(place) == pattern ^ place)
}

/// Creates a test of every behaviour, for a fixture.
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
                <$fixture as $crate::conformance::Fixture>::run(stringify!($name), &[], |fixture| {
                    $crate::conformance::$file::$name(fixture);
                });
            }
        )+)+
    };
}

/// Creates the tests of the debug mode, for a fixture whose backend supports it.
#[allow(unused_macros)] // not every backend does
macro_rules! guard_conformance {
    ($fixture:ty) => {
        guard_conformance!(@ $fixture: a_byte_after_the_end far_after_the_end between_two_allocations
            in_front_where_free_memory_lies new_memory_is_nan_and_freed_memory_is_poison
            what_may_be_used_is_what_was_asked_for a_check_looks_at_all_that_lives a_listener_may_use_the_allocator
            no_false_alarm_in_random_programs no_false_alarm_with_several_threads destruction_waits_and_wakes
        );
    };
    (@ $fixture:ty: $($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                use $crate::conformance::{Fixture, guard};
                <$fixture as Fixture>::run(stringify!($name), &guard::VARIABLES, |fixture| {
                    guard::$name(fixture, &$crate::common::log::Collected::start());
                });
            }
        )+
    };
}

/// For backends of host memory, within a [`Fixture`]: the memory belongs to this process, and streams are tokens.
#[allow(unused_macros)] // each file uses one of them
macro_rules! tokens {
    () => {
        fn write(&self, address: u64, bytes: u64, pattern: u64) {
            $crate::conformance::write_host(address, bytes, pattern);
        }

        fn holds(&self, address: u64, bytes: u64, pattern: u64) -> bool {
            $crate::conformance::host_holds(address, bytes, pattern)
        }

        fn write_bytes(&self, address: u64, bytes: &[u8]) {
            $crate::common::guarded::write(address, bytes);
        }

        fn bytes(&self, address: u64, count: u64) -> Vec<u8> {
            $crate::common::guarded::bytes(address, count).to_vec()
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

        fn run(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Self)) {
            Devices::run(test, variables, |devices| body(&$fixture(devices)));
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

        fn write_bytes(&self, address: u64, bytes: &[u8]) {
            self.0.write_bytes(address, bytes);
        }

        fn bytes(&self, address: u64, count: u64) -> Vec<u8> {
            self.0.bytes(address, count)
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
