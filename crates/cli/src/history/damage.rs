//! Damaged histories: each is refused with a reason or shown, and nothing panics. In tests, arithmetic that overflows
//! would panic.

use std::cell::Cell;
use std::io;
use std::mem::offset_of;

use super::diff::Difference;
use super::format::Format;
use super::leaks::{Leaks, LeaksArgs};
use super::memory_viz::trace::Trace;
use super::moment::Moment;
use super::page::lives::{Lives, spans};
use super::snapshot::Snapshot;
use super::summary::Summary;
use bfc_formats::history::layout::{
    Event, HEADER_BYTES, Header, Kind, RECORDING, STACK_BYTES, STOPPED, TEXT_BYTES, WRITING,
};
use bfc_formats::history::layout::{MOST_FUNCTION, TextKind};
use bfc_readers::history::made::{Chunk, Made};
use bfc_readers::history::reader::{History, Malformed, Recorded};
use bfc_readers::history::source::Source;
use bfc_readers::process::Liveness;

/// Numbers at the limits of arithmetic.
const EXTREMES: [u64; 8] = [0, 1, 255, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];

/// Marsaglia's xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Where its events begin.
const EVENTS: usize = HEADER_BYTES + TEXT_BYTES + STACK_BYTES;

/// A history with every kind of event, and with backtraces.
fn whole() -> Vec<u8> {
    let mut made = Made::new("train");
    made.stack = made.backtrace(&[0x1010, 0x2010], &[(1, 7)]);
    made.pool(1, 0, "bfc", &["weights", "cache"]);
    made.pool(2, 1, "other", &["weights"]);
    let chunk = |number: u64| Chunk {
        address: 0x10_0000 + number * 0x1000,
        bytes: 256 * (number + 1),
        operation: (number % 3) as u32,
    };
    for number in 0..30 {
        made.alloc(1 + (number % 2) as u16, chunk(number));
        if number % 5 == 4 {
            made.step(1, number);
            made.mark("step");
            made.free(1 + ((number - 2) % 2) as u16, chunk(number - 2));
            made.out_of_memory(1, 1 << 20);
        }
    }
    made.destroy(2);
    made.bytes()
}

fn parse(file: &Vec<u8>) -> Result<History, Malformed> {
    let mut history = bfc_readers::history::reader::parse(file)?;
    super::symbols::resolve(&mut history, &indicatif::ProgressBar::hidden());
    Ok(history)
}

/// Checks that what the page and the snapshot for PyTorch make of events is in proportion to them.
fn count(events: &[Recorded]) {
    let mut lives = Lives::default();
    (0..).zip(events).for_each(|(at, event)| lives.see(event, at));
    // An event leaves at most two parts of regions, and adds one.
    assert!(lives.chunks.len() <= events.len() && lives.regions.len() <= 3 * events.len());
    assert!(spans(&lives).len() <= lives.chunks.len() + lives.regions.len());
    let trace = Trace::of(events.iter().filter(|event| event.kind != Kind::Mark));
    // A block and the segments that it lies in and between.
    assert!(trace.entries.len() <= 8 * events.len());
}

/// Shows a history in every way.
fn show(history: &History) {
    count(&history.events);
    let summary = Summary::new(history, Liveness::Unknown);
    assert!(!summary.text().is_empty());
    for (extension, format) in Format::EXTENSIONS {
        if let Err(error) = format.write_to(history, &summary, &mut io::sink()) {
            // There is nothing to draw without a pool.
            assert!(error.to_string().contains("has no allocator"), "{extension}: {error}");
        }
    }
    let leaks = Leaks::new(history, &LeaksArgs::ALL).expect("there is a begin and an end");
    assert!(!leaks.text().is_empty());
    crate::json::write(io::sink(), &leaks).expect("a document");
    let at = |moment: Moment| {
        let point = moment.find(history).or_else(|_| Moment::End.find(history)).expect("there is an end");
        Snapshot::of_history("file".to_owned(), history, point)
    };
    let difference = Difference::new(at(Moment::Mark("step#2".to_owned())), at(Moment::Peak));
    assert!(!difference.text().is_empty());
    crate::json::write(io::sink(), &difference).expect("a document");
}

/// Overwrites a number or a byte of the written part.
fn damage(file: &mut [u8], random: &mut Random) {
    let stacks = HEADER_BYTES + TEXT_BYTES;
    let (from, to) = [
        (0, size_of::<Header>()),
        (HEADER_BYTES, HEADER_BYTES + 400),
        (stacks, stacks + 32),
        (EVENTS, EVENTS + 64 * size_of::<Event>()),
    ][random.below(4)];
    if random.below(2) == 0 {
        file[from + random.below(to - from)] = random.below(256) as u8;
    } else {
        let at = from + random.below((to - from) / 8) * 8;
        file[at..at + 8].copy_from_slice(&EXTREMES[random.below(EXTREMES.len())].to_le_bytes());
    }
}

#[test]
fn a_damaged_history_is_shown_or_refused() {
    let whole = whole();
    show(&parse(&whole).expect("it is whole"));
    let (mut random, mut shown, mut file) = (Random(7), 0, whole.clone());
    for _ in 0..5000 {
        file.copy_from_slice(&whole);
        for _ in 0..=random.below(6) {
            damage(&mut file, &mut random);
        }
        if let Ok(history) = parse(&file) {
            assert!(history.events.len() <= 1024);
            show(&history);
            shown += 1;
        }
    }
    assert!(shown > 1000, "{shown}");
}

/// Sums of a file may be larger than a number.
#[test]
fn the_largest_numbers_are_shown() {
    let mut file = whole();
    for event in 0..64 {
        for field in [offset_of!(Event, bytes), offset_of!(Event, requested), offset_of!(Event, in_use)] {
            let at = EVENTS + event * size_of::<Event>() + field;
            file[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        }
    }
    show(&parse(&file).expect("its header is whole"));
}

/// Names that no library writes are left out: a file of a few MiB can have half a million frames, each with a copy of
/// its name.
#[test]
fn names_longer_than_any_are_left_out() {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &[]);
    made.stack = made.backtrace(&[0x1010], &[(1, 7)]);
    made.alloc(1, Chunk { address: 0x10_0000, bytes: 256, operation: 0 });
    let numbers =
        String::from_utf8([0x1000_u64, 0x2000, 0, 0].map(u64::to_le_bytes).concat()).expect("small bytes");
    for (length, expected) in [(255, 255), (256, "libapp.so".len())] {
        let mut made = made.clone();
        made.text(TextKind::Module, u16::MAX, 1, &format!("{numbers}/lib/{}", "m".repeat(length)));
        let history = parse(&made.bytes()).expect("it is whole");
        assert_eq!(history.frames(made.stack)[0].function.len(), expected + "+0x1010".len());
    }
    for (length, expected) in [(MOST_FUNCTION, MOST_FUNCTION), (MOST_FUNCTION + 1, "forward".len())] {
        let mut made = made.clone();
        made.text(TextKind::Function, u16::MAX, 1, &"f".repeat(length));
        let history = parse(&made.bytes()).expect("it is whole");
        assert_eq!(history.frames(made.stack)[1].function.len(), expected);
    }
}

/// A history in which the process replaces the first event right after it was read.
struct Replaced {
    file: Vec<u8>,
    is_read: Cell<bool>,
}

impl Source for Replaced {
    fn bytes(&self) -> io::Result<u64> {
        Source::bytes(&self.file)
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        Source::read_at(&self.file, at, buffer)?;
        if at == EVENTS as u64 && self.is_read.replace(true) {
            buffer[offset_of!(Event, stamp)..][..8].copy_from_slice(&WRITING.to_le_bytes());
        }
        Ok(())
    }

    fn written(&self, from: u64) -> Option<(u64, u64)> {
        Source::written(&self.file, from)
    }
}

/// Its words may come from two events, although its stamp was complete.
#[test]
fn an_event_that_is_replaced_while_it_is_read_is_incomplete() {
    let mut file = whole();
    let count = parse(&file).expect("it is whole").events.len();
    let state = offset_of!(Header, state);
    for (state_there, expected) in [(RECORDING, count - 1), (STOPPED, count)] {
        file[state..state + 4].copy_from_slice(&state_there.to_le_bytes());
        let source = Replaced { file: file.clone(), is_read: Cell::new(false) };
        let history = bfc_readers::history::reader::parse(&source).expect("it is whole");
        assert_eq!((history.events.len(), history.incomplete), (expected, (count - expected) as u64));
    }
}

#[test]
fn a_history_that_is_cut_off_is_refused() {
    let whole = whole();
    for length in (16..whole.len()).step_by(997) {
        assert!(matches!(parse(&whole[..length].to_vec()), Err(Malformed::CutOff { .. })), "{length}");
    }
    // A backtrace without frames is not damage.
    show(&parse(&Made::new("train").bytes()).expect("it is whole"));
}
