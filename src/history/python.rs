//! The Python frames of the calling thread.
//!
//! They are read from the interpreter's memory, with or without its lock (the GIL): runtimes release it before they
//! allocate, and to take it here could deadlock. That is safe because this thread is in a call that Python made, so its
//! frames do not change, and each keeps its code object and that object's names alive. Nothing is changed there, and the
//! only function of Python that is called meanwhile, `PyCode_Addr2Line`, only reads the code object.
//!
//! The places in CPython's structures differ between its minor versions and never within one. They are compared with the
//! interpreter's own sizes and types before they are used the first time, by reads that cannot fault.

use bfc_formats::history::layout::{MOST_FRAMES, MOST_FUNCTION};
use os::descriptors::Descriptor;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// The offsets of fields in CPython's structures, in bytes.
#[derive(Clone, Copy)]
struct Places {
    /// In the thread's state: the current frame, or the structure that points to it.
    current: usize,
    /// In the structure that points to the current frame, if there is one.
    indirect: Option<usize>,
    /// In a frame.
    code: usize,
    previous: usize,
    instruction: usize,
    /// The owner of the frame. Absent in versions where no frame is the interpreter's own.
    owner: Option<usize>,
    /// In a code object.
    file: usize,
    name: usize,
    /// In a string of ASCII, and in another one.
    ascii: usize,
    wide: usize,
    /// Whether the instruction is a number, instead of a pointer.
    is_counted: bool,
}

impl Places {
    fn of(minor: u32) -> Option<Self> {
        let common = Places {
            current: 72,
            indirect: None,
            code: 0,
            previous: 8,
            instruction: 56,
            owner: Some(70),
            file: 112,
            name: 128,
            ascii: 40,
            wide: 56,
            is_counted: false,
        };
        Some(match minor {
            10 => Places {
                current: 24,
                code: 32,
                previous: 24,
                instruction: 96,
                owner: None,
                file: 104,
                name: 112,
                ascii: 48,
                wide: 72,
                is_counted: true,
                ..common
            },
            11 => Places {
                current: 56,
                indirect: Some(8),
                code: 32,
                previous: 48,
                owner: Some(69),
                ascii: 48,
                wide: 72,
                ..common
            },
            12 => Places { current: 56, indirect: Some(0), ..common },
            13 => common,
            14 => Places { current: 64, owner: Some(74), ..common },
            _ => return None,
        })
    }
}

/// The offsets of the instance size in a type, and of the type in an object.
const BASIC_SIZE: usize = 32;
const TYPE: usize = 8;
/// In a string: its length and its kind.
const LENGTH: usize = 16;
const STATE: usize = 32;
/// From this value upwards, the owner of a frame is the interpreter itself.
const FIRST_OWN: u8 = 3;

/// The interpreter of this process.
#[derive(Clone, Copy)]
struct Interpreter {
    places: Places,
    is_initialized: unsafe extern "C" fn() -> c_int,
    thread_state: unsafe extern "C" fn() -> *const u8,
    line: unsafe extern "C" fn(code: *const u8, offset: c_int) -> c_int,
    code_type: usize,
    string_type: usize,
    /// The offset of the instructions in a code object.
    instructions: usize,
}

/// A function and the line in it that is executed.
pub(super) struct PythonFrame<'a> {
    /// The name, a zero, and the file.
    pub(super) function: &'a [u8],
    pub(super) line: u32,
}

/// Whether the offsets are right: not known yet, or one of these.
static CHECKED: AtomicU32 = AtomicU32::new(0);
const RIGHT: u32 = 1;
const WRONG: u32 = 2;

/// Returns the reason why Python frames cannot be captured, if there is one.
pub(super) fn refusal() -> Option<&'static str> {
    match Interpreter::find() {
        Err(why) => Some(why),
        Ok(_) if CHECKED.load(Relaxed) == WRONG => Some("this build of CPython has other structures"),
        Ok(_) => None,
    }
}

/// Returns the address of a symbol of the program or of a library that it was linked with.
fn symbol(name: &CStr) -> Option<*const u8> {
    // SAFETY: the name is NUL-terminated.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const().cast())
}

/// Looks a symbol of Python up, once.
macro_rules! of_python {
    ($name:literal, $type:ty) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        if FOUND.load(Relaxed).is_null() {
            FOUND.store(symbol($name).map_or(std::ptr::null_mut(), |found| found.cast_mut().cast()), Relaxed);
        }
        let found = FOUND.load(Relaxed);
        // SAFETY: the function with that name, whose type has been the same since Python 3.2.
        if found.is_null() { None } else { Some(unsafe { std::mem::transmute::<*mut c_void, $type>(found) }) }
    }};
}

impl Interpreter {
    fn find() -> Result<Self, &'static str> {
        const NONE: &str = "the program is not CPython, or was linked with it in a way that hides it";
        let version = of_python!(c"Py_GetVersion", unsafe extern "C" fn() -> *const c_char).ok_or(NONE)?;
        // SAFETY: the function returns a constant string.
        let version = unsafe { version() };
        // SAFETY: as above.
        let version = unsafe { CStr::from_ptr(version) }.to_str().map_err(|_| NONE)?;
        if version.contains("free-threading") {
            return Err("free-threaded builds of CPython are not supported");
        }
        let minor = version.strip_prefix("3.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let places = minor.and_then(Places::of).ok_or("CPython 3.10 to 3.14 are supported")?;
        let code_type = of_python!(c"PyCode_Type", *const u8).ok_or(NONE)?;
        let string_type = of_python!(c"PyUnicode_Type", *const u8).ok_or(NONE)?;
        // SAFETY: types have that field in all of these versions.
        let instructions = unsafe { Reader::new() }.word(code_type as usize, BASIC_SIZE);
        Ok(Interpreter {
            places,
            is_initialized: of_python!(c"Py_IsInitialized", unsafe extern "C" fn() -> c_int).ok_or(NONE)?,
            thread_state: of_python!(c"PyGILState_GetThisThreadState", unsafe extern "C" fn() -> *const u8)
                .ok_or(NONE)?,
            line: of_python!(c"PyCode_Addr2Line", unsafe extern "C" fn(*const u8, c_int) -> c_int)
                .ok_or(NONE)?,
            code_type: code_type as usize,
            string_type: string_type as usize,
            instructions,
        })
    }
}

/// Reads the interpreter's structures. A reader exists only if the offsets are right and this thread's own frames are
/// read, so pointers in them are valid.
#[derive(Clone, Copy)]
struct Reader(());

impl Reader {
    /// # Safety
    /// Only existing objects are read, at offsets that they have.
    unsafe fn new() -> Self {
        Reader(())
    }

    fn read<T: Copy>(self, object: usize, place: usize) -> T {
        // SAFETY: guaranteed by the creator of the reader.
        unsafe { ((object + place) as *const T).read_unaligned() }
    }

    fn word(self, object: usize, place: usize) -> usize {
        self.read(object, place)
    }
}

/// Reads memory that may not be mapped.
fn try_read<const BYTES: usize>(memory: &Descriptor, object: usize, place: usize) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    (memory.read_at(&mut bytes, (object + place) as u64) == Ok(BYTES)).then_some(bytes)
}

impl Interpreter {
    /// Verifies the offsets: each frame has a code object, which has two strings.
    #[inline(never)]
    fn check(&self, state: usize) -> Option<bool> {
        self.check_frames(&Descriptor::open(c"/proc/self/mem", libc::O_RDONLY).ok()?, state)
    }

    /// Returns `None` if there is no frame of a function to verify.
    fn check_frames(&self, memory: &Descriptor, state: usize) -> Option<bool> {
        let word = |object, place| try_read(memory, object, place).map(usize::from_ne_bytes);
        let Places { current, indirect, code, previous, file, name, .. } = self.places;
        let mut frame = match (word(state, current), indirect) {
            (Some(start), Some(place)) => word(start, place),
            (start, _) => start,
        };
        for _ in 0..MOST_FRAMES {
            let Some(here) = frame else { return Some(false) };
            if here == 0 {
                return None;
            }
            let (Some(object), next) = (word(here, code), word(here, previous)) else { return Some(false) };
            let object = untagged(object);
            let Some(kind) = word(object, TYPE) else { return Some(false) };
            if kind == self.code_type {
                let type_of = |place| word(word(object, place)?, TYPE);
                let are_strings = [file, name].iter().all(|&place| type_of(place) == Some(self.string_type));
                return Some(are_strings);
            }
            frame = next;
        }
        None
    }
}

/// A reference to an object, whose lowest bits CPython 3.14 uses.
fn untagged(object: usize) -> usize {
    object & !3
}

/// Calls `see` for each Python frame of this thread, the innermost first. Returns whether there were more than fit.
#[inline(never)]
pub(super) fn walk(mut see: impl FnMut(PythonFrame<'_>)) -> bool {
    let checked = CHECKED.load(Relaxed);
    let Ok(interpreter) = (if checked == WRONG { Err("") } else { Interpreter::find() }) else {
        return false;
    };
    // SAFETY: the function may be called at any time.
    if unsafe { (interpreter.is_initialized)() } == 0 {
        return false;
    }
    // SAFETY: as above. The state of this thread stays while the thread is in a call. Threads that outlive the
    // interpreter's end do not reach this.
    let state = unsafe { (interpreter.thread_state)() } as usize;
    if state == 0 {
        return false;
    }
    if checked != RIGHT {
        match interpreter.check(state) {
            Some(true) => CHECKED.store(RIGHT, Relaxed),
            Some(false) => {
                CHECKED.store(WRONG, Relaxed);
                return false;
            }
            None => return false,
        }
    }
    // SAFETY: the offsets are right for this interpreter, and the thread is in a call.
    interpreter.frames(unsafe { Reader::new() }, state, &mut see)
}

impl Interpreter {
    fn frames(&self, reader: Reader, state: usize, see: &mut impl FnMut(PythonFrame<'_>)) -> bool {
        let places = &self.places;
        let mut frame = reader.word(state, places.current);
        if let Some(place) = places.indirect
            && frame != 0
        {
            frame = reader.word(frame, place);
        }
        let mut left = MOST_FRAMES;
        while frame != 0 {
            let is_own = places.owner.is_some_and(|place| reader.read::<u8>(frame, place) >= FIRST_OWN);
            let code = untagged(reader.word(frame, places.code));
            if !is_own && reader.word(code, TYPE) == self.code_type {
                if left == 0 {
                    return true;
                }
                left -= 1;
                self.see_frame(reader, frame, code, see);
            }
            frame = reader.word(frame, places.previous);
        }
        false
    }

    #[inline(never)]
    fn see_frame(&self, reader: Reader, frame: usize, code: usize, see: &mut impl FnMut(PythonFrame<'_>)) {
        let places = &self.places;
        let offset = match places.is_counted {
            true => reader.read::<i32>(frame, places.instruction).wrapping_mul(2),
            false => reader.word(frame, places.instruction).wrapping_sub(code + self.instructions) as i32,
        };
        // SAFETY: it is a code object, and the function only reads it.
        let line = unsafe { (self.line)(code as *const u8, offset) };
        let mut text = Text { bytes: [0; MOST_FUNCTION], length: 0 };
        text.append(reader, reader.word(code, places.name), places, MOST_NAME);
        text.push(b"\0", MOST_FUNCTION);
        text.append(reader, reader.word(code, places.file), places, MOST_FUNCTION);
        see(PythonFrame { function: &text.bytes[..text.length], line: u32::try_from(line).unwrap_or(0) });
    }
}

/// The maximum number of bytes of the name alone.
const MOST_NAME: usize = 256;

struct Text {
    bytes: [u8; MOST_FUNCTION],
    length: usize,
}

impl Text {
    /// Appends bytes, unless the total would exceed `most`.
    fn push(&mut self, bytes: &[u8], most: usize) -> bool {
        let end = self.length + bytes.len();
        if end > most {
            return false;
        }
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
        true
    }

    /// Appends a string of Python as UTF-8, as far as there is room.
    fn append(&mut self, reader: Reader, string: usize, places: &Places, most: usize) {
        let (length, state) = (reader.word(string, LENGTH), reader.read::<u32>(string, STATE));
        let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if !is_compact {
            // Created by an extension with a function that Python 3.12 removed.
            self.push(b"?", most);
            return;
        }
        let data = string + if is_ascii { places.ascii } else { places.wide };
        for at in 0..length {
            let letter = match kind {
                1 => u32::from(reader.read::<u8>(data, at)),
                2 => u32::from(reader.read::<u16>(data, 2 * at)),
                _ => reader.read::<u32>(data, 4 * at),
            };
            // A zero separates the name from the file.
            let letter = char::from_u32(letter)
                .filter(|&letter| letter != '\0')
                .unwrap_or(char::REPLACEMENT_CHARACTER);
            if !self.push(letter.encode_utf8(&mut [0; 4]).as_bytes(), most) {
                return;
            }
        }
    }
}
