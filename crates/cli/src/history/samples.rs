//! Events for tests.

use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::{History, Recorded};

pub const PAGE: u64 = 256;

pub fn event(kind: Kind, address: u64, bytes: u64) -> Recorded {
    Recorded {
        number: 0,
        time: 0,
        kind,
        cause: 0,
        pool: 1,
        name: 0,
        address,
        bytes,
        requested: bytes - bytes / 8,
        stream: None,
        in_use: 0,
        stack: 0,
    }
}

/// A history without any name.
pub fn history(events: Vec<Recorded>) -> History {
    let mut history = History::default();
    (history.written, history.events) = (events.len() as u64, events);
    history
}

/// Returns this many lists of impossible events, as in a damaged file.
pub fn contradictory(count: usize) -> impl Iterator<Item = Vec<Recorded>> {
    let kinds = [
        Kind::Alloc,
        Kind::Alloc,
        Kind::Alloc,
        Kind::Free,
        Kind::Free,
        Kind::Present,
        Kind::Obtained,
        Kind::Returned,
        Kind::OutOfMemory,
        Kind::Step,
        Kind::Trim,
        Kind::Limit,
        Kind::End,
    ];
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    std::iter::repeat_with(move || {
        let (length, spread) = (random(40), 1 + random(30));
        let events = (0..length).map(|number| {
            // The end of a pool is rare.
            let most = if random(8) == 0 { 13 } else { 12 };
            let kind = kinds[random(most) as usize];
            let (address, bytes) = (random(spread) * PAGE, random(6) * PAGE);
            let event = match random(60) {
                0 => event(kind, address, u64::MAX - bytes),
                1 => event(kind, random(u64::MAX), bytes),
                _ => event(kind, address, bytes),
            };
            Recorded { number, time: number * 1000, name: random(3) as u32, ..event }
        });
        events.collect()
    })
    .take(count)
}
