//! What the BFC_ variables do to the command, and what it says of them.

use crate::common::{SMALL, bfc, file, json, row, run_to};

#[test]
fn a_variable_that_steers_the_library_is_remarked_on() {
    let trace = file("steered.trace", SMALL);
    let replay = |options: &[&str]| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(options).env("BFC_FORCE_ALLOW_GROWTH", "1");
        run_to(0, &mut command)
    };
    let (table, note) = replay(&[]);
    assert_eq!(note, "bfc: note: BFC_FORCE_ALLOW_GROWTH=1 is set and changes the result\n");
    assert!(row(&table, "pool").is_some_and(|pool| pool.ends_with(", growth by need")), "{table}");
    assert_eq!(replay(&["--quiet"]).1, "");
}

#[test]
fn a_variable_that_does_nothing_is_not() {
    let trace = file("unsteered.trace", SMALL);
    for (name, value, options) in [
        ("BFC_MEMORY_LIMIT", "1MiB", &[][..]),
        ("BFC_MEMORY_FRACTION", "0.5", &[]),
        ("BFC_BACKEND", "cuda", &[]),
        ("BFC_MEMORY_LIMT", "1", &[]),
        ("BFC_FORCE_ALLOW_GROWTH", "perhaps", &[]),
        ("BFC_ALLOW_GROWTH", "1", &["--gc"]),
        ("BFC_INITIAL_REGION_BYTES", "1MiB", &[]),
        ("BFC_FRAGMENTATION_FRACTION", "0.5", &["--fragmentation-fraction", "0.5"]),
    ] {
        let replay = || {
            let mut command = bfc();
            command.arg("replay").arg(&trace).args(options).env(name, value);
            command
        };
        assert_eq!(run_to(0, &mut replay()).1, "", "{name}");
        let document = json(&mut replay());
        assert_eq!(document["environment"], serde_json::json!({}), "{name}");
        assert_eq!(document["traces"][0]["pool"]["growth"], false, "{name}");
    }
}

#[test]
fn the_pool_is_told_as_it_is_in_force() {
    let trace = file("in_force.trace", SMALL);
    let replay = |options: &[&str], set: &[(&str, &str)]| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(["--limit", "8MiB"]).args(options);
        json(command.envs(set.iter().copied()))
    };
    let set = [("BFC_ALLOW_GROWTH", "1"), ("BFC_INITIAL_REGION_BYTES", "1MiB"), ("BFC_LOG", "off")];
    let document = replay(&[], &set);
    assert_eq!(document["environment"].as_object().map(serde_json::Map::len), Some(3));
    let result = &document["traces"][0];
    assert_eq!(
        (&result["pool"]["growth"], &result["pool"]["initial_region"]),
        (&true.into(), &(1 << 20).into())
    );
    // 1 MiB and 2 MiB: what is told is what the library did.
    assert_eq!(result["stats"]["peak_pool_bytes"], 3 << 20);
    let result = &replay(&["--growth"], &[("BFC_FORCE_ALLOW_GROWTH", "0")])["traces"][0];
    assert_eq!(result["pool"]["growth"], false);
    assert_eq!(result["stats"]["peak_pool_bytes"], 8 << 20);
}

#[test]
fn info_tells_what_becomes_of_a_value() {
    let set = [
        ("BFC_MEMORY_LIMT", "8GiB"),
        ("BFC_MEMORY_LIMIT", "lots"),
        ("BFC_ALLOW_GROWTH", "1"),
        ("BFC_QUARANTINE", "1"),
        ("BFC_RETRY_TIMEOUT_MS", ""),
        ("BFC_INITIAL_REGION_BYTES", "0"),
        ("BFC_LOG", "loud"),
        ("BFC_DEBUG", "guard,more"),
        ("BFC_FRAGMENTATION_FRACTION", "0.1"),
        ("BFC_SPLIT_ALWAYS", "on"),
        ("BFC_POPULATE", "1"),
    ];
    let (table, _) = run_to(0, bfc().arg("info").envs(set));
    for (name, told) in [
        ("BFC_MEMORY_LIMT", "8GiB  (unknown: no variable of libbfc has this name)"),
        ("BFC_MEMORY_LIMIT", "lots  (ignored: it must be a size like 8GiB)"),
        ("BFC_ALLOW_GROWTH", "1"),
        ("BFC_QUARANTINE", "1  (ignored: it needs BFC_TIMESTAMPS)"),
        ("BFC_RETRY_TIMEOUT_MS", "(empty: counts as not set)"),
        ("BFC_INITIAL_REGION_BYTES", "0  (counts as not given)"),
        ("BFC_DEBUG", "guard,more  (ignored in part: it must be guard)"),
        ("BFC_FRAGMENTATION_FRACTION", "0.1  (ignored: it has no effect with BFC_SPLIT_ALWAYS)"),
        ("BFC_POPULATE", "1  (ignored: it needs the host backend)"),
        ("BFC_LOG", "loud  (taken for warn: it must be error, warn, info, debug or off)"),
    ] {
        assert_eq!(row(&table, name), Some(told), "{table}");
    }
}

#[test]
fn info_names_costly_settings() {
    let growth = "the first allocation takes one region of the whole limit; set BFC_ALLOW_GROWTH";
    let (table, _) = run_to(0, bfc().arg("info").env("BFC_ALLOW_GROWTH", "0"));
    assert_eq!(row(&table, "allow_growth"), Some(growth), "{table}");
    let document = json(bfc().arg("info").env("BFC_ALLOW_GROWTH", "0"));
    assert_eq!(document["costs"][0]["setting"], "allow_growth");
    let (table, _) = run_to(0, bfc().arg("info"));
    assert!(!table.contains("hold more memory"), "{table}");
}

/// The command has the library's rules a second time; here they are held against the library's warnings.
#[test]
fn what_info_calls_ignored_the_library_ignores() {
    let rounds: &[(&str, &[&str])] = &[
        ("BFC_FORCE_ALLOW_GROWTH", &["1", "TRUE", "off", " no ", "2", "yess", "-", "\u{1F600}"]),
        (
            "BFC_INITIAL_REGION_BYTES",
            &["1", "1.5g", ".5 KiB", "1.", "8XiB", "-1", "1e9", "99999999999999999999"],
        ),
        ("BFC_FRAGMENTATION_FRACTION", &["0", "0.5", "1", "1e-3", "1.1", "nan", "-0.5", "50%"]),
        ("BFC_MEMORY_FRACTION", &["1.0", "+0.5", ".5", "0", "inf", "2", "half", " "]),
        (
            "BFC_HASH_SEED",
            &["0", "1", "+5", " 7 ", "18446744073709551615", "18446744073709551616", "-1", "0x1"],
        ),
        ("BFC_RETRY_TIMEOUT_MS", &["0", "1", "+5", "4294967295", "4294967296", "-1", "1s", "1.5"]),
        ("BFC_DEBUG", &["guard", "GUARD", " guard ,", ",", "gard", "1", "guard guard", "guards"]),
        (
            "BFC_BACKEND",
            &["host", "HOST", "cuda_vmm", "cuda-vmm", "Host-VMM", "auto", "custom", "hostvmm", "1", "gpu"],
        ),
    ];
    for round in 0..8 {
        let mut command = bfc();
        command.arg("info").env("BFC_LOG", "warn");
        command.envs(rounds.iter().map(|(name, values)| (*name, values[round])));
        let (table, warnings) = run_to(0, &mut command);
        for (name, values) in rounds {
            let value = values[round];
            let warned = warnings.contains(&format!("{name}={value} is ignored: it must be"));
            let told = row(&table, name).expect("every variable has a row").contains("(ignored: it must be");
            assert!(warned || round < 7, "the last value of each is malformed: {name}={value:?}");
            assert_eq!(told, warned, "{name}={value:?}\n{table}{warnings}");
        }
    }
}
