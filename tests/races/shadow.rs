//! The queued work that may still touch memory, as tracked by the test itself.
//!
//! Each piece of work is followed by a mark on its stream: a simulated kernel that records its completion. The first
//! work on a new allocation is also preceded by a mark, which checks whether all work that was queued on that memory
//! before has completed. If not, the chunk was handed out too early, whatever its contents.

use crate::common::gpu::Gpu;
use crate::common::pointer;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Queued work on a range of memory.
pub struct Deed {
    start: u64,
    end: u64,
    /// For messages: the numbers of the stream and the allocation.
    stream: usize,
    allocation: u64,
    done: AtomicBool,
}

/// The work that must have completed before the first work on an allocation.
struct Barrier {
    allocation: u64,
    before: Vec<Arc<Deed>>,
}

/// The number of times that a barrier found pending work, and the message of the first.
static RACES: AtomicU64 = AtomicU64::new(0);
static WORDS: Mutex<String> = Mutex::new(String::new());

/// Returns the races so far in this process, with the message of the first.
pub fn races() -> (u64, String) {
    (RACES.load(SeqCst), WORDS.lock().unwrap().clone())
}

/// The work that is queued and not known to have completed.
#[derive(Default)]
pub struct Shadow {
    deeds: Vec<Arc<Deed>>,
    /// Ranges that belong to graphs, with the private pool of each.
    reserved: Vec<(u64, u64, u64)>,
    allocations: u64,
    /// The number of times that memory was handed out with pending work of another stream, which shows that the tests
    /// are effective.
    pub crossings: u64,
    /// The same on the same stream.
    pub reuses: u64,
}

/// A new allocation, as tracked here.
pub struct Entry {
    pub number: u64,
    /// The work queued on its memory by others.
    barrier: Option<Box<Barrier>>,
}

impl Entry {
    /// Returns whether work of others is queued on its memory.
    pub fn is_awaiting(&self) -> bool {
        self.barrier.is_some()
    }

    /// Checks whether that work has completed now, because any stream may use the memory at once.
    pub fn look_now(self) {
        if let Some(barrier) = self.barrier {
            barrier.look();
        }
    }

    /// Checks, when it runs on the stream, whether that work has completed. Call it before any work is queued, on
    /// the stream's thread.
    pub fn look(self, gpu: Gpu, stream: u64) {
        if let Some(barrier) = self.barrier {
            let argument = Box::into_raw(barrier).cast();
            assert_eq!(gpu.sim.launch(pointer(stream), look, argument), 0);
        }
    }
}

impl Shadow {
    /// Records that memory was handed out to a stream, common or of a private pool.
    pub fn allocated(&mut self, start: u64, bytes: u64, stream: usize, private: u64) -> Entry {
        self.allocations += 1;
        let end = start + bytes;
        let stray = self.reserved.iter().find(|&&(at, to, pool)| at < end && start < to && pool != private);
        if let Some((at, to, pool)) = stray {
            panic!("{start:#x} to {end:#x} was handed out; {at:#x} to {to:#x} is private pool {pool}'s");
        }
        self.deeds.retain(|deed| !deed.done.load(SeqCst));
        let before: Vec<_> =
            self.deeds.iter().filter(|deed| deed.start < end && start < deed.end).cloned().collect();
        self.crossings += u64::from(before.iter().any(|deed| deed.stream != stream));
        self.reuses += u64::from(before.iter().any(|deed| deed.stream == stream));
        let number = self.allocations;
        let barrier = (!before.is_empty()).then(|| Box::new(Barrier { allocation: number, before }));
        Entry { number, barrier }
    }

    /// Records that work was queued on it.
    pub fn queued(&mut self, start: u64, bytes: u64, stream: usize, allocation: u64) -> Arc<Deed> {
        let end = start + bytes;
        let deed = Arc::new(Deed { start, end, stream, allocation, done: AtomicBool::new(false) });
        self.deeds.push(deed.clone());
        deed
    }

    /// Returns how much work is queued on a range of memory, or on any.
    pub fn undone(&self, start: u64, bytes: u64) -> usize {
        let touches = |deed: &&Arc<Deed>| deed.start < start.saturating_add(bytes) && start < deed.end;
        self.deeds.iter().filter(touches).filter(|deed| !deed.done.load(SeqCst)).count()
    }

    /// Records that the contexts have ended, and all work with them.
    pub fn forget(&mut self) {
        self.deeds.clear();
    }

    /// Records a graph's memory, which is not reusable by others until the private pool is released.
    pub fn reserve(&mut self, start: u64, bytes: u64, pool: u64) {
        self.reserved.push((start, start + bytes, pool));
    }

    /// Returns the ranges of a private pool.
    pub fn reserved(&self, pool: u64) -> Vec<(u64, u64)> {
        let of_pool = self.reserved.iter().filter(|(.., other)| *other == pool);
        of_pool.map(|&(start, end, _)| (start, end - start)).collect()
    }

    /// Records that a private pool was released, so its memory is like any other.
    pub fn released(&mut self, pool: u64) {
        self.reserved.retain(|(.., other)| *other != pool);
    }
}

/// Records that work has completed, when it runs. Call it after the work, on the stream's thread.
pub fn mark(gpu: Gpu, stream: u64, deed: Arc<Deed>) {
    let argument = Arc::into_raw(deed).cast_mut().cast();
    assert_eq!(gpu.sim.launch(pointer(stream), done, argument), 0);
}

unsafe extern "C" fn done(deed: *mut c_void) {
    // SAFETY: `mark` passed it to this call, which is the only one.
    unsafe { Arc::from_raw(deed.cast::<Deed>()) }.done.store(true, SeqCst);
}

unsafe extern "C" fn look(barrier: *mut c_void) {
    // SAFETY: `Entry::look` passed it to this call, which is the only one.
    unsafe { Box::from_raw(barrier.cast::<Barrier>()) }.look();
}

impl Barrier {
    fn look(&self) {
        for deed in self.before.iter().filter(|deed| !deed.done.load(SeqCst)) {
            if RACES.fetch_add(1, SeqCst) == 0 {
                let (Deed { start, end, stream, allocation, .. }, number) = (&**deed, self.allocation);
                *WORDS.lock().unwrap() = format!(
                    "work on allocation {number} may begin while stream {stream} has not done its work on \
                     allocation {allocation} at {start:#x} to {end:#x}"
                );
            }
        }
    }
}
