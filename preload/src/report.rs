//! The summary at the end of a process: what the pools did for it.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::Pool;
use crate::text::{self, Bytes, process};
use crate::{pinned, settings};

const REPORT: &CStr = c"BFC_PRELOAD_REPORT";

/// Appends the summary to the file that the user named, if this process allocated.
pub(crate) fn write() {
    let Some(path) = settings::variable(REPORT) else { return };
    for pool in Pool::of_devices().filter(|pool| pool.is_own()) {
        describe(path, pool, format_args!("device {}", pool.ordinal()));
    }
    if pinned::pool().is_own() {
        describe(path, pinned::pool(), format_args!("pinned host memory"));
    }
}

fn describe(path: &CStr, pool: Pool, what: std::fmt::Arguments<'_>) {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let state = pool.state;
    let (served, freed) = (of(&state.served), of(&state.freed));
    if served == 0 {
        return;
    }
    let (obtained, returned) = (of(&state.obtained), of(&state.returned));
    let synchronizations = of(&state.synchronizations);
    let calls = served + freed;
    let made = obtained + returned + synchronizations;
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    text::append(path, format_args!("libbfc: process {}, {what}", process()));
    text::append(path, format_args!("  served       {served} allocations, {freed} frees"));
    let saved = calls.saturating_sub(made);
    text::append(
        path,
        format_args!(
            "  driver calls {saved} saved of {calls} ({:.1} %): {made} made, for {obtained} regions obtained, \
             {returned} returned, {synchronizations} synchronisations",
            percent(saved, calls)
        ),
    );
    // Of a poisoned pool there is no more to say.
    let Some(stats) = pool.stats() else { return };
    text::append(
        path,
        format_args!(
            "  peaks        {} requested, {} in use, {} held from the driver",
            Bytes(stats.peak_bytes_requested),
            Bytes(stats.peak_bytes_in_use),
            Bytes(stats.peak_pool_bytes)
        ),
    );
    let waste = stats.peak_pool_bytes.saturating_sub(stats.peak_bytes_requested);
    text::append(
        path,
        format_args!(
            "  waste        {} ({:.1} % of what was held) at the peak; {} live now",
            Bytes(waste),
            percent(waste, stats.peak_pool_bytes),
            Bytes(stats.bytes_requested)
        ),
    );
}

/// Whether this process has a libcuda.so.1 in it.
pub(crate) fn is_driver_mapped() -> bool {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the linker's, for the time of the call.
        let name = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: not NULL, so a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libcuda.so") {
            // SAFETY: it was made from a bool below.
            unsafe { found.cast::<bool>().write(true) };
        }
        0
    }
    let mut found = false;
    // SAFETY: the function does as the linker wants, and the pointer is its own.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}
