//! The message of a failed request, and the report that it writes if enabled.

use crate::common::*;

/// The child of the tests of reports about failures; `TEST_CASE` selects one.
#[test]
fn fail_with_a_report() {
    if !child::is_child("fail_with_a_report") {
        return;
    }
    let collected = log::Collected::start();
    match std::env::var("TEST_CASE").expect("set by the parent").as_str() {
        "exhaustion" => {
            let pool = Pool::host(4 * MIB, |_| {});
            (0..3).for_each(|_| assert_ne!(pool.get(MIB), 0));
            assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        "fragmentation" => {
            let pool = Pool::host(4 * MIB, |_| {});
            let chunks: Vec<u64> = (0..16).map(|_| pool.get(MIB / 4)).collect();
            chunks.iter().step_by(2).for_each(|&address| pool.put(address));
            assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        "quarantine" => {
            let flags = BFC_TIMESTAMPS | BFC_QUARANTINE | BFC_SPLIT_ALWAYS;
            let pool = Pool::host(4 * MIB, |options| options.flags = flags);
            let chunk = pool.get(3 * MIB);
            pool.put(chunk);
            assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        "regions" => {
            let grows = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS;
            let pool = Pool::custom(Backend::new(GIB), 6 * MIB, |options| options.flags = grows);
            let chunks = [pool.get(2 * MIB), pool.get(4 * MIB)];
            chunks.iter().for_each(|&address| pool.put(address));
            assert_eq!(pool.alloc(5 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        "empty" => {
            let pool = Pool::host(MIB, |_| {});
            assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        case @ ("doubling" | "need") => {
            let grows = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_SPLIT_ALWAYS;
            let policy = if case == "need" { BFC_GROWTH_NEED } else { BFC_GROWTH_TENSORFLOW };
            let pool = Pool::custom(Backend::new(GIB), 10 * MIB, |options| {
                (options.flags, options.growth_policy) = (grows, policy);
            });
            // One chunk in use in each of the regions, of 2, 4 and 4 MiB.
            for size in [MIB, 3 * MIB, 3 * MIB] {
                pool.get(size);
            }
            assert_eq!(pool.alloc(3 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        "refusal" => {
            let pool = Pool::custom(Backend::new(MIB), GIB, |options| options.flags = BFC_ALLOW_GROWTH);
            pool.get(256);
            assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        "often" => {
            let pool = Pool::host(MIB, |_| {});
            (0..1000).for_each(|_| assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY)));
            assert_eq!(pool.stats().num_failures, 1000);
        }
        case => panic!("what is {case}?"),
    }
    for (level, message) in collected.messages() {
        println!("MESSAGE {level}\n{message}\nEND");
    }
    println!("WORDS {}", last_error());
}

/// Returns the reports of a case, and its error message.
fn reports_of(case: &str, asked: bool) -> (Vec<String>, String) {
    let ask = ("BFC_REPORT_ON_FAILURE", if asked { "1" } else { "0" });
    let text = child::expect_success("fail_with_a_report", &[("TEST_CASE", case), ask]).text;
    let reports = text
        .split("MESSAGE 1\n")
        .skip(1)
        .map(|rest| rest.split("\nEND").next().unwrap_or_default().to_owned());
    let words = text.lines().find_map(|line| Some(line.split_once("WORDS ")?.1)).expect("the words");
    (reports.collect(), words.to_owned())
}

#[test]
fn exhaustion_is_told_from_fragmentation() {
    let (reports, words) = reports_of("exhaustion", true);
    assert_eq!(reports.len(), 1);
    for text in [&reports[0], &words] {
        assert!(text.contains("exhaustion") && !text.contains("fragmentation."), "{text}");
        assert!(text.contains("2.00 MiB (2097152 bytes):") && text.contains("1.00 MiB"), "{text}");
    }
    assert!(reports[0].contains("1.00 MiB would have fitted"), "{}", reports[0]);
    let (reports, words) = reports_of("fragmentation", true);
    assert_eq!(reports.len(), 1);
    for text in [&reports[0], &words] {
        assert!(text.contains("fragmentation. ") && !text.contains("exhaustion"), "{text}");
    }
    assert!(reports[0].contains("256.00 KiB would have fitted"), "{}", reports[0]);
    assert!(reports[0].contains("fragmentation 87.5%"), "{}", reports[0]);
}

/// The limit leaves room but the backend has none: the size that the limit leaves would not have fitted.
#[test]
fn a_backend_that_refuses_is_no_fragmentation() {
    let (reports, words) = reports_of("refusal", true);
    for text in [&reports[0], &words] {
        assert!(!text.contains("fragmentation. "), "{text}");
    }
    assert!(!reports[0].contains("1023.04 MiB would have fitted"), "{}", reports[0]);
    assert!(reports[0].contains("980.00 KiB would have fitted"), "{}", reports[0]);
}

/// Memory that waits for the safe frontier is not reusable, and the report says how to make it reusable.
#[test]
fn memory_in_quarantine_is_told_apart() {
    let (reports, words) = reports_of("quarantine", true);
    for text in [&reports[0], &words] {
        assert!(text.contains("exhaustion. 1.00 MiB are free"), "{text}");
        assert!(text.contains("; 3.00 MiB more wait for the safe frontier"), "{text}");
    }
    assert!(reports[0].contains("bfc_set_safe_frontier"), "{}", reports[0]);
}

#[test]
fn fragmentation_over_regions_names_the_option_that_helps() {
    let (reports, words) = reports_of("regions", true);
    assert!(words.contains("fragmentation. 6.00 MiB are free"), "{words}");
    let remedy = "with BFC_GARBAGE_COLLECTION free regions make room for a larger one";
    assert!(
        words.ends_with(&format!("; {remedy}")) && reports[0].contains(remedy),
        "{words}\n{}",
        reports[0]
    );
    let (reports, words) = reports_of("fragmentation", true);
    assert!(!reports[0].contains("BFC_GARBAGE_COLLECTION"), "one region: it would not help\n{}", reports[0]);
    let remedy = "; BFC_BACKEND_HOST_VMM (or BFC_BACKEND=host_vmm) moves free memory together";
    assert!(words.ends_with(remedy), "{words}");
}

/// Nothing is in use, so memory is not exhausted: the request is larger than the limit.
#[test]
fn a_request_above_the_limit_is_told_so() {
    let (reports, words) = reports_of("empty", true);
    assert!(words.contains(" and the request is larger than the limit of 1.00 MiB"), "{words}");
    assert!(reports[0].contains("The request is larger than the limit: 1.00 MiB would"), "{}", reports[0]);
    let (reports, words) = reports_of("exhaustion", true);
    assert!(words.contains(" and the limit leaves "), "{words}");
    assert!(reports[0].contains("The limit leaves too little: 1.00 MiB would"), "{}", reports[0]);
    let (reports, _) = reports_of("refusal", true);
    assert!(reports[0].contains("The backend has no more memory: 980.00 KiB would"), "{}", reports[0]);
}

#[test]
fn regions_that_double_are_named_with_the_setting_that_helps() {
    let (reports, words) = reports_of("doubling", true);
    assert!(words.contains("fragmentation. 3.00 MiB are free"), "{words}");
    assert!(
        words.ends_with("; regions double in size, which BFC_GROWTH_NEED (or BFC_GROWTH=need) avoids"),
        "{words}"
    );
    assert!(reports[0].contains("BFC_GROWTH_NEED"), "{}", reports[0]);
    let (reports, words) = reports_of("need", true);
    assert!(words.contains("fragmentation. ") && !words.contains("BFC_GROWTH"), "{words}");
    assert!(!reports[0].contains("BFC_GROWTH"), "{}", reports[0]);
}

/// Adapters align each request to 512, which is not the reason why 2 MiB do not fit.
#[test]
fn an_alignment_is_told_where_it_makes_a_difference() {
    let pool = Pool::host(MIB, |_| {});
    for (bytes, alignment, is_told) in [(2 * MIB, 512, false), (2 * MIB, MIB, true)] {
        assert_eq!(pool.alloc_aligned(bytes, alignment), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(last_error().contains("narrows the choice"), is_told, "{}", last_error());
    }
}

/// Reports use the singular for a count of one.
#[test]
fn one_thing_is_not_things() {
    let (reports, _) = reports_of("exhaustion", true);
    assert!(
        reports[0].contains("in 1 region\n") && reports[0].contains(" 0 frees, 1 failure\n"),
        "{}",
        reports[0]
    );
    assert!(reports[0].contains("  3 allocations,"), "{}", reports[0]);
}

#[test]
fn reports_are_opt_in_and_rate_limited() {
    assert_eq!(reports_of("often", false).0.len(), 0);
    assert_eq!(reports_of("often", true).0.len(), 1, "at most one in ten seconds");
}

/// The requests that failed: in the report and in the memory map, whatever the cause, until the statistics are reset.
#[test]
fn requests_that_failed_are_told_of() {
    let pool = Pool::custom(Backend::new(2 * MIB), 64 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let map =
        || serde_json::from_str::<serde_json::Value>(&pool.memory_map()).expect("JSON")["failures"].clone();
    let failed = |largest: u64, last: u64, cause: &str| {
        assert_eq!(map(), serde_json::json!({"largest": largest, "last": last, "last_cause": cause}));
        let line =
            format!("the largest request that failed: {largest} bytes; the last: {last} bytes ({cause})");
        assert!(pool.report().contains(&line), "{}", pool.report());
    };
    let none = serde_json::json!({"largest": 0, "last": 0, "last_cause": null});
    assert_eq!((map(), pool.report().contains("request that failed")), (none.clone(), false));
    let chunks = [pool.get(MIB), pool.get(MIB / 2), pool.get(MIB / 2)];
    assert_eq!(pool.alloc(40 * MIB + 1), Err(BFC_ERROR_OUT_OF_MEMORY));
    failed(40 * MIB + 1, 40 * MIB + 1, "exhaustion");
    pool.put(chunks[0]);
    pool.put(chunks[2]);
    assert_eq!(pool.alloc(MIB + 1000), Err(BFC_ERROR_OUT_OF_MEMORY));
    failed(40 * MIB + 1, MIB + 1000, "fragmentation");
    assert_eq!(pool.alloc_aligned(256, 1 << 40), Err(BFC_ERROR_OUT_OF_MEMORY));
    failed(40 * MIB + 1, 256, "alignment");
    assert_eq!(pool.alloc(u64::MAX), Err(BFC_ERROR_OUT_OF_MEMORY));
    failed(u64::MAX, u64::MAX, "other");
    // A request limited to held memory does not count as a failure.
    let mut held = request(3 << 20);
    held.flags = BFC_REQUEST_NO_GROWTH;
    assert_eq!(pool.alloc_ex(&held), Err(BFC_ERROR_OUT_OF_MEMORY));
    failed(u64::MAX, u64::MAX, "other");
    let counters =
        || serde_json::from_str::<serde_json::Value>(&pool.memory_map()).expect("JSON")["counters"].clone();
    let before = counters();
    assert_eq!((pool.stats().num_failures, bfc_reset_stats(pool.device())), (4, BFC_OK));
    assert_eq!((map(), counters()), (none, before));
    assert_ne!(counters()["regions_added"], 0);
    pool.put(chunks[1]);
}
