//! Streams of another device, and of contexts that the program has created: the pool waits for their work like for that
//! of its own context, and a synchronization of one context does not cover another's streams.

use super::{Mark, Outcome, REQUESTS, Request, first_of, fixed_pool, misuses, pairs, variants};
use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::simulated_with;
use crate::common::simcuda::steer::{FREE_SYNCHRONIZES, POISON};
use crate::common::*;
use crate::harness;

/// The context of the foreign stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// In the primary context of device 1, whose kernels reach device 0.
    Peer,
    /// In a context of `cuCtxCreate` on device 0.
    Created,
    /// In a green context on device 0.
    Green,
}

use Home::{Created, Peer};

impl Home {
    /// Enters it. `own` is the pool's.
    pub fn enter(self, gpu: Gpu, own: u64) -> u64 {
        match self {
            Home::Created => gpu.own_context(0),
            Home::Green => gpu.green_context(0).context,
            Home::Peer => {
                let peer = gpu.enter(1);
                gpu.enable_peer(own);
                peer
            }
        }
    }
}

/// How the foreign stream uses the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Recorded, and the chunk is freed on a stream of the pool's own context.
    Recorded,
    /// The same, with a copy to memory of the foreign context instead of a kernel.
    Copied,
    /// Freed in its order.
    FreedThere,
    /// Allocated and freed in its order.
    AllocatedThere,
    /// Allocated in its order, and freed by `bfc_free` with the pool's own context current.
    FreedPlainly,
    /// Allocated and freed in its order, when no other stream is known.
    Only,
}

/// The next operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Request(Request),
    /// A request for more than the free memory, which a growing pool serves once it has released the region.
    Collection,
    Trim,
    Destruction,
    /// `bfc_pool_begin` and a request.
    Private,
    /// `bfc_forget_stream`, and `bfc_alloc_async`.
    Forget,
}

#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub backend: (u32, u64),
    pub home: Home,
    pub use_: Use,
    pub next: Next,
    /// A default stream, which belongs to the context that is current. Otherwise it is created.
    pub default: Option<u64>,
    /// The foreign context is current when the library is called.
    pub elsewhere: bool,
}

#[test]
fn foreign_streams_are_waited_for() {
    use {Next::*, Use::*};
    let uses = [Recorded, Copied, FreedThere, AllocatedThere, Only];
    let nexts =
        REQUESTS.map(Next::Request).into_iter().chain([Collection, Trim, Destruction, Private, Forget]);
    let homes = [(Peer, false), (Created, false), (Created, true)];
    let kinds = pairs(pairs(uses, nexts), pairs(homes, BACKENDS)).into_iter().filter(|kind| {
        let &((use_, next), ((home, _), (backend, _))) = kind;
        // Kernels of a peer access mapped memory by cuMemSetAccess, which another test covers. A copy from memory that is
        // unmapped crashes like an access by the program itself.
        let crashes = use_ == Copied && matches!(next, Trim | Collection | Destruction);
        backend != BFC_BACKEND_CUDA_VMM || home == Created && !crashes
    });
    let variant = |((use_, next), ((home, elsewhere), backend))| Variant {
        backend,
        home,
        use_,
        next,
        default: None,
        elsewhere,
    };
    variants(kinds.map(variant), is_waited_for);
}

/// A foreign stream works on memory that is freed meanwhile.
pub fn is_waited_for(gpu: Gpu, variant: Variant) -> Outcome {
    let Variant { backend: (backend, unit), home, use_, next, default, elsewhere } = variant;
    // Otherwise the driver itself waits for the device, of device 0 at least.
    gpu.sim.set(FREE_SYNCHRONIZES, 0);
    // Copies from released memory find other contents there, and do not crash.
    gpu.sim.set(POISON, 1);
    let own = gpu.enter(0);
    let foreign = home.enter(gpu, own);
    let (there, bytes) = (default.unwrap_or_else(|| gpu.stream(false)), 100 * unit);
    let target = gpu.alloc(bytes);
    gpu.hold(there);
    gpu.set_current(own);
    let (here, other) = (gpu.stream(false), gpu.stream(false));
    let pool = match next {
        Next::Collection | Next::Trim => Pool::in_small_regions(backend, 0, 256 * unit, GROWING),
        _ => fixed_pool(backend, 128 * unit),
    };
    // A default stream is named in its own context.
    let go_there = || gpu.set_current(if elsewhere || default.is_some() { foreign } else { own });
    let go_back = || gpu.set_current(if elsewhere { foreign } else { own });
    go_back();
    let streams = [here, other].into_iter().chain(Some(there).filter(|_| default.is_none()));
    let known = streams.filter(|_| use_ != Use::Only).map(|stream| pool.get_on(unit, stream));
    let known: Vec<u64> = known.collect();
    let chunk = if matches!(use_, Use::AllocatedThere | Use::FreedPlainly | Use::Only) {
        go_there();
        let chunk = pool.get_on(bytes, there);
        gpu.fill(there, chunk, bytes, 1);
        chunk
    } else {
        let chunk = pool.get_on(bytes, here);
        gpu.fill(here, chunk, bytes, 1);
        gpu.set_current(own);
        let event = gpu.recorded(here);
        gpu.set_current(if home == Peer || default.is_some() { foreign } else { own });
        gpu.wait(there, event);
        gpu.set_current(own);
        gpu.destroy_event(event);
        go_there();
        chunk
    };
    if use_ == Use::Copied {
        gpu.copy(target, foreign, chunk, own, bytes, there);
        gpu.expect(there, target, bytes, 1);
    } else {
        gpu.expect(there, chunk, bytes, 1);
    }
    let done = Mark::queue(gpu, there);
    match use_ {
        Use::Recorded | Use::Copied => {
            assert_eq!(pool.record(chunk, there), BFC_OK, "{}", last_error());
            go_back();
            pool.put_on(chunk, here);
        }
        Use::FreedPlainly => {
            go_back();
            pool.put(chunk);
        }
        _ => pool.put_on(chunk, there),
    }
    go_back();
    let got = follow(&pool, next, unit, [other, there]);
    gpu.set_current(own);
    let mut is_early = next == Next::Destruction && !done.is_reached();
    if let Ok(Some(address)) = got {
        // The new chunk may not overlap the freed one.
        let overlaps = address < chunk + bytes && chunk < address + bytes;
        gpu.fill(other, address, bytes, 2);
        is_early |= overlaps && done.is_overtaken(gpu, other);
        gpu.expect(other, address, bytes, 2);
    }
    gpu.sim.release_all();
    let (mismatches, misused) = (gpu.sim.mismatches(), misuses(gpu));
    if let Ok(Some(address)) = got {
        pool.put_on(address, other);
    }
    if next != Next::Destruction {
        if next == Next::Private {
            assert_eq!(pool.end_private(7, other), BFC_OK, "{}", last_error());
        }
        known.into_iter().for_each(|address| pool.put(address));
        pool.check();
    }
    got?;
    first_of([
        (mismatches != 0, "wrong data: the foreign stream finds what was written after the free"),
        (is_early, "the memory is handed out, or given back, while the foreign stream still works on it"),
    ])?;
    misused
}

/// Returns the allocation, if there is one.
fn follow(pool: &Pool, next: Next, unit: u64, [other, there]: [u64; 2]) -> Result<Option<u64>, String> {
    let ask = |request: Request, bytes| request.make(pool, bytes, other).map(Some);
    let well = |what: &str, status| match status {
        BFC_OK => Ok(()),
        status => Err(format!("{what}: {status}, {}", last_error())),
    };
    match next {
        Next::Request(request) => return ask(request, 100 * unit),
        Next::Collection => return ask(Request::Async, 150 * unit),
        Next::Trim => return well("bfc_trim", pool.try_trim(0).err().unwrap_or(BFC_OK)).map(|()| None),
        Next::Destruction => return well("bfc_destroy_forced", pool.destroy_forced()).map(|()| None),
        Next::Private => well("bfc_pool_begin", pool.begin_private(7, other))?,
        Next::Forget => well("bfc_forget_stream", pool.try_forget(there))?,
    }
    ask(Request::Async, 100 * unit)
}

/// A foreign stream gets memory that a stream of the pool's context has freed, ordered after its work.
#[test]
fn foreign_streams_wait() {
    // Whether it is known before.
    variants(pairs([Peer, Created], [true, false]), |gpu, (home, known_before)| {
        let own = gpu.enter(0);
        let foreign = home.enter(gpu, own);
        let there = gpu.stream(false);
        gpu.set_current(own);
        let here = gpu.stream(false);
        let pool = fixed_pool(BFC_BACKEND_CUDA, 128 * KIB);
        let known = known_before.then(|| pool.get_on(KIB, there));
        gpu.hold(here);
        let chunk = pool.get_on(100 * KIB, here);
        gpu.fill(here, chunk, 100 * KIB, 1);
        gpu.expect(here, chunk, 100 * KIB, 1);
        pool.put_on(chunk, here);
        gpu.set_current(foreign);
        let address = Request::Async.make(&pool, 100 * KIB, there)?;
        gpu.fill(there, address, 100 * KIB, 2);
        gpu.expect(there, address, 100 * KIB, 2);
        gpu.sim.release_all();
        pool.put_on(address, there);
        known.into_iter().for_each(|address| pool.put(address));
        gpu.set_current(own);
        pool.check();
        first_of([(gpu.sim.mismatches() != 0, "wrong data")])?;
        misuses(gpu)
    });
}

/// Memory that was freed on a stream of a green context serves others once its work has completed. The green context is
/// current to another thread, and before CUDA 13 "can be current to only one thread at a time" (cuGreenCtxCreate).
fn green_streams(version: &str) {
    simulated_with(&harness::test(), &[("SIMCUDA_DRIVER_VERSION", version)], |sim| {
        let gpu = Gpu::new(sim);
        let own = gpu.enter(0);
        let green = gpu.green_stream(gpu.green_context(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gpu.set_current(own);
                let other = gpu.stream(false);
                let pool = fixed_pool(BFC_BACKEND_CUDA, 256 * KIB);
                let known = pool.get_on(KIB, other);
                gpu.hold(green);
                let chunk = pool.get_on(200 * KIB, green);
                gpu.fill(green, chunk, 200 * KIB, 1);
                gpu.expect(green, chunk, 200 * KIB, 1);
                pool.put_on(chunk, green);
                let got = pool.alloc_on(200 * KIB, other);
                let again = got.unwrap_or_else(|status| panic!("{status}: {}", last_error()));
                gpu.fill(other, again, 200 * KIB, 2);
                gpu.sim.release_all();
                gpu.expect(other, again, 200 * KIB, 2);
                pool.put_on(again, other);
                pool.put_on(known, other);
                pool.forget(green);
                assert!(pool.try_trim(0).is_ok() && pool.stats().pool_bytes == 0, "{}", last_error());
            });
        });
        assert_eq!((sim.mismatches(), sim.misuses()), (0, 0), "{:?}", sim.misuse_texts());
    });
}

/// cuStreamGetCtx does not return the context of such a stream, but cuStreamGetCtx_v2 does.
#[test]
fn green_streams_of_12_9() {
    green_streams("12090");
}

#[test]
fn green_streams_of_13() {
    green_streams("13050");
}

/// The reasons why memory is freed without an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    /// In a capture of the stream, which is then aborted.
    InCapture,
    /// The driver fails to record.
    Refused,
}

/// The pool waits for a foreign stream's work that no event covers before it releases the memory, too.
#[test]
fn the_end_waits_for_foreign_work_without_an_event() {
    // Whether there is an event of the stream before.
    let kinds = pairs([Without::InCapture, Without::Refused], pairs([false, true], BACKENDS));
    variants(kinds, |gpu, (without, (freed_before, (backend, unit)))| {
        gpu.sim.set(FREE_SYNCHRONIZES, 0);
        gpu.sim.set(POISON, 1);
        let own = gpu.enter(0);
        let here = gpu.stream(false);
        gpu.own_context(0);
        let there = gpu.stream(false);
        gpu.set_current(own);
        let pool = fixed_pool(backend, 128 * unit);
        let known = [here, there].map(|stream| pool.get_on(unit, stream));
        let chunk = pool.get_on(100 * unit, there);
        if freed_before {
            known.into_iter().zip([here, there]).for_each(|(address, stream)| pool.put_on(address, stream));
        }
        gpu.hold(there);
        gpu.fill(there, chunk, 100 * unit, 1);
        gpu.expect(there, chunk, 100 * unit, 1);
        let done = Mark::queue(gpu, there);
        if without == Without::InCapture {
            gpu.begin_capture(there);
            pool.put_on(chunk, there);
            gpu.destroy_graph(gpu.end_capture(there));
        } else {
            gpu.sim.fail(Some("cuEventRecord"), 1, cuda_sys::CUDA_ERROR_UNKNOWN);
            pool.put_on(chunk, there);
        }
        if !freed_before {
            pool.put_on(known[0], here);
            gpu.sim.fail(Some("cuEventRecord"), 1, cuda_sys::CUDA_ERROR_UNKNOWN);
            pool.put_on(known[1], there);
        }
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        let is_early = !done.is_reached();
        gpu.sim.release_all();
        let is_wrong = is_early || gpu.sim.mismatches() != 0;
        first_of([(is_wrong, "the memory goes back while the stream still works on it")])?;
        misuses(gpu)
    });
}
