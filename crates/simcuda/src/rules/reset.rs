//! Resetting the machine, for a test that needs a fresh one.

use std::collections::BTreeSet;

use crate::options::Options;
use crate::sim::{self, Sim};
use crate::system;

impl Sim {
    /// Resets the state as in a fresh process, except that numbers continue, so that old handles are known to be stale.
    pub(crate) fn reset(&mut self, options: Options) {
        self.release_everything();
        self.begin_anew(options);
        sim::wake();
    }

    fn release_everything(&mut self) {
        let mapped: Vec<u64> = self.mappings.keys().copied().collect();
        for at in mapped {
            self.remove_mapping(at);
        }
        for (at, reservation) in std::mem::take(&mut self.reservations) {
            system::unreserve(at, reservation.bytes);
        }
        let handles: Vec<u64> = self.physical.keys().copied().collect();
        for handle in handles {
            if let Some(physical) = self.physical.get_mut(&handle) {
                physical.forget_references();
            }
            self.drop_physical(handle);
        }
        self.drop_graph_memory();
        let live: BTreeSet<u64> = self.allocations.keys().copied().collect();
        for at in live {
            self.release(at);
        }
        self.drop_pools();
    }
}
