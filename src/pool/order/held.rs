//! Events that threads query or wait for with the lock open, counted.

use crate::backend::order::Event;
use crate::sys::HostMemoryExhausted;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// How many threads hold each event. A request that asks about hundreds of streams holds as many, so it is a table.
#[derive(Default)]
pub(super) struct Held(HashMap<u64, u32, BuildHasherDefault<HandleHasher>>);

impl Held {
    /// One more thread holds each of these.
    pub(super) fn add(
        &mut self,
        events: impl Iterator<Item = Event> + Clone,
    ) -> Result<(), HostMemoryExhausted> {
        self.0.try_reserve(events.clone().count()).map_err(|_| HostMemoryExhausted)?;
        events.for_each(|event| *self.0.entry(event.handle).or_insert(0) += 1);
        Ok(())
    }

    /// A thread lets go of an event.
    pub(super) fn remove(&mut self, event: Event) {
        if let Some(count) = self.0.get_mut(&event.handle) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&event.handle);
            }
        }
    }

    #[inline]
    pub(super) fn contains(&self, event: Event) -> bool {
        !self.0.is_empty() && self.0.contains_key(&event.handle)
    }
}

/// Of a driver's handles, which are the addresses of its objects: the bits that differ between them are spread by a
/// multiplication (Fibonacci hashing, Knuth, The Art of Computer Programming, volume 3, 6.4).
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
