//! Reports: the memory map, the occupancy line, the out-of-memory report with its verdict, and operations by scope.

use crate::common::*;
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

fn parse(pool: &Pool) -> Value {
    let text = pool.memory_map();
    assert!(!text.contains('\n'), "one line: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {value}"))
}

fn address(value: &Value) -> u64 {
    let text = value["address"].as_str().expect("an address is text");
    u64::from_str_radix(text.strip_prefix("0x").expect("in hexadecimal"), 16).expect("a number")
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name}"))
}

/// Fills a pool with allocations of five operations.
fn filled_by_operations() -> Pool {
    let pool = Pool::host(MIB, |options| options.name = c"trainer".as_ptr());
    for (operation, bytes) in
        [(c"weights", 4096), (c"cache", 1024), (c"weights", 4096), (c"a", 512), (c"b", 256)]
    {
        // SAFETY: a NUL-terminated string.
        assert_eq!(unsafe { bfc_scope_begin(operation.as_ptr(), 0) }, BFC_OK);
        pool.get(bytes);
        assert_eq!(bfc_scope_end(), BFC_OK);
    }
    pool.get(2048);
    pool
}

const LARGEST: &str = "8.00 KiB in 2 of weights, 2.00 KiB in 1 of (no operation), 1.00 KiB in 1 of cache, and 2 other operations";

#[test]
fn a_refused_destruction_names_what_is_live() {
    let pool = filled_by_operations();
    assert_eq!(pool.destroy(), BFC_ERROR_BUSY);
    let words = format!("trainer: 6 allocations are live: {LARGEST}; free what is live, or destroy");
    assert!(last_error().starts_with(&words), "{}", last_error());
}

#[test]
fn a_destruction_by_force_logs_what_was_live() {
    const NAME: &str = "a_destruction_by_force_logs_what_was_live";
    if child::is_child(NAME) {
        assert_eq!(filled_by_operations().destroy_forced(), BFC_OK);
        return;
    }
    let said = child::expect_success(NAME, &[("BFC_LOG", "info")]).errors;
    assert!(
        said.contains(&format!("destroyed the allocator; allocations that were live: 6: {LARGEST}\n")),
        "{said}"
    );
}

/// The map is consistent with itself, with the statistics and with the caller's allocations.
#[track_caller]
fn check_map(pool: &Pool, live: &[(u64, u64)]) {
    let map = parse(pool);
    let stats = pool.stats();
    assert_eq!(number(&map, "schema"), 1);
    assert_eq!(number(&map, "device"), pool.device() as u64);
    let (mut chunks, mut used, mut requested, mut free_chunks, mut free, mut largest) = (0, 0, 0, 0, 0, 0);
    let mut in_use = Vec::new();
    let mut last_end = 0;
    for region in list(&map, "regions") {
        let base = address(region);
        assert!(base >= last_end, "regions are in address order");
        last_end = base + number(region, "size");
        assert!(number(region, "received") >= number(region, "size"));
        let mut at = base;
        for chunk in list(region, "chunks") {
            let size = number(chunk, "size");
            assert_eq!(address(chunk), at, "chunks tile their region");
            assert_eq!(number(chunk, "bin"), u64::from((size / 256).ilog2().min(20)));
            (at, chunks) = (at + size, chunks + 1);
            match chunk["state"].as_str().expect("a state") {
                "in_use" => {
                    (used, requested) = (used + size, requested + number(chunk, "requested"));
                    in_use.push((address(chunk), number(chunk, "requested")));
                    assert_eq!(pool.allocation_id(address(chunk)), Ok(number(chunk, "allocation_id")));
                    assert_eq!(pool.allocated_size(address(chunk)), Ok(size));
                }
                state => {
                    assert!(["free", "held"].contains(&state), "{state}");
                    (free_chunks, free) = (free_chunks + 1, free + size);
                    largest = if state == "free" { largest.max(size) } else { largest };
                }
            }
        }
        assert_eq!(at, last_end, "to the end");
    }
    let mut live = live.to_vec();
    live.sort_unstable();
    in_use.sort_unstable();
    assert_eq!(in_use, live);
    let sums = [chunks, used, requested, free_chunks, largest, list(&map, "regions").len() as u64];
    let told = [
        stats.num_chunks,
        stats.bytes_in_use,
        stats.bytes_requested,
        stats.num_free_chunks,
        stats.largest_free_block_bytes,
        stats.num_regions,
    ];
    assert_eq!(sums, told, "[chunks, used, requested, free chunks, largest free, regions]");
    check_stats_and_bins(&map, &stats, [chunks, used + free, used, requested]);
    let fragmentation = map["stats"]["fragmentation"].as_f64().expect("a number");
    let expected = if free == 0 { 0.0 } else { 1.0 - largest as f64 / free as f64 };
    assert!((fragmentation - expected).abs() < 1e-9);
}

#[track_caller]
fn check_stats_and_bins(map: &Value, stats: &bfc_stats_t, [chunks, bytes, used, requested]: [u64; 4]) {
    for (name, told) in [
        ("num_allocs", stats.num_allocs),
        ("num_frees", stats.num_frees),
        ("num_failures", stats.num_failures),
        ("bytes_in_use", stats.bytes_in_use),
        ("peak_bytes_in_use", stats.peak_bytes_in_use),
        ("bytes_requested", stats.bytes_requested),
        ("peak_bytes_requested", stats.peak_bytes_requested),
        ("largest_alloc_size", stats.largest_alloc_size),
        ("bytes_limit", stats.bytes_limit),
        ("pool_bytes", stats.pool_bytes),
        ("peak_pool_bytes", stats.peak_pool_bytes),
        ("largest_free_block_bytes", stats.largest_free_block_bytes),
        ("num_regions", stats.num_regions),
        ("num_chunks", stats.num_chunks),
        ("num_free_chunks", stats.num_free_chunks),
    ] {
        assert_eq!(number(&map["stats"], name), told, "{name}");
    }
    let bins = list(map, "bins");
    assert_eq!(bins.len(), 21);
    let sum = |name| bins.iter().map(|bin| number(bin, name)).sum::<u64>();
    assert_eq!(
        [sum("chunks"), sum("bytes"), sum("bytes_in_use"), sum("bytes_requested")],
        [chunks, bytes, used, requested]
    );
    for (place, bin) in bins.iter().enumerate() {
        assert_eq!((number(bin, "bin"), number(bin, "from")), (place as u64, 256 << place));
    }
}

/// The map of random pools, over host memory and over a sub-allocator with odd amounts.
#[test]
fn the_memory_map_agrees_with_everything() {
    let mut odd = Backend::new(GIB);
    odd.extra = 1000;
    let stamped = BFC_TIMESTAMPS | BFC_ALLOW_GROWTH;
    for (pool, stamps) in [
        (Pool::host(8 * MIB, |_| {}), false),
        (Pool::custom(odd, GIB, |options| options.flags = BFC_ALLOW_GROWTH), false),
        (
            Pool::custom(Backend::new(GIB).coalescing(), GIB, |options| options.flags = BFC_ALLOW_GROWTH),
            false,
        ),
        (Pool::custom(Backend::new(GIB), GIB, |options| options.flags = stamped), true),
        (Pool::custom(Backend::new(GIB), GIB, |options| options.flags = stamped | BFC_QUARANTINE), true),
    ] {
        let mut random = Random::new(11);
        let mut live = Vec::new();
        check_map(&pool, &live);
        for round in 0..1000 {
            if random.one_in(2) || live.is_empty() {
                let bytes = random.between(1, 30_000);
                if let Ok(address) = pool.alloc(bytes) {
                    live.push((address, bytes));
                }
            } else {
                let (address, _) = live.swap_remove(random.index(live.len()));
                pool.put(address);
            }
            if stamps && random.one_in(20) {
                pool.synchronize();
            }
            if round % 50 == 0 {
                check_map(&pool, &live);
            }
        }
        pool.check();
    }
}

#[test]
fn names_are_escaped() {
    for name in [
        "plain",
        "a \"quoted\" name",
        "back\\slash\\",
        "line\nbreak\ttab\r",
        "\u{1}\u{1f}\u{7f}",
        "Größe 😀",
        "</script>",
        "",
    ] {
        let c_name = std::ffi::CString::new(name).expect("no NUL");
        let pool = Pool::host(MIB, |options| options.name = c_name.as_ptr());
        assert_eq!(parse(&pool)["name"], name);
        assert_eq!(scope_begin(name, 3), BFC_OK);
        pool.get(100);
        assert_eq!(bfc_scope_end(), BFC_OK);
        let map = parse(&pool);
        assert_eq!(
            (&map["regions"][0]["chunks"][0]["operation"], &map["backend"]),
            (&name.into(), &"host".into())
        );
        assert!(pool.report().contains("allocator"));
        assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert!(last_error().starts_with(name), "{}", last_error());
    }
}

#[test]
fn occupancy_has_100_columns() {
    let pool = Pool::custom(Backend::new(GIB), 25_600, |_| {});
    assert_eq!(pool.occupancy(), "_".repeat(100), "no region yet");
    let chunks = [pool.get(256 * 10), pool.get(256 * 20 - 255), pool.get(256 * 30)];
    let line =
        |parts: &[(usize, &str)]| parts.iter().map(|&(count, mark)| mark.repeat(count)).collect::<String>();
    // The slack of 255 bytes gets its unit's column except for the first byte, because the last writer determines a
    // column.
    let used = line(&[(60, "*"), (40, "_")]);
    assert_eq!(pool.occupancy(), used);
    pool.put(chunks[1]);
    assert_eq!(pool.occupancy(), line(&[(10, "*"), (20, "_"), (30, "*"), (40, "_")]));
    // A request for 12 of the 20 free units gets all 20: the rest is slack.
    let slack = pool.get(256 * 12);
    assert_eq!((slack, pool.allocated_size(slack)), (chunks[1], Ok(256 * 20)));
    assert_eq!(pool.occupancy(), line(&[(22, "*"), (8, "x"), (30, "*"), (40, "_")]));
    pool.get(256 * 40);
    pool.check();
    assert_eq!(pool.occupancy(), line(&[(22, "*"), (8, "x"), (70, "*")]));
}

#[test]
fn the_report_tells_what_a_person_wants_to_know() {
    let pool = Pool::host(4 * MIB, |options| options.name = c"my pool".as_ptr());
    assert_eq!(scope_begin("embedding", 7), BFC_OK);
    let first = pool.get(MIB);
    assert_eq!(bfc_scope_end(), BFC_OK);
    pool.get(MIB / 2);
    pool.put(first);
    pool.get(MIB / 4);
    let report = pool.report();
    for part in [
        "\"my pool\"",
        &format!("device {}", pool.device()),
        "host backend",
        "limit",
        "held",
        "in use",
        "free",
        "largest free chunk",
        "fragmentation",
        "3 allocations, 1 free, 0 failures",
        "in 1 region\n",
        "bin",
        &pool.occupancy(),
    ] {
        assert!(report.contains(part), "no {part:?} in\n{report}");
    }
    assert!(!report.contains("no memory for"), "nothing failed: no verdict");
}

/// The metadata is one number, with the allocator's own tables and the additional ones.
#[test]
fn reports_have_the_numbers_of_the_statistics() {
    let pool = Pool::host(64 * MIB, |options| options.flags |= BFC_ALLOW_GROWTH);
    let live = [3000, MIB, 20 * MIB].map(|bytes| pool.get(bytes));
    let stats = pool.stats();
    let map = &parse(&pool)["stats"];
    for (name, value) in [
        ("metadata_bytes", stats.metadata_bytes),
        ("pool_bytes", stats.pool_bytes),
        ("num_chunks", stats.num_chunks),
    ] {
        assert_eq!(number(map, name), value, "{name}");
    }
    let report = pool.report();
    let line = report.lines().find(|line| line.contains("allocator metadata")).expect("a line");
    assert!(
        line.ends_with(&format!(" {} bytes", stats.metadata_bytes)),
        "{line}, not {}",
        stats.metadata_bytes
    );
    live.into_iter().for_each(|address| pool.put(address));
}

#[test]
fn a_limit_that_no_device_has_is_none() {
    let pool = Pool::host(u64::MAX, |options| options.flags |= BFC_ALLOW_GROWTH);
    let address = pool.get(MIB);
    let report = pool.report();
    assert!(
        report.contains("\n  limit                             none\n") && !report.contains("EiB"),
        "{report}"
    );
    assert!(number(&parse(&pool)["stats"], "bytes_limit") > 1 << 60, "the statistics are numbers");
    pool.put(address);
}

/// The memory of each operation, the largest first, by the path of its scopes and the step of the innermost.
#[test]
fn holders_by_operation() {
    let pool = Pool::host(64 * MIB, |_| {});
    let before = pool.get(100);
    assert_eq!(scope_begin("attention", 1), BFC_OK);
    let mut held = vec![pool.get(3 * MIB)];
    assert_eq!(scope_begin("softmax", 5), BFC_OK);
    held.push(pool.get(5 * MIB));
    held.push(pool.get(256));
    assert_eq!(bfc_scope_end(), BFC_OK);
    held.push(pool.get(MIB));
    assert_eq!(bfc_scope_end(), BFC_OK);
    let after = pool.get(200);
    let map = parse(&pool);
    let operation_of = |start: u64| {
        let chunks = list(&map["regions"][0], "chunks");
        let chunk = chunks.iter().find(|chunk| address(chunk) == start).expect("live");
        (chunk["operation"].as_str().map(str::to_owned), chunk["step"].as_u64())
    };
    let named = |name: &str, step| (Some(name.to_owned()), Some(step));
    assert_eq!(operation_of(before), (None, None));
    assert_eq!(operation_of(after), (None, None));
    assert_eq!(operation_of(held[0]), named("attention", 1));
    assert_eq!(operation_of(held[1]), named("attention/softmax", 5));
    assert_eq!(operation_of(held[3]), named("attention", 1));
    let report = pool.report();
    let place = |name: &str| report.find(name).unwrap_or_else(|| panic!("no {name} in\n{report}"));
    let lines = ["  attention/softmax\n", "  attention\n", "  (no operation)\n"].map(place);
    assert!(lines.is_sorted(), "{report}");
    // A reused chunk belongs to its current operation.
    pool.put(held[1]);
    assert_eq!(pool.get(5 * MIB), held[1]);
    pool.put(held[2]);
    let report = pool.report();
    assert!(!report.contains("softmax"), "it no longer holds anything:\n{report}");
    pool.check();
}

#[test]
fn at_most_twelve_holders_are_shown() {
    let pool = Pool::host(MIB, |_| {});
    for step in 0..14 {
        assert_eq!(scope_begin(&format!("operation {step}"), step), BFC_OK);
        pool.get(256 * (1 + step));
        assert_eq!(bfc_scope_end(), BFC_OK);
    }
    let report = pool.report();
    let holders = report.split("largest holders").nth(1).expect("the list");
    assert_eq!(holders.matches("  operation ").count(), 12, "{report}");
    assert!(
        !holders.contains("operation 1\n") && holders.contains("operation 2\n"),
        "the smallest two\n{report}"
    );
    assert!(holders.contains("... and 2 more"), "{report}");
}

#[test]
fn scopes_have_rules() {
    let pool = Pool::host(MIB, |_| {});
    assert_eq!(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT);
    // SAFETY: NULL is the tested value.
    assert_eq!(unsafe { bfc_scope_begin(std::ptr::null(), 0) }, BFC_ERROR_INVALID_ARGUMENT);
    // SAFETY: a NUL-terminated string which is not UTF-8.
    assert_eq!(unsafe { bfc_scope_begin(c"\xff".as_ptr(), 0) }, BFC_ERROR_INVALID_ARGUMENT);
    let long = "ä".repeat(100);
    assert_eq!(scope_begin(&long, u64::MAX), BFC_OK);
    pool.get(1);
    let chunk = &parse(&pool)["regions"][0]["chunks"][0];
    assert_eq!(chunk["operation"], "ä".repeat(59), "cut at 119 bytes, at a whole character");
    assert_eq!(chunk["step"], u64::MAX);
    (1..8).for_each(|step| assert_eq!(scope_begin(&long, step), BFC_OK));
    let deep = pool.get(1);
    let map = parse(&pool);
    let chunk = list(&map["regions"][0], "chunks").iter().find(|chunk| address(chunk) == deep).expect("live");
    assert_eq!(chunk["operation"], vec!["ä".repeat(59); 8].join("/"), "nothing of it is cut");
    assert_eq!(chunk["step"], 7);
    assert_eq!(scope_begin("too deep", 8), BFC_ERROR_INVALID_ARGUMENT);
    // Another thread is in no scope.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT));
    });
    (0..8).for_each(|_| assert_eq!(bfc_scope_end(), BFC_OK));
    assert_eq!(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT);
}

/// Maps that are taken while other threads allocate and free each describe one moment: their chunks tile, and the
/// statistics in them agree.
#[test]
fn a_map_is_of_one_moment() {
    let pool = Pool::host(GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let mut live = VecDeque::new();
                for step in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    live.push_back(pool.get(256 * (1 + (step * 7 + thread) % 50)));
                    if live.len() > 300 {
                        live.swap(0, (step as usize * 31) % 300);
                        pool.put(live.pop_front().expect("300 are live"));
                    }
                }
            });
        }
        let mut buffer = vec![0u8; 1 << 20];
        for _ in 0..100 {
            let mut length = 0;
            // SAFETY: the buffer has that many bytes, and the length is writable.
            let status = unsafe {
                bfc_memory_map(pool.device(), buffer.as_mut_ptr().cast(), buffer.len(), &mut length)
            };
            assert_eq!(status, BFC_OK);
            let map: Value = serde_json::from_slice(&buffer[..length]).expect("JSON that fits");
            let (mut chunks, mut used, mut requested) = (0, 0, 0);
            for region in list(&map, "regions") {
                let mut at = address(region);
                for chunk in list(region, "chunks") {
                    assert_eq!(address(chunk), at, "chunks tile their region");
                    (at, chunks) = (at + number(chunk, "size"), chunks + 1);
                    if chunk["state"] == "in_use" {
                        used += number(chunk, "size");
                        requested += number(chunk, "requested");
                    }
                }
                assert_eq!(at, address(region) + number(region, "size"), "to the end");
            }
            let told =
                ["num_chunks", "bytes_in_use", "bytes_requested"].map(|name| number(&map["stats"], name));
            assert_eq!([chunks, used, requested], told);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The field table of docs/memory-map.md names every field that a map can have, and no other.
#[test]
fn every_field_of_the_map_is_documented() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_TIMESTAMPS);
    assert_eq!(scope_begin("operation", 1), BFC_OK);
    let named = pool.get(1000);
    assert_eq!(bfc_scope_end(), BFC_OK);
    pool.get(1000);
    pool.put(pool.get(1000));
    let mut fields = BTreeSet::new();
    let map = parse(&pool);
    collect(&map, "", &mut fields);
    pool.put(named);
    // Fields that only a pool with several streams has.
    let shared = Pool::host(MIB, |_| {});
    assert_eq!(bfc_pool_begin(shared.device(), 1, pointer(0x100)), BFC_OK);
    let mut kept = pointer(0);
    // SAFETY: the out-pointer is valid for writing.
    let served = unsafe { bfc_alloc_async(shared.device(), 1, pointer(0x100), &mut kept) };
    assert_eq!(served, BFC_OK);
    collect(&parse(&shared), "", &mut fields);
    shared.put(kept as u64);
    // And a pool whose settings cost much.
    let costly = Pool::host(160 * MIB, |_| {});
    costly.get(81 * MIB);
    collect(&parse(&costly), "", &mut fields);
    let page = include_str!("../../docs/memory-map.md");
    let table = page.split("| field | meaning |").nth(1).and_then(|rest| rest.split("\n\n").next());
    let table = table.expect("the table");
    let mut documented = BTreeSet::new();
    for row in table.lines().filter_map(|line| line.strip_prefix("| `")) {
        let names = row.split(" | ").next().expect("a first column");
        let names: Vec<&str> = names.split(", ").map(|name| name.trim_matches('`')).collect();
        let parent = names[0].rsplit_once('.').map_or("", |(parent, _)| parent);
        for (place, name) in names.iter().enumerate() {
            let path =
                if place == 0 || parent.is_empty() { (*name).to_owned() } else { format!("{parent}.{name}") };
            documented.insert(path.replace("chunks[]", "regions[].chunks[]"));
        }
    }
    // The statistics have the names of bfc_stats_t, which the page refers to.
    fields.retain(|field| !field.starts_with("stats.") || field == "stats.fragmentation");
    // Only in the debug mode; tests/guard/host.rs reads them.
    fields.extend(["guard_violations", "guards_unchecked"].map(|name| format!("counters.{name}")));
    assert_eq!(fields, documented);
}

fn collect(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields.insert(path.clone());
                collect(value, &path, fields);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, &format!("{path}[]"), fields)),
        _ => {}
    }
}
