//! Requests that are routed to private pools, and how many graphs use each pool.
//!
//! PyTorch names pools by two numbers, counts their users, and passes a filter that decides which requests a pool
//! serves. libbfc names pools by one number, and routes requests by their stream.

use super::filter::Filter;
use crate::capi::types::bfc_stream_t;
use crate::device::Device;
use crate::error::{ErrorKind, fail};
use crate::sys;
use crate::sys::mutex::{Guard, Mutex};
use bfc_hostmem::{HostMemoryExhausted, try_box};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};

/// PyTorch's name for a pool.
pub(super) type PoolId = (u64, u64);

/// A period from `begin` to `end` in which requests may be routed to a pool.
struct Capture {
    /// Newer captures have larger numbers.
    ticket: u64,
    device: Device,
    id: PoolId,
    name: u64,
    /// Boxed, so that it does not move while it is called.
    filter: Box<Filter>,
    /// How many threads are calling the filter.
    asking: u32,
    over: bool,
    /// Whether the device was told that an unknown stream may be captured at any time.
    announced: bool,
}

/// A pool that graphs use, or that no graph uses but that could not be released for lack of host memory.
struct Pool {
    device: Device,
    id: PoolId,
    name: u64,
    users: u64,
}

struct Table {
    captures: Vec<Capture>,
    pools: Vec<Pool>,
    /// The last number given to a capture or a pool.
    last: u64,
}

/// Locked only while a few entries are accessed. Neither PyTorch nor an allocator is called meanwhile.
static TABLE: Mutex<Table> = Mutex::new(Table { captures: Vec::new(), pools: Vec::new(), last: 0 });

/// Locks the table. Returns [`ErrorKind::Busy`] in a signal handler that interrupted an access to it. Fails in a forked
/// child whose parent had used it: a thread that does not exist there may hold the lock, and no entry concerns memory
/// of the child.
fn table() -> Result<Guard<'static, Table>, ErrorKind> {
    static OF_PROCESS: AtomicI32 = AtomicI32::new(0);
    let process = sys::process();
    match OF_PROCESS.compare_exchange(0, process, Relaxed, Relaxed) {
        Err(other) if other != process => Err(fail!(
            ErrorKind::ShuttingDown,
            "the private pools of graphs belong to the parent of this forked process"
        )),
        _ => TABLE.lock().map_err(|_| {
            fail!(ErrorKind::Busy, "a signal handler interrupted a call of this thread on the pools of graphs: call again after the handler has returned")
        }),
    }
}

/// How many captures are in the table. Usually none, in which case the table is not accessed.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Added to pool names, so that they differ from those of the program's own pools.
const NAMES: u64 = 1 << 63;

/// A pool chosen for a request.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) name: u64,
    ticket: u64,
}

/// Returns the pool that a request is routed to, if there is one. If several pools accept it, the one begun last is
/// chosen. Returns [`ErrorKind::Busy`] in a signal handler if this cannot be determined, because memory for a graph must
/// come from its pool.
#[inline]
pub(super) fn chosen(device: i32, stream: bfc_stream_t) -> Result<Option<Chosen>, ErrorKind> {
    if UNDER_WAY.load(Acquire) == 0 { Ok(None) } else { choose(device, stream) }
}

#[cold]
fn choose(device: i32, stream: bfc_stream_t) -> Result<Option<Chosen>, ErrorKind> {
    let mut newer_than = u64::MAX;
    while let Some(asked) = AskedCapture::newest_before(newer_than, device)? {
        newer_than = asked.ticket;
        // SAFETY: the filter is not dropped before `asked` is.
        if unsafe { &*asked.filter }.accepts(stream) {
            return Ok(Some(Chosen { name: asked.name, ticket: asked.ticket }));
        }
    }
    Ok(None)
}

/// A capture whose filter is being called, with the table unlocked.
struct AskedCapture {
    ticket: u64,
    name: u64,
    filter: *const Filter,
}

impl AskedCapture {
    fn newest_before(ticket: u64, device: i32) -> Result<Option<Self>, ErrorKind> {
        let mut table = match table() {
            Ok(table) => table,
            Err(ErrorKind::Busy) => return Err(ErrorKind::Busy),
            // Nothing is captured in a forked child.
            Err(_) => return Ok(None),
        };
        let older = table.captures.iter_mut().filter(|capture| capture.ticket < ticket && !capture.over);
        let newest = older.filter(|capture| capture.device.ordinal() == device);
        Ok(newest.max_by_key(|capture| capture.ticket).map(|capture| {
            capture.asking += 1;
            AskedCapture { ticket: capture.ticket, name: capture.name, filter: &raw const *capture.filter }
        }))
    }
}

impl Drop for AskedCapture {
    fn drop(&mut self) {
        // This cannot fail in a signal handler that interrupted the table's holder, because that was refused before.
        let Ok(mut table) = table() else { return };
        let place = table.captures.iter().position(|capture| capture.ticket == self.ticket);
        let Some(place) = place else { return };
        table.captures[place].asking -= 1;
        let ended = table.take_if_ended(place);
        // The filter is dropped with the table unlocked.
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

    /// Frees the memory of empty lists.
    fn shrink(&mut self) {
        if self.captures.is_empty() {
            self.captures = Vec::new();
        }
        if self.pools.is_empty() {
            self.pools = Vec::new();
        }
    }

    /// Adds a user to a pool and returns the pool's name. A pool without users is being released, so another one
    /// replaces it.
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

    /// Adds a capture. Takes the filter only if there is room for everything.
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

/// Routes requests that the filter accepts to the pool. `announced`: see [`Capture`].
pub(super) fn begin(device: Device, id: PoolId, filter: Filter, announced: bool) -> Result<(), ErrorKind> {
    // If there is no room, the filter is dropped with the table unlocked.
    let mut filter = Some(try_box(filter)?);
    let mut table = table()?;
    let begun = table.begin(device, id, &mut filter, announced);
    table.shrink();
    drop(table);
    begun?;
    UNDER_WAY.fetch_add(1, Release);
    Ok(())
}

/// Records that a request was served, so that the device knows its stream and queries it until the end. Returns whether
/// the announcement must be withdrawn: torch.cuda.use_mem_pool captures nothing, and may last.
pub(super) fn take_announcement(chosen: Chosen) -> bool {
    let Ok(mut table) = table() else { return false };
    let capture = table.captures.iter_mut().find(|capture| capture.ticket == chosen.ticket);
    capture.is_some_and(|capture| std::mem::take(&mut capture.announced))
}

/// What to report to the device at the end of a routing.
pub(super) struct EndedRoute {
    /// The pool to which no more requests are routed, if it is not the pool of another routing.
    pub(super) name: Option<u64>,
    /// The announcement must be withdrawn.
    pub(super) announced: bool,
}

/// Ends the routing of requests to the pool.
pub(super) fn end(device: Device, id: PoolId) -> Result<EndedRoute, ErrorKind> {
    let mut table = table()?;
    let of_pool = |capture: &Capture| capture.device == device && capture.id == id && !capture.over;
    let Some(place) = table.captures.iter().rposition(of_pool) else {
        drop(table);
        return Err(unknown(id));
    };
    table.captures[place].over = true;
    let announced = std::mem::take(&mut table.captures[place].announced);
    let name = Some(table.captures[place].name).filter(|_| !table.captures.iter().any(of_pool));
    let ended = table.take_if_ended(place);
    drop(table);
    UNDER_WAY.fetch_sub(1, Release);
    drop(ended);
    Ok(EndedRoute { name, announced })
}

/// Removes a user from a pool.
pub(super) fn leave(device: Device, id: PoolId) -> Result<(), ErrorKind> {
    let mut table = table()?;
    let is_it = |pool: &&mut Pool| pool.device == device && pool.id == id && pool.users != 0;
    if let Some(pool) = table.pools.iter_mut().find(is_it) {
        pool.users -= 1;
        return Ok(());
    }
    drop(table);
    Err(unknown(id))
}

/// Returns the name of a pool without users that is larger than `than`.
pub(super) fn unused(device: Device, than: u64) -> Option<u64> {
    let table = table().ok()?;
    let unused = |pool: &&Pool| pool.device == device && pool.users == 0 && pool.name > than;
    table.pools.iter().filter(unused).map(|pool| pool.name).min()
}

/// Removes a pool without users after the device was notified.
pub(super) fn forget_unused(name: u64) {
    let Ok(mut table) = table() else { return };
    table.pools.retain(|pool| pool.name != name);
    table.shrink();
}

fn unknown((first, second): PoolId) -> ErrorKind {
    fail!(ErrorKind::InvalidArgument, "the pool ({first}, {second}) was not begun on that device")
}
