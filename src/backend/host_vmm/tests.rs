//! The range and its file, call by call, compared with the process's mappings as the system lists them.

use super::*;
use crate::error::with_last_error;

fn vmm(granules: u64, range: u64, most: u64) -> HostVmm {
    let count = Box::leak(Box::new(AtomicU64::new(0)));
    HostVmm::new(granules * GRANULE, range * GRANULE, most, count).unwrap()
}

fn span(vmm: &HostVmm, first: u64, count: u64) -> Span {
    Span { base: vmm.reservation.base + first * GRANULE, bytes: count * GRANULE }
}

fn word(vmm: &HostVmm, number: u64) -> &'static mut u64 {
    // SAFETY: the tests access granules that are mapped, one at a time.
    unsafe { &mut *(vmm.range().address(number as usize) as *mut u64) }
}

/// Returns how many mappings the system lists inside the range, unmapped ranges included.
fn listed(vmm: &HostVmm) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let (from, to) = (vmm.reservation.base, vmm.reservation.base + vmm.reservation.bytes);
    let mut count = 0;
    for line in maps.lines() {
        let (low, rest) = line.split_once('-').unwrap();
        let high = u64::from_str_radix(rest.split(' ').next().unwrap(), 16).unwrap();
        let low = u64::from_str_radix(low, 16).unwrap();
        // The system may have merged the ends with a neighbouring reservation of another test.
        count += u64::from(low < to && high > from);
    }
    count
}

fn agrees(vmm: &HostVmm) {
    let layout = vmm.layout().unwrap();
    assert_eq!(layout.mappings, listed(vmm));
    assert_eq!(vmm.mappings.load(Relaxed), layout.mappings);
    let mapped = (0..layout.places.entries()).filter(|&number| layout.places.get(number) != 0).count();
    let vacant = (0..layout.vacant.count).filter(|&place| layout.vacant.holds(place)).count();
    assert_eq!(mapped + vacant + layout.kept.len(), layout.vacant.count, "every place is somewhere");
}

#[test]
fn granules_move_with_what_is_in_them() {
    let vmm = vmm(8, 40, 1000);
    vmm.map(span(&vmm, 0, 6)).unwrap();
    (0..6).for_each(|number| *word(&vmm, number) = 100 + number);
    agrees(&vmm);
    vmm.detach(span(&vmm, 1, 2)).unwrap();
    vmm.detach(span(&vmm, 4, 1)).unwrap();
    agrees(&vmm);
    vmm.attach(span(&vmm, 20, 3)).unwrap();
    assert_eq!([20, 21, 22].map(|number| *word(&vmm, number)), [101, 102, 104], "in the order of the file");
    assert_eq!([0, 3, 5].map(|number| *word(&vmm, number)), [100, 103, 105]);
    agrees(&vmm);
    vmm.release(span(&vmm, 20, 3)).unwrap();
    vmm.map(span(&vmm, 10, 5)).unwrap();
    assert!((10..15).all(|number| *word(&vmm, number) == 0), "what was given back comes back as new");
    agrees(&vmm);
    assert_eq!(vmm.map(span(&vmm, 30, 1)), Err(ErrorKind::OutOfMemory), "8 are mapped");
    vmm.detach(span(&vmm, 0, 1)).unwrap();
    assert_eq!(vmm.attach(span(&vmm, 30, 2)), Err(ErrorKind::BackendFailed), "one is kept");
    assert_eq!(vmm.map(span(&vmm, 30, 1)), Err(ErrorKind::OutOfMemory));
    vmm.drop_kept();
    vmm.map(span(&vmm, 30, 1)).unwrap();
    agrees(&vmm);
}

#[test]
fn random_traffic_is_counted_as_the_system_counts_it() {
    let vmm = vmm(60, 300, 10_000);
    let mut mapped = vec![false; 300];
    let (mut kept, mut seed) = (0, 7u64);
    let mut random = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    for step in 0..4000 {
        let first = random(300) as usize;
        let there = mapped[first];
        let most = 1 + random(12) as usize;
        let run = mapped[first..].iter().take_while(|&&one| one == there).count().min(most);
        let at = span(&vmm, first as u64, run as u64);
        let free = 60 - kept - mapped.iter().filter(|&&one| one).count();
        match (there, random(3)) {
            (true, 0) => vmm.release(at).unwrap(),
            (true, _) => {
                vmm.detach(at).unwrap();
                kept += run;
            }
            (false, 0) if run <= free => vmm.map(at).unwrap(),
            (false, 1) if run <= kept => {
                vmm.attach(at).unwrap();
                kept -= run;
            }
            (false, 2) if step % 50 == 0 => {
                vmm.drop_kept();
                kept = 0;
                continue;
            }
            _ => continue,
        }
        mapped[first..first + run].fill(!there);
        if step % 20 == 0 {
            agrees(&vmm);
        }
    }
    agrees(&vmm);
}

/// Maps every other granule, so that each is a mapping. The limit is reported early, and nothing changes.
#[test]
fn too_many_mappings_are_refused_in_time() {
    let vmm = vmm(64, 200, 40);
    let refused = (0..).find(|&i| vmm.map(span(&vmm, 2 * i, 1)).is_err()).unwrap();
    assert!((15..=20).contains(&refused), "{refused} pieces and the holes between are about 40");
    with_last_error(|words| assert!(words.contains("vm.max_map_count"), "{words}"));
    agrees(&vmm);
    vmm.mappings.store(100, Relaxed);
    // Other ranges have used up the mappings. Even existing ones cannot be split.
    assert_eq!(vmm.detach(span(&vmm, 4, 1)), Err(ErrorKind::OutOfMemory));
    assert_eq!(vmm.release(span(&vmm, 4, 1)), Err(ErrorKind::OutOfMemory));
    *word(&vmm, 4) = 5;
    vmm.mappings.store(vmm.layout().unwrap().mappings, Relaxed);
    vmm.detach(span(&vmm, 4, 1)).unwrap();
    agrees(&vmm);
    vmm.attach(span(&vmm, 4, 1)).unwrap();
    assert_eq!(*word(&vmm, 4), 5);
}

/// The mappings run out after some runs of a span are mapped. The call is undone.
#[test]
fn half_a_span_is_undone() {
    let vmm = vmm(16, 100, 40);
    vmm.map(span(&vmm, 0, 16)).unwrap();
    (0..16).step_by(2).for_each(|number| vmm.detach(span(&vmm, number, 1)).unwrap());
    let before = vmm.mappings.load(Relaxed);
    assert_eq!(vmm.attach(span(&vmm, 50, 8)), Ok(()));
    vmm.detach(span(&vmm, 50, 8)).unwrap();
    vmm.mappings.store(37, Relaxed);
    assert_eq!(vmm.attach(span(&vmm, 50, 8)), Err(ErrorKind::OutOfMemory));
    vmm.mappings.store(before, Relaxed);
    assert_eq!(vmm.layout().unwrap().kept.len(), 8);
    agrees(&vmm);
}

#[test]
fn rows_of_places() {
    let mut places = Places::new(200).unwrap();
    assert_eq!(places.find(0, 1000), Some((0, 200)));
    (0..200).filter(|place| place % 50 == 10).for_each(|place| places.remove(place));
    assert_eq!(places.find(0, 5), Some((0, 5)));
    assert_eq!(places.find(0, 11), Some((11, 11)));
    assert_eq!(places.find(0, 60), Some((11, 49)), "the longest");
    assert_eq!(places.find(55, 60), Some((55, 5)), "where the last one ended");
    assert_eq!(places.find(10, 5), Some((0, 5)), "that is taken");
    (0..200).for_each(|place| places.remove(place));
    assert_eq!(places.find(0, 1), None);
    assert_eq!(Places::new(0).unwrap().find(0, 1), None);
}
