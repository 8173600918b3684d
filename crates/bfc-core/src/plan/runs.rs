//! Short runs of sizes in a plan, by hash.

use super::entry::Entry;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// The requests in a row that tell where a program is. Fewer are found again sooner, and more are confused less often: a
/// network's layers ask for the same sizes.
pub(super) const RUN: usize = 4;

/// How many runs of equal hash a search compares, so that no request takes long.
const MOST_COMPARED: usize = 16;

const NONE: u32 = u32::MAX;

/// Where each run of [`RUN`] sizes ends.
pub(super) struct RunTable {
    /// For each hash the first entry at which such a run ends, or [`NONE`].
    heads: Vec<u32>,
    /// For each entry the next one with the same hash, or [`NONE`].
    links: Vec<u32>,
    repeated_from: usize,
}

impl RunTable {
    pub(super) fn new(entries: &[Entry], repeated_from: usize) -> Result<Self, HostMemoryExhausted> {
        let (mut heads, mut links) = (Vec::new(), Vec::new());
        let buckets = entries.len().next_power_of_two();
        heads.try_reserve_exact(buckets)?;
        links.try_reserve_exact(entries.len())?;
        heads.resize(buckets, NONE);
        links.resize(entries.len(), NONE);
        let mut table = RunTable { heads, links, repeated_from };
        // From behind, so that the entries of a hash come in ascending order.
        for at in (0..entries.len()).rev() {
            let mut run = [0; RUN];
            if !table.run_to(entries, at, &mut run) {
                continue;
            }
            let bucket = table.bucket(&run);
            let number = u32::try_from(at).map_err(|_| HostMemoryExhausted)?;
            table.links[at] = core::mem::replace(&mut table.heads[bucket], number);
        }
        Ok(table)
    }

    /// Writes the sizes of the run that ends with an entry. Returns false if there are too few entries before it.
    fn run_to(&self, entries: &[Entry], mut at: usize, run: &mut [u64; RUN]) -> bool {
        let repeats = self.repeated_from < entries.len();
        for place in (0..RUN).rev() {
            run[place] = entries[at].size;
            if place == 0 {
                break;
            }
            // The repeated part comes behind itself. Its first pass comes behind the prologue, which matters only once.
            if at == self.repeated_from && repeats {
                at = entries.len();
            }
            if at == 0 {
                return false;
            }
            at -= 1;
        }
        true
    }

    #[allow(clippy::cast_possible_truncation)] // masked
    fn bucket(&self, run: &[u64; RUN]) -> usize {
        let mix = |hash: u64, &size: &u64| (hash ^ size).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        run.iter().fold(0, mix) as usize & (self.heads.len() - 1)
    }

    /// Returns the entry at which a run ends, the first one from `next` on if there are several. Behind the last entry
    /// the search goes on with the first.
    pub(super) fn find(&self, entries: &[Entry], run: &[u64; RUN], next: usize) -> Option<usize> {
        let mut at = *self.heads.get(self.bucket(run))?;
        let mut first = None;
        for _ in 0..MOST_COMPARED {
            if at == NONE {
                break;
            }
            let entry = at as usize;
            let mut found = [0; RUN];
            if self.run_to(entries, entry, &mut found) && found == *run {
                if entry >= next {
                    return Some(entry);
                }
                first = first.or(Some(entry));
            }
            at = self.links[entry];
        }
        first
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        ((self.heads.capacity() + self.links.capacity()) * size_of::<u32>()) as u64
    }
}
