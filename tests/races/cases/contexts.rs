//! Streams of another device, and of contexts that the program has created: the pool waits for their work like for that
//! of its own context, and a synchronization of one context does not cover another's streams.

use super::{Mark, Request, first_of, fixed_pool, variants};
use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::simulated_with;
use crate::common::simcuda::steer::{FREE_SYNCHRONIZES, POISON};
use crate::common::*;

/// The context of the foreign stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    /// In the primary context of device 1, whose kernels reach device 0.
    Peer,
    /// In a context of `cuCtxCreate` on device 0.
    Created,
}

/// How the foreign stream uses the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Recorded, and the chunk is freed on a stream of the pool's own context.
    Recorded,
    /// The same, with a copy to memory of the foreign context instead of a kernel.
    Copied,
    /// Freed in its order.
    FreedThere,
    /// Allocated and freed in its order.
    AllocatedThere,
    /// Allocated and freed in its order, when no other stream is known.
    Only,
}

/// The next operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Plain,
    Async,
    Ex,
    /// A request for more than the free memory, which a growing pool serves once it has released the region.
    Collection,
    Trim,
    Destruction,
    /// `bfc_pool_begin` and a request.
    Private,
    /// `bfc_forget_stream`, and `bfc_alloc_async`.
    Forget,
}

#[derive(Clone, Copy)]
struct Variant {
    backend: u32,
    unit: u64,
    home: Home,
    use_: Use,
    next: Next,
    /// The foreign context is current when the library is called.
    elsewhere: bool,
}

fn all() -> impl Iterator<Item = (String, Variant)> {
    use {Next::*, Use::*};
    let uses = [Recorded, Copied, FreedThere, AllocatedThere, Only];
    let nexts = [Plain, Async, Ex, Collection, Trim, Destruction, Private, Forget];
    let kinds = uses.into_iter().flat_map(move |use_| nexts.map(|next| (use_, next)));
    kinds.flat_map(|(use_, next)| {
        let homes = [(Home::Peer, false), (Home::Created, false), (Home::Created, true)];
        homes.into_iter().flat_map(move |(home, elsewhere)| {
            // Kernels of a peer access mapped memory by cuMemSetAccess, which another test covers. A copy from memory
            // that is unmapped crashes like an access by the program itself.
            let crashes = use_ == Copied && matches!(next, Trim | Collection | Destruction);
            let is_mapped = move |(backend, _): &(u32, u64)| *backend == BFC_BACKEND_CUDA_VMM;
            let fits = move |one: &(u32, u64)| !is_mapped(one) || home == Home::Created && !crashes;
            BACKENDS.into_iter().filter(fits).map(move |(backend, unit)| {
                let name =
                    format!("{home:?}, {use_:?}, then {next:?}, backend {backend}, elsewhere {elsewhere}");
                (name, Variant { backend, unit, home, use_, next, elsewhere })
            })
        })
    })
}

#[test]
fn foreign_streams_are_waited_for() {
    variants("cases::contexts::foreign_streams_are_waited_for", all(), |gpu, variant| {
        let Variant { backend, unit, home, use_, next, elsewhere } = variant;
        // Otherwise the driver itself waits for the device, of device 0 at least.
        gpu.sim.set(FREE_SYNCHRONIZES, 0);
        // Copies from released memory find other contents there, and do not crash.
        gpu.sim.set(POISON, 1);
        let own = gpu.enter(0);
        let foreign = match home {
            Home::Peer => gpu.enter(1),
            Home::Created => gpu.own_context(0),
        };
        gpu.set_current(foreign);
        if home == Home::Peer {
            gpu.enable_peer(own);
        }
        let (there, target) = (gpu.stream(false), gpu.alloc(100 * unit));
        gpu.hold(there);
        gpu.set_current(own);
        let (here, other) = (gpu.stream(false), gpu.stream(false));
        let grows = matches!(next, Next::Collection | Next::Trim);
        let pool = match grows {
            true => Pool::in_small_regions(backend, 0, 256 * unit, GROWING),
            false => fixed_pool(backend, 128 * unit),
        };
        gpu.set_current(if elsewhere { foreign } else { own });
        let known: Vec<u64> = match use_ {
            Use::Only => Vec::new(),
            _ => [here, other, there].iter().map(|&stream| pool.get_on(unit, stream)).collect(),
        };
        let bytes = 100 * unit;
        let chunk = match use_ {
            Use::AllocatedThere | Use::Only => pool.get_on(bytes, there),
            _ => pool.get_on(bytes, here),
        };
        let filler = if matches!(use_, Use::AllocatedThere | Use::Only) { there } else { here };
        gpu.fill(filler, chunk, bytes, 1);
        order(gpu, filler, there, [own, foreign], home);
        match use_ {
            Use::Copied => {
                gpu.copy(target, foreign, chunk, own, bytes, there);
                gpu.expect(there, target, bytes, 1);
            }
            _ => gpu.expect(there, chunk, bytes, 1),
        }
        let done = Mark::queue(gpu, there);
        match use_ {
            Use::Recorded | Use::Copied => {
                assert_eq!(pool.record(chunk, there), BFC_OK, "{}", last_error());
                pool.put_on(chunk, here);
            }
            _ => pool.put_on(chunk, there),
        }
        let got = follow(&pool, next, unit, [other, there]);
        gpu.set_current(own);
        let mut is_early = matches!(next, Next::Destruction) && !done.is_reached();
        if let Ok(Some(address)) = got {
            // The new chunk may not overlap the freed one.
            let overlaps = address < chunk + bytes && chunk < address + bytes;
            gpu.fill(other, address, bytes, 2);
            is_early |= overlaps && Mark::queue(gpu, other).is_reached() && !done.is_reached();
            gpu.expect(other, address, bytes, 2);
        }
        gpu.sim.release_all();
        let (mismatches, texts) = (gpu.sim.mismatches(), gpu.sim.misuse_texts());
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
        if !texts.is_empty() && mismatches == 0 {
            return Err(format!("misuse: {}", texts.join("; ")));
        }
        first_of([
            (mismatches != 0, "wrong data: the foreign stream finds what was written after the free"),
            (is_early, "the memory is handed out, or given back, while the foreign stream still works on it"),
        ])
    });
}

/// Orders a stream's later work after another stream's work so far, even in another context.
fn order(gpu: Gpu, before: u64, after: u64, [own, foreign]: [u64; 2], home: Home) {
    if before == after {
        return;
    }
    let current = gpu.current();
    gpu.set_current(own);
    let event = gpu.recorded(before);
    gpu.set_current(if home == Home::Peer { foreign } else { own });
    gpu.wait(after, event);
    gpu.set_current(own);
    gpu.destroy_event(event);
    gpu.set_current(current);
}

/// Returns the allocation, if there is one.
fn follow(pool: &Pool, next: Next, unit: u64, [other, there]: [u64; 2]) -> Result<Option<u64>, String> {
    let ask = |request: Request, bytes| request.make(pool, bytes, other).map(Some);
    match next {
        Next::Plain => ask(Request::Plain, 100 * unit),
        Next::Async => ask(Request::Async, 100 * unit),
        Next::Ex => ask(Request::Ex, 100 * unit),
        Next::Collection => ask(Request::Async, 150 * unit),
        Next::Trim => pool.try_trim(0).map(|_| None).map_err(|status| format!("{status}: {}", last_error())),
        Next::Destruction => match pool.destroy_forced() {
            BFC_OK => Ok(None),
            status => Err(format!("{status}: {}", last_error())),
        },
        Next::Private => {
            assert_eq!(pool.begin_private(7, other), BFC_OK, "{}", last_error());
            ask(Request::Async, 100 * unit)
        }
        Next::Forget => {
            match pool.try_forget(there) {
                BFC_OK => {}
                status => return Err(format!("bfc_forget_stream: {status}, {}", last_error())),
            }
            ask(Request::Async, 100 * unit)
        }
    }
}

/// A foreign stream gets memory that a stream of the pool's context has freed, ordered after its work.
#[test]
fn foreign_streams_wait() {
    let homes =
        [Home::Peer, Home::Created].into_iter().flat_map(|home| [true, false].map(|first| (home, first)));
    let kinds = homes.map(|(home, first)| (format!("{home:?}, known before: {first}"), (home, first)));
    variants("cases::contexts::foreign_streams_wait", kinds, |gpu, (home, known_before)| {
        let own = gpu.enter(0);
        let foreign = match home {
            Home::Peer => gpu.enter(1),
            Home::Created => gpu.own_context(0),
        };
        gpu.set_current(foreign);
        if home == Home::Peer {
            gpu.enable_peer(own);
        }
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
        let got = Request::Async.make(&pool, 100 * KIB, there);
        if let Ok(address) = got {
            gpu.fill(there, address, 100 * KIB, 2);
            gpu.expect(there, address, 100 * KIB, 2);
            gpu.sim.release_all();
            pool.put_on(address, there);
        }
        gpu.sim.release_all();
        known.into_iter().for_each(|address| pool.put(address));
        let (mismatches, texts) = (gpu.sim.mismatches(), gpu.sim.misuse_texts());
        gpu.set_current(own);
        pool.check();
        got?;
        if !texts.is_empty() && mismatches == 0 {
            return Err(format!("misuse: {}", texts.join("; ")));
        }
        first_of([(mismatches != 0, "wrong data")])
    });
}

/// Memory that was freed on a stream of a green context serves others once its work has completed. The green context is
/// current to another thread, and before CUDA 13 "can be current to only one thread at a time" (cuGreenCtxCreate).
fn green_streams(test: &str, version: &str) {
    simulated_with(test, &[("SIMCUDA_DRIVER_VERSION", version)], |sim| {
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
    green_streams("cases::contexts::green_streams_of_12_9", "12090");
}

#[test]
fn green_streams_of_13() {
    green_streams("cases::contexts::green_streams_of_13", "13050");
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
    let kinds = [Without::InCapture, Without::Refused].into_iter().flat_map(|without| {
        let known = [false, true].map(|freed_before| (without, freed_before));
        known.into_iter().flat_map(|kind| BACKENDS.map(|backend| (kind, backend)))
    });
    let kinds = kinds.map(|kind| (format!("{kind:?} (how, an event before, backend)"), kind));
    let test = "cases::contexts::the_end_waits_for_foreign_work_without_an_event";
    variants(test, kinds, |gpu, ((without, freed_before), (backend, unit))| {
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
        let destroyed = pool.destroy();
        let is_early = !done.is_reached();
        gpu.sim.release_all();
        let texts = gpu.sim.misuse_texts();
        assert_eq!(destroyed, BFC_OK, "{}", last_error());
        first_of([
            (
                is_early || gpu.sim.mismatches() != 0,
                "the memory goes back while the stream still works on it",
            ),
            (!texts.is_empty(), &format!("misuse: {}", texts.join("; "))),
        ])
    });
}
