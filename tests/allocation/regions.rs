//! The region callback: at every moment the regions reported as obtained and not as returned are exactly
//! what the allocator holds, and all memory handed out is in them.

use crate::common::gpu::Gpu;
use crate::common::simcuda::{Simulation, simulated};
use crate::common::*;
use cuda_sys::CUDA_ERROR_UNKNOWN;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// The registered memory, as disjoint ranges that are not adjacent.
#[derive(Default)]
struct Registered {
    ranges: Mutex<BTreeMap<u64, u64>>,
    calls: AtomicU64,
    busy: AtomicBool,
    device: i32,
    memory: Memory,
}

/// The memory at the addresses.
#[derive(Clone, Copy, Default)]
enum Memory {
    /// None.
    #[default]
    Made,
    Host,
    /// Memory of the simulated device, which is also the host's, and which its driver knows while it exists.
    Device(&'static Gpu),
}

impl Memory {
    /// Accesses it, to the last byte: registration ends before the memory is released.
    fn require(self, base: u64, bytes: u64) {
        if matches!(self, Memory::Made) {
            return;
        }
        for at in (base..base + bytes).step_by(1 << 20).chain([base + bytes - 1]) {
            if let Memory::Device(gpu) = self {
                assert_eq!(gpu.device_of(at), 0, "{at:#x}");
            }
            let byte = at as *mut u8;
            // SAFETY: memory of the allocator that is not in use. If it did not exist, this would crash.
            let was = unsafe { byte.read_volatile() };
            // SAFETY: as above.
            unsafe { byte.write_volatile(!was) };
        }
    }
}

impl Registered {
    fn add(&self, base: u64, bytes: u64) {
        let mut ranges = self.ranges.lock().unwrap();
        let overlap = ranges.iter().any(|(&start, &end)| base < end && start < base + bytes);
        assert!(!overlap, "{bytes} bytes at {base:#x} are registered already");
        let (mut start, mut end) = (base, base + bytes);
        if let Some((&before, _)) = ranges.range(..base).next_back().filter(|(_, end)| **end == base) {
            (start, _) = (before, ranges.remove(&before));
        }
        if let Some(behind) = ranges.remove(&end) {
            end = behind;
        }
        ranges.insert(start, end);
    }

    fn remove(&self, base: u64, bytes: u64) {
        let mut ranges = self.ranges.lock().unwrap();
        let around = ranges.range(..=base).next_back().map(|(&start, &end)| (start, end));
        let (start, end) = around.expect("a registered range");
        assert!(base + bytes <= end, "{bytes} bytes at {base:#x} are not registered");
        ranges.remove(&start);
        for (from, to) in [(start, base), (base + bytes, end)] {
            if from < to {
                ranges.insert(from, to);
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.ranges.lock().unwrap().iter().map(|(start, end)| end - start).sum()
    }

    fn covers(&self, base: u64, bytes: u64) -> bool {
        let ranges = self.ranges.lock().unwrap();
        ranges.range(..=base).next_back().is_some_and(|(_, &end)| base + bytes <= end)
    }
}

unsafe extern "C" fn told(user_data: *mut c_void, device: i32, base: *mut c_void, bytes: usize, event: i32) {
    // SAFETY: the tests pass a reference that outlives the pool.
    let registered = unsafe { &*user_data.cast::<Registered>() };
    assert_eq!(device, registered.device);
    registered.calls.fetch_add(1, Relaxed);
    match event {
        BFC_REGION_OBTAINED => {
            registered.add(base as u64, bytes as u64);
            registered.memory.require(base as u64, bytes as u64);
        }
        BFC_REGION_RETURNING => {
            registered.memory.require(base as u64, bytes as u64);
            registered.remove(base as u64, bytes as u64);
        }
        _ => panic!("event {event}"),
    }
    // Back into the library: the same device is busy.
    if alloc(device, 1) == Err(BFC_ERROR_BUSY) {
        registered.busy.store(true, Relaxed);
    }
}

fn listen(pool: &Pool, memory: Memory) -> &'static Registered {
    let registered = Registered { device: pool.device(), memory, ..Registered::default() };
    let registered: &'static Registered = Box::leak(Box::new(registered));
    assert_eq!(set(pool, registered), BFC_OK, "{}", last_error());
    registered
}

fn set(pool: &Pool, registered: &'static Registered) -> Status {
    let user_data = std::ptr::from_ref(registered).cast_mut().cast();
    // SAFETY: the callback takes what is passed, from any thread.
    unsafe { bfc_set_region_callback(pool.device(), Some(told), user_data) }
}

/// A random program; after each step the registered ranges are the memory that the pool holds.
fn run(pool: Pool, memory: Memory, largest: u64, seed: u64) {
    let registered = listen(&pool, memory);
    let mut random = Random::new(seed);
    let mut live: Vec<u64> = Vec::new();
    for step in 0..400 {
        if random.below(live.len() as u64 + 12) < 12 {
            let bytes = 1 + random.below(largest);
            if let Ok(address) = pool.alloc(bytes) {
                assert!(registered.covers(address, bytes), "{bytes} bytes at {address:#x}");
                live.push(address);
            }
        } else {
            let place = random.below(live.len() as u64) as usize;
            pool.put(live.swap_remove(place));
        }
        if step % 40 == 39 {
            live.drain(..).for_each(|address| pool.put(address));
            pool.trim(if step % 80 == 79 { 0 } else { random.below(4 * largest) });
        }
        assert_eq!(registered.bytes(), pool.stats().pool_bytes, "step {step}");
        if let Memory::Device(gpu) = memory {
            assert_eq!(gpu.sim.used(0).div_ceil(512), pool.stats().pool_bytes.div_ceil(512), "step {step}");
        }
    }
    let calls = registered.calls.load(Relaxed);
    assert!(calls >= 8 && registered.busy.load(Relaxed), "{calls} calls");
    live.into_iter().for_each(|address| pool.put(address));
    drop(pool);
    assert_eq!(registered.bytes(), 0, "everything was told to go");
}

#[test]
fn what_is_registered_is_what_is_held() {
    let growth = |options: &mut bfc_options_t| options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    for seed in 0..8 {
        run(Pool::host(64 * MIB, growth), Memory::Host, 4 * MIB, seed);
        run(Pool::custom(Backend::new(60 * MIB), 64 * MIB, growth), Memory::Made, 4 * MIB, seed);
        run(Pool::custom(Backend::new(60 * MIB).coalescing(), 64 * MIB, growth), Memory::Made, 4 * MIB, seed);
        let vmm = |options: &mut bfc_options_t| {
            growth(options);
            options.backend = BFC_BACKEND_HOST_VMM;
        };
        run(Pool::host(40 * MIB, vmm), Memory::Host, 9 * MIB, seed);
    }
}

const ON_THE_DEVICE: [u32; 2] = [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM];

fn on_the_device(backend: u32, limit: u64) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (backend, limit);
    wanted.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

fn entered(sim: Simulation) -> Memory {
    let gpu = Gpu::new(sim);
    gpu.enter(0);
    Memory::Device(Box::leak(Box::new(gpu)))
}

#[test]
fn what_is_registered_is_what_the_device_has() {
    simulated("what_is_registered_is_what_the_device_has", |sim| {
        let memory = entered(sim);
        for seed in 0..4 {
            for backend in ON_THE_DEVICE {
                run(on_the_device(backend, 40 * MIB), memory, 9 * MIB, seed);
            }
        }
        assert_eq!((sim.used(0), sim.misuse_texts()), (0, vec![]));
    });
}

/// Memory that the driver refuses to free belongs to the allocator again, so it must be registered again.
#[test]
fn what_does_not_go_back_is_told_of_again() {
    simulated("what_does_not_go_back_is_told_of_again", |sim| {
        let memory = entered(sim);
        for (backend, function) in ON_THE_DEVICE.into_iter().zip(["cuMemFree", "cuMemUnmap"]) {
            let pool = on_the_device(backend, 40 * MIB);
            let registered = listen(&pool, memory);
            pool.put(pool.get(9 * MIB));
            let (held, calls) = (pool.stats().pool_bytes, registered.calls.load(Relaxed));
            assert_eq!(registered.bytes(), held);
            sim.fail(Some(function), 1, CUDA_ERROR_UNKNOWN);
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED), "{function}");
            assert_eq!((registered.bytes(), pool.stats().pool_bytes), (held, held), "{function}");
            assert_eq!(registered.calls.load(Relaxed), calls + 2, "it was to go, and is there again");
            sim.clear_faults();
            assert_eq!((pool.try_trim(0), registered.bytes()), (Ok(held), 0));
            drop(pool);
        }
    });
}

#[test]
fn a_forced_end_tells_of_everything() {
    for backend in [BFC_BACKEND_HOST, BFC_BACKEND_HOST_VMM] {
        let pool =
            Pool::host(64 * MIB, |options| (options.backend, options.flags) = (backend, BFC_ALLOW_GROWTH));
        let registered = listen(&pool, Memory::Host);
        let kept: Vec<u64> = (0..12).map(|_| pool.get(3 * MIB)).collect();
        kept.iter().step_by(2).for_each(|&address| pool.put(address));
        pool.trim(0);
        assert!(registered.bytes() >= 18 * MIB);
        assert_eq!(bfc_destroy_forced(pool.device()), BFC_OK);
        assert_eq!(registered.bytes(), 0);
    }
}

#[test]
fn it_is_set_before_there_is_memory_and_unset_at_any_time() {
    let pool = Pool::host(64 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let first = pool.get(MIB);
    let late: &'static Registered = Box::leak(Box::default());
    assert_eq!(set(&pool, late), BFC_ERROR_BUSY);
    assert!(last_error().contains("before the first allocation"), "{}", last_error());
    pool.put(first);
    pool.trim(0);
    let registered = listen(&pool, Memory::Host);
    let second = pool.get(MIB);
    let calls = registered.calls.load(Relaxed);
    assert_eq!(calls, 1);
    // SAFETY: NULL removes the callback.
    let unset = unsafe { bfc_set_region_callback(pool.device(), None, std::ptr::null_mut()) };
    assert_eq!(unset, BFC_OK);
    pool.get(32 * MIB);
    assert_eq!((registered.calls.load(Relaxed), late.calls.load(Relaxed)), (calls, 0));
    assert_eq!(pool.free(second), BFC_OK);
    // SAFETY: as above.
    let nobody = unsafe { bfc_set_region_callback(-1, None, std::ptr::null_mut()) };
    assert_eq!(nobody, BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_destroy_forced(pool.device()), BFC_OK);
    // SAFETY: as above.
    let nothing = unsafe { bfc_set_region_callback(pool.device(), None, std::ptr::null_mut()) };
    assert_eq!(nothing, BFC_ERROR_NO_ALLOCATOR);
}
