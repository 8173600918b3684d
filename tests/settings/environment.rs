//! The environment: every `BFC_...` variable, well formed and malformed, in child processes.
//!
//! A child creates allocators and prints their observed behaviour, because no function
//! of the ABI returns the settings of a pool.

use crate::common::*;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

/// How the child creates its allocators; see [`probe_options`].
const HOW: &str = "TEST_OPTIONS";

/// The options that the child uses, if any.
fn probe_options(how: &str) -> Option<bfc_options_t> {
    let mut wanted = options();
    match how {
        "null" => return None,
        "zero" => {}
        // Every field set, and different from its default.
        "full" => {
            wanted.backend = BFC_BACKEND_HOST;
            wanted.flags = BFC_ALLOW_GROWTH;
            wanted.memory_limit = 48 * MIB;
            wanted.fragmentation_fraction = 0.9;
            wanted.initial_region_bytes = 3 * MIB;
            wanted.retry_timeout_ms = 60;
        }
        "collect" => (wanted.flags, wanted.memory_limit) = (BFC_GARBAGE_COLLECTION, 8 * MIB),
        "fraction" => wanted.memory_fraction = 0.25,
        "stamps" => (wanted.flags, wanted.memory_limit) = (BFC_TIMESTAMPS, 8 * MIB),
        _ => panic!("what is {how}?"),
    }
    Some(wanted)
}

/// The child of all tests here. Does nothing on its own.
#[test]
fn probe() {
    if !child::is_child("probe") {
        return;
    }
    let wanted = probe_options(&std::env::var(HOW).expect("set by the parent"));
    const HOST: i32 = 256;
    let status = create(HOST, wanted.as_ref());
    println!("fact created {status}");
    // AUTO on a device is CUDA, and never silently the host.
    println!("fact on_device {}", create(0, wanted.as_ref()));
    if status != BFC_OK {
        return;
    }
    observe(HOST);
    assert_eq!(bfc_check(HOST), BFC_OK, "{}", last_error());
    assert_eq!(bfc_destroy_forced(HOST), BFC_OK);
}

fn observe(device: i32) {
    let stats = || {
        let mut out = stats();
        // SAFETY: a whole struct, writable.
        assert_eq!(unsafe { bfc_stats(device, &mut out) }, BFC_OK);
        out
    };
    println!("fact limit {}", stats().bytes_limit);
    let chunk = alloc(device, 3072).expect("room for 3 KiB");
    println!("fact first_region {}", stats().pool_bytes);
    let mut stamp = 0;
    // SAFETY: a valid out-pointer.
    println!("fact stamps {}", unsafe { bfc_timestamp(device, &mut stamp) } == BFC_OK);
    // A free chunk of 3 KiB between used ones: how 2 KiB are served shows the quarantine and the split rule.
    let guard = alloc(device, 256).expect("room");
    assert_eq!(free(device, chunk), BFC_OK);
    let again = alloc(device, 2048).expect("room");
    println!("fact quarantine {}", again != chunk);
    let mut size = 0;
    // SAFETY: a valid out-pointer.
    assert_eq!(unsafe { bfc_allocated_size(device, pointer(again), &mut size) }, BFC_OK);
    println!("fact size_of_2048 {size}");
    let begun = Instant::now();
    assert_eq!(alloc(device, 1 << 45), Err(BFC_ERROR_OUT_OF_MEMORY));
    println!("fact waited_ms {}", begun.elapsed().as_millis());
    // Only garbage collection releases two free regions for a larger one.
    assert_eq!((free(device, again), free(device, guard)), (BFC_OK, BFC_OK));
    if stats().bytes_limit == 8 * MIB && stats().pool_bytes == 2 * MIB {
        let second = alloc(device, 4 << 20).expect("room");
        assert_eq!(free(device, second), BFC_OK);
        println!("fact collects {}", alloc(device, 7 << 20).is_ok());
    }
}

/// What a child observed, and the library's messages on its standard error stream.
struct Observed {
    facts: HashMap<String, String>,
    log: String,
}

impl Observed {
    #[track_caller]
    fn is(&self, name: &str, value: impl ToString) -> &Self {
        assert_eq!(self.facts.get(name), Some(&value.to_string()), "{name}; log: {}", self.log);
        self
    }

    fn number(&self, name: &str) -> u64 {
        self.facts[name].parse().expect("a number")
    }
}

#[track_caller]
fn observe_with(how: &str, variables: &[(&str, &str)]) -> Observed {
    // Hides devices, even on a machine that has some.
    let all = [&[(HOW, how), ("BFC_LOG", "warn"), ("CUDA_VISIBLE_DEVICES", "-1")], variables].concat();
    observed(child::run("probe", &all))
}

#[track_caller]
fn observed(ended: child::Ended) -> Observed {
    assert!(ended.success, "{}", ended.text);
    let lines = ended.text.lines().filter_map(|line| line.split_once("fact ")?.1.split_once(' '));
    let facts = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Observed { facts, log: ended.errors }
}

/// A limit that makes [`observe`] test garbage collection.
const SMALL: (&str, &str) = ("BFC_MEMORY_LIMIT", "8MiB");

#[test]
fn without_any_variable_the_defaults_count() {
    let null = observe_with("null", &[]);
    null.is("created", BFC_OK).is("on_device", BFC_ERROR_BACKEND_UNAVAILABLE);
    null.is("first_region", 2 * MIB).is("stamps", false).is("quarantine", false).is("size_of_2048", 2048);
    assert!(null.number("limit") >= 256 * MIB, "what the machine has");
    assert!(null.number("waited_ms") < 50);
    assert_eq!(null.log, "", "nothing to warn about");
    observe_with("null", &[SMALL]).is("collects", true);
    // Options of zeros have no flags, so they do not grow: one region of the whole limit.
    observe_with("zero", &[SMALL]).is("first_region", 8 * MIB).is("limit", 8 * MIB);
}

#[test]
fn memory_limit() {
    for (value, bytes) in [
        ("8388608", 8u64 << 20),
        ("8GiB", 8 << 30),
        ("512 MB", 512 << 20),
        ("1.5g", 3 << 29),
        ("  64m ", 64 << 20),
        ("2TiB", 2 << 40),
        ("100000k", 100_000 << 10),
    ] {
        observe_with("null", &[("BFC_MEMORY_LIMIT", value)]).is("limit", bytes);
    }
    let default = observe_with("null", &[]).number("limit");
    observe_with("null", &[("BFC_MEMORY_LIMIT", "0")]).is("limit", default);
    observe_with("full", &[("BFC_MEMORY_LIMIT", "8GiB")]).is("limit", 48 * MIB);
}

#[test]
fn memory_fraction() {
    let all = observe_with("null", &[]).number("limit");
    let half = observe_with("null", &[("BFC_MEMORY_FRACTION", "0.5")]).number("limit");
    assert!(half.abs_diff(all / 2) <= 1, "{half} of {all}");
    observe_with("null", &[("BFC_MEMORY_FRACTION", "1")]).is("limit", all);
    // Only if no limit is given, and only if the options give none.
    observe_with("null", &[("BFC_MEMORY_FRACTION", "0.5"), SMALL]).is("limit", 8 * MIB);
    let quarter = observe_with("fraction", &[("BFC_MEMORY_FRACTION", "0.5")]).number("limit");
    assert!(quarter.abs_diff(all / 4) <= 1, "{quarter} of {all}");
    observe_with("full", &[("BFC_MEMORY_FRACTION", "0.5")]).is("limit", 48 * MIB);
}

#[test]
fn a_limit_from_the_environment_precedes_a_fraction_in_the_options() {
    observe_with("fraction", &[SMALL]).is("limit", 8 * MIB);
}

#[test]
fn fragmentation_fraction() {
    // 1 KiB of slack is more than 0.0001 of 8 MiB: split off.
    observe_with("null", &[SMALL, ("BFC_FRAGMENTATION_FRACTION", "0.0001")]).is("size_of_2048", 2048);
    observe_with("null", &[SMALL, ("BFC_FRAGMENTATION_FRACTION", "0.01")]).is("size_of_2048", 3072);
    observe_with("full", &[("BFC_FRAGMENTATION_FRACTION", "0.000001")]).is("size_of_2048", 3072);
}

#[test]
fn initial_region_bytes() {
    observe_with("null", &[("BFC_INITIAL_REGION_BYTES", "16MiB")]).is("first_region", 16 * MIB);
    observe_with("null", &[("BFC_INITIAL_REGION_BYTES", "1000")]).is("first_region", 3072);
    let doubling = [("BFC_INITIAL_REGION_BYTES", "1000"), ("BFC_GROWTH", "tensorflow")];
    observe_with("null", &doubling).is("first_region", 4096);
    observe_with("null", &[SMALL, ("BFC_INITIAL_REGION_BYTES", "1t")]).is("first_region", 8 * MIB);
    observe_with("full", &[("BFC_INITIAL_REGION_BYTES", "16MiB")]).is("first_region", 3 * MIB);
}

#[test]
fn retry_timeout_ms() {
    let waited = |how, value| observe_with(how, &[("BFC_RETRY_TIMEOUT_MS", value)]).number("waited_ms");
    assert!(waited("null", "0") < 200);
    assert!(waited("null", "400") >= 400);
    assert!((60..400).contains(&waited("full", "10000")), "the options say 60");
}

#[test]
fn flags() {
    for (value, on) in [
        ("1", true),
        ("true", true),
        ("ON", true),
        ("Yes", true),
        ("0", false),
        ("off", false),
        ("FALSE", false),
        ("no", false),
    ] {
        observe_with("null", &[("BFC_TIMESTAMPS", value)]).is("stamps", on);
        let first = if on { 2 * MIB } else { 8 * MIB };
        observe_with("null", &[SMALL, ("BFC_ALLOW_GROWTH", value)]).is("first_region", first);
        observe_with("null", &[("BFC_SPLIT_ALWAYS", value)]).is("size_of_2048", if on { 2048 } else { 3072 });
    }
    observe_with("null", &[SMALL, ("BFC_GARBAGE_COLLECTION", "0")]).is("collects", false);
    observe_with("null", &[("BFC_QUARANTINE", "1"), ("BFC_TIMESTAMPS", "1")]).is("quarantine", true);
    // Options of zeros leave the flags open as well.
    observe_with("zero", &[SMALL, ("BFC_ALLOW_GROWTH", "1")])
        .is("first_region", 2 * MIB)
        .is("collects", false);
    // Given flags apply, all of them.
    observe_with("full", &[("BFC_TIMESTAMPS", "1"), ("BFC_SPLIT_ALWAYS", "1")])
        .is("stamps", false)
        .is("size_of_2048", 3072);
    observe_with("stamps", &[("BFC_TIMESTAMPS", "0"), ("BFC_QUARANTINE", "1")])
        .is("stamps", true)
        .is("quarantine", false);
}

#[test]
fn force_allow_growth_overrides_the_options() {
    observe_with("collect", &[]).is("first_region", 8 * MIB);
    observe_with("collect", &[("BFC_FORCE_ALLOW_GROWTH", "1")])
        .is("first_region", 2 * MIB)
        .is("collects", true);
    observe_with("full", &[("BFC_FORCE_ALLOW_GROWTH", "0")]).is("first_region", 48 * MIB);
    observe_with("null", &[SMALL, ("BFC_FORCE_ALLOW_GROWTH", "0")]).is("first_region", 8 * MIB);
    let both = [SMALL, ("BFC_FORCE_ALLOW_GROWTH", "true"), ("BFC_ALLOW_GROWTH", "0")];
    observe_with("zero", &both).is("first_region", 2 * MIB);
}

#[test]
fn backend() {
    observe_with("null", &[("BFC_BACKEND", "host")]).is("created", BFC_OK).is("on_device", BFC_OK);
    observe_with("null", &[("BFC_BACKEND", "Auto")]).is("on_device", BFC_ERROR_BACKEND_UNAVAILABLE);
    let cuda = observe_with("null", &[("BFC_BACKEND", "cuda")]);
    cuda.is("created", BFC_ERROR_INVALID_ARGUMENT).is("on_device", BFC_ERROR_BACKEND_UNAVAILABLE);
    observe_with("full", &[("BFC_BACKEND", "cuda")]).is("created", BFC_OK);
    // Callbacks cannot come from the environment.
    let custom = observe_with("null", &[("BFC_BACKEND", "custom")]);
    custom.is("created", BFC_OK).is("on_device", BFC_ERROR_BACKEND_UNAVAILABLE);
    assert!(custom.log.contains("BFC_BACKEND=custom is ignored"), "{}", custom.log);
}

/// Malformed values are ignored, with a warning that names them.
#[test]
fn malformed_values_are_ignored_with_a_warning() {
    let sizes = [
        "many",
        "-1",
        "8XiB",
        "1e9",
        "0x10",
        "99999999999999999999",
        "20000000T",
        "1.2.3",
        "nan",
        "GiB",
        "8 9",
    ];
    let fractions = ["half", "-0.1", "1.1", "nan", "inf", "50%", "0,5"];
    let numbers = ["soon", "-1", "1.5", "4294967296", "99999999999999999999", "10ms"];
    let switches = ["2", "bogus", "y", "enabled", "-", "1 1"];
    let longest = "9".repeat(5000);
    let flag_names = [
        "BFC_ALLOW_GROWTH",
        "BFC_GARBAGE_COLLECTION",
        "BFC_TIMESTAMPS",
        "BFC_SPLIT_ALWAYS",
        "BFC_QUARANTINE",
        "BFC_FORCE_ALLOW_GROWTH",
        "BFC_REPORT_ON_FAILURE",
        "BFC_POPULATE",
    ];
    let mut all: Vec<(&str, &str)> = Vec::new();
    for name in ["BFC_MEMORY_LIMIT", "BFC_INITIAL_REGION_BYTES"] {
        all.extend(sizes.map(|value| (name, value)));
        all.push((name, &longest));
    }
    for name in ["BFC_MEMORY_FRACTION", "BFC_FRAGMENTATION_FRACTION"] {
        all.extend(fractions.map(|value| (name, value)));
    }
    all.extend(numbers.map(|value| ("BFC_RETRY_TIMEOUT_MS", value)));
    all.extend(["soon", "-1", "1.5", "0x10", "18446744073709551616"].map(|value| ("BFC_HASH_SEED", value)));
    all.extend(["soon", "-1", "1s", "1e3", "nan"].map(|value| ("BFC_TRIM_AFTER", value)));
    all.extend(["yes", "0", "huge"].map(|value| ("BFC_HUGE_PAGES", value)));
    all.extend(["all", "0", "interleave,local"].map(|value| ("BFC_NUMA", value)));
    all.extend(["gpu", "1", "custom"].map(|value| ("BFC_BACKEND", value)));
    for name in flag_names {
        all.extend(switches.map(|value| (name, value)));
    }
    let sound = observe_with("null", &[]);
    for (name, value) in all {
        let bad = observe_with("null", &[(name, value)]);
        for fact in ["created", "on_device", "limit", "first_region", "stamps", "quarantine", "size_of_2048"]
        {
            assert_eq!(bad.facts.get(fact), sound.facts.get(fact), "{fact} with {name}={value}");
        }
        assert!(bad.log.contains(&format!("warning: {name}=")), "{name}={value}: {:?}", bad.log);
        // No messages without BFC_LOG.
        let quiet = child::run("probe", &[(HOW, "null"), (name, value)]);
        assert_eq!((quiet.success, quiet.errors.as_str()), (true, ""));
    }
}

#[test]
fn values_that_are_not_utf8_are_ignored_with_a_warning() {
    let names = [
        "BFC_MEMORY_LIMIT",
        "BFC_MEMORY_FRACTION",
        "BFC_BACKEND",
        "BFC_ALLOW_GROWTH",
        "BFC_RETRY_TIMEOUT_MS",
    ];
    for name in names {
        let variables = [
            (HOW, OsStr::new("null")),
            ("BFC_LOG", OsStr::new("warn")),
            (name, OsStr::from_bytes(b"\xff\xfe1")),
        ];
        let bad = observed(child::run_raw("probe", variables.into_iter()));
        bad.is("created", BFC_OK).is("first_region", 2 * MIB);
        assert!(bad.log.contains(&format!("warning: {name}")), "{name}: {:?}", bad.log);
    }
}

#[test]
fn empty_values_are_no_values() {
    let names = [
        "BFC_MEMORY_LIMIT",
        "BFC_MEMORY_FRACTION",
        "BFC_BACKEND",
        "BFC_ALLOW_GROWTH",
        "BFC_FORCE_ALLOW_GROWTH",
    ];
    let all: Vec<(&str, &str)> = names.iter().map(|&name| (name, "")).collect();
    let empty = observe_with("null", &all);
    empty.is("first_region", 2 * MIB).is("on_device", BFC_ERROR_BACKEND_UNAVAILABLE);
    assert_eq!(empty.log, "");
}

/// Quarantine without stamps is an error in the options, but in the environment only a warning.
#[test]
fn quarantine_without_stamps_is_ignored() {
    let lonely = observe_with("null", &[("BFC_QUARANTINE", "1")]);
    lonely.is("created", BFC_OK).is("stamps", false).is("quarantine", false);
    assert!(lonely.log.contains("BFC_QUARANTINE"), "{}", lonely.log);
}

/// The child of the tests of `BFC_LOG`: something for every level.
#[test]
fn talk() {
    if !child::is_child("talk") {
        return;
    }
    let collected = std::env::var_os("TEST_CALLBACK").map(|_| log::Collected::start());
    let pool = Pool::custom(Backend::new(MIB), GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    pool.get(256);
    assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    drop(pool);
    for (level, message) in collected.iter().flat_map(|collected| collected.messages()) {
        assert!((BFC_LOG_ERROR..=BFC_LOG_DEBUG).contains(&level) && !message.is_empty());
        println!("called level {level}: {}", message.lines().next().unwrap_or_default());
    }
}

#[test]
fn log_levels() {
    let marks = [
        (1, "memory of allocator"),
        (2, "BFC_RETRY_TIMEOUT_MS=perhaps is ignored"),
        (3, "created an allocator"),
        (4, "the backend refused"),
    ];
    for (value, highest) in [
        ("error", 1),
        ("1", 1),
        ("warn", 2),
        ("WARNING", 2),
        ("info", 3),
        ("Debug", 4),
        ("2", 2),
        ("3", 3),
        ("4", 4),
        ("0", 0),
        ("off", 0),
        ("none", 0),
        // A user who sets it expects messages.
        ("nonsense", 2),
        ("aVeryLongWordThatIsNoLevelAtAll", 2),
    ] {
        let common =
            [("BFC_LOG", value), ("BFC_RETRY_TIMEOUT_MS", "perhaps"), ("BFC_REPORT_ON_FAILURE", "1")];
        let plain = child::expect_success("talk", &common);
        let with_callback = child::expect_success("talk", &[&common[..], &[("TEST_CALLBACK", "1")]].concat());
        assert_eq!(with_callback.errors, "", "all goes to the callback");
        for (level, mark) in marks {
            assert_eq!(
                plain.errors.contains(mark),
                level <= highest,
                "BFC_LOG={value}, {mark}: {}",
                plain.errors
            );
            // A callback without BFC_LOG receives warnings and errors.
            let heard = level <= if highest == 0 { 2 } else { highest };
            let is_it = |line: &str| line.contains(&format!("called level {level}: ")) && line.contains(mark);
            let called = with_callback.text.lines().any(is_it);
            assert_eq!(called, heard, "BFC_LOG={value}, {mark}: {}", with_callback.text);
        }
    }
    assert_eq!(child::expect_success("talk", &[]).errors, "");
}

/// The child of the next test: a set-user-ID program that another user runs.
#[test]
fn privileged() {
    if !child::is_child("privileged") {
        return;
    }
    // SAFETY: no preconditions.
    println!("fact privileged {}", unsafe { libc::getauxval(libc::AT_SECURE) });
    let pool = Pool::host(MIB, |_| {});
    pool.put(pool.get(256));
    let mut wanted = options();
    wanted.memory_limit = MIB;
    println!("fact created {}", create(257, Some(&wanted)));
}

/// Needs root, to create a set-user-ID program of root, and to become another user.
#[test]
fn a_privileged_process_ignores_variables_that_name_files_or_change_the_backend() {
    const NOBODY: u32 = 65534;
    let folder = std::env::temp_dir().join(format!("libbfc-privileged-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("a new folder");
    let program = folder.join("test");
    fs::copy(std::env::current_exe().expect("the test binary"), &program).expect("a copy");
    let run = |mode| {
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("its own folder");
        fs::set_permissions(&program, Permissions::from_mode(mode)).expect("its own file");
        let mut command = Command::new(&program);
        command
            .args(["--exact", "environment::privileged", "--nocapture"])
            .env("BFC_TEST_CHILD", "privileged");
        command.env("BFC_LOG", "warn").env("XDG_RUNTIME_DIR", &folder).uid(NOBODY).gid(NOBODY);
        command.env("BFC_HISTORY_FILE", folder.join("history")).env("BFC_HISTORY", "1000");
        command.env("BFC_PLAN", folder.join("plan")).env("BFC_PUBLISH", "1").env("BFC_BACKEND", "host_vmm");
        command.output().ok().map(|output| {
            let files = ["history", "libbfc"].map(|name| folder.join(name).exists());
            (String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(), files)
        })
    };
    match run(0o4755) {
        Some((text, files)) if text.contains("fact privileged 1") => {
            assert_eq!(files, [false, false], "{text}");
            for name in ["BACKEND", "HISTORY", "HISTORY_FILE", "PLAN", "PUBLISH"] {
                let words = format!("BFC_{name} is ignored: the process has more rights than its user");
                assert!(text.contains(&words), "{words}: {text}");
            }
            // The same program without the bit.
            let (text, files) = run(0o755).expect("as before");
            assert!(text.contains("fact privileged 0"), "{text}");
            assert_eq!(files, [true, true], "{text}");
        }
        _ => eprintln!("skipped: set-user-ID programs cannot be tried here"),
    }
    fs::remove_dir_all(folder).expect("its own folder");
}

#[test]
fn a_value_in_a_warning_does_not_control_the_terminal() {
    let log = observe_with("null", &[("BFC_BACKEND", "\u{1b}[2J\u{9b}31m\u{202e}")]).log;
    assert!(log.contains("BFC_BACKEND=\u{fffd}[2J\u{fffd}31m\u{fffd} is ignored"), "{log}");
}
