//! The counters of TensorFlow, and some more.

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum FailureCause {
    /// There is not enough free memory in total.
    Exhaustion,
    /// There is enough free memory, but not in one piece.
    Fragmentation,
    /// A free chunk is large enough, but was freed too late.
    Stamps,
    /// A free chunk is large enough, but has no place at the alignment.
    Alignment,
    /// No host memory, an error of the backend, or a size that no chunk can have.
    Other,
}

impl FailureCause {
    /// Returns the word for it in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            FailureCause::Exhaustion => "exhaustion",
            FailureCause::Fragmentation => "fragmentation",
            FailureCause::Stamps => "stamps",
            FailureCause::Alignment => "alignment",
            FailureCause::Other => "other",
        }
    }
}

/// Failed requests since creation or the last reset, in requested bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Failures {
    /// The largest of them.
    pub largest: u64,
    /// The last of them.
    pub last: u64,
    /// Why the last one failed.
    pub last_cause: Option<FailureCause>,
}

/// Counters that are updated with each operation. They are as few as possible. Everything else is computed on request.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counters {
    /// Successful allocations and frees since creation.
    allocs: u64,
    frees: u64,
    /// The bytes of the chunks in use.
    pub bytes_in_use: u64,
    /// The highest `bytes_in_use` since creation or the last reset.
    pub peak_bytes_in_use: u64,
    /// The requested bytes of the chunks in use.
    pub bytes_requested: u64,
    /// The highest `bytes_requested` since creation or the last reset.
    pub peak_bytes_requested: u64,
    /// The size of the largest chunk handed out since creation or the last reset.
    pub largest_alloc_size: u64,
    /// Requests that failed. Counted by the pool, because only the pool knows when every strategy has been tried.
    pub num_failures: u64,
    /// The sizes and causes of failures.
    pub failures: Failures,
    /// `allocs` and `frees` at the last reset.
    before: (u64, u64),
    /// Events that a reset keeps: splits of a chunk that still carried a stamp, and merges in spite of one.
    pub stamped_splits: u64,
    /// Merges of a chunk that still carried a stamp.
    pub forced_merges: u64,
    /// Regions obtained from the backend and released to it.
    pub regions_added: u64,
    /// Regions released to the backend.
    pub regions_released: u64,
    /// How many times granules were mapped, moved or unmapped.
    pub remaps: u64,
    /// How many times all memory was lost at once.
    pub losses: u64,
    /// How many times the limit was changed.
    pub(crate) limits: u64,
    /// `allocs` at the last loss of all memory.
    allocs_lost: u64,
}

impl Counters {
    /// Counts an allocation. Returns its number, which is unique.
    #[inline]
    pub(crate) fn allocated(&mut self, size: u64, requested: u64) -> u64 {
        self.allocs += 1;
        self.bytes_in_use += size;
        self.bytes_requested += requested;
        // New peaks are rare, so branches cost less than stores.
        if self.bytes_in_use > self.peak_bytes_in_use {
            self.peak_bytes_in_use = self.bytes_in_use;
        }
        if self.bytes_requested > self.peak_bytes_requested {
            self.peak_bytes_requested = self.bytes_requested;
        }
        if size > self.largest_alloc_size {
            self.largest_alloc_size = size;
        }
        self.allocs
    }

    #[inline]
    pub(crate) fn freed(&mut self, size: u64, requested: u64) {
        self.frees += 1;
        self.bytes_in_use -= size;
        self.bytes_requested -= requested;
    }

    /// Returns the number of chunks in use.
    pub fn live(&self) -> u64 {
        self.allocs - self.frees
    }

    /// Returns whether nothing was ever handed out of the current regions.
    pub(crate) fn is_unused(&self) -> bool {
        self.allocs == self.allocs_lost
    }

    /// Records that all memory was lost. Chunks in use count as freed.
    pub(crate) fn lost_all(&mut self, regions: u64) {
        (self.frees, self.allocs_lost) = (self.allocs, self.allocs);
        (self.bytes_in_use, self.bytes_requested) = (0, 0);
        self.regions_released += regions;
        self.losses += 1;
    }

    /// Records a failed request.
    pub(crate) fn failed(&mut self, requested: u64, cause: FailureCause) {
        self.num_failures += 1;
        let largest = self.failures.largest.max(requested);
        self.failures = Failures { largest, last: requested, last_cause: Some(cause) };
    }

    /// Returns the allocations since creation.
    pub fn allocations(&self) -> u64 {
        self.allocs
    }

    /// Returns the frees since creation.
    pub(crate) fn frees(&self) -> u64 {
        self.frees
    }

    /// Returns the allocations since creation or the last reset.
    pub fn num_allocs(&self) -> u64 {
        self.allocs - self.before.0
    }

    /// Returns the frees since creation or the last reset.
    pub fn num_frees(&self) -> u64 {
        self.frees - self.before.1
    }

    /// Resets the counters to 0 and the peaks to the current values, like TensorFlow's `ClearStats`.
    pub(crate) fn reset(&mut self) {
        *self = Counters {
            peak_bytes_in_use: self.bytes_in_use,
            peak_bytes_requested: self.bytes_requested,
            before: (self.allocs, self.frees),
            num_failures: 0,
            failures: Failures::default(),
            largest_alloc_size: 0,
            ..*self
        };
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn miscount(&mut self) {
        self.allocs += 1;
    }
}

/// Calls a macro with the names of all statistics, in the order of `bfc_stats_t`. Beside this list there are only the two
/// structs with their documentation. The compiler checks that all three agree.
#[macro_export]
macro_rules! with_statistics {
    ($call:ident) => {
        $call! {
            num_allocs, num_frees, num_failures, bytes_in_use, peak_bytes_in_use, bytes_requested,
            peak_bytes_requested, largest_alloc_size, bytes_limit, pool_bytes, peak_pool_bytes,
            largest_free_block_bytes, num_regions, num_chunks, num_free_chunks, metadata_bytes,
            num_planned_allocs
        }
    };
}

macro_rules! named_fields {
    ($($name:ident),*) => {
        impl Stats {
            /// The number of statistics.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// Returns all statistics with their names.
            pub fn fields(&self) -> [(&'static str, u64); [$(stringify!($name)),*].len()] {
                let Stats { $($name),* } = *self;
                [$((stringify!($name), $name)),*]
            }
        }
    };
}
with_statistics!(named_fields);

/// The statistics of an arena, which is the memory of a pool, at one moment, in bytes and counts.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stats {
    /// Successful allocations since creation or the last reset.
    pub num_allocs: u64,
    /// Successful frees.
    pub num_frees: u64,
    /// Requests that could not be served.
    pub num_failures: u64,
    /// The bytes of the chunks in use, slack included.
    pub bytes_in_use: u64,
    /// The highest `bytes_in_use`.
    pub peak_bytes_in_use: u64,
    /// The requested bytes of the chunks in use.
    pub bytes_requested: u64,
    /// The highest `bytes_requested`.
    pub peak_bytes_requested: u64,
    /// The size of the largest chunk handed out.
    pub largest_alloc_size: u64,
    /// The most bytes that may be held from the backend.
    pub bytes_limit: u64,
    /// The bytes held from the backend.
    pub pool_bytes: u64,
    /// The highest `pool_bytes`.
    pub peak_pool_bytes: u64,
    /// The size of the largest free chunk, of any stream: free neighbours that one stream may use as one count as one.
    pub largest_free_block_bytes: u64,
    /// Regions held from the backend.
    pub num_regions: u64,
    /// Chunks, in use and free.
    pub num_chunks: u64,
    /// Free chunks.
    pub num_free_chunks: u64,
    /// Host memory of the allocator metadata.
    pub metadata_bytes: u64,
    /// Allocations at the places of a plan.
    pub num_planned_allocs: u64,
}
