//! Memory pools: areas of a device's memory, and the free pieces in them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

use cuda_sys::{CUdevice, CUmemPool_attribute};

use super::stream::Point;

/// A memory pool.
#[derive(Default)]
pub(crate) struct Pool {
    device: CUdevice,
    is_default: bool,
    is_destroyed: bool,
    threshold: u64,
    /// Other devices that may access its memory (cuMemPoolSetAccess).
    granted: BTreeSet<CUdevice>,
    /// The policies, indexed by [`Reuse`].
    reuse: [c_int; 3],
    /// Bytes handed out and not freed.
    used: Level,
    /// Bytes of the device's memory held by the pool.
    reserved: Level,
    areas: BTreeMap<u64, Area>,
    free: BTreeMap<u64, Piece>,
}

/// Ways to reuse memory freed by another stream. CUmemPool_attribute counts them from 1.
#[derive(Clone, Copy)]
enum Reuse {
    FollowEventDependencies = 0,
    Opportunistic = 1,
    InternalDependencies = 2,
}

/// Memory of the device, from the arena. Its start is its key.
pub(crate) struct Area {
    pub(crate) bytes: u64,
    pub(crate) span: (u64, u64),
}

/// Free memory in an area.
#[derive(Clone, Copy)]
struct Piece {
    bytes: u64,
    /// The free that has to be done first. None if the host freed it immediately.
    freed: Option<Point>,
    /// Whether the host has synchronized with that free.
    is_observed: bool,
}

/// Whether the work up to a point is done.
type IsDone<'a> = &'a dyn Fn(Point) -> bool;

impl Pool {
    /// Creates an empty pool. All reuse policies are 'default enabled', and the threshold is 0.
    pub(crate) fn new(device: CUdevice, is_default: bool) -> Self {
        Self { device, is_default, reuse: [1; 3], ..Self::default() }
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    /// Returns whether its handle is destroyed. Allocations remain until they are freed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed
    }

    pub(crate) fn destroy(&mut self) {
        self.is_destroyed = true;
    }

    /// Returns how much the pool may hold when the host synchronizes.
    pub(crate) fn threshold(&self) -> u64 {
        self.threshold
    }

    pub(crate) fn set_threshold(&mut self, bytes: u64) {
        self.threshold = bytes;
    }

    pub(crate) fn granted(&self) -> &BTreeSet<CUdevice> {
        &self.granted
    }

    pub(crate) fn grant(&mut self, device: CUdevice, is_granted: bool) {
        if is_granted {
            self.granted.insert(device)
        } else {
            self.granted.remove(&device)
        };
    }

    /// Returns a reuse policy. Its attributes count from 1.
    pub(crate) fn policy(&mut self, attribute: CUmemPool_attribute) -> Option<&mut c_int> {
        self.reuse.get_mut((attribute as usize).checked_sub(1)?)
    }

    pub(crate) fn used(&mut self) -> &mut Level {
        &mut self.used
    }

    pub(crate) fn reserved(&mut self) -> &mut Level {
        &mut self.reserved
    }

    fn allows(&self, way: Reuse) -> bool {
        self.reuse[way as usize] != 0
    }

    /// Returns free memory for a stream: memory freed by the same stream, or by another where the order permits it.
    pub(crate) fn reusable(
        &mut self,
        bytes: u64,
        stream: u64,
        is_done: IsDone<'_>,
        is_behind: impl Fn(Point) -> bool,
    ) -> Option<u64> {
        self.merge(is_done);
        let may = |piece: &Piece| match piece.freed {
            None => true,
            Some(point) if point.stream == stream => true,
            Some(point) if is_done(point) => piece.is_observed || self.allows(Reuse::Opportunistic),
            Some(point) => self.allows(Reuse::FollowEventDependencies) && is_behind(point),
        };
        self.best(bytes, may)
    }

    /// Returns free memory that another stream still uses, to be used after that work.
    pub(crate) fn behind_others(&self, bytes: u64) -> Option<u64> {
        if self.allows(Reuse::InternalDependencies) { self.best(bytes, |_| true) } else { None }
    }

    /// Returns the smallest piece that is large enough, the first of several.
    fn best(&self, bytes: u64, may: impl Fn(&Piece) -> bool) -> Option<u64> {
        let fits = self.free.iter().filter(|(_, piece)| piece.bytes >= bytes && may(piece));
        fits.min_by_key(|(at, piece)| (piece.bytes, **at)).map(|(at, _)| *at)
    }

    /// Takes an allocation from the beginning of a piece. Returns the work that it has to wait for.
    pub(crate) fn take(&mut self, at: u64, bytes: u64) -> Option<Point> {
        let freed = self.cut(at, bytes);
        self.used.add(bytes);
        freed
    }

    fn cut(&mut self, at: u64, bytes: u64) -> Option<Point> {
        let piece = self.free.remove(&at)?;
        if piece.bytes > bytes {
            self.free.insert(at + bytes, Piece { bytes: piece.bytes - bytes, ..piece });
        }
        piece.freed
    }

    /// Returns an allocation to the pool, in the order of a stream or at once.
    pub(crate) fn give_back(&mut self, at: u64, bytes: u64, freed: Option<Point>) {
        self.used.now -= bytes;
        self.free.insert(at, Piece { bytes, freed, is_observed: freed.is_none() });
    }

    /// Adds memory of the device, which is a single free piece at first.
    pub(crate) fn add_area(&mut self, at: u64, area: Area) {
        self.free.insert(at, Piece { bytes: area.bytes, freed: None, is_observed: true });
        self.reserved.add(area.bytes);
        self.areas.insert(at, area);
    }

    /// Merges free neighbours that the same stream freed, or that no work uses any more.
    fn merge(&mut self, is_done: IsDone<'_>) {
        let mut merged: BTreeMap<u64, Piece> = BTreeMap::new();
        for (at, piece) in std::mem::take(&mut self.free) {
            let last = merged.last_entry();
            match last.filter(|last| last.key() + last.get().bytes == at) {
                Some(mut last) => {
                    let before = *last.get();
                    match before.together(piece, is_done) {
                        Some(both) => *last.get_mut() = both,
                        None => drop(merged.insert(at, piece)),
                    }
                }
                None => drop(merged.insert(at, piece)),
            }
        }
        self.free = merged;
    }

    /// Returns whether the pool is destroyed, unused, and the work on all of it is done.
    pub(crate) fn has_ended(&mut self, is_done: IsDone<'_>) -> bool {
        self.merge(is_done);
        self.is_destroyed && self.free.values().all(|piece| piece.is_over(is_done)) && self.used.now == 0
    }

    /// Removes a wholly free area whose work is done and known to the host to be done, if more than `above` bytes are
    /// held and `keep` remain.
    pub(crate) fn release_area(&mut self, above: u64, keep: u64, is_done: IsDone<'_>) -> Option<Area> {
        self.merge(is_done);
        let held = self.reserved.now;
        let is_idle = |at: &u64, area: &Area| {
            let whole = self.free.get(at).filter(|piece| piece.bytes == area.bytes);
            whole.is_some_and(|piece| piece.is_observed && piece.is_over(is_done))
        };
        let may = |at: &u64, area: &Area| held - area.bytes >= keep && is_idle(at, area);
        let at = self.areas.iter().filter(|_| held > above).find(|(at, area)| may(at, area));
        let at = at.map(|(at, _)| *at)?;
        let area = self.areas.remove(&at)?;
        self.free.remove(&at);
        self.reserved.now -= area.bytes;
        Some(area)
    }

    /// Records that the host has synchronized with work that is done.
    pub(crate) fn observe(&mut self, is_done: IsDone<'_>) {
        for piece in self.free.values_mut() {
            piece.is_observed |= piece.is_over(is_done);
        }
    }

    /// Returns the pool's memory of the device, when it ends.
    pub(crate) fn into_areas(self) -> impl Iterator<Item = Area> {
        self.areas.into_values()
    }
}

impl Piece {
    fn is_over(&self, is_done: IsDone<'_>) -> bool {
        self.freed.is_none_or(is_done)
    }

    fn together(self, second: Self, is_done: IsDone<'_>) -> Option<Self> {
        let bytes = self.bytes + second.bytes;
        let is_observed = self.is_observed && second.is_observed;
        match (self.freed, second.freed) {
            (Some(one), Some(other)) if one.stream == other.stream => {
                let freed = if one.item > other.item { one } else { other };
                Some(Self { bytes, freed: Some(freed), is_observed })
            }
            _ if self.is_observed == second.is_observed
                && self.is_over(is_done)
                && second.is_over(is_done) =>
            {
                Some(Self { bytes, freed: self.freed.or(second.freed), is_observed })
            }
            _ => None,
        }
    }
}

/// A number and its highest value.
#[derive(Default)]
pub(crate) struct Level {
    now: u64,
    high: u64,
}

impl Level {
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn high(&self) -> u64 {
        self.high
    }

    fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }

    /// Resets the peak to the current value: "High watermark can only be reset to zero".
    pub(crate) fn forget(&mut self) {
        self.high = self.now;
    }
}
