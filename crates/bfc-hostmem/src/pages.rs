//! Pages of the system: their sizes, and advice to the kernel about those of a range.

/// The bytes of a page.
pub const PAGE: usize = 4096;

/// The size of a huge page on x86-64, and on AArch64 with pages of 4 KiB.
pub const HUGE_PAGE: usize = 2 << 20;

/// Advises the kernel to back memory with huge pages, or with small ones only. A refusal is harmless.
pub fn advise(base: u64, bytes: u64, huge: bool) {
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: the advice changes no contents, whatever is mapped there.
    unsafe { libc::madvise(base as *mut libc::c_void, bytes as usize, advice) };
}

/// Makes the pages of a range resident, for writing. Their contents stay, even if another thread writes to them
/// meanwhile. Returns false if the system does not do this: before Linux 5.14, and where there is no memory.
pub fn populate(base: u64, bytes: u64) -> bool {
    let page = PAGE as u64;
    let first = base / page * page;
    let length = (base + bytes).div_ceil(page) * page - first;
    // SAFETY: the advice changes no contents, whatever is mapped there.
    let refused =
        unsafe { libc::madvise(first as *mut libc::c_void, length as usize, libc::MADV_POPULATE_WRITE) };
    refused == 0
}

/// Returns the whole pages of a range to the system. They read as zero afterwards. The result is their start and
/// their size in bytes, or `None` if there are none, or if the system refuses.
///
/// # Safety
/// The range is private anonymous memory, and nothing uses it.
pub unsafe fn discard(base: u64, bytes: u64) -> Option<(u64, u64)> {
    let page = PAGE as u64;
    let (first, last) = (base.checked_next_multiple_of(page)?, base.checked_add(bytes)? / page * page);
    let length = last.checked_sub(first).filter(|&length| length != 0)?;
    // SAFETY: guaranteed by the caller, whose range contains this one.
    let refused = unsafe { libc::madvise(first as *mut libc::c_void, length as usize, libc::MADV_DONTNEED) };
    (refused == 0).then_some((first, length))
}
