//! The history: it records the events in the order in which they happened, and survives the process.

use crate::common::child::{expect_success, is_child};
use crate::common::*;
use crate::history::layout::{Kind, cause_name, options as recorded};
use crate::history::{alone, c, new_path, read, stopped};
use bfc_readers::history::reader::{History, Malformed, PoolOptions, Recorded, parse};
use bfc_readers::history::timeline::follow;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

/// Returns the pointer of a text, or NULL.
fn pointer_of(text: Option<&CStr>) -> *const std::ffi::c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}

fn try_start(path: Option<&CStr>, events: u64) -> Status {
    // SAFETY: NULL or a NUL-terminated string.
    unsafe { bfc_history_start(pointer_of(path), events) }
}

fn try_save(path: Option<&CStr>) -> Status {
    // SAFETY: as above.
    unsafe { bfc_history_save(pointer_of(path)) }
}

fn try_mark(name: Option<&CStr>) -> Status {
    // SAFETY: as above.
    unsafe { bfc_history_mark(pointer_of(name)) }
}

fn start(path: &Path, events: u64) {
    assert_eq!(try_start(Some(&c(path)), events), BFC_OK);
}

fn mark(name: &str) {
    assert_eq!(try_mark(Some(&CString::new(name).expect("no NUL"))), BFC_OK);
}

/// Returns the events of a device, in order.
fn of(history: &History, pool: &Pool) -> Vec<Recorded> {
    let is_its =
        |event: &&Recorded| history.pool(event.pool).is_some_and(|(device, _)| device == pool.device());
    history.events.iter().filter(is_its).copied().collect()
}

fn kinds(events: &[Recorded]) -> Vec<Kind> {
    events.iter().map(|event| event.kind).collect()
}

#[test]
fn events_are_what_happened() {
    let _alone = alone();
    let path = new_path("events");
    start(&path, 0);
    let pool = Pool::host(MIB, |_| {});
    let first = pool.get(1000);
    mark("half");
    let second = pool.get(5000);
    pool.put(first);
    assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.put(second);
    let device = pool.device();
    drop(pool);
    let history = stopped(&path);
    assert_eq!((history.process, history.is_open, history.incomplete), (std::process::id(), false, 0));
    let is_its =
        |event: &&Recorded| event.kind != Kind::Mark && history.pool(event.pool).unwrap().0 == device;
    let events: Vec<Recorded> = history.events.iter().filter(is_its).copied().collect();
    use Kind::*;
    assert_eq!(kinds(&events), [Begin, Obtained, Alloc, Alloc, Free, OutOfMemory, Free, Returned, End]);
    let [begin, region, a, b, free_a, failed, free_b, back, _] = events[..] else { panic!() };
    assert_eq!((begin.bytes, region.bytes), (MIB, MIB));
    assert_eq!((a.address, a.bytes, a.requested, a.in_use), (first, 1024, 1000, 1024));
    assert_eq!((b.address, b.bytes, b.requested, b.in_use), (second, 5120, 5000, 6144));
    assert_eq!((free_a.address, free_a.bytes, free_a.in_use), (first, 1024, 5120));
    assert_eq!((free_b.address, free_b.bytes, free_b.in_use), (second, 5120, 0));
    assert_eq!((failed.requested, failed.in_use, cause_name(failed.cause)), (MIB, 5120, "exhaustion"));
    assert_eq!(failed.bytes, MIB - 6144, "the largest free chunk");
    assert_eq!((back.address, back.bytes), (region.address, MIB));
    let marks: Vec<_> = history.events.iter().filter(|event| event.kind == Mark).collect();
    assert_eq!(marks.len(), 1);
    assert_eq!(&**history.mark(marks[0].name), "half");
    assert!(a.number < marks[0].number && marks[0].number < b.number);
    assert!(history.events.is_sorted_by_key(|event| event.time), "one thread's times rise");
}

/// A failure has an operation and a step like an allocation, even one that its caller counts.
#[test]
fn a_failure_has_the_operation_of_its_thread() {
    let _alone = alone();
    let path = new_path("failures");
    start(&path, 0);
    let pool = Pool::host(MIB, |_| {});
    let attempt = bfc_request_t { flags: BFC_REQUEST_ATTEMPT, ..request(2 * MIB as usize) };
    assert_eq!(scope_begin("loss", 7), BFC_OK);
    assert_eq!(pool.alloc_ex(&attempt), Err(BFC_ERROR_OUT_OF_MEMORY));
    // SAFETY: a request of the size that it states.
    assert_eq!(unsafe { bfc_alloc_failed(pool.device(), &attempt) }, BFC_OK);
    assert_eq!(pool.alloc(3 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(bfc_scope_end(), BFC_OK);
    assert_eq!(pool.alloc(4 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    let history = stopped(&path);
    let failures: Vec<Recorded> =
        of(&history, &pool).into_iter().filter(|event| event.kind == Kind::OutOfMemory).collect();
    let said = |failure: &Recorded| {
        let operation = history.operation_name(failure.pool, failure.name);
        (failure.requested, cause_name(failure.cause), operation.as_deref().map(str::to_owned))
    };
    let loss = Some("loss".to_owned());
    let expected =
        [(2 * MIB, "exhaustion", loss.clone()), (3 * MIB, "exhaustion", loss), (4 * MIB, "exhaustion", None)];
    assert_eq!(failures.iter().map(said).collect::<Vec<_>>(), expected);
    assert!(history.events.iter().any(|event| event.kind == Kind::Step && event.bytes == 7));
}

#[test]
fn the_options_of_a_pool_are_recorded() {
    let _alone = alone();
    let path = new_path("options");
    // Few events: the options are kept although the first events are displaced.
    start(&path, 1);
    let fixed = Pool::host(MIB, |_| {});
    let growing = Pool::host(8 * MIB, |options| {
        options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_TWO_ENDS;
        options.growth_policy = BFC_GROWTH_NEED;
        options.initial_region_bytes = 4096;
    });
    let mapped = Pool::host(8 * MIB, |options| options.backend = BFC_BACKEND_HOST_VMM);
    let stamped = Pool::host(MIB, |options| {
        (options.flags, options.fragmentation_fraction) = (BFC_TIMESTAMPS, 0.25);
    });
    let pools = [&fixed, &growing, &mapped, &stamped].map(Pool::device);
    (0..2000).for_each(|_| fixed.put(fixed.get(256)));
    drop([fixed, growing, mapped, stamped]);
    let history = stopped(&path);
    let options = pools.map(|device| {
        let numbers = 1..=u16::MAX;
        let mut of_device = numbers.filter(|&pool| history.pool(pool).is_some_and(|(its, _)| its == device));
        *history.options(of_device.next().expect("its pool")).expect("its options")
    });
    let [fixed, growing, mapped, stamped] = options;
    use recorded::*;
    assert_eq!(fixed, PoolOptions { limit: MIB, ..PoolOptions::default() });
    let flags = GROWTH | GROWTH_NEED | GARBAGE_COLLECTION | TWO_ENDS;
    assert_eq!(growing.flags & !SPLIT_ALWAYS, flags);
    assert_eq!((growing.limit, growing.initial_region), (8 * MIB, 4096));
    assert_eq!(mapped.flags, VIRTUAL | SPLIT_ALWAYS);
    assert_eq!((stamped.flags, stamped.fragmentation_fraction), (TIMESTAMPS, 0.25));
}

/// Compares a random program in several threads, streams and scopes with the pool's own statistics.
#[test]
fn the_timeline_ends_with_the_pools_statistics() {
    let _alone = alone();
    let path = new_path("random");
    let pool = Pool::host(64 * MIB, |options| options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION);
    let before: Vec<u64> = (0..20).map(|i| pool.get(1000 * (i + 1))).collect();
    start(&path, 1 << 16);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                let mut live = Vec::new();
                // SAFETY: a NUL-terminated string.
                assert_eq!(unsafe { bfc_scope_begin(c"op".as_ptr(), thread) }, BFC_OK);
                for _ in 0..2000 {
                    if random.below(2) == 0 || live.is_empty() {
                        live.extend(pool.alloc(random.below(100_000) + 1).ok());
                    } else {
                        pool.put(live.swap_remove(random.below(live.len() as u64) as usize));
                    }
                }
                assert_eq!(bfc_scope_end(), BFC_OK);
            });
        }
    });
    before.iter().step_by(2).for_each(|&address| pool.put(address));
    let stats = pool.stats();
    let history = stopped(&path);
    assert_eq!((history.incomplete, history.overwritten()), (0, 0));
    let mut disagreements = 0;
    let pools = follow(&history, |event, state| {
        let is_alone = matches!(event.kind, Kind::Alloc | Kind::Free);
        disagreements += u64::from(is_alone && state.known != state.in_use);
    });
    let number =
        history.events.iter().find(|event| event.kind == Kind::Present).expect("some were there").pool;
    let state = &pools[&number];
    assert_eq!(disagreements, 0);
    assert_eq!(state.in_use, stats.bytes_in_use);
    assert_eq!(state.held, stats.pool_bytes);
    assert_eq!(state.requested, stats.bytes_requested);
    assert_eq!(state.failures, stats.num_failures);
    assert_eq!((state.allocations + 20, state.frees), (stats.num_allocs, stats.num_frees));
    assert_eq!(history.operation_name(number, 1).as_deref(), Some("op"));
    assert!(history.events.iter().any(|event| event.kind == Kind::Step && event.bytes == 3));
}

#[test]
fn the_ring_keeps_the_last_events() {
    let _alone = alone();
    let path = new_path("ring");
    let pool = Pool::host(MIB, |_| {});
    start(&path, 1);
    for _ in 0..5000 {
        pool.put(pool.get(256));
    }
    let last = pool.get(512);
    let history = stopped(&path);
    assert_eq!(history.events.len(), 1024, "the least number");
    assert_eq!(history.events.last().map(|event| (event.kind, event.address)), Some((Kind::Alloc, last)));
    assert_eq!(history.overwritten() + 1024, history.written);
    assert!(history.events.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
}

#[test]
fn virtual_memory_is_recorded_by_what_is_mapped() {
    let _alone = alone();
    let path = new_path("vmm");
    start(&path, 0);
    let pool = Pool::host(64 * MIB, |options| {
        (options.backend, options.flags) = (BFC_BACKEND_HOST_VMM, BFC_ALLOW_GROWTH);
    });
    let held: Vec<u64> = (0..5).map(|_| pool.get(3 * MIB)).collect();
    held.iter().for_each(|&address| pool.put(address));
    pool.trim(0);
    let stats = pool.stats();
    let history = stopped(&path);
    let mut most = 0;
    let pools = follow(&history, |_, state| most = most.max(state.held));
    let number = of(&history, &pool)[0].pool;
    assert_eq!(pools[&number].held, stats.pool_bytes);
    assert!(most >= 15 * MIB, "{most}");
}

#[test]
fn trims_and_limits_are_recorded() {
    let _alone = alone();
    let path = new_path("trims");
    start(&path, 0);
    let pool = Pool::host(64 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    pool.put(pool.get(5 * MIB));
    let given_back = pool.trim(0);
    assert!(given_back >= 5 * MIB);
    let kept = pool.get(1000);
    assert_eq!(pool.trim(u64::MAX), 0, "nothing is given back, which is no event");
    pool.limit(16 * MIB);
    pool.put(pool.get(9 * MIB));
    // Memory held beyond a lower limit is released.
    pool.limit(3 * MIB);
    let history = stopped(&path);
    let events = of(&history, &pool);
    let of_kind = |kind: Kind| -> Vec<u64> {
        events.iter().filter(|event| event.kind == kind).map(|event| event.bytes).collect()
    };
    assert_eq!(of_kind(Kind::Limit), [16 * MIB, 3 * MIB]);
    let trims = of_kind(Kind::Trim);
    assert_eq!((trims[0], trims.len()), (given_back, 2), "{trims:?}");
    let state = &follow(&history, |_, _| ())[&events[0].pool];
    assert_eq!((state.limit, state.limit_changes), (3 * MIB, 2));
    assert_eq!((state.trims, state.trimmed), (2, trims.iter().sum()));
    assert_eq!(state.held, pool.stats().pool_bytes);
    pool.put(kept);
}

#[test]
fn a_history_in_memory_is_saved() {
    let _alone = alone();
    let (path, again) = (new_path("saved"), new_path("saved-again"));
    assert_eq!(try_start(None, 2000), BFC_OK);
    let pool = Pool::host(MIB, |_| {});
    let address = pool.get(256);
    assert_eq!(try_save(Some(&c(&path))), BFC_OK);
    let history = read(&path);
    assert_eq!(kinds(&of(&history, &pool)), [Kind::Begin, Kind::Obtained, Kind::Alloc]);
    assert!(history.is_open);
    assert_eq!(try_save(Some(&c(&path))), BFC_ERROR_INVALID_ARGUMENT, "the file exists");
    pool.put(address);
    assert_eq!(try_save(Some(&c(&again))), BFC_OK);
    assert_eq!(of(&read(&again), &pool).len(), 4);
    assert_eq!(bfc_history_stop(), BFC_OK);
    [path, again].iter().for_each(|path| fs::remove_file(path).expect("a file"));
}

#[test]
fn what_cannot_be_is_refused() {
    let _alone = alone();
    let path = new_path("refused");
    let name = c(&path);
    assert_eq!(try_mark(Some(c"early")), BFC_ERROR_INVALID_ARGUMENT);
    for words in
        ["no history is recorded", "\"early\"", "BFC_HISTORY_FILE", "bfc run --history", "bfc_history_start"]
    {
        assert!(last_error().contains(words), "{}", last_error());
    }
    assert_eq!(try_save(Some(&name)), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_history_stop(), BFC_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("no history is recorded"), "{}", last_error());
    assert_eq!(try_start(Some(c"/nonexistent/folder/history"), 0), BFC_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("/nonexistent/folder/history"), "{}", last_error());
    assert_eq!(try_start(Some(&name), 0), BFC_OK);
    assert_eq!(try_start(None, 0), BFC_ERROR_ALREADY_EXISTS);
    assert_eq!(try_mark(None), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(try_mark(Some(c"\xff")), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(try_save(None), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_history_stop(), BFC_OK);
    assert_eq!(try_start(Some(&name), 0), BFC_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("exists"), "{}", last_error());
    fs::remove_file(path).expect("a file");
}

/// With any damage the reader fails only with a reason, and never reads much memory.
#[test]
fn a_damaged_file_is_read_or_refused() {
    let _alone = alone();
    let path = new_path("damaged");
    start(&path, 1024);
    let pool = Pool::host(MIB, |_| {});
    pool.put(pool.get(256));
    mark("end");
    assert_eq!(bfc_history_stop(), BFC_OK);
    let whole = fs::read(&path).expect("a file");
    fs::remove_file(&path).expect("a file");
    assert_eq!(parse(&b"something else".to_vec()).err(), Some(Malformed::OtherFile));
    assert_eq!(parse(&b"libbfc history 3, later".to_vec()).err(), Some(Malformed::OtherVersion));
    for length in [20, 4095, 4096, 5000, whole.len() - 1] {
        assert!(matches!(parse(&whole[..length].to_vec()), Err(Malformed::CutOff { .. })), "{length}");
    }
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let mut damaged = whole.clone();
        for _ in 0..=random.below(4) {
            // Usually where something is written.
            let within = [200, 4096 + 200, whole.len() as u64][random.below(3) as usize];
            let at = random.below(within) as usize;
            damaged[at] = random.below(256) as u8;
        }
        if let Ok(history) = parse(&damaged) {
            assert!(history.events.len() <= 1024);
            follow(&history, |_, _| {});
        }
    }
}

/// A program that is killed leaves what it recorded, and a child neither writes into its parent's file nor fails.
#[test]
fn a_killed_process_leaves_its_history_and_a_child_none() {
    let _alone = alone();
    let path = new_path("killed");
    let name = c(&path);
    // SAFETY: the child calls only the library and ends by a signal.
    let child = unsafe { libc::fork() };
    if child == 0 {
        start_in_child(&name);
    }
    let mut status = 0;
    // SAFETY: the status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
    let history = read(&path);
    fs::remove_file(path).expect("a file");
    assert_eq!((history.process, history.is_open), (child as u32, true));
    use Kind::*;
    assert_eq!(kinds(&history.events), [Begin, Obtained, Alloc, Alloc]);
}

/// Records, forks a child that allocates from the same pool, and is killed.
fn start_in_child(name: &CString) -> ! {
    let started = try_start(Some(name), 0);
    let pool = Pool::host(MIB, |_| {});
    let first = pool.alloc(256);
    // SAFETY: the child calls only the library.
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        let allocated = pool.alloc(512).is_ok();
        let mark = try_mark(Some(c"of the child"));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!(allocated && mark == BFC_ERROR_INVALID_ARGUMENT))) };
    }
    let mut status = 0;
    // SAFETY: the status is valid for writing.
    unsafe { libc::waitpid(grandchild, &mut status, 0) };
    let second = pool.alloc(512);
    let is_well = started == BFC_OK && first.is_ok() && second.is_ok() && status == 0;
    if is_well {
        // SAFETY: ends the process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(3) }
}

#[test]
fn an_existing_file_stays_and_the_log_says_where_the_history_is() {
    const NAME: &str = "an_existing_file_stays_and_the_log_says_where_the_history_is";
    if is_child(NAME) {
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(256));
        return;
    }
    let path = new_path("existing");
    fs::write(&path, "something else").expect("writable");
    let shown = path.to_str().expect("UTF-8");
    let ended = expect_success(NAME, &[("BFC_HISTORY_FILE", shown), ("BFC_LOG", "warn")]);
    assert_eq!(fs::read(&path).expect("the file"), b"something else");
    let words = format!("{shown} exists, so the history is recorded into ");
    let (_, behind) = ended.errors.split_once(&words).expect(&ended.errors);
    let other = PathBuf::from(behind.lines().next().expect("a name"));
    let history = read(&other);
    assert!(history.is_open && history.events.iter().any(|event| event.kind == Kind::Free));
    [path, other].iter().for_each(|path| fs::remove_file(path).expect("a file"));
}

#[test]
fn the_history_of_an_earlier_process_is_kept_beside_the_new_one() {
    const NAME: &str = "the_history_of_an_earlier_process_is_kept_beside_the_new_one";
    if is_child(NAME) {
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(256));
        return;
    }
    let _alone = alone();
    let path = new_path("earlier");
    let old = path.with_extension("old");
    let shown = path.to_str().expect("UTF-8");
    let run = |level| expect_success(NAME, &[("BFC_HISTORY_FILE", shown), ("BFC_LOG", level)]).errors;
    let mut processes = Vec::new();
    for round in 0..3 {
        let said = run("info");
        let words = format!("{shown} was the history of a process that has ended: it is {}", old.display());
        assert_eq!(said.contains(&words), round != 0, "{said}");
        processes.push(read(&path).process);
        if round != 0 {
            assert_eq!(read(&old).process, processes[round - 1]);
        }
    }
    // Not while it is being recorded.
    fs::remove_file(&path).expect("a file");
    start(&path, 0);
    let said = run("warn");
    assert!(said.contains(&format!("{shown} exists, so the history is recorded into {shown}.")), "{said}");
    assert_eq!(bfc_history_stop(), BFC_OK);
    assert_eq!((read(&path).process, read(&old).process), (std::process::id(), processes[1]));
    let (_, other) = said.split_once("is recorded into ").expect("as above");
    fs::remove_file(other.lines().next().expect("a name")).expect("a file");
    [path, old].iter().for_each(|path| fs::remove_file(path).expect("a file"));
}

#[test]
fn the_history_of_an_earlier_process_with_the_same_number_is_kept_too() {
    const NAME: &str = "the_history_of_an_earlier_process_with_the_same_number_is_kept_too";
    if is_child(NAME) {
        let path = std::env::var("BFC_HISTORY_FILE").expect("the parent's");
        // Each run of a container has the same numbers of processes.
        let _ = fs::rename(format!("{path}.earlier"), format!("{path}.{}", std::process::id()));
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(256));
        return;
    }
    let path = new_path("number");
    fs::write(&path, "something else").expect("writable");
    let shown = path.to_str().expect("UTF-8");
    let run = || {
        let said = expect_success(NAME, &[("BFC_HISTORY_FILE", shown), ("BFC_LOG", "warn")]).errors;
        assert!(!said.contains("no history is recorded"), "{said}");
        let (_, other) = said.split_once("is recorded into ").expect(&said);
        other.lines().next().expect("a name").to_owned()
    };
    let first = run();
    let earlier = read(Path::new(&first)).process;
    fs::rename(first, format!("{shown}.earlier")).expect("a file");
    let second = run();
    let old = format!("{second}.old");
    assert_ne!(read(Path::new(&second)).process, earlier);
    assert_eq!(read(Path::new(&old)).process, earlier);
    [shown, &second, &old].iter().for_each(|path| fs::remove_file(path).expect("a file"));
}

#[test]
fn a_path_in_the_environment_need_not_be_utf8() {
    const NAME: &str = "a_path_in_the_environment_need_not_be_utf8";
    if is_child(NAME) {
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(256));
        return;
    }
    let folder = new_path("bytes");
    fs::create_dir(&folder).expect("a folder");
    let [history, plan] = [b"history\xff", b"no-plan\xff"].map(|name| folder.join(OsStr::from_bytes(name)));
    let variables = [
        ("BFC_HISTORY_FILE", history.as_os_str()),
        ("BFC_PLAN", plan.as_os_str()),
        ("BFC_LOG", OsStr::new("warn")),
    ];
    fs::write(&plan, "not a plan").expect("writable");
    let ended = child::run_raw(NAME, variables.into_iter());
    assert!(ended.success, "{}", ended.text);
    assert!(read(&history).events.iter().any(|event| event.kind == Kind::Free));
    // It was found, and has other contents.
    assert!(ended.errors.contains("BFC_PLAN=(not UTF-8) is ignored: "), "{}", ended.errors);
    assert!(!ended.errors.contains("no such file"), "{}", ended.errors);
    fs::remove_dir_all(folder).expect("its own folder");
}
