//! Tests in which all memory is lost in the middle of a plan, at every call of the backend. No earlier state is used
//! afterwards, and the listener is notified of every granule once.

use super::super::super::listener::RegionEvent;
use super::*;
use std::ffi::c_void;

/// The granules that the listener was notified of and that were not returned since.
#[derive(Default)]
struct Told(Mutex<BTreeSet<u64>>);

unsafe extern "C" fn told(user_data: *mut c_void, _: i32, base: *mut c_void, bytes: usize, event: i32) {
    // SAFETY: the tests pass a reference that is never freed.
    let told = unsafe { &*user_data.cast::<Told>() };
    let (base, bytes) = (base as u64, bytes as u64);
    assert!(base.is_multiple_of(GRANULE) && bytes.is_multiple_of(GRANULE), "whole granules");
    let mut granules = told.0.lock().unwrap();
    for granule in (base..base + bytes).step_by(GRANULE as usize) {
        if event == RegionEvent::Obtained as i32 {
            assert!(granules.insert(granule), "obtained twice");
        } else {
            assert!(granules.remove(&granule), "returned, and never obtained");
        }
    }
}

fn listen(slot: &Slot) -> &'static Told {
    let told_of: &'static Told = Box::leak(Box::default());
    let user_data = std::ptr::from_ref(told_of).cast_mut().cast();
    lifecycle::set_region_callback(slot, Some(told), user_data).unwrap();
    told_of
}

struct Program {
    slot: &'static Slot,
    fake: &'static Fake,
    told: &'static Told,
    live: Vec<u64>,
    life: u64,
    failures: u32,
}

impl Program {
    /// Checks the state after a step. `new` was allocated in it. If all memory was lost in it, earlier allocations are
    /// invalid.
    fn look(&mut self, new: Option<u64>) {
        self.fake = self.fake.renewed.get().copied().unwrap_or(self.fake);
        let life = self.slot.enter().unwrap().arena.life();
        if self.life != life {
            self.life = life;
            for addr in std::mem::take(&mut self.live) {
                assert_eq!(free::free(self.slot, addr), Err(ErrorKind::InvalidPointer));
            }
        }
        self.live.extend(new);
        if self.fake.over.load(SeqCst) {
            let guard = self.slot.enter().unwrap();
            let stats = guard.arena.stats();
            assert_eq!((stats.pool_bytes, stats.num_chunks, stats.bytes_in_use), (0, 0, 0));
            assert_eq!(guard.arena.check(), Ok(()));
            assert_eq!(guard.arena.growth().available(), self.fake.limit, "nothing stays reserved");
            assert!(self.told.0.lock().unwrap().is_empty());
        } else {
            agree(self.slot, self.fake);
            assert_eq!(*self.told.0.lock().unwrap(), self.fake.records().mapped);
        }
    }

    fn alloc(&mut self, bytes: u64) {
        let got = alloc::alloc(self.slot, bytes, Stream::NONE);
        self.failures += u32::from(got.is_err());
        self.look(got.ok());
    }

    /// Frees every allocation whose position is a multiple of `every`.
    fn free(&mut self, every: usize) {
        let gone: Vec<u64> = self.live.iter().copied().step_by(every).collect();
        self.live.retain(|addr| !gone.contains(addr));
        gone.into_iter().for_each(|addr| free::free(self.slot, addr).unwrap());
        self.look(None);
    }

    fn trim(&mut self, keep: u64) {
        trim::trim(self.slot, keep).unwrap();
        self.look(None);
    }

    /// Runs a program with growth next to a free piece, relocation, and a trim in pieces.
    fn run(&mut self) {
        (0..9).for_each(|_| self.alloc(2 * GRANULE));
        self.free(2);
        self.alloc(3 * GRANULE + 300);
        self.alloc(5 * GRANULE);
        self.trim(14 * GRANULE);
        self.alloc(2 * GRANULE + 900);
        self.free(2);
        self.alloc(4 * GRANULE);
        self.trim(0);
        self.alloc(6 * GRANULE);
    }
}

fn run(failing: Failing) -> (Program, u64) {
    let (slot, fake) = pool(20, 150, true);
    (fake.records().failing, fake.records().error) = (failing, ErrorKind::BackendFailed);
    let mut program = Program { slot, fake, told: listen(slot), live: Vec::new(), life: 0, failures: 0 };
    program.run();
    (program, fake.records().calls)
}

#[test]
fn everything_goes_at_every_position() {
    let (program, calls) = run(Failing::Never);
    assert!(program.fake.records().attached > 5 && calls > 20 && program.failures == 0, "{calls}");
    for at in 0..calls {
        for seen in [true, false] {
            let (program, _) = run(Failing::Loses(at, seen));
            assert_eq!((program.life, program.failures), (1, 0), "at {at}: every request is served");
            let Program { slot, told, mut live, .. } = program;
            live.drain(..).for_each(|addr| free::free(slot, addr).unwrap());
            // All memory can be allocated again.
            assert!(trim::trim(slot, 0).is_ok());
            let all = alloc::alloc(slot, 20 * GRANULE, Stream::NONE).unwrap();
            free::free(slot, all).unwrap();
            assert_eq!(lifecycle::destroy(slot, false), Ok(()));
            assert!(told.0.lock().unwrap().is_empty(), "told of the end");
        }
    }
}
