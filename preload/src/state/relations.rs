//! Which contexts' work may touch memory of which device's pool: who has to be waited for before a chunk is handed out
//! again.
//!
//! A program whose threads drive a device each may queue work on one device that goes on only when another device's work
//! has begun (a collective), and cudaMalloc on either must not wait for that. So a pool waits for the contexts of its own
//! device, and for others only once their work can touch its memory:
//! - "on success all allocations from peerContext will immediately be accessible by the current context" (cuda.h,
//!   cuCtxEnablePeerAccess), and "access granted by this call is unidirectional";
//! - a copy reaches the memory of any device without that (CUDA C++ Programming Guide, Peer-to-Peer Memory Copy);
//! - libbfc maps granules for all devices that can reach their device, and cuMemSetAccess does "set the access flags for the
//!   target locations", whatever cuCtxEnablePeerAccess was told.
//!
//! From the first call of a function that is not analysed (`unanalyzed`) every pool waits for every context.
//!
//! What was once seen holds for good: disabling the access says nothing of the work that is queued.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_sys::*;

use super::contexts::{self, Current, DEVICES};
use super::user_contexts;
use crate::bfc;

/// For each device's memory, whose work may touch it: a bit for each device's primary context, and one for each context
/// that the program has created.
struct Users {
    primaries: AtomicU64,
    created: AtomicU64,
}

static USERS: [Users; DEVICES] =
    [const { Users { primaries: AtomicU64::new(0), created: AtomicU64::new(0) } }; DEVICES];

/// Work of a context that is not known by its handle may touch anything: then every pool waits for every context.
static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Whether the program has related work of a device's primary context to memory of a device's pool.
pub(crate) fn is_primary_related(user: usize, owner: usize) -> bool {
    IS_UNKNOWN.load(Ordering::Acquire)
        || USERS.get(owner).is_none_or(|users| users.primaries.load(Ordering::Acquire) >> user & 1 != 0)
}

/// The same of a context that the program has created, by the number of its place.
pub(crate) fn is_user_context_related(place: usize, owner: usize) -> bool {
    IS_UNKNOWN.load(Ordering::Acquire)
        || USERS.get(owner).is_none_or(|users| users.created.load(Ordering::Acquire) >> place & 1 != 0)
}

/// From now on every pool waits for every context.
#[inline]
pub(crate) fn relate_all() {
    if !IS_UNKNOWN.load(Ordering::Relaxed) {
        IS_UNKNOWN.store(true, Ordering::Release);
    }
}

/// A place is about to be another context's.
pub(crate) fn forget_user_context(place: usize) {
    for users in &USERS {
        users.created.fetch_and(!(1 << place), Ordering::AcqRel);
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
        (_, Some(place)) => bit(&users.created, place),
        _ => relate_all(),
    }
}

/// The current context may touch memory of another one from now on.
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

/// Work on a stream is about to touch some addresses.
#[cold]
pub(crate) fn note_addresses(stream: CUstream, addresses: &[CUdeviceptr]) {
    for &address in addresses.iter().filter(|&&address| address != 0) {
        // Pinned memory is every context's anyway.
        let Some(owner) = bfc::owner(address).and_then(|owner| usize::try_from(owner).ok()) else { continue };
        if owner >= DEVICES {
            continue;
        }
        match contexts::of_stream(stream) {
            Some(user) if contexts::known_as(user) == Current::Primary(owner) => {}
            Some(user) => note(user, owner),
            // The call fails, for there is no context; or nobody can say.
            None => relate_all(),
        }
    }
}

/// A graph's copy that touches pooled memory runs wherever the graph is launched.
#[cold]
pub(crate) fn note_node(addresses: &[CUdeviceptr]) {
    if addresses.iter().any(|&address| address != 0 && bfc::owner(address).is_some()) {
        relate_all();
    }
}

/// The program maps memory itself. If it is pooled, work may touch it from then on by other addresses, or of other devices.
pub(crate) fn note_mapped(address: CUdeviceptr) {
    if address != 0 && bfc::owner(address).is_some() {
        relate_all();
    }
}
