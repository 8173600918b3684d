//! A value that one call at a time works on, without a lock meanwhile.

use spin::mutex::SpinMutex;

/// A value that its callers take out, use and put back. The contract between the pool and its backends permits one such
/// call at a time, which the compiler cannot see. A spin lock is right here: it is held for a move of a pointer, and
/// never over a call of a driver.
pub(in crate::backend) struct Exclusive<T>(SpinMutex<Option<Box<T>>>);

impl<T> Exclusive<T> {
    pub(in crate::backend) fn new(value: Box<T>) -> Self {
        Exclusive(SpinMutex::new(Some(value)))
    }

    /// Runs `work` with the value.
    ///
    /// # Panics
    /// Panics if another call has the value, against the contract.
    pub(in crate::backend) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let taken = self.0.lock().take();
        let mut value = taken.expect("one call at a time");
        let result = work(&mut value);
        *self.0.lock() = Some(value);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::Exclusive;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_second_call_meanwhile_panics_and_a_later_one_does_not() {
        let exclusive = Exclusive::new(Box::new(1));
        exclusive.with(|value| {
            let second = catch_unwind(AssertUnwindSafe(|| exclusive.with(|_| ())));
            *value += i32::from(second.is_err());
        });
        assert_eq!(exclusive.with(|value| *value), 2);
    }
}
