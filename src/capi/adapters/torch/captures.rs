//! Whose requests are for a private pool now, and how many graphs use each.
//!
//! PyTorch names pools by two numbers, counts who uses them, and says by a filter whose requests are for one. libbfc
//! knows pools by one number, and a request by its stream.

use super::filter::Filter;
use crate::capi::types::bfc_stream_t;
use crate::device::Device;
use crate::error::{Error, fail};
use crate::sys::mutex::{Guard, Mutex};
use crate::sys::{self, HostMemoryExhausted, try_box};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};

/// PyTorch's name for a pool.
pub(super) type PoolId = (u64, u64);

/// Requests may be for a pool: from `begin` to `end`.
struct Capture {
    /// Newer ones have larger numbers.
    ticket: u64,
    device: Device,
    id: PoolId,
    name: u64,
    /// It stays where it is while somebody asks it.
    filter: Box<Filter>,
    /// How many threads ask it.
    asking: u32,
    over: bool,
    /// The device was told that some stream may be captured at any time, and not yet which.
    announced: bool,
}

/// A pool that graphs use; or none does any more, but the device could not be told for want of host memory.
struct Pool {
    device: Device,
    id: PoolId,
    name: u64,
    users: u64,
}

struct Table {
    captures: Vec<Capture>,
    pools: Vec<Pool>,
    /// The last number given to a capture, or a pool.
    last: u64,
}

/// Held for a look at a few entries; neither PyTorch nor an allocator is called meanwhile.
static TABLE: Mutex<Table> = Mutex::new(Table { captures: Vec::new(), pools: Vec::new(), last: 0 });

/// The table. [`Error::Busy`] for a signal handler that interrupted a look at it. An error in the child of a fork, whose
/// parent had used it: a thread that is not there may have it locked, and nothing in it is about memory of the child's.
fn table() -> Result<Guard<'static, Table>, Error> {
    static OF_PROCESS: AtomicI32 = AtomicI32::new(0);
    let process = sys::process();
    match OF_PROCESS.compare_exchange(0, process, Relaxed, Relaxed) {
        Err(other) if other != process => {
            Err(fail!(Error::ShuttingDown, "the pools of graphs are not in this forked process"))
        }
        _ => TABLE.lock().map_err(|_| {
            fail!(Error::Busy, "a signal handler interrupted a call of this thread on the pools of graphs")
        }),
    }
}

/// How many captures are in the table: mostly none, and then nobody looks there.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// So that the names are not those of the program's own pools.
const NAMES: u64 = 1 << 63;

/// A pool that a request is for.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) name: u64,
    ticket: u64,
}

/// The pool that a request is for, if it is for one: of several that say so the one that was begun last. [`Error::Busy`] if
/// that cannot be known, in a signal handler: memory for a graph must not come from elsewhere.
#[inline]
pub(super) fn chosen(device: i32, stream: bfc_stream_t) -> Result<Option<Chosen>, Error> {
    if UNDER_WAY.load(Acquire) == 0 { Ok(None) } else { choose(device, stream) }
}

#[cold]
fn choose(device: i32, stream: bfc_stream_t) -> Result<Option<Chosen>, Error> {
    let mut newer_than = u64::MAX;
    while let Some(asked) = Asked::newest_before(newer_than, device)? {
        newer_than = asked.ticket;
        // SAFETY: it is not dropped before `asked` is.
        if unsafe { &*asked.filter }.accepts(stream) {
            return Ok(Some(Chosen { name: asked.name, ticket: asked.ticket }));
        }
    }
    Ok(None)
}

/// A capture whose filter is asked now, with the table open.
struct Asked {
    ticket: u64,
    name: u64,
    filter: *const Filter,
}

impl Asked {
    fn newest_before(ticket: u64, device: i32) -> Result<Option<Self>, Error> {
        let mut table = match table() {
            Ok(table) => table,
            Err(Error::Busy) => return Err(Error::Busy),
            // In a forked child nothing is captured.
            Err(_) => return Ok(None),
        };
        let older = table.captures.iter_mut().filter(|capture| capture.ticket < ticket && !capture.over);
        let newest = older.filter(|capture| capture.device.ordinal() == device);
        Ok(newest.max_by_key(|capture| capture.ticket).map(|capture| {
            capture.asking += 1;
            Asked { ticket: capture.ticket, name: capture.name, filter: &raw const *capture.filter }
        }))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        // Never in a signal handler that has interrupted the table's holder, for that was refused before.
        let Ok(mut table) = table() else { return };
        let place = table.captures.iter().position(|capture| capture.ticket == self.ticket);
        let Some(place) = place else { return };
        table.captures[place].asking -= 1;
        let ended = table.take_if_ended(place);
        // The filter ends with the table open.
        drop(table);
        drop(ended);
    }
}

impl Table {
    fn take_if_ended(&mut self, place: usize) -> Option<Capture> {
        let Capture { over, asking, .. } = self.captures[place];
        let ended = (over && asking == 0).then(|| self.captures.swap_remove(place));
        self.shrink();
        ended
    }

    /// What is in no use takes no memory.
    fn shrink(&mut self) {
        if self.captures.is_empty() {
            self.captures = Vec::new();
        }
        if self.pools.is_empty() {
            self.pools = Vec::new();
        }
    }

    /// One more uses the pool; its name. One that nobody uses is being released, and another comes in its place.
    fn begin_pool(&mut self, device: Device, id: PoolId) -> Result<u64, HostMemoryExhausted> {
        let is_it = |pool: &&mut Pool| pool.device == device && pool.id == id && pool.users != 0;
        if let Some(pool) = self.pools.iter_mut().find(is_it) {
            pool.users += 1;
            return Ok(pool.name);
        }
        self.pools.try_reserve(1)?;
        self.last += 1;
        let name = NAMES | self.last;
        self.pools.push(Pool { device, id, name, users: 1 });
        Ok(name)
    }

    /// Takes the filter if there is room for all of it.
    fn begin(
        &mut self,
        device: Device,
        id: PoolId,
        filter: &mut Option<Box<Filter>>,
        announced: bool,
    ) -> Result<(), HostMemoryExhausted> {
        self.captures.try_reserve(1)?;
        let name = self.begin_pool(device, id)?;
        if let Some(filter) = filter.take() {
            self.last += 1;
            let (ticket, asking, over) = (self.last, 0, false);
            self.captures.push(Capture { ticket, device, id, name, filter, asking, over, announced });
        }
        Ok(())
    }
}

/// Requests that the filter accepts are for the pool from now on. `announced`: see [`Capture`].
pub(super) fn begin(device: Device, id: PoolId, filter: Filter, announced: bool) -> Result<(), Error> {
    // Should there be no room it ends with the table open.
    let mut filter = Some(try_box(filter)?);
    let mut table = table()?;
    let begun = table.begin(device, id, &mut filter, announced);
    table.shrink();
    drop(table);
    begun?;
    UNDER_WAY.fetch_add(1, Release);
    Ok(())
}

/// A request was served, so that its stream is known: whether the announcement of the capture is to be withdrawn.
pub(super) fn is_known_now(chosen: Chosen) -> bool {
    let Ok(mut table) = table() else { return false };
    let capture = table.captures.iter_mut().find(|capture| capture.ticket == chosen.ticket);
    capture.is_some_and(|capture| std::mem::take(&mut capture.announced))
}

/// No request is for the pool any more. Whether the announcement is to be withdrawn.
pub(super) fn end(device: Device, id: PoolId) -> Result<bool, Error> {
    let mut table = table()?;
    let of_pool = |capture: &Capture| capture.device == device && capture.id == id && !capture.over;
    let Some(place) = table.captures.iter().rposition(of_pool) else {
        drop(table);
        return Err(unknown(id));
    };
    table.captures[place].over = true;
    let announced = std::mem::take(&mut table.captures[place].announced);
    let ended = table.take_if_ended(place);
    drop(table);
    UNDER_WAY.fetch_sub(1, Release);
    drop(ended);
    Ok(announced)
}

/// One less uses the pool.
pub(super) fn leave(device: Device, id: PoolId) -> Result<(), Error> {
    let mut table = table()?;
    let is_it = |pool: &&mut Pool| pool.device == device && pool.id == id && pool.users != 0;
    if let Some(pool) = table.pools.iter_mut().find(is_it) {
        pool.users -= 1;
        return Ok(());
    }
    drop(table);
    Err(unknown(id))
}

/// The name of some pool that nobody uses any more, with a larger one than `than`.
pub(super) fn unused(device: Device, than: u64) -> Option<u64> {
    let table = table().ok()?;
    let unused = |pool: &&Pool| pool.device == device && pool.users == 0 && pool.name > than;
    table.pools.iter().filter(unused).map(|pool| pool.name).min()
}

/// The device has been told of it.
pub(super) fn forget_unused(name: u64) {
    let Ok(mut table) = table() else { return };
    table.pools.retain(|pool| pool.name != name);
    table.shrink();
}

fn unknown((first, second): PoolId) -> Error {
    fail!(Error::InvalidArgument, "the pool ({first}, {second}) was not begun on that device")
}
