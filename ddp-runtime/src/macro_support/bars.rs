//! Iterators that carry a progress bar: hidden as the bars themselves are, known by their type.
use super::probe::TypeOf;

/// An iterator of indicatif with its bar.
pub trait HideBar<T> {
    /// Hides the bar on all ranks but the main one.
    fn hide_by_type(&self, iterator: &T);
}

#[cfg(feature = "indicatif")]
impl<T> HideBar<indicatif::ProgressBarIter<T>> for &TypeOf<indicatif::ProgressBarIter<T>> {
    fn hide_by_type(&self, iterator: &indicatif::ProgressBarIter<T>) {
        // A clone is a handle of the same bar.
        let _ = super::bar(iterator.progress.clone());
    }
}

/// Anything else.
pub trait HideNothing<T> {
    /// Does nothing.
    fn hide_by_type(&self, _iterator: &T) {}
}

impl<T> HideNothing<T> for TypeOf<T> {}

/// What comes out of `.progress()` and its like.
#[doc(hidden)]
#[macro_export]
macro_rules! __ddp_progress {
    ($iterator:expr) => {
        match $iterator {
            iterator => {
                #[allow(unused_imports)]
                use $crate::__private::{HideBar as _, HideNothing as _};
                (&&$crate::__private::type_of(&iterator)).hide_by_type(&iterator);
                iterator
            }
        }
    };
}
