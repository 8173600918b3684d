//! Capturing the backtrace of a call, before the lock of its pool is taken.

use super::interner::MOST_WORDS;
use super::recording::{self, Captured, PYTHON};
use super::unwind::{self, Addresses};
use super::{modules, python};
use bfc_formats::history::layout::{MOST_FRAMES, StackHead};
use os::signals::Blocked;

/// Captures the backtrace of the calling thread, if there is a recording with backtraces. No lock may be held: the
/// unwinder may wait for the dynamic loader, and a thread in the loader for an allocation.
#[cold]
#[inline(never)]
pub(crate) fn capture() -> Captured {
    let wanted = recording::wanted_stacks();
    if wanted == 0 {
        return Captured::NONE;
    }
    let mut words = Words { list: [0; MOST_WORDS], used: 1, head: StackHead::default() };
    if wanted & recording::NATIVE != 0 {
        words.add_native();
    }
    // Done once for all frames, each of which is looked up with the recording locked.
    let blocked = Blocked::new();
    if wanted & PYTHON != 0 {
        words.add_python(&blocked);
    }
    let words = words.finish();
    if words.len() == 1 {
        return Captured::NONE;
    }
    if let Some(known) = recording::find_stack(&blocked, words) {
        return known;
    }
    drop(blocked);
    modules::refresh();
    recording::add_stack(&Blocked::new(), words)
}

struct Words {
    list: [u64; MOST_WORDS],
    used: usize,
    head: StackHead,
}

impl Words {
    #[inline(never)]
    fn add_native(&mut self) {
        let mut addresses = Addresses { list: [0; MOST_FRAMES], count: 0, is_cut: false };
        unwind::walk(&mut addresses);
        self.list[self.used..self.used + addresses.count].copy_from_slice(&addresses.list[..addresses.count]);
        self.used += addresses.count;
        self.head.native = addresses.count as u16;
        self.head.is_cut |= addresses.is_cut;
    }

    #[inline(never)]
    fn add_python(&mut self, blocked: &Blocked) {
        let is_cut = python::walk(|frame| {
            let Some(number) = recording::number_of_function(blocked, frame.function) else { return };
            self.list[self.used] = u64::from(number) << 32 | u64::from(frame.line);
            self.used += 1;
            self.head.python += 1;
        });
        self.head.is_cut |= is_cut;
    }

    fn finish(&mut self) -> &[u64] {
        self.list[0] = self.head.word();
        &self.list[..self.used]
    }
}
