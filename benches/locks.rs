//! Which lock an allocator should have: `cargo xtask bench --only locks`.
//!
//! Threads take one lock in turn, do what an allocation does to memory while they hold it (a handful of
//! dependent loads and stores in a few cache lines), and something of their own in between. Printed are
//! nanoseconds an operation over all threads, and the longest that any thread waited, for 1 to 8 threads; then how
//! long single operations take beside fifteen other processes that compute all the time.
//! `spin` and `std` are the crates' and the standard library's; `park` is spin-then-futex as in glibc and
//! parking_lot; `ours` is the library's own, included as source, for it is not public.

// Parts of the included files are for the library only.
#[allow(dead_code, missing_docs)]
#[path = "../src/sys/clock.rs"]
mod clock;
#[allow(dead_code, missing_docs)]
#[path = "../src/sys/futex.rs"]
mod futex;
#[allow(dead_code, missing_docs)]
#[path = "../src/sys/lock.rs"]
mod ours;
#[allow(dead_code, missing_docs)]
#[path = "../src/sys/token.rs"]
mod token;

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// What is measured: exclusive access to a pool.
trait Exclusive: Sync {
    fn with(&self, work: impl FnOnce(&mut Pool));
}

/// Stands for an allocator's hot memory.
struct Pool {
    lines: [[u64; 8]; 64],
    at: usize,
}

impl Pool {
    const fn new() -> Self {
        Pool { lines: [[1; 8]; 64], at: 0 }
    }

    /// Six dependent steps, as a search and a split have.
    fn operate(&mut self) {
        for _ in 0..6 {
            let line = &mut self.lines[self.at % 64];
            line[0] = line[0].wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(self.at as u64);
            self.at = (line[0] >> 32) as usize;
        }
    }
}

struct Ours(ours::Lock, UnsafeCell<Pool>);
// SAFETY: the cell is reached with the lock held only.
unsafe impl Sync for Ours {}

impl Exclusive for Ours {
    fn with(&self, work: impl FnOnce(&mut Pool)) {
        // No thread takes it twice.
        let _ = self.0.acquire();
        // SAFETY: the lock is held.
        work(unsafe { &mut *self.1.get() });
        self.0.release();
    }
}

struct Park(AtomicU32, UnsafeCell<Pool>);
// SAFETY: as above.
unsafe impl Sync for Park {}

impl Park {
    fn futex(&self, operation: i32, value: u32) {
        let word = self.0.as_ptr();
        let timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the word outlives the call, and the timeout is NULL.
        unsafe { libc::syscall(libc::SYS_futex, word, operation | libc::FUTEX_PRIVATE_FLAG, value, timeout) };
    }
}

impl Exclusive for Park {
    fn with(&self, work: impl FnOnce(&mut Pool)) {
        let mut spins = 0;
        while self.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            spins += 1;
            std::hint::spin_loop();
            if spins > 100 {
                while self.0.swap(2, Acquire) != 0 {
                    self.futex(libc::FUTEX_WAIT, 2);
                }
                break;
            }
        }
        // SAFETY: the lock is held.
        work(unsafe { &mut *self.1.get() });
        if self.0.swap(0, Release) == 2 {
            self.futex(libc::FUTEX_WAKE, 1);
        }
    }
}

impl Exclusive for spin::Mutex<Pool> {
    fn with(&self, work: impl FnOnce(&mut Pool)) {
        work(&mut self.lock());
    }
}

impl Exclusive for std::sync::Mutex<Pool> {
    fn with(&self, work: impl FnOnce(&mut Pool)) {
        work(&mut self.lock().expect("nobody panics here"));
    }
}

/// Nanoseconds an operation, and the longest wait.
fn measure(lock: &impl Exclusive, threads: u64) -> (f64, Duration) {
    const OPERATIONS: u64 = 2_000_000;
    let longest = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut worst = 0;
                for batch in 0..OPERATIONS / threads / 16 {
                    let before = Instant::now();
                    for own in 0..16 {
                        lock.with(Pool::operate);
                        black_box(batch * own);
                    }
                    worst = worst.max(before.elapsed().as_nanos() as u64);
                }
                longest.fetch_max(worst, Relaxed);
            });
        }
    });
    let each = start.elapsed().as_nanos() as f64 / OPERATIONS as f64;
    (each, Duration::from_nanos(longest.into_inner()))
}

/// How long an operation takes in microseconds: the 99th percentile, and that of 99.9.
fn latencies(lock: &impl Exclusive, threads: usize) -> [f64; 2] {
    const OPERATIONS: usize = 4_000_000;
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let measure = || {
            let mut own = Vec::with_capacity(OPERATIONS / threads);
            for _ in 0..OPERATIONS / threads {
                let before = Instant::now();
                lock.with(Pool::operate);
                own.push(before.elapsed().as_nanos() as u32);
            }
            own
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        all.extend(workers.into_iter().flat_map(|worker| worker.join().expect("nobody panics here")));
    });
    all.sort_unstable();
    [0.99, 0.999].map(|part| all[(all.len() as f64 * part) as usize] as f64 / 1000.0)
}

/// Processes that compute until this is dropped.
struct Busy(Vec<std::process::Child>);

impl Busy {
    const ARGUMENT: &str = "--busy";

    fn start(count: usize) -> Self {
        let this = std::env::current_exe().expect("the system knows this program");
        let start = |_| {
            std::process::Command::new(&this).arg(Busy::ARGUMENT).spawn().expect("a process can be started")
        };
        Busy((0..count).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have been killed from outside.
            let _ = process.kill().and_then(|()| process.wait());
        }
    }
}

fn main() {
    if std::env::args().any(|argument| argument == Busy::ARGUMENT) {
        // SAFETY: ends this process with the one that started it, however that ends.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            std::hint::spin_loop();
        }
    }
    const ROUNDS: usize = 5;
    let ours = Ours(ours::Lock::new(), UnsafeCell::new(Pool::new()));
    let park = Park(AtomicU32::new(0), UnsafeCell::new(Pool::new()));
    let spin = spin::Mutex::new(Pool::new());
    let std = std::sync::Mutex::new(Pool::new());
    println!("ns an operation (best of {ROUNDS} interleaved rounds) and the longest wait for 16 operations");
    println!("threads          ours               spin                std               park");
    for threads in [1, 2, 4, 8] {
        let mut best = [(f64::MAX, Duration::ZERO); 4];
        for _ in 0..ROUNDS {
            let round = [
                measure(&ours, threads),
                measure(&spin, threads),
                measure(&std, threads),
                measure(&park, threads),
            ];
            for (best, this) in best.iter_mut().zip(round) {
                *best = (best.0.min(this.0), best.1.max(this.1));
            }
        }
        print!("{threads:>7}");
        for (each, longest) in best {
            print!("  {each:>7.1} {:>7.2} ms", longest.as_secs_f64() * 1000.0);
        }
        println!();
    }
    const BUSY: usize = 15;
    let _busy = Busy::start(BUSY);
    println!(
        "us that 99% and 99.9% of the operations take at most, beside {BUSY} busy processes (median of {ROUNDS})"
    );
    for threads in [2, 8] {
        let mut rounds = [[[0.0; ROUNDS]; 2]; 4];
        for round in 0..ROUNDS {
            let found = [
                latencies(&ours, threads),
                latencies(&spin, threads),
                latencies(&std, threads),
                latencies(&park, threads),
            ];
            for (lock, found) in rounds.iter_mut().zip(found) {
                (lock[0][round], lock[1][round]) = (found[0], found[1]);
            }
        }
        print!("{threads:>7}");
        for lock in &mut rounds {
            lock.iter_mut().for_each(|part| part.sort_by(f64::total_cmp));
            print!("  {:>7.1} {:>7.1} us", lock[0][ROUNDS / 2], lock[1][ROUNDS / 2]);
        }
        println!();
    }
}
