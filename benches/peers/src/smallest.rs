//! The smallest allocator that does best fit, splits and coalesces, as TensorFlow's does: what an operation costs without
//! a C ABI, a lock, a map from pointers to chunks, statistics, checks of the caller, streams or growth.
//!
//! A caller keeps the number of its chunk. Free chunks are in lists by class of size, eight classes to a power of two,
//! each list in the order of size and address.

use anyhow::{Result, bail};

use crate::peer::Peer;

const UNIT: u64 = 256;
/// A larger remainder is split off, whatever its share of the chunk.
const LARGE_REMAINDER: u64 = 128 << 20;
const CLASSES: usize = 512;
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Chunk {
    addr: u64,
    size: u64,
    /// The neighbours in the order of addresses.
    prev: u32,
    next: u32,
    /// The neighbours in the list of the class.
    before: u32,
    behind: u32,
    is_free: bool,
}

pub struct Smallest {
    chunks: Vec<Chunk>,
    vacant: Vec<u32>,
    heads: [u32; CLASSES],
    filled: [u64; CLASSES / 64],
    /// Which words of `filled` are not 0.
    words: u64,
}

impl Smallest {
    /// Returns the class of a size in units. Sizes below 8 have one each.
    #[inline]
    fn class(size: u64) -> usize {
        let units = size / UNIT;
        if units < 8 {
            return units as usize;
        }
        let exponent = units.ilog2();
        (exponent as usize - 2) * 8 + ((units >> (exponent - 3)) & 7) as usize
    }

    #[inline]
    fn insert(&mut self, id: u32) {
        let Chunk { addr, size, .. } = self.chunks[id as usize];
        let class = Self::class(size);
        let (mut before, mut at) = (NIL, self.heads[class]);
        while at != NIL {
            let chunk = &self.chunks[at as usize];
            if (chunk.size, chunk.addr) > (size, addr) {
                break;
            }
            (before, at) = (at, chunk.behind);
        }
        let chunk = &mut self.chunks[id as usize];
        (chunk.before, chunk.behind, chunk.is_free) = (before, at, true);
        match before {
            NIL => self.heads[class] = id,
            _ => self.chunks[before as usize].behind = id,
        }
        if at != NIL {
            self.chunks[at as usize].before = id;
        }
        self.filled[class / 64] |= 1 << (class % 64);
        self.words |= 1 << (class / 64);
    }

    #[inline]
    fn remove(&mut self, id: u32) {
        let Chunk { size, before, behind, .. } = self.chunks[id as usize];
        self.chunks[id as usize].is_free = false;
        if behind != NIL {
            self.chunks[behind as usize].before = before;
        }
        if before != NIL {
            self.chunks[before as usize].behind = behind;
            return;
        }
        let class = Self::class(size);
        self.heads[class] = behind;
        if behind == NIL {
            self.filled[class / 64] &= !(1 << (class % 64));
            if self.filled[class / 64] == 0 {
                self.words &= !(1 << (class / 64));
            }
        }
    }

    #[inline]
    fn best_fit(&self, size: u64) -> u32 {
        let class = Self::class(size);
        let mut at = self.heads[class];
        while at != NIL {
            if self.chunks[at as usize].size >= size {
                return at;
            }
            at = self.chunks[at as usize].behind;
        }
        let above = self.filled[class / 64] & (u64::MAX << (class % 64) << 1);
        if above != 0 {
            return self.heads[class / 64 * 64 + above.trailing_zeros() as usize];
        }
        let words = self.words & (u64::MAX << (class / 64) << 1);
        if words == 0 {
            return NIL;
        }
        let word = words.trailing_zeros() as usize;
        self.heads[word * 64 + self.filled[word].trailing_zeros() as usize]
    }

    /// Makes a chunk and the free one behind it one. The one behind is in no list.
    #[inline]
    fn absorb(&mut self, id: u32, behind: u32) {
        let Chunk { size, next, .. } = self.chunks[behind as usize];
        self.chunks[id as usize].size += size;
        self.chunks[id as usize].next = next;
        if next != NIL {
            self.chunks[next as usize].prev = id;
        }
        self.vacant.push(behind);
    }
}

impl Peer for Smallest {
    type Piece = u32;

    fn open(capacity: u64, touched: bool) -> Result<Self> {
        if touched {
            bail!("it only computes addresses");
        }
        let whole = Chunk {
            addr: 1 << 40,
            size: capacity,
            prev: NIL,
            next: NIL,
            before: NIL,
            behind: NIL,
            is_free: true,
        };
        let (heads, filled) = ([NIL; CLASSES], [0; CLASSES / 64]);
        let mut smallest = Self { chunks: vec![whole], vacant: Vec::new(), heads, filled, words: 0 };
        smallest.insert(0);
        Ok(smallest)
    }

    #[inline]
    fn alloc(&mut self, bytes: u64) -> Option<u32> {
        let size = bytes.next_multiple_of(UNIT);
        let id = self.best_fit(size);
        if id == NIL {
            return None;
        }
        self.remove(id);
        let Chunk { addr, size: found, next, .. } = self.chunks[id as usize];
        if found >= 2 * size || found - size >= LARGE_REMAINDER {
            let rest = Chunk {
                addr: addr + size,
                size: found - size,
                prev: id,
                next,
                before: NIL,
                behind: NIL,
                is_free: true,
            };
            let rest_id = match self.vacant.pop() {
                Some(vacant) => {
                    self.chunks[vacant as usize] = rest;
                    vacant
                }
                None => {
                    self.chunks.push(rest);
                    self.chunks.len() as u32 - 1
                }
            };
            if next != NIL {
                self.chunks[next as usize].prev = rest_id;
            }
            let chunk = &mut self.chunks[id as usize];
            (chunk.size, chunk.next) = (size, rest_id);
            self.insert(rest_id);
        }
        Some(id)
    }

    #[inline]
    fn free(&mut self, mut id: u32, _bytes: u64) {
        let Chunk { prev, next, .. } = self.chunks[id as usize];
        if next != NIL && self.chunks[next as usize].is_free {
            self.remove(next);
            self.absorb(id, next);
        }
        if prev != NIL && self.chunks[prev as usize].is_free {
            self.remove(prev);
            self.absorb(prev, id);
            id = prev;
        }
        self.insert(id);
    }

    fn addr(&self, piece: &u32) -> u64 {
        self.chunks[*piece as usize].addr
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Name;

    /// Free pieces by address, searched from the first to the last.
    struct Model(Vec<(u64, u64)>);

    impl Model {
        fn alloc(&mut self, size: u64) -> Option<(u64, u64)> {
            let fits = self.0.iter().enumerate().filter(|(_, piece)| piece.1 >= size);
            let (at, (addr, found)) =
                fits.min_by_key(|(_, (addr, found))| (*found, *addr)).map(|(at, &piece)| (at, piece))?;
            self.0.remove(at);
            if found < 2 * size && found - size < LARGE_REMAINDER {
                return Some((addr, found));
            }
            self.0.insert(at, (addr + size, found - size));
            Some((addr, size))
        }

        fn free(&mut self, (addr, size): (u64, u64)) {
            let at = self.0.partition_point(|piece| piece.0 < addr);
            self.0.insert(at, (addr, size));
            for at in [Some(at), at.checked_sub(1)].into_iter().flatten() {
                if at + 1 < self.0.len() && self.0[at].0 + self.0[at].1 == self.0[at + 1].0 {
                    self.0[at].1 += self.0.remove(at + 1).1;
                }
            }
        }
    }

    #[test]
    fn it_places_as_best_fit_does() {
        for name in ["uniform/100", "log-uniform/1000"] {
            let program = Name(name.to_owned()).load().unwrap();
            let mut smallest = Smallest::open(program.capacity, false).unwrap();
            let mut model = Model(vec![(1 << 40, program.capacity)]);
            let mut live = vec![None; program.slots as usize];
            for op in program.setup.iter().chain(&program.pass[..20_000]) {
                let slot = &mut live[op.slot as usize];
                if let Some((id, piece)) = slot.take() {
                    smallest.free(id, 0);
                    model.free(piece);
                }
                if op.bytes != 0 {
                    let id = smallest.alloc(op.bytes).unwrap();
                    let piece = model.alloc(op.bytes.next_multiple_of(UNIT)).unwrap();
                    assert_eq!((smallest.addr(&id), smallest.chunks[id as usize].size), piece);
                    *slot = Some((id, piece));
                }
            }
        }
    }
}
