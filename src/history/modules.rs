//! The modules whose code is mapped: the addresses of each, and its file. Addresses are resolved to names with these
//! files later, by `bfc report`.

use super::recording;
use crate::sys::mapped_path::{MOST_LINE, mapped_path};
use bfc_formats::history::layout::ModuleHead;
use std::ffi::{CStr, c_int, c_void};

/// Records the modules that are new since the last time. The dynamic loader's lock is held meanwhile, so that they stay.
#[inline(never)]
pub(super) fn refresh() {
    let mut is_first = true;
    // SAFETY: the function gets this argument, and nothing else uses it during the call.
    unsafe { libc::dl_iterate_phdr(Some(see), (&raw mut is_first).cast()) };
}

unsafe extern "C" fn see(info: *mut libc::dl_phdr_info, _size: usize, is_first: *mut c_void) -> c_int {
    // SAFETY: owned by the loader, and valid during this call.
    let info = unsafe { &*info };
    // SAFETY: this is the argument of `refresh`.
    let is_first = unsafe { &mut *is_first.cast::<bool>() };
    let is_done = *is_first && !recording::note_loads(info.dlpi_adds, info.dlpi_subs);
    *is_first = false;
    if is_done {
        return 1;
    }
    // SAFETY: the loader provides the address of the headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let build_id = build_id(info.dlpi_addr, headers);
    // SAFETY: NUL-terminated.
    let path = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
    {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
        let end = start.wrapping_add(header.p_memsz);
        let head = ModuleHead { start, end, bias: info.dlpi_addr, build_id_bytes: build_id.len() as u64 };
        match path.to_bytes() {
            // The program itself has no name here.
            b"" => recording::add_program_module(&head, build_id),
            path @ [b'/', ..] => recording::add_module(&head, build_id, path),
            path => add_by_mapping(&head, build_id, path),
        }
    }
    0
}

/// Records a module that was opened by a relative path. Without a file, which the kernel's own module lacks, it keeps
/// its name.
#[inline(never)]
fn add_by_mapping(head: &ModuleHead, build_id: &[u8], name: &[u8]) {
    let mut line = [0; MOST_LINE];
    recording::add_module(head, build_id, mapped_path(head.start, &mut line).unwrap_or(name));
}

/// The kind of a note, after the name "GNU".
const NT_GNU_BUILD_ID: u32 = 3;

/// Returns the build id in the notes of a module. Empty if it has none.
fn build_id(bias: u64, headers: &[libc::Elf64_Phdr]) -> &[u8] {
    let is_mapped = |note: &libc::Elf64_Phdr| {
        headers.iter().any(|header| {
            let end = header.p_vaddr.saturating_add(header.p_filesz);
            let is_readable = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0;
            is_readable && header.p_vaddr <= note.p_vaddr && note.p_vaddr.saturating_add(note.p_filesz) <= end
        })
    };
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE && is_mapped(header));
    notes
        .filter_map(|note| {
            let begin = bias.wrapping_add(note.p_vaddr) as *const u8;
            // SAFETY: a part of a mapped segment, which is not written, and stays as the loader is locked.
            id_in(unsafe { std::slice::from_raw_parts(begin, note.p_filesz as usize) })
        })
        .next()
        .unwrap_or_default()
}

fn id_in(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let number = |at: usize| notes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let (name, bytes, kind) = (number(0)? as usize, number(4)? as usize, number(8)?);
        let begin = 12 + name.next_multiple_of(4);
        let end = begin.checked_add(bytes)?;
        let contents = notes.get(begin..end)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(contents);
        }
        notes = notes.get(end.next_multiple_of(4)..)?;
    }
}
