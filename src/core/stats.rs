//! Counters, as TensorFlow counts them, and some that it lacks.

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailureCause {
    /// There is not enough, in however many pieces.
    Exhaustion,
    /// There is enough, only not in one piece.
    Fragmentation,
    /// A free chunk is large enough, and was freed too late.
    Stamps,
    /// A free chunk is large enough, and has no place at the alignment.
    Alignment,
    /// Host memory, the backend, or a size that no chunk can have.
    Other,
}

impl FailureCause {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FailureCause::Exhaustion => "exhaustion",
            FailureCause::Fragmentation => "fragmentation",
            FailureCause::Stamps => "stamps",
            FailureCause::Alignment => "alignment",
            FailureCause::Other => "other",
        }
    }
}

/// What is known of the requests that failed since creation or the last reset, in bytes as they were asked for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Failures {
    pub(crate) largest: u64,
    pub(crate) last: u64,
    pub(crate) last_cause: Option<FailureCause>,
}

/// Counted as things happen, with as few words as tell everything; the rest is computed when asked.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    /// Successful allocations and frees since creation.
    allocs: u64,
    frees: u64,
    pub(crate) bytes_in_use: u64,
    pub(crate) peak_bytes_in_use: u64,
    pub(crate) bytes_requested: u64,
    pub(crate) peak_bytes_requested: u64,
    pub(crate) largest_alloc_size: u64,
    /// Requests that failed; the pool counts them, for it is what decides that nothing helps.
    pub(crate) num_failures: u64,
    pub(crate) failures: Failures,
    /// `allocs` and `frees` at the last reset.
    before: (u64, u64),
    /// Events, which a reset leaves: splits of a chunk that still carried a stamp, and merges in spite of one.
    pub(crate) stamped_splits: u64,
    pub(crate) forced_merges: u64,
    /// Regions obtained and given back.
    pub(crate) regions_added: u64,
    pub(crate) regions_released: u64,
    /// Times that granules were mapped, moved or unmapped.
    pub(crate) remaps: u64,
    /// Times that all memory was gone at once.
    pub(crate) losses: u64,
    /// Times that the limit was changed.
    pub(in crate::core) limits: u64,
    /// `allocs` when that happened last.
    allocs_lost: u64,
}

impl Counters {
    /// Returns the allocation's number, which no other has.
    #[inline]
    pub(in crate::core) fn allocated(&mut self, size: u64, requested: u64) -> u64 {
        self.allocs += 1;
        self.bytes_in_use += size;
        self.peak_bytes_in_use = self.peak_bytes_in_use.max(self.bytes_in_use);
        self.bytes_requested += requested;
        self.peak_bytes_requested = self.peak_bytes_requested.max(self.bytes_requested);
        self.largest_alloc_size = self.largest_alloc_size.max(size);
        self.allocs
    }

    #[inline]
    pub(in crate::core) fn freed(&mut self, size: u64, requested: u64) {
        self.frees += 1;
        self.bytes_in_use -= size;
        self.bytes_requested -= requested;
    }

    /// Chunks in use.
    pub(crate) fn live(&self) -> u64 {
        self.allocs - self.frees
    }

    /// Whether nothing was ever handed out of what there is.
    pub(in crate::core) fn is_unused(&self) -> bool {
        self.allocs == self.allocs_lost
    }

    /// All memory is gone: what was live counts as freed.
    pub(in crate::core) fn lost_all(&mut self, regions: u64) {
        (self.frees, self.allocs_lost) = (self.allocs, self.allocs);
        (self.bytes_in_use, self.bytes_requested) = (0, 0);
        self.regions_released += regions;
        self.losses += 1;
    }

    /// A request failed.
    pub(in crate::core) fn failed(&mut self, requested: u64, cause: FailureCause) {
        self.num_failures += 1;
        let largest = self.failures.largest.max(requested);
        self.failures = Failures { largest, last: requested, last_cause: Some(cause) };
    }

    /// Since creation.
    pub(in crate::core) fn frees(&self) -> u64 {
        self.frees
    }

    pub(crate) fn num_allocs(&self) -> u64 {
        self.allocs - self.before.0
    }

    pub(crate) fn num_frees(&self) -> u64 {
        self.frees - self.before.1
    }

    /// `ClearStats`: the counts to 0, the peaks to the present.
    pub(in crate::core) fn reset(&mut self) {
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

    #[cfg(test)]
    pub(in crate::core) fn miscount(&mut self) {
        self.allocs += 1;
    }
}

/// The statistics of an arena at one moment, in bytes and counts.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Successful allocations since creation or the last reset.
    pub num_allocs: u64,
    /// Successful frees.
    pub num_frees: u64,
    /// Requests that could not be served.
    pub num_failures: u64,
    /// The sizes of the chunks in use, slack included.
    pub bytes_in_use: u64,
    /// The highest `bytes_in_use`.
    pub peak_bytes_in_use: u64,
    /// What callers asked for, of the chunks in use.
    pub bytes_requested: u64,
    /// The highest `bytes_requested`.
    pub peak_bytes_requested: u64,
    /// The largest chunk handed out.
    pub largest_alloc_size: u64,
    /// The most that may be held from the backend.
    pub bytes_limit: u64,
    /// Held from the backend.
    pub pool_bytes: u64,
    /// The highest `pool_bytes`.
    pub peak_pool_bytes: u64,
    /// The largest free chunk.
    pub largest_free_block_bytes: u64,
    /// Regions held from the backend.
    pub num_regions: u64,
    /// Chunks, in use and free.
    pub num_chunks: u64,
    /// Free chunks.
    pub num_free_chunks: u64,
    /// Host memory that the allocator itself holds.
    pub metadata_bytes: u64,
}
