//! Plans: places computed in advance, which an allocator follows while the program does what was recorded.

mod common;
mod plan_files;

use common::*;
use plan_files::{InMemory, lines, plan, run, with_checksum};

const K: u64 = KIB;

fn stats_of(device: i32) -> bfc_stats_t {
    let mut out = stats();
    // SAFETY: a whole struct, writable.
    assert_eq!(unsafe { bfc_stats(device, &mut out) }, BFC_OK);
    out
}

fn report_of(device: i32) -> String {
    let mut buffer = vec![0_u8; 1 << 16];
    let mut length = 0;
    // SAFETY: the buffer has that many bytes, and the length is writable.
    let status = unsafe { bfc_report(device, buffer.as_mut_ptr().cast(), buffer.len(), &mut length) };
    assert_eq!(status, BFC_OK);
    buffer.truncate(length);
    String::from_utf8(buffer).expect("UTF-8")
}

/// An allocator that follows a plan, in a pool of `limit` bytes.
fn following(content: &[u8], limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> i32 {
    let device = fresh_device();
    let file = InMemory::with(content);
    let mut options = options();
    (options.backend, options.memory_limit, options.plan) = (BFC_BACKEND_HOST, limit, file.path.as_ptr());
    change(&mut options);
    assert_eq!(create(device, Some(&options)), BFC_OK, "{}", last_error());
    device
}

/// Three that stay, and a step of two. None is where best fit would place it.
const ENTRIES: [(u64, Option<u64>); 5] =
    [(4096, Some(12288)), (4096, Some(0)), (1024, Some(8192)), (2048, Some(4096)), (1024, Some(10240))];

#[test]
fn a_program_that_was_recorded_gets_its_places() {
    let device = following(&plan(16384, 3, &ENTRIES), 16384, |_| {});
    let request = |at: usize| alloc(device, ENTRIES[at].0 as usize - 100).expect("room");
    let stay: Vec<u64> = (0..3).map(request).collect();
    let base = stay[1];
    assert_eq!([stay[0], stay[2]].map(|address| address - base), [12288, 8192]);
    for _ in 0..4 {
        let [one, other] = [3, 4].map(request);
        assert_eq!([one, other].map(|address| address - base), [4096, 10240]);
        assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
        assert_eq!((free(device, one), free(device, other)), (BFC_OK, BFC_OK));
    }
    let now = stats_of(device);
    assert_eq!((now.num_allocs, now.num_planned_allocs, now.bytes_in_use), (11, 11, 9216));
    let report = report_of(device);
    assert!(report.contains("\n  11 allocations at the places of the plan\n"), "{report}");
    assert_eq!(bfc_reset_stats(device), BFC_OK);
    assert_eq!(stats_of(device).num_planned_allocs, 0);
    // The program has ended, and runs again.
    stay.into_iter().for_each(|address| assert_eq!(free(device, address), BFC_OK));
    assert_eq!(request(0) - base, 12288);
    assert_eq!(stats_of(device).num_planned_allocs, 1);
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

#[test]
fn what_is_not_in_the_plan_lies_behind_it_if_there_is_room() {
    let device = following(&plan(16384, 3, &ENTRIES), 65536, |_| {});
    let stay = [4096, 4096, 1024].map(|bytes| alloc(device, bytes).expect("room"));
    let base = stay[1];
    for _ in 0..8 {
        let step = [2048, 1024].map(|bytes| alloc(device, bytes).expect("room"));
        step.into_iter().for_each(|address| assert_eq!(free(device, address), BFC_OK));
    }
    assert_eq!(stats_of(device).num_planned_allocs, 19);
    assert_eq!(alloc(device, 3000), Ok(base + 16384));
    // The smallest chunk that is large enough would be the one before 4096, where the next one is planned.
    assert_eq!(alloc(device, 3500), Ok(base + 16384 + 3072));
    assert_eq!(alloc(device, 2000), Ok(base + 4096));
    assert_eq!((stats_of(device).num_planned_allocs, bfc_check(device)), (20, BFC_OK));
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

/// A plan of another program must not move its requests after the planned bytes: a full pool may have no room there.
#[test]
fn before_a_program_follows_the_plan_it_gets_the_best_fit() {
    let (followed, plain) = (
        following(&plan(16384, 3, &ENTRIES), 65536, |_| {}),
        following(b"", 65536, |options| options.plan = c"".as_ptr()),
    );
    let places = |device: i32| {
        let addresses = [3000, 512, 20_000, 5000, 34_000].map(|bytes| alloc(device, bytes).expect("room"));
        addresses.map(|address| address - addresses[0])
    };
    assert_eq!(places(followed), places(plain));
    [followed, plain].into_iter().for_each(|device| assert_eq!(bfc_destroy_forced(device), BFC_OK));
}

#[test]
fn what_is_not_in_the_plan_gets_the_best_fit_in_a_pool_that_is_no_larger() {
    let device = following(&plan(16384, 3, &ENTRIES), 16384, |_| {});
    let other = alloc(device, 3000).expect("room");
    // The second entry's place is taken, and the plan continues: the third is where it is planned.
    let stay = [4096, 4096, 1024].map(|bytes| alloc(device, bytes).expect("room") - other);
    assert_eq!((stay, stats_of(device).num_planned_allocs), ([12288, 3072, 8192], 2));
    assert_eq!(
        alloc(device, 2048),
        Ok(other + 9216),
        "the smallest chunk that is free, as its place is taken too"
    );
    assert_eq!((stats_of(device).num_planned_allocs, bfc_check(device)), (2, BFC_OK));
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

#[test]
fn a_place_counts_only_if_it_has_the_requested_alignment() {
    let device = following(&plan(16384, 3, &ENTRIES), 65536, |_| {});
    for (size, _) in &ENTRIES[..3] {
        alloc_aligned(device, *size as usize, 4096).expect("room");
    }
    assert_eq!(stats_of(device).num_planned_allocs, 3);
    alloc_aligned(device, 2048, 4096).expect("room");
    let other = alloc_aligned(device, 1024, 4096).expect("room");
    // 10240 is no multiple of 4096.
    assert_eq!((other % 4096, stats_of(device).num_planned_allocs, bfc_check(device)), (0, 4, BFC_OK));
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

#[test]
fn a_full_pool_serves_what_fits_although_it_was_planned_elsewhere() {
    // Both places are the same.
    let device = following(&plan(4096, 0, &[(4096, Some(0))]), 8192, |_| {});
    let both = [alloc(device, 4096), alloc(device, 4096)];
    assert!(both.iter().all(Result::is_ok));
    assert_eq!(alloc(device, 4096), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(stats_of(device).num_planned_allocs, 1);
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
    // Places beyond the pool.
    let device = following(&plan(MIB, 0, &[(4096, Some(MIB - 4096))]), 8192, |_| {});
    assert!(alloc(device, 4096).is_ok() && stats_of(device).num_planned_allocs == 0);
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

#[test]
fn a_pool_that_grows_begins_with_what_is_planned() {
    for policy in [BFC_GROWTH_TENSORFLOW, BFC_GROWTH_NEED] {
        let grow = |options: &mut bfc_options_t| {
            (options.flags, options.growth_policy) = (BFC_ALLOW_GROWTH, policy);
        };
        let content = plan(10 * MIB, 1, &[(K, Some(10 * MIB - K)), (K, Some(0))]);
        let device = following(&content, 64 * MIB, grow);
        let [high, low] = [K, K].map(|bytes| alloc(device, bytes as usize).expect("room"));
        assert_eq!((high - low, stats_of(device).pool_bytes), (10 * MIB - K, 10 * MIB));
        // Requests beyond the plan grow as without one.
        alloc(device, 10 * MIB as usize).expect("room");
        let grown = if policy == BFC_GROWTH_NEED { 20 * MIB } else { 26 * MIB };
        assert_eq!(stats_of(device).pool_bytes, grown);
        assert_eq!(bfc_destroy_forced(device), BFC_OK);
        // The limit leaves less.
        let device = following(&content, 4 * MIB, grow);
        alloc(device, K as usize).expect("room");
        assert!(stats_of(device).pool_bytes <= 4 * MIB);
        assert_eq!(bfc_destroy_forced(device), BFC_OK);
    }
}

#[test]
fn granules_are_mapped_for_the_whole_plan() {
    let device = following(&plan(6 * MIB, 1, &[(MIB, Some(5 * MIB)), (MIB, Some(0))]), 64 * MIB, |options| {
        (options.backend, options.flags) = (BFC_BACKEND_HOST_VMM, BFC_ALLOW_GROWTH);
    });
    let [high, low] = [MIB, MIB].map(|bytes| alloc(device, bytes as usize).expect("room"));
    assert_eq!((high - low, stats_of(device).pool_bytes), (5 * MIB, 6 * MIB));
    assert_eq!((stats_of(device).num_planned_allocs, bfc_check(device)), (2, BFC_OK));
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

#[test]
fn a_second_stream_ends_the_plan() {
    let device = following(&plan(16384, 0, &ENTRIES), 65536, |_| {});
    let first = alloc_async(device, 4096, 16).expect("room");
    assert_eq!(stats_of(device).num_planned_allocs, 1);
    let second = alloc_async(device, 4096, 32).expect("room");
    assert_eq!((stats_of(device).num_planned_allocs, bfc_check(device)), (1, BFC_OK));
    assert_eq!((free_async(device, first, 16), free_async(device, second, 32)), (BFC_OK, BFC_OK));
    assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
    assert_eq!(bfc_destroy(device), BFC_OK);
}

#[test]
fn a_wrong_plan_is_refused_with_a_message() {
    let good = lines(16384, 3, &ENTRIES);
    let whole = with_checksum(&good);
    let damaged: Vec<u8> = whole.iter().map(|&byte| if byte == b'4' { b'5' } else { byte }).collect();
    let device = fresh_device();
    for (content, words) in [
        (&b""[..], "not a plan of bfc plan"),
        (b"# step 0\n+ 1 1048576 0\n", "not a plan of bfc plan"),
        (good.replace("bfc-plan 1", "bfc-plan 2").as_bytes(), "a plan of another version"),
        (&whole[..whole.len() - 1], "truncated"),
        (&whole[..whole.len() / 2], "truncated"),
        (&damaged, "must"),
        (&with_checksum(good.replace("4096 0", "4096 1")), "line 7: the place must begin at a multiple"),
        (&[&good, "checksum 0123456789abcdef\n"].concat().into_bytes(), "the checksum does not match"),
    ] {
        let file = InMemory::with(content);
        let options = bfc_options_t { backend: BFC_BACKEND_HOST, plan: file.path.as_ptr(), ..options() };
        assert_eq!(create(device, Some(&options)), BFC_ERROR_INVALID_ARGUMENT, "{words}");
        let error = last_error();
        assert!(error.starts_with("the plan /proc/self/fd/") && error.contains(words), "{error}");
    }
    for (path, words) in [(c"/no/such/file", "there is no such file"), (c"/", "it is a directory")] {
        let options = bfc_options_t { backend: BFC_BACKEND_HOST, plan: path.as_ptr(), ..options() };
        assert_eq!(create(device, Some(&options)), BFC_ERROR_INVALID_ARGUMENT);
        assert!(last_error().contains(words), "{}", last_error());
    }
    let file = InMemory::with(&whole);
    let stamped = bfc_options_t {
        backend: BFC_BACKEND_HOST,
        flags: BFC_TIMESTAMPS,
        plan: file.path.as_ptr(),
        ..options()
    };
    assert_eq!(create(device, Some(&stamped)), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(last_error(), "a plan cannot be followed with BFC_TIMESTAMPS: leave out one of them");
}

/// The child of the tests of the environment. Does nothing on its own.
#[test]
fn planned() {
    if !child::is_child("planned") {
        return;
    }
    let mut given = options();
    (given.backend, given.memory_limit) = (BFC_BACKEND_HOST, 65536);
    given.flags = if std::env::var_os("TEST_STAMPS").is_some() { BFC_TIMESTAMPS } else { 0 };
    given.plan = if std::env::var_os("TEST_NO_PLAN").is_some() { c"".as_ptr() } else { std::ptr::null() };
    assert_eq!(create(258, Some(&given)), BFC_OK, "{}", last_error());
    for (size, _) in ENTRIES {
        alloc(258, size as usize).expect("room");
    }
    println!("fact {}", stats_of(258).num_planned_allocs);
    assert_eq!(bfc_destroy_forced(258), BFC_OK);
}

#[test]
fn the_environment_names_a_plan_and_a_wrong_one_is_ignored() {
    let path = std::env::temp_dir().join(format!("bfc-plan-{}", std::process::id()));
    std::fs::write(&path, plan(16384, 3, &ENTRIES)).expect("a new file");
    let path = path.to_str().expect("UTF-8").to_owned();
    let runs = |variables: &[(&str, &str)]| {
        let ended = child::run("planned", &[&[("BFC_LOG", "info")], variables].concat());
        assert!(ended.success, "{}{}", ended.text, ended.errors);
        let fact = ended.text.lines().find_map(|line| line.split_once("fact ")).expect("a fact").1;
        (fact.parse::<u64>().expect("a number"), ended.errors)
    };
    let (followed, log) = runs(&[("BFC_PLAN", &path)]);
    assert_eq!(followed, 5);
    for line in ["follows a plan of 5 requests in 16384 bytes", "5 of 5 allocations followed the plan"] {
        assert!(log.contains(line), "{log}");
    }
    assert_eq!(runs(&[("BFC_PLAN", &path), ("TEST_NO_PLAN", "1")]).0, 0);
    let (followed, log) = runs(&[("BFC_PLAN", &path), ("TEST_STAMPS", "1")]);
    assert!(followed == 0 && log.contains("is ignored: it has no effect with BFC_TIMESTAMPS"), "{log}");
    let (followed, log) = runs(&[("BFC_PLAN", &path), ("BFC_DEBUG", "guard")]);
    assert!(followed == 0 && log.contains("is ignored: it has no effect with BFC_DEBUG=guard"), "{log}");
    let (followed, log) = runs(&[("BFC_PLAN", "/no/such/file")]);
    assert!(followed == 0 && log.contains("BFC_PLAN=/no/such/file is ignored: cannot be read"), "{log}");
    std::fs::write(&path, "+ 1 1 0\n").expect("written");
    let (followed, log) = runs(&[("BFC_PLAN", &path)]);
    assert!(followed == 0 && log.contains("is ignored: not a plan of bfc plan"), "{log}");
    std::fs::remove_file(&path).expect("removed");
}

/// Runs the fuzz target on bytes from seeds.
#[test]
fn any_text_is_refused_or_harmless() {
    let device = fresh_device();
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let length = random.below(700) as usize;
        let mut program: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        if seed % 3 == 0 && program.len() > 200 {
            // A whole plan with one byte changed.
            let mut text = plan(65536, 1, &[(256, Some(0)), (512, Some(256)), (256, None)]);
            let at = random.below(text.len() as u64) as usize;
            text[at] = random.below(256) as u8;
            (program[0], program[2]) = (0, text.len() as u8);
            program.splice(3..3, text);
        }
        run(&program, device);
    }
}
