//! The file in which a process publishes its statistics, damaged: the reader of `bfc top` refuses it for a reason, or returns what it says.

#![no_main]

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use bfc_formats::published::layout::{HEADER_BYTES, Header, LIVE, Pool, Record, put_text};
use bfc_readers::published::made;
use bfc_readers::published::reader::{Reading, read_all};

/// The file of a process with two pools.
fn whole() -> Vec<u8> {
    let pool = |device| {
        let mut pool = Pool { state: LIVE, device, ..Pool::EMPTY };
        pool.statistics.fill(1 << 20);
        for (bytes, holder) in (1..).zip(&mut pool.holders) {
            (holder.bytes, holder.chunks) = (bytes, 1);
            put_text(&mut holder.name, "forward/attention");
        }
        pool
    };
    made::file(&[pool(0), pool(1)])
}

/// Changes eight bytes of the header or of the first records, or the first of them.
fn change(file: &mut [u8], what: &[u8; 11]) {
    let [kind, low, high, value @ ..] = what;
    let (from, most) = match kind >> 1 & 1 {
        0 => (0, size_of::<Header>()),
        _ => (HEADER_BYTES, 2 * size_of::<Record>()),
    };
    let bytes = if kind & 1 == 0 { 8 } else { 1 };
    let at = from + usize::from(u16::from_le_bytes([*low, *high])) % most / bytes * bytes;
    file[at..at + bytes].copy_from_slice(&value[..bytes]);
}

/// What is read of a file in a folder that only this user can read, in memory. Nothing is left of it.
fn read(file: &[u8]) -> Reading {
    let folder = PathBuf::from(format!("/dev/shm/libbfc-fuzz-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    DirBuilder::new().mode(0o700).create(&folder).expect("there is memory");
    fs::write(folder.join("4711"), file).expect("there is memory");
    let reading = read_all(std::slice::from_ref(&folder));
    fs::remove_dir_all(&folder).expect("it is ours");
    reading
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let mut file = WHOLE.get_or_init(whole).clone();
    let (changes, rest) = input.as_chunks();
    for what in changes {
        change(&mut file, what);
    }
    if let [7, low, high] = rest {
        file.truncate(2 * usize::from(u16::from_le_bytes([*low, *high])));
    }
    let reading = read(&file);
    assert!(reading.processes.len() + reading.unreadable.len() <= 1);
});
