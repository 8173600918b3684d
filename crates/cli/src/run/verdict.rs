//! The conclusion from the interposer's log, the program's file and the end of the program: whether interposition took
//! hold, and if not, why. This file computes it from values only. `check_report` turns it into text.

use super::check_log::{self, End, Image};
use super::file::{Facts, Kind, Privilege};

/// The exit code of the dynamic loader for a program that it cannot load.
const NOT_LOADED: i32 = 127;

/// The program that was run, after its end.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its process.
    pub pid: u32,
    /// What it was called.
    pub name: String,
    /// Its file.
    pub file: Facts,
    /// How it ended.
    pub ended: Ended,
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// All that is to be said.
#[derive(Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Whether an allocation of any process came from the pool.
    pub took_hold: bool,
    /// Why the interposer was never in the program's own process, if it was not. There may be more than one cause.
    pub not_loaded: Vec<Cause>,
    /// The programs in which it was, the best first, and among equals the program's own process.
    pub findings: Vec<Finding>,
}

/// A program that contained the interposer.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it saw.
    pub image: Image,
    /// What that means.
    pub verdict: Verdict,
}

/// The outcome of a program's allocations, in the order of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// At least one came from the pool.
    Served,
    /// All that could have been pooled went to the driver, for known reasons.
    Passed,
    /// It called only functions that are left to the driver, or that failed.
    NotOurs,
    /// It looked up the interposer's functions, and called none that allocates.
    NotCalled,
    /// It has opened the driver, and none of its lookups reached the interposer.
    Hidden,
    /// It exited without reporting, and was not seen with the driver: by a signal, if that is known.
    Silent(Option<i32>),
    /// The driver was not in it.
    NoDriver,
}

/// Why the interposer is not in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The program has no loader, so LD_PRELOAD is not read.
    Static,
    /// The loader ignores LD_PRELOAD in programs that get rights from their file.
    Privileged(Privilege),
    /// The program is for another machine than the interposer.
    Foreign(String),
    /// The loader with this path belongs to another C library.
    OtherLibc(String),
    /// The loader may have failed, in which case it ends the program with this code.
    LoaderFailed,
    /// A signal came before the loader had finished, or the file shows nothing.
    Killed(i32),
    /// The file shows no reason.
    Unknown,
}

/// Judges the lines of the check file.
pub fn judge(text: &str, ran: &Ran) -> Judgement {
    let images = check_log::images(text);
    let is_reached = images.iter().any(|image| image.pid == ran.pid);
    let last_of_program = images.iter().rposition(|image| image.pid == ran.pid);
    let mut findings: Vec<Finding> = Vec::new();
    for (at, image) in images.into_iter().enumerate() {
        let signal = match ran.ended {
            Ended::Signal(signal) if Some(at) == last_of_program => Some(signal),
            _ => None,
        };
        if let Some(verdict) = verdict(&image, signal) {
            findings.push(Finding { image, verdict });
        }
    }
    findings.sort_by_key(|finding| (finding.verdict, finding.image.pid != ran.pid));
    Judgement {
        took_hold: findings.iter().any(|finding| finding.verdict == Verdict::Served),
        not_loaded: if is_reached { Vec::new() } else { causes(ran) },
        findings,
    }
}

/// None if there is nothing to report: for a program that only executed another, and for a forked process. The latter
/// shares its parent's lookups, so it is reached without any of its own, and its work counts as that of the parent's
/// program.
fn verdict(image: &Image, signal: Option<i32>) -> Option<Verdict> {
    let verdict = match image.end {
        _ if image.served => Verdict::Served,
        _ if !image.passed.is_empty() => Verdict::Passed,
        _ if !image.called.is_empty() => Verdict::NotOurs,
        _ if !image.looked_up.is_empty() => Verdict::NotCalled,
        _ if image.path.is_none() => return None,
        End::WithDriver => Verdict::Hidden,
        End::WithoutDriver => Verdict::NoDriver,
        End::Untold => Verdict::Silent(signal),
        End::Replaced => return None,
    };
    Some(verdict)
}

/// Every reason, visible in the file, why the interposer cannot be loaded into the program.
pub fn causes_of_file(file: &Facts) -> Vec<Cause> {
    let mut causes = Vec::new();
    match &file.kind {
        Kind::Static => causes.push(Cause::Static),
        Kind::Foreign(machine) => causes.push(Cause::Foreign(machine.clone())),
        Kind::Dynamic(loader) if !is_glibc(loader) => causes.push(Cause::OtherLibc(loader.clone())),
        Kind::Dynamic(_) | Kind::Unknown => {}
    }
    causes.extend(file.privilege.map(Cause::Privileged));
    causes
}

/// Every reason that the file shows, or else what the program's end suggests. At least one.
fn causes(ran: &Ran) -> Vec<Cause> {
    let mut causes = causes_of_file(&ran.file);
    if causes.is_empty() {
        causes.push(match ran.ended {
            Ended::Signal(signal) => Cause::Killed(signal),
            Ended::Code(NOT_LOADED) => Cause::LoaderFailed,
            Ended::Code(_) => Cause::Unknown,
        });
    }
    causes
}

/// Whether a loader is glibc's, by its name: ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, and the paths of
/// distributions that use other folders.
fn is_glibc(loader: &str) -> bool {
    loader.rsplit('/').next().is_some_and(|name| name.starts_with("ld-linux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

    fn of_kind(kind: Kind) -> Ran {
        let file = Facts { path: "/opt/a".into(), is_of_script: false, kind, privilege: None };
        Ran { pid: 7, name: "a".to_owned(), file, ended: Ended::Code(0) }
    }

    fn plain() -> Ran {
        of_kind(Kind::Dynamic(LOADER.to_owned()))
    }

    fn verdicts(text: &str, ran: &Ran) -> Vec<Verdict> {
        let judgement = judge(text, ran);
        let served = judgement.findings.iter().any(|finding| finding.verdict == Verdict::Served);
        assert_eq!(judgement.took_hold, served);
        judgement.findings.iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn each_line_that_is_there_changes_the_verdict() {
        let loaded = "7 loaded /opt/a\n";
        for (lines, verdict) in [
            ("", Verdict::Silent(None)),
            ("7 exit driver=absent\n", Verdict::NoDriver),
            ("7 exit driver=mapped\n", Verdict::Hidden),
            ("7 looked-up dlsym cuMemAlloc_v2\n7 exit driver=mapped\n", Verdict::NotCalled),
            ("7 called cuMemAllocAsync\n7 exit driver=mapped\n", Verdict::NotOurs),
            ("7 called cuMemAlloc_v2\n7 passed size\n7 exit driver=mapped\n", Verdict::Passed),
            ("7 called cuMemAlloc_v2\n7 passed size\n7 served 512\n7 exit driver=mapped\n", Verdict::Served),
            // Observations count even if the end was not seen.
            ("7 looked-up dlsym cuMemAlloc_v2\n", Verdict::NotCalled),
            ("7 served 512\n", Verdict::Served),
        ] {
            let text = format!("{loaded}{lines}");
            assert_eq!(verdicts(&text, &plain()), [verdict], "{text}");
            assert_eq!(judge(&text, &plain()).not_loaded, []);
        }
    }

    #[test]
    fn a_signal_is_told_of_the_program_that_it_ended() {
        let ran = Ran { ended: Ended::Signal(11), ..plain() };
        assert_eq!(verdicts("7 loaded /opt/a\n", &ran), [Verdict::Silent(Some(11))]);
        // It is unknown for other programs, and for one that another has replaced.
        let text = "7 loaded /bin/sh\n8 loaded /opt/b\n7 loaded /opt/a\n";
        assert_eq!(verdicts(text, &ran), [Verdict::Silent(None), Verdict::Silent(Some(11))]);
        // Only what was not seen before is lost.
        assert_eq!(verdicts("7 loaded /opt/a\n7 served 512\n", &ran), [Verdict::Served]);
    }

    #[test]
    fn one_process_that_is_served_is_enough_and_comes_first() {
        let text = "7 loaded /bin/sh\n8 loaded /bin/ls\n8 exit driver=absent\n9 loaded /opt/a\n9 served 512\n\
                    9 exit driver=mapped\n7 exit driver=absent\n";
        assert_eq!(verdicts(text, &plain()), [Verdict::Served, Verdict::NoDriver, Verdict::NoDriver]);
        // A shell that has become the program is not reported.
        let text = "7 loaded /bin/sh\n7 loaded /opt/a\n7 exit driver=mapped\n";
        assert_eq!(verdicts(text, &plain()), [Verdict::Hidden]);
    }

    #[test]
    fn a_fork_has_what_its_parent_has_looked_up() {
        let parent =
            "7 loaded /opt/a\n7 looked-up dlsym cuMemAlloc_v2\n7 called cuMemAlloc_v2\n7 served 512\n";
        let text = format!("{parent}8 exit driver=mapped\n9 passed full\n9 exit driver=mapped\n");
        assert_eq!(verdicts(&text, &plain()), [Verdict::Served, Verdict::Passed]);
    }

    #[test]
    fn the_file_says_why_nothing_was_loaded() {
        let causes = |kind| judge("", &of_kind(kind)).not_loaded;
        assert_eq!(causes(Kind::Static), [Cause::Static]);
        assert_eq!(causes(Kind::Foreign("32-bit x86".into())), [Cause::Foreign("32-bit x86".into())]);
        let musl = "/lib/ld-musl-x86_64.so.1";
        assert_eq!(causes(Kind::Dynamic(musl.into())), [Cause::OtherLibc(musl.into())]);
        assert_eq!(causes(Kind::Dynamic(LOADER.into())), [Cause::Unknown]);
        let nix = "/nix/store/x-glibc-2.40/lib/ld-linux-x86-64.so.2";
        assert_eq!(causes(Kind::Dynamic(nix.into())), [Cause::Unknown]);
        assert_eq!(causes(Kind::Unknown), [Cause::Unknown]);
        assert!(!judge("", &plain()).took_hold);
    }

    #[test]
    fn rights_are_told_beside_what_else_is_wrong() {
        for privilege in [Privilege::Setuid, Privilege::Setgid, Privilege::Capabilities] {
            let with = |mut ran: Ran| {
                ran.file.privilege = Some(privilege);
                judge("", &ran).not_loaded
            };
            assert_eq!(with(plain()), [Cause::Privileged(privilege)]);
            assert_eq!(with(of_kind(Kind::Static)), [Cause::Static, Cause::Privileged(privilege)]);
        }
    }

    #[test]
    fn an_early_end_explains_an_empty_file() {
        let ended = |ended| judge("", &Ran { ended, ..plain() }).not_loaded;
        assert_eq!(ended(Ended::Signal(9)), [Cause::Killed(9)]);
        assert_eq!(ended(Ended::Code(127)), [Cause::LoaderFailed]);
        assert_eq!(ended(Ended::Code(1)), [Cause::Unknown]);
        // If the file shows the reason, the end does not matter.
        let ran = Ran { ended: Ended::Signal(9), ..of_kind(Kind::Static) };
        assert_eq!(judge("", &ran).not_loaded, [Cause::Static]);
    }

    #[test]
    fn children_may_be_reached_where_the_program_is_not() {
        let text = "8 loaded /opt/b\n8 served 512\n8 exit driver=mapped\n";
        let judgement = judge(text, &of_kind(Kind::Static));
        assert!(judgement.took_hold);
        assert_eq!(judgement.not_loaded, [Cause::Static]);
        assert_eq!(judgement.findings.len(), 1);
    }
}
