//! The log of the interposer while a program ran: a line for each event that it observed for the first time.
//!
//! `PID WORD DETAIL...`, as crates/preload/src/diagnostics/check_log.rs writes them. Unknown lines are skipped, because a
//! newer interposer may write more.

/// A program in a process, from its start to its end, or to the exec that put another in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The process.
    pub pid: u32,
    /// The executable. None in a process that was forked and never executed a program.
    pub path: Option<String>,
    /// The ways in which the driver's functions were looked up, each once.
    pub looked_up: Vec<String>,
    /// Allocation functions of the driver that were called.
    pub called: Vec<String>,
    /// Whether an allocation came from the pool.
    pub served: bool,
    /// Why allocations went to the driver: a word, and for `pool` libbfc's message.
    pub passed: Vec<(String, String)>,
    /// How it ended.
    pub end: End,
}

/// How a program ended, as the interposer reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// It did not tell.
    #[default]
    Untold,
    /// Another program replaced this one in the process.
    Replaced,
    /// Normally, with a driver in the process.
    WithDriver,
    /// Normally, and there was no driver in the process.
    WithoutDriver,
}

/// All programs, in the order in which they were first seen.
pub fn images(text: &str) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let Some(pid) = words.next().and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        let (word, detail) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (first, rest) = detail.split_once(' ').unwrap_or((detail, ""));
        let pair = || (first.to_owned(), rest.to_owned());
        let image = current(&mut images, pid, word);
        match word {
            "loaded" => image.path = Some(detail.to_owned()),
            // A line for each function.
            "looked-up" if image.looked_up.iter().all(|way| way != first) => {
                image.looked_up.push(first.to_owned())
            }
            // A process that frees need not have allocated.
            "called" if first.contains("Free") => {}
            "called" => image.called.push(first.to_owned()),
            "served" => image.served = true,
            "passed" => image.passed.push(pair()),
            "exit" if first == "driver=mapped" => image.end = End::WithDriver,
            "exit" if first == "driver=absent" => image.end = End::WithoutDriver,
            _ => {}
        }
    }
    images
}

/// The image of a process that a line is about.
fn current<'a>(images: &'a mut Vec<Image>, pid: u32, word: &str) -> &'a mut Image {
    let last = images.iter().rposition(|image| image.pid == pid);
    let at = match last {
        Some(at) if word != "loaded" => at,
        last => {
            if let Some(image) = last.and_then(|at| images.get_mut(at)) {
                // If it has ended, this is another process with the same number.
                if image.end == End::Untold {
                    image.end = End::Replaced;
                }
            }
            images.push(Image { pid, ..Image::default() });
            images.len() - 1
        }
    };
    &mut images[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        let text = "7 loaded /opt/a program\n7 looked-up dlsym cuGetProcAddress_v2\n\
                    7 looked-up cuGetProcAddress cuMemAlloc_v2\n7 looked-up cuGetProcAddress cuMemFree_v2\n7 called cuMemAlloc_v2\n7 called cuMemFreeAsync\n7 served 512\n\
                    7 passed size\n7 passed pool the limit is reached\n7 exit driver=mapped\n";
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let expected = Image {
            pid: 7,
            path: Some("/opt/a program".to_owned()),
            looked_up: vec!["dlsym".to_owned(), "cuGetProcAddress".to_owned()],
            called: vec!["cuMemAlloc_v2".to_owned()],
            served: true,
            passed: vec![pair("size", ""), pair("pool", "the limit is reached")],
            end: End::WithDriver,
        };
        assert_eq!(images(text), [expected]);
    }

    #[test]
    fn programs_follow_one_another_in_a_process() {
        let text = "7 loaded /bin/sh\n8 loaded /bin/ls\n8 exit driver=absent\n7 loaded /opt/a\n\
                    7 exit driver=mapped\n8 loaded /bin/cat\n9 served 512\n";
        let images = images(text);
        let found: Vec<_> = images.iter().map(|i| (i.pid, i.path.as_deref(), i.end)).collect();
        let expected = [
            (7, Some("/bin/sh"), End::Replaced),
            (8, Some("/bin/ls"), End::WithoutDriver),
            (7, Some("/opt/a"), End::WithDriver),
            (8, Some("/bin/cat"), End::Untold),
            (9, None, End::Untold),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_not_understood_is_passed_over() {
        let text = "x loaded /bin/ls\n\n7\n7 sang loudly\n7 exit driver=perhaps\n7 called cuMem";
        let images = images(text);
        let [image] = &images[..] else { panic!("{images:?}") };
        assert_eq!((image.pid, &image.path, image.end), (7, &None, End::Untold));
        assert_eq!(image.called, ["cuMem"]);
    }
}
