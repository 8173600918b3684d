//! A child unknown to the C library: from a raw `clone` system call, so that no fork handler runs. It does not change
//! the files of its parent.

use crate::common::child::{expect_success, is_child};
use crate::common::*;
use crate::history::layout::Kind;
use bfc_formats::published::layout::{Header, PUBLISHING};
use std::ffi::CStr;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs `work` in such a child, which calls `exit` with its result.
fn in_raw_child(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: without a flag for shared memory the child has a copy of everything, on the same stack.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: a child that hangs is ended by it.
        unsafe { libc::alarm(20) };
        // A panic would unwind into the test's own thread, which the child has a copy of.
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
        // SAFETY: ends the child, after the handlers of the library.
        unsafe { libc::exit(answer) };
    }
    let mut status = -1;
    // SAFETY: the child is this process's own, and `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child as i32, &mut status, 0) }, child as i32);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

fn uses(device: i32) -> bool {
    (0..100).all(|step| alloc(device, 100 + step).is_ok_and(|address| free(device, address) == BFC_OK))
}

/// Returns the state in the header of a published file. `None` if there is none.
fn state_of(path: &Path) -> Option<u32> {
    let file = fs::read(path).ok()?;
    let at = offset_of!(Header, state);
    Some(u32::from_ne_bytes(file.get(at..at + 4)?.try_into().ok()?))
}

#[test]
fn the_parent_s_published_statistics_stay() {
    const NAME: &str = "the_parent_s_published_statistics_stay";
    if !is_child(NAME) {
        let folder = std::env::temp_dir().join(format!("libbfc-raw-clone-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("writable");
        let shown = folder.to_str().expect("UTF-8");
        expect_success(NAME, &[("BFC_PUBLISH", "1"), ("XDG_RUNTIME_DIR", shown)]);
        assert_eq!(
            fs::read_dir(folder.join("libbfc")).expect("a folder").count(),
            0,
            "both are removed at the end"
        );
        fs::remove_dir_all(folder).expect("a folder");
        return;
    }
    let (pool, new) = (Pool::host(GIB, |options| options.flags = BFC_ALLOW_GROWTH), fresh_device());
    let folder = Path::new(&std::env::var_os("XDG_RUNTIME_DIR").expect("set")).join("libbfc");
    let file_of = |process: u32| folder.join(process.to_string());
    let own = file_of(std::process::id());
    let begun = Instant::now();
    while state_of(&own) != Some(PUBLISHING) {
        assert!(begun.elapsed() < Duration::from_secs(30), "never published");
        std::thread::sleep(Duration::from_millis(5));
    }
    let device = pool.device();
    assert_eq!(in_raw_child(|| i32::from(!uses(device))), 0);
    assert_eq!(state_of(&own), Some(PUBLISHING), "the child has only inherited the allocator");
    let publishes_itself = || {
        let options = bfc_options_t { backend: BFC_BACKEND_HOST, memory_limit: GIB, ..options() };
        let is_served = create(new, Some(&options)) == BFC_OK && uses(new);
        i32::from(!is_served || state_of(&file_of(std::process::id())) != Some(PUBLISHING))
    };
    assert_eq!(in_raw_child(publishes_itself), 0);
    assert_eq!(state_of(&own), Some(PUBLISHING), "the child has removed its own file");
}

fn start(path: &CStr) -> Status {
    // SAFETY: a NUL-terminated string.
    unsafe { bfc_history_start(path.as_ptr(), 1 << 12) }
}

fn mark(text: &CStr) -> Status {
    // SAFETY: a NUL-terminated string.
    unsafe { bfc_history_mark(text.as_ptr()) }
}

/// The permitted operations of such a child on a history.
fn record_in_child(device: i32, own: &CStr) -> i32 {
    let of_parent = c"/proc/self/nonexistent";
    assert_eq!(scope_begin("child", 1), BFC_OK);
    match () {
        () if !uses(device) => 1,
        () if bfc_scope_end() != BFC_OK => 2,
        () if mark(c"child") != BFC_ERROR_INVALID_ARGUMENT => 3,
        // SAFETY: a NUL-terminated string.
        () if unsafe { bfc_history_save(of_parent.as_ptr()) } != BFC_ERROR_INVALID_ARGUMENT => 4,
        () if bfc_history_stop() != BFC_ERROR_INVALID_ARGUMENT => 5,
        () if start(own) != BFC_OK || !uses(device) || bfc_history_stop() != BFC_OK => 6,
        () => 0,
    }
}

#[test]
fn the_parent_s_history_has_nothing_of_the_child() {
    const NAME: &str = "the_parent_s_history_has_nothing_of_the_child";
    if !is_child(NAME) {
        // With backtraces, whose texts are in the file too.
        for stacks in ["", "native"] {
            expect_success(NAME, &[("BFC_HISTORY_STACKS", stacks)]);
        }
        return;
    }
    let (path, of_child) = (crate::history::new_path("raw-parent"), crate::history::new_path("raw-child"));
    assert_eq!(start(&crate::history::c(&path)), BFC_OK);
    let pool = Pool::host(GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let kept = pool.get(5000);
    let before = fs::read(&path).expect("a file");
    let name = crate::history::c(&of_child);
    assert_eq!(in_raw_child(|| record_in_child(pool.device(), &name)), 0, "the step that failed, from 1");
    assert!(before == fs::read(&path).expect("a file"), "the child has written into the file of its parent");
    assert_eq!(mark(c"parent"), BFC_OK);
    pool.put(kept);
    let kinds: Vec<_> = crate::history::stopped(&path).events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds.last(), Some(&Kind::Free), "the parent goes on");
    let events = crate::history::read(&of_child).events.len();
    assert!(events >= 200, "the child has recorded {events} events");
    fs::remove_file(of_child).expect("a file");
}
