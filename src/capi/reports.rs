//! Reports, messages and other text.

use super::create::given;
use super::ffi_result::status;
use super::types::{bfc_log_callback_t, bfc_options_t, bfc_status_t};
use crate::device::Device;
use crate::error::{ErrorKind, fail, status_text, with_last_error};
use crate::{log, scope};
use std::ffi::{CStr, c_char, c_void};
use std::fmt;

/// A caller's buffer. It keeps the text that fits and counts the full length.
struct Buffer {
    place: *mut c_char,
    capacity: usize,
    length: usize,
}

impl Buffer {
    /// Terminates the text with a NUL, for which `write_str` left room.
    fn finish(self) -> usize {
        if self.capacity != 0 {
            let end = self.place.wrapping_add(self.length.min(self.capacity - 1));
            // SAFETY: within the capacity guaranteed by the caller.
            unsafe { end.write(0) };
        }
        self.length
    }
}

impl fmt::Write for Buffer {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.capacity.saturating_sub(1).saturating_sub(self.length);
        let fits = part.len().min(room);
        let end = self.place.wrapping_add(self.length);
        // SAFETY: `fits` bytes fit after the text so far, and the caller's buffer overlaps no text of the library.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr().cast(), end, fits) };
        self.length += part.len();
        Ok(())
    }
}

/// # Safety
/// `buf` is valid for writing `capacity` bytes. `out_length` is NULL or valid for writing.
unsafe fn text(
    buf: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    write: impl FnOnce(&mut dyn fmt::Write) -> Result<(), ErrorKind>,
) -> bfc_status_t {
    let mut buffer = Buffer { place: buf, capacity: if buf.is_null() { 0 } else { capacity }, length: 0 };
    if out_length.is_null() {
        buffer.finish();
        return fail!(ErrorKind::InvalidArgument, "out_length is NULL").code();
    }
    if buf.is_null() && capacity != 0 {
        // SAFETY: not NULL, so valid by this function's contract.
        unsafe { out_length.write(0) };
        return fail!(
            ErrorKind::InvalidArgument,
            "buf is NULL and capacity is {capacity}: to learn the length, pass capacity 0"
        )
        .code();
    }
    let answer = status(|| write(&mut buffer));
    if answer != 0 {
        buffer.length = 0;
    }
    let length = buffer.finish();
    // SAFETY: not NULL, so valid by this function's contract.
    unsafe { out_length.write(length) };
    answer
}

/// Writes the pool as one line of 100 columns: '*' used, 'x' slack inside a chunk, '_' free. Modelled on TensorFlow's
/// RenderOccupancy.
///
/// A report describes one moment. The allocator is locked while its state is copied, and unlocked while the text is
/// written. Without host memory for the copy, the text is written with the allocator locked.
///
/// @param buf         Receives at most `capacity` bytes including a terminating NUL. NULL if `capacity` is 0.
/// @param out_length  Receives the full length in bytes without the NUL, or 0 on failure.
/// @return BFC_OK, even if the text was truncated; and the errors of every call.
///
/// # Safety
/// `buf` is valid for writing `capacity` bytes. `out_length` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_occupancy(
    device: i32,
    buf: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { text(buf, capacity, out_length, |out| Device::new(device)?.write_occupancy(out)) }
}

/// Writes the memory map as JSON: regions, chunks, bins, statistics. The schema is in docs/memory-map.md. Parameters,
/// errors and consistency are those of bfc_occupancy. The pool may change between a call for the length and a call for
/// the text, so compare the lengths.
///
/// # Safety
/// As bfc_occupancy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_memory_map(
    device: i32,
    buf: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { text(buf, capacity, out_length, |out| Device::new(device)?.write_memory_map(out)) }
}

/// Writes the out-of-memory report: memory held, used and free, and fragmentation, by bin and by operation. Parameters,
/// errors and consistency are those of bfc_occupancy.
///
/// With BFC_REPORT_ON_FAILURE=1 in the environment at creation, a failing request writes this report and its cause to
/// the log, at most once in ten seconds.
///
/// # Safety
/// As bfc_occupancy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_report(
    device: i32,
    buf: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { text(buf, capacity, out_length, |out| Device::new(device)?.write_report(out)) }
}

/// Writes the statistics of all allocators of the process as OpenMetrics 1.0 text in UTF-8, which Prometheus reads.
/// docs/metrics.md lists the metrics. Each sample of an allocator has the labels device, name and backend. The samples of
/// one allocator describe one moment, and those of different allocators different moments. No allocator is locked while
/// the text is written. Poisoned allocators are only counted. Allocators that the child of a fork cannot use are left
/// out.
///
/// The text may change between a call for the length and a call for the text, so compare the lengths.
///
/// Thread safety: may be called from any thread at any time. A failure changes nothing.
///
/// @param buf         Receives at most `capacity` bytes including a terminating NUL. NULL if `capacity` is 0.
/// @param out_length  Receives the full length in bytes without the NUL, or 0 on failure.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT: a NULL pointer; BFC_ERROR_OUT_OF_MEMORY: no host memory for the copies;
///         BFC_ERROR_BUSY: called from a callback of an allocator; BFC_ERROR_INTERNAL.
///
/// # Safety
/// As bfc_occupancy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_metrics(
    buf: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { text(buf, capacity, out_length, |out| Device::write_metrics(out)) }
}

/// Writes the settings that bfc_create would use, as JSON, and the effect of each BFC_ variable of the environment. The
/// schema is in docs/environment.md. Nothing is created and no driver is called. The result does not depend on whether
/// the device has an allocator.
///
/// @param device      An ordinal, 0 to 1023. It determines the backend if the options and the environment name none.
/// @param options     As for bfc_create; NULL is allowed.
/// @param buf         Receives at most `capacity` bytes including a terminating NUL. NULL if `capacity` is 0.
/// @param out_length  Receives the full length in bytes without the NUL, or 0 on failure.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT, BFC_ERROR_BACKEND_UNAVAILABLE (ordinal 257 without a backend),
///         BFC_ERROR_OUT_OF_MEMORY (host memory), BFC_ERROR_INTERNAL.
///
/// # Safety
/// `options` is NULL or points to a struct of `struct_size` bytes whose pointers are valid. `buf` is valid for writing
/// `capacity` bytes. `out_length` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_resolve_options(
    device: i32,
    options: *const bfc_options_t,
    buf: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t {
    let write = |out: &mut dyn fmt::Write| {
        let device = Device::new(device)?;
        // SAFETY: by this function's contract.
        device.write_resolved_options(unsafe { given(options)? }.as_ref(), out)
    };
    // SAFETY: by this function's contract.
    unsafe { text(buf, capacity, out_length, write) }
}

/// Sets the operation that this thread allocates for, until the matching bfc_scope_end. Reports then show the memory of
/// each operation, as TensorFlow's debug build does.
///
/// Scopes nest at most 8 deep. Reports show the names of all open scopes, the outermost first, separated by slashes
/// ("outer/inner"), and the step of the innermost.
///
/// @param operation  UTF-8, copied. Names are cut to 119 bytes. Must not be NULL.
/// @param step       The caller's own count, for example of training steps.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT (NULL, not UTF-8, or nested too deep); BFC_ERROR_OUT_OF_MEMORY (host
///         memory); BFC_ERROR_BUSY in a signal handler that interrupted bfc_scope_begin or bfc_scope_end of its thread.
///
/// # Safety
/// `operation` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_scope_begin(operation: *const c_char, step: u64) -> bfc_status_t {
    status(|| {
        if operation.is_null() {
            return Err(fail!(ErrorKind::InvalidArgument, "the operation's name is NULL"));
        }
        // SAFETY: not NULL, so NUL-terminated by this function's contract.
        let name = unsafe { CStr::from_ptr(operation) };
        let name = name
            .to_str()
            .map_err(|_| fail!(ErrorKind::InvalidArgument, "the operation's name is not UTF-8"))?;
        scope::begin(name, step)
    })
}

/// Ends the innermost scope of this thread.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if there is none; BFC_ERROR_BUSY as for bfc_scope_begin.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_scope_end() -> bfc_status_t {
    status(scope::end)
}

/// Sends the library's messages to a function instead of the standard error stream. The function receives warnings and
/// errors, unless BFC_LOG=error|warn|info|debug sets another level. NULL removes it. Without a callback nothing is
/// printed unless BFC_LOG is set.
///
/// @param user_data  Passed to the function. It must stay valid until another callback is set and other threads have
///                   returned from calls of the library that were in progress then.
/// @return BFC_OK; BFC_ERROR_BUSY in a signal handler that interrupted a call of its thread.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_set_log_callback(callback: bfc_log_callback_t, user_data: *mut c_void) -> bfc_status_t {
    status(|| log::set_callback(callback, user_data))
}

/// Returns the static text of a status. Never NULL, even for an unknown number.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_status_string(status: bfc_status_t) -> *const c_char {
    status_text(status).as_ptr()
}

/// Writes the error message of this thread's last failure. A success does not change it.
///
/// @param buf  Receives at most `capacity` bytes including a terminating NUL. May be NULL, and then nothing is written.
/// @return The full length in bytes without the NUL, or 0 if nothing has failed in this thread yet.
///
/// # Safety
/// `buf` is NULL or valid for writing `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_last_error(buf: *mut c_char, capacity: usize) -> usize {
    let capacity = if buf.is_null() { 0 } else { capacity };
    let mut buffer = Buffer { place: buf, capacity, length: 0 };
    with_last_error(|words| {
        let _ = fmt::Write::write_str(&mut buffer, words);
    });
    buffer.finish()
}

/// Returns the library's version, "major.minor.patch".
#[unsafe(no_mangle)]
pub extern "C" fn bfc_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
