//! Pool memory between the call of cuMemFreeAsync and the free in stream order. Work queued before the call may still
//! access it. Work queued after the call must not, on any stream: "After this API returns, accessing the memory from
//! any subsequent work launched on the GPU or querying its pointer attributes results in undefined behavior"
//! (cuMemFreeAsync).

use crate::sim::Sim;
use crate::state::work::{Source, Work};

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
        if let Some((at, start)) = touched(work).into_iter().find_map(|at| Some((at, self.ending_at(at)?))) {
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

/// Returns the first address of each range that work accesses.
fn touched(work: &Work) -> Vec<u64> {
    match work {
        Work::Fill { at, bytes: 1.., .. } | Work::Expect { at, bytes: 1.., .. } => vec![*at],
        Work::Set { at, count: 1.., .. } | Work::Words { at, words: 1.., .. } => vec![*at],
        Work::WriteValue { at, .. } | Work::WaitValue { at, .. } => vec![*at],
        Work::All(works) => works.iter().flat_map(touched).collect(),
        Work::Compare { at, wrong, .. } => vec![*at, *wrong],
        Work::CopyWords { to, from, words: 1.. } => vec![*to, *from],
        Work::Copy { to, from, bytes: 1.., .. } => match from {
            Source::Address(from) => vec![*to, *from],
            Source::Staged(_) => vec![*to],
        },
        _ => Vec::new(),
    }
}
