//! The state of the debug mode: which guards are exempt from checks, because they could not be written, and what was
//! found. [`guarded`](super::guarded) does the work.

use crate::report::Guarding;
use bfc_hostmem::HostMemoryExhausted;

/// The guard in front of a chunk, if free memory lies there.
pub(super) const FRONT: u64 = 1;
/// The guard behind the requested bytes.
pub(super) const BEHIND: u64 = 2;

const BOTH: u64 = FRONT | BEHIND;

/// The chunks in use with exempt guards. An entry is the chunk's address, a multiple of 256, combined with [`FRONT`],
/// [`BEHIND`] or both. Usually there are none.
#[derive(Default)]
pub(super) struct Exempt {
    /// The entries in address order.
    entries: Vec<u64>,
}

impl Exempt {
    /// Reserves memory for `count` chunks, so that `set` needs none.
    pub(super) fn reserve(&mut self, count: u64) -> Result<(), HostMemoryExhausted> {
        let count = usize::try_from(count).map_err(|_| HostMemoryExhausted)?;
        Ok(self.entries.try_reserve(count.saturating_sub(self.entries.len()))?)
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn place(&self, addr: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&addr, |entry| entry & !BOTH)
    }

    /// Returns whether one of the given guards of a chunk is exempt.
    pub(super) fn has(&self, addr: u64, which: u64) -> bool {
        self.place(addr).is_ok_and(|place| self.entries[place] & which != 0)
    }

    /// Exempts guards of a chunk, or ends their exemption.
    pub(super) fn set(&mut self, addr: u64, which: u64, exempt: bool) {
        match self.place(addr) {
            Ok(place) if exempt => self.entries[place] |= which,
            Ok(place) => {
                self.entries[place] &= !which;
                if self.entries[place] & BOTH == 0 {
                    self.entries.remove(place);
                }
            }
            // There is always room. If there were none, a false report about a guard would be better than a panic.
            Err(place) if exempt && self.entries.len() < self.entries.capacity() => {
                self.entries.insert(place, addr | which);
            }
            Err(_) => {}
        }
    }

    /// Removes a chunk that is not in use any more.
    pub(super) fn forget(&mut self, addr: u64) {
        self.set(addr, BOTH, false);
    }
}

const BUFFER: usize = 64 << 10;

/// Allocates the buffer that memory is read into. It is large, because each read of device memory takes a while.
pub(super) fn buffer() -> Result<Vec<u8>, HostMemoryExhausted> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(BUFFER)?;
    buffer.resize(BUFFER, 0);
    Ok(buffer)
}

/// The debug mode of one allocator.
pub(crate) struct Guards {
    pub(super) exempt: Exempt,
    /// The buffer that memory is read into. The thread that writes or checks guards uses it.
    pub(super) buffer: Vec<u8>,
    /// The chunk whose guards a thread is writing, and the chunk in use behind it.
    pub(super) at_work: Option<(u64, Option<u64>)>,
    pub(super) violations: u64,
    pub(super) unchecked: u64,
    /// The message of the last violation.
    pub(super) last: String,
    /// Whether a failure of the driver was logged as a warning. Such failures usually persist.
    pub(super) warned: bool,
}

impl Guards {
    pub(super) fn new() -> Result<Self, HostMemoryExhausted> {
        Ok(Guards {
            exempt: Exempt::default(),
            buffer: buffer()?,
            at_work: None,
            violations: 0,
            unchecked: 0,
            last: String::new(),
            warned: false,
        })
    }

    pub(super) fn summary(&self) -> Guarding<'_> {
        Guarding { violations: self.violations, unchecked: self.unchecked, last: &self.last }
    }

    /// Forgets all exemptions after the loss of all memory.
    pub(super) fn forget_all(&mut self) {
        self.exempt.clear();
    }

    /// Exempts the guards that a thread of the parent was writing, in a forked child where that thread does not exist.
    pub(super) fn abandon(&mut self) {
        if let Some((addr, next)) = self.at_work.take() {
            self.exempt.set(addr, FRONT | BEHIND, true);
            next.into_iter().for_each(|next| self.exempt.set(next, FRONT, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_map() {
        let (mut exempt, mut model) = (Exempt::default(), std::collections::HashMap::new());
        exempt.reserve(64).unwrap();
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (addr, which) =
                ((random >> 33) % 64 * 256, [FRONT, BEHIND, BOTH][(random >> 40) as usize % 3]);
            let old = model.entry(addr).or_insert(0);
            match (random >> 50) % 3 {
                0 => exempt.set(addr, which, true),
                1 => exempt.set(addr, which, false),
                _ => exempt.forget(addr),
            }
            *old = match (random >> 50) % 3 {
                0 => *old | which,
                1 => *old & !which,
                _ => 0,
            };
            for (&addr, &flags) in &model {
                assert_eq!(
                    [FRONT, BEHIND].map(|which| exempt.has(addr, which)),
                    [flags & 1 != 0, flags & 2 != 0]
                );
            }
            let count = model.values().filter(|&&flags| flags != 0).count();
            assert_eq!(exempt.entries.len(), count, "nothing is left of what ended");
        }
        assert!(exempt.entries.capacity() >= 64);
    }
}
