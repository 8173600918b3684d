//! Text without heap memory, of limited length and written with one call, so that messages of several threads and
//! processes do not mix.

use os::terminal::Printable;
use os::{descriptors, files};
use std::ffi::{CStr, c_int};
use std::fmt::{self, Write};

/// The length of a line. Longer ones are truncated.
const LENGTH: usize = 1024;

/// A text without characters that control a terminal, of less than `LENGTH` bytes, whose last byte is kept for the end of a
/// line. It is filled in place, because returning it by value would put it in two frames at once, and threads may have
/// small stacks.
pub(crate) struct Text<const LENGTH: usize> {
    bytes: [u8; LENGTH],
    length: usize,
}

pub(crate) type Line = Text<LENGTH>;

/// Long enough for the number of a process.
pub(crate) type Number = Text<32>;

impl<const LENGTH: usize> Text<LENGTH> {
    pub(crate) const fn new() -> Self {
        Text { bytes: [0; LENGTH], length: 0 }
    }

    /// Appends a text and returns the whole.
    pub(crate) fn put(&mut self, text: fmt::Arguments<'_>) -> &[u8] {
        // This cannot fail, because text that does not fit is truncated.
        let _ = self.write_fmt(text);
        self.bytes()
    }

    /// Appends a text as one line, with newlines in it replaced.
    pub(crate) fn put_line(&mut self, text: fmt::Arguments<'_>) -> &[u8] {
        self.put(text);
        for byte in self.bytes.iter_mut().take(self.length).filter(|byte| **byte == b'\n') {
            *byte = b' ';
        }
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = b'\n';
            self.length += 1;
        }
        self.bytes()
    }

    /// Appends bytes. Bytes that exceed the length are dropped.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.length + 1 < LENGTH
                && let Some(place) = self.bytes.get_mut(self.length)
            {
                *place = byte;
                self.length += 1;
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl<const LENGTH: usize> Write for Text<LENGTH> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        Printable(text).parts().for_each(|part| self.push(part.as_bytes()));
        Ok(())
    }
}

/// Writes all bytes. Gives up on an error, which cannot be reported anywhere.
pub(crate) fn write(file: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match descriptors::write(file, bytes) {
            Ok(written @ 1..) => bytes = bytes.get(written..).unwrap_or_default(),
            _ => return,
        }
    }
}

/// Appends a line to a file, or to standard error if it is called `-`.
#[cold]
#[inline(never)]
pub(crate) fn append(path: &CStr, text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    let line = line.put_line(text);
    if path == c"-" {
        write(libc::STDERR_FILENO, line);
        return;
    }
    if let Ok(file) = files::open_to_append(path) {
        write(file.number(), line);
    }
}

/// Prints an error of the interposer itself on standard error.
pub(crate) fn print_error(what: fmt::Arguments<'_>) {
    append(c"-", format_args!("libbfc: {what}"));
}
