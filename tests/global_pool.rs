//! `bfc::GlobalPool` as the global allocator of a program: of this one.

use bfc::{GlobalPool, History, HostPool, Pool, Scope};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LIMIT: usize = 1 << 30;

#[global_allocator]
static GLOBAL: GlobalPool = GlobalPool::with_limit(LIMIT);

fn live() -> u64 {
    let stats = GLOBAL.stats().expect("a pool");
    stats.num_allocs - stats.num_frees
}

#[test]
fn large_requests_are_the_pools_and_small_ones_are_not() {
    let at_chunks = |bytes: usize| {
        let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![7; bytes]).collect();
        blocks.iter().filter(|block| block.as_ptr().addr() % 256 == 0).count()
    };
    assert_eq!(at_chunks(256), 64);
    // The system's are multiples of 16.
    assert!(at_chunks(255) < 64);
    let stats = GLOBAL.stats().expect("a pool");
    assert_eq!((stats.num_regions, stats.pool_bytes), (1, LIMIT as u64));
}

#[test]
fn contents_stay_while_vectors_grow_and_shrink() {
    let mut numbers = Vec::new();
    for number in 0..100_000u32 {
        numbers.push(number);
        if number % 777 == 0 {
            numbers.shrink_to_fit();
        }
    }
    assert!(numbers.iter().enumerate().all(|(place, &number)| place == number as usize));
    assert!(vec![0u64; 1 << 16].iter().all(|&number| number == 0));
}

#[test]
fn a_full_region_is_an_error() {
    let mut bytes = Vec::<u8>::new();
    assert!(bytes.try_reserve(LIMIT + 1).is_err());
    assert!(bytes.try_reserve(1000).is_ok());
}

#[test]
fn alignments_are_those_of_the_layout() {
    for power in 0..22 {
        let layout = std::alloc::Layout::from_size_align(1000, 1 << power).unwrap();
        // SAFETY: the layout is not of size 0.
        let pointer = unsafe { std::alloc::alloc(layout) };
        assert_eq!(pointer.addr() % layout.align(), 0);
        // SAFETY: it was allocated above.
        unsafe { std::alloc::dealloc(pointer, layout) };
    }
}

/// The arena's tables grow while it serves, by memory of this very allocator.
#[test]
fn tables_grow_with_a_hundred_thousand_blocks() {
    let blocks: Vec<Vec<u8>> = (0..100_000).map(|number| vec![number as u8; 256]).collect();
    assert!(live() >= 100_000);
    assert!(blocks.iter().enumerate().all(|(number, block)| block.iter().all(|&byte| byte == number as u8)));
}

thread_local! {
    static AT_EXIT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Last(Vec<u8>);

impl Drop for Last {
    fn drop(&mut self) {
        // Other thread-local values may be gone.
        let copy = self.0.clone();
        assert_eq!(copy.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 4000);
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

#[test]
fn threads_allocate_until_they_end() {
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            scope.spawn(move || {
                LAST.set(Some(Last(vec![1; 4000])));
                AT_EXIT.with_borrow_mut(|list| list.push("x".repeat(1000)));
                let mut map = HashMap::new();
                for step in 0..2000 {
                    let place = (step * 7 + thread) % 97;
                    let replaced = map.insert(place, vec![place as u8; 200 + place * 50]);
                    assert!(replaced.is_none_or(|old| old.iter().all(|&byte| byte == place as u8)));
                }
            });
        }
    });
}

/// What the library allocates for itself comes from the global allocator too, with its locks held.
#[test]
fn the_library_works_on_top() {
    let pool =
        Pool::builder(300).backend(bfc::BackendKind::Host).memory_limit(64 << 20).build_host().unwrap();
    let history = History::builder().events(1024).stacks(bfc::Stacks::NATIVE).record_in_memory().unwrap();
    let mut blocks = Vec::new();
    for step in 0..2000 {
        let _scope = Scope::enter(&format!("operation {step}"), step).unwrap();
        blocks.push(pool.alloc(100 + step as usize).unwrap());
    }
    assert!(pool.report().unwrap().contains("operation"));
    assert!(pool.regions().unwrap().iter().map(|region| region.chunks().len()).sum::<usize>() > 2000);
    assert!(pool.alloc(1 << 30).unwrap_err().message().contains("exhaustion"));
    history.stop().unwrap();
    drop(blocks);
    pool.destroy().unwrap();
}

/// Ends the other threads, also after a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A child has its own copy, whatever other threads were doing.
#[test]
fn forked_children_allocate() {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop(std::hint::black_box(vec![1u8; 3000]));
                }
            });
        }
        let _over = Over(&is_over);
        for number in 0..200u8 {
            let before = vec![number; 1000];
            // SAFETY: the child only allocates and ends.
            match unsafe { libc::fork() } {
                0 => {
                    let after: Vec<u8> = before.iter().map(|&byte| byte ^ 0xff).collect();
                    let fits = after.iter().all(|&byte| byte == number ^ 0xff) && GLOBAL.stats().is_some();
                    drop((before, after));
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(if fits { 0 } else { 1 }) };
                }
                child => {
                    let mut status = 0;
                    // SAFETY: the status is writable.
                    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
                    assert_eq!((ended, status), (child, 0));
                }
            }
        }
    });
}

#[test]
fn host_pools_are_beside_it() {
    let pool = HostPool::new(1 << 20).unwrap();
    let mut block = pool.alloc_zeroed(1000).unwrap();
    block[0] = 1;
    assert_eq!(block.iter().filter(|&&byte| byte != 0).count(), 1);
}
