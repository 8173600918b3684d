//! Plans as files of memory, and programs that follow them or not. Shared by the fuzz target (`fuzz/`) and `tests/plan.rs`.

#![allow(dead_code)] // each user has its own entry

use crate::common::*;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd, FromRawFd};

/// The text of a plan without its checksum. Entries without an offset have no place.
pub fn lines(bytes: u64, prologue: usize, entries: &[(u64, Option<u64>)]) -> String {
    let repeated = entries.len() - prologue;
    let mut text =
        format!("bfc-plan 1\nalignment 256\nbytes {bytes}\nprologue {prologue}\nrepeated {repeated}\n");
    for (size, offset) in entries {
        match offset {
            Some(offset) => writeln!(text, "{size} {offset}").expect("a string"),
            None => writeln!(text, "{size} -").expect("a string"),
        }
    }
    text
}

/// Adds the line with the checksum.
pub fn with_checksum(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut text = text.as_ref().to_vec();
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    let sum = text.iter().fold(1_469_598_103_934_665_603, step);
    text.extend_from_slice(format!("checksum {sum:016x}\n").as_bytes());
    text
}

/// A plan with its checksum.
pub fn plan(bytes: u64, prologue: usize, entries: &[(u64, Option<u64>)]) -> Vec<u8> {
    with_checksum(lines(bytes, prologue, entries))
}

/// A memory file, which is removed with this value.
pub struct InMemory {
    _file: File,
    pub path: CString,
}

impl InMemory {
    pub fn with(content: &[u8]) -> InMemory {
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::memfd_create(c"plan".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is new and owned here.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(content).expect("room");
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero");
        InMemory { _file: file, path }
    }
}

/// Creates an allocator with a text as its plan and runs a program on it, both from bytes. Leaves nothing behind.
///
/// # Panics
/// If the library does anything that it must not do.
pub fn run(program: &[u8], device: i32) {
    let mut bytes = program.iter().copied();
    let mut next = || bytes.next().unwrap_or(0);
    let (kind, flags, length) = (next(), next(), usize::from(next()));
    let rest: Vec<u8> = std::iter::from_fn(|| bytes.next()).collect();
    let (head, steps) = rest.split_at(length.min(rest.len()));
    let content = match kind % 4 {
        // Any text, and any text after a valid head.
        0 => head.to_vec(),
        1 => [b"bfc-plan 1\nalignment 256\nbytes 65536\nprologue 1\nrepeated 1\n", head].concat(),
        // The same with a valid checksum.
        2 => with_checksum(
            [b"bfc-plan 1\nalignment 256\nbytes 65536\nprologue 0\nrepeated 2\n", head].concat(),
        ),
        _ => entries_of(head),
    };
    let file = InMemory::with(&content);
    let mut options = options();
    (options.backend, options.memory_limit, options.plan) = (BFC_BACKEND_HOST, 1 << 17, file.path.as_ptr());
    options.flags = [0, BFC_ALLOW_GROWTH, BFC_SPLIT_ALWAYS, BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION]
        [usize::from(flags % 4)];
    let status = create(device, Some(&options));
    if status != BFC_OK {
        assert_eq!(status, BFC_ERROR_INVALID_ARGUMENT);
        assert!(last_error().starts_with("the plan /proc/self/fd/"), "{}", last_error());
        return;
    }
    follow(device, steps);
    assert_eq!(bfc_destroy_forced(device), BFC_OK);
}

/// A well-formed plan of 3 bytes per entry. Its places may overlap.
fn entries_of(bytes: &[u8]) -> Vec<u8> {
    let entry = |bytes: &[u8]| {
        let (size, offset) = (256 * (1 + u64::from(bytes[0] % 32)), 256 * u64::from(bytes[1]));
        (size, (!bytes[2].is_multiple_of(8) && offset + size <= 1 << 16).then_some(offset))
    };
    let mut entries: Vec<_> = bytes.chunks_exact(3).map(entry).collect();
    if entries.is_empty() {
        entries.push((256, Some(0)));
    }
    let prologue = bytes.first().map_or(0, |&byte| usize::from(byte) % (entries.len() + 1));
    plan(1 << 16, prologue, &entries)
}

/// Allocates and frees as selected by bytes. No two live allocations overlap, and the invariants hold.
fn follow(device: i32, steps: &[u8]) {
    let mut live: Vec<(u64, u64)> = Vec::new();
    for step in steps.chunks_exact(2) {
        if step[0] >= 200 && !live.is_empty() {
            let (address, _) = live.swap_remove(usize::from(step[1]) % live.len());
            assert_eq!(free(device, address), BFC_OK);
            continue;
        }
        let size = 256 * (1 + u64::from(step[0] % 32));
        let stream = if step[1] == 255 { 7 } else { 0 };
        let got = match step[1] % 4 {
            0 => alloc_aligned(device, size as usize, 1024),
            1 => alloc_async(device, size as usize, stream),
            _ => alloc(device, size as usize),
        };
        if let Ok(address) = got {
            assert!(live.iter().all(|&(other, bytes)| address + size <= other || other + bytes <= address));
            live.push((address, size));
        }
        assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
    }
    let mut out = stats();
    // SAFETY: a whole struct, writable.
    assert_eq!(unsafe { bfc_stats(device, &mut out) }, BFC_OK);
    assert!(out.num_planned_allocs <= out.num_allocs);
}
