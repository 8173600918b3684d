//! Finds the backtraces, functions and modules that are already in the file. The tables are not in the file, so that
//! nothing outside of the process can change what the library relies on.

use bfc_formats::history::layout::{Header, MOST_FRAMES, STACK_BYTES};
use bfc_hostmem::HostMemoryExhausted;
use bfc_hostmem::{Mapping, PAGE};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The maximum number of words of a backtrace, with its head.
pub(super) const MOST_WORDS: usize = 1 + 2 * MOST_FRAMES;
const AREA_WORDS: usize = STACK_BYTES / 8;
/// The entries of the tables, powers of two. They take 900 KiB, of which only the used part is resident.
const STACKS: usize = 1 << 16;
const FUNCTIONS: usize = 1 << 14;
const MODULES: usize = 1 << 12;
/// The number of entries that a search visits. A table is treated as full if they are all taken.
const PROBES: usize = 64;

pub(super) struct Interner {
    memory: Mapping,
    /// The area of backtraces in the history, once it is used.
    area: AreaPointer,
    used: usize,
    functions: u32,
}

struct AreaPointer(*mut u64);

// SAFETY: the area belongs to the recording, which owns the interner and is locked.
unsafe impl Send for AreaPointer {}

/// An entry of zeros is empty in each.
#[repr(C)]
struct Tables {
    /// The upper half of the hash, and the number of the backtrace.
    stacks: [u64; STACKS],
    functions: [(u64, u64); FUNCTIONS],
    modules: [u64; MODULES],
}

/// The number of a function, and whether it has no text yet.
pub(super) struct Function {
    pub(super) number: u32,
    pub(super) is_new: bool,
}

impl Interner {
    pub(super) fn new() -> Result<Self, HostMemoryExhausted> {
        let memory = Mapping::new(size_of::<Tables>(), PAGE)?;
        Ok(Interner { memory, area: AreaPointer(std::ptr::null_mut()), used: 0, functions: 0 })
    }

    /// # Safety
    /// The area has [`STACK_BYTES`] zeros, and stays mapped as long as the interner is used.
    pub(super) unsafe fn in_area(mut self, area: *mut u64) -> Self {
        self.area = AreaPointer(area);
        self
    }

    fn tables(&mut self) -> &mut Tables {
        // SAFETY: the mapping is that large, zeros are valid entries, and it is borrowed like the interner.
        unsafe { &mut *self.memory.base().cast() }
    }

    /// The number of the next new backtrace.
    pub(super) fn next_number(&self) -> u32 {
        self.used as u32 + 1
    }

    /// Returns the number of a backtrace that is in the file.
    pub(super) fn find(&mut self, words: &[u64]) -> Option<u32> {
        self.place_of(words).ok()
    }

    /// Returns the number of a backtrace, or the entry for it, which is absent in a full table.
    fn place_of(&mut self, words: &[u64]) -> Result<u32, Option<usize>> {
        let hash = hash(words);
        for probe in 0..PROBES {
            let place = (hash as usize).wrapping_add(probe) % STACKS;
            let entry = self.tables().stacks[place];
            if entry == 0 {
                return Err(Some(place));
            }
            if entry >> 32 == hash >> 32 && self.has_words(entry as u32, words) {
                return Ok(entry as u32);
            }
        }
        Err(None)
    }

    /// Returns whether the backtrace of that number has these words.
    fn has_words(&self, number: u32, words: &[u64]) -> bool {
        let begin = number as usize - 1;
        if begin + words.len() > self.used {
            return false;
        }
        let there = self.area.0.wrapping_add(begin);
        // SAFETY: within the used part of the area.
        words.iter().enumerate().all(|(at, &word)| unsafe { there.wrapping_add(at).read_volatile() } == word)
    }

    /// Stores a backtrace that is not in the file. If there is no room, it is counted.
    pub(super) fn add(&mut self, words: &[u64], header: &Header) -> Option<u32> {
        let place = match self.place_of(words) {
            Ok(number) => return Some(number),
            Err(place) => place.filter(|_| self.used + words.len() <= AREA_WORDS),
        };
        let Some(place) = place else {
            header.stacks_lost.fetch_add(1, Relaxed);
            return None;
        };
        for (at, &word) in words.iter().enumerate() {
            // SAFETY: within the area, as compared above.
            unsafe { self.area.0.wrapping_add(self.used + at).write_volatile(word) };
        }
        let number = self.next_number();
        self.tables().stacks[place] = hash(words) >> 32 << 32 | u64::from(number);
        self.used += words.len();
        header.stacks_used.store((self.used * 8) as u64, Release);
        Some(number)
    }

    /// Returns the number of a function by its text. Two texts with the same hash of 64 bits are not distinguished.
    pub(super) fn function(&mut self, text: &[u8]) -> Option<Function> {
        let hash = hash_of_bytes(text).max(1);
        for probe in 0..PROBES {
            let place = (hash as usize).wrapping_add(probe) % FUNCTIONS;
            match self.tables().functions[place] {
                (0, _) => {
                    self.functions += 1;
                    let number = self.functions;
                    self.tables().functions[place] = (hash, u64::from(number));
                    return Some(Function { number, is_new: true });
                }
                (there, number) if there == hash => {
                    return Some(Function { number: number as u32, is_new: false });
                }
                _ => {}
            }
        }
        None
    }

    /// Returns whether a module is new, and remembers it. A module for which there is no room is new each time.
    pub(super) fn is_new_module(&mut self, words: [u64; 2], path: &[u8]) -> bool {
        let hash = (hash(&words) ^ hash_of_bytes(path)).max(1);
        for probe in 0..PROBES {
            let place = (hash as usize).wrapping_add(probe) % MODULES;
            let entry = &mut self.tables().modules[place];
            if *entry == hash {
                return false;
            }
            if *entry == 0 {
                *entry = hash;
                return true;
            }
        }
        true
    }

    /// Forgets the modules after one was unloaded: others may be loaded at its addresses.
    pub(super) fn forget_modules(&mut self) {
        self.tables().modules.fill(0);
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

fn hash(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64 + 1, |hash, &word| mix(hash, word))
}

fn hash_of_bytes(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).fold(bytes.len() as u64 + 1, |hash, chunk| mix(hash, word(chunk)))
}
