//! Which contexts' work may use memory of which device's pool, judging by what the program has done. A pool waits for
//! these contexts before it reuses a chunk.
//!
//! A program with one thread for each device may queue work on one device that continues only when another device's
//! work has begun (a collective), and cudaMalloc on either must not wait for that. So a pool waits for the contexts of
//! its own device, and for others only once their work can use its memory:
//! - "on success all allocations from peerContext will immediately be accessible by the current context" (cuda.h,
//!   cuCtxEnablePeerAccess), and "access granted by this call is unidirectional";
//! - a copy reaches the memory of any device without peer access (CUDA C++ Programming Guide, Peer-to-Peer Memory
//!   Copy);
//! - libbfc maps granules for all devices that can access their device, and cuMemSetAccess does "set the access flags
//!   for the target locations", independently of cuCtxEnablePeerAccess.
//!
//! From the first call of a function whose arguments are not analyzed (`unanalyzed_list`), every pool waits for every
//! context.
//!
//! A relation is never removed, because disabling the access does not affect work that is already queued.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_sys::*;

use super::contexts::{self, Current, DEVICES};
use super::user_contexts;
use crate::bfc;

/// For one device's memory, the contexts whose work may use it: a bit for each device's primary context, and one for
/// each context created by the program.
struct Users {
    primaries: AtomicU64,
    user_contexts: AtomicU64,
}

static USERS: [Users; DEVICES] =
    [const { Users { primaries: AtomicU64::new(0), user_contexts: AtomicU64::new(0) } }; DEVICES];

/// Set if work of a context with an unknown handle may use anything. Every pool then waits for every context.
static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Returns whether work of device `user`'s primary context may use memory of device `owner`'s pool, judging by what the
/// program has done.
pub(crate) fn is_primary_related(user: usize, owner: usize) -> bool {
    IS_UNKNOWN.load(Ordering::Acquire)
        || USERS.get(owner).is_none_or(|users| users.primaries.load(Ordering::Acquire) >> user & 1 != 0)
}

/// Returns the same for a context created by the program, by the number of its place.
pub(crate) fn is_user_context_related(place: usize, owner: usize) -> bool {
    IS_UNKNOWN.load(Ordering::Acquire)
        || USERS.get(owner).is_none_or(|users| users.user_contexts.load(Ordering::Acquire) >> place & 1 != 0)
}

/// Relates every context to every pool.
#[inline]
pub(crate) fn relate_all() {
    if !IS_UNKNOWN.load(Ordering::Relaxed) {
        IS_UNKNOWN.store(true, Ordering::Release);
    }
}

/// Forgets the relations of a context created by the program, because another one gets its place.
pub(crate) fn forget_user_context(place: usize) {
    for users in &USERS {
        users.user_contexts.fetch_and(!(1 << place), Ordering::AcqRel);
    }
}

fn note(user: CUcontext, owner: usize) {
    let Some(users) = USERS.get(owner) else { return };
    let bit = |place: &AtomicU64, number: usize| {
        if place.load(Ordering::Relaxed) >> number & 1 == 0 {
            place.fetch_or(1 << number, Ordering::AcqRel);
        }
    };
    match (contexts::known_as(user), user_contexts::place_of(user)) {
        (Current::Primary(device), _) => bit(&users.primaries, device),
        (_, Some(place)) => bit(&users.user_contexts, place),
        _ => relate_all(),
    }
}

/// Relates the current context to the device of another context, whose memory it may access.
pub(crate) fn note_peer(owner: CUcontext) {
    let device = match contexts::known_as(owner) {
        Current::Primary(device) => Some(device),
        _ => user_contexts::device_of(owner),
    };
    match (contexts::current_handle(), device) {
        (Some(user), Some(device)) => note(user, device),
        _ => relate_all(),
    }
}

/// Relates the context of a stream to the pools that hold these addresses, which work on the stream is about to use.
#[cold]
pub(crate) fn note_addresses(stream: CUstream, addresses: &[CUdeviceptr]) {
    for &address in addresses.iter().filter(|&&address| address != 0) {
        // Pinned memory is shared by all contexts anyway.
        let Some(owner) = bfc::owner(address).and_then(|owner| usize::try_from(owner).ok()) else { continue };
        if owner >= DEVICES {
            continue;
        }
        match contexts::of_stream(stream) {
            Some(user) if contexts::known_as(user) == Current::Primary(owner) => {}
            Some(user) => note(user, owner),
            // Either there is no context, so the call fails, or the context is unknown.
            None => relate_all(),
        }
    }
}

/// Relates all contexts if a graph node uses pooled memory, because it runs wherever the graph is launched.
#[cold]
pub(crate) fn note_node(addresses: &[CUdeviceptr]) {
    if addresses.iter().any(|&address| address != 0 && bfc::owner(address).is_some()) {
        relate_all();
    }
}

/// Relates all contexts if the program itself maps pooled memory, because work may then use it through other addresses,
/// or on other devices.
pub(crate) fn note_mapped(address: CUdeviceptr) {
    if address != 0 && bfc::owner(address).is_some() {
        relate_all();
    }
}
