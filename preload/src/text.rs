//! Text without memory: lines of a limited length, written with one call.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Write};

/// As much as a line may have; what is longer is cut.
const LENGTH: usize = 1024;

pub(crate) struct Line {
    bytes: [u8; LENGTH],
    length: usize,
}

impl Line {
    pub(crate) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut line = Line { bytes: [0; LENGTH], length: 0 };
        // It never fails: what has no room is cut.
        let _ = line.write_fmt(text);
        line
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // The last place is the line's end.
            if self.length + 1 < LENGTH
                && let Some(place) = self.bytes.get_mut(self.length)
            {
                *place = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// Writes all of it, as far as it goes: there is nobody to tell if it does not.
pub(crate) fn write(file: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the bytes are valid for reading.
        let written = unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => bytes = bytes.get(written..).unwrap_or_default(),
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

/// Appends a line to a file, or to standard error if it is called `-`.
pub(crate) fn append(path: &CStr, line: fmt::Arguments<'_>) {
    let mut line = Line::new(line);
    if let Some(place) = line.bytes.get_mut(line.length) {
        *place = b'\n';
        line.length += 1;
    }
    if path == c"-" {
        write(libc::STDERR_FILENO, line.bytes());
        return;
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated.
    let file = unsafe { libc::open(path.as_ptr(), flags, 0o644 as libc::c_uint) };
    if file >= 0 {
        write(file, line.bytes());
        // SAFETY: opened above, and nobody else has it.
        unsafe { libc::close(file) };
    }
}

pub(crate) fn process() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

/// A number of bytes as a person reads it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        let power = (self.0.max(1).ilog2() / 10).min(4);
        let unit = power.checked_sub(1).and_then(|place| units.get(place as usize));
        match unit {
            None => write!(f, "{} bytes", self.0),
            Some(unit) => write!(f, "{:.1} {unit}", self.0 as f64 / (1_u64 << (10 * power)) as f64),
        }
    }
}
