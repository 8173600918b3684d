//! Writes a pickle of protocol 4 piece by piece, so that a large one needs no memory.
//!
//! PyTorch's memory viewer has its own reader. It supports the opcodes used here, integers of at most 8 bytes, and
//! lists only in pieces, because it spreads each piece over the stack of a JavaScript call.

use std::collections::HashMap;
use std::io::{self, Write};

/// How many items of a list are appended at once, as Python's own pickler does.
const BATCH: u32 = 1000;

/// Writes the values of one pickle.
pub struct Pickler<W: Write> {
    out: W,
    /// The numbers of the memo under which texts were stored.
    texts: HashMap<&'static str, u32>,
    memoized: u32,
}

/// A list that is being written.
#[derive(Default)]
pub struct List {
    pending: u32,
}

impl<W: Write> Pickler<W> {
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[0x80, 4])?;
        Ok(Pickler { out, texts: HashMap::new(), memoized: 0 })
    }

    /// Ends the pickle, after one value.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b".")
    }

    pub fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"}(")
    }

    /// Ends a dictionary with at least one key.
    pub fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(b"u")
    }

    pub fn begin_list(&mut self) -> io::Result<List> {
        self.out.write_all(b"]")?;
        Ok(List::default())
    }

    /// Goes before each item of a list.
    pub fn item(&mut self, list: &mut List) -> io::Result<()> {
        if list.pending == BATCH {
            self.out.write_all(b"e")?;
            list.pending = 0;
        }
        if list.pending == 0 {
            self.out.write_all(b"(")?;
        }
        list.pending += 1;
        Ok(())
    }

    pub fn end_list(&mut self, list: &List) -> io::Result<()> {
        if list.pending == 0 { Ok(()) } else { self.out.write_all(b"e") }
    }

    /// Makes a tuple of the last two values.
    pub fn pair(&mut self) -> io::Result<()> {
        self.out.write_all(&[0x86])
    }

    pub fn bool(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    pub fn int(&mut self, value: i64) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.out.write_all(&[b'K', byte]);
        }
        if let Ok(word) = i32::try_from(value) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&word.to_le_bytes());
        }
        self.out.write_all(&[0x8a, 8])?;
        self.out.write_all(&value.to_le_bytes())
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        match u8::try_from(text.len()) {
            Ok(bytes) => self.out.write_all(&[0x8c, bytes])?,
            Err(_) => {
                let bytes = u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
                self.out.write_all(b"X")?;
                self.out.write_all(&bytes.to_le_bytes())?;
            }
        }
        self.out.write_all(text.as_bytes())
    }

    /// Writes a text that occurs often. The file contains it once.
    pub fn word(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(&number) = self.texts.get(text) {
            return self.recall(number);
        }
        self.text(text)?;
        let number = self.memoize()?;
        self.texts.insert(text, number);
        Ok(())
    }

    /// Stores the last value, which may be any but an unfinished dictionary, and returns its number.
    pub fn memoize(&mut self) -> io::Result<u32> {
        let number = self.memoized;
        self.memoized += 1;
        match u8::try_from(number) {
            Ok(byte) => self.out.write_all(&[b'q', byte])?,
            Err(_) => {
                self.out.write_all(b"r")?;
                self.out.write_all(&number.to_le_bytes())?;
            }
        }
        Ok(number)
    }

    /// Writes a value that was stored.
    pub fn recall(&mut self, number: u32) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(number) {
            return self.out.write_all(&[b'h', byte]);
        }
        self.out.write_all(b"j")?;
        self.out.write_all(&number.to_le_bytes())
    }
}
