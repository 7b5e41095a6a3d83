//! The way out of an annotated function whose return type is written under a name that does not say whether it is a result.
use std::marker::PhantomData;

use super::Guard;

/// The guard, and the type that its function returns.
pub struct Returning<'a, T>(&'a Guard, PhantomData<fn() -> T>);

impl Guard {
    /// The end of a function that returns this type, whatever it is.
    pub fn returning<T>(&self) -> Returning<'_, T> {
        Returning(self, PhantomData)
    }
}

/// The type is a result.
pub trait LeaveResult<T, E> {
    /// Leaves, or gives the scope up where the value is an error.
    ///
    /// # Errors
    /// The value, if it is one.
    fn leave_by_type(&self, value: Result<T, E>) -> Result<T, E>;
}

impl<T, E> LeaveResult<T, E> for &Returning<'_, Result<T, E>> {
    fn leave_by_type(&self, value: Result<T, E>) -> Result<T, E> {
        self.0.leave_result(value)
    }
}

/// Any other type.
pub trait LeaveOther<T> {
    /// Leaves with the value.
    fn leave_by_type(&self, value: T) -> T;
}

impl<T> LeaveOther<T> for Returning<'_, T> {
    fn leave_by_type(&self, value: T) -> T {
        self.0.leave(value)
    }
}
