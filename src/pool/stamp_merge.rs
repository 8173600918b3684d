//! Merges stamped chunks in pieces, with the lock opened between them, because there may be very many.

use super::slot::{Guard, Outside};
use bfc_core::request::Request;
use bfc_core::stamps::{Forced, ForcedPass};

/// The number of chunks that are merged with the lock held. That takes about 180,000 instructions next to 10,000
/// others. Each opening of the lock yields. With smaller pieces a request would spend most of its time on that, and
/// nearly all of it on a machine with more threads than cores. Tests use smaller pieces because their programs are
/// small.
const PIECE: usize = if cfg!(test) { 8 } else { 64 };

/// Merges some of the chunks whose stamps have become safe.
#[inline(never)]
pub(super) fn merge_safe_piece(guard: &mut Guard<'_>) -> Outside {
    if guard.arena.merge_safe_some(PIECE) { guard.talk(std::thread::yield_now) } else { Ok(()) }
}

/// Merges some chunks in spite of their stamps. `pass` is the state of the pass, and `None` once it is over. Returns
/// whether to search again. If not, the lock has been held since the last search.
#[inline(never)]
pub(super) fn merge_forced_piece(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    pass: &mut Option<ForcedPass>,
) -> Outside<bool> {
    let mut current = pass.take().unwrap_or_else(|| guard.arena.begin_forced_pass());
    match guard.arena.merge_forced_some(&mut current, request.size, PIECE) {
        Forced::Found => Ok(true),
        Forced::Over => Ok(false),
        Forced::More => {
            *pass = Some(current);
            guard.talk(std::thread::yield_now)?;
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::options::{BackendKind, Flags, Options};
    use crate::pool::slot::Slot;
    use crate::pool::{alloc, free, lifecycle};
    use bfc_core::stream_id::Stream;

    const UNIT: u64 = 256;
    const COUNT: u64 = 300;

    fn take(slot: &Slot, units: u64) -> Option<u64> {
        alloc::alloc(slot, units * UNIT, Stream::NONE).ok()
    }

    /// Returns a full pool in which every chunk is free and waits with a stamp of its own.
    fn waiting() -> &'static Slot {
        let options = Options {
            backend: BackendKind::Host,
            memory_limit: COUNT * UNIT,
            flags: Flags::TIMESTAMPS | Flags::SPLIT_ALWAYS,
            ..Options::default()
        };
        let slot = Box::leak(Box::new(Slot::new()));
        lifecycle::create(slot, 0, options.resolve(0, Flags::empty()).unwrap()).unwrap();
        let addrs: Vec<u64> = (0..COUNT).map(|_| take(slot, 1).unwrap()).collect();
        // Neighbours are not freed one after the other, so that forced merges leave many chunks.
        for first in 0..7 {
            addrs.iter().skip(first).step_by(7).for_each(|&addr| free::free(slot, addr).unwrap());
        }
        slot
    }

    /// Returns how often a request opened the lock, and its result.
    fn openings(slot: &Slot, units: u64) -> (u64, Option<u64>) {
        let before = slot.enter().unwrap().last_call();
        let addr = take(slot, units);
        (slot.enter().unwrap().last_call() - before, addr)
    }

    #[test]
    fn the_lock_is_opened_between_merges_of_what_has_become_safe() {
        let slot = waiting();
        slot.enter().unwrap().arena.raise_frontier(u64::MAX);
        let (openings, whole) = openings(slot, COUNT);
        assert!(whole.is_some(), "all of it is one chunk");
        assert!((COUNT / 24..=COUNT / 8).contains(&openings), "{openings}");
        assert_eq!(slot.enter().unwrap().arena.check(), Ok(()));
    }

    #[test]
    fn the_lock_is_opened_between_forced_merges() {
        let slot = waiting();
        let (openings, none) = openings(slot, COUNT + 1);
        assert_eq!(none, None);
        assert!((COUNT / 24..=COUNT / 8 + 1).contains(&openings), "{openings}");
        assert_eq!(slot.enter().unwrap().arena.check(), Ok(()));
        assert!(take(slot, 2).is_some(), "some have merged");
    }
}
