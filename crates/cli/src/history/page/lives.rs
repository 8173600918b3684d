//! When each chunk and each region existed, and where the page draws it.

use std::collections::BTreeMap;

use bfc_formats::history::layout::Kind;
use bfc_readers::history::ranges::Ranges;
use bfc_readers::history::reader::Recorded;

/// The life of a chunk or a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub operation: u32,
    /// The number of the backtrace. 0 is none.
    pub stack: u32,
    pub stream: Option<u64>,
    /// The pool's step when it began.
    pub step: u64,
    /// The event of the pool that began it, from 0.
    pub first: u32,
    /// The event that ended it. The number of the pool's events if none did.
    pub last: u32,
    /// Whether the file has the event that began it. Otherwise it existed before the first event.
    pub is_known: bool,
}

/// The lives of chunks and regions, from the events of a pool in order.
#[derive(Default)]
pub struct Lives {
    pub chunks: Vec<Life>,
    pub regions: Vec<Life>,
    live: BTreeMap<u64, usize>,
    held: Ranges<usize>,
    step: u64,
}

impl Lives {
    /// Takes into account an event, the `at`th of the pool.
    pub fn see(&mut self, event: &Recorded, at: u32) {
        let life = Life {
            address: event.address,
            bytes: event.bytes,
            requested: event.requested,
            operation: event.name,
            stack: event.stack,
            stream: event.stream,
            step: self.step,
            first: at,
            last: u32::MAX,
            is_known: true,
        };
        match event.kind {
            Kind::Alloc | Kind::Present => {
                let before = self.live.insert(event.address, self.chunks.len());
                end(&mut self.chunks, before, at);
                self.chunks.push(life);
            }
            Kind::Free => match self.live.remove(&event.address) {
                Some(life) => end(&mut self.chunks, Some(life), at),
                None => self.chunks.push(Life { first: 0, last: at, is_known: false, ..life }),
            },
            Kind::Obtained => {
                let end = event.address.saturating_add(event.bytes);
                self.end_regions(event.address, end, at);
                self.held.insert(event.address, end, self.regions.len());
                self.regions.push(life);
            }
            Kind::Returned => self.give_back(event.address, event.address.saturating_add(event.bytes), at),
            Kind::End => {
                std::mem::take(&mut self.live)
                    .values()
                    .for_each(|&life| end(&mut self.chunks, Some(life), at));
                std::mem::take(&mut self.held)
                    .iter()
                    .for_each(|(.., life)| end(&mut self.regions, Some(life), at));
            }
            Kind::Step => self.step = event.bytes,
            _ => {}
        }
    }

    /// Ends the regions of a range. If a part of a region is left, the region continues with that part.
    fn end_regions(&mut self, from: u64, to: u64, at: u32) {
        let touched: Vec<_> = self.held.overlapping(from, to).collect();
        for (base, whole_end, life) in touched {
            let whole = self.regions[life];
            end(&mut self.regions, Some(life), at);
            for (from, to) in [(base, from), (to, whole_end)] {
                if from < to {
                    self.held.insert(from, to, self.regions.len());
                    self.regions.push(Life { address: from, bytes: to - from, first: at, ..whole });
                }
            }
        }
        self.held.remove(from, to);
    }

    /// Ends what lies in a range, as `PoolState` does.
    fn give_back(&mut self, from: u64, to: u64, at: u32) {
        self.end_regions(from, to, at);
        let gone: Vec<u64> = self.live.range(from..to).map(|(&address, _)| address).collect();
        for address in gone {
            end(&mut self.chunks, self.live.remove(&address), at);
        }
    }
}

fn end(lives: &mut [Life], life: Option<usize>, at: u32) {
    if let Some(life) = life {
        lives[life].last = at;
    }
}

/// A range of addresses without gaps. The page stacks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub address: u64,
    pub bytes: u64,
    /// The bytes of all spans below.
    pub offset: u64,
}

/// The spans that contain all lives, in the order of addresses.
pub fn spans(lives: &Lives) -> Vec<Span> {
    let all = lives.regions.iter().chain(&lives.chunks);
    let mut ranges: Vec<(u64, u64)> =
        all.map(|life| (life.address, life.address.saturating_add(life.bytes))).collect();
    ranges.sort_unstable();
    let mut spans: Vec<Span> = Vec::new();
    for (from, to) in ranges {
        match spans.last_mut() {
            Some(last) if from <= last.address.saturating_add(last.bytes) => {
                last.bytes = last.bytes.max(to - last.address);
            }
            last => {
                let offset = last.map_or(0, |last| last.offset.saturating_add(last.bytes));
                spans.push(Span { address: from, bytes: to - from, offset });
            }
        }
    }
    spans
}

/// Where an address lies in the stack of spans.
pub fn place(spans: &[Span], address: u64) -> u64 {
    let after = spans.partition_point(|span| span.address <= address);
    after.checked_sub(1).map_or(0, |at| spans[at].offset.saturating_add(address - spans[at].address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::samples::event;

    fn lives(events: &[Recorded]) -> Lives {
        let mut lives = Lives::default();
        events.iter().zip(0..).for_each(|(event, at)| lives.see(event, at));
        lives
    }

    fn times(lives: &[Life]) -> Vec<(u64, u64, u32, u32)> {
        lives.iter().map(|life| (life.address, life.bytes, life.first, life.last)).collect()
    }

    #[test]
    fn a_region_goes_on_without_the_part_that_is_given_back() {
        let lives = lives(&[
            event(Kind::Obtained, 100, 100),
            event(Kind::Alloc, 140, 10),
            event(Kind::Alloc, 190, 10),
            event(Kind::Returned, 120, 40),
            event(Kind::Free, 190, 10),
            event(Kind::End, 0, 0),
        ]);
        let forever = [(100, 100, 0, 3), (160, 40, 3, 5), (100, 20, 3, 5)];
        let mut regions = times(&lives.regions);
        regions[1..].sort_by_key(|region| std::cmp::Reverse(region.0));
        assert_eq!(regions, forever);
        assert_eq!(times(&lives.chunks), [(140, 10, 1, 3), (190, 10, 2, 4)]);
    }

    /// Regions of a damaged file may be nested. If they were here, each return would split all of them.
    #[test]
    fn a_region_ends_where_another_is_obtained() {
        let nested = (0..100).map(|at| event(Kind::Obtained, at, 10_000));
        let returned = (0..100).map(|at| event(Kind::Returned, 1000 - 2 * at, 1));
        let lives = lives(&nested.chain(returned).collect::<Vec<_>>());
        assert!(lives.regions.len() <= 3 * 200, "{}", lives.regions.len());
        let open: Vec<_> = lives.regions.iter().filter(|life| life.last == u32::MAX).collect();
        assert_eq!(open.len(), 200);
        assert_eq!(open.iter().map(|life| life.bytes).sum::<u64>(), 99 + 10_000 - 100);
    }

    #[test]
    fn a_chunk_whose_allocation_was_displaced_is_there_from_the_beginning() {
        let lives = lives(&[event(Kind::Alloc, 0, 8), event(Kind::Free, 16, 8), event(Kind::Alloc, 0, 4)]);
        assert_eq!(times(&lives.chunks), [(0, 8, 0, 2), (16, 8, 0, 1), (0, 4, 2, u32::MAX)]);
        assert_eq!(lives.chunks.iter().map(|life| life.is_known).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn spans_are_stacked_without_gaps() {
        let lives = lives(&[
            event(Kind::Obtained, 1000, 100),
            event(Kind::Obtained, 1100, 50),
            event(Kind::Obtained, 64, 16),
            event(Kind::Alloc, 1020, 8),
        ]);
        let spans = spans(&lives);
        let stacked =
            [Span { address: 64, bytes: 16, offset: 0 }, Span { address: 1000, bytes: 150, offset: 16 }];
        assert_eq!(spans, stacked);
        assert_eq!([64, 79, 1000, 1149].map(|address| place(&spans, address)), [0, 15, 16, 165]);
        assert_eq!(place(&[], 5), 0);
    }
}
