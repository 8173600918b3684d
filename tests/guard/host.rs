//! `BFC_DEBUG=guard` on host memory: streams, a forked child, and the variable. Each test runs in a process of its own,
//! because of the variable. `tests/conformance/guard.rs` has what every backend does.

use crate::common::guarded::*;
use crate::common::*;

/// Without a device the library does not know when a stream's work has completed, so memory that it may still access is
/// left alone.
#[test]
fn memory_of_streams_is_left_alone_without_a_device() {
    guarded("memory_of_streams_is_left_alone_without_a_device", |_| {
        for backend in [BFC_BACKEND_HOST, BFC_BACKEND_HOST_VMM] {
            let log = log::Collected::start();
            let pool = Pool::host(64 * MIB, |options| {
                (options.backend, options.flags) = (backend, BFC_ALLOW_GROWTH);
            });
            let plain = pool.get(1000);
            let ordered = pool.get_on(1000, 16);
            write(ordered, &[7; 1000]);
            pool.put_on(ordered, 16);
            assert_eq!(bytes(ordered, 1000), [7; 1000], "work on the stream may still read it");
            let again = pool.get_on(1000, 16);
            assert_eq!((again, bytes(again, 1000)), (ordered, &[7; 1000][..]), "and write it");
            // Memory without a stream is guarded as before, and reusable at once after its free.
            write(plain, &[1; 1010]);
            pool.put(plain);
            assert_eq!((counter(&pool, "guard_violations"), log.messages().len()), (1, 1));
            assert!(bytes(plain, 1000).iter().all(|&byte| byte == POISON));
            // Recorded on a stream, or freed there: checked, and not poisoned.
            let recorded = pool.get(1000);
            write(recorded, &[8; 1001]);
            assert_eq!(bfc_record_stream(pool.device(), pointer(recorded), pointer(16)), BFC_OK);
            pool.put(recorded);
            let elsewhere = pool.get(1000);
            write(elsewhere, &[9; 1001]);
            pool.put_on(elsewhere, 16);
            assert_eq!((bytes(recorded, 1000), bytes(elsewhere, 1000)), (&[8; 1000][..], &[9; 1000][..]));
            assert_eq!(counter(&pool, "guard_violations"), 3, "{:#?}", log.messages());
            pool.put_on(again, 16);
            assert_eq!(counter(&pool, "guards_unchecked"), 2);
            pool.check();
        }
    });
}

/// Programs on streams: memory that work on a stream may still use is not given to others, nor changed.
#[test]
fn no_false_alarm_in_random_programs_of_streams() {
    guarded("no_false_alarm_in_random_programs_of_streams", |log| {
        for seed in 0..8 {
            random_program_of_streams(BFC_BACKEND_HOST, seed, 2 * MIB, 20_000, 1500);
        }
        for seed in 0..3 {
            random_program_of_streams(BFC_BACKEND_HOST_VMM, seed, 16 * MIB, 3 * MIB, 600);
        }
        assert_eq!(log.messages(), []);
    });
}

/// Whether the ends of a range have its contents.
fn is_intact(address: u64, size: u64) -> bool {
    let end = size.min(20_000);
    [address, address + size - end].iter().all(|&at| bytes(at, end) == vec![size as u8; end as usize])
}

fn random_program_of_streams(backend: u32, seed: u64, limit: u64, most: u64, rounds: u32) {
    let pool = Pool::host(limit, |options| {
        (options.backend, options.flags) = (backend, GROWING);
        options.initial_region_bytes = if backend == BFC_BACKEND_HOST { 64 * KIB } else { 0 };
    });
    // Several streams from the beginning.
    pool.put(pool.get(1));
    pool.put_on(pool.get_on(1, 16), 16);
    let mut random = Random::new(seed);
    let mut live: Vec<(u64, u64)> = Vec::new();
    // Memory that streams freed and their work may still use, with its contents.
    let mut pending: Vec<(u64, u64, u64)> = Vec::new();
    for _ in 0..rounds {
        let stream = 16 + random.below(3);
        match random.below(20) {
            0 => {
                pool.synchronized(stream);
                pending.retain(|&(.., on)| on != stream);
            }
            1 => pool.check(),
            2 => drop(pool.trim(0)),
            3..=10 if live.len() < 40 => {
                let (size, on) = (random.between(1, most), random.below(4));
                let mut wanted = request(size as usize);
                (wanted.stream, wanted.flags) =
                    (pointer(16 + on), u32::from(on != 3) * BFC_REQUEST_ON_STREAM);
                let Ok(address) = pool.alloc_ex(&wanted) else { continue };
                let overlaps = |&&(at, bytes, by): &&(u64, u64, u64)| {
                    at < address + size && address < at + bytes && by != 16 + on
                };
                assert_eq!(pending.iter().find(overlaps), None, "given to another");
                // It belongs to the same stream, or no work uses it anymore, slack included.
                let chunk = pool.range(address).unwrap().chunk;
                pending.retain(|&(at, bytes, _)| at >= chunk.0 + chunk.1 || address >= at + bytes);
                write(address, &vec![size as u8; size as usize]);
                live.push((address, size));
            }
            _ if !live.is_empty() => {
                let (address, size) = live.swap_remove(random.index(live.len()));
                assert!(is_intact(address, size));
                if random.one_in(3) {
                    pool.put(address);
                } else {
                    pool.put_on(address, stream);
                    pending.push((address, size, stream));
                }
            }
            _ => {}
        }
        let is_read = |&(address, size, _): &(u64, u64, u64)| is_intact(address, size);
        assert!(pending.iter().all(is_read), "its work may read it");
    }
    assert_eq!(counter(&pool, "guard_violations"), 0);
}

/// In the child of a fork, with threads of the parent in the middle of it.
#[test]
fn a_forked_child_goes_on() {
    guarded("a_forked_child_goes_on", |log| {
        let pool = pool();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3u8 {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut random = Random::new(thread.into());
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let live =
                            [0; 9].map(|_| random.between(1, 300_000)).map(|size| (pool.get(size), size));
                        live.iter().for_each(|&(at, size)| write(at, &vec![thread; size as usize]));
                        live.iter().for_each(|&(at, _)| pool.put(at));
                    }
                });
            }
            // Even if something is wrong, because otherwise they run forever.
            let _stop = Stop(&stop);
            for _ in 0..60 {
                // SAFETY: the child only calls the library and ends.
                match unsafe { libc::fork() } {
                    0 => {
                        let works = (0..20).all(|_| {
                            let address = alloc(pool.device(), 5000).unwrap_or(0);
                            address != 0 && free(pool.device(), address) == BFC_OK
                        });
                        let sound = bfc_check(pool.device()) == BFC_OK && summary(&pool).0 == 0;
                        // SAFETY: it ends the child at once.
                        unsafe { libc::_exit(i32::from(!works) + 2 * i32::from(!sound)) };
                    }
                    child => {
                        let mut status = 0;
                        // SAFETY: the pointer is valid, and the child is ours.
                        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                        assert_eq!(status, 0, "1: a call failed; 2: a guard was damaged");
                    }
                }
            }
        });
        assert_quiet(&pool, log);
    });
}

struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Violations and unchecked frees as in the memory map, without allocating much.
fn summary(pool: &Pool) -> (u64, u64) {
    let map = pool.memory_map();
    let number = |name: &str| {
        let at = map.find(name).expect("in the map") + name.len();
        let digits = map[at..].find(|c: char| !c.is_ascii_digit()).expect("an end");
        map[at..at + digits].parse().expect("a number")
    };
    (number("\"guard_violations\":"), number("\"guards_unchecked\":"))
}

/// Prints which allocators are guarded, for the tests of the variable. Does nothing on its own.
#[test]
fn probe() {
    if !child::is_child("probe") {
        return;
    }
    let is_on = |pool: &Pool| {
        assert_eq!(pool.memory_map().contains("guard_violations"), pool.report().contains("guards:"));
        pool.memory_map().contains("guard_violations")
    };
    let custom = Pool::custom(Backend::new(MIB), MIB, |_| ());
    custom.put(custom.get(1000));
    let stamps = Pool::host(MIB, |options| options.flags = BFC_TIMESTAMPS);
    stamps.put(stamps.get(1000));
    let vmm = Pool::host(4 * MIB, |options| options.backend = BFC_BACKEND_HOST_VMM);
    vmm.put(vmm.get(1000));
    let host = pool();
    let address = host.get(1000);
    assert_eq!(host.allocated_size(address), Ok(if is_on(&host) { 1000 } else { 1024 }));
    host.put(address);
    let [host, custom, stamps, vmm] = [&host, &custom, &stamps, &vmm].map(is_on);
    println!("host {host} custom {custom} stamps {stamps} vmm {vmm}");
}

#[test]
fn the_variable() {
    let with = |value: &str| child::expect_success("probe", &[("BFC_DEBUG", value), ("BFC_LOG", "warn")]);
    for value in ["guard", " GUARD ", "guard,guard", ",guard,"] {
        let ended = with(value);
        assert!(
            ended.text.contains("host true custom false stamps false vmm true"),
            "{value}: {}",
            ended.text
        );
        let ignored = "BFC_DEBUG=guard is ignored for this allocator: ";
        assert_eq!(ended.errors.matches(ignored).count(), 2, "{}", ended.errors);
        assert!(
            ended.errors.contains("with a suballocator, whose memory")
                && ended.errors.contains("BFC_TIMESTAMPS")
        );
        assert_eq!(ended.errors.lines().count(), 2, "{}", ended.errors);
    }
    for value in ["gard", "1", "guards"] {
        let ended = with(value);
        assert!(ended.text.contains("host false custom false stamps false"), "{value}: {}", ended.text);
        let warning = format!("libbfc warning: BFC_DEBUG={value} is ignored: it must be guard\n");
        assert_eq!(ended.errors, warning.repeat(4));
    }
    let ended = with("guard,more");
    assert!(ended.text.contains("host true custom false stamps false vmm true"), "{}", ended.text);
    assert!(
        ended.errors.contains("BFC_DEBUG=guard,more is ignored in part: it must be guard\n"),
        "{}",
        ended.errors
    );
    for value in ["", ",", " "] {
        let ended = with(value);
        assert!(ended.text.contains("host false"), "{}", ended.text);
        assert_eq!(ended.errors, "");
    }
    // Without BFC_LOG there are no messages.
    let quiet = child::expect_success("probe", &[("BFC_DEBUG", "guard,more")]);
    assert_eq!(quiet.errors, "");
}
