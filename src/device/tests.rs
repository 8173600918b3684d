use super::*;
use crate::error::with_last_error;
use crate::options::BackendKind;
use crate::report::{failure, map, occupancy};
use std::sync::mpsc;
use std::time::Duration;

/// Far longer than anything here takes. A call that takes this long counts as blocked forever.
const EVER: Duration = Duration::from_secs(30);

fn host(ordinal: i32) -> Device {
    let device = Device::new(ordinal).unwrap();
    device.create(Some(&Options { backend: BackendKind::Host, ..Options::growing() })).unwrap();
    device
}

macro_rules! safe {
    ($($name:ident($($parameter:ident: $kind:ty),*) -> $value:ty;)*) => {$(
        /// Nothing uses the memory of these tests, and nothing else the allocators.
        fn $name(device: Device $(, $parameter: $kind)*) -> Result<$value, ErrorKind> {
            // SAFETY: as above.
            unsafe { device.$name($($parameter),*) }
        }
    )*};
}
safe! {
    free(addr: u64) -> ();
    free_on(addr: u64, stream: u64) -> ();
    alloc_on(bytes: u64, stream: u64) -> u64;
    record_stream(addr: u64, stream: u64) -> ();
    forget_stream(stream: u64) -> ();
    pool_begin(pool: u64, stream: u64) -> ();
    lost() -> ();
    destroy() -> ();
    destroy_forced() -> ();
}

/// Returns the result of `work` on another thread, or `None` if it blocks forever.
fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(EVER).ok()
}

#[test]
fn broken_books_poison() {
    let device = host(1001);
    let addr = device.alloc(1).unwrap();
    assert_eq!(device.check(), Ok(()));
    device.enter().unwrap().arena.spoil();
    assert_eq!(device.check(), Err(ErrorKind::Internal));
    with_last_error(|words| assert!(words.contains("I4Accounting"), "{words}"));
    assert_eq!(free(device, addr), Err(ErrorKind::Internal));
    assert_eq!(device.stats().err(), Some(ErrorKind::Internal));
    assert_eq!(device.report().err(), Some(ErrorKind::Internal));
    assert_eq!(device.create(None), Err(ErrorKind::Internal));
    assert_eq!(Device::owner(addr), Err(ErrorKind::InvalidPointer), "it is no longer known");
    // Tests of other files poison allocators too.
    let metrics = report::to_string(|out| Device::write_metrics(out).map_err(|_| fmt::Error)).unwrap();
    assert!(!metrics.contains(&format!("device=\"{}\"", device.0)), "{metrics}");
    let poisoned = metrics.lines().find_map(|line| line.strip_prefix("bfc_poisoned_allocators "));
    assert!(poisoned.expect("a sample").parse::<usize>().expect("a number") > 0, "{metrics}");
}

/// A writer during which another thread allocates, at each piece of text.
struct Disturbed(Device, String);

impl fmt::Write for Disturbed {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.1.push_str(part);
        let device = self.0;
        // The first few pieces are enough.
        if self.1.len() > 400 {
            return Ok(());
        }
        assert!(elsewhere(move || device.alloc(1000)).expect("a report holds the lock").is_ok());
        Ok(())
    }
}

#[test]
fn reports_are_written_with_the_lock_open() {
    let device = host(1002);
    device.alloc(1 << 20).unwrap();
    let before = (device.occupancy().unwrap(), device.memory_map().unwrap(), device.report().unwrap());
    let disturbed = |write: fn(Device, &mut dyn fmt::Write) -> Result<(), ErrorKind>| {
        let mut out = Disturbed(device, String::new());
        let allocs = device.stats().unwrap().num_allocs;
        write(device, &mut out).unwrap();
        assert!(device.stats().unwrap().num_allocs > allocs);
        out.1
    };
    // The whole text describes the moment when it began.
    assert_eq!(disturbed(|device, out| device.write_memory_map(out)), before.1);
    let after = device.report().unwrap();
    assert_eq!(disturbed(|device, out| device.write_report(out)), after);
    let after = device.occupancy().unwrap();
    assert_eq!(disturbed(|device, out| device.write_occupancy(out)), after);
    assert_ne!(device.report().unwrap(), before.2);
    let allocs = device.stats().unwrap().num_allocs;
    let metrics = disturbed(|_, out| Device::write_metrics(out));
    let sample =
        metrics.lines().find(|line| line.contains("allocations_total{device=\"1002\"")).expect("a sample");
    assert!(sample.ends_with(&format!(" {allocs}")), "{sample}");
    destroy_forced(device).unwrap();
}

/// The copy that reports are written from has the same data as the pool itself, for all kinds of chunks.
#[test]
fn a_copy_tells_the_same_as_the_pool() {
    let _only = scope::ONE_TEST.lock();
    let device = host(1003);
    let in_place = || {
        let guard = device.enter().unwrap();
        let subject = guard.subject();
        let map = report::to_string(|out| map::write(out, &subject)).unwrap();
        let report = report::to_string(|out| failure::write(out, &subject, None)).unwrap();
        (map, report, report::to_string(|out| occupancy::write(out, &subject.view)).unwrap())
    };
    let agree = || {
        let copied = (device.memory_map().unwrap(), device.report().unwrap(), device.occupancy().unwrap());
        assert_eq!(copied, in_place());
        copied.0
    };
    agree();
    let mut live = vec![device.alloc(1000).unwrap()];
    agree();
    // Several streams, chunks that wait for others, a forgotten stream, private pools, names.
    for step in 0..60u64 {
        scope::begin(["outer", "é"][step as usize % 2], step).unwrap();
        live.push(alloc_on(device, 300 * (step % 7 + 1), 16 + step % 3).unwrap());
        scope::end().unwrap();
        if step % 4 == 1 {
            record_stream(device, live[step as usize / 2], 16 + (step + 1) % 3).unwrap();
        }
        if step % 3 == 2 {
            free_on(device, live.swap_remove(step as usize / 3), 16 + step % 2).unwrap();
        }
        if step == 30 {
            pool_begin(device, 7, 18).unwrap();
        }
        agree();
    }
    forget_stream(device, 17).unwrap();
    let map = agree();
    for part in
        ["\"state\":\"held\"", "\"state\":\"free\"", "\"pool\":7", "\"operation\":\"é\"", "\"stream\""]
    {
        assert!(map.contains(part), "no {part} in\n{map}");
    }
    destroy_forced(device).unwrap();
}

#[test]
fn an_owner_is_found_without_waiting_for_a_device() {
    let devices = [host(1004), host(1005)];
    let [first, second] = devices.map(|device| device.alloc(1000).unwrap());
    let locked = devices[0].enter().unwrap();
    let found = elsewhere(move || [first, first + 999, second, second + 999, 64].map(Device::owner));
    let [here, inside, there, there_inside, nowhere] = found.expect("it waits for another device");
    assert_eq!((here, inside), (Ok(devices[0]), Ok(devices[0])));
    assert_eq!((there, there_inside), (Ok(devices[1]), Ok(devices[1])));
    assert_eq!(nowhere, Err(ErrorKind::InvalidPointer));
    // A free on the wrong device names the owner, although the owner is locked.
    let refused = elsewhere(move || (free(devices[1], first), with_last_error(str::to_owned)));
    let (refused, words) = refused.expect("it waits for another device");
    assert_eq!(refused, Err(ErrorKind::InvalidPointer));
    assert!(words.contains("belongs to device 1004"), "{words}");
    drop(locked);
    free(devices[0], first).unwrap();
    assert_eq!(Device::owner(first), Ok(devices[0]), "the pool holds it still");
    devices[0].trim(0).unwrap();
    assert_eq!(Device::owner(first), Err(ErrorKind::InvalidPointer), "it was given back");
    destroy_forced(devices[1]).unwrap();
    assert_eq!(Device::owner(second), Err(ErrorKind::InvalidPointer));
    destroy(devices[0]).unwrap();
}

/// Readers of the region table never see a region that was freed, and never miss one that stays.
#[test]
fn owners_are_found_while_regions_come_and_go() {
    let device = host(1006);
    let stays = device.alloc(1 << 20).unwrap();
    std::thread::scope(|scope| {
        let readers = [(); 3].map(|()| {
            scope.spawn(move || (0..20_000).for_each(|_| assert_eq!(Device::owner(stays), Ok(device))))
        });
        while readers.iter().any(|reader| !reader.is_finished()) {
            let goes = device.alloc(64 << 20).unwrap();
            assert_eq!(Device::owner(goes + (64 << 20) - 1), Ok(device));
            free(device, goes).unwrap();
            device.trim(0).unwrap();
            assert_eq!(Device::owner(goes), Err(ErrorKind::InvalidPointer));
        }
    });
    destroy_forced(device).unwrap();
}

/// Simulates a signal handler that interrupts the thread during a call.
#[test]
fn the_thread_that_holds_the_lock_is_told_that_it_is_busy() {
    let device = host(1007);
    let addr = device.alloc(1000).unwrap();
    let busy = Some(ErrorKind::Busy);
    let locked = device.enter().unwrap();
    assert_eq!(device.alloc(1).err(), busy);
    assert_eq!(alloc_on(device, 1, 16).err(), busy);
    assert_eq!(device.alloc_with(&ArenaRequest::new(1, Stream::NONE)).err(), busy);
    assert_eq!(free(device, addr).err(), busy);
    assert_eq!(free_on(device, addr, 16).err(), busy);
    assert_eq!(free(device, 0).err(), busy);
    assert_eq!(record_stream(device, addr, 16).err(), busy);
    assert_eq!(device.stats().err(), busy);
    assert_eq!(device.check().err(), busy);
    assert_eq!(device.trim(0).err(), busy);
    assert_eq!(device.memory_map().err(), busy);
    assert_eq!(device.report().err(), busy);
    assert_eq!(lost(device).err(), busy);
    assert_eq!(device.create(None).err(), busy);
    assert_eq!(destroy_forced(device).err(), busy);
    with_last_error(|words| assert!(words.contains("signal handler"), "{words}"));
    assert_eq!(Device::owner(addr), Ok(device));
    drop(locked);
    free(device, addr).unwrap();
    destroy(device).unwrap();
}

/// After a tagged allocation, a pool serves others on the fast path as before.
#[test]
fn a_tagged_allocation_leaves_the_fast_path_to_the_others() {
    let _only = scope::ONE_TEST.lock();
    let device = host(1008);
    let plain = || device.enter().unwrap().arena.streams().frees_fast();
    let tags = || {
        let guard = device.enter().unwrap();
        let chunks = guard.arena.chunks();
        let used = chunks.ids().filter(|&id| chunks.in_use(id));
        let names = used.map(|id| guard.arena.names().name(chunks.tag(id).name).map(str::to_owned));
        names.collect::<Vec<_>>()
    };
    let first = device.alloc(1000).unwrap();
    scope::begin("op", 1).unwrap();
    let second = device.alloc(1000).unwrap();
    scope::end().unwrap();
    assert!(plain());
    assert_eq!(tags().iter().flatten().collect::<Vec<_>>(), ["op"]);
    // The next allocation of the chunk has no tag, and does not inherit the previous one.
    free(device, second).unwrap();
    assert_eq!(device.alloc(1000), Ok(second));
    assert_eq!(tags(), [None, None]);
    free(device, first).unwrap();
    free(device, second).unwrap();
    destroy(device).unwrap();
}
