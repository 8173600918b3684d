//! Reads the file of counters, which may be written at the same time, truncated, damaged, or something else.

use std::collections::TryReserveError;
use std::io::{self, Read};

use bfc_formats::counters::{MAGIC, Record};

/// The size of a record.
pub const BYTES: usize = size_of::<Record>();

/// The fields that begin a record of any version.
const FAMILY: &[u8] = b"libbfc counters ";

/// Why a file is not read, or not to its end.
#[derive(Debug)]
pub enum Malformed {
    /// The system refuses to read it.
    Unreadable(io::Error),
    /// It has more records than memory has room for.
    TooLarge(TryReserveError),
    /// A record is of another version of libbfc.
    OtherVersion,
    /// It is something else.
    OtherFile,
    /// The record with this number, from 1, is damaged or incomplete.
    Damaged(usize),
}

/// Returns the records up to the first damaged one, and what is wrong with it.
pub fn read(mut file: impl Read) -> Result<(Vec<Record>, Option<Malformed>), Malformed> {
    let mut records = Vec::new();
    loop {
        let mut bytes = Vec::with_capacity(BYTES);
        file.by_ref().take(BYTES as u64).read_to_end(&mut bytes).map_err(Malformed::Unreadable)?;
        if bytes.is_empty() {
            return Ok((records, None));
        }
        if let Err(damage) = check(&bytes, records.len() + 1) {
            return Ok((records, Some(damage)));
        }
        records.try_reserve(1).map_err(Malformed::TooLarge)?;
        // SAFETY: as many bytes as it has, and any are a record.
        records.push(unsafe { bytes.as_ptr().cast::<Record>().read_unaligned() });
    }
}

/// Fails unless these bytes are a record. `number` is its place in the file, from 1.
fn check(bytes: &[u8], number: usize) -> Result<(), Malformed> {
    if bytes.starts_with(FAMILY) && !bytes.starts_with(&MAGIC) {
        return Err(Malformed::OtherVersion);
    }
    if !bytes.starts_with(&MAGIC) && number == 1 {
        return Err(Malformed::OtherFile);
    }
    if !bytes.starts_with(&MAGIC) || bytes.len() < BYTES {
        return Err(Malformed::Damaged(number));
    }
    Ok(())
}
