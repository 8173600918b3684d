//! Histories that no library wrote: the events that a test wants, in the format of the library.

#![allow(missing_docs)] // Of fields and methods whose names say it.

use std::mem::offset_of;

use bfc_formats::history::layout::{
    self, Event, HEADER_BYTES, Header, Kind, MAGIC, STACK_BYTES, STOPPED, StackHead, TEXT_BYTES, TextHead,
    TextKind, text_extent,
};

const CAPACITY: u64 = 1024;
/// What marks have as their pool.
const NO_POOL: u16 = u16::MAX;

/// A history in the making. Its ticks are microseconds.
#[derive(Clone)]
pub struct Made {
    texts: Vec<u8>,
    /// The area of backtraces, which the file has if there is one.
    stacks: Vec<u64>,
    events: Vec<u8>,
    written: u64,
    in_use: [u64; 8],
    marks: u32,
    /// The backtrace of the allocations to come. 0 is none.
    pub stack: u32,
    /// How far events are apart.
    pub microseconds: u64,
    /// Nanoseconds since 1970.
    pub began: u64,
    pub process: u32,
    pub started: u64,
    pub state: u32,
}

/// What an allocation is.
#[derive(Clone, Copy)]
pub struct Chunk {
    pub address: u64,
    pub bytes: u64,
    pub operation: u32,
}

impl Made {
    /// A history that was stopped.
    pub fn new(program: &str) -> Self {
        let mut made = Made {
            texts: Vec::new(),
            stacks: Vec::new(),
            events: Vec::new(),
            written: 0,
            in_use: [0; 8],
            marks: 0,
            stack: 0,
            microseconds: 1000,
            began: 0,
            process: 4711,
            started: 1,
            state: STOPPED,
        };
        made.text(TextKind::Program, NO_POOL, 0, program);
        made
    }

    pub fn text(&mut self, kind: TextKind, pool: u16, number: u32, text: &str) {
        let end = self.texts.len() + text_extent(text.len());
        self.texts.extend((kind as u16).to_le_bytes());
        self.texts.extend(pool.to_le_bytes());
        self.texts.extend(number.to_le_bytes());
        self.texts.extend((text.len() as u32).to_le_bytes());
        self.texts.extend([0; 4]);
        assert_eq!(size_of::<TextHead>(), 16);
        self.texts.extend(text.as_bytes());
        self.texts.resize(end, 0);
    }

    /// A pool with a region of a mebibyte at the address 0x100000, whose operations have these names.
    pub fn pool(&mut self, pool: u16, device: i32, name: &str, operations: &[&str]) {
        self.text(TextKind::Pool, pool, device as u32, name);
        self.event(Kind::Begin, pool, 0, [0, 1 << 20, 0]);
        self.event(Kind::Obtained, pool, 0, [0x10_0000, 1 << 20, 0]);
        for (number, operation) in (1..).zip(operations) {
            self.text(TextKind::Operation, pool, number, operation);
        }
    }

    pub fn alloc(&mut self, pool: u16, chunk: Chunk) {
        self.in_use[usize::from(pool)] += chunk.bytes;
        self.event(Kind::Alloc, pool, chunk.operation, [chunk.address, chunk.bytes, chunk.bytes - 6]);
    }

    pub fn free(&mut self, pool: u16, chunk: Chunk) {
        self.in_use[usize::from(pool)] -= chunk.bytes;
        self.event(Kind::Free, pool, 0, [chunk.address, chunk.bytes, 0]);
    }

    /// Adds a backtrace, and returns its number. There is a module at 0x1000 to 0x2000, and a function 1 of Python; its
    /// frames are the function and a line.
    pub fn backtrace(&mut self, native: &[u64], python: &[(u32, u32)]) -> u32 {
        if self.stacks.is_empty() {
            // Start, end, bias, and the length of the build id.
            let numbers = [0x1000_u64, 0x2000, 0, 5].map(u64::to_le_bytes).concat();
            let numbers = String::from_utf8(numbers).expect("small bytes");
            self.text(TextKind::Module, NO_POOL, 1, &format!("{numbers}BUILD/usr/lib/libapp.so"));
            self.text(TextKind::Function, NO_POOL, 1, "forward\0train.py");
        }
        let number = self.stacks.len() as u32 + 1;
        let head = StackHead { native: native.len() as u16, python: python.len() as u16, is_cut: false };
        self.stacks.push(head.word());
        self.stacks.extend(native);
        self.stacks
            .extend(python.iter().map(|&(function, line)| u64::from(function) << 32 | u64::from(line)));
        number
    }

    pub fn step(&mut self, pool: u16, step: u64) {
        self.event(Kind::Step, pool, 0, [0, step, 0]);
    }

    pub fn out_of_memory(&mut self, pool: u16, requested: u64) {
        self.event(Kind::OutOfMemory, pool, 0, [0, 0, requested]);
    }

    /// Destroys a pool by force.
    pub fn destroy(&mut self, pool: u16) {
        self.event(Kind::Returned, pool, 0, [0x10_0000, 1 << 20, 0]);
        self.event(Kind::End, pool, 0, [0, 0, 0]);
    }

    pub fn mark(&mut self, name: &str) {
        self.marks += 1;
        self.text(TextKind::Mark, NO_POOL, self.marks, name);
        self.event(Kind::Mark, NO_POOL, self.marks, [0, 0, 0]);
    }

    fn event(&mut self, kind: Kind, pool: u16, name: u32, [address, bytes, requested]: [u64; 3]) {
        assert!(self.written < CAPACITY, "the ring of a test's history is small");
        let in_use = self.in_use.get(usize::from(pool)).copied().unwrap_or(0);
        let what = kind as u64 | 1 << 8 | u64::from(pool) << 16 | u64::from(name) << 32;
        self.written += 1;
        let ticks = self.written * self.microseconds;
        // In the order of the fields.
        let stack = if kind as u8 == Kind::Alloc as u8 { self.stack } else { 0 };
        let stamp = layout::complete(self.written - 1, stack);
        for word in [stamp, ticks, address, bytes, requested, 0, in_use, what] {
            self.events.extend(word.to_le_bytes());
        }
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let stack_bytes = if self.stacks.is_empty() { 0 } else { STACK_BYTES };
        let before = HEADER_BYTES + TEXT_BYTES + stack_bytes;
        let mut bytes = vec![0; before + CAPACITY as usize * size_of::<Event>()];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        let mut put = |at: usize, number: &[u8]| bytes[at..at + number.len()].copy_from_slice(number);
        put(offset_of!(Header, header_bytes), &(HEADER_BYTES as u32).to_le_bytes());
        put(offset_of!(Header, event_bytes), &(size_of::<Event>() as u32).to_le_bytes());
        put(offset_of!(Header, text_bytes), &(TEXT_BYTES as u64).to_le_bytes());
        put(offset_of!(Header, stack_bytes), &(stack_bytes as u64).to_le_bytes());
        put(offset_of!(Header, stacks_used), &(8 * self.stacks.len() as u64).to_le_bytes());
        put(offset_of!(Header, capacity), &CAPACITY.to_le_bytes());
        put(offset_of!(Header, written), &self.written.to_le_bytes());
        put(offset_of!(Header, text_used), &(self.texts.len() as u64).to_le_bytes());
        // The clocks: a tick is a microsecond.
        put(offset_of!(Header, last.ticks), &1_000_000_u64.to_le_bytes());
        put(offset_of!(Header, first.nanoseconds), &self.began.to_le_bytes());
        put(offset_of!(Header, last.nanoseconds), &(self.began + 1_000_000_000).to_le_bytes());
        put(offset_of!(Header, process), &self.process.to_le_bytes());
        put(offset_of!(Header, state), &self.state.to_le_bytes());
        put(offset_of!(Header, started), &self.started.to_le_bytes());
        put(HEADER_BYTES, &self.texts);
        let stacks: Vec<u8> = self.stacks.iter().flat_map(|word| word.to_le_bytes()).collect();
        put(HEADER_BYTES + TEXT_BYTES, &stacks);
        put(before, &self.events);
        bytes
    }
}
