//! Files of all kinds.

use std::fs::{self, Permissions};
use std::mem::offset_of;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::made::{file, folder, live, now, put};
use super::reader::{State, read_all};
use bfc_formats::published::layout::{FILE_BYTES, GONE, Header, Holder, Pool, put_text};

#[test]
fn a_process_runs_stalls_has_ended_or_is_elsewhere() {
    let folder = folder("states");
    let mut second = live(7, 1 << 20);
    second.holders[0] = Holder { bytes: 5, chunks: 1, last_step: 2, ..Holder::EMPTY };
    put_text(&mut second.holders[0].name, "op");
    let gone = Pool { state: GONE, ..live(1, 5) };
    let running = file(&[live(256, 9), second, gone]);
    let [mut stalled, mut ended, mut elsewhere, mut reused] = [(); 4].map(|()| file(&[live(0, 1)]));
    put(&mut stalled, offset_of!(Header, updated), (now() - 4_000_000_000).to_ne_bytes());
    put(&mut ended, offset_of!(Header, process), 2_000_000_001_u32.to_ne_bytes());
    put(&mut elsewhere, offset_of!(Header, namespace), 1_u64.to_ne_bytes());
    put(&mut elsewhere, offset_of!(Header, process), 2_000_000_002_u32.to_ne_bytes());
    put(&mut reused, offset_of!(Header, started), 1_u64.to_ne_bytes());
    for (name, file) in [("1", &running), ("2", &stalled), ("3", &ended), ("4", &elsewhere), ("5", &reused)] {
        fs::write(folder.join(name), file).expect("writable");
    }
    fs::write(folder.join("6"), vec![0; FILE_BYTES]).expect("it is being created");
    let read = read_all(&[folder.clone(), folder.clone(), folder.join("nonexistent")]);
    assert_eq!(read.unreadable, []);
    let mut states: Vec<_> = read.processes.iter().map(|it| (it.id, it.state)).collect();
    states.sort_by_key(|(_, state)| state.name());
    let own = std::process::id();
    let expected = [
        (own, State::Ended),
        (2_000_000_001, State::Ended),
        (own, State::Running),
        (own, State::Stalled),
        (2_000_000_002, State::Unknown),
    ];
    assert_eq!(states, expected);
    let running = read.processes.iter().find(|it| it.state == State::Running).expect("it is there");
    let pools: Vec<_> = running.pools.iter().map(|it| (it.device, it.statistics[3])).collect();
    assert_eq!((&*running.program, &*pools), ("train", &[(7, 1 << 20), (256, 9)][..]));
    let holders = &running.pools[0].holders;
    assert_eq!((holders.len(), holders[0].operation.as_deref(), holders[0].last_step), (1, Some("op"), 2));
    fs::remove_dir_all(folder).expect("a folder");
}

#[test]
fn what_a_killed_process_left_is_removed_after_some_time() {
    let folder = folder("removed");
    let of = |process: u32, age: u64| {
        let mut file = file(&[live(0, 1)]);
        put(&mut file, offset_of!(Header, process), process.to_ne_bytes());
        put(&mut file, offset_of!(Header, updated), (now() - age * 1_000_000_000).to_ne_bytes());
        fs::write(folder.join(age.to_string()), file).expect("writable");
    };
    of(2_000_000_001, 590);
    of(2_000_000_001, 610);
    of(std::process::id(), 620);
    let read = read_all(std::slice::from_ref(&folder));
    assert_eq!((read.processes.len(), read.unreadable.len()), (2, 0));
    let left = ["590", "610", "620"].map(|name| folder.join(name).exists());
    assert_eq!(left, [true, false, true]);
    // For a process that was killed before it had written anything, and for one that is creating its file.
    for (name, bytes, age) in [("1", 0, 610), ("2.5", FILE_BYTES, 610), ("3", 0, 0), ("notes", 0, 610)] {
        fs::write(folder.join(name), vec![0; bytes]).expect("writable");
        let file = fs::OpenOptions::new().write(true).open(folder.join(name)).expect("it is there");
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("it is ours");
    }
    let read = read_all(std::slice::from_ref(&folder));
    let notes = (folder.join("notes"), "is not a file of published statistics".into());
    assert_eq!((read.processes.len(), read.unreadable), (2, vec![notes]));
    let left = ["1", "2.5", "3", "notes"].map(|name| folder.join(name).exists());
    assert_eq!(left, [false, false, true, true]);
    fs::remove_dir_all(folder).expect("a folder");
}

#[test]
fn what_is_no_such_file_is_named_with_the_reason() {
    let folder = folder("damaged");
    let good = file(&[live(0, 1)]);
    let with = |change: fn(&mut Vec<u8>)| {
        let mut file = good.clone();
        change(&mut file);
        file
    };
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("empty", vec![], "is not a file of published statistics"),
        ("other", b"something else".to_vec(), "is not a file of published statistics"),
        ("version", b"libbfc publish 2".to_vec(), "is of another version of libbfc"),
        ("short", good[..5000].to_vec(), "is damaged: it has 5000 bytes instead of 102400"),
        ("long", with(|file| file.push(0)), "is damaged: it has 102401 bytes instead of 102400"),
        ("sizes", with(|file| file[16] = 1), "is damaged: the sizes in the header"),
        ("device", file(&[live(1024, 1)]), "is damaged: record 0: there is no device 1024"),
        (
            "state",
            file(&[live(0, 1), Pool { state: 9, ..live(0, 1) }]),
            "is damaged: record 1: 9 is no state",
        ),
    ];
    for (name, file, _) in &cases {
        fs::write(folder.join(name), file).expect("writable");
    }
    fs::create_dir(folder.join("folder")).expect("writable");
    symlink("other", folder.join("link")).expect("writable");
    let pipe = std::ffi::CString::new(folder.join("pipe").to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let read = read_all(std::slice::from_ref(&folder));
    let reason = |name: &str| {
        let found = read.unreadable.iter().find(|(file, _)| *file == folder.join(name));
        found.map_or(String::new(), |(_, why)| why.clone())
    };
    for (name, _, why) in &cases {
        assert!(reason(name).starts_with(why), "{name}: {}", reason(name));
    }
    for (name, why) in [
        ("folder", "is no file"),
        ("pipe", "is no file"),
        ("link", "cannot be opened, or is a symbolic link"),
    ] {
        assert!(reason(name).starts_with(why), "{name}: {}", reason(name));
    }
    assert_eq!((read.processes.len(), read.unreadable.len()), (0, 11));
    fs::remove_dir_all(folder).expect("a folder");
}

#[test]
fn a_folder_that_others_can_use_is_not_read() {
    let folder = folder("open");
    fs::write(folder.join("1"), file(&[])).expect("writable");
    symlink(&folder, folder.join("link")).expect("writable");
    assert_eq!(read_all(&[folder.join("link")]).processes.len(), 0);
    assert_eq!(read_all(std::slice::from_ref(&folder)).processes.len(), 1);
    fs::set_permissions(&folder, Permissions::from_mode(0o770)).expect("it is ours");
    let read = read_all(std::slice::from_ref(&folder));
    let why = "other users have access to it; its mode must be 0700";
    assert_eq!((read.processes.len(), read.unreadable), (0, vec![(folder.clone(), why.into())]));
    fs::remove_dir_all(folder).expect("a folder");
    let root = read_all(&[PathBuf::from("/")]);
    assert!(root.processes.is_empty() && root.unreadable.len() == 1);
    assert_ne!(fs::metadata("/").expect("it is there").mode() & 0o077, 0);
}
