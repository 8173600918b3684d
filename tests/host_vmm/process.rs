//! Interactions of the range and its memory file with the rest of the process: descriptors, addresses, children.

use super::common::child::{expect_success, is_child};
use super::common::granules::GRANULE;
use super::common::*;
use super::{Filled, vmm};

/// In a forked child the memory does not exist, and every call reports this.
#[test]
fn a_forked_child_has_none_of_it() {
    const NAME: &str = "process::a_forked_child_has_none_of_it";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let pool = vmm(64 * MIB, |_| {});
    let filled = Filled::fill(pool.get(MIB), MIB, 3);
    let (device, address) = (pool.device(), filled.address);
    // SAFETY: the child calls this library and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let lost = BFC_ERROR_SHUTTING_DOWN;
        let calls = [
            alloc(device, 1).err() == Some(lost),
            free(device, address) == lost,
            bfc_check(device) == lost,
            bfc_destroy_forced(device) == lost,
            // Not mapped, as the system reports for a page.
            // SAFETY: the address is only queried.
            unsafe { libc::mincore(pointer(address & !4095), 4096, [0u8].as_mut_ptr()) } != 0,
        ];
        let answer = calls.iter().position(|&fine| !fine).map_or(0, |place| place as i32 + 1);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(answer) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "of the calls in the child: {}", status >> 8);
    filled.verify();
    pool.put(address);
    assert_eq!(pool.trim(0), GRANULE);
    pool.check();
}

/// A program that closes all descriptors loses the file: an error, and neither a crash nor another file's bytes.
#[test]
fn a_closed_descriptor_is_an_error() {
    const NAME: &str = "process::a_closed_descriptor_is_an_error";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let pool = vmm(64 * MIB, |_| {});
    let filled = Filled::fill(pool.get(MIB), MIB, 3);
    let ours = std::fs::read_dir("/proc/self/fd").expect("readable").filter_map(|entry| {
        let path = entry.expect("an entry").path();
        let target = std::fs::read_link(&path).ok()?;
        target
            .to_string_lossy()
            .contains("libbfc")
            .then(|| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
    });
    let ours: Vec<i32> = ours.collect();
    assert_eq!(ours.len(), 1);
    // SAFETY: the descriptor that was found. Closing it is the purpose of the test.
    unsafe { libc::close(ours[0]) };
    // SAFETY: a path with a NUL. It gets the number that was free.
    let other = unsafe { libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY) };
    assert_eq!(other, ours[0]);
    assert_eq!(pool.alloc(32 * MIB), Err(BFC_ERROR_BACKEND_FAILED));
    assert!(last_error().contains("descriptor"), "{}", last_error());
    filled.verify();
    pool.check();
    pool.put(filled.address);
    drop(pool);
    // SAFETY: queries a descriptor.
    assert!(unsafe { libc::fcntl(other, libc::F_GETFD) } >= 0, "the other file is still open");
}

/// Addresses are scarce here: the range is as large as possible, and its end is an error.
#[test]
fn few_addresses_are_enough_for_a_small_range() {
    const NAME: &str = "process::few_addresses_are_enough_for_a_small_range";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
    // SAFETY: a valid struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let pool = vmm(64 * GIB, |_| {});
    let address = pool.get(GIB);
    assert_eq!(pool.alloc(3 * GIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    Filled::fill(address, GIB, 1).verify();
    pool.check();
}

/// Many allocators leave addresses for the program, and each has as many as its limit.
#[test]
fn many_ranges_leave_addresses_to_the_program() {
    const NAME: &str = "process::many_ranges_leave_addresses_to_the_program";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    const ALLOCATORS: usize = 64;
    let limit = 24 * GIB;
    let range_of = |pool: &Pool| {
        pool.limit(u64::MAX);
        pool.stats().bytes_limit
    };
    let alone = range_of(&vmm(limit, |_| {}));
    let pools: Vec<Pool> = (0..ALLOCATORS).map(|_| vmm(limit, |_| {})).collect();
    pools.iter().for_each(|pool| pool.put(pool.get(MIB)));
    let (bytes, flags) = (48usize << 40, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: new addresses, which are not accessed.
    let more = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(more, libc::MAP_FAILED);
    let ranges: Vec<u64> = pools.iter().map(range_of).collect();
    assert!(ranges.iter().all(|&range| range >= limit), "{ranges:?}");
    drop(pools);
    assert_eq!(range_of(&vmm(limit, |_| {})), alone, "those that ended do not count");
}

#[test]
fn what_a_program_prints_to_a_closed_stream_is_not_written_into_its_memory() {
    const NAME: &str = "process::what_a_program_prints_to_a_closed_stream_is_not_written_into_its_memory";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    // SAFETY: nothing else uses the standard streams.
    (0..3).for_each(|stream| _ = unsafe { libc::close(stream) });
    let pool = vmm(8 * MIB, |_| {});
    let filled = Filled::fill(pool.get(MIB), MIB, 1);
    for stream in 0..3 {
        // SAFETY: the text is that long.
        unsafe { libc::write(stream, c"printed".as_ptr().cast(), 7) };
    }
    let is_whole = std::panic::catch_unwind(|| filled.verify()).is_ok();
    // SAFETY: ends the process, whose harness cannot print.
    unsafe { libc::_exit(i32::from(!is_whole)) };
}

#[test]
fn the_memory_file_cannot_be_made_shorter() {
    const NAME: &str = "process::the_memory_file_cannot_be_made_shorter";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let pool = vmm(8 * MIB, |_| {});
    let filled = Filled::fill(pool.get(MIB), MIB, 1);
    let mut cut = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("/proc") {
        let path = entry.expect("an entry").path();
        let is_ours = std::fs::read_link(&path).is_ok_and(|to| to.starts_with("/memfd:libbfc (deleted)"));
        if is_ours {
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the memory file");
            assert_eq!(
                file.set_len(0).map_err(|error| error.kind()),
                Err(std::io::ErrorKind::PermissionDenied)
            );
            cut += 1;
        }
    }
    assert_ne!(cut, 0);
    filled.verify();
}
