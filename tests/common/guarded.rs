//! Pools in the debug mode `BFC_DEBUG=guard`, on host memory: each test in a process of its own, because of the
//! variable.

use super::*;

/// The byte that fills freed memory.
pub const POISON: u8 = 0xDB;
/// The byte that fills guards.
pub const GUARD: u8 = 0xFD;

/// Runs `body` in a child process with the debug mode, and with all messages of the library.
#[track_caller]
pub fn guarded(test: &str, body: impl FnOnce(&log::Collected)) {
    if child::is_child(test) {
        return body(&log::Collected::start());
    }
    child::expect_success(test, &[("BFC_DEBUG", "guard")]);
}

pub fn pool() -> Pool {
    Pool::host(64 * MIB, |options| options.flags = BFC_ALLOW_GROWTH)
}

pub fn bytes<'a>(address: u64, count: u64) -> &'a [u8] {
    // SAFETY: the tests read only memory of the pool, which nothing else writes meanwhile.
    unsafe { std::slice::from_raw_parts(address as *const u8, count as usize) }
}

pub fn write(address: u64, with: &[u8]) {
    // SAFETY: it is memory of the pool, even if the write is a violation.
    unsafe { (address as *mut u8).copy_from(with.as_ptr(), with.len()) };
}

/// Returns a number from the memory map.
pub fn counter(pool: &Pool, name: &str) -> u64 {
    let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    map["counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {map}"))
}

/// Checks that nothing was damaged and nothing reported.
#[track_caller]
pub fn assert_quiet(pool: &Pool, log: &log::Collected) {
    pool.check();
    assert_eq!((counter(pool, "guard_violations"), alarms(log)), (0, vec![]));
}

/// Returns the warnings and errors. Moves of granules have another level.
pub fn alarms(log: &log::Collected) -> Vec<(i32, String)> {
    log.messages().into_iter().filter(|&(level, _)| level <= BFC_LOG_WARN).collect()
}

#[track_caller]
pub fn assert_says(message: &str, all: &[&str]) {
    all.iter().for_each(|part| assert!(message.contains(part), "{part:?} is not in {message:?}"));
}
