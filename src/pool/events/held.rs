//! Counts for each event the threads that query or wait for it with the lock open.

use crate::backend::order::Event;
use bfc_hostmem::HostMemoryExhausted;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The events that threads hold. A hash table, because a request that queries hundreds of streams holds as many events.
#[derive(Default)]
pub(super) struct HeldEvents(HashMap<u64, Hold, BuildHasherDefault<HandleHasher>>);

#[derive(Default)]
struct Hold {
    threads: u32,
    /// Whether the event was destroyed with its context.
    is_lost: bool,
}

impl HeldEvents {
    /// Adds a thread that holds each of these events.
    pub(super) fn add(
        &mut self,
        events: impl Iterator<Item = Event> + Clone,
    ) -> Result<(), HostMemoryExhausted> {
        self.0.try_reserve(events.clone().count()).map_err(|_| HostMemoryExhausted)?;
        events.for_each(|event| self.0.entry(event.handle).or_default().threads += 1);
        Ok(())
    }

    /// Removes a thread that held an event. Returns whether the event was lost meanwhile.
    pub(super) fn remove(&mut self, event: Event) -> bool {
        let Some(hold) = self.0.get_mut(&event.handle) else { return false };
        hold.threads -= 1;
        let is_lost = hold.is_lost;
        if hold.threads == 0 {
            self.0.remove(&event.handle);
        }
        is_lost
    }

    /// Marks an event as destroyed with its context. Threads that still hold it must not make it spare.
    pub(super) fn lose(&mut self, event: Event) {
        if let Some(hold) = self.0.get_mut(&event.handle) {
            hold.is_lost = true;
        }
    }

    #[inline]
    pub(super) fn contains(&self, event: Event) -> bool {
        !self.0.is_empty() && self.0.contains_key(&event.handle)
    }
}

/// A hasher for the driver's handles, which are addresses of its objects. A multiplication spreads the bits that differ
/// between them (Fibonacci hashing, Knuth, The Art of Computer Programming, volume 3, 6.4).
#[derive(Default)]
struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, handle: u64) {
        let product = (self.0 ^ handle).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::HeldEvents;
    use crate::backend::order::{Context, Event};

    /// Every thread that releases an event after its loss learns of it.
    #[test]
    fn an_event_that_was_lost_stays_so_for_all_who_hold_it() {
        let [lost, whole] = [1, 2].map(|handle| Event { handle, context: Context::OWN });
        let mut held = HeldEvents::default();
        for _ in 0..2 {
            held.add([lost, whole].into_iter()).unwrap();
        }
        assert!(!held.remove(lost), "nobody knows yet");
        held.lose(lost);
        assert!(held.contains(lost) && held.remove(lost) && !held.contains(lost));
        assert!(!held.remove(whole) && held.contains(whole));
        assert!(!held.remove(whole) && !held.contains(whole));
        // The driver may reuse its handle.
        held.add([lost].into_iter()).unwrap();
        assert!(!held.remove(lost));
    }
}
