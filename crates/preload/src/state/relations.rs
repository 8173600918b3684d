//! Relations between contexts and the pools whose memory their work may use, judging by the program's calls. A pool
//! waits for these contexts before it reuses a chunk.
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

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use cuda_sys::*;

use super::contexts::{self, Current, DEVICES};
use super::green_contexts;
use super::streams;
use super::user_contexts::{self, UserContext};
use crate::bfc;

/// For each device's memory, the devices whose primary contexts' work may use it: a bit for each. The relations of
/// contexts created by the program are in `user_contexts`.
static USERS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// Set if work of a context with an unknown handle may use anything. Every pool then waits for every context.
static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Returns whether work of device `user`'s primary context may use memory of device `owner`'s pool, judging by the
/// program's calls.
pub(crate) fn is_primary_related(user: usize, owner: usize) -> bool {
    IS_UNKNOWN.load(Ordering::Acquire)
        || is_used_by_unknown(owner)
        || USERS.get(owner).is_none_or(|users| users.load(Ordering::Acquire) >> user & 1 != 0)
}

/// Returns this for a context created by the program.
pub(crate) fn is_user_context_related(user: UserContext, owner: usize) -> bool {
    IS_UNKNOWN.load(Ordering::Acquire)
        || owner >= DEVICES
        || is_used_by_unknown(owner)
        || user.is_related(owner)
}

/// Relates every context to every pool.
#[inline]
pub(crate) fn relate_all() {
    if !IS_UNKNOWN.load(Ordering::Relaxed) {
        IS_UNKNOWN.store(true, Ordering::Release);
    }
}

/// Returns the device whose primary context waits for the work of a context: its own, or that of a green context.
fn primary_device(context: CUcontext) -> Option<usize> {
    match contexts::known_as(context) {
        Current::Primary(device) => Some(device),
        _ => green_contexts::device_of(context),
    }
}

fn note(user: CUcontext, owner: usize) {
    let Some(users) = USERS.get(owner) else { return };
    if let Some(device) = primary_device(user) {
        if users.load(Ordering::Relaxed) >> device & 1 == 0 {
            users.fetch_or(1 << device, Ordering::AcqRel);
        }
    } else if let Some(user) = user_contexts::find(user) {
        user.relate(owner);
    } else {
        relate_all();
    }
}

/// Relates the current context to the device of another context, whose memory it may access.
pub(crate) fn note_peer(owner: CUcontext) {
    let created = || usize::try_from(user_contexts::find(owner)?.device()).ok();
    let device = primary_device(owner).or_else(created);
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
        match streams::of_stream(stream) {
            Some(user) if primary_device(user) == Some(owner) => {}
            Some(user) => note(user, owner),
            None => note_unknown(stream, owner),
        }
    }
}

/// A stream whose context is not known, with a bit for each device whose memory its work may use. It is captured, so it
/// cannot be queried, and the work runs when its graph is launched. Or the driver has failed.
struct Unknown {
    /// NULL if the place is free.
    stream: AtomicPtr<CUstream_st>,
    owners: AtomicU64,
}

static UNKNOWN: [Unknown; 16] =
    [const { Unknown { stream: AtomicPtr::new(ptr::null_mut()), owners: AtomicU64::new(0) } }; 16];

/// Set if there may be any, so that a check costs one load.
static ARE_UNKNOWN: AtomicBool = AtomicBool::new(false);

#[cold]
fn note_unknown(stream: CUstream, owner: usize) {
    // A driver before CUDA 9.2 never reports the context.
    if !streams::can_ask() {
        return relate_all();
    }
    // Without a context the call fails.
    if contexts::is_default(stream) {
        return;
    }
    let is_place = |place: &&Unknown| {
        let free = ptr::null_mut();
        let taken = place.stream.compare_exchange(free, stream, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(stream)
    };
    let Some(place) = UNKNOWN.iter().find(is_place) else { return relate_all() };
    place.owners.fetch_or(1 << owner, Ordering::AcqRel);
    ARE_UNKNOWN.store(true, Ordering::Release);
    if place.stream.load(Ordering::Acquire) != stream {
        // Another thread has just learnt the context, and did not see this owner.
        relate_all();
    }
}

/// Queries unknown contexts again, as far as their streams are no longer captured. Until then, the
/// pools in question wait for every context. Other threads never see a relation that is neither recorded nor unknown.
fn ask_again(is_asked: impl Fn(CUstream) -> bool) {
    for place in &UNKNOWN {
        let stream = place.stream.load(Ordering::Acquire);
        let asked = Some(stream).filter(|&stream| !stream.is_null() && is_asked(stream));
        let Some(user) = asked.and_then(streams::of_stream) else { continue };
        let owners = place.owners.load(Ordering::Acquire);
        (0..DEVICES).filter(|owner| owners >> owner & 1 != 0).for_each(|owner| note(user, owner));
        if place.owners.compare_exchange(owners, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ =
                place.stream.compare_exchange(stream, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
        }
    }
    let is_one_left = || UNKNOWN.iter().any(|place| !place.stream.load(Ordering::Acquire).is_null());
    if !is_one_left() {
        ARE_UNKNOWN.store(false, Ordering::SeqCst);
        // Another thread may have taken a place in the meantime.
        ARE_UNKNOWN.fetch_or(is_one_left(), Ordering::SeqCst);
    }
}

/// Returns whether the work of a stream whose context is not known may use a device's memory.
fn is_used_by_unknown(owner: usize) -> bool {
    if !ARE_UNKNOWN.load(Ordering::Acquire) {
        return false;
    }
    ask_again(|_| true);
    UNKNOWN.iter().any(|place| place.owners.load(Ordering::Acquire) >> owner & 1 != 0)
}

/// Queries the context of a stream that is about to end. If it is captured, it ends without a graph.
pub(crate) fn stream_ends(stream: CUstream) {
    if !ARE_UNKNOWN.load(Ordering::Acquire) {
        return;
    }
    ask_again(|other| other == stream);
    for place in UNKNOWN.iter().filter(|place| place.stream.load(Ordering::Acquire) == stream) {
        place.owners.store(0, Ordering::Release);
        let _ = place.stream.compare_exchange(stream, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Queries the contexts of all streams, because a context is about to end. Those whose contexts stay unknown are not
/// queried again, because they may end with it.
pub(crate) fn context_ends() {
    if !ARE_UNKNOWN.load(Ordering::Acquire) {
        return;
    }
    ask_again(|_| true);
    for place in UNKNOWN.iter() {
        if !place.stream.swap(ptr::null_mut(), Ordering::AcqRel).is_null() {
            place.owners.store(0, Ordering::Release);
            relate_all();
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
