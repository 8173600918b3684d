//! Checks of the invariants I1 to I6 ([`crate::invariants`]).

use super::arena::Arena;
use super::mode::Reuse;
use crate::heap::{CLASSES, State};
use crate::ids::{ChunkId, NIL};
use crate::invariants::{Broken, require};
use crate::units::{MAX_CHUNK, UNIT};
use crate::vmm::is_unmapped;

impl Arena {
    /// Checks all invariants, without needing memory. Takes time in proportion to the number of chunks, plus some
    /// scans.
    pub fn check(&self) -> Result<(), Broken> {
        let walked = self.check_regions()?;
        require(walked == self.chunks().count(), Broken::I1Tiling)?;
        self.check_index()?;
        self.check_accounting()?;
        self.streams.check()?;
        self.check_best_fit()
    }

    /// Checks I1, I2 and I6 along each region. Returns the number of chunks.
    fn check_regions(&self) -> Result<usize, Broken> {
        let mut count = 0;
        for (region, span) in self.regions().iter() {
            let mut expected = span.base;
            let mut prev = NIL;
            let mut id = span.first;
            require(id != NIL, Broken::I6Starts)?;
            while id != NIL {
                let (size, addr) = self.chunks().get(id).key();
                let linked = addr == expected && self.chunks().prev(id) == prev;
                let next = self.chunks().next(id);
                let meets = next == NIL || size < span.bytes && self.chunks().addr(next) == addr + size;
                let sound = size != 0 && size % UNIT == 0 && self.chunks().region(id) == region && meets;
                require(linked && sound && self.chunks().state(id) != State::Vacant, Broken::I1Tiling)?;
                require(self.is_whole(id), Broken::I1Tiling)?;
                let entry = Some(id).filter(|&id| self.chunks().in_use(id));
                require(self.heap().entry_at(addr) == entry, Broken::I6Starts)?;
                // Nothing else maps to it. All units of a small chunk are checked, and the first units behind the start
                // of a large one.
                let inside = (1..(size / UNIT).min(64)).map(|unit| addr + unit * UNIT);
                let strays = inside.filter(|&at| self.heap().entry_at(at).is_some());
                require(strays.count() == 0, Broken::I6Starts)?;
                require(prev == NIL || !self.should_be_one(prev, id), Broken::I2Coalescing)?;
                expected += size;
                count += 1;
                require(count <= self.chunks().count(), Broken::I1Tiling)?;
                (prev, id) = (id, next);
            }
            require(expected == span.base + span.bytes, Broken::I1Tiling)?;
        }
        Ok(count)
    }

    /// Returns the chunks that a request could get.
    fn findable(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.chunks().ids().filter(|&id| self.chunks().state(id) == State::Free)
    }

    fn may_merge(&self, id: ChunkId) -> bool {
        self.chunks().state(id) == State::Free && self.chunks().stamp(id) == 0
    }

    /// Returns whether neighbours have no reason to be two chunks.
    fn should_be_one(&self, first: ChunkId, second: ChunkId) -> bool {
        let unmapped = || [first, second].iter().all(|&id| self.chunks().state(id) == State::Unmapped);
        self.may_merge(first) && self.may_merge(second)
            || unmapped()
            || self.streams.should_be_one(first, second)
    }

    /// Returns whether a chunk consists of whole granules, if it has to.
    fn is_whole(&self, id: ChunkId) -> bool {
        let granule = match (self.chunks().state(id), self.range()) {
            (State::Unmapped | State::BeingMapped, Some(range)) => range.granule,
            (State::Unmapped | State::BeingMapped, None) => return false,
            _ => return true,
        };
        self.chunks().addr(id).is_multiple_of(granule) && self.chunks().size(id).is_multiple_of(granule)
    }

    /// Checks that exactly the unmapped chunks are in the list, each at the position that it stores.
    fn check_unmapped(&self) -> Result<(), Broken> {
        for (place, &id) in self.vm.list().iter().enumerate() {
            let is_listed = self.chunks().state(id) == State::Unmapped;
            require(is_listed && self.chunks().get(id).unmapped_place() == place, Broken::I3Index)?;
        }
        let with = |state| self.chunks().ids().filter(move |&id| self.chunks().state(id) == state).count();
        let coming = with(State::BeingMapped);
        require(
            with(State::Unmapped) == self.vm.list().len() && coming == self.vm.coming(),
            Broken::I3Index,
        )?;
        // Chunks are out of circulation only while a plan is under way.
        let idle = coming == 0 && with(State::Withheld) == 0;
        require(idle || self.vm.is_moving(), Broken::I3Index)
    }

    fn check_index(&self) -> Result<(), Broken> {
        self.check_unmapped()?;
        for class in 0..CLASSES {
            require(self.heap().is_class_sound(class), Broken::I3Index)?;
        }
        let slab = self.chunks().slab();
        let (mut indexed, mut last) = (0, (0, 0));
        for id in self.heap().indexed_from(UNIT).take(self.chunks().count() + 1) {
            let key = slab[id].key();
            require(key > last && self.may_merge(id), Broken::I3Index)?;
            (indexed, last) = (indexed + 1, key);
        }
        last = (0, 0);
        for (id, is_right) in self.stamps.findable(self.heap()).take(self.chunks().count() + 1) {
            let key = slab[id].key();
            let is_stamped = self.chunks().state(id) == State::Free && self.chunks().stamp(id) != 0;
            require(key > last && is_stamped && is_right, Broken::I3Index)?;
            (indexed, last) = (indexed + 1, key);
        }
        require(indexed == self.findable().count(), Broken::I3Index)?;
        self.check_queue()
    }

    /// Checks that exactly the stamped chunks are queued, none with a turn later than its stamp.
    fn check_queue(&self) -> Result<(), Broken> {
        let mut queued = 0;
        for id in self.stamps.iter().take(self.chunks().count() + 1) {
            let (turn, addr) = self.stamps.turn(id);
            let stamp = self.chunks().stamp(id);
            let waits = matches!(self.chunks().state(id), State::Free | State::Held) && turn <= stamp;
            let is_due = !self.stamps.is_merging() && turn < self.stamps.frontier();
            require(waits && turn != 0 && addr == self.chunks().addr(id) && !is_due, Broken::I3Index)?;
            queued += 1;
        }
        let (mut stamped, mut bytes) = (0, 0);
        // Vacant places have no stamp, so that a new chunk has none.
        for id in (0..self.chunks().places()).map(|place| self.chunks().place(place)) {
            let has_stamp = self.chunks().stamp(id) != 0;
            let held = self.chunks().state(id) != State::Held || has_stamp || self.streams.is_multi();
            require(held && !(has_stamp && self.chunks().in_use(id)), Broken::I3Index)?;
            stamped += usize::from(has_stamp);
            bytes += if has_stamp && self.settings.reuse == Reuse::Quarantine {
                self.chunks().size(id)
            } else {
                0
            };
        }
        require(queued == stamped && bytes == self.stamps.held_bytes(), Broken::I3Index)
    }

    fn check_accounting(&self) -> Result<(), Broken> {
        let (mut used, mut requested, mut free, mut free_count) = (0u64, 0u64, 0u64, 0);
        let (mut unmapped, mut unmapped_count) = (0u64, 0);
        for id in self.chunks().ids() {
            if self.chunks().in_use(id) {
                used += self.chunks().size(id);
                requested += self.chunks().cold(id).requested;
                require(self.chunks().cold(id).requested <= self.chunks().size(id), Broken::I4Accounting)?;
            } else if is_unmapped(self.heap(), id) {
                unmapped += self.chunks().size(id);
                unmapped_count += 1;
            } else {
                free += self.chunks().size(id);
                free_count += 1;
            }
        }
        let c = self.counters();
        let sums = used == c.bytes_in_use && requested == c.bytes_requested;
        let peaks = c.peak_bytes_in_use >= used && c.peak_bytes_requested >= requested;
        let count = free_count + unmapped_count + c.live();
        let sizes = unmapped == self.vm.bytes() && used + free == self.usable_bytes();
        let given = self.regions().iter().fold(0u64, |sum, (_, region)| sum.saturating_add(region.given));
        let mapped = self.range().is_none() || used + free == given;
        let pool = sizes && mapped && count == self.chunks().count() as u64;
        require(sums && peaks && pool && given <= self.growth().pool_bytes(), Broken::I4Accounting)
    }

    /// Checks best fit for a sample of sizes: those of free chunks, one unit more than each, and one unit.
    fn check_best_fit(&self) -> Result<(), Broken> {
        let step = self.findable().count().div_ceil(8).max(1);
        let sizes = self.findable().step_by(step).map(|id| self.chunks().size(id));
        for size in sizes.flat_map(|size| [size, (size + UNIT).min(MAX_CHUNK)]).chain([UNIT]) {
            let fits = self.findable().filter(|&id| self.chunks().size(id) >= size);
            let scanned = fits.min_by_key(|&id| self.chunks().get(id).key());
            let found = match self.settings.reuse {
                Reuse::Streams => self.heap().best_fit(size),
                Reuse::Stamps | Reuse::Quarantine => {
                    self.stamps.first_old_enough(self.heap(), (size, 0), u64::MAX)
                }
            };
            require(found == scanned, Broken::I5BestFit)?;
            // The same search among the chunks that were freed before that one.
            let Some(newest) = scanned.map(|id| self.chunks().stamp(id)).filter(|&stamp| stamp != 0) else {
                continue;
            };
            let old = self
                .findable()
                .filter(|&id| self.chunks().size(id) >= size && self.chunks().stamp(id) < newest);
            let scanned = old.min_by_key(|&id| self.chunks().get(id).key());
            require(
                self.stamps.first_old_enough(self.heap(), (size, 0), newest - 1) == scanned,
                Broken::I5BestFit,
            )?;
        }
        Ok(())
    }
}
