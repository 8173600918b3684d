//! The entries of a plan, and the one that the next request is compared with.

use super::entry::{Entry, NO_PLACE};
use super::runs::{RUN, RunTable};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// How many entries behind the next one a request may match.
const AHEAD: usize = 8;

/// For how many requests after a jump the entry that it passed over still counts as next.
const RETURN: u32 = 4;

/// With full trust the program may make so many requests in a row that do not follow the plan, divided by [`DISTRUST`],
/// before requests without a planned place are placed as without a plan.
const FULL_TRUST: u32 = 256;
const LEAST_TRUST: u32 = 128;
/// The trust at the beginning: the program has to follow some entries first. Otherwise a plan of another program would move all
/// of its requests behind the planned bytes, where a full pool may have no room for them.
const FIRST_TRUST: u32 = LEAST_TRUST - 8;
const DISTRUST: u32 = 2;

/// Planned placements. The entries come in the order of the program's requests: first each of the prologue, once, then
/// those of the repeated part, again and again.
pub struct PlacementPlan {
    entries: Vec<Entry>,
    /// The first entry of the repeated part. If there is none, the number of entries.
    repeated_from: usize,
    /// The bytes from the beginning of the first region that the places lie in.
    bytes: u64,
    runs: RunTable,
    /// The entry that the next request is compared with first, or the number of entries at the end of the plan.
    next: usize,
    /// The entry that was next before the last jump, and how many requests ago that was.
    passed_over: usize,
    since_jump: u32,
    /// Whether the last request matched an entry.
    is_in_step: bool,
    /// Rises with requests that follow the plan, and falls with others; at most [`FULL_TRUST`].
    trust: u32,
    /// Where the last chunk in use before the end of the planned bytes began.
    below_end: Option<u64>,
    /// The sizes of the latest requests, the latest last.
    recent: [u64; RUN],
    /// The address that offsets are counted from, once there is a region.
    base: Option<u64>,
    /// The requests that got their planned places since creation, and until the last reset.
    followed: u64,
    before: u64,
}

/// An entry that matches a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Match {
    entry: usize,
    /// The address of the planned place, if the entry has one and there is a region.
    pub(crate) place: Option<u64>,
    /// The address of a chunk below the place to start a search from.
    pub(crate) below: Option<u64>,
}

impl PlacementPlan {
    /// Creates a plan. The part from `repeated_from` on is repeated.
    pub(super) fn new(
        entries: Vec<Entry>,
        repeated_from: usize,
        bytes: u64,
    ) -> Result<Self, HostMemoryExhausted> {
        let runs = RunTable::new(&entries, repeated_from)?;
        Ok(PlacementPlan {
            entries,
            repeated_from,
            bytes,
            runs,
            next: 0,
            passed_over: 0,
            since_jump: RETURN + 1,
            is_in_step: true,
            trust: FIRST_TRUST,
            below_end: None,
            recent: [0; RUN],
            base: None,
            followed: 0,
            before: 0,
        })
    }

    /// Returns the bytes that the places lie in.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of entries, which is never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many requests got their planned places.
    pub fn followed(&self) -> u64 {
        self.followed
    }

    /// Returns how many requests got their planned places since the last reset.
    pub(crate) fn followed_since_reset(&self) -> u64 {
        self.followed - self.before
    }

    pub(crate) fn reset_stats(&mut self) {
        self.before = self.followed;
    }

    /// Counts offsets from an address from now on.
    pub(crate) fn set_base(&mut self, base: u64) {
        self.base = Some(base);
    }

    /// Begins again. All memory is gone.
    pub(crate) fn restart(&mut self) {
        (self.next, self.recent, self.base) = (0, [0; RUN], None);
        (self.since_jump, self.is_in_step) = (RETURN + 1, true);
        (self.trust, self.below_end) = (FIRST_TRUST, None);
    }

    /// Returns the entry that a request of `size` bytes matches: the next one; the one that a jump passed over; one a little
    /// further on, if the program left some out; or the one at which a run of the latest requests ends. A program that has
    /// freed everything (`is_empty`) may begin again. Nothing changes, because the request may be tried several times.
    pub(crate) fn find(&self, size: u64, is_empty: bool) -> Option<Match> {
        let is_at = |at: usize| self.entries.get(at).is_some_and(|entry| entry.size == size);
        let entry = match () {
            () if is_empty && self.repeated_from != 0 && is_at(0) => 0,
            () if is_at(self.next) => self.next,
            () => self.find_jump(size)?,
        };
        let Entry { offset, below, .. } = *self.entries.get(entry)?;
        let address = |offset: u64| self.base?.checked_add(offset).filter(|_| offset != NO_PLACE);
        Some(Match { entry, place: address(offset), below: address(below) })
    }

    #[cold]
    fn find_jump(&self, size: u64) -> Option<usize> {
        let is_at = |at: &usize| self.entries.get(*at).is_some_and(|entry| entry.size == size);
        let passed_over = Some(self.passed_over).filter(|_| self.since_jump < RETURN).filter(is_at);
        let ahead = || (self.next + 1..=self.next + AHEAD).find(|at| self.is_in_step && is_at(at));
        let run = || self.runs.find(&self.entries, &with(&self.recent, size), self.next);
        // The nearest first: a network's layers have the same runs.
        passed_over.or_else(ahead).or_else(run)
    }

    /// Returns where the planned bytes end, for a request that has no planned place: it had better lie behind them. Only
    /// while the program mostly follows the plan; otherwise best fit is better everywhere. Also returns the address of a
    /// chunk before the end to start a search from.
    pub(crate) fn end(&self) -> Option<(u64, Option<u64>)> {
        let end = self.base.filter(|_| self.trust >= LEAST_TRUST)?.checked_add(self.bytes)?;
        Some((end, self.below_end))
    }

    /// Records where the last chunk in use before the end of the planned bytes begins.
    pub(crate) fn set_below_end(&mut self, below: Option<u64>) {
        self.below_end = below;
    }

    /// Records that a request of `size` bytes was served. `at_place` tells whether it got the place of the match, and if
    /// so, where the chunk before it begins.
    pub(crate) fn served(&mut self, size: u64, found: Option<&Match>, at_place: Option<u64>) {
        self.recent = with(&self.recent, size);
        self.since_jump = self.since_jump.saturating_add(1);
        self.trust = match at_place {
            Some(_) => FULL_TRUST.min(self.trust + 1),
            None => self.trust.saturating_sub(DISTRUST),
        };
        self.is_in_step = found.is_some();
        let Some(found) = found else {
            if self.since_jump <= RETURN {
                // The jump has led astray.
                (self.next, self.since_jump) = (self.passed_over, RETURN + 1);
            }
            return;
        };
        if found.entry != self.next {
            (self.passed_over, self.since_jump) = (self.next, 0);
        }
        let behind = found.entry + 1;
        self.next = if behind == self.entries.len() { self.repeated_from } else { behind };
        if let Some(below) = at_place {
            self.followed += 1;
            let base = self.base.unwrap_or(0);
            if let Some(entry) = self.entries.get_mut(found.entry) {
                entry.below = below.wrapping_sub(base);
            }
        }
    }

    /// Returns the host memory held, the struct itself included, in bytes.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        (size_of::<Self>() + self.entries.capacity() * size_of::<Entry>()) as u64 + self.runs.metadata_bytes()
    }
}

/// Returns the latest sizes after a request of `size` bytes.
fn with(recent: &[u64; RUN], size: u64) -> [u64; RUN] {
    let mut sizes = *recent;
    sizes.rotate_left(1);
    sizes[RUN - 1] = size;
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of the given sizes, one behind the other.
    fn plan(sizes: &[u64], repeated_from: usize) -> PlacementPlan {
        let entries = sizes.iter().zip(0..).map(|(&size, place)| Entry::new(size, place * 4096)).collect();
        let mut plan = PlacementPlan::new(entries, repeated_from, 1 << 20).unwrap();
        plan.set_base(1 << 40);
        plan
    }

    /// Serves requests at the places planned. Returns the entries that matched.
    fn follow(plan: &mut PlacementPlan, sizes: &[u64]) -> Vec<Option<u64>> {
        let one = |&size: &u64| {
            let found = plan.find(size, false);
            assert_eq!(plan.find(size, false), found, "a request may be tried several times");
            let place = found.and_then(|found| found.place);
            plan.served(size, found.as_ref(), place);
            place.map(|place| (place - (1 << 40)) / 4096)
        };
        sizes.iter().map(one).collect()
    }

    #[test]
    fn the_repeated_part_is_followed_again_and_again() {
        let mut plan = plan(&[256, 512, 768, 1024], 2);
        let sizes = [256, 512, 768, 1024, 768, 1024, 768];
        let expected = [0, 1, 2, 3, 2, 3, 2].map(Some);
        assert_eq!((follow(&mut plan, &sizes), plan.followed()), (expected.to_vec(), 7));
        plan.reset_stats();
        follow(&mut plan, &[1024]);
        assert_eq!((plan.followed(), plan.followed_since_reset()), (8, 1));
        plan.restart();
        plan.set_base(1 << 40);
        assert_eq!(follow(&mut plan, &[256]), [Some(0)]);
    }

    #[test]
    fn a_request_that_is_not_in_the_plan_is_passed_over() {
        let mut plan = plan(&[256, 512, 768, 1024], 0);
        assert_eq!(follow(&mut plan, &[256, 9984, 512, 768]), [Some(0), None, Some(1), Some(2)]);
    }

    #[test]
    fn a_program_that_skips_a_part_finds_the_plan_again() {
        let sizes: Vec<u64> = (1..100).map(|size| size * 256).collect();
        let mut plan = plan(&sizes, 0);
        follow(&mut plan, &sizes[..10]);
        let found = follow(&mut plan, &sizes[40..50]);
        assert_eq!(found[..RUN - 1], [None; RUN - 1]);
        let expected: Vec<_> = (40 + RUN as u64 - 1..50).map(Some).collect();
        assert_eq!(found[RUN - 1..], expected);
        // The end of the repeated part is followed by its beginning.
        let mut last = sizes[97..].to_vec();
        last.extend(&sizes[..3]);
        assert_eq!(follow(&mut plan, &last), [None, None, None, Some(1), Some(2)].as_slice().to_vec());
    }

    #[test]
    fn a_program_may_leave_some_out_or_make_some_more() {
        let sizes: Vec<u64> = (1..20).map(|size| size * 256).collect();
        let mut plan = plan(&sizes, 0);
        assert_eq!(follow(&mut plan, &[sizes[0], sizes[3], sizes[4]]), [Some(0), Some(3), Some(4)]);
        // One more that looks like a later one: the plan goes on where it was.
        assert_eq!(follow(&mut plan, &[sizes[8], sizes[5], sizes[6]]), [Some(8), Some(5), Some(6)]);
        assert_eq!(follow(&mut plan, &[sizes[9], 9984, sizes[7]]), [Some(9), None, Some(7)]);
        // As far ahead as that only a run counts.
        assert_eq!(follow(&mut plan, &[sizes[17], sizes[8]]), [None, Some(8)]);
    }

    #[test]
    fn a_program_that_leaves_the_plan_for_long_is_not_trusted() {
        let mut plan = plan(&[256], 0);
        follow(&mut plan, &[256; 7]);
        assert_eq!(plan.end(), None, "nor one that has not followed it yet");
        follow(&mut plan, &[256; 200]);
        assert_eq!(plan.end(), Some(((1 << 40) + (1 << 20), None)));
        follow(&mut plan, &[512; 64]);
        assert!(plan.end().is_some());
        follow(&mut plan, &[512]);
        assert!(plan.end().is_none());
        follow(&mut plan, &[256, 256]);
        assert!(plan.end().is_some());
    }

    #[test]
    fn behind_the_end_nothing_is_planned_until_a_run_comes_again() {
        let sizes: Vec<u64> = (1..20).map(|size| size * 256).collect();
        let mut plan = plan(&sizes, sizes.len());
        follow(&mut plan, &sizes);
        let again = follow(&mut plan, &sizes);
        assert_eq!(again[..RUN - 1], [None; RUN - 1]);
        assert!(again[RUN - 1..].iter().all(Option::is_some));
    }

    #[test]
    fn a_program_that_has_freed_everything_begins_again() {
        let mut plan = plan(&[256, 512, 768, 1024, 256], 2);
        follow(&mut plan, &[256, 512, 768, 1024]);
        let at = |plan: &PlacementPlan, size, is_empty| plan.find(size, is_empty).map(|found| found.entry);
        assert_eq!(
            (at(&plan, 256, false), at(&plan, 256, true), at(&plan, 512, true)),
            (Some(4), Some(0), None)
        );
        let mut repeated = self::plan(&[256, 512, 256, 768], 0);
        follow(&mut repeated, &[256, 512]);
        assert_eq!(at(&repeated, 256, true), Some(2), "there is no prologue");
    }

    #[test]
    fn without_a_region_or_a_place_there_is_no_address() {
        let entries = vec![Entry::new(256, NO_PLACE), Entry::new(256, 4096)];
        let mut plan = PlacementPlan::new(entries, 2, 1 << 20).unwrap();
        let unplaced = plan.find(256, false).unwrap();
        plan.set_base(1 << 40);
        assert_eq!((unplaced.place, plan.find(256, false).unwrap().place), (None, None));
        plan.served(256, Some(&unplaced), None);
        assert_eq!(plan.find(256, false).unwrap().place, Some((1 << 40) + 4096));
        plan.set_base(u64::MAX - 255);
        assert_eq!(plan.find(256, false).unwrap().place, None);
        assert_eq!(plan.followed(), 0);
    }
}
