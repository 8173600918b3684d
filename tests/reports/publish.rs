//! `BFC_PUBLISH`: the statistics of a process in a file that others read, its removal at the end, and the behaviour
//! if it cannot be created.

use crate::common::child::{Ended, expect_success, is_child, run};
use crate::common::*;
use bfc_formats::published::layout::{
    FILE_BYTES, GONE, HEADER_BYTES, Header, LIVE, MAGIC, POOLS, Pool as Published, Record,
};
use std::fs::{self, Permissions};
use std::mem::offset_of;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Far longer than anything here takes.
const EVER: Duration = Duration::from_secs(30);

/// Waits until there is a value, however busy the machine is.
#[track_caller]
fn eventually<T>(what: &str, value: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(begun.elapsed() < EVER, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A new folder for the runtime files of a test.
fn runtime_folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("libbfc-publish-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).expect("writable");
    path
}

/// In a child: returns the file of a process.
fn file_of(process: u32) -> PathBuf {
    Path::new(&std::env::var_os("XDG_RUNTIME_DIR").expect("set")).join("libbfc").join(process.to_string())
}

/// Runs a test in a child that publishes below `folder`.
fn publishing(test: &str, folder: &Path) -> Ended {
    let folder = folder.to_str().expect("UTF-8");
    expect_success(test, &[("BFC_PUBLISH", "1"), ("BFC_LOG", "warn"), ("XDG_RUNTIME_DIR", folder)])
}

fn number(file: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(file[at..at + 8].try_into().expect("8 bytes"))
}

/// Returns the written records of a file. `None` if one was written meanwhile.
fn records(path: &Path) -> Option<Vec<Published>> {
    let before = fs::read(path).ok().filter(|file| file.starts_with(&MAGIC))?;
    assert_eq!(before.len(), FILE_BYTES);
    let (file, after) = (fs::read(path).ok()?, fs::read(path).ok()?);
    let mut records = Vec::new();
    for at in (0..POOLS).map(|index| HEADER_BYTES + index * size_of::<Record>()) {
        let [sequence, later] = [&before, &after].map(|file| Record::sequence_of(&file[at..]));
        if sequence != later {
            return None;
        }
        records.extend(Record::copy_of(&file[at..], sequence?).filter(|_| sequence != Some(0)));
    }
    Some(records)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8").trim_end_matches('\0')
}

/// Returns the statistics in the order of the C ABI.
fn statistics(pool: &Pool) -> [u64; bfc_formats::published::layout::STATISTICS.len()] {
    let stats = pool.stats();
    let words: [u64; size_of::<bfc_stats_t>() / 8] =
        // SAFETY: the struct consists of that many words.
        unsafe { std::mem::transmute(stats) };
    std::array::from_fn(|index| words[index + 1])
}

/// Waits for a record of the device with these statistics.
fn await_record(pool: &Pool, device: u64) -> Published {
    let wanted = statistics(pool);
    eventually("the statistics are published", || {
        let records = records(&file_of(std::process::id()))?;
        records.into_iter().find(|it| it.device == device && it.statistics == wanted && it.state == LIVE)
    })
}

#[test]
fn what_is_published_is_what_bfc_stats_returns() {
    const NAME: &str = "what_is_published_is_what_bfc_stats_returns";
    if !is_child(NAME) {
        let folder = runtime_folder("stats");
        let ended = publishing(NAME, &folder);
        assert_eq!(ended.errors.matches("libbfc ").count(), 0, "{}", ended.errors);
        assert_eq!(fs::read_dir(folder.join("libbfc")).expect("a folder").count(), 0, "removed at the end");
        fs::remove_dir_all(folder).expect("a folder");
        return;
    }
    let (first, second) = (Pool::host(GIB, |options| options.flags = GROWING), fresh_device());
    let kept = first.get(MIB);
    first.put(first.get(3 * MIB));
    assert!(first.alloc(2 * GIB).is_err());
    let record = await_record(&first, first.device() as u64);
    assert_eq!((text(&record.backend), record.holders_time), ("host", 0));
    assert!(record.holders.iter().all(|holder| holder.bytes == 0));

    let other = Pool::on_device(second, |options| {
        (options.backend, options.memory_limit, options.name) =
            (BFC_BACKEND_HOST, GIB, c"second\n\x1b[2J".as_ptr());
    });
    scope_begin("attention", 7);
    let named = other.get(5000);
    assert_eq!(bfc_scope_end(), BFC_OK);
    let unnamed = other.get(256);
    let holders = eventually("the holders are summed up", || {
        let records = records(&file_of(std::process::id()))?;
        let record = records.into_iter().find(|it| it.device == second as u64 && it.statistics[0] == 2)?;
        assert_eq!(text(&record.name), "second\n\x1b[2J", "names are published as they are");
        (record.holders[1].bytes != 0).then_some(record.holders)
    });
    let shown = holders.map(|it| (it.bytes, it.chunks, it.last_step, text(&it.name).to_owned()));
    assert_eq!(shown[0], (5120, 1, 7, "attention".into()));
    assert_eq!(shown[1], (256, 1, 0, String::new()));
    assert_eq!(shown[2].0, 0);
    await_record(&other, second as u64);
    await_record(&first, first.device() as u64);
    [named, unnamed].into_iter().for_each(|address| other.put(address));
    drop(other);
    eventually("the pool is gone", || {
        let records = records(&file_of(std::process::id()))?;
        records.into_iter().find(|it| it.device == second as u64 && it.state == GONE)
    });

    let path = file_of(std::process::id());
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    let folder = fs::metadata(path.parent().expect("a folder")).expect("a folder");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    first.put(kept);
}

#[test]
fn a_child_publishes_once_it_creates_an_allocator() {
    const NAME: &str = "a_child_publishes_once_it_creates_an_allocator";
    if !is_child(NAME) {
        let folder = runtime_folder("fork");
        publishing(NAME, &folder);
        let left: Vec<_> = fs::read_dir(folder.join("libbfc")).expect("a folder").flatten().collect();
        assert_eq!(left.len(), 1, "that of the child, which was killed: {left:?}");
        fs::remove_dir_all(folder).expect("a folder");
        return;
    }
    let pool = Pool::host(GIB, |options| options.flags = GROWING);
    let kept = pool.get(MIB);
    await_record(&pool, pool.device() as u64);
    let new = fresh_device();
    // SAFETY: the child calls only the library and the system, and ends without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        in_child(&pool, new);
    }
    let mut status = 0;
    // SAFETY: the status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
    let of_child = records(&file_of(child as u32)).expect("a killed process leaves its file");
    let stats: Vec<_> =
        of_child.iter().filter(|it| it.device == new as u64).map(|it| it.statistics[0]).collect();
    assert_eq!(stats, [3], "the last state is readable");
    // A child that only inherits the allocator ends normally, and does not change the parent's file.
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the process.
        unsafe { libc::exit(0) };
    }
    // SAFETY: the status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    // The parent continues.
    pool.put(kept);
    await_record(&pool, pool.device() as u64);
}

/// Uses the parent's pool, and then one of its own, until that is published.
fn in_child(pool: &Pool, new: i32) -> ! {
    let path = file_of(std::process::id());
    let is_silent = pool.alloc(MIB).is_ok() && !path.exists();
    let options = bfc_options_t { backend: BFC_BACKEND_HOST, memory_limit: GIB, ..options() };
    let is_served = create(new, Some(&options)) == BFC_OK && (0..3).all(|_| alloc(new, 1000).is_ok());
    let is_published = || {
        let records = records(&path).unwrap_or_default();
        records.iter().any(|it| it.device == new as u64 && it.statistics[0] == 3).then_some(())
    };
    if is_silent && is_served {
        eventually("the child publishes", is_published);
        // SAFETY: ends the process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(3) }
}

#[test]
fn without_the_variable_nothing_is_published_and_no_thread_is_started() {
    const NAME: &str = "without_the_variable_nothing_is_published_and_no_thread_is_started";
    if is_child(NAME) {
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(256));
        let tasks = fs::read_dir("/proc/self/task").expect("Linux").flatten();
        let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        assert!(names.into_iter().all(|name| name.trim() != "bfc-publish"));
        return;
    }
    let folder = runtime_folder("off");
    for value in ["", "0", "off"] {
        expect_success(NAME, &[("BFC_PUBLISH", value), ("XDG_RUNTIME_DIR", folder.to_str().expect("UTF-8"))]);
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
    }
    fs::remove_dir_all(folder).expect("a folder");
}

/// The task of the child of the next test.
const OBSTACLE: &str = "LIBBFC_TEST_OBSTACLE";

#[test]
fn where_nothing_can_be_published_there_is_a_warning_and_the_program_goes_on() {
    const NAME: &str = "where_nothing_can_be_published_there_is_a_warning_and_the_program_goes_on";
    if is_child(NAME) {
        if std::env::var(OBSTACLE).expect("set") == "limit" {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: the limit is valid. Standard error is a pipe.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        }
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(256));
        return;
    }
    let folder = runtime_folder("obstacles");
    let shown = folder.to_str().expect("UTF-8");
    let with = |obstacle| {
        run(
            NAME,
            &[("BFC_PUBLISH", "1"), ("BFC_LOG", "info"), ("XDG_RUNTIME_DIR", shown), (OBSTACLE, obstacle)],
        )
    };
    let ended = with("limit");
    let expected = format!("warning: BFC_PUBLISH is ignored: {shown}/libbfc/");
    assert!(ended.success && ended.errors.contains(&expected), "{}", ended.text);
    assert_eq!(fs::read_dir(folder.join("libbfc")).expect("a folder").count(), 0, "no rest of it stays");

    // With another folder /dev/shm is used. The first test shows that it is removed at the end.
    type Prepare = fn(&Path);
    let obstacles: [(&str, &str, Prepare); 3] = [
        ("link", "it is no folder, or a symbolic link", |path| symlink("/tmp", path).expect("writable")),
        ("file", "it is no folder, or a symbolic link", |path| fs::write(path, "").expect("writable")),
        ("open", "other users have access to it; its mode must be 0700", |path| {
            fs::create_dir(path).expect("writable");
            fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
        }),
    ];
    let path = folder.join("libbfc");
    fs::remove_dir(&path).expect("it is empty");
    for (obstacle, why, prepare) in obstacles {
        prepare(&path);
        let ended = with(obstacle);
        let expected = format!("info: {shown}/libbfc: {why}; /dev/shm is used instead");
        assert!(ended.success && ended.errors.contains(&expected), "{obstacle}: {}", ended.text);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
    fs::remove_dir_all(folder).expect("a folder");
}

#[test]
fn files_of_processes_that_were_killed_long_ago_are_removed() {
    const NAME: &str = "files_of_processes_that_were_killed_long_ago_are_removed";
    if is_child(NAME) {
        let pool = Pool::host(MIB, |_| {});
        await_record(&pool, pool.device() as u64);
        let folder = file_of(0).parent().expect("a folder").to_owned();
        let names = || {
            let entries = fs::read_dir(&folder).expect("a folder").flatten();
            let mut names: Vec<_> = entries.map(|it| it.file_name().into_string().expect("UTF-8")).collect();
            names.sort();
            names
        };
        let own = std::process::id().to_string();
        let mut expected =
            ["2000000003", "2000000004", "2000000007", "empty", "notes"].map(str::to_owned).to_vec();
        expected.push(own);
        expected.sort();
        eventually("the stale file is removed", || (names() == expected).then_some(()));
        return;
    }
    let folder = runtime_folder("stale");
    let path = folder.join("libbfc");
    fs::create_dir(&path).expect("writable");
    fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("it is ours");
    let file = |magic: [u8; 16], namespace: u64, updated: u64| {
        let mut file = vec![0; FILE_BYTES];
        file[..16].copy_from_slice(&magic);
        let at = offset_of!(Header, namespace);
        file[at..at + 8].copy_from_slice(&namespace.to_ne_bytes());
        let at = offset_of!(Header, updated);
        file[at..at + 8].copy_from_slice(&updated.to_ne_bytes());
        assert_eq!(number(&file, at), updated);
        file
    };
    use std::os::unix::fs::MetadataExt;
    let here = fs::metadata("/proc/self/ns/pid").expect("Linux").ino();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("later").as_nanos() as u64;
    // No process has such a number. Files of a process that has just ended or of another container, and other files,
    // stay.
    fs::write(path.join("2000000001"), file(MAGIC, here, 1)).expect("writable");
    fs::write(path.join("2000000002"), file(MAGIC, here, now - 601_000_000_000)).expect("writable");
    fs::write(path.join("2000000003"), file(MAGIC, here, now)).expect("writable");
    fs::write(path.join("2000000004"), file(MAGIC, here + 1, 1)).expect("writable");
    // Files of processes that were killed before they had written anything.
    for (name, bytes, age) in
        [("2000000005", 0, 601), ("2000000006", FILE_BYTES, 601), ("2000000007", 0, 0), ("empty", 0, 601)]
    {
        fs::write(path.join(name), vec![0; bytes]).expect("writable");
        let file = fs::OpenOptions::new().write(true).open(path.join(name)).expect("it is there");
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).expect("it is ours");
    }
    fs::write(path.join("notes"), "a file of the user's").expect("writable");
    publishing(NAME, &folder);
    fs::remove_dir_all(folder).expect("a folder");
}
