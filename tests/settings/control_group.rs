//! The limit of a control group, which applies if no other is set, even when it changes. With real control
//! groups, which only root can make; skipped elsewhere.

use crate::common::child::{expect_success, is_child};
use crate::common::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

const HOST: i32 = 256;

/// The folder of the group that a child enters.
const GROUP: &str = "TEST_GROUP";

/// A control group of this test, without members.
struct Group(PathBuf);

impl Group {
    /// Makes one with a limit. Returns `None` if that is not allowed.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let first = groups.lines().find_map(|line| line.split_once(":memory:")).map(|found| found.1);
        let second = groups.lines().find_map(|line| line.strip_prefix("0::"));
        // Inside a container this process's group is the root of the visible hierarchy.
        let candidates =
            [("/sys/fs/cgroup/memory", first), ("/sys/fs/cgroup", second)].map(|(root, path)| {
                let own = path.map(|path| format!("{root}{path}"));
                [own, Some(root.to_owned())]
            });
        candidates.into_iter().flatten().flatten().find_map(|folder| {
            let group = Path::new(&folder).join(format!("bfc-{}-{name}", std::process::id()));
            fs::create_dir(&group).ok()?;
            let made = Group(group);
            made.try_limit(limit).then_some(made)
        })
    }

    fn try_limit(&self, bytes: u64) -> bool {
        ["memory.max", "memory.limit_in_bytes"]
            .iter()
            .map(|file| self.0.join(file))
            .filter(|file| file.exists())
            .any(|file| fs::write(file, bytes.to_string()).is_ok())
    }

    fn limit(&self, bytes: u64) {
        assert!(self.try_limit(bytes), "{}", self.0.display());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A child may take a moment to leave it.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Enters the group that the parent has created.
fn enter() -> Group {
    let group = Group(PathBuf::from(std::env::var(GROUP).expect("set by the parent")));
    fs::write(group.0.join("cgroup.procs"), std::process::id().to_string()).expect("root may enter it");
    group
}

/// Runs a test of this file in a child and a group of its own.
fn in_a_group(test: &str, variables: &[(&str, &str)]) {
    let Some(group) = Group::new(test, GIB) else {
        eprintln!(
            "skipped: this process cannot make a control group with a limit of memory: it is not root, or has none"
        );
        return;
    };
    let folder = group.0.to_str().expect("a path in UTF-8");
    expect_success(test, &[&[(GROUP, folder)], variables].concat());
}

fn now() -> bfc_stats_t {
    let mut out = stats();
    // SAFETY: a whole struct, writable.
    assert_eq!(unsafe { bfc_stats(HOST, &mut out) }, BFC_OK);
    out
}

fn limit() -> u64 {
    now().bytes_limit
}

fn held() -> u64 {
    now().pool_bytes
}

fn get(bytes: u64) -> Result<u64, Status> {
    alloc(HOST, bytes as usize)
}

#[test]
fn it_is_followed_where_no_limit_was_given() {
    if !is_child("it_is_followed_where_no_limit_was_given") {
        return in_a_group("it_is_followed_where_no_limit_was_given", &[]);
    }
    let group = enter();
    assert_eq!(create(HOST, None), BFC_OK, "{}", last_error());
    assert_eq!(limit(), GIB);
    // Nothing of this is touched, so it takes no memory.
    let first = get(600 * MIB).expect("room");
    group.limit(2 * GIB);
    let second = get(600 * MIB).expect("the higher limit counts at once");
    assert_eq!(limit(), 2 * GIB);
    assert_eq!(free(HOST, second), BFC_OK);
    group.limit(700 * MIB);
    // While there is room below the limit, it is compared once a second.
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(get(800 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY), "more than all of the group's memory");
    assert_eq!(limit(), 700 * MIB);
    assert_eq!(held(), 600 * MIB, "what is free beyond a lower limit goes back");
    group.limit(100 * MIB);
    assert_eq!(get(700 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!((limit(), held()), (100 * MIB, 600 * MIB), "what is in use stays");
    assert_eq!(free(HOST, first), BFC_OK);
    assert_eq!(get(700 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(held(), 0, "what is freed later goes back later");
    assert_eq!((bfc_check(HOST), bfc_destroy(HOST)), (BFC_OK, BFC_OK));
    std::mem::forget(group);
}

#[test]
fn a_limit_that_was_set_stays() {
    if !is_child("a_limit_that_was_set_stays") {
        return in_a_group("a_limit_that_was_set_stays", &[]);
    }
    let group = enter();
    assert_eq!(create(HOST, None), BFC_OK, "{}", last_error());
    assert_eq!(bfc_set_memory_limit(HOST, 500 * MIB), BFC_OK);
    group.limit(2 * GIB);
    assert_eq!(get(600 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(limit(), 500 * MIB);
    assert_eq!(bfc_destroy(HOST), BFC_OK);
    std::mem::forget(group);
}

#[test]
fn a_fraction_is_one_of_the_groups_memory() {
    if !is_child("a_fraction_is_one_of_the_groups_memory") {
        let fraction = [("BFC_MEMORY_FRACTION", "0.5")];
        return in_a_group("a_fraction_is_one_of_the_groups_memory", &fraction);
    }
    let group = enter();
    assert_eq!(create(HOST, None), BFC_OK, "{}", last_error());
    assert_eq!(limit(), GIB / 2);
    group.limit(2 * GIB);
    assert!(get(600 * MIB).is_ok(), "{}", last_error());
    assert_eq!(limit(), GIB);
    assert_eq!(bfc_destroy_forced(HOST), BFC_OK);
    std::mem::forget(group);
}

#[test]
fn an_idle_pool_gives_way_to_a_lower_limit() {
    if !is_child("an_idle_pool_gives_way_to_a_lower_limit") {
        let variables = [("BFC_TRIM_AFTER", "2"), ("BFC_LOG", "info")];
        return in_a_group("an_idle_pool_gives_way_to_a_lower_limit", &variables);
    }
    let group = enter();
    assert_eq!(create(HOST, None), BFC_OK, "{}", last_error());
    let kept = get(600 * MIB).expect("room");
    group.limit(700 * MIB);
    let begun = Instant::now();
    while limit() != 700 * MIB {
        assert!(begun.elapsed() < Duration::from_secs(60), "the thread looks four times in two seconds");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(free(HOST, kept), BFC_OK);
    assert_eq!(bfc_destroy(HOST), BFC_OK);
    std::mem::forget(group);
}
