//! The file of published statistics of a process, for tests and for fuzzing (fuzz/fuzz_targets/published.rs).

use std::fs::{self, Permissions};
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

use bfc_formats::published::layout::{
    FILE_BYTES, HEADER_BYTES, Header, LIVE, MAGIC, POOLS, PUBLISHING, Pool, Record,
};

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("later").as_nanos() as u64
}

/// When this process started.
fn started() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    stat.rsplit_once(") ").expect("a name").1.split(' ').nth(19).expect("a field").parse().expect("a number")
}

/// The file of this process, with these pools.
pub fn file(pools: &[Pool]) -> Vec<u8> {
    let mut file = vec![0; FILE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    for (at, value) in [
        (offset_of!(Header, header_bytes), HEADER_BYTES as u32),
        (offset_of!(Header, record_bytes), size_of::<Record>() as u32),
        (offset_of!(Header, records), POOLS as u32),
        (offset_of!(Header, process), std::process::id()),
        (offset_of!(Header, interval_ms), 250),
        (offset_of!(Header, state), PUBLISHING),
    ] {
        put(at, &value.to_ne_bytes());
    }
    for (at, value) in [
        (offset_of!(Header, started), started()),
        (offset_of!(Header, namespace), crate::process::namespace()),
        (offset_of!(Header, updated), now()),
    ] {
        put(at, &value.to_ne_bytes());
    }
    put(offset_of!(Header, program), b"train");
    for (index, pool) in pools.iter().enumerate() {
        let at = HEADER_BYTES + index * size_of::<Record>();
        put(at, &1_u64.to_ne_bytes());
        // SAFETY: a pool consists of words without padding.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(pool).cast::<u8>(), size_of::<Pool>()) };
        put(at + 8 + size_of::<Pool>(), bytes);
    }
    file
}

/// A new folder that only this user can read.
pub fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("libbfc-top-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).expect("writable");
    fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("it is ours");
    path
}

/// Overwrites bytes of a file.
pub fn put<const BYTES: usize>(file: &mut [u8], at: usize, bytes: [u8; BYTES]) {
    file[at..at + BYTES].copy_from_slice(&bytes);
}

/// A pool of a device, with these bytes in use.
pub fn live(device: u64, in_use: u64) -> Pool {
    let mut pool = Pool { state: LIVE, device, time: now(), ..Pool::EMPTY };
    pool.statistics[3] = in_use;
    pool
}
