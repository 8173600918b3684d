//! The backtraces of a history: their frames as recorded, and with names.
//!
//! The file contains addresses and the modules that contain them. Here a native frame is named by its module, and
//! `symbols` does better if the module's file exists. The names of Python's frames are in the file.

#![allow(missing_docs)] // Of fields whose names say it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use super::fields::field;
use super::ranges::Ranges;
use bfc_formats::history::layout::{MOST_FRAMES, ModuleHead, StackHead};

/// The frames of a backtrace with names, the innermost first. Those that differ only in addresses have the same frames and
/// are one.
pub type Backtrace = Rc<[Frame]>;

/// A frame of a backtrace. Many may share the same texts.
#[derive(Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frame {
    /// The function, or the module and the offset in it if nothing else is known.
    pub function: Rc<str>,
    pub file: Option<Rc<str>>,
    /// From 1. 0 is not known.
    pub line: u32,
}

/// A file that was mapped as code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The first backtrace that may be in it.
    pub since: u32,
    pub start: u64,
    pub end: u64,
    /// The difference to the addresses in its file.
    pub bias: u64,
    pub build_id: Vec<u8>,
    pub path: PathBuf,
}

/// A backtrace as it is in the file.
struct Raw<'a> {
    native: &'a [u64],
    /// The number of the function in the upper half, and the line in the lower one.
    python: &'a [u64],
    is_cut: bool,
}

/// The maximum length of a file's name in Linux, in bytes.
const MOST_NAME: usize = 255;
/// The maximum number of frames of a backtrace, including inlined ones.
const MOST_NAMED: usize = 4 * MOST_FRAMES;

#[derive(Debug, Default)]
pub struct Stacks {
    pub modules: Vec<Module>,
    functions: HashMap<u32, Frame>,
    /// The area of the file.
    words: Vec<u64>,
    /// The numbers of the backtraces in it, ascending.
    numbers: Vec<u32>,
    named: HashMap<u32, Backtrace>,
    nothing: Backtrace,
}

impl Module {
    /// Reads the text of a module, which is damaged if it is too short, or if its file cannot have that name. Each frame
    /// has a copy of it.
    pub fn parse(since: u32, text: &[u8]) -> Option<Self> {
        let behind = text.get(size_of::<ModuleHead>()..)?;
        let length = usize::try_from(field!(text, ModuleHead, build_id_bytes, u64)).ok()?;
        let (build_id, path) = behind.split_at_checked(length)?;
        if path.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.len() > MOST_NAME) {
            return None;
        }
        Some(Module {
            since,
            start: field!(text, ModuleHead, start, u64),
            end: field!(text, ModuleHead, end, u64),
            bias: field!(text, ModuleHead, bias, u64),
            build_id: build_id.to_vec(),
            path: OsStr::from_bytes(path).into(),
        })
    }

    fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    /// Whether this is libbfc or its interposer.
    fn is_the_library(&self) -> bool {
        let name = self.name();
        ["libbfc.so", "libbfc_preload.so"].iter().any(|own| name.starts_with(own))
    }

    /// The module and the offset in it.
    fn place(&self, address: u64) -> String {
        format!("{}+{:#x}", self.name(), address.wrapping_sub(self.bias))
    }
}

impl Stacks {
    /// Adds a function of Python. Each of its frames gets a copy.
    pub fn add_function(&mut self, number: u32, text: &str) {
        let (function, file) = text.split_once('\0').unwrap_or((text, ""));
        let file = (!file.is_empty()).then(|| file.into());
        self.functions.insert(number, Frame { function: function.into(), file, line: 0 });
    }

    /// Reads the area of backtraces.
    pub fn read(&mut self, area: &[u8]) {
        let (words, _) = area.as_chunks();
        self.words = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let mut at = 0;
        // The area has half a million words.
        while let Some(raw) = self.raw(at + 1) {
            let words = raw.native.len() + raw.python.len();
            self.numbers.push(at + 1);
            at += 1 + words as u32;
        }
    }

    /// The backtrace with a number, unless it is damaged: then the words after the number mean nothing.
    fn raw(&self, number: u32) -> Option<Raw<'_>> {
        let (&first, behind) = self.words.get(number as usize - 1..)?.split_first()?;
        let head = StackHead::of(first);
        let (native, python) = (usize::from(head.native), usize::from(head.python));
        // Values that the library never writes are damage. The whole area may consist of heads without frames, and each
        // event may have the longest backtrace.
        if native + python == 0 || native.max(python) > MOST_FRAMES {
            return None;
        }
        let (native, python) = behind.get(..native + python)?.split_at(native);
        Some(Raw { native, python, is_cut: head.is_cut })
    }

    /// Names the frames, the native ones by a function that gets the module of each, its position in `modules`, and the address. A call
    /// may have been inlined, so it returns several frames, the innermost first, or none if the address has no name.
    pub fn name(&mut self, mut name: impl FnMut(usize, &Module, u64) -> Vec<Frame>) {
        let mut named = HashMap::new();
        // A backtrace without frames is the result for an unknown number, too.
        let mut different = HashSet::from([self.nothing.clone()]);
        let mut known: HashMap<(Option<usize>, u64), Vec<Frame>> = HashMap::new();
        // A module that was loaded later replaces the one that was there before.
        let mut later: Vec<usize> = (0..self.modules.len()).collect();
        later.sort_by_key(|&module| self.modules[module].since);
        let mut later = later.into_iter().peekable();
        let mut loaded = Ranges::default();
        for &number in &self.numbers {
            while let Some(position) = later.next_if(|&module| self.modules[module].since <= number) {
                let module = &self.modules[position];
                loaded.insert(module.start, module.end, position);
            }
            let Some(raw) = self.raw(number) else { continue };
            let position_of = |address: u64| loaded.at(address).map(|(.., position)| position);
            let is_own =
                |address: &&u64| position_of(**address).is_some_and(|at| self.modules[at].is_the_library());
            let mut frames = Vec::new();
            for &address in raw.native.iter().skip_while(is_own) {
                let position = position_of(address);
                frames.extend_from_slice(known.entry((position, address)).or_insert_with(|| {
                    let Some(position) = position else { return vec![unnamed(format!("{address:#x}"))] };
                    let module = &self.modules[position];
                    let found = name(position, module, address);
                    if found.is_empty() { vec![unnamed(module.place(address))] } else { found }
                }));
            }
            let mut frames = without_the_library(frames);
            if !raw.python.is_empty() {
                // The interpreter runs all of Python's frames in a few of its own.
                let interpreter = frames.iter().position(|frame| frame.function.starts_with("_PyEval_"));
                frames.truncate(interpreter.unwrap_or(frames.len()));
            }
            let python = raw.python.iter().map(|&frame| {
                let (function, line) = ((frame >> 32) as u32, frame as u32);
                let function = self.functions.get(&function).cloned();
                Frame { line, ..function.unwrap_or_else(|| unnamed("(a Python function)".to_owned())) }
            });
            frames.extend(python.skip_while(is_of_the_package));
            if raw.is_cut || frames.len() > MOST_NAMED {
                frames.truncate(MOST_NAMED);
                frames.push(unnamed("(more frames)".to_owned()));
            }
            let backtrace: Backtrace = frames.into();
            let backtrace = different.get(&backtrace).cloned().unwrap_or(backtrace);
            different.insert(backtrace.clone());
            named.insert(number, backtrace);
        }
        self.named = named;
    }

    /// The frames of a backtrace.
    pub fn frames(&self, stack: u32) -> &Backtrace {
        self.named.get(&stack).unwrap_or(&self.nothing)
    }
}

/// A frame of which nothing else is known.
fn unnamed(function: String) -> Frame {
    Frame { function: function.into(), ..Frame::default() }
}

/// Leaves out the innermost frames that are libbfc's own, where it is a part of the program.
fn without_the_library(mut frames: Vec<Frame>) -> Vec<Frame> {
    let is_own = |frame: &Frame| ["bfc_", "bfc::"].iter().any(|own| frame.function.starts_with(own));
    let others = frames.iter().position(|frame| !is_own(frame)).unwrap_or(0);
    frames.drain(..others);
    frames
}

/// Returns whether a frame of Python is in the package bfc.
fn is_of_the_package(frame: &Frame) -> bool {
    let path = frame.file.as_deref().unwrap_or_default();
    let mut parts = path.rsplit('/');
    parts.next().is_some_and(|file| file.starts_with('_')) && parts.next() == Some("bfc")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(module: &ModuleHead, rest: &[u8]) -> Vec<u8> {
        let numbers = [module.start, module.end, module.bias, module.build_id_bytes];
        numbers.iter().flat_map(|number| number.to_le_bytes()).chain(rest.iter().copied()).collect()
    }

    fn named(stacks: &mut Stacks, area: &[u8]) {
        stacks.read(area);
        stacks.name(|_, _, _| Vec::new());
    }

    fn functions(frames: &[Frame]) -> Vec<&str> {
        frames.iter().map(|frame| &*frame.function).collect()
    }

    fn area(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn head(native: u16, python: u16, is_cut: bool) -> u64 {
        StackHead { native, python, is_cut }.word()
    }

    #[test]
    fn frames_have_modules_and_python_functions() {
        let mut stacks = Stacks::default();
        let a = ModuleHead { start: 0x1000, end: 0x2000, bias: 0x800, build_id_bytes: 2 };
        let b = ModuleHead { bias: 0x1000, ..a };
        stacks.modules.extend(Module::parse(1, &text_of(&a, b"\x01\x02/lib/a.so")));
        // Another was loaded there later.
        stacks.modules.extend(Module::parse(3, &text_of(&b, b"\x03\x04/lib/b.so")));
        assert_eq!(stacks.modules[0].build_id, [1, 2]);
        stacks.add_function(7, "Model.forward\0/home/model.py");
        named(
            &mut stacks,
            &area(&[head(1, 0, false), 0x1234, head(2, 2, true), 0x1234, 0x9000, 7 << 32 | 12, 8 << 32 | 3]),
        );
        assert_eq!(functions(stacks.frames(1)), ["a.so+0xa34"]);
        let frames = stacks.frames(3);
        assert_eq!(
            functions(frames),
            ["b.so+0x234", "0x9000", "Model.forward", "(a Python function)", "(more frames)"]
        );
        assert_eq!((frames[2].file.as_deref(), frames[2].line), (Some("/home/model.py"), 12));
        assert!(stacks.frames(0).is_empty() && stacks.frames(2).is_empty());
    }

    #[test]
    fn the_path_of_a_module_need_not_be_utf_8() {
        let head = ModuleHead { start: 0x10, end: 0x20, bias: 0, build_id_bytes: 0 };
        let module = Module::parse(1, &text_of(&head, b"/lib/\xe9.so")).expect("a module");
        assert_eq!(module.path.as_os_str().as_bytes(), b"/lib/\xe9.so");
        assert_eq!(module.place(0x12), "\u{fffd}.so+0x12");
    }

    #[test]
    fn a_module_or_a_backtrace_that_is_cut_off_is_left_out() {
        let head_only = ModuleHead { start: 0, end: 1, bias: 0, build_id_bytes: 9 };
        assert_eq!(Module::parse(1, &text_of(&head_only, b"12345678")), None);
        assert_eq!(Module::parse(1, b"short"), None);
        let mut stacks = Stacks::default();
        named(&mut stacks, &area(&[head(1, 0, false), 5, head(3, 0, false), 5]));
        assert_eq!(functions(stacks.frames(1)), ["0x5"]);
        assert!(stacks.frames(3).is_empty());
    }

    #[test]
    fn frames_of_the_library_are_left_out() {
        let frame = |function: &str| Frame { function: function.into(), ..Frame::default() };
        let own = ["bfc::device::alloc", "bfc_alloc", "main", "bfc_callback"].map(frame);
        assert_eq!(functions(&without_the_library(own.to_vec())), ["main", "bfc_callback"]);
        assert_eq!(functions(&without_the_library(own[..2].to_vec())).len(), 2, "an empty one says nothing");
        let mut stacks = Stacks::default();
        let head = ModuleHead { start: 0x1000, end: 0x2000, bias: 0, build_id_bytes: 0 };
        stacks.modules.extend(Module::parse(1, &text_of(&head, b"/usr/lib/libbfc.so.0")));
        for (number, file) in [(1, "/lib/bfc/_pool.py"), (2, "/home/bfc/train.py"), (3, "/lib/bfc/_pool.py")]
        {
            stacks.add_function(number, &format!("f{number}\0{file}"));
        }
        let python = [1, 2, 3].map(|number| number << 32);
        named(
            &mut stacks,
            &area(
                &[
                    &[super::StackHead { native: 3, python: 3, is_cut: false }.word(), 0x1010, 5, 0x1020][..],
                    &python,
                ]
                .concat(),
            ),
        );
        assert_eq!(functions(stacks.frames(1)), ["0x5", "libbfc.so.0+0x1020", "f2", "f3"]);
    }
}
