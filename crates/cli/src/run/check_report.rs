//! A verdict as text, with advice.

use super::check_log::Image;
use super::file::{Facts, Privilege};
use super::verdict::{Cause, Ended, Finding, Judgement, Ran, Verdict};
use crate::size;

/// Columns of the text. It may end up in a log, so the terminal's width does not matter.
const WIDTH: usize = 100;

/// How many programs are named if the same applies to several.
const NAMED: usize = 6;

/// The whole text.
pub fn report(judgement: &Judgement, ran: &Ran) -> String {
    let ended = match ran.ended {
        Ended::Code(code) => format!("{} ended with exit code {code}", ran.name),
        Ended::Signal(signal) => format!("{} was ended by signal {}", ran.name, signal_name(signal)),
    };
    let mut text = if judgement.took_hold {
        format!("bfc: check: interposition took hold: memory came from the pool ({ended})\n")
    } else {
        format!("bfc: check: interposition did not take hold: no memory came from the pool ({ended})\n")
    };
    if !judgement.not_loaded.is_empty() {
        let who = format!("{} (process {}): the interposer was not loaded into it", ran.name, ran.pid);
        let why =
            judgement.not_loaded.iter().map(|cause| cause_in_words(cause, &ran.file)).collect::<Vec<_>>();
        text += &paragraph(&who, &why);
    }
    for (who, what) in grouped(&judgement.findings) {
        text += &paragraph(&who, &[what]);
    }
    text
}

/// The findings, each once for all processes that it applies to.
fn grouped(findings: &[Finding]) -> Vec<(String, String)> {
    // Helpers such as shells without a driver are not worth mentioning if another process has one.
    let no_process_has_driver = findings.iter().all(|finding| finding.verdict == Verdict::NoDriver);
    let mut groups: Vec<(String, Vec<&Image>)> = Vec::new();
    for finding in findings {
        let what = verdict_in_words(finding, no_process_has_driver);
        match groups.iter_mut().find(|(text, _)| *text == what) {
            Some((_, group)) => group.push(&finding.image),
            None => groups.push((what, vec![&finding.image])),
        }
    }
    groups.into_iter().map(|(what, group)| (processes(&group), what)).collect()
}

/// `a (process 7), b (3 processes)`.
fn processes(group: &[&Image]) -> String {
    let mut names: Vec<(&str, u32, usize)> = Vec::new();
    for image in group {
        match names.iter_mut().find(|(known, ..)| *known == name(image)) {
            Some((.., count)) => *count += 1,
            None => names.push((name(image), image.pid, 1)),
        }
    }
    let more = names.len().saturating_sub(NAMED);
    let names = names.iter().take(NAMED).map(|(name, pid, count)| match count {
        1 => format!("{name} (process {pid})"),
        count => format!("{name} ({count} processes)"),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    if more == 0 { names } else { format!("{names} and {}", size::counted(more, "other program")) }
}

fn name(image: &Image) -> &str {
    match &image.path {
        Some(path) => path.rsplit('/').next().unwrap_or(path),
        None => "a forked process",
    }
}

fn verdict_in_words(finding: &Finding, no_process_has_driver: bool) -> String {
    let image = &finding.image;
    let what = match finding.verdict {
        Verdict::Served if image.passed.is_empty() => "served from the pool".to_owned(),
        Verdict::Served => format!("served from the pool, and some went to the driver: {}", reasons(image)),
        Verdict::Passed => {
            format!("its allocations reached the interposer, and all were passed to the driver: {}", reasons(image))
        }
        Verdict::NotOurs => not_ours(image),
        Verdict::NotCalled => "it looked up the interposer's functions, and never allocated with them. Either it allocates \
                               no device memory, or it ended before that, or it calls the driver's functions by \
                               addresses that it has found in another way"
            .to_owned(),
        Verdict::Hidden => "the driver was in it, and its allocation functions were not looked up in a way that the \
                            interposer sees. Either it never allocates; or the driver, or a library that uses it, was \
                            opened with RTLD_DEEPBIND; or it finds the functions without dlsym, by reading the \
                            file itself or by a path to the driver that is linked into it. No preloaded library \
                            can change that. What helps: open these libraries without RTLD_DEEPBIND (programs that \
                            load plugins often have a switch for it; in Python os.RTLD_DEEPBIND), or let the program \
                            call libbfc itself"
            .to_owned(),
        Verdict::Silent(Some(signal)) => {
            format!("signal {} ended it before it was seen with the driver", signal_name(signal))
        }
        Verdict::Silent(None) => "it exited without reporting: by _exit, as some shells do, or it put a program in its \
                                  place (exec) which the interposer does not reach, because that is statically linked \
                                  or setuid or was started without LD_PRELOAD in its environment (env -i, sudo, a container). \
                                  What helps: start bfc run for that program, after the one that changes the \
                                  environment"
            .to_owned(),
        Verdict::NoDriver if !no_process_has_driver => "the driver was never in it".to_owned(),
        Verdict::NoDriver => "the driver, libcuda.so.1, was not in it at its end. Either it does not use CUDA, or it \
                              found no driver: bfc info says whether there is one, and LD_LIBRARY_PATH can name its \
                              folder"
            .to_owned(),
    };
    match ways(image) {
        Some(ways) if finding.verdict == Verdict::Served => format!("{what} (reached by {ways})"),
        _ => what,
    }
}

/// How the program reached the interposer. A forked one reached it before the fork.
fn ways(image: &Image) -> Option<String> {
    image.path.as_ref()?;
    match (image.looked_up.is_empty(), image.called.is_empty()) {
        (true, true) => None,
        (true, false) => Some("linking".to_owned()),
        _ => Some(image.looked_up.join(" and ")),
    }
}

/// Each called function that is left to the driver, and the option that changes this.
fn not_ours(image: &Image) -> String {
    let called = image.called.join(", ");
    let has = |part: &str| image.called.iter().any(|name| name.contains(part));
    let mut text = format!("it called {called}, and got nothing from the pool");
    if has("Async") {
        text += "; --async also serves cudaMallocAsync";
    }
    if has("Host") {
        text += "; --pinned also serves pinned host memory";
    }
    if !has("Async") && !has("Host") {
        text += ": the calls failed, or are of a kind that is left to the driver, like managed memory";
    }
    text
}

fn reasons(image: &Image) -> String {
    image.passed.iter().map(|(reason, rest)| reason_in_words(reason, rest)).collect::<Vec<_>>().join("; ")
}

fn reason_in_words(reason: &str, rest: &str) -> String {
    match reason {
        "size" => {
            "requests smaller than --min or larger than --max (BFC_PRELOAD_MIN, BFC_PRELOAD_MAX)".to_owned()
        }
        "context" => {
            "requests in a context that the program made itself (cuCtxCreate): pools belong to the primary \
                      contexts, which the runtime uses"
                .to_owned()
        }
        "no-context" => {
            "requests without a current context, which the driver answers with an error".to_owned()
        }
        "own-pool" => {
            "requests of cudaMallocAsync for a memory pool of the program's own (cudaDeviceSetMemPool)"
                .to_owned()
        }
        "capture" => "requests during a stream capture".to_owned(),
        "full" => {
            "requests for which the pool could not grow: the limit is reached (--limit, --fraction), or the \
                   device is full"
                .to_owned()
        }
        "pool" => format!("requests that libbfc refused: {rest} (BFC_LOG=warn may show more)"),
        other => format!("{other} {rest}").trim_end().to_owned(),
    }
}

/// Why the interposer is not in a program, and the advice.
pub fn cause_in_words(cause: &Cause, facts: &Facts) -> String {
    let path = facts.path.display();
    let file =
        if facts.is_of_script { format!("{path}, the script's interpreter,") } else { path.to_string() };
    match cause {
        Cause::Static => format!(
            "{file} is statically linked: it has no loader that reads LD_PRELOAD. What helps: link it dynamically (the \
             CUDA runtime may stay static), or let it call libbfc itself"
        ),
        Cause::Privileged(privilege) => {
            let what = match privilege {
                Privilege::Setuid => "is setuid",
                Privilege::Setgid => "is setgid",
                Privilege::Capabilities => "has file capabilities",
            };
            format!(
                "{file} {what}: the loader ignores LD_PRELOAD there, for safety. What helps: run a copy without these \
                 rights, or run it as the user it changes to"
            )
        }
        Cause::Foreign(machine) => format!(
            "{file} is a program for {machine}, and the interposer is one for {}. What helps: a build of the program \
             for this machine",
            std::env::consts::ARCH
        ),
        Cause::OtherLibc(loader) => format!(
            "{file} is loaded by {loader}, and the interposer needs glibc's loader (musl's cannot load it). What \
             helps: a build of the program for glibc"
        ),
        Cause::LoaderFailed => format!(
            "exit code 127: the loader ends a program with this code if it cannot load it. See its message above. If \
             {file} ran nevertheless, nothing in the file shows why"
        ),
        Cause::Killed(signal) => {
            format!("signal {} ended it, perhaps before it was loaded", signal_name(*signal))
        }
        Cause::Unknown => format!(
            "nothing in {file} shows why. Does a message of the loader above say that the interposer cannot be preloaded? Otherwise \
             it may not see the same files (a container, another root), or may not write to {} (a sandbox)",
            std::env::temp_dir().display()
        ),
    }
}

/// `11 (SIGSEGV)`.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        _ => return signal.to_string(),
    };
    format!("{signal} ({name})")
}

/// The processes, and below them the findings.
fn paragraph(who: &str, what: &[String]) -> String {
    let what: String = what.iter().map(|what| wrapped(what, "    ")).collect();
    format!("{}{what}", wrapped(&format!("{who}:"), "  "))
}

/// The text in lines that begin with `indent`. A word that is too long for a line gets its own.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &format!("{indent}{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    if line.is_empty() { lines } else { format!("{lines}{indent}{line}\n") }
}

#[cfg(test)]
mod tests {
    use super::super::file::Kind;
    use super::super::verdict::judge;
    use super::*;

    fn ran(kind: Kind, ended: Ended) -> Ran {
        let file = Facts { path: "/opt/a".into(), is_of_script: false, kind, privilege: None };
        Ran { pid: 7, name: "a".to_owned(), file, ended }
    }

    /// The report as one line, so that it does not matter where lines are broken.
    fn said(text: &str, ran: &Ran) -> String {
        let report = report(&judge(text, ran), ran);
        assert!(report.lines().skip(1).all(|line| line.starts_with("  ") && line.len() <= WIDTH), "{report}");
        report.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn dynamic() -> Kind {
        Kind::Dynamic("/lib64/ld-linux-x86-64.so.2".to_owned())
    }

    #[test]
    fn a_process_that_was_served() {
        let text = "7 loaded /opt/a\n7 looked-up dlsym cuGetProcAddress\n7 looked-up cuGetProcAddress x\n\
                    7 called cuMemAlloc_v2\n7 served 5\n7 passed capture\n7 exit driver=mapped\n";
        let said = said(text, &ran(dynamic(), Ended::Code(4)));
        assert_eq!(
            said,
            "bfc: check: interposition took hold: memory came from the pool (a ended with exit code 4) \
             a (process 7): served from the pool, and some went to the driver: requests during a stream capture \
             (reached by dlsym and cuGetProcAddress)"
        );
    }

    #[test]
    fn the_same_is_said_once() {
        let of = |names: &str| -> String {
            let lines = names.chars().zip(10..);
            lines.map(|(name, pid)| format!("{pid} loaded /bin/{name}\n{pid} exit driver=absent\n")).collect()
        };
        let ran = ran(dynamic(), Ended::Code(0));
        let text = format!("7 loaded /opt/a\n7 called cuMemAlloc_v2\n7 served 5\n{}", of("bcbbd"));
        let served = said(&text, &ran);
        assert!(served.contains("served from the pool (reached by linking)"), "{served}");
        let rest = "b (3 processes), c (process 11), d (process 14): the driver was never in it";
        assert!(served.ends_with(rest), "{served}");
        // The program itself is named first, however late it was seen.
        let many = said(&format!("{}7 loaded /opt/a\n7 exit driver=absent\n", of("bcdefgg")), &ran);
        assert!(many.contains("pool (a ended with exit code 0) a (process 7), b (process 10)"), "{many}");
        assert!(
            many.contains("f (process 14) and 1 other program: the driver, libcuda.so.1, was not"),
            "{many}"
        );
        // Advice about the driver is given only if no process has one.
        let hidden = said(&format!("7 loaded /opt/a\n7 exit driver=mapped\n{}", of("b")), &ran);
        assert!(hidden.ends_with("the driver was never in it"), "{hidden}");
    }

    #[test]
    fn each_reason_and_cause_has_words_of_its_own() {
        let code = Ended::Code(0);
        let of = |text: &str| said(&format!("7 loaded /opt/a\n{text}"), &ran(dynamic(), code));
        for (lines, words) in [
            ("7 exit driver=mapped\n", "RTLD_DEEPBIND"),
            ("7 exit driver=absent\n", "bfc info"),
            ("", "it exited without reporting: by _exit"),
            ("7 looked-up dlsym x\n", "never allocated"),
            ("7 called cuMemAllocAsync\n", "--async also serves cudaMallocAsync"),
            ("7 called cuMemAllocHost_v2\n", "--pinned also serves pinned host memory"),
            ("7 called cuMemAllocManaged\n", "left to the driver, like managed memory"),
            ("7 passed size\n", "BFC_PRELOAD_MIN"),
            ("7 passed context\n", "cuCtxCreate"),
            ("7 passed no-context\n", "without a current context"),
            ("7 passed own-pool\n", "cudaDeviceSetMemPool"),
            ("7 passed full\n", "the pool could not grow"),
            ("7 passed pool no such device\n", "that libbfc refused: no such device (BFC_LOG"),
            ("7 passed new reason\n", "to the driver: new reason"),
        ] {
            assert!(of(lines).contains(words), "{lines}{}", of(lines));
        }
        for (ran, words) in [
            (ran(Kind::Static, code), "/opt/a is statically linked"),
            (ran(Kind::Foreign("32-bit x86".into()), code), "a program for 32-bit x86"),
            (ran(Kind::Dynamic("/lib/ld-musl-x86_64.so.1".into()), code), "loaded by /lib/ld-musl"),
            (ran(dynamic(), Ended::Code(127)), "the loader ends a program with"),
            (ran(dynamic(), Ended::Signal(11)), "signal 11 (SIGSEGV) ended it, perhaps before"),
            (ran(dynamic(), code), "nothing in /opt/a shows why"),
        ] {
            assert!(said("", &ran).contains(words), "{}", said("", &ran));
        }
        let mut script = ran(dynamic(), code);
        script.file.is_of_script = true;
        script.file.privilege = Some(Privilege::Setgid);
        assert!(said("", &script).contains("/opt/a, the script's interpreter, is setgid"));
        let killed = said("7 loaded /opt/a\n", &ran(dynamic(), Ended::Signal(9)));
        assert!(
            killed.contains("was ended by signal 9 (SIGKILL)") && killed.contains("before it was seen"),
            "{killed}"
        );
    }

    #[test]
    fn long_words_have_lines_of_their_own() {
        let long = "x".repeat(WIDTH + 1);
        assert_eq!(wrapped(&format!("a {long} b"), "  "), format!("  a\n  {long}\n  b\n"));
        assert_eq!(wrapped("", "  "), "");
    }
}
