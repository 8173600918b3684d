//! `BFC_DEBUG=guard` on host memory: an out-of-bounds write is attributed to its allocation, and to no other. Each test
//! runs in a process of its own, because of the variable.

mod common;

use common::guarded::*;
use common::*;
use std::sync::Mutex;

/// Returns the only message, which is an error.
#[track_caller]
fn only(log: &log::Collected) -> String {
    let messages = log.messages();
    assert_eq!(messages.len(), 1, "{messages:#?}");
    assert_eq!(messages[0].0, BFC_LOG_ERROR);
    messages[0].1.clone()
}

#[track_caller]
fn assert_says(words: &str, all: &[&str]) {
    all.iter().for_each(|part| assert!(words.contains(part), "{part:?} is not in {words:?}"));
}

#[test]
fn a_byte_after_the_end() {
    guarded("a_byte_after_the_end", |log| {
        let pool = pool();
        scope_begin("matmul", 7);
        let address = pool.get(1000);
        bfc_scope_end();
        write(address, &[1; 1001]);
        pool.put(address);
        let words = only(log);
        let who = format!(
            "{address:#x} (allocation 1, 1000 bytes in a chunk of 1280, operation \"matmul\", step 7)"
        );
        assert_says(&words, &[&who, "bfc, device 258: a write after the end of", "1 of 280 guard bytes"]);
        assert_says(&words, &["the first 0 bytes after its end: 01 fd fd", "(seen when it was freed)"]);
        assert!(!words.contains(", or "), "one allocation only: {words}");
        assert_eq!((counter(&pool, "guard_violations"), counter(&pool, "guards_unchecked")), (1, 0));
        assert_says(&pool.report(), &["guards: 1 damaged, 0 frees unchecked", &words]);
        // The memory is free again, and intact.
        assert_eq!(pool.stats().bytes_in_use, 0);
        assert_eq!(pool.get(1000), address);
        pool.put(address);
        assert_eq!(log.messages().len(), 1);
    });
}

#[test]
fn far_after_the_end() {
    guarded("far_after_the_end", |log| {
        let pool = pool();
        // A chunk of twice the size, so that the slack is large; more than the library reads at once.
        let (large, wall) = (pool.get(600_000), pool.get(1));
        pool.put(large);
        let small = pool.get(350_000);
        assert_eq!(small, large);
        let size = pool.range(small).unwrap().chunk.1;
        assert!(size >= 600_064, "{size}: all of it");
        write(small + size - 1, &[0x42]);
        write(small + 420_000, &[0x41, GUARD, 0x43]);
        pool.put(small);
        let words = only(log);
        assert_says(&words, &["3 of ", "the first 70000 bytes after its end: 41 fd 43 fd"]);
        pool.put(wall);
        assert_eq!(log.messages().len(), 1);
    });
}

/// The last bytes of a guard are also those before the next allocation, so the writer is ambiguous.
#[test]
fn between_two_allocations() {
    guarded("between_two_allocations", |log| {
        let pool = pool();
        scope_begin("conv", 3);
        let first = pool.get(100);
        bfc_scope_end();
        let second = pool.get(200);
        assert_eq!(second, first + 256);
        write(second - 4, &[9; 4]);
        pool.put(second);
        let words = only(log);
        let (one, other) = (
            format!("before the start of {second:#x} (allocation 2, 200 bytes in a chunk of 512)"),
            format!(
                "or after the end of {first:#x} (allocation 1, 100 bytes in a chunk of 256, operation \"conv\", step 3)"
            ),
        );
        assert_says(
            &words,
            &[&one, &other, "4 of 64 guard bytes", "the first 4 bytes before its start: 09 09 09 09 ("],
        );
        pool.put(first);
        assert_eq!(log.messages().len(), 1, "said once");

        // The reverse.
        let (first, second) = (pool.get(100), pool.get(200));
        write(second - 4, &[9; 4]);
        pool.put(first);
        let words = log.messages().pop().unwrap().1;
        assert_says(
            &words,
            &[&format!("after the end of {first:#x}"), &format!("or before the start of {second:#x}")],
        );
        assert_says(&words, &["4 of 156 guard bytes", "the first 152 bytes after its end"]);
        pool.put(second);
        assert_eq!(log.messages().len(), 2);
        assert_eq!(counter(&pool, "guard_violations"), 2);
    });
}

#[test]
fn in_front_where_free_memory_lies() {
    guarded("in_front_where_free_memory_lies", |log| {
        let pool = pool();
        let free_before = |pool: &Pool| {
            // Freed when the second already exists, or before.
            let (first, second) = (pool.get(1000), pool.get(1000));
            pool.put(first);
            second
        };
        let address = free_before(&pool);
        write(address - 64, &[5; 8]);
        pool.put(address);
        assert_says(
            &only(log),
            &[
                "a write before the start of",
                "or a late write to memory that was freed there",
                "8 of 64",
                "64 bytes before its start",
            ],
        );

        let first = pool.get(1);
        let aligned = pool.alloc_aligned(1000, 4096).unwrap();
        assert!(aligned >= first + 512, "free memory lies before it");
        pool.put(first);
        write(aligned - 1, &[5]);
        pool.put(aligned);
        assert_says(
            &log.messages()[1].1,
            &["1 of 64 guard bytes", "the first 1 bytes before its start: 05 ("],
        );
        assert_eq!(counter(&pool, "guard_violations"), 2);
        // Memory beyond the guard is free, and is not checked.
        let address = free_before(&pool);
        write(address - 65, &[5]);
        pool.put(address);
        assert_eq!(counter(&pool, "guard_violations"), 2);
        // Before a region's first chunk there is nothing to write to.
        let first = pool.get(10);
        assert_eq!(first, pool.range(first).unwrap().region.0);
        pool.put(first);
        assert_eq!(log.messages().len(), 2);
    });
}

#[test]
fn new_memory_is_nan_and_freed_memory_is_poison() {
    guarded("new_memory_is_nan_and_freed_memory_is_poison", |log| {
        let pool = pool();
        for size in [1, 4, 255, 256, 1000, 100_000] {
            let address = pool.get(size);
            assert!(bytes(address, size).iter().all(|&byte| byte == 0xFF), "{size}");
            if size >= 4 {
                let floats = bytes(address, size)
                    .chunks_exact(4)
                    .map(|four| f32::from_ne_bytes(four.try_into().unwrap()));
                assert!(floats.into_iter().all(f32::is_nan));
            }
            let chunk = pool.range(address).unwrap().chunk;
            assert!(chunk.1 >= size + 64 && chunk.1 < size + 64 + 256);
            assert!(bytes(address + size, chunk.1 - size).iter().all(|&byte| byte == GUARD));
            write(address, &vec![7; size as usize]);
            pool.put(address);
            assert!(bytes(address, chunk.1).iter().all(|&byte| byte == POISON), "use after free is seen");
            // Again, with a following allocation, whose guard before it stays.
            let (address, next) = (pool.get(size), pool.get(1));
            assert!(bytes(address, size).iter().all(|&byte| byte == 0xFF));
            pool.put(address);
            assert!(bytes(address, chunk.1 - 64).iter().all(|&byte| byte == POISON));
            assert!(bytes(next - 64, 64).iter().all(|&byte| byte == GUARD));
            pool.put(next);
            assert!(bytes(address, chunk.1 + 256).iter().all(|&byte| byte == POISON));
        }
        assert_quiet(&pool, log);
    });
}

#[test]
fn what_may_be_used_is_what_was_asked_for() {
    guarded("what_may_be_used_is_what_was_asked_for", |log| {
        let pool = pool();
        assert_eq!(pool.alloc(0), Ok(0));
        for size in [1, 192, 193, 256, 1000] {
            let address = pool.get(size);
            assert_eq!((pool.requested_size(address), pool.allocated_size(address)), (Ok(size), Ok(size)));
            write(address, &vec![0; size as usize]);
            let stats = pool.stats();
            assert_eq!((stats.bytes_requested, stats.bytes_in_use), (size, rounded(size + 64)));
            assert_eq!(stats.largest_alloc_size.max(stats.bytes_in_use), stats.largest_alloc_size);
            pool.put(address);
        }
        assert_eq!(pool.free(1 << 40), BFC_ERROR_INVALID_POINTER);
        let address = pool.get(1);
        pool.put(address);
        assert_eq!(pool.free(address), BFC_ERROR_DOUBLE_FREE);
        assert_eq!(pool.alloc(u64::MAX), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.alloc(u64::MAX - 63), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.alloc(64 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY), "no room for the guard");
        pool.trim(0);
        pool.put(pool.get(64 * MIB - 64));
        assert_quiet(&pool, log);
    });
}

#[test]
fn a_check_looks_at_all_that_lives() {
    guarded("a_check_looks_at_all_that_lives", |log| {
        let pool = pool();
        let addresses: Vec<u64> = (0..40).map(|_| pool.get(500)).collect();
        assert_quiet(&pool, log);
        addresses.iter().step_by(2).for_each(|&address| pool.put(address));
        assert_quiet(&pool, log);
        // One after, one before.
        write(addresses[7] + 500, &[1]);
        write(addresses[11] - 3, &[1]);
        pool.check();
        let messages = log.messages();
        assert_eq!((messages.len(), counter(&pool, "guard_violations")), (2, 2), "{messages:#?}");
        assert!(messages.iter().all(|(_, words)| words.contains("(seen by bfc_check)")));
        let find = |text: String| messages.iter().any(|(_, words)| words.contains(&text));
        assert!(find(format!("after the end of {:#x}", addresses[7])), "{messages:#?}");
        assert!(find(format!("before the start of {:#x}", addresses[11])), "{messages:#?}");
        // Reported once.
        pool.check();
        addresses.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
        assert_eq!((log.messages().len(), counter(&pool, "guard_violations")), (2, 2));
        // Large numbers are counted, and the first ones are reported.
        let addresses: Vec<u64> = (0..40).map(|_| pool.get(500)).collect();
        addresses.iter().for_each(|address| write(address + 500, &[1]));
        pool.check();
        assert_eq!((log.messages().len(), counter(&pool, "guard_violations")), (2 + 16 + 1, 42));
        assert_eq!(log.with("and 24 more damaged guards").len(), 1);
    });
}

/// The callback may use the allocator in any way.
#[test]
fn a_listener_may_use_the_allocator() {
    guarded("a_listener_may_use_the_allocator", |_| {
        static CALLS: Mutex<Vec<Status>> = Mutex::new(Vec::new());
        extern "C" fn listen(_: *mut std::ffi::c_void, _: i32, _: *const std::ffi::c_char) {
            let answer = alloc(258, 10).map_or_else(|status| status, |address| free(258, address));
            CALLS.lock().unwrap().push(answer);
        }
        let pool = pool();
        bfc_set_log_callback(Some(listen), std::ptr::null_mut());
        let address = pool.get(10);
        write(address + 10, &[1]);
        pool.put(address);
        bfc_set_log_callback(None, std::ptr::null_mut());
        assert_eq!(*CALLS.lock().unwrap(), [BFC_OK]);
    });
}

/// Without a device the library does not know when a stream's work has completed, so memory that it may still access is
/// left alone.
#[test]
fn memory_of_streams_is_left_alone_without_a_device() {
    guarded("memory_of_streams_is_left_alone_without_a_device", |log| {
        let pool = pool();
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
    });
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
