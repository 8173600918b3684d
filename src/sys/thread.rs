//! The calling thread, and values stored per thread.

use super::token;
use std::alloc::Layout;
use std::ffi::{CStr, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, compiler_fence};

/// Distinguishes the threads of this process that exist at the same time. A forked child's only thread has the number
/// that it had in the parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadId(usize);

pub(crate) fn current() -> ThreadId {
    ThreadId(token::current())
}

/// Defines a static [`PerThread`]. Its destructors are disabled when the library is unloaded (a static library inside a
/// larger one) or the process has run its last exit handler. After that no thread may run a destructor of the library.
macro_rules! per_thread {
    (static $name:ident: $value:ty) => {
        static $name: $crate::sys::thread::PerThread<$value> = $crate::sys::thread::PerThread::new();

        const _: () = {
            extern "C" fn unload() {
                $name.end();
            }
            // SAFETY: the section holds an array of such functions, and this one may run at any time.
            #[used]
            #[unsafe(link_section = ".fini_array")]
            static UNLOAD: extern "C" fn() = unload;
        };
    };
}
pub(crate) use per_thread;

/// Returns the number of the calling thread, from 1. Numbers are never reused in the process. Returns `None` if there
/// is no host memory for it, and in a signal handler that interrupted this function.
pub(crate) fn number() -> Option<u32> {
    #[cfg(test)]
    if let Some(number) = PRETENDED.get() {
        return Some(number);
    }
    static LAST: AtomicU32 = AtomicU32::new(0);
    per_thread!(static NUMBER: Number);
    let number = NUMBER.update(|number| {
        if number.0 == 0 {
            number.0 = LAST.fetch_add(1, Relaxed) + 1;
        }
        number.0
    });
    number.ok()
}

#[cfg(test)]
thread_local! {
    static PRETENDED: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// Starts a detached thread, which calls `run` with the argument. All signals are blocked in it, so that the program's handlers run in the program's
/// threads. Returns false if the system refuses.
///
/// `std::thread` would allocate memory, and abort without it.
pub(crate) fn spawn_detached(run: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> bool {
    // SAFETY: these are plain data, and the functions below fill them in before they are read.
    let (mut attributes, mut every, mut before): (libc::pthread_attr_t, libc::sigset_t, libc::sigset_t) =
        unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for writing.
    if unsafe { libc::pthread_attr_init(&mut attributes) } != 0 {
        return false;
    }
    // SAFETY: the attributes are initialized, and the state is a valid one.
    unsafe { libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED) };
    // SAFETY: the pointer is valid for writing.
    unsafe { libc::sigfillset(&mut every) };
    // The new thread inherits the mask.
    // SAFETY: both pointers are valid.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &every, &mut before) };
    let mut thread = 0;
    // SAFETY: the pointers are valid, and `run` gets its argument.
    let failed = unsafe { libc::pthread_create(&mut thread, &attributes, run, argument) };
    // SAFETY: the mask was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    // SAFETY: the attributes are initialized, and not used afterwards.
    unsafe { libc::pthread_attr_destroy(&mut attributes) };
    failed == 0
}

/// Names the calling thread, for debuggers and `top`.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the name is a C string of at most 15 characters, which is copied.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// For tests: makes this thread act for another one by using its number.
#[cfg(test)]
pub(crate) fn pretend(number: Option<u32>) {
    PRETENDED.set(number);
}

#[derive(Clone, Copy)]
struct Number(u32);

impl Local for Number {
    const EMPTY: Self = Number(0);
}

/// A value for each thread, created when the thread first uses it.
///
/// This replaces `thread_local!`. If the library is loaded by `dlopen`, as Python does, the C library obtains a
/// thread's locals from `malloc` at the first access and aborts the process if there is no memory. Here that is an
/// error, and the first threads need no allocation at all.
pub(crate) struct PerThread<T: Local> {
    /// The POSIX key plus 1. 0 before the first use.
    key: AtomicU32,
    /// The process had no POSIX key left when one was needed.
    lacks_key: AtomicBool,
    /// Once set, no thread may run a destructor of the library.
    ended: AtomicBool,
    blocks: [Block<T>; STATIC_BLOCKS],
}

/// A value that a [`PerThread`] can hold. It can be discarded when its thread ends.
pub(crate) trait Local: Copy + 'static {
    const EMPTY: Self;

    /// Called when the value's thread has ended.
    fn end(&self) {}
}

/// The reason why a thread's value cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoValue {
    /// There is no host memory for the value.
    HostMemory,
    /// A signal handler interrupted its use.
    InUse,
}

/// The number of threads that are served without an allocation.
const STATIC_BLOCKS: usize = 16;

struct Block<T> {
    taken: AtomicBool,
    allocated: bool,
    /// The thread is reading or changing the value, so a signal handler must not.
    in_use: AtomicBool,
    value: std::cell::UnsafeCell<T>,
}

// SAFETY: a block's value is accessed only by the thread that took it, and not by a signal handler meanwhile.
unsafe impl<T: Local> Sync for PerThread<T> {}

impl<T: Local> PerThread<T> {
    pub(crate) const fn new() -> Self {
        PerThread {
            key: AtomicU32::new(0),
            lacks_key: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            blocks: [const { Block::new(false) }; STATIC_BLOCKS],
        }
    }

    /// Returns whether no thread has a value because the process had no key left.
    pub(crate) fn lacks_key(&self) -> bool {
        self.lacks_key.load(Relaxed) && self.key.load(Relaxed) == 0
    }

    /// Returns whether this thread has a value, in use or not.
    pub(crate) fn exists(&self) -> bool {
        self.present().is_some()
    }

    /// Reads this thread's value, if it has one. Returns `None` in a signal handler that interrupted its use. `read`
    /// must not call back into this object.
    pub(crate) fn get<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.with(|value| value.map(read))
    }

    /// Reads this thread's value like [`Self::get`], even if there is none.
    pub(crate) fn with<R>(&self, read: impl FnOnce(Option<&T>) -> R) -> R {
        let value = self.present().and_then(Block::enter);
        read(value.as_deref())
    }

    /// Changes this thread's value, if it has one. `change` must not call back into this object.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.present().and_then(Block::enter).map(|mut value| change(&mut value))
    }

    /// Changes this thread's value like [`Self::change`], and creates it first if there is none, which may need memory.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, NoValue> {
        let key = self.make_key().ok_or(NoValue::HostMemory)?;
        let block = match Self::own_block(key) {
            Some(block) => block,
            None => self.take_block(key).ok_or(NoValue::HostMemory)?,
        };
        let mut value = block.enter().ok_or(NoValue::InUse)?;
        Ok(change(&mut value))
    }

    fn present(&self) -> Option<&Block<T>> {
        Self::own_block(self.key.load(Acquire).checked_sub(1)?)
    }

    fn own_block<'a>(key: libc::pthread_key_t) -> Option<&'a Block<T>> {
        // SAFETY: the key was created. A key that was deleted meanwhile has no values.
        let block = unsafe { libc::pthread_getspecific(key) }.cast::<Block<T>>();
        // SAFETY: a value of the key is NULL or this thread's block, which exists as long as the thread.
        unsafe { block.as_ref() }
    }

    /// Takes a block for this thread.
    fn take_block(&self, key: libc::pthread_key_t) -> Option<&Block<T>> {
        let vacant = |block: &&Block<T>| !block.taken.swap(true, Acquire);
        let block = match self.blocks.iter().find(vacant) {
            Some(block) => NonNull::from(block),
            None => Block::allocate()?,
        };
        let value = block.as_ptr().cast::<c_void>();
        // SAFETY: the key was created, and the value is what `end` expects.
        if unsafe { libc::pthread_setspecific(key, value) } != 0 {
            end::<T>(value);
            return None;
        }
        // SAFETY: this thread's block, which exists as long as the thread.
        Some(unsafe { block.as_ref() })
    }

    fn make_key(&self) -> Option<libc::pthread_key_t> {
        if let Some(key) = self.key.load(Acquire).checked_sub(1) {
            return Some(key);
        }
        let mut key = 0;
        // After the end there may still be calls, from destructors of the program that contains the library.
        let destructor: Option<unsafe extern "C" fn(*mut c_void)> =
            if self.ended.load(Acquire) { None } else { Some(end::<T>) };
        // SAFETY: `key` is valid for writing, and the destructor takes what `update` stores.
        let failed = unsafe { libc::pthread_key_create(&mut key, destructor) } != 0;
        self.lacks_key.store(failed, Relaxed);
        if failed {
            return None;
        }
        match self.key.compare_exchange(0, key + 1, AcqRel, Acquire) {
            Ok(_) => Some(key),
            Err(others) => {
                // SAFETY: the key was created above and is not used anywhere else.
                unsafe { libc::pthread_key_delete(key) };
                others.checked_sub(1)
            }
        }
    }

    /// Ends all values. No thread has a value afterwards, and no destructor runs later.
    pub(crate) fn end(&self) {
        self.ended.store(true, Release);
        if let Some(key) = self.key.swap(0, AcqRel).checked_sub(1) {
            // SAFETY: the key was created, and the exchange ensures that it is deleted only once.
            unsafe { libc::pthread_key_delete(key) };
        }
    }
}

impl<T: Local> Block<T> {
    const fn new(allocated: bool) -> Self {
        let value = std::cell::UnsafeCell::new(T::EMPTY);
        Block { taken: AtomicBool::new(allocated), allocated, in_use: AtomicBool::new(false), value }
    }

    /// Returns access to the value for its thread, unless the thread is using it already.
    fn enter(&self) -> Option<InUse<'_, T>> {
        // Only this thread accesses the flag, so only the compiler must keep the order.
        if self.in_use.load(Relaxed) {
            return None;
        }
        self.in_use.store(true, Relaxed);
        compiler_fence(SeqCst);
        Some(InUse(self))
    }

    /// Returns a pointer, because a reference would not permit `end` to free the block.
    fn allocate() -> Option<NonNull<Self>> {
        // SAFETY: a block is not of size 0.
        let place = unsafe { std::alloc::alloc(Layout::new::<Self>()) }.cast::<Self>();
        let block = NonNull::new(place)?;
        // SAFETY: the place is new, aligned and large enough.
        unsafe { block.write(Block::new(true)) };
        Some(block)
    }
}

/// A value in use by its thread. Only one exists for each block, because [`Block::enter`] refuses another.
struct InUse<'a, T>(&'a Block<T>);

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only this thread accesses the value, and `in_use` prevents two accesses at the same time.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for InUse<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for InUse<'_, T> {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        self.0.in_use.store(false, Relaxed);
    }
}

/// Returns the block of a thread that has ended, so that another thread can take it.
extern "C" fn end<T: Local>(block: *mut c_void) {
    let block = block.cast::<Block<T>>();
    // SAFETY: called once with a taken block, by the thread that took it.
    let Block { taken, allocated, in_use, value } = unsafe { &*block };
    // SAFETY: the block still belongs to this thread.
    unsafe { &*value.get() }.end();
    if *allocated {
        // SAFETY: it came from the global allocator with this layout, and nothing refers to it.
        unsafe { std::alloc::dealloc(block.cast(), Layout::new::<Block<T>>()) };
        return;
    }
    // SAFETY: the block still belongs to this thread.
    unsafe { *value.get() = T::EMPTY };
    // A signal handler may have ended the thread during a use of the value.
    in_use.store(false, Relaxed);
    taken.store(false, Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Number(u32);

    per_thread!(static NUMBERS: Number);

    impl Local for Number {
        const EMPTY: Self = Number(7);
    }

    fn add(amount: u32) -> Result<u32, NoValue> {
        NUMBERS.update(|number| {
            number.0 += amount;
            number.0
        })
    }

    #[test]
    fn each_thread_has_its_own_value_and_leaves_none_behind() {
        let barrier = std::sync::Barrier::new(3 * STATIC_BLOCKS);
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for thread in 0..3 * STATIC_BLOCKS as u32 {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        assert_eq!(NUMBERS.get(|number| number.0), None);
                        assert_eq!(add(thread), Ok(7 + thread));
                        // All threads at the same time, so that some have an allocated block.
                        barrier.wait();
                        assert_eq!(NUMBERS.get(|number| number.0), Some(7 + thread));
                        assert_eq!(add(1), Ok(8 + thread));
                    });
                }
            });
        }
    }

    /// Simulates a signal handler that interrupts its own thread.
    #[test]
    fn a_value_in_use_is_refused() {
        add(0).unwrap();
        assert_eq!(NUMBERS.get(|_| (add(1), NUMBERS.get(|_| ()))), Some((Err(NoValue::InUse), None)));
        assert_eq!(NUMBERS.update(|_| add(1)), Ok(Err(NoValue::InUse)));
        assert_eq!(add(0), Ok(7));
    }
}
