//! The history during other operations: a save, a call of a backend.

use crate::common::backend::{Backend, RECORDED_FIRST};
use crate::common::*;
use crate::history::layout::Kind;
use crate::history::{alone, c, new_path, stopped};
use bfc_readers::history::reader::Recorded;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread::yield_now;

fn start(path: Option<&CString>, events: u64) {
    let path = path.map_or(std::ptr::null(), |path| path.as_ptr());
    // SAFETY: NULL or a NUL-terminated string.
    assert_eq!(unsafe { bfc_history_start(path, events) }, BFC_OK, "{}", last_error());
}

fn save(path: &CString) {
    // SAFETY: a NUL-terminated string.
    assert_eq!(unsafe { bfc_history_save(path.as_ptr()) }, BFC_OK, "{}", last_error());
}

/// The number of a pool in a past recording belongs to another pool in the next one.
#[test]
fn a_region_obtained_across_two_recordings_is_no_other_pools() {
    let _alone = alone();
    let (first, second) = (new_path("across-first"), new_path("across-second"));
    let before = Arc::new(Mutex::new(Some(Pool::host(MIB, |_| {}))));
    let after = Arc::new(Mutex::new(None));
    let (names, pools) = ((c(&first), c(&second)), (before.clone(), after.clone()));
    let backend = Backend::scripted(move |_, _, bytes| {
        if let Some(before) = pools.0.lock().expect("no panic").take() {
            assert_eq!(bfc_history_stop(), BFC_OK);
            *pools.1.lock().expect("no panic") = Some(Pool::host(MIB, |_| {}));
            drop(before);
            start(Some(&names.1), 0);
        }
        Some((RECORDED_FIRST, bytes))
    });
    let pool = Pool::custom(backend.cheating(), MIB, |_| {});
    start(Some(&c(&first)), 0);
    let address = pool.get(256);
    let history = stopped(&second);
    let of_this =
        |event: &&Recorded| history.pool(event.pool).is_some_and(|(device, _)| device == pool.device());
    let regions: Vec<_> = history.events.iter().filter(|event| event.kind == Kind::Obtained).collect();
    assert!(regions.iter().all(of_this), "{regions:?}");
    assert!(history.events.iter().any(|event| of_this(&event) && event.address == address));
    pool.put(address);
    drop(after);
    fs::remove_file(first).expect("a file");
}

/// The work of a thread while another one saves the history, and a fork.
fn use_meanwhile(pool: &Pool, round: u64) {
    // The name of a new operation is stored in the history.
    assert_eq!(scope_begin(&format!("meanwhile {round}"), 1), BFC_OK);
    pool.put(pool.get(700));
    assert_eq!(bfc_scope_end(), BFC_OK);
    let other = Pool::host(MIB, |_| {});
    other.put(other.get(300));
    // SAFETY: a NUL-terminated string.
    assert_eq!(unsafe { bfc_history_mark(c"meanwhile".as_ptr()) }, BFC_OK);
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: the status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// The last event is copied last. So a thread that finds its place empty has finished its work before the save ended.
#[test]
fn a_save_holds_up_neither_allocations_nor_marks_nor_forks() {
    const EVENTS: u64 = 1 << 20;
    let _alone = alone();
    let path = new_path("held-up");
    let name = c(&path);
    start(None, EVENTS);
    let pool = Pool::host(16 * MIB, |_| {});
    (0..EVENTS / 2).for_each(|_| pool.put(pool.get(700)));
    let is_overtaken = |round| {
        let file = loop {
            match fs::File::open(&path) {
                Ok(file) if file.metadata().expect("a file").len() > EVENTS * 64 => break file,
                _ => yield_now(),
            }
        };
        use_meanwhile(&pool, round);
        let mut last = [0; 64];
        let end = file.metadata().expect("a file").len();
        file.read_exact_at(&mut last, end - 64).expect("the file is that long");
        last == [0; 64]
    };
    let is_any_overtaken = (0..20).any(|round| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| is_overtaken(round));
            save(&name);
            let is_overtaken = other.join().expect("no panic");
            fs::remove_file(&path).expect("the history was saved");
            is_overtaken
        })
    });
    assert_eq!(bfc_history_stop(), BFC_OK);
    assert!(is_any_overtaken, "other threads wait for the save");
}
