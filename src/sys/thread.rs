//! The calling thread, and what is kept for each.

use super::token;
use std::alloc::Layout;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, compiler_fence};

/// Tells threads of this process that exist at the same time apart. A forked child's only thread has the
/// number that it had in the parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadId(usize);

pub(crate) fn current() -> ThreadId {
    ThreadId(token::current())
}

/// Defines a static [`PerThread`]. When the library is unloaded (the static one, inside of something larger)
/// or the process has run its last exit handler, no thread may come to run a destructor of it later.
macro_rules! per_thread {
    (static $name:ident: $value:ty) => {
        static $name: $crate::sys::thread::PerThread<$value> = $crate::sys::thread::PerThread::new();

        const _: () = {
            extern "C" fn unload() {
                $name.end();
            }
            // SAFETY: an array of such functions is what belongs there; this one may run at any time.
            #[used]
            #[unsafe(link_section = ".fini_array")]
            static UNLOAD: extern "C" fn() = unload;
        };
    };
}
pub(crate) use per_thread;

/// The number of the calling thread, from 1: no other thread of the process ever had it
/// or will. `None` without host memory for it, and in a signal handler that interrupted this function.
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

/// For tests: this thread acts for another, whose number it says it has.
#[cfg(test)]
pub(crate) fn pretend(number: Option<u32>) {
    PRETENDED.set(number);
}

#[derive(Clone, Copy)]
struct Number(u32);

impl Local for Number {
    const EMPTY: Self = Number(0);
}

/// A value for each thread, made when the thread first asks for it.
///
/// Not `thread_local!`: where the library is loaded by `dlopen`, as Python does it, the C library obtains a
/// thread's locals from `malloc` at the first access and ends the process if there is no memory. Here that
/// is an error, and the first threads need no memory at all.
pub(crate) struct PerThread<T: Local> {
    /// The key of POSIX and 1; 0 before the first use.
    key: AtomicU32,
    /// After this no thread may run a destructor of the library's.
    ended: AtomicBool,
    blocks: [Block<T>; STATIC_BLOCKS],
}

/// What a [`PerThread`] may hold: something that nobody misses when its thread is gone.
pub(crate) trait Local: Copy + 'static {
    const EMPTY: Self;

    /// Its thread is gone.
    fn end(&self) {}
}

/// Why a thread's value cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoValue {
    /// There is no host memory for it.
    HostMemory,
    /// A signal handler interrupted its use.
    InUse,
}

/// How many threads are served without allocating.
const STATIC_BLOCKS: usize = 16;

struct Block<T> {
    taken: AtomicBool,
    allocated: bool,
    /// Its thread is reading or changing the value: a signal handler may not.
    in_use: AtomicBool,
    value: std::cell::UnsafeCell<T>,
}

// SAFETY: a block's value is touched only by the thread that took it, and not by a signal handler meanwhile.
unsafe impl<T: Local> Sync for PerThread<T> {}

impl<T: Local> PerThread<T> {
    pub(crate) const fn new() -> Self {
        PerThread {
            key: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            blocks: [const { Block::new(false) }; STATIC_BLOCKS],
        }
    }

    /// Whether this thread has a value, in use or not.
    pub(crate) fn exists(&self) -> bool {
        self.present().is_some()
    }

    /// This thread's value, if it has one; none for a signal handler that interrupted its use. `read` must not come
    /// back here.
    pub(crate) fn get<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.with(|value| value.map(read))
    }

    /// The same, also where there is none.
    pub(crate) fn with<R>(&self, read: impl FnOnce(Option<&T>) -> R) -> R {
        let value = self.present().and_then(Block::enter);
        read(value.as_deref())
    }

    /// Changes this thread's value, if it has one. `change` must not come back here.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.present().and_then(Block::enter).map(|mut value| change(&mut value))
    }

    /// As [`Self::change`]; a thread without a value gets one, for which there must be memory.
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
        // SAFETY: the key was created; one that was deleted meanwhile has no values.
        let block = unsafe { libc::pthread_getspecific(key) }.cast::<Block<T>>();
        // SAFETY: a value of the key is NULL or this thread's block, which lives as long as the thread.
        unsafe { block.as_ref() }
    }

    /// A block that is this thread's from now on.
    fn take_block(&self, key: libc::pthread_key_t) -> Option<&Block<T>> {
        let vacant = |block: &&Block<T>| !block.taken.swap(true, Acquire);
        let block = match self.blocks.iter().find(vacant) {
            Some(block) => block,
            None => Block::allocate()?,
        };
        let value = std::ptr::from_ref(block).cast::<c_void>();
        // SAFETY: the key was created; the value is what `end` expects.
        if unsafe { libc::pthread_setspecific(key, value) } != 0 {
            end::<T>(value.cast_mut());
            return None;
        }
        Some(block)
    }

    fn make_key(&self) -> Option<libc::pthread_key_t> {
        if let Some(key) = self.key.load(Acquire).checked_sub(1) {
            return Some(key);
        }
        let mut key = 0;
        // Behind the end there may still be calls, from destructors of what the library is a part of.
        let destructor: Option<unsafe extern "C" fn(*mut c_void)> =
            if self.ended.load(Acquire) { None } else { Some(end::<T>) };
        // SAFETY: `key` is valid for writing; the destructor takes what `update` stores.
        if unsafe { libc::pthread_key_create(&mut key, destructor) } != 0 {
            return None;
        }
        match self.key.compare_exchange(0, key + 1, AcqRel, Acquire) {
            Ok(_) => Some(key),
            Err(others) => {
                // SAFETY: the key was created above and nobody else knows it.
                unsafe { libc::pthread_key_delete(key) };
                others.checked_sub(1)
            }
        }
    }

    /// No thread has a value any more, and none leaves one behind.
    pub(crate) fn end(&self) {
        self.ended.store(true, Release);
        if let Some(key) = self.key.swap(0, AcqRel).checked_sub(1) {
            // SAFETY: the key was created, and nobody else has taken it from its place.
            unsafe { libc::pthread_key_delete(key) };
        }
    }
}

impl<T: Local> Block<T> {
    const fn new(allocated: bool) -> Self {
        let value = std::cell::UnsafeCell::new(T::EMPTY);
        Block { taken: AtomicBool::new(allocated), allocated, in_use: AtomicBool::new(false), value }
    }

    /// The value for its thread, unless that uses it already.
    fn enter(&self) -> Option<InUse<'_, T>> {
        // Only this thread looks, so that the compiler alone must keep the order.
        if self.in_use.load(Relaxed) {
            return None;
        }
        self.in_use.store(true, Relaxed);
        compiler_fence(SeqCst);
        Some(InUse(self))
    }

    fn allocate<'a>() -> Option<&'a Self> {
        // SAFETY: a block is not of size 0.
        let place = unsafe { std::alloc::alloc(Layout::new::<Self>()) }.cast::<Self>();
        if place.is_null() {
            return None;
        }
        // SAFETY: the place is new, aligned and large enough.
        unsafe { place.write(Block::new(true)) };
        // SAFETY: written above; it lives until `end` gives it back, when its thread is gone.
        unsafe { place.as_ref() }
    }
}

/// A value that its thread uses. Only one exists for each block, for [`Block::enter`] refuses another.
struct InUse<'a, T>(&'a Block<T>);

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only this thread touches the value, and `in_use` keeps it from doing so twice at once.
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

/// A thread is gone, and its block free for another.
extern "C" fn end<T: Local>(block: *mut c_void) {
    let block = block.cast::<Block<T>>();
    // SAFETY: called with a block that was taken, once, by the thread that took it.
    let Block { taken, allocated, in_use, value } = unsafe { &*block };
    // SAFETY: still this thread's own.
    unsafe { &*value.get() }.end();
    if *allocated {
        // SAFETY: it came from the global allocator with this layout, and nobody has its address any more.
        unsafe { std::alloc::dealloc(block.cast(), Layout::new::<Block<T>>()) };
        return;
    }
    // SAFETY: still this thread's own.
    unsafe { *value.get() = T::EMPTY };
    // A signal handler may have ended the thread while it used the value.
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
                        // All of them at once, so that some have an allocated block.
                        barrier.wait();
                        assert_eq!(NUMBERS.get(|number| number.0), Some(7 + thread));
                        assert_eq!(add(1), Ok(8 + thread));
                    });
                }
            });
        }
    }

    /// As a signal handler does that interrupts its own thread.
    #[test]
    fn a_value_in_use_is_refused() {
        add(0).unwrap();
        assert_eq!(NUMBERS.get(|_| (add(1), NUMBERS.get(|_| ()))), Some((Err(NoValue::InUse), None)));
        assert_eq!(NUMBERS.update(|_| add(1)), Ok(Err(NoValue::InUse)));
        assert_eq!(add(0), Ok(7));
    }
}
