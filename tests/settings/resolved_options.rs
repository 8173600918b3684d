//! `bfc_resolve_options`: the settings that bfc_create would use, and the effect of each variable, in child processes.
//! Settings that cost much memory, there and in the reports of pools.

use crate::common::*;
use serde_json::{Value, json};
use std::ptr;

/// The child's arguments: a device, then words for its options.
const HOW: &str = "TEST_OPTIONS";

/// The child of all tests here. Does nothing on its own.
#[test]
fn resolver() {
    if !child::is_child("resolver") {
        return;
    }
    let how = std::env::var(HOW).expect("set by the parent");
    let mut words = how.split(' ');
    let device: i32 = words.next().and_then(|word| word.parse().ok()).expect("a device");
    let mut given = None;
    for word in words {
        let options = given.get_or_insert_with(options);
        match word {
            "options" => {}
            "host" => options.backend = BFC_BACKEND_HOST,
            "prefer" => options.backend = BFC_BACKEND_PREFER_CUDA_VMM,
            "host_vmm" => options.backend = BFC_BACKEND_HOST_VMM,
            "limit" => options.memory_limit = MIB,
            "collect" => options.flags |= BFC_GARBAGE_COLLECTION,
            "grow" => options.flags |= BFC_ALLOW_GROWTH,
            "split" => options.flags |= BFC_SPLIT_ALWAYS,
            "fraction" => options.fragmentation_fraction = 0.1,
            "region" => options.initial_region_bytes = 256,
            "wait" => options.retry_timeout_ms = 5,
            "need" => options.growth_policy = BFC_GROWTH_NEED,
            "plan" => options.plan = c"x".as_ptr(),
            "unplanned" => options.plan = c"".as_ptr(),
            "stamps" => options.flags |= BFC_TIMESTAMPS,
            "wrong" => options.flags = 1 << 31,
            _ => panic!("what is {word}?"),
        }
    }
    match resolve(device, given.as_ref()) {
        Ok(text) => println!("fact {text}"),
        Err(status) => println!("fact {{\"status\":{status}}}"),
    }
    let mut out = stats();
    // SAFETY: a whole struct, writable.
    assert_eq!(unsafe { bfc_stats(device, &mut out) }, BFC_ERROR_NO_ALLOCATOR, "nothing was created");
}

pub fn resolve(device: i32, options: Option<&bfc_options_t>) -> Result<String, bfc_status_t> {
    let options = options.map_or(ptr::null(), ptr::from_ref);
    let mut buffer = vec![0_u8; 64 << 10];
    let mut length = 0;
    // SAFETY: the buffer is as long as it says, and the options are a whole struct.
    let status = unsafe {
        bfc_resolve_options(device, options, buffer.as_mut_ptr().cast(), buffer.len(), &mut length)
    };
    buffer.truncate(length);
    if status == BFC_OK { Ok(String::from_utf8(buffer).expect("UTF-8")) } else { Err(status) }
}

#[track_caller]
fn resolved(how: &str, variables: &[(&str, &str)]) -> Value {
    let ended = child::run("resolver", &[&[(HOW, how)], variables].concat());
    assert!(ended.success, "{}{}", ended.text, ended.errors);
    assert_eq!(ended.errors, "", "it reports, and the log stays silent");
    let line = ended.text.lines().find_map(|line| line.split_once("fact ")).expect("a fact").1;
    let mut found: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    if let Some(variables) = found.get_mut("environment").and_then(Value::as_array_mut) {
        // The variable that makes it a child.
        variables.retain(|variable| variable["name"] != "BFC_TEST_CHILD");
    }
    found
}

/// The variables that are used, in alphabetical order.
#[track_caller]
fn used(how: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let all = resolved(how, variables);
    let environment = all["environment"].as_array().expect("a list");
    let used = environment.iter().filter(|variable| variable["used"] == true);
    let mut names: Vec<String> =
        used.map(|variable| variable["name"].as_str().expect("a name").to_owned()).collect();
    names.sort_unstable();
    names
}

#[track_caller]
fn remark(how: &str, variables: &[(&str, &str)], name: &str) -> Value {
    let all = resolved(how, variables);
    let environment = all["environment"].as_array().expect("a list");
    let found = environment.iter().find(|variable| variable["name"] == name).expect("it is listed");
    assert_eq!(found["value"], variables.iter().find(|(set, _)| *set == name).expect("it is set").1);
    found["remark"].clone()
}

/// The options of a replay: a backend, a limit, no flags.
const REPLAY: &str = "258 host limit";

#[test]
fn the_defaults_and_what_the_options_set() {
    let expected = json!({
        "schema": 1, "device": 256, "backend": "host", "memory_limit": 0, "initial_region_bytes": 0,
        "retry_timeout_ms": 0, "memory_fraction": 0, "fragmentation_fraction": 0, "allow_growth": true,
        "garbage_collection": true, "timestamps": false, "quarantine": false, "split_always": true,
        "two_ends": false, "guard": false,
        "report_on_failure": false, "trim_after": 0, "huge_pages": "auto", "numa": "default", "populate": false,
        "growth_policy": "need", "plan": false, "ignored": [], "costs": [], "environment": [],
    });
    assert_eq!(resolved("256", &[]), expected);
    let zeros = resolved("0 options", &[]);
    assert_eq!((&zeros["backend"], &zeros["allow_growth"]), (&json!("cuda"), &json!(false)));
    let full = resolved("258 host limit grow fraction region wait", &[]);
    assert_eq!(
        (&full["memory_limit"], &full["fragmentation_fraction"], &full["initial_region_bytes"]),
        (&json!(MIB), &json!(0.1), &json!(256))
    );
    assert_eq!((&full["split_always"], &full["retry_timeout_ms"]), (&json!(false), &json!(5)));
}

/// The recommended alternatives to settings that can make a pool hold much more than a program needs.
#[test]
fn costly_settings_come_with_advice() {
    let named = |how: &str, set: &[(&str, &str)]| {
        let all = resolved(how, set);
        let costs = all["costs"].as_array().expect("a list");
        costs.iter().map(|cost| format!("{}: {}", cost["setting"], cost["advice"])).collect::<Vec<_>>()
    };
    let growth = "\"allow_growth\": \"set BFC_ALLOW_GROWTH\"";
    let policy = "\"growth_policy\": \"set BFC_GROWTH_NEED (or BFC_GROWTH=need)\"";
    let split = "\"split_always\": \"set BFC_SPLIT_ALWAYS\"";
    assert_eq!(named("256 options", &[]), [growth, split]);
    assert_eq!(named("256 options grow", &[]), [policy, split]);
    assert_eq!(named("256 options grow split need", &[]), [""; 0]);
    assert_eq!(named("256 options limit", &[]), [""; 0], "a small limit costs little");
    assert_eq!(named("258 host_vmm grow", &[]), [""; 0], "mapped memory does not double, and splits");
    assert_eq!(named("258 host_vmm", &[]), [growth]);
    assert_eq!(named("256", &[("BFC_ALLOW_GROWTH", "0")]), [growth]);
    assert_eq!(named("256", &[("BFC_GROWTH", "tensorflow"), ("BFC_SPLIT_ALWAYS", "0")]), [policy, split]);
}

/// Memory that a setting makes a pool hold in vain is reported with the recommended alternative: as a line of the
/// report, and in the map.
#[test]
fn costly_settings_are_named() {
    const RECOMMENDED: u32 = GROWING | BFC_SPLIT_ALWAYS;
    let pool = |limit, flags, growth_policy| {
        Pool::host(limit, |options| (options.flags, options.growth_policy) = (flags, growth_policy))
    };
    let named = |pool: &Pool, lines: &[&str], costs: Value| {
        let report = pool.report();
        let found: Vec<&str> =
            report.lines().map(str::trim).filter(|line| line.contains("BFC_OPTIONS_RECOMMENDED")).collect();
        assert_eq!(found, lines, "{report}");
        let map: Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
        assert_eq!(map["costs"], costs);
    };
    // 8 GiB for 773 MiB.
    let whole = pool(8 * GIB, BFC_SPLIT_ALWAYS, BFC_GROWTH_DEFAULT);
    named(&whole, &[], json!([]));
    whole.get(773 * MIB);
    named(
        &whole,
        &["no growth: 7.25 GiB of the 8.00 GiB held were never used; set BFC_ALLOW_GROWTH, as \
           BFC_OPTIONS_RECOMMENDED does"],
        json!([{"setting": "allow_growth", "bytes": 7419 * MIB, "of": 8 * GIB, "advice": "set BFC_ALLOW_GROWTH"}]),
    );
    // Memory that was ever used is not named, live or not.
    whole.put(whole.get(7400 * MIB));
    named(&whole, &[], json!([]));

    // Regions of 2, 4, 8 to 512 MiB for 600 MiB.
    let doubling = pool(8 * GIB, RECOMMENDED, BFC_GROWTH_TENSORFLOW);
    (0..600).for_each(|_| assert_ne!(doubling.get(MIB), 0));
    named(
        &doubling,
        &["regions double: 422.00 MiB of the 1022.00 MiB held were never used; set BFC_GROWTH_NEED (or \
           BFC_GROWTH=need), as BFC_OPTIONS_RECOMMENDED does"],
        json!([{"setting": "growth_policy", "bytes": 422 * MIB, "of": 1022 * MIB,
                "advice": "set BFC_GROWTH_NEED (or BFC_GROWTH=need)"}]),
    );
    let by_need = pool(8 * GIB, RECOMMENDED, BFC_GROWTH_PREFER_NEED);
    (0..600).for_each(|_| assert_ne!(by_need.get(MIB), 0));
    named(&by_need, &[], json!([]));

    // A chunk of 160 MiB for 81 MiB.
    let remainders = pool(160 * MIB, 0, BFC_GROWTH_DEFAULT);
    remainders.get(81 * MIB);
    named(
        &remainders,
        &["no splits below twice the size: 79.00 MiB of the 160.00 MiB in use are remainders; set \
           BFC_SPLIT_ALWAYS, as BFC_OPTIONS_RECOMMENDED does"],
        json!([{"setting": "split_always", "bytes": 79 * MIB, "of": 160 * MIB, "advice": "set BFC_SPLIT_ALWAYS"}]),
    );

    // The same with several streams.
    let streams = pool(8 * GIB, BFC_SPLIT_ALWAYS, BFC_GROWTH_DEFAULT);
    [1, 2].into_iter().for_each(|stream| assert_ne!(streams.get_on(1000, stream), 0));
    assert_ne!(streams.get_on(7400 * MIB, 1), 0);
    named(&streams, &[], json!([]));

    // Little memory, or a small fraction of it.
    for (limit, bytes) in [(64 * MIB, MIB), (8 * GIB, 7200 * MIB)] {
        let little = pool(limit, 0, BFC_GROWTH_DEFAULT);
        little.get(bytes);
        named(&little, &[], json!([]));
    }
}

/// The settings of the options are told apart from those of the environment.
#[test]
fn options_without_effect_come_with_the_reason() {
    let both = resolved("258 host limit region split fraction", &[("BFC_POPULATE", "1")]);
    let expected = json!([
        {"setting": "initial_region_bytes", "reason": "it needs BFC_ALLOW_GROWTH"},
        {"setting": "fragmentation_fraction", "reason": "it has no effect with BFC_SPLIT_ALWAYS"},
    ]);
    assert_eq!(both["ignored"], expected);
    assert_eq!((&both["initial_region_bytes"], &both["fragmentation_fraction"]), (&json!(0), &json!(0)));
    let vmm = resolved("258 host_vmm limit collect", &[("BFC_HUGE_PAGES", "never")]);
    let expected =
        json!([{"setting": "garbage_collection", "reason": "it has no effect with a virtual range"}]);
    assert_eq!((&vmm["ignored"], &vmm["huge_pages"]), (&expected, &json!("auto")));
    assert_eq!(resolved("258 host_vmm limit", &[])["ignored"], json!([]), "settings that were not requested");
}

#[test]
fn the_device_decides_for_an_adapter() {
    assert_eq!(resolved("0 prefer", &[])["backend"], "prefer_cuda_vmm");
    assert_eq!(resolved("0 prefer", &[("BFC_BACKEND", "cuda")])["backend"], "cuda");
    assert_eq!(resolved("256 prefer", &[])["backend"], "host");
}

#[test]
fn what_bfc_create_would_refuse_is_refused() {
    assert_eq!(resolved("258", &[]), json!({ "status": BFC_ERROR_INVALID_ARGUMENT }));
    assert_eq!(resolved("257", &[]), json!({ "status": BFC_ERROR_BACKEND_UNAVAILABLE }));
    assert_eq!(resolved("256 wrong", &[]), json!({ "status": BFC_ERROR_INVALID_ARGUMENT }));
    assert_eq!(resolved("256", &[("BFC_BACKEND", "cuda")]), json!({ "status": BFC_ERROR_INVALID_ARGUMENT }));
}

#[test]
fn a_range_of_granules_splits_always_unless_there_is_a_fraction() {
    assert_eq!(resolved("258 host_vmm limit", &[])["split_always"], true);
    assert_eq!(resolved("258 host_vmm limit fraction", &[])["split_always"], false);
    let set = [("BFC_FRAGMENTATION_FRACTION", "0.5")];
    assert_eq!(resolved("258 host_vmm limit", &set)["split_always"], false);
}

#[test]
fn a_limit_counts_before_a_fraction() {
    let set = [("BFC_MEMORY_FRACTION", "0.5")];
    assert_eq!(resolved("256", &set)["memory_fraction"], 0.5);
    assert_eq!(used("256", &set), ["BFC_MEMORY_FRACTION"]);
    let both = [("BFC_MEMORY_FRACTION", "0.5"), ("BFC_MEMORY_LIMIT", "8MiB")];
    let resolved = resolved("256", &both);
    assert_eq!((&resolved["memory_fraction"], &resolved["memory_limit"]), (&json!(0), &json!(8 * MIB)));
    assert_eq!(used("256", &both), ["BFC_MEMORY_LIMIT"]);
    assert_eq!(remark("256", &both, "BFC_MEMORY_FRACTION"), "ignored: it has no effect with a memory limit");
    assert_eq!(
        remark("256 limit", &both, "BFC_MEMORY_FRACTION"),
        "ignored: it has no effect with a memory limit"
    );
    assert_eq!(remark("256 limit", &both, "BFC_MEMORY_LIMIT"), "ignored: bfc_options_t comes first");
}

#[test]
fn what_the_options_give_is_not_taken_from_the_environment() {
    let set = [
        ("BFC_BACKEND", "host"),
        ("BFC_MEMORY_LIMIT", "8MiB"),
        ("BFC_MEMORY_FRACTION", "0.5"),
        ("BFC_LIBRARY", "x"),
        ("BFC_MEMORY_LIMT", "1"),
        ("BFC_PRELOAD_FREE", "sync"),
        ("BFC_PRELOAD_MIN", "1MiB"),
        ("BFC_PRELOAD_TRACE", "x"),
    ];
    assert_eq!(used(REPLAY, &set), [""; 0]);
    let set = [
        ("BFC_FRAGMENTATION_FRACTION", "0.5"),
        ("BFC_INITIAL_REGION_BYTES", "1MiB"),
        ("BFC_FORCE_ALLOW_GROWTH", "1"),
    ];
    let all = ["BFC_FORCE_ALLOW_GROWTH", "BFC_FRAGMENTATION_FRACTION", "BFC_INITIAL_REGION_BYTES"];
    assert_eq!(used(REPLAY, &set), all);
    assert_eq!(used("258 host limit fraction region", &set), all[..1]);
    assert_eq!(used("258 host limit split", &set), [all[0], all[2]]);
}

#[test]
fn variables_for_flags_count_where_the_options_have_no_flag() {
    let set = [
        ("BFC_ALLOW_GROWTH", "1"),
        ("BFC_GARBAGE_COLLECTION", "on"),
        ("BFC_SPLIT_ALWAYS", "0"),
        ("BFC_QUARANTINE", "1"),
    ];
    let both = [("BFC_TWO_ENDS", "1"), ("BFC_SPLIT_ALWAYS", "0")];
    let ends = resolved(REPLAY, &both);
    assert_eq!((&ends["two_ends"], &ends["split_always"]), (&json!(true), &json!(true)));
    assert_eq!(remark(REPLAY, &both, "BFC_SPLIT_ALWAYS"), "ignored: it is always on with BFC_TWO_ENDS");
    let flags = |how: &str| {
        let all = resolved(how, &set);
        ["allow_growth", "garbage_collection", "split_always", "quarantine"].map(|name| all[name] == true)
    };
    assert_eq!(used(REPLAY, &set), ["BFC_ALLOW_GROWTH", "BFC_GARBAGE_COLLECTION", "BFC_SPLIT_ALWAYS"]);
    assert_eq!(flags(REPLAY), [true, true, false, false]);
    assert_eq!(used("258 host limit split", &set), [""; 0]);
    assert_eq!(flags("258 host limit split"), [false, false, true, false]);
    assert_eq!(remark(REPLAY, &set, "BFC_QUARANTINE"), "ignored: it needs BFC_TIMESTAMPS");
    let both = [("BFC_QUARANTINE", "1"), ("BFC_TIMESTAMPS", "1")];
    assert_eq!(used(REPLAY, &both), ["BFC_QUARANTINE", "BFC_TIMESTAMPS"]);
}

#[test]
fn forced_growth_comes_before_everything() {
    let off = [("BFC_FORCE_ALLOW_GROWTH", "no"), ("BFC_INITIAL_REGION_BYTES", "1MiB")];
    assert_eq!(resolved("258 host limit grow", &off)["allow_growth"], false);
    assert_eq!(used("258 host limit grow", &off), ["BFC_FORCE_ALLOW_GROWTH"]);
    let on =
        [("BFC_FORCE_ALLOW_GROWTH", "1"), ("BFC_ALLOW_GROWTH", "0"), ("BFC_INITIAL_REGION_BYTES", "1MiB")];
    let all = resolved(REPLAY, &on);
    assert_eq!((&all["allow_growth"], &all["initial_region_bytes"]), (&json!(true), &json!(MIB)));
    assert_eq!(used(REPLAY, &on), ["BFC_FORCE_ALLOW_GROWTH", "BFC_INITIAL_REGION_BYTES"]);
    assert_eq!(remark(REPLAY, &on, "BFC_ALLOW_GROWTH"), "ignored: BFC_FORCE_ALLOW_GROWTH comes first");
}

#[test]
fn the_growth_policy() {
    let set = [("BFC_GROWTH", "need")];
    assert_eq!(resolved("258 host limit grow", &[])["growth_policy"], "tensorflow");
    assert_eq!(resolved("258 host limit grow", &set)["growth_policy"], "need");
    assert_eq!(used("258 host limit grow", &set), ["BFC_GROWTH"]);
    assert_eq!(used("258 host limit", &set), [""; 0], "without growth it decides nothing");
    assert_eq!(used("258 host limit grow need", &set), [""; 0]);
    let remark = remark("258 host limit grow need", &set, "BFC_GROWTH");
    assert_eq!(remark, "ignored: bfc_options_t comes first");
}

#[test]
fn the_plan() {
    let set = [("BFC_PLAN", "/no/such/file")];
    assert_eq!(resolved("258 host limit plan", &[])["plan"], true);
    assert_eq!(
        (&resolved(REPLAY, &set)["plan"], used(REPLAY, &set)),
        (&json!(true), vec!["BFC_PLAN".to_owned()])
    );
    for how in ["258 host limit plan", "258 host limit unplanned"] {
        assert_eq!(used(how, &set), [""; 0], "{how}");
        assert_eq!(remark(how, &set, "BFC_PLAN"), "ignored: bfc_options_t comes first");
    }
    assert_eq!(resolved("258 host limit unplanned", &set)["plan"], false);
    assert_eq!(resolved("258 host limit stamps", &set)["plan"], false);
    assert_eq!(
        remark("258 host limit stamps", &set, "BFC_PLAN"),
        "ignored: it has no effect with BFC_TIMESTAMPS"
    );
    let guard = [set[0], ("BFC_DEBUG", "guard")];
    assert_eq!(
        (&resolved(REPLAY, &guard)["plan"], used(REPLAY, &guard)),
        (&json!(false), vec!["BFC_DEBUG".to_owned()])
    );
    assert_eq!(remark(REPLAY, &guard, "BFC_PLAN"), "ignored: it has no effect with BFC_DEBUG=guard");
}

#[test]
fn what_is_malformed_or_nothing_does_not_count() {
    for (name, value) in [
        ("BFC_FORCE_ALLOW_GROWTH", "perhaps"),
        ("BFC_FORCE_ALLOW_GROWTH", ""),
        ("BFC_FRAGMENTATION_FRACTION", "0"),
        ("BFC_FRAGMENTATION_FRACTION", "2"),
        ("BFC_RETRY_TIMEOUT_MS", "0"),
        ("BFC_RETRY_TIMEOUT_MS", "1s"),
        ("BFC_TRIM_AFTER", "0.0"),
        ("BFC_TRIM_AFTER", "-1"),
        ("BFC_LOG", ""),
    ] {
        assert_eq!(used(REPLAY, &[(name, value)]), [""; 0], "{name}={value}");
    }
    assert_eq!(used(REPLAY, &[("BFC_HASH_SEED", "1"), ("BFC_REPORT_ON_FAILURE", "1")]).len(), 2);
    assert_eq!(resolved(REPLAY, &[("BFC_TRIM_AFTER", "0.5")])["trim_after"], json!(0.5));
    assert_eq!(used(REPLAY, &[("BFC_TRIM_AFTER", "0.5")]).len(), 1);
    let pages = [("BFC_HUGE_PAGES", "Never"), ("BFC_NUMA", "interleave"), ("BFC_POPULATE", "on")];
    let host = resolved(REPLAY, &pages);
    assert_eq!((&host["huge_pages"], &host["numa"]), (&json!("never"), &json!("interleave")));
    assert_eq!(host["populate"], json!(true));
    assert_eq!((used(REPLAY, &pages).len(), used("0", &pages).len()), (3, 0), "host memory only");
    for other in [("BFC_HUGE_PAGES", "hugetlb"), ("BFC_DEBUG", "guard")] {
        assert_eq!(used(REPLAY, &[("BFC_POPULATE", "1"), other]), [other.0]);
    }
    for (value, is_used) in [("guard", true), ("more, Guard", true), ("more", false), (",", false)] {
        assert_eq!(used(REPLAY, &[("BFC_DEBUG", value)]).len(), usize::from(is_used), "{value}");
    }
}

#[test]
fn the_variables_of_the_interposer_are_known() {
    for (name, value, expected) in [
        ("BFC_PRELOAD_LIBRARY", "/opt/lib", Value::Null),
        ("BFC_PRELOAD_FREE", "Sync", Value::Null),
        ("BFC_PRELOAD_FREE", "never", "ignored: it must be wait or sync".into()),
        ("BFC_PRELOAD_ASYNC", "on", Value::Null),
        ("BFC_PRELOAD_PINNED", "2", "ignored: it must be 1 or 0 (or true, false, on, off, yes, no)".into()),
        ("BFC_PRELOAD_MIN", "4k", Value::Null),
        ("BFC_PRELOAD_MAX", "much", "ignored: it must be a size like 8GiB".into()),
        ("BFC_PRELOAD_REPORT", "-", Value::Null),
        ("BFC_PRELOAD_REPORTS", "-", "unknown: no variable of libbfc has this name".into()),
    ] {
        assert_eq!(remark("256", &[(name, value)], name), expected, "{name}={value}");
    }
}

#[test]
fn values_are_written_as_json_strings() {
    let set = [("BFC_LIBRARY", "a \"quoted\\path\"\n")];
    assert_eq!(remark("256", &set, "BFC_LIBRARY"), Value::Null);
}
