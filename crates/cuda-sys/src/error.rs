//! Errors that occur before the driver is called, with their messages.

use crate::{CUDA_ERROR_STUB_LIBRARY, CUresult};
use std::ffi::{CStr, c_int};
use std::fmt;

/// The driver, or one of its functions, is missing. The message says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The C library's own `dlsym` was not found, and no other is used.
    NoLinker,
    /// `libcuda.so.1` cannot be opened; with the dynamic linker's message.
    NoDriver(Words),
    /// The library opened as `libcuda.so.1` lacks a function that every driver has.
    NotADriver {
        /// The missing symbol.
        symbol: &'static str,
    },
    /// It does not report its version, like the toolkit's stub.
    NoVersion {
        /// The result of `cuDriverGetVersion`.
        code: CUresult,
    },
    /// The driver lacks a function.
    Missing(Missing),
}

/// A function that the driver lacks. Small, because each function's look-up returns it, also on threads with small stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its symbol.
    pub symbol: &'static str,
    /// The CUDA version that introduced it, as 1000 times the major and 10 times the minor number.
    pub since: c_int,
    /// The CUDA version of the installed driver.
    pub driver: c_int,
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Self {
        Error::Missing(missing)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoLinker => f.write_str(
                "the C library's own dlsym was not found (neither GLIBC_2.34 nor GLIBC_2.17 nor GLIBC_2.2.5): \
                 the CUDA driver is loaded with glibc only",
            ),
            Error::NoDriver(words) => write!(
                f,
                "the NVIDIA driver cannot be loaded; the linker says: {}; install the driver, start the container with its GPUs \
                 (--gpus all), or name the folder of libcuda.so.1 in LD_LIBRARY_PATH",
                words.as_str()
            ),
            Error::NotADriver { symbol } => write!(
                f,
                "the libcuda.so.1 that was found has no {symbol}, which every NVIDIA driver has: it is broken or \
                 a stand-in; see which one is loaded with LD_DEBUG=libs"
            ),
            Error::NoVersion { code: CUDA_ERROR_STUB_LIBRARY } => f.write_str(
                "the libcuda.so.1 that was found is the toolkit's stub and no driver: cuDriverGetVersion answers \
                 CUDA_ERROR_STUB_LIBRARY (34); see which one is loaded with LD_DEBUG=libs",
            ),
            Error::NoVersion { code } => write!(
                f,
                "the libcuda.so.1 that was found does not say which version it is: cuDriverGetVersion answers {code}"
            ),
            Error::Missing(missing) => missing.fmt(f),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { symbol, since, driver } = *self;
        let (there, needed) = (Version(driver), Version(since));
        if driver < since {
            return write!(
                f,
                "the NVIDIA driver is too old: it supports CUDA {there}, and {symbol} needs CUDA {needed}; install a newer \
                 driver"
            );
        }
        write!(
            f,
            "the NVIDIA driver says that it supports CUDA {there} and has no {symbol}, which came with CUDA {needed}: \
             its libcuda.so.1 is broken or a stand-in"
        )
    }
}

impl std::error::Error for Error {}

/// 12090 is 12.9.
struct Version(c_int);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

const CAPACITY: usize = 111;

/// A short text in a fixed buffer, because there may be no memory for another. Longer text is truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Words {
    bytes: [u8; CAPACITY],
    length: u8,
}

impl Words {
    pub(crate) fn new(text: &CStr) -> Self {
        let text = text.to_bytes();
        let length = text.len().min(CAPACITY);
        let mut bytes = [0; CAPACITY];
        bytes[..length].copy_from_slice(&text[..length]);
        Words { bytes, length: length as u8 }
    }

    /// Returns the text, as far as it is UTF-8.
    pub fn as_str(&self) -> &str {
        let text = &self.bytes[..usize::from(self.length)];
        str::from_utf8(text).unwrap_or_else(|error| {
            // Everything before the first invalid byte is valid.
            str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default()
        })
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_function_says_which_driver_is_needed() {
        let old = Missing { symbol: "cuMemCreate", since: 10020, driver: 9020 }.to_string();
        assert!(old.contains("supports CUDA 9.2, and cuMemCreate needs CUDA 10.2; install a newer"), "{old}");
        let broken = Missing { symbol: "cuMemCreate", since: 10020, driver: 13050 }.to_string();
        assert!(broken.contains("CUDA 13.5 and has no cuMemCreate, which came with CUDA 10.2"), "{broken}");
    }

    #[test]
    fn words_are_cut_at_a_character() {
        let long = std::ffi::CString::new("ä".repeat(100)).unwrap();
        assert_eq!(Words::new(&long).as_str(), "ä".repeat(CAPACITY / 2));
        assert_eq!(Words::new(c"short").as_str(), "short");
    }
}
