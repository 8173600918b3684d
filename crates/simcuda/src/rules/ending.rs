//! Pool memory between the call of cuMemFreeAsync and the free in stream order. Work queued before the call may still
//! access it. Work queued after the call must not, on any stream: "After this API returns, accessing the memory from
//! any subsequent work launched on the GPU or querying its pointer attributes results in undefined behavior"
//! (cuMemFreeAsync).

use crate::sim::Sim;
use crate::state::work::Work;

impl Sim {
    /// Returns the ending memory that contains an address, unless the pool has handed the address out again.
    pub(crate) fn ending_at(&self, at: u64) -> Option<u64> {
        let (start, ending) = self.ending.range(..=at).next_back()?;
        (at - start < ending.bytes && self.find(at).is_none()).then_some(*start)
    }

    /// Counts a misuse for work that is queued now and accesses ending memory.
    pub(crate) fn check_launched(&mut self, work: &Work) {
        if self.ending.is_empty() {
            return;
        }
        if let Some((at, start)) =
            work.touches().into_iter().find_map(|touch| Some((touch.at, self.ending_at(touch.at)?)))
        {
            self.record.misuse(format!(
                "work that touches {at:#x} is launched after cuMemFreeAsync of {start:#x} has returned"
            ));
        }
    }

    /// Forgets ending memory once its free is done.
    pub(crate) fn forget_ending(&mut self, at: u64, unique: u64) {
        if self.ending.get(&at).is_some_and(|ending| ending.unique == unique) {
            self.ending.remove(&at);
        }
    }
}
