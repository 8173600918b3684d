//! Collections in a pool.

use crate::{cases, host_pool};
use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use bfc::HostPool;
use hashbrown::{DefaultHashBuilder, HashMap};
use proptest::prelude::*;
use proptest::sample::select;
use std::alloc::Layout;
use std::ptr::NonNull;

const LIMIT: u64 = 16 << 20;

fn pool() -> HostPool {
    host_pool(|builder| builder.memory_limit(LIMIT))
}

fn in_use(pool: &HostPool) -> u64 {
    pool.stats().unwrap().bytes_in_use
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        layout: Layout,
        zeroed: bool,
    },
    /// To a larger or smaller size, whichever the new one is.
    Resize {
        which: usize,
        layout: Layout,
        zeroed: bool,
    },
    Deallocate {
        which: usize,
    },
}

fn layout() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![
        1 => Just(0),
        8 => 1..2000_usize,
        3 => 1..(2_usize << 20),
        1 => select(vec![LIMIT as usize + 1, 1 << 46, isize::MAX as usize - (1 << 20)]),
    ];
    (size, 0..21_u32).prop_map(|(size, power)| Layout::from_size_align(size, 1 << power).unwrap())
}

fn program() -> impl Strategy<Value = std::vec::Vec<Step>> {
    let step = prop_oneof![
        3 => (layout(), any::<bool>()).prop_map(|(layout, zeroed)| Step::Allocate { layout, zeroed }),
        3 => (any::<usize>(), layout(), any::<bool>())
            .prop_map(|(which, layout, zeroed)| Step::Resize { which, layout, zeroed }),
        2 => any::<usize>().prop_map(|which| Step::Deallocate { which }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Memory with a layout, every byte of which has a value.
struct Filled {
    pointer: NonNull<u8>,
    layout: Layout,
    value: u8,
}

impl Filled {
    fn new(memory: NonNull<[u8]>, layout: Layout, value: u8) -> Self {
        assert!(memory.len() >= layout.size());
        let pointer = memory.cast::<u8>();
        assert!(pointer.addr().get().is_multiple_of(layout.align()), "{pointer:?} for {layout:?}");
        // SAFETY: the memory was just allocated with this layout.
        unsafe { pointer.as_ptr().write_bytes(value, layout.size()) };
        Filled { pointer, layout, value }
    }

    /// Checks that the first bytes still have the value.
    fn check(&self, bytes: usize) {
        // SAFETY: allocated and filled with at least so many bytes.
        let contents = unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), bytes) };
        assert!(contents.iter().all(|&byte| byte == self.value), "{:?} was overwritten", self.layout);
    }
}

fn check_zeroed(memory: NonNull<[u8]>, from: usize, to: usize) {
    // SAFETY: the memory was just allocated with at least `to` bytes, which are initialized.
    let contents = unsafe { std::slice::from_raw_parts(memory.cast::<u8>().as_ptr(), to) };
    assert!(contents[from..].iter().all(|&byte| byte == 0));
}

fn allocate(pool: &HostPool, layout: Layout, zeroed: bool) -> Result<NonNull<[u8]>, AllocError> {
    if zeroed { pool.allocate_zeroed(layout) } else { pool.allocate(layout) }
}

/// Grows or shrinks, which may move the memory. After a failure it is as before.
fn resize(pool: &HostPool, old: &Filled, layout: Layout, zeroed: bool) -> Result<NonNull<[u8]>, AllocError> {
    let grows = layout.size() >= old.layout.size();
    let resized = match (grows, zeroed) {
        // SAFETY: the memory has the old layout, and the new one is not smaller.
        (true, true) => unsafe { pool.grow_zeroed(old.pointer, old.layout, layout) },
        // SAFETY: as above.
        (true, false) => unsafe { pool.grow(old.pointer, old.layout, layout) },
        // SAFETY: the memory has the old layout, and the new one is smaller.
        (false, _) => unsafe { pool.shrink(old.pointer, old.layout, layout) },
    }?;
    let kept = Filled { pointer: resized.cast(), layout, value: old.value };
    kept.check(old.layout.size().min(layout.size()));
    if grows && zeroed {
        check_zeroed(resized, old.layout.size(), layout.size());
    }
    Ok(resized)
}

fn deallocate(pool: &HostPool, memory: &Filled) {
    memory.check(memory.layout.size());
    // SAFETY: the memory has this layout, and is not used again.
    unsafe { pool.deallocate(memory.pointer, memory.layout) };
}

fn run(steps: &[Step]) {
    let (pool, mut live) = (pool(), std::vec::Vec::new());
    for (step, value) in steps.iter().zip((1..=u8::MAX).cycle()) {
        let failures = pool.stats().unwrap().num_failures;
        match *step {
            Step::Allocate { layout, zeroed } => {
                let allocated = allocate(&pool, layout, zeroed);
                assert_eq!(allocated.is_err(), pool.stats().unwrap().num_failures > failures);
                assert!(allocated.is_err() || layout.size() as u64 <= LIMIT);
                let Ok(memory) = allocated else { continue };
                if zeroed {
                    check_zeroed(memory, 0, layout.size());
                }
                live.push(Filled::new(memory, layout, value));
            }
            Step::Resize { which, layout, zeroed } if !live.is_empty() => {
                let at = which % live.len();
                match resize(&pool, &live[at], layout, zeroed) {
                    Ok(memory) => live[at] = Filled::new(memory, layout, value),
                    Err(AllocError) => assert!(pool.stats().unwrap().num_failures > failures),
                }
            }
            Step::Deallocate { which } if !live.is_empty() => {
                deallocate(&pool, &live.swap_remove(which % live.len()));
            }
            Step::Resize { .. } | Step::Deallocate { .. } => {}
        }
        live.iter().for_each(|memory| memory.check(memory.layout.size()));
        let requested = live.iter().map(|memory| memory.layout.size() as u64).sum::<u64>();
        assert_eq!(pool.stats().unwrap().bytes_requested, requested);
        pool.check().unwrap();
    }
    live.iter().for_each(|memory| deallocate(&pool, memory));
    pool.destroy().unwrap();
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn memory_of_any_layout_keeps_its_contents(steps in program()) {
        run(&steps);
    }
}

#[test]
fn every_alignment_is_honoured_at_every_size() {
    let pool = pool();
    // The next free memory is at no larger alignment by chance.
    let first = pool.alloc(256).unwrap();
    for power in 0..21 {
        for size in [0, 1, 255, 256, 257, 100_000] {
            let layout = Layout::from_size_align(size, 1 << power).unwrap();
            for zeroed in [false, true] {
                deallocate(&pool, &Filled::new(allocate(&pool, layout, zeroed).unwrap(), layout, 7));
            }
        }
    }
    drop(first);
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn collections_are_in_the_pool_and_give_it_all_back() {
    let pool = pool();
    let mut numbers = Vec::new_in(&pool);
    numbers.extend(0..100_000_u32);
    let boxed = Box::new_in([7_u64; 512], &pool);
    let mut words = HashMap::with_hasher_in(DefaultHashBuilder::default(), &pool);
    words.extend((0..10_000_u32).map(|number| (number.to_string(), number)));
    assert!(in_use(&pool) >= 4 * 100_000 + 8 * 512 + 10_000 * size_of::<(String, u32)>() as u64);
    words.retain(|_, number| *number % 2 == 0);
    words.shrink_to_fit();
    assert!(numbers.iter().copied().eq(0..100_000) && boxed.iter().all(|&number| number == 7));
    assert!(
        (0..10_000)
            .all(|number| words.get(&number.to_string()).copied() == (number % 2 == 0).then_some(number))
    );
    drop((numbers, boxed, words));
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn a_collection_that_does_not_fit_stays_as_it_is() {
    let pool = pool();
    let mut bytes = Vec::new_in(&pool);
    bytes.extend(0..100_u8);
    assert!(bytes.try_reserve(LIMIT as usize).is_err());
    assert!(bytes.iter().copied().eq(0..100));

    let mut squares = HashMap::with_hasher_in(DefaultHashBuilder::default(), &pool);
    squares.extend((0..100_u64).map(|number| (number, number * number)));
    assert!(squares.try_reserve(LIMIT as usize / 8).is_err());
    assert!((0..100).all(|number| squares[&number] == number * number));

    assert!(Box::<[u8; 1], _>::try_new_in([1], &pool).is_ok());
    let _all = pool.alloc(pool.stats().unwrap().bytes_limit as usize / 2).unwrap();
    assert!(Box::<[u8; 9 << 20], _>::try_new_uninit_in(&pool).is_err());
}

#[test]
fn what_has_no_size_takes_no_memory() {
    let pool = pool();
    let mut nothing = Vec::new_in(&pool);
    nothing.resize(1000, ());
    let boxed = Box::new_in((), &pool);
    let empty = Box::<[u64], _>::new_uninit_slice_in(0, &pool);
    assert_eq!((nothing.len(), empty.len()), (1000, 0));
    assert_eq!(pool.stats().unwrap().num_allocs, 0);
    drop((nothing, boxed, empty));
    assert_eq!(pool.stats().unwrap().num_frees, 0);
}

#[test]
fn a_collection_may_end_in_another_thread() {
    let pool = pool();
    let mut numbers = Vec::new_in(&pool);
    numbers.extend(0..1000_u32);
    let sum = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            numbers.extend(1000..2000);
            numbers.into_iter().sum::<u32>()
        });
        sender.join().unwrap()
    });
    assert_eq!((sum, in_use(&pool)), (1999 * 1000, 0));
}
