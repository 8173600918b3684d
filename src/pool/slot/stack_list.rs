//! Linked lists whose entries are in the stack frames of the threads that they describe.
//!
//! An entry is pushed by the thread whose frame it is in, and is removed before that frame ends. So the list needs no
//! heap memory, and a forked child finds all entries where the parent's threads had them. The lock that protects a list
//! is held whenever it is read or changed.

use std::cell::Cell;
use std::ptr;

/// An entry of a list, with its link to the next entry.
pub(super) trait Linked: Sized {
    fn next(&self) -> &Cell<*const Self>;
}

/// A list in which the entry pushed last comes first.
pub(super) struct StackList<T> {
    first: *const T,
}

impl<T> StackList<T> {
    pub(super) const EMPTY: Self = StackList { first: ptr::null() };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_null()
    }
}

impl<T: Linked> StackList<T> {
    /// Adds an entry, which its thread removes before its frame ends.
    pub(super) fn push(&mut self, entry: &T) {
        entry.next().set(self.first);
        self.first = entry;
    }

    pub(super) fn remove(&mut self, entry: &T) {
        self.keep(|other| !ptr::eq(other, entry));
    }

    /// Removes all entries that `keep` rejects.
    pub(super) fn keep(&mut self, keep: impl Fn(&T) -> bool) {
        let mut kept: Option<&T> = None;
        let mut at = self.first;
        loop {
            // SAFETY: an entry is in the list only while its frame is alive. The frames of a parent's threads are in
            // the memory of a forked child.
            while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| !keep(entry)) {
                at = entry.next().get();
            }
            match kept {
                Some(entry) => entry.next().set(at),
                None => self.first = at,
            }
            // SAFETY: as above.
            let Some(entry) = (unsafe { at.as_ref() }) else { return };
            (kept, at) = (Some(entry), entry.next().get());
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            // SAFETY: as in `keep`.
            let entry = unsafe { at.as_ref() }?;
            at = entry.next().get();
            Some(entry)
        })
    }
}
