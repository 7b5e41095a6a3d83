//! How much this rank's gradient counts in the step to come, when one batch is shared in parts of unequal size.
//!
//! # Note [The weight of a part]
//!
//! Gradients are averaged with equal weight: the mean over `W` ranks. When the ranks hold `n_r` of the `n` rows of one batch
//! and each rank's loss is a mean over its rows, the mean over all rows is the mean over the ranks of `W n_r / n` times the
//! rank's gradient. That factor is 1 where the parts are equal. It is applied to the gradient at the roots of the backward:
//! what had accumulated before is not scaled a second time.
//!
//! A backward does not tell which batch it belongs to. So an iterator that deals out parts *holds* the weight of the batch
//! that it gave last, from one `next` to the following one, or to its end: whichever comes first of the end of the pass and
//! that of the iterator. Outside of batches the weight is 1. Two misuses would be wrong without a sound, and are refused:
//!
//! * batches drawn ahead (collected, then trained on): a pass in which unequal parts were given and no backward began, and
//!   after it a backward that no batch belongs to;
//! * unequal parts drawn on another thread than the one that made the iterator.
//!
//! One is left: with a look ahead by one (`peekable`) the last steps of a pass would have the weight of the batch after
//! theirs. Where all batches are of one size, which only the smaller last batch is not, all but the last step are right.
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use super::DataError;

/// A batch that was given out and not yet followed by another.
#[derive(Clone, Copy)]
struct Held {
    holder: u64,
    weight: f64,
}

#[derive(Clone, Copy)]
struct State {
    held: Option<Held>,
    /// A pass gave out unequal parts, and ended before any backward began.
    drawn_ahead: bool,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { held: None, drawn_ahead: false }) };
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

fn change(body: impl FnOnce(&mut State)) {
    let mut state = STATE.get();
    body(&mut state);
    STATE.set(state);
}

/// What a backward that begins now is to be weighted with; counts it as begun. `None` where that cannot be told, since
/// batches were drawn ahead of it.
pub(crate) fn of_step() -> Option<f64> {
    BEGUN.set(BEGUN.get().wrapping_add(1));
    match STATE.get() {
        State { held: Some(held), .. } => {
            change(|state| state.drawn_ahead = false);
            Some(held.weight)
        }
        State { drawn_ahead: true, .. } => None,
        _ => Some(1.0),
    }
}

/// A scope begins: what was drawn before is none of its steps'.
pub(crate) fn forget() {
    STATE.set(State { held: None, drawn_ahead: false });
}

/// One iterator's hold on the weight.
#[derive(Debug)]
pub(super) struct Holder {
    number: u64,
    thread: ThreadId,
    /// Backwards that had begun when unequal parts were first given out.
    unequal_since: Option<u64>,
}

impl Holder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            thread: std::thread::current().id(),
            unequal_since: None,
        }
    }

    /// A batch is given out.
    ///
    /// # Errors
    /// [`DataError::OtherThread`] for a weight other than 1 on a thread that trains nothing.
    pub(super) fn hold(&mut self, weight: f64) -> Result<(), DataError> {
        if self.elsewhere() {
            return if weight == 1.0 { Ok(()) } else { Err(DataError::OtherThread) };
        }
        if weight != 1.0 && self.unequal_since.is_none() {
            self.unequal_since = Some(BEGUN.get());
        }
        change(|state| state.held = Some(Held { holder: self.number, weight }));
        Ok(())
    }

    /// No batch of this iterator is under way.
    pub(super) fn release(&mut self) {
        if self.elsewhere() {
            return;
        }
        let unused = self.unequal_since.take().is_some_and(|begun| begun == BEGUN.get());
        change(|state| {
            if state.held.is_some_and(|held| held.holder == self.number) {
                state.held = None;
            }
            state.drawn_ahead |= unused;
        });
    }

    fn elsewhere(&self) -> bool {
        std::thread::current().id() != self.thread
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::{Holder, forget, of_step};
    use crate::data::DataError;

    #[test]
    fn the_weight_is_that_of_the_batch_given_last() {
        assert_eq!(of_step().unwrap(), 1.0);
        let mut holder = Holder::new();
        holder.hold(1.25).unwrap();
        assert_eq!((of_step().unwrap(), of_step().unwrap()), (1.25, 1.25));
        holder.hold(0.75).unwrap();
        assert_eq!(of_step().unwrap(), 0.75);
        holder.release();
        assert_eq!(of_step().unwrap(), 1.0);
    }

    #[test]
    fn a_loop_that_is_left_leaves_no_weight_behind() {
        let mut holder = Holder::new();
        holder.hold(1.25).unwrap();
        assert_eq!(of_step().unwrap(), 1.25);
        drop(holder);
        assert_eq!(of_step().unwrap(), 1.0);
    }

    #[test]
    fn an_iterator_takes_back_only_its_own_weight() {
        let (mut outer, mut inner) = (Holder::new(), Holder::new());
        outer.hold(1.5).unwrap();
        inner.hold(0.5).unwrap();
        outer.release();
        assert_eq!(of_step().unwrap(), 0.5);
    }

    #[test]
    fn p20_a_backward_after_batches_drawn_ahead_is_refused() {
        let mut holder = Holder::new();
        holder.hold(1.25).unwrap();
        holder.release();
        assert_eq!(of_step(), None);
        forget();
        assert_eq!(of_step(), Some(1.0));
        holder.hold(1.25).unwrap();
        holder.release();
        assert_eq!(of_step(), None);
        // A batch that is stepped on settles it.
        holder.hold(1.25).unwrap();
        assert_eq!(of_step().unwrap(), 1.25);
        holder.release();
        assert_eq!(of_step().unwrap(), 1.0);
    }

    #[test]
    fn equal_parts_may_be_drawn_ahead() {
        let mut holder = Holder::new();
        holder.hold(1.0).unwrap();
        holder.release();
        assert_eq!(of_step().unwrap(), 1.0);
    }

    #[test]
    fn p20_unequal_parts_cannot_be_drawn_on_another_thread() {
        let mut holder = Holder::new();
        let moved = std::thread::spawn(move || (holder.hold(1.0), holder.hold(1.25)));
        let (equal, unequal) = moved.join().unwrap();
        assert!(equal.is_ok());
        assert!(matches!(unequal, Err(DataError::OtherThread)));
    }
}
