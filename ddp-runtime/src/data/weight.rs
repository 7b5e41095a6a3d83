//! How much this rank's gradient counts in the step to come, when the ranks share one batch in parts.
//!
//! # Note [The weight of a part]
//!
//! Gradients are averaged with equal weight: the mean over `W` ranks. When the ranks hold `n_r` of the `n` rows of one batch
//! and each rank's loss is a mean over its rows, the mean over all rows is the mean over the ranks of `W n_r / n` times the
//! rank's gradient. That factor is 1 where the parts are equal. Where the loss is a sum over rows (`loss = "sum"`), the sum over
//! all rows is the mean over the ranks of `W` times the rank's gradient, however many rows it has. Either factor is applied to
//! the gradient at the roots of the backward: what had accumulated before is not scaled a second time.
//!
//! A backward does not tell which batch it belongs to. So an iterator that deals out parts *holds* the part of the batch
//! that it gave last, from one `next` to the following one, or to its end: whichever comes first of the end of the pass and
//! that of the iterator. Outside of batches the factor is 1. Misuses that would be wrong without a sound are refused, where
//! the factor of a part is not 1:
//!
//! * batches drawn ahead (collected, or looked at by `peekable`): a pass whose last batch no backward followed while it was
//!   held, and after the pass a backward that no batch belongs to;
//! * parts drawn on another thread than the one that made the iterator.
//!
//! One is left: with a look ahead by one, a step *inside* the pass has the factor of the batch after its own. Those factors are
//! equal except where the smaller last batch is the one ahead.
//!
//! The rows of the part and of the whole batch travel with the header of the backward: ranks that share batches of different sizes read
//! different data.
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;

use super::DataError;
use super::part::Part;
use crate::options::Loss;

/// What a backward counts with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Counts {
    /// The factor of the gradient at its roots, which the mean over ranks then follows.
    pub(crate) factor: f64,
    /// The factor where this rank's part has to stand for the whole batch, and no mean follows.
    pub(crate) alone: f64,
    /// This rank's rows.
    rows: i64,
    /// Rows of the batch that the ranks share; 0 where they share none.
    batch: i64,
}

impl Counts {
    /// Of a backward outside of shared batches.
    pub(crate) const ONE: Self = Self { factor: 1.0, alone: 1.0, rows: 0, batch: 0 };

    fn of(part: Part, loss: Loss) -> Self {
        let (ranks, rows, batch) = (part.ranks as f64, part.rows as f64, part.batch as f64);
        let (factor, alone) = match loss {
            // In this order equal parts give 1 exactly.
            Loss::Mean => (ranks * rows / batch, 1.0),
            Loss::Sum => (ranks, batch / rows),
        };
        Self { factor, alone, rows: part.rows, batch: part.batch }
    }
}

/// Each half of a word holds that many.
const HALF: u32 = 32;

impl Counts {
    /// What the others are told: this rank's rows, and those of the batch.
    pub(crate) fn word(self) -> i64 {
        // A batch of more rows than that, which no memory holds, is told as one of the most.
        let half = |rows: i64| rows.min(i64::from(i32::MAX));
        half(self.rows) << HALF | half(self.batch)
    }

    /// The rows of the batch in a word; 0 where there is none.
    pub(crate) fn batch_of(word: i64) -> i64 {
        word & i64::from(u32::MAX)
    }

    /// What a rank's part counts in the mean over `ranks`, of its word; `None` where the loss is a sum.
    pub(crate) fn mean_weight(word: i64, ranks: usize) -> Option<f64> {
        match (Self::batch_of(word), loss()) {
            (0, _) => Some(1.0),
            (batch, Loss::Mean) => Some((ranks as i64 * (word >> HALF)) as f64 / batch as f64),
            (_, Loss::Sum) => None,
        }
    }
}

/// What the loss of this process' scope is over the rows of a batch: whether it is a sum.
static SUM: AtomicBool = AtomicBool::new(false);

fn loss() -> Loss {
    if SUM.load(Ordering::Relaxed) { Loss::Sum } else { Loss::Mean }
}

/// A part that was given out and not yet followed by another.
#[derive(Clone, Copy)]
struct Held {
    holder: u64,
    counts: Counts,
}

#[derive(Clone, Copy)]
struct State {
    held: Option<Held>,
    /// A pass ended whose last part had a factor, and was followed by no backward.
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

/// What a backward that begins now counts with; notes that it has begun. `None` where that cannot be told, since batches were
/// drawn ahead of it.
pub(crate) fn of_step() -> Option<Counts> {
    BEGUN.set(BEGUN.get().wrapping_add(1));
    match STATE.get() {
        State { held: Some(held), .. } => {
            change(|state| state.drawn_ahead = false);
            Some(held.counts)
        }
        State { drawn_ahead: true, .. } => None,
        _ => Some(Counts::ONE),
    }
}

/// A scope begins, whose loss is `loss` over rows: what was drawn before is none of its steps'.
pub(crate) fn begin(loss: Loss) {
    SUM.store(loss == Loss::Sum, Ordering::Relaxed);
    STATE.set(State { held: None, drawn_ahead: false });
}

/// One iterator's hold on what a backward counts with.
#[derive(Debug)]
pub(super) struct Holder {
    number: u64,
    thread: ThreadId,
    /// Backwards that had begun when the last part was given out, if that part has a factor.
    given_at: Option<u64>,
}

impl Holder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            thread: std::thread::current().id(),
            given_at: None,
        }
    }

    /// A part is given out.
    ///
    /// # Errors
    /// [`DataError::OtherThread`] for a part with a factor, on a thread that trains nothing.
    pub(super) fn hold(&mut self, part: Part) -> Result<(), DataError> {
        self.hold_counts(Counts::of(part, loss()))
    }

    fn hold_counts(&mut self, counts: Counts) -> Result<(), DataError> {
        let plain = counts.factor == 1.0;
        if self.elsewhere() {
            return if plain { Ok(()) } else { Err(DataError::OtherThread) };
        }
        self.given_at = (!plain).then(|| BEGUN.get());
        change(|state| state.held = Some(Held { holder: self.number, counts }));
        Ok(())
    }

    /// No batch of this iterator is under way.
    pub(super) fn release(&mut self) {
        if self.elsewhere() {
            return;
        }
        let unused = self.given_at.take().is_some_and(|begun| begun == BEGUN.get());
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
    use super::{Counts, Holder, Part, begin, of_step};
    use crate::data::{DataError, Share};
    use crate::options::Loss;

    /// Of 8 rows over 2 ranks, a part that counts `factor` times.
    fn part(factor: f64) -> Part {
        Part { start: 0, rows: (factor * 4.0) as i64, batch: 8, ranks: 2 }
    }

    fn factor() -> f64 {
        of_step().unwrap().factor
    }

    #[test]
    fn equal_parts_of_a_mean_count_once_exactly() {
        for world in 2..12 {
            for rank in 0..world {
                let share = Share::new(rank, world).unwrap();
                let counts = Counts::of(Part::of(7 * world as i64, share), Loss::Mean);
                assert_eq!((counts.factor, counts.alone), (1.0, 1.0));
            }
        }
    }

    #[test]
    fn p20_the_factors_give_the_mean_or_the_sum_over_all_rows() {
        // What each rank's loss is over its rows, when every row's is its number.
        let rows: Vec<f64> = (0..11).map(f64::from).collect();
        for world in 2..6 {
            let over_ranks = |loss, over: fn(&[f64]) -> f64| -> f64 {
                let of_rank = |rank| {
                    let part = Part::of(11, Share::new(rank, world).unwrap());
                    let own = &rows[part.start as usize..(part.start + part.rows) as usize];
                    Counts::of(part, loss).factor * over(own)
                };
                (0..world).map(of_rank).sum::<f64>() / world as f64
            };
            let mean = over_ranks(Loss::Mean, |own| own.iter().sum::<f64>() / own.len() as f64);
            let sum = over_ranks(Loss::Sum, |own| own.iter().sum());
            assert!((mean - 5.0).abs() < 1e-12 && (sum - 55.0).abs() < 1e-12, "{mean} {sum}");
        }
    }

    #[test]
    fn the_factor_is_that_of_the_batch_given_last() {
        assert_eq!(of_step(), Some(Counts::ONE));
        let mut holder = Holder::new();
        holder.hold(part(1.25)).unwrap();
        assert_eq!((factor(), of_step().unwrap().batch), (1.25, 8));
        holder.hold(part(0.75)).unwrap();
        assert_eq!(factor(), 0.75);
        holder.release();
        assert_eq!(of_step(), Some(Counts::ONE));
    }

    #[test]
    fn a_word_tells_the_others_what_counts() {
        let counts = Counts::of(part(1.25), Loss::Mean);
        assert_eq!(Counts::batch_of(counts.word()), 8);
        assert_eq!(Counts::mean_weight(counts.word(), 2), Some(1.25));
        assert_eq!((Counts::ONE.word(), Counts::mean_weight(0, 2)), (0, Some(1.0)));
    }

    #[test]
    fn a_loop_that_is_left_leaves_no_factor_behind() {
        let mut holder = Holder::new();
        holder.hold(part(1.25)).unwrap();
        assert_eq!(factor(), 1.25);
        drop(holder);
        assert_eq!(factor(), 1.0);
    }

    #[test]
    fn an_iterator_takes_back_only_its_own_factor() {
        let (mut outer, mut inner) = (Holder::new(), Holder::new());
        outer.hold(part(1.5)).unwrap();
        inner.hold(part(0.5)).unwrap();
        outer.release();
        assert_eq!(factor(), 0.5);
    }

    #[test]
    fn p20_a_backward_after_batches_drawn_ahead_is_refused() {
        let mut holder = Holder::new();
        holder.hold(part(1.25)).unwrap();
        holder.release();
        assert_eq!(of_step(), None);
        begin(Loss::Mean);
        assert_eq!(factor(), 1.0);
        holder.hold(part(1.25)).unwrap();
        holder.release();
        assert_eq!(of_step(), None);
        // A batch that is stepped on settles it.
        holder.hold(part(1.25)).unwrap();
        assert_eq!(factor(), 1.25);
        holder.release();
        assert_eq!(factor(), 1.0);
    }

    #[test]
    fn p20_the_last_step_of_a_pass_looked_at_ahead_is_refused() {
        let mut holder = Holder::new();
        holder.hold(part(1.25)).unwrap();
        assert_eq!(factor(), 1.25);
        holder.hold(part(1.25)).unwrap();
        // The pass ends before the step on its last batch.
        holder.release();
        assert_eq!(of_step(), None);
    }

    #[test]
    fn equal_parts_may_be_drawn_ahead() {
        let mut holder = Holder::new();
        holder.hold(part(1.0)).unwrap();
        holder.release();
        assert_eq!(factor(), 1.0);
    }

    #[test]
    fn p20_unequal_parts_cannot_be_drawn_on_another_thread() {
        let mut holder = Holder::new();
        let moved = std::thread::spawn(move || (holder.hold(part(1.0)), holder.hold(part(1.25))));
        let (equal, unequal) = moved.join().unwrap();
        assert!(equal.is_ok());
        assert!(matches!(unequal, Err(DataError::OtherThread)));
    }
}
