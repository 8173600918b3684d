//! Backtraces in the history: where allocations are made, each stored once, within bounds.

use crate::common::*;
use crate::history::layout::{Kind, MOST_FRAMES, STACK_BYTES};
use crate::history::{alone, c, new_path, read, read_from, stopped};
use bfc_readers::history::reader::{History, Recorded};
use std::collections::HashSet;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

fn try_start(path: &Path, stacks: u32) -> Status {
    // SAFETY: NUL-terminated.
    unsafe { bfc_history_start_with_stacks(c(path).as_ptr(), 1 << 17, stacks) }
}

fn start(path: &Path) {
    assert_eq!(try_start(path, BFC_STACKS_NATIVE), BFC_OK);
}

fn of(history: &History, kind: Kind) -> Vec<Recorded> {
    history.events.iter().filter(|event| event.kind == kind).copied().collect()
}

#[inline(never)]
fn one_place(pool: &Pool) -> u64 {
    black_box(pool.get(1000))
}

#[inline(never)]
fn other_place(pool: &Pool) -> u64 {
    black_box(pool.get(1000))
}

#[test]
fn a_place_has_one_backtrace_and_another_place_another() {
    let _alone = alone();
    let path = new_path("stacks-places");
    start(&path);
    let pool = Pool::host(MIB, |_| {});
    let mut live: Vec<u64> = (0..3).map(|_| one_place(&pool)).collect();
    live.push(other_place(&pool));
    // Allocations in stream order, with an alignment, and in a scope are recorded too.
    live.push(alloc_async(pool.device(), 1000, 0).expect("room"));
    live.push(alloc_aligned(pool.device(), 1000, 4096).expect("room"));
    assert_eq!(scope_begin("layer", 1), BFC_OK);
    live.push(one_place(&pool));
    assert_eq!(bfc_scope_end(), BFC_OK);
    assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    live.into_iter().for_each(|address| pool.put(address));
    let history = stopped(&path);
    let stacks: Vec<u32> = of(&history, Kind::Alloc).iter().map(|event| event.stack).collect();
    assert_eq!((stacks[0], stacks[1]), (stacks[2], stacks[2]));
    let different: HashSet<u32> = stacks.iter().copied().collect();
    assert_eq!((stacks.len(), different.len()), (7, 5), "{stacks:?}");
    let failed = of(&history, Kind::OutOfMemory);
    assert!(!different.contains(&failed[0].stack));
    for stack in different.into_iter().chain([failed[0].stack]) {
        let frames = history.frames(stack);
        let program = std::env::current_exe().expect("a path");
        let name = program.file_name().expect("a name").to_str().expect("UTF-8");
        // Offsets in the modules. The command finds the names.
        assert!(frames.len() > 3 && frames[0].function.starts_with(name), "{frames:?}");
        assert!(frames.iter().any(|frame| frame.function.starts_with("libc.so")), "{frames:?}");
    }
    assert!(of(&history, Kind::Free).iter().all(|event| event.stack == 0));
    assert_eq!((history.stacks_lost, history.texts_lost), (0, 0));
}

#[test]
fn without_backtraces_there_is_no_room_for_them() {
    let _alone = alone();
    let sizes = [0, BFC_STACKS_NATIVE].map(|stacks| {
        let path = new_path("stacks-room");
        assert_eq!(try_start(&path, stacks), BFC_OK);
        let pool = Pool::host(MIB, |_| {});
        pool.put(pool.get(1));
        let bytes = fs::metadata(&path).expect("a file").len();
        let history = stopped(&path);
        assert_eq!(of(&history, Kind::Alloc)[0].stack != 0, stacks != 0);
        bytes
    });
    assert_eq!(sizes[1] - sizes[0], STACK_BYTES as u64);
}

#[test]
fn what_cannot_be_is_refused() {
    let _alone = alone();
    let path = new_path("stacks-refused");
    for (stacks, status, words) in [
        (4, BFC_ERROR_INVALID_ARGUMENT, "4 stands for no backtraces: use BFC_STACKS_"),
        (
            BFC_STACKS_PYTHON,
            BFC_ERROR_UNSUPPORTED,
            "backtraces of Python cannot be recorded: the program is not CPython",
        ),
    ] {
        assert_eq!(try_start(&path, stacks), status);
        assert!(last_error().contains(words), "{}", last_error());
        assert!(!path.exists());
        assert_eq!(bfc_history_stop(), BFC_ERROR_INVALID_ARGUMENT, "nothing is recorded");
    }
}

/// Reaches an allocation through `depth` calls. Each bit of `path` selects the function.
#[inline(always)]
fn descend(pool: &Pool, depth: u32, path: u64) -> u64 {
    match (depth, path & 1) {
        (0, _) => black_box(pool.get(256)),
        (_, 0) => left(pool, depth - 1, path >> 1),
        _ => right(pool, depth - 1, path >> 1),
    }
}

#[inline(never)]
fn left(pool: &Pool, depth: u32, path: u64) -> u64 {
    black_box(descend(pool, depth, path))
}

#[inline(never)]
fn right(pool: &Pool, depth: u32, path: u64) -> u64 {
    black_box(descend(pool, depth, path)) | black_box(0)
}

#[test]
fn the_innermost_frames_of_a_deep_recursion_are_kept() {
    let _alone = alone();
    let path = new_path("stacks-deep");
    start(&path);
    let pool = Pool::host(MIB, |_| {});
    pool.put(descend(&pool, 3 * MOST_FRAMES as u32, 0));
    let history = stopped(&path);
    let frames = history.frames(of(&history, Kind::Alloc)[0].stack);
    assert_eq!(frames.len(), MOST_FRAMES + 1, "{frames:?}");
    assert_eq!(&*frames[MOST_FRAMES].function, "(more frames)");
    assert!(frames[MOST_FRAMES - 1] == frames[MOST_FRAMES - 2], "the recursion: {frames:?}");
}

#[test]
fn more_backtraces_than_there_is_room_for_are_counted() {
    let _alone = alone();
    let path = new_path("stacks-full");
    start(&path);
    let pool = Pool::host(MIB, |_| {});
    const DIFFERENT: u64 = 40_000;
    for path in 0..DIFFERENT {
        pool.put(descend(&pool, 16, path));
    }
    let history = stopped(&path);
    let allocations = of(&history, Kind::Alloc);
    let without = allocations.iter().filter(|event| event.stack == 0).count() as u64;
    assert!(without > 1000 && without < DIFFERENT / 2 + 20_000, "{without}");
    assert_eq!((history.stacks_lost, allocations.len()), (without, DIFFERENT as usize));
    let different: HashSet<u32> =
        allocations.iter().map(|event| event.stack).filter(|&stack| stack != 0).collect();
    assert_eq!(different.len() as u64 + without, DIFFERENT);
    assert!(different.iter().all(|&stack| history.frames(stack).len() > 16));
}

/// Backtraces captured for one recording are not in the next.
#[test]
fn threads_record_while_recordings_begin_and_end() {
    let _alone = alone();
    let pool = Pool::host(16 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let is_over = AtomicBool::new(false);
    let histories: Vec<History> = std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !is_over.load(Relaxed) {
                    pool.put(one_place(&pool));
                    pool.put(other_place(&pool));
                }
            });
        }
        let one = |_| {
            let path = new_path("stacks-threads");
            let started = try_start(&path, BFC_STACKS_NATIVE);
            std::thread::sleep(Duration::from_millis(2));
            let stopped = bfc_history_stop();
            ((started, stopped) == (BFC_OK, BFC_OK))
                .then(|| fs::read(&path).and_then(|file| fs::remove_file(&path).map(|()| file)))
        };
        let files: Vec<_> = (0..20).map(one).collect();
        // Before anything can fail, because the threads would otherwise run forever.
        is_over.store(true, Relaxed);
        files.into_iter().map(|file| read_from(file.expect("recorded").expect("a file"))).collect()
    });
    let with_stack =
        |history: &History| of(history, Kind::Alloc).iter().filter(|event| event.stack != 0).count();
    assert!(histories.iter().map(with_stack).sum::<usize>() > 100);
    for history in &histories {
        for event in of(history, Kind::Alloc).iter().filter(|event| event.stack != 0) {
            assert!(history.frames(event.stack).len() > 3, "{event:?}: {:?}", history.frames(event.stack));
        }
    }
}

/// A program that is killed leaves its backtraces, and a forked child captures none.
#[test]
fn a_killed_process_leaves_its_backtraces() {
    let _alone = alone();
    let path = new_path("stacks-killed");
    // SAFETY: the child calls only the library and ends by a signal.
    let child = unsafe { libc::fork() };
    if child == 0 {
        end_in_child(&path);
    }
    let mut status = 0;
    // SAFETY: the status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
    let history = read(&path);
    let allocations = of(&history, Kind::Alloc);
    assert_eq!(allocations.len(), 2);
    assert!(allocations.iter().all(|event| history.frames(event.stack).len() > 3));
}

fn end_in_child(path: &Path) -> ! {
    let started = try_start(path, BFC_STACKS_NATIVE);
    let pool = Pool::host(MIB, |_| {});
    one_place(&pool);
    // SAFETY: the child calls only the library.
    let grandchild = unsafe { libc::fork() };
    if grandchild == 0 {
        one_place(&pool);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = 1;
    // SAFETY: the status is valid for writing.
    unsafe { libc::waitpid(grandchild, &mut status, 0) };
    other_place(&pool);
    if started == BFC_OK && status == 0 {
        // SAFETY: ends the process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(3) }
}
